"""HTTP/1.1 written by hand: no client library sends what an attacker does.

A request is bytes. An answer is read as far as it says something: its head, and its body unless
that is a stream, which has no end."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from tests.support.ports import HOST

__all__ = ["Answer", "Talk", "ask", "listening"]

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""What a server of bytes does with one connection."""

HEAD_LIMIT = 256 * 1024
BODY_LIMIT = 4 * 2**20
STREAMS = ("text/event-stream", "application/x-ndjson")

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r)")


@dataclass(slots=True)
class Answer:
    """What came back.

    Args:
        status: 0 where the connection was closed without an answer, -1 where none came in time.
        headers: with lower-case names.
        body: of a stream, nothing.
        seconds: until the head was there, or until it was given up.
    """

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0

    @property
    def streamed(self) -> bool:
        """Whether it is a stream."""
        return self.headers.get("content-type", "").partition(";")[0] in STREAMS


@contextlib.asynccontextmanager
async def listening(talk: Talk) -> AsyncIterator[int]:
    """Serve bytes at any port, which it gives; at the end every connection is cut."""
    tasks: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return
        except asyncio.CancelledError:
            # asyncio complains of a handler that was cancelled.
            return
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(served, HOST, 0, limit=2**20)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ask(host: str, port: int, data: bytes, patience: float) -> Answer:
    """Send bytes over a connection of their own, and return what is answered within `patience`
    seconds."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection(host, port, limit=HEAD_LIMIT)
    except OSError:
        return Answer(0, seconds=loop.time() - begun)
    try:
        async with asyncio.timeout(patience):
            # Who is refused early may find the connection closed before all is written.
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
            return await _read(reader, begun, headed=data.startswith(b"HEAD "))
    except TimeoutError:
        return Answer(-1, seconds=loop.time() - begun)
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return Answer(0, seconds=loop.time() - begun)
    finally:
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader, begun: float, *, headed: bool) -> Answer:
    loop = asyncio.get_running_loop()
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        found = _STATUS.match(head)
        if found is None:
            return Answer(0, seconds=loop.time() - begun)
        answer = Answer(int(found[1]), seconds=loop.time() - begun)
        if answer.status != 100:
            break
    for line in head.split(b"\r\n")[1:-2]:
        name, _, value = line.decode("latin-1").partition(":")
        answer.headers[name.lower()] = value.strip()
    # The answer to a HEAD has the length of a body that does not come.
    if headed or answer.streamed or answer.status in (101, 204, 304):
        return answer
    if "content-length" in answer.headers:
        length = min(int(answer.headers["content-length"]), BODY_LIMIT)
        with contextlib.suppress(asyncio.IncompleteReadError):
            answer.body = await reader.readexactly(length)
    elif answer.headers.get("transfer-encoding") == "chunked":
        body = b""
        while (size := int(await reader.readuntil(b"\r\n"), 16)) and len(body) < BODY_LIMIT:
            body += (await reader.readexactly(size + 2))[:-2]
        answer.body = body
    else:
        answer.body = await reader.read(BODY_LIMIT)
    return answer
