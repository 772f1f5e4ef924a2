"""Names of the hooks of a Hermes Agent, as its page has them (sections 2 to 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from adapters.wire.jsonvalue import format_json, name_of

DIALECT = "hermes-agent"

GATEWAY = "gateway:"
"""What the name of a gateway hook begins with, as our handler sends it: an agent's has the same
words otherwise."""

OURS = "dragoman"
"""The member of a delivery that our ways in add: how it came, and how long its sender waits."""

TEST = "dragoman_test"
"""The argument of a hook that only asks whether the gate works."""

DECISIONS = "/decisions/"
"""Where an answer to a call goes that waits: there is no such path, the sender's request waits."""

LONGEST_WAIT = 3_600
"""Seconds that a sender may say it waits. Hermes itself ends a shell hook after 300."""

BEGINS = frozenset(
    {
        *("on_session_start", "pre_llm_call", "pre_api_request", "post_api_request"),
        *("api_request_error", "pre_tool_call", "post_tool_call", "subagent_start"),
        *("on_stream_start", "on_stream_delta", "gateway:agent:start"),
    }
)
"""Hooks that show an agent at work: of a session that is not known they begin one. The end of one
that is not known tells nothing."""


def waits_for(hook: Mapping[str, Any]) -> int | None:
    """Return how long the sender of a hook waits for a decision, in milliseconds; None where it
    does not."""
    ours = hook.get(OURS)
    seconds = ours.get("wait_seconds") if isinstance(ours, dict) else None
    if hook.get("hook_event_name") != "pre_tool_call" or isinstance(seconds, bool):
        return None
    if not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_WAIT:
        return None
    return round(seconds * 1000)


def call_key(hook: Mapping[str, Any]) -> str:
    """Return what a call is known by while it waits, the same by whatever way its hook came: the
    id alone is not enough, since some model servers count calls anew in each turn."""
    extra = hook.get("extra")
    extra = extra if isinstance(extra, dict) else {}
    named = [hook.get("session_id"), extra.get("turn_id"), extra.get("api_request_id")]
    call = name_of(extra.get("tool_call_id"))
    if call is None:
        call = str(hook.get("delivery_id"))
    return hashlib.sha256(format_json([*named, call])).hexdigest()[:32]


def sessions_of(hook: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names by which the session of a hook may be known, the surest first.

    Approvals have no session (section 2.1): the turn's id begins with it, and in the CLI, the API
    server and JSON-RPC the key of the session is its id.
    """
    extra = hook.get("extra")
    extra = extra if isinstance(extra, dict) else {}
    turn = name_of(extra.get("turn_id")) or ""
    found = (
        name_of(hook.get("session_id")),
        name_of(extra.get("parent_session_id")),
        name_of(turn.rpartition(":")[0].rpartition(":")[0]),
        name_of(extra.get("session_key")),
    )
    return tuple(dict.fromkeys(name for name in found if name is not None))
