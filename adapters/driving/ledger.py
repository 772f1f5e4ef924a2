"""What was sent to a backend, until the log knows what became of it.

    expected --taken--> taken --received--> (forgotten)
        |                                       ^
        +--refused, unknown, or taken of what owes no receipt

An input is expected from the moment in which its request is made. Each is settled once: by the
reply, by what the stream shows, by a list, whichever is first; the others then find nothing left to
settle, so nobody has to remember who has told. A message or steering that was taken owes the log
its receipt (law 7) and stays until that is written.

What is not in the ledger is settled, or was never sent from here: hearing of it means nothing.

A dialect may keep a record of its own for an input, a subclass of `SentInput`: an eve's has the
delivery and the words by which `message.received` is known. An eve's ledger has messages and
steering only: what became of its other commands is told by replies, which nothing else precedes.

`adapters.driving.echoes` is the part where one command posts several inputs.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

from adapters.driving.part import CodecPart
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.state import RECEIVED_KINDS


@dataclasses.dataclass(slots=True)
class SentInput:
    """Something that was sent. `taken` says that the log knows it, and that its receipt is owed."""

    command_id: str
    kind: ev.InputKind
    content: tuple[ev.Content, ...] = ()
    taken: bool = False


I = TypeVar("I", bound=SentInput)  # noqa: E741 - the letter of the word


@dataclasses.dataclass(slots=True)
class InputLedger(CodecPart, Generic[I]):
    """The inputs by their commands' ids, in the order in which they were sent."""

    open: dict[str, I] = dataclasses.field(default_factory=dict)

    def expect(self, input_: I) -> None:
        """Record that an input is being sent, or may have been."""
        self.open[input_.command_id] = input_

    def settle(
        self, command_id: str, outcome: raw.InputOutcome, error: ev.ErrorInfo | None = None
    ) -> list[ev.Event]:
        """Hear what became of an input; return what the log does not know yet."""
        input_ = self.open.get(command_id)
        if input_ is None or input_.taken:
            return []
        if outcome == "taken" and input_.kind in RECEIVED_KINDS:
            input_.taken = True
        else:
            del self.open[command_id]
        return [raw.settled(command_id, outcome, error)]

    def receive(
        self,
        command_id: str,
        turn_id: str | None,
        *,
        native: ev.NativeRef | None = None,
        synthetic: bool = True,
        extra: dict[str, Any] | None = None,
    ) -> list[ev.Event]:
        """Record that a message has become part of the conversation, or steering of a turn: it was
        taken, and this is its receipt.
        """
        told = self.settle(command_id, "taken")
        input_ = self.open.pop(command_id, None)
        if input_ is None:
            return told
        if input_.kind == "steer" and turn_id is not None:
            guidance = ev.GuidanceReceived(
                thread_id=ev.MAIN,
                turn_id=turn_id,
                text=ev.text_of(input_.content),
                command_id=command_id,
                native=native,
                synthetic=synthetic,
                extra=extra,
            )
            return [*told, guidance]
        return [
            *told,
            ev.MessageReceived(
                thread_id=ev.MAIN,
                turn_id=turn_id,
                message_id=command_id,
                content=input_.content,
                command_id=command_id,
                native=native,
                synthetic=synthetic,
                extra=extra,
            ),
        ]

    def lost(self, error: ev.ErrorInfo | None) -> list[ev.Event]:
        """Record that nothing more will show: what was taken has its receipt now, the rest is
        unknown.
        """
        out: list[ev.Event] = []
        for command_id, input_ in list(self.open.items()):
            if input_.taken:
                out += self.receive(command_id, None)
            else:
                out += self.settle(command_id, "unknown", error)
        return out

    def drop(self, command_id: str) -> None:
        """Forget an input without a word: what became of it is told otherwise."""
        self.open.pop(command_id, None)

    @property
    def message(self) -> I | None:
        """The oldest message that is on its way, or whose receipt is owed."""
        for input_ in self.open.values():
            if input_.kind == "message":
                return input_
        return None

    def drop_message(self) -> None:
        """Forget the message without a word: what became of it is told otherwise."""
        message = self.message
        if message is not None:
            del self.open[message.command_id]
