"""However many readers there are, a few of them are given something at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from proxy.base.turns import RoundRobin
from tests.support.waiting import SOON_S

READERS = 50
PIECES = 5


class Rounds:
    """Counts the rounds of the event loop."""

    def __init__(self) -> None:
        self.number = 0
        self._tick()

    def _tick(self) -> None:
        self.number += 1
        self._next = asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> None:
        self._next.cancel()


async def test_in_one_round_no_more_pieces_are_made_than_there_are_turns() -> None:
    rounds, turns = Rounds(), RoundRobin(4)
    made: Counter[int] = Counter()

    async def pieces() -> AsyncGenerator[int]:
        for number in range(PIECES):
            made[rounds.number] += 1
            yield number

    async def read() -> list[int]:
        async with aclosing(turns.of(pieces())) as found:
            return [one async for one in found]

    async with asyncio.timeout(SOON_S):
        got = await asyncio.gather(*(read() for _ in range(READERS)))
    rounds.stop()
    assert got == [list(range(PIECES))] * READERS
    assert made.total() == READERS * PIECES
    assert max(made.values()) <= 4


async def test_a_reader_that_takes_nothing_holds_up_nobody() -> None:
    turns = RoundRobin(1)

    async def pieces() -> AsyncGenerator[int]:
        yield 1
        yield 2

    stalled = turns.of(pieces())
    async with asyncio.timeout(SOON_S), aclosing(stalled):
        assert await anext(stalled) == 1
        async with aclosing(turns.of(pieces())) as found:
            assert [one async for one in found] == [1, 2]


@pytest.mark.parametrize("fails", [True, False])
async def test_a_turn_is_given_back_and_what_was_read_is_closed(fails: bool) -> None:
    turns, closed = RoundRobin(1), []

    async def pieces() -> AsyncGenerator[int]:
        try:
            yield 1
            raise ValueError("x")
        finally:
            closed.append(True)

    async with asyncio.timeout(SOON_S):
        async with aclosing(turns.of(pieces())) as found:
            assert await anext(found) == 1
            if fails:
                with pytest.raises(ValueError, match="x"):
                    await anext(found)
        assert closed == [True]
        async with aclosing(turns.of(pieces())) as again:
            assert await anext(again) == 1
