"""Answers of the Engine face: the bodies of its routes, and errors in the dialect's own words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.contract.faces.answers import USUAL_STATUS, json_answer, say_when_to_retry
from adapters.model.base import Response
from adapters.wire.errors import DragomanError, ErrorCode


def resumed_body(request_id: str) -> dict[str, Any]:
    """Return the body of a 200 to `/hitl/respond` (section 10.1)."""
    return {"status": "resumed", "request_id": request_id}


def pending_answer(records: Sequence[bytes]) -> Response:
    """Return the answer of `/hitl/pending` (section 10.3); the records are JSON."""
    answer = json_answer(200, {})
    return dataclasses.replace(answer, body=b'{"pending":[%b]}' % b",".join(records))


def health_body(uptime_seconds: float) -> dict[str, Any]:
    """Return the body of `/health` (section 16)."""
    return {"status": "ok", "uptime_seconds": round(uptime_seconds, 1), "subsystems": {}}


def stated_code(code: str) -> str:
    """Return a code as an Engine says it: ours in its words, that of a backend as it is."""
    try:
        ours = ErrorCode(code)
    except ValueError:
        return code
    return _WORDS.get(ours, ours.name)


def refusal(error: DragomanError, *, task: bool = False, error_id: str | None = None) -> Response:
    """Return an error in the dialect's own form (section 4.1).

    `task` says that what was not found is a task. `error_id` is for a failure of ours, to find it
    in the log; its message is not shown.
    """
    code = _WORDS.get(error.code, error.code.name)
    if error.code is ErrorCode.NOT_FOUND and task:
        code = "TASK_NOT_FOUND"
    message, details = error.message, dict(error.details)
    if error_id is not None:
        message, details = "Something failed here.", {"error_id": error_id}
    body: dict[str, Any] = {"error": code, "message": message or code}
    if details:
        body["details"] = details
    return say_when_to_retry(json_answer(_STATUSES[error.code], body), details)


_WORDS: Mapping[ErrorCode, str] = {
    ErrorCode.UNAUTHORIZED: "INVALID_KEY",
    ErrorCode.FORBIDDEN: "PERMISSION_DENIED",
    ErrorCode.CURSOR_EXPIRED: "TASK_NOT_FOUND",
    # A second answer finds nothing pending (section 10.1).
    ErrorCode.ALREADY_ANSWERED: "NOTHING_PENDING",
    ErrorCode.UNKNOWN_INTERACTION: "NOTHING_PENDING",
    ErrorCode.INVALID_REQUEST: "BAD_REQUEST",
    ErrorCode.STALE_TOKEN: "BAD_REQUEST",
    ErrorCode.BUSY: "TASK_BUSY",
    ErrorCode.PAUSED: "HITL_REQUIRED",
    ErrorCode.NOT_ACTIVE: "TASK_ENDED",
    ErrorCode.KEY_REUSED: "IDEMPOTENCY_KEY_CONFLICT",
    ErrorCode.RATE_LIMITED: "LLM_RATE_LIMITED",
    ErrorCode.BACKEND_PROTOCOL: "LLM_PROVIDER_ERROR",
    ErrorCode.BACKEND_REFUSED: "LLM_PROVIDER_ERROR",
    ErrorCode.BACKEND_NOT_READY: "UNAVAILABLE",
    ErrorCode.BACKEND_UNAVAILABLE: "UNAVAILABLE",
    ErrorCode.JOURNAL_UNAVAILABLE: "UNAVAILABLE",
    ErrorCode.STOPPING: "DRAINING",
    ErrorCode.BACKEND_TIMEOUT: "LLM_TIMEOUT",
    ErrorCode.CONFIG: "INTERNAL",
    ErrorCode.RECORDING: "INTERNAL",
}
"""What an error is called (sections 4.2 and 4.3); where the page names no code, the word is ours,
and the others are called as they are here."""

_STATUSES = {
    **USUAL_STATUS,
    ErrorCode.CURSOR_EXPIRED: 404,
    ErrorCode.ALREADY_ANSWERED: 404,
    ErrorCode.STALE_TOKEN: 400,
}
