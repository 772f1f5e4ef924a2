"""What somebody was shown is there after a loss of power, whatever was not synced then."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.base.errors import JournalError, JournalUnavailable
from proxy.journal import _writer
from proxy.journal.base import Write
from proxy.journal.sqlite import SqliteJournal
from tests.journal.conftest import begin, create, line, store, until
from tests.journal.disk import SECTOR, Content, Disk
from tests.journal.power import lose_power

POINTS = 60
"""`make proof` goes on from here."""

TOGETHER = 10


@pytest.mark.parametrize("first", range(1, POINTS, TOGETHER))
def test_what_was_shown_is_there_after_a_loss_of_power(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + TOGETHER):
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert lose_power(seed, folder).wrong == [], f"seed {seed}"


async def test_a_failed_sync_is_told_before_anybody_hears_of_a_write_and_never_tried_again(
    path: Path,
) -> None:
    told: list[object] = []
    with Disk(1) as disk:
        journal = SqliteJournal(path, window_ms=0)
        await journal.open()
        session = await create(journal)
        journal.when_failed(told.append)
        disk.plan("sync", 1)
        write = begin(journal, Write(session.key, 2, 1, line(2)))
        write.add_done_callback(lambda future: told.append(future.result()))
        error = await write
        syncs = disk.syncs
        assert isinstance(error, JournalUnavailable)
        assert "did not take what was written" in error.whole
        assert isinstance(await store(journal, Write(session.key, 2, 1, line(2))), JournalError)
        with pytest.raises(JournalUnavailable, match="dmesg"):
            await journal.delete(session.key, at=1)
        with pytest.raises(JournalUnavailable, match="dmesg"):
            await journal.emptied()
        await journal.aclose()
        assert disk.syncs == syncs
    assert [type(one) for one in told] == [JournalUnavailable, JournalUnavailable]
    late: list[JournalError] = []
    journal.when_failed(late.append)
    assert late == told[:1]


async def test_a_failed_sync_of_a_checkpoint_is_told_though_all_writes_are_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "CHECKPOINT_PAGES", 1)
    told: list[JournalError] = []
    with Disk(2) as disk:
        journal = SqliteJournal(path, window_ms=0)
        await journal.open()
        journal.when_failed(told.append)
        session = await create(journal)
        await journal.emptied()
        disk.plan("sync", 1, of=".db")
        assert await store(journal, Write(session.key, 2, 1, line(2))) is None
        await until(lambda: bool(told))
        await journal.aclose()
    again = SqliteJournal(path)
    await again.open()
    assert (await again.session("s1")).last_seq == 2
    await again.aclose()


async def test_a_disk_that_fails_at_the_start_is_told_and_not_tried_again(path: Path) -> None:
    with Disk(3) as disk:
        disk.plan("sync", 1)
        with pytest.raises(JournalUnavailable, match="did not take what was written"):
            await SqliteJournal(path).open()


def test_a_disk_forgets_some_of_what_was_not_synced_in_whole_sectors() -> None:
    with Disk(4) as disk:
        page = bytes([1]) * 8 * SECTOR
        kept = set()
        for _ in range(50):
            content = Content(bytearray(len(page)), [(0, page)])
            content.lose(disk._chance)
            sectors = [content.durable[n : n + SECTOR] for n in range(0, len(page), SECTOR)]
            assert all(len(set(sector)) == 1 for sector in sectors)
            kept.add(sum(sector[0] for sector in sectors))
    assert {0, 8} < kept
    content = Content(bytearray(b"abc"), [(0, b"x"), (1, None), (3, b"y")])
    content.sync()
    assert content.durable == b"x\0\0y"
