"""How late the event loop is: what everybody waits longer because others keep it busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PERIOD = 0.02
"""Seconds between two looks."""

WINDOW = 750
"""Looks, 15 seconds of them, after which the longest lag is forgotten: within twice that time at
the latest."""


class LoopLag:
    """The longest lag of a loop within the last 15 to 30 seconds, in seconds."""

    def __init__(self) -> None:
        self._before = self._now = 0.0

    @property
    def longest(self) -> float:
        """Return it; a delay shorter than `PERIOD` may be missed."""
        return max(self._before, self._now)

    def watch(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """Begin to look; return what ends that."""
        self._before = self._now = 0.0
        looks = 0
        timer: asyncio.TimerHandle

        def look(due: float) -> None:
            nonlocal looks, timer
            now = loop.time()
            self._now = max(self._now, now - due)
            looks += 1
            if not looks % WINDOW:
                self._before, self._now = self._now, 0.0
            timer = loop.call_at(now + PERIOD, look, now + PERIOD)

        look(loop.time())
        return lambda: timer.cancel()


LAG = LoopLag()
"""That of the loop that serves."""
