"""The errors of the pure half, and the root of all of Dragoman's errors.

What only IO can cause lives in `proxy.base.errors`.
"""

from __future__ import annotations

import enum
from typing import Any

OFFENDING_LIMIT = 512
"""Bytes of a bad input that are kept of it: enough to recognise it, small enough for a log line."""

MESSAGE_LIMIT = 2_000
"""Characters of a text by which a backend refuses something: what a person reads. It is shown to
frontends, in logs and in events."""

CODE_LIMIT = 100
"""Characters of a code of a backend."""

DETAILS_LIMIT = 8_192
"""Bytes of the details of a refusal, as JSON; larger ones are left out."""


SESSION_LOST = "backend_session_lost"
"""The code of a turn that failed because its backend tells nothing more of it. Ours."""


def cut(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return a text of a backend, its end cut off where it is longer than a limit."""
    return text if len(text) <= limit else f"{text[:limit]}…"


class ErrorCode(enum.StrEnum):
    """What went wrong, in words that every dialect can be given an answer for."""

    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    INVALID_REQUEST = "invalid_request"
    TOO_LARGE = "too_large"
    REQUEST_TIMEOUT = "request_timeout"
    UNSUPPORTED_MEDIA = "unsupported_media"
    NOT_SUPPORTED = "not_supported"
    BUSY = "busy"
    PAUSED = "paused"
    NOT_ACTIVE = "not_active"
    STALE_TOKEN = "stale_token"
    ALREADY_ANSWERED = "already_answered"
    KEY_REUSED = "idempotency_key_conflict"
    UNKNOWN_INTERACTION = "unknown_interaction"
    CURSOR_EXPIRED = "cursor_expired"
    BACKEND_PROTOCOL = "backend_protocol"
    BACKEND_UNAVAILABLE = "backend_unavailable"
    BACKEND_TIMEOUT = "backend_timeout"
    BACKEND_REFUSED = "backend_refused"
    BACKEND_NOT_READY = "backend_not_ready"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    JOURNAL_UNAVAILABLE = "journal_unavailable"
    STOPPING = "stopping"
    CONFIG = "config"
    RECORDING = "recording"
    INTERNAL = "internal"


class DragomanError(Exception):
    """The root: everything that Dragoman raises on purpose.

    `code` is stable, `message` is for people and says what to do next, `details` is what a program
    may want besides.
    """

    code: ErrorCode = ErrorCode.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        if not message.isascii():
            # What is quoted may hold half characters, which no answer can.
            message = message.encode(errors="backslashreplace").decode()
        super().__init__(message)
        self.message = message
        self.details = details or {}
        if code is not None:
            self.code = code

    def add(self, sentence: str) -> None:
        """Say one thing more."""
        self.message = f"{self.message} {sentence}"


class ClientProtocolError(DragomanError):
    """The frontend sent what its dialect, or the state of the session, forbids."""

    code = ErrorCode.INVALID_REQUEST


class NotSupported(DragomanError):
    """The backend's dialect cannot carry a command, or a field of it; names both and the reason."""

    code = ErrorCode.NOT_SUPPORTED
