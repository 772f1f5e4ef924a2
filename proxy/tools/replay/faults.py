"""Breaks the streams of a server, at places that follow from a seed.

It stands before the server as a proxy of connections and passes all bytes on. Of an answer that is
a stream it may cut the connection after some bytes of the body, reset it, stop for a while, or send
it in pieces that end inside of a character. Other answers pass whole: a client may not repeat what
it has posted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import re
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from proxy.base.tasks import Tasks

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0

READ_BYTES = 64 * 1024

_STREAM = re.compile(rb"\r\ncontent-type: *(?:text/event-stream|application/x-ndjson)", re.I)
_HEAD_END = b"\r\n\r\n"

_BODY_END = b"\r\n0\r\n\r\n"
"""The end of a body in chunks, as streams are sent."""

Kind = Literal["cut", "reset", "pause", "pieces"]


@dataclass(frozen=True, slots=True)
class StreamFault:
    """What happens to one stream, after that many bytes of its body."""

    kind: Kind
    at: int


class StreamFaults:
    """The faults of one server. The number of a stream and the seed decide what it gets."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams = 0
        self._tasks = Tasks("broken streams")

    def draw(self) -> StreamFault | None:
        """Return what the next stream gets."""
        self._streams += 1
        source = random.Random(f"{self._seed}:{self._streams}")
        # The share of streams that break.
        if source.random() >= 0.5:
            return None
        kinds: tuple[Kind, ...] = ("cut", "reset", "pause", "pieces")
        # It breaks after some events.
        fault = StreamFault(source.choice(kinds), source.randrange(1, 3_000))
        _log.info("stream %d: %s after %d bytes", self._streams, fault.kind, fault.at)
        return fault

    @contextlib.asynccontextmanager
    async def before(self, inner: int, *, port: int) -> AsyncIterator[int]:
        """Listen on a port before the server at the port `inner`; give the port.

        Raises:
            OSError: the port is busy.
        """
        open_ = set[asyncio.Task[None]]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            open_.add(task)
            try:
                await self._serve(inner, reader, writer)
            except (ConnectionError, asyncio.CancelledError):
                pass
            finally:
                open_.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", port)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for task in list(open_):
                task.cancel()
            await asyncio.gather(*open_, return_exceptions=True)
            await self._tasks.aclose()

    async def _serve(
        self, inner: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", inner)
        asking = self._tasks.start(_pass(reader, up_writer), name="pass a request on")
        try:
            await self._answer(up_reader, writer)
        finally:
            asking.cancel()
            up_writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass answers on. The head of one comes in one piece, for the server writes it so."""
        while data := await reader.read(READ_BYTES):
            head, end, body = data.partition(_HEAD_END)
            if not (end and data.startswith(b"HTTP/") and _STREAM.search(head)):
                writer.write(data)
                await writer.drain()
                continue
            writer.write(head + end)
            if not await _break(self.draw(), body, reader, writer):
                return


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        # The client has left, or says nothing more.
        writer.write_eof()


async def _break(
    fault: StreamFault | None,
    body: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> bool:
    """Pass the body of a stream on, as its fault says; return whether it came to its end."""
    passed = 0
    data = body or await reader.read(READ_BYTES)
    while data:
        if fault is None:
            writer.write(data)
        # The rest comes as it is.
        elif fault.kind == "pieces" and passed < 4096:
            for piece in _pieces(data):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        elif passed <= fault.at < passed + len(data):
            room = fault.at - passed
            writer.write(data[:room])
            if fault.kind != "pause":
                await _leave(writer, reset=fault.kind == "reset")
                return False
            await writer.drain()
            await asyncio.sleep(PAUSE_SECONDS)
            writer.write(data[room:])
        else:
            writer.write(data)
        await writer.drain()
        if data.endswith(_BODY_END):
            return True
        passed += len(data)
        data = await reader.read(READ_BYTES)
    return False


def _pieces(data: bytes) -> list[bytes]:
    """Return data in pieces, each of which ends inside of a character where there is one."""
    cuts = [0, *(at for at in range(1, len(data)) if data[at] & 0xC0 == 0x80), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(cuts)]


async def _leave(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    transport = writer.transport
    # What was written leaves first: an aborted transport forgets its buffer.
    while transport.get_write_buffer_size() and not transport.is_closing():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    sock: socket.socket | None = transport.get_extra_info("socket")
    if reset and sock is not None:
        # Zero seconds of lingering make the close a reset.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
