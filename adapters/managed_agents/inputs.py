"""Inputs: the `user.*` events, and when they are shown.

A message that wakes the agent is shown once, with its time, behind the events that say so; one that
waits for a turn is streamed twice under one id, first without a time. Answers, stops and outcomes
come once, with a time, before what they cause (live page, section 1). Lists have an input where it
was taken up, and those that wait at their end.
"""

from __future__ import annotations

from typing import Any

from adapters.managed_agents import blocks, turns, wire
from adapters.managed_agents.state import InputRecord, OutcomeRecord, RequestRecord
from adapters.managed_agents.writer import EventWriter
from adapters.model import events as ev
from adapters.serving.records import forget

INPUTS_KEPT = 128
"""Inputs that are over and still known, for the answer to their own request: more than one has."""


def accepted(w: EventWriter, event: ev.InputAccepted) -> None:
    """Keep an input; a message that has to wait is streamed."""
    fields = _fields(w, event)
    if fields is None or not _is_here(w, event):
        return
    alone = fields["type"] == "system.message"
    record = InputRecord(
        w.id_of(event),
        event.kind,
        fields,
        system=None if alone else (event.details or {}).get("system"),
        request=event.request_id if event.kind == "answer" else None,
    )
    w.s.inputs[event.command_id] = record
    w.s.waiting.append(event.command_id)
    if event.kind in ("message", "steer") and w.s.running:
        w.echo(record)


def _is_here(w: EventWriter, event: ev.InputAccepted) -> bool:
    """Say whether an input is shown on this stream: the session's has all of them, a child's those
    that name it or answer it."""
    if w.is_primary or w.is_own(event):
        return True
    request = w.s.requests.get(event.request_id or "")
    return request is not None and request.thread == w.thread


def _fields(w: EventWriter, event: ev.InputAccepted) -> dict[str, Any] | None:
    details = event.details or {}
    match event.kind:
        case "message":
            content = blocks.shown(event.content)
            if not content and details.get("system"):
                return {"type": "system.message", "content": details["system"]}
            return {"type": "user.message", "content": content}
        case "steer":
            text = str(details.get("text", ""))
            return {"type": "user.message", "content": [{"type": "text", "text": text}]}
        case "interrupt":
            thread = details.get("thread_id")
            named = {"session_thread_id": w.name_of(thread)} if thread and w.is_primary else {}
            return {"type": "user.interrupt", **named}
        case "answer":
            return _answer(w, event, details)
        case "outcome":
            more = ("description", "rubric", "max_iterations")
            told = {name: details[name] for name in more if name in details}
            return {"type": "user.define_outcome", "outcome_id": f"outc_{w.id_of(event)}", **told}
        case _:
            return None


def _answer(
    w: EventWriter, event: ev.InputAccepted, details: dict[str, Any]
) -> dict[str, Any] | None:
    """Return an answer as the event that it is here; a sealed value is nowhere to be had."""
    request_id = event.request_id or ""
    record = w.s.requests.get(request_id)
    if record is None:
        record = RequestRecord(request_id, "agent.custom_tool_use", event.thread_id, "question")
    fields: dict[str, Any]
    if record.kind == "approval":
        decision = details.get("decision", "deny")
        fields = {"type": "user.tool_confirmation", "tool_use_id": record.id, "result": decision}
        if decision == "deny" and details.get("reason"):
            fields["deny_message"] = details["reason"]
    else:
        content = blocks.shown(event.content)
        words = details.get("text") or ", ".join(details.get("option_ids", ()))
        if not content and words:
            content = [{"type": "text", "text": words}]
        custom = record.type == "agent.custom_tool_use"
        member = "custom_tool_use_id" if custom else wire.RESULTS[record.type][1]
        fields = {
            "type": "user.custom_tool_result" if custom else "user.tool_result",
            member: record.id,
            "content": content,
            "is_error": bool(details.get("is_error") or details.get("skip")),
        }
    if w.is_primary and record.thread != w.thread:
        fields["session_thread_id"] = w.name_of(record.thread)
    return fields


def settled(w: EventWriter, event: ev.InputSettled) -> None:
    """Write an input that is taken up, or that came to nothing: nobody waits for it then."""
    record = w.s.inputs.get(event.command_id)
    if record is None or event.command_id not in w.s.waiting:
        return
    taken, message = event.outcome == "taken", record.kind in ("message", "steer")
    if taken and message and record.fields["type"] != "system.message":
        # It is shown where it becomes part of the conversation.
        return
    if taken and record.kind == "outcome":
        # The backend has an id of its own for it.
        theirs, ours = (event.extra or {}).get("outcome_id"), str(record.fields["outcome_id"])
        words = str(record.fields.get("description", ""))
        w.s.outcomes[theirs if isinstance(theirs, str) else ours] = OutcomeRecord(ours, words)
    works = w.s.running
    if message and not taken and not works:
        turns.running(w, event)
    _take(w, event, event.command_id)
    if taken:
        return
    error = event.error
    words = event.reason or (error.message if error else f"The input was {event.outcome}.")
    text = f"`{record.fields['type']}` {record.id} was {event.outcome}: {words}"
    code = "unknown_error" if error is None else error.code
    retry = "exhausted" if message and not works else "retrying"
    turns.write_error(w, event, code, text, retry, None)
    if message and not works:
        turns.idle(w, event, turns.EXHAUSTED)


def received(w: EventWriter, event: ev.MessageReceived | ev.GuidanceReceived) -> None:
    """Write a message that became part of the conversation."""
    name = event.command_id or ""
    if name in w.s.waiting:
        if isinstance(event, ev.GuidanceReceived):
            w.s.inputs[name].fields["content"] = [{"type": "text", "text": event.text}]
        _take(w, event, name)
    elif w.is_own(event):
        content = (
            [{"type": "text", "text": event.text}]
            if isinstance(event, ev.GuidanceReceived)
            else blocks.shown(event.content)
        )
        w.write(event, "user.message", {"content": content})


def take_up(w: EventWriter, event: ev.Event, request: str | None = None) -> None:
    """Write what was given before something that it caused: the answer to a request, or all answers
    and stops."""
    for name in list(w.s.waiting):
        record = w.s.inputs[name]
        if record.kind not in ("message", "steer", "outcome") and request in (None, record.request):
            _take(w, event, name)


def _take(w: EventWriter, event: ev.Event, name: str) -> None:
    w.s.waiting.remove(name)
    w.write_input(event, w.s.inputs[name])
    forget(w.s.inputs, INPUTS_KEPT, lambda one: one.at is not None)
