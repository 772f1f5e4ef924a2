"""Inputs: the commands of a request that belong together, and what became of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from adapters.model import events as ev
from adapters.serving.messages import SaidMessages
from adapters.serving.notes import Note
from adapters.wire.errors import ErrorCode


class RequestNotes(Protocol):
    """What each dialect notes with the commands of a request: how many these are, messages that are
    not said, with the reason, members that reach no agent, and a digest of what the application
    says to the agent."""

    parts: int
    left_out: list[tuple[str, str]]
    ignored: list[str]
    context: str | None


NotesT = TypeVar("NotesT", bound=RequestNotes)


@dataclasses.dataclass(slots=True)
class PendingInput:
    """An input whose fate is open: the ids of its messages, and the calls that it answers. One that
    is `queued` comes behind the turn that is open, and one that is `behind` has a stream of its own
    after that. With `declines` whatever is asked is declined for it."""

    message: bool
    queued: bool = False
    behind: bool = False
    declines: bool = False
    ids: list[str] = dataclasses.field(default_factory=list)
    calls: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class InputBatch(Generic[NotesT]):
    """The commands of a request that are being accepted, one after the other, and the messages that
    begin its stream. `error` is what they were refused with while they waited."""

    notes: NotesT
    messages: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    commands: list[str] = dataclasses.field(default_factory=list)
    error: ev.ErrorInfo | None = None


@dataclasses.dataclass(slots=True)
class InputBatches(Generic[NotesT]):
    """`opening` is what the session's first request noted, `batch` is being accepted, `later` are
    batches whose words were said while the turn was being stopped. `begun` has the key of the
    stream that an input became, and a cursor in it. `ignored` are members that were told to reach
    no agent, `context` is the digest of what the application has said to the agent."""

    opening: NotesT | None = None
    batch: InputBatch[NotesT] | None = None
    later: list[InputBatch[NotesT]] = dataclasses.field(default_factory=list)
    awaited: dict[str, PendingInput] = dataclasses.field(default_factory=dict)
    heard: SaidMessages = dataclasses.field(default_factory=SaidMessages)
    begun: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    ignored: list[str] = dataclasses.field(default_factory=list)
    context: str | None = None

    def notes_for(self, noted: NotesT | None) -> NotesT | None:
        """Return what is noted with an input: those of the request that began the session are noted
        with that."""
        if noted is None:
            noted, self.opening = self.opening, None
        return noted

    def accepted(
        self,
        event: ev.InputAccepted,
        notes: NotesT,
        ids: Sequence[str],
        *,
        messages: Sequence[dict[str, Any]] = (),
        is_open: bool,
    ) -> InputBatch[NotesT] | None:
        """Record an input; return its batch where that is whole and begins now.

        `ids` are the messages that it says, `messages` what its stream begins with. While a stream
        `is_open`, words that come behind the turn wait for its end: the turn is being stopped, or
        what it asks is declined.
        """
        batch = self.batch = self.batch or InputBatch(notes)
        batch.messages += messages
        batch.commands.append(event.command_id)
        queued = event.policy in ("queue", "decline")
        pending = self.awaited[event.command_id] = PendingInput(
            event.kind == "message", queued, declines=event.policy == "decline", ids=list(ids)
        )
        pending.calls += [one["toolCallId"] for one in messages if "toolCallId" in one]
        self.heard.say(ids, event.command_id if event.kind == "message" else None)
        if len(batch.commands) < notes.parts:
            return None
        self.batch = None
        if is_open and notes.parts == 1 and queued:
            pending.behind = True
            self.later.append(batch)
            return None
        return batch

    def next_later(self) -> InputBatch[NotesT] | None:
        """Return the next batch that waited for the end of the turn, if there is one."""
        if not self.later:
            return None
        batch = self.later.pop(0)
        for command_id in batch.commands:
            if command_id in self.awaited:
                self.awaited[command_id].behind = False
        return batch

    def begin(
        self, batch: InputBatch[NotesT], key: str, cursor: int, *, goes_on: str
    ) -> list[Note]:
        """Record that a batch has a stream; return what that tells: which messages are not said,
        and which members reach no agent. `goes_on` names what goes on without them."""
        notes, told = batch.notes, []
        self.heard.say([name for name, _ in notes.left_out])
        for name, reason in notes.left_out:
            words = f"This message was refused, and the agent goes on without it: {reason}"
            told.append(Note("left_out", {"messageId": name, "message": words}))
        ignored = [name for name in notes.ignored if name not in self.ignored]
        if ignored:
            self.ignored += ignored
            words = f"The agent has no place for these; {goes_on} goes on without them."
            told.append(Note("ignored", {"members": ignored, "message": words}))
        if notes.context is not None:
            self.context = notes.context
        for command_id in batch.commands:
            self.begun[command_id] = (key, cursor)
        while len(self.begun) > 64:
            del self.begun[next(iter(self.begun))]
        return told

    def settled(self, event: ev.InputSettled) -> tuple[PendingInput, ev.ErrorInfo | None] | None:
        """Return an input whose fate is known now, and what it failed with, if it did.

        None for a message that was taken: its receipt follows, and its stream waits for that.
        """
        pending = self.awaited.get(event.command_id)
        if pending is None or (event.outcome == "taken" and pending.message):
            return None
        del self.awaited[event.command_id]
        if event.outcome == "taken":
            return pending, None
        self.heard.settle(pending.ids, event)
        words = event.reason or f"What became of it: {event.outcome}."
        code = str(ErrorCode.BACKEND_UNAVAILABLE)
        error = event.error or ev.ErrorInfo(code=code, message=words)
        if pending.behind:
            batch = next(one for one in self.later if event.command_id in one.commands)
            batch.error = error
        return pending, error

    def from_elsewhere(
        self, event: ev.MessageReceived | ev.GuidanceReceived
    ) -> tuple[str, dict[str, Any]] | None:
        """Return the thread and the words of a message that was not said here, with its kind where
        it came while the agent worked; None for an input of these, which is received with it."""
        if isinstance(event, ev.GuidanceReceived):
            return event.thread_id, {"text": event.text, "kind": "guidance"}
        if self.awaited.pop(event.command_id or "", None) is not None:
            return None
        return event.thread_id, {"text": ev.text_of(event.content)}

    def ended(self) -> None:
        """Forget what the end of the session leaves without a stream."""
        self.batch = None
        self.later.clear()
        self.awaited.clear()

    @property
    def under_way(self) -> bool:
        """Say whether an input belongs to the stream that is open, and its fate is open too."""
        return any(not one.queued for one in self.awaited.values())

    @property
    def go_on(self) -> bool:
        """Say whether the stream goes on behind the end of a turn: to that of an input."""
        return any(not one.behind for one in self.awaited.values())

    def knows(self, names: Sequence[str]) -> bool:
        """Say whether some of these messages were said in the session."""
        return not {*self.heard.ids, *self.heard.again}.isdisjoint(names)


class NotesForm(Generic[NotesT]):
    """How a dialect's notes stand with an input in the log."""

    def __init__(self, type_: type[NotesT]) -> None:
        self._form: TypeAdapter[NotesT] = TypeAdapter(type_)

    def read(self, value: Any) -> NotesT | None:
        """Return what is noted with an input, or None where nothing is."""
        return self._form.validate_python(value) if isinstance(value, dict) else None

    def write(self, notes: NotesT) -> Mapping[str, Any]:
        """Return the notes as JSON, without what is as usual."""
        value: Mapping[str, Any] = self._form.dump_python(notes, mode="json", exclude_defaults=True)
        return value
