"""Lets the reader of a body hand its pieces straight on to somebody.

aiohttp has no way to be told of the pieces of a body: its parser gives them to a `StreamReader`,
which keeps them for a task. So while somebody listens the reader has another class, whose methods
the parser calls all the same. It is the one place that depends on how aiohttp is made: on the
methods below, and on a subclass without fields being laid out as a reader is. Each release may
change that, so the requirement has an upper bound, and `tests/upstream/test_straight.py` says what
to look at when it is raised.
"""

from __future__ import annotations

from typing import Protocol

import aiohttp

__all__ = ["Listener", "begin", "end"]


class Listener(Protocol):
    """Who is told of a body."""

    def put(self, data: bytes) -> None:
        """Hear of a piece, never an empty one."""

    def over(self) -> None:
        """Hear that nothing follows: the body is over, or broken."""


class _Straight(aiohttp.StreamReader):
    """What a reader is while somebody listens: it keeps no pieces. It has no fields of its own, so
    that any reader can become one."""

    __slots__ = ()

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        if data:
            _LISTENERS[self].put(data)
        return False

    def end_http_chunk_receiving(self) -> None:
        """Where chunks end means nothing here, and is not kept."""

    def feed_eof(self) -> None:
        super().feed_eof()
        _LISTENERS[self].over()

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        _LISTENERS[self].over()


_LISTENERS: dict[aiohttp.StreamReader, Listener] = {}


def begin(content: aiohttp.StreamReader, listener: Listener) -> None:
    """Hand on what comes from now on; what the reader has kept before stays in it."""
    _LISTENERS[content] = listener
    content.__class__ = _Straight


def end(content: aiohttp.StreamReader) -> None:
    """Let the reader keep what comes, as ever."""
    content.__class__ = aiohttp.StreamReader
    del _LISTENERS[content]
