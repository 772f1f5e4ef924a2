"""No look for garbage holds up who is served, and little garbage comes of serving."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from aiohttp import web

from adapters.errors import DragomanError
from proxy.garbage import FEW, MANY, Old
from proxy.session import Session
from tests.support.logs import BACKEND, keeping, opened, put, started
from tests.support.running import Run
from tests.support.watched import watched

CONFIGURATION = f"""
[[backends]]
name = "{BACKEND}"
dialect = "engine"
url = "http://127.0.0.1:9"
"""

SESSIONS = 1_000
CONNECTIONS = 2_000

AT_ONCE = 50
"""Connections that are open at the same time."""

LOOKED_AT = 15_000
"""Objects that a collection may look at which nobody asked for: it looks at each of them for a
microsecond, and may take what a turn may take."""

# Python runs it at its start, before anything of ours.
PROBE = """
import gc, os

looked_at = os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def hear(phase, info):
    if phase == "start":
        ages = range(info["generation"] + 1)
        count = sum(len(gc.get_objects(generation=age)) for age in ages)
        os.write(looked_at, b"%d\\n" % count)

gc.callbacks.append(hear)
"""


async def test_sessions_that_stay_and_connections_that_go_are_not_looked_through(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as journal:
        for begin in range(0, SESSIONS, 500):
            said = [started(), *opened(1)]
            ids = [f"s{number}" for number in range(begin, begin + 500)]
            await asyncio.gather(*(put(journal, name, said, state="running") for name in ids))
    looked_at = tmp_path / "looked_at"
    (tmp_path / "sitecustomize.py").write_text(PROBE.format(file=str(looked_at)))
    async with watched(tmp_path, CONFIGURATION) as dragoman:
        before = len(looked_at.read_text().splitlines())
        room = asyncio.Semaphore(AT_ONCE)

        async def visit(path: str) -> None:
            async with room:
                await dragoman.get(path)

        paths = [f"/api/v1/sessions/s{number}" for number in range(SESSIONS)]
        await asyncio.gather(*map(visit, paths + ["/healthz"] * CONNECTIONS))
        metrics = (await dragoman.get("/metrics")).decode()
    assert f"dragoman_sessions_in_memory {SESSIONS}.0" in metrics
    counts = [int(line) for line in looked_at.read_text().splitlines()[before:]]
    assert max(counts) <= LOOKED_AT


class Memory:
    """What a process takes, and how often its old objects are looked at."""

    def __init__(self) -> None:
        self.taken = 300_000
        self.garbage = 0
        self.looks = 0

    def collect(self) -> None:
        self.looks += 1
        self.taken -= self.garbage
        self.garbage = 0


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def look(memory: Memory) -> Callable[[], int]:
    old = Old(lambda: memory.taken, memory.collect)

    def look() -> int:
        before = memory.looks
        old.look()
        return memory.looks - before

    return look


def test_old_objects_are_looked_at_where_little_is_alive(
    memory: Memory, look: Callable[[], int]
) -> None:
    assert look() == 1
    memory.taken += FEW
    assert look() == 1
    memory.taken += 1
    assert look() == 0
    memory.taken -= 1
    assert look() == 1


def test_garbage_that_gathers_while_much_is_alive_is_found_before_it_takes_all_memory(
    memory: Memory, look: Callable[[], int]
) -> None:
    memory.taken += MANY // 4
    for _ in range(5):
        for _ in range(2):
            memory.taken += MANY // 4
            memory.garbage += MANY // 4
            assert look() == 0
        memory.taken += MANY // 4
        memory.garbage += MANY // 4
        assert look() == 1
        assert memory.garbage == 0


def test_what_is_no_garbage_is_looked_at_again_only_when_there_is_twice_as_much(
    memory: Memory, look: Callable[[], int]
) -> None:
    memory.taken += MANY
    assert look() == 1
    for _ in range(3):
        memory.taken += MANY // 4
        assert look() == 0
    memory.taken += MANY // 4
    assert look() == 1


@pytest.fixture
def garbage() -> Iterator[Callable[[], list[Any]]]:
    """What there is of garbage that reference counts did not free, since the fixture was made."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def found() -> list[Any]:
        gc.collect()
        return list(gc.garbage)

    try:
        yield found
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()
        gc.enable()


def ours(found: Any) -> bool:
    """Tell whether something is the server's; this process has the clients and the backend too."""
    if isinstance(found, FrameType):
        return "/proxy/" in found.f_code.co_filename and "scripted" not in found.f_code.co_filename
    if isinstance(found, web.Request):
        return found.path.startswith(("/as/", "/api/"))
    return isinstance(found, Session | DragomanError)


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("POST", "{eve}/eve/v1/session", {"json": {"message": "script: plain"}}, 202),
        ("POST", "{eve}/eve/v1/session/{id}", {"json": {"message": "script: plain"}}, 202),
        ("POST", "{eve}/eve/v1/session/{id}", {"json": {"nonsense": 1}}, 400),
        ("POST", "{eve}/eve/v1/session/{id}", {"data": b"{"}, 400),
        ("POST", "{eve}/eve/v1/session/nobody", {"json": {"message": "hello"}}, 409),
        ("POST", "{eve}/eve/v1/connections/a/callback/b", {"json": {}}, 404),
        ("GET", "{eve}/eve/v1/session/{id}/stream?follow=0", {}, 200),
        ("GET", "{eve}/eve/v1/session/nobody/stream", {}, 404),
        ("GET", "{base}/api/v1/sessions/{id}", {}, 200),
        ("GET", "{base}/api/v1/sessions/nobody", {}, 404),
        ("GET", "{base}/api/v1/sessions?state=%FF", {}, 400),
        ("DELETE", "{base}/api/v1/sessions/nobody", {}, 404),
    ],
)
async def test_a_request_leaves_memory_without_the_collector(
    run: Run,
    garbage: Callable[[], list[Any]],
    method: str,
    path: str,
    options: dict[str, Any],
    status: int,
) -> None:
    running = await run("sqlite")
    session = await running.eve().create("script: plain")
    await session.read_turn()
    garbage()
    gc.garbage.clear()
    base = running.base.partition("/as/")[0]
    url = path.format(eve=running.base, base=base, id=session.session_id)
    for _ in range(3):
        async with running.http.request(method, url, **options) as response:
            await response.read()
            assert response.status == status
    for _ in range(10):
        await asyncio.sleep(0)
    assert [found for found in garbage() if ours(found)] == []
