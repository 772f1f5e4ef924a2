"""Tool calls that wait until their permission is known, and what waits behind them.

    (nothing) --call--> held --decided, or 250 ms--> (nothing)

Frontends are told with a call whether it needs a person's permission, and some backends show that
only by what they do next: ask for it, or run the tool. So a call is held until something shows, and
for `HOLD_MS` at most; what comes after it waits with it, so that the order stays. Where more waits
than has a place here, all of it is told as it is.

In eve some events may pass a held call (results of others, usage, news of children), and results of
a held call wait even so: it will hand `keep` the types that may pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Annotated

from adapters import events as ev
from adapters.driving.part import NOT_STORED, Part
from adapters.raw import Raw

__all__ = ["HOLD_MS", "MOST_BYTES", "MOST_EVENTS", "Held"]

HOLD_MS = 250
"""How long a tool call waits for evidence of its permission (design section 3)."""

MOST_EVENTS = 128
MOST_BYTES = 256 * 1024
"""What waits behind a call, and the bytes of its frames; ours."""


@dataclasses.dataclass(slots=True)
class Held(Part):
    """What is held, in order; `since` is when its oldest call has come, `undecided` are the calls
    in it whose permission is not known, `size` the bytes of the frames that came behind the first.
    """

    events: list[Raw] = dataclasses.field(default_factory=list)
    undecided: list[str] = dataclasses.field(default_factory=list)
    since: int = 0
    size: Annotated[int, NOT_STORED] = 0

    @property
    def due(self) -> int | None:
        return self.since + HOLD_MS if self.events else None

    def decide(self, call_id: str, permission: ev.Permission) -> None:
        """Hear what permission a call needs; the first word counts."""
        if call_id not in self.undecided:
            return
        self.undecided = [name for name in self.undecided if name != call_id]
        self.events = [
            event.model_copy(update={"permission": permission})
            if isinstance(event, ev.ToolCalled) and event.call_id == call_id
            else event
            for event in self.events
        ]

    def keep(self, events: Sequence[ev.Event], now: int, size: int = 0) -> list[ev.Event]:
        """Take events in their order, of a frame of so many bytes, and return what may go."""
        calls = [event.call_id for event in events if type(event) is ev.ToolCalled]
        if not calls and not self.events:
            return list(events)
        if calls and not self.undecided:
            self.since = now
        if self.events:
            self.size += size
        self.undecided += calls
        self.events += events
        if len(self.events) > MOST_EVENTS or self.size > MOST_BYTES:
            return self.let_go()
        return self._go()

    def let_go(self, allowed: Collection[str] = ()) -> list[ev.Event]:
        """Return all that is held: of the calls, those in `allowed` were seen to run, and of the
        others nobody knows.
        """
        for call_id in self.undecided:
            if call_id in allowed:
                self.decide(call_id, "allow")
        self.undecided = []
        return self._go()

    def tick(self, now: int) -> list[ev.Event]:
        """Return what has waited long enough."""
        due = self.due
        return self.let_go() if due is not None and now >= due else []

    def _go(self) -> list[ev.Event]:
        for place, event in enumerate(self.events):
            if isinstance(event, ev.ToolCalled) and event.call_id in self.undecided:
                out, self.events = self.events[:place], self.events[place:]
                return out
        out, self.events, self.size = self.events, [], 0
        return out
