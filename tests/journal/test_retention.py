"""What is kept and what goes: choosing and erasing sessions, counting bytes, giving back space."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from proxy.base.errors import CursorExpired, SequenceConflict, SessionClosed
from proxy.base.rows import CodecRow, CommandRow, SessionRow, StoredSnapshot
from proxy.journal import _writer
from proxy.journal.base import Journal, Write
from proxy.journal.sqlite import SqliteJournal
from proxy.sessions.retention_limits import RetentionLimits, choose
from tests.journal.conftest import begin, create, joined, line, lines, store, until
from tests.journal.test_sqlite import contents, copy_as_crashed, execute

BODY = 10_000


async def made(
    journal: Journal,
    id: str,
    at: int,
    *,
    state: str = "idle",
    backend: str = "lab",
    owner: str = "web",
    size: int = BODY,
) -> SessionRow:
    """Make a session whose last event is at `at`."""
    row = await journal.create_session(
        id=id,
        owner=owner,
        route="research",
        dialect="eve",
        backend=backend,
        secret=b"s",
        at=1,
        body=line(1),
        aliases=[("task", f"task-{id}")],
    )
    write = Write(row.key, 2, 1, line(2, "y" * size), state=state, at=at)  # type: ignore[arg-type]
    assert await store(journal, write) is None
    return row


async def chosen(
    journal: Journal, limits: RetentionLimits, *, now: int = 1000, **more: str
) -> list[str]:
    """The ids and reasons of what the limits do not keep."""
    found = await choose(journal, limits, now=now, owner=more.get("owner"))
    return [f"{doomed.row.id} {doomed.reason}" for doomed in found]


async def test_sessions_go_by_the_age_of_their_last_event_and_never_while_something_is_open(
    journal: Journal,
) -> None:
    for id, at, state in (
        ("old", 100, "idle"),
        ("ended", 90, "ended"),
        ("running", 80, "running"),
        ("paused", 70, "paused"),
        ("young", 950, "idle"),
    ):
        await made(journal, id, at, state=state)
    assert await chosen(journal, RetentionLimits(age=500)) == ["ended age", "old age"]
    assert await chosen(journal, RetentionLimits(age=901)) == ["ended age"]
    assert await chosen(journal, RetentionLimits(age=999)) == []
    assert await chosen(journal, RetentionLimits()) == []


async def test_the_oldest_go_until_what_is_left_fits(journal: Journal) -> None:
    for id, at, backend in (
        ("a1", 10, "a"),
        ("b1", 20, "b"),
        ("a2", 30, "a"),
        ("a3", 40, "a"),
        ("b2", 50, "b"),
    ):
        await made(journal, id, at, backend=backend)
    each = (await journal.session("a1")).bytes
    assert BODY < each < BODY + 100
    assert await chosen(journal, RetentionLimits(bytes=5 * each)) == []
    assert await chosen(journal, RetentionLimits(bytes=5 * each - 1)) == ["a1 bytes"]
    assert await chosen(journal, RetentionLimits(bytes=2 * each)) == [
        "a1 bytes",
        "b1 bytes",
        "a2 bytes",
    ]
    assert await chosen(journal, RetentionLimits(bytes_per_backend=2 * each)) == [
        "a1 bytes_per_backend"
    ]
    # What goes for one reason counts for the next.
    limits = RetentionLimits(age=985, bytes_per_backend=2 * each, bytes=3 * each)
    assert await chosen(journal, limits) == ["a1 age", "b1 bytes"]


async def test_a_session_that_goes_between_two_looks_is_no_fault(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last one of its backend was deleted after the old ones were looked up.
    await made(journal, "old", 100)

    async def sizes(*, owner: str | None = None) -> dict[str, int]:
        return {}

    monkeypatch.setattr(journal, "sizes", sizes)
    limits = RetentionLimits(age=500, bytes=0, bytes_per_backend=0)
    assert await chosen(journal, limits) == ["old age"]


async def test_what_is_open_counts_but_stays(journal: Journal) -> None:
    await made(journal, "busy", 10, state="running", size=5 * BODY)
    await made(journal, "old", 20)
    await made(journal, "new", 30)
    assert await chosen(journal, RetentionLimits(bytes=6 * BODY)) == ["old bytes", "new bytes"]


async def test_an_owner_chooses_among_the_own(journal: Journal) -> None:
    await made(journal, "mine", 10, owner="me")
    await made(journal, "theirs", 5)
    assert await chosen(journal, RetentionLimits(age=500), owner="me") == ["mine age"]
    assert await chosen(journal, RetentionLimits(bytes=1), owner="me") == ["mine bytes"]
    assert (await journal.sizes(owner="me")).keys() == {"lab"}
    assert await journal.sizes(owner="nobody") == {}


async def test_an_expired_session_leaves_its_names_and_nothing_else(journal: Journal) -> None:
    session = await made(journal, "s1", 100)
    await store(journal, Write(session.key, commands=[command(session.key)], title="t"))

    assert await journal.expire(session.key, unless_after=100, at=500)

    row = await journal.session("s1")
    assert (row.state, row.title, row.secret, row.last_seq, row.bytes) == (
        "expired",
        None,
        b"",
        2,
        0,
    )
    assert await journal.resolve(owner="web", route="research", kind="task", name="task-s1") == "s1"
    with pytest.raises(CursorExpired):
        await journal.read(session.key)
    assert await journal.commands(session.key) == []
    assert isinstance(await store(journal, Write(session.key, 3, 1, line(3))), SessionClosed)
    assert await journal.sizes() in ({}, {"lab": 0})
    assert not await journal.expire(session.key, unless_after=1000, at=500)
    assert await chosen(journal, RetentionLimits(age=1, bytes=1)) == []


def command(session: int) -> CommandRow:
    return CommandRow(session, 1, "c-1", "accepted", b"{}", 100)


async def test_what_happens_meanwhile_keeps_a_session(journal: Journal) -> None:
    late, busy = await made(journal, "late", 100), await made(journal, "busy", 100)
    await store(journal, Write(late.key, 3, 1, line(3), at=101))
    await store(journal, Write(busy.key, 3, 1, line(3), at=100, state="running"))
    assert not await journal.expire(late.key, unless_after=100, at=500)
    assert not await journal.expire(busy.key, unless_after=100, at=500)
    # Written at the same moment: whichever is stored first wins, and nothing is lost silently.
    writing = begin(journal, Write(late.key, 4, 1, line(4), at=102))
    assert not await journal.expire(late.key, unless_after=101, at=500)
    assert await writing is None
    assert len(joined(await journal.read(late.key))) == 4


async def test_only_its_successor_may_take_the_name_of_an_expired_session(
    journal: Journal,
) -> None:
    async def again(id: str, succeeds: int | None) -> SessionRow:
        return await journal.create_session(
            id=id,
            owner="web",
            route="research",
            dialect="engine",
            backend="lab",
            secret=b"s",
            at=1,
            body=line(1),
            aliases=[("task", "task-s1")],
            succeeds=succeeds,
        )

    session = await made(journal, "s1", 100)
    for succeeds in (None, session.key):
        with pytest.raises(SequenceConflict):
            await again("s2", succeeds)
    await journal.expire(session.key, unless_after=100, at=500)
    with pytest.raises(SequenceConflict):
        await again("s2", None)
    await again("s2", session.key)
    assert await journal.resolve(owner="web", route="research", kind="task", name="task-s1") == "s2"
    with pytest.raises(SequenceConflict):
        await again("s3", session.key)


async def test_bytes_are_those_of_events_frames_and_files_and_survive_a_crash(path: Path) -> None:
    journal = SqliteJournal(path, index_rows=1 << 20, index_seconds=3600)
    await journal.open()
    session = await create(journal)
    blob = await journal.put_blob(b"b" * 5000)
    await store(journal, Write(session.key, 2, 300, lines(2, 300), blobs=[blob]))
    await store(journal, Write(session.key, blobs=[blob]))
    journal.add_frames(session.key, 0, 0, [random.Random(1).randbytes(3000)], 1)
    await journal.frames(session.key, 0)
    expected = (await journal.session("s1")).bytes
    (stored,) = execute(path, "SELECT length(data) FROM frames")[0]
    assert expected == len(lines(1, 301)) + 5000 + stored

    crashed = await copy_as_crashed(journal, path)
    await journal.aclose()
    again = SqliteJournal(crashed)
    await again.open()
    assert (await again.session("s1")).bytes == expected
    await again.prune_frames(before=2)
    assert (await again.session("s1")).bytes == expected - stored
    await again.aclose()
    await again.open()
    assert (await again.session("s1")).bytes == expected - stored
    await again.aclose()


async def test_a_crash_in_a_round_of_indexing_counts_nothing_twice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "INDEX_CHUNK", 3)
    journal = SqliteJournal(path, index_rows=1 << 20, index_seconds=3600)
    await journal.open()
    one, two = await create(journal, "s1"), await create(journal, "s2")
    for seq in range(2, 9):
        for session in (one, two):
            await store(journal, Write(session.key, seq, 1, line(seq)))
    writer = journal._writer
    assert writer is not None
    for steps in range(7):
        again = SqliteJournal(await copy_as_crashed(journal, path))
        await again.open()
        assert [row.bytes for row in await again.sessions()] == [len(lines(1, 8))] * 2
        await again.aclose()

        def step(_: object, begin: bool = steps == 0) -> None:
            assert writer is not None
            writer._connection.execute("COMMIT")
            if begin:
                # Else the writer is through with the round before it is copied on a busy machine.
                writer._rest_until = time.monotonic() + 3600
                writer._begin_round()
            if writer._round:
                writer._index_some()
            writer._connection.execute("BEGIN IMMEDIATE")

        await journal._job(step)
    assert execute(path, "SELECT count(*) FROM event_index") == [(16,)]
    await journal.aclose()


async def test_space_is_given_back_while_others_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "VACUUM_SECONDS", 0.0)
    journal = SqliteJournal(path, index_rows=64)
    await journal.open()
    kept = await create(journal, "kept")
    gone = [await create(journal, f"gone-{number}") for number in range(20)]
    for seq in range(2, 40):
        await asyncio.gather(
            *(begin(journal, Write(s.key, seq, 1, line(seq, "z" * BODY))) for s in [kept, *gone])
        )
    await until(lambda: path.stat().st_size > 7_000_000)

    expiring = [
        asyncio.create_task(journal.expire(s.key, unless_after=1 << 40, at=5)) for s in gone
    ]
    written = 39
    while not all(task.done() for task in expiring) or path.stat().st_size > 3_000_000:
        written += 1
        assert await store(journal, Write(kept.key, written, 1, line(written))) is None
        assert written < 50_000
    assert all(task.result() for task in expiring)
    assert len(joined(await journal.read(kept.key))) > 38
    await journal.aclose()
    assert path.stat().st_size < 3_000_000
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]


async def test_deletion_leaves_neither_snapshots_nor_codecs_behind(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session = await create(journal)
    text = random.Random(3).randbytes(4000)
    snapshot = StoredSnapshot(kind="eve", version=1, cursor=1, seq=1, data=text)
    journal.add_snapshot(session.key, snapshot)
    await journal.fix_codec(session.key, CodecRow("eve", 1, b"SETTINGS-TEXT"))
    await until(lambda: text[100:200] in contents(path))

    journal.add_snapshot(session.key, snapshot)
    await journal.delete(session.key, at=1)
    assert text[100:200] not in contents(path)
    assert b"SETTINGS-TEXT" not in contents(path)
    await journal.aclose()
    assert text[100:200] not in path.read_bytes()


async def test_a_stop_between_the_end_of_a_session_and_its_erasure_is_made_good(
    path: Path,
) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    session, other = await create(journal, "gone"), await create(journal, "kept")
    blob = await journal.put_blob(b"BLOB-TEXT" * 99)
    await store(
        journal,
        Write(session.key, 2, 1, line(2, "EVENT-TEXT"), blobs=[blob], leg_state=b"STATE-TEXT"),
    )
    await store(journal, Write(session.key, commands=[command(session.key)]))
    await store(journal, Write(session.key, 3, 1, line(3, "EVENT-TEXT"), state="deleted", at=9))
    crashed = await copy_as_crashed(journal, path)
    await journal.aclose()

    again = SqliteJournal(crashed)
    await again.open()
    row = await again.session("gone")
    assert (row.state, row.last_seq, row.secret) == ("deleted", 3, b"")
    assert await again.commands(session.key) == []
    assert joined(await again.read(other.key)) == [line(1)]
    await again.aclose()
    found = crashed.read_bytes()
    assert [t for t in (b"EVENT-TEXT", b"BLOB-TEXT", b"STATE-TEXT") if t in found] == []
