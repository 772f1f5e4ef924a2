"""Event streams (`text/event-stream`) as the WHATWG HTML standard, section 9.2, defines them.

`SseParser` takes the bytes of one response body in pieces of any size. Line ends are brought to LF
first, so that a frame is what stands before two LFs; what stands behind the last two waits. A frame
is therefore looked at once, when it is whole, and between frames nothing is held.

Frames keep their data as bytes, because the JSON parser wants bytes and reports what is not UTF-8.
"""

from __future__ import annotations

import functools
import io
from typing import NamedTuple

from adapters.wire.framing import FrameTooFull, FrameTooLarge

MAX_FRAME_LINES = 16_384
"""Lines of one frame. Each is looked at, all in one step. Frames of the known dialects have three;
JSON of 1 MiB that is written on several lines has about as many."""

_BOM = b"\xef\xbb\xbf"
# A dialect has at most some dozens of event names, of some dozens of letters; the bounds are for a
# peer that invents them.
_NAMES_KEPT = 256
_LONG = 64 * 1024
"""Bytes from which it is worth looking whether there is one frame only: to cut would copy it."""


class SseFrame(NamedTuple):
    """One dispatched event: a tuple, because a tuple is made faster than a frozen dataclass.

    `event` is "" when the frame had no name, and the consumer decides what that means. `data` is as
    received, several lines joined with LF. `id` is the last event id of the stream, which stays
    from frame to frame, None before the first one.
    """

    event: str
    data: bytes
    id: str | None = None


class SseParser:
    """Cuts the bytes of an event stream into frames, however they arrive.

    A frame longer than `max_frame_bytes` comes out as a `FrameTooLarge` in its place; nothing of it
    is used, its id included, so that resuming from the last id asks for it again. One of more
    than `MAX_FRAME_LINES` lines comes out as a `FrameTooFull`.

    Args:
        max_frame_bytes: of one frame, its last line end left out, each other line end counted as
            one. Hermes accepts request bodies up to 10 MB (hermes-agent page, the 413 row of the
            API server) and shows their content again in its events, and JSON escaping adds to it.
    """

    def __init__(self, *, max_frame_bytes: int = 16 * 1024 * 1024) -> None:
        if max_frame_bytes < 1:
            raise ValueError("`max_frame_bytes` must be at least 1")
        self._limit = max_frame_bytes
        # The unfinished frame, from its first byte other than LF; its last byte while skipping.
        # Its value is not copied, as that of a bytearray is.
        self._buffer = io.BytesIO()
        self._size = 0
        self._skipping = False
        # The last chunk ended in CR: a LF at the start of the next one belongs to it.
        self._after_cr = False
        # None when the first bytes of the body were seen; before that, the part of a BOM that was.
        self._bom: bytes | None = b""
        self._names: dict[bytes, str] = {}
        self._last_event_id: str | None = None

    def feed(self, data: bytes) -> list[SseFrame | FrameTooLarge]:
        """Return the frames that `data`, the next bytes of the body, completes, in their order."""
        if data.endswith(b"\n\n") and data.count(b"\n") == 3 and data.startswith(b"event: "):
            frame = self._lone_frame(data)
            if frame is not None:
                return [frame]
        if self._bom is not None:
            data = self._without_bom(data)
        if self._after_cr and data:
            self._after_cr = False
            if data.startswith(b"\n"):
                data = data[1:]
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._skipping:
            data = self._after_skipped(data)
        if not data:
            return []

        # `end` is where the last frame that is now whole ends in `data`, its blank line included.
        end = data.rfind(b"\n\n")
        if end >= 0:
            end += 2
        elif self._ends_in_lf() and data.startswith(b"\n"):
            end = 1
        else:
            self._keep(data if self._size else data.lstrip(b"\n"))
            return self._check_unfinished()
        text = data[:end]
        if self._size:
            self._keep(text)
            text = self._kept()
        if end != len(data):
            self._keep(data[end:])

        frames = self._parse_frames(text)
        if self._size:
            frames += self._check_unfinished()
        return frames

    def _keep(self, data: bytes) -> None:
        self._buffer.write(data)
        self._size += len(data)

    def _kept(self) -> bytes:
        """Return what is unfinished, and keep it no longer."""
        if not self._size:
            return b""
        buffer, self._buffer, self._size = self._buffer, io.BytesIO(), 0
        return buffer.getvalue()

    def _ends_in_lf(self) -> bool:
        return bytes(self._buffer.getbuffer()[-1:]) == b"\n"

    def _lone_frame(self, data: bytes) -> SseFrame | None:
        """Return what a live stream brings nearly always: one frame with a known name and one line
        of data, whole, and nothing before it is unfinished. All else goes the long way."""
        end = data.find(b"\n")
        name = self._names.get(data[7:end])
        if (
            name is None
            or self._size
            or self._skipping
            or self._after_cr
            or self._bom is not None
            or not data.startswith(b"data: ", end + 1)
            or b"\r" in data
            or len(data) - 2 > self._limit
        ):
            return None
        return SseFrame(name, data[end + 7 : -2], self._last_event_id)

    def close(self) -> bytes:
        """End the body and return its unterminated tail, which the standard discards.

        The tail has LF line ends. The parser is then ready for the next body of the same stream, as
        after a reconnect: the last id stays.
        """
        kept = self._kept()
        tail = b"" if self._skipping else (self._bom or b"") + kept
        self._skipping = self._after_cr = False
        self._bom = b""
        return tail

    def _without_bom(self, data: bytes) -> bytes:
        head = (self._bom or b"") + data
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._bom = head
            return b""
        self._bom = None
        return head.removeprefix(_BOM)

    def _check_unfinished(self) -> list[SseFrame | FrameTooLarge]:
        size = self._size
        # A final LF may turn out to be the end of the frame, which is not counted.
        if size <= self._limit or size - self._ends_in_lf() <= self._limit:
            return []
        self._skipping = True
        offending = self._kept()
        self._keep(offending[-1:])
        return [FrameTooLarge(offending, limit=self._limit)]

    def _after_skipped(self, data: bytes) -> bytes:
        joined = self._kept() + data
        end = joined.find(b"\n\n")
        if end < 0:
            self._keep(joined[-1:])
            return b""
        self._skipping = False
        return joined[end + 2 :]

    def _parse_frames(self, text: bytes) -> list[SseFrame | FrameTooLarge]:
        frames: list[SseFrame | FrameTooLarge] = []
        limit = self._limit
        names = self._names
        # `text` ends with a blank line, so what the cut leaves last is empty, or one more line end.
        blank = 0
        if len(text) > _LONG and _is_one(text):
            blocks, blank = [text], 2
        else:
            blocks = text.split(b"\n\n")
            blocks.pop()
        for block in blocks:
            if not block:
                continue
            stop = len(block) - blank
            if stop > limit and len(block[:stop].lstrip(b"\n")) > limit:
                frames.append(FrameTooLarge(block[:stop].lstrip(b"\n"), limit=limit))
                continue
            # What backends send nearly always, without a look at every line: a known name, perhaps
            # an id, one line of data. All else, and what only looks like it, goes the long way.
            start = 0
            name: str | None = ""
            if block.startswith(b"event: "):
                start = block.find(b"\n", 7) + 1
                name = names.get(block[7 : start - 1]) if start else None
            if name is not None:
                event_id = self._last_event_id
                if block.startswith(b"id: ", start):
                    end = block.find(b"\n", start)
                    value = block[start + 4 : end]
                    if end >= 0 and b"\0" not in value:
                        event_id = value.decode("utf-8", "replace")
                        start = end + 1
                if block.startswith(b"data: ", start) and block.find(b"\n", start, stop) < 0:
                    self._last_event_id = event_id
                    frames.append(SseFrame(name, block[start + 6 : stop], event_id))
                    continue
            block = block[:stop].lstrip(b"\n")
            if stop >= MAX_FRAME_LINES and block.count(b"\n") >= MAX_FRAME_LINES:
                frames.append(FrameTooFull(block, f"more than {MAX_FRAME_LINES} lines"))
                continue
            frame = self._parse_block(block)
            if frame is not None:
                frames.append(frame)
        return frames

    def _parse_block(self, block: bytes) -> SseFrame | None:
        event = b""
        data: list[bytes] = []
        for line in block.split(b"\n"):
            if line.startswith(b"data: "):
                data.append(line[6:])
                continue
            field, _, value = line.partition(b":")
            if value.startswith(b" "):
                value = value[1:]
            if field == b"event":
                event = value
            elif field == b"id":
                if b"\0" not in value:
                    self._last_event_id = value.decode("utf-8", "replace")
            elif field == b"data":
                data.append(value)
        if not data:
            return None
        joined = data[0] if len(data) == 1 else b"\n".join(data)
        return SseFrame(self._name(event), joined, self._last_event_id)

    def _name(self, event: bytes) -> str:
        name = self._names.get(event)
        if name is None:
            name = event.decode("utf-8", "replace")
            if len(self._names) < _NAMES_KEPT and len(event) <= 128:
                self._names[event] = name
        return name


def _is_one(text: bytes) -> bool:
    """Say whether whole frames are only one, of a few lines. To look for two line ends takes
    seventy times as long as to look for one."""
    end = -1
    # A frame of a known dialect has fewer lines: a name, an id, data.
    for _ in range(8):
        end = text.find(b"\n", end + 1)
        if text.startswith(b"\n", end + 1):
            return end + 2 == len(text)
    return False


def format_sse(data: bytes, *, event: str | None = None, id: str | None = None) -> bytes:
    """Return one frame as bytes, in the order event, id, data, with LF line ends.

    `data` goes out on one line, or on one per line when it has line ends of its own; a reader sees
    each of them as LF.

    Raises:
        ValueError: `event` or `id` holds a line end, NUL or a lone surrogate.
    """
    if b"\n" in data or b"\r" in data:
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        data = lines.replace(b"\n", b"\ndata: ")
    head = b"" if event is None else _event_line(event)
    if id is not None:
        head += _field_line("id", id)
    return b"%bdata: %b\n\n" % (head, data)


def _field_line(field: str, value: str) -> bytes:
    if "\n" in value or "\r" in value or "\0" in value:
        raise ValueError(f"`{field}` must not hold a line end or NUL")
    return f"{field}: {value}\n".encode()


@functools.lru_cache(maxsize=_NAMES_KEPT)
def _event_line(event: str) -> bytes:
    return _field_line("event", event)
