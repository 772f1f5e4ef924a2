"""What is asked: an open request as an interrupt or a call, and what answers it.

A request for the result of a tool is not an interrupt: it is a call without a result. No refusal
quotes a payload: it may hold the value of a sealed request.
"""

from __future__ import annotations

import dataclasses
from typing import Any, assert_never

from adapters.agui import wire
from adapters.model.commands import AnswerInteraction, Sealed
from adapters.model.events import SEALED_KINDS, InteractionRequested
from adapters.serving.answers import answered, decided, refuse
from adapters.serving.prompts import lines_of


@dataclasses.dataclass(frozen=True, slots=True)
class ResumeEntry:
    """A `ResumeEntry`, or what a tool message says in its place."""

    interrupt_id: str
    cancelled: bool
    payload: Any = None


def interrupt_of(event: InteractionRequested) -> dict[str, Any]:
    """Return an open request as an `Interrupt`, with what all clients expect and no `expiresAt`:
    those before 1.0 cannot get past one."""
    interrupt: dict[str, Any] = {"id": event.request_id, "reason": _reason(event)}
    interrupt["message"] = _message(event)
    if event.call_id is not None:
        interrupt["toolCallId"] = event.call_id
    interrupt["responseSchema"] = _schema(event)
    told: dict[str, Any] = {"kind": event.kind}
    if event.options:
        told["options"] = [option.model_dump(exclude_none=True) for option in event.options]
    if event.details:
        told["details"] = event.details
    if event.expires_at is not None:
        told["expiresAt"] = event.expires_at
    if not event.answerable:
        told["answerable"] = False
    interrupt["metadata"] = {wire.OURS: told}
    return interrupt


def _reason(event: InteractionRequested) -> str:
    match event.kind:
        case "approval":
            return wire.CONFIRMATION if event.call_id is None else wire.TOOL_APPROVAL
        case "limit":
            return wire.CONFIRMATION
        case "question" | "tool_result":
            return wire.INPUT_REQUIRED
        case "authorization" | "secret" | "sudo" | "unknown":
            return f"{wire.OURS}:{event.kind}"
        case _:
            assert_never(event.kind)


def _message(event: InteractionRequested) -> str:
    """Return what a person reads: a prompt always says what it is about."""
    lines = lines_of(event)
    if event.kind == "authorization":
        lines.append("Sign in there; here it can only be cancelled.")
    if not event.answerable:
        lines.append("It is asked elsewhere and cannot be answered here.")
    return "\n".join(lines or ["The agent waits for an answer."])


def _schema(event: InteractionRequested) -> dict[str, Any]:
    """Return the JSON Schema of the payload."""
    match event.kind:
        case "approval" | "limit":
            scope = {"type": "string", "enum": ["once", "session", "always"]}
            properties = {
                "approved": {"type": "boolean"},
                "reason": {"type": "string"},
                "scope": scope,
            }
            return {"type": "object", "properties": properties, "required": ["approved"]}
        case "question":
            labels = [option.label or option.id for option in event.options or ()]
            if labels and not event.freeform:
                return {"type": "string", "enum": labels}
            return {"type": "string", **({"examples": labels} if labels else {})}
        case "secret" | "sudo" | "unknown":
            value = {"type": "string", "writeOnly": True}
            return {"type": "object", "properties": {"value": value}, "required": ["value"]}
        case _:
            # Nothing answers it here but `cancelled`.
            return {"type": "null"}


def to_answer(said: ResumeEntry, event: InteractionRequested) -> AnswerInteraction:
    """Return the command that an entry of `resume` means to a request; whether it fits is checked
    where it is given.

    Raises:
        ClientProtocolError: it is not an answer to such a request, which stays open.
        NotSupported: it changes the input of a call.
    """
    answer = AnswerInteraction(request_id=event.request_id)
    if said.cancelled:
        return answer.model_copy(update={"skip": True})
    payload = said.payload
    if event.kind == "authorization":
        refuse(event, "takes no answer here: it can only be cancelled")
    if event.kind in SEALED_KINDS:
        value = payload.get("value") if isinstance(payload, dict) else payload
        if not isinstance(value, str) or not value:
            refuse(event, 'takes the payload `{"value": …}`, or is cancelled')
        return AnswerInteraction(request_id=event.request_id, sealed=Sealed(value))
    if event.kind in ("approval", "limit"):
        takes = 'the payload `{"approved": true}` or `{"approved": false}`'
        return answer.model_copy(update=decided(payload, event, takes=takes))
    return answer.model_copy(update=answered(payload, event, place="payload"))
