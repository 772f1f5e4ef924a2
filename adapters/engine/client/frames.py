"""What a frame of an Engine's stream means (section 8): one handler for each event.

A handler takes the state and the frame, changes the one and returns raw events. What comes for a
turn that is over is read in the same way, beside the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from adapters.engine.alignment import MarkedFrame
from adapters.engine.client import early_results, interactions, turn_end, work
from adapters.engine.client.state import EngineClientState, EngineFrame, native_of
from adapters.model import events as ev
from adapters.wire.partial_recovery import block_of, salvage

_Handler = Callable[[EngineClientState, EngineFrame], list[ev.Event]]

_HANDLERS: Mapping[str, _Handler] = {
    "thread_lifecycle": turn_end.lifecycle,
    "error": turn_end.error,
    "text_delta": work.text,
    "thinking_delta": work.thinking,
    "content_block_start": work.block_start,
    "content_block_stop": work.block_stop,
    "tool_call": work.tool_call,
    "tool_result": work.tool_result,
    "hitl_request": interactions.requested,
    "hitl_resolved": interactions.resolved,
    "working_memory_update": work.memory,
    "compaction_event": work.compaction,
    "usage": work.usage,
}

_OF_TURN = frozenset(_HANDLERS) - {"working_memory_update", "compaction_event", "usage"}
"""Events that mean nothing outside of a turn."""

_SETTLING = frozenset({"hitl_request", "hitl_resolved", "thread_lifecycle", "error"})
"""Events after which nothing more will show about calls that are held; they bring none.

A request has marked the call that asks. A delta is not one of them: without the results of its
calls the model cannot go on, so it is the rest of the same answer.
"""

_CALL = "tool_call"
"""The one event that brings a call."""


def meaning(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Return what a frame means, as far as that may be told now."""
    handler = _HANDLERS.get(seen.name, work.unknown)
    return hold(s, handler(s, seen), seen.name, seen.now)


def hold(s: EngineClientState, events: list[ev.Event], name: str, now: int) -> list[ev.Event]:
    """Let events of a frame through, or keep them behind a call that is held."""
    if name in _SETTLING:
        return s.held.let_go() + events
    returned = {event.call_id for event in events if isinstance(event, ev.ToolReturned)}
    if name == _CALL and returned:
        # Its result came before it.
        out = s.held.keep(events, now)
        for call_id in returned:
            s.held.decide(call_id, "allow")
        return out + s.held.go()
    if not s.held.events:
        return s.held.keep(events, now) if name == _CALL else events
    if not returned.intersection(s.held.undecided):
        return s.held.keep(events, now)
    return s.held.let_go(returned) + s.held.keep(events, now)


def is_late(s: EngineClientState, name: str, payload: dict[str, Any], *, may_begin: bool) -> bool:
    """Say whether a frame belongs to a turn that is over: one begins with `started` (9.1), or where
    `may_begin` says that one is awaited."""
    if name not in _OF_TURN:
        return False
    if name == "thread_lifecycle" and payload.get("phase") not in turn_end.LAST_PHASES:
        return False
    if s.turn is None:
        return not may_begin
    named = payload.get("turn_id")
    return named is not None and named != s.turn and named == s.last_turn


def late(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Say what a late frame means, as of its turn: the normalizer puts it aside."""
    if seen.name == "thread_lifecycle":
        return []
    if s.last_turn is None:
        return work.unknown(s, seen)
    if seen.name == "error":
        error = turn_end.error_of(seen.payload)
        return [
            ev.ErrorReported(
                thread_id=ev.MAIN,
                code=error.code,
                message=error.message,
                details=error.details,
                native=seen.native,
            )
        ]
    beside = EngineClientState(turn=s.last_turn)
    events = _HANDLERS[seen.name](beside, seen) + early_results.let_go(beside)
    return [event for event in events if not isinstance(event, ev.StepStarted)]


_SALVAGED = frozenset(
    {"thread_lifecycle", "error", "hitl_request", "hitl_resolved", "tool_call", "tool_result"}
)
"""Events whose ids and ends count, though the rest of them cannot be read."""


def salvaged(frame: MarkedFrame, task: str, number: int, now: int) -> EngineFrame | None:
    """Return what can be read of a frame of a task that cannot be read to its end, None where that
    means nothing. `number` is the frame's."""
    name, data = (frame.name, frame.data) if frame.name else block_of(frame.data)
    payload = salvage(data)
    if not payload or name not in _SALVAGED or payload.get("task_id") not in (None, task):
        return None
    if name == "tool_result" and "error" not in payload:
        payload.setdefault("output", frame.reason or "The result cannot be read.")
    return EngineFrame(name, payload, native_of(name, payload, number), now, len(data))
