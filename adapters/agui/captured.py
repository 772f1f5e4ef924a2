"""Captures of AG-UI threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adapters.captures import CapturedExchange
from adapters.captures.bodies import format_frame, frames_of
from adapters.captures.dialect import CaptureFormat, SessionNaming

NAMING = SessionNaming(sent="threadId")
"""Each run names its thread."""


def new_frames(streams: Sequence[CapturedExchange], notes: list[str]) -> Iterator[bytes]:
    """Yield the frames of all bodies: no body repeats another."""
    del notes
    for exchange in streams:
        for frame in frames_of(exchange.answer):
            yield format_frame(frame)


CAPTURED = CaptureFormat(NAMING, "text/event-stream", new_frames)
