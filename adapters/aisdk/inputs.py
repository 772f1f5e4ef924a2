"""Inputs: what a page said begins a stream, what others said is told in one."""

from __future__ import annotations

from typing import Any

from adapters.aisdk import wire
from adapters.aisdk.frames import FrameWriter, put_data
from adapters.aisdk.state import NOTES, ChatNotes
from adapters.aisdk.streams import begin, end_step, fail, join, waits
from adapters.model import events as ev
from adapters.serving.inputs import InputBatch


def input_accepted(w: FrameWriter, event: ev.InputAccepted) -> None:
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


def begin_later(w: FrameWriter) -> None:
    """Begin the stream of words that waited for the end of a turn."""
    while w.s.stream is None and (batch := w.s.inputs.next_later()) is not None:
        _begin(w, batch)
        if batch.error is not None:
            fail(w, batch.error)


def _begin(w: FrameWriter, batch: InputBatch[ChatNotes]) -> None:
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


def input_settled(w: FrameWriter, event: ev.InputSettled) -> None:
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


def message_received(w: FrameWriter, event: ev.MessageReceived) -> None:
    """Tell a message that came from elsewhere."""
    if not w.s.inputs.received(event):
        said_elsewhere(w, event.thread_id, ev.text_of(event.content), {})


def guidance_received(w: FrameWriter, event: ev.GuidanceReceived) -> None:
    """Tell words that came while the agent worked."""
    said_elsewhere(w, event.thread_id, event.text, {"kind": "guidance"})


def said_elsewhere(w: FrameWriter, thread: str, text: str, told: dict[str, Any]) -> None:
    """Tell words that no page said in this stream."""
    if w.s.stream is not None and thread == ev.MAIN:
        end_step(w)
    who = {} if thread == ev.MAIN else {"thread": thread}
    put_data(w, "message", {**who, "text": text, **told})
