"""Open interactions: what the agent waits for, and what was answered to it.

    asked --given--> answered --resolved--> (forgotten)
      ^                 |
      +----released-----+

Only the backend's evidence resolves (`resolve`); what it does not repeat, the outcome and the
words, is taken from what was given. An answer that the backend refused or never saw is released,
and the request can be answered again.

Whether the log knows that an answer was taken is the ledger's business:
`InteractionAnswer.command_id` is the link, which the codec follows.

A dialect may keep records of its own. Those of eve are subclasses of `PendingInteraction` and
`InteractionAnswer`. Those of Herm are stored under other names, and have what `InteractionRecord`
and `AnswerRecord` name. Ids that were used before, and which requests of a thread are open, are
that dialect's to remember.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from adapters.driving.part import CodecPart
from adapters.model import events as ev
from adapters.model import raw


class AnswerRecord(Protocol):
    """An answer, as the part reads it."""

    @property
    def command_id(self) -> str | None: ...
    @property
    def outcome(self) -> ev.InteractionOutcome: ...
    @property
    def scope(self) -> Literal["once", "session", "always"] | None: ...
    @property
    def claims(self) -> bool: ...
    @property
    def reply(self) -> ev.Answer | None: ...


class InteractionRecord(Protocol):
    """An open interaction, as the part reads it. `native_name` is what the backend also calls it;
    `gone` says that the backend asks for it no more, without a word of what became of it."""

    given: Any

    @property
    def thread_id(self) -> str: ...
    @property
    def call_id(self) -> str | None: ...
    @property
    def native_name(self) -> str | None: ...
    @property
    def gone(self) -> bool: ...


@dataclasses.dataclass(slots=True)
class InteractionAnswer:
    """An answer that is on its way or has arrived; `command_id` is None for one that the codec
    gives by itself. `claims` says that the log has a claim of its command on the request: an
    interrupt that answers has none.
    """

    command_id: str | None
    outcome: ev.InteractionOutcome
    answer: ev.Answer | None = None
    scope: Literal["once", "session", "always"] | None = None
    claims: bool = True

    @property
    def reply(self) -> ev.Answer | None:
        """The answer as the log has it."""
        return self.answer


@dataclasses.dataclass(slots=True)
class PendingInteraction:
    """One open interaction."""

    kind: ev.InteractionKind
    thread_id: str = ev.MAIN
    call_id: str | None = None
    given: InteractionAnswer | None = None

    @property
    def native_name(self) -> str | None:
        """Nothing: the backend has one name for it."""
        return None

    @property
    def gone(self) -> bool:
        """Whether the backend asks for it no more: it never says so without what became of it."""
        return False


A = TypeVar("A", bound=InteractionRecord)


class Resolution(NamedTuple):
    """An interaction that is over: what was given, and the event that says so."""

    given: AnswerRecord | None
    event: ev.InteractionResolved


@dataclasses.dataclass(slots=True)
class InteractionLedger(CodecPart, Generic[A]):
    """The open interactions by their ids, in the order in which they were asked."""

    open: dict[str, A] = dataclasses.field(default_factory=dict)

    def ask(self, request_id: str, ask: A) -> None:
        """Record that something is asked."""
        self.open[request_id] = ask

    def give(self, request_id: str, given: AnswerRecord) -> None:
        """Record that an answer is being sent. The newest counts."""
        self.open[request_id].given = given

    def give_elsewhere(self, request_id: str, given: AnswerRecord) -> None:
        """Record the answer of somebody else. One of ours that is on its way counts."""
        ask = self.open.get(request_id)
        if ask is not None and ask.given is None:
            ask.given = given

    def find(self, name: str) -> str | None:
        """Return the request that has a name: its id, else what the backend also calls it."""
        if name in self.open:
            return name
        return next((id_ for id_, ask in self.open.items() if ask.native_name == name), None)

    def of_call(self, call_id: str) -> str | None:
        """Return the request that is about a call."""
        return next((id_ for id_, ask in self.open.items() if ask.call_id == call_id), None)

    def answered(self) -> list[str]:
        """Return the requests that are answered if the agent works again: those to which an answer
        was given, or that are gone; where there is none, the only one that is open."""
        found = [id_ for id_, ask in self.open.items() if ask.given is not None or ask.gone]
        return list(self.open) if not found and len(self.open) == 1 else found

    def given_by(self, command_id: str) -> str | None:
        """Return the request that a command answers, None where that is not open."""
        for request_id, ask in self.open.items():
            if ask.given is not None and ask.given.command_id == command_id:
                return request_id
        return None

    def release(self, command_id: str, turn_id: str | None = None) -> list[ev.Event]:
        """Record that the answer of a command did not count."""
        request_id = self.given_by(command_id)
        if request_id is None:
            return []
        ask = self.open[request_id]
        given: AnswerRecord | None = ask.given
        ask.given = None
        if given is None or not given.claims:
            return []
        return [
            raw.released(request_id, command_id, thread_id=ask.thread_id, turn_id=turn_id),
        ]

    def resolve(self, request_id: str, turn_id: str | None, **said: Any) -> Resolution | None:
        """Record that an interaction is over; None where it is not open.

        `said` is what the backend itself says: fields of the event. The rest is from what was
        given.
        """
        ask = self.open.pop(request_id, None)
        if ask is None:
            return None
        given: AnswerRecord | None = ask.given
        known: dict[str, Any] = {"outcome": "unknown"}
        if given is not None:
            known = {"outcome": given.outcome, "answer": given.reply, "scope": given.scope}
        event = ev.InteractionResolved(
            thread_id=ask.thread_id, turn_id=turn_id, request_id=request_id, **(known | said)
        )
        return Resolution(given, event)

    def clear(self) -> None:
        """Record that all is over that was asked; the normalizer resolves what the log has open."""
        self.open.clear()
