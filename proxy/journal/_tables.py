"""The tables of a journal in one form for both databases, in which they are copied and compared.

A row is a tuple of its table's columns, the session's key first where it is a session's. What one
database has for itself is not in it: numbers of rows, indexes, sums of sums. Rows come in batches
of about `BATCH_BYTES`, whatever the size of the journal.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple, Protocol

BATCH_BYTES = 4 * 1024 * 1024
"""About how much of a journal is in memory at once."""

Row = tuple[Any, ...]


class JournalTable(NamedTuple):
    """A table: `columns` of a row, and of these the `texts` that may hold any character. `order`
    are the integers that order its rows; a table without has a few small rows for each session.
    One that is not `of_sessions` is a whole."""

    name: str
    columns: tuple[str, ...]
    texts: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    of_sessions: bool = True

    @property
    def is_counted(self) -> bool:
        """Say whether its rows are what takes room."""
        return self.name in ("events", "frames", "blobs")


EVENTS = JournalTable(
    "events",
    ("session", "first", "count", "leg", "position", "body"),
    order=("session", "first"),
)
SESSIONS = JournalTable(
    "sessions",
    (
        *("key", "id", "owner", "route", "dialect", "created_at", "secret", "title", "state"),
        *("archived_at", "updated_at", "outcome", "pruned", "erased_at", "bytes", "last_seq"),
    ),
    texts=("id", "owner", "title"),
    order=("key",),
)
LEGS = JournalTable(
    "legs",
    ("session", "number", "backend", "native_id", "state", "resumes"),
    texts=("native_id",),
    order=("session", "number"),
)
POSITIONS = JournalTable("positions", ("session", "leg", "position"), order=("session", "leg"))
COMMANDS = JournalTable(
    "commands",
    ("session", "number", "command_id", "status", "body", "at"),
    texts=("command_id",),
    order=("session", "number"),
)
FRAMES = JournalTable(
    "frames",
    ("session", "leg", "last", "at", "data"),
    order=("session", "leg", "last", "row"),
)
TABLES = (
    EVENTS,
    # After the events, whose rows they name.
    SESSIONS,
    POSITIONS,
    LEGS,
    COMMANDS,
    JournalTable("aliases", ("session", "owner", "route", "kind", "name"), texts=("owner", "name")),
    JournalTable("codecs", ("session", "dialect", "version", "settings")),
    FRAMES,
    JournalTable("session_blobs", ("session", "sha256")),
    JournalTable("blobs", ("sha256", "size", "data"), order=("sha256",), of_sessions=False),
    JournalTable("backends", ("name", "dialect", "url"), of_sessions=False),
    JournalTable("shares", ("route", "number", "backend", "weight"), of_sessions=False),
)
"""All that is copied, in this order. Snapshots are not: they are a cache, and are made again."""


class CopySource(Protocol):
    """A journal that is read, and that nobody writes meanwhile."""

    def batches(self, table: JournalTable) -> AsyncIterator[list[Row]]:
        """Yield the rows of a table, those of a session together and in the order of its key."""

    async def size(self) -> int:
        """Return about how many bytes the counted tables have, for a person."""

    async def check_held(self) -> None:
        """Check that nobody has written it since it was opened.

        Raises:
            JournalUnavailable: somebody may have.
        """


class CopyTarget(Protocol):
    """A journal that is written, and that nobody sees before `keep`."""

    def batches(self, table: JournalTable) -> AsyncIterator[list[Row]]:
        """Yield the rows of a table as they are stored, as a source does."""

    async def write(self, table: JournalTable, rows: list[Row]) -> None:
        """Store rows of a table."""

    async def finish(self) -> None:
        """Make it a whole journal, once all rows are stored."""

    async def keep(self) -> None:
        """Make it durable, and let everybody see it."""


def size_of(row: Row) -> int:
    """Return about how many bytes a row takes."""
    return 64 + sum(len(value) for value in row if isinstance(value, (bytes, str)))


async def in_batches(rows: Iterable[Row]) -> AsyncIterator[list[Row]]:
    """Yield rows in batches; between two of them others have their turn."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += size_of(row)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
            await asyncio.sleep(0)
    if batch:
        yield batch


def _written(row: Row) -> bytes:
    """Return a row as bytes that no other row has."""
    parts: list[bytes] = []
    for value in row:
        data = value.encode() if isinstance(value, str) else value
        if isinstance(data, bytes):
            parts += (b"%c%d:" % (type(value).__name__.encode()[0], len(data)), data)
        else:
            parts.append(b"%r;" % (data,))
    return b"".join(parts)


async def digests(
    table: JournalTable, batches: AsyncIterator[list[Row]]
) -> AsyncIterator[tuple[int, int, bytes]]:
    """Yield the key of each session that has rows in a table, how many, and a digest of them; of a
    table that is a whole the key is 0."""
    key, count, digest = 0, 0, hashlib.sha256()
    few: list[Row] = []

    def ended() -> tuple[int, int, bytes]:
        # Databases differ in how they order texts.
        for row in sorted(few):
            digest.update(_written(row))
        return key, count, digest.digest()

    async for batch in batches:
        for row in batch:
            session = row[0] if table.of_sessions else 0
            if session != key:
                if count:
                    yield ended()
                key, count, digest, few = session, 0, hashlib.sha256(), []
            count += 1
            if table.order:
                digest.update(_written(row))
            else:
                few.append(row)
    if count:
        yield ended()
