"""Output of curl: heads and bodies are told apart, and a stream is cut into its frames."""

from __future__ import annotations

import pytest

from adapters.captures import BadCapture
from adapters.captures.curl import read_curl
from adapters.captures.foreign import ForeignLimits
from tests.capture.support import CAPTURES, SSE, datas, end_of, foreign

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize("file", ["curl-heads.txt", "curl-continue.txt"])
def test_a_stream_with_its_head_is_read_frame_by_frame(file: str) -> None:
    capture = foreign(file)
    (exchange,) = capture.exchanges
    assert (capture.head.source, capture.head.made_by) == ("curl", "curl")
    assert exchange.response is not None
    assert exchange.response.status == 200
    assert exchange.response.headers[0] == ("Content-Type", "text/event-stream")
    assert len(exchange.received) == 9
    assert all(data.endswith(b"\n\n") for data in datas(exchange))
    assert (CAPTURES / file).read_bytes().endswith(exchange.answer)
    assert [piece.at for piece in exchange.received] == list(range(9))
    assert end_of(exchange) == ("ended", None)


def test_a_body_alone_is_read() -> None:
    capture = foreign("curl-body.txt")
    (exchange,) = capture.exchanges
    assert exchange.response is not None
    assert (exchange.response.status, exchange.response.headers) == (200, ())
    assert exchange.answer == (CAPTURES / "curl-body.txt").read_bytes()
    assert len(exchange.received) == 9
    assert "it has a body only: its status is taken for 200" in capture.notes


def test_lines_compression_and_two_answers_are_read() -> None:
    lines = [b'{"type":"session.started"}\n', b'{"type":"message.completed"}\n']
    assert datas(foreign("curl-ndjson.txt").exchanges[0]) == lines
    assert foreign("curl-gzip.txt").exchanges[0].answer == SSE
    assert [datas(exchange) for exchange in foreign("curl-two.txt").exchanges] == [lines, lines]


def test_each_head_of_a_redirect_is_an_exchange() -> None:
    data = (CAPTURES / "curl-redirect.txt").read_bytes()
    moved, answer = read_curl(data, "x").exchanges
    assert moved.response is not None
    assert moved.response.status == 303
    assert (moved.request.method, moved.request.target) == ("GET", "/")
    assert (answer.request.method, answer.request.target) == ("GET", "/stream?after=1")
    assert answer.answer == SSE


def test_http_2_line_ends_and_a_proxy_are_no_hindrance() -> None:
    connect = b"HTTP/1.1 200 Connection established\r\n\r\n"
    text = connect + b"HTTP/2 200 \ncontent-type: text/event-stream\n\ndata: 1\r\n\r\ndata: 2\r\r"
    capture = foreign(text)
    (exchange,) = capture.exchanges
    assert datas(exchange) == [b"data: 1\r\n\r\n", b"data: 2\r\r"]
    assert "the answer of a proxy to CONNECT was left out" in capture.notes


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (HEAD + b"data: 1\n\ndata: 2\n", ("broke", "the last frame is not whole")),
        (b'{"a":1}\n{"b"', ("broke", "the last frame is not whole")),
        (b'{"a":1}\n{"b":2}', ("ended", None)),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            ("broke", "line 1: 6 bytes of the body are missing"),
        ),
        # As `curl -I` shows it.
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", ("ended", None)),
    ],
)
def test_a_body_that_is_not_whole_broke(data: bytes, end: tuple[str, str | None]) -> None:
    assert end_of(foreign(data).exchanges[0]) == end


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b" \n", "x: it is empty: curl wrote nothing; run it again with `-i -N`"),
        (b"HTTP/1.1 OK\r\n\r\n", "x: line 1: it is not the status line of a response: run curl wi"),
        (b"HTTP/1.1 200 OK\r\nA: b", "x: line 1: the head of the response has no end: it is cut"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n< c\r\n\r\n", "x: line 3: it is not a header: run curl with"),
        (b"HTTP/1.1 100 C\r\n\r\n" * 2_000, "x: it has more than 1000 heads"),
    ],
)
def test_what_is_wrong_is_told(data: bytes, told: str) -> None:
    with pytest.raises(BadCapture) as error:
        read_curl(data, "x")
    assert error.value.message.startswith(told)


def test_more_frames_than_are_kept_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.captures.foreign.LIMITS", ForeignLimits(pieces=10))
    assert len(foreign(HEAD + b"data: 1\n\n" * 10).exchanges[0].received) == 10
    with pytest.raises(BadCapture, match="more than 10 frames"):
        foreign(HEAD + b"data: 1\n\n" * 11)
