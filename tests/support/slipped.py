"""A Dragoman in a process of its own before a scripted backend whose stream has bytes of a test."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.faults import Faults, Garbage
from tests.faults.backends import found, lacking
from tests.pairs.backends import properties_of
from tests.support.dragoman import needed_lines
from tests.support.serving import served
from tests.support.waiting import SOON_S
from tests.support.watched import Watched, watched

__all__ = ["conversation", "slipped"]


@contextlib.asynccontextmanager
async def slipped(
    folder: Path, dialect: str, data: bytes, place: int, settings: str = ""
) -> AsyncIterator[Watched]:
    """A Dragoman before a backend whose stream has these bytes in it."""
    faulty = found(dialect)
    assert faulty is not None, lacking(dialect)
    # A Dragoman that starts asks first, which may be a request of the same route.
    number = 1 + properties_of(dialect).probed.count(faulty.stream)
    faults = Faults({(faulty.stream, number): Garbage(place, data)})
    backend = BACKENDS[dialect](ScriptedOptions(pace=0.0, faults=faults))
    async with served(backend) as url:
        needed = needed_lines(dialect)
        table = f'[[backends]]\nname = "lab"\ndialect = "{dialect}"\nurl = "{url}"\n{needed}'
        async with watched(folder, f"{table}{settings}\n") as dragoman:
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
