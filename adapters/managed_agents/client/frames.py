"""What an event of a stream or of a list means: one handler for each type.

A handler takes the state, the thread whose stream or list has the event, and the event; it changes
the first two and returns raw events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from adapters.managed_agents import wire
from adapters.managed_agents.client import ends, inputs, posts, turns, work
from adapters.managed_agents.client.state import (
    AgentsState,
    AgentThread,
    ReceivedEvent,
    hash_of,
    unknown,
)
from adapters.model import events as ev
from adapters.model import raw
from adapters.wire.jsonvalue import name_of, text_of
from adapters.wire.partial_recovery import salvage

_Handler = Callable[[AgentsState, AgentThread, ReceivedEvent], list[ev.Event]]


def _of_session(handler: Callable[[AgentsState, ReceivedEvent], list[ev.Event]]) -> _Handler:
    """Return a handler of what only the session's stream has."""

    def handle(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
        return handler(s, seen) if thread.is_main else [unknown(thread, seen)]

    return handle


_HANDLERS: Mapping[str, _Handler] = {
    **dict.fromkeys(
        (
            *("user.message", "user.interrupt", "user.tool_confirmation", "user.tool_result"),
            *("user.custom_tool_result", "user.define_outcome", "system.message"),
        ),
        inputs.shown,
    ),
    "event_start": work.preview_start,
    "event_delta": work.preview_delta,
    "agent.message": work.message,
    "agent.thinking": work.thinking,
    "agent.tool_use": work.tool_use,
    "agent.mcp_tool_use": work.tool_use,
    "agent.custom_tool_use": work.tool_use,
    "agent.tool_result": work.tool_result,
    "agent.mcp_tool_result": work.tool_result,
    "agent.thread_message_sent": work.thread_message,
    "agent.thread_message_received": work.thread_message,
    "agent.thread_context_compacted": work.compacted,
    wire.STATUS_RUNNING: _of_session(turns.running),
    wire.STATUS_IDLE: _of_session(turns.idle),
    "session.status_rescheduled": turns.rescheduled,
    wire.TERMINATED: _of_session(ends.terminated),
    "session.deleted": _of_session(ends.deleted),
    "session.error": work.error,
    "session.updated": work.updated,
    "session.usage": work.usage,
    "session.thread_created": work.thread_created,
    wire.THREAD_RUNNING: turns.thread_running,
    wire.THREAD_IDLE: turns.thread_idle,
    "session.thread_status_rescheduled": turns.thread_rescheduled,
    "session.thread_status_terminated": turns.thread_terminated,
    "span.model_request_start": work.request_start,
    "span.model_request_end": work.request_end,
    "span.outcome_evaluation_start": work.outcome,
    "span.outcome_evaluation_ongoing": work.outcome,
    "span.outcome_evaluation_end": work.outcome,
}

PREVIEWS = frozenset({"event_start", "event_delta"})
"""Events without an id and a time of their own: no list has them (section 9)."""


def take(
    s: AgentsState, thread: AgentThread, seen: ReceivedEvent, place: int | None, *, by_time: bool
) -> list[ev.Event]:
    """Return what an event means, nothing where it was seen before. `place` is the time of its
    place in a list, `by_time` whether time tells what was seen, as in what repeats the past."""
    if seen.type not in PREVIEWS:
        name = hash_of(seen)
        at = seen.at if seen.at is not None else place
        if thread.known.has(name, at if by_time else None):
            return []
        newest = max(thread.known.recent.values(), default=0)
        thread.known.add(name, at if at is not None else newest)
    handler = _HANDLERS.get(seen.type)
    return [unknown(thread, seen)] if handler is None else handler(s, thread, seen)


_SALVAGED = frozenset(
    {
        *("agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use"),
        *("agent.tool_result", "agent.mcp_tool_result", wire.STATUS_IDLE, wire.STATUS_RUNNING),
        *(wire.THREAD_IDLE, wire.THREAD_RUNNING, wire.TERMINATED),
    }
)
"""Events whose ids and ends count, though the rest of them cannot be read."""


def salvaged(data: bytes, reason: str) -> dict[str, Any] | None:
    """Return what can be read of an event that cannot be read to its end; None where that means
    nothing."""
    event = salvage(data)
    if name_of(event.get("type")) not in _SALVAGED or name_of(event.get("id")) is None:
        return None
    if event["type"].endswith("tool_result"):
        event.setdefault("content", [{"type": "text", "text": reason}])
    return event


def error_frame(s: AgentsState, thread: AgentThread, value: Any, frame: int) -> list[ev.Event]:
    """Report an error that ends a stream (section 6.2), and ask how things are. A third party's
    server leaves out the envelope."""
    body = value.get("error", value) if isinstance(value, dict) else {}
    body = body if isinstance(body, dict) else {"message": str(body)}
    if s.session is not None and s.main.turn is not None:
        s.calls.append(posts.look(s.session))
    return [
        ev.ErrorReported(
            **thread.of(ev.NativeRef(dialect=wire.DIALECT, type="error", frame=frame)),
            code=text_of(body.get("type")) or "error",
            message=text_of(body.get("message")) or "The service ended the stream.",
            retry="retrying",
        )
    ]


def garbled(thread: AgentThread, offending: bytes, reason: str) -> ev.Event:
    """Report what is not an event; the stream goes on."""
    return raw.garbled(
        wire.DIALECT, reason, offending, thread_id=thread.thread_id, turn_id=thread.turn
    )
