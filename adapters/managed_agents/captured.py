"""Captures of Managed Agents sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from adapters.captures import CapturedExchange
from adapters.captures.bodies import format_frame, frames_of
from adapters.captures.dialect import CaptureFormat, SessionNaming

NAMING = SessionNaming(
    path=re.compile(r"(?:/.*?)?/v1/sessions/([^/]+)"),
    made=re.compile(r"(?:/.*?)?/v1/sessions/?$"),
    answer="id",
)
"""Sections 1 and 2: each route of a session has its id in the path, those of its threads too, and a
base URL may end with a path of its own."""

_THREAD = re.compile(r"/threads/([^/]+)/stream/?$")


def new_events(streams: Sequence[CapturedExchange], notes: list[str]) -> Iterator[bytes]:
    """Yield all events of the session's own streams: the codec knows by its id which one came
    before. The stream of a thread does not name the thread in its events (section 10), and the
    session's has what concerns it: a thread's is left out."""
    for exchange in streams:
        if found := _THREAD.search(urlsplit(exchange.request.target).path):
            notes.append(
                f"exchange {exchange.request.exchange} is the stream of the thread {found[1]},"
                " whose events are not read: it is left out"
            )
            continue
        for frame in frames_of(exchange.answer):
            yield format_frame(frame)


CAPTURED = CaptureFormat(NAMING, "text/event-stream", new_events)
