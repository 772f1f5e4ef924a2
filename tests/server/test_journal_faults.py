"""The faults of the journal's file and of the system, from the first request to the recovery.

A full disk is a limit on the file's pages; a lock is one that a foreign program holds; what cannot
be written is a connection that may only read.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest
from aiohttp import web

from adapters.model.base import Call, Request
from proxy.base.clock import Clock
from proxy.base.errors import (
    JournalCorrupt,
    JournalUnavailable,
    SequenceConflict,
    UpstreamUnavailable,
)
from proxy.journal._changes import Transaction
from proxy.journal.base import Write
from proxy.journal.sqlite import SqliteJournal
from proxy.scripted.faults import Cut, Faults, Silence, Status
from proxy.upstream.client import Upstream
from tests.journal.conftest import begin, create, joined, line, lines
from tests.server.test_retention import ask
from tests.support.clocks import HurriedClock
from tests.support.journals import sqlite
from tests.support.running import BACKEND, Run, Running
from tests.support.serving import served
from tests.support.waiting import SOON_S, settled, until
from tests.test_cli import announced, output, process

Fault = Callable[[Running, Path], contextlib.AbstractAsyncContextManager[None]]


def journal_of(running: Running) -> SqliteJournal:
    journal = running.sessions.journal
    assert isinstance(journal, SqliteJournal)
    return journal


@contextlib.asynccontextmanager
async def full(running: Running, path: Path) -> AsyncIterator[None]:
    """A disk on which not one more page fits."""
    journal = journal_of(running)

    def fill(transaction: Transaction) -> None:
        # What is free is used up first, so that the next event finds no room.
        transaction.connection.execute("CREATE TABLE filler (data BLOB)")
        transaction.connection.execute("INSERT INTO filler VALUES (zeroblob(200000))")

    def limit(transaction: Transaction) -> None:
        connection = transaction.connection
        connection.pragma("max_page_count", connection.pragma("page_count"))

    await journal._job(fill)
    # The limit outlives its transaction, which fails where an event behind it finds no room.
    with contextlib.suppress(JournalUnavailable):
        await journal._job(limit)
    try:
        yield
    finally:
        await journal._job(lambda t: t.connection.pragma("max_page_count", 1 << 30))


@contextlib.asynccontextmanager
async def locked(running: Running, path: Path) -> AsyncIterator[None]:
    """A foreign program in the middle of a transaction."""
    writer = journal_of(running)._writer
    assert writer is not None
    writer._connection.set_busy_timeout(1)
    foreign = apsw.Connection(str(path))
    foreign.set_busy_timeout(5000)
    foreign.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        foreign.execute("ROLLBACK")
        foreign.close()


@contextlib.asynccontextmanager
async def read_only(running: Running, path: Path) -> AsyncIterator[None]:
    """A disk that was mounted anew, for reading."""
    writer = journal_of(running)._writer
    assert writer is not None
    writer._connection.pragma("query_only", 1)
    try:
        yield
    finally:
        writer._connection.pragma("query_only", 0)


FILLING = "x" * 9000
"""More than fits into what is left of a page."""

HERM_MESSAGE = {
    "events": [{"type": "user.message", "content": [{"type": "text", "text": FILLING}]}]
}


@pytest.mark.parametrize(
    ("fault", "says"), [(full, "full"), (locked, "locked"), (read_only, "written")]
)
async def test_while_the_journal_cannot_store_every_face_says_503_and_then_goes_on(
    run: Run, tmp_path: Path, fault: Fault, says: str
) -> None:
    path = tmp_path / "own.db"
    running = await run(f"sqlite:///{path}")
    session = await running.eve().create("hello")
    await session.read_turn()
    name = session.session_id
    await settled(await running.live(name))
    before = await running.lines(name)
    prefix = "/as/{}/to/engine"
    eve, herm, engine = (prefix.format(dialect) for dialect in ("eve", "herm", "engine"))

    async with fault(running, path):
        url = f"{eve}/eve/v1/session/{name}"
        status, body = await ask(running, "POST", url, json={"message": FILLING})
        assert (status, body["ok"]) == (503, False)
        assert says in str(await journal_of(running).trouble())
        assert str(tmp_path) not in str(body)
        status, body = await ask(
            running, "POST", f"{herm}/v1/sessions/{name}/events", json=HERM_MESSAGE
        )
        assert (status, body["error"]["code"]) == (503, "unavailable")
        wanted = {"task_id": name, "message": FILLING}
        status, body = await ask(running, "POST", f"{engine}/execute", json=wanted)
        assert status == 503, body
        # What is stored can be read all the while, and nothing else is shown.
        assert await running.lines(name) == before
        status, body = await ask(running, "DELETE", f"/api/v1/sessions/{name}?local=1")
        if fault is full and status == 200:
            # Its few bytes may find room in a page that is not full, and then it makes more.
            assert (await ask(running, "GET", f"/api/v1/sessions/{name}"))[0] == 404
        else:
            assert (status, body["error"]["code"]) == (503, "journal_unavailable")
            assert str(path) in body["error"]["message"]
            assert await running.lines(name) == before
    assert len(running.requests("execute")) == 1

    again = await running.eve().create("kept")
    assert (await again.read_turn()).text
    assert [body["message"] for body in running.requests("execute")] == ["hello", "kept"]


async def test_a_turn_that_meets_a_full_disk_is_whole_when_there_is_room(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "own.db"
    running = await run(f"sqlite:///{path}", engine={"pace": 0.02})
    session = await running.eve().create("script: slow 60")
    reading = asyncio.create_task(session.read_turn())
    await until(lambda: len(session.log) > 8)
    async with full(running, path):
        live = await running.live(session.session_id)
        await until(lambda: live.closed)
    turn = await reading
    assert turn.text == "".join(f"tick {n} " for n in range(60)) + " (turn 1)"
    assert len(running.requests("execute")) == 1
    lines = await running.lines(session.session_id)
    assert [json.loads(line) for line in lines] == session.log


@pytest.mark.parametrize("fault", [full, locked, read_only])
async def test_a_journal_that_cannot_store_is_told_once_and_makes_the_server_not_ready(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    path = tmp_path / "own.db"
    running = await run(f"sqlite:///{path}")
    session = await running.eve().create("hello")
    await session.read_turn()
    await settled(await running.live(session.session_id))
    assert await ask(running, "GET", "/readyz") == (200, {"status": "ready"})
    url = f"/as/eve/to/engine/eve/v1/session/{session.session_id}"
    async with fault(running, path):
        for _ in range(5):
            status, _ = await ask(running, "POST", url, json={"message": FILLING})
            assert status == 503
            assert await ask(running, "GET", "/readyz") == (
                503,
                {"status": "journal_unavailable"},
            )
    # Nothing is stored meanwhile: it is tried.
    async with asyncio.timeout(SOON_S):
        while (await ask(running, "GET", "/readyz"))[0] != 200:  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(0.05)
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    first, last = [record.getMessage() for record in told]
    assert first.startswith(f"the journal `{path}` cannot be used now: ")
    assert last.startswith(f"the journal `{path}` is back: it stores again, after ")


# At the start.


def corrupt(path: Path, *, head: bool) -> None:
    """Overwrite pages: the first one, or all others."""
    data = bytearray(path.read_bytes())
    start, end = (0, 4096) if head else (4096, len(data))
    data[start:end] = b"\xa5" * (end - start)
    path.write_bytes(data)


async def filled(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    for number in range(200):
        await journal.create_session(
            id=f"s{number}",
            owner="web",
            route="engine",
            dialect="eve",
            backend="engine",
            secret=b"s",
            at=1,
            body=b'{"seq":1}\n',
        )
    await journal.aclose()


@pytest.mark.parametrize("head", [True, False])
async def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path, head: bool) -> None:
    path = tmp_path / "dragoman.db"
    await filled(path)
    corrupt(path, head=head)
    with pytest.raises(JournalCorrupt, match=r"damaged.*backup.*\.recover") as caught:
        await SqliteJournal(path).open()
    assert str(path) in caught.value.whole
    async with process("serve", cwd=tmp_path) as child:
        status, out, err = await output(child)
    assert (status, out) == (1, "")
    told = f"`{path}` is not a journal, or" if head else f"the journal `{path}` is damaged"
    assert told in err
    assert "Traceback" not in err


async def test_damage_that_is_found_later_is_told_to_those_who_read_it(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    await filled(path)
    journal = SqliteJournal(path)
    await journal.open()
    corrupt(path, head=False)
    with pytest.raises(JournalCorrupt, match="backup"):
        await journal.read((await journal.session("s150")).key)
    await journal.aclose()


DAMAGES = {
    "a page": None,
    "an event": "UPDATE events SET body = replace(CAST(body AS TEXT), '\"seq\"', '\"sex\"')",
    "an event's bytes": r"UPDATE events SET body = x'ff00fe0a'",
    "an event that is a list": "UPDATE events SET body = CAST('[1]' || char(10) AS BLOB)",
    "a codec": "UPDATE codecs SET settings = x'7b7d'",
    "a codec's bytes": "UPDATE codecs SET settings = x'ff'",
    "a leg": "UPDATE legs SET state = x'5b5d'",
    "a leg's bytes": "UPDATE legs SET state = x'ff'",
    "a position": "UPDATE positions SET position = x'ff'",
    "a command": "UPDATE commands SET status = 'accepted', body = x'7b7d'",
    "a text": "UPDATE sessions SET title = CAST(x'ff' AS TEXT)",
    "a number": "UPDATE sessions SET created_at = 'x'",
    "a backend's name": "UPDATE legs SET backend = CAST(x'ff' AS TEXT)",
    "an alias": "UPDATE aliases SET kind = CAST(x'ff' AS TEXT)",
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_is_damaged_while_it_is_served_is_a_503_in_every_dialect(
    run: Run, tmp_path: Path, damage: str
) -> None:
    running = await run("sqlite", settings={"journal": {"url": sqlite(tmp_path), "window_ms": 0}})
    path = tmp_path / "journal.db"
    session = await running.eve().create("hello")
    await session.read_turn()
    name = session.session_id
    await settled(await running.live(name))
    await indexed(running)
    running.sessions.cache.forget(name)
    statement = DAMAGES[damage]
    if statement is None:
        await journal_of(running)._job(lambda t: None)
        await journal_of(running).emptied()
        corrupt(path, head=False)
    else:
        await journal_of(running)._job(lambda t: list(t.connection.execute(statement)))
    herm, eve = f"/as/herm/to/{BACKEND}/v1/sessions", f"/as/eve/to/{BACKEND}/eve/v1/session"
    engine = f"/as/engine/to/{BACKEND}"
    asked: list[tuple[str, str, Any]] = [
        ("GET", f"{eve}/{name}/stream?follow=0", None),
        ("POST", f"{eve}/{name}", {"message": "more"}),
        ("GET", herm, None),
        ("GET", f"{herm}/{name}", None),
        ("GET", f"{herm}/{name}/events", None),
        ("POST", f"{herm}/{name}/events", HERM_MESSAGE),
        ("GET", f"{engine}/execute/replay?after=0&task_id={name}", None),
        ("GET", f"{engine}/hitl/pending", None),
        ("POST", f"{engine}/execute", {"task_id": name, "message": "more"}),
        ("GET", "/api/v1/sessions", None),
        ("GET", f"/api/v1/sessions/{name}", None),
        ("GET", f"/api/v1/sessions/{name}/events", None),
        ("GET", "/api/v1/interactions", None),
        ("POST", "/api/v1/prune", {"older_than_seconds": 1, "dry_run": True}),
    ]
    seen: dict[str, int] = {}
    for method, url, body in asked:
        running.sessions.cache.forget(name)
        address = f"http://127.0.0.1:{running.port}{url}"
        async with running.http.request(method, address, json=body) as response:
            with contextlib.suppress(aiohttp.ClientError):
                await response.read()
            seen[f"{method} {url}"] = response.status
    assert set(seen.values()) <= {200, 202, 404, 409, 503}, seen
    assert 503 in seen.values(), seen


async def indexed(running: Running) -> None:
    """Wait until nothing of the journal is in the writer's memory only."""
    writer = journal_of(running)._writer
    assert writer is not None
    writer._index_rows = 0
    # It looks after its next job.
    await journal_of(running)._job(lambda _: None)
    await until(lambda: not any(tail.rows or tail.positions for tail in writer.tails.values()))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied"), "right to write"),
        (OSError(30, "Read-only file system"), "right to write"),
        (OSError(28, "No space left on device"), "disk is full"),
        (OSError(24, "Too many open files"), "ulimit"),
    ],
)
async def test_a_file_that_cannot_be_opened_for_writing_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, says: str
) -> None:
    path = tmp_path / "dragoman.db"
    opened = os.open

    def refuse(name: Any, flags: int, *more: Any, **options: Any) -> int:
        if str(name).startswith(str(path)) and flags & os.O_RDWR:
            raise error
        return opened(name, flags, *more, **options)

    monkeypatch.setattr("proxy.journal._database.os.open", refuse)
    with pytest.raises(JournalUnavailable, match=says) as caught:
        await SqliteJournal(path).open()
    assert f"`{path}`" in caught.value.whole


async def test_a_second_server_on_one_journal_is_told_about_the_first(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text('[server]\nlisten = "127.0.0.1:0"\n')
    async with process("serve", cwd=tmp_path) as first:
        await announced(first)
        async with process("serve", cwd=tmp_path) as second:
            status, out, err = await output(second)
        assert (status, out) == (1, "")
        assert f"pid {first.pid}" in err
        assert "dragoman.db" in err


# The system.


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """No file, and no socket, can be opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(2)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_call_that_finds_no_descriptor_says_so_and_the_next_is_done() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="here")

    app = web.Application()
    app.router.add_get("/look", answer)
    call = Call("look", Request("GET", "/look"))
    async with served(app) as url, aiohttp.ClientSession() as http:
        upstream = Upstream(http, url, {})
        with (
            no_descriptors(),
            pytest.raises(UpstreamUnavailable, match="No file descriptor is left") as caught,
        ):
            await upstream.call(call)
        assert caught.value.sent is False
        assert (await upstream.call(call)).body == b"here"


async def test_a_journal_without_descriptors_goes_on(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "own.db", index_rows=4)
    await journal.open()
    with no_descriptors():
        rows = [await create(journal, f"s{number}") for number in range(20)]
        for row in rows:
            await journal.append(Write(row.key, 2, 3, lines(2, 3, "y" * 50_000)))
        # A batch with a wrong part is stored in steps that can be taken back one by one.
        wrong = begin(journal, Write(rows[0].key, 9, 1, line(9)))
        right = begin(journal, Write(rows[0].key, 5, 1, line(5), aliases=[("task", "t")]))
        assert isinstance(await wrong, SequenceConflict)
        assert await right is None
        assert len(joined(await journal.read(rows[0].key))) == 5
        await journal.delete(rows[1].key, at=2)
        assert len(await journal.oldest(limit=50)) == 19
    await journal.aclose()


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the system's clock, by seconds from what it is."""
    real, off = time.time_ns, [0]
    monkeypatch.setattr("proxy.base.clock.time.time_ns", lambda: real() + off[0])

    def step(seconds: float) -> None:
        off[0] += round(seconds * 1e9)

    return step


def test_time_goes_on_at_its_pace_when_the_clock_is_set_back(
    set_clock: Callable[[float], None],
) -> None:
    clock = Clock()
    before = clock.now()
    set_clock(-3600)
    times = [clock.now()]
    while times[-1] < before + 30:
        times.append(clock.now())
        assert times[-1] - before < 5000
    assert all(one <= other for one, other in itertools.pairwise([before, *times]))
    set_clock(7200)
    assert clock.now() >= before + 3_600_000


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_waits_are_measured_by_a_time_that_no_step_moves(
    set_clock: Callable[[float], None], seconds: float
) -> None:
    clock = Clock()
    before = clock.steady()
    assert abs(before - clock.now()) < 60_000
    set_clock(seconds)
    assert 0 <= clock.steady() - before < 60_000


HOUR_MS = 3_600_000
TIMED = ("opened", "respond", "feed", "closed", "tick")
"""The methods of an Engine's codec that are given the time in every turn."""


def times_of(codec: Any) -> dict[str, list[int]]:
    """Note the times that a codec is given from now on."""
    given: dict[str, list[int]] = {name: [] for name in TIMED}

    def note(name: str) -> None:
        method = getattr(codec, name)

        def noted(*arguments: Any) -> Any:
            given[name].append(arguments[-1])
            return method(*arguments)

        setattr(codec, name, noted)

    for name in TIMED:
        note(name)
    return given


@pytest.mark.parametrize("step", [HOUR_MS, -HOUR_MS])
async def test_a_codec_is_given_times_that_no_step_moves(run: Run, step: int) -> None:
    running = await run(engine={"pace": 0.01})
    session = await running.eve().create("hello")
    await session.read_turn()
    live = await running.live(session.session_id)
    await settled(live)
    given = times_of(live.core.codec)
    clock = running.sessions.clock
    assert isinstance(clock, HurriedClock)
    last = clock.steady()
    await session.send("script: slow 20")
    reading = asyncio.create_task(session.read_turn())
    for _ in range(4):
        seen = len(session.log)
        await until(lambda seen=seen: len(session.log) > seen + 2 or reading.done())  # type: ignore[misc]
        clock.ahead += step
    assert (await reading).text
    assert given["opened"]
    assert len(given["feed"]) > 20
    times = sorted(time for times in given.values() for time in times)
    assert last <= times[0]
    assert times[-1] <= clock.steady()


async def test_a_clock_that_is_set_forward_does_not_end_the_patience_for_a_backend(
    run: Run,
) -> None:
    broken = {("execute", 1): Cut(after_event=4)}
    refused = {("replay", number): Status(503) for number in range(1, 9)}
    running = await run(engine={"faults": Faults({**broken, **refused}), "pace": 0.01}, speed=20.0)
    session = await running.eve().create("script: slow 20")
    reading = asyncio.create_task(session.read_turn())
    clock = running.sessions.clock
    assert isinstance(clock, HurriedClock)
    for number in range(1, 4):
        await until(lambda number=number: len(running.requests("replay")) >= number)  # type: ignore[misc]
        clock.ahead += HOUR_MS
    turn = await reading
    assert turn.text == "".join(f"tick {n} " for n in range(20)) + " (turn 1)"
    assert len(running.requests("replay")) == 9


async def test_a_doubt_is_as_old_as_it_was_when_a_session_is_loaded_after_a_step(run: Run) -> None:
    lost = {"faults": Faults({("execute", 1): Silence(done=False)})}
    running = await run("sqlite", engine=lost, speed=20.0)
    backend = running.backends[BACKEND]
    backend.table = {**backend.table, "settings": {"patience_seconds": 20}}
    await running.restart()
    clock = running.sessions.clock
    assert isinstance(clock, HurriedClock)
    clock.steady()
    clock.ahead += HOUR_MS
    session = await running.eve().create("hello")
    await until(lambda: bool(running.requests("execute")))
    running.sessions.cache.forget(session.session_id)
    live = await running.live(session.session_id)
    await until(lambda: not live.state.inputs)
    assert len(running.requests("execute")) == 1


async def test_only_silence_after_the_last_news_counts_from_before_a_start(run: Run) -> None:
    silent = Cut(after_event=0, clean=True)
    faults: dict[tuple[str, int], Cut | Silence | Status] = {
        ("execute", 1): Silence(done=True),
        ("replay", 1): Status(503),
        ("replay", 2): Cut(after_event=4, clean=True),
        ("replay", 3): silent,
        ("execute", 2): silent,
        ("replay", 5): silent,
    }
    running = await run(engine={"faults": Faults(faults)}, speed=20.0)
    session = await running.eve().create("hello")
    await until(lambda: bool(running.requests("execute")))
    clock = running.sessions.clock
    assert isinstance(clock, HurriedClock)
    # Its doubt is older than any patience.
    clock.ahead += HOUR_MS
    running.sessions.cache.forget(session.session_id)
    await running.live(session.session_id)
    assert (await session.read_turn()).text
    assert len(running.requests("replay")) == 4
    accepted = await session.send("again")
    assert (await session.read_turn(accepted)).text
    assert len(running.requests("replay")) == 6


@pytest.mark.parametrize("step", [-3600, 0])
async def test_a_start_goes_on_from_the_times_before_it_though_the_clock_was_set_back(
    run: Run, set_clock: Callable[[float], None], step: float
) -> None:
    lost = {"faults": Faults({("execute", 1): Silence(done=False)})}
    running = await run("sqlite", engine=lost, speed=1.0)
    session = await running.eve().create("hello")
    await until(lambda: bool(running.requests("execute")))
    live = await running.live(session.session_id)
    (row,) = await running.sessions.journal.commands(live.row.key)
    set_clock(step)
    await running.restart()
    live = await running.live(session.session_id)
    assert live._log.time() >= row.at
    # The doubt is as old as what was stored says, and not an hour younger or older.
    given = times_of(live.core.codec)
    await until(lambda: bool(given["closed"]))
    assert row.at <= given["closed"][0] < row.at + HOUR_MS


async def test_a_clock_that_is_set_back_in_a_turn_delays_nothing_and_no_time_decreases(
    run: Run, set_clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The proxy's own clock, at its real pace: a tool call waits 250 ms for its permission.
    monkeypatch.setattr("tests.support.dragoman.HurriedClock", lambda *_: Clock())
    running = await run(engine={"pace": 0.02})
    session = await running.eve().create("script: tool")
    reading = asyncio.create_task(session.read_turn())
    for _ in range(5):
        seen = len(session.log)
        await until(lambda seen=seen: len(session.log) > seen or reading.done())  # type: ignore[misc]
        set_clock(-3600)
    async with asyncio.timeout(SOON_S):
        assert (await reading).text
    row = await running.sessions.journal.session(session.session_id)
    ats = [
        json.loads(line)["at"]
        async for chunk in running.sessions.journal.scan(row.key)
        for line in chunk.body.splitlines()
    ]
    assert ats == sorted(ats)
    assert ats[-1] - ats[0] < 60_000
