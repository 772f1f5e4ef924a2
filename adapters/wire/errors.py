"""The errors of the pure half, and the root of all of Dragoman's errors.

What only IO can cause lives in `proxy.base.errors`.
"""

from __future__ import annotations

import enum
import re
from typing import Any, ClassVar

OFFENDING_LIMIT = 512
"""Bytes of a bad input that are kept of it: enough to recognise it, small enough for a log line."""

MESSAGE_LIMIT = 2_000
"""Characters of a text by which a backend refuses something: what a person reads. It is shown to
frontends, in logs and in events."""

CODE_LIMIT = 100
"""Characters of a code or name of a backend."""

DETAILS_LIMIT = 8_192
"""Bytes of the details of a refusal, as JSON; larger ones are left out."""


SESSION_LOST = "backend_session_lost"
"""The code of a turn that failed because its backend tells nothing more of it. Ours."""


_CODE = re.compile(rf"[A-Za-z][A-Za-z0-9_.:/-]{{0,{CODE_LIMIT - 1}}}")


def code_of(value: object, default: str) -> str:
    """Return a code of a backend that programs may compare; `default` where it is words."""
    return value if isinstance(value, str) and _CODE.fullmatch(value) else default


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
    may want besides. `whole` is for who runs this: it may quote a backend or name a file. Where it
    does, `shown` is the message for all others.
    """

    code: ErrorCode = ErrorCode.INTERNAL
    SHOWN: ClassVar[str | None] = None
    """The message of all errors of a class, where each may quote what is not for all."""

    def __init__(
        self,
        whole: str,
        *,
        code: ErrorCode | None = None,
        details: dict[str, Any] | None = None,
        shown: str | None = None,
    ) -> None:
        if not whole.isascii():
            # What is quoted may hold half characters, which no answer can.
            whole = whole.encode(errors="backslashreplace").decode()
        super().__init__(whole)
        self.whole = whole
        self.message = shown or self.SHOWN or whole
        self.details = details or {}
        if code is not None:
            self.code = code

    def add(self, sentence: str) -> None:
        """Say one thing more."""
        self.message = f"{self.message} {sentence}"
        self.whole = f"{self.whole} {sentence}"

    @property
    def quote(self) -> str | None:
        """What only who runs this may read; None where that is nothing more."""
        return None if self.whole == self.message else self.whole


class ClientProtocolError(DragomanError):
    """The frontend sent what its dialect, or the state of the session, forbids."""

    code = ErrorCode.INVALID_REQUEST


class NotSupported(DragomanError):
    """The backend's dialect cannot carry a command, or a field of it; names both and the reason."""

    code = ErrorCode.NOT_SUPPORTED
