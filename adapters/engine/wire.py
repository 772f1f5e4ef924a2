"""September Engine as it is on the wire: names, codes and the bodies of its requests.

Source: the published Engine documentation, 2.3 line, as the engine page of this project restates
it. The Engine has no published schema, so readers are lenient and writers conservative.
"""

from __future__ import annotations

import datetime
from typing import Any

from adapters.captures.secrets import DeltaFormat
from adapters.model.events import Event

DIALECT = "engine"

MEMBERS_OPTION = "engine_members"
"""The key in a message's `options` for members of `POST /execute` that the page does not name."""

KEY_HEADER = "X-Engine-Key"
"""Section 3: the one credential, on every request but `GET /health`."""

MCP_TOKEN_EXPIRED = "MCP_TOKEN_EXPIRED"
"""Section 4.3: a 401 of a connector's credential, not of the key."""

EXECUTE = "/execute"
REPLAY = "/execute/replay"
RESPOND = "/hitl/respond"
PENDING = "/hitl/pending"
HEALTH = "/health"

PAUSED_MS = 72 * 3_600_000
"""Section 10.4, CHANNEL_STATE_TTL_HITL: how long a task that waits for an answer is kept."""

YES = "yes"
NO = "no"
"""Section 10.1: answers to a permission are exactly these, lower case."""

PERMISSION_DENIED = "permission_denied"
"""Section 10.2: the reason with which a refused tool call fails."""


def is_native(event: Event) -> bool:
    """Say whether an event was made of a frame of an Engine."""
    return event.native is not None and event.native.dialect == DIALECT


def media_block(media_type: str, source: dict[str, Any]) -> dict[str, Any]:
    """Return a block for `media` or `content_blocks` (sections 6.2 and 10.1).

    Only `image` is documented; `audio`, `video` and, for the rest, `document` are the page's likely
    names.
    """
    family = media_type.partition("/")[0]
    return {
        "type": family if family in ("image", "audio", "video") else "document",
        "source": source,
    }


def format_time(at: int) -> str:
    """Return Unix milliseconds as payloads have them: ISO 8601, UTC, milliseconds (section 8.1)."""
    second, ms = divmod(at, 1000)
    moment = datetime.datetime.fromtimestamp(second, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def heartbeat(stamp: int) -> bytes:
    """Return the frame of a `heartbeat`; it repeats the last frame's stamp (section 11.2)."""
    return b'event: heartbeat\ndata: {"timestamp":"%b"}\n\n' % format_time(stamp).encode()


DELTAS = tuple(
    DeltaFormat(
        type_, ("text",), ends=("content_block_stop", "tool_call", "thread_lifecycle", "error")
    )
    for type_ in ("text_delta", "thinking_delta")
)
"""The events that have more of a text (sections 8.3 and 8.4); one has no place of its own."""
