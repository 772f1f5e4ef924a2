"""A session whose state cannot be read: its log is shown, nothing is taken, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from adapters.engine.client import EngineClient
from adapters.model import commands, events
from adapters.model.commands import Command
from adapters.model.events import Event
from adapters.model.stored import mark, version_member
from proxy.base.errors import JournalCorrupt
from proxy.base.metrics import REGISTRY
from tests.server.test_retention import ask
from tests.support.journals import sqlite
from tests.support.running import BACKEND, Live, Run, Running
from tests.support.waiting import until

Change = Callable[[bytes], bytes]

LATER = EngineClient.state_version + 1
MARK = mark(EngineClient.state_version)


def replaced(old: bytes, new: bytes) -> Change:
    def change(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return change


UNREADABLE: dict[str, tuple[str, Change, str]] = {
    "a later version": (
        "legs.state",
        replaced(MARK, mark(LATER)),
        f"has version {LATER}, and this Dragoman knows versions up to {LATER - 1}: "
        "run the release that wrote it, or a later one",
    ),
    "a later version of a position": (
        "positions.position",
        replaced(MARK, mark(LATER)),
        f"has version {LATER}",
    ),
    "a later version of a command": (
        "commands.body",
        replaced(b"{", b'{"v":99,'),
        f"a command has version 99, and this Dragoman knows versions up to {Command.state_version}",
    ),
    "a field with another name": (
        "legs.state",
        replaced(b'"turns"', b'"rounds"'),
        "other fields: `rounds`, `turns`",
    ),
    "a field that is missing": (
        "legs.state",
        replaced(b'"turns":1,', b""),
        "other fields: `turns`",
    ),
    "a field of another type": (
        "legs.state",
        replaced(b'"turns":1', b'"turns":{}'),
        "`EngineClientState.turns` is of another type",
    ),
    "no JSON": ("legs.state", lambda data: b"\xff" + data, "restore a backup"),
    "a command that is none": ("commands.body", lambda data: b"{}", "restore a backup"),
}


def changed(path: Path, place: str, change: Change, session_id: str) -> dict[Any, bytes]:
    """Change what is stored of a session, and return what was there, by row."""
    table, column = place.split(".")
    connection = apsw.Connection(str(path))
    of_session = "session = (SELECT key FROM sessions WHERE id = ?)"
    more = " AND status <> 'settled'" if table == "commands" else ""
    number = "number" if table != "positions" else "leg"
    rows = connection.execute(
        f"SELECT {number}, {column} FROM {table} WHERE {of_session}{more}", (session_id,)
    ).fetchall()
    assert rows
    for row, data in rows:
        assert isinstance(data, bytes)
        connection.execute(
            f"UPDATE {table} SET {column} = ? WHERE {of_session} AND {number} = ?",
            (change(data), session_id, row),
        )
    connection.close()
    return {row: data for row, data in rows if isinstance(data, bytes)}


def restored(path: Path, place: str, was: dict[Any, bytes], session_id: str) -> None:
    for data in was.values():
        changed(path, place, lambda _, data=data: data, session_id)  # type: ignore[misc]


async def paused(run: Run, tmp_path: Path) -> tuple[Running, str, Path]:
    """Return a session that waits for an answer, and for which a message waits."""
    running = await run("sqlite", settings={"journal": {"url": sqlite(tmp_path), "window_ms": 0}})
    session = await running.eve().create("script: approve")
    async with Live(running, session.session_id) as live:
        await live.until(lambda live: any(b"session.waiting" in line for line in live.lines))
    url = f"/as/eve/to/{BACKEND}/eve/v1/session/{session.session_id}"
    more = {"message": "and then?", "turnPolicy": "queue"}
    status, body = await ask(running, "POST", url, json=more)
    assert status == 202, body
    return running, session.session_id, tmp_path / "journal.db"


def stranded() -> float:
    value = REGISTRY.get_sample_value("dragoman_sessions_stranded_total")
    assert value is not None
    return value


@pytest.mark.parametrize("what", UNREADABLE)
async def test_a_session_whose_state_cannot_be_read_is_shown_and_takes_nothing(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    running, name, path = await paused(run, tmp_path)
    before = await running.lines(name)
    herm = f"/as/herm/to/{BACKEND}/v1/sessions/{name}"
    engine = f"/as/engine/to/{BACKEND}"
    shown = [await ask(running, "GET", f"{herm}/events"), await ask(running, "GET", herm)]
    await running.stop()
    place, change, says = UNREADABLE[what]
    was = changed(path, place, change, name)
    count = stranded()
    with caplog.at_level(logging.WARNING):
        await running.start()
        await until(lambda: stranded() > count)
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert told.startswith(f"session `{name}` can be read only: ")
    assert says in told
    # All that was said is there, in each dialect.
    assert await running.lines(name) == before
    assert [await ask(running, "GET", f"{herm}/events"), await ask(running, "GET", herm)] == shown
    assert (await ask(running, "GET", f"/api/v1/sessions/{name}"))[0] == 200
    # Nothing is taken, in the words of each.
    answers = [
        await ask(running, "POST", f"/as/eve/to/{BACKEND}/eve/v1/session/{name}", json=MESSAGE),
        await ask(running, "POST", f"{herm}/events", json=HERM_MESSAGE),
        await ask(running, "POST", f"{engine}/execute", json={"task_id": name, "message": "more"}),
    ]
    for status, body in answers:
        assert status == 503
        assert JournalCorrupt.SHOWN in json.dumps(body)
    # The others go on.
    other = await running.eve().create("hello")
    assert (await other.read_turn()).text
    assert len(running.requests("execute")) == 2
    await running.stop()
    # Nothing was written: the release that can read it goes on where it was.
    assert changed(path, place, lambda data: data, name) == {
        row: change(data) for row, data in was.items()
    }
    restored(path, place, was, name)
    await running.start()
    session = await running.live(name)
    (asked,) = session.open_interactions()
    url = f"/api/v1/sessions/{name}/interactions/{asked.request_id}"
    assert (await ask(running, "POST", url, json={"decision": "allow"}))[0] == 202
    await until(lambda: len(running.requests("execute")) == 3)
    await until(lambda: not session.state.busy and not session.state.inputs)
    lines = await running.lines(name)
    assert lines[: len(before)] == before
    assert [r["message"] for r in running.requests("execute")][2] == "and then?"


MESSAGE = {"message": "more"}
HERM_MESSAGE = {"events": [{"type": "user.message", "content": [{"type": "text", "text": "more"}]}]}


async def test_a_session_that_can_be_read_only_leaves_memory_and_can_be_deleted(
    run: Run, tmp_path: Path
) -> None:
    running, name, path = await paused(run, tmp_path)
    await running.stop()
    changed(path, "legs.state", replaced(MARK, mark(LATER)), name)
    await running.start()
    session = await running.live(name)
    assert session.quiet
    assert session.webhook("hitl-1") is None
    queued = await ask(running, "DELETE", f"/api/v1/sessions/{name}/inputs/any")
    assert queued[0] == 503
    assert (await ask(running, "DELETE", f"/api/v1/sessions/{name}"))[0] == 503
    assert (await ask(running, "DELETE", f"/api/v1/sessions/{name}?local=1"))[0] == 200
    assert (await ask(running, "GET", f"/api/v1/sessions/{name}"))[0] == 404


async def test_a_log_of_a_later_release_is_refused_and_not_tried_for_ever(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, name, _ = await paused(run, tmp_path)
    await running.stop()
    with monkeypatch.context() as release:
        # A later release, whose events are as those of version 1.
        for module, kind in ((events, Event), (commands, Command)):
            release.setattr(kind, "state_version", kind.state_version + 1)
            release.setattr(kind, "upgrade", lambda _, state: state)
            release.setattr(module, "VERSION_MEMBER", version_member(kind))
        await running.start()
        before = await running.lines(name)
        session = await running.live(name)
        (asked,) = session.open_interactions()
        url = f"/api/v1/sessions/{name}/interactions/{asked.request_id}"
        assert (await ask(running, "POST", url, json={"decision": "allow"}))[0] == 202
        await until(lambda: len(running.requests("execute")) == 2)
        session = await running.live(name)
        await until(lambda: session.idle)
        lines = await running.lines(name)
        assert lines[: len(before)] == before
        await running.stop()
    says = "an event has version 2, and this Dragoman knows versions up to 1"
    with caplog.at_level(logging.WARNING):
        await running.start()
        status, body = await ask(running, "GET", f"/api/v1/sessions/{name}/events")
        assert status == 503
        assert says in body["error"]["message"]
        await asyncio.sleep(0.05)
    other = await running.eve().create("hello")
    assert (await other.read_turn()).text
    assert not [r for r in caplog.records if "not loaded again" in r.getMessage()]


async def test_a_session_shown_by_a_later_encoder_is_refused_in_that_dialect_only(
    run: Run, tmp_path: Path
) -> None:
    running, name, path = await paused(run, tmp_path)
    assert (await ask(running, "GET", f"/as/herm/to/{BACKEND}/v1/sessions/{name}"))[0] == 200
    await running.stop()
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE codecs SET version = 99 WHERE dialect = 'eve'")
    connection.close()
    await running.start()
    url = f"/as/eve/to/{BACKEND}/eve/v1/session/{name}/stream?follow=0"
    status, body = await ask(running, "GET", url)
    assert status == 409, body
    assert "version 99 of `eve`, and this Dragoman knows versions up to 1" in json.dumps(body)
    assert "run the release that wrote it, or a later one" in json.dumps(body)
    assert (await ask(running, "GET", f"/as/herm/to/{BACKEND}/v1/sessions/{name}"))[0] == 200
