"""Inputs: what this dialect's frontends said begins a run, what others said is told in one."""

from __future__ import annotations

from typing import Any

from adapters.agui import wire
from adapters.agui.frames import RunWriter, put_custom, put_message
from adapters.agui.runs import begin, close, close_main, fail, finish, start, waits
from adapters.agui.state import NOTES, RunNotes
from adapters.model import events as ev
from adapters.serving.inputs import InputBatch

_OUTCOMES: dict[str, tuple[str, str]] = {
    "failed": ("turn_failed", "The turn failed; the backend gave no reason."),
    "refused": ("turn_refused", "The model refused."),
    "exhausted": ("retries_exhausted", "The retries are exhausted."),
    "over_budget": ("budget_exceeded", "The budget is used up."),
}
"""Outcome of a turn without an error of its own -> code and message."""


def input_accepted(w: RunWriter, event: ev.InputAccepted) -> None:
    """Begin the run of a request when the last of its commands is accepted."""
    if event.face != wire.DIALECT or event.kind not in ("message", "answer"):
        return
    inputs = w.s.inputs
    notes = inputs.notes_for(NOTES.read((event.details or {}).get(wire.NOTES))) or RunNotes()
    messages = _given(w, event, notes)
    ids = [message["id"] for message in messages]
    batch = inputs.accepted(event, notes, ids, messages=messages, is_open=w.s.run is not None)
    if batch is not None:
        _begin(w, batch)


def begin_later(w: RunWriter) -> None:
    """Begin the run of words that waited for the end of a turn."""
    while w.s.run is None and (batch := w.s.inputs.next_later()) is not None:
        _begin(w, batch)
        if batch.error is not None:
            fail(w, batch.error)


def _begin(w: RunWriter, batch: InputBatch[RunNotes]) -> None:
    s = w.s
    if s.run is None:
        begin(w, batch.notes, batch.messages)
    else:
        # It joins a run that is under way.
        s.kept[-1].ids += [message["id"] for message in batch.messages]
    for passed in batch.notes.passed:
        words = "It is not open any more: the run goes on without this answer."
        put_custom(w, "passed_over", {"interruptId": passed, "message": words})
    for note in s.inputs.begin(batch, s.kept[-1].key, s.kept[-1].start, goes_on="the run"):
        put_custom(w, note.name, note.value)


def _given(w: RunWriter, event: ev.InputAccepted, notes: RunNotes) -> list[dict[str, Any]]:
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
    # Calls whose result the frontend itself gave, and whose session has not told it yet.
    del w.s.given[:-256]
    text = ev.text_of(event.content)
    message = {"id": message_id, "role": "tool", "toolCallId": call_id, "content": text}
    failed = (event.details or {}).get("is_error") is True
    return [{**message, **({"error": text} if failed else {})}]


def input_settled(w: RunWriter, event: ev.InputSettled) -> None:
    """Hear what became of an input: a run whose inputs came to nothing fails."""
    s = w.s
    settled = s.inputs.settled(event)
    if settled is None:
        return
    pending, error = settled
    if error is None:
        waits(w)
        return
    s.given = [call for call in s.given if call not in pending.calls]
    if pending.behind:
        begin_later(w)
    elif s.run is None or s.inputs.under_way:
        return
    elif s.pauses.turn:
        # The turn goes on without it, or waits as it did before.
        put_custom(w, "refused", error.model_dump(exclude_none=True))
        s.pauses.paused = s.pauses.halted
        waits(w)
    else:
        fail(w, error)
        begin_later(w)


def turn_ended(w: RunWriter, event: ev.TurnEnded) -> None:
    """End the run with the turn."""
    start(w)
    if w.s.inputs.go_on:
        # A turn of the agent's own came before that of the message: the run goes on to that.
        close_main(w)
        put_custom(w, "turn_ended", {"outcome": event.outcome})
    elif event.outcome == "completed":
        close(w)
    elif event.outcome == "interrupted":
        finish(w, {"type": "cancelled"} if w.run.modern else None, {"outcome": "interrupted"})
    else:
        code, words = _OUTCOMES[event.outcome]
        error = event.error or ev.ErrorInfo(code=code, message=words)
        fail(w, error)
    begin_later(w)


def said_elsewhere(w: RunWriter, event: ev.MessageReceived | ev.GuidanceReceived) -> None:
    """Tell words that no frontend of this dialect said in this run."""
    found = w.s.inputs.from_elsewhere(event)
    if found is None:
        return
    thread, told = found
    if w.s.run is not None and thread == ev.MAIN:
        close_main(w)
    put_message(w, thread, "user", told.pop("text"), told)
