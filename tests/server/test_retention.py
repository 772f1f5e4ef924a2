"""Sessions that go, deleted or kept no longer: what frontends see, and what is left of them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import json
import logging
import secrets
import zlib
from pathlib import Path
from typing import Any

import apsw
import pytest

from adapters.model import events as ev
from proxy.base.rows import SessionRow
from proxy.fanout.hub import SNAPSHOT_ENTRIES, Feed
from proxy.journal.sqlite import SqliteJournal
from proxy.scripted import scripts
from proxy.scripted.scripts import AskBeat, SayBeat
from proxy.session import Session
from proxy.sessions.retention_limits import RetentionLimits
from tests.support import engine_client, eve_client, herm_client
from tests.support.engine_client import EngineClient, EngineEvent, EngineTurn
from tests.support.eve_client import Style
from tests.support.herm_client import HermClient
from tests.support.running import BACKEND, Live, Run, Running
from tests.support.waiting import settled, until

MARK = "MARKED-TEXT-7e1b"
ALL = RetentionLimits(age=-1)


async def ask(running: Running, method: str, path: str, **options: Any) -> tuple[int, Any]:
    """Ask the proxy, and return the status and the JSON, or the text where there is none."""
    url = f"http://127.0.0.1:{running.port}{path}"
    async with running.http.request(method, url, **options) as response:
        body = await response.read()
        is_json = response.content_type == "application/json"
        return response.status, json.loads(body) if is_json else body.decode()


async def said(running: Running, text: str = "hello") -> str:
    """A session with one turn, over."""
    session = await running.eve().create(text)
    await session.read_turn()
    await settled(await running.live(session.session_id))
    return session.session_id


def stored(tmp_path: Path) -> bytes:
    """All that is in the journal's files."""
    return b"".join(path.read_bytes() for path in sorted(tmp_path.glob("*.db*")))


async def test_a_session_that_is_kept_no_longer_is_gone_in_every_dialect_s_words(
    run: Run,
) -> None:
    running = await run("sqlite")
    name = await said(running)
    assert [doomed.row.id for doomed in await running.sessions.prune(ALL)] == [name]

    eve = f"/as/eve/to/engine/eve/v1/session/{name}"
    expired = (
        410,
        {
            "ok": False,
            "error": "Session history is no longer available.",
            "code": "session_expired",
        },
    )
    assert await ask(running, "GET", f"{eve}/stream?startIndex=2") == expired
    assert await ask(running, "POST", eve, json={"message": "again"}) == expired
    herm = f"/as/herm/to/engine/v1/sessions/{name}"
    for path in ("", "/events", "/events/stream"):
        status, body = await ask(running, "GET", herm + path, headers={"Last-Event-ID": "x"})
        assert (status, body["error"]["code"]) == (410, "cursor_expired"), path
    assert await ask(running, "GET", "/as/herm/to/engine/v1/sessions") == (
        200,
        {"data": [], "nextCursor": None},
    )
    engine = "/as/engine/to/engine"
    assert await ask(running, "GET", f"{engine}/execute/replay?after=0&task_id={name}") == (200, "")
    assert await ask(running, "GET", f"{engine}/execute/replay?after=0") == (200, "")
    control = f"/api/v1/sessions/{name}"
    status, body = await ask(running, "GET", control)
    assert (status, body["error"]["code"]) == (410, "cursor_expired")
    assert (await ask(running, "GET", "/api/v1/sessions"))[1]["sessions"] == []
    listed = (await ask(running, "GET", "/api/v1/sessions?state=expired"))[1]["sessions"]
    assert [(one["id"], one["bytes"]) for one in listed] == [(name, 0)]


@pytest.mark.parametrize(("way", "expected"), [("delete", 409), ("prune", 410)])
async def test_a_message_to_a_session_that_is_erased_just_then_is_answered_as_later(
    run: Run, monkeypatch: pytest.MonkeyPatch, way: str, expected: int
) -> None:
    running = await run("sqlite")
    name = await said(running)
    sessions = running.sessions
    row = await sessions.journal.session(name)

    async def gone(_: Feed) -> None:
        monkeypatch.undo()
        if way == "delete":
            await sessions.erase(row)
        else:
            await sessions.prune(ALL)
        await sessions.journal.read(row.key)

    monkeypatch.setattr(Feed, "behind", True)
    monkeypatch.setattr(Feed, "catch_up", gone)
    message = {"message": "again"}
    path = f"/as/eve/to/engine/eve/v1/session/{name}"
    first = await ask(running, "POST", path, json=message)
    # An eve calls a session that it does not know not active.
    assert first[0] == expected
    assert await ask(running, "POST", path, json=message) == first


@pytest.mark.parametrize("when", ["found", "loaded", "loading"])
@pytest.mark.parametrize("way", ["delete", "prune"])
async def test_a_session_that_is_asked_for_while_it_is_erased_does_not_come_back(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    way: str,
    when: str,
) -> None:
    running = await run("sqlite")
    name = await said(running)
    sessions = running.sessions
    sessions.cache.forget(name)
    erasing, erased = asyncio.Event(), asyncio.Event()
    find, load, journal = sessions.cache._load, Session.load, sessions.journal

    async def find_late(row: SessionRow) -> Session:
        erasing.set()
        await erased.wait()
        return await find(row)

    async def load_slowly(session: Session, names: Any) -> None:
        await load(session, names)
        erasing.set()
        await erased.wait()

    erase = journal.delete if way == "delete" else journal.expire

    async def erase_after(*args: Any, **options: Any) -> Any:
        if when == "loaded":
            assert (await ask(running, "GET", f"/api/v1/sessions/{name}"))[0] == 200
        else:
            if when == "found":
                monkeypatch.setattr(sessions.cache, "_load", find_late)
            else:
                monkeypatch.setattr(Session, "load", load_slowly)
            asking.append(asyncio.create_task(ask(running, "GET", f"/api/v1/sessions/{name}")))
            await erasing.wait()
        result = await erase(*args, **options)
        asyncio.get_running_loop().call_later(0.01, erased.set)
        return result

    asking: list[asyncio.Task[tuple[int, Any]]] = []
    monkeypatch.setattr(journal, "delete" if way == "delete" else "expire", erase_after)
    row = await journal.session(name)
    if way == "delete":
        await sessions.erase(row)
    else:
        assert [doomed.row.id for doomed in await sessions.prune(ALL)] == [name]
    answers = await asyncio.gather(*asking)
    monkeypatch.undo()
    answers.append(await ask(running, "GET", f"/api/v1/sessions/{name}"))
    # As if it had been asked for later: what the journal says of its rows is nobody's business.
    expected = (404, "not_found") if way == "delete" else (410, "cursor_expired")
    if when == "loading":
        # It was there when it was asked for.
        assert answers.pop(0)[0] == 200
    assert {(status, body["error"]["code"]) for status, body in answers} == {expected}
    assert len({body["error"]["message"] for _, body in answers}) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(sessions.cache) == 0


@pytest.mark.parametrize("way", ["control", "local", "herm", "prune", "retention"])
async def test_when_a_deletion_is_answered_its_text_is_nowhere(
    run: Run, tmp_path: Path, way: str
) -> None:
    running = await run("sqlite")
    names = [await said(running, f"{MARK} {number}") for number in range(5)]
    kept = await said(running, "kept")
    assert MARK.encode() in stored(tmp_path)
    for name in names:
        match way:
            case "control":
                assert (await ask(running, "DELETE", f"/api/v1/sessions/{name}"))[0] == 200
            case "local":
                assert (await ask(running, "DELETE", f"/api/v1/sessions/{name}?local=1"))[0] == 200
            case "herm":
                url = f"/as/herm/to/engine/v1/sessions/{name}"
                assert (await ask(running, "DELETE", url))[0] in (200, 204)
        if way not in ("prune", "retention"):
            assert f"{MARK} {names.index(name)}".encode() not in stored(tmp_path)
    if way == "prune":
        await said(running, "another")
        body = {"max_bytes": 1}
        assert (await ask(running, "POST", "/api/v1/prune", json=body))[0] == 200
    elif way == "retention":
        assert len(await running.sessions.prune(ALL)) == 6
    else:
        assert (await ask(running, "GET", f"/api/v1/sessions/{kept}"))[0] == 200
    assert MARK.encode() not in stored(tmp_path)


async def test_nothing_is_written_to_a_session_when_its_erasing_begins(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await run("sqlite")
    name = await said(running)
    live = await running.live(name)
    erase, closed = running.sessions.journal.delete, []

    async def erase_now(session: int, *, at: int) -> None:
        closed.append(live.closed)
        await erase(session, at=at)

    monkeypatch.setattr(running.sessions.journal, "delete", erase_now)
    assert (await ask(running, "DELETE", f"/api/v1/sessions/{name}?local=1"))[0] == 200
    assert closed == [True]


async def test_a_stream_of_a_session_that_goes_ends_in_order(run: Run) -> None:
    running = await run("sqlite")
    name = await said(running)
    async with Live(running, name) as live:
        lines = await live.count(3)
        await running.sessions.prune(ALL)
        await until(lambda: live.over)
    assert lines
    with pytest.raises(eve_client.Refused) as caught:
        await running.eve().attach(name).read_turn()
    assert caught.value.status == 410


@pytest.mark.parametrize("script", ["script: approve", "script: slow 400"])
async def test_what_is_open_stays_whatever_the_limits_say(run: Run, script: str) -> None:
    running = await run("sqlite", engine={"pace": 0.02})
    session = await running.eve().create(script)
    live = await running.live(session.session_id)
    await until(lambda: live.state.busy)
    assert await running.sessions.prune(RetentionLimits(age=-1, bytes=0, bytes_per_backend=0)) == []
    assert not live.closed


async def test_an_engine_s_task_goes_on_after_a_gap(run: Run) -> None:
    running = await run("sqlite")
    url = "/as/engine/to/engine/execute"

    async def execute(text: str) -> str:
        status, body = await ask(running, "POST", url, json={"task_id": "t-1", "message": text})
        assert status == 200
        await settled(await running.sessions.get("t-1", owner="local", route="engine"))
        return str(body)

    assert "(turn 1)" in await execute("hello")
    (gone,) = await running.sessions.prune(ALL)
    # The Engine has a memory of its own: to it this is the second turn.
    assert "(turn 2)" in await execute("again")
    session = await running.sessions.get("t-1", owner="local", route="engine")
    assert session.id != gone.row.id
    events = await running.log(session.id)
    assert [event.TYPE for event in events[:3]] == ["session.started", "session.updated", "gap"]
    assert isinstance(events[1], ev.SessionUpdated)
    assert events[1].predecessor == gone.row.id
    _, body = await ask(running, "GET", f"{url}/replay?after=0&task_id=t-1")
    assert "event: gap" in body
    assert body.index("event: gap") < body.index("(turn 2)")
    assert "(turn 1)" not in body
    assert "(turn 3)" in await execute("once more")


@pytest.mark.parametrize("style", ["T", "S"])
async def test_an_eve_client_with_a_cursor_is_refused_for_good(run: Run, style: Style) -> None:
    running = await run("sqlite")
    session = await running.eve(style=style).create("hello")
    await session.read_turn()
    await settled(await running.live(session.session_id))
    async with contextlib.aclosing(session.follow()) as records:
        watching = asyncio.ensure_future(anext(records))
        live = await running.live(session.session_id)
        await until(lambda: any(reader.live for reader in live.feeds.get("eve").readers))
        await running.sessions.prune(ALL)
        # Its stream ends in order, and it comes back with its cursor.
        with pytest.raises(eve_client.Refused) as caught:
            await watching
    refusals = [caught.value]
    cursor = session.cursor
    assert cursor == len(session.log)
    for start in (0, cursor, -1, cursor + 5):
        with pytest.raises(eve_client.Refused) as caught:
            await anext(session.stream(start))
        refusals.append(caught.value)
    for call in (session.send("again"), session.respond("r-1", "approve"), session.cancel()):
        with pytest.raises(eve_client.Refused) as caught:
            await call
        refusals.append(caught.value)
    # None of the statuses that eve's clients try again (eve page, section 7.5).
    assert {(refusal.status, refusal.code) for refusal in refusals} == {(410, "session_expired")}
    # What begins anew lacks nothing, and says of no gap.
    another = await session.client.create("hello")
    assert "dragoman.gap" not in (await another.read_turn()).types


async def test_a_herm_client_with_a_cursor_is_refused_for_good(run: Run) -> None:
    running = await run("sqlite")
    client = HermClient(running.http, running.face("herm", BACKEND))
    name = (await client.create(BACKEND))["id"]
    last = (await client.turn(name, "hello")).envelopes[-1]["id"]
    live = await running.live(name)
    await settled(live)
    stream = client.stream(name, last)
    await anext(stream)
    ending = asyncio.ensure_future(anext(stream, None))
    await until(lambda: any(reader.live for reader in live.feeds.get("herm").readers))
    await running.sessions.prune(ALL)
    assert await ending is None
    for call in (
        anext(client.stream(name, last)),
        anext(client.stream(name)),
        client.list(name),
        client.list(name, after=last),
        client.get(name),
        client.say(name, "again"),
    ):
        with pytest.raises(herm_client.Refused) as caught:
            await call
        assert (caught.value.status, caught.value.code) == (410, "cursor_expired")
    another = (await client.create(BACKEND))["id"]
    assert "session.gap" not in (await client.turn(another, "hello")).types


def engine_ms(event: EngineEvent) -> int:
    return round(dt.datetime.fromisoformat(event.payload["timestamp"]).timestamp() * 1000)


@pytest.mark.parametrize("named_by", ["frontend", "dragoman"])
async def test_an_engine_client_with_a_cursor_gets_nothing_and_then_the_gap(
    run: Run, named_by: str
) -> None:
    running = await run("sqlite")
    expect = engine_client.Expect(stamped=True, known_types=False)
    client = EngineClient(running.http, running.face("engine", BACKEND), expect=expect)
    # Another frontend's session is a task by its id.
    task = "t-1" if named_by == "frontend" else await said(running)
    turn = await client.turn("hello", task)
    stamp = engine_ms(turn.events[-1])
    await settled(await running.sessions.get(task, owner="local", route=BACKEND))
    await running.sessions.prune(ALL)

    async def replay(after: int) -> EngineTurn:
        return EngineTurn([seen async for seen in client.replay(after, task)])

    for after in (0, stamp - 1, stamp):
        assert (await replay(after)).events == []
    with pytest.raises(engine_client.Refused) as caught:
        await client.respond(task, "yes")
    assert (caught.value.status, caught.value.body["error"]) == (404, "TASK_NOT_FOUND")

    again = [await client.turn("again", task), await client.turn("once more", task)]
    assert [turn.types[-1] for turn in again] == ["completed"] * 2
    # The old cursor gets all that there is now, and what it missed is said first.
    for after in (0, stamp):
        replayed = await replay(after)
        assert replayed.types[0] == "gap"
        assert replayed.payloads("gap")[0]["reason"]
        assert replayed.types.count("gap") == 1
        assert replayed.text == "".join(turn.text for turn in again)
    assert (await replay(engine_ms(again[-1].events[-1]))).events == []


async def test_retention_works_by_itself(run: Run, tmp_path: Path) -> None:
    running = await run(
        f"sqlite:///{tmp_path / 'own.db'}", settings={"retention": {"max_age_days": 1e-9}}
    )
    session = await running.eve().create(MARK)
    await session.read_turn()
    journal = running.sessions.journal

    async def state() -> str:
        return (await journal.session(session.session_id)).state

    states: list[str] = []
    while not states or states[-1] != "expired":
        states.append(await state())
        await until(lambda: True)
    assert set(states) <= {"idle", "running", "expired"}


@pytest.mark.parametrize("by", ["control", "herm", "control-local"])
async def test_a_deleted_session_leaves_no_word_behind(run: Run, tmp_path: Path, by: str) -> None:
    running = await run(f"sqlite:///{tmp_path / 'own.db'}")
    journal = running.sessions.journal
    assert isinstance(journal, SqliteJournal)
    name = await said(running, f"{MARK} says hello")
    other = await said(running, "somebody else")
    assert await journal.frames((await journal.session(name)).key, 0)
    assert MARK.encode() in stored(tmp_path)

    path = {
        "control": f"/api/v1/sessions/{name}",
        "control-local": f"/api/v1/sessions/{name}?local=1",
        "herm": f"/as/herm/to/engine/v1/sessions/{name}",
    }[by]
    status, _ = await ask(running, "DELETE", path)
    assert status == (204 if by == "herm" else 200)
    await until(lambda: MARK.encode() not in stored(tmp_path))
    row = await journal.session(name)
    assert (row.state, row.bytes) == ("deleted", 0)
    assert await journal.frames(row.key, 0) == []
    assert await journal.commands(row.key, statuses=("accepted", "sent", "settled")) == []
    assert (await ask(running, "GET", f"/api/v1/sessions/{name}"))[0] == 404
    assert (await ask(running, "DELETE", f"/api/v1/sessions/{name}"))[0] == 404
    assert await running.log(other)
    assert name not in running.sessions.cache
    await running.restart()
    assert MARK.encode() not in stored(tmp_path)


def values(tmp_path: Path) -> dict[str, list[bytes]]:
    """All values of each table that may hold text, as they are stored."""
    (path,) = tmp_path.glob("*.db")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table'"
        ).fetchall()
        rows = {str(t): connection.execute(f"SELECT * FROM {t}").fetchall() for (t,) in tables}
    finally:
        connection.close()
    return {
        name: [
            value.encode() if isinstance(value, str) else value
            for row in found
            for value in row
            if isinstance(value, str | bytes)
        ]
        for name, found in rows.items()
    }


def readable(value: bytes) -> bytes:
    """A stored value without its compression."""
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value


async def test_a_long_deleted_session_leaves_no_mark_in_any_table_compressed_or_not(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Random, so that no compression shortens them, and as long as base64 shows in one way.
    said_mark, file_mark, answer_mark = marks = [secrets.token_hex(12).encode() for _ in range(3)]
    beats = (
        # The mark is in what readers keep of an open text, over several intervals of snapshots.
        SayBeat((said_mark.decode(), *(f" tick {n}" for n in range(4 * SNAPSHOT_ENTRIES)))),
        AskBeat("Which name?", (), "The ticket carries the name {answer}."),
    )
    monkeypatch.setitem(scripts._SCRIPTS, "marked", lambda _: beats)
    running = await run(f"sqlite:///{tmp_path / 'own.db'}")
    journal = running.sessions.journal
    picture = {
        "type": "file",
        "mediaType": "image/png",
        "data": base64.b64encode(file_mark * 300).decode(),
    }
    text = {"type": "text", "text": f"{said_mark.decode()}\nscript: marked"}
    session = await running.eve().create([text, picture])
    (asked,) = (await session.read_turn()).requests
    await session.respond(asked["requestId"], text=answer_mark.decode())
    turn = await session.read_turn()
    assert turn.text is not None
    assert answer_mark.decode() in turn.text
    await settled(await running.live(session.session_id))
    other = await said(running, "somebody else")
    key = (await journal.session(session.session_id)).key
    assert await journal.frames(key, 0)

    def holding(mark: bytes) -> set[str]:
        found = values(tmp_path)
        return {name for name in found if mark in b"".join(map(readable, found[name]))}

    await until(lambda: "snapshots" in holding(said_mark))
    assert holding(said_mark) >= {"events", "commands", "frames", "snapshots"}
    assert holding(file_mark) == {"blobs"}
    assert holding(answer_mark) >= {"events", "commands", "frames"}
    # What cannot be read in the file: pieces of compressed values in which a mark is.
    pieces = [
        value[start : start + 32]
        for name in ("frames", "snapshots")
        for value in values(tmp_path)[name]
        if any(mark in readable(value) for mark in marks)
        for start in range(16, len(value) - 32, 512)
    ]
    file = stored(tmp_path)
    assert len(pieces) > 3
    assert all(piece in file for piece in pieces)

    status, _ = await ask(running, "DELETE", f"/api/v1/sessions/{session.session_id}")
    assert status == 200
    traces = [*marks, *map(base64.b64encode, marks), *pieces]
    await until(lambda: not any(trace in stored(tmp_path) for trace in traces))
    assert [holding(mark) for mark in marks] == [set(), set(), set()]
    assert await running.log(other)
    await running.stop()
    file = stored(tmp_path)
    assert not any(trace in file for trace in traces)
    assert [holding(mark) for mark in marks] == [set(), set(), set()]


async def test_a_session_of_a_backend_that_left_the_configuration_can_still_be_erased(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await run("sqlite")
    name = await said(running)
    await until(lambda: name not in running.sessions.cache)
    monkeypatch.setattr(type(running.sessions.settings), "backend", lambda *_: None)
    assert (await ask(running, "GET", f"/api/v1/sessions/{name}"))[0] == 502
    assert (await ask(running, "DELETE", f"/api/v1/sessions/{name}"))[0] == 200
    assert (await running.sessions.journal.session(name)).state == "deleted"


async def test_pruning_by_the_control_api_keeps_to_its_limits(run: Run) -> None:
    running = await run("sqlite")
    first, second = await said(running, "one"), await said(running, "two")
    for body in ({}, {"dry_run": True}, {"max_bytes": -1}, {"max_byte": 1}):
        assert (await ask(running, "POST", "/api/v1/prune", json=body))[0] == 400
    wanted = {"older_than_seconds": 0, "dry_run": True}
    _, answer = await ask(running, "POST", "/api/v1/prune", json=wanted)
    assert [(one["id"], one["reason"]) for one in answer["sessions"]] == [
        (first, "age"),
        (second, "age"),
    ]
    assert (await running.sessions.journal.session(first)).state == "idle"
    _, answer = await ask(running, "POST", "/api/v1/prune", json={"older_than_seconds": 86_400_000})
    assert answer == {"version": 1, "dry_run": False, "sessions": []}
    _, answer = await ask(running, "POST", "/api/v1/prune", json={"older_than_seconds": 0})
    assert len(answer["sessions"]) == 2
    assert (await running.sessions.journal.session(first)).state == "expired"


async def test_the_newest_time_of_a_journal_is_that_of_its_last_event(run: Run) -> None:
    running = await run("sqlite")
    assert await running.sessions.journal.newest() == 0
    before = await said(running)
    (row,) = await running.sessions.journal.sessions(limit=1)
    assert (row.id, row.updated_at) == (before, await running.sessions.journal.newest())
