"""Herm as it is on the wire: names, limits and the few shapes that both codecs share.

Source: the public documentation of the sessions generation, as the herm page of this project
restates it. No client or server of it could be had, so readers are lenient and writers
conservative (herm page, section 9).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from adapters.captures.secrets import DeltaFormat
from adapters.model.events import Event, text_of
from adapters.wire.url_paths import path_of

DIALECT = "herm"

AGENTS = "/v1/agents"
SESSIONS = "/v1/sessions"
"""Section 2."""

LAST_EVENT_ID = "Last-Event-ID"
"""Section 4.3."""

HEARTBEAT = b": heartbeat\n\n"
HEARTBEAT_SECONDS = 15.0
"""Section 4.3: a comment at least every 15 to 30 seconds."""

MAX_BLOCKS = 100
MAX_BLOCK_TEXT = 20_000
"""Section 3.1: blocks of one `content`, and characters of one block."""

LIMIT_DEFAULT = 20
LIMIT_MOST = 100
"""Sections 2.3 and 4.2: entries of one page."""

STATUS_RUNNING = "session.status_running"
STATUS_IDLE = "session.status_idle"
TITLE_UPDATED = "session.title_updated"
GAP = "session.gap"
"""Section 4.6; the last one is ours: clients keep unknown types (section 9)."""

CANCEL = "cancel"
"""The one choice of a sign-in, which nothing on the wire answers."""


def session_path(session: str, *parts: str) -> str:
    """Return the path of a session, or of something below it."""
    return path_of(SESSIONS, session, *parts)


def text_blocks(text: str) -> list[dict[str, str]]:
    """Return a text as blocks of at most `MAX_BLOCK_TEXT` characters, in order, at least one."""
    if len(text) <= MAX_BLOCK_TEXT:
        return [{"type": "text", "text": text}]
    starts = range(0, len(text), MAX_BLOCK_TEXT)
    return [{"type": "text", "text": text[start : start + MAX_BLOCK_TEXT]} for start in starts]


def blocks_of(content: tuple[Any, ...] | None) -> list[dict[str, str]]:
    """Return a content as text blocks; a file is a marker with its name and type (section 3.1)."""
    return [block for part in content or () for block in text_blocks(text_of((part,)))]


def is_native(event: Event) -> bool:
    """Say whether an event was made of what a Herm sent."""
    return event.native is not None and event.native.dialect == DIALECT


def event_id(session: str, sequence: object) -> str:
    """Return the id of an envelope."""
    return f"evt_{session}_{sequence}"


def position_of(event_id_: str, session: str) -> int | None:
    """Return the sequence that an envelope id of a session names; None for any other id."""
    digits = event_id_.removeprefix(event_id(session, ""))
    if digits == event_id_ or not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        return None
    return int(digits)


def text_of_blocks(content: object) -> str:
    """Return the words of a `content`, blocks joined as a reader joins deltas (section 4.4).

    Blocks that are not text give nothing, and a mere string is taken as its own text.
    """
    if isinstance(content, str):
        return content
    return "".join(texts_of(content)) if isinstance(content, list) else ""


def texts_of(content: Iterable[Any]) -> Iterable[str]:
    """Return the texts of the blocks of a `content`."""
    for block in content:
        if isinstance(block, str):
            yield block
        elif isinstance(block, dict) and isinstance(block.get("text"), str):
            yield block["text"]


def iso(at: int) -> str:
    """Return Unix milliseconds as events write times: ISO 8601, milliseconds, `Z` (section 1)."""
    moment = datetime.datetime.fromtimestamp(at // 1000, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at % 1000:03d}Z"


def iso_seconds(at: int) -> str:
    """Return Unix milliseconds as session objects write times: whole seconds (section 1)."""
    return f"{datetime.datetime.fromtimestamp(at // 1000, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


DELTAS = tuple(
    DeltaFormat(
        type_,
        ("payload", "content", 0, "text"),
        when=("payload", "delta"),
        ends=(type_, "agent.tool_use", "session.status_idle"),
    )
    for type_ in ("agent.message", "agent.thinking")
)
"""The events that are more of a text where they say so (section 4.4)."""
