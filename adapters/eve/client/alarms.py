"""The time: what is due next, and what follows when it is."""

from __future__ import annotations

import dataclasses

from adapters.driving.held import HOLD_MS
from adapters.driving.part import soonest
from adapters.eve.client.parts import EveParts
from adapters.eve.client.state import ChildOutcome
from adapters.eve.client.timers import CHILD_HOLD_MS, END_HOLD_MS, SLICE
from adapters.eve.client.turn_end import TurnEnd
from adapters.model import events as ev
from adapters.wire.errors import SESSION_LOST


@dataclasses.dataclass(slots=True)
class EveAlarms:
    """All times of a session."""

    parts: EveParts
    turn_end: TurnEnd

    def tick(self, now: int) -> list[ev.Event]:
        """Do what is due."""
        out: list[ev.Event] = []
        for line in self.parts.timers.take(now):
            if line.held.due is not None and now >= line.held.due:
                out += self.parts.calls.decide_and_release(line)
            if line.settled is not None and now >= line.settled_at + HOLD_MS:
                out += self.parts.resolution.settle(line, line.settled)
            if line.ending is not None and now >= line.ending_at + END_HOLD_MS:
                out += self.turn_end.flush(line)
            if line.outcome is not None and now >= line.outcome_at + CHILD_HOLD_MS:
                out += self.turn_end.end_child(line)
            self.parts.timers.wait_for(line)
        self.parts.retries.tick(now)
        return out + self.parts.inputs.tick(now) + self._overdue(now)

    def _overdue(self, now: int) -> list[ev.Event]:
        s = self.parts.state
        out = self.parts.cancellation.tick(now)
        if s.reset_at is not None and now >= s.reset_at:
            out += self.turn_end.end_session("terminated", None)
        if s.doubted_until is not None and now >= s.doubted_until:
            s.doubted_until = None
        if self.parts.cancellation.is_gone(now):
            if s.mistrusted:
                message = "eve: nothing comes of the session any more since a reset of it failed"
                out += self.turn_end.lost(ev.ErrorInfo(code=SESSION_LOST, message=message))
            else:
                out += self.turn_end.gone(
                    s.lines[ev.MAIN], "the turn was cancelled and shows no end"
                )
        if s.orphans_at is not None and now >= s.orphans_at:
            some = [
                line
                for _, line in zip(range(SLICE), self.parts.child_index.unfinished(), strict=False)
            ]
            for line in some:
                line.outcome = line.outcome or ChildOutcome("cancelled", synthetic=True)
                out += self.turn_end.end_child(line)
            if not self.parts.child_index.open:
                s.orphans_at = None
        return out

    def next(self) -> int | None:
        """Return when something is due, if anything waits."""
        s = self.parts.state
        others = [self.parts.retries.due(), s.doubted_until, *self.parts.cancellation.due()]
        return soonest(
            self.parts.timers.next(), self.parts.inputs.due(), s.reset_at, s.orphans_at, *others
        )

    def is_waiting(self) -> bool:
        """Say whether a record may move a time."""
        return self.parts.state.orphans_at is not None or self.parts.state.gone_at is not None
