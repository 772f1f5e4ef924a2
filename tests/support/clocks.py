"""Clocks for a real proxy in a test, so that no test waits as long as a person would."""

from __future__ import annotations

import asyncio
import time

from proxy.clock import Clock

__all__ = ["SPEED", "HurriedClock", "ShortWaits"]

SPEED = 200.0
"""How much faster than real time it runs: a minute of patience is 0.3 s then."""


class ShortWaits(Clock):
    """Real time, but every wait is a fraction of what it says."""

    def __init__(self, speed: float = SPEED) -> None:
        self._speed = speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        return await super().wait(event, seconds / self._speed)


class HurriedClock(ShortWaits):
    """Real time, run faster: waits are shorter and `now` moves on in step with them.

    `ahead` is how far somebody has set the clock, in milliseconds.
    """

    def __init__(self, speed: float = SPEED) -> None:
        super().__init__(speed)
        self.ahead = 0
        self._start = super().now()
        self._zero = time.monotonic()

    def now(self) -> int:
        return self._start + self.ahead + int((time.monotonic() - self._zero) * self._speed * 1000)

    def monotonic(self) -> float:
        return (time.monotonic() - self._zero) * self._speed
