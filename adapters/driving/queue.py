"""Messages to a backend that takes one at a time: the one whose turn is next, and those behind it.

    queued --the turn before is over--> next --sent, its turn begins--> (forgotten)
                                         ^ |
                          sent again     +-+ refused for now, held for the end of a turn

The next message stays until its turn shows it: it owes the log its receipt. Its `Hold`, which is an
`adapters.driving.again.Again`, says whether it is sent yet: it may wait for a time, or for the end
of a turn of others.
"""

from __future__ import annotations

import dataclasses
from typing import Generic, Protocol, TypeVar

from adapters.driving.part import CodecPart


class Hold(Protocol):
    """What says whether a message is sent yet."""

    @property
    def waits(self) -> bool: ...
    @property
    def ready(self) -> bool: ...
    @property
    def due(self) -> int | None: ...
    def wait(self, at: int | None = None) -> None: ...
    def let_go(self) -> None: ...
    def tick(self, now: int) -> None: ...
    def sent(self) -> None: ...


class QueuedMessage(Protocol):
    """A message, as the part reads it. `settled` says that the log knows that it was taken."""

    settled: bool

    @property
    def command_id(self) -> str: ...
    @property
    def again(self) -> Hold: ...


M = TypeVar("M", bound=QueuedMessage)


class QueueRecord(Protocol[M]):
    """Where a dialect stores its messages: the next one, and those behind it in their order."""

    pending: M | None
    later: list[M]


@dataclasses.dataclass(slots=True)
class MessageQueue(CodecPart, Generic[M]):
    """The messages of a record, which the dialect stores: the part has no field that is stored."""

    record: QueueRecord[M]

    @property
    def next(self) -> M | None:
        """The message that is next."""
        return self.record.pending

    @property
    def sent(self) -> M | None:
        """The next message, where it was sent: a turn that begins may be its own."""
        found = self.record.pending
        return None if found is None or found.again.waits else found

    @property
    def due(self) -> int | None:
        return None if self.record.pending is None else self.record.pending.again.due

    def is_next(self, command_id: str) -> bool:
        """Say whether a command is the next message."""
        found = self.record.pending
        return found is not None and found.command_id == command_id

    def add(self, message: M) -> bool:
        """Take a message; say whether it is the next one, and to be sent at once."""
        if self.record.pending is not None and not self.is_next(message.command_id):
            self.record.later.append(message)
            return False
        self.record.pending = message
        return True

    def hold(self, message: M, *, busy: bool) -> bool:
        """Take a message that is sent as soon as no turn runs and no other is on its way; say
        whether it is held for the end of the turn that runs."""
        if self.record.pending is not None:
            self.record.later.append(message)
            return False
        self.record.pending = message
        message.again.wait()
        if not busy:
            message.again.let_go()
        return busy

    def ready(self, *, free: bool) -> M | None:
        """Return the message that is to be sent now. Where the backend is free, and no message is
        next, the first of the others is."""
        record = self.record
        if free and record.later and record.pending is None:
            record.pending = record.later.pop(0)
            record.pending.again.wait()
            record.pending.again.let_go()
        found = record.pending
        return found if found is not None and found.again.ready else None

    def turn_over(self) -> None:
        """Let the next message go, which may wait for the end of the turn."""
        if self.record.pending is not None:
            self.record.pending.again.let_go()

    def tick(self, now: int) -> None:
        """Hear what time it is."""
        if self.record.pending is not None:
            self.record.pending.again.tick(now)

    def settle(self) -> M | None:
        """Record that the next message was taken; return it, unless that is known."""
        found = self.record.pending
        if found is None or found.settled:
            return None
        found.settled = True
        return found

    def unsent(self) -> list[M]:
        """Return the messages that were never sent, or are to be sent again."""
        found = self.record.pending
        return [*self.record.later, *([found] if found is not None and found.again.waits else ())]

    def drop(self, command_id: str) -> None:
        """Forget a message."""
        self.record.later = [one for one in self.record.later if one.command_id != command_id]
        if self.is_next(command_id):
            self.record.pending = None

    def drop_next(self) -> None:
        """Forget the next message: its turn has begun, or it was refused."""
        self.record.pending = None
