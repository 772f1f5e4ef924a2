"""Requests to a person, as the encoder shows them: as a tool use that waits, or as an event."""

from __future__ import annotations

from typing import Any

from adapters.herm import wire
from adapters.herm.content import write_use
from adapters.herm.interactions import choices_of, question_of
from adapters.herm.state import HermState, RequestEnvelope
from adapters.herm.writer import HermWriter
from adapters.model import events as ev
from adapters.serving.records import forget

REQUESTS_KEPT = 200
"""Interactions that are over and still recognised, so that a late answer gets 409 and not 400."""


def find(s: HermState, name: str, session_id: str) -> str | None:
    """Return the canonical id of the request that a frontend names: by payload id, request id or
    envelope id."""
    if name in s.requests:
        return name
    sequence = wire.position_of(name, session_id)
    for request_id, shown in s.requests.items():
        if name == shown.id or sequence == shown.sequence:
            return request_id
    return None


def requested(w: HermWriter, event: ev.InteractionRequested) -> None:
    """Write a request, unless the call that it is about says it."""
    shown = RequestEnvelope(event.kind, event.request_id)
    call = None
    if event.call_id is not None and event.thread_id == ev.MAIN:
        call = w.s.calls.get(event.call_id)
    if event.kind not in ("approval", "tool_result"):
        shown.labels = {option.id: option.label for option in event.options or ()}
        type_, payload = _request(event)
        shown.sequence = w.write(event, type_, payload | _beside(event))
    elif call is None or (call.kind == "custom") != (event.kind == "tool_result"):
        _ask_without_call(w, event, shown)
    else:
        shown.id = event.call_id or ""
        if event.kind == "approval" and not call.asked:
            # The call was written before it was known that it asks: said again, same payload id.
            call.asked = True
            call.preview = call.preview or event.prompt or None
            write_use(w, event, shown.id, call)
        shown.sequence = call.sequence
    w.s.requests[event.request_id] = shown


def _request(event: ev.InteractionRequested) -> tuple[str, dict[str, Any]]:
    payload: dict[str, Any] = {"request_id": event.request_id}
    more: dict[str, Any]
    match event.kind:
        case "sudo":
            more = {"prompt": event.prompt} if event.prompt else {}
            return "agent.sudo_request", payload | more
        case "secret":
            details = event.details or {}
            more = {k: v for k, v in details.items() if k not in ("type", "request_id")}
            return "agent.secret_request", payload | {"prompt": event.prompt} | more
        case _:
            more = {"question": question_of(event), "choices": choices_of(event)}
            return "agent.clarify_request", payload | more


def _beside(event: ev.InteractionRequested) -> dict[str, Any]:
    """Return the members that Herm has no place for: whose ask it is, until when it holds."""
    members: dict[str, Any] = {}
    if event.thread_id != ev.MAIN:
        members["thread_id"] = event.thread_id
    if event.expires_at is not None:
        members["expires_at"] = wire.iso(event.expires_at)
    return members


def _ask_without_call(
    w: HermWriter, event: ev.InteractionRequested, shown: RequestEnvelope
) -> None:
    """Write a tool use for an ask without a call: it always says what it is about."""
    details, approval = dict(event.details or {}), event.kind == "approval"
    shown.own = "agent.tool_use" if approval else "agent.custom_tool_use"
    shown.tool = str(details.pop("tool", None) or ("permission" if approval else "ask"))
    input_ = details.pop("input", None)
    if input_ is None:
        input_ = details or {"prompt": event.prompt}
    if not isinstance(input_, dict):
        input_ = {"value": input_}
    payload: dict[str, Any] = {"id": event.request_id, "tool": shown.tool, "input": input_}
    if approval:
        preview = {"preview": event.prompt} if event.prompt else {}
        payload |= {"status": "running", **preview, "requires_action": True}
    shown.sequence = w.write(event, shown.own, payload | _beside(event))


def answered(w: HermWriter, event: ev.InteractionAnswered) -> None:
    """Record whether the application answers a call of its own."""
    shown = w.s.requests.get(event.request_id)
    if shown is not None and shown.kind == "tool_result":
        call = w.s.calls.get(shown.id)
        if call is not None:
            call.answered = event.state == "claimed"


def resolved(w: HermWriter, event: ev.InteractionResolved) -> None:
    """End a tool use that we wrote for a request, and keep which request it was."""
    shown = w.s.requests.pop(event.request_id, None)
    if shown is None:
        return
    told = shown.own == "agent.custom_tool_use" and event.outcome == "answered"
    if shown.own is not None and not told:
        allowed = event.outcome in ("approved", "answered")
        payload = {
            "tool_use_id": shown.id,
            "tool": shown.tool,
            "status": "completed" if allowed else "failed",
            "content": wire.text_blocks(event.reason or event.outcome),
            "is_error": not allowed,
        }
        w.write(event, "agent.tool_result", payload)
    # Put back at the end: what is over is forgotten oldest first.
    shown.own, shown.labels, shown.over = None, {}, True
    w.s.requests[event.request_id] = shown
    forget(w.s.requests, REQUESTS_KEPT, lambda record: record.over)
