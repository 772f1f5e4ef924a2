"""Bodies of requests that leave only while this process may ask backends.

A process may be paused between the look at its lease and the moment at which its request leaves:
while a connection is made, or in the queue of the event loop. When it wakes, the next one has
looked whether the request arrived, and told its sender that it did not. `aiohttp` holds the head
back until the body begins, and writes both in one step: there it is looked once more.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import BytesIOPayload, BytesPayload

Body = bytes | io.BytesIO | AsyncIterator[bytes]
Permitted = Callable[[], bool]


class _FencedBytes(BytesPayload):
    def __init__(self, data: bytes, permitted: Permitted) -> None:
        super().__init__(data)
        self._permitted = permitted

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        _check(self._permitted)
        await super().write_with_length(writer, content_length)


class _FencedFile(BytesIOPayload):
    def __init__(self, data: io.BytesIO, permitted: Permitted) -> None:
        super().__init__(data)
        self._permitted = permitted

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        _check(self._permitted)
        await super().write_with_length(writer, content_length)


async def _fenced_pieces(
    pieces: AsyncIterator[bytes], permitted: Permitted
) -> AsyncIterator[bytes]:
    async for piece in pieces:
        _check(permitted)
        yield piece


def fenced(
    body: Body | None, permitted: Permitted
) -> BytesPayload | BytesIOPayload | AsyncIterator[bytes] | None:
    """Return a body that raises a `ConnectionAbortedError` in the place of being written when this
    process is not `permitted` to ask backends; None for none."""
    match body:
        case None:
            return None
        case bytes():
            return _FencedBytes(body, permitted)
        case io.BytesIO():
            return _FencedFile(body, permitted)
        case _:
            return _fenced_pieces(body, permitted)


def _check(permitted: Permitted) -> None:
    if not permitted():
        raise ConnectionAbortedError("another process may have the place of this one")
