"""Cassettes: what vcrpy wrote is read, and nothing in one is executed."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from typing import Any

import pytest

from adapters.captures import BadCapture, CapturedExchange
from adapters.captures.cassette import read_cassette
from adapters.captures.foreign import ForeignLimits
from tests.capture.support import CAPTURES, SSE, datas, end_of, foreign
from tests.support.each import each

CASSETTES = CAPTURES.parent / "cassettes"


def cassette(
    body: object = "hi", headers: object = None, request: object = None, **members: object
) -> bytes:
    """Return a cassette of JSON with one exchange."""
    asked = {"method": "POST", "uri": "http://h.example/a?b", "headers": {}, "body": request}
    answer = {"status": {"code": 200, "message": "OK"}, "headers": headers, "body": body}
    interactions = [{"request": asked, "response": answer}]
    return json.dumps({"version": 1, "interactions": interactions} | members).encode()


def one(data: bytes) -> CapturedExchange:
    (exchange,) = read_cassette(data, "x").exchanges
    return exchange


def yaml(body: str, *, request: str = "null") -> bytes:
    return (
        f"interactions:\n- request:\n    body: {request}\n    headers: {{}}\n    method: GET\n"
        f"    uri: http://h.example/\n  response:\n    body:\n      string: {body}\n"
        "    headers: {A: [b]}\n    status: {code: 200, message: OK}\nversion: 1\n"
    ).encode()


def test_what_vcrpy_recorded_of_urllib_is_read() -> None:
    capture = foreign("cassette-urllib.yaml")
    stream, picture = capture.exchanges
    assert (capture.head.source, capture.head.made_by) == ("cassette", "vcrpy")
    assert stream.body == '{"message":"café"}'.encode()
    # It was compressed.
    assert datas(stream) == [SSE]
    assert stream.response is not None
    names = [name for name, _ in stream.response.headers]
    assert "Content-Encoding" not in names
    assert "Content-Length" not in names
    assert ("Content-Type", "text/event-stream") in stream.response.headers
    assert (picture.request.method, picture.request.target) == ("GET", "/png")
    assert datas(picture) == [b"\x89PNG\r\n\x1a\n\x00\xff"]
    assert [e.request.at for e in capture.exchanges] == [0.0, 2.0]
    assert end_of(stream) == ("ended", None)


def test_a_body_that_aiohttp_got_as_a_value_is_read() -> None:
    capture = foreign("cassette-aiohttp.yaml")
    (exchange,) = capture.exchanges
    # It says that it is compressed, and is not.
    assert (exchange.body, datas(exchange)) == (b'{"message":"hi"}', [SSE])
    assert "the request's body is kept as a value; its JSON is written anew" in capture.notes[1]
    value = "{a: 1, b: -1.5, c: true, d: null, e: '1', f: [x, '', 0123, 2026-01-01], g: !!str 7}"
    assert one(yaml("hi", request=value)).body == (
        b'{"a":1,"b":-1.5,"c":true,"d":null,"e":"1","f":["x","","0123","2026-01-01"],"g":"7"}'
    )


def test_json_is_read() -> None:
    (exchange,) = foreign("cassette.json").exchanges
    assert (exchange.body, datas(exchange)) == (b'{"message":"hi"}', [SSE])


@each("file", sorted(CASSETTES.rglob("*.yaml")), ids=lambda file: file.stem)
def test_every_cassette_of_the_project_is_read(file: Any) -> None:
    capture = foreign(file.read_bytes())
    assert capture.exchanges
    assert {end_of(exchange)[0] for exchange in capture.exchanges} == {"ended"}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"string": "hi"}, None),
        ({"base64_string": base64.b64encode(b"hi").decode()}, {}),
        ("hi", {"A": "b"}),
        ({"string": "hi"}, {"Content-Encoding": "identity"}),
    ],
)
def test_bodies_of_all_forms_are_read(body: object, headers: object) -> None:
    assert one(cassette(body, headers)).answer == b"hi"


def zipped(data: bytes, coding: str) -> bytes:
    text = base64.b64encode(data).decode()
    return cassette({"base64_string": text}, {"Content-Encoding": [coding]})


def test_compressed_bodies_are_inflated() -> None:
    assert one(zipped(gzip.compress(b"a") + gzip.compress(b"b"), "gzip")).answer == b"ab"
    assert one(zipped(zlib.compress(b"ab"), "deflate")).answer == b"ab"
    capture = read_cassette(zipped(b"\xff\xfe", "br"), "x")
    assert datas(capture.exchanges[0]) == [b"\xff\xfe"]
    assert "the response's body is compressed as `br`, which is not inflated" in capture.notes[1]


def test_a_body_that_inflates_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.captures.foreign.LIMITS", ForeignLimits(inflated_bytes=1000))
    assert len(one(zipped(gzip.compress(bytes(1000)), "gzip")).answer) == 1000
    with pytest.raises(BadCapture, match="more than 1000 bytes when they are inflated"):
        read_cassette(zipped(gzip.compress(bytes(1001)), "gzip"), "x")


def test_earlier_recordings_of_httpx_and_python_2_are_read() -> None:
    answer = {"status_code": 200, "headers": {}, "content": "hi"}
    request = {"method": "GET", "uri": "http://h.example", "headers": {}, "body": ""}
    interactions = [{"request": request, "response": answer}]
    assert one(json.dumps({"version": 1, "interactions": interactions}).encode()).answer == b"hi"
    assert one(yaml("!!python/unicode 'hi'")).answer == b"hi"


@pytest.mark.parametrize(
    "body",
    [
        "!!python/object/apply:os.system ['touch /tmp/x']",
        "!!python/name:os.system ''",
        "!!python/object/new:_io.BytesIO {state: !!python/tuple [hi]}",
        "!local hi",
        "!!set {a}",
    ],
)
def test_a_tag_that_can_stand_for_an_object_is_refused_with_its_line(body: str) -> None:
    with pytest.raises(BadCapture) as error:
        foreign(yaml(body))
    tag = body.split()[0]
    assert error.value.message.startswith(f"x: line 9: the tag `{tag}` is not read, since it")
    assert "record the cassette again with a newer vcrpy" in error.value.message


def test_aliases_make_no_much_of_little(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = yaml("&b hi", request="null").replace(b"version", b"x: *b\nversion")
    assert one(shared).answer == b"hi"
    levels = "".join(f", b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, 12))
    with pytest.raises(BadCapture, match="the bodies have more than"):
        foreign(yaml("hi", request=f"{{b0: &b0 [x]{levels}}}"))
    levels = "".join(f", b{n}: &b{n} [*b{n - 1}]" for n in range(1, 400))
    with pytest.raises(BadCapture, match="nested deeper"):
        foreign(yaml("hi", request=f"{{b0: &b0 [x]{levels}}}"))
    monkeypatch.setattr("adapters.captures.foreign.LIMITS", ForeignLimits(body_bytes=5_000))
    text = b"x" * 3_000
    once = yaml("&b " + text.decode())
    begin, middle, end = once.partition(b"- request")
    inner, version, _ = end.partition(b"version")
    again = middle + inner.replace(b"&b " + text, b"*b")
    assert one(once).answer == text
    with pytest.raises(BadCapture, match="more than 5000 bytes"):
        foreign(begin + middle + inner + again + version + b": 1\n")
    monkeypatch.setattr("adapters.captures.foreign.LIMITS", ForeignLimits(exchanges=2))
    anchored = yaml("hi").replace(b"- request", b"- &i\n  request")
    assert len(foreign(anchored.replace(b"version", b"- *i\nversion")).exchanges) == 2
    with pytest.raises(BadCapture, match="more than 2 exchanges"):
        foreign(anchored.replace(b"version", b"- *i\n- *i\nversion"))


@each(
    ("data", "told"),
    [
        (b" ", "x: it is empty: record the cassette again"),
        (b"a: [1", "x: line 2: it is not YAML, or cut off: "),
        (b"a: \xff", "x: it is not YAML, or cut off: "),
        (b"a: " + b"[" * 500, "x: line 1: it is nested deeper than 128 levels"),
        (b"a: &a [*a]", "x: line 1: an alias names nothing that is whole before it"),
        (b"a: *a", "x: line 1: "),
        (b"{a: 1}: 2", "x: line 1: "),
        (b"? [a]\n: 2", "x: line 1: a name in a mapping is not a text"),
        (b"a: 1\n---\nb: 2", "x: line 2: a second document begins"),
        (b"a: !!binary '?'", "x: line 1: `!!binary` is not base64"),
        (b"a: 1", "x: it is not a cassette: it has no list `interactions`"),
        (b"http_interactions: []", "x: it is a cassette of VCR for Ruby or of betamax"),
        (b"- request: {}", "x: it is a cassette of vcrpy before 1.0"),
        (b"interactions: []\nversion: 2", "x: it has version '2' of cassettes, and 1 is read"),
        (b"interactions: []", "x: it has version None of cassettes"),
        (b"version: 1\ninteractions:\n- a: b", "x: line 3: interaction 1: it has no `request`"),
        (b'{"version":1,\n"interactions":[', "x: line 2: the cassette is cut off: save it again"),
        (cassette(3), "x: interaction 1: `response.body` is not a text"),
        (cassette(headers=[]), "x: interaction 1: `response.headers` are not names with values"),
        (
            cassette({"base64_string": "?"}),
            "x: interaction 1: `response.body.base64_string` is not",
        ),
        (yaml("hi").replace(b"200", b"ok"), "x: line 8: interaction 1: its response has no sta"),
        (yaml("hi").replace(b"GET", b""), "x: line 3: interaction 1: its request has no"),
        (yaml("hi").replace(b"http://h.example", b"'//[a'"), "x: "),
        (zipped(gzip.compress(b"hi")[:-3], "gzip"), "x: a compressed body is cut off"),
        (zipped(b"\x1f\x8b\x08nothing", "gzip"), "x: a compressed body is "),
    ],
)
def test_what_is_wrong_is_told(data: bytes, told: str) -> None:
    with pytest.raises(BadCapture) as error:
        read_cassette(data, "x")
    assert error.value.message.startswith(told)


def test_without_its_c_half_pyyaml_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = foreign("cassette-urllib.yaml")
    monkeypatch.delattr("yaml.CSafeLoader")
    assert foreign("cassette-urllib.yaml") == with_it
    with pytest.raises(BadCapture, match="not YAML in UTF-8"):
        foreign(yaml('"\\ud800"'))
