"""Inputs whose answer was lost: the list tells what became of them. They are never posted again."""

from __future__ import annotations

from adapters.driving.doubts import Evidence, Verdict
from adapters.herm.client.asks import Asks
from adapters.herm.client.inputs import Inputs
from adapters.herm.client.records import State
from adapters.model import events as ev
from adapters.model import raw


class InDoubt:
    """What is looked for in a list."""

    __slots__ = ("_asks", "_inputs", "_s")

    def __init__(self, state: State, inputs: Inputs, asks: Asks) -> None:
        self._s = state
        self._inputs = inputs
        self._asks = asks

    def look(self, now: int, unread: Evidence | None, begun: int) -> list[ev.Event]:
        """Settle what a list shows that was begun at a time, or, where it decides, what it does not
        show. `unread` says that it could not be had."""
        doubts = self._s.doubts
        out: list[ev.Event] = []
        for command_id in list(doubts.open):
            mine = self._s.queue.next if self._s.queue.is_next(command_id) else None
            # Its echo was in the list, or its turn.
            settled = mine is not None and mine.settled
            shown = settled or self._s.echoes.unsettled(command_id) is None
            evidence = Evidence.SHOWN if shown else unread or Evidence.MISSING
            match doubts.hear(command_id, evidence, now, begun=begun):
                case Verdict.TELL:
                    # The time is stored with this: a restart goes on waiting.
                    message = "Herm's list does not show an input yet; it will be asked once more."
                    out.append(raw.in_doubt(message))
                case Verdict.LOST:
                    out += self._not_shown(command_id, read=True)
                case Verdict.UNKNOWN:
                    out += self._not_shown(command_id, read=False)
        return out

    def _not_shown(self, command_id: str, *, read: bool) -> list[ev.Event]:
        s, item = self._s, self._s.echoes.unsettled(command_id)
        assert item is not None
        if item.interrupts and item.message is not None and not s.works:
            # There is nothing to withdraw any more, and the message was not posted yet.
            s.echoes.forget(command_id)
            s.queue.hold(item.message, busy=s.works)
            return []
        expected = s.queue.is_next(command_id)
        if expected:
            s.queue.drop_next()
        # Where inputs are not listed, a message that was taken would have begun a turn, and what
        # follows an interrupt was not posted yet; of the others nothing tells.
        if item.interrupts or (read and (s.lists_inputs or expected)):
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
        return out + s.asks.release(command_id)
