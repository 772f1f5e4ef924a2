"""What all connections brought is taken in one pass, a slice of a turn of the loop at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.gate import SLICE_SECONDS
from proxy.journal import _writer
from proxy.journal.base import LONGER, Write
from proxy.journal.memory import MemoryJournal
from proxy.journal.sqlite import SqliteJournal
from proxy.passes import Passes
from tests.journal.conftest import create, line


class Hearing(MemoryJournal):
    """Counts what is handed over together."""

    def __init__(self, window: float = 0.0) -> None:
        super().__init__()
        self.window = window
        self.within = False
        self.contexts = 0

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        self.contexts += 1
        self.within = True
        try:
            yield
        finally:
            self.within = False


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_piece_that_comes_alone_is_taken_in_the_next_turn() -> None:
    journal = Hearing(window=10.0)
    taken: list[bool] = []
    Passes(journal).soon(lambda: taken.append(journal.within))
    assert taken == []
    await turns(1)
    assert taken == [True]


async def test_what_many_connections_brought_is_taken_in_order_in_one_pass() -> None:
    journal = Hearing()
    taken: list[int] = []
    soon = Passes(journal).soon
    for number in range(5):
        soon(lambda number=number: taken.append(number))  # type: ignore[misc]
    await turns(1)
    assert taken == [0, 1, 2, 3, 4]
    assert journal.contexts == 1
    # What comes while a pass runs is of that pass, or of the next one: nothing is forgotten.
    soon(lambda: soon(lambda: taken.append(5)))
    await turns(2)
    assert taken[-1] == 5


@pytest.mark.parametrize(("count", "times"), [(1, 1), *LONGER])
async def test_passes_are_as_far_apart_as_commits_and_farther_under_load(
    count: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    loop = asyncio.get_running_loop()

    def later(wait: float, _: Callable[[], None]) -> None:
        waits.append(wait)

    soon = Passes(Hearing(window=10.0)).soon
    for _ in range(count):
        soon(lambda: None)
    await turns(1)
    monkeypatch.setattr(loop, "call_later", later)
    soon(lambda: None)
    assert waits == [pytest.approx(10.0 * times, abs=1.0)]


async def test_a_pass_of_much_work_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    taken: list[int] = []

    def work() -> None:
        taken.append(1)
        now[0] += SLICE_SECONDS / 2

    soon = Passes(Hearing()).soon
    for _ in range(5):
        soon(work)
    seen = []
    for _ in range(4):
        await turns(1)
        seen.append(len(taken))
    assert seen == [2, 4, 5, 5]


async def test_one_that_fails_takes_no_other_with_it() -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    taken: list[int] = []
    soon = Passes(Hearing()).soon
    soon(lambda: taken.append(1))
    soon(lambda: taken.append(1 // 0))
    soon(lambda: taken.append(3))
    await turns(1)
    assert taken == [1, 3]
    assert told == ["taking what a connection brought failed"]


async def test_the_journal_gets_the_writes_of_a_pass_at_once_and_stores_them_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(tmp_path / "j.db", window_ms=5.0)
    assert journal.window == 0.005
    await journal.open()
    row = await create(journal)
    put: list[object] = []
    real = _writer.Writer.put

    def noted(writer: _writer.Writer, item: object) -> None:
        put.append(item)
        real(writer, item)  # type: ignore[arg-type]

    monkeypatch.setattr(_writer.Writer, "put", noted)
    stored = [asyncio.get_running_loop().create_future() for _ in range(3)]
    with journal.together():
        for seq, future in enumerate(stored, 2):
            journal.submit(Write(row.key, seq, 1, line(seq), done=future.set_result))
        assert put == []
        assert journal.backlog > 0
    assert [len(item) for item in put if isinstance(item, list)] == [3]
    assert await asyncio.gather(*stored) == [None] * 3
    with journal.together():
        pass
    assert len(put) == 1, "nothing is handed over where there is nothing"
    # What comes after goes its own way again.
    await journal.append(Write(row.key, 5, 1, line(5)))
    assert journal.backlog == 0
    chunks = [chunk async for chunk in journal.scan(row.key, after=1)]
    assert b"".join(chunk.body for chunk in chunks).count(b"\n") == 4
    await journal.aclose()


async def test_the_pass_after_a_long_one_is_not_put_off_for_what_was_before() -> None:
    passes_ = Passes(Hearing(window=0.01))
    taken: list[float] = []
    passes_.soon(lambda: taken.append(time.monotonic()))
    await asyncio.sleep(0.05)
    begun = time.monotonic()
    passes_.soon(lambda: taken.append(time.monotonic()))
    await turns(1)
    assert len(taken) == 2
    assert taken[1] >= begun
