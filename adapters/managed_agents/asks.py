"""Requests to a person, as the encoder shows them: as a tool use that waits for an answer.

A request that no call shows gets a use of its own: an approval one that asks for a permission, all
else one of a reserved custom tool. A child's is shown on the session's stream too, under the same
id.
"""

from __future__ import annotations

from typing import Any

from adapters.managed_agents import inputs, wire
from adapters.managed_agents.state import RequestRecord
from adapters.managed_agents.writer import EventWriter
from adapters.model import events as ev
from adapters.serving.prompts import lines_of
from adapters.serving.records import forget

REQUESTS_KEPT = 200
"""Requests that are over and still recognised, so that a late answer is told so."""


def requested(w: EventWriter, event: ev.InteractionRequested) -> None:
    """Write a request, unless the call that it is about says it."""
    own = w.is_own(event)
    if not own and not w.is_primary:
        return
    use = w.s.calls.get(event.call_id or "")
    is_custom = use is not None and use.type == "agent.custom_tool_use"
    fits = event.kind == "approval" and not is_custom
    if use is not None and (fits or event.kind == "tool_result"):
        record = RequestRecord(use.id, use.type, event.thread_id, event.kind, call=event.call_id)
        if not own:
            _show(w, event, use.id, use.type, use.fields)
    else:
        type_, fields = _own_use(w, event)
        name = w.id_of(event)
        record = RequestRecord(name, type_, event.thread_id, event.kind, own=True)
        _show(w, event, name, type_, fields)
    w.s.requests[event.request_id] = record


def _show(w: EventWriter, event: ev.Event, name: str, type_: str, fields: dict[str, Any]) -> None:
    """Write a use that waits; of a child it says whose it is (section 10)."""
    if type_ != "agent.custom_tool_use":
        fields = {**fields, "evaluated_permission": "ask"}
    if not w.is_own(event):
        fields = {**fields, "session_thread_id": w.name_of(event.thread_id)}
    w.write(event, type_, fields, id_=name)


def _own_use(w: EventWriter, event: ev.InteractionRequested) -> tuple[str, dict[str, Any]]:
    details = dict(event.details or {})
    if event.kind == "approval":
        name = str(details.pop("tool", None) or "permission")
        input_ = details.pop("input", None)
        if input_ is None:
            input_ = details or {"prompt": event.prompt}
        if not isinstance(input_, dict):
            input_ = {"value": input_}
        return "agent.tool_use", {"name": name, "input": input_}
    if event.kind == "tool_result":
        input_ = details.pop("input", None)
        if not isinstance(input_, dict):
            input_ = {"prompt": event.prompt} if input_ is None else {"value": input_}
        name = str(details.pop("tool", None) or w.ask_tool)
        return "agent.custom_tool_use", {"name": name, "input": input_}
    return "agent.custom_tool_use", {"name": w.ask_tool, "input": _question(event)}


def _question(event: ev.InteractionRequested) -> dict[str, Any]:
    """Return what the reserved tool is given: `question`, `options`, `freeform`, and what the
    request is about."""
    input_: dict[str, Any] = {
        "kind": event.kind,
        "question": "\n".join(lines_of(event)) or "The agent waits for an answer.",
        "options": [{"id": o.id, "label": o.label} for o in event.options or ()],
        "freeform": event.kind == "question" and (event.freeform or not event.options),
    }
    if event.kind == "limit" and not event.options:
        input_["options"] = [{"id": name, "label": name} for name in ("continue", "stop")]
    elif event.kind == "authorization" or event.kind in ev.SEALED_KINDS:
        # Nothing on this wire answers it: it can only be declined.
        input_["options"] = [{"id": "decline", "label": "decline"}]
    for name in ("url", "user_code", "instructions", "service"):
        value = (event.details or {}).get(name)
        if event.kind == "authorization" and value:
            input_[name] = value
    if event.expires_at is not None:
        input_["expires_at"] = wire.iso(event.expires_at * 1000)
    return input_


def answered(w: EventWriter, event: ev.InteractionAnswered) -> None:
    """Record whether the application gives the result of a call."""
    record = w.s.requests.get(event.request_id)
    use = None if record is None or record.call is None else w.s.calls.get(record.call)
    if use is not None and use.type == "agent.custom_tool_use":
        use.answered = event.state == "claimed"


def resolved(w: EventWriter, event: ev.InteractionResolved) -> None:
    """End a use that was made for a request, and keep which it was."""
    inputs.take_up(w, event, request=event.request_id)
    ours = any(one.request == event.request_id for one in w.s.inputs.values())
    record = w.s.requests.pop(event.request_id, None)
    if record is None:
        return
    if not ours and event.native is not None and event.native.type == "user.tool_confirmation":
        _answered_elsewhere(w, event, record)
    own = w.is_own(event) or (w.is_primary and record.thread == w.thread)
    told = record.type == "agent.custom_tool_use" and event.outcome == "answered"
    if own and record.own and not told:
        allowed = event.outcome in ("approved", "answered")
        type_, member = wire.RESULTS[record.type]
        fields = {
            member: record.id,
            "content": [{"type": "text", "text": event.reason or event.outcome}],
            "is_error": not allowed,
        }
        w.write(event, type_, fields)
    # Put back at the end: what is over is forgotten oldest first.
    record.over = True
    w.s.requests[event.request_id] = record
    forget(w.s.requests, REQUESTS_KEPT, lambda one: one.over)


def _answered_elsewhere(
    w: EventWriter, event: ev.InteractionResolved, record: RequestRecord
) -> None:
    """Write the answer of another application of the service."""
    decision = "allow" if event.outcome == "approved" else "deny"
    fields = {"tool_use_id": record.id, "result": decision}
    if decision == "deny" and event.answer is not None and event.answer.reason:
        fields["deny_message"] = event.answer.reason
    if w.is_primary and record.thread != w.thread:
        fields["session_thread_id"] = w.name_of(record.thread)
    w.write(event, "user.tool_confirmation", fields)


def find(requests: dict[str, RequestRecord], name: str) -> tuple[str, RequestRecord] | None:
    """Return the request that a frontend names by the id of an event, with its canonical id."""
    found = [(key, one) for key, one in requests.items() if one.id == name]
    return next((one for one in found if not one[1].over), found[-1] if found else None)
