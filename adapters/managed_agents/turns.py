"""Turns: how a stream tells that a thread works or waits, and what it has used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.managed_agents import content, wire
from adapters.managed_agents.threads import child_status, of_thread
from adapters.managed_agents.writer import EventWriter
from adapters.model import events as ev

END_TURN: Mapping[str, Any] = {"type": "end_turn"}
EXHAUSTED: Mapping[str, Any] = {"type": "retries_exhausted"}

_REASONS = {
    "completed": "end_turn",
    "interrupted": "end_turn",
    "refused": "refusal",
    "over_budget": "budget_reached",
    "failed": "retries_exhausted",
    "exhausted": "retries_exhausted",
}
"""The outcome of a turn -> `stop_reason` (section 7.3)."""

_ERRORS = frozenset(
    {
        *("unknown_error", "model_overloaded_error", "model_rate_limited_error"),
        *("model_request_failed_error", "billing_error", "mcp_connection_failed_error"),
        *("mcp_authentication_failed_error", "credential_host_unreachable_error"),
        *("tool_use_limit_reached_error", "compaction_limit_reached_error"),
        *("repository_authentication_error", "repository_forbidden_error"),
        *("repository_not_found_error", "repository_checkout_error", "repository_clone_error"),
    }
)
"""Section 8."""


# The thread whose stream it is.


def running(w: EventWriter, event: ev.Event) -> None:
    """Say that the thread works, unless it was said."""
    s = w.s
    if s.running:
        return
    s.running, s.error, s.rested, s.since = True, "", None, w.at
    # What else wakes it, such as a message that is refused at once, may let it rest as well.
    begins = isinstance(event, ev.TurnStarted | ev.TurnResumed)
    if w.is_primary:
        w.write(event, wire.STATUS_RUNNING, {}, role="" if begins else "running")
    role = "thread" if begins else "thread-running"
    w.write(event, wire.THREAD_RUNNING, of_thread(w, w.thread), role=role)


def idle(w: EventWriter, event: ev.Event, reason: Mapping[str, Any], **more: Any) -> None:
    """Say that the thread rests or waits; of the primary one with what the session has used."""
    s = w.s
    fields = {"stop_reason": reason, **more}
    if not s.running and s.rested == fields:
        # It was told already that this is what it waits for.
        return
    if s.running:
        s.active_ms += w.at - s.since
    s.running, s.rested = False, fields
    content.end_request(w, event)
    w.write(event, wire.THREAD_IDLE, {**of_thread(w, w.thread), **fields}, role="thread")
    if w.is_primary:
        w.write(event, "session.usage", {"usage": s.usage}, role="usage")
        w.write(event, wire.STATUS_IDLE, fields)


def started(w: EventWriter, event: ev.TurnStarted | ev.TurnResumed) -> None:
    """Begin a turn, or go on with it."""
    if w.is_own(event):
        running(w, event)
    elif w.is_primary:
        child_status(w, event, wire.THREAD_RUNNING, "running")


def paused(w: EventWriter, event: ev.TurnPaused) -> None:
    """Say what a turn waits for. One that waits for other tasks works, as people see it."""
    if event.on == "tasks":
        return
    own, primary = w.is_own(event), w.is_primary
    if event.on == "retry":
        if own and primary:
            w.write(event, "session.status_rescheduled", {})
        if own:
            fields = of_thread(w, w.thread)
            w.write(event, "session.thread_status_rescheduled", fields, role="thread")
        elif primary:
            child_status(w, event, "session.thread_status_rescheduled", "rescheduling")
        return
    ids = [w.s.requests[name].id for name in event.request_ids if name in w.s.requests]
    reason = {"type": "requires_action", "event_ids": ids}
    if own:
        idle(w, event, reason)
    elif primary:
        child_status(w, event, wire.THREAD_IDLE, "idle", stop_reason=reason)


def ended(w: EventWriter, event: ev.TurnEnded) -> None:
    """End a turn: why it failed stands before its end."""
    own = w.is_own(event)
    if own and event.usage is not None:
        content.take_usage(w, event, event.usage)
    reason = (event.extra or {}).get("stop_reason") if wire.is_native(event) else None
    if reason is None:
        reason = {"type": _REASONS[event.outcome]}
        if event.outcome in ("interrupted", "failed"):
            # Ours: the reason is that of another outcome as well.
            reason["outcome"] = event.outcome
    more = {}
    if event.outcome == "refused" and event.error is not None:
        details = event.error.details or {}
        more["stop_details"] = {
            "type": "refusal",
            "category": details.get("category"),
            "explanation": event.error.message,
        }
    if not own:
        if w.is_primary:
            child_status(w, event, wire.THREAD_IDLE, "idle", stop_reason=reason, **more)
        return
    content.cut_off(w, event)
    failed = event.outcome in ("failed", "exhausted")
    error = event.error
    if failed and not wire.is_native(event):
        if error is None:
            text = f"The turn ended: {event.outcome}."
            write_error(w, event, "unknown_error", text, "exhausted", None)
        elif error.message != w.s.error:
            write_error(w, event, error.code, error.message, "exhausted", error.details)
    w.s.calls = {name: use for name, use in w.s.calls.items() if use.thread != w.thread}
    idle(w, event, reason, **more)


# Errors, and the end of a session.


def error_reported(w: EventWriter, event: ev.ErrorReported) -> None:
    """Write an error; a child's stands on its own stream."""
    if w.is_own(event):
        w.s.error = event.message
        write_error(w, event, event.code, event.message, event.retry, event.details, role="")


def gap(w: EventWriter, event: ev.Gap) -> None:
    """Say that events are missing."""
    if w.is_own(event):
        text = f"Some events are missing here: {event.reason}"
        write_error(w, event, "gap", text, "retrying", None, role="")


def write_error(
    w: EventWriter,
    event: ev.Event,
    code: str,
    message: str,
    retry: str | None,
    details: Mapping[str, Any] | None,
    role: str = "error",
) -> None:
    """Write an error (section 8): a code of another dialect stands in the message."""
    known = code in _ERRORS or wire.is_native(event)
    error: dict[str, Any] = {
        "type": code if known else "unknown_error",
        "message": message if known or code in message else f"{code}: {message}",
        "retry_status": {"type": retry or "retrying"},
    }
    if known:
        error |= {name: value for name, value in (details or {}).items() if name not in error}
        if code.startswith("mcp_"):
            error.setdefault("mcp_server_name", "")
    w.write(event, "session.error", {"error": error}, role=role)


def session_ended(w: EventWriter, event: ev.SessionEnded) -> None:
    """Write that a session is over; the streams of a deleted one end."""
    s = w.s
    if not s.over:
        content.cut_off(w, event)
        content.end_request(w, event)
    if event.outcome == "deleted":
        w.write(event, "session.deleted", {})
        w.end()
    elif not s.over:
        if event.error is not None or event.outcome == "failed":
            code = "unknown_error" if event.error is None else event.error.code
            text = "The session failed." if event.error is None else event.error.message
            write_error(
                w,
                event,
                code,
                text,
                "terminal",
                None if event.error is None else event.error.details,
            )
        _terminated(w, event)
    s.running, s.over = False, True
    s.calls.clear()


def session_updated(w: EventWriter, event: ev.SessionUpdated) -> None:
    """Write what has changed; an archived session is terminated."""
    if not w.is_primary:
        return
    fields: dict[str, Any] = {
        "title": event.title,
        "metadata": event.metadata,
        "agent": event.agent,
        "predecessor": event.predecessor,
        "replaced_by": event.replaced_by,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    if event.native is not None and wire.is_native(event):
        # The service's own agent is in `extra`; the answer of a create is not an event of it.
        fields = {name: value for name, value in fields.items() if name != "agent"}
        fields = {**fields, **(event.extra or {})} if event.native.type else {}
    if fields:
        w.write(event, "session.updated", fields)
    if event.archived_at is not None and not w.s.over:
        w.s.over, w.s.running = True, False
        _terminated(w, event, role="terminated" if fields else "")


def _terminated(w: EventWriter, event: ev.Event, role: str = "") -> None:
    if w.is_primary:
        w.write(event, wire.TERMINATED, {}, role=role)
    else:
        fields = of_thread(w, w.thread)
        w.write(event, "session.thread_status_terminated", fields, role="thread")
