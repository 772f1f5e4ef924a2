"""Writes the frames of a feed to one response: from a cursor on, live, with heartbeats, until an
end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Callable, Sequence

from aiohttp import HttpVersion11, hdrs, web

from adapters.model.base import Frame
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.fanout.hub import Feed, Reader
from proxy.recording.session import RecordedExchange

PIECE_BYTES = 64 * 1024
"""Bytes of one write."""


@dataclasses.dataclass(frozen=True, slots=True)
class StreamPlan:
    """How a face wants its stream.

    `heartbeat` is written after `heartbeat_seconds` without a byte, `None` for none. The body ends
    at cursor `stop` (exclusive) where given, after `lease_seconds` with `lease_end` written, or at
    a frame that ends the session (or the turn `turn`, where given). A heartbeat that depends on the
    position is a function from the cursor of the last frame. `write_timeout` is how long one write
    may take before the reader is given up. `cut` is written where the body ends before that.
    Frames with the cursors `omits` are left out.
    """

    heartbeat: bytes | Callable[[int], bytes] | None
    heartbeat_seconds: float
    write_timeout: float
    stop: int | None = None
    lease_seconds: float | None = None
    lease_end: bytes = b""
    turn: str | None = None
    cut: bytes = b""
    omits: frozenset[int] = frozenset()


@dataclasses.dataclass(slots=True)
class BodyEnd:
    """What is known of the end of a body: `ours` says that it is not the reader who makes it."""

    ours: bool = False


async def send_head(request: web.Request, response: web.StreamResponse) -> None:
    """Send the head of a stream, if it is not sent yet and the reader is still there."""
    if response.prepared:
        return
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)


async def write_stream(
    request: web.Request,
    response: web.StreamResponse,
    feed: Feed,
    position: int,
    plan: StreamPlan,
    *,
    first: bytes = b"",
    taken: RecordedExchange | None = None,
    ending: BodyEnd | None = None,
) -> None:
    """Prepare `response` and write the feed's frames from cursor `position` until the plan's end or
    the reader's.

    `first` is written before any frame, and all of it is recorded in `taken`. Returns when the body
    is ended, by us or because the reader has left or does not read; `ending` hears which.

    Raises:
        DragomanError: no head is sent yet, and the session is about to leave memory.
    """
    if feed.closed and plan.stop is None and not response.prepared:
        # A refusal makes every client wait before it comes back; an empty body might count as read.
        raise DragomanError("The session is closed here; try again.", code=ErrorCode.STOPPING)
    await send_head(request, response)
    if request.method == hdrs.METH_HEAD:
        # A body would be taken for the head of the next answer.
        return
    transport = request.transport
    if transport is None or transport.is_closing():
        return
    _limit_silence(transport, plan.write_timeout)
    loop = asyncio.get_running_loop()
    started = loop.time()
    reader = Reader(
        transport,
        position=position,
        chunked=response.chunked,
        minds_ends=True,
    )
    reader.taken = taken
    reader.last_write = started
    feed.readers.add(reader)
    ending = ending or BodyEnd()
    try:
        if first:
            await write(response, first, plan.write_timeout, taken)
        # A bounded read is read to its end also when the session leaves memory meanwhile.
        bounded = plan.stop is not None
        while (bounded or not feed.closed) and not transport.is_closing():
            await feed.catch_up()
            ending.ours = await _write_backlog(response, feed, reader, plan) or bounded
            if ending.ours:
                break
            if reader.position < feed.next_cursor or feed.closed:
                continue
            if feed.ended:
                # The reader had everything before it came, and nothing follows.
                ending.ours = True
                break
            # No await since the last look at the feed: from here on it delivers by itself.
            reader.live = True
            ending.ours = await _follow(reader, feed, response, plan, started)
            reader.live = False
            if ending.ours:
                break
        if feed.closed and not ending.ours:
            ending.ours = True
            if plan.cut:
                await write(response, plan.cut, plan.write_timeout, taken)
        await response.write_eof()
    except (ConnectionError, TimeoutError) as error:
        # The reader has left or reads nothing: there is nobody to tell.
        ending.ours = ending.ours or isinstance(error, TimeoutError)
        transport.abort()
    except Exception:
        # The head is sent, so no answer can follow: a body that breaks off makes the client come
        # back.
        ending.ours = True
        if plan.cut:
            await end(response, plan.cut, plan.write_timeout, taken)
        else:
            transport.abort()
        raise
    finally:
        feed.readers.discard(reader)


def _limit_silence(transport: asyncio.BaseTransport, seconds: float) -> None:
    """Let the kernel end a connection whose other end has confirmed nothing for `seconds`.

    A client that vanished without a word still takes heartbeats: they fill buffers of megabytes,
    and the kernel by itself tries for a quarter of an hour. Where it has no such limit it stays so.
    """
    sock = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if sock is not None and option is not None and sock.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, max(1, round(seconds * 1000)))


def limit_unsent(transport: asyncio.BaseTransport) -> None:
    """Let the kernel take no more than a little of what the other end has not asked for.

    By itself it takes megabytes for each connection: all of that would be prepared, and kept, for a
    reader that takes nothing. How much may be on its way to one that does stays as it is. Where the
    kernel has no such limit it stays so.
    """
    sock = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if sock is not None and option is not None and sock.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, 128 * 1024)


async def _write_backlog(
    response: web.StreamResponse, feed: Feed, reader: Reader, plan: StreamPlan
) -> bool:
    """Write what is behind the feed's cursor; say whether that ended the body."""
    async for frames in feed.read(reader.position):
        kept, ended = _cut(frames, plan)
        data = b"".join([frame.data for frame in kept if frame.cursor not in plan.omits])
        if data:
            await write(response, data, plan.write_timeout, reader.taken)
            reader.last_write = asyncio.get_running_loop().time()
        reader.position = kept[-1].cursor + 1 if kept else reader.position
        if ended:
            return True
        if feed.closed and plan.stop is None:
            break
    return False


def _cut(frames: Sequence[Frame], plan: StreamPlan) -> tuple[Sequence[Frame], bool]:
    for index, frame in enumerate(frames):
        if plan.stop is not None and frame.cursor >= plan.stop:
            return frames[:index], True
        ends_turn = frame.end == "turn" and frame.turn_id == plan.turn
        if frame.end == "session" or (plan.turn is not None and ends_turn):
            return frames[: index + 1], True
    return frames, False


async def _follow(
    reader: Reader,
    feed: Feed,
    response: web.StreamResponse,
    plan: StreamPlan,
    started: float,
) -> bool:
    """Let the feed deliver, write heartbeats meanwhile; return True at the end of the lease, False
    when woken."""
    loop = asyncio.get_running_loop()
    # A wake while a heartbeat waits for room is not heard: what it was for is looked at each time.
    while not (feed.closed or feed.behind) and reader.position >= feed.next_cursor:
        now = loop.time()
        due = reader.last_write + plan.heartbeat_seconds
        if plan.lease_seconds is not None:
            due = min(due, started + plan.lease_seconds)
        if await reader.wait(max(due - now, 0.001)):
            return False
        now = loop.time()
        if plan.lease_seconds is not None and now >= started + plan.lease_seconds:
            if plan.lease_end:
                await write(response, plan.lease_end, plan.write_timeout, reader.taken)
            return True
        if plan.heartbeat is not None and now >= reader.last_write + plan.heartbeat_seconds:
            beat = plan.heartbeat
            if not isinstance(beat, bytes):
                beat = beat(min(reader.position, feed.next_cursor) - 1)
            await write(response, beat, plan.write_timeout, reader.taken)
            reader.last_write = now
    return False


async def end(
    response: web.StreamResponse, data: bytes, seconds: float, taken: RecordedExchange | None = None
) -> None:
    """End a body with something that says why, if the reader is still there and reads."""
    if not response.prepared:
        return
    with contextlib.suppress(ConnectionError, TimeoutError):
        await write(response, data, seconds, taken)
        await response.write_eof()


async def write(
    response: web.StreamResponse, data: bytes, seconds: float, taken: RecordedExchange | None = None
) -> None:
    """Write through aiohttp, which waits while the transport is full: a reader that stalls for so
    many seconds is given up. What is long goes out in pieces, so that a slow reader is not. `taken`
    is where they are recorded.

    Raises:
        TimeoutError: a write took longer.
    """
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        if taken is not None:
            taken.received(piece)
        async with asyncio.timeout(seconds):
            await response.write(piece)
