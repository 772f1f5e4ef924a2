"""The doubles of time and randomness behave like the real ones."""

from __future__ import annotations

import asyncio
import re
import select
import time
import uuid

import pytest

from proxy.base.clock import Clock, IdSource, ManualClock, SeededIds
from tests.support.clocks import HurriedClock


def test_real_time_is_in_unix_milliseconds() -> None:
    before = time.time() * 1000 - 1
    assert before <= Clock().now() <= time.time() * 1000


async def test_the_real_clock_stops_waiting_when_the_time_is_over() -> None:
    clock, event = Clock(), asyncio.Event()
    assert not await clock.wait(event, 0.001)
    event.set()
    assert await clock.wait(event, 10)


async def test_manual_time_wakes_sleepers_in_order_of_their_due_times() -> None:
    clock = ManualClock(1_000)
    woken: list[tuple[str, int]] = []

    async def sleeper(name: str, *seconds: float) -> None:
        for each in seconds:
            await clock.sleep(each)
            woken.append((name, clock.now()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("late", 3))
        group.create_task(sleeper("twice", 1, 1))
        await asyncio.sleep(0)
        await clock.advance(2.5)
        assert woken == [("twice", 2_000), ("twice", 3_000)]
        assert (clock.now(), clock.monotonic()) == (3_500, 2.5)
        await clock.advance(1)
    assert woken[-1] == ("late", 4_000)


@pytest.mark.parametrize("set_first", [True, False])
async def test_manual_waiting_ends_with_the_event_or_the_time(set_first: bool) -> None:
    clock, event = ManualClock(), asyncio.Event()
    waiting = asyncio.create_task(clock.wait(event, 5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if set_first:
        event.set()
    else:
        await clock.advance(5)
    assert await waiting is set_first


@pytest.mark.parametrize("ids", [IdSource(), SeededIds(7)])
def test_ids_have_their_forms_and_do_not_repeat(ids: IdSource) -> None:
    assert uuid.UUID(ids.uuid()).version == 4
    minted = {ids.mint("dgs") for _ in range(1_000)}
    assert len(minted) == 1_000
    assert all(re.fullmatch(r"dgs_[0-9a-hjkmnp-tv-z]{26}", each) for each in minted)
    fractions = [ids.fraction() for _ in range(1_000)]
    assert min(fractions) >= 0
    assert max(fractions) < 1
    assert 0.4 < sum(fractions) / 1_000 < 0.6
    assert len(ids.bytes(32)) == 32


def test_seeded_ids_are_the_same_in_every_run() -> None:
    first, again, other = SeededIds(1), SeededIds(1), SeededIds(2)
    assert [first.uuid(), first.mint("a")] == [again.uuid(), again.mint("a")]
    assert first.uuid() != other.uuid()


async def test_a_hurried_clock_stands_still_while_the_machine_does() -> None:
    clock = HurriedClock(speed=100.0)
    await clock.sleep(1.0)
    before, now = clock.monotonic(), clock.now()
    select.select([], [], [], 0.3)  # nothing in the loop can run
    # All of it would be thirty seconds.
    assert clock.monotonic() - before < 5.0
    assert clock.now() - now < 5000
    due = clock.monotonic() + 8.0
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 8.0))
    sleeping = asyncio.create_task(clock.sleep(8.0))
    await asyncio.sleep(0)
    select.select([], [], [], 0.3)
    await sleeping
    assert clock.monotonic() >= due
    assert await waiting is False
    assert clock.monotonic() >= due
