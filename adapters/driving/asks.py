"""Open interactions: what the agent waits for, and what was answered to it.

    asked --given--> answered --resolved--> (forgotten)
      ^                 |
      +----released-----+

Only the backend's evidence resolves (`resolve`); what it does not repeat, the outcome and the
words, is taken from what was given. An answer that the backend refused or never saw is released,
and the request can be answered again.

Whether the log knows that an answer was taken is the ledger's business: `Given.command_id` is the
link, which the codec follows.

A dialect may keep records of its own, subclasses of `Ask` and `Given`: an eve's have the options,
the eve turns in which it was asked, and what was posted together. Ids that were used before, and
which requests of a thread are open, are that dialect's to remember.

Herm will want the backend's names of a request, and answers that somebody else has given.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from adapters.driving.part import Part
from adapters.model import events as ev
from adapters.model import raw


@dataclasses.dataclass(slots=True)
class Given:
    """An answer that is on its way or has arrived; `command_id` is None for one that the codec
    gives by itself. `claims` says that the log has a claim of its command on the request: an
    interrupt that answers has none.
    """

    command_id: str | None
    outcome: ev.InteractionOutcome
    answer: ev.Answer | None = None
    scope: Literal["once", "session", "always"] | None = None
    claims: bool = True


@dataclasses.dataclass(slots=True)
class Ask:
    """One open interaction."""

    kind: ev.InteractionKind
    thread_id: str = ev.MAIN
    call_id: str | None = None
    given: Given | None = None


A = TypeVar("A", bound=Ask)


class Resolved(NamedTuple):
    """An interaction that is over: what was given, and the event that says so."""

    given: Given | None
    event: ev.Event


@dataclasses.dataclass(slots=True)
class Asks(Part, Generic[A]):
    """The open interactions by their ids, in the order in which they were asked."""

    open: dict[str, A] = dataclasses.field(default_factory=dict)

    def ask(self, request_id: str, ask: A) -> None:
        """Record that something is asked."""
        self.open[request_id] = ask

    def give(self, request_id: str, given: Given) -> None:
        """Record that an answer is being sent. The newest counts."""
        self.open[request_id].given = given

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
        given, ask.given = ask.given, None
        if given is None or not given.claims:
            return []
        return [
            raw.released(request_id, command_id, thread_id=ask.thread_id, turn_id=turn_id),
        ]

    def resolve(self, request_id: str, turn_id: str | None, **said: Any) -> Resolved | None:
        """Record that an interaction is over; None where it is not open.

        `said` is what the backend itself says: fields of the event. The rest is from what was
        given.
        """
        ask = self.open.pop(request_id, None)
        if ask is None:
            return None
        given = ask.given
        known: dict[str, Any] = {"outcome": "unknown"}
        if given is not None:
            known = {"outcome": given.outcome, "answer": given.answer, "scope": given.scope}
        event = ev.InteractionResolved(
            thread_id=ask.thread_id, turn_id=turn_id, request_id=request_id, **(known | said)
        )
        return Resolved(given, event)

    def clear(self) -> None:
        """Record that all is over that was asked; the normalizer resolves what the log has open."""
        self.open.clear()
