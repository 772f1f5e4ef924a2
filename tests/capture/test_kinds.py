"""What a file is, is told by what is in it; whatever it is, it is read or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.captures import BadCapture, CaptureHead, format_record
from adapters.captures.kinds import KINDS, read_any
from tests.capture.support import CAPTURES

FILES = sorted(file for file in CAPTURES.iterdir() if file.suffix != ".md")
CAPTURE = format_record(CaptureHead(made_by="dragoman", at=1.0))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_each_kind_is_told_by_its_content(file: Path) -> None:
    capture = read_any(file.read_bytes(), "unnamed")
    kind = "har" if file.suffix == ".har" else file.name.partition("-")[0].partition(".")[0]
    assert (capture.name, capture.head.source) == ("unnamed", kind)


def test_a_capture_is_told_by_its_first_line() -> None:
    assert read_any(CAPTURE, "x").head.made_by == "dragoman"
    assert read_any(b'{"at":1.0,"made_by":"me","capture":1}\n', "x").head.made_by == "me"
    with pytest.raises(BadCapture, match="x: line 1: it has version 7 of captures"):
        read_any(b'{"capture":7}\n', "x")
    with pytest.raises(BadCapture, match="x: line 1: it is not a capture"):
        read_any(CAPTURE[:20], "x")


def test_a_har_and_a_cassette_are_told_whatever_stands_first_in_them() -> None:
    har = json.dumps({"a": {}, "log": {"entries": []}}, indent=1).encode()
    assert read_any(har, "x").head.source == "har"
    cassette = {"a": 1, "interactions": [], "version": 1}
    assert read_any(json.dumps(cassette).encode(), "x").head.source == "cassette"
    with pytest.raises(BadCapture, match="betamax"):
        read_any(b'{"http_interactions":[]}', "x")
    with pytest.raises(BadCapture, match="of vcrpy before"):
        read_any(b"- request: {}\n", "x")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "it is empty"),
        (b"\xef\xbb\xbf \n", "it is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0", "it is a picture (PNG)"),
        (b"<!DOCTYPE html>\n<html></html>", "it is HTML or XML"),
        (b"PK\x03\x04zip", "it is a ZIP archive: take the file out of it"),
        (b"\x1f\x8b\x08\0", "it is compressed: run `gunzip` on it first"),
        (b"* Trying 127.0.0.1\n> GET / HTTP/1.1\n", "it is the output of `curl -v`: run it with"),
        (b"[1, 2]", "it is a list of JSON"),
        (b'{\n"name": "x",\n"version": 1}', "it is a document of JSON of another kind"),
        (b'{\n"name": "x",', "it is JSON that is cut off"),
        (b"name: x\non: push\n", "it is something else"),
    ],
)
def test_what_is_something_else_is_told_with_what_can_be_read(data: bytes, told: str) -> None:
    with pytest.raises(BadCapture) as error:
        read_any(data, "x")
    assert error.value.message.startswith(f"x: {told}")
    assert error.value.message.endswith(f"; what can be read is {KINDS}")


def reads_or_refuses(data: bytes) -> None:
    refused, exchanges = None, []
    try:
        exchanges = read_any(data, "x").exchanges
    except BadCapture as error:
        refused = error.message
    assert refused is None or refused.startswith("x: ")
    for exchange in exchanges:
        assert isinstance(exchange.body + exchange.answer, bytes)
        for record in (exchange.request, exchange.response, exchange.end):
            if record is not None:
                format_record(record)


BEGINS = (
    *(b"", b"HTTP/1.1 200 OK\r\n", b"data: ", b'{"log":{"entries":[', b"interactions:\n- "),
    *(CAPTURE, b'{"version":1,"interactions":['),
)


@given(st.sampled_from(BEGINS), st.binary(max_size=200))
@example(b"interactions: ", b"[" * 10_000)
@example(b'{"log":', b'{"entries":' * 10_000)
def test_whatever_bytes_come_they_are_read_or_refused(begin: bytes, data: bytes) -> None:
    reads_or_refuses(begin + data)


@given(st.sampled_from(FILES), st.data())
def test_a_damaged_file_is_read_or_refused(file: Path, data: st.DataObject) -> None:
    whole = file.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(start + 40, len(whole))))
    reads_or_refuses(whole[:start] + data.draw(st.binary(max_size=4)) + whole[end:])
    reads_or_refuses(whole[:end])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def places(value: object) -> list[tuple[dict[str, object] | list[object], str | int]]:
    """Return where the members of a document stand."""
    found: list[tuple[dict[str, object] | list[object], str | int]] = []
    if isinstance(value, dict):
        for key, member in value.items():
            found += [(value, key), *places(member)]
    elif isinstance(value, list):
        for index, member in enumerate(value):
            found += [(value, index), *places(member)]
    return found


@given(st.sampled_from([f for f in FILES if f.suffix in (".har", ".json")]), st.data())
def test_a_member_that_is_anything_is_read_or_refused(file: Path, data: st.DataObject) -> None:
    document = json.loads(file.read_bytes())
    container, key = data.draw(st.sampled_from(places(document)))
    container[key] = data.draw(VALUES)  # type: ignore[index]
    reads_or_refuses(json.dumps(document).encode())
