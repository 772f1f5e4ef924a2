"""Journals of end-to-end tests: a file, and a disk that a crash leaves as a test wants it.

With `tests.on_postgres` loaded all of them are databases of one PostgreSQL server.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import apsw

from adapters.model import events as ev
from proxy.base.errors import JournalError
from proxy.fanout.hub import entries_of
from proxy.journal.base import Journal, Write
from proxy.journal.postgres import PostgresJournal
from proxy.journal.sqlite import SqliteJournal, TemporaryJournal
from tests.support.postgres import shared_server

__all__ = [
    "ON_POSTGRES",
    "CrashJournal",
    "Outliving",
    "UntoldJournal",
    "database_of",
    "journal_url",
    "on_disk",
    "release_databases",
    "sqlite",
    "stored_entries",
]

ON_POSTGRES = os.environ.get("TEST_JOURNAL") == "postgres"
"""Whether tests use PostgreSQL in the place of files: `tests.on_postgres` says so."""

_used: dict[str, str] = {}
"""The databases of the test that runs, by the URLs that they stand for."""

_free: list[str] = []


def _database(url: str) -> str:
    """The database that stands for a URL, an empty one the first time in a test."""
    if url not in _used:
        _used[url] = _free.pop() if _free else shared_server().new_database()
    return _used[url]


def release_databases() -> None:
    """Give back the databases of a test that is over, empty."""
    for database in _used.values():
        shared_server().empty(database)
        _free.append(database)
    _used.clear()


def journal_url(url: str) -> str:
    """The URL of the journal that tests use where a configuration says `url`: the same, or that of
    a database, which for `memory:` is another one each time."""
    if not ON_POSTGRES or url.startswith("postgresql:"):
        return url
    if url == "memory:":
        url = f"memory:{len(_used)}"
    return shared_server().url(_database(url))


def database_of(url: str) -> str:
    """The name of the database in the URL of a journal in PostgreSQL."""
    return url.rpartition("/")[2]


class OutlivingFile(TemporaryJournal):
    """A journal whose file outlives the application: it is there when it is opened again."""

    def __init__(self) -> None:
        super().__init__(window_ms=0)

    async def aclose(self) -> None:
        await SqliteJournal.aclose(self)


class OutlivingDatabase(PostgresJournal):
    """The same in a database."""

    def __init__(self) -> None:
        super().__init__(journal_url("memory:"), window_ms=0)


if TYPE_CHECKING:
    Outliving = OutlivingFile
else:
    Outliving = OutlivingDatabase if ON_POSTGRES else OutlivingFile


class CrashJournal(Outliving):
    """A journal that outlives the application, and stops storing where a test wants it to.

    `crash_at(k)` lets the next k writes through and loses all that follow. Without `confirmed` the
    k-th is stored, but nobody hears of it any more, as when power fails between the disk and us.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.crashed = asyncio.Event()
        self._left: int | None = None
        self._confirmed = True

    def crash_at(self, writes: int, *, confirmed: bool) -> None:
        """Arm the crash."""
        self._left = writes
        self._confirmed = confirmed

    def repaired(self) -> None:
        """Store everything again."""
        self._left = None
        self.crashed.clear()

    def submit(self, write: Write) -> None:
        if self._left == 0:
            self.crashed.set()
            return
        self.writes += 1
        if self._left is not None:
            self._left -= 1
            if self._left == 0 and not self._confirmed:
                write.done = None
                super().submit(write)
                self.crashed.set()
                return
        super().submit(write)


class UntoldJournal(Outliving):
    """A journal that stores at once and says so only when a test lets it: others can read what its
    writer does not know to be stored yet."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()
        self.told.set()
        self.late: list[asyncio.Task[None]] = []

    def submit(self, write: Write) -> None:
        done, told = write.done, self.told
        if done is not None and not told.is_set():
            later = functools.partial(self._tell, told, done)
            write.done = lambda error: self.late.append(asyncio.create_task(later(error)))
        super().submit(write)

    @staticmethod
    async def _tell(
        told: asyncio.Event,
        done: Callable[[JournalError | None], object],
        error: JournalError | None,
    ) -> None:
        await told.wait()
        done(error)


def sqlite(folder: Path) -> str:
    """The URL of a journal in a folder."""
    return journal_url(f"sqlite:///{folder / 'journal.db'}")


def on_disk(folder: Path) -> bytes:
    """All that is stored in the journal in a folder, the compressed too."""
    if ON_POSTGRES:
        return b"".join(map(_unpacked, _stored_values(database_of(sqlite(folder)))))
    files = [file.read_bytes() for file in folder.iterdir()]
    with apsw.Connection(str(folder / "journal.db")) as connection:
        rows = cast(
            "list[tuple[bytes]]", connection.execute("SELECT data FROM snapshots").fetchall()
        )
    return b"".join([*files, *(_unpacked(data) for (data,) in rows)])


def _stored_values(database: str) -> Iterator[bytes]:
    """Every value of every table of a journal in PostgreSQL."""
    tables = "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'dragoman'"
    for table in shared_server().query(database, tables):
        for row in shared_server().query(database, f"SELECT to_json(t) FROM dragoman.{table} AS t"):
            for value in json.loads(row).values():
                if isinstance(value, str) and value.startswith("\\x"):
                    yield bytes.fromhex(value[2:])
                else:
                    yield str(value).encode()


def _unpacked(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return data


async def stored_entries(journal: Journal, session_id: str) -> list[ev.Entry]:
    """The canonical log of a session as it is stored."""
    row = await journal.session(session_id)
    return [
        entry
        async for chunk in journal.scan(row.key)
        for entry in entries_of(chunk.body, session_id)
    ]
