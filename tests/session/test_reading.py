"""How a session hears its backend, where the journal is behind or the session is closed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from adapters.base import Call, Request
from proxy.gate import Gate
from proxy.session.reading import BACKLOG_BYTES, Reading

CALL = Call("stream", Request("GET", "/"), stream=True)


def reading(**parts: Any) -> Reading:
    given: dict[str, Any] = dict.fromkeys(
        ("journal", "codec", "upstream", "clock", "fraction", "record", "work", "upward")
    )
    leg: Any = None
    given |= {"gate": Gate(), "patience": None, "keep_frames": False}
    return Reading(leg, **{**given, **parts})


async def test_a_closed_session_hears_nothing_and_takes_all_of_it() -> None:
    record = SimpleNamespace(held=False)
    closed = reading(work=SimpleNamespace(closed=True), record=record)
    assert closed._take(CALL, [b"{}"] * 3) == 3
    journal = SimpleNamespace(backlog=0)
    closed = reading(work=SimpleNamespace(closed=True), record=record, journal=journal)
    await closed._take_slowly(CALL, [b"{}"] * 300)


async def test_time_waits_for_the_disk() -> None:
    journal = SimpleNamespace(backlog=BACKLOG_BYTES + 1)
    slept: list[float] = []
    seen: list[Any] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            journal.backlog = BACKLOG_BYTES
        await asyncio.sleep(0)

    late = reading(
        journal=journal,
        clock=SimpleNamespace(sleep=sleep),
        codec=SimpleNamespace(tick=lambda now: seen.append(journal.backlog), wake_at=None),
        record=SimpleNamespace(time=lambda: 1_000, hear=lambda raw: None),
        work=SimpleNamespace(closed=False),
        upward=SimpleNamespace(go_on=lambda: None),
    )
    await late._tick_at(2_000)
    assert slept[0] == 1.0
    assert len(slept) == 3
    assert seen == [BACKLOG_BYTES]
