"""How a session hears its backend, where the journal is behind or the session is closed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from adapters.base import Call, Request
from proxy.gate import Gate
from proxy.session.reading import BACKLOG_BYTES, Reading

CALL = Call("stream", Request("GET", "/"), stream=True)


def reading(kind: type[Reading] = Reading, **parts: Any) -> Reading:
    given: dict[str, Any] = dict.fromkeys(
        ("journal", "codec", "upstream", "clock", "fraction", "record", "work", "upward")
    )
    leg: Any = None
    given |= {"gate": Gate(), "patience": None, "keep_frames": False}
    return kind(leg, **{**given, **parts})


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


class Taking(Reading):
    """A reading that notes what it takes."""

    taken: list[Any]

    def _take(self, call: Call, frames: Any) -> int:
        self.taken += frames
        return len(frames)


def taking(**parts: Any) -> Taking:
    given: dict[str, Any] = {
        "journal": SimpleNamespace(backlog=0),
        "record": SimpleNamespace(held=False, time=lambda: 1, hear=lambda raw: None),
        "work": SimpleNamespace(closed=False),
        **parts,
    }
    made = reading(Taking, **given)
    assert isinstance(made, Taking)
    made.taken = []
    return made


async def test_many_frames_of_one_piece_are_all_taken() -> None:
    many = [b'{"n":%d}' % number for number in range(1_000)]

    async def read(take: Any, gate: Gate) -> None:
        if (work := take(many)) is not None:
            await work

    made = taking()
    stream: Any = SimpleNamespace(read=read, tail=b"")
    await made._read(CALL, stream)
    assert made.taken == many


async def test_a_large_frame_without_files_is_taken_and_nothing_is_reported() -> None:
    told: list[Any] = []
    codec = SimpleNamespace(garbage=lambda *given: told.append(given))
    made = taking(codec=codec)
    frame = b'{"text":"' + b"x" * 300_000 + b'"}'
    await made._take_slowly(CALL, [frame])
    assert (made.taken, told) == ([frame], [])
