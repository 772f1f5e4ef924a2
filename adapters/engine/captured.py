"""Captures of Engine tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from adapters.captures import CapturedExchange
from adapters.captures.bodies import format_frame, frames_of
from adapters.captures.dialect import CaptureFormat, SessionNaming
from adapters.model.base import Call, Request
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import JsonError, parse_json

NAMING = SessionNaming(query="task_id", sent="task_id")
"""Section 2: a task is named in the body, or in the query of what has none."""


def new_frames(streams: Sequence[CapturedExchange], notes: list[str]) -> Iterator[bytes]:
    """Yield new frames: each body of a turn, and of a replay what is above the newest stamp
    (Engine page, section 6.4)."""
    del notes
    newest = ""
    for exchange in streams:
        replayed = urlsplit(exchange.request.target).path.endswith("/replay")
        for frame in frames_of(exchange.answer):
            stamp = _stamp(frame)
            if replayed and stamp <= newest:
                continue
            newest = max(newest, stamp)
            yield format_frame(frame)


def _stamp(frame: SseFrame) -> str:
    """Return the time in a frame; all have one format, so they compare as text."""
    try:
        value = parse_json(frame.data)
    except JsonError:
        return ""
    found = value.get("timestamp") if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


RECORDED_CALL = Call("execute", Request("POST", "/execute"), stream=True, command_id="recording")
"""Section 6.4: the answer to `POST /execute` is the stream; frames of a replay are the same."""

CAPTURED = CaptureFormat(NAMING, "text/event-stream", new_frames)
