"""Reads what the load generator receives: HTTP/1.1 bodies, and the stamps inside of them.

A stamp is `~` and 16 hex digits: the origin's monotonic clock in nanoseconds, at the start of each
text delta. It survives any translation, so that its reader knows when it was sent, that
nothing is missing, and that nothing came twice. Hex, because a long run of decimal digits is no
ordinary text for a JSON parser. No other text of the load contains a `~`.
"""

from __future__ import annotations

from collections.abc import Callable

STAMP_MARK = b"~"
STAMP_DIGITS = 16
"""Hex digits of a 64-bit count of nanoseconds."""

_EVE_DELTA = b'"messageDelta":"'
_LONGEST_CHUNK_LINE = 64
"""A chunk size line is at most 16 hex digits, plus extensions that nobody sends."""

Scan = Callable[[bytes], list[int]]


class BadResponse(Exception):
    """The peer answered something that this client does not understand."""


class ChunkedBody:
    """Decodes a chunked body piece by piece (RFC 9112, section 7.1)."""

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        self._separator = False
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """Take raw bytes in, give the payload bytes that they complete.

        Raises:
            BadResponse: a chunk size is not a hex number.
        """
        if self._held:
            data = self._held + data
            self._held = b""
        pos, size, out = 0, len(data), []
        while pos < size and not self.done:
            if self._left:
                take = min(self._left, size - pos)
                out.append(data[pos : pos + take])
                pos += take
                self._left -= take
                self._separator = self._left == 0
                continue
            end = data.find(b"\r\n", pos, pos + _LONGEST_CHUNK_LINE)
            if end < 0:
                if size - pos >= _LONGEST_CHUNK_LINE:
                    raise BadResponse(f"no chunk size in {data[pos : pos + 80]!r}")
                self._held = data[pos:]
                break
            line = data[pos:end]
            pos = end + 2
            if self._separator and not line:
                self._separator = False
                continue
            try:
                self._left = int(line.split(b";", 1)[0], 16)
            except ValueError as error:
                raise BadResponse(f"bad chunk size {line!r}") from error
            self.done = self._left == 0
        return out[0] if len(out) == 1 else b"".join(out)


def engine_stamps(lines: bytes) -> list[int]:
    """Give the stamps in whole lines of an Engine body, in order."""
    return _stamps(lines)


def eve_stamps(lines: bytes) -> list[int]:
    """Give the stamps in the deltas of whole eve records, in order.

    The records repeat the text so far in `messageSoFar` and in `message.completed`; only what is
    new in each record counts.
    """
    found: list[int] = []
    pos = lines.find(_EVE_DELTA)
    while pos >= 0:
        start = pos + len(_EVE_DELTA)
        end = lines.find(b'"', start)
        found += _stamps(lines[start:end])
        pos = lines.find(_EVE_DELTA, end)
    return found


def _stamps(text: bytes) -> list[int]:
    found = []
    pos = text.find(STAMP_MARK)
    while pos >= 0:
        end = pos + 1 + STAMP_DIGITS
        found.append(int(text[pos + 1 : end], 16))
        pos = text.find(STAMP_MARK, end)
    return found
