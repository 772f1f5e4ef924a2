"""A journal in PostgreSQL as the source and as the target of a copy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import asyncpg

from proxy.base.errors import BackupRefused, JournalError, JournalUnavailable
from proxy.base.tasks import Tasks
from proxy.journal._tables import (
    BATCH_BYTES,
    EVENTS,
    POSITIONS,
    SESSIONS,
    TABLES,
    JournalTable,
    Row,
)
from proxy.journal.postgres._database import (
    DATABASE_ERRORS,
    Database,
    check_server,
    closed,
    lock_schema,
    migrate,
    plain,
    restored,
)
from proxy.journal.postgres._node import LEASE_SECONDS, RENEW_SECONDS, Node, bury
from proxy.journal.postgres.journal import PostgresJournal

PAGE_ROWS = 2048
"""Rows of a page, if they are small: larger ones make it shorter."""

_LAST = (
    "coalesce((SELECT first + count - 1 FROM dragoman.events WHERE session = key"
    " ORDER BY first DESC LIMIT 1), 0)"
)
_SESSIONS = f"""
    SELECT key, id, owner, route, dialect, created_at, secret, title, state, archived_at,
        greatest(updated_at, coalesce(newer.at, 0)) AS updated_at, outcome, pruned, erased_at,
        bytes + coalesce(newer.size, 0) AS bytes, greatest(pruned, {_LAST}) AS last_seq
    FROM dragoman.sessions LEFT JOIN LATERAL (
        SELECT max(at) AS at, sum(octet_length(body))::bigint AS size
        FROM dragoman.events WHERE session = key AND first > counted
    ) newer ON true
"""
"""Sessions, with the rows that are not counted yet in their sums."""

_POSITIONS = """
    SELECT l.session, number AS leg, coalesce(newer.position, p.position) AS position
    FROM dragoman.legs l
    LEFT JOIN dragoman.positions p ON p.session = l.session AND p.leg = number
    LEFT JOIN LATERAL (
        SELECT position FROM dragoman.events e WHERE e.session = l.session AND e.leg = number
            AND e.position IS NOT NULL AND e.first > coalesce(p.seq, 0)
        ORDER BY first DESC LIMIT 1
    ) newer ON true
    WHERE coalesce(newer.position, p.position) IS NOT NULL ORDER BY l.session, number
"""
"""Where each leg is, also where the newest row of events says so."""

_STORE_POSITIONS = (
    "INSERT INTO dragoman.positions (session, leg, seq, position)"
    " SELECT session, leg, counted, position"
    " FROM unnest($1::bigint[], $2::int[], $3::bytea[]) AS u (session, leg, position)"
    " JOIN dragoman.sessions ON key = session"
)


def _converter(
    table: JournalTable, convert: Callable[[str], str]
) -> Callable[[Sequence[Any]], Row]:
    """Return what gives a row with its texts as the other side writes them."""
    places = [table.columns.index(name) for name in table.texts]
    width = len(table.columns)

    def converted(row: Sequence[Any]) -> Row:
        values = list(row[:width])
        for place in places:
            if values[place] is not None:
                values[place] = convert(values[place])
        return tuple(values)

    return converted if places else lambda row: tuple(row[:width])


async def _batches(
    connection: asyncpg.Connection, database: Database, table: JournalTable
) -> AsyncIterator[list[Row]]:
    convert = _converter(table, restored)
    if table is POSITIONS:
        pages = _cursor(connection, _POSITIONS)
    else:
        pages = _pages(connection, table) if table.order else _few(connection, table)
    try:
        async for page in pages:
            yield list(map(convert, page))
    except DATABASE_ERRORS as error:
        raise database.translate(error) from error


async def _cursor(connection: asyncpg.Connection, query: str) -> AsyncIterator[list[Any]]:
    """Yield the rows of a query, which are small."""
    cursor = await connection.cursor(query)
    while rows := await cursor.fetch(PAGE_ROWS):
        yield rows


def _few(connection: asyncpg.Connection, table: JournalTable) -> AsyncIterator[list[Any]]:
    columns = ", ".join(table.columns)
    return _cursor(
        connection, f"SELECT {columns} FROM dragoman.{table.name} ORDER BY {table.columns[0]}"
    )


async def _pages(connection: asyncpg.Connection, table: JournalTable) -> AsyncIterator[list[Any]]:
    """Yield the rows of a table page by page, each after the last of the one before; PostgreSQL
    measures a page before it reads and sends what is in it."""
    order = list(table.order)
    columns = [*table.columns, *(name for name in order if name not in table.columns)]
    texts = table.name == "blobs"
    sorted_by = ", ".join(f'{name} COLLATE "C"' if texts else name for name in order)
    begin: list[Any] = ["" if texts else -1 for _ in order]
    places = ", ".join(f"${index}" for index in range(1, len(order) + 1))
    sizes = " + ".join(
        f"coalesce(octet_length({name}), 0)"
        for name in columns
        if name in ("body", "data", "position", "state", "secret") and table is not SESSIONS
    )
    rows = f"({_SESSIONS}) s" if table is SESSIONS else f"dragoman.{table.name}"
    query = (
        f"SELECT {', '.join(columns)} FROM (SELECT *,"
        f" sum({sizes or '0'}) OVER (ORDER BY {sorted_by} ROWS UNBOUNDED PRECEDING) AS so_far,"
        f" {sizes or '0'} AS row_size FROM (SELECT {', '.join(columns)} FROM {rows}"
        f" WHERE ({sorted_by}) > ({places}) ORDER BY {sorted_by} LIMIT {PAGE_ROWS}) page) sums"
        f" WHERE so_far - row_size < {BATCH_BYTES} ORDER BY {sorted_by}"
    )
    statement = await connection.prepare(query)
    while found := await statement.fetch(*begin):
        yield found
        begin = [found[-1][name] for name in order]


async def _connected(database: Database) -> asyncpg.Connection:
    connection = await database.connect(statement_seconds=None)
    try:
        await check_server(connection, database)
    except BaseException:
        await closed(connection)
        raise
    return connection


async def _unlimited(connection: asyncpg.Connection) -> None:
    """Let a transaction take as long as it needs."""
    for name in ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout"):
        await connection.execute(f"SET LOCAL {name} = 0")


class PostgresSource:
    """A database that is read as it is at one moment, by the only node that may write it."""

    def __init__(
        self,
        database: Database,
        node: Node,
        connection: asyncpg.Connection,
        lease: asyncpg.Connection,
    ) -> None:
        self._database = database
        self._node = node
        self._connection = connection
        self._lease = lease

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, url: str) -> AsyncIterator[PostgresSource]:
        """Finish what a crash has left in the journal, then keep others from writing it.

        Raises:
            JournalUnavailable: there is no journal, or a process writes it.
            JournalCorrupt: it is damaged, or from another version.
        """
        await _settle(url)
        database = Database(url, pooled=True)
        connection = lease = None
        try:
            lease = await _connected(database)
            node = Node(database)
            with _own_errors(database):
                await node.come(lease)
            try:
                connection = await _connected(database)
                with _own_errors(database):
                    await connection.transaction(isolation="repeatable_read", readonly=True).start()
                    await _unlimited(connection)
                    await _check_settled(connection, database)
                source = cls(database, node, connection, lease)
                tasks = Tasks("copy")
                tasks.start(source._renew(), name="renew the lease")
                try:
                    yield source
                finally:
                    await tasks.aclose()
            finally:
                with contextlib.suppress(*DATABASE_ERRORS):
                    await node.go(lease)
        finally:
            await closed(connection)
            await closed(lease)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            # `check_held` says at the end what came of it.
            with contextlib.suppress(JournalError, *DATABASE_ERRORS):
                await self._node.renew(self._lease)

    def batches(self, table: JournalTable) -> AsyncIterator[list[Row]]:
        """Yield the rows of a table."""
        return _batches(self._connection, self._database, table)

    async def size(self) -> int:
        """Return about how many bytes the counted tables have."""
        with _own_errors(self._database):
            return int(
                await self._connection.fetchval(
                    "SELECT coalesce(sum(bytes), 0)::bigint FROM dragoman.sessions"
                )
            )

    async def check_held(self) -> None:
        """Check that nobody has written it since it was opened.

        Raises:
            JournalUnavailable: somebody may have.
        """
        connection = None
        try:
            # By its own connection: the task that renews may be at it, or the server was away.
            connection = await _connected(self._database)
            with _own_errors(self._database):
                await self._node.renew(connection)
        except JournalError as error:
            raise JournalUnavailable(
                f"the journal `{self._database.shown}` may have been written meanwhile, and "
                f"nothing was copied: stop what uses it, then try again ({error.whole})"
            ) from error
        finally:
            await closed(connection)


@contextlib.contextmanager
def _own_errors(database: Database) -> Iterator[None]:
    try:
        yield
    except DATABASE_ERRORS as error:
        raise database.translate(error) from error


def _used(database: Database, name: str) -> str:
    return (
        f"another Dragoman, {name}, uses the journal `{database.shown}`: stop all that use it, or "
        f"name another; one that was killed is gone after {LEASE_SECONDS:.0f} s"
    )


async def _settle(url: str) -> None:
    """Open a journal as a server does, which finishes what a crash has left, and close it.

    Raises:
        JournalUnavailable: there is none, or nodes share it.
    """
    database = Database(url, pooled=True)
    # What does not exist must not be made.
    connection = await _connected(database)
    try:
        with _own_errors(database):
            await migrate(connection, database, read_only=True)
            # A single node is waited for below: it may have been killed.
            shared_by = await connection.fetchval(
                "SELECT name FROM dragoman.nodes WHERE url IS NOT NULL"
                " AND renewed_at > clock_timestamp() - $1 * interval '1 second' LIMIT 1",
                LEASE_SECONDS,
            )
        if shared_by is not None:
            raise JournalUnavailable(_used(database, shared_by))
    finally:
        await closed(connection)
    journal = PostgresJournal(url, pooled=True)
    await journal.open()
    await journal.aclose()


async def _check_settled(connection: asyncpg.Connection, database: Database) -> None:
    """Check that no deletion and no arrival is under way.

    Raises:
        JournalUnavailable: one is.
    """
    if await connection.fetchval(
        "SELECT EXISTS (SELECT FROM dragoman.sessions WHERE erasing)"
        " OR EXISTS (SELECT FROM dragoman.staged)"
    ):
        raise JournalUnavailable(
            f"the journal `{database.shown}` has work left that could not be finished: start the "
            "server once and stop it, then try again"
        )


class PostgresTarget:
    """A database without sessions: one transaction makes all that is in it."""

    def __init__(
        self,
        database: Database,
        connection: asyncpg.Connection,
        transaction: asyncpg.transaction.Transaction,
    ) -> None:
        self._database = database
        self.connection = connection
        self._transaction = transaction

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, url: str) -> AsyncIterator[PostgresTarget]:
        """Begin the transaction; all of it goes unless `keep` has ended it.

        Raises:
            BackupRefused: there are sessions, or a server uses it.
            JournalUnavailable: it cannot be used.
        """
        database = Database(url, pooled=True)
        connection = await _connected(database)
        try:
            with _own_errors(database):
                transaction = connection.transaction()
                await transaction.start()
                await _unlimited(connection)
                # No node comes before the end.
                await lock_schema(connection)
                await migrate(connection, database)
                await _check_empty(connection, database)
            yield cls(database, connection, transaction)
        finally:
            # What was not committed is gone with the connection.
            await closed(connection)

    def batches(self, table: JournalTable) -> AsyncIterator[list[Row]]:
        """Yield the rows of a table as they are stored."""
        return _batches(self.connection, self._database, table)

    async def write(self, table: JournalTable, rows: list[Row]) -> None:
        """Store rows of a table."""
        columns = list(table.columns)
        rows = list(map(_converter(table, plain), rows)) if table.texts else rows
        if table is EVENTS:
            # Their times are in the sums: nobody looks at that of a row which is counted.
            columns.append("at")
            rows = [(*row, 0) for row in rows]
        elif table is SESSIONS:
            columns[-1] = "counted"
        with _own_errors(self._database):
            if table is POSITIONS:
                arrays = map(list, zip(*rows, strict=True))
                await self.connection.execute(_STORE_POSITIONS, *arrays)
            else:
                await self.connection.copy_records_to_table(
                    table.name, schema_name="dragoman", columns=columns, records=rows
                )

    async def finish(self) -> None:
        """Let PostgreSQL measure what is there, for its plans."""
        with _own_errors(self._database):
            for table in TABLES:
                await self.connection.execute(f"ANALYZE dragoman.{table.name}")

    async def keep(self) -> None:
        """Let everybody see it."""
        with _own_errors(self._database):
            await self.connection.execute("SET LOCAL synchronous_commit = on")
            await self._transaction.commit()


async def _check_empty(connection: asyncpg.Connection, database: Database) -> None:
    """Check that nobody uses a journal and that it has no sessions, then empty it of all else.

    Raises:
        BackupRefused: somebody uses it, or it has sessions.
    """
    await bury(connection)
    used = await connection.fetchval("SELECT name FROM dragoman.nodes LIMIT 1")
    if used is not None:
        raise BackupRefused(_used(database, used))
    if await connection.fetchval("SELECT EXISTS (SELECT FROM dragoman.sessions)"):
        raise BackupRefused(
            f"the journal `{database.shown}` has sessions, and a copy replaces nothing: name "
            "another database, or erase that journal with `DROP SCHEMA dragoman CASCADE`"
        )
    names = [table.name for table in TABLES] + ["staged", "put_blobs", "snapshots"]
    tables = ", ".join(f"dragoman.{name}" for name in names)
    await connection.execute(f"TRUNCATE {tables}")
