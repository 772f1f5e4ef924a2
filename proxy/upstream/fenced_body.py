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
from aiohttp.payload import BytesIOPayload, BytesPayload, Payload

Body = bytes | io.BytesIO | AsyncIterator[bytes]
Permitted = Callable[[], bool]


class _Fenced(Payload):
    permitted: Permitted

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        _check(self.permitted)
        await super().write_with_length(writer, content_length)


class _FencedBytes(_Fenced, BytesPayload):
    """A body in one piece."""


class _FencedFile(_Fenced, BytesIOPayload):
    """A long one, which is written piece by piece."""


async def _fenced_pieces(
    pieces: AsyncIterator[bytes], permitted: Permitted
) -> AsyncIterator[bytes]:
    async for piece in pieces:
        _check(permitted)
        yield piece


def fenced(body: Body | None, permitted: Permitted) -> Payload | AsyncIterator[bytes] | None:
    """Return a body that raises a `ConnectionAbortedError` in the place of being written when this
    process is not `permitted` to ask backends; None for none."""
    if body is None:
        return None
    if not isinstance(body, bytes | io.BytesIO):
        return _fenced_pieces(body, permitted)
    made = _FencedBytes(body) if isinstance(body, bytes) else _FencedFile(body)
    made.permitted = permitted
    return made


def _check(permitted: Permitted) -> None:
    if not permitted():
        raise ConnectionAbortedError("another process may have the place of this one")
