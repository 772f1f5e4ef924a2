"""What becomes of a message that was accepted, in words of our own: what a backend says freely is
never a label of a metric.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from adapters.model import events as ev
from adapters.wire.errors import SESSION_LOST, ErrorCode

SETTLED = "settled_by_operator"
"""The code of a turn that an administrator ended."""

STOP_UNCONFIRMED = "stop_unconfirmed"
"""The error code that tells of a turn which was ended here after a stop."""


class MessageOutcome(enum.StrEnum):
    """How a message ended. Each has one of these."""

    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """Nobody knows whether the backend took it."""
    WITHDRAWN = "withdrawn"
    """It never went to the backend."""


FAILURES = frozenset({MessageOutcome.FAILED, MessageOutcome.REFUSED, MessageOutcome.UNKNOWN})
"""What an operator is to look into."""


class Code(enum.StrEnum):
    """Why a message ended so."""

    OK = "ok"
    INTERRUPTED = "interrupted"
    SESSION_ENDED = "session_ended"
    WITHDRAWN = "withdrawn"
    BACKEND_5XX = "backend_5xx"
    BACKEND_4XX = "backend_4xx"
    CREDENTIAL = "credential_refused"
    DIALECT = "other_dialect"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "backend_unavailable"
    TIMEOUT = "backend_timeout"
    PROTOCOL = "backend_protocol"
    LOST = "backend_session_lost"
    NO_EVIDENCE = "no_evidence"
    NOT_SUPPORTED = "not_supported"
    SETTLED = "settled_by_operator"
    AGENT_ERROR = "agent_error"
    AGENT_REFUSED = "agent_refused"
    EXHAUSTED = "exhausted"
    OVER_BUDGET = "over_budget"
    OTHER = "other"

    @classmethod
    def of(cls, error: ev.ErrorInfo | None, default: Code) -> Code:
        """Return what an error is; `default` where it says nothing, or in its own words only."""
        if error is None:
            return default
        if (status := error.status) is not None:
            return _of_status(status, error.code)
        return _OURS.get(error.code, default)


def _of_status(status: int, code: str) -> Code:
    if code == ErrorCode.BACKEND_REFUSED or status == 401:
        return Code.CREDENTIAL
    if status >= 500:
        return Code.BACKEND_5XX
    if status == 429:
        return Code.RATE_LIMITED
    # A refusal in a form that is not the dialect's is told with this code.
    return Code.DIALECT if code == f"http_{status}" else Code.BACKEND_4XX


_OURS: Mapping[str, Code] = {
    ErrorCode.BACKEND_UNAVAILABLE: Code.UNAVAILABLE,
    ErrorCode.BACKEND_TIMEOUT: Code.TIMEOUT,
    ErrorCode.BACKEND_PROTOCOL: Code.PROTOCOL,
    ErrorCode.BACKEND_REFUSED: Code.CREDENTIAL,
    ErrorCode.RATE_LIMITED: Code.RATE_LIMITED,
    ErrorCode.NOT_SUPPORTED: Code.NOT_SUPPORTED,
    SESSION_LOST: Code.LOST,
    SETTLED: Code.SETTLED,
    STOP_UNCONFIRMED: Code.INTERRUPTED,
}
"""Our own codes of errors that have no status."""

BLAMED = frozenset(
    {
        Code.BACKEND_5XX,
        Code.CREDENTIAL,
        Code.DIALECT,
        Code.UNAVAILABLE,
        Code.TIMEOUT,
        Code.PROTOCOL,
        Code.LOST,
    }
)
"""What is the backend's doing. An error of its agent is not: another message may well succeed."""

POSSIBLE: Mapping[MessageOutcome, tuple[Code, ...]] = {
    MessageOutcome.COMPLETED: (Code.OK, Code.INTERRUPTED, Code.SESSION_ENDED),
    MessageOutcome.FAILED: (
        *(Code.AGENT_ERROR, Code.EXHAUSTED, Code.OVER_BUDGET, Code.SETTLED),
        *(Code.LOST, Code.UNAVAILABLE, Code.TIMEOUT),
    ),
    MessageOutcome.REFUSED: (
        *(Code.BACKEND_5XX, Code.BACKEND_4XX, Code.CREDENTIAL, Code.DIALECT, Code.RATE_LIMITED),
        *(Code.UNAVAILABLE, Code.TIMEOUT, Code.PROTOCOL, Code.NOT_SUPPORTED, Code.AGENT_REFUSED),
        Code.OTHER,
    ),
    MessageOutcome.UNKNOWN: (
        *(Code.NO_EVIDENCE, Code.BACKEND_5XX, Code.LOST, Code.UNAVAILABLE, Code.TIMEOUT),
    ),
    MessageOutcome.WITHDRAWN: (Code.WITHDRAWN,),
}
"""The pairs that are shown before there is one; more are shown as they come."""
