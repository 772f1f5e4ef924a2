"""Inputs: what this dialect's frontends said begins a run, what others said is told in one."""

from __future__ import annotations

from typing import Any

from adapters.agui import wire
from adapters.agui.runs import begin, close_main, fail, waits
from adapters.agui.state import NOTES, Awaited, Batch, Notes
from adapters.agui.writer import Writer, put, put_custom, put_message
from adapters.model import events as ev
from adapters.wire.errors import ErrorCode
from adapters.wire.jsonvalue import format_json

BEGUN_KEPT = 64
"""Inputs of which is known which run they became."""

GIVEN_KEPT = 256
"""Calls whose result the frontend itself gave, and their session has not told yet."""


def notes_of(value: Any) -> Notes | None:
    """Return what is noted with an input, or None where nothing is."""
    return NOTES.validate_python(value) if isinstance(value, dict) else None


def input_accepted(w: Writer, event: ev.InputAccepted) -> None:
    """Begin the run of a request when the last of its commands is accepted."""
    s = w.s
    if event.face != wire.DIALECT or event.kind not in ("message", "answer"):
        return
    notes = notes_of((event.details or {}).get(wire.NOTES))
    if notes is None:
        notes, s.opening = s.opening or Notes(), None
    if s.batch is None:
        s.batch = Batch(notes)
    messages = _given(w, event, notes)
    ids = [message["id"] for message in messages]
    calls = [message["toolCallId"] for message in messages if "toolCallId" in message]
    s.batch.messages += messages
    s.batch.commands.append(event.command_id)
    queued = event.policy in ("queue", "decline")
    s.awaited[event.command_id] = Awaited(event.kind == "message", queued, ids=ids, calls=calls)
    s.heard.say(ids)
    if len(s.batch.commands) < notes.parts:
        return
    batch, s.batch = s.batch, None
    if s.run is not None and notes.parts == 1 and event.policy == "queue":
        # The turn is being stopped: what is open is the run of that.
        s.awaited[event.command_id].behind = True
        s.later.append(batch)
        return
    _begin(w, batch)


def begin_later(w: Writer) -> None:
    """Begin the run of words that waited for the end of a turn."""
    s = w.s
    while s.run is None and s.later:
        batch = s.later.pop(0)
        for command_id in batch.commands:
            if command_id in s.awaited:
                s.awaited[command_id].behind = False
        _begin(w, batch)
        if batch.error is not None:
            fail(w, batch.error)


def _begin(w: Writer, batch: Batch) -> None:
    s, notes = w.s, batch.notes
    if s.run is None:
        begin(w, notes, batch.messages)
    else:
        # It joins a run that is under way.
        s.kept[-1].ids += [message["id"] for message in batch.messages]
    for passed in notes.passed:
        words = "It is not open any more: the run goes on without this answer."
        put_custom(w, "passed_over", {"interruptId": passed, "message": words})
    s.heard.say([name for name, _ in notes.left_out])
    for name, reason in notes.left_out:
        words = f"This message was refused, and the agent goes on without it: {reason}"
        put_custom(w, "left_out", {"messageId": name, "message": words})
    ignored = [name for name in notes.ignored if name not in s.ignored]
    if ignored:
        s.ignored += ignored
        words = "The agent has no place for these; the run goes on without them."
        put_custom(w, "ignored", {"members": ignored, "message": words})
    if notes.context is not None:
        s.context = notes.context
    for command_id in batch.commands:
        s.begun[command_id] = s.kept[-1].key
    while len(s.begun) > BEGUN_KEPT:
        del s.begun[next(iter(s.begun))]


def _given(w: Writer, event: ev.InputAccepted, notes: Notes) -> list[dict[str, Any]]:
    """Return the messages of the frontend that an input was, as it called them."""
    content = list(event.content or ())
    if event.kind == "message":
        given = []
        # What stands before the words is not theirs.
        content = content[len(content) - sum(blocks for _, blocks in notes.said) :]
        for message_id, blocks in notes.said:
            words, content = content[:blocks], content[blocks:]
            text = ev.text_of(tuple(words))
            given.append({"id": message_id, "role": "user", "content": text})
        return given
    answer = notes.answers.get(event.request_id or "")
    if answer is None:
        return []
    message_id, call_id = answer
    w.s.given.append(call_id)
    del w.s.given[:-GIVEN_KEPT]
    text = ev.text_of(event.content)
    message = {"id": message_id, "role": "tool", "toolCallId": call_id, "content": text}
    failed = (event.details or {}).get("is_error") is True
    return [{**message, **({"error": text} if failed else {})}]


def input_settled(w: Writer, event: ev.InputSettled) -> None:
    """Hear what became of an input: a run whose inputs came to nothing fails."""
    s = w.s
    awaited = s.awaited.get(event.command_id)
    if awaited is None or (event.outcome == "taken" and awaited.message):
        # A message that was taken is received, and that is what its run waits for.
        return
    del s.awaited[event.command_id]
    if event.outcome == "taken":
        waits(w)
        return
    s.heard.settle(awaited.ids, event)
    s.given = [call for call in s.given if call not in awaited.calls]
    words = event.reason or f"What became of it: {event.outcome}."
    code = str(ErrorCode.BACKEND_UNAVAILABLE)
    error = event.error or ev.ErrorInfo(code=code, message=words)
    if awaited.behind:
        batch = next(one for one in s.later if event.command_id in one.commands)
        batch.error = error
        begin_later(w)
        return
    if s.run is None or any(not one.queued for one in s.awaited.values()):
        return
    if not s.turn:
        fail(w, error)
        begin_later(w)
        return
    # The turn goes on without it, or waits as it did before.
    put_custom(w, "refused", error.model_dump(exclude_none=True))
    s.paused = s.halted
    waits(w)


def message_received(w: Writer, event: ev.MessageReceived) -> None:
    """Tell a message that came from elsewhere."""
    if event.command_id is not None and event.command_id in w.s.awaited:
        del w.s.awaited[event.command_id]
        return
    said_elsewhere(w, event.thread_id, ev.text_of(event.content), {})


def said_elsewhere(w: Writer, thread: str, text: str, told: dict[str, Any]) -> None:
    """Tell words that no frontend of this dialect said in this run."""
    if w.s.run is not None and thread == ev.MAIN:
        close_main(w)
    put_message(w, thread, "user", text, told)


def resolved(w: Writer, event: ev.InteractionResolved) -> None:
    """Tell that a request is over; where it was shown as a call, the call has a result."""
    asked = w.s.requests.pop(event.request_id, None)
    if asked is None:
        return
    told: dict[str, Any] = {"outcome": event.outcome}
    if event.reason is not None:
        told["reason"] = event.reason
    put_custom(w, "resolved", {"interruptId": event.request_id, **told})
    call_id = wire.ASK_CALL + event.request_id
    if not asked.ask:
        return
    if call_id in w.s.given:
        w.s.given.remove(call_id)
        return
    name = w.next_message()
    members = {"messageId": name, "toolCallId": call_id, "role": "tool"}
    put(w, "TOOL_CALL_RESULT", {**members, "content": format_json(told).decode()})
