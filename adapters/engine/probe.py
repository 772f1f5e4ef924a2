"""What an Engine is asked to learn whether it is one (engine page, sections 3, 10.3, 11 and 16)."""

from __future__ import annotations

from typing import Any

from multidict import CIMultiDict, MultiDict

from adapters.contract.probing import Generation, Probe, Question
from adapters.engine import wire
from adapters.model.base import Call, Request


def _health(status: int, body: Any) -> bool:
    match body:
        case {"status": str()} if "ok" not in body:
            return "subsystems" in body or "uptime_seconds" in body
    return False


def _pending(status: int, body: Any) -> bool:
    match body:
        case {"pending": list()}:
            return True
    return False


def _generation(_: Any) -> Generation:
    return Generation("none of its answers tells a version")


def _stream(_: Any) -> Call:
    # A time that no event has: a replay from there is empty.
    query = MultiDict({"after": "9999999999999"})
    headers = CIMultiDict({"Accept": "text/event-stream"})
    return Call("check", Request("GET", wire.REPLAY, query, headers), stream=True)


PROBE = Probe(
    header=wire.KEY_HEADER,
    framing="sse",
    open=Question(Call("check", Request("GET", wire.HEALTH)), _health),
    keyed=Question(Call("check", Request("GET", wire.PENDING)), _pending),
    generation=_generation,
    stream=_stream,
)
"""The health, what is pending, and a replay of nothing, which only reads."""
