"""When something of a thread is due."""

from __future__ import annotations

import dataclasses
import heapq

from adapters.driving.held import HOLD_MS
from adapters.eve.client.state import EveClientState, ThreadState
from adapters.model.state import RECENT_IDS

END_HOLD_MS = 2_000
"""How long the end of a turn waits for its boundary (design section 3)."""

CHILD_HOLD_MS = 15_000
"""How long the end of a child waits for its own stream, what it said being there and nowhere else;
ours: a busy 0.30.8 has needed seconds to show it.
"""

SLICE = 64
"""Threads whose time has come that are looked after in one step."""


@dataclasses.dataclass(slots=True)
class ThreadTimers:
    """The times of threads, as a heap; an entry may be out of date."""

    state: EveClientState
    heap: list[tuple[int, str]] = dataclasses.field(default_factory=list, init=False)

    def _due_of(self, line: ThreadState) -> int | None:
        times = [] if line.held.due is None else [line.held.due]
        if line.settled is not None:
            times.append(line.settled_at + HOLD_MS)
        if line.ending is not None:
            times.append(line.ending_at + END_HOLD_MS)
        if line.outcome is not None:
            times.append(line.outcome_at + CHILD_HOLD_MS)
        return min(times, default=None)

    def index(self) -> None:
        """Find again what waits."""
        self.heap = []
        for line in self.state.lines.values():
            self.wait_for(line)

    def wait_for(self, line: ThreadState) -> None:
        """Remember when something of a thread is due that waits from now on."""
        due = self._due_of(line)
        if due is None:
            return
        heapq.heappush(self.heap, (due, line.thread))
        if len(self.heap) > 4 * len(self.state.lines) + RECENT_IDS:
            # Most of it is out of date.
            dues = [(self._due_of(one), one.thread) for one in self.state.lines.values()]
            self.heap = [(due, thread) for due, thread in dues if due is not None]
            heapq.heapify(self.heap)

    def next(self) -> int | None:
        """Return when the next thread is due."""
        while self.heap:
            due, thread = self.heap[0]
            line = self.state.lines.get(thread)
            now_due = None if line is None else self._due_of(line)
            if now_due == due:
                return due
            heapq.heappop(self.heap)
            if now_due is not None:
                heapq.heappush(self.heap, (now_due, thread))
        return None

    def take(self, now: int) -> list[ThreadState]:
        """Return some of the threads that are due, and forget that they are."""
        found: dict[str, ThreadState] = {}
        while len(found) < SLICE and (due := self.next()) is not None and due <= now:
            _, thread = heapq.heappop(self.heap)
            found[thread] = self.state.lines[thread]
        return list(found.values())
