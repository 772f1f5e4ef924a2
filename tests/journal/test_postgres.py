"""What only the PostgreSQL journal does: connections that break, a place that another takes,
servers that cannot keep a journal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from proxy.base.errors import (
    JournalCorrupt,
    JournalError,
    JournalUnavailable,
    NameTaken,
    SequenceConflict,
)
from proxy.base.rows import StoredSnapshot
from proxy.journal import open_journal
from proxy.journal.base import Journal, Write
from proxy.journal.postgres import PostgresJournal, _changes, _database, _node, _writer
from proxy.journal.postgres.copying import PostgresTarget
from tests.deployed import block, replaced
from tests.journal.conftest import begin, create, joined, line, lines, store
from tests.journal.test_sqlite import acknowledge
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.waiting import SOON_S, until

pytestmark = pytest.mark.postgres

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """An empty database."""
    return postgres.new_database()


@pytest.fixture
async def made(postgres: PostgresServer, database: str) -> AsyncIterator[PostgresJournal]:
    """A journal that is open, in `database`."""
    journal = PostgresJournal(postgres.url(database))
    await journal.open()
    yield journal
    await journal.aclose()


def break_connections(server: PostgresServer, database: str) -> None:
    """Break all connections to a database."""
    server.query(
        "postgres",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'",
    )


class Appender:
    """Appends to sessions as fast as they are stored, and knows what was."""

    def __init__(self, journal: Journal, keys: list[int]) -> None:
        self.stored = dict.fromkeys(keys, 1)
        self.errors: list[JournalError] = []
        self.stopped = False
        self._journal = journal
        self._waiting = len(keys)
        for key in keys:
            self._append(key, 2)

    def _append(self, key: int, seq: int) -> None:
        def done(error: JournalError | None) -> None:
            if error is not None:
                self.errors.append(error)
            else:
                self.stored[key] = seq
            if self.stopped or error is not None:
                self._waiting -= 1
            else:
                self._append(key, seq + 1)

        position = b"%d" % seq
        self._journal.submit(Write(key, seq, 1, line(seq), position=position, done=done))

    async def stop(self) -> None:
        self.stopped = True
        await until(lambda: not self._waiting)


async def check_logs(journal: Journal, stored: dict[int, int]) -> None:
    """Check that sessions have exactly what was stored."""
    for key, last in stored.items():
        entries = joined(await journal.read(key, limit_bytes=1 << 30))
        assert entries == lines(1, last).splitlines(keepends=True)
        if last > 1:
            assert (await journal.legs(key))[0].position == b"%d" % last


async def test_connections_that_break_lose_nothing_and_double_nothing(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    appender = Appender(made, [(await create(made, f"s{n}")).key for n in range(5)])
    for _ in range(8):
        before = sum(appender.stored.values())
        await until(lambda before=before: sum(appender.stored.values()) > before + 50)  # type: ignore[misc]
        await asyncio.to_thread(break_connections, postgres, database)
        # A question waits as well, and is answered.
        assert len(await made.sessions()) == 5
    await appender.stop()
    assert appender.errors == []
    await check_logs(made, appender.stored)


async def test_a_server_that_crashes_and_comes_back_is_waited_for() -> None:
    with postgres_server() as server:
        made = PostgresJournal(server.url("postgres"))
        await made.open()
        appender = Appender(made, [(await create(made, f"s{n}")).key for n in range(3)])
        for _ in range(3):
            before = sum(appender.stored.values())
            await until(lambda before=before: sum(appender.stored.values()) > before + 20)  # type: ignore[misc]
            await asyncio.to_thread(server.stop, "immediate")
            asked = asyncio.ensure_future(made.session("s1"))
            await asyncio.to_thread(server.start)
            assert (await asked).id == "s1"
        await appender.stop()
        assert appender.errors == []
        await check_logs(made, appender.stored)
        await made.aclose()


async def test_a_server_that_stays_away_refuses_what_waits_and_goes_on_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_writer, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("proxy.journal.postgres.journal.PATIENCE_SECONDS", 0.2)
    with postgres_server() as server:
        made = PostgresJournal(server.url("postgres"))
        await made.open()
        appender = Appender(made, [(await create(made, f"s{n}")).key for n in range(3)])
        await until(lambda: sum(appender.stored.values()) > 20)
        await asyncio.to_thread(server.stop, "immediate")
        await until(lambda: len(appender.errors) == 3)
        assert {type(error) for error in appender.errors} == {JournalUnavailable}
        assert "goes on by itself" in (await made.trouble() or "") or await made.trouble()
        with pytest.raises(JournalUnavailable):
            await made.session("s1")
        with pytest.raises(JournalUnavailable):
            await made.put_blob(b"data")
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(SOON_S):
            while await made.trouble() is not None:  # noqa: ASYNC110 - it tells of no event
                await asyncio.sleep(0.05)
        # What was refused may be there all the same: who comes again reads what is.
        for key, last in appender.stored.items():
            entries = joined(await made.read(key, limit_bytes=1 << 30))
            assert entries in (
                lines(1, last).splitlines(keepends=True),
                lines(1, last + 1).splitlines(keepends=True),
            )
            seq = len(entries) + 1
            assert await store(made, Write(key, seq, 1, line(seq))) is None
        await made.aclose()


async def test_one_that_has_nothing_to_store_notices_that_the_server_is_away_and_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_writer, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("proxy.journal.postgres.journal.PATIENCE_SECONDS", 0.2)
    with postgres_server() as server:
        made = PostgresJournal(server.url("postgres"))
        await made.open()
        await asyncio.to_thread(server.stop, "immediate")
        async with asyncio.timeout(SOON_S):
            while await made.trouble() is None:  # noqa: ASYNC110 - it tells of no event
                await asyncio.sleep(0.05)
        with pytest.raises(JournalUnavailable) as refused:
            await made.sessions()
        assert refused.value.details == {"retry_after": 2}
        await asyncio.to_thread(server.start)
        # Nobody stores anything, and questions are answered all the same.
        async with asyncio.timeout(SOON_S):
            while True:
                with contextlib.suppress(JournalUnavailable):
                    assert await made.sessions() == []
                    break
            while await made.trouble() is not None:  # noqa: ASYNC110 - it tells of no event
                await asyncio.sleep(0.05)
        await made.aclose()


async def test_a_commit_whose_answer_is_lost_is_not_made_twice(
    made: PostgresJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await create(made)
    store_whole = _changes.Gathered.store
    lost = 0

    async def lose(self: _changes.Gathered, connection: Any, fence: _changes.Fence) -> None:
        nonlocal lost
        await store_whole(self, connection, fence)
        lost += 1
        if lost == 1:
            raise ConnectionResetError("after the commit, before its answer")

    monkeypatch.setattr(_changes.Gathered, "store", lose)
    assert await store(made, Write(session.key, 2, 1, line(2))) is None
    assert lost == 1
    assert await store(made, Write(session.key, 3, 1, line(3))) is None
    assert joined(await made.read(session.key)) == [line(1), line(2), line(3)]


async def test_a_server_that_has_just_started_takes_no_node_for_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with postgres_server() as server:
        made = PostgresJournal(server.url("postgres"))
        await made.open()
        await made._tasks.aclose()
        server.query("postgres", "UPDATE dragoman.nodes SET renewed_at = now() - interval '1 h'")
        await asyncio.to_thread(server.stop, "immediate")
        await asyncio.to_thread(server.start)
        connection = await asyncpg.connect(server.url("postgres"))
        # While it was away nobody could renew a lease.
        monkeypatch.setattr(_node, "LEASE_SECONDS", 3600.0)
        assert await _node.bury(connection) == []
        monkeypatch.setattr(_node, "LEASE_SECONDS", 0.0)
        assert await _node.bury(connection) == [made._node.name]
        await connection.close()
        await made.aclose()


async def test_a_place_that_another_takes_stores_nothing_more(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    session = await create(made)
    told: list[JournalError] = []
    made.when_failed(told.append)
    postgres.query(database, "DELETE FROM dragoman.nodes")

    error = await store(made, Write(session.key, 2, 1, line(2)))
    assert isinstance(error, JournalUnavailable)
    with pytest.raises(JournalError):
        await made.put_blob(b"data")
    with pytest.raises(JournalError):
        await made.delete(session.key, at=5)
    assert len(told) == 1
    assert "taken" in told[0].whole or "in the place" in told[0].whole
    assert joined(await made.read(session.key)) == [line(1)]
    assert await store(made, Write(session.key, 2, 1, line(2))) is not None
    assert postgres.query(database, "SELECT count(*) FROM dragoman.blobs") == ["0"]


async def test_a_commit_that_is_under_way_ends_before_another_takes_the_place(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    session = await create(made)
    other = await asyncpg.connect(postgres.url(database))
    # The row is locked as a commit locks it.
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT FROM dragoman.nodes FOR KEY SHARE")
    third = await asyncpg.connect(postgres.url(database))
    taking = asyncio.ensure_future(third.execute("UPDATE dragoman.nodes SET epoch = epoch + 1"))
    await asyncio.sleep(0.1)
    assert not taking.done()
    # Its lease is renewed meanwhile.
    await third_renews(postgres, database)
    await transaction.rollback()
    await taking
    await other.close()
    await third.close()
    assert isinstance(await store(made, Write(session.key, 2, 1, line(2))), JournalUnavailable)


async def third_renews(postgres: PostgresServer, database: str) -> None:
    """Renew all leases, which no commit may hold up."""
    await asyncio.to_thread(
        postgres.query,
        database,
        "SET lock_timeout = '5s'; UPDATE dragoman.nodes SET renewed_at = clock_timestamp()",
    )


async def test_a_second_process_is_refused_and_told_who_the_first_is(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    second = PostgresJournal(postgres.url(database))
    with pytest.raises(JournalUnavailable, match=r"another Dragoman, .*pid \d+.*stop it"):
        await second.open()
    await create(made)
    await made.aclose()
    await second.open()
    assert (await second.session("s1")).last_seq == 1
    await second.aclose()


async def test_a_lease_is_renewed_in_one_step_that_no_pause_can_stop_in_the_middle(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    text = "SELECT renewed_at FROM dragoman.nodes"
    connection = await asyncpg.connect(postgres.url(database))
    try:
        (before,) = postgres.query(database, text)
        asked: list[str] = []
        with connection.query_logger(lambda record: asked.append(record.query)):
            await made._node.renew(connection)
            # It is told in the next turn of the event loop.
            await asyncio.sleep(0)
        assert len(asked) == 1
        assert postgres.query(database, text) != [before]
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
    finally:
        await connection.close()


async def test_a_start_says_that_another_process_has_the_journal_for_itself(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_database, "LOCK_SECONDS", 1)
    async with PostgresTarget.opened(postgres.url(database)):
        journal = PostgresJournal(postgres.url(database))
        with pytest.raises(
            JournalUnavailable, match=r"`dragoman journal copy` .* Wait for the end"
        ):
            await journal.open()
        await journal.aclose()
    journal = PostgresJournal(postgres.url(database))
    await journal.open()
    await journal.aclose()


async def test_a_reader_reads_beside_the_writer_and_changes_nothing(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    session = await create(made)
    reader = open_journal(postgres.url(database), read_only=True)
    await reader.open()
    assert await store(made, Write(session.key, 2, 5, lines(2, 5), position=b"p")) is None
    assert [row.last_seq for row in await reader.sessions()] == [6]
    assert joined(await reader.read(session.key, after=1)) == lines(2, 5).splitlines(keepends=True)
    error = await store(reader, Write(session.key, 7, 1, line(7)))
    assert isinstance(error, JournalUnavailable)
    assert "reading only" in error.whole
    with pytest.raises(JournalUnavailable):
        await reader.delete(session.key, at=1)
    reader.add_frames(session.key, 0, 0, [b"frame"], 1)
    assert await reader.frames(session.key, 0) == []
    await reader.aclose()


async def test_a_reader_waits_for_a_server_to_make_the_schema(
    postgres: PostgresServer, database: str
) -> None:
    with pytest.raises(JournalUnavailable, match="start the server once"):
        await PostgresJournal(postgres.url(database), read_only=True).open()
    assert postgres.query(database, "SELECT to_regnamespace('dragoman') IS NULL") == ["t"]


async def test_two_that_start_at_once_make_the_schema_once(
    postgres: PostgresServer, database: str
) -> None:
    journals = [PostgresJournal(postgres.url(database)) for _ in range(3)]
    opened = await asyncio.gather(*(one.open() for one in journals), return_exceptions=True)
    won = [one for one, error in zip(journals, opened, strict=True) if error is None]
    assert len(won) == 1
    assert {type(error) for error in opened} == {type(None), JournalUnavailable}
    await create(won[0])
    await won[0].aclose()


async def test_a_journal_of_a_newer_version_is_refused(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    await made.aclose()
    postgres.query(database, "UPDATE dragoman.meta SET version = 99")
    for read_only in (False, True):
        with pytest.raises(JournalCorrupt, match=r"schema 99.*upgrade"):
            await PostgresJournal(postgres.url(database), read_only=read_only).open()


async def test_a_journal_of_an_older_version_is_brought_up_to_date_in_one_step_or_not_at_all(
    postgres: PostgresServer,
    database: str,
    made: PostgresJournal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await create(made)
    await made.aclose()
    known = _database.migrations()
    step = "ALTER TABLE dragoman.sessions ADD COLUMN mood text DEFAULT 'calm';"
    monkeypatch.setattr(_database, "migrations", lambda: [*known, f"{step} SELECT nothing;"])
    with pytest.raises(JournalUnavailable, match="nothing"):
        await made.open()
    assert postgres.query(database, "SELECT version FROM dragoman.meta") == [str(len(known))]
    monkeypatch.setattr(_database, "migrations", lambda: [*known, step])
    with pytest.raises(JournalUnavailable, match="start the server once"):
        await PostgresJournal(postgres.url(database), read_only=True).open()
    await made.open()
    assert (await made.session("s1")).last_seq == 1
    await made.aclose()
    assert postgres.query(database, "SELECT mood FROM dragoman.sessions") == ["calm"]


async def test_a_schema_of_another_program_is_left_alone(
    postgres: PostgresServer, database: str
) -> None:
    postgres.query(database, "CREATE SCHEMA dragoman; CREATE TABLE dragoman.theirs (x int)")
    with pytest.raises(JournalCorrupt, match="another program"):
        await PostgresJournal(postgres.url(database)).open()
    assert postgres.query(database, "SELECT relname FROM pg_class WHERE relname = 'theirs'") == [
        "theirs"
    ]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("ALTER DATABASE {} SET default_transaction_read_only = on", "standby"),
        ("ALTER DATABASE {} CONNECTION LIMIT 0", "connection"),
    ],
)
async def test_a_database_that_cannot_be_written_is_refused(
    postgres: PostgresServer, database: str, setting: str, says: str
) -> None:
    postgres.query("postgres", "CREATE ROLE plain LOGIN") if "LIMIT" in setting else None
    postgres.query("postgres", setting.format(database))
    url = postgres.url(database)
    if "LIMIT" in setting:
        # It does not hold for superusers.
        url = url.replace("dragoman@", "plain@")
    with pytest.raises(JournalUnavailable, match=says):
        await PostgresJournal(url).open()


async def test_a_hot_standby_is_refused_and_read_and_the_primary_is_found_beside_it(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    await create(made)
    await made.aclose()
    with postgres_server(primary=postgres) as standby:
        for name in (database, "template1"):
            # One that has a journal, and one that has none.
            with pytest.raises(JournalUnavailable, match=r"it is a standby.*name the primary"):
                await PostgresJournal(standby.url(name)).open()
        reader = PostgresJournal(standby.url(database), read_only=True)
        await reader.open()
        assert [row.id for row in await reader.sessions()] == ["s1"]
        await reader.aclose()
        both = standby.url(database).replace("/test", f",127.0.0.1:{postgres.port}/test")
        either = PostgresJournal(f"{both}?target_session_attrs=read-write")
        await either.open()
        key = (await either.session("s1")).key
        assert await store(either, Write(key, 2, 1, line(2))) is None
        await either.aclose()
        text = "SELECT max(first) FROM dragoman.events"
        await until(lambda: standby.query(database, text) == ["2"])
        await asyncio.to_thread(standby.promote)
        promoted = PostgresJournal(standby.url(database))
        await promoted.open()
        assert await store(promoted, Write(key, 3, 1, line(3))) is None
        await promoted.aclose()


async def test_what_cannot_be_reached_or_does_not_exist_says_the_way_out(
    postgres: PostgresServer,
) -> None:
    nowhere = f"postgresql://me:hidden@127.0.0.1:{free_port()}/x"
    with pytest.raises(JournalUnavailable, match="cannot be reached") as refused:
        await PostgresJournal(nowhere).open()
    assert "hidden" not in refused.value.whole
    with pytest.raises(JournalUnavailable, match="no such database"):
        await PostgresJournal(postgres.url("missing")).open()
    with pytest.raises(JournalUnavailable, match="does not let this user in"):
        await PostgresJournal(postgres.url("postgres").replace("dragoman@", "nobody@")).open()
    postgres.query(
        "postgres", "CREATE DATABASE latin ENCODING LATIN1 LOCALE 'C' TEMPLATE template0"
    )
    with pytest.raises(JournalUnavailable, match="UTF8"):
        await PostgresJournal(postgres.url("latin")).open()


async def test_a_full_disk_fails_the_writes_and_later_ones_succeed(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    session = await create(made)
    key = session.key
    postgres.query(
        database,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'could not extend file' USING ERRCODE = '53100'; END $$;"
        "CREATE TRIGGER full_disk BEFORE INSERT ON dragoman.events"
        " EXECUTE FUNCTION full_disk();"
        "CREATE TRIGGER full_disk BEFORE INSERT ON dragoman.blobs EXECUTE FUNCTION full_disk()",
    )
    results = await asyncio.gather(*(begin(made, Write(key, n, 1, line(n))) for n in range(2, 6)))
    assert {type(result) for result in results} == {JournalUnavailable}
    assert len({id(result) for result in results}) == 4
    assert made.backlog == 0
    with pytest.raises(JournalUnavailable, match="full"):
        await made.put_blob(b"y")
    assert "full" in (await made.trouble() or "")
    assert joined(await made.read(key)) == [line(1)]

    postgres.query(
        database,
        "DROP TRIGGER full_disk ON dragoman.events; DROP TRIGGER full_disk ON dragoman.blobs",
    )
    async with asyncio.timeout(SOON_S):
        while await made.trouble() is not None:  # noqa: ASYNC110 - it tells of no event
            await asyncio.sleep(0.05)
    assert await store(made, Write(key, 2, 1, line(2))) is None
    assert joined(await made.read(key)) == [line(1), line(2)]


async def test_a_batch_with_bad_parts_stores_the_good_ones(made: PostgresJournal) -> None:
    one, two = await create(made, "s1"), await create(made, "s2")
    assert await store(made, Write(two.key, aliases=[("task", "taken")])) is None

    results = await asyncio.gather(
        begin(made, Write(one.key, 2, 1, line(2))),
        begin(made, Write(one.key, 3, 1, line(3), aliases=[("task", "taken")])),
        begin(made, Write(two.key, 2, 1, line(2))),
        begin(made, Write(one.key, 3, 1, line(3, "second try"))),
        begin(made, Write(two.key, 3, 1, line(3), title=object())),  # type: ignore[arg-type]
        begin(made, Write(two.key, 3, 1, line(3), at=3)),
    )

    assert [type(result) for result in results] == [
        type(None),
        NameTaken,
        type(None),
        type(None),
        JournalUnavailable,
        type(None),
    ]
    assert joined(await made.read(one.key)) == [line(1), line(2), line(3, "second try")]
    assert joined(await made.read(two.key)) == [line(1), line(2), line(3)]


async def test_a_wrong_write_among_many_hurts_no_other(made: PostgresJournal) -> None:
    rows = [await create(made, f"s{n}") for n in range(20)]
    wrong = [Write(rows[3].key, 9, 1, line(9)), Write(10**9, 1, 1, line(1))]
    right = [Write(row.key, 2, 1, line(2)) for row in rows]
    results = await asyncio.gather(*(begin(made, write) for write in (*wrong, *right)))
    assert isinstance(results[0], SequenceConflict)
    assert results[2:] == [None] * 20


async def test_texts_may_have_any_character(made: PostgresJournal) -> None:
    name = "a\0b\1c\1\2 \N{GRINNING FACE}"
    await made.create_session(
        id="s1",
        owner="me\0",
        route="r",
        dialect="eve",
        backend="b",
        secret=b"",
        at=1,
        body=line(1),
        aliases=[("task", name)],
        native_id=name,
    )
    row = await made.session("s1")
    assert await store(made, Write(row.key, title=name)) is None
    assert await made.resolve(owner="me\0", route="r", kind="task", name=name) == "s1"
    assert await made.aliases(row.key) == [("task", name)]
    assert (await made.legs(row.key))[0].native_id == name
    assert await made.is_named("b", name)
    assert [found.title for found in await made.sessions(owner="me\0", named=name)] == [name]
    for question in ("route", "backend", "came_from", "named"):
        about: dict[str, Any] = {question: "\0"}
        assert await made.sessions(**about) == []
    assert await made.oldest(backend="\0") == []


async def test_keys_rise_and_no_two_nodes_make_the_same(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    keys = [made.new_key() for _ in range(40_000)]
    keys.append((await create(made)).key)
    await made.aclose()
    again = PostgresJournal(postgres.url(database))
    await again.open()
    keys += [again.new_key() for _ in range(1000)]
    await again.aclose()
    assert len(set(keys)) == len(keys)
    assert keys == sorted(keys)
    # JavaScript reads them.
    assert max(keys) < 1 << 53


async def test_snapshots_and_frames_are_stored_soon(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    session = await create(made)
    made.add_snapshot(session.key, StoredSnapshot("state", 1, 1, 1, b"data"))
    made.add_frames(session.key, 0, 0, [b"frame"], 1)
    assert await store(made, Write(session.key, 2, 1, line(2), at=5000)) is None
    count = (
        "SELECT (SELECT count(*) FROM dragoman.snapshots), (SELECT count(*) FROM dragoman.frames),"
        " counted, updated_at FROM dragoman.sessions"
    )
    async with asyncio.timeout(SOON_S):
        found = [""]
        while found != ["1|1|2|5000"]:
            await asyncio.sleep(0.05)
            found = await asyncio.to_thread(postgres.query, database, count)


async def test_known_sessions_do_not_fill_the_memory(
    made: PostgresJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "KNOWN_TAILS", 5)
    rows = [await create(made, f"s{n}") for n in range(30)]
    for seq in (2, 3):
        for row in rows:
            assert await store(made, Write(row.key, seq, 1, line(seq))) is None
    assert made._writer is not None
    assert len(made._writer._tails) <= 7
    assert {row.last_seq for row in await made.sessions()} == {3}


APPENDER = """
import asyncio, os, sys
from proxy.journal.postgres import PostgresJournal
from proxy.journal.base import Write

async def main():
    journal = PostgresJournal(sys.argv[1])
    await journal.open()
    for n in range(5):
        try:
            row = await journal.create_session(id=f"s{n}", owner="o", route="r", dialect="eve",
                backend="b", secret=b"", at=1, body=b"1\\n")
        except Exception:
            row = await journal.session(f"s{n}")
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


async def test_what_was_acknowledged_survives_kill_9(
    postgres: PostgresServer, database: str
) -> None:
    acknowledged: dict[int, int] = {}
    chance = random.Random(9)
    url = postgres.url(database)
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", APPENDER, url), cwd=REPOSITORY, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(chance.randrange(100, 500)):
            acknowledge(acknowledged, await process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = await process.stdout.read()
        await process.wait()
        for row in rest.splitlines(keepends=True):
            acknowledge(acknowledged, row)

        # The next waits until the lease of the one that was killed has ended.
        journal = PostgresJournal(url)
        await journal.open()
        for session in await journal.sessions():
            entries = joined(await journal.read(session.key, limit_bytes=1 << 30))
            assert entries == [b"%d\n" % seq for seq in range(1, session.last_seq + 1)]
            assert session.last_seq >= acknowledged.get(session.key, 1)
            position = (await journal.legs(session.key))[0].position
            assert position == (b"%d" % session.last_seq if session.last_seq > 1 else None)
        await journal.aclose()
    assert len(acknowledged) == 5


async def test_a_dump_of_a_running_journal_is_one_moment_of_it_and_opens_where_it_is_restored(
    postgres: PostgresServer, database: str, made: PostgresJournal, tmp_path: Path
) -> None:
    session = await create(made, "with-a-file")
    blob = await made.put_blob(b"a file")
    assert await store(made, Write(session.key, 2, 1, line(2), blobs=[blob])) is None
    appender = Appender(made, [(await create(made, f"s{n}")).key for n in range(3)])
    await until(lambda: sum(appender.stored.values()) > 50)
    before = dict(appender.stored)
    copied = f"{database}_copied"
    variables = {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "PGUSER": "dragoman"}
    dump = replaced(block("sh", "pg_dump"), (".dump dragoman\n", f".dump {database}\n"))
    for script in (dump, replaced(block("sh", "pg_restore"), ("restored", copied))):
        process = await asyncio.create_subprocess_exec(
            *("sh", "-eu", "-c", script), cwd=tmp_path, env={**os.environ, **variables}
        )
        assert await process.wait() == 0
    await appender.stop()
    opened = PostgresJournal(postgres.url(copied))
    await opened.open()
    ids = ["s0", "s1", "s2", "with-a-file"]
    assert sorted(row.id for row in await opened.sessions()) == ids
    assert joined(await opened.read(session.key)) == [line(1), line(2)]
    assert await opened.blob(blob) == b"a file"
    assert await opened.blobs(session.key) == [(blob, 6)]
    for key, stored in before.items():
        entries = joined(await opened.read(key, limit_bytes=1 << 30))
        assert stored <= len(entries) <= appender.stored[key]
        await check_logs(opened, {key: len(entries)})
        # It goes on there, under numbers that were not given out.
        seq = len(entries) + 1
        assert await store(opened, Write(key, seq, 1, line(seq))) is None
    assert (await create(opened, "new")).key > max(before)
    await opened.aclose()


async def test_sums_that_a_crash_left_behind_are_brought_up_by_the_next_start(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    session = await create(made)
    assert await store(made, Write(session.key, 2, 1, line(2), at=7000)) is None
    before = await made.session("s1")
    await made.aclose()
    postgres.query(
        database, "UPDATE dragoman.sessions SET counted = 0, bytes = 0, updated_at = 1000"
    )
    await made.open()
    assert await made.session("s1") == before
    assert await made.sizes() == {"lab": before.bytes}
    assert [row.id for row in await made.sessions(changed=7000)] == ["s1"]


async def test_a_deletion_that_a_crash_interrupted_is_finished_by_the_next_start(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    begun, marked = await create(made, "begun"), await create(made, "marked")
    for session in (begun, marked):
        assert await store(made, Write(session.key, 2, 1, line(2), at=7)) is None
    # One is marked only, of the other the tombstone is made.
    assert await store(made, Write(marked.key, state="deleted", at=9)) is None
    await made.delete(begun.key, at=8)
    await made.aclose()
    postgres.query(
        database,
        "UPDATE dragoman.sessions SET erasing = true;"
        f"INSERT INTO dragoman.events VALUES ({begun.key}, 1, 1, 0, 0, NULL, 'left')",
    )
    await made.open()
    assert postgres.query(database, "SELECT count(*) FROM dragoman.events") == ["0"]
    assert postgres.query(database, "SELECT count(*) FROM dragoman.sessions WHERE erasing") == ["0"]
    assert [(await made.session(id)).state for id in ("begun", "marked")] == ["deleted"] * 2


async def test_blobs_that_a_crash_left_are_erased_and_those_of_another_node_are_kept(
    postgres: PostgresServer, database: str, made: PostgresJournal
) -> None:
    session = await create(made)
    left, named = await made.put_blob(b"left"), await made.put_blob(b"named")
    assert await store(made, Write(session.key, 2, 1, line(2), blobs=[named])) is None
    # Another node has put the same.
    postgres.query(database, f"INSERT INTO dragoman.put_blobs VALUES (77, '{left}')")
    await made.drop_blobs([left])
    assert await made.blob(left) == b"left"
    await made.aclose()
    await made.open()
    assert await made.blob(left) is None
    assert await made.blob(named) == b"named"


async def test_prepared_statements_are_not_kept_behind_a_pooler(
    postgres: PostgresServer, database: str
) -> None:
    journal = open_journal(postgres.url(database), pooled=True)
    await journal.open()
    session = await create(journal)
    for seq in range(2, 6):
        assert await store(journal, Write(session.key, seq, 1, line(seq))) is None
        # As a pooler does that gives the connection to others in between.
        await journal._change(lambda c: c.execute("DEALLOCATE ALL"))  # type: ignore[attr-defined]
    assert joined(await journal.read(session.key)) == lines(1, 5).splitlines(keepends=True)
    await journal.aclose()


def test_the_lease_leaves_time_for_a_renewal_that_fails() -> None:
    assert _node.LEASE_SECONDS - _node.MARGIN_SECONDS > 2 * _node.RENEW_SECONDS
