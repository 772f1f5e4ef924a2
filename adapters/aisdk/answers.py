"""Refusals, and the end of a body that is cut."""

from __future__ import annotations

from multidict import CIMultiDict

from adapters.aisdk import wire
from adapters.contract.faces.answers import (
    USUAL_STATUS,
    json_answer,
    say_when_to_retry,
    sse_headers,
)
from adapters.model.base import Response
from adapters.wire.errors import DragomanError
from adapters.wire.jsonvalue import format_json


def headers() -> CIMultiDict[str]:
    """Return the head of a stream, with the header by which the vendor's servers mark theirs."""
    found = sse_headers()
    found["x-vercel-ai-ui-message-stream"] = "v1"
    return found


def refusal(error: DragomanError, *, error_id: str | None = None) -> Response:
    """Return an error as a page shows it: the body becomes the message of its error.

    `error_id` is for a failure of ours, to find it in the log; its message is not shown.
    """
    status = USUAL_STATUS[error.code]
    code = "internal" if status == 500 else str(error.code)
    words = error.message or code
    if error_id is not None:
        words = f"Something failed here. (error_id: {error_id})"
    head = CIMultiDict(
        {
            "content-type": "text/plain; charset=utf-8",
            "cache-control": "no-store",
            wire.ERROR: code,
        }
    )
    answer = Response(status, head, words.encode("utf-8", "replace"))
    return say_when_to_retry(answer, error.details if error_id is None else {})


def opening(cursor: int, message: str) -> bytes:
    """Return what a page reads first that joins the open stream of a message behind a cursor."""
    start = format_json({"type": "start", "messageId": message})
    return wire.OPENING + b"id: %d\ndata: %b\n\n" % (cursor, start)


def nothing() -> Response:
    """Return the answer to a page that comes back where nothing runs: never 404, which pages show
    as an error."""
    return Response(204, CIMultiDict({"cache-control": "no-store"}))


def stopped() -> Response:
    """Return the answer to a stop, as in the vendor's sample."""
    return json_answer(200, {"success": True})


def cut() -> bytes:
    """Return what ends a body whose stream goes on elsewhere, or nowhere: without it a page takes
    the answer for whole."""
    words = "The connection to the agent ended before the answer did; load the page again."
    error = format_json({"type": "error", "errorText": words})
    return b"data: %b\n\n%b" % (error, wire.DONE)
