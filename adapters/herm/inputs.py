"""Inputs: the `user.*` envelopes, and what becomes of them.

An input of a Herm frontend has its envelope where it was accepted, because the answer to the POST
names it. One of another face, which may wait in a queue, has it where it was processed: so
`sequence` and the order of the conversation agree.
"""

from __future__ import annotations

from typing import Any

from adapters.herm import wire
from adapters.herm.state import HermState, InputEnvelope, RequestEnvelope
from adapters.herm.turns import show_refused
from adapters.herm.writer import HermWriter
from adapters.model import events as ev
from adapters.serving.records import forget


def accepted(w: HermWriter, event: ev.InputAccepted) -> None:
    """Keep an input; one of this face has its envelope at once."""
    if event.kind not in ("message", "steer", "interrupt", "answer"):
        return
    record = InputEnvelope(event.kind, _payload(w.s, event))
    if event.face == wire.DIALECT:
        w.place(event, record)
    w.s.inputs[event.command_id] = record


def _payload(s: HermState, event: ev.InputAccepted) -> dict[str, Any]:
    details = event.details or {}
    match event.kind:
        case "message":
            return {"type": "user.message", "content": wire.blocks_of(event.content)}
        case "steer":
            return {"type": "user.steer", "message": details.get("text", "")}
        case "interrupt":
            note = details.get("note")
            return {"type": "user.interrupt"} | ({} if note is None else {"message": note})
        case _:
            return _answer(s, event, details)


def _answer(s: HermState, event: ev.InputAccepted, details: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as the `user.*` event that it is here; a sealed value is nowhere to be
    had."""
    request_id = event.request_id or ""
    shown = s.requests.get(request_id) or RequestEnvelope("question", request_id)
    match shown.kind:
        case "approval":
            payload = {
                "type": "user.tool_confirmation",
                "tool_use_id": shown.id,
                "result": details.get("decision", "deny"),
            }
            return payload | ({"scope": details["scope"]} if "scope" in details else {})
        case "tool_result":
            return {
                "type": "user.custom_tool_result",
                "tool_use_id": shown.id,
                "content": wire.blocks_of(
                    event.content or (ev.Text(text=details.get("text", "")),)
                ),
                "is_error": details.get("is_error", False),
            }
        case "sudo":
            return {"type": "user.sudo_result", "request_id": request_id}
        case "secret" | "unknown":
            return {"type": "user.secret_result", "request_id": request_id}
        case _:
            chosen = [shown.labels.get(name, name) for name in details.get("option_ids", ())]
            answer = details.get("text") or ", ".join(chosen)
            return {"type": "user.clarify_result", "request_id": request_id, "answer": answer}


def settled(w: HermWriter, event: ev.InputSettled) -> None:
    """Write what became of an input."""
    s, taken = w.s, event.outcome == "taken"
    record = s.inputs.get(event.command_id)
    if record is None:
        return
    record.status = "complete" if taken else "failed"
    record.processed = w.now
    if not taken:
        record.error = {
            "code": event.error.code if event.error is not None else event.outcome,
            "message": event.reason or f"The input was {event.outcome}.",
        }
    if record.sequence is not None:
        w.show(record, record.sequence, update=True)
        if record.kind == "message" and not taken:
            show_refused(w, event)
    elif record.kind in ("message", "steer"):
        # Shown where it becomes part of the conversation.
        if not taken:
            del s.inputs[event.command_id]
        return
    elif taken:
        w.place(event, record)
    # For the answer to their own POST the newest are remembered: a batch has seldom more.
    forget(s.inputs, 16, lambda kept: kept.status != "pending")


def received(w: HermWriter, event: ev.MessageReceived | ev.GuidanceReceived) -> None:
    """Write a message or guidance, unless it was written where it was accepted."""
    name = event.command_id or ""
    record = w.s.inputs.get(name)
    if event.thread_id != ev.MAIN or (record is not None and record.sequence is not None):
        return
    w.s.inputs.pop(name, None)
    payload: dict[str, Any]
    if isinstance(event, ev.MessageReceived):
        payload = {"type": "user.message", "content": wire.blocks_of(event.content)}
    else:
        payload = {"type": "user.steer", "message": event.text}
    w.place(event, InputEnvelope("message", payload, "complete", processed=w.now))
