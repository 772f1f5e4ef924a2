"""Refusals, as an answer or as a run, and the end of a body that is cut.

What is refused before a run has a status and `{"error": …}`. What is refused because the thread
waits for a person is a run of its own, which gives a client its interrupts again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.agui import wire
from adapters.contract.faces.answers import (
    USUAL_STATUS,
    json_answer,
    say_when_to_retry,
    sse_headers,
)
from adapters.model.base import Response
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.framing import on_one_line
from adapters.wire.jsonvalue import format_json

INTERRUPTS = "interrupts"
"""The key in the details of a refusal under which the thread's open interrupts are."""


def refusal(error: DragomanError, *, error_id: str | None = None) -> Response:
    """Return an error as a client shows it.

    `error_id` is for a failure of ours, to find it in the log; its message is not shown.
    """
    message, details = error.message, dict(error.details)
    if error_id is not None:
        message, details = "Something failed here.", {"error_id": error_id}
    status = USUAL_STATUS[error.code]
    code = "internal" if status == 500 else str(error.code)
    body: dict[str, Any] = {"error": message or code, "code": code}
    if details:
        body["details"] = details
    return say_when_to_retry(json_answer(status, body), details)


def asked_again(error: DragomanError, thread: str, run: str) -> Response:
    """Return a refusal that gives the client its interrupts again: a run that ends with them."""
    value = {"code": str(error.code), "message": error.message}
    told = {"type": "CUSTOM", "name": f"{wire.OURS}.refused", "value": value}
    body = _run(thread, run, error.details[INTERRUPTS], told)
    return Response(200, sse_headers(), body, refused=USUAL_STATUS[error.code])


def passed_over(
    thread: str, run: str, late: Mapping[str, str], interrupts: Sequence[Mapping[str, Any]]
) -> Response:
    """Return a run in which nothing happens, with the interrupts that are open still; `late` are
    the requests that it answers and what came of these before."""
    told = (
        {
            "type": "CUSTOM",
            "name": f"{wire.OURS}.passed_over",
            "value": {"interruptId": name, "message": f"It was answered before: {outcome}."},
        }
        for name, outcome in late.items()
    )
    body = _run(thread, run, interrupts, *told)
    return Response(200, sse_headers(), body, refused=USUAL_STATUS[ErrorCode.ALREADY_ANSWERED])


def _run(
    thread: str, run: str, interrupts: Sequence[Mapping[str, Any]], *told: Mapping[str, Any]
) -> bytes:
    ids = {"threadId": thread, "runId": run}
    outcome: Mapping[str, Any] = {"type": "success"}
    if interrupts:
        outcome = {"type": "interrupt", "interrupts": interrupts}
    events = (
        {"type": "RUN_STARTED", **ids, "protocolVersion": wire.PROTOCOL_VERSION},
        *told,
        {"type": "RUN_FINISHED", **ids, "outcome": outcome},
    )
    return b"".join(_framed(event) for event in events)


def cut() -> bytes:
    """Return what ends a body whose run goes on elsewhere, or nowhere: without it a client takes
    the run for finished, and a runtime of CopilotKit for broken."""
    words = "The connection to the agent ended before the run did; read the thread again."
    return _framed({"type": "RUN_ERROR", "message": words, "code": "incomplete"})


def _framed(event: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % on_one_line(format_json(event))
