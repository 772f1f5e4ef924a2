"""NDJSON: one JSON value per line, as eve streams it (eve page, the stream's response headers).

Lines end with LF; a CR before it is tolerated, and lines of white space are skipped. What the lines
hold is not looked at here.
"""

from __future__ import annotations

from adapters.framing import FrameTooLarge

DEFAULT_MAX_LINE_BYTES = 36 * 1024 * 1024
"""Bytes of one line without its line end.

eve accepts files up to 26 214 400 bytes (eve page, upload policy) and its token generation repeats
them as base64 in `message.received`: 33.4 MiB, and the rest of the record.
"""


class NdjsonParser:
    """Cuts the bytes of one body into lines, however they arrive.

    A line longer than `max_line_bytes` comes out as a `FrameTooLarge` in its place.
    """

    def __init__(self, *, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> None:
        if max_line_bytes < 1:
            raise ValueError("`max_line_bytes` must be at least 1")
        self._limit = max_line_bytes
        self._buffer = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | FrameTooLarge]:
        """Return the lines that `data`, the next bytes of the body, completes, less line ends."""
        if self._skipping:
            end = data.find(b"\n")
            if end < 0:
                return []
            self._skipping = False
            data = data[end + 1 :]
        end = data.rfind(b"\n")
        if end < 0:
            self._buffer += data
            return self._check_unfinished()
        if self._buffer:
            self._buffer += data[:end]
            text = bytes(self._buffer)
        else:
            text = data[:end]
        self._buffer = bytearray(data[end + 1 :])
        return self._parse_lines(text) + self._check_unfinished()

    def close(self) -> list[bytes | FrameTooLarge]:
        """End the body cleanly and return its last line, when it had no line end.

        After a lost connection this line is probably cut: it is the caller who knows. The parser is
        then ready for another body.
        """
        last = bytes(self._buffer)
        self._buffer = bytearray()
        self._skipping = False
        return self._parse_lines(last)

    def _check_unfinished(self) -> list[bytes | FrameTooLarge]:
        buffer = self._buffer
        # A final CR may turn out to be part of the line end, which is not counted.
        if len(buffer) <= self._limit or len(buffer) - buffer.endswith(b"\r") <= self._limit:
            return []
        too_large = FrameTooLarge(bytes(buffer), limit=self._limit)
        self._skipping = True
        self._buffer = bytearray()
        return [too_large]

    def _parse_lines(self, text: bytes) -> list[bytes | FrameTooLarge]:
        lines: list[bytes | FrameTooLarge] = []
        for whole in text.split(b"\n"):
            line = whole.removesuffix(b"\r")
            if len(line) > self._limit:
                lines.append(FrameTooLarge(line, limit=self._limit))
            elif line and not line.isspace():
                lines.append(line)
        return lines


def format_line(value: bytes) -> bytes:
    """Return `value`, an encoded JSON value, as one line.

    Raises:
        ValueError: it holds a line end, so that it would be two lines.
    """
    if b"\n" in value or b"\r" in value:
        raise ValueError("a line of NDJSON must not hold a line end")
    return value + b"\n"
