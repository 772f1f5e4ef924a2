"""Captures: what is written is read, and what is wrong is told by file and line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.captures import (
    BadCapture,
    Capture,
    CapturedEvent,
    CapturedRequest,
    CapturedResponse,
    CaptureHead,
    ExchangeEnd,
    body_of,
    format_record,
    read_capture,
)
from adapters.model import events as ev
from tests.support.each import each

HEAD = CaptureHead(made_by="dragoman 0.1.0", at=1_000.5, dialect="eve", session="s1")
REQUEST = CapturedRequest(
    exchange=1, side="backend", at=1_001.0, method="POST", target="/a?b=c", headers=(("A", "b"),)
)
RESPONSE = CapturedResponse(exchange=1, at=1_002.0, status=200, headers=(("X", "y"), ("X", "z")))
END = ExchangeEnd(exchange=1, at=1_004.0, how="ended")
ENTRY = ev.Entry(1, 1_000, "s1", ev.SessionStarted(thread_id="main"))


def lines(*records: object) -> list[bytes]:
    return [format_record(record) for record in records]  # type: ignore[arg-type]


def read(*parts: bytes) -> Capture:
    return read_capture(b"".join(parts).splitlines(keepends=True), "x.ndjson")


def whole() -> list[bytes]:
    piece = body_of(1, "request", 1_001.0, b"hello")
    answer = [body_of(1, "response", 1_003.0, data) for data in (b"\xc3", b"\xa9!")]
    event = CapturedEvent(at=1_003.5, entry=json.loads(ENTRY.encode()))
    return lines(HEAD, REQUEST, piece, RESPONSE, *answer, event, END)


def test_what_is_written_is_read() -> None:
    capture = read(*whole())
    (exchange,) = capture.of_side("backend")
    assert (capture.head, capture.cut) == (HEAD, None)
    assert (exchange.request, exchange.response, exchange.end) == (REQUEST, RESPONSE, END)
    assert (exchange.body, exchange.answer) == (b"hello", "é!".encode())
    # Where a character is cut, the piece keeps its bytes.
    assert [piece.data for piece in exchange.received] == [b"\xc3", b"\xa9!"]
    assert capture.log == [ENTRY]
    assert capture.of_side("frontend") == []


@given(st.binary(max_size=50))
def test_any_bytes_of_a_body_come_back(data: bytes) -> None:
    record = body_of(1, "response", 1_003.0, data)
    capture = read(*lines(HEAD, REQUEST, RESPONSE, record, END))
    assert capture.exchanges[0].answer == data


def test_a_capture_whose_recorder_was_killed_is_read_as_far_as_it_goes() -> None:
    text = b"".join(whole())
    first = len(whole()[0])
    for end in range(first, len(text)):
        capture = read(text[:end])
        assert (capture.cut is None) == text[:end].endswith(b"\n")
        if capture.cut:
            number = text[:end].count(b"\n") + 1
            assert capture.cut == f"line {number} is not whole: the recorder was stopped in it"


@each(
    ("given_lines", "told"),
    [
        ([], "x.ndjson: it is empty: nothing was recorded"),
        ([b"\n"], "x.ndjson: it is empty: nothing was recorded"),
        (
            [b"HTTP/1.1 200 OK\n"],
            "x.ndjson: line 1: it is not a capture: its first line is not JSON",
        ),
        ([b'{"log":{}}\n'], "x.ndjson: line 1: it is not a capture: its first line has no member"),
        ([b'{"capture":2,"at":1}\n'], "x.ndjson: line 1: it has version 2 of captures, and this"),
        ([b'{"capture":1,"at":1.0}\n'], "x.ndjson: line 1: `made_by`: Field required"),
        (lines(HEAD, RESPONSE), "x.ndjson: line 2: exchange 1 has no request before this line"),
        (lines(HEAD, REQUEST, REQUEST), "x.ndjson: line 3: exchange 1 begins a second time"),
        (lines(HEAD, REQUEST, END, END), "x.ndjson: line 4: exchange 1 has ended before"),
        (lines(HEAD, REQUEST, RESPONSE, RESPONSE), "x.ndjson: line 4: exchange 1 has a second"),
        (
            lines(HEAD, REQUEST, body_of(1, "response", 1.0, b"x")),
            "x.ndjson: line 3: exchange 1 has a body before its response",
        ),
        ([*lines(HEAD), b"{\n"], "x.ndjson: line 2: it is not JSON"),
        ([*lines(HEAD), b"[]\n"], "x.ndjson: line 2: "),
        ([*lines(HEAD), b'{"type":"chunk"}\n'], "x.ndjson: line 2: "),
        (
            [
                *lines(HEAD, REQUEST, RESPONSE),
                b'{"type":"body","exchange":1,"of":"response","at":1.0}\n',
            ],
            "x.ndjson: line 4: a `body` has either `text` or `base64`",
        ),
        (
            [
                *lines(HEAD, REQUEST, RESPONSE),
                b'{"type":"body","exchange":1,"of":"response","at":1.0,"base64":"?"}\n',
            ],
            "x.ndjson: line 4: `base64` cannot be read",
        ),
        (
            [*lines(HEAD), b'{"type":"event","at":1.0,"entry":{"seq":1}}\n'],
            "x.ndjson: line 2: the entry cannot be read",
        ),
    ],
)
def test_what_is_wrong_is_told_by_its_line(given_lines: list[bytes], told: str) -> None:
    with pytest.raises(BadCapture) as error:
        read(*given_lines)
    assert str(error.value.message).startswith(told)
