"""Inputs that were posted to a backend which shows them once more: their echoes.

    posted --settled--> settled --its echo--> (its id is known) --pushed out--> (forgotten)
       |                                       ^
       +-------------------its echo------------+

An echo comes before or after the answer of its POST, over the stream or in a list, and has an id
that nobody could know before. What it is of is told by a key: the type of the input and what it is
about. One command may post several inputs, and each has an echo of its own: a `step` was taken, and
another input of the same command follows. A command is settled once, by what tells first.

`adapters.driving.ledger` is the part where a backend shows a command once, as its receipt.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Protocol, TypeVar

from adapters.driving.part import CodecPart
from adapters.model import events as ev
from adapters.model import raw

MOST = 64
"""Inputs that wait for their echoes, and ids of echoes, that are remembered. Ours."""


class EchoedInput(Protocol):
    """An input that was posted, as the part reads it. `message` is what the dialect posts after it,
    or in its place where it was not taken."""

    settled: bool
    message: Any

    @property
    def command_id(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def step(self) -> bool: ...


P = TypeVar("P", bound=EchoedInput)


@dataclasses.dataclass(slots=True)
class EchoLedger(CodecPart, Generic[P]):
    """The inputs that were posted, oldest first, and the commands by the ids of their echoes.

    Both are changed in place: a dialect may keep them among other fields of its state, and make the
    part over them.
    """

    sent: list[P] = dataclasses.field(default_factory=list)
    ids: dict[str, str] = dataclasses.field(default_factory=dict)

    def expect(self, input_: P) -> None:
        """Record that an input is posted; one of the same key was posted before, and is no more."""
        self.forget(input_.command_id, input_.key)
        self.sent.append(input_)
        del self.sent[:-MOST]

    def was_sent(self, command_id: str) -> bool:
        """Say whether an input of a command waits for its echo."""
        return any(input_.command_id == command_id for input_ in self.sent)

    def unsettled(self, command_id: str) -> P | None:
        """Return the input of a command whose fate is not known yet."""
        waits = (input_ for input_ in self.sent if not input_.settled and not input_.step)
        return next((input_ for input_ in waits if input_.command_id == command_id), None)

    def of(self, command_id: str, key: str) -> list[P]:
        """Return the inputs of a command that have a key."""
        return [
            input_ for input_ in self.sent if (input_.command_id, input_.key) == (command_id, key)
        ]

    def settle(
        self, command_id: str, outcome: raw.InputOutcome, error: ev.ErrorInfo | None = None
    ) -> list[ev.Event]:
        """Hear what became of a command; return what the log does not know yet. What was taken
        waits for its echo, and no message follows it."""
        for input_ in self.sent:
            if input_.command_id == command_id and not input_.step:
                if input_.settled:
                    return []
                input_.settled, input_.message = True, None
        if outcome != "taken":
            self.forget(command_id)
        return [raw.settled(command_id, outcome, error)]

    def find(self, key: str) -> P | None:
        """Return the oldest input that an echo may be of, by its key. None where somebody else has
        sent it."""
        return next((input_ for input_ in self.sent if input_.key == key), None)

    def seen(self, input_: P) -> None:
        """Record that the echo of an input was seen; there is no other one."""
        self.sent[:] = [other for other in self.sent if other is not input_]

    def know(self, name: str, command_id: str, key: str) -> None:
        """Record the name of an echo, by which it is known if it is shown again."""
        self.forget(command_id, key)
        self.ids[name] = command_id
        for old in list(self.ids)[:-MOST]:
            del self.ids[old]

    def forget(self, command_id: str, key: str | None = None) -> None:
        """Forget an input; without a key all of a command but its steps, whose echoes are still to
        come."""
        self.sent[:] = [
            input_
            for input_ in self.sent
            if input_.command_id != command_id
            or (input_.step if key is None else input_.key != key)
        ]

    def drop(self, command_id: str) -> None:
        """Forget all inputs of a command, its steps too."""
        self.sent[:] = [input_ for input_ in self.sent if input_.command_id != command_id]
