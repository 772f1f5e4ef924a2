"""Requests to a person, as the encoder shows them: one at a time, the oldest first.

An answer names its task and no request (section 10.1), so one that was answered elsewhere before
its turn is skipped.
"""

from __future__ import annotations

from typing import Any

from adapters.engine import wire
from adapters.engine.content import close_block
from adapters.engine.interactions import offered, question_of
from adapters.engine.state import EngineTaskState, HitlRequest
from adapters.engine.writer import EngineWriter
from adapters.model import events as ev


def waiting(s: EngineTaskState) -> HitlRequest | None:
    """Return the request that the task waits for: the one shown and not yet claimed."""
    request = s.requests.get(s.shown or "")
    return None if request is None or request.claimed else request


def requested(w: EngineWriter, event: ev.InteractionRequested) -> None:
    """Keep a request until it is its turn."""
    w.s.requests[event.request_id] = HitlRequest(event, w.at)
    _show_next(w)


def _show_next(w: EngineWriter) -> None:
    """Show the oldest open request, unless one is shown already."""
    s = w.s
    if s.shown is None and s.requests:
        s.shown, request = next(iter(s.requests.items()))
        close_block(w)
        _show(w, request)


def _show(w: EngineWriter, request: HitlRequest) -> None:
    w.write("hitl_request", record_of(w, request), request.event)


def answered(w: EngineWriter, event: ev.InteractionAnswered) -> None:
    """Record that an answer is on its way. Where it came to nothing, anybody who reads is told once
    more that the request is open."""
    request = w.s.requests.get(event.request_id)
    if request is None:
        return
    before, request.claimed = request.claimed, event.state == "claimed"
    if before and not request.claimed and w.s.shown == event.request_id:
        _show(w, request)


def updated(w: EngineWriter, event: ev.InteractionUpdated) -> None:
    """Keep what is told of a request later."""
    request = w.s.requests.get(event.request_id)
    if request is not None:
        details = {**(request.event.details or {}), **event.details}
        request.event = request.event.model_copy(update={"details": details})


def resolved(w: EngineWriter, event: ev.InteractionResolved) -> None:
    """Write the end of the request that is shown, and show the next one."""
    s = w.s
    if s.requests.pop(event.request_id, None) is None or s.shown != event.request_id:
        # Answered elsewhere before it was shown: it never is.
        return
    s.shown = None
    payload = {"request_id": event.request_id, "task_id": w.task_id}
    if event.outcome != "unknown" or not wire.is_native(event):
        # An Engine tells none (section 8.9): where nobody of ours answered, nor do we.
        payload["outcome"] = event.outcome
    w.write("hitl_resolved", payload, event)
    _show_next(w)


def record_of(w: EngineWriter, request: HitlRequest) -> dict[str, Any]:
    """Return the record of a request, as event and list show it (sections 8.8, 10.3)."""
    event = request.event
    details, extra = event.details or {}, event.extra or {}
    record: dict[str, Any] = {
        "request_id": event.request_id,
        "task_id": w.task_id,
        "kind": "permission" if event.kind == "approval" else "question",
        "question": question_of(event),
        "created_at": wire.format_time(request.at),
    }
    if wire.is_native(event) and "kind" in extra:
        # A kind that the page does not list.
        record["kind"] = extra["kind"]
    if options := offered(event):
        record["options"] = options
    if event.kind not in ("approval", "question"):
        record["reason"] = event.kind
    if event.kind == "approval":
        if "tool" in details:
            record["tool"] = details["tool"]
        if "input" in details or "command" in details:
            record["input"] = details.get("input", {"command": details.get("command")})
    if event.call_id is not None:
        record["tool_call_id"] = event.call_id
    if event.expires_at is not None:
        record["expires_at"] = wire.format_time(event.expires_at)
    if event.thread_id != w.thread_id:
        record["thread"] = event.thread_id
    return record
