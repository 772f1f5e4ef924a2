"""eve as it is on the wire: names, codes and versions, shared by the codecs.

Source: npm package `eve`, releases 0.30.8 (token generation, T) and 0.80.1 (session-ID generation,
S), as the eve page of this project restates them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from adapters.captures.secrets import DeltaFormat, Path

DIALECT = "eve"

Form: TypeAlias = Literal["all", "tokens", "newest"]
"""What our face plays: the union server of section 1.1, generation T, or the newest S."""

STREAM_VERSIONS: dict[str, int] = {"all": 24, "tokens": 21, "newest": 26}
"""Form -> the version that its streams declare (sections 1.1 and 13)."""

READ_STREAM_VERSIONS = range(16, 27)
"""Section 13: the versions that a client of ours can read."""

FACTS_STREAM_VERSION = "27"
"""The first version whose lines are facts and progress, not events."""

NEWEST_INFO_VERSION = 5
"""What `GET /info` says of itself where streams are of these versions; a newer one is of a server
whose streams are of version 27 or later (0.84 on)."""

SESSION_ID_HEADER = "x-eve-session-id"
STREAM_FORMAT_HEADER = "x-eve-stream-format"
STREAM_VERSION_HEADER = "x-eve-stream-version"
STREAM_TAIL_INDEX_HEADER = "x-eve-stream-tail-index"
"""Sections 4.3 and 7.2."""

_STEP: tuple[Path, ...] = (("data", "turnId"), ("data", "stepIndex"))

DELTAS = (
    DeltaFormat(
        "message.appended",
        ("data", "messageDelta"),
        _STEP,
        so_far=("data", "messageSoFar"),
        ends=(
            "message.completed",
            "step.completed",
            "step.failed",
            "turn.completed",
            "turn.failed",
        ),
    ),
    DeltaFormat(
        "reasoning.appended",
        ("data", "reasoningDelta"),
        _STEP,
        so_far=("data", "reasoningSoFar"),
        ends=("reasoning.completed", "message.appended", "step.completed", "turn.failed"),
    ),
    DeltaFormat(
        "action.input.appended",
        ("data", "inputTextDelta"),
        (("data", "callId"),),
        ends=("actions.requested", "step.completed", "turn.failed"),
    ),
)
"""More of a text (section 7.8 and the catalogue): up to version 24 with all of it so far."""

STREAM_CONTENT_TYPE = "application/x-ndjson; charset=utf-8"
STREAM_FORMAT = "ndjson"
"""Section 7.2."""

START_INDEX_QUERY = "startIndex"
INCLUDE_TAIL_INDEX_QUERY = "includeTailIndex"
FOLLOW_QUERY = "follow"
STREAM_CONTROL_VERSION_QUERY = "streamControlVersion"
STREAM_CONTROL_VERSION = "1"
"""Section 7.1."""

HEARTBEAT = b"\n"
"""Section 7.3: a blank line; every body starts with one."""

LEASE_ENDED = b'{"$eve":"stream.lease-ended","version":1}\n'
LEASE_MS = 60_000
"""Section 7.4."""

PREFIX = "/eve/v1"
HEALTH_PATH = "/eve/v1/health"
CONNECTIONS_PATH = "/eve/v1/connections"
WEBHOOK = "webhook"
"""The key in the `extra` of a sign-in which says that its provider returns to the backend. The
address holds a live token and is not part of the event."""

FRAME = "frame"
"""The key in an `extra` for what stood beside the object that the event is about, in its record."""

BOUNDARY = "boundary"
"""The key in the `extra` of a turn's end or pause for what its `session.waiting` said besides;
False where none came, because the session ended."""

SETTLED = "settled"
"""The key in the `extra` of a resolution for what `approval.settled` said besides."""

DISCARDED = "discarded"
"""The error code of a call that a step has made at a try that does not count."""

LATE = "late"
"""The key in the `extra` of a record that has come for a turn which was over."""

INFO_PATH = "/eve/v1/info"
SESSION_PATH = "/eve/v1/session"
"""Section 3."""

TOKEN_PREFIX = "eve:"
"""Section 1: a continuation token of T is `eve:<uuid>`."""

INTERNAL_SCHEMES = ("eve-url:", "eve-sandbox:", "eve-attachment:")
"""Section 4.2: schemes that the framework keeps to itself; the last one is T's only."""

REMOTE_PROTOCOL_VERSION = 2
LEGACY_REMOTE_PROTOCOL_VERSION = 1
"""Section 4.1: `protocolVersion` of a delegating caller; an absent one means the legacy one."""

SESSION_NOT_RESUMABLE = "SESSION_NOT_RESUMABLE"
SESSION_NOT_ACTIVE = "session_not_active"
SESSION_NOT_READY = "session_not_ready"
SESSION_STRANDED = "session_stranded"
SESSION_EXPIRED = "session_expired"
REMOTE_PROTOCOL_MISMATCH = "REMOTE_AGENT_PROTOCOL_MISMATCH"
UNAUTHORIZED = "unauthorized"
FORBIDDEN = "forbidden"
"""Codes of sections 2.1, 5, 7.2 and 11."""

NOT_SUPPORTED = "not_supported"
INPUT_ALREADY_RESOLVED = "input_already_resolved"
IDEMPOTENCY_KEY_CONFLICT = "idempotency_key_conflict"
SESSION_BUSY = "session_busy"
INPUT_PENDING = "input_pending"
"""Codes of ours, for what no eve server says: impossible, answered before, one key for two
requests, wait, answer first."""

DECLINE_ID = "decline"
"""The one option of a request whose answer must not pass this face (secret, sudo)."""
