"""What an eve is asked to learn whether it is one, and which (eve page, sections 1, 2.1 and 12)."""

from __future__ import annotations

from typing import Any

from adapters.contract.probing import Generation, Probe, Question
from adapters.eve import wire
from adapters.eve.client.server_profile import not_read
from adapters.model.base import Call, Request


def _health(status: int, body: Any) -> bool:
    match body:
        case {"ok": True, "status": str()}:
            return True
    return False


def _info(status: int, body: Any) -> bool:
    match body:
        case {"kind": "eve-agent-info", "version": int(version)}:
            return type(version) is int
    return False


def _generation(info: Any) -> Generation:
    version = info["version"]
    if version > wire.NEWEST_INFO_VERSION:
        served = f"{wire.FACTS_STREAM_VERSION} or later (its info is of version {version})"
        return Generation(refused=not_read(served).message)
    # Section 1: the first releases of S say 1, as those of T do.
    name = "0.3x or older" if version == 1 else "0.4x or newer"
    return Generation(f"{name} (its info is of version {version})")


def _stream(_: Any) -> str:
    return "an eve streams sessions only, and to make one is an effect"


PROBE = Probe(
    header="Authorization",
    framing="ndjson",
    open=Question(Call("check", Request("GET", wire.HEALTH_PATH)), _health),
    keyed=Question(Call("check", Request("GET", wire.INFO_PATH)), _info),
    generation=_generation,
    stream=_stream,
    below=wire.PREFIX,
)
"""The health and the info. The streams of an unknown session differ between releases."""
