"""Captures of Herm sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from adapters.capture import Exchange
from adapters.capture.bodies import format_frame, frames_of
from adapters.capture.dialect import Captured, SessionNaming

NAMING = SessionNaming(
    path=re.compile(r"/v1/sessions/([^/]+)"),
    made=re.compile(r"/v1/agents/[^/]+/sessions/?$"),
    answer="id",
)
"""Each route of a session has its id in the path; the agent's makes one."""


def new_envelopes(streams: Sequence[Exchange], notes: list[str]) -> Iterator[bytes]:
    """Yield new envelopes; each has an id of its own (Herm page, the stream)."""
    del notes
    known: set[str] = set()
    for exchange in streams:
        for frame in frames_of(exchange.answer):
            if frame.id is None or frame.id not in known:
                yield format_frame(frame)
            if frame.id is not None:
                known.add(frame.id)


CAPTURED = Captured(NAMING, new_envelopes)
