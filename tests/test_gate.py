"""How long work shares the event loop."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

import pytest

from proxy import gate as gates
from proxy.gate import Gate
from tests.support.waiting import SOON_S


def steps(count: int, seconds: float, done: list[str], name: str = "") -> Iterator[None]:
    """So many steps of so much processor time."""
    for _ in range(count):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        done.append(name)
        yield


async def test_the_long_works_of_many_take_one_slice_of_a_turn_together() -> None:
    gate, done = Gate(), list[str]()
    step = gates.SLICE_SECONDS / 3
    each = []

    async def look() -> None:
        while True:
            each.append(len(done))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    works = [gate.run(steps(9, step, done, str(n))) for n in range(8)]
    await asyncio.gather(*works)
    looking.cancel()
    assert len(done) == 72
    assert max(after - before for before, after in itertools.pairwise(each)) <= 4


async def test_who_asked_first_goes_on_first() -> None:
    gate, done = Gate(), list[str]()
    works = [gate.run(steps(2, gates.SLICE_SECONDS, done, str(n))) for n in range(4)]
    await asyncio.gather(*works)
    # The first has done a slice, and asked again, before the others have begun.
    assert done == [*"0", *"0123", *"123"]


async def test_what_a_work_gives_comes_in_order_without_its_pauses() -> None:
    given = [item async for item in Gate().each([1, None, 2, None, None, 3, None])]
    assert given == [1, 2, 3]


async def test_one_who_leaves_holds_up_nobody() -> None:
    gate, done = Gate(), list[str]()
    first = asyncio.create_task(gate.run(steps(3, gates.SLICE_SECONDS, done, "a")))
    second = asyncio.create_task(gate.run(steps(3, gates.SLICE_SECONDS, done, "b")))
    await asyncio.sleep(0)
    second.cancel()
    await gate.run(steps(3, gates.SLICE_SECONDS, done, "c"))
    await first
    assert "b" not in done
    assert done.count("a") == done.count("c") == 3


async def test_a_fault_of_a_work_is_its_own() -> None:
    gate, done = Gate(), list[str]()

    def broken() -> Iterator[None]:
        yield
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await gate.run(broken())
    await gate.run(steps(1, 0.0, done))
    assert done == [""]


async def test_pieces_without_steps_share_the_slice_of_a_turn() -> None:
    gate, done = Gate(), list[str]()
    each = []

    async def look() -> None:
        while True:
            each.append(len(done))
            await asyncio.sleep(0)

    def piece() -> int:
        for _ in steps(1, gates.SLICE_SECONDS, done):
            pass
        return len(done)

    looking = asyncio.create_task(look())
    found = await asyncio.gather(*(gate.do(piece) for _ in range(5)))
    looking.cancel()
    assert found == [1, 2, 3, 4, 5]
    assert max(after - before for before, after in itertools.pairwise(each)) == 1


async def test_who_says_how_long_something_takes_has_a_turn_with_room_for_it() -> None:
    gate, done = Gate(), list[int]()
    each = []

    async def look() -> None:
        while True:
            each.append(len(done))
            await asyncio.sleep(0)

    async def write(number: int) -> None:
        await gate.room(gates.SLICE_SECONDS / 2)
        done.append(number)

    looking = asyncio.create_task(look())
    await asyncio.gather(*(write(number) for number in range(8)))
    looking.cancel()
    assert done == list(range(8))
    assert max(after - before for before, after in itertools.pairwise(each)) <= 3


async def test_a_fault_of_a_piece_is_its_own() -> None:
    gate = Gate()

    def broken() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await gate.do(broken)
    assert await gate.do(lambda: 1) == 1


async def test_one_who_leaves_gives_its_room_to_the_next() -> None:
    gate, done = Gate(), list[str]()

    async def write(name: str) -> None:
        await gate.room(gates.SLICE_SECONDS)
        done.append(name)

    tasks = [asyncio.create_task(write(name)) for name in "abcde"]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.sleep(0)
    # It was let through, and has not heard of it.
    tasks[1].cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SOON_S)
    assert done == [*"ade"]
    assert await gate.do(lambda: 1) == 1
