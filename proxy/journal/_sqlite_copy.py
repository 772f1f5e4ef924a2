"""A journal in an SQLite file as the source and as the target of a copy."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw

from proxy.base.errors import BackupRefused, JournalCorrupt, JournalUnavailable
from proxy.journal._backup import (
    LEFT_SUFFIXES,
    OWN_SUFFIXES,
    part_beside,
    synced,
    unwritten,
)
from proxy.journal._changes import INSERT_EVENT, INSERT_INDEX, INSERT_POSITION, insert_rows
from proxy.journal._database import WriterLock, connect_reader, migrate, translate
from proxy.journal._tables import EVENTS, POSITIONS, SESSIONS, JournalTable, Row, in_batches
from proxy.journal.sqlite import SqliteJournal

CACHE_KIB = 65_536
"""What SQLite may keep of a target in memory: its indexes of names are written in no order."""

_ROWS = {
    # By the index, so in the order of each session; a row that it names and that is gone is NULL.
    "events": (
        "SELECT i.session, i.first, e.count, e.leg, e.position, e.body"
        " FROM event_index i LEFT JOIN events e ON e.row = i.row ORDER BY i.session, i.first"
    ),
    "sessions": (
        "SELECT key, id, owner, route, dialect, created_at, secret, title, state, archived_at,"
        " updated_at, outcome, pruned, erased_at, bytes, max(pruned, coalesce(("
        "  SELECT i.first + e.count - 1 FROM event_index i JOIN events e ON e.row = i.row"
        "  WHERE i.session = key ORDER BY i.first DESC LIMIT 1), 0))"
        " FROM sessions ORDER BY key"
    ),
}
"""How rows are read where it is more than the columns of a table."""

_INSERT_SESSION = (
    "INSERT INTO sessions (key, id, owner, route, dialect, created_at, secret, title, state,"
    " archived_at, updated_at, outcome, pruned, erased_at, bytes, counted)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _query(table: JournalTable) -> str:
    if table.name in _ROWS:
        return _ROWS[table.name]
    order = ", ".join(table.order or table.columns[:1])
    return f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {order}"


async def _batches(
    connection: apsw.Connection, path: Path, table: JournalTable
) -> AsyncIterator[list[Row]]:
    try:
        rows: Iterator[Row] = connection.execute(_query(table))
        async for batch in in_batches(rows):
            if table is EVENTS and any(row[2] is None for row in batch):
                raise JournalCorrupt(f"the journal `{path}` lacks rows of events: restore a backup")
            yield batch
    except apsw.Error as error:
        raise translate(error, path) from error


class SqliteSource:
    """A file that is read, by the only process that may write it."""

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        self._path = path
        self._connection = connection

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, path: Path) -> AsyncIterator[SqliteSource]:
        """Finish what a crash has left in the journal, then keep others from writing it.

        Raises:
            JournalUnavailable: there is no journal, or a process writes it.
            JournalCorrupt: it is damaged, no journal, or from another version.
        """
        # What does not exist must not be made.
        connect_reader(path).close()
        journal = SqliteJournal(path)
        await journal.open()
        await journal.aclose()
        lock = WriterLock(path)
        lock.acquire()
        try:
            with contextlib.closing(connect_reader(path)) as connection:
                try:
                    connection.execute("BEGIN")
                    await asyncio.to_thread(_check_settled, connection, path)
                except apsw.Error as error:
                    raise translate(error, path) from error
                yield cls(path, connection)
        finally:
            lock.release()

    def batches(self, table: JournalTable) -> AsyncIterator[list[Row]]:
        """Yield the rows of a table."""
        return _batches(self._connection, self._path, table)

    async def size(self) -> int:
        """Return about how many bytes the counted tables have."""
        return int(self._connection.execute("SELECT coalesce(sum(bytes), 0) FROM sessions").get)

    async def check_held(self) -> None:
        """Do nothing: the lock is held until this process ends."""


def _check_settled(connection: apsw.Connection, path: Path) -> None:
    """Check that nothing is under way, and that the index has all events.

    Raises:
        JournalUnavailable: something is: the disk may be full.
        JournalCorrupt: it is damaged.
    """
    erasing = connection.execute("SELECT EXISTS (SELECT 1 FROM sessions WHERE erasing = 1)").get
    behind = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM events"
        " WHERE row > (SELECT value FROM meta WHERE name = 'indexed'))"
    ).get
    if erasing or behind:
        raise JournalUnavailable(
            f"the journal `{path}` has work left that could not be finished: see whether its disk "
            "is full, start the server once and stop it, then try again"
        )
    events, indexed = connection.execute(
        "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM event_index)"
    ).fetchall()[0]
    if events != indexed:
        raise JournalCorrupt(
            f"the journal `{path}` is damaged: {events} rows of events, {indexed} in their index; "
            "restore a backup"
        )


class SqliteTarget:
    """A new file: a part beside it is written, which gets its name at the end."""

    def __init__(self, path: Path, part: Path, connection: apsw.Connection) -> None:
        self._path = path
        self.part = part
        self._connection = connection
        self._row = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, path: Path) -> AsyncIterator[SqliteTarget]:
        """Make the part; it goes unless `keep` has given it its name.

        Raises:
            BackupRefused: nothing may be, or can be, written there.
        """
        _check_new(path)
        try:
            part = part_beside(path)
        except OSError as error:
            raise unwritten(path, error, "copy") from error
        target = cls(path, part, apsw.Connection(str(part)))
        try:
            with target._own_errors():
                connection = target._connection
                connection.pragma("auto_vacuum", 2)
                # It is whole at the end or not at all: nothing is ever rolled back.
                connection.pragma("journal_mode", "OFF")
                connection.pragma("synchronous", "OFF")
                connection.pragma("cache_size", -CACHE_KIB)
                migrate(connection)
            yield target
        finally:
            target._connection.close(True)
            for suffix in ("", *OWN_SUFFIXES):
                part.with_name(part.name + suffix).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritten(self._path, error, "copy") from error
        except (apsw.FullError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.TooBigError) as error:
            number = errno.ENOSPC if isinstance(error, apsw.FullError) else errno.EIO
            raise unwritten(self._path, OSError(number, str(error)), "copy") from error
        except apsw.Error as error:
            raise translate(error, self._path) from error

    def batches(self, table: JournalTable) -> AsyncIterator[list[Row]]:
        """Yield the rows of a table as they are stored."""
        return _batches(self._connection, self._path, table)

    async def write(self, table: JournalTable, rows: list[Row]) -> None:
        """Store rows of a table."""
        connection = self._connection
        with self._own_errors():
            connection.execute("BEGIN")
            if table is EVENTS:
                begin = self._row + 1
                self._row += len(rows)
                numbers = range(begin, self._row + 1)
                events = [(number, *row) for number, row in zip(numbers, rows, strict=True)]
                insert_rows(connection, INSERT_EVENT, events)
                index = [(row[1], row[2], row[0]) for row in events]
                insert_rows(connection, INSERT_INDEX, index)
            elif table is SESSIONS:
                # All their events are there, and counted.
                insert_rows(connection, _INSERT_SESSION, [(*row[:-1], self._row) for row in rows])
            elif table is POSITIONS:
                positions = [(session, leg, self._row, at) for session, leg, at in rows]
                insert_rows(connection, INSERT_POSITION, positions)
            else:
                columns = ", ".join(table.columns)
                places = ", ".join("?" * len(table.columns))
                insert_rows(
                    connection, f"INSERT INTO {table.name} ({columns}) VALUES ({places})", rows
                )
            connection.execute("COMMIT")

    async def finish(self) -> None:
        """Make it a whole journal."""
        with self._own_errors():
            self._connection.execute(
                "UPDATE meta SET value = ? WHERE name = 'indexed'", (self._row,)
            )
            # What is compared is what the file has, not what is in memory.
            self._connection.close()
            await asyncio.to_thread(synced, self.part)
            self._connection = await asyncio.to_thread(_checked, self.part)

    async def keep(self) -> None:
        """Give it its name."""
        self._connection.close()
        with self._own_errors():
            _check_new(self._path)
            self.part.replace(self._path)
            await asyncio.to_thread(synced, self._path.parent)


def _check_new(path: Path) -> None:
    """Check that a file can be made.

    Raises:
        BackupRefused: something is there, or would be read into it.
    """
    for suffix in ("", *LEFT_SUFFIXES):
        file = path.with_name(path.name + suffix)
        if file.exists():
            raise BackupRefused(f"`{file}` exists, and a copy replaces nothing: name a new file")


def _checked(part: Path) -> apsw.Connection:
    """Open a file that was written, and look at all of it.

    Raises:
        JournalCorrupt: it is damaged.
    """
    connection = connect_reader(part)
    try:
        found = connection.execute("PRAGMA quick_check(1)").get
        if found != "ok":
            raise JournalCorrupt(
                f"the disk of the copy gave back something else than was written: {found}; nothing "
                "was kept: look at that disk (`dmesg`), or name a file on another"
            )
        _check_settled(connection, part)
    except BaseException:
        connection.close(True)
        raise
    return connection
