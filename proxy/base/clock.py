"""Where time and randomness enter: everything else is given a `Clock` and an `IdSource`.

`ManualClock` and `SeededIds` are their doubles for tests: time stands still until a test moves it,
ids repeat.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import random
import time
import uuid

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32, without the letters that look like digits: `i`, `l`, `o`, `u`."""

MINTED_LENGTH = 26
"""Characters of a minted id after its prefix: 130 bits, as many as a ULID has, so that nobody can
guess one.
"""


class Clock:
    """Real time."""

    # How far Unix time has been ahead of the monotonic time at most, in milliseconds.
    _ahead: int | None = None
    # Unix time less the monotonic time when `steady` was first asked, in milliseconds.
    _origin: int | None = None

    def now(self) -> int:
        """Return the time as Unix milliseconds. When somebody sets the clock back it goes on from
        where it was: what is due in a second must not wait for an hour.
        """
        passed = time.monotonic_ns() // 1_000_000
        ahead = time.time_ns() // 1_000_000 - passed
        if self._ahead is None or ahead > self._ahead:
            self._ahead = ahead
        return passed + self._ahead

    def steady(self) -> int:
        """Return Unix milliseconds by which waits are measured: they go on at their pace from the
        first call on, however the clock is set meanwhile. So they may differ from `now`."""
        passed = round(self.monotonic() * 1000)
        if self._origin is None:
            self._origin = self.now() - passed
        return self._origin + passed

    def offset(self) -> float:
        """Return the seconds that the system's clock is ahead of the monotonic time: they change
        when somebody sets it, or the machine slept."""
        return (time.time_ns() - time.monotonic_ns()) / 1e9

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; never steps back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for the event, at most that many seconds; false when the time is over first."""
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        return True


class ManualClock(Clock):
    """Time that moves only when a test calls `advance`."""

    def __init__(self, start: int = 1_767_225_600_000) -> None:
        """Start at that Unix millisecond; the default is the first one of 2026."""
        self._start = start
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def now(self) -> int:
        """Return the time as Unix milliseconds."""
        return self._now

    def offset(self) -> float:
        """Return the time of the start: nobody sets this clock."""
        return self._start / 1000

    def monotonic(self) -> float:
        """Return the seconds that `advance` has passed."""
        return (self._now - self._start) / 1000

    async def sleep(self, seconds: float) -> None:
        """Return once `advance` has passed that many seconds."""
        future = asyncio.get_running_loop().create_future()
        due = self._now + round(seconds * 1000)
        heapq.heappush(self._sleepers, (due, next(self._order), future))
        await future

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for the event, at most that many seconds; false when the time is over first."""
        waiters = {
            asyncio.create_task(event.wait(), name="wait for an event"),
            asyncio.create_task(self.sleep(seconds), name="wait for the clock"),
        }
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
        return event.is_set()

    async def advance(self, seconds: float) -> None:
        """Move the time forward and wake who is due, in the order of their due times."""
        until = self._now + round(seconds * 1000)
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, future = heapq.heappop(self._sleepers)
            if future.done():
                continue
            self._now = max(self._now, due)
            future.set_result(None)
            # Who was woken may go to sleep again before `until`: let it run first.
            for _ in range(5):
                await asyncio.sleep(0)
        self._now = until
        await asyncio.sleep(0)


class IdSource:
    """Randomness from the operating system, good enough for secrets."""

    def bytes(self, count: int) -> bytes:
        """Return that many random bytes."""
        return os.urandom(count)

    def uuid(self) -> str:
        """Return a random UUID, version 4."""
        return str(uuid.UUID(bytes=self.bytes(16), version=4))

    def mint(self, prefix: str) -> str:
        """Return a new URL-safe id: `dgs` gives `dgs_` and 26 characters."""
        number = int.from_bytes(self.bytes(17))
        digits = [ALPHABET[number >> (5 * at) & 31] for at in range(MINTED_LENGTH)]
        return f"{prefix}_{''.join(digits)}"

    def fraction(self) -> float:
        """Return a number from 0 up to, but without, 1: for jitter, and for choices by weight."""
        return int.from_bytes(self.bytes(7)) / 2**56


class SeededIds(IdSource):
    """The same ids in the same order in every run, for tests."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def bytes(self, count: int) -> bytes:
        """Return the next bytes of the seed."""
        return self._random.randbytes(count)
