"""HAR: what browsers and mitmproxy export is read, and what they leave out is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.captures import BadCapture, CapturedExchange
from adapters.captures.har import read_har
from tests.capture.support import SSE, datas, end_of, foreign

START = 1_780_992_900_000.0


def entry(**members: Any) -> dict[str, Any]:
    """Return an entry, with other members than the usual ones."""
    request = {"method": "GET", "url": "https://engine.example/a?b=c#d", "headers": []}
    response = {"status": 200, "headers": [], "content": {"size": 2, "text": "hi"}}
    usual = {
        "startedDateTime": "2026-06-09T08:15:00Z",
        "request": request | members.pop("request", {}),
        "response": response | members.pop("response", {}),
    }
    return usual | members


def har(*entries: object, **log: object) -> bytes:
    return json.dumps({"log": {"entries": entries, **log}}).encode()


def one(**members: Any) -> tuple[CapturedExchange, list[str]]:
    capture = foreign(har(entry(**members)))
    (exchange,) = capture.exchanges
    return exchange, capture.notes


def test_chrome_is_read_in_the_order_of_the_requests() -> None:
    capture = foreign("chrome.har")
    refused, posted, stream = capture.exchanges
    assert (capture.head.source, capture.head.made_by) == ("har", "WebInspector 537.36")
    assert capture.head.at == refused.request.at == START - 997
    assert {exchange.request.side for exchange in capture.exchanges} == {"backend"}
    assert (refused.response, end_of(refused)) == (None, ("broke", "net::ERR_CONNECTION_REFUSED"))
    # The pseudo headers of HTTP/2 are left out, and their host is kept.
    assert posted.request.headers == (
        ("Host", "engine.example"),
        ("accept", "text/event-stream"),
        ("content-type", "application/json"),
    )
    assert (posted.request.target, posted.body) == ("/execute?x=1", b'{"message":"hi"}')
    assert posted.request.at == START + 2.5
    assert posted.response is not None
    assert posted.response.at == START + 10
    # Its body stands there inflated, so nothing says that it is compressed.
    assert posted.response.headers == (
        ("content-type", "text/event-stream"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
    )
    assert [(piece.at, piece.data) for piece in posted.received] == [(START + 110.5, SSE)]
    assert end_of(posted) == ("ended", None)
    assert [(piece.at, piece.data) for piece in stream.received] == [
        (START + 1250, b'id: 7\nevent: text_delta\ndata: {"text":"hi"}\n\n'),
        (START + 1500, b"data: a\ndata: b\n\n"),
    ]
    assert end_of(stream) == ("left", "net::ERR_ABORTED")
    assert capture.notes == [
        "entry 2: frames are put together from their messages: comments are lost",
        "entries that are not HTTP were left out: 1",
    ]


def test_firefox_is_read_and_a_body_that_it_cut_is_told() -> None:
    capture = foreign("firefox.har")
    cut, form = capture.exchanges
    told = "the export left out the response's body of 4096 bytes, and has 105 of them"
    assert (cut.request.at, datas(cut), end_of(cut)) == (START + 6, [SSE], ("broke", told))
    assert capture.notes == [f"entry 1: {told}"]
    assert (form.body, end_of(form)) == (b"a+b=c%26d", ("ended", None))


def test_mitmproxy_is_read() -> None:
    capture = foreign("mitmproxy.har")
    binary, broken = capture.exchanges
    assert (binary.request.at, datas(binary)) == (START + 124.456, [b"\x89PNG\r\n\x1a\n\x00\xff"])
    assert (broken.response, end_of(broken)) == (None, ("broke", "server disconnected"))
    assert (capture.notes, capture.head.made_by) == ([], "mitmproxy 10.3.0")


@pytest.mark.parametrize("key", ["_eventSourceMessages", "_eventStreamMessages"])
def test_messages_of_a_stream_give_the_pieces_of_its_text_their_times(key: str) -> None:
    text = ": beat\ndata: 1\n\ndata: 2\n\n"
    content = {"content": {"size": len(text), "text": text}}
    times = [{"time": START / 1000 + 1, "data": "1"}, {"time": START / 1000 + 2, "data": "2"}]
    exchange, notes = one(response=content, **{key: times})
    assert [(piece.at, piece.data) for piece in exchange.received] == [
        (START + 1000, b": beat\ndata: 1\n\n"),
        (START + 2000, b"data: 2\n\n"),
    ]
    assert notes == []
    exchange, notes = one(response=content, **{key: times[:1]})
    assert datas(exchange) == [text.encode()]
    assert "do not fit its text" in notes[0]


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"response": {"content": {"size": 5}}}, "the export left out the response's body of 5"),
        ({"response": {"content": None}}, "the export has no content of the response"),
        ({"response": {"content": {"_file": "/etc/passwd"}}}, "in a file of its own, which is not"),
        ({"request": {"bodySize": 9}}, "the export left out the request's body of 9 bytes"),
        ({"request": {"postData": {"_file": "/etc/passwd"}}}, "in a file of its own, which is not"),
        (
            {"request": {"postData": {"mimeType": "multipart/form-data", "params": [{}]}}},
            "the export left out the request's body, a form with files",
        ),
        ({"_webSocketMessages": [{}]}, "messages of a WebSocket are not read"),
    ],
)
def test_what_is_left_out_is_told(members: dict[str, Any], told: str) -> None:
    exchange, (note,) = one(**members)
    assert note.startswith("entry 1: ")
    assert told in note
    if "response" in members:
        assert end_of(exchange)[0] == "broke"


def test_exchanges_with_several_hosts_are_told() -> None:
    other = entry(request={"url": "http://other.example"})
    capture = foreign(har(entry(), other))
    assert capture.notes == ["it has exchanges with 2 hosts: engine.example, other.example"]
    assert [e.request.target for e in capture.exchanges] == ["/a?b=c", "/"]


def test_halves_of_characters_and_a_mark_of_utf_8_are_no_hindrance() -> None:
    text = har(entry(response={"content": {"text": "half"}})).replace(b"half", b"\\ud83d")
    capture = foreign(b"\xef\xbb\xbf" + text)
    assert datas(capture.exchanges[0]) == ["\ufffd".encode()]
    assert capture.notes == ["halves of characters stand as U+FFFD"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"log":[]}', "x: it is not a HAR: it has no list `log.entries`; export it again"),
        (b'{"log":{"entries":[{"a":1},\n{"b"', "x: line 2: the HAR is cut off: save it again"),
        (b'{"log":\n{"entries":[nope]}}', "x: line 2: it is not JSON: "),
        (b'{"log":{"entries":' + b"[" * 500 + b"]" * 500 + b"}}", "x: line 1: it is not JSON: nes"),
        (har(3), "x: entry 1: its request has no `method` or no `url`"),
        (har(entry(request={"url": "http://[::"})), "x: entry 1: `request.url` is not a URL"),
        (har(entry(startedDateTime="noon")), "x: entry 1: `startedDateTime` is not a time"),
        (har(entry(startedDateTime=None)), "x: entry 1: it has no `startedDateTime`"),
        (har(entry(response={"status": "200"})), "x: entry 1: `response.status` is not a status"),
        (
            har(entry(request={"headers": [{"name": "a"}]})),
            "x: entry 1: `request.headers` has one without a `name` or a `value`",
        ),
        (
            har(entry(response={"content": {"text": "?", "encoding": "base64"}})),
            "x: entry 1: `response.content.text` is not base64",
        ),
    ],
)
def test_what_is_wrong_is_told(data: bytes, told: str) -> None:
    with pytest.raises(BadCapture) as error:
        read_har(data, "x")
    assert error.value.message.startswith(told)
