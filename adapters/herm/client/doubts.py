"""Inputs whose answer was lost: the list tells what became of them. They are never posted again."""

from __future__ import annotations

from collections.abc import Iterable

from adapters import events as ev
from adapters import raw
from adapters.herm.client.asks import Asks
from adapters.herm.client.inputs import Inputs
from adapters.herm.client.records import Doubt, State

__all__ = ["LOOKS", "LOOK_RETRY_MS", "Doubts"]

LOOK_AGAIN_MS = 2_000
"""How long after an input was cut off the list is asked for the last time: what the connection
still held has arrived by then. Ours."""

LOOKS = 12
LOOK_RETRY_MS = 5_000
"""How often, and how long after, a list that cannot be read is asked again for an input in doubt:
as long as a backend that is away is borne."""


class Doubts:
    """What is looked up. A list that is read before `at` of a doubt may be too early; one that is
    read after it decides."""

    __slots__ = ("_asks", "_inputs", "_s")

    def __init__(self, state: State, inputs: Inputs, asks: Asks) -> None:
        self._s = state
        self._inputs = inputs
        self._asks = asks

    def begin(self, command_ids: Iterable[str]) -> None:
        """Doubt what a call carried, from now on."""
        for command_id in command_ids:
            self._s.doubts[command_id] = Doubt()

    def go_on(self, command_id: str) -> None:
        """Doubt a command; how long it was doubted before a restart counts."""
        self._s.doubts.setdefault(command_id, Doubt())

    def due(self, now: int | None) -> tuple[str, ...]:
        """Return the commands that a list decides which is asked for now."""
        if now is None:
            return ()
        doubts = self._s.doubts.items()
        return tuple(name for name, doubt in doubts if doubt.at and doubt.at <= now)

    @property
    def due_at(self) -> int | None:
        """When the next one is due."""
        return min((d.at for d in self._s.doubts.values() if d.at is not None), default=None)

    def look(
        self, now: int, *, read: bool, exhausted: bool, decides: tuple[str, ...]
    ) -> list[ev.Event]:
        """Settle what a list shows, or, where it decides, what it does not show.

        `read` is false where it could not be had, `exhausted` where it was asked for so often that
        it is asked no more."""
        out: list[ev.Event] = []
        for command_id in list(self._s.doubts):
            out += self._look(command_id, now, read, exhausted, command_id in decides)
        return out

    def _look(
        self, command_id: str, now: int, read: bool, exhausted: bool, decides: bool
    ) -> list[ev.Event]:
        s = self._s
        doubt = s.doubts[command_id]
        mine = s.pending if self._inputs.is_expected(command_id) else None
        item = self._inputs.unsettled(command_id)
        if item is None or (mine is not None and mine.settled):
            # Its echo was in the list, or its turn.
            del s.doubts[command_id]
            return []
        # A list that was asked for so often is as good as so many.
        doubt.looks = LOOKS if exhausted else doubt.looks + 1
        if not read and doubt.looks < LOOKS:
            doubt.at = now + LOOK_RETRY_MS
            return []
        if read and not decides:
            if doubt.at is not None:
                return []
            doubt.at = now + LOOK_AGAIN_MS
            # The time is stored with this: a restart goes on waiting, and does not begin again.
            message = "Herm's list does not show an input yet; it will be asked once more."
            return [raw.in_doubt(message)]
        if item.interrupts and item.message is not None and s.turn is None:
            # There is nothing to withdraw any more, and the message was not posted yet.
            self._inputs.forget_sent(command_id)
            del s.doubts[command_id]
            self._inputs.say_next(item.message)
            return []
        if mine is not None:
            s.pending = None
        # Where inputs are not listed, a message that was taken would have begun a turn, and what
        # follows an interrupt was not posted yet; of the others nothing tells.
        if item.interrupts or (read and (s.lists_inputs or mine is not None)):
            lost = ev.ErrorInfo(
                code="not_arrived", message="The input did not reach the backend; send it again."
            )
            out = self._inputs.settle(command_id, "refused", lost)
        else:
            lost = ev.ErrorInfo(
                code="no_evidence", message="The backend has no record of the input."
            )
            out = self._inputs.settle(command_id, "unknown", lost)
        # It never arrived: what it answers is open as before, and is to be answered again.
        return out + self._asks.release(command_id)
