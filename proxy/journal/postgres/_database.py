"""The database of the PostgreSQL journal: connections, the schema's version, its errors as ours,
and how texts are written.

Everything is in a schema of its own, `dragoman`, and each statement says so: a pooler that gives
out connections by the transaction keeps no setting of a session.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.resources
from typing import Any, TypeAlias

import asyncpg

from proxy.base.errors import JournalCorrupt, JournalError, JournalUnavailable, SequenceConflict
from proxy.journal import shown

Connection: TypeAlias = "asyncpg.Connection | asyncpg.pool.PoolConnectionProxy"


CONNECT_SECONDS = 5.0
"""How long a connection may take to be made."""

STATEMENT_SECONDS = 30.0
"""How long a statement may take: beyond that the connection is taken for dead."""

LOCK_SECONDS = 20
"""How long a start waits for one that makes the schema: less than a statement may take."""

_LOCK = 0x4452474D
"""`DRGM`: the advisory lock under which the schema is made and changed, and nodes come."""

OLDEST = 140_000
"""The oldest PostgreSQL that is known to do what is asked of it, as `server_version_num`."""

_AWAY = (
    OSError,
    EOFError,
    TimeoutError,
    asyncpg.InterfaceError,
    # A server that hung up while nothing was asked of it: asyncpg does not know it yet.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
)
"""What a server raises that is not there, or has hung up: nobody knows whether it did what it was
asked."""

OWN_FAULTS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    JournalError,
    OverflowError,
    TypeError,
    ValueError,
)
"""What a write or a job can do wrong by itself: the others are stored without it."""

DATABASE_ERRORS = (asyncpg.PostgresError, *_AWAY)


def is_away(error: BaseException) -> bool:
    """Say whether the server is not there, or the connection broke."""
    # asyncpg raises its own for arguments that fit no column, too.
    return isinstance(error, _AWAY) and not isinstance(error, asyncpg.DataError)


def plain(text: str) -> str:
    r"""Return a text as it is stored: PostgreSQL takes no U+0000, so that is written `\x01\x02`,
    and `\x01` twice."""
    if "\0" not in text and "\1" not in text:
        return text
    return text.replace("\1", "\1\1").replace("\0", "\1\2")


def restored(text: str) -> str:
    """Return a text as it was before `plain`."""
    if "\1" not in text:
        return text
    return "\1".join(part.replace("\1\2", "\0") for part in text.split("\1\1"))


@dataclasses.dataclass(frozen=True, slots=True)
class Database:
    """Where the journal is: `url` as it is configured, `shown` the same without a password.

    Behind a pooler that gives out connections by the transaction a prepared statement of one is
    unknown to the next: then none may be kept, as asyncpg's FAQ says. `pooled` says so.
    """

    url: str
    pooled: bool = False

    @property
    def shown(self) -> str:
        """Return the URL without its password, for people."""
        return shown(self.url)

    def options(self) -> dict[str, Any]:
        """Return how asyncpg connects."""
        options: dict[str, Any] = {"dsn": self.url, "timeout": CONNECT_SECONDS}
        if self.pooled:
            options["statement_cache_size"] = 0
        else:
            # The arrays of a statement differ in length only: to plan it anew each time costs more
            # than to run it.
            options["server_settings"] = {
                "application_name": "dragoman",
                "plan_cache_mode": "force_generic_plan",
            }
        return options

    async def connect(
        self, *, statement_seconds: float | None = STATEMENT_SECONDS
    ) -> asyncpg.Connection:
        """Return a connection, whose statements may take so long, or any time.

        Raises:
            JournalUnavailable: there is none to be had; the text says why.
        """
        try:
            return await asyncpg.connect(command_timeout=statement_seconds, **self.options())
        except DATABASE_ERRORS as error:
            raise self.translate(error) from error
        except ValueError as error:
            raise JournalUnavailable(f"`{self.shown}` cannot be used as a URL: {error}") from error

    async def pool(self, size: int) -> asyncpg.Pool:
        """Return so many connections to read with.

        Raises:
            JournalUnavailable: there is none to be had.
        """
        try:
            return await asyncpg.create_pool(
                min_size=0, max_size=size, command_timeout=STATEMENT_SECONDS, **self.options()
            )
        except DATABASE_ERRORS as error:
            raise self.translate(error) from error

    def translate(self, error: BaseException) -> JournalError:
        """Return the journal's error for one of PostgreSQL or the network: it names the database
        and the way out.
        """
        match error:
            case JournalError():
                return error
            case asyncpg.IntegrityConstraintViolationError():
                return SequenceConflict(f"the journal `{self.shown}` holds this already: {error}")
            case asyncpg.DiskFullError():
                why = "the disk of PostgreSQL is full; make room, and it goes on by itself"
            case asyncpg.ReadOnlySQLTransactionError():
                why = (
                    "it is a standby, or set to be read only; name the primary, or add "
                    "`?target_session_attrs=read-write` to a URL that names several hosts"
                )
            case asyncpg.InvalidAuthorizationSpecificationError():
                why = "PostgreSQL does not let this user in; correct user and password in the URL"
            case asyncpg.InvalidCatalogNameError():
                why = "there is no such database; make it with `createdb`, or name another"
            case asyncpg.InsufficientPrivilegeError():
                why = (
                    "this user may not do that; let it make the schema: "
                    "`GRANT CREATE ON DATABASE … TO …`"
                )
            case asyncpg.TooManyConnectionsError():
                why = "PostgreSQL has no connection left; raise `max_connections`, or use a pooler"
            case asyncpg.CannotConnectNowError() | asyncpg.AdminShutdownError():
                why = "PostgreSQL is starting or stopping; it goes on by itself"
            case asyncpg.CrashShutdownError():
                why = "PostgreSQL has crashed and starts again; it goes on by itself"
            case (
                asyncpg.InvalidSQLStatementNameError()
                | asyncpg.DuplicatePreparedStatementError()
                # A pooler takes few settings of a connection.
                | asyncpg.ProtocolViolationError()
            ) if not self.pooled:
                why = (
                    "it is behind a pooler that gives out connections by the transaction; set "
                    "`pooled = true` in `[journal]`"
                )
            case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
                return JournalCorrupt(
                    f"the journal `{self.shown}` is damaged: {error}; restore it from a backup"
                )
            case TimeoutError():
                why = "PostgreSQL does not answer; see whether it runs and can be reached"
            case OSError():
                why = "PostgreSQL cannot be reached; see whether it runs, and the host and port"
            case _:
                text = str(error) or type(error).__name__
                return JournalUnavailable(f"the journal `{self.shown}` cannot be used now: {text}")
        detail = str(error) or type(error).__name__
        return JournalUnavailable(
            f"the journal `{self.shown}` cannot be used now: {why} ({detail})"
        )


def migrations() -> list[str]:
    """Return the schema's steps in order, as SQL; the step at index n leads to version n + 1."""
    folder = importlib.resources.files(__package__) / "migrations"
    steps = sorted((s for s in folder.iterdir() if s.name.endswith(".sql")), key=lambda s: s.name)
    return [step.read_text("utf-8") for step in steps]


async def check_server(connection: Connection, database: Database) -> None:
    """Check that a server can keep a journal.

    Raises:
        JournalUnavailable: it cannot; the text says the way out.
    """
    number, encoding = await connection.fetchrow(
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding')"
    )
    if number < OLDEST:
        raise JournalUnavailable(
            f"the journal `{database.shown}` is on PostgreSQL {number // 10_000}, and needs "
            f"{OLDEST // 10_000} or newer: upgrade PostgreSQL"
        )
    if encoding != "UTF8":
        raise JournalUnavailable(
            f"the database `{database.shown}` has the encoding {encoding}, and texts need UTF8: "
            "make one with `createdb --encoding=UTF8 --template=template0`"
        )


async def migrate(connection: Connection, database: Database, *, read_only: bool = False) -> None:
    """Make the schema, or bring it up to date; one process at a time, in one step or not at all.

    Raises:
        JournalCorrupt: it is from a newer version, or another program's.
        JournalUnavailable: `read_only`, and a server has yet to bring it up to date.
    """
    steps = migrations()
    if await _version(connection, database) == len(steps):
        return
    if read_only:
        raise JournalUnavailable(
            f"the journal `{database.shown}` is not of this version yet; start the server once to "
            "bring it up to date"
        )
    async with connection.transaction():
        await lock_schema(connection)
        # Another process may have been first.
        version = await _version(connection, database)
        if version == 0:
            await connection.execute("CREATE SCHEMA IF NOT EXISTS dragoman")
            await connection.execute("CREATE TABLE dragoman.meta (version integer NOT NULL)")
            await connection.execute("INSERT INTO dragoman.meta (version) VALUES (0)")
        for step in steps[version:]:
            await connection.execute(step)
        await connection.execute("UPDATE dragoman.meta SET version = $1", len(steps))


async def lock_schema(connection: Connection) -> None:
    """Let no other process make the schema, or become a node, before the transaction's end.

    Raises:
        JournalUnavailable: another holds that for long.
    """
    await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS} s'")
    try:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
    except asyncpg.LockNotAvailableError:
        raise JournalUnavailable(
            "another process has the journal for itself: `dragoman journal copy` writes into it, "
            "or a start makes its tables. Wait for the end of that, and start again"
        ) from None
    await connection.execute("SET LOCAL lock_timeout = 0")


async def _version(connection: Connection, database: Database) -> int:
    """Return the version of the schema, or 0 where there is none.

    Raises:
        JournalCorrupt: it is from a newer version, or another program's.
    """
    there, meta = await connection.fetchrow(
        "SELECT to_regnamespace('dragoman') IS NOT NULL"
        " AND EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('dragoman')),"
        " to_regclass('dragoman.meta') IS NOT NULL"
    )
    if not there:
        return 0
    if not meta:
        raise JournalCorrupt(
            f"the database `{database.shown}` has a schema `dragoman` of another program; name "
            "another database"
        )
    version: int = await connection.fetchval("SELECT version FROM dragoman.meta")
    known = len(migrations())
    if version > known:
        raise JournalCorrupt(
            f"the journal `{database.shown}` has schema {version}, this Dragoman knows up to "
            f"{known}: upgrade Dragoman"
        )
    return version


async def closed(connection: asyncpg.Connection | None) -> None:
    """Close a connection, however it is."""
    if connection is None or connection.is_closed():
        return
    try:
        async with asyncio.timeout(1):
            await connection.close()
    except DATABASE_ERRORS:
        connection.terminate()
