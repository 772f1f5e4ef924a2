"""What the answers of several faces have in common: statuses and heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multidict import CIMultiDict

from adapters.model.base import Response
from adapters.wire.errors import ErrorCode
from adapters.wire.jsonvalue import format_json

USUAL_STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.NOT_SUPPORTED: 400,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.STALE_TOKEN: 404,
    ErrorCode.UNKNOWN_INTERACTION: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.REQUEST_TIMEOUT: 408,
    ErrorCode.ALREADY_ANSWERED: 409,
    ErrorCode.BUSY: 409,
    ErrorCode.KEY_REUSED: 409,
    ErrorCode.NOT_ACTIVE: 409,
    ErrorCode.PAUSED: 409,
    ErrorCode.CURSOR_EXPIRED: 410,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED_MEDIA: 415,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.CONFIG: 500,
    ErrorCode.INTERNAL: 500,
    ErrorCode.RECORDING: 500,
    ErrorCode.BACKEND_PROTOCOL: 502,
    ErrorCode.BACKEND_REFUSED: 502,
    ErrorCode.BACKEND_NOT_READY: 503,
    ErrorCode.BACKEND_UNAVAILABLE: 503,
    ErrorCode.JOURNAL_UNAVAILABLE: 503,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.STOPPING: 503,
    ErrorCode.BACKEND_TIMEOUT: 504,
}
"""The status of each error, where a dialect has no other one."""


def say_when_to_retry(answer: Response, details: Mapping[str, Any]) -> Response:
    """Return the answer to an error; its head says when to try again where the error does."""
    if "retry_after" in details:
        answer.headers["retry-after"] = str(details["retry_after"])
    return answer


def json_answer(
    status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer with a JSON body that nobody may store."""
    all_headers = CIMultiDict({"content-type": "application/json", "cache-control": "no-store"})
    all_headers.extend(headers or {})
    return Response(status, all_headers, format_json(body))


def sse_headers() -> CIMultiDict[str]:
    """Return the head of a stream of server-sent events that nobody may hold back.

    What compresses answers on the way, as Next.js does behind `rewrites`, keeps a stream back until
    it ends, but for `no-transform` (RFC 9111, section 5.2.2.6).
    """
    return CIMultiDict(
        {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-cache, no-transform",
            "X-Accel-Buffering": "no",
        }
    )
