"""The configuration of a Dragoman under proof."""

from __future__ import annotations

from collections.abc import Mapping

from tests.proof.backends import HOST
from tests.support.eve_client import Form

__all__ = ["configuration"]

PATIENCE_S = 10.0
"""How long an Engine may say nothing of a message before it counts as unknown; a minute otherwise.
It has no list of messages, so silence is all the evidence that there is. A machine that does much
else is silent for seconds: an eve is listened to for as long."""


def configuration(port: int, journal: str, form: Form, backends: Mapping[str, int]) -> str:
    """Return the file of a Dragoman.

    Args:
        port: where it listens.
        journal: the URL of its journal.
        form: of the eve face.
        backends: the port of each, by its dialect.
    """
    text = f"""
[server]
listen = "{HOST}:{port}"
[journal]
url = "{journal}"
[eve]
form = "{form}"
"""
    for dialect, there in backends.items():
        text += f"""
[[backends]]
name = "{dialect}"
dialect = "{dialect}"
url = "http://{HOST}:{there}"
"""
        if dialect == "herm":
            text += 'create = { agent = "agent_K4" }\n'
        if dialect == "managed-agents":
            text += 'create = { agent = "agent_K4", environment_id = "env_K4" }\n'
        if dialect == "engine":
            text += f"settings = {{ patience_seconds = {PATIENCE_S} }}\n"
    return text
