"""NDJSON: one JSON value per line, as eve streams it (eve page, the stream's response headers).

Lines end with LF; a CR before it is tolerated, and lines of white space are skipped. What the lines
hold is not looked at here.
"""

from __future__ import annotations

import io

from adapters.wire.framing import FrameTooLarge

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
        # Its value is not copied, as that of a bytearray is.
        self._buffer = io.BytesIO()
        self._size = 0
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
            self._keep(data)
            return self._check_unfinished()
        begin = 0
        whole: list[bytes] = []
        if self._size:
            # By itself: to cut a long line off those after it would copy it.
            begin = data.find(b"\n") + 1
            self._keep(data[: begin - 1])
            whole.append(self._kept())
        if begin <= end:
            rest = data[begin:end]
            # To look for a byte takes a fifth of the time that it takes to split.
            whole += rest.split(b"\n") if b"\n" in rest else (rest,)
        lines = self._taken(whole)
        if end + 1 == len(data):
            return lines
        self._keep(data[end + 1 :])
        return lines + self._check_unfinished()

    def close(self) -> list[bytes | FrameTooLarge]:
        """End the body cleanly and return its last line, when it had no line end.

        After a lost connection this line is probably cut: it is the caller who knows. The parser is
        then ready for another body.
        """
        self._skipping = False
        return self._taken([self._kept()])

    def _keep(self, data: bytes) -> None:
        self._buffer.write(data)
        self._size += len(data)

    def _kept(self) -> bytes:
        """Return what is unfinished, and keep it no longer."""
        buffer, self._buffer, self._size = self._buffer, io.BytesIO(), 0
        return buffer.getvalue()

    def _check_unfinished(self) -> list[bytes | FrameTooLarge]:
        # A final CR may turn out to be part of the line end, which is not counted.
        size = self._size
        if size <= self._limit or size - self._ends_in_cr() <= self._limit:
            return []
        self._skipping = True
        return [FrameTooLarge(self._kept(), limit=self._limit)]

    def _ends_in_cr(self) -> bool:
        return bytes(self._buffer.getbuffer()[-1:]) == b"\r"

    def _taken(self, whole: list[bytes]) -> list[bytes | FrameTooLarge]:
        lines: list[bytes | FrameTooLarge] = []
        for one in whole:
            line = one.removesuffix(b"\r")
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
