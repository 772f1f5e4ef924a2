"""Journals to test with, and the few values that every journal test needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.base.errors import JournalError
from proxy.base.rows import Chunk, SessionRow
from proxy.journal.base import Journal, Write
from proxy.journal.postgres import PostgresJournal
from proxy.journal.sqlite import SqliteJournal
from tests.support.postgres import PostgresServer, shared_server
from tests.support.waiting import SOON_S


def line(seq: int, text: str = "x") -> bytes:
    """Return an entry as a line; the journal looks at its end only."""
    return b'{"seq":%d,"text":"%s"}\n' % (seq, text.encode())


def lines(first: int, count: int, text: str = "x") -> bytes:
    """Return `count` entries, the first with seq `first`."""
    return b"".join(line(seq, text) for seq in range(first, first + count))


def joined(chunks: list[Chunk]) -> list[bytes]:
    """Return the entries of chunks, having checked that the chunks are consecutive."""
    entries: list[bytes] = []
    following = chunks[0].first if chunks else 1
    for chunk in chunks:
        assert chunk.first == following
        found = chunk.body.splitlines(keepends=True)
        assert len(found) == chunk.count
        entries += found
        following += chunk.count
    return entries


async def create(
    journal: Journal, id: str = "s1", *, owner: str = "web", **more: Any
) -> SessionRow:
    """Make a session on route `research` with nothing special about it."""
    return await journal.create_session(
        id=id,
        owner=owner,
        route="research",
        dialect="eve",
        backend="lab",
        secret=b"secret-" + id.encode(),
        at=1000,
        body=line(1),
        **more,
    )


def begin(journal: Journal, write: Write) -> asyncio.Future[JournalError | None]:
    """Submit a write and return a future of what `done` is told."""
    future: asyncio.Future[JournalError | None] = asyncio.get_running_loop().create_future()
    write.done = future.set_result
    journal.submit(write)
    return future


async def store(journal: Journal, write: Write) -> JournalError | None:
    """Submit a write and return what `done` is told."""
    async with asyncio.timeout(SOON_S):
        return await begin(journal, write)


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds: for what the writer's thread does when nobody asks."""
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110 - a file has no event to wait for
            await asyncio.sleep(0.005)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """The PostgreSQL server of this process."""
    return shared_server()


@pytest.fixture(params=["late", "indexed", pytest.param("postgres", marks=pytest.mark.postgres)])
async def journal(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Journal]:
    """A journal whose index is written late, one whose index is written after every row, and one in
    PostgreSQL."""
    made: Journal
    if request.param == "late":
        made = SqliteJournal(path)
    elif request.param == "indexed":
        made = SqliteJournal(path, index_rows=1, window_ms=0)
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        made = PostgresJournal(server.url(server.new_database()))
    await made.open()
    yield made
    await made.aclose()
