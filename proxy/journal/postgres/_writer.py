"""The writer of the PostgreSQL journal: one connection, one transaction for all that waits.

A task takes what waits, stores it in one transaction, tells everybody, and looks again: while one
commit is on its way the next gathers. Between commits it does what need not happen at once: source
frames, snapshots, the sums of sessions.

Each transaction checks that nobody has taken this node's place (`Fence`). When the connection
breaks nobody knows what became of the last commit. The next connection begins a new epoch, which
waits until the old transaction is over; then a row that it would have stored tells whether it was.
For `PATIENCE_SECONDS` everything waits for that. After that all that waits is refused, and nothing
is read or written before there is a connection: so what is refused and is there nevertheless is
found by the next load of its session.

Why one module: the task decides what a broken connection means for all that it does.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg

from proxy.base import metrics
from proxy.base.errors import JournalError, JournalUnavailable
from proxy.base.rows import StoredSnapshot
from proxy.journal._frames import FrameBatch
from proxy.journal.base import Write
from proxy.journal.postgres._changes import (
    Fenced,
    Gathered,
    Tail,
    check_fence,
    count_rows,
    fault,
    insert_frames,
    insert_snapshots,
    is_rare,
    read_tails,
    store_rare,
)
from proxy.journal.postgres._database import (
    DATABASE_ERRORS,
    OWN_FAULTS,
    Connection,
    Database,
    closed,
    is_away,
)
from proxy.journal.postgres._node import Node

_log = logging.getLogger(__name__)

BATCH_ITEMS = 1024
"""Writes that one transaction has at most."""

BATCH_BYTES = 4 << 20
"""Bytes of events after which a transaction takes no more writes."""

LONE_ITEMS = 4
"""What one session may store at once and wait for no others."""

PATIENCE_SECONDS = 10.0
"""How long writes and questions wait for a server that is away."""

RETRY_SECONDS = 0.25
"""The pause between two attempts to reach it."""

LATER_SECONDS = 0.5
"""How long frames, snapshots and sums gather."""

KNOWN_TAILS = 4096
"""Sessions whose next seq stays in memory; it is soon found again."""

SNAPSHOTS_WAITING_BYTES = 8 * 1024 * 1024
"""Bytes of snapshots that wait; beyond that new ones are dropped: they are a cache."""

_ATTEMPTS = 5
"""How often a transaction is tried that another one was in the way of."""

_IN_THE_WAY = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


async def _nothing(connection: Connection) -> None:
    """Do no more than what each transaction does."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WriterJob:
    """Something else to do in a transaction of its own, in order with the writes."""

    run: Callable[[Connection], Awaitable[Any]]
    future: asyncio.Future[Any]
    after: Callable[[], None] | None = None
    """Called once it is stored."""


Settled = Callable[[Sequence[Write], dict[int, JournalError], int], None]
"""Hears of a batch: its writes, the errors by their places in it, its bytes."""


class PostgresWriter:
    """The writing task. What it is given is stored in order.

    Args:
        database: Where.
        node: Who.
        settled: Hears what became of writes.
        failed: Hears when nothing can be stored any more, since another has the node's place.
        kept: Returns the blobs that other writes of this node are still to name.
        window_ms: The least time between the begins of two commits of several sessions.
    """

    def __init__(
        self,
        database: Database,
        node: Node,
        settled: Settled,
        failed: Callable[[JournalError], None],
        kept: Callable[[], frozenset[str]],
        *,
        window_ms: float,
    ) -> None:
        self.stored = 0
        self.connected = asyncio.Event()
        self._database = database
        self._node = node
        self._settled = settled
        self._failed = failed
        self._kept = kept
        self._window = window_ms / 1000
        self._connection: asyncpg.Connection | None = None
        self._failure: JournalError | None = None
        self._queue: collections.deque[Write | WriterJob] = collections.deque()
        self._news = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._tails: collections.OrderedDict[int, Tail] = collections.OrderedDict()
        self._away_since: float | None = None
        self._refusal: JournalError | None = None
        self._began = 0.0
        self._alone = True
        self._frames: list[FrameBatch] = []
        self._snapshots: list[tuple[int, StoredSnapshot]] = []
        self._snapshots_bytes = 0
        self._uncounted: dict[int, None] = {}
        self._later_due: float | None = None

    async def start(self) -> None:
        """Connect, and begin.

        Raises:
            JournalUnavailable: there is no connection to be had.
        """
        self._connection = await self._database.connect()
        self.connected.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="journal writer")

    async def stop(self) -> None:
        """Store what was put, then hang up."""
        self._stopping = True
        self._news.set()
        if self._task is not None:
            await self._task
        await closed(self._connection)
        self._connection = None

    def put(self, item: Write | WriterJob) -> None:
        """Hand over a write or a job; never blocks."""
        self._queue.append(item)
        self._news.set()

    def put_frames(self, batch: FrameBatch) -> None:
        """Hand over frames, which are stored soon after."""
        self._frames.append(batch)
        self._do_later()

    def put_snapshot(self, session: int, snapshot: StoredSnapshot) -> None:
        """Hand over a snapshot, which is stored soon after, or dropped."""
        if self._snapshots_bytes > SNAPSHOTS_WAITING_BYTES:
            return
        self._snapshots_bytes += len(snapshot.data)
        self._snapshots.append((session, snapshot))
        self._do_later()

    def forget(self, session: int) -> None:
        """Forget what is known of a session: it may be gone."""
        self._tails.pop(session, None)

    async def job(
        self, run: Callable[[Connection], Awaitable[Any]], after: Callable[[], None] | None = None
    ) -> Any:
        """Do something in a transaction of its own, after all that was put, and return its result
        once that is stored; `after` is called before any later write is looked at.

        Raises:
            JournalError: it was not stored, or `run` raised it.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.put(WriterJob(run, future, after))
        return await future

    def post(self, run: Callable[[Connection], Awaitable[Any]]) -> None:
        """Do something in order with the writes, whose outcome nobody waits for; never blocks."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.put(WriterJob(run, future))

    def check(self) -> None:
        """Find out whether the server is there, where nothing else that is to be done tells it."""
        if self.connected.is_set() and not self._queue:
            self.post(_nothing)

    @property
    def refusal(self) -> JournalError | None:
        """Return why all is refused now: the server is away for longer than anybody waits."""
        return self._refusal

    async def flush(self) -> None:
        """Store the frames and sums that wait to be stored later.

        Raises:
            JournalError: they could not be stored.
        """
        frames, sessions = self._frames, list(self._uncounted)
        if not frames and not sessions:
            return

        async def run(connection: Connection) -> None:
            await count_rows(connection, sessions)
            await insert_frames(connection, frames)

        await self.job(run, lambda: self._stored_later(frames, (), sessions))

    # The task.

    async def _run(self) -> None:
        while True:
            await self._wait()
            if self._queue:
                if isinstance(first := self._queue[0], WriterJob):
                    self._queue.popleft()
                    await self._do(first)
                else:
                    await self._store(*self._take())
            elif self._stopping:
                await self._finish()
                return
            elif self._later_due is not None and time.monotonic() >= self._later_due:
                await self._store_some_later()
            elif self._is_away:
                await self._come_back()

    @property
    def _is_away(self) -> bool:
        return self._away_since is not None and self._failure is None

    async def _come_back(self) -> None:
        """Try to connect again: those who ask wait for that, and may have nothing to store."""
        try:
            await self._connect_again()
        except Fenced as error:
            self._fail(error)
        except JournalError:
            return

    async def _wait(self) -> None:
        """Wait until there is something to do, and for others to join it."""
        if not self._queue and not self._stopping:
            self._news.clear()
            wait = None
            if self._later_due is not None:
                wait = max(self._later_due - time.monotonic(), 0)
            if self._is_away:
                wait = RETRY_SECONDS if wait is None else min(wait, RETRY_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()
        pause = self._began + self._window - time.monotonic()
        if pause > 0 and not self._alone and self._queue and len(self._queue) < BATCH_ITEMS:
            await asyncio.sleep(pause)
        self._began = time.monotonic()

    def _take(self) -> tuple[list[Write], int]:
        """Return the writes of the next transaction, and their bytes."""
        batch: list[Write] = []
        size = 0
        queue = self._queue
        while queue and len(batch) < BATCH_ITEMS and size < BATCH_BYTES:
            if isinstance(item := queue[0], WriterJob):
                break
            batch.append(item)
            size += item.size
            queue.popleft()
        sessions = {write.session for write in batch}
        self._alone = len(sessions) == 1 and len(batch) <= LONE_ITEMS
        return batch, size

    async def _store(self, batch: list[Write], size: int) -> None:
        """Store a batch in one transaction and tell everybody, whatever happens."""
        errors: dict[int, JournalError] = {}
        begun = time.thread_time()
        try:
            await self._until_decided(lambda c: self._store_batch(c, batch, errors), batch)
        except JournalError as error:
            # An instance for each: anybody who awaits one raises it.
            errors = {index: type(error)(error.whole) for index in range(len(batch))}
        except Exception:  # noqa: BLE001 - everybody's writes are its work
            _log.exception("the journal's writer failed")
            text = "the journal's writer failed, see the log"
            errors = {index: JournalUnavailable(text) for index in range(len(batch))}
        if errors:
            for index in errors:
                self._tails.pop(batch[index].session, None)
        stored = False
        for index, write in enumerate(batch):
            if write.count and index not in errors:
                self.stored += write.count
                self._uncounted[write.session] = None
                stored = True
        if stored:
            self._do_later()
        metrics.COMMITS["writes"].add(len(batch), time.thread_time() - begun)
        self._settled(batch, errors, size)

    async def _do(self, job: WriterJob) -> None:
        try:
            result = await self._until_decided(lambda c: self._transaction(c, job.run), ())
        except JournalError as error:
            if not job.future.done():
                job.future.set_exception(error)
        except OWN_FAULTS as error:
            if not job.future.done():
                job.future.set_exception(self._own_fault(error))
        except Exception:  # noqa: BLE001 - everybody's writes are its work
            _log.exception("the journal's writer failed")
            if not job.future.done():
                text = "the journal's writer failed, see the log"
                job.future.set_exception(JournalUnavailable(text))
        else:
            if job.after is not None:
                job.after()
            if not job.future.done():
                job.future.set_result(result)

    async def _transaction(
        self, connection: Connection, run: Callable[[Connection], Awaitable[Any]]
    ) -> Any:
        async with connection.transaction():
            await check_fence(connection, self._node.fence)
            return await run(connection)

    # The connection.

    async def _until_decided(
        self, run: Callable[[Connection], Awaitable[Any]], batch: Sequence[Write]
    ) -> Any:
        """Run a transaction until it is known to be stored or not, while that takes no longer than
        the patience with a server that is away.

        Raises:
            JournalError: it is not stored; or the server is away, and nobody knows.
            Exception: what `run` raises itself.
        """
        for attempt in range(_ATTEMPTS):
            try:
                while True:
                    connection = await self._connected()
                    try:
                        return await run(connection)
                    except DATABASE_ERRORS as error:
                        if isinstance(error, OWN_FAULTS) or not is_away(error):
                            raise
                        self._lose(error)
                        if batch and await self._was_stored(batch):
                            return None
            except Fenced as error:
                self._fail(error)
                raise JournalUnavailable(error.whole) from error
            except _IN_THE_WAY as error:
                self._tails.clear()
                if attempt == _ATTEMPTS - 1:
                    raise self._database.translate(error) from error
            except OWN_FAULTS:
                raise
            except DATABASE_ERRORS as error:
                raise self._database.translate(error) from error
        raise AssertionError("the last attempt returns or raises")

    async def _connected(self) -> Connection:
        """Return the connection, a new one where the last broke.

        Raises:
            JournalUnavailable: there is none to be had for longer than anybody waits.
        """
        if self._failure is not None:
            raise JournalUnavailable(self._failure.whole)
        while (connection := self._connection) is None or connection.is_closed():
            if self._away_since is None:
                self._lose(ConnectionError("the connection was closed"))
            try:
                await self._connect_again()
            except JournalError as error:
                if isinstance(error, Fenced):
                    raise
                away = time.monotonic() - (self._away_since or 0.0)
                if away > PATIENCE_SECONDS or self._stopping:
                    self._refusal = error
                    raise
                await asyncio.sleep(RETRY_SECONDS)
        return connection

    def _lose(self, error: BaseException) -> None:
        """Read and write nothing before there is a new connection."""
        self.connected.clear()
        self._tails.clear()
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        if self._away_since is None:
            self._away_since = time.monotonic()
            _log.warning(
                "the journal `%s` has lost its connection: %s",
                *(self._database.shown, str(error) or type(error).__name__),
                extra={"kind": "journal_away"},
            )

    async def _connect_again(self) -> None:
        """Connect, and make sure that nothing of an older connection is under way any more.

        Raises:
            Fenced: another has this node's place.
            JournalUnavailable: there is no connection to be had.
        """
        connection = await self._database.connect()
        try:
            await self._node.begin_epoch(connection)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, DATABASE_ERRORS):
                raise self._database.translate(error) from error
            raise
        self._connection = connection
        _log.info(
            "the journal `%s` is connected again, after %.1f s",
            *(self._database.shown, time.monotonic() - (self._away_since or 0.0)),
            extra={"kind": "journal_connected"},
        )
        self._away_since = self._refusal = None
        self.connected.set()

    async def _was_stored(self, batch: Sequence[Write]) -> bool:
        """Say whether the transaction of a batch was stored, whose connection broke: all of it was,
        or nothing. One without events is done again, which changes nothing."""
        event = next(((w.session, w.first) for w in batch if w.count), None)
        if event is None:
            return False
        text = "SELECT EXISTS (SELECT FROM dragoman.events WHERE session = $1 AND first = $2)"
        while True:
            connection = await self._connected()
            try:
                return bool(await connection.fetchval(text, *event))
            except DATABASE_ERRORS as error:
                if not is_away(error):
                    raise
                self._lose(error)

    def _fail(self, error: JournalError) -> None:
        if self._failure is None:
            self._failure = error
            self._failed(error)

    # Batches.

    async def _store_batch(
        self, connection: Connection, batch: Sequence[Write], errors: dict[int, JournalError]
    ) -> None:
        errors.clear()
        await self._learn(connection, batch)
        try:
            if any(map(is_rare, batch)):
                await self._store_mixed(connection, batch, errors)
            else:
                gathered = Gathered()
                for index, write in enumerate(batch):
                    self._gather(gathered, write, index, errors)
                if gathered:
                    await gathered.store(connection, self._node.fence)
        except Fenced:
            raise
        except OWN_FAULTS:
            errors.clear()
            self._tails.clear()
            await self._learn(connection, batch)
            await self._store_singly(connection, batch, errors)

    async def _learn(self, connection: Connection, batch: Sequence[Write]) -> None:
        """Find out what is not known of the sessions of a batch."""
        tails = self._tails
        unknown = {w.session for w in batch if w.session not in tails and w.new is None}
        if unknown:
            tails.update(await read_tails(connection, unknown))
        while len(tails) > KNOWN_TAILS + len(batch):
            tails.popitem(last=False)

    def _gather(
        self, gathered: Gathered, write: Write, index: int, errors: dict[int, JournalError]
    ) -> None:
        tail = self._tails.get(write.session)
        error = fault(write, tail)
        if error is not None or tail is None:
            errors[index] = error or JournalUnavailable("the session is not known")
            return
        gathered.add(write, tail)

    async def _store_mixed(
        self, connection: Connection, batch: Sequence[Write], errors: dict[int, JournalError]
    ) -> None:
        """Store a batch in which some writes have rare parts; the first that is wrong ends it."""
        gathered = Gathered()
        async with connection.transaction():
            await check_fence(connection, self._node.fence)
            for index, write in enumerate(batch):
                if is_rare(write):
                    if (error := fault(write, self._tails.get(write.session))) is not None:
                        errors[index] = error
                        continue
                    await self._store_rare(connection, write)
                self._gather(gathered, write, index, errors)
            await gathered.store(connection, self._node.fence)

    async def _store_singly(
        self, connection: Connection, batch: Sequence[Write], errors: dict[int, JournalError]
    ) -> None:
        """Store what is right of a batch in which something is wrong, still in one transaction."""
        async with connection.transaction():
            await check_fence(connection, self._node.fence)
            for index, write in enumerate(batch):
                before = (
                    dataclasses.replace(tail) if (tail := self._tails.get(write.session)) else None
                )
                try:
                    async with connection.transaction():
                        if (error := fault(write, tail)) is not None:
                            raise error
                        if is_rare(write):
                            await self._store_rare(connection, write)
                        gathered = Gathered()
                        gathered.add(write, self._tails[write.session])
                        await gathered.store(connection, self._node.fence)
                except Fenced:
                    raise
                except OWN_FAULTS as error:
                    errors[index] = self._own_fault(error)
                    if before is None:
                        self._tails.pop(write.session, None)
                    else:
                        self._tails[write.session] = before

    async def _store_rare(self, connection: Connection, write: Write) -> None:
        await store_rare(connection, write, self._node.fence, set(self._kept()))
        if write.new is not None:
            self._tails[write.session] = Tail(1, {0})
        elif write.new_leg is not None:
            self._tails[write.session].legs = {
                *self._tails[write.session].legs,
                write.new_leg.number,
            }

    def _own_fault(self, error: BaseException) -> JournalError:
        if isinstance(error, JournalError):
            return error
        if isinstance(error, asyncpg.IntegrityConstraintViolationError):
            return self._database.translate(error)
        return JournalUnavailable(f"the journal cannot store this: {error}")

    # What need not happen at once.

    def _do_later(self) -> None:
        if self._later_due is None:
            self._later_due = time.monotonic() + LATER_SECONDS
            self._news.set()

    async def _store_some_later(self) -> bool:
        """Store a little of what need not happen at once: no write is to wait long for it. Say
        whether that succeeded."""
        connection = self._connection
        self._later_due = None
        if self._failure is not None:
            self._frames, self._snapshots, self._snapshots_bytes = [], [], 0
            self._uncounted.clear()
            return False
        begun = time.thread_time()
        sessions = list(self._uncounted)[:256]
        frames, snapshots = self._frames[:4], self._snapshots[:16]
        try:
            if connection is None or connection.is_closed():
                connection = await self._connected()
            async with connection.transaction():
                await check_fence(connection, self._node.fence)
                await count_rows(connection, sessions)
                await insert_frames(connection, frames)
                await insert_snapshots(connection, snapshots)
            self._stored_later(frames, snapshots, sessions)
        except (*DATABASE_ERRORS, JournalError) as error:
            metrics.POSTPONED.inc()
            if isinstance(error, Fenced):
                self._fail(error)
            elif is_away(error):
                self._lose(error)
            elif isinstance(error, OWN_FAULTS):
                # A cache, and source frames: what cannot be stored is not to hold up the others.
                _log.warning("the journal drops snapshots or source frames: %s", error)
                self._stored_later(frames, snapshots, ())
            else:
                _log.warning("the journal puts off its sums and source frames: %s", error)
            self._later_due = time.monotonic() + 1.0
            return False
        metrics.COMMITS["later"].add(1, time.thread_time() - begun)
        if self._frames or self._snapshots or self._uncounted:
            # More of it is due already.
            self._later_due = time.monotonic()
        return True

    def _stored_later(
        self,
        frames: Sequence[FrameBatch],
        snapshots: Sequence[tuple[int, StoredSnapshot]],
        sessions: Sequence[int],
    ) -> None:
        gone = set(map(id, frames))
        self._frames = [batch for batch in self._frames if id(batch) not in gone]
        gone = set(map(id, snapshots))
        self._snapshots = [one for one in self._snapshots if id(one) not in gone]
        self._snapshots_bytes = sum(len(snapshot.data) for _, snapshot in self._snapshots)
        for session in sessions:
            self._uncounted.pop(session, None)

    async def _finish(self) -> None:
        while self._later_due is not None and await self._store_some_later():
            pass
