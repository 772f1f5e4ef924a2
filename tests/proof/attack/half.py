"""Connections that begin a request and never end it, or one byte at a time."""

from __future__ import annotations

import asyncio
import contextlib

from tests.support.ports import HOST

__all__ = ["BEGUN", "HalfOpen"]

DRIP_S = 0.25
"""How often a byte comes from those that do not stop."""

OPEN_S = 60.0
"""How long taking a connection may last while all come at once: longer is a hang."""

_HEAD = (
    b"POST /as/eve/to/eve/eve/v1/session HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k-owner\r\n"
)

BEGUN = {
    "a part of the first line": b"POST /as/eve",
    "a part of the head": _HEAD,
    "a part of the body": _HEAD + b'Content-Length: 5000\r\n\r\n{"message":"',
    "a part of a chunk": _HEAD + b'Transfer-Encoding: chunked\r\n\r\n100\r\n{"message":"',
}
"""What is sent before the silence."""


class HalfOpen:
    """A number of such connections, half of which drip.

    Args:
        port: where they go.
        many: how many, of all kinds in turn.
    """

    def __init__(self, port: int, many: int) -> None:
        self._port = port
        self._many = many
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Open all of them."""
        ready = [asyncio.Event() for _ in range(self._many)]
        kinds = list(BEGUN.values())
        for number, event in enumerate(ready):
            begun = kinds[number % len(kinds)]
            drips = number // len(kinds) % 2 == 1
            self._tasks.append(asyncio.create_task(self._hold(begun, event, drips=drips)))
        async with asyncio.timeout(OPEN_S):
            await asyncio.gather(*(event.wait() for event in ready))

    async def _hold(self, begun: bytes, ready: asyncio.Event, *, drips: bool) -> None:
        """Hold a connection until the other end closes it."""
        reader, writer = await asyncio.open_connection(HOST, self._port)
        try:
            writer.write(begun)
            ready.set()
            reading = asyncio.create_task(reader.read())
            with contextlib.suppress(ConnectionError):
                while not reading.done():
                    await asyncio.wait((reading,), timeout=DRIP_S if drips else None)
                    if not reading.done():
                        writer.write(b"x")
                await reading
        finally:
            writer.transport.abort()

    async def kept(self, seconds: float) -> int:
        """Return how many are still open after so many seconds, and end those."""
        await asyncio.wait(self._tasks, timeout=seconds)
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return len(left)
