"""Source frames as people see them: where one stands, and what it is."""

from __future__ import annotations

import dataclasses
import re

from adapters.captures.bodies import format_frame
from adapters.offline.translate import Frame
from adapters.wire.framing import FrameTooLarge
from adapters.wire.framing.sse import SseFrame

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclasses.dataclass(frozen=True, slots=True)
class RawFrame:
    """A frame, and its place in its file or its capture."""

    place: str
    data: bytes


def raw_of(frame: Frame) -> bytes:
    """Return a frame as it is written, without the blank line at its end."""
    if isinstance(frame, SseFrame):
        return format_frame(frame).rstrip(b"\n").removeprefix(b"event: \n")
    return frame.offending if isinstance(frame, FrameTooLarge) else frame


def data_of(frame: Frame) -> bytes:
    """Return a line by which the frame is found in its body."""
    data = frame.data if isinstance(frame, SseFrame) else raw_of(frame)
    return data.partition(b"\n")[0]


def lines_between(body: bytes, start: int, end: int) -> int:
    """Return how many lines of a body end between two places."""
    return sum(1 for _ in _LINE_END.finditer(body, start, end))
