"""Clocks for a real proxy in a test, so that no test waits as long as a person would."""

from __future__ import annotations

import asyncio
import time

from proxy.base.clock import Clock

__all__ = ["SPEED", "HurriedClock", "ShortWaits"]

SPEED = 200.0
"""How much faster than real time it runs: a minute of patience is 0.3 s then."""


MOST_SECONDS = 0.02
FAST_MOST_SECONDS = 0.001
"""How much real time counts at most while the event loop comes round once, and how much of it for a
fast clock, where ten seconds of patience would else be three rounds on a busy machine."""


EVENT_SECONDS = 0.5
"""How long an event is waited for at least, however short the wait is: what makes it come takes its
time on a busy machine."""


class ShortWaits(Clock):
    """Real time, but every wait is a fraction of what it says."""

    def __init__(self, speed: float = SPEED) -> None:
        self._speed = speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        return await super().wait(event, max(seconds / self._speed, EVENT_SECONDS))


class HurriedClock(Clock):
    """Real time, run faster: waits are shorter and `now` moves on in step with them.

    It stands still while the event loop does not come round, because the machine is busy elsewhere:
    half a second of that would else be minutes of patience. Made in the loop that it is for.
    `ahead` is how far somebody has set the clock, in milliseconds.
    """

    def __init__(self, speed: float = SPEED) -> None:
        self._speed = speed
        self._most = MOST_SECONDS if speed < SPEED else FAST_MOST_SECONDS
        self.ahead = 0
        self._start = super().now()
        self._passed = 0.0
        self._ticked = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._tick()

    def _tick(self) -> None:
        self._passed = self._real()
        self._ticked = time.monotonic()
        self._loop.call_later(self._most / 2, self._tick)

    def _real(self) -> float:
        """Return the seconds in which the loop came round."""
        return self._passed + min(time.monotonic() - self._ticked, self._most)

    def now(self) -> int:
        return self._start + self.ahead + int(self._real() * self._speed * 1000)

    def monotonic(self) -> float:
        return self._real() * self._speed

    async def sleep(self, seconds: float) -> None:
        await self.wait(asyncio.Event(), seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        due = self.monotonic() + seconds
        while not await super().wait(event, (due - self.monotonic()) / self._speed):
            if self.monotonic() >= due:
                return False
        return True
