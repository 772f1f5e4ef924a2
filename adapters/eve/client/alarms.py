"""The time: what is due next, and what follows when it is."""

from __future__ import annotations

from adapters.driving.held import HOLD_MS
from adapters.driving.part import soonest
from adapters.eve.client.dues import CHILD_HOLD_MS, END_HOLD_MS, SLICE, Dues
from adapters.eve.client.ends import Ends
from adapters.eve.client.holding import Holding
from adapters.eve.client.inputs import Inputs
from adapters.eve.client.members import Members
from adapters.eve.client.records import Outcome, State
from adapters.eve.client.resolving import Resolving
from adapters.eve.client.retries import Retries
from adapters.eve.client.stopping import Stopping
from adapters.model import events as ev
from adapters.wire.errors import SESSION_LOST

_RESET_FAILED = "eve: nothing comes of the session any more since a reset of it failed"


class Alarms:
    """All times of a session."""

    __slots__ = (
        "_dues",
        "_ends",
        "_holding",
        "_inputs",
        "_members",
        "_resolving",
        "_retries",
        "_s",
        "_stopping",
    )

    def __init__(
        self,
        state: State,
        dues: Dues,
        members: Members,
        holding: Holding,
        retries: Retries,
        inputs: Inputs,
        stopping: Stopping,
        resolving: Resolving,
        ends: Ends,
    ) -> None:
        self._s = state
        self._dues = dues
        self._members = members
        self._holding = holding
        self._retries = retries
        self._inputs = inputs
        self._stopping = stopping
        self._resolving = resolving
        self._ends = ends

    def tick(self, now: int) -> list[ev.Event]:
        """Do what is due."""
        out: list[ev.Event] = []
        for line in self._dues.take(now):
            if line.held.due is not None and now >= line.held.due:
                out += self._holding.decide_and_release(line)
            if line.settled is not None and now >= line.settled_at + HOLD_MS:
                out += self._resolving.settle(line, line.settled)
            if line.ending is not None and now >= line.ending_at + END_HOLD_MS:
                out += self._ends.flush(line)
            if line.outcome is not None and now >= line.outcome_at + CHILD_HOLD_MS:
                out += self._ends.end_child(line)
            self._dues.wait_for(line)
        self._retries.tick(now)
        return out + self._inputs.tick(now) + self._overdue(now)

    def _overdue(self, now: int) -> list[ev.Event]:
        s = self._s
        out = self._stopping.tick(now)
        if s.reset_at is not None and now >= s.reset_at:
            out += self._ends.end_session("terminated", None)
        if s.doubted_until is not None and now >= s.doubted_until:
            s.doubted_until = None
        if self._stopping.is_gone(now):
            if s.mistrusted:
                out += self._ends.lost(ev.ErrorInfo(code=SESSION_LOST, message=_RESET_FAILED))
            else:
                out += self._ends.gone(s.lines[ev.MAIN], "the turn was cancelled and shows no end")
        if s.orphans_at is not None and now >= s.orphans_at:
            some = [line for _, line in zip(range(SLICE), self._members.unfinished(), strict=False)]
            for line in some:
                line.outcome = line.outcome or Outcome("cancelled", synthetic=True)
                out += self._ends.end_child(line)
            if not self._members.open:
                s.orphans_at = None
        return out

    def next(self) -> int | None:
        """Return when something is due, if anything waits."""
        s = self._s
        others = [self._retries.due(), s.doubted_until, *self._stopping.due()]
        return soonest(self._dues.next(), self._inputs.due(), s.reset_at, s.orphans_at, *others)

    def is_waiting(self) -> bool:
        """Say whether a record may move a time."""
        return self._s.orphans_at is not None or self._s.gone_at is not None
