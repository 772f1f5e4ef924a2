"""A backend slips one huge frame into an otherwise good stream.

What it says is in the log, or the log says that it was too much; the rest of the stream is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from adapters.limits import FRAME_VALUES
from proxy.scripted import BACKENDS, Options
from proxy.scripted.faults import Faults, Garbage
from tests.support.serving import served
from tests.support.waiting import SOON_S
from tests.support.watched import Watched, watched

STREAM = {"engine": "execute", "herm": "stream", "eve": "stream"}


@contextlib.asynccontextmanager
async def slipped(folder: Path, dialect: str, data: bytes, place: int) -> AsyncIterator[Watched]:
    """A Dragoman before a backend whose stream has these bytes in it."""
    faults = Faults({(STREAM[dialect], 1): Garbage(place, data)})
    backend = BACKENDS[dialect](Options(pace=0.0, faults=faults))
    create = 'create = { agent = "agent_K4" }' if dialect == "herm" else ""
    async with served(backend) as url:
        table = f'[[backends]]\nname = "lab"\ndialect = "{dialect}"\nurl = "{url}"\n{create}\n'
        async with watched(folder, table) as dragoman:
            yield dragoman


async def conversation(dragoman: Watched) -> list[dict[str, Any]]:
    """Talk once, while somebody reads; return the events of its log."""
    base = f"{dragoman.url}/as/eve/to/lab/eve/v1/session"
    async with dragoman.http.post(base, json={"message": "script: text"}) as response:
        session = (await response.json())["sessionId"]
    async with asyncio.timeout(SOON_S), dragoman.http.get(f"{base}/{session}/stream") as response:
        async for line in response.content:
            if line.startswith(b'{"type":"session.waiting"'):
                break
    body = await dragoman.get(f"/api/v1/sessions/{session}/events")
    return [json.loads(line) for line in body.splitlines()]


def eve(kind: str, **data: object) -> bytes:
    """A line of an eve's stream."""
    return b"%b\n" % json.dumps({"type": kind, "data": data}).encode()


async def test_a_long_text_with_many_commas_is_taken(tmp_path: Path) -> None:
    text = "1,2\n" * (200 * 1024)
    data = eve("message.completed", message=text, finishReason="stop")
    async with slipped(tmp_path, "eve", data, 5) as dragoman:
        events = await conversation(dragoman)
    blocks = [event["text"] for event in events if event["type"] == "text.completed"]
    assert text in blocks
    assert not [event for event in events if event["type"] == "error.reported"]


REFUSED = {
    "too long": (
        eve("message.appended", messageDelta="a" * (40 * 2**20)),
        "is longer than the limit of",
    ),
    "a bomb": (eve("message.appended", bomb=[[]] * FRAME_VALUES), " values "),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_frame_with_too_much_in_it_is_told_of_and_skipped(
    tmp_path: Path, what: str
) -> None:
    data, why = REFUSED[what]
    async with slipped(tmp_path, "eve", data, 5) as dragoman:
        events = await conversation(dragoman)
    (told,) = [event["message"] for event in events if event["type"] == "error.reported"]
    assert why in told
    assert told.endswith("and was skipped")
    # The rest of the stream is used.
    assert [event["outcome"] for event in events if event["type"] == "turn.ended"] == ["completed"]
