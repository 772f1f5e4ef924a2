"""Tool calls that wait until their permission is known, and what waits behind them.

    (nothing) --call--> held --decided, or 250 ms--> (nothing)

Frontends are told with a call whether it needs a person's permission, and some backends show that
only by what they do next: ask for it, or run the tool. So a call is held until something shows, and
for `HOLD_MS` at most; what comes after it waits with it, so that the order stays.

A dialect may name types of events that pass a held call: in eve those of others, and news that are
about no order. Progress and results of a held call wait even so, and so do the calls after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from adapters.driving.part import CodecPart
from adapters.model import events as ev
from adapters.model.raw import Raw

HOLD_MS = 250
"""How long a tool call waits for evidence of its permission (design section 3)."""

_OF_A_CALL = (ev.ToolProgressed, ev.ToolReturned)


@dataclasses.dataclass(slots=True)
class HeldToolCalls(CodecPart):
    """What is held, in order; `since` is when its oldest call has come, `undecided` are the calls
    in it whose permission is not known."""

    events: list[Raw] = dataclasses.field(default_factory=list)
    undecided: list[str] = dataclasses.field(default_factory=list)
    since: int = 0

    @property
    def due(self) -> int | None:
        return self.since + HOLD_MS if self.events else None

    def decide(self, call_id: str, permission: ev.Permission) -> None:
        """Hear what permission a call needs; the first word counts."""
        if call_id in self.undecided:
            self._decide({call_id}, permission)

    def decide_all(self, permission: ev.Permission) -> None:
        """Decide all calls whose permission is not known yet."""
        if self.undecided:
            self._decide(set(self.undecided), permission)

    def _decide(self, call_ids: set[str], permission: ev.Permission) -> None:
        self.undecided = [name for name in self.undecided if name not in call_ids]
        self.events = [
            event.model_copy(update={"permission": permission})
            if isinstance(event, ev.ToolCalled) and event.call_id in call_ids
            else event
            for event in self.events
        ]

    def keep(
        self, events: Sequence[ev.Event], now: int, passing: Collection[str] = ()
    ) -> list[ev.Event]:
        """Take events in their order, and return what may go; `passing` is as `go` has it."""
        if not self.events and not any(type(event) is ev.ToolCalled for event in events):
            return list(events)
        calls = [event.call_id for event in events if type(event) is ev.ToolCalled]
        if calls and not self.undecided:
            self.since = now
        self.undecided += calls
        self.events += events
        return self.go(passing)

    def let_go(self, allowed: Collection[str] = ()) -> list[ev.Event]:
        """Return all that is held: of the calls, those in `allowed` were seen to run, and of the
        others nobody knows.
        """
        for call_id in self.undecided:
            if call_id in allowed:
                self.decide(call_id, "allow")
        self.undecided = []
        return self.go()

    def tick(self, now: int) -> list[ev.Event]:
        """Return what has waited long enough."""
        due = self.due
        return self.let_go() if due is not None and now >= due else []

    def go(self, passing: Collection[str] = ()) -> list[ev.Event]:
        """Return what may go: what stands before the first call that is not decided, and behind it
        events of the types that pass, up to the first other one.
        """
        out: list[ev.Event] = []
        kept: list[ev.Event] = []
        undecided, waiting = set(self.undecided), set[str]()
        for place, event in enumerate(self.events):
            if isinstance(event, ev.ToolCalled):
                if kept or event.call_id in undecided:
                    kept.append(event)
                    waiting.add(event.call_id)
                else:
                    out.append(event)
            elif isinstance(event, _OF_A_CALL) and event.call_id in waiting:
                kept.append(event)
            elif kept and event.TYPE not in passing:
                kept += self.events[place:]
                break
            else:
                out.append(event)
        self.events = kept
        return out
