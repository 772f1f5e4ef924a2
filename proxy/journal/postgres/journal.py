"""The journal in a PostgreSQL database: durable when acknowledged.

Writes, and what must be in order with them, go to the writer's task (`_writer`); questions and
other changes to a few connections of a pool.

Why one module: a journal has a method for each question and each change, most of a few lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from proxy.base import metrics
from proxy.base.errors import UNREADABLE, JournalCorrupt, JournalError, JournalUnavailable, damaged
from proxy.base.rows import (
    Arrival,
    BackendBinding,
    BackendRow,
    Chunk,
    CodecRow,
    CommandRow,
    CommandStatus,
    NodeRow,
    SessionRow,
    ShareRow,
    StoredSnapshot,
)
from proxy.base.tasks import Tasks
from proxy.journal._frame_buffer import FrameBuffer
from proxy.journal._frames import FRAME_LIMIT, FrameBatch
from proxy.journal._storing import StorageState
from proxy.journal._unreferenced_blobs import UnreferencedBlobs
from proxy.journal.base import WINDOW_MS, Journal, Write
from proxy.journal.postgres import _changes, _reader
from proxy.journal.postgres._database import (
    DATABASE_ERRORS,
    Connection,
    Database,
    check_server,
    is_away,
    migrate,
)
from proxy.journal.postgres._node import RENEW_SECONDS, Node, bury
from proxy.journal.postgres._ownership import claim, read_nodes, read_unclaimed, release
from proxy.journal.postgres._writer import PATIENCE_SECONDS, RETRY_SECONDS, PostgresWriter

T = TypeVar("T")

_log = logging.getLogger(__name__)

CONNECTIONS = 8
"""Connections that read, and make changes that need no order."""


class PostgresJournal(Journal):
    """The journal in the database that `url` names, in a schema `dragoman` of its own.

    Args:
        url: As for asyncpg: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`.
        read_only: Read beside the process that writes; every change fails with
            `JournalUnavailable`.
        pooled: Whether a pooler gives out connections by the transaction.
        advertise: Where other nodes reach this one, which shares the journal with them then.
        window_ms: The least time between two commits, in milliseconds: costs its length under load,
            saves CPU.
        frames: Whether source frames are kept.
        frame_limit: Bytes of a frame that are kept.
        frame_seconds: How long a frame waits for others before it is stored.
    """

    def __init__(
        self,
        url: str,
        *,
        read_only: bool = False,
        pooled: bool = False,
        advertise: str | None = None,
        window_ms: float = WINDOW_MS,
        frames: bool = True,
        frame_limit: int = FRAME_LIMIT,
        frame_seconds: float = 1.0,
    ) -> None:
        self._database = Database(url, pooled)
        self._read_only = read_only
        self._window_ms = window_ms
        self._node = Node(self._database, url=advertise)
        self.shared = None if advertise is None else self._node
        self._writer: PostgresWriter | None = None
        self._pool: asyncpg.Pool | None = None
        self._failure: JournalError | None = None
        self._tell_failure: Callable[[JournalError], None] | None = None
        self._storing = StorageState(self._database.shown)
        self._tasks = Tasks("journal")
        self._keep_frames = frames and not read_only
        self._frames = FrameBuffer(
            self._put_frames,
            frame_limit,
            frame_seconds,
        )
        self._fresh = UnreferencedBlobs()
        self._backlog = 0
        self._is_open = False
        self.rows_read = 0

    async def open(self) -> None:
        """Connect, make the schema or bring it up to date, and become the one that writes.

        Raises:
            JournalUnavailable: the database cannot be used, or another process writes the journal.
            JournalCorrupt: it is damaged, another program's, or from a newer version.
        """
        self._failure = None
        pool = await self._database.pool(CONNECTIONS)
        try:
            async with pool.acquire() as connection:
                await check_server(connection, self._database)
                await migrate(connection, self._database, read_only=self._read_only)
                if not self._read_only:
                    await self._node.come(connection)
                    await self._take_up(connection)
            if not self._read_only:
                writer = PostgresWriter(
                    self._database,
                    self._node,
                    self._settle,
                    self._fail,
                    self._fresh.now,
                    window_ms=self._window_ms,
                )
                await writer.start()
                self._writer = writer
                self._tasks = Tasks("journal")
                self._tasks.start(self._renew(), name="renew the lease")
            self._pool = pool
            self._is_open = True
        except BaseException as error:
            pool.terminate()
            if isinstance(error, DATABASE_ERRORS):
                raise self._database.translate(error) from error
            raise

    async def _take_up(self, connection: Connection) -> None:
        """Finish what processes that are gone have begun."""
        async with connection.transaction():
            await _changes.erase_left(connection)
        uncounted = await connection.fetch(
            "SELECT key FROM dragoman.sessions"
            " WHERE (node IS NULL OR node NOT IN (SELECT node FROM dragoman.nodes))"
            " AND EXISTS (SELECT FROM dragoman.events WHERE session = key AND first > counted)"
        )
        await _changes.count_rows(connection, [row[0] for row in uncounted])
        left = await connection.fetch(
            "SELECT key, updated_at FROM dragoman.sessions WHERE erasing"
            " AND (node IS NULL OR node NOT IN (SELECT node FROM dragoman.nodes))"
        )
        for key, at in left:
            async with connection.transaction():
                await _changes.begin_erasing(connection, key, at, "deleted")
            while await _changes.erase_some(connection, key):
                pass

    async def aclose(self) -> None:
        """Store what was submitted, and hang up."""
        if not self._is_open:
            return
        self._is_open = False
        self._frames.close()
        writer, pool = self._writer, self._pool
        assert pool is not None
        if writer is not None:
            await writer.stop()
            await self._tasks.aclose()
            with contextlib.suppress(*DATABASE_ERRORS):
                async with pool.acquire(timeout=1) as connection:
                    await self._node.go(connection)
        self._writer = None
        try:
            async with asyncio.timeout(2):
                await pool.close()
        except (TimeoutError, *DATABASE_ERRORS):
            pool.terminate()
        self._pool = None

    async def _renew(self) -> None:
        """Renew the lease of this node while the journal is open."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                async with self._acquired() as connection:
                    await self._node.renew(connection)
                    if self._node.url is not None and await bury(connection):
                        await self._take_up(connection)
            except _changes.Fenced as error:
                self._fail(error)
                return
            except DATABASE_ERRORS:
                # The writer tells of it, and begins anew once it is back.
                if self._writer is not None:
                    self._writer.check()

    @contextlib.asynccontextmanager
    async def _acquired(self) -> Any:
        pool = self._pool
        if pool is None:
            raise self._refusal()
        async with pool.acquire(timeout=PATIENCE_SECONDS) as connection:
            yield connection

    def when_failed(self, tell: Callable[[JournalError], None]) -> None:
        """Call `tell` once nothing can be stored any more until the next start, at once where it
        is so already."""
        self._tell_failure = tell
        if self._failure is not None:
            tell(self._failure)

    def _fail(self, error: JournalError) -> None:
        if self._failure is None:
            self._failure = JournalUnavailable(
                f"{error.whole}: it was away for longer than its lease; what was shown is stored, "
                "and the next start takes up what is there"
            )
            if self._tell_failure is not None:
                self._tell_failure(self._failure)

    def _refusal(self) -> JournalUnavailable:
        if self._is_open:
            return JournalUnavailable(
                f"the journal `{self._database.shown}` is open for reading only"
            )
        return JournalUnavailable(f"the journal `{self._database.shown}` is closed")

    def submit(self, write: Write) -> None:
        """Hand over a write; never blocks. `write.done` hears of the outcome, in the order of
        submission.

        Raises:
            ValueError: `body` is not `count` lines.
        """
        write.check()
        if self._writer is None or not self._is_open:
            refusal = self._refusal()
            metrics.count_failed_write(refusal)
            if write.done is not None:
                asyncio.get_running_loop().call_soon(write.done, refusal)
            return
        self._backlog += write.size
        if write.blobs:
            self._fresh.over(write.blobs)
        self._writer.put(write)

    def _settle(self, batch: Sequence[Write], errors: dict[int, JournalError], size: int) -> None:
        """Tell everybody in a batch how it went."""
        self._backlog -= size
        for error in errors.values():
            metrics.count_failed_write(error)
            self._storing.failed(error)
        if not errors and self._storing.is_due():
            self._tasks.start(self._try(), name="try the journal")
        for index, write in enumerate(batch):
            if write.done is None:
                continue
            try:
                write.done(errors.get(index))
            except Exception as error:  # noqa: BLE001 - the others in the batch must hear of it still
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "`done` of a journal write failed", "exception": error}
                )

    async def trouble(self) -> str | None:
        """Return why nothing can be stored, None where it can. While nothing is to be stored, it is
        tried now and then."""
        refusal = None if self._writer is None else self._writer.refusal
        if refusal is not None and self._storing.trouble is None:
            self._storing.failed(refusal, writes=0)
        if self._storing.is_due():
            await self._try()
        return self._storing.trouble

    async def _try(self) -> None:
        """Try whether something can be stored again."""

        async def fill(connection: Connection) -> None:
            # So many bytes tell whether the disk has room again.
            data = os.urandom(256 * 1024)
            await connection.execute(
                "INSERT INTO dragoman.blobs (sha256, size, data) VALUES ('tried', 0, $1)"
                " ON CONFLICT (sha256) DO UPDATE SET data = excluded.data",
                data,
            )
            await connection.execute("DELETE FROM dragoman.blobs WHERE sha256 = 'tried'")

        if self._writer is None or not self._writer.connected.is_set():
            return
        try:
            await self._change(fill)
        except JournalError:
            return
        self._storing.back()

    @property
    def backlog(self) -> int:
        """Bytes of events and codecs' states submitted and not yet stored."""
        return self._backlog

    @property
    def stored(self) -> int:
        """Entries that were stored since the journal was opened."""
        return 0 if self._writer is None else self._writer.stored

    async def _job(
        self, run: Callable[[Connection], Awaitable[T]], *, forget: int | None = None
    ) -> T:
        """Do something in a transaction, in order with the writes, after which nothing is known any
        more of the session `forget`."""
        if (writer := self._writer) is None or not self._is_open:
            raise self._refusal()
        after = None if forget is None else functools.partial(writer.forget, forget)
        result: T = await writer.job(run, after)
        return result

    async def _change(self, run: Callable[[Connection], Awaitable[T]]) -> T:
        """Do something in a transaction that needs no order, and again where the connection broke:
        what it does twice is as if done once."""
        if self._writer is None:
            raise self._refusal()

        async def change(connection: Connection) -> T:
            async with connection.transaction():
                await _changes.check_fence(connection, self._node.fence)
                return await run(connection)

        return await self._ask(change)

    async def _ask(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        """Answer a question; wait for a server that is away, for as long as writes do."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                await self._until_connected(until)
                async with self._acquired() as connection:
                    try:
                        return await question(connection)
                    except DATABASE_ERRORS as error:
                        if is_away(error):
                            connection.terminate()
                        raise
            except JournalCorrupt as error:
                metrics.count_failed_read(error)
                raise
            except DATABASE_ERRORS as error:
                if is_away(error) and time.monotonic() < until and self._is_open:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                failure = self._database.translate(error)
                metrics.count_failed_read(failure)
                if not is_away(error):
                    # That it is away is told once, by the writer.
                    _log.warning("a question to the journal fails: %s", failure.whole)
                raise failure from error
            except UNREADABLE as error:
                # A number where a text was stored, say.
                failure = damaged(f"a row of `{self._database.shown}`", error)
                metrics.count_failed_read(failure)
                raise failure from error

    async def _until_connected(self, until: float) -> None:
        """Wait until nothing is in doubt: before that nobody knows what is stored.

        Raises:
            TimeoutError: it takes too long.
        """
        if not self._is_open:
            raise self._refusal()
        if self._writer is None or self._writer.connected.is_set():
            return
        async with asyncio.timeout(max(until - time.monotonic(), 0)):
            await self._writer.connected.wait()

    def new_key(self) -> int:
        """Return the key of a session to be made: no other session has it, and newer ones have
        larger ones."""
        return self._node.new_key()

    async def claim(self, session: int) -> NodeRow | None:
        """Claim a session for this process, or return the one that has it.

        Raises:
            JournalUnavailable: it could not be stored.
        """
        if self._node.url is None or self._read_only:
            return None
        return await self._job(lambda c: claim(c, self._node.fence, session))

    def let_go(self, session: int) -> None:
        """Let go of a session, once all that was submitted of it is stored."""
        if self._node.url is not None and self._writer is not None and self._is_open:
            fence = self._node.fence
            # Where it fails the session stays ours, and we are asked for it.
            self._writer.post(lambda c: release(c, fence, [session]))

    async def nodes(self) -> list[NodeRow]:
        """Return the processes that share the journal, as long as their places are not taken."""
        return await self._ask(read_nodes)

    async def unclaimed(self, limit: int) -> list[str]:
        """Return the public ids of sessions with work that no process has."""
        return await self._ask(lambda c: read_unclaimed(c, limit))

    async def session(self, id: str) -> SessionRow:
        """Return the session with this public id, deleted ones included.

        Raises:
            SessionNotFound: there is none.
        """
        return await self._ask(lambda c: _reader.read_session(c, id))

    async def resolve(self, *, owner: str, route: str, kind: str, name: str) -> str | None:
        """Return the public id that this alias stands for, or None."""
        return await self._ask(
            lambda c: _reader.read_alias(c, owner=owner, route=route, kind=kind, name=name)
        )

    async def aliases(self, session: int) -> list[tuple[str, str]]:
        """Return the (kind, name) pairs of a session, sorted."""
        return await self._ask(lambda c: _reader.read_aliases(c, session))

    async def sessions(
        self,
        *,
        owner: str | None = None,
        route: str | None = None,
        backend: str | None = None,
        came_from: str | None = None,
        states: Sequence[str] | None = None,
        failed: bool = False,
        before: int | None = None,
        after: int | None = None,
        named: str | None = None,
        changed: int | None = None,
        limit: int = 100,
    ) -> list[SessionRow]:
        """Return sessions that fit, newest first, or with `after` oldest first; both are keys to
        page on from."""
        if changed is not None:
            await self._flush()
        return await self._ask(
            lambda c: _reader.read_sessions(
                c,
                owner=owner,
                route=route,
                backend=backend,
                came_from=came_from,
                states=states,
                failed=failed,
                before=before,
                after=after,
                named=named,
                changed=changed,
                limit=limit,
            )
        )

    async def _flush(self) -> None:
        """Bring sums up to date, and store frames that wait."""
        if self._writer is not None and self._is_open:
            await self._writer.flush()

    async def backends_of(self, sessions: Sequence[int]) -> dict[int, str]:
        """Return the backend that each of these sessions, given by their keys, has now."""
        return await self._ask(lambda c: _reader.read_backends_of(c, sessions))

    async def legs(self, session: int) -> list[BackendBinding]:
        """Return the legs of a session, first to last."""
        return await self._ask(lambda c: _reader.read_legs(c, session))

    async def is_named(self, backend: str, name: str) -> bool:
        """Say whether a backend knows a session by this name, or it is the public id of one."""
        return await self._ask(lambda c: _reader.read_is_named(c, backend, name))

    async def known_backends(self) -> list[BackendRow]:
        """Return what was kept of the backends that have sessions which are not gone."""
        return await self._ask(_reader.read_backends)

    async def keep_backends(self, backends: Sequence[BackendRow]) -> None:
        """Keep what backends are, in the place of what was kept under their names; durable on
        return.

        Raises:
            JournalUnavailable: it could not be stored.
        """
        await self._change(lambda c: _changes.keep_backends(c, backends))

    async def shares(self) -> list[ShareRow]:
        """Return the shares of routes that were set at run time, in the order of each route."""
        return await self._ask(_reader.read_shares)

    async def keep_shares(self, route: str, shares: Sequence[ShareRow]) -> None:
        """Keep the shares of a route, in the place of those that were kept, or none; durable on
        return.

        Raises:
            JournalUnavailable: it could not be stored.
        """
        await self._change(lambda c: _changes.keep_shares(c, route, shares))

    async def commands(
        self, session: int, *, statuses: Sequence[CommandStatus] = ("accepted", "sent")
    ) -> list[CommandRow]:
        """Return a session's commands in these statuses, in the order of acceptance."""
        return await self._ask(lambda c: _reader.read_commands(c, session, statuses))

    async def read(
        self,
        session: int,
        *,
        after: int = 0,
        limit_bytes: int = 1 << 20,
        limit_rows: int | None = None,
    ) -> list[Chunk]:
        """Return consecutive chunks that hold the entries after seq `after`, about `limit_bytes` of
        them in at most `limit_rows` writes; `rows_read` counts the rows.

        Raises:
            SessionNotFound: there is no such session.
            CursorExpired: the entries after `after` were pruned, or the session was deleted.
            JournalUnavailable: it cannot be read now.
            JournalCorrupt: entries are missing.
        """
        chunks, rows = await self._ask(
            lambda c: _reader.read_events(
                c, session, after=after, limit_bytes=limit_bytes, limit_rows=limit_rows
            )
        )
        self.rows_read += rows
        return chunks

    def add_snapshot(self, session: int, snapshot: StoredSnapshot) -> None:
        """Keep a snapshot, stored as soon as nothing more urgent waits; dropped by a journal that
        cannot write.
        """
        if self._writer is not None and self._is_open:
            self._writer.put_snapshot(session, snapshot)

    async def snapshot(
        self,
        session: int,
        kind: str,
        version: int,
        *,
        cursor: int | None = None,
        seq: int | None = None,
    ) -> StoredSnapshot | None:
        """Return the newest snapshot of a kind and version, or the newest with at most this
        `cursor` or this `seq`; None where there is none.

        Raises:
            JournalUnavailable: it cannot be read now.
        """
        return await self._ask(
            lambda c: _reader.read_snapshot(c, session, kind, version, cursor, seq)
        )

    async def codecs(self, session: int) -> list[CodecRow]:
        """Return the codecs that are fixed for a session, by dialect."""
        return await self._ask(lambda c: _reader.read_codecs(c, session))

    async def fix_codec(self, session: int, codec: CodecRow) -> CodecRow:
        """Fix a dialect's codec for a session, unless it is, and return the one that holds; durable
        on return.

        Raises:
            SessionNotFound: there is no such session.
            SessionClosed: it was deleted.
            JournalUnavailable: it could not be stored.
        """
        return await self._change(lambda c: _changes.keep_codec(c, session, codec))

    def add_frames(
        self, session: int, leg: int, first: int, frames: Sequence[bytes], at: int
    ) -> None:
        """Keep source frames, numbered from `first`: in memory at once, in the database within two
        `frame_seconds`.
        """
        if self._keep_frames and self._is_open and frames:
            self._frames.add(session, leg, first, frames, at)

    def _put_frames(self, batch: FrameBatch) -> None:
        if self._writer is not None:
            self._writer.put_frames(batch)

    async def frames(
        self,
        session: int,
        leg: int,
        *,
        first: int = 0,
        limit: int = 1000,
        limit_bytes: int | None = None,
    ) -> list[tuple[int, bytes]]:
        """Return kept source frames as (number, bytes), from number `first` on: at most `limit`,
        and none more once they have `limit_bytes`.

        Raises:
            JournalUnavailable: it cannot be read now.
            JournalCorrupt: a batch of frames is damaged.
        """
        self._frames.send(session, leg)
        await self._flush()
        return await self._ask(
            lambda c: _reader.read_frames(
                c, session, leg, first=first, limit=limit, limit_bytes=limit_bytes
            )
        )

    async def put_blob(self, data: bytes) -> str:
        """Store bytes once and return their SHA-256 in hex; durable on return. They stay until a
        session names them, or until `drop_blobs`; a start finds what is left of a crash.

        Raises:
            JournalUnavailable: they could not be stored.
        """
        sha256 = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
        self._fresh.put(sha256)
        try:
            await self._change(lambda c: _changes.put_blob(c, self._node.fence, sha256, data))
        except BaseException:
            self._fresh.over([sha256])
            raise
        return sha256

    async def drop_blobs(self, names: Sequence[str], *, handed_over: bool = False) -> None:
        """Erase blobs that were put for a write that is not to come, or that was refused where it
        was handed over; those stay that a session names, or somebody else has put for one.

        Raises:
            JournalUnavailable: it could not be done; the next start does it.
        """
        if not handed_over:
            self._fresh.over(names)
        gone = sorted(set(names) - self._fresh.now())
        await self._change(lambda c: _changes.drop_blobs(c, self._node.fence, gone))

    async def blob(self, sha256: str) -> bytes | None:
        """Return the bytes of a blob, or None."""
        return await self._ask(lambda c: _reader.read_blob(c, sha256))

    async def blobs(self, session: int) -> list[tuple[str, int]]:
        """Return the blobs that a session names, as (SHA-256, size), sorted."""
        return await self._ask(lambda c: _reader.read_blobs(c, session))

    async def stage(self, session: int, chunks: Sequence[Chunk]) -> None:
        """Store entries of a session that arrives, under a new key: nobody sees them before
        `admit`; durable on return.

        Raises:
            JournalUnavailable: they could not be stored.
        """
        await self._change(lambda c: _changes.stage(c, self._node.fence, session, chunks))

    async def unstage(self, session: int) -> None:
        """Erase what is staged and not admitted.

        Raises:
            JournalUnavailable: it could not be done; the next start does it.
        """
        while await self._change(lambda c: _changes.unstage_some(c, session)):
            pass

    async def admit(self, arrival: Arrival) -> None:
        """Make a session of what is staged, all or nothing; durable on return.

        Raises:
            NameTaken: the id or an alias is taken.
            JournalUnavailable: it could not be stored.
        """
        # As with a write: who deletes them next comes after this.
        self._fresh.over(arrival.blobs)
        await self._change(
            lambda c: _changes.admit(c, self._node.fence, arrival, set(self._fresh.now()))
        )

    async def delete(self, session: int, *, at: int) -> None:
        """Erase events, frames, commands and snapshots of a session; its id and names stay as a
        tombstone.

        Nobody reads them from the first transaction on. PostgreSQL gives back their room, and
        overwrites them, when it next vacuums the tables.

        Raises:
            SessionNotFound: there is no such session.
            JournalUnavailable: it could not be stored.
        """
        await self._job(lambda c: _changes.begin_erasing(c, session, at, "deleted"), forget=session)
        await self._erase(session)

    async def _erase(self, session: int) -> None:
        self._frames.forget(session)
        while await self._change(lambda c: _changes.erase_some(c, session)):
            pass

    async def emptied(self) -> None:
        """Return at once: what was erased is gone when PostgreSQL vacuums its tables."""

    async def expire(self, session: int, *, unless_after: int, at: int) -> bool:
        """Erase a session as `delete` does, but say that it is `expired`; return False where
        something is open in it, or happened after `unless_after`, and leave it as it is.

        Raises:
            JournalUnavailable: it could not be stored.
        """

        async def begin(connection: Connection) -> bool:
            if not await _changes.may_expire(connection, self._node.fence, session, unless_after):
                return False
            return await _changes.begin_erasing(connection, session, at, "expired")

        if not await self._job(begin, forget=session):
            return False
        await self._erase(session)
        return True

    async def sizes(self, *, owner: str | None = None) -> dict[str, int]:
        """Return how many bytes the sessions of each backend take, or those of one owner."""
        await self._flush()
        return await self._ask(lambda c: _reader.read_sizes(c, owner))

    async def oldest(
        self,
        *,
        before: int | None = None,
        backend: str | None = None,
        owner: str | None = None,
        limit: int = 100,
    ) -> list[tuple[SessionRow, str]]:
        """Return sessions in which nothing is open, with their backends, the one with the oldest
        last event first.
        """
        await self._flush()
        return await self._ask(
            lambda c: _reader.read_oldest(
                c, before=before, backend=backend, owner=owner, limit=limit
            )
        )

    async def newest(self) -> int:
        """Return when the last of all that is stored happened, in Unix milliseconds, or 0."""
        return await self._ask(_reader.read_newest_time)

    async def prune_frames(self, *, before: int) -> int:
        """Erase source frames older than `before` (Unix ms) and return how many batches that were.

        Raises:
            JournalUnavailable: it could not be stored.
        """
        total = 0
        while pruned := await self._job(lambda c: _changes.prune_frames(c, before, 256)):
            total += pruned
        return total
