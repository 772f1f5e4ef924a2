"""Answers that are not runs, the head of those that are, and refusals in either form.

What is refused before a run has a status and `{"error": …}`. What is refused because the thread
waits for a person is a run of its own, which gives a client its interrupts again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from multidict import CIMultiDict

from adapters.agui import wire
from adapters.base import Response
from adapters.errors import DragomanError, ErrorCode
from adapters.jsonvalue import format_json

__all__ = ["INTERRUPTS", "asked_again", "cut", "json_response", "refusal", "stream_headers"]

INTERRUPTS = "interrupts"
"""The key in the details of a refusal under which the thread's open interrupts are."""


def json_response(status: int, body: Mapping[str, Any]) -> Response:
    """Return an answer with a JSON body that nobody may store."""
    headers = CIMultiDict({"Content-Type": "application/json", "Cache-Control": "no-store"})
    return Response(status, headers, format_json(body))


def stream_headers() -> CIMultiDict[str]:
    """Return the headers of a stream."""
    return CIMultiDict(
        {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )


def refusal(error: DragomanError, *, error_id: str | None = None) -> Response:
    """Return an error as a client shows it.

    `error_id` is for a failure of ours, to find it in the log; its message is not shown.
    """
    message, details = error.message, dict(error.details)
    if error_id is not None:
        message, details = "Something failed here.", {"error_id": error_id}
    status = _status(error.code)
    code = "internal" if status == 500 else str(error.code)
    body: dict[str, Any] = {"error": message or code, "code": code}
    if details:
        body["details"] = details
    answer = json_response(status, body)
    if "retry_after" in details:
        answer.headers["Retry-After"] = str(details["retry_after"])
    return answer


def asked_again(error: DragomanError, thread: str, run: str) -> Response:
    """Return a refusal that gives the client its interrupts again: a run that ends with them."""
    told = {"code": str(error.code), "message": error.message}
    ids = {"threadId": thread, "runId": run}
    outcome = {"type": "interrupt", "interrupts": error.details[INTERRUPTS]}
    events = (
        {"type": "RUN_STARTED", **ids, "protocolVersion": wire.PROTOCOL_VERSION},
        {"type": "CUSTOM", "name": f"{wire.OURS}.refused", "value": told},
        {"type": "RUN_FINISHED", **ids, "outcome": outcome},
    )
    body = b"".join(_framed(event) for event in events)
    return Response(200, stream_headers(), body, refused=_status(error.code))


def cut() -> bytes:
    """Return what ends a body whose run goes on elsewhere, or nowhere: without it a client takes
    the run for finished, and a runtime of CopilotKit for broken."""
    words = "The connection to the agent ended before the run did; read the thread again."
    return _framed({"type": "RUN_ERROR", "message": words, "code": "incomplete"})


def _framed(event: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % format_json(event)


def _status(code: ErrorCode) -> int:  # noqa: C901 - one case for each code
    """Return the status of an error. The protocol defines none: these are those of HTTP."""
    match code:
        case ErrorCode.UNAUTHORIZED:
            return 401
        case ErrorCode.FORBIDDEN:
            return 403
        case ErrorCode.NOT_FOUND | ErrorCode.UNKNOWN_INTERACTION:
            return 404
        case ErrorCode.METHOD_NOT_ALLOWED:
            return 405
        case ErrorCode.REQUEST_TIMEOUT:
            return 408
        case ErrorCode.BUSY | ErrorCode.PAUSED | ErrorCode.NOT_ACTIVE:
            return 409
        case ErrorCode.ALREADY_ANSWERED | ErrorCode.KEY_REUSED:
            return 409
        case ErrorCode.CURSOR_EXPIRED:
            return 410
        case ErrorCode.TOO_LARGE:
            return 413
        case ErrorCode.UNSUPPORTED_MEDIA:
            return 415
        case ErrorCode.INVALID_REQUEST | ErrorCode.STALE_TOKEN | ErrorCode.NOT_SUPPORTED:
            return 400
        case ErrorCode.RATE_LIMITED:
            return 429
        case ErrorCode.BACKEND_PROTOCOL | ErrorCode.BACKEND_REFUSED:
            return 502
        case ErrorCode.BACKEND_UNAVAILABLE | ErrorCode.JOURNAL_UNAVAILABLE:
            return 503
        case ErrorCode.OVERLOADED | ErrorCode.STOPPING:
            return 503
        case ErrorCode.BACKEND_TIMEOUT:
            return 504
        case ErrorCode.CONFIG | ErrorCode.RECORDING | ErrorCode.INTERNAL:
            return 500
        case _:
            assert_never(code)
