"""Tool calls, kept back until their permission is known."""

from __future__ import annotations

import dataclasses

from adapters.eve.client.state import EveClientState, EveToolCall, ThreadState
from adapters.eve.client.timers import ThreadTimers
from adapters.model import events as ev
from adapters.model.state import RECENT_IDS

_OVERTAKING = frozenset(
    {
        "tool.input_delta",
        "tool.progressed",
        "tool.returned",
        "thread.started",
        "thread.updated",
        "thread.ended",
        "input.settled",
        "usage.reported",
        "error.reported",
        "native",
    }
)
"""What may pass a call whose permission is not known yet; the rest waits behind it."""


@dataclasses.dataclass(slots=True)
class PendingCalls:
    """The calls of turns, and what waits behind one of them."""

    state: EveClientState
    timers: ThreadTimers
    # The threads that have a call open.
    callers: dict[str, dict[str, None]] = dataclasses.field(default_factory=dict, init=False)

    def index(self) -> None:
        """Find the open calls again."""
        self.callers = {}
        for line in self.state.lines.values():
            for call_id in line.calls:
                self.callers.setdefault(call_id, {})[line.thread] = None

    def hold(self, line: ThreadState, events: list[ev.Event], now: int) -> list[ev.Event]:
        """Keep back undecided calls, and what may not overtake them."""
        began = not line.held.events
        out = line.held.keep(events, now, _OVERTAKING)
        if began and line.held.events:
            self.timers.wait_for(line)
        return out

    def released(self, line: ThreadState) -> list[ev.Event]:
        """Return what may go: calls in the order in which they were asked for (section 8.1)."""
        return line.held.go(_OVERTAKING)

    def decide(self, line: ThreadState, call_id: object, permission: ev.Permission) -> None:
        """Take the permission of a call, where it is not known yet."""
        if isinstance(call_id, str):
            line.held.decide(call_id, permission)

    def decide_and_release(self, line: ThreadState) -> list[ev.Event]:
        """Give up waiting for the permission of a thread's calls, and return what has waited."""
        line.held.decide_all("unknown")
        return self.released(line)

    def take_call(self, line: ThreadState, call_id: str, call: EveToolCall) -> None:
        """Remember a call that is asked for."""
        self._forget_call(line, call_id)
        line.calls[call_id] = call
        self.callers.setdefault(call_id, {})[line.thread] = None

    def call_returned(self, line: ThreadState, call_id: str) -> None:
        """Record that a call is open no more: some of these are remembered."""
        call, s = line.calls.get(call_id), self.state
        if call is None or call.returned:
            return
        call.returned = True
        s.returned[f"{line.thread}/{call_id}"] = [line.thread, call_id]
        while len(s.returned) > RECENT_IDS:
            thread, oldest = s.returned.pop(next(iter(s.returned)))
            owner = s.lines.get(thread)
            old = None if owner is None else owner.calls.get(oldest)
            if owner is not None and old is not None and old.returned:
                self._forget_call(owner, oldest)

    def _forget_call(self, line: ThreadState, call_id: str) -> None:
        if line.calls.pop(call_id, None) is None:
            return
        line.held.decide(call_id, "unknown")
        self.state.returned.pop(f"{line.thread}/{call_id}", None)
        callers = self.callers[call_id]
        del callers[line.thread]
        if not callers:
            del self.callers[call_id]

    def forget_turn(self, line: ThreadState) -> None:
        """Forget what only an open turn has."""
        line.held.decide_all("unknown")
        for call_id in list(line.calls):
            self._forget_call(line, call_id)
        line.unrelayed = {}
