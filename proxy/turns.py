"""Watches the turns of the event loop: how long it keeps everybody waiting.

A turn is all that the loop does between two looks at its sockets. What is judged is the CPU time of
the loop's thread in it: on a busy machine, or while another thread has the interpreter, the wall
clock counts what no turn of ours took. Collecting garbage is part of a turn.

asyncio's own loop is measured exactly, by its selector. uvloop has no such place: there a timer is
looked at for how late it fires, which sees a turn up to `PERIOD` shorter than it was.
"""

from __future__ import annotations

import asyncio
import bisect
import collections
import selectors
import time
from collections.abc import Callable

BOUND = 0.02
"""Seconds of CPU that no turn may take: a person sees no wait of 20 ms, nor does a stream of 30
events a second."""

BUCKETS = (0.001, 0.002, 0.005, 0.01, BOUND, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Upper bounds of the classes that turns are counted in."""

MOST_READY = 8
"""Connections that are looked at in a turn: to read a request and begin with it takes up to half a
millisecond, and what a backend tells at once of a short turn takes one or two. Others that are
ready are looked at in the next turns, with timers and tasks between them."""

PERIOD = 0.005
"""How often the timer fires that stands in for the selector: a quarter of the bound, and 0.2 % of a
core."""


class Turns:
    """What the turns of a loop took, since `begin`.

    `counts` are the turns of each class, the last those above all bounds; `seconds` is the CPU time
    of all, `longest` that of the longest one, `longest_wall` the time that one took by the clock.
    """

    __slots__ = ("_cpu", "_woke", "counts", "longest", "longest_wall", "seconds")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was, the turn that runs included up to now."""
        self.counts = [0] * (len(BUCKETS) + 1)
        self.seconds = self.longest = self.longest_wall = 0.0
        self._cpu = time.thread_time()
        self._woke = time.perf_counter()

    @property
    def over(self) -> int:
        """Return how many turns took more than `BOUND`."""
        return sum(self.counts[BUCKETS.index(BOUND) + 1 :])

    def woke(self) -> None:
        """Hear that a turn begins."""
        self._woke = time.perf_counter()

    def ended(self) -> None:
        """Hear that the turn is over: the loop looks for what is next."""
        wall = time.perf_counter() - self._woke
        cpu = time.thread_time()
        # From end to end, since looking at many sockets is work too; waiting for them takes none.
        self.took(cpu - self._cpu, wall)
        self._cpu = cpu

    def took(self, cpu: float, wall: float) -> None:
        """Count a turn."""
        self.counts[bisect.bisect_left(BUCKETS, cpu)] += 1
        self.seconds += cpu
        if cpu > self.longest:
            self.longest = cpu
        if wall > self.longest_wall:
            self.longest_wall = wall


TURNS = Turns()
"""Those of the loop that serves."""


Ready = tuple[selectors.SelectorKey, int]


class WatchedSelector(selectors.DefaultSelector):
    """A selector that measures turns, and tells of at most `MOST_READY` files in one."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns
        self._left: collections.deque[Ready] = collections.deque()

    def select(self, timeout: float | None = None) -> list[Ready]:
        """Return what is ready: first what was left over, as far as it is still waited for."""
        self._turns.ended()
        try:
            ready = self._take_left()
            if not ready:
                self._left.extend(super().select(timeout))
                ready = self._take_left()
            return ready
        finally:
            self._turns.woke()

    def _take_left(self) -> list[Ready]:
        # What was registered anew meanwhile may be another file of the same number. That it is
        # ready is found again.
        map_ = self.get_map()
        ready: list[Ready] = []
        while self._left and len(ready) < MOST_READY:
            key, events = self._left.popleft()
            if map_.get(key.fd) is key:
                ready.append((key, events))
        return ready


class WatchedLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, whose turns are measured; for one loop at a time."""

    def __init__(self) -> None:
        TURNS.begin()
        super().__init__(WatchedSelector(TURNS))


class _Timer:
    """Measures the turns of a foreign loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: Turns) -> None:
        self._loop = loop
        self._turns = turns
        self._wait()

    def _wait(self) -> None:
        self._cpu = time.thread_time()
        self._due = time.perf_counter() + PERIOD
        self._handle = self._loop.call_later(PERIOD, self._fire)

    def _fire(self) -> None:
        late = max(time.perf_counter() - self._due, 0.0)
        # What was late because others had the processor is no turn of ours.
        self._turns.took(min(late, time.thread_time() - self._cpu), late)
        self._wait()

    def end(self) -> None:
        self._handle.cancel()


def watch(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Begin to count the turns of the running loop in `TURNS`; return what ends that."""
    TURNS.begin()
    if isinstance(loop, WatchedLoop):
        return lambda: None
    return _Timer(loop, TURNS).end
