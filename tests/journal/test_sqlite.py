"""What only the SQLite journal does: files, faults of the disk, versions, crashes, erasure."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from proxy.base.errors import (
    ConfigError,
    JournalCorrupt,
    JournalError,
    JournalUnavailable,
    NameTaken,
    SequenceConflict,
)
from proxy.base.rows import BackendRow, CodecRow, StoredSnapshot
from proxy.journal import _database, _writer, open_journal, sqlite
from proxy.journal._changes import Transaction
from proxy.journal._frames import pack_frames, unpack_frames
from proxy.journal.base import Journal, Write
from proxy.journal.sqlite import SqliteJournal, TemporaryJournal
from tests.journal.conftest import begin, create, joined, line, lines, store, until
from tests.support.waiting import SOON_S

REPOSITORY = Path(__file__).parents[2]


def fill_disk(transaction: Transaction) -> None:
    """Let the file grow no more."""
    pages = transaction.connection.pragma("page_count")
    transaction.connection.pragma("max_page_count", pages)


def empty_disk(transaction: Transaction) -> None:
    """Let the file grow again."""
    transaction.connection.pragma("max_page_count", 1 << 30)


def execute(path: Path, sql: str, bindings: Any = None) -> list[Any]:
    """Do something to the file that no journal does."""
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(sql, bindings).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [("sqlite:///x/relative.db", "x/relative.db"), ("sqlite:////a/b.db", "/a/b.db")],
)
def test_a_sqlite_url_names_a_path(url: str, expected: str) -> None:
    journal = open_journal(url)

    assert isinstance(journal, SqliteJournal)
    assert journal._path == Path(expected).resolve()


async def test_the_memory_url_names_a_file_that_is_not_synced_and_goes_with_the_journal() -> None:
    journal = open_journal("memory:", read_only=False, window_ms=2, frames=False, frame_limit=5)

    assert isinstance(journal, TemporaryJournal)
    await journal.open()
    assert journal._writer is not None
    assert journal._writer._connection.pragma("synchronous") == 0
    await create(journal)
    path = journal._path
    assert path.is_file()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await journal.aclose()
    assert not path.parent.exists()


def test_a_temporary_journal_that_is_never_opened_leaves_no_file() -> None:
    journal = TemporaryJournal()
    path = journal._path
    assert path.parent.is_dir()
    del journal
    gc.collect()
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://localhost/x", "postgresql://"),
        ("sqlite://relative.db", "sqlite:///relative.db"),
        ("sqlite:///", "sqlite:///relative.db"),
        ("sqlite:///:memory:", "memory:"),
        ("dragoman.db", "memory:"),
    ],
)
def test_an_unknown_url_is_a_configuration_error_that_names_the_known(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_journal(url)


async def test_the_file_and_its_lock_are_readable_by_their_owner_only(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    await create(journal)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    await journal.aclose()

    assert set(modes) >= {"journal.db", "journal.db-wal", "journal.db.lock"}
    assert set(modes.values()) == {0o600}


async def test_a_second_writer_is_refused_and_told_who_the_first_is(path: Path) -> None:
    first, second = SqliteJournal(path), SqliteJournal(path)
    await first.open()

    with pytest.raises(JournalUnavailable, match=rf"pid {os.getpid()}.*read-only"):
        await second.open()

    await create(first)
    await first.aclose()
    await second.open()
    assert (await second.session("s1")).last_seq == 1
    await second.aclose()


async def test_a_read_only_journal_reads_beside_the_writer_and_changes_nothing(path: Path) -> None:
    writer, reader = SqliteJournal(path), SqliteJournal(path, read_only=True)
    await writer.open()
    session = await create(writer)
    key = session.key
    await store(writer, Write(key, 2, 5, lines(2, 5), position=b"p"))
    await reader.open()

    assert (await reader.session("s1")).last_seq == 6
    assert [row.last_seq for row in await reader.sessions()] == [6]
    assert joined(await reader.read(key, after=1)) == lines(2, 5).splitlines(keepends=True)
    assert (await reader.legs(key))[0].position == b"p"
    await store(writer, Write(key, 7, 1, line(7)))
    assert joined(await reader.read(key, after=6)) == [line(7)]
    assert await reader.frames(key, 0) == []

    error = await store(reader, Write(key, 8, 1, line(8)))
    assert isinstance(error, JournalUnavailable)
    assert "reading only" in error.whole
    with pytest.raises(JournalUnavailable):
        await reader.delete(key, at=1)
    reader.add_frames(key, 0, 0, [b"frame"], 1)
    assert await reader.frames(key, 0) == []
    await reader.aclose()
    await writer.aclose()


async def test_a_read_only_journal_needs_a_file(path: Path) -> None:
    with pytest.raises(JournalUnavailable):
        await SqliteJournal(path, read_only=True).open()

    assert not path.exists()


async def test_a_directory_that_does_not_exist_is_unavailable(path: Path) -> None:
    with pytest.raises(JournalUnavailable, match="No such file"):
        await SqliteJournal(path / "missing" / "journal.db").open()


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_journal_of_a_newer_version_is_refused(path: Path, read_only: bool) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    await journal.aclose()
    execute(path, "PRAGMA user_version = 99")

    with pytest.raises(JournalCorrupt, match=r"schema 99.*upgrade"):
        await SqliteJournal(path, read_only=read_only).open()

    execute(path, f"PRAGMA user_version = {len(_database._migrations())}")
    await journal.open()
    await journal.aclose()


async def test_a_journal_of_an_older_version_is_brought_up_to_date_in_one_step_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    await journal.aclose()
    known = len(_database._migrations())
    assert execute(path, "PRAGMA user_version") == [(known,)]
    assert execute(path, "PRAGMA auto_vacuum") == [(2,)]
    schema = _database._migrations()
    step = "ALTER TABLE sessions ADD COLUMN mood TEXT; UPDATE sessions SET mood = 'calm';"

    # What goes wrong in the middle of a step leaves the file as it was.
    monkeypatch.setattr(_database, "_migrations", lambda: [*schema, f"{step} SELECT nothing;"])
    with pytest.raises(JournalUnavailable, match="nothing"):
        await journal.open()
    assert execute(path, "PRAGMA user_version") == [(known,)]
    assert "mood" not in str(execute(path, "PRAGMA table_info(sessions)"))

    monkeypatch.setattr(_database, "_migrations", lambda: [*schema, step])
    with pytest.raises(JournalUnavailable, match=f"has schema {known}; start the server once"):
        await SqliteJournal(path, read_only=True).open()
    await journal.open()
    assert joined(await journal.read(session.key)) == [line(1)]
    await journal.aclose()
    assert execute(path, "PRAGMA user_version") == [(known + 1,)]
    assert execute(path, "SELECT mood FROM sessions") == [("calm",)]

    # And what it is now is refused by the version before.
    monkeypatch.setattr(_database, "_migrations", lambda: schema)
    with pytest.raises(JournalCorrupt, match=rf"schema {known + 1}.*upgrade"):
        await journal.open()


@pytest.mark.parametrize("connect", [_database.connect_writer, _database.connect_reader])
@pytest.mark.parametrize("damage", ["PRAGMA user_version = 99", None])
async def test_a_refused_file_is_let_go_while_its_refusal_is_still_held(
    path: Path, connect: Callable[[Path], apsw.Connection], damage: str | None
) -> None:
    if damage is None:
        path.write_bytes(b"no database at all, but long enough to have a header " * 40)
    else:
        execute(path, damage)
    before = apsw.connections()

    with pytest.raises(JournalCorrupt) as refusal:
        connect(path)

    assert apsw.connections() == before
    # Its traceback knows the connection.
    assert refusal.tb is not None


async def test_a_read_only_journal_waits_for_the_server_to_bring_an_old_file_up_to_date(
    path: Path,
) -> None:
    execute(path, "PRAGMA user_version = 0")
    path.touch()

    with pytest.raises(JournalUnavailable, match="start the server once"):
        await SqliteJournal(path, read_only=True).open()


async def test_a_file_that_is_no_journal_is_left_alone(path: Path) -> None:
    execute(path, "CREATE TABLE somebody_elses (x)")
    with pytest.raises(JournalCorrupt, match="another program"):
        await SqliteJournal(path).open()
    assert execute(path, "SELECT name FROM sqlite_schema") == [("somebody_elses",)]

    path.write_bytes(b"no database at all, but long enough to have a header " * 40)
    with pytest.raises(JournalCorrupt):
        await SqliteJournal(path).open()


async def test_snapshots_that_are_made_faster_than_stored_are_dropped(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    begun, goes_on = threading.Event(), threading.Event()

    def hold(transaction: Transaction) -> None:
        begun.set()
        goes_on.wait()

    busy = asyncio.ensure_future(journal._job(hold))
    await until(begun.is_set)
    size = _writer.SNAPSHOTS_WAITING_BYTES // 8

    def add(cursor: int) -> None:
        data = random.Random(cursor).randbytes(size)
        journal.add_snapshot(session.key, StoredSnapshot("frames/a", 1, cursor, cursor, data))

    async def newest() -> int:
        found = await journal.snapshot(session.key, "frames/a", 1)
        return -1 if found is None else found.cursor

    for cursor in range(40):
        add(cursor)
    goes_on.set()
    await busy
    async with asyncio.timeout(SOON_S):
        while await newest() < 8:  # noqa: ASYNC110 - it tells of no event
            await asyncio.sleep(0.01)
    add(50)
    async with asyncio.timeout(SOON_S):
        while (found := await newest()) != 50:
            assert found == 8
            await asyncio.sleep(0.01)
    await journal.aclose()


async def test_a_full_disk_fails_the_writes_and_later_ones_succeed(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    key = session.key
    await journal._job(fill_disk)

    results = await asyncio.gather(
        *(begin(journal, Write(key, seq, 1, line(seq, "y" * 50_000))) for seq in range(2, 6))
    )
    assert {type(result) for result in results} == {JournalUnavailable}
    assert len({id(result) for result in results}) == 4
    assert journal.backlog == 0
    with pytest.raises(JournalUnavailable, match="full"):
        await journal.put_blob(b"y" * 100_000)
    assert joined(await journal.read(key)) == [line(1)]

    await journal._job(empty_disk)
    assert await store(journal, Write(key, 2, 1, line(2))) is None
    assert joined(await journal.read(key)) == [line(1), line(2)]
    await journal.aclose()


async def test_a_full_disk_puts_off_the_index_and_drops_frames_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "RETRY_SECONDS", 0.01)
    journal = SqliteJournal(path, index_rows=1)
    await journal.open()
    session = await create(journal)
    key = session.key
    await journal._job(fill_disk)

    journal.add_frames(key, 0, 0, [random.Random(1).randbytes(60_000)], 1)
    with pytest.raises(JournalUnavailable):
        await journal.frames(key, 0)
    await store(journal, Write(key, 2, 1, line(2, "y" * 50_000)))

    await journal._job(empty_disk)
    for seq in range(2, 30):
        assert await store(journal, Write(key, seq, 1, line(seq))) is None
    await journal.aclose()
    (indexed,) = execute(path, "SELECT count(*) FROM event_index")
    assert indexed == (29,)


async def test_a_foreign_lock_makes_the_journal_unavailable_until_it_is_released(
    path: Path,
) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    assert journal._writer is not None
    journal._writer._connection.set_busy_timeout(1)
    foreign = apsw.Connection(str(path))
    foreign.execute("BEGIN IMMEDIATE")

    error = await store(journal, Write(session.key, 2, 1, line(2)))
    assert isinstance(error, JournalUnavailable)

    foreign.execute("ROLLBACK")
    foreign.close()
    assert await store(journal, Write(session.key, 2, 1, line(2))) is None
    await journal.aclose()


async def test_a_batch_with_bad_parts_stores_the_good_ones(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    one, two = await create(journal, "s1"), await create(journal, "s2")
    assert await store(journal, Write(two.key, aliases=[("task", "taken")])) is None

    results = await asyncio.gather(
        begin(journal, Write(one.key, 2, 1, line(2))),
        begin(journal, Write(one.key, 3, 1, line(3), aliases=[("task", "taken")])),
        begin(journal, Write(two.key, 2, 1, line(2))),
        begin(journal, Write(one.key, 3, 1, line(3, "second try"))),
        begin(journal, Write(two.key, 3, 1, line(3), title=object())),  # type: ignore[arg-type]
        begin(journal, Write(two.key, 3, 1, line(3), at=3)),
    )

    assert [type(result) for result in results] == [
        type(None),
        NameTaken,
        type(None),
        type(None),
        JournalUnavailable,
        type(None),
    ]
    assert joined(await journal.read(one.key)) == [line(1), line(2), line(3, "second try")]
    assert joined(await journal.read(two.key)) == [line(1), line(2), line(3)]
    await journal.aclose()


async def test_a_missing_row_is_corruption_and_not_a_gap(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    for seq in range(2, 6):
        await store(journal, Write(session.key, seq, 1, line(seq)))
    await journal.aclose()
    execute(path, "DELETE FROM events WHERE first = 3")
    await journal.open()
    with pytest.raises(JournalCorrupt, match="seq 3 is gone"):
        await journal.read(session.key)
    await journal.aclose()

    execute(path, "DELETE FROM event_index WHERE first = 3")
    await journal.open()
    with pytest.raises(JournalCorrupt, match="expected seq 3, found 4"):
        await journal.read(session.key, after=1)
    assert joined(await journal.read(session.key, after=3)) == [line(4), line(5)]
    await journal.aclose()


async def test_a_crash_before_the_index_is_written_loses_nothing(path: Path) -> None:
    journal = SqliteJournal(path, index_rows=20)
    await journal.open()
    keys = [(await create(journal, f"s{n}")).key for n in range(3)]
    for seq in range(2, 40):
        for key in keys:
            await store(
                journal,
                Write(key, seq, 1, line(seq), position=b"p%d" % seq, leg_state=b"l%d" % seq),
            )
    await store(journal, Write(keys[0], position=b"later"))
    crashed = await copy_as_crashed(journal, path)
    await journal.aclose()

    again = SqliteJournal(crashed)
    await again.open()
    for key in keys:
        assert joined(await again.read(key)) == [line(seq) for seq in range(1, 40)]
        assert isinstance(await store(again, Write(key, 39, 1, line(39))), SequenceConflict)
        assert await store(again, Write(key, 40, 1, line(40))) is None
    positions = [(await again.legs(key))[0].position for key in keys]
    assert positions == [b"later", b"p39", b"p39"]
    await again.aclose()


async def test_what_a_crash_left_to_index_counts_for_the_next_round(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    for seq in range(2, 21):
        await store(journal, Write(session.key, seq, 1, line(seq)))
    crashed = await copy_as_crashed(journal, path)
    await journal.aclose()
    assert execute(crashed, "SELECT count(*) FROM event_index") == [(0,)]

    again = SqliteJournal(crashed, index_rows=20, index_seconds=3600)
    await again.open()
    assert await store(again, Write(session.key, 21, 1, line(21))) is None
    await until(lambda: execute(crashed, "SELECT count(*) FROM event_index") == [(21,)])
    await again.aclose()


async def copy_as_crashed(journal: SqliteJournal, path: Path) -> Path:
    """Copy the files of an open journal, as a machine that stops now leaves them."""
    crashed = path.with_name(f"crashed-{path.name}")

    def copy(transaction: Transaction) -> None:
        # In the writer's thread, so that no checkpoint comes between the two files.
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", f"{crashed}{suffix}")

    await journal._job(copy)
    return crashed


async def test_deleting_leaves_no_text_in_any_file(path: Path) -> None:
    journal = SqliteJournal(path, index_rows=8)
    await journal.open()
    kept, gone = await create(journal, "kept"), await create(journal, "gone")
    marks = ["EVENT-TEXT", "TITLE-TEXT", "STATE-TEXT", "POSITION-TEXT", "COMMAND-TEXT", "BLOB-TEXT"]
    blob = await journal.put_blob(b"BLOB-TEXT" * 2000)
    for seq in range(2, 900):
        await asyncio.gather(
            begin(
                journal,
                Write(
                    gone.key,
                    seq,
                    1,
                    line(seq, "EVENT-TEXT" * (1 if seq % 50 else 1000)),
                    position=b"POSITION-TEXT%d" % seq,
                ),
            ),
            begin(journal, Write(kept.key, seq, 1, line(seq, "KEPT"))),
        )
    await store(
        journal,
        Write(gone.key, leg_state=b"STATE-TEXT" * 900, title="TITLE-TEXT", blobs=[blob]),
    )
    journal.add_frames(gone.key, 0, 0, [random.Random(2).randbytes(9000)], 1)
    packed = pack_frames([random.Random(2).randbytes(9000)])[100:200]
    await journal.frames(gone.key, 0)
    assert packed in contents(path)
    assert b"EVENT-TEXT" in contents(path)

    await journal.delete(gone.key, at=1)

    found = contents(path)
    assert [mark for mark in [*marks, "secret-gone"] if mark.encode() in found] == []
    assert packed not in found
    assert len(joined(await journal.read(kept.key))) == 899
    assert execute(path, f"SELECT count(*) FROM events WHERE session = {gone.key}") == [(0,)]
    await journal.aclose()


def contents(path: Path) -> bytes:
    """Return the bytes of the journal and of its write-ahead log."""
    return path.read_bytes() + path.with_name(path.name + "-wal").read_bytes()


async def test_a_deletion_that_a_crash_cut_short_is_finished_when_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    key = session.key
    for seq in range(2, 1400):
        last = begin(journal, Write(key, seq, 1, line(seq, "EVENT-TEXT")))
    await last

    def cut_short(connection: apsw.Connection, session: int) -> bool:
        raise JournalUnavailable("stopped here")

    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "erase_some", cut_short)
        with pytest.raises(JournalUnavailable, match="stopped here"):
            await journal.delete(key, at=5)
    crashed = await copy_as_crashed(journal, path)
    await journal.aclose()
    assert execute(crashed, "SELECT count(*) FROM events") == [(1399,)]

    again = SqliteJournal(crashed)
    await again.open()
    assert execute(crashed, "SELECT count(*) FROM events") == [(0,)]
    assert (await again.session("s1")).last_seq == 1399
    other = await create(again, "s2")
    assert joined(await again.read(other.key)) == [line(1)]
    await again.aclose()
    assert b"EVENT-TEXT" not in crashed.read_bytes()


async def test_a_file_that_a_crash_left_without_a_session_is_erased_when_opened(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    named, left = [await journal.put_blob(data * 900) for data in (b"NAMED", b"BLOB-TEXT")]
    await store(journal, Write(session.key, blobs=[named]))
    crashed = await copy_as_crashed(journal, path)
    await journal.aclose()

    again = SqliteJournal(crashed)
    await again.open()
    assert await again.blob(left) is None
    assert await again.blob(named) is not None
    await again.aclose()
    assert b"BLOB-TEXT" not in crashed.read_bytes()


async def test_a_row_after_a_deletion_of_the_newest_rows_survives_a_crash(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    gone = await create(journal, "gone")
    for seq in range(2, 10):
        await store(journal, Write(gone.key, seq, 1, line(seq)))
    await journal.aclose()
    await journal.open()
    await journal.delete(gone.key, at=1)
    await journal.aclose()

    # A number that the index covers already would keep the new row out of it for ever.
    await journal.open()
    session = await create(journal, "s1")
    crashed = await copy_as_crashed(journal, path)
    await journal.aclose()
    again = SqliteJournal(crashed)
    await again.open()
    assert joined(await again.read(session.key)) == [line(1)]
    await again.aclose()


async def test_erased_text_leaves_the_log_when_another_write_of_its_batch_is_wrong(
    path: Path,
) -> None:
    # So long a window gathers the wrong write and the end of the deletion in one transaction.
    journal = SqliteJournal(path, window_ms=100)
    await journal.open()
    gone, other = await create(journal, "gone"), await create(journal, "other")
    await store(journal, Write(gone.key, 2, 1, line(2, "EVENT-TEXT")))
    wrong: list[JournalError | None] = []

    def submit(error: JournalError | None = None) -> None:
        wrong.append(error)
        if not deleting.done():
            journal.submit(Write(other.key, title=object(), done=submit))  # type: ignore[arg-type]

    deleting = asyncio.create_task(journal.delete(gone.key, at=1))
    await asyncio.sleep(0)
    submit()
    await deleting

    assert b"EVENT-TEXT" not in contents(path)
    assert isinstance(wrong[-1], JournalUnavailable)
    await journal.aclose()


async def test_the_log_is_emptied_later_when_another_program_reads_for_long(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite, "EMPTY_SECONDS", 0.05)
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    await store(journal, Write(session.key, 2, 1, line(2, "EVENT-TEXT")))
    reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM events").fetchall()

    await journal.delete(session.key, at=1)
    assert b"EVENT-TEXT" in contents(path)
    assert "is read by another program" in caplog.text

    reader.execute("ROLLBACK")
    reader.close()
    await until(lambda: b"EVENT-TEXT" not in contents(path))
    await journal.aclose()


@pytest.mark.parametrize("way", ["delete", "expire"])
async def test_a_deletion_waits_for_who_reads_just_then(path: Path, way: str) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    await store(journal, Write(session.key, 2, 1, line(2, "EVENT-TEXT"), at=1))
    reading, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def read(connection: apsw.Connection) -> None:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM events").fetchall()
        loop.call_soon_threadsafe(reading.set)
        go_on.wait(10)
        connection.execute("ROLLBACK")

    async def erase() -> None:
        if way == "delete":
            await journal.delete(session.key, at=1)
        else:
            assert await journal.expire(session.key, unless_after=2000, at=1)
            await journal.emptied()

    asked = asyncio.create_task(journal._ask(read))
    await reading.wait()
    erasing = asyncio.create_task(erase())
    # Everybody else is served meanwhile.
    for seq in range(1, 20):
        assert (await create(journal, f"other-{seq}")).last_seq == 1
    assert not erasing.done()
    assert b"EVENT-TEXT" in contents(path)
    go_on.set()
    await asyncio.gather(asked, erasing)
    assert b"EVENT-TEXT" not in contents(path)
    await journal.aclose()
    # Who asks a journal that is closed need not wait.
    await journal.emptied()


async def test_source_frames_that_are_pruned_are_nowhere(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    frame = random.Random(5).randbytes(9000)
    journal.add_frames(session.key, 0, 0, [frame], 1)
    await journal.frames(session.key, 0)
    packed = pack_frames([frame])[100:200]
    assert packed in contents(path)
    assert await journal.prune_frames(before=5) == 1
    assert packed not in contents(path)
    await journal.aclose()


async def test_a_start_with_the_same_backends_needs_no_room_on_the_disk(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    await journal.keep_backends([BackendRow("lab", "eve", "http://127.0.0.1:1")])
    await journal.emptied()
    wal = path.with_name(path.name + "-wal")
    assert wal.stat().st_size == 0
    await journal.keep_backends([BackendRow("lab", "eve", "http://127.0.0.1:1")])
    assert wal.stat().st_size == 0
    await journal.keep_backends([BackendRow("lab", "eve", "http://127.0.0.1:2")])
    assert wal.stat().st_size > 0
    await journal.aclose()


async def test_frames_are_stored_in_compressed_batches_and_erased_with_their_session(
    path: Path,
) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    frames = [b'data: {"delta":"%d"}' % n for n in range(10_000)]
    for start in range(0, 10_000, 10):
        journal.add_frames(session.key, 0, start, frames[start : start + 10], 1)

    assert await journal.frames(session.key, 0, limit=20_000) == list(enumerate(frames))
    (row,) = execute(path, "SELECT count(*), sum(length(data)) FROM frames")
    assert row[0] == 4
    assert row[1] < sum(map(len, frames)) / 3

    await journal.delete(session.key, at=1)
    assert execute(path, "SELECT count(*) FROM frames") == [(0,)]
    await journal.aclose()


async def test_frames_reach_the_disk_by_themselves(path: Path) -> None:
    journal = SqliteJournal(path, frame_seconds=0.01)
    await journal.open()
    session = await create(journal)
    journal.add_frames(session.key, 0, 0, [b"frame"], 1)

    await until(lambda: execute(path, "SELECT count(*) FROM frames") == [(1,)])
    await journal.aclose()


async def test_frames_can_be_switched_off_and_cut_shorter(path: Path) -> None:
    journal = SqliteJournal(path, frames=False)
    await journal.open()
    session = await create(journal)
    journal.add_frames(session.key, 0, 0, [b"frame"], 1)
    assert await journal.frames(session.key, 0) == []
    await journal.aclose()

    journal = SqliteJournal(path, frame_limit=3)
    await journal.open()
    journal.add_frames(session.key, 0, 0, [b"frame"], 1)
    assert await journal.frames(session.key, 0) == [(0, b"fra\n[cut: 2 bytes]")]
    await journal.aclose()


async def test_damaged_frames_are_corruption_and_not_an_empty_list(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    journal.add_frames(session.key, 0, 0, [b"frame"], 1)
    assert await journal.frames(session.key, 0) == [(0, b"frame")]
    await journal.aclose()
    execute(path, "UPDATE frames SET data = x'00'")

    await journal.open()
    with pytest.raises(JournalCorrupt, match=f"frames of session {session.key}"):
        await journal.frames(session.key, 0)
    await journal.aclose()


@pytest.mark.parametrize("data", [b"no zlib", pack_frames([b"a", b"b"])[:-1]])
def test_a_damaged_batch_of_frames_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="batch of frames"):
        unpack_frames(data)


async def test_a_fault_of_our_own_fails_its_transaction_and_the_writer_goes_on(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()

    def broken(transaction: Transaction) -> None:
        raise KeyError("a fault of ours")

    with pytest.raises(JournalUnavailable, match="see the log"):
        await journal._job(broken)
    assert (await create(journal)).last_seq == 1
    await journal.aclose()


async def test_known_sessions_do_not_fill_the_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "KNOWN_TAILS", 5)
    journal = SqliteJournal(path, index_rows=1)
    await journal.open()
    rows = [await create(journal, f"s{n}") for n in range(30)]
    for seq in (2, 3):
        for row in rows:
            assert await store(journal, Write(row.key, seq, 1, line(seq))) is None
    writer = journal._writer
    assert writer is not None
    await until(lambda: len(writer.tails) <= 5)
    assert {row.last_seq for row in await journal.sessions()} == {3}
    await journal.aclose()


async def test_sessions_of_which_only_names_are_stored_do_not_fill_the_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    rows = [await create(journal, f"s{n}") for n in range(30)]
    await journal.aclose()
    monkeypatch.setattr(_writer, "KNOWN_TAILS", 5)
    journal = SqliteJournal(path, index_seconds=0.01)
    await journal.open()
    for row in rows:
        # As when somebody reads an old session in a dialect for the first time.
        await journal.fix_codec(row.key, CodecRow("herm", 1, b"{}"))
        assert await store(journal, Write(row.key, aliases=[("lost", row.id)])) is None
    writer = journal._writer
    assert writer is not None
    await until(lambda: len(writer.tails) <= 5)
    assert {row.last_seq for row in await journal.sessions()} == {1}
    await journal.aclose()


APPENDER = """
import asyncio, os, sys
from proxy.journal.sqlite import SqliteJournal, TemporaryJournal
from proxy.journal.base import Write

async def main():
    journal = SqliteJournal(sys.argv[1], index_rows=50)
    await journal.open()
    keys = []
    for n in range(5):
        try:
            row = await journal.create_session(id=f"s{n}", owner="o", route="r", dialect="eve",
                backend="b", secret=b"", at=1, body=b"1\\n")
        except Exception:
            row = await journal.session(f"s{n}")
        keys.append(row.key)
        append(journal, row.key, row.last_seq + 1)
    await asyncio.Event().wait()

def append(journal, key, seq):
    def done(error):
        assert error is None, error
        os.write(1, b"%d %d\\n" % (key, seq))
        append(journal, key, seq + 1)
    journal.submit(Write(key, seq, 1, b"%d\\n" % seq, position=b"%d" % seq, done=done))

asyncio.run(main())
"""


async def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    acknowledged: dict[int, int] = {}
    chance = random.Random(9)
    for _ in range(4):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            APPENDER,
            str(path),
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        # Killed after so many acknowledgements, in the middle of whatever comes next.
        for _ in range(chance.randrange(1, 1500)):
            acknowledge(acknowledged, await process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = await process.stdout.read()
        await process.wait()
        for row in rest.splitlines(keepends=True):
            acknowledge(acknowledged, row)

        journal: Journal = SqliteJournal(path)
        await journal.open()
        for session in await journal.sessions():
            entries = joined(await journal.read(session.key, limit_bytes=1 << 30))
            assert entries == [b"%d\n" % seq for seq in range(1, session.last_seq + 1)]
            assert session.last_seq >= acknowledged.get(session.key, 1)
            position = (await journal.legs(session.key))[0].position
            assert position == (b"%d" % session.last_seq if session.last_seq > 1 else None)
        await journal.aclose()
    assert len(acknowledged) == 5


def acknowledge(acknowledged: dict[int, int], row: bytes) -> None:
    assert row.endswith(b"\n")
    key, seq = map(int, row.split())
    assert seq > acknowledged.get(key, 1)
    acknowledged[key] = seq


async def test_what_is_asked_of_all_sessions_reads_few_or_small_rows(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    await create(journal, "s1")
    asked: dict[str, Any] = {}

    def note(cursor: apsw.Cursor, statement: str, bindings: Any) -> bool:
        asked[statement] = bindings
        return True

    for _ in range(sqlite.READERS):
        reader = journal._readers.get()
        reader.exec_trace = note
        journal._readers.put(reader)
    at_work = ("running", "paused")
    assert await journal.sessions(states=at_work, limit=9) == []
    assert await journal.sessions(owner="web", states=at_work[:1], before=9, limit=9) == []
    await journal.sizes()
    await journal.oldest(backend="lab", limit=9)
    await journal.aclose()
    plans = [
        [row[3] for row in execute(path, f"EXPLAIN QUERY PLAN {question}", bindings)]
        for question, bindings in asked.items()
        if "sessions" in question
    ]
    opened = [plan for plan in plans if any("sessions_at_work" in step for step in plan)]
    of_legs = [step for plan in plans for step in plan if " legs " in f"{step} "]
    assert len(opened) == 2
    assert of_legs
    assert all("COVERING INDEX legs_backend" in step for step in of_legs)


def writer_of(
    folder: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> _writer.JournalWriter:
    """Return a writer that does not run, and whose pauses pass at once."""
    monkeypatch.setattr(time, "sleep", pauses.append)
    return _writer.JournalWriter(
        folder / "x.db",
        lambda *_: None,
        lambda _: None,
        window_ms=10_000,
        index_rows=1,
        index_seconds=1,
    )


def test_two_commits_begin_a_window_apart_however_many_writes_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    writer = writer_of(tmp_path, pauses, monkeypatch)
    counts = (1, 4, 40, 4, 1, 1)
    for count in counts:
        for session in range(count):
            writer.put(Write(session))
        assert len(writer._take()[0]) == count
    assert pauses == [pytest.approx(10, abs=4)] * (len(counts) - 1)


@pytest.mark.parametrize(("together", "alone"), [(1, True), (2, True), (4, True), (5, False)])
def test_a_lone_session_hardly_waits_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, together: int, alone: bool
) -> None:
    pauses: list[float] = []
    writer = writer_of(tmp_path, pauses, monkeypatch)
    for _ in range(19):
        for _ in range(together):
            writer.put(Write(1))
        writer._take()
    assert len(pauses) == (2 if alone else 18)
