"""Inputs: what a page said begins a stream, what others said is told in one."""

from __future__ import annotations

from adapters.aisdk import wire
from adapters.aisdk.frames import ChunkWriter, put_data
from adapters.aisdk.state import NOTES, ChatNotes
from adapters.aisdk.streams import begin, close, end_step, fail, join, start, waits
from adapters.model import events as ev
from adapters.serving.inputs import InputBatch

_OUTCOMES: dict[str, str] = {
    "failed": "The turn failed; the backend gave no reason.",
    "refused": "The model refused.",
    "exhausted": "The retries are exhausted.",
    "over_budget": "The budget is used up.",
}
"""Outcome of a turn without an error of its own -> words."""


def input_accepted(w: ChunkWriter, event: ev.InputAccepted) -> None:
    """Begin the stream of a request when the last of its commands is accepted."""
    if event.face != wire.DIALECT or event.kind not in ("message", "answer"):
        return
    inputs = w.s.inputs
    notes = inputs.notes_for(NOTES.read((event.details or {}).get(wire.NOTES))) or ChatNotes()
    is_last = inputs.batch is not None and len(inputs.batch.commands) + 1 >= notes.parts
    ids = notes.said if event.kind == "message" or is_last or notes.parts <= 1 else []
    batch = inputs.accepted(event, notes, ids, is_open=w.s.stream is not None)
    if batch is not None:
        _begin(w, batch)


def begin_later(w: ChunkWriter) -> None:
    """Begin the stream of words that waited for the end of a turn."""
    while w.s.stream is None and (batch := w.s.inputs.next_later()) is not None:
        _begin(w, batch)
        if batch.error is not None:
            fail(w, batch.error)


def _begin(w: ChunkWriter, batch: InputBatch[ChatNotes]) -> None:
    s, notes = w.s, batch.notes
    if s.stream is None:
        begin(w, own=True, anew=not notes.goes_on, ids=notes.said)
        cursor = s.kept[-1].start
    else:
        # It joins a stream that is open.
        cursor = join(w)
        s.kept[-1].ids += notes.said
    for note in s.inputs.begin(batch, s.kept[-1].key, cursor, goes_on="it"):
        put_data(w, note.name, note.value)


def input_settled(w: ChunkWriter, event: ev.InputSettled) -> None:
    """Hear what became of an input: a stream whose inputs came to nothing fails."""
    inputs, pauses = w.s.inputs, w.s.pauses
    settled = inputs.settled(event)
    if settled is None:
        return
    pending, error = settled
    if error is None:
        waits(w)
    elif pending.behind:
        begin_later(w)
    elif w.s.stream is None or inputs.under_way:
        return
    elif pauses.turn and not pauses.halted:
        # The turn goes on without it.
        put_data(w, "refused", error.model_dump(exclude_none=True))
    else:
        pauses.paused = pauses.halted
        fail(w, error)
        begin_later(w)


def turn_ended(w: ChunkWriter, event: ev.TurnEnded) -> None:
    """End the stream with the turn."""
    start(w)
    if w.s.inputs.go_on:
        # A turn of the agent's own came before that of the message: the stream goes on to that.
        end_step(w)
        put_data(w, "turn", {"outcome": event.outcome})
    elif event.outcome in ("completed", "interrupted"):
        close(w, event.outcome)
    else:
        words = _OUTCOMES[event.outcome]
        fail(w, event.error or ev.ErrorInfo(code=event.outcome, message=words))
    begin_later(w)


def said_elsewhere(w: ChunkWriter, event: ev.MessageReceived | ev.GuidanceReceived) -> None:
    """Tell words that no page said in this stream."""
    found = w.s.inputs.from_elsewhere(event)
    if found is not None:
        thread, told = found
        if w.s.stream is not None and thread == ev.MAIN:
            end_step(w)
        put_data(w, "message", told if thread == ev.MAIN else {"thread": thread, **told})
