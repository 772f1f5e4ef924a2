"""Bytes to frames and back, without IO: `sse` for event streams, `ndjson` for lines of JSON.

A parser is fed the chunks of one body as they arrive and returns the frames that they complete;
where the chunks are cut never matters. What a peer can do wrong at this level is to send a frame
that does not end within the limit. That is a value in the returned list and not an exception, so
that the frames before it and after it in the same chunk are delivered too.
"""

from __future__ import annotations

TORN = "the body ended in the middle of a frame"
"""The reason of what is not a frame because a body ended in it: it comes again, and whole."""

SALVAGED_BYTES = 64 * 1024
"""Bytes of the begin of a frame that are kept: what it says of ids and ends is read."""

_LINE_ENDS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)
"""Characters that are line ends for some readers, and how JSON escapes them."""


def on_one_line(text: bytes) -> bytes:
    """Return JSON in which no character is a line end for anybody.

    Python's `splitlines` ends lines at U+2028, U+2029 and U+0085, which JSON allows in its texts.
    """
    # To search for two bytes costs thirty times as much as to see that all are ASCII.
    if not text.isascii() and (b"\xe2\x80" in text or b"\xc2\x85" in text):
        for character, escaped in _LINE_ENDS:
            text = text.replace(character, escaped)
    return text


class FramingError(ValueError):
    """A body is wrong at this place; carries its first bytes there and the limit that held."""

    def __init__(self, message: str, *, offending: bytes, limit: int) -> None:
        super().__init__(message)
        self.offending = offending[:SALVAGED_BYTES]
        self.limit = limit


class FrameTooLarge(FramingError):
    """One frame is longer than `limit` bytes: it is skipped, and parsing goes on behind it.

    `offending` is the start of the frame. It depends on the frame and on the limit alone, never on
    how the bytes were cut into chunks.
    """

    def __init__(self, start: bytes, *, limit: int) -> None:
        super().__init__(
            f"a frame is longer than the limit of {limit} bytes and was skipped",
            offending=start[:limit],
            limit=limit,
        )


class FrameTooFull(FrameTooLarge):
    """One frame has more in it than is decoded in one step: it is skipped as well."""

    def __init__(self, data: bytes, why: str) -> None:
        FramingError.__init__(
            self,
            f"a frame of {len(data)} bytes has {why} and was skipped",
            offending=data,
            limit=len(data),
        )
