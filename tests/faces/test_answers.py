"""What the answers of several faces have in common."""

from __future__ import annotations

from adapters.contract.faces.answers import (
    USUAL_STATUS,
    json_answer,
    say_when_to_retry,
    sse_headers,
)
from adapters.wire.errors import ErrorCode


def test_every_error_has_a_status() -> None:
    assert set(USUAL_STATUS) == set(ErrorCode)
    assert all(400 <= status < 600 for status in USUAL_STATUS.values())


def test_an_answer_in_json_is_not_stored_and_says_when_to_try_again() -> None:
    answer = json_answer(503, {"a": 1}, {"x-more": "b"})
    assert (answer.status, answer.body) == (503, b'{"a":1}')
    assert say_when_to_retry(answer, {}) is answer
    assert "retry-after" not in answer.headers
    assert dict(say_when_to_retry(answer, {"retry_after": 2}).headers) == {
        "content-type": "application/json",
        "cache-control": "no-store",
        "x-more": "b",
        "retry-after": "2",
    }


def test_a_stream_is_not_held_back() -> None:
    assert sse_headers()["Content-Type"] == "text/event-stream"
    assert sse_headers()["Cache-Control"] == "no-cache, no-transform"
    assert sse_headers() is not sse_headers()
