"""The writer of the SQLite journal: one thread, one connection, one transaction for all that waits.

The event loop puts writes and jobs in a queue; the thread takes what is there, stores it in one
transaction and tells the loop once for each commit. What one commit costs (some CPU and an
`fdatasync`) is shared by all that is in it: so two commits begin at least `window_ms` apart, which
lets writes gather. After two pauses that brought nothing, or little more of the same session, the
next ones are skipped: a lone writer that waits for each commit is hardly delayed.

Events are appended in the order of arrival, so a commit writes one page whatever the number of its
sessions. The index of a session's rows is written late (`_index_some`), a few pages at a time, in
transactions of its own; until then an `UnindexedRows` of each session holds it in memory, and after
a crash they are rebuilt from the rows above the indexed ones.

A sync that fails is never tried again, see `is_failed_sync`: the writer stores nothing more, and
what it stored before is what the next start finds. So checkpoints are made here, where an error is
heard of.

Why one module: the thread's loop and the work that it does for later share when there is time for
what.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import apsw

from proxy.base import metrics
from proxy.base.errors import (
    UNREADABLE,
    JournalError,
    JournalUnavailable,
    SequenceConflict,
    SessionClosed,
    SessionNotFound,
    damaged,
)
from proxy.base.rows import StoredSnapshot
from proxy.journal._changes import (
    INSERT_INDEX,
    INSERT_POSITION,
    Mark,
    Transaction,
    apply_rest,
    begin_erasing,
    erase_some,
    erase_unnamed,
    insert_frames,
    insert_rows,
    insert_session,
    insert_snapshot,
)
from proxy.journal._database import WriterLock, connect_writer, is_failed_sync, translate
from proxy.journal._frames import FrameBatch
from proxy.journal._staging import unstage_all
from proxy.journal._unindexed_rows import UnindexedRows, recover_tails
from proxy.journal.base import Write

logger = logging.getLogger(__name__)

BATCH_ITEMS = 1024
"""What a transaction has at most: more would not be cheaper."""

LONE_ITEMS = 4
"""What one session may store at once and still be a lone writer."""

INDEX_CHUNK = 256
"""Index entries for each transaction: so few that no write waits long for them."""

KNOWN_TAILS = 4096
"""Sessions whose last seq stays in memory, half a kilobyte each; it is soon found again. More of
them let the memory of a busy server grow for an hour."""

SNAPSHOTS_WAITING_BYTES = 8 * 1024 * 1024
"""Bytes of snapshots that wait for the disk; beyond that new ones are dropped: they are a cache.
Those of a long block have megabytes each, made faster than they are stored."""

VACUUM_SECONDS = 0.01
"""The least time between two such steps: each is a commit, and the disk is the writes' first."""

CHECKPOINT_PAGES = 1000
"""Pages in the write-ahead log that begin a checkpoint: SQLite's own number."""

RETRY_SECONDS = 1.0
"""How long work for later rests after it failed: a full disk stays full for a while."""

# What a write or a job can do wrong by itself: the others of its transaction are stored without it.
_OWN_FAULTS = (
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.TooBigError,
    JournalError,
    OverflowError,
    TypeError,
    ValueError,
)


class Job:
    """Something else to do in a transaction; `future` gets its result once that is on disk."""

    __slots__ = ("_result", "_run", "future")

    def __init__(self, run: Callable[[Transaction], Any], future: asyncio.Future[Any]) -> None:
        self._run = run
        self._result: Any = None
        self.future = future

    def run(self, transaction: Transaction) -> None:
        """Do it, in the writer's thread."""
        self._result = self._run(transaction)

    def done(self, error: JournalError | None) -> None:
        """Hand over the outcome, in the event loop."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(self._result)
        else:
            self.future.set_exception(error)


@dataclasses.dataclass(frozen=True, slots=True)
class PendingSnapshot:
    """A snapshot on its way to the disk."""

    session: int
    snapshot: StoredSnapshot


@dataclasses.dataclass(frozen=True, slots=True)
class WalTruncation:
    """Somebody waits until the write-ahead log, which may hold erased text, is empty."""

    future: asyncio.Future[None]


Item = Write | Job
"""Writes that are handed over at once, in order."""

Background = FrameBatch | PendingSnapshot | WalTruncation
Settled = Callable[[list[Item], dict[int, JournalError], int], None]


class JournalWriter:
    """The writing thread. `start` and `stop` are awaited in the event loop that `settled` and
    `failed` are called in.
    """

    def __init__(
        self,
        path: Path,
        settled: Settled,
        failed: Callable[[JournalError], None],
        *,
        window_ms: float,
        index_rows: int,
        index_seconds: float,
        synced: bool = True,
    ) -> None:
        self.tails: dict[int, UnindexedRows] = {}
        self.stored = 0
        self._row = 0
        self._path = path
        self._lock = WriterLock(path)
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Future[None]
        self._connection: apsw.Connection
        self._settled = settled
        self._failed = failed
        self._failure: JournalError | None = None
        self._log_pages = 0
        self._synced = synced
        self._window = window_ms / 1000
        self._index_rows = index_rows
        self._index_seconds = index_seconds
        self._queue: queue.SimpleQueue[Item | Background | None] = queue.SimpleQueue()
        self._frames: list[FrameBatch] = []
        self._snapshots: collections.deque[PendingSnapshot] = collections.deque()
        # Bytes that were ever handed over, and that were ever taken off: by two threads.
        self._snapshots_put = 0
        self._snapshots_gone = 0
        self._snapshots_due = 0.0
        self._began = 0.0
        # Pauses still to skip, and pauses in a row that brought nothing.
        self._skips = 0
        self._vain = 0
        self._stopping = False
        # Work for later: sessions with rows to index, those of the index round under way, when the
        # next one is due.
        self._dirty: list[int] = []
        self._round: list[int] = []
        self._round_row = 0
        self._unindexed = 0
        self._index_due: float | None = None
        self._truncate_due: float | None = None
        self._emptying: list[asyncio.Future[None]] = []
        self._vacuum_due: float | None = None
        self._rest_until = 0.0

    async def start(self) -> None:
        """Open the file in the thread.

        Raises:
            JournalUnavailable: it cannot be opened or written, or another process writes it.
            JournalCorrupt: it is damaged or from a newer version.
        """
        self._loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = self._loop.create_future()
        self._stopped = self._loop.create_future()
        # A daemon: a program that ends without closing the journal loses nothing that was
        # acknowledged.
        threading.Thread(
            target=self._run, args=(started,), name="journal-writer", daemon=True
        ).start()
        try:
            await started
        except asyncio.CancelledError:
            self._queue.put(None)
            raise

    async def stop(self) -> None:
        """Store everything that was put, index it and close the file."""
        self._queue.put(None)
        await self._stopped

    def put(self, item: Item | Background) -> None:
        """Hand over writes, a job, frames or a snapshot; never blocks."""
        if isinstance(item, PendingSnapshot):
            if self._snapshots_put - self._snapshots_gone > SNAPSHOTS_WAITING_BYTES:
                return
            self._snapshots_put += len(item.snapshot.data)
        self._queue.put(item)

    def _run(self, started: asyncio.Future[None]) -> None:
        try:
            self._lock.acquire()
            self._connection = connect_writer(self._path, synced=self._synced)
            self._connection.set_wal_hook(self._note_log)
        except JournalError as error:
            self._lock.release()
            self._resolve(started, error)
            return
        try:
            self._recover()
        except (apsw.Error, *UNREADABLE) as error:
            self._connection.close(True)
            self._lock.release()
            if isinstance(error, apsw.Error):
                self._resolve(started, translate(error, self._path))
            else:
                self._resolve(started, damaged(f"`{self._path}`", error))
            return
        self._tell_killed()
        self._resolve(started, None)
        try:
            while not self._stopping:
                begun = time.thread_time()
                batch, size = self._take()
                if batch:
                    self._store(batch, size)
                    ended = time.thread_time()
                    metrics.COMMITS["writes"].add(len(batch), ended - begun)
                    begun = ended
                if self._do_later_work():
                    metrics.COMMITS["later"].add(1, time.thread_time() - begun)
                if self._log_pages >= CHECKPOINT_PAGES:
                    self._checkpoint()
            self._close()
        finally:
            self._resolve(self._stopped, None)

    def _note_log(self, _: apsw.Connection, name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Bring the write-ahead log into the file, as far as readers let it; the next commit tells
        whether more is left."""
        self._log_pages = 0
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:
            # On a full disk, say: all is in the log, and the next commit comes.
            self._hear_of(error)

    def _hear_of(self, error: BaseException) -> bool:
        """Store nothing more where an error is that of a failed sync; say whether it is."""
        if not isinstance(error, apsw.Error) or not is_failed_sync(error):
            return False
        self._failure = translate(error, self._path)
        self._tell(self._failed, self._failure)
        self._tell_emptied()
        return True

    def _resolve(self, future: asyncio.Future[None], error: JournalError | None) -> None:
        def resolve() -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._tell(resolve)

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop is closed: nobody is left to hear it.
            logger.warning("the journal's event loop was closed before the journal")

    def _tell_killed(self) -> None:
        """Say whether the process that wrote before this one was stopped."""
        killed = self._lock.killed
        metrics.KILLED.set(killed is not None)
        if killed is not None:
            logger.warning(
                "the process before (pid %s) did not stop in order: it was killed, or the machine "
                "failed; what the journal `%s` has of it is taken up",
                *(killed, self._path),
                extra={"kind": "killed", "pid": killed},
            )

    def _recover(self) -> None:
        connection = self._connection
        self.tails = recover_tails(connection)
        erasing = cast(
            "list[tuple[int, int, int, bool]]",
            connection.execute(
                "SELECT key, pruned, updated_at, erased_at IS NOT NULL FROM sessions"
                " WHERE erasing = 1"
            ).fetchall(),
        )
        for session, pruned, at, begun in erasing:
            if not begun:
                transaction = Transaction(connection, self.tails, 0)
                with connection:
                    begin_erasing(transaction, session, at, set())
                pruned = self.tails[session].last
            self.tails[session] = UnindexedRows(pruned, erased=True)
            while erase_some(connection, session):
                pass
            self._truncate_due = 0.0
        if unstage_all(connection):
            self._truncate_due = 0.0
        try:
            if erase_unnamed(connection):
                self._truncate_due = 0.0
        except apsw.Error as error:
            if is_failed_sync(error):
                raise
            # On a full disk, say: nobody has to wait for that, and the next start comes.
            logger.warning("files that no session names were not erased: %s", error)
        self._vacuum_due = time.monotonic() + RETRY_SECONDS
        newest = connection.execute("SELECT coalesce(max(row), 0) FROM events").get
        indexed = connection.execute("SELECT value FROM meta WHERE name = 'indexed'").get
        # Deleted rows may have been the newest: a number at or below the indexed one would never be
        # indexed.
        self._row = max(newest, indexed)
        for session, tail in self.tails.items():
            if tail.rows:
                self._dirty.append(session)
                self._unindexed += len(tail.rows)
        if self._unindexed:
            self._index_due = time.monotonic() + self._index_seconds

    def _take(self) -> tuple[list[Item], int]:
        """Wait for something to do and return what is to be stored in one transaction, and the
        bytes of its writes."""
        try:
            item = self._queue.get(timeout=self._patience())
        except queue.Empty:
            return [], 0
        pause = self._began + self._window - time.monotonic()
        paused = pause > 0 and not self._skips and self._queue.qsize() < BATCH_ITEMS
        if paused:
            time.sleep(pause)
        elif self._skips:
            self._skips -= 1
        self._began = time.monotonic()
        batch: list[Item] = []
        size = 0
        get = self._queue.get_nowait
        try:
            while True:
                if isinstance(item, Write):
                    batch.append(item)
                    size += item.size
                elif isinstance(item, Job):
                    batch.append(item)
                elif item is None:
                    self._stopping = True
                else:
                    self._put_off(item)
                if len(batch) >= BATCH_ITEMS or size >= 4 << 20:
                    break
                item = get()
        except queue.Empty:
            pass
        if len(batch) > LONE_ITEMS or (len(batch) > 1 and not _of_one_session(batch)):
            self._skips = self._vain = 0
        elif paused:
            self._vain += 1
            if self._vain > 1:
                # A lone writer waits for each commit: the next ones come without a pause.
                self._skips = 16
        return batch, size

    def _put_off(self, item: Background) -> None:
        if isinstance(item, FrameBatch):
            self._frames.append(item)
        elif isinstance(item, PendingSnapshot):
            if not self._snapshots:
                # It waits for others: it is a cache, and a transaction costs more than it.
                self._snapshots_due = time.monotonic() + 0.5
            self._snapshots.append(item)
        else:
            self._emptying.append(item.future)
            self._truncate_due = 0.0
            if self._failure is not None:
                self._tell_emptied()

    def _patience(self) -> float | None:
        """Return how many seconds nothing needs to be done if nothing comes; None is for ever."""
        if self._failure is not None:
            return None
        dues = (self._index_due, self._truncate_due, self._vacuum_due)
        due = [due for due in dues if due is not None]
        if self._frames or self._round:
            due.append(0.0)
        elif self._snapshots:
            due.append(self._snapshots_due)
        if not due:
            return None
        return max(min(due), self._rest_until, (now := time.monotonic())) - now

    def _store(self, batch: list[Item], size: int) -> None:
        """Store a batch in one transaction and tell the loop, whatever happens."""
        errors: dict[int, JournalError] = {}
        if self._failure is not None:
            self._fail(batch, errors, self._failure)
        else:
            self._store_together(batch, errors)
        self._tell(self._settled, batch, errors, size)

    def _store_together(self, batch: list[Item], errors: dict[int, JournalError]) -> None:
        transaction = Transaction(self._connection, self.tails, self._row)
        try:
            for index, item in enumerate(batch):
                self._apply(transaction, item, index, errors)
            transaction.flush()
            self._commit(transaction)
        except _OWN_FAULTS:
            self._undo(transaction)
            errors.clear()
            self._store_singly(batch, errors)
        except apsw.Error as error:
            self._hear_of(error)
            self._undo(transaction)
            self._fail(batch, errors, translate(error, self._path))
        except Exception:
            logger.exception("the journal's writer failed")
            self._undo(transaction)
            self._fail(
                batch, errors, JournalUnavailable("the journal's writer failed, see the log")
            )

    def _store_singly(self, batch: list[Item], errors: dict[int, JournalError]) -> None:
        """Store what is right of a batch in which something is wrong, still in one transaction."""
        transaction = Transaction(self._connection, self.tails, self._row)
        execute = self._connection.execute
        try:
            transaction.begin()
            for index, item in enumerate(batch):
                execute("SAVEPOINT item")
                mark = transaction.mark()
                try:
                    self._apply(transaction, item, index, errors)
                    transaction.flush()
                except _OWN_FAULTS as error:
                    execute("ROLLBACK TO item")
                    transaction.undo(mark)
                    errors[index] = self._own_fault(error)
                execute("RELEASE item")
            self._commit(transaction)
        except apsw.Error as error:
            self._hear_of(error)
            self._undo(transaction)
            self._fail(batch, errors, translate(error, self._path))

    def _fail(
        self, batch: list[Item], errors: dict[int, JournalError], error: JournalError
    ) -> None:
        # An instance for each: anybody who awaits one raises it, and adds a traceback of its own.
        for index in range(len(batch)):
            errors[index] = type(error)(error.whole)

    def _apply(
        self, transaction: Transaction, item: Item, index: int, errors: dict[int, JournalError]
    ) -> None:
        if isinstance(item, Job):
            transaction.begin()
            transaction.flush()
            item.run(transaction)
            return
        tail = self.tails.get(item.session)
        if item.new is not None:
            transaction.begin()
            tail = insert_session(transaction, item.new)
        elif tail is None or tail.erased:
            try:
                tail = transaction.tail(item.session)
            except (SessionNotFound, SessionClosed) as error:
                errors[index] = error
                return
        if item.count:
            if item.first != tail.next:
                errors[index] = SequenceConflict(
                    f"session {item.session}: seq {tail.next} is next, not {item.first}"
                )
                return
            transaction.append(
                tail,
                item.session,
                item.first,
                item.count,
                item.body,
                item.at,
                leg=item.leg,
                position=item.position,
            )
        if (
            item.commands
            or item.new_leg is not None
            or item.leg_state is not None
            or item.state is not None
            or (item.position is not None and not item.count)
            or item.native_id is not None
            or item.title is not None
            or item.archived_at is not None
            or item.outcome is not None
            or item.aliases
            or item.takes
            or item.blobs
        ):
            transaction.begin()
            apply_rest(transaction, item, tail)

    def _commit(self, transaction: Transaction) -> None:
        if transaction.begun:
            self._connection.execute("COMMIT")
        self._row = transaction.row
        for tail, session, first, row, last, at, leg, position, size in transaction.notes:
            if not tail.rows:
                self._dirty.append(session)
            tail.rows.append((first, row))
            tail.last = last
            self.stored += last - first + 1
            tail.size += size
            if at > tail.at:
                tail.at = at
            if position is not None:
                tail.positions[leg] = (row, position)
        if transaction.notes:
            if not self._unindexed:
                self._index_due = time.monotonic() + self._index_seconds
            self._unindexed += len(transaction.notes)
        elif len(self.tails) > KNOWN_TAILS and self._index_due is None and not self._round:
            # Sessions that are read, and whose names and commands are stored, have no rows to
            # index: the round only forgets them.
            self._index_due = time.monotonic() + self._index_seconds
        for callback in transaction.after:
            callback()
        if transaction.freed and self._vacuum_due is None:
            self._vacuum_due = time.monotonic() + VACUUM_SECONDS

    def _undo(self, transaction: Transaction) -> None:
        self._roll_back()
        transaction.undo(Mark())

    def _roll_back(self) -> None:
        # Some errors, a full disk among them, have rolled back already.
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except apsw.Error:
                logger.exception("the journal could not roll back")

    def _do_later_work(self) -> bool:
        """Do a little of what need not happen at once, in a transaction of its own; say whether
        there was any."""
        now = time.monotonic()
        if self._failure is not None or now < self._rest_until:
            return False
        try:
            if self._emptying and self._truncate_due is not None and now >= self._truncate_due:
                self._truncate()
            elif self._frames:
                self._store_frames(self._next_frames())
            elif self._snapshots and now >= self._snapshots_due:
                self._store_snapshots()
            elif self._round:
                self._index_some()
            elif self._unindexed >= self._index_rows or (
                self._index_due is not None and now >= self._index_due
            ):
                self._begin_round()
            elif self._truncate_due is not None and now >= self._truncate_due:
                self._truncate()
            elif self._vacuum_due is not None and now >= self._vacuum_due:
                self._give_back_some()
            else:
                return False
        except (apsw.Error, *UNREADABLE) as error:
            # The thread must go on whatever it reads: everybody's writes are its work.
            if not self._hear_of(error):
                logger.warning("the journal puts off its index and source frames: %s", error)
            metrics.POSTPONED.inc()
            self._rest_until = now + RETRY_SECONDS
            self._roll_back()
        return True

    def _next_frames(self) -> list[FrameBatch]:
        size = count = 0
        for batch in self._frames:
            size += batch.size
            count += 1
            # They are compressed in the transaction, and no write is to wait long for it.
            if size >= 128 * 1024:
                break
        taken = self._frames[:count]
        del self._frames[:count]
        return taken

    def _store_frames(self, batches: list[FrameBatch]) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for batch in batches:
            insert_frames(self._connection, batch)
        execute("COMMIT")

    def _store_snapshots(self) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        # So few that no write waits long for them.
        for _ in range(min(64, len(self._snapshots))):
            kept = self._snapshots.popleft()
            self._snapshots_gone += len(kept.snapshot.data)
            insert_snapshot(self._connection, kept.session, kept.snapshot)
        execute("COMMIT")

    def take_frames(self, session: int, leg: int | None = None) -> list[FrameBatch]:
        """Return the frames of a session, or of one leg, that are not stored, and forget them."""
        taken: list[FrameBatch] = []
        kept: list[FrameBatch] = []
        for batch in self._frames:
            wanted = batch.session == session and leg in (None, batch.leg)
            (taken if wanted else kept).append(batch)
        self._frames = kept
        return taken

    def _begin_round(self) -> None:
        self._index_due = None
        self._round = sorted(self._dirty, reverse=True)
        self._dirty = []
        self._round_row = self._row
        if not self._round:
            self._unindexed = 0
            self._drop_tails()

    def _index_some(self) -> None:
        """Index the next sessions of the round; sorted, so that their entries share pages."""
        entries: list[tuple[int, int, int]] = []
        positions: list[tuple[int, int, int, bytes]] = []
        sums: list[tuple[int, int, int, int]] = []
        summed: list[UnindexedRows] = []
        indexed: list[tuple[UnindexedRows, int]] = []
        left = self._round.copy()
        while left and len(entries) < INDEX_CHUNK:
            session = left[-1]
            tail = self.tails.get(session)
            if tail is None or tail.erased:
                left.pop()
                continue
            rows = tail.rows[: INDEX_CHUNK - len(entries)]
            entries += [(session, first, row) for first, row in rows]
            indexed.append((tail, len(rows)))
            if len(rows) == len(tail.rows):
                left.pop()
                positions += [(session, leg, *value) for leg, value in tail.positions.items()]
                newest = rows[-1][1] if rows else 0
                sums.append((tail.at, tail.size, newest, session))
                summed.append(tail)
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        insert_rows(connection, INSERT_INDEX, entries)
        insert_rows(connection, INSERT_POSITION, positions)
        connection.execute(
            "UPDATE sessions SET updated_at = max(updated_at, value ->> 0),"
            " bytes = bytes + (value ->> 1), counted = max(counted, value ->> 2)"
            " FROM json_each(?) AS sums WHERE sessions.key = sums.value ->> 3",
            (json.dumps(sums),),
        )
        if not left:
            connection.execute(
                "UPDATE meta SET value = ? WHERE name = 'indexed'", (self._round_row,)
            )
        connection.execute("COMMIT")
        self._round = left
        for tail, count in indexed:
            del tail.rows[:count]
            self._unindexed -= count
        for tail in summed:
            tail.size = 0
        for session, leg, *_ in positions:
            del self.tails[session].positions[leg]
        if not left:
            if self._unindexed:
                self._index_due = time.monotonic() + self._index_seconds
            self._drop_tails()

    def _drop_tails(self) -> None:
        """Forget sessions that the index knows whole, where too many are remembered."""
        if len(self.tails) <= KNOWN_TAILS:
            return
        for session, tail in list(self.tails.items()):
            if not tail.rows and not tail.positions:
                del self.tails[session]

    def forget_rows(self, tail: UnindexedRows) -> None:
        """Drop a session's rows from the work for later: they are in the index already."""
        self._unindexed -= len(tail.rows)
        tail.rows.clear()
        tail.positions.clear()
        tail.size = 0

    def _give_back_some(self) -> None:
        """Give some free pages back to the disk; the file shrinks when they have all gone."""
        connection = self._connection
        free = int(connection.pragma("freelist_count"))
        # 1 MiB stays free for what comes next; so little is given back that no write waits long.
        spare = min(free - 256, 64)
        if spare > 0:
            connection.execute(f"PRAGMA incremental_vacuum({spare})").fetchall()
            self._vacuum_due = time.monotonic() + VACUUM_SECONDS
            if connection.pragma("freelist_count") < free:
                return
        self._vacuum_due = None
        self._truncate()

    def _truncate(self) -> None:
        """Empty the write-ahead log, which may hold erased text; later, if a reader is at work."""
        # Who has waited too long is not waited for.
        self._emptying = [future for future in self._emptying if not future.done()]
        # A reader may hold the write-ahead log while somebody waits for its end. Each look costs a
        # checkpoint of what is new.
        wait = 0.02 if self._emptying else RETRY_SECONDS
        self._truncate_due = time.monotonic() + wait
        connection = self._connection
        timeout = int(connection.pragma("busy_timeout"))
        connection.set_busy_timeout(0)
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            if not self._hear_of(error) and not isinstance(error, apsw.BusyError):
                logger.warning("the journal could not empty its write-ahead log: %s", error)
            return
        finally:
            connection.set_busy_timeout(timeout)
        self._truncate_due = None
        self._tell_emptied()

    def _tell_emptied(self) -> None:
        for future in self._emptying:
            self._resolve(future, self._failure)
        self._emptying = []

    def _close(self) -> None:
        self._rest_until = self._snapshots_due = 0.0
        while not self._rest_until and self._failure is None:
            if not (self._frames or self._snapshots or self._round or self._dirty):
                break
            if not (self._frames or self._snapshots or self._round):
                self._begin_round()
            self._do_later_work()
        try:
            if self._failure is None:
                self._checkpoint()
            if self._failure is None:
                # SQLite removes the log when it has made sure that nothing is in it.
                self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            self._connection.close()
        except apsw.Error:
            logger.exception("the journal could not be closed")
        self._tell_emptied()
        self._lock.release()

    def _own_fault(self, error: BaseException) -> JournalError:
        if isinstance(error, JournalError):
            return error
        if isinstance(error, apsw.ConstraintError):
            return translate(error, self._path)
        return JournalUnavailable(f"the journal cannot store this: {error}")


def _of_one_session(batch: Sequence[Item]) -> bool:
    return len({one.session for one in batch if isinstance(one, Write)}) < 2
