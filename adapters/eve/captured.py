"""Captures of eve conversations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qs, urlsplit

from adapters.captures import CapturedExchange
from adapters.captures.bodies import lines_of
from adapters.captures.dialect import CaptureFormat, SessionNaming
from adapters.wire.framing.ndjson import format_line

NAMING = SessionNaming(
    path=re.compile(r"/eve/v1/session/([^/]+)"),
    made=re.compile(r"/eve/v1/session/?$"),
    answer="sessionId",
)
"""Sections 4 and 5: each route but the one that makes a session has its id in the path."""


def new_records(streams: Sequence[CapturedExchange], notes: list[str]) -> Iterator[bytes]:
    """Yield new records. A stream begins at `startIndex`, and each line is one record (eve page,
    section 7.2)."""
    have = 0
    for exchange in streams:
        asked = parse_qs(urlsplit(exchange.request.target).query).get("startIndex", ["0"])[0]
        at = int(asked) if re.fullmatch(r"-?\d{1,15}", asked) else 0
        if at < 0:
            notes.append(
                f"exchange {exchange.request.exchange} begins {-at} records before the end, which"
                " nothing counts: it is left out"
            )
            continue
        if at > have:
            notes.append(f"records {have} to {at - 1} were not recorded")
            have = at
        for line in lines_of(exchange.answer):
            if at >= have:
                yield format_line(line)
                have += 1
            at += 1


CAPTURED = CaptureFormat(NAMING, "application/x-ndjson", new_records)
