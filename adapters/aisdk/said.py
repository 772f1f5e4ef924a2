"""Inputs: what a page said begins a stream, what others said is told in one."""

from __future__ import annotations

from typing import Any

from adapters.aisdk import wire
from adapters.aisdk.state import NOTES, Awaited, Batch, Notes
from adapters.aisdk.streams import begin, end_step, fail, join, waits
from adapters.aisdk.writer import Writer, put_data
from adapters.model import events as ev
from adapters.wire.errors import ErrorCode

BEGUN_KEPT = 64
"""Inputs of which is known which stream they became."""


def notes_of(value: Any) -> Notes | None:
    """Return what is noted with an input, or None where nothing is."""
    return NOTES.validate_python(value) if isinstance(value, dict) else None


def input_accepted(w: Writer, event: ev.InputAccepted) -> None:
    """Begin the stream of a request when the last of its commands is accepted."""
    s = w.s
    if event.face != wire.DIALECT or event.kind not in ("message", "answer"):
        return
    notes = notes_of((event.details or {}).get(wire.NOTES))
    if notes is None:
        notes, s.opening = s.opening or Notes(), None
    if s.batch is None:
        s.batch = Batch(notes)
    ids = notes.said if event.kind == "message" or len(s.batch.commands) + 1 >= notes.parts else []
    s.batch.commands.append(event.command_id)
    queued = event.policy in ("queue", "decline")
    s.awaited[event.command_id] = Awaited(
        event.kind == "message", queued, declines=event.policy == "decline", ids=ids
    )
    s.heard.say(ids)
    if len(s.batch.commands) < notes.parts:
        return
    batch, s.batch = s.batch, None
    if s.stream is not None and notes.parts == 1 and queued:
        # The turn is being stopped, or what it asks is declined: what is open is its stream.
        s.awaited[event.command_id].behind = True
        s.later.append(batch)
        return
    _begin(w, batch)


def begin_later(w: Writer) -> None:
    """Begin the stream of words that waited for the end of a turn."""
    s = w.s
    while s.stream is None and s.later:
        batch = s.later.pop(0)
        for command_id in batch.commands:
            if command_id in s.awaited:
                s.awaited[command_id].behind = False
        _begin(w, batch)
        if batch.error is not None:
            fail(w, batch.error)


def _begin(w: Writer, batch: Batch) -> None:
    s, notes = w.s, batch.notes
    if s.stream is None:
        begin(w, own=True, anew=not notes.goes_on, ids=notes.said)
        cursor = s.kept[-1].start
    else:
        # It joins a stream that is open.
        cursor = join(w)
        s.kept[-1].ids += notes.said
    s.heard.say([name for name, _ in notes.left_out])
    for name, reason in notes.left_out:
        told = f"This message was refused, and the agent goes on without it: {reason}"
        put_data(w, "left-out", {"messageId": name, "message": told})
    ignored = [name for name in notes.ignored if name not in s.ignored]
    if ignored:
        s.ignored += ignored
        told = "The agent has no place for these; it goes on without them."
        put_data(w, "ignored", {"members": ignored, "message": told})
    if notes.context is not None:
        s.context = notes.context
    for command_id in batch.commands:
        s.begun[command_id] = (s.kept[-1].key, cursor)
    while len(s.begun) > BEGUN_KEPT:
        del s.begun[next(iter(s.begun))]


def input_settled(w: Writer, event: ev.InputSettled) -> None:
    """Hear what became of an input: a stream whose inputs came to nothing fails."""
    s = w.s
    awaited = s.awaited.get(event.command_id)
    if awaited is None or (event.outcome == "taken" and awaited.message):
        # A message that was taken is received, and that is what its stream waits for.
        return
    del s.awaited[event.command_id]
    if event.outcome == "taken":
        waits(w)
        return
    s.heard.settle(awaited.ids, event)
    words = event.reason or f"What became of it: {event.outcome}."
    error = event.error or ev.ErrorInfo(code=str(ErrorCode.BACKEND_UNAVAILABLE), message=words)
    if awaited.behind:
        batch = next(one for one in s.later if event.command_id in one.commands)
        batch.error = error
        begin_later(w)
        return
    if s.stream is None or any(not one.queued for one in s.awaited.values()):
        return
    if not s.turn or s.halted:
        s.paused = s.halted
        fail(w, error)
        begin_later(w)
        return
    # The turn goes on without it.
    put_data(w, "refused", error.model_dump(exclude_none=True))


def message_received(w: Writer, event: ev.MessageReceived) -> None:
    """Tell a message that came from elsewhere."""
    if event.command_id is not None and event.command_id in w.s.awaited:
        del w.s.awaited[event.command_id]
        return
    said_elsewhere(w, event.thread_id, ev.text_of(event.content), {})


def said_elsewhere(w: Writer, thread: str, text: str, told: dict[str, Any]) -> None:
    """Tell words that no page said in this stream."""
    if w.s.stream is not None and thread == ev.MAIN:
        end_step(w)
    who = {} if thread == ev.MAIN else {"thread": thread}
    put_data(w, "message", {**who, "text": text, **told})
