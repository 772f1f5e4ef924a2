"""What a service of Managed Agents is asked to learn whether it is one (sections 1, 3.3, 6.1 and
12)."""

from __future__ import annotations

from typing import Any

from multidict import CIMultiDict, MultiDict

from adapters.contract.probing import Generation, Probe, Question
from adapters.managed_agents import wire
from adapters.model.base import Call, Request
from adapters.wire.url_paths import is_segment, path_of

_HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
"""Section 1: no call is answered without them, and each server takes the older version."""

_REFUSALS = {401: "authentication_error", 403: "permission_error"}
"""Section 12."""


def _sessions(status: int, body: Any) -> bool:
    """Say whether an answer is a page of sessions, or a refusal of the key."""
    match body:
        case {"type": "error", "error": {"type": str(code)}}:
            return _REFUSALS.get(status) == code
        case {"data": [{"type": "session"}, *_]}:
            return True
        case {"data": [], "next_page": None}:
            return True
    return False


def _generation(_: Any) -> Generation:
    return Generation("none of its answers tells a version")


def _stream(page: Any) -> Call | str:
    match page:
        case {"data": [{"id": str(session)}, *_]} if is_segment(session):
            path = path_of(wire.SESSIONS, session, "events", "stream")
            headers = CIMultiDict({"Accept": "text/event-stream", **_HEADERS})
            return Call("check", Request("GET", path, headers=headers), stream=True)
    return "such a service streams sessions only; it has none yet, and to make one is an effect"


PROBE = Probe(
    header="x-api-key",
    framing="sse",
    keyed=Question(
        Call(
            "check",
            Request("GET", wire.SESSIONS, MultiDict({"limit": "1"}), CIMultiDict(_HEADERS)),
        ),
        _sessions,
    ),
    generation=_generation,
    stream=_stream,
    below="/v1",
)
"""A list of one session, and that one's stream, which only reads. No route is open to everybody."""
