"""Fan-out: one encoder per session, dialect and thread, many readers of its frames.

A `Feed` turns entries into frames once. A reader that is up to date gets each write straight on its
transport, framed once for all;
one that falls behind, or comes with an older cursor, reads on from the frames in memory or from the
journal, by itself,
until it is up to date again. So a slow reader holds up nobody, and costs no more memory than its
transport's buffer.
"""

from __future__ import annotations

import asyncio
import bisect
import collections
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence

from adapters.base import Encoder, Frame
from adapters.events import Entry
from proxy.errors import JournalUnavailable
from proxy.journal.base import Journal

RING_BYTES = 256 * 1024
"""Frames that a feed keeps in memory for readers that come back soon; the journal has the rest."""

WARM_ENTRIES = 16
"""Entries of a new session that are encoded though nobody reads yet: whoever made it reads next,
and then needs nothing from the journal."""

MARK_ENTRIES = 1024
"""Entries between two marks of a feed: what a reader with an older cursor reads at most in vain."""

MARKS = 64
"""Marks that a feed keeps; when there are more, every other one goes, and the distance doubles."""

WRITE_BYTES = 32 * 1024
"""Frames of a backlog are joined into writes of about this size (libraries: 16 to 64 kB)."""

TRANSPORT_BYTES = 256 * 1024
"""Bytes waiting in a transport above which its reader is slow; asyncio's own high mark is 64 kB."""


class Feed:
    """The frames of one face on one thread of a session."""

    def __init__(
        self,
        journal: Journal,
        key: int,
        session_id: str,
        make_encoder: Callable[[], Encoder],
        head: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._key = key
        self._session_id = session_id
        self._make_encoder = make_encoder
        self._head = head
        self.encoder = make_encoder()
        self._seq = 0
        self._ring: collections.deque[Frame] = collections.deque()
        self._ring_bytes = 0
        self._ring_start = 0
        # Encoder states on the way, so that an older cursor does not cost the whole log: (cursor,
        # seq, snapshot).
        self._marks: list[tuple[int, int, bytes]] = []
        self._mark_every = MARK_ENTRIES
        self._catching_up = asyncio.Lock()
        self.readers: set[Reader] = set()
        self.closed = False
        self.ended = False

    @property
    def next_cursor(self) -> int:
        """Return the cursor that the next frame will have, as far as the feed has read."""
        return self.encoder.next_cursor

    @property
    def used(self) -> bool:
        """Say whether somebody reads, or will as soon as the feed has caught up."""
        return bool(self.readers) or self._catching_up.locked()

    def publish(self, entries: Sequence[Entry]) -> None:
        """Take entries that are stored; they follow what the feed has, or the feed is behind and
        catches up later."""
        if not entries or entries[0].seq != self._seq + 1:
            return
        if not self.readers and self._seq >= WARM_ENTRIES:
            return
        frames: list[Frame] = []
        before = self.next_cursor
        for entry in entries:
            frames += self.encoder.feed(entry)
        self._seq = entries[-1].seq
        self._mark()
        if frames:
            self._keep(frames)
            self._deliver(frames, before)

    def _mark(self) -> None:
        """Remember the encoder's state now and then: a cache, only reading older cursors is slower
        without it."""
        if self._seq < (self._marks[-1][1] if self._marks else 0) + self._mark_every:
            return
        self._marks.append((self.next_cursor, self._seq, self.encoder.snapshot()))
        if len(self._marks) > MARKS:
            self._marks = self._marks[1::2]
            self._mark_every *= 2

    def _keep(self, frames: Sequence[Frame]) -> None:
        ring = self._ring
        for frame in frames:
            ring.append(frame)
            self._ring_bytes += len(frame.data)
            self.ended = self.ended or frame.end == "session"
        while self._ring_bytes > RING_BYTES and len(ring) > 1:
            oldest = ring.popleft()
            self._ring_bytes -= len(oldest.data)
            # Cursors may have gaps: what lies between is nobody's.
            self._ring_start = oldest.cursor + 1

    def _place(self, position: int) -> int:
        """Return the place in memory of the first frame from `position` on."""
        ring = self._ring
        place = position - ring[0].cursor
        if 0 <= place < len(ring) and ring[place].cursor == position:
            return place
        return bisect.bisect_left(ring, position, key=lambda frame: frame.cursor)

    def _deliver(self, frames: Sequence[Frame], before: int) -> None:
        """Write new frames to the readers that have all up to cursor `before`; wake the others."""
        data = frames[0].data if len(frames) == 1 else b"".join(frame.data for frame in frames)
        first, last = frames[0].cursor, frames[-1]
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        ends = any(frame.end is not None for frame in frames)
        now = asyncio.get_running_loop().time()
        for reader in self.readers:
            up_to_date = reader.live and before <= reader.position <= first
            if up_to_date and not (ends and reader.minds_ends):
                reader.deliver(data, chunk, last.cursor + 1, now)
            else:
                reader.wake()

    async def catch_up(self) -> None:
        """Read the journal up to its end, so that `next_cursor` is the session's."""
        async with self._catching_up:
            while self._seq < self._head():
                async for chunk in self._journal.scan(self._key, after=self._seq):
                    frames: list[Frame] = []
                    for entry in entries_of(chunk.body, self._session_id):
                        if entry.seq == self._seq + 1:
                            self._seq = entry.seq
                            frames += self.encoder.feed(entry)
                    self._keep(frames)
                    self._mark()
                    if self._seq >= self._head():
                        # To look for more would cost another round to the journal's threads.
                        break

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
                raise JournalUnavailable(f"no frame is at cursor {position} or after")
            yield piece
            position = piece[-1].cursor + 1

    async def _history(self, position: int) -> AsyncIterator[list[Frame]]:
        """Yield the frames from `position` to the oldest one in memory, encoded anew from the
        journal."""
        encoder = self._make_encoder()
        after = 0
        place = bisect.bisect_right(self._marks, position, key=lambda mark: mark[0])
        if place:
            _, after, snapshot = self._marks[place - 1]
            encoder.restore(snapshot)
        piece: list[Frame] = []
        size = 0
        async for chunk in self._journal.scan(self._key, after=after):
            for entry in entries_of(chunk.body, self._session_id):
                if entry.seq <= after:
                    continue
                if entry.seq > self._seq:
                    break
                for frame in encoder.feed(entry):
                    if frame.cursor >= position:
                        piece.append(frame)
                        size += len(frame.data)
            if size >= WRITE_BYTES:
                yield piece
                position = piece[-1].cursor + 1
                piece, size = [], 0
                if position >= self._ring_start:
                    return
        if piece:
            yield piece

    def close(self) -> None:
        """End all readers: the session is gone from memory, or the server stops."""
        self.closed = True
        for reader in self.readers:
            reader.wake()


class Reader:
    """One open response. `position` is the cursor of the next frame it needs."""

    __slots__ = ("_wake", "chunked", "last_write", "live", "minds_ends", "position", "transport")

    def __init__(
        self, transport: asyncio.WriteTransport, *, position: int, chunked: bool, minds_ends: bool
    ) -> None:
        self.transport = transport
        self.position = position
        self.chunked = chunked
        self.minds_ends = minds_ends
        self.live = False
        self.last_write = 0.0
        self._wake: asyncio.Future[None] | None = None

    def deliver(self, data: bytes, chunk: bytes, position: int, now: float) -> None:
        """Write frames straight to the transport; a reader that does not keep up stops being
        live."""
        transport = self.transport
        if transport.is_closing() or transport.get_write_buffer_size() > TRANSPORT_BYTES:
            self.live = False
            self.wake()
            return
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


def entries_of(body: bytes, session_id: str) -> list[Entry]:
    """Return the entries of a journal chunk's body."""
    return [Entry.decode(line, session_id=session_id) for line in body.split(b"\n") if line]


@dataclasses.dataclass(frozen=True, slots=True)
class FeedKey:
    """What a feed is for."""

    dialect: str
    form: str
    thread_id: str
