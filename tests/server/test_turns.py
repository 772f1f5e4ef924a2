"""Nobody waits for what one client asks: no turn of the event loop takes more than 20 ms of CPU.

Each test has a log, or as many sessions, as took many times that; what is judged is processor time,
so that a busy machine makes no difference.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from adapters.events import Entry
from proxy.scripted import BACKENDS, Options
from tests.support.logs import BACKEND, asked, block, keeping, opened, put, started
from tests.support.serving import served
from tests.support.watched import Watched, watched

CONFIGURATION = f"""
[[backends]]
name = "{BACKEND}"
dialect = "engine"
url = "http://127.0.0.1:9"
"""


def pieces(count: int) -> list[str]:
    """What a model says in so many deltas."""
    return [f"piece {number} of it, " for number in range(count)]


async def test_readers_of_a_long_log_hold_up_nobody(tmp_path: Path) -> None:
    said = [started(), *opened(1), *block(pieces(8_000))]
    async with keeping(tmp_path) as journal:
        await put(journal, "long", said)
    async with watched(tmp_path, CONFIGURATION) as dragoman:
        async with dragoman.calm():
            path = "/api/v1/sessions/long/events"
            bodies = await asyncio.gather(*(dragoman.get(path) for _ in range(10)))
        assert len(set(bodies)) == 1
        entries = [Entry.decode(line) for line in bodies[0].splitlines()]
        assert [entry.event for entry in entries] == said
        assert [entry.seq for entry in entries] == list(range(1, len(said) + 1))


async def test_the_end_of_a_block_of_many_pieces_is_read_calmly(tmp_path: Path) -> None:
    said = [started(), *opened(1), *block(pieces(25_000))]
    async with keeping(tmp_path) as journal:
        await put(journal, "long", said)
    async with watched(tmp_path, CONFIGURATION) as dragoman:
        before = dragoman.peak()
        async with dragoman.calm():
            path = f"/as/eve/to/{BACKEND}/eve/v1/session/long/stream?startIndex=-3&follow=0"
            body = await dragoman.get(path)
        grown = dragoman.peak() - before
    records = [json.loads(line) for line in body.splitlines() if line]
    types = [record["type"] for record in records]
    assert types == ["step.completed", "turn.completed", "session.waiting"]
    # The text has half a megabyte.
    assert grown < 100 * 1024 * 1024


async def test_many_open_interactions_are_listed_calmly(tmp_path: Path) -> None:
    count = 6_000
    said = [started(), *opened(1), *(asked(number) for number in range(count))]
    async with keeping(tmp_path) as journal:
        await put(journal, "asks", said, state="paused")
    async with watched(tmp_path, CONFIGURATION) as dragoman, dragoman.calm():
        listed = json.loads(await dragoman.get("/api/v1/interactions"))
        shown = json.loads(await dragoman.get("/api/v1/sessions/asks"))
    assert [one["request_id"] for one in listed["interactions"]] == [
        f"ask-{number}" for number in range(count)
    ]
    assert shown["open_interactions"] == listed["interactions"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/interactions", 200),
        ("GET", f"/as/engine/to/{BACKEND}/hitl/pending", 200),
        ("POST", f"/as/engine/to/{BACKEND}/hitl/respond", 404),
    ],
)
async def test_what_many_sessions_wait_for_is_looked_at_calmly(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    count = 1_500
    async with keeping(tmp_path) as journal:
        for number in range(count):
            said = [started(), *opened(1), asked(number)]
            await put(journal, f"s{number}", said, state="paused")
    answer = {"request_id": "nobody's", "answer": "yes"} if method == "POST" else None
    async with watched(tmp_path, CONFIGURATION) as dragoman, dragoman.calm():
        # When they are looked at for the second time, all are in memory.
        for _ in range(2):
            url = dragoman.url + path
            async with dragoman.http.request(method, url, json=answer) as response:
                assert response.status == status, await response.text()
                told = json.loads(await response.read())
    if method == "GET":
        assert len(told.get("interactions") or told["pending"]) == count


async def test_what_pruning_many_sessions_would_erase_is_told_calmly(tmp_path: Path) -> None:
    count = 5_000
    async with keeping(tmp_path) as journal:
        for begin in range(0, count, 500):
            await asyncio.gather(
                *(put(journal, f"s{n}", [started()]) for n in range(begin, begin + 500))
            )
    async with watched(tmp_path, CONFIGURATION) as dragoman, dragoman.calm():
        url = f"{dragoman.url}/api/v1/prune"
        wanted = {"older_than_seconds": 1, "dry_run": True}
        async with dragoman.http.post(url, json=wanted) as response:
            gone = await response.json()
    assert len(gone["sessions"]) == count


async def said_once(dragoman: Watched, face: str, text: str, task: str) -> bytes:
    """Say something in a new session; return its log when its turn is over."""
    base = f"{dragoman.url}/as/{face}/to/lab"
    if face == "eve":
        path, body = "/eve/v1/session", {"message": text}
    else:
        path, body = "/execute", {"task_id": task, "message": text}
    async with dragoman.http.post(base + path, json=body) as response:
        assert response.status == (202 if face == "eve" else 200)
        if face == "engine":
            assert b'"phase":"completed"' in await response.read()
    listed = json.loads(await dragoman.get("/api/v1/sessions"))["sessions"]
    newest = max(listed, key=lambda one: one["created_at"])["id"]
    events = f"/api/v1/sessions/{newest}/events"
    url = f"{dragoman.url}{events}?follow=1"
    async with asyncio.timeout(30), dragoman.http.get(url) as response:
        async for line in response.content:
            if b'"turn.ended"' in line:
                break
    return await dragoman.get(events)


@pytest.mark.parametrize("dialect", sorted(BACKENDS))
@pytest.mark.parametrize("face", ["engine", "eve"])
async def test_a_message_of_a_megabyte_is_taken_and_sent_calmly(
    tmp_path: Path, dialect: str, face: str
) -> None:
    # Each of its characters is escaped, wherever it is written.
    text = "script: text " + '"' * 510_000
    backend = BACKENDS[dialect](Options(pace=0.0))
    create = 'create = { agent = "agent_K4" }' if dialect == "herm" else ""
    async with served(backend) as url:
        table = f'[[backends]]\nname = "lab"\ndialect = "{dialect}"\nurl = "{url}"\n{create}\n'
        async with watched(tmp_path, table) as dragoman:
            over: list[int] = []
            # It takes half of the bound. Who shares the processor's memory adds to what CPU time
            # says of so many bytes, so the least of three counts.
            while not over or (min(over) and len(over) < 3):
                before = await dragoman.turns()
                log = await said_once(dragoman, face, text, f"t{len(over)}")
                over.append((await dragoman.turns()).over - before.over)
    assert not min(over)
    events = [json.loads(line) for line in log.splitlines()]
    said = [event for event in events if event["type"] == "message.received"]
    assert [event["content"][0]["text"] for event in said] == [text]
    # An eve says it twice in one record, which is more than is read: that is told.
    told = [event["type"] for event in events].count("error.reported")
    assert told == (1 if dialect == "eve" else 0)
