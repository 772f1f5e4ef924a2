"""Takes what all connections to backends brought in one pass, and not each piece by itself.

At hundreds of streams most events come alone: each has a callback of its own, finds cold caches,
wakes the journal's thread and is a commit nearly by itself. So pieces wait until the next pass,
which frames, decodes and normalizes all of them and hands them to the journal together. A piece
that comes alone is taken at once. Under load passes are as far apart as commits are
(`journal.window_ms`), so that the wait is paid once.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable

from proxy.gate import SLICE_SECONDS
from proxy.journal.base import Journal, longer

__all__ = ["Passes", "Soon"]

Soon = Callable[[Callable[[], None]], object]
"""Calls what takes the pieces of a connection, soon and once."""


class Passes:
    """The passes over what came, whose writes go to `journal`."""

    __slots__ = ("_journal", "_next", "_ready", "_waiting")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._ready: collections.deque[Callable[[], None]] = collections.deque()
        self._waiting = False
        # When the next pass may begin, by the clock of the loop.
        self._next = 0.0

    def soon(self, take: Callable[[], None]) -> None:
        """Call `take` in the next pass."""
        self._ready.append(take)
        if not self._waiting:
            self._waiting = True
            loop = asyncio.get_running_loop()
            wait = self._next - loop.time()
            if wait > 0:
                loop.call_later(wait, self._run)
            else:
                loop.call_soon(self._run)

    def _run(self) -> None:
        """Take what is ready, for a slice of a turn of the loop."""
        loop = asyncio.get_running_loop()
        ready, taken = self._ready, 0
        begun = time.perf_counter()
        with self._journal.together():
            while ready and time.perf_counter() - begun < SLICE_SECONDS:
                take = ready.popleft()
                taken += 1
                try:
                    take()
                except Exception as error:  # noqa: BLE001 - the others of the pass are taken still
                    loop.call_exception_handler(
                        {"message": "taking what a connection brought failed", "exception": error}
                    )
        if ready:
            loop.call_soon(self._run)
        else:
            self._waiting = False
            self._next = loop.time() + self._journal.window * longer(taken)
