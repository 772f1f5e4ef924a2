"""Readers of the control API that take nothing, many at once: what is prepared for them is
bounded, and everybody else has their turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from adapters.model import events as ev
from adapters.model.events import MAIN, Entry
from proxy.archives import packing
from proxy.base.rows import Chunk
from proxy.control import api, control
from tests.support.proxied import Proxied, proxied
from tests.support.waiting import SOON_S, until
from tests.test_turns import Rounds

API = "/api/v1"
READERS = 20
WRITES = 16
"""Of half a MiB together, some pages of a log."""


@pytest.fixture
async def dragoman() -> AsyncIterator[Proxied]:
    async with proxied() as running:
        yield running


async def long_session(dragoman: Proxied) -> str:
    """Return a session at rest with a long log."""
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    record = (await dragoman.session(session_id))._log
    for number in range(WRITES):
        title = f"{number} " + "long " * 32
        told = [ev.SessionUpdated(thread_id=MAIN, title=title) for _ in range(128)]
        await record.until_stored(record.emit(told))
    return session_id


@contextmanager
def asking(dragoman: Proxied, path: str, **headers: str) -> Iterator[list[asyncio.Future[Any]]]:
    """Let many read a path at once, as tasks."""

    async def ask() -> int:
        async with dragoman.http.get(f"{dragoman.url}{API}{path}", headers=headers) as response:
            return len(await response.read())

    asked: list[asyncio.Future[Any]] = [
        asyncio.get_running_loop().create_task(ask()) for _ in range(READERS)
    ]
    try:
        yield asked
    finally:
        for task in asked:
            task.cancel()


PATHS = [
    ("/sessions/{}/events", ""),
    ("/sessions/{}/events?follow=1", ""),
    ("/sessions/{}/events", "text/event-stream"),
    ("/sessions/{}/archive", ""),
]


@pytest.mark.parametrize(("path", "accept"), PATHS)
async def test_for_a_reader_that_takes_nothing_one_page_is_read(
    dragoman: Proxied, monkeypatch: pytest.MonkeyPatch, path: str, accept: str
) -> None:
    session_id = await long_session(dragoman)
    held: list[int] = []
    journal, stalled = dragoman.sessions.journal, 0
    read = journal.read

    async def counted(session: int, **options: Any) -> list[Chunk]:
        chunks = await read(session, **options)
        held.append(sum(len(chunk.body) for chunk in chunks))
        return chunks

    async def full(self: web.StreamResponse, data: bytes) -> None:
        nonlocal stalled
        if b'"entries"' in data[:65536] and b"dragoman_archive" in data[:64]:
            # The head comes before anything is read for the reader.
            return
        stalled += 1
        await asyncio.Event().wait()

    async def packed(*_: Any) -> Any:
        return ready

    if "archive" in path:
        # That it is looked through before is not in question here.
        ready = await packing.pack(journal, session_id)
        monkeypatch.setattr(control, "pack", packed)
    monkeypatch.setattr(journal, "read", counted)
    monkeypatch.setattr(web.StreamResponse, "write", full)
    with asking(dragoman, path.format(session_id), Accept=accept):
        await until(lambda: stalled == READERS)
    row = await journal.session(session_id)
    assert len(held) >= READERS
    assert max(held) <= 2 * 128 * 1024 < row.bytes


@pytest.mark.parametrize(("path", "accept"), PATHS[:3])
async def test_in_one_round_a_few_readers_are_given_their_next_piece(
    dragoman: Proxied, monkeypatch: pytest.MonkeyPatch, path: str, accept: str
) -> None:
    session_id = await long_session(dragoman)
    rounds, made = Rounds(), Counter[int]()
    line = api.LineStream.line

    def counted(self: Any, entry: Entry) -> bytes:
        made[rounds.number] += 1
        return line(self, entry)

    monkeypatch.setattr(api.LineStream, "line", counted)
    last = (await dragoman.session(session_id)).last_seq
    with asking(dragoman, path.format(session_id), Accept=accept):
        await until(lambda: made.total() == READERS * last, 3 * SOON_S)
    rounds.stop()
    assert max(made.values()) <= 4 * 64


async def test_a_few_archives_are_begun_at_a_time_and_all_are_given(
    dragoman: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = await long_session(dragoman)
    pack, at_work, most = packing.pack, 0, 0

    async def counted(*given: Any) -> Any:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        try:
            return await pack(*given)
        finally:
            at_work -= 1

    monkeypatch.setattr(control, "pack", counted)
    with asking(dragoman, f"/sessions/{session_id}/archive") as asked:
        sizes = set(await asyncio.wait_for(asyncio.gather(*asked), 3 * SOON_S))
    assert most <= 2
    assert len(sizes) == 1


async def test_a_few_readers_of_interactions_look_into_sessions_at_a_time(
    dragoman: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await dragoman.say("script: approve") for _ in range(3)]
    for session_id in made:
        await dragoman.asked(session_id)
    rounds, looked = Rounds(), Counter[int]()
    get = dragoman.sessions.cache.get

    async def counted(name: str, **options: Any) -> Any:
        looked[rounds.number] += 1
        return await get(name, **options)

    monkeypatch.setattr(dragoman.sessions.cache, "get", counted)
    with asking(dragoman, "/interactions") as asked:
        await asyncio.wait_for(asyncio.gather(*asked), SOON_S)
    rounds.stop()
    assert looked.total() == READERS * len(made)
    assert max(looked.values()) <= 4
