"""Fan-out: one encoder per session, dialect and thread, many readers of its frames.

A `Feed` turns entries into frames once. A reader that is up to date gets each write straight on its
transport, framed once for all; one that falls behind, or comes with an older cursor, reads on from
the frames in memory or from the journal, by itself, until it is up to date again. So a slow reader
holds up nobody, and costs no more memory than its transport's buffer.

The encoder's state goes to the journal at intervals. So an older cursor, or the first reader after
a restart, costs the same however long the log is: what is read in vain is at most the entries
between two snapshots.

Why one module: a feed and its readers know each other; what goes from one to the other is the hot
path.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import dataclasses
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)

from adapters.model.base import Encoder, Frame
from adapters.model.events import Entry
from proxy.base import metrics
from proxy.base.errors import UNREADABLE, JournalUnavailable, damaged
from proxy.base.rows import StoredSnapshot
from proxy.journal.base import Journal
from proxy.recording.session import RecordedExchange

_log = logging.getLogger(__name__)

RING_BYTES = 64 * 1024
"""Frames that a feed keeps in memory for readers that come back soon, a few seconds of a fast
model; the journal has the rest."""

RING_FRAMES = 4
LARGE_RING_BYTES = 8 * 1024 * 1024
"""The newest frames, and all of the newest write, are kept also where they are large, up to so many
bytes: each reader writes them when it has its turn, and to make them again would take longer."""

WARM_ENTRIES = 16
"""Entries that are encoded though nobody reads: at the start of a session, and after its last
reader. The answer to the next message names a cursor, which then needs nothing from the journal."""

SNAPSHOT_ENTRIES = 56
"""Entries between two snapshots of an encoder: what a reader with an older cursor decodes and
encodes in vain. They take about 4 % of what these entries take on disk."""

SNAPSHOT_BYTES = 256 * 1024
"""A snapshot that is larger, by a long open block, waits for as many times the entries. Eve's has
the text of the open block, as each of its records has; this is one of some 50,000 tokens."""

SNAPSHOT_TIMES = 6
"""One that is more times as large waits longer still, with the square of its size: else those of a
block of some MiB are a hundred times its text."""

SNAPSHOT_MOST = 2 * 1024 * 1024
"""A longer snapshot is not kept: to read it would hold up everybody."""

PUBLISH_ENTRIES = 128
"""Entries of one write that a feed encodes at once, for each face: what has more, as the end
of a turn that leaves hundreds of calls behind, is read from the journal by steps."""

FIRST_ROWS = SNAPSHOT_ENTRIES + 8
"""Rows of the first look at history: what a cursor asks for is within, and is not behind more than
some entries that show nothing. Each look is twice as long as the one before."""

STEP_ENTRIES = 64
"""Entries of history that are read without a pause."""

WRITE_BYTES = 32 * 1024
"""Frames of a backlog are joined into writes of about this size (libraries: 16 to 64 kB)."""

LARGE_BYTES = 2 * WRITE_BYTES
"""Bytes above which a write takes its turn: with readers by the hundred a larger one is more than a
turn's work, and no write of a model that writes text is as large."""

AT_ONCE_BYTES = 512 * 1024
"""Bytes of all readers together that a write may still have where it is larger than that.
A fast model with one reader brings more than `LARGE_BYTES` at once."""

TRANSPORT_BYTES = 256 * 1024
"""Bytes waiting in a transport above which its reader is slow; asyncio's own high mark is 64 kB."""


@dataclasses.dataclass(slots=True, eq=False)
class Feed:
    """The frames of one face on one thread of a session.

    Who reads history takes one of `slots` for each piece, so that a thousand who come back at once
    are served one after the other, and those who are up to date hardly notice.
    """

    journal: Journal
    key: int
    session_id: str
    make_encoder: Callable[[], Encoder]
    head: Callable[[], int]
    _: dataclasses.KW_ONLY
    name: str = ""
    prepare: Callable[[], Awaitable[None]] | None = None
    slots: asyncio.Semaphore = dataclasses.field(default_factory=asyncio.Semaphore)
    encoder: Encoder = dataclasses.field(init=False)
    _seq: int = dataclasses.field(default=0, init=False)
    # The newest entry that somebody wanted.
    _read_seq: int = dataclasses.field(default=0, init=False)
    _ring: list[Frame] = dataclasses.field(default_factory=list, init=False)
    _ring_bytes: int = dataclasses.field(default=0, init=False)
    _ring_start: int = dataclasses.field(default=0, init=False)
    _kind: str = dataclasses.field(init=False)
    # The seq of the newest snapshot, and that from which on the next one is taken.
    _marked: int = dataclasses.field(default=0, init=False)
    _due: int = dataclasses.field(init=False)
    _catching_up: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock, init=False)
    readers: set[Reader] = dataclasses.field(default_factory=set, init=False)
    closed: bool = dataclasses.field(default=False, init=False)
    ended: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        self.encoder = self.make_encoder()
        self._kind = f"frames/{self.name}"
        # Sessions that began together, as after an outage, do not all take theirs at once.
        self._due = SNAPSHOT_ENTRIES - self.key % SNAPSHOT_ENTRIES // 2

    @property
    def next_cursor(self) -> int:
        """Return the cursor that the next frame will have, as far as the feed has read."""
        return self.encoder.next_cursor

    @property
    def behind(self) -> bool:
        """Say whether the feed has not read all that is stored."""
        return self._seq < self.head()

    @property
    def used(self) -> bool:
        """Say whether somebody reads, or will as soon as the feed has caught up."""
        return bool(self.readers) or self._catching_up.locked()

    def publish(self, entries: Sequence[Entry]) -> None:
        """Take entries that are stored; they follow what the feed has, or the feed is behind and
        catches up later."""
        if not entries or entries[0].seq != self._seq + 1:
            if entries and entries[-1].seq <= self._seq:
                # A reader that came meanwhile made the feed read them, and the others do not know.
                for reader in self.readers:
                    reader.wake()
            return
        if self.readers:
            self._read_seq = entries[-1].seq
        elif self._seq >= self._read_seq + WARM_ENTRIES:
            return
        if len(entries) > PUBLISH_ENTRIES:
            for reader in self.readers:
                reader.wake()
            return
        frames: list[Frame] = []
        encoder = self.encoder
        before = encoder.next_cursor
        for entry in entries:
            frames += encoder.feed(entry.without_quote())
            if entry.seq >= self._due:
                self._mark(entry.seq, frames)
        self._seq = entries[-1].seq
        if frames:
            self._keep(frames)
            self._deliver(frames, before)

    def _mark(self, seq: int, frames: Sequence[Frame]) -> None:
        """Give the encoder's state after entry `seq` to the journal: a cache, without it only
        reading older cursors is slower. `frames` are the newest ones."""
        self._due = seq + SNAPSHOT_ENTRIES
        if self.ended or any(frame.end == "session" for frame in frames):
            # The end is not part of an encoder's state: readers that come later meet it in the log.
            return
        data = self.encoder.snapshot()
        if len(data) > SNAPSHOT_MOST:
            self._due = seq + SNAPSHOT_ENTRIES * (SNAPSHOT_MOST // SNAPSHOT_BYTES)
            return
        times = max(len(data) / SNAPSHOT_BYTES, 1)
        due = self._marked + round(SNAPSHOT_ENTRIES * times * max(times / SNAPSHOT_TIMES, 1))
        if seq < due and times > 1:
            # To make it again only to see that it is still too large would cost as much.
            self._due = max(self._due, due)
            return
        self._marked = seq
        self._store(self.encoder, seq, data)

    def keep(self, encoder: Encoder, seq: int) -> bool:
        """Give the state of an encoder after entry `seq`, which was not the end of the session, to
        the journal; say whether it is short enough for that."""
        data = encoder.snapshot()
        if len(data) > SNAPSHOT_MOST:
            return False
        self._store(encoder, seq, data)
        return True

    def _store(self, encoder: Encoder, seq: int, data: bytes) -> None:
        snapshot = StoredSnapshot(
            self._kind, self._version(encoder), encoder.next_cursor, seq, data
        )
        self.journal.add_snapshot(self.key, snapshot)

    @staticmethod
    def _version(encoder: Encoder) -> int:
        return encoder.version << 32 | encoder.shape

    async def encoder_at(
        self, position: int | None = None, *, seq: int | None = None
    ) -> tuple[Encoder, int]:
        """Return an encoder at most an interval of entries before cursor `position`, or before the
        entry after `seq`, or before the end of the log, and the seq of the last entry that it was
        fed with."""
        encoder = self.make_encoder()
        version = self._version(encoder)
        found = await self.journal.snapshot(self.key, self._kind, version, cursor=position, seq=seq)
        if found is not None:
            try:
                encoder.restore(found.data)
            except (ValueError, TypeError, KeyError) as error:
                _log.warning("session `%s`: a snapshot is of no use: %s", self.session_id, error)
                metrics.count_unusable_snapshot(self._kind)
                return self.make_encoder(), 0
            return encoder, found.seq
        return encoder, 0

    def _keep(self, frames: Sequence[Frame]) -> None:
        ring = self._ring
        ring.extend(frames)
        size = self._ring_bytes
        for frame in frames:
            size += len(frame.data)
            if frame.end == "session":
                self.ended = True
        self._ring_bytes = size
        if size > RING_BYTES:
            self._trim(max(len(frames), RING_FRAMES))

    def _trim(self, newest: int) -> None:
        """Forget the oldest frames, down to three quarters of the ring; of the `newest` only those
        beyond its larger bound."""
        ring, size, old = self._ring, self._ring_bytes, 0
        while old < len(ring) - 1 and (
            size > LARGE_RING_BYTES or (size > RING_BYTES * 3 // 4 and old < len(ring) - newest)
        ):
            size -= len(ring[old].data)
            # Cursors may have gaps: what lies between is nobody's.
            self._ring_start = ring[old].cursor + 1
            old += 1
        if old:
            del ring[:old]
        self._ring_bytes = size

    def _place(self, position: int) -> int:
        """Return the place in memory of the first frame from `position` on."""
        ring = self._ring
        place = position - ring[0].cursor
        if 0 <= place < len(ring) and ring[place].cursor == position:
            return place
        return bisect.bisect_left(ring, position, key=lambda frame: frame.cursor)

    def _deliver(self, frames: Sequence[Frame], before: int) -> None:
        """Write new frames to the readers that have all up to cursor `before`; wake the others.
        Large ones each reader writes by itself: for many of them that is more than a turn's work.
        """
        if len(frames) == 1:
            first, data, end, _ = frames[0]
            after, ends = first + 1, end is not None
        else:
            first, after = frames[0].cursor, frames[-1].cursor + 1
            data = b"".join([frame.data for frame in frames])
            ends = any(frame.end is not None for frame in frames)
        if len(data) > LARGE_BYTES and len(data) * len(self.readers) > AT_ONCE_BYTES:
            for reader in self.readers:
                reader.wake()
            return
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        now = asyncio.get_running_loop().time()
        for reader in self.readers:
            up_to_date = reader.live and before <= reader.position <= first
            if up_to_date and not (ends and reader.minds_ends):
                reader.deliver(data, chunk, after, now)
            else:
                reader.wake()

    async def catch_up(self) -> None:
        """Read the journal up to its end, so that `next_cursor` is the session's."""
        async with self._catching_up:
            if self.prepare is not None:
                await self.prepare()
                self.prepare = None
            if self._seq < self.head():
                async with self.slots:
                    await self._read_up()
            self._read_seq = self._seq

    async def _read_up(self) -> None:
        if not self._seq and self.head() > SNAPSHOT_ENTRIES:
            await self._skip()
        while self._seq < self.head():
            async for chunk in self.journal.scan(self.key, after=self._seq):
                async for entry in entries_by_steps(chunk.body, self.session_id):
                    self._take(entry)
                if self._seq >= self.head():
                    # To look for more would cost another round to the journal's threads.
                    break

    def _take(self, entry: Entry) -> None:
        if entry.seq == self._seq + 1:
            frames = self.encoder.feed(entry.without_quote())
            self._seq = entry.seq
            self._keep(frames)
            if entry.seq >= self._due:
                self._mark(entry.seq, frames)

    async def _skip(self) -> None:
        """Begin at the newest snapshot: what is before it is read when somebody asks for it."""
        encoder, seq = await self.encoder_at()
        if not self._seq:
            self.encoder = encoder
            self._seq = self._marked = seq
            self._due = seq + SNAPSHOT_ENTRIES
            self._ring_start = encoder.next_cursor

    async def read(self, position: int) -> AsyncIterator[list[Frame]]:
        """Yield the frames from `position` up to where the feed is, in pieces for one write
        each."""
        while position < self.next_cursor:
            if position < self._ring_start:
                before = position
                async for frames in self._history(position):
                    yield frames
                    position = frames[-1].cursor + 1
                if position == before:
                    metrics.HOLES.inc()
                    raise JournalUnavailable(f"the journal lacks the frame at cursor {position}")
                continue
            piece: list[Frame] = []
            size = 0
            for index in range(self._place(position), len(self._ring)):
                frame = self._ring[index]
                piece.append(frame)
                size += len(frame.data)
                if size >= WRITE_BYTES:
                    break
            if not piece:
                metrics.HOLES.inc()
                raise JournalUnavailable(f"no frame is at cursor {position} or after")
            yield piece
            position = piece[-1].cursor + 1

    async def _history(self, position: int) -> AsyncIterator[list[Frame]]:
        """Yield the frames from `position` to the oldest one in memory, encoded anew from the
        journal."""
        async with contextlib.aclosing(self._encoded(position)) as pieces:
            while True:
                async with self.slots:
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                # Nobody waits for a reader that is slow.
                yield piece

    async def _encoded(self, position: int) -> AsyncGenerator[list[Frame]]:
        encoder, after = await self.encoder_at(position)
        pieces = _Pieces(encoder, self.session_id, position, after, lambda: self._seq)
        async for chunk in self.journal.scan(self.key, after=after, rows=FIRST_ROWS):
            async for piece in pieces.of(chunk.body):
                first = pieces.small
                yield piece
                if piece[-1].cursor + 1 >= self._ring_start:
                    return
                if first:
                    # One that comes back at the same time has a first frame before the rest: in one
                    # turn of the loop it is seen, in the next one heard, then answered.
                    for _ in range(3):
                        await asyncio.sleep(0)
            if pieces.after >= self._seq:
                break
        if pieces.rest:
            yield pieces.rest

    def close(self) -> None:
        """End all readers: the session is gone from memory, or the server stops."""
        self.closed = True
        for reader in self.readers:
            reader.wake()


@dataclasses.dataclass(slots=True, eq=False)
class _Pieces:
    """The frames of a log from a cursor on, up to the seq `end`, in pieces for one write each.

    The first frame goes out at once, also where it is behind one that shows nothing (a comment),
    later ones in writes of a good size. `after` is the seq that was read last, `small` whether the
    last piece was one of the first, `rest` what is not a piece yet.
    """

    encoder: Encoder
    session_id: str
    position: int
    after: int
    end: Callable[[], int]
    small: bool = dataclasses.field(default=False, init=False)
    rest: list[Frame] = dataclasses.field(default_factory=list, init=False)
    _size: int = dataclasses.field(default=0, init=False)
    _enough: int = dataclasses.field(default=1, init=False)

    async def of(self, body: bytes) -> AsyncIterator[list[Frame]]:
        """Yield the pieces of a journal's chunk."""
        async for entry in entries_by_steps(body, self.session_id):
            if entry.seq > self.end():
                return
            if entry.seq > self.after:
                self.after = entry.seq
                for frame in self.encoder.feed(entry.without_quote()):
                    if frame.cursor >= self.position:
                        self.rest.append(frame)
                        self._size += len(frame.data)
            if self._size >= self._enough:
                # What is smaller may be a comment only, and the first frame is still to come.
                self.small = self._enough < 512
                self._enough = min(2 * self._size, WRITE_BYTES)
                piece, self.rest, self._size = self.rest, [], 0
                yield piece


@dataclasses.dataclass(slots=True, eq=False)
class Reader:
    """One open response. `position` is the cursor of the next frame it needs, `taken` where it is
    recorded."""

    transport: asyncio.WriteTransport
    _: dataclasses.KW_ONLY
    position: int
    chunked: bool
    minds_ends: bool
    live: bool = dataclasses.field(default=False, init=False)
    last_write: float = dataclasses.field(default=0.0, init=False)
    taken: RecordedExchange | None = dataclasses.field(default=None, init=False)
    _wake: asyncio.Future[None] | None = dataclasses.field(default=None, init=False)

    def deliver(self, data: bytes, chunk: bytes, position: int, now: float) -> None:
        """Write frames straight to the transport; a reader that does not keep up stops being
        live."""
        transport = self.transport
        if transport.is_closing() or transport.get_write_buffer_size() > TRANSPORT_BYTES:
            self.live = False
            self.wake()
            return
        if self.taken is not None:
            self.taken.received(data)
        transport.write(chunk if self.chunked else data)
        self.position = position
        self.last_write = now

    def wake(self) -> None:
        """Let the response's task look again."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Wait until woken, at most `seconds`; say whether woken."""
        loop = asyncio.get_running_loop()
        self._wake = wake = loop.create_future()
        handle = loop.call_later(seconds, _expire, wake)
        try:
            return await wake is None
        except TimeoutError:
            return False
        finally:
            handle.cancel()
            self._wake = None


def _expire(wake: asyncio.Future[None]) -> None:
    if not wake.done():
        wake.set_exception(TimeoutError())


def entries_in(body: bytes, session_id: str) -> Iterator[Entry]:
    """Yield the entries of a journal chunk's body; each is decoded when it is asked for.

    Raises:
        JournalCorrupt: there is something else in it.
    """
    for line in body.split(b"\n"):
        if line:
            yield entry_of(line, session_id)


async def entries_by_steps(body: bytes, session_id: str) -> AsyncIterator[Entry]:
    """Yield the entries of a journal chunk's body; others have their turn between some of them.

    Raises:
        JournalCorrupt: there is something else in it.
    """
    for number, entry in enumerate(entries_in(body, session_id), 1):
        yield entry
        if not number % STEP_ENTRIES:
            await asyncio.sleep(0)


def entries_of(body: bytes, session_id: str) -> list[Entry]:
    """Return the entries of a journal chunk's body.

    Raises:
        JournalCorrupt: there is something else in it.
    """
    return list(entries_in(body, session_id))


def entry_of(line: bytes, session_id: str) -> Entry:
    """Return the entry of one line of a chunk's body.

    Raises:
        JournalCorrupt: it is something else.
    """
    try:
        return Entry.decode(line, session_id=session_id)
    except UNREADABLE as error:
        raise damaged(f"a part of the log of session `{session_id}`", error) from error


@dataclasses.dataclass(frozen=True, slots=True)
class FeedKey:
    """What a feed is for."""

    dialect: str
    thread_id: str
    form: str = ""
