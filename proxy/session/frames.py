"""Frames of a backend's stream as they are kept."""

from __future__ import annotations

from adapters.wire.framing import FrameTooFull
from adapters.wire.framing.sse import SseFrame
from adapters.wire.limits import LIGHT, is_light


def too_full(frame: SseFrame | bytes) -> FrameTooFull | None:
    """Return why a frame is not decoded that has more values than one may have."""
    data = frame.data if isinstance(frame, SseFrame) else frame
    if len(data) <= LIGHT or is_light(data):
        return None
    return FrameTooFull(source_of(frame), "too many values")


def source_of(frame: SseFrame | bytes) -> bytes:
    """Return a frame as bytes."""
    if isinstance(frame, bytes):
        return frame
    return b"event: %b\ndata: %b" % (frame.event.encode(), frame.data)
