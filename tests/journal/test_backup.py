"""A copy of a journal's file: of one moment, checked, and never in the place of something else."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path
from typing import Any

import apsw
import pytest

from proxy.base.errors import BackupRefused, ConfigError, JournalCorrupt, JournalUnavailable
from proxy.base.rows import BackupSize
from proxy.journal import _backup, back_up
from proxy.journal.base import Write
from proxy.journal.sqlite import SqliteJournal
from tests.journal.conftest import create, joined, lines, store
from tests.support.waiting import SOON_S


def quiet(what: str, done: int, total: int) -> None:
    """Take the progress."""


def copied(path: Path, target: Path, *, force: bool = False) -> BackupSize:
    return back_up(f"sqlite:///{path}", target, force=force, told=quiet)


async def filled(path: Path, entries: int = 3) -> SqliteJournal:
    """An open journal with a session of so many entries, and a deleted one."""
    journal = SqliteJournal(path)
    await journal.open()
    row = await create(journal, "s1")
    assert await store(journal, Write(row.key, 2, entries - 1, lines(2, entries - 1))) is None
    gone = await create(journal, "gone")
    await journal.delete(gone.key, at=5)
    return journal


async def entries_of(path: Path, key: int = 1) -> int:
    """How many entries of a session a journal has, none of them missing."""
    journal = SqliteJournal(path, read_only=True)
    await journal.open()
    chunks = [chunk async for chunk in journal.scan(key)]
    await journal.aclose()
    return len(joined(chunks))


def alone(folder: Path) -> set[str]:
    """The files in a folder, but for those that who reads a journal leaves beside it."""
    return {file.name for file in folder.iterdir()} - {"journal.db-wal", "journal.db-shm"}


async def test_a_copy_beside_a_writer_has_what_was_stored(path: Path, tmp_path: Path) -> None:
    journal = await filled(path)
    (tmp_path / "backups").mkdir()
    target = tmp_path / "backups" / "copy.db"
    found = await asyncio.to_thread(copied, path, target)
    # Of the deleted session nothing is left but its names.
    assert found == BackupSize(target.stat().st_size, sessions=1, entries=3)
    # It is in its place alone, for our user only, and goes on as a journal.
    assert alone(target.parent) == {"copy.db"}
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert await entries_of(target) == 3
    assert alone(target.parent) == {"copy.db"}
    copy = SqliteJournal(target)
    await copy.open()
    assert await store(copy, Write(1, 4, 1, lines(4, 1))) is None
    await copy.aclose()
    assert await entries_of(target) == 4
    await journal.aclose()
    assert await entries_of(path) == 3


async def test_a_copy_is_of_one_moment_whatever_is_written_meanwhile(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_backup, "PAGES", 1)
    journal = await filled(path)
    loop, first = asyncio.get_running_loop(), 4
    steps: list[tuple[str, int, int]] = []

    async def written() -> None:
        nonlocal first
        assert await store(journal, Write(1, first, 1, lines(first, 1))) is None
        first += 1

    def told(what: str, done: int, total: int) -> None:
        steps.append((what, done, total))
        asyncio.run_coroutine_threadsafe(written(), loop).result(SOON_S)

    target = tmp_path / "copy.db"
    found = await asyncio.to_thread(back_up, f"sqlite:///{path}", target, force=False, told=told)
    await journal.aclose()
    assert found.entries == await entries_of(target) == 3
    assert await entries_of(path) == first - 1 == 3 + len(steps)
    # Every page once: the writer's commits do not begin it anew.
    copying, total = steps[:-1], steps[0][2]
    assert copying == [("copying", done, total) for done in range(1, total + 1)]
    assert steps[-1] == ("checking", 0, 0)


async def test_what_exists_is_replaced_only_by_force(path: Path, tmp_path: Path) -> None:
    await (await filled(path)).aclose()
    target = tmp_path / "copy.db"
    target.write_text("mine")
    with pytest.raises(BackupRefused, match=r"exists: .*--force"):
        copied(path, target)
    assert target.read_text() == "mine"
    assert copied(path, target, force=True).entries == 3
    assert await entries_of(target) == 3


async def test_a_file_that_appears_meanwhile_is_not_replaced(path: Path, tmp_path: Path) -> None:
    await (await filled(path)).aclose()
    target = tmp_path / "copy.db"
    before = alone(tmp_path)

    def told(what: str, done: int, total: int) -> None:
        target.write_text("mine")

    with pytest.raises(BackupRefused, match="exists"):
        back_up(f"sqlite:///{path}", target, force=False, told=told)
    assert alone(tmp_path) == before | {"copy.db"}
    assert target.read_text() == "mine"


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", ".lock"])
async def test_the_journal_itself_is_never_replaced(path: Path, suffix: str) -> None:
    journal = await filled(path)
    with pytest.raises(BackupRefused, match="is the journal itself: name another file"):
        await asyncio.to_thread(copied, path, path.with_name(path.name + suffix), force=True)
    await journal.aclose()
    assert await entries_of(path) == 3


async def test_other_names_of_the_journal_are_the_journal(path: Path, tmp_path: Path) -> None:
    await (await filled(path)).aclose()
    (tmp_path / "soft.db").symlink_to(path)
    os.link(path, tmp_path / "hard.db")
    for name in ("soft.db", "hard.db"):
        with pytest.raises(BackupRefused, match="is the journal itself"):
            copied(path, tmp_path / name, force=True)


async def test_a_database_that_is_in_use_or_was_left_open_is_not_replaced(
    path: Path, tmp_path: Path
) -> None:
    await (await filled(path)).aclose()
    other = await filled(tmp_path / "other.db")
    with pytest.raises(BackupRefused, match="belongs to another database"):
        await asyncio.to_thread(copied, path, tmp_path / "other.db", force=True)
    await other.aclose()
    assert (await asyncio.to_thread(copied, path, tmp_path / "other.db", force=True)).sessions == 1


async def test_where_nothing_can_be_written_it_says_so(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await filled(path)).aclose()
    before = alone(tmp_path)
    with pytest.raises(BackupRefused, match="is not a file"):
        copied(path, tmp_path, force=True)
    with pytest.raises(BackupRefused, match=r"there is no folder .*missing`; make it"):
        copied(path, tmp_path / "missing" / "copy.db")
    for number, says in ((errno.EACCES, "may not write"), (errno.EIO, "name another file")):

        def refused(*_: object, number: int = number, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("tempfile.mkstemp", refused)
        with pytest.raises(BackupRefused, match=says):
            copied(path, tmp_path / "copy.db")
    assert alone(tmp_path) == before


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (apsw.FullError("full"), BackupRefused, "the disk is full; make room"),
        (apsw.CantOpenError("unable"), BackupRefused, "cannot be written"),
        (apsw.IOError("disk I/O error"), JournalUnavailable, "look at both disks"),
        (apsw.CorruptError("malformed"), JournalCorrupt, "is damaged"),
        (KeyboardInterrupt("told to stop"), KeyboardInterrupt, "told to stop"),
    ],
)
async def test_a_copy_that_breaks_off_leaves_nothing(
    path: Path,
    tmp_path: Path,
    error: BaseException,
    kind: type[BaseException],
    says: str,
) -> None:
    await (await filled(path)).aclose()
    (tmp_path / "copy.db").write_text("mine")
    before = alone(tmp_path)

    def told(what: str, done: int, total: int) -> None:
        raise error

    with pytest.raises(kind, match=says):
        back_up(f"sqlite:///{path}", tmp_path / "copy.db", force=True, told=told)
    assert alone(tmp_path) == before
    assert (tmp_path / "copy.db").read_text() == "mine"


async def test_a_disk_that_is_full_is_told_by_the_system(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await filled(path)).aclose()
    before = alone(tmp_path)
    connect = apsw.Connection

    def small(name: str, **options: Any) -> apsw.Connection:
        connection = connect(name, **options)
        if name.endswith(".part"):
            connection.pragma("max_page_count", 3)
        return connection

    monkeypatch.setattr(apsw, "Connection", small)
    with pytest.raises(BackupRefused, match="the disk is full; make room there, or name a file"):
        copied(path, tmp_path / "copy.db")
    assert alone(tmp_path) == before


async def test_what_is_no_journal_or_is_damaged_is_not_copied(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    with pytest.raises(JournalUnavailable, match=r"there is no journal .*--journal"):
        copied(path, target)
    assert not path.exists()
    path.write_text("no database" * 1000)
    with pytest.raises(JournalCorrupt, match="damaged"):
        copied(path, target)
    path.unlink()
    with apsw.Connection(str(path)) as other:
        other.execute("CREATE TABLE things (name)")
    other.close()
    with pytest.raises(JournalCorrupt, match="another program"):
        copied(path, target)
    path.unlink()
    await (await filled(path, entries=2000)).aclose()
    with path.open("r+b") as file:
        # Pages with rows, which the copy takes as they are.
        file.seek(path.stat().st_size // 2)
        file.write(os.urandom(4096 * 4))
    with pytest.raises(JournalCorrupt, match=r"is damaged, and no copy was kept.*\.recover"):
        copied(path, target)
    assert not target.exists()
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.parametrize("url", ["memory:", "postgresql://localhost/db", "sqlite://"])
def test_what_has_no_file_is_not_copied(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`\[journal\]`, `url`"):
        back_up(url, tmp_path / "copy.db", force=False, told=quiet)
