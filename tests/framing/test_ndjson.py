"""Lines of JSON, however the bytes are cut."""

from __future__ import annotations

import itertools
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wire.framing import SALVAGED_BYTES, FrameTooLarge
from adapters.wire.framing.ndjson import NdjsonParser, format_line

BODIES: dict[str, tuple[bytes, list[bytes], list[bytes]]] = {
    "lines": (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}'], []),
    "CRLF": (b"1\r\n2\r\n", [b"1", b"2"], []),
    "a lone CR is not a line end": (b"1\r2\n", [b"1\r2"], []),
    "only one CR is cut off": (b"1\r\r\n", [b"1\r"], []),
    "blank lines": (b"\n\n1\n\r\n \t\n\r\r\n2\n\n", [b"1", b"2"], []),
    "no line end at the end": (b"1\n2", [b"1"], [b"2"]),
    "a CR at the end": (b"1\n2\r", [b"1"], [b"2"]),
    "white space at the end": (b"1\n \r", [b"1"], []),
    "line ends of Unicode": (
        '"\u2028\u0085\x0b"\n"🙂"\n'.encode(),
        ['"\u2028\u0085\x0b"'.encode(), '"🙂"'.encode()],
        [],
    ),
    "what is not UTF-8": (b"\xff\xfe\n", [b"\xff\xfe"], []),
    "nothing": (b"", [], []),
}


def comparable(lines: list[bytes | FrameTooLarge]) -> list[object]:
    return [
        ("too large", line.offending, line.limit) if isinstance(line, FrameTooLarge) else line
        for line in lines
    ]


def drain(parser: NdjsonParser, chunks: list[bytes]) -> list[object]:
    lines = [line for chunk in chunks for line in parser.feed(chunk)]
    return comparable(lines + parser.close())


def read_simply(body: bytes, limit: int) -> list[object]:
    found: list[object] = []
    for line in re.split(b"\r?\n", re.sub(b"\r\\Z", b"", body)):
        if len(line) > limit:
            found.append(("too large", line[:limit][:SALVAGED_BYTES], limit))
        elif line.strip():
            found.append(line)
    return found


@pytest.mark.parametrize("name", BODIES)
def test_a_body_gives_its_lines_whole_byte_by_byte_and_cut_anywhere(name: str) -> None:
    body, lines, last = BODIES[name]
    cuts = [[body], [body[i : i + 1] for i in range(len(body))]]
    cuts += [[body[:place], b"", body[place:]] for place in range(len(body) + 1)]
    for chunks in cuts:
        parser = NdjsonParser()
        assert [line for chunk in chunks for line in parser.feed(chunk)] == lines, chunks
        assert parser.close() == last, chunks


@given(
    st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"{}", b" ", b"12345678", b"\xff"])).map(
        b"".join
    ),
    st.lists(st.integers(min_value=0), max_size=10),
    st.integers(1, 12),
)
def test_any_split_gives_the_same_lines_within_the_limit(
    body: bytes, places: list[int], limit: int
) -> None:
    edges = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    chunks = [body[start:end] for start, end in itertools.pairwise(edges)]
    assert drain(NdjsonParser(max_line_bytes=limit), chunks) == read_simply(body, limit)


@given(
    st.lists(
        st.binary(min_size=1).filter(lambda value: not set(value) & {10, 13} and value.strip())
    )
)
def test_what_is_written_is_read_back(values: list[bytes]) -> None:
    assert drain(NdjsonParser(), [b"".join(map(format_line, values))]) == values


def test_a_line_that_never_ends_is_reported_once_and_not_kept() -> None:
    parser = NdjsonParser(max_line_bytes=1000)
    lines = parser.feed(b"1\n")
    for _ in range(1000):
        lines += parser.feed(b"x" * 100)
        assert len(pickle.dumps(parser)) < 2000
    lines += parser.feed(b"\n2\n")
    assert comparable(lines) == [b"1", ("too large", b"x" * 1000, 1000), b"2"]


def test_close_while_a_line_is_skipped_reports_nothing_again() -> None:
    parser = NdjsonParser(max_line_bytes=3)
    assert comparable(parser.feed(b"12345")) == [("too large", b"123", 3)]
    assert parser.close() == []
    assert parser.feed(b"1\n") == [b"1"]


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_line_bytes"):
        NdjsonParser(max_line_bytes=0)


@pytest.mark.parametrize("value", [b"1\n2", b"1\r", b"\n"])
def test_a_value_with_a_line_end_is_not_written(value: bytes) -> None:
    with pytest.raises(ValueError, match="line end"):
        format_line(value)


def test_lines_that_come_with_the_end_of_a_long_one_follow_it() -> None:
    parser = NdjsonParser()
    assert parser.feed(b'{"a":"' + b"x" * 100_000) == []
    assert parser.feed(b'"}\r\n1\n\n2\n3') == [b'{"a":"' + b"x" * 100_000 + b'"}', b"1", b"2"]
    assert parser.close() == [b"3"]
