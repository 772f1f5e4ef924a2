"""Takes turns: what many read at once is prepared for a few of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


class RoundRobin:
    """Lets so many readers at a time prepare their next piece, in the order in which they ask.

    A piece is a millisecond or so of work. However many readers there are, in one round of the
    event loop no more than `at_once` pieces are made, and all others of the process come between.
    """

    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)

    async def of(self, pieces: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """Yield what `pieces` yields, each made in a turn; who waits for its reader has none."""
        async with aclosing(pieces):
            while True:
                async with self._slots:
                    # A turn that has no await in it would let all readers through in one round.
                    await asyncio.sleep(0)
                    try:
                        piece = await anext(pieces)
                    except StopAsyncIteration:
                        return
                yield piece
