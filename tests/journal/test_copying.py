"""`copy_journal`: a journal is carried whole between databases, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from proxy.base.errors import (
    BackupRefused,
    ConfigError,
    JournalCorrupt,
    JournalUnavailable,
)
from proxy.base.rows import (
    BackendBinding,
    BackendRow,
    BackupSize,
    CodecRow,
    CommandRow,
    ShareRow,
    StoredSnapshot,
)
from proxy.journal import _tables, copy_journal, copying, open_journal, shown
from proxy.journal._sqlite_copy import SqliteTarget
from proxy.journal.base import Journal, Write
from proxy.journal.sqlite import SqliteJournal
from tests.journal.conftest import create, joined, line, lines, store
from tests.support.postgres import PostgresServer

WAYS = [
    "sqlite sqlite",
    *(
        pytest.param(way, marks=pytest.mark.postgres)
        for way in ("sqlite postgres", "postgres sqlite", "postgres postgres")
    ),
]
"""From where to where."""

NewUrl = Callable[[str], str]


@pytest.fixture
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> NewUrl:
    """Give the URL of a new place for a journal."""
    numbers = iter(range(100))

    def made(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / f'journal-{next(numbers)}.db'}"
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.url(server.new_database())

    return made


def quiet(what: str, done: int, total: int) -> None:
    """Take the progress."""


async def opened(url: str, *, read_only: bool = False) -> Journal:
    journal = open_journal(url, read_only=read_only)
    await journal.open()
    return journal


async def fill(url: str) -> None:
    """Make a journal that has all that a journal can have."""
    journal = await opened(url)
    strange = "nul \0, one \1, two \2, both \1\2, \N{SNOWMAN}"
    moved = await create(
        journal,
        "moved",
        owner=strange,
        aliases=[("task", strange), ("thread", "t-1"), ("request", "abc")],
        native_id=strange,
        codec=CodecRow("eve", 3, b'{"a":1}'),
    )
    shared, own = b"shared" * 1000, b"own"
    names = [await journal.put_blob(data) for data in (shared, own)]
    writes = [
        Write(
            moved.key,
            2,
            3,
            lines(2, 3),
            position=b"p-1",
            leg_state=b"state-0",
            title=strange,
            state="running",
            outcome="failed",
            at=2000,
            blobs=names,
            commands=[
                CommandRow(moved.key, 1, strange, "settled", b"{}", 5),
                CommandRow(moved.key, 2, "c-2", "sent", b"{2}", 6),
            ],
        ),
        Write(moved.key, 5, 1, lines(5, 1), position=b"p-2", at=2500),
        # A position without events, and one with events after it.
        Write(moved.key, position=b"p-3", at=2600),
        Write(
            moved.key,
            6,
            1,
            lines(6, 1),
            leg=1,
            leg_state=b"state-0",
            new_leg=BackendBinding(moved.key, 1, "other", "n-1", resumes=0),
            at=3000,
        ),
        Write(moved.key, position=b"q-1", leg=1, leg_state=b"state-1"),
        Write(moved.key, 7, 2, lines(7, 2), leg=1, position=b"q-2", at=2900),
        Write(
            moved.key,
            commands=[CommandRow(moved.key, 3, "c-3", "accepted", b"{3}", 7)],
            archived_at=77,
            native_id="n-2",
            leg=1,
        ),
    ]
    for write in writes:
        assert await store(journal, write) is None
    journal.add_frames(moved.key, 0, 0, [b"frame" * 100, b"", b"\0\1"], 9)
    journal.add_frames(moved.key, 1, 0, [b"of leg 1"], 10)
    journal.add_snapshot(moved.key, StoredSnapshot("log", 1, 5, 5, b"cache"))
    second = await create(journal, "second")
    again = await journal.put_blob(shared)
    assert await store(journal, Write(second.key, blobs=[again])) is None
    many = await create(journal, "many")
    for first in range(2, 3002, 3):
        body = lines(first, 3, "many " * 20)
        journal.submit(Write(many.key, first, 3, body, position=b"%d" % first, at=first))
    assert await store(journal, Write(many.key, state="idle")) is None
    gone = await create(journal, "gone", aliases=[("task", "left"), ("lost", "hash")])
    expired = await create(journal, "expired", aliases=[("operation", "op")])
    assert await store(journal, Write(expired.key, 2, 5, lines(2, 5), state="ended")) is None
    await journal.delete(gone.key, at=5)
    assert await journal.expire(expired.key, at=10_000_000, unless_after=9_000_000)
    await create(journal, "empty title", owner="x")
    await journal.keep_backends(
        [BackendRow("lab", "eve", "http://lab.example"), BackendRow("b", "c", "u")]
    )
    await journal.keep_shares(
        "research", [ShareRow("research", "z", 9), ShareRow("research", "a", 1)]
    )
    await journal.aclose()


async def content(url: str) -> dict[str, Any]:
    """Return what a journal says of all that is in it."""
    journal = await opened(url)
    found: dict[str, Any] = {
        "backends": await journal.known_backends(),
        "shares": await journal.shares(),
        "sizes": await journal.sizes(),
        "states": [row.id for row in await journal.sessions(states=["running", "paused"])],
        "failed": [row.id for row in await journal.sessions(failed=True)],
    }
    for row in await journal.sessions(after=0, limit=1000):
        key = row.key
        legs = await journal.legs(key)
        blobs = await journal.blobs(key)
        entries = (
            joined([chunk async for chunk in journal.scan(key)])
            if row.state not in ("deleted", "expired")
            else []
        )
        found[row.id] = (
            row,
            legs,
            entries,
            await journal.aliases(key),
            await journal.commands(key, statuses=("accepted", "sent", "settled")),
            await journal.codecs(key),
            [await journal.frames(key, leg.number) for leg in legs],
            [(name, size, await journal.blob(name)) for name, size in blobs],
        )
    await journal.aclose()
    return found


@pytest.mark.parametrize("way", WAYS)
async def test_all_of_a_journal_is_there_after_it_was_carried(
    way: str, new_url: NewUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a few rows are many batches.
    monkeypatch.setattr(_tables, "BATCH_BYTES", 5000)
    begin, there, back = (new_url(kind) for kind in (*way.split(), way.split()[0]))
    await fill(begin)
    before = await content(begin)
    assert {"moved", "second", "many", "gone", "expired"} < set(before)
    assert len(before["many"][2]) == 3001
    assert [leg.position for leg in before["moved"][1]] == [b"p-3", b"q-2"]
    told: list[tuple[str, int, int]] = []
    size = await copy_journal(begin, there, lambda *what: told.append(what))
    assert await content(there) == before
    assert await content(begin) == before, "the original stays as it is"
    entries = sum(len(one[2]) for one in before.values() if isinstance(one, tuple))
    assert (size.sessions, size.entries) == (4, entries)
    assert {what for what, _, _ in told} == {"copying", "comparing"}
    assert all(done <= total for _, done, total in told)
    # What was opened in between has left nothing that a copy would not take.
    assert await copy_journal(there, back, quiet) == size
    assert await content(back) == before


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_on_the_copy_goes_on(way: str, new_url: NewUrl) -> None:
    begin, there = (new_url(kind) for kind in way.split())
    await fill(begin)
    await copy_journal(begin, there, quiet)
    journal = await opened(there)
    rows = {row.id: row for row in await journal.sessions(after=0)}
    moved = rows["moved"]
    assert moved.last_seq == 8
    wrong = await store(journal, Write(moved.key, 8, 1, line(8)))
    assert wrong is not None
    write = Write(moved.key, 9, 1, line(9), leg=1, position=b"q-3", at=9000)
    assert await store(journal, write) is None
    new = await create(journal, "new")
    assert new.key > max(row.key for row in rows.values())
    journal.add_frames(moved.key, 1, 1, [b"more"], 11)
    shared = (await journal.blobs(rows["second"].key))[0][0]
    await journal.delete(rows["second"].key, at=6)
    assert await journal.blob(shared) is not None, "another session names it"
    await journal.aclose()
    after = await content(there)
    assert [leg.position for leg in after["moved"][1]] == [b"p-3", b"q-3"]
    assert after["moved"][0].bytes > moved.bytes
    assert after["moved"][6][1] == [(0, b"of leg 1"), (1, b"more")]
    assert after["moved"][2][-1] == line(9)
    assert after["moved"][0].updated_at == 9000


@pytest.mark.parametrize("way", WAYS)
async def test_an_empty_journal_is_a_journal(way: str, new_url: NewUrl) -> None:
    begin, there = (new_url(kind) for kind in way.split())
    await (await opened(begin)).aclose()
    assert await copy_journal(begin, there, quiet) == BackupSize(0, 0, 0)
    journal = await opened(there)
    assert (await create(journal)).last_seq == 1
    await journal.aclose()


@pytest.mark.parametrize("way", WAYS)
async def test_what_a_crash_has_left_is_finished_first(way: str, new_url: NewUrl) -> None:
    begin, there = (new_url(kind) for kind in way.split())
    journal = await opened(begin)
    row = await create(journal)
    assert await store(journal, Write(row.key, 2, 9, lines(2, 9), at=3)) is None
    await journal.stage(journal.new_key(), [])
    staged = journal.new_key()
    await journal.stage(staged, [chunk async for chunk in journal.scan(row.key)])
    half = await create(journal, "half")
    assert await store(journal, Write(half.key, state="deleted", at=4)) is None
    await journal.aclose()
    await copy_journal(begin, there, quiet)
    found = await content(there)
    assert found["s1"][0].last_seq == 10
    assert found["half"][0].state == "deleted"
    assert found["half"][0].secret == b""
    if there.startswith("sqlite"):
        with contextlib.closing(apsw.Connection(there.removeprefix("sqlite:///"))) as connection:
            assert connection.execute("SELECT count(*) FROM events").get == 2


def names_in(folder: Path) -> set[str]:
    """The files in a folder that somebody would look for."""
    own = ("-shm", "-wal", ".lock")
    return {file.name for file in folder.iterdir() if not file.name.endswith(own)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt("told to stop")])
@pytest.mark.parametrize("when", ["copying", "comparing"])
async def test_a_copy_that_breaks_off_leaves_nothing(
    way: str, error: BaseException, when: str, new_url: NewUrl, tmp_path: Path
) -> None:
    begin, there = (new_url(kind) for kind in way.split())
    await fill(begin)
    before = names_in(tmp_path)

    def told(what: str, done: int, total: int) -> None:
        if what == when and done > 1000:
            raise error

    with pytest.raises(type(error), match=str(error)):
        await copy_journal(begin, there, told)
    assert names_in(tmp_path) == before
    if there.startswith("postgresql"):
        with pytest.raises(JournalUnavailable, match="start the server once"):
            await opened(there, read_only=True)
    # The original may be used at once, and the copy be made again.
    await (await opened(begin)).aclose()
    await copy_journal(begin, there, quiet)


@pytest.mark.parametrize("way", WAYS)
async def test_a_journal_that_a_server_writes_is_refused(way: str, new_url: NewUrl) -> None:
    begin, there = (new_url(kind) for kind in way.split())
    journal = await opened(begin)
    await create(journal)
    with pytest.raises(JournalUnavailable, match=r"another (process|Dragoman).*stop it"):
        await copy_journal(begin, there, quiet)
    assert await journal.trouble() is None
    assert (await create(journal, "s2")).last_seq == 1
    await journal.aclose()


@pytest.mark.parametrize("way", WAYS)
async def test_no_server_starts_on_a_journal_while_it_is_copied(
    way: str, new_url: NewUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, there = (new_url(kind) for kind in way.split())
    await fill(begin)
    before = await content(begin)
    compare = copying._compare
    refused = []

    async def compared(*arguments: Any) -> None:
        with pytest.raises(JournalUnavailable, match=r"another (process|Dragoman)") as told:
            await opened(begin)
        refused.append(told.value)
        await compare(*arguments)

    monkeypatch.setattr(copying, "_compare", compared)
    await copy_journal(begin, there, quiet)
    assert len(refused) == 1
    assert await content(there) == before


@pytest.mark.parametrize("way", WAYS)
async def test_a_target_that_has_something_is_refused(way: str, new_url: NewUrl) -> None:
    begin, there = (new_url(kind) for kind in way.split())
    await fill(begin)
    journal = await opened(there)
    await create(journal, "other")
    await journal.aclose()
    before = await content(there)
    with pytest.raises(BackupRefused, match="a copy replaces nothing"):
        await copy_journal(begin, there, quiet)
    assert await content(there) == before


@pytest.mark.postgres
async def test_a_database_in_which_a_server_runs_is_refused(new_url: NewUrl) -> None:
    begin, there = new_url("sqlite"), new_url("postgres")
    await fill(begin)
    journal = await opened(there)
    with pytest.raises(BackupRefused, match=r"another Dragoman, .* uses the journal"):
        await copy_journal(begin, there, quiet)
    await journal.keep_backends([BackendRow("lab", "eve", "http://old.example")])
    await journal.aclose()
    # A journal without sessions is filled: what else it has goes.
    await copy_journal(begin, there, quiet)
    assert await content(there) == await content(begin)


@pytest.mark.postgres
async def test_a_journal_that_nodes_share_is_refused(new_url: NewUrl) -> None:
    begin, there = new_url("postgres"), new_url("sqlite")
    node = open_journal(begin, advertise="http://127.0.0.1:1")
    await node.open()
    with pytest.raises(JournalUnavailable, match=r"another Dragoman, .*: stop all that use it"):
        await copy_journal(begin, there, quiet)
    await node.aclose()
    await copy_journal(begin, there, quiet)


CHANGES = [
    "UPDATE {}sessions SET title = 'other' WHERE id = 'second'",
    "UPDATE {}sessions SET bytes = bytes + 1 WHERE id = 'many'",
    "UPDATE {}legs SET state = NULL WHERE number = 1",
    "UPDATE {}positions SET position = CAST('p-9' AS {bytes}) WHERE leg = 1",
    "UPDATE {}commands SET status = 'settled' WHERE number = 2",
    "UPDATE {}codecs SET version = 4",
    "UPDATE {}events SET body = CAST('y' AS {bytes}) WHERE first = 2000",
    "DELETE FROM {}aliases WHERE kind = 'thread'",
    "UPDATE {}frames SET data = CAST('x' AS {bytes}) WHERE leg = 1",
    "DELETE FROM {}session_blobs WHERE session = (SELECT key FROM {}sessions WHERE id = 'second')",
    "UPDATE {}blobs SET data = CAST('x' AS {bytes}) WHERE size = 3",
    "UPDATE {}shares SET weight = 2 WHERE weight = 9",
    "DELETE FROM {}backends WHERE name = 'b'",
    "DELETE FROM {}sessions WHERE id = 'gone'",
]
"""What may happen to a copy before it is compared, in the words of both databases."""


@pytest.mark.parametrize("change", CHANGES)
async def test_a_file_that_is_not_what_was_copied_is_found(
    change: str, new_url: NewUrl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begin, there = new_url("sqlite"), new_url("sqlite")
    await fill(begin)
    before = names_in(tmp_path)
    finish = SqliteTarget.finish

    async def spoiled(self: SqliteTarget) -> None:
        await finish(self)
        with contextlib.closing(apsw.Connection(str(self.part))) as connection:
            connection.execute(change.replace("{}", "").format(bytes="BLOB"))
            assert connection.changes() > 0

    monkeypatch.setattr(SqliteTarget, "finish", spoiled)
    with pytest.raises(JournalCorrupt, match="the copy is not what the journal has: the rows of"):
        await copy_journal(begin, there, quiet)
    assert names_in(tmp_path) == before


@pytest.mark.postgres
@pytest.mark.parametrize("change", CHANGES)
async def test_a_database_that_is_not_what_was_copied_is_found(
    change: str, new_url: NewUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    from proxy.journal.postgres.copying import PostgresTarget

    begin, there = new_url("sqlite"), new_url("postgres")
    await fill(begin)
    finish = PostgresTarget.finish

    async def spoiled(self: PostgresTarget) -> None:
        await finish(self)
        text = change.replace("{}", "dragoman.").format(bytes="bytea")
        assert not (await self.connection.execute(text)).endswith(" 0")

    monkeypatch.setattr(PostgresTarget, "finish", spoiled)
    with pytest.raises(JournalCorrupt, match="the copy is not what the journal has: the rows of"):
        await copy_journal(begin, there, quiet)
    with pytest.raises(JournalUnavailable, match="start the server once"):
        await opened(there, read_only=True)


@pytest.mark.postgres
async def test_a_journal_that_another_has_taken_meanwhile_is_not_kept(
    new_url: NewUrl, postgres: PostgresServer, tmp_path: Path
) -> None:
    begin, there = new_url("postgres"), new_url("sqlite")
    await fill(begin)

    def told(what: str, done: int, total: int) -> None:
        if what == "comparing" and done == 0:
            postgres.query(begin.rpartition("/")[2], "DELETE FROM dragoman.nodes")

    with pytest.raises(JournalUnavailable, match="may have been written meanwhile"):
        await copy_journal(begin, there, told)
    assert names_in(tmp_path) == set()


async def test_a_journal_that_lacks_events_is_told_and_not_copied(
    new_url: NewUrl, tmp_path: Path
) -> None:
    begin, there = new_url("sqlite"), new_url("sqlite")
    await fill(begin)
    before = names_in(tmp_path)
    with contextlib.closing(apsw.Connection(begin.removeprefix("sqlite:///"))) as connection:
        connection.execute("DELETE FROM event_index WHERE first = 2000")
        with pytest.raises(JournalCorrupt, match="rows of events"):
            await copy_journal(begin, there, quiet)
        connection.execute("DELETE FROM events WHERE first = 2000")
        with pytest.raises(JournalCorrupt, match="lacks its entries from seq 2000 to 2002"):
            await copy_journal(begin, there, quiet)
    assert names_in(tmp_path) == before


async def test_what_cannot_be_copied_says_why(new_url: NewUrl, tmp_path: Path) -> None:
    begin = new_url("sqlite")
    await fill(begin)
    with pytest.raises(JournalUnavailable, match="there is no such file"):
        await copy_journal(new_url("sqlite"), new_url("sqlite"), quiet)
    for one, other in (("memory:", begin), (begin, "memory:")):
        with pytest.raises(ConfigError, match="goes with its server"):
            await copy_journal(one, other, quiet)
    with pytest.raises(ConfigError, match="is both"):
        await copy_journal(begin, begin, quiet)
    with pytest.raises(ConfigError, match="is not a journal"):
        await copy_journal(begin, "mysql://me:secret@localhost/db", quiet)
    with pytest.raises(BackupRefused, match=r"there is no folder .*; make it"):
        await copy_journal(begin, f"sqlite:///{tmp_path / 'none' / 'j.db'}", quiet)
    # A log that was left would be read into the copy.
    (tmp_path / "new.db-wal").write_bytes(b"left")
    with pytest.raises(BackupRefused, match=r"new\.db-wal` exists"):
        await copy_journal(begin, f"sqlite:///{tmp_path / 'new.db'}", quiet)


async def test_a_full_disk_leaves_nothing(
    new_url: NewUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, there = new_url("sqlite"), new_url("sqlite")
    await fill(begin)
    before = names_in(tmp_path)
    write = SqliteTarget.write

    async def small(self: SqliteTarget, table: Any, rows: Any) -> None:
        self._connection.pragma("max_page_count", 40)
        await write(self, table, rows)

    monkeypatch.setattr(SqliteTarget, "write", small)
    with pytest.raises(BackupRefused, match="the disk is full; make room there"):
        await copy_journal(begin, there, quiet)
    assert names_in(tmp_path) == before


async def test_a_copy_is_for_our_user_only(new_url: NewUrl) -> None:
    begin, there = new_url("sqlite"), new_url("sqlite")
    journal = SqliteJournal(begin.removeprefix("sqlite:///"))
    await journal.open()
    await journal.aclose()
    await copy_journal(begin, there, quiet)
    assert Path(there.removeprefix("sqlite:///")).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("me:secret@localhost:5/db", "me@localhost:5/db"),
        ("me:se/cr@et@localhost/db", "me@localhost/db"),
        ("me:secret@one,two/db?x=1", "me@one,two/db?x=1"),
        ("/db?user=me&password=secret&x=1", "/db?user=me&password=…&x=1"),
        ("me@localhost:5/db", "me@localhost:5/db"),
        ("localhost/db", "localhost/db"),
    ],
)
def test_a_password_is_not_shown(url: str, said: str) -> None:
    assert shown(f"postgresql://{url}") == f"postgresql://{said}"
