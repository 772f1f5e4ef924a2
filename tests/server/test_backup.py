"""A backup while a server writes many sessions: each is whole up to some event, and goes on."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

from adapters.model.events import Entry
from proxy.journal.sqlite import SqliteJournal
from tests.support.journals import sqlite, stored_entries
from tests.support.running import Run, Running
from tests.support.waiting import settled, until

WRITERS = 4
REPOSITORY = Path(__file__).parents[2]


async def backed_up(journal: str, target: Path) -> dict[str, Any]:
    """Run the command in a process of its own, as beside a server; return what it prints."""
    words = ("-m", "proxy", "backup", str(target), "--journal", journal, "--json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=PIPE, stderr=PIPE, cwd=REPOSITORY
    )
    said, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b""), errors
    found: dict[str, Any] = json.loads(said)
    return found


async def logs_of(path: Path) -> dict[str, list[bytes]]:
    """The logs of all sessions that a file has, by id."""
    journal = SqliteJournal(path, read_only=True)
    await journal.open()
    try:
        rows = await journal.sessions(limit=100_000)
        return {row.id: lines(await stored_entries(journal, row.id)) for row in rows}
    finally:
        await journal.aclose()


def lines(entries: list[Entry]) -> list[bytes]:
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    return [entry.encode() for entry in entries]


def more_than(started: list[str], count: int) -> bool:
    return len(started) > count


async def test_a_backup_of_a_busy_server_is_of_one_moment_and_can_be_served(
    run: Run, tmp_path: Path
) -> None:
    running = await run("sqlite")
    started: list[str] = []
    written: dict[Path, int] = {}
    over = asyncio.Event()

    async def talks() -> None:
        """Begin sessions and say something in each until the backups are made."""
        while not over.is_set():
            session = await running.eve().create("script: long 20")
            started.append(session.session_id)
            await settled(await running.live(session.session_id))
            # Some processor for the backups.
            await asyncio.sleep(0.1)

    async def backups() -> None:
        try:
            for number in range(2):
                # Each begins in the middle, and ends before the last session does.
                await until(functools.partial(more_than, started, 2 * WRITERS))
                target = tmp_path / f"copy-{number}.db"
                found = await backed_up(sqlite(tmp_path), target)
                assert found["path"] == str(target)
                written[target] = found["entries"]
                begun = len(started)
                await until(functools.partial(more_than, started, begun + WRITERS))
        finally:
            over.set()

    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(talks())
        group.create_task(backups())
    for name in started:
        await settled(await running.live(name))
    logs = {name: lines(await stored_entries(running.sessions.journal, name)) for name in started}

    for target, entries in written.items():
        copy = await logs_of(target)
        assert 2 * WRITERS <= len(copy) < len(logs)
        assert sum(map(len, copy.values())) == entries
        for name, log in copy.items():
            assert logs[name][: len(log)] == log

    await goes_on(running, *written)


async def goes_on(running: Running, _: Path, newer: Path) -> None:
    """Serve a copy, and say something in the sessions that were at work last."""
    copy = await logs_of(newer)
    await running.reconfigure(journal={"url": f"sqlite:///{newer}", "window_ms": 0})
    for name in list(copy)[: 2 * WRITERS]:
        session, live = running.eve().attach(name), await running.live(name)
        await settled(live)
        await session.send("hello again")
        await until(lambda live=live: len(live.state.turn_ids) >= 2)  # type: ignore[misc]
        await settled(live)
        now = lines(await stored_entries(running.sessions.journal, name))
        assert now[: len(copy[name])] == copy[name]
        assert any(b"You said: \xe2\x80\x9chello again" in line for line in now)
