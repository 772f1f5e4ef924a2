"""A server that answers with the bytes that a test gives it, and then does what a test wants.

aiohttp's own server cannot cut a head, leave a body without its end or answer nothing at all.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from multidict import CIMultiDict

__all__ = ["Asked", "Origin", "head", "serve_origin"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came: `target` is the path and query exactly as sent."""

    method: str
    target: str
    headers: CIMultiDict[str]
    body: bytes


Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Origin:
    """What the next requests are answered with, and what was asked.

    A `bytes` is written and the connection closed, a function gets reader and writer.
    """

    url: str = ""
    answers: list[bytes | Act] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        self.connections += 1
        try:
            self.asked.append(await _read(reader))
            answer = self.answers.pop(0)
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Asked:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    headers: CIMultiDict[str] = CIMultiDict()
    for line in filter(None, lines[1:]):
        name, _, value = line.partition(": ")
        headers.add(name, value)
    body = await reader.readexactly(int(headers.get("Content-Length", "0")))
    return Asked(method, target, headers, body)


def head(status: str, *lines: str, close: bool = True) -> bytes:
    """Return the head of an answer: `head("200 OK", "Content-Length: 0")`.

    It says that the connection closes, as it does after bytes: a client that used it again would
    have a race with the close.
    """
    last = ["Connection: close"] if close else []
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, *last, "", ""]).encode()


@contextlib.asynccontextmanager
async def serve_origin() -> AsyncIterator[Origin]:
    """Serve an origin on a free port of the loopback interface."""
    origin = Origin()
    running: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await origin.handle(reader, writer)
        finally:
            running.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    origin.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield origin
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()
