"""What a Herm is asked to learn whether it is one (herm page, sections 1, 2.3, 4.3 and 6)."""

from __future__ import annotations

from typing import Any

from multidict import CIMultiDict, MultiDict

from adapters.contract.probing import Generation, Probe, Question
from adapters.herm import wire
from adapters.model.base import Call, Request
from adapters.wire.url_paths import is_segment

_REFUSALS = {401: "unauthorized", 403: "forbidden"}
"""Section 6."""


def _sessions(status: int, body: Any) -> bool:
    """Say whether an answer is a page of sessions, or a refusal of the key in a form of section
    6."""
    match body:
        case {"error": {"code": str(code)}} | {"error": str(code), "message": str()}:
            return _REFUSALS.get(status) == code
        case {"code": str(code), "message": str()}:
            return _REFUSALS.get(status) == code
        case {"data": [{"agentId": str()}, *_]} | {"data": list(), "nextCursor": _}:
            return True
        case {"data": []}:
            return len(body) == 1
    return False


def _generation(_: Any) -> Generation:
    return Generation("none of its answers tells a version")


def _stream(page: Any) -> Call | str:
    match page:
        case {"data": [{"id": str(session)}, *_]} if is_segment(session):
            path = wire.session_path(session, "events", "stream")
            headers = CIMultiDict({"Accept": "text/event-stream"})
            return Call("check", Request("GET", path, headers=headers), stream=True)
    return "a Herm streams sessions only; it has none yet, and to make one is an effect"


PROBE = Probe(
    header="Authorization",
    framing="sse",
    keyed=Question(
        Call("check", Request("GET", wire.SESSIONS, MultiDict({"limit": "1"}))), _sessions
    ),
    generation=_generation,
    stream=_stream,
    below="/v1",
)
"""A list of one session, and that one's stream, which only reads. No route is open to everybody."""
