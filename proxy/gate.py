"""What long work in the event loop goes through, so that nobody waits for it.

So many do it at a time, as a semaphore; and of all of them together a slice is done in each turn of
the loop. Long work is written as an iterator, which may pause wherever it yields. What is done in
slices takes no longer for it: it is the same processor.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TypeVar

SLICE_SECONDS = 0.003
"""How much long work is done in a turn of the loop, beside what else there is to do: a seventh of
what a turn may take (`proxy.turns.BOUND`), since the last step of a slice may be a large one."""

T = TypeVar("T")


class Gate(asyncio.Semaphore):
    """Room for `value` at a time, and slices for all who ask."""

    def __init__(self, value: int = 1) -> None:
        super().__init__(value)
        self._left = SLICE_SECONDS
        self._renewing = False
        # Who waits, and the seconds that were asked for, None where nobody knows.
        self._queue: collections.deque[tuple[asyncio.Future[None], float | None]] = (
            collections.deque()
        )

    def each(self, work: Iterable[T | None]) -> AsyncIterator[T]:
        """Yield what `work` yields, without each None: there it may pause too."""
        return _Slices(self, iter(work))

    async def run(self, work: Iterable[object]) -> None:
        """Do `work` to its end."""
        async for _ in _Slices[object](self, (None for _ in work)):
            pass

    async def do(self, work: Callable[[], T]) -> T:
        """Do a piece of work that has no steps, and return what it gives."""
        await self._turn()
        begun = time.perf_counter()
        try:
            return work()
        finally:
            self._took(time.perf_counter() - begun)

    async def room(self, seconds: float) -> None:
        """Return in a turn of the loop in which there is time for what takes about so long."""
        if self._left > 0 and not self._queue:
            self._took(seconds)
        else:
            await self._let_through(seconds)

    async def step(self, steps: Iterator[T | None]) -> T | None:
        """Return the next of `steps` that is not None, or None at their end."""
        while True:
            await self._turn()
            begun = time.perf_counter()
            try:
                for found in steps:
                    if found is not None:
                        return found
                    if time.perf_counter() - begun >= self._left:
                        break
                else:
                    return None
            finally:
                self._took(time.perf_counter() - begun)

    def _took(self, seconds: float) -> None:
        self._left -= seconds
        self._renew_soon()

    async def _turn(self) -> None:
        """Return in a turn of the loop in which there is time left; who came first is first."""
        if self._left > 0 and not self._queue:
            return
        while True:
            await self._let_through(None)
            if self._left > 0:
                return

    async def _let_through(self, seconds: float | None) -> None:
        room = asyncio.get_running_loop().create_future()
        self._queue.append((room, seconds))
        self._renew_soon()
        await room

    def _renew_soon(self) -> None:
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self._renewing = False
        self._left = SLICE_SECONDS
        self._next()
        if self._queue:
            self._renew_soon()

    def _next(self) -> None:
        """Let through whoever comes next: one who takes nobody knows how long, or as many others
        as there is time for."""
        while self._queue and self._left > 0:
            room, seconds = self._queue.popleft()
            if room.done():
                # Whoever waited has left.
                continue
            room.set_result(None)
            if seconds is None:
                return
            self._left -= seconds


class _Slices(AsyncIterator[T]):
    """An iterator that goes through a gate. No generator, which would have to be closed."""

    __slots__ = ("_gate", "_steps")

    def __init__(self, gate: Gate, steps: Iterator[T | None]) -> None:
        self._gate = gate
        self._steps = steps

    async def __anext__(self) -> T:
        found = await self._gate.step(self._steps)
        if found is None:
            raise StopAsyncIteration
        return found
