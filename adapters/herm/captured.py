"""Captures of Herm sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from adapters.captures import CapturedExchange
from adapters.captures.bodies import format_frame, frames_of
from adapters.captures.dialect import CaptureFormat, SessionNaming

NAMING = SessionNaming(
    path=re.compile(r"/v1/sessions/([^/]+)"),
    made=re.compile(r"/v1/agents/[^/]+/sessions/?$"),
    answer="id",
)
"""Each route of a session has its id in the path; the agent's makes one."""


def new_envelopes(streams: Sequence[CapturedExchange], notes: list[str]) -> Iterator[bytes]:
    """Yield all envelopes: the codec knows by its id which one came before."""
    del notes
    for exchange in streams:
        for frame in frames_of(exchange.answer):
            yield format_frame(frame)


CAPTURED = CaptureFormat(NAMING, "text/event-stream", new_envelopes)
