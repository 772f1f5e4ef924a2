"""Inputs whose answer was lost: the list tells what became of them. They are never posted again."""

from __future__ import annotations

import dataclasses

from adapters.driving.doubts import Evidence, LookVerdict
from adapters.herm.client.asks import HermRequests
from adapters.herm.client.inputs import HermInputs
from adapters.herm.client.records import HermClientState
from adapters.model import events as ev
from adapters.model import raw


@dataclasses.dataclass(slots=True)
class LostInputLookup:
    """What is looked for in a list."""

    s: HermClientState
    inputs: HermInputs
    asks: HermRequests

    def look(self, now: int, unread: Evidence | None, begun: int) -> list[ev.Event]:
        """Settle what a list shows that was begun at a time, or, where it decides, what it does not
        show. `unread` says that it could not be had."""
        doubts = self.s.doubts
        out: list[ev.Event] = []
        for command_id in list(doubts.open):
            mine = self.s.queue.next if self.s.queue.is_next(command_id) else None
            # Its echo was in the list, or its turn.
            settled = mine is not None and mine.settled
            shown = settled or self.s.echoes.unsettled(command_id) is None
            evidence = Evidence.SHOWN if shown else unread or Evidence.MISSING
            match doubts.hear(command_id, evidence, now, begun=begun):
                case LookVerdict.TELL:
                    # The time is stored with this: a restart goes on waiting.
                    message = "Herm's list does not show an input yet; it will be asked once more."
                    out.append(raw.in_doubt(message))
                case LookVerdict.LOST:
                    out += self._not_shown(command_id, read=True)
                case LookVerdict.UNKNOWN:
                    out += self._not_shown(command_id, read=False)
        return out

    def _not_shown(self, command_id: str, *, read: bool) -> list[ev.Event]:
        s, item = self.s, self.s.echoes.unsettled(command_id)
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
            out = self.inputs.settle(command_id, "refused", lost)
        else:
            lost = ev.ErrorInfo(
                code="no_evidence", message="The backend has no record of the input."
            )
            out = self.inputs.settle(command_id, "unknown", lost)
        # It never arrived: what it answers is open as before, and is to be answered again.
        return out + s.asks.release(command_id)
