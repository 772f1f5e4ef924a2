"""The journal in one SQLite file: durable when acknowledged, for one process.

The event loop's side: writes and jobs go to the writer's thread (`_writer`), questions to a few
threads with read-only connections (`_reader`), source frames gather here until a batch is worth a
row.

Why one module: a journal has a method for each question and each change, most of a few lines.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import queue
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import apsw

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
    SessionRow,
    ShareRow,
    StoredSnapshot,
)
from proxy.journal import _reader, _staging
from proxy.journal._changes import (
    Transaction,
    begin_erasing,
    erase_blobs,
    erase_some,
    insert_frames,
    keep_backends,
    keep_codec,
    keep_shares,
    may_expire,
)
from proxy.journal._changes import prune_frames as prune_some_frames
from proxy.journal._database import connect_reader, translate
from proxy.journal._frame_buffer import FrameBuffer
from proxy.journal._frames import FRAME_LIMIT, FrameBatch
from proxy.journal._storing import StorageState
from proxy.journal._unindexed_rows import UnindexedRows
from proxy.journal._unreferenced_blobs import UnreferencedBlobs
from proxy.journal._writer import Item, Job, JournalWriter, PendingSnapshot, WalTruncation
from proxy.journal.base import WINDOW_MS, Journal, Write

_log = logging.getLogger(__name__)

T = TypeVar("T")

READERS = 2
"""Threads that read. One reads fast enough; two keep a long replay from
delaying the rest.
"""

EMPTY_SECONDS = 5.0
"""How long a deletion waits for the write-ahead log to be emptied. Our readers hold it for some
milliseconds; longer only another program does that reads the file."""


class SqliteJournal(Journal):
    """The journal in the SQLite file at `path`.

    Args:
        path: The file; made if it does not exist, its directory must.
        read_only: Read beside the process that writes; every change fails with
            `JournalUnavailable`.
        window_ms: The least time between two commits, in milliseconds: costs its length under load,
            saves CPU.
        frames: Whether source frames are kept.
        frame_limit: Bytes of a frame that are kept.
        frame_seconds: How long a frame waits for others before it is stored.
        index_rows: Rows in memory that begin a round of indexing; opening after a crash reads as
            many.
        index_seconds: The longest time until such a round.
        synced: Whether a write is on disk before it is acknowledged.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        read_only: bool = False,
        window_ms: float = WINDOW_MS,
        frames: bool = True,
        frame_limit: int = FRAME_LIMIT,
        frame_seconds: float = 1.0,
        index_rows: int = 4096,
        index_seconds: float = 5.0,
        synced: bool = True,
    ) -> None:
        self._path = Path(path).resolve()
        self._read_only = read_only
        self._make_writer = functools.partial(
            JournalWriter,
            self._path,
            self._settle,
            self._fail,
            window_ms=window_ms,
            index_rows=index_rows,
            index_seconds=index_seconds,
            synced=synced,
        )
        self._writer: JournalWriter | None = None
        self._failure: JournalError | None = None
        self._tell_failure: Callable[[JournalError], None] | None = None
        self._storing = StorageState(str(self._path))
        self._trial: asyncio.Task[None] | None = None
        self._keep_frames = frames and not read_only
        self._frames = FrameBuffer(self._put_frames, frame_limit, frame_seconds)
        self._fresh = UnreferencedBlobs()
        self._backlog = 0
        self._is_open = False
        self._newest = 0
        self.rows_read = 0
        self._loop: asyncio.AbstractEventLoop
        self._pool: ThreadPoolExecutor
        self._readers: queue.SimpleQueue[apsw.Connection] = queue.SimpleQueue()

    async def open(self) -> None:
        """Open or make the file and bring its schema up to date.

        Raises:
            JournalUnavailable: it cannot be opened or written, or another process writes it.
            JournalCorrupt: it is damaged, no journal, or from a newer version.
        """
        self._loop = asyncio.get_running_loop()
        self._failure = None
        if not self._read_only:
            self._writer = self._make_writer()
            await self._writer.start()
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="journal-reader")
        try:
            for _ in range(READERS):
                connection = await self._loop.run_in_executor(
                    self._pool, connect_reader, self._path
                )
                self._readers.put(connection)
            self._is_open = True
            self._newest = await self._ask(_reader.read_newest_key)
        except BaseException:
            self._is_open = False
            await self._close_readers()
            if self._writer is not None:
                await self._writer.stop()
            raise

    async def aclose(self) -> None:
        """Store what was submitted, index it and close the file."""
        if not self._is_open:
            return
        self._is_open = False
        self._frames.close()
        # The last connection to close tidies the write-ahead log away: that must be the writer's.
        await self._close_readers()
        if self._writer is not None:
            await self._writer.stop()

    async def _close_readers(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)
        while not self._readers.empty():
            self._readers.get().close()

    def when_failed(self, tell: Callable[[JournalError], None]) -> None:
        """Call `tell` once nothing can be stored any more until the next start, at once where it
        is so already: before anybody hears of what was not stored, for it may be there after a
        start."""
        self._tell_failure = tell
        if self._failure is not None:
            tell(self._failure)

    def _fail(self, failure: JournalError) -> None:
        self._failure = failure
        if self._tell_failure is not None:
            self._tell_failure(failure)

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
                self._loop.call_soon(write.done, refusal)
            return
        self._backlog += write.size
        if write.blobs:
            self._fresh.over(write.blobs)
        self._writer.put(write)

    def _refusal(self) -> JournalUnavailable:
        if self._is_open:
            return JournalUnavailable(f"the journal `{self._path}` is open for reading only")
        return JournalUnavailable(f"the journal `{self._path}` is closed")

    def _settle(self, batch: list[Item], errors: dict[int, JournalError], size: int) -> None:
        """Tell everybody in a batch how it went; called in the event loop, once for each
        transaction.
        """
        self._backlog -= size
        for error in errors.values():
            metrics.count_failed_write(error)
            self._storing.failed(error)
        if not errors and self._storing.is_due():
            self._trial = self._loop.create_task(self._try())
        for index, item in enumerate(batch):
            if item.done is None:
                continue
            try:
                item.done(errors.get(index))
            except Exception as error:  # noqa: BLE001 - the others in the batch must hear of it still
                self._loop.call_exception_handler(
                    {"message": "`done` of a journal write failed", "exception": error}
                )

    async def trouble(self) -> str | None:
        """Return why nothing can be stored, None where it can. While nothing is to be stored, it is
        tried now and then."""
        if self._storing.is_due():
            await self._try()
        return self._storing.trouble

    async def _try(self) -> None:
        """Try whether something can be stored again."""
        try:
            await self._job(_fill)
            await self._job(_empty)
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

    async def _job(self, run: Callable[[Transaction], T]) -> T:
        """Run something in the writer's next transaction and return its result once that is on
        disk.
        """
        if self._writer is None or not self._is_open:
            raise self._refusal()
        future: asyncio.Future[T] = self._loop.create_future()
        self._writer.put(Job(run, future))
        return await future

    async def _ask(self, question: Callable[[apsw.Connection], T]) -> T:
        """Answer a question in a reading thread."""
        if not self._is_open:
            raise self._refusal()

        def answer() -> T:
            connection = self._readers.get()
            try:
                return question(connection)
            except apsw.Error as error:
                failure = translate(error, self._path)
                metrics.count_failed_read(failure)
                raise failure from error
            except JournalCorrupt as error:
                metrics.count_failed_read(error)
                raise
            except UNREADABLE as error:
                # A text that is not UTF-8, or a number where a text was stored.
                failure = damaged(f"a row of `{self._path}`", error)
                metrics.count_failed_read(failure)
                raise failure from error
            finally:
                self._readers.put(connection)

        return await self._loop.run_in_executor(self._pool, answer)

    @property
    def _tails(self) -> dict[int, UnindexedRows] | None:
        return None if self._writer is None else self._writer.tails

    def new_key(self) -> int:
        """Return the key of a session to be made: no other session has it."""
        self._newest += 1
        return self._newest

    async def session(self, id: str) -> SessionRow:
        """Return the session with this public id, deleted ones included.

        Raises:
            SessionNotFound: there is none.
        """
        return await self._ask(lambda c: _reader.read_session(c, self._tails, id))

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
        return await self._ask(
            lambda c: _reader.read_sessions(
                c,
                self._tails,
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

    async def backends_of(self, sessions: Sequence[int]) -> dict[int, str]:
        """Return the backend that each of these sessions, given by their keys, has now."""
        return await self._ask(lambda c: _reader.read_backends_of(c, sessions))

    async def legs(self, session: int) -> list[BackendBinding]:
        """Return the legs of a session, first to last."""
        return await self._ask(lambda c: _reader.read_legs(c, self._tails, session))

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
        await self._job(lambda t: keep_backends(t.connection, backends))

    async def shares(self) -> list[ShareRow]:
        """Return the shares of routes that were set at run time, in the order of each route."""
        return await self._ask(_reader.read_shares)

    async def keep_shares(self, route: str, shares: Sequence[ShareRow]) -> None:
        """Keep the shares of a route, in the place of those that were kept, or none; durable on
        return.

        Raises:
            JournalUnavailable: it could not be stored.
        """
        await self._job(lambda t: keep_shares(t.connection, route, shares))

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
                c,
                self._tails,
                session,
                after=after,
                limit_bytes=limit_bytes,
                limit_rows=limit_rows,
            )
        )
        self.rows_read += rows
        return chunks

    def add_snapshot(self, session: int, snapshot: StoredSnapshot) -> None:
        """Keep a snapshot, stored as soon as nothing more urgent waits; dropped by a journal that
        cannot write.
        """
        if self._writer is not None and self._is_open:
            self._writer.put(PendingSnapshot(session, snapshot))

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
        if seq is not None:
            return await self._ask(
                lambda c: _reader.read_snapshot_of_seq(c, session, kind, version, seq)
            )
        return await self._ask(lambda c: _reader.read_snapshot(c, session, kind, version, cursor))

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

        def fix(transaction: Transaction) -> CodecRow:
            transaction.tail(session)
            return keep_codec(transaction.connection, session, codec)

        return await self._job(fix)

    def add_frames(
        self, session: int, leg: int, first: int, frames: Sequence[bytes], at: int
    ) -> None:
        """Keep source frames, numbered from `first`: in memory at once, on disk within one and a
        half `frame_seconds`.
        """
        if not self._keep_frames or not self._is_open or not frames:
            return
        self._frames.add(session, leg, first, frames, at)

    def _put_frames(self, batch: FrameBatch) -> None:
        if self._writer is not None:
            self._writer.put(batch)

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
        if (writer := self._writer) is not None:
            self._frames.send(session, leg)

            def store(transaction: Transaction) -> None:
                for batch in writer.take_frames(session, leg):
                    insert_frames(transaction.connection, batch)

            await self._job(store)
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

        def store(transaction: Transaction) -> None:
            transaction.connection.execute(
                "INSERT OR IGNORE INTO blobs (sha256, size, data) VALUES (?, ?, ?)",
                (sha256, len(data), data),
            )

        try:
            await self._job(store)
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
        gone = set(names) - self._fresh.now()

        def erase(transaction: Transaction) -> None:
            transaction.freed = True
            erase_blobs(transaction.connection, gone)

        await self._job(erase)

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
        await self._job(lambda t: _staging.stage(t, session, chunks))

    async def unstage(self, session: int) -> None:
        """Erase what is staged and not admitted.

        Raises:
            JournalUnavailable: it could not be done; the next start does it.
        """

        def erase(transaction: Transaction) -> bool:
            transaction.freed = True
            return _staging.unstage_some(transaction.connection, session)

        while await self._job(erase):
            pass

    async def admit(self, arrival: Arrival) -> None:
        """Make a session of what is staged, all or nothing; durable on return.

        Raises:
            NameTaken: the id or an alias is taken.
            JournalUnavailable: it could not be stored.
        """
        # As with a write: who deletes them next comes after this.
        self._fresh.over(arrival.blobs)
        await self._job(lambda t: _staging.admit(t, arrival))

    async def delete(self, session: int, *, at: int) -> None:
        """Erase events, frames, commands and snapshots of a session; its id and names stay as a
        tombstone.

        Nobody reads them from the first transaction on. When it returns their bytes are overwritten
        in the file and gone from the write-ahead log, see `emptied`.

        Raises:
            SessionNotFound: there is no such session.
            JournalUnavailable: it could not be stored.
        """
        fresh = self._fresh.now()

        def begin(transaction: Transaction) -> None:
            self._begin_erasing(transaction, session, at, fresh, "deleted")

        def erase(transaction: Transaction) -> bool:
            transaction.freed = True
            return erase_some(transaction.connection, session)

        await self._job(begin)
        self._frames.forget(session)
        while await self._job(erase):
            pass
        await self.emptied()

    async def emptied(self) -> None:
        """Wait until nothing of what was erased is in the write-ahead log.

        Where another program reads the file for longer than `EMPTY_SECONDS`, it is emptied when
        that has finished, and the log says so.
        """
        if self._writer is None or not self._is_open:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._writer.put(WalTruncation(future))
        try:
            async with asyncio.timeout(EMPTY_SECONDS):
                await future
        except TimeoutError:
            _log.warning(
                "the journal `%s` is read by another program: what was erased is in its "
                "write-ahead log until that has finished",
                self._path,
            )

    def _begin_erasing(
        self, transaction: Transaction, session: int, at: int, fresh: Collection[str], state: str
    ) -> None:
        writer = self._writer
        assert writer is not None
        tail = begin_erasing(transaction, session, at, fresh, state=state)
        if tail is not None:
            transaction.after.append(lambda: writer.forget_rows(tail))
        writer.take_frames(session)

    async def expire(self, session: int, *, unless_after: int, at: int) -> bool:
        """Erase a session as `delete` does, but say that it is `expired`; return False where
        something is open in it, or happened after `unless_after`, and leave it as it is.

        What is left of it in the write-ahead log is gone when `emptied` returns.

        Raises:
            JournalUnavailable: it could not be stored.
        """
        fresh = self._fresh.now()

        def begin(transaction: Transaction) -> bool | None:
            transaction.flush()
            if not may_expire(transaction, session, unless_after):
                return None
            self._begin_erasing(transaction, session, at, fresh, "expired")
            return erase(transaction)

        def erase(transaction: Transaction) -> bool:
            transaction.freed = True
            return erase_some(transaction.connection, session)

        more = await self._job(begin)
        if more is None:
            return False
        self._frames.forget(session)
        while more:
            more = await self._job(erase)
        return True

    async def sizes(self, *, owner: str | None = None) -> dict[str, int]:
        """Return how many bytes the sessions of each backend take, or those of one owner."""
        return await self._ask(lambda c: _reader.read_sizes(c, self._tails, owner))

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
        return await self._ask(
            lambda c: _reader.read_oldest(
                c, self._tails, before=before, backend=backend, owner=owner, limit=limit
            )
        )

    async def newest(self) -> int:
        """Return when the last of all that is stored happened, in Unix milliseconds, or 0."""
        return await self._ask(lambda c: _reader.read_newest_time(c, self._tails))

    async def prune_frames(self, *, before: int) -> int:
        """Erase source frames older than `before` (Unix ms) and return how many batches that were.

        Raises:
            JournalUnavailable: it could not be stored.
        """

        def prune(transaction: Transaction) -> int:
            # Their pages are overwritten: no write may wait long for that.
            return prune_some_frames(transaction, before, 256)

        total = 0
        while pruned := await self._job(prune):
            total += pruned
        if total:
            await self.emptied()
        return total


def _fill(transaction: Transaction) -> None:
    """Store more than fits into what is free in a full file."""
    # So many bytes tell whether the disk has room again.
    transaction.connection.execute(
        "INSERT OR REPLACE INTO meta (name, value) VALUES ('tried', zeroblob(?))", (256 * 1024,)
    )


def _empty(transaction: Transaction) -> None:
    transaction.connection.execute("DELETE FROM meta WHERE name = 'tried'")


class TemporaryJournal(SqliteJournal):
    """The journal in a temporary file that `aclose` removes; never synced to the disk.

    Args:
        options: As for `SqliteJournal`.
    """

    def __init__(self, **options: Any) -> None:
        folder = tempfile.mkdtemp(prefix="dragoman-")
        super().__init__(Path(folder) / "journal.db", synced=False, **options)
        # One that is never closed is removed with the object, or when the process ends.
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    async def aclose(self) -> None:
        """Close the file and remove it."""
        await super().aclose()
        await asyncio.to_thread(self._remove)
