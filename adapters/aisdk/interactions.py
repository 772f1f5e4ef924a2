"""What is asked: an open request as a call that a page answers, and what its answer means.

An approval of a call is asked about that call. All else is a call of a tool that asks, whose output
is the answer; in the form for `ai` 5 approvals are so too. No refusal quotes an answer: it may hold
the value of a sealed request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from adapters.aisdk import wire
from adapters.aisdk.frames import ChunkWriter, open_step, put, put_data, words
from adapters.aisdk.state import ShownCall
from adapters.model.commands import AnswerInteraction
from adapters.model.events import (
    SEALED_KINDS,
    InteractionRequested,
    InteractionResolved,
    InteractionUpdated,
    Text,
)
from adapters.serving.answers import answered, decided, refuse
from adapters.serving.pauses import ShownRequest


@dataclasses.dataclass(frozen=True, slots=True)
class PageAnswer:
    """A part of the page's messages that may answer something, under the id of the request or of
    its call. `approved` is there where an approval was answered, else `output` is what the page
    gave for a call, which `failed` with it or not."""

    name: str
    approved: bool | None = None
    reason: str | None = None
    output: Any = None
    failed: bool = False


def updated(w: ChunkWriter, event: InteractionUpdated) -> None:
    """Tell what is new about a request, where a page was shown it."""
    request = w.s.pauses.updated(event)
    if request is not None and request.shown_in:
        tell_state(w, request, "open")


def show(w: ChunkWriter, asked: ShownRequest) -> None:
    """Tell a request, once."""
    event, s = asked.event, w.s
    if asked.shown_in:
        return
    assert s.stream is not None
    asked.shown_in = s.stream
    approval = is_approval(w, event)
    about = s.calls.get(event.call_id or "")
    here = about is not None and about.message == s.message
    if not event.answerable:
        tell_state(w, asked, "open")
        return
    if here and (approval or event.kind == "tool_result"):
        asked.call = event.call_id
    else:
        asked.call = _ask(w, event, approval=approval)
    tell_state(w, asked, "open")
    call = s.calls[asked.call or ""]
    call.page = not approval
    if approval:
        call.approval = True
        chunk = {"approvalId": event.request_id, "toolCallId": asked.call}
        s.asks[event.request_id] = w.write("tool-approval-request", chunk)


def is_approval(w: ChunkWriter, event: InteractionRequested) -> bool:
    """Say whether a request is shown as the approval of a call."""
    return event.kind == "approval" and event.answerable and not w.old


def _ask(w: ChunkWriter, event: InteractionRequested, *, approval: bool) -> str:
    """Write a call that only asks; return its id."""
    s, details = w.s, event.details or {}
    call_id = wire.ASK_CALL + event.request_id
    name, given = w.ask_tool, _about(event)
    if approval:
        name = str(details.get("tool") or wire.APPROVAL)
        subject = details.get("input", details.get("command"))
        given = {"prompt": event.prompt} if subject in (None, {}) else subject
    elif event.kind == "tool_result":
        name = str(details.get("tool") or wire.ASK)
        given = details.get("input", {"prompt": event.prompt})
        call_id = call_id if event.call_id is None else event.call_id
    open_step(w)
    w.write("tool-input-available", {"toolCallId": call_id, "toolName": name, "input": given})
    s.tools = True
    assert s.message is not None
    s.calls[call_id] = ShownCall(s.message, s.steps)
    return call_id


def _about(event: InteractionRequested) -> dict[str, Any]:
    """Return what is asked, as the input of a call."""
    told: dict[str, Any] = {"requestId": event.request_id, "kind": event.kind}
    told["prompt"] = event.prompt
    if event.kind in SEALED_KINDS or event.kind == "authorization":
        told["options"] = [{"id": "decline", "label": "decline"}]
    elif event.options:
        told["options"] = [option.model_dump(exclude_none=True) for option in event.options]
    elif event.kind in ("approval", "limit"):
        told["options"] = [{"id": word, "label": word} for word in ("allow", "deny")]
    if event.kind == "question":
        told["freeform"] = event.freeform or not event.options
    if event.details:
        told["details"] = event.details
    return told


def tell_state(w: ChunkWriter, asked: ShownRequest, state: str, reason: str | None = None) -> None:
    """Tell how a request stands, in a part that takes the place of the one before."""
    event = asked.event
    told: dict[str, Any] = {"id": event.request_id, "kind": event.kind, "prompt": event.prompt}
    told["state"] = state
    if asked.call is not None:
        told["toolCallId"] = asked.call
    if event.options:
        told["options"] = [option.model_dump(exclude_none=True) for option in event.options]
    if event.details:
        told["details"] = event.details
    if event.expires_at is not None:
        told["expiresAt"] = event.expires_at
    if reason is not None:
        told["reason"] = reason
    put_data(w, "request", told, key=event.request_id)


def resolved(w: ChunkWriter, event: InteractionResolved) -> None:
    """Tell that a request is over, and give a call that only asked its result."""
    s = w.s
    asked = s.pauses.resolved(event)
    if asked is None:
        return
    if asked.shown_in:
        for name in {event.request_id, asked.call or event.request_id}:
            s.after[name] = asked.shown_in
        while len(s.after) > 256:
            del s.after[next(iter(s.after))]
    cursor = s.asks.pop(event.request_id, None)
    call_id = asked.call
    denied = event.outcome == "denied"
    if cursor is not None and not denied:
        # A page that reads it from its begin is shown what was denied, and not what is over.
        s.gone.append(cursor)
    if call_id in s.calls:
        s.calls[call_id].approval &= denied
    if call_id is not None and call_id == wire.ASK_CALL + event.request_id:
        _answered(w, event, asked.event, call_id)
    tell_state(w, asked, event.outcome, event.reason)


def _answered(
    w: ChunkWriter, event: InteractionResolved, about: InteractionRequested, call_id: str
) -> None:
    call = w.s.calls.pop(call_id, None)
    if call is None:
        return
    told: Any = {"outcome": event.outcome}
    if event.reason is not None:
        told["reason"] = event.reason
    if event.answer is not None and event.outcome == "answered":
        names = {option.id: option.label or option.id for option in about.options or ()}
        chosen = ", ".join(names.get(name, name) for name in event.answer.option_ids)
        told = event.answer.text or chosen or told
    type_, more = "tool-output-available", {"output": told}
    if call.approval:
        type_, more = "tool-output-denied", {}
    members = {"toolCallId": call_id, **more}
    if w.s.stream is not None and call.message != w.s.message:
        return
    put(w, type_, members, message=call.message)


# What a page says to it.


def to_answer(given: PageAnswer, event: InteractionRequested) -> AnswerInteraction:
    """Return the command that a part of the page's messages means to a request.

    Raises:
        ClientProtocolError: it is not an answer to such a request, which stays open.
    """
    answer = AnswerInteraction(request_id=event.request_id)
    if given.approved is not None:
        decision = "allow" if given.approved else "deny"
        return answer.model_copy(update={"decision": decision, "reason": given.reason})
    if event.kind == "tool_result":
        text = Text(text=words(given.output))
        return answer.model_copy(update={"content": (text,), "is_error": given.failed})
    output = given.output
    if given.failed or _declines(output):
        reason = output if given.failed and isinstance(output, str) and output else None
        return answer.model_copy(update={**_declined(event), "reason": reason})
    if event.kind in SEALED_KINDS or event.kind == "authorization":
        refuse(event, 'takes only `"decline"` here: what a page says is kept in its messages')
    if event.kind in ("approval", "limit"):
        takes = "`allow`, `deny` or one of its options"
        return answer.model_copy(update=decided(output, event, takes=takes))
    said = answered(output, event, place="the output of its call")
    return answer.model_copy(update=said)


def _declines(output: Any) -> bool:
    if isinstance(output, dict):
        asked = output.get("decline") is True or output.get("skip") is True
        return asked or output.get("optionId") == "decline"
    return bool(output == "decline")


def _declined(event: InteractionRequested) -> Mapping[str, Any]:
    return {"decision": "deny"} if event.kind in ("approval", "limit") else {"skip": True}
