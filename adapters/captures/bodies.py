"""The frames of recorded bodies, cut out and written again."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.wire.framing.ndjson import NdjsonParser
from adapters.wire.framing.sse import SseFrame, SseParser


def lines_of(body: bytes) -> Iterator[bytes]:
    """Yield the whole lines of an NDJSON body; what was cut off at its end is left out."""
    for line in NdjsonParser().feed(body):
        if isinstance(line, bytes):
            yield line


def frames_of(body: bytes) -> Iterator[SseFrame]:
    """Yield the whole frames of an event stream."""
    for frame in SseParser().feed(body):
        if isinstance(frame, SseFrame):
            yield frame


def format_frame(frame: SseFrame) -> bytes:
    """Return a frame as it is written."""
    id_ = "" if frame.id is None else f"id: {frame.id}\n"
    data = frame.data.replace(b"\n", b"\ndata: ")
    return b"event: %b\n%bdata: %b\n\n" % (frame.event.encode(), id_.encode(), data)
