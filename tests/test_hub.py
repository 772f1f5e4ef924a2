"""Fan-out: every reader gets every frame once and in order, however slow, late or many they are.

Readers are real (`write_stream`) over a transport of ours that takes bytes when a test says so.
Limits are small here, so that a few frames fill a ring, a write and a transport.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, cast

import pytest
from aiohttp import HttpVersion10, HttpVersion11, web
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.model.base import Encoder, Frame
from adapters.model.events import MAIN, Entry, Native
from proxy.base.rows import Chunk, StoredSnapshot
from proxy.fanout import hub, streams
from proxy.fanout.hub import STEP_ENTRIES, WARM_ENTRIES, Feed, Reader, entries_by_steps, entries_of
from proxy.fanout.streams import StreamPlan, write_stream
from tests.support.waiting import SOON_S

RING = 60
WRITE = 40
TRANSPORT = 100
LARGE = 70
HIGH = 50
"""Bytes in a transport above which `response.write` waits, as aiohttp's does at 64 kB."""

BEAT = b"~"


@pytest.fixture(autouse=True)
def small_limits() -> Iterator[None]:
    with limits():
        yield


def limits(publish: int = hub.PUBLISH_ENTRIES) -> Any:
    patch = pytest.MonkeyPatch()
    patch.setattr(hub, "RING_BYTES", RING)
    patch.setattr(hub, "WRITE_BYTES", WRITE)
    patch.setattr(hub, "TRANSPORT_BYTES", TRANSPORT)
    patch.setattr(hub, "PUBLISH_ENTRIES", publish)
    patch.setattr(hub, "LARGE_BYTES", LARGE)
    patch.setattr(hub, "AT_ONCE_BYTES", 2 * LARGE)
    patch.setattr(streams, "PIECE_BYTES", LARGE)

    class Undo:
        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            patch.undo()

    return Undo()


# What a feed is made of.

End = Literal["turn", "session"] | None


@dataclasses.dataclass(frozen=True)
class Step:
    """What one entry gives: so many frames, and the last one may end something."""

    frames: int = 1
    end: End = None
    skip: int = 0
    """Cursors that no frame has, before the first one of the frames."""


class Counting(Encoder):
    """Gives each frame its cursor as text: `<7>`; some with a tail, so that sizes differ."""

    dialect = "counting"
    version = 1
    made = 0

    def __init__(self) -> None:
        Counting.made += 1
        self.fed = 0

    def feed(self, entry: Entry) -> list[Frame]:
        self.fed += 1
        event = entry.event
        assert isinstance(event, Native)
        value = event.frame
        if value["frames"]:
            self.next_cursor += value["skip"]
        frames = []
        for number in range(value["frames"]):
            cursor = self.next_cursor
            end = value["end"] if number == value["frames"] - 1 else None
            data = b"<%d>" % cursor + b"." * (cursor % 3)
            frames.append(Frame(cursor, data, end, turn_id="t" if end else None))
            self.next_cursor = cursor + 1
        return frames

    def snapshot(self) -> bytes:
        return b"%d" % self.next_cursor

    def restore(self, snapshot: bytes) -> None:
        self.next_cursor = int(snapshot)


def cursors(data: bytes) -> list[int]:
    """Return the cursors of the frames in `data`, which must hold whole frames and nothing else."""
    assert re.fullmatch(rb"(<\d+>\.*|~)*", data), data
    return [int(found) for found in re.findall(rb"<(\d+)>", data)]


class Rows:
    """What a feed asks of its session's journal, with no thread in between: tests let the loop run
    step by step."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.snapshots: list[StoredSnapshot] = []

    async def scan(
        self, session: int, *, after: int = 0, rows: int | None = None
    ) -> AsyncIterator[Chunk]:
        for chunk in self.chunks:
            if chunk.first + chunk.count - 1 > after:
                yield chunk

    def add_snapshot(self, session: int, snapshot: StoredSnapshot) -> None:
        self.snapshots.append(snapshot)

    async def snapshot(
        self,
        session: int,
        kind: str,
        version: int,
        *,
        cursor: int | None = None,
        seq: int | None = None,
    ) -> StoredSnapshot | None:
        found = [one for one in self.snapshots if (one.kind, one.version) == (kind, version)]
        fitting = [one for one in found if cursor is None or one.cursor <= cursor]
        fitting = [one for one in fitting if seq is None or one.seq <= seq]
        return max(fitting, key=lambda one: one.cursor, default=None)


class Log:
    """A session's log, its feed, and the step between: stored, but not published yet."""

    def __init__(self, key: int = 1) -> None:
        self.journal = cast(Any, Rows())
        self.seq = 1
        self.stored = 1
        self.unpublished: list[list[Entry]] = []
        self.unshown: list[list[Entry]] = []
        self.feed = Feed(self.journal, key, "s", Counting, lambda: self.stored)
        # What every reader of all frames must have got in the end.
        self.frames: list[Frame] = []
        self._reference = Counting()
        self._key = key
        self._store([entry(1, Step(0))])

    def _store(self, entries: Sequence[Entry]) -> None:
        body = b"".join(one.encode_row() + b"\n" for one in entries)
        self.journal.chunks.append(Chunk(entries[0].seq, len(entries), body))
        for one in entries:
            self.frames += self._reference.feed(one)

    def store(self, *steps: Step) -> None:
        """Put entries on disk in one write; nobody hears of them yet."""
        entries = [entry(self.seq + n, step) for n, step in enumerate(steps, 1)]
        self.seq += len(entries)
        self.unpublished.append(entries)
        self._store(entries)

    def publish(self) -> None:
        """Let the feed hear of the oldest write that it has not heard of, as a session does."""
        entries = self.unpublished.pop(0)
        self.stored = entries[-1].seq
        if self.unshown:
            self.unshown.append(entries)
        else:
            self.feed.publish(entries)

    def announce(self) -> None:
        """Let the feed hear of the oldest write later, entry by entry, as a session does with a
        large one; what is stored after it waits."""
        entries = self.unpublished.pop(0)
        self.stored = entries[-1].seq
        self.unshown += [[entry] for entry in entries]

    def show(self) -> None:
        """Let the feed hear of the next of these entries."""
        self.feed.publish(self.unshown.pop(0))

    def say(self, *steps: Step) -> None:
        """Store and publish."""
        self.store(*steps)
        while self.unpublished:
            self.publish()

    def cursors(self, start: int = 0) -> list[int]:
        return [frame.cursor for frame in self.frames if frame.cursor >= start]


def entry(seq: int, step: Step) -> Entry:
    value = dataclasses.asdict(step)
    native = Native(thread_id=MAIN, dialect="counting", name="step", frame=value)
    return Entry(seq, 1000 + seq, "s", native)


@pytest.fixture
def log() -> Log:
    return Log()


# Who reads.


class Wire:
    """A transport, and the response on it, whose client takes bytes when a test says so."""

    def __init__(self, *, fast: bool = True, method: str = "GET") -> None:
        self.taken = b""
        self.waiting = b""
        self.writes = 0
        self.fast = fast
        self.gone = False
        self.ended = False
        self.room = asyncio.Event()
        self.more = asyncio.Event()
        # The parts of `web.Request` and `web.StreamResponse` that `write_stream` uses.
        self.version = HttpVersion11
        self.method = method
        self.chunked = False
        self.prepared = False

    # As a transport.

    def write(self, data: bytes) -> Awaitable[None]:
        self.writes += 1
        self.waiting += data
        self.more.set()
        if self.fast:
            self.take()
        return self._room()

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def get_extra_info(self, name: str) -> None:
        """Nothing is known of the socket: there is none."""

    def is_closing(self) -> bool:
        return self.gone

    def abort(self) -> None:
        self.gone = True

    # As a request and a response. Both halves have a `write`; one is awaited, the other is not.

    @property
    def transport(self) -> Wire:
        return self

    def enable_chunked_encoding(self) -> None:
        # The framing of chunks has its own test; here the frames are easier to see without.
        self.chunked = False

    async def prepare(self, request: object) -> None:
        self.prepared = True

    async def write_eof(self) -> None:
        self.ended = True

    def _room(self) -> Awaitable[None]:
        async def room() -> None:
            while len(self.waiting) > HIGH:
                self.room.clear()
                await self.room.wait()

        return _Lazy(room)

    # As the client.

    def take(self, size: int | None = None) -> None:
        """Read bytes off the wire."""
        size = len(self.waiting) if size is None else size
        self.taken += self.waiting[:size]
        self.waiting = self.waiting[size:]
        if len(self.waiting) <= HIGH:
            self.room.set()

    async def has(self, data: bytes, count: int) -> None:
        """Wait until these bytes have come that often."""
        async with asyncio.timeout(SOON_S):
            while (self.taken + self.waiting).count(data) < count:
                self.more.clear()
                await self.more.wait()

    @property
    def cursors(self) -> list[int]:
        return cursors(self.taken)


class _Lazy:
    """An awaitable that makes its coroutine only when it is awaited."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __await__(self) -> Any:
        return self._make().__await__()


class Readers:
    """Open streams, each in a task of its own."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.open: list[tuple[Wire, int, asyncio.Task[None]]] = []

    def join(
        self, position: int = 0, *, fast: bool = True, method: str = "GET", **plan: Any
    ) -> Wire:
        wire = Wire(fast=fast, method=method)
        whole = StreamPlan(
            **{"heartbeat": None, "heartbeat_seconds": 60.0, "write_timeout": 60.0, **plan}
        )
        work = write_stream(
            cast(web.Request, wire), cast(web.StreamResponse, wire), self.feed, position, whole
        )
        self.open.append((wire, position, asyncio.create_task(work)))
        return wire

    async def finished(self) -> None:
        """Wait until all streams have ended by themselves."""
        async with asyncio.timeout(SOON_S):
            await asyncio.gather(*(task for _, _, task in self.open))

    async def aclose(self) -> None:
        for _, _, task in self.open:
            task.cancel()
        await asyncio.gather(*(task for _, _, task in self.open), return_exceptions=True)


@pytest.fixture
async def readers(log: Log) -> AsyncIterator[Readers]:
    readers = Readers(log.feed)
    yield readers
    await readers.aclose()
    assert log.feed.readers == set()


async def rest() -> None:
    """Let every task run until all of them wait."""
    for _ in range(20):
        await asyncio.sleep(0)


# Tests.


async def test_a_reader_of_all_gets_history_then_live_without_gap_or_double(
    log: Log, readers: Readers
) -> None:
    log.say(*[Step()] * 30)
    wire = readers.join()
    await rest()
    assert wire.cursors == list(range(30))
    for _ in range(5):
        log.say(Step(2))
        assert wire.cursors == log.cursors(), "a live frame does not wait for a task"
    assert wire.cursors == list(range(40))


async def test_a_late_subscriber_starts_at_its_cursor(log: Log, readers: Readers) -> None:
    log.say(*[Step()] * 30)
    early, late, future = readers.join(2), readers.join(27), readers.join(33)
    await rest()
    assert early.cursors == list(range(2, 30))
    assert late.cursors == [27, 28, 29]
    assert future.cursors == []
    for _ in range(5):
        log.say(Step())
        await rest()
    assert early.cursors == list(range(2, 35))
    assert late.cursors == list(range(27, 35))
    assert future.cursors == [33, 34]


async def test_what_happens_while_history_is_written_comes_after_it(
    log: Log, readers: Readers
) -> None:
    log.say(*[Step()] * 40)
    wire = readers.join(fast=False)
    await rest()
    assert len(wire.waiting) > HIGH, "the reader is in the middle of its backlog"
    log.say(*[Step()] * 20)
    while wire.waiting:
        wire.take(7)
        await rest()
        log.say(Step()) if log.seq < 80 else None
    assert wire.cursors == log.cursors()


async def test_a_lagging_reader_holds_up_nobody_and_misses_nothing(
    log: Log, readers: Readers
) -> None:
    slow, quick = readers.join(fast=False), readers.join()
    await rest()
    for _ in range(100):
        log.say(Step())
    assert quick.cursors == log.cursors()
    # The frames that wait for it are in the journal, not in its transport.
    assert len(slow.waiting) < 2 * TRANSPORT
    for _ in range(200):
        slow.take(9)
        await rest()
    assert slow.taken + slow.waiting == quick.taken


async def test_memory_keeps_only_the_newest_frames(log: Log, readers: Readers) -> None:
    wire = readers.join()
    await rest()
    for _ in range(200):
        log.say(Step())
    kept = sum(len(frame.data) for frame in log.feed._ring)
    assert kept <= RING
    assert wire.cursors == log.cursors()
    # What has left memory comes from the journal.
    again = readers.join(3)
    for _ in range(20):
        await rest()
    assert again.cursors == log.cursors(3)


async def test_one_frame_larger_than_all_limits_passes(
    log: Log, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "RING_BYTES", 2)
    monkeypatch.setattr(hub, "WRITE_BYTES", 2)
    wire = readers.join(fast=False)
    await rest()
    log.say(*[Step()] * 5)
    while wire.waiting:
        wire.take()
        await rest()
    assert wire.cursors == log.cursors()


async def test_large_frames_are_kept_until_each_reader_has_written_them(
    log: Log, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "LARGE_BYTES", 2)
    monkeypatch.setattr(hub, "AT_ONCE_BYTES", 2)
    monkeypatch.setattr(hub, "RING_BYTES", 2)
    monkeypatch.setattr(streams, "PIECE_BYTES", 2)
    wires = [readers.join() for _ in range(5)]
    await rest()
    fed = cast(Counting, log.feed.encoder).fed
    made = Counting.made
    for _ in range(hub.RING_FRAMES):
        log.say(Step())
    # None is written where it comes: for many readers that were more than a turn's work.
    assert not any(wire.writes for wire in wires)
    await rest()
    assert all(wire.cursors == log.cursors() for wire in wires)
    assert cast(Counting, log.feed.encoder).fed == fed + hub.RING_FRAMES
    assert Counting.made == made


async def test_a_large_write_of_many_frames_is_kept_until_each_reader_has_written_it(
    log: Log, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "LARGE_BYTES", 2)
    monkeypatch.setattr(hub, "AT_ONCE_BYTES", 2)
    monkeypatch.setattr(hub, "RING_BYTES", 2)
    wires = [readers.join() for _ in range(5)]
    await rest()
    made = Counting.made
    log.say(*(Step() for _ in range(3 * hub.RING_FRAMES)))
    assert not any(wire.writes for wire in wires)
    await rest()
    assert all(wire.cursors == log.cursors() for wire in wires)
    assert Counting.made == made


async def test_a_large_write_goes_straight_to_readers_who_are_few(
    log: Log, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "LARGE_BYTES", 2)
    wires = [readers.join() for _ in range(2)]
    await rest()
    # `<0>`, `<1>.` and `<2>..`, then the same with 3 to 6.
    monkeypatch.setattr(hub, "AT_ONCE_BYTES", 12 * len(wires))
    log.say(Step(), Step(), Step())
    assert [wire.cursors for wire in wires] == [[0, 1, 2]] * 2
    log.say(Step(), Step(), Step(), Step())
    assert [wire.cursors for wire in wires] == [[0, 1, 2]] * 2


async def test_no_more_than_so_many_bytes_of_large_frames_are_kept(
    log: Log, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "RING_BYTES", 2)
    monkeypatch.setattr(hub, "LARGE_RING_BYTES", 8)
    readers.join()
    await rest()
    for _ in range(20):
        log.say(Step())
    assert 1 <= len(log.feed._ring) < hub.RING_FRAMES
    assert sum(len(frame.data) for frame in log.feed._ring) <= 8


async def test_who_comes_between_the_entries_of_a_large_write_keeps_nothing_from_the_others(
    log: Log, readers: Readers
) -> None:
    first = readers.join()
    await rest()
    log.store(Step(), Step(), Step())
    log.announce()
    log.show()
    second = readers.join()
    await rest()
    assert second.cursors == [0, 1, 2]
    log.show()
    await rest()
    assert first.cursors == [0, 1, 2]


async def test_who_comes_before_a_write_is_published_keeps_nothing_from_the_others(
    log: Log, readers: Readers
) -> None:
    first = readers.join()
    await rest()
    log.store(Step())
    log.announce()
    second = readers.join()
    await rest()
    assert (first.cursors, second.cursors) == ([], [0])
    log.show()
    await rest()
    assert first.cursors == [0]


async def test_many_readers_share_the_bytes_of_one_encoder(log: Log, readers: Readers) -> None:
    wires = [readers.join() for _ in range(50)]
    await rest()
    made, fed = Counting.made, cast(Counting, log.feed.encoder).fed
    log.say(Step(), Step(2))
    assert all(wire.cursors == [0, 1, 2] for wire in wires)
    assert all(wire.writes == 1 for wire in wires), "the frames of one write are one write"
    assert Counting.made == made
    assert cast(Counting, log.feed.encoder).fed == fed + 2
    first = wires[0].taken
    assert all(wire.taken is first or wire.taken == first for wire in wires)


async def test_readers_are_given_the_very_same_bytes(log: Log) -> None:
    given: list[bytes] = []

    class Recorder:
        def is_closing(self) -> bool:
            return False

        def get_write_buffer_size(self) -> int:
            return 0

        def write(self, data: bytes) -> None:
            given.append(data)

    await log.feed.catch_up()
    for _ in range(3):
        transport = cast(asyncio.WriteTransport, Recorder())
        reader = Reader(transport, position=0, chunked=True, minds_ends=False)
        reader.live = True
        log.feed.readers.add(reader)
    log.say(Step(2))
    assert given == [b"7\r\n<0><1>.\r\n"] * 3
    assert given[0] is given[1] is given[2]


async def test_without_readers_nothing_is_encoded(log: Log, readers: Readers) -> None:
    log.say(*[Step()] * 20)
    assert cast(Counting, log.feed.encoder).fed == 0
    await log.feed.catch_up()
    assert log.feed.next_cursor == 20
    wire = readers.join(18)
    await rest()
    log.say(Step())
    assert wire.cursors == [18, 19, 20]


async def test_the_cursor_after_the_last_reader_needs_nothing_from_the_journal(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.say(*[Step(1)] * 2 * WARM_ENTRIES)
    await log.feed.catch_up()
    monkeypatch.setattr(log.journal, "scan", None)
    log.say(Step(1))
    await log.feed.catch_up()
    assert log.feed.next_cursor == len(log.frames)


async def test_entries_that_give_no_frame_are_passed_over(log: Log, readers: Readers) -> None:
    wire = readers.join()
    await rest()
    log.say(Step(0))
    log.say(Step(0), Step(), Step(0))
    log.say(Step(0))
    log.say(Step())
    assert wire.cursors == [0, 1]


async def test_cursors_may_have_gaps(log: Log, readers: Readers) -> None:
    wire = readers.join()
    await rest()
    for number in range(30):
        log.say(Step(skip=number % 4))
    await rest()
    assert wire.cursors == log.cursors()
    assert wire.cursors != list(range(30))
    # A reader that comes back with a cursor that no frame has goes on with the next frame.
    for start in range(0, wire.cursors[-1], 5):
        again = readers.join(start)
        await rest()
        assert again.cursors == log.cursors(start)


# Ends.


async def test_the_end_of_the_session_ends_every_body(log: Log, readers: Readers) -> None:
    live, late = readers.join(), readers.join(1)
    await rest()
    log.say(Step(), Step(2, "session"))
    await readers.finished()
    assert (live.cursors, live.ended) == ([0, 1, 2], True)
    assert (late.cursors, late.ended) == ([1, 2], True)
    # And so it does for who comes after it.
    after = readers.join(2)
    await readers.finished()
    assert (after.cursors, after.ended) == ([2], True)


async def test_a_turn_ends_only_the_body_that_is_for_it(log: Log, readers: Readers) -> None:
    own, other, all_ = readers.join(turn="t"), readers.join(turn="u"), readers.join()
    await rest()
    log.say(Step(), Step(1, "turn"), Step())
    await rest()
    assert (own.cursors, own.ended) == ([0, 1], True)
    assert (other.cursors, other.ended) == ([0, 1, 2], False)
    assert (all_.cursors, all_.ended) == ([0, 1, 2], False)


async def test_a_bounded_read_ends_before_its_stop_or_where_the_log_ends(
    log: Log, readers: Readers
) -> None:
    log.say(*[Step()] * 5)
    part, whole, more = readers.join(stop=3), readers.join(stop=5), readers.join(stop=7)
    nothing, behind = readers.join(5, stop=5), readers.join(9, stop=5)
    await readers.finished()
    assert (part.cursors, part.ended) == ([0, 1, 2], True)
    assert (whole.cursors, whole.ended) == ([0, 1, 2, 3, 4], True)
    assert (more.cursors, more.ended) == ([0, 1, 2, 3, 4], True)
    assert (nothing.cursors, nothing.ended) == ([], True)
    assert (behind.cursors, behind.ended) == ([], True)


async def test_a_bounded_read_is_read_to_its_end_when_the_session_leaves_memory(
    log: Log, readers: Readers
) -> None:
    log.say(*[Step()] * 40)
    wire = readers.join(fast=False, stop=40)
    await rest()
    log.feed.close()
    wire.fast = True
    wire.take()
    await readers.finished()
    assert (wire.cursors, wire.ended) == (log.cursors(), True)


async def test_a_question_for_the_head_gets_no_body(log: Log, readers: Readers) -> None:
    log.say(Step())
    wire = readers.join(method="HEAD")
    await readers.finished()
    assert (wire.prepared, wire.writes) == (True, 0)


async def test_a_cursor_behind_the_end_of_the_session_gets_the_end(
    log: Log, readers: Readers
) -> None:
    log.say(Step(3), Step(1, "session"))
    # A client that had everything, and whose connection broke just before the body's end.
    wire = readers.join(4)
    await readers.finished()
    assert (wire.cursors, wire.ended) == ([], True)


@pytest.mark.parametrize("end", ["session", "close"])
async def test_an_end_that_comes_while_a_heartbeat_waits_for_room_is_not_missed(
    log: Log, readers: Readers, end: str
) -> None:
    wire = readers.join(fast=False, heartbeat=BEAT, heartbeat_seconds=0.01)
    await rest()
    # More than is written at once, less than makes the reader a slow one.
    while len(wire.waiting) <= HIGH:
        log.say(Step())
    await wire.has(BEAT, 1)
    if end == "session":
        log.say(Step(1, "session"))
    else:
        log.feed.close()
    wire.fast = True
    wire.take()
    await readers.finished()
    assert (wire.cursors, wire.ended) == (log.cursors(), True)
    assert wire.taken.count(BEAT) == 1


@pytest.mark.parametrize("fast", [True, False])
async def test_closing_the_feed_ends_every_body(log: Log, readers: Readers, fast: bool) -> None:
    log.say(*[Step()] * 3)
    wire = readers.join(fast=fast)
    await rest()
    log.feed.close()
    await readers.finished()
    wire.take()
    assert (wire.cursors, wire.ended) == ([0, 1, 2], True)


async def test_a_reader_that_has_left_is_forgotten(log: Log, readers: Readers) -> None:
    wire, other = readers.join(), readers.join()
    await rest()
    wire.gone = True
    log.say(Step())
    await rest()
    assert len(log.feed.readers) == 1
    assert (wire.cursors, other.cursors) == ([], [0])


async def test_a_stalled_reader_is_given_up_after_its_time(log: Log, readers: Readers) -> None:
    log.say(*[Step()] * 100)
    wire = readers.join(fast=False, write_timeout=0.01)
    await readers.finished()
    assert log.feed.readers == set()
    assert (wire.gone, wire.ended) == (True, False), "a cut body must not look like a whole one"
    wire.take()
    assert wire.cursors == log.cursors()[: len(wire.cursors)]


# Heartbeats.


async def test_heartbeats_come_while_nothing_happens_and_never_inside_a_frame(
    log: Log, readers: Readers
) -> None:
    wire = readers.join(heartbeat=BEAT, heartbeat_seconds=0.01)
    await wire.has(BEAT, 2)
    log.say(Step())
    await wire.has(BEAT, wire.taken.count(BEAT) + 2)
    assert wire.cursors == [0]


async def test_a_lease_ends_a_body_with_its_last_words(log: Log, readers: Readers) -> None:
    wire = readers.join(lease_seconds=0.02, lease_end=BEAT)
    await readers.finished()
    assert (wire.taken, wire.ended) == (BEAT, True)


@pytest.mark.parametrize(("version", "chunked"), [(HttpVersion11, True), (HttpVersion10, False)])
async def test_chunks_are_framed_where_the_response_is_chunked(
    log: Log, version: Any, chunked: bool
) -> None:
    class Chunked(Wire):
        def enable_chunked_encoding(self) -> None:
            self.chunked = True

    wire = Chunked()
    wire.version = version
    plan = StreamPlan(heartbeat=None, heartbeat_seconds=60, write_timeout=60)
    work = write_stream(cast(web.Request, wire), cast(web.StreamResponse, wire), log.feed, 0, plan)
    task = asyncio.create_task(work)
    await rest()
    log.say(Step(3))
    assert wire.taken == (b"c\r\n<0><1>.<2>..\r\n" if chunked else b"<0><1>.<2>..")
    log.feed.close()
    await task


def test_entries_of_a_chunk_are_those_of_its_lines() -> None:
    rows = [entry(n, Step(n)) for n in (1, 2)]
    body = b"".join(row.encode_row() + b"\n" for row in rows)
    assert entries_of(body, "s") == rows


async def test_others_have_their_turn_while_many_entries_are_read() -> None:
    rows = [entry(n, Step(n)) for n in range(1, 5 * STEP_ENTRIES)]
    body = b"".join(row.encode_row() + b"\n" for row in rows)
    seen = [0]
    read: list[Entry] = []

    async def others() -> None:
        while len(read) < len(rows):
            seen.append(len(read))
            await asyncio.sleep(0)

    looking = asyncio.create_task(others())
    async for one in entries_by_steps(body, "s"):
        read.append(one)  # noqa: PERF401 - others look at it meanwhile
    await looking
    assert read == rows
    assert max(b - a for a, b in itertools.pairwise([*seen, len(rows)])) <= STEP_ENTRIES
    assert entries_of(b"", "s") == []


# Any order of events.

_steps = st.builds(Step, frames=st.integers(0, 3), skip=st.sampled_from([0, 0, 0, 1, 3]))
_actions = st.one_of(
    st.tuples(st.just("store"), st.lists(_steps, min_size=1, max_size=6)),
    st.tuples(st.just("publish"), st.none()),
    st.tuples(st.just("announce"), st.none()),
    st.tuples(st.just("show"), st.none()),
    st.tuples(st.just("join"), st.tuples(st.integers(0, 30), st.booleans())),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("take"), st.tuples(st.integers(0, 9), st.integers(1, 90))),
    st.tuples(st.just("catch up"), st.none()),
    st.tuples(st.just("run"), st.integers(1, 6)),
)


async def _play(actions: Sequence[tuple[str, Any]]) -> None:
    log = Log()
    readers = Readers(log.feed)
    others: list[asyncio.Task[None]] = []
    for action, value in actions:
        match action:
            case "store":
                log.store(*value)
            case "publish" if log.unpublished:
                log.publish()
            case "announce" if log.unpublished:
                log.announce()
            case "show" if log.unshown:
                log.show()
            case "join":
                # A cursor that the client has been told: no further than the next frame.
                readers.join(min(value[0], len(log.frames)), fast=value[1])
            case "leave" if readers.open:
                wire, _, task = readers.open.pop(value % len(readers.open))
                wire.gone = True
                task.cancel()
                others.append(task)
            case "take" if readers.open:
                readers.open[value[0] % len(readers.open)][0].take(value[1])
            case "catch up":
                others.append(asyncio.create_task(log.feed.catch_up()))
            case "run":
                for _ in range(value):
                    await asyncio.sleep(0)
    await _end(log, readers, others)


async def _end(log: Log, readers: Readers, others: list[asyncio.Task[None]]) -> None:
    """Let everything be heard of, end the session, let every client take what there is."""
    log.store(Step(1, "session"))
    while log.unpublished:
        log.publish()
    while log.unshown:
        log.show()
    async with asyncio.timeout(SOON_S):
        while not all(task.done() for _, _, task in readers.open):
            for wire, _, _ in readers.open:
                wire.take()
            await asyncio.sleep(0)
    await readers.finished()
    await asyncio.gather(*others, return_exceptions=True)
    for wire, position, _ in readers.open:
        wire.take()
        assert wire.ended
        assert wire.cursors == log.cursors(position)
    assert log.feed.readers == set()


@settings(max_examples=300)
@given(st.lists(_actions, max_size=40), st.sampled_from([2, 6]))
def test_every_reader_gets_every_frame_once_and_in_order_whatever_happens_when(
    actions: list[tuple[str, Any]], publish: int
) -> None:
    with limits(publish):
        asyncio.run(_play(actions))


# Snapshots.


class Heavy(Counting):
    """Has a state that is larger than a snapshot's share."""

    dumped: ClassVar[list[int]] = []
    """The cursors at which one was made."""

    def snapshot(self) -> bytes:
        self.dumped.append(self.next_cursor)
        return super().snapshot().rjust(4 * hub.SNAPSHOT_BYTES, b"0")


async def taken(log: Log) -> list[int]:
    """Return the seqs of a feed's snapshots, found by their cursors."""
    version = Feed._version(Counting())
    seqs = set()
    for cursor in range(log.frames[-1].cursor + 2):
        found = await log.journal.snapshot(log._key, "frames/", version, cursor=cursor)
        if found is not None:
            seqs.add(found.seq)
    return sorted(seqs)


async def test_snapshots_are_taken_at_intervals_by_whoever_encodes(
    log: Log, readers: Readers
) -> None:
    live = readers.join()
    await rest()
    for _ in range(2 * hub.SNAPSHOT_ENTRIES):
        log.say(Step())
    assert await taken(log) == [hub.SNAPSHOT_ENTRIES, 2 * hub.SNAPSHOT_ENTRIES]
    assert live.cursors == log.cursors()


async def test_sessions_that_begin_together_take_their_first_snapshots_one_after_the_other() -> (
    None
):
    firsts = []
    for key in range(1, 7):
        log = Log(key)
        for _ in range(2 * hub.SNAPSHOT_ENTRIES):
            log.say(Step())
            await log.feed.catch_up()
        found = await taken(log)
        firsts.append(found[0])
        assert found[1] == found[0] + hub.SNAPSHOT_ENTRIES
    # Two sessions of six share a place: a place for every second key.
    assert len(set(firsts)) >= 3
    assert hub.SNAPSHOT_ENTRIES / 2 < min(firsts) <= max(firsts) <= hub.SNAPSHOT_ENTRIES


async def test_a_feed_begins_at_the_newest_snapshot_and_reads_older_cursors_from_theirs(
    log: Log, readers: Readers
) -> None:
    readers.join()
    await rest()
    for _ in range(5 * hub.SNAPSHOT_ENTRIES + 7):
        log.say(Step())
    fed: list[Counting] = []

    def make() -> Counting:
        fed.append(Counting())
        return fed[-1]

    feed = Feed(log.journal, log._key, "s", make, lambda: log.stored)
    await feed.catch_up()
    assert feed.next_cursor == log.feed.next_cursor
    assert 0 < fed[-1].fed < hub.SNAPSHOT_ENTRIES
    wanted = log.frames[100]
    found = [frame async for frames in feed.read(wanted.cursor) for frame in frames]
    assert found == log.frames[100:]
    assert fed[-1].next_cursor - wanted.cursor + hub.SNAPSHOT_ENTRIES >= fed[-1].fed


async def test_the_end_of_a_session_is_behind_every_snapshot(log: Log, readers: Readers) -> None:
    for _ in range(2 * hub.SNAPSHOT_ENTRIES - 2):
        log.say(Step())
    log.say(Step(end="session"))
    await log.feed.catch_up()
    feed = Feed(log.journal, log._key, "s", Counting, lambda: log.stored)
    await feed.catch_up()
    assert feed.ended
    assert max(await taken(log)) < log.seq


async def test_a_large_state_is_stored_less_often(log: Log) -> None:
    for _ in range(8 * hub.SNAPSHOT_ENTRIES):
        log.say(Step())
    dumped = len(Heavy.dumped)
    feed = Feed(log.journal, log._key, "s", Heavy, lambda: log.stored)
    await feed.catch_up()
    assert await taken(log) == [4 * hub.SNAPSHOT_ENTRIES, 8 * hub.SNAPSHOT_ENTRIES]
    # Nor is it made much more often than it is stored.
    assert len(Heavy.dumped) - dumped <= 5


async def test_a_very_large_state_is_rarer_by_the_square_of_its_size(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SNAPSHOT_TIMES", 2)
    for _ in range(8 * hub.SNAPSHOT_ENTRIES):
        log.say(Step())
    feed = Feed(log.journal, log._key, "s", Heavy, lambda: log.stored)
    await feed.catch_up()
    assert await taken(log) == [8 * hub.SNAPSHOT_ENTRIES]


async def test_a_state_that_would_take_long_to_read_is_not_stored(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SNAPSHOT_MOST", 3 * hub.SNAPSHOT_BYTES)
    for _ in range(32 * hub.SNAPSHOT_ENTRIES):
        log.say(Step())
    feed = Feed(log.journal, log._key, "s", Heavy, lambda: log.stored)
    await feed.catch_up()
    assert await taken(log) == []


async def test_a_write_of_very_many_entries_reaches_readers_who_are_up_to_date_by_steps(
    log: Log, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "PUBLISH_ENTRIES", 8)
    live, slow = readers.join(), readers.join(fast=False)
    await rest()
    log.say(*[Step()] * 8)
    assert live.cursors == log.cursors()
    log.say(*[Step()] * 9)
    assert live.cursors == log.cursors()[:8]
    await rest()
    assert live.cursors == log.cursors()
    # By the feed, once for all: from here on it delivers by itself again.
    log.say(Step())
    assert live.cursors == log.cursors()
    while slow.waiting:
        slow.take()
        await rest()
    assert slow.cursors == log.cursors()


async def test_a_write_of_very_many_entries_that_comes_while_a_heartbeat_waits_is_not_missed(
    log: Log, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "PUBLISH_ENTRIES", 8)
    wire = readers.join(fast=False, heartbeat=BEAT, heartbeat_seconds=0.01)
    await rest()
    while len(wire.waiting) <= HIGH:
        log.say(Step())
    await wire.has(BEAT, 1)
    log.say(*[Step()] * 9)
    wire.fast = True
    wire.take()
    await rest()
    assert wire.cursors == log.cursors()


async def test_a_feed_is_prepared_before_it_reads_and_once(log: Log) -> None:
    calls: list[int] = []

    async def prepare() -> None:
        calls.append(feed.next_cursor)

    feed = Feed(log.journal, log._key, "s", Counting, lambda: log.stored, prepare=prepare)
    log.say(Step())
    await feed.catch_up()
    await feed.catch_up()
    assert calls == [0]


async def test_history_comes_in_pieces_of_a_write_each(log: Log) -> None:
    for _ in range(300):
        log.say(Step())
    await log.feed.catch_up()
    pieces = [frames async for frames in log.feed.read(0)]
    assert [frame for frames in pieces for frame in frames] == log.frames
    assert all(sum(len(f.data) for f in frames[:-1]) < WRITE for frames in pieces)


async def test_history_is_read_no_further_than_what_the_feed_has(
    log: Log, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began at a snapshot and holds nothing; what is stored behind that is for later."""
    readers.join()
    await rest()
    while log.seq < 2 * hub.SNAPSHOT_ENTRIES:
        log.say(Step())
    feed = Feed(log.journal, log._key, "s", Counting, lambda: log.stored)
    await feed.catch_up()
    known = log.frames.copy()
    for _ in range(5):
        log.store(Step())
    scan = log.journal.scan
    read: list[int] = []

    async def watched(key: int, **options: Any) -> AsyncIterator[Chunk]:
        async for chunk in scan(key, **options):
            read.append(chunk.first)
            yield chunk

    monkeypatch.setattr(log.journal, "scan", watched)
    found = [frame async for frames in feed.read(known[-6].cursor) for frame in frames]
    assert found == known[-6:]
    assert max(read) == 2 * hub.SNAPSHOT_ENTRIES
