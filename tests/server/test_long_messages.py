"""A message of a megabyte, from each frontend to each backend."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from proxy.scripted import BACKENDS, ScriptedOptions
from tests.support.dragoman import needed_lines
from tests.support.serving import served
from tests.support.waiting import SOON_S
from tests.support.watched import Watched, watched


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
    async with asyncio.timeout(SOON_S), dragoman.http.get(url) as response:
        async for line in response.content:
            if b'"turn.ended"' in line:
                break
    return await dragoman.get(events)


@pytest.mark.parametrize("dialect", sorted(BACKENDS))
@pytest.mark.parametrize("face", ["engine", "eve"])
async def test_a_message_of_a_megabyte_is_taken_and_sent(
    tmp_path: Path, dialect: str, face: str
) -> None:
    # Each of its characters is escaped, wherever it is written.
    text = "script: text " + '"' * 510_000
    backend = BACKENDS[dialect](ScriptedOptions(pace=0.0))
    needed = needed_lines(dialect)
    async with served(backend) as url:
        table = f'[[backends]]\nname = "lab"\ndialect = "{dialect}"\nurl = "{url}"\n{needed}'
        async with watched(tmp_path, table) as dragoman:
            log = await said_once(dragoman, face, text, "t")
    events = [json.loads(line) for line in log.splitlines()]
    said = [event for event in events if event["type"] == "message.received"]
    assert [event["content"][0]["text"] for event in said] == [text]
    assert "error.reported" not in [event["type"] for event in events]
