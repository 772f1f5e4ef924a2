"""Captures of AG-UI threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adapters.agui import wire
from adapters.captures import CapturedExchange
from adapters.captures.bodies import format_frame, frames_of
from adapters.captures.dialect import CaptureFormat, SessionNaming
from adapters.model.base import Call, Request

NAMING = SessionNaming(sent="threadId")
"""Each run names its thread."""


def new_frames(streams: Sequence[CapturedExchange], notes: list[str]) -> Iterator[bytes]:
    """Yield the frames of all bodies: no body repeats another."""
    del notes
    for exchange in streams:
        for frame in frames_of(exchange.answer):
            yield format_frame(frame)


RECORDED_CALL = Call("run", Request("POST", wire.RUN), stream=True, command_id="recording")
"""A recorded body is the answer to a run."""

CAPTURED = CaptureFormat(NAMING, "text/event-stream", new_frames)
