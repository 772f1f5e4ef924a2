"""The event-stream parser against the grammar of the WHATWG HTML standard, section 9.2."""

from __future__ import annotations

import itertools
import pickle
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.wire.framing import SALVAGED_BYTES, FrameTooFull, FrameTooLarge, FramingError, sse
from adapters.wire.framing.sse import SseFrame, SseParser, format_sse
from tests.support.each import each

# The streams that tell event-stream parsers apart: body, frames, unterminated tail.
STREAMS: dict[str, tuple[bytes, list[SseFrame], bytes]] = {
    "LF": (
        b"event: add\ndata: 1\n\ndata: 2\ndata: 3\n\n",
        [SseFrame("add", b"1"), SseFrame("", b"2\n3")],
        b"",
    ),
    "CRLF": (
        b"event: add\r\ndata: 1\r\n\r\ndata: 2\r\ndata: 3\r\n\r\n",
        [SseFrame("add", b"1"), SseFrame("", b"2\n3")],
        b"",
    ),
    "lone CR": (
        b"event: add\rdata: 1\r\rdata: 2\rdata: 3\r\r",
        [SseFrame("add", b"1"), SseFrame("", b"2\n3")],
        b"",
    ),
    "line ends of all three kinds": (
        b"event: add\r\ndata: 1\n\rdata: 2\rdata: 3\r\n\ndata: 4\r\r\ndata: 5\n\r\n",
        [
            SseFrame("add", b"1"),
            SseFrame("", b"2\n3"),
            SseFrame("", b"4"),
            SseFrame("", b"5"),
        ],
        b"",
    ),
    "BOM": (
        b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: no field\n\ndata: \xef\xbb\xbf2\n\n",
        [SseFrame("", b"1"), SseFrame("", b"\xef\xbb\xbf2")],
        b"",
    ),
    "half a BOM": (b"\xef\xbbdata: x\n\ndata: 1\n\n", [SseFrame("", b"1")], b""),
    "line ends of Unicode inside data": (
        "data: a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\n\n".encode(),
        [SseFrame("", "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg".encode())],
        b"",
    ),
    "comments and empty data": (
        b": hello\n\ndata\n\ndata:\ndata\n\n:\ndata: 1\n: in between\n:data: 2\n\nevent: none\n\n"
        b"data:\n\n",
        [SseFrame("", b""), SseFrame("", b"\n"), SseFrame("", b"1"), SseFrame("", b"")],
        b"",
    ),
    "only one space is cut off": (
        b"data:1\n\ndata:  2\n\ndata: 3 \n\nevent:  e\ndata:\t4\n\nevent:  e\ndata: 5\n\n",
        [
            SseFrame("", b"1"),
            SseFrame("", b" 2"),
            SseFrame("", b"3 "),
            SseFrame(" e", b"\t4"),
            SseFrame(" e", b"5"),
        ],
        b"",
    ),
    "ids": (
        b"data: 0\n\nid: 1\ndata: a\n\ndata: b\n\nid: 2\x00\ndata: c\n\nid: 3\n\ndata: d\n\n"
        b"event: e\nid: 4\ndata: x\n\nevent: e\nid: 5\ndata: e\n\nevent: e\nid: 6\x00\ndata: f\n\n"
        b"id\ndata: g\n\nid: :7:\ndata: h\n\nid: \xc3\xa9\ndata: i\n\n",
        [
            SseFrame("", b"0", None),
            SseFrame("", b"a", "1"),
            SseFrame("", b"b", "1"),
            SseFrame("", b"c", "1"),
            SseFrame("", b"d", "3"),
            SseFrame("e", b"x", "4"),
            SseFrame("e", b"e", "5"),
            SseFrame("e", b"f", "5"),
            SseFrame("", b"g", ""),
            SseFrame("", b"h", ":7:"),
            SseFrame("", b"i", "é"),
        ],
        b"",
    ),
    "retry": (
        b"retry: 1000\ndata: a\n\nretry: 1.5\ndata: b\n\nretry\ndata: c\n\nretry: 7\n\n",
        [SseFrame("", b"a"), SseFrame("", b"b"), SseFrame("", b"c")],
        b"",
    ),
    "unknown fields and case": (
        b"Data: 1\n\n data: 2\n\ndata : 3\n\nfoo: 4\ndatax: 5\nDATA\ndata: 6\n\n",
        [SseFrame("", b"6")],
        b"",
    ),
    "the last of two names counts and none is kept": (
        b"event: a\nevent: b\ndata: 1\n\ndata: 2\n\n"
        b"event: b\nevent\ndata: 3\n\ndata: 4\nevent: b\n\n",
        [SseFrame("b", b"1"), SseFrame("", b"2"), SseFrame("", b"3"), SseFrame("b", b"4")],
        b"",
    ),
    "unterminated tail": (
        b"data: 1\n\nevent: add\ndata: lost\n",
        [SseFrame("", b"1")],
        b"event: add\ndata: lost\n",
    ),
    "tail inside a line": (b"data: 1\r\n\r\ndata: lo", [SseFrame("", b"1")], b"data: lo"),
    "multi-byte text": (
        "event: größe\ndata: 日本語 🙂 é\n\nevent: größe\ndata: ✓\n\n".encode(),
        [SseFrame("größe", "日本語 🙂 é".encode()), SseFrame("größe", "✓".encode())],
        b"",
    ),
    "what is not UTF-8": (
        b"event: \xff\nid: \xfe\ndata: \xc3\x28\n\n",
        [SseFrame("�", b"\xc3\x28", "�")],
        b"",
    ),
    "many blank lines": (
        b"\n\n\n\r\n\ndata: 1\n\n\n\ndata: 2\n\n\n\n\n\n",
        [SseFrame("", b"1"), SseFrame("", b"2")],
        b"",
    ),
    "nothing": (b"", [], b""),
}


def drain(parser: SseParser, chunks: list[bytes]) -> tuple[list[SseFrame | FrameTooLarge], bytes]:
    frames = [frame for chunk in chunks for frame in parser.feed(chunk)]
    return frames, parser.close()


def comparable(frames: list[SseFrame | FrameTooLarge]) -> list[object]:
    """Return the frames with the errors among them as values that can be compared."""
    return [
        ("too large", frame.offending, frame.limit) if isinstance(frame, FrameTooLarge) else frame
        for frame in frames
    ]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def read_by_the_book(body: bytes, limit: int) -> tuple[list[object], bytes]:
    """Follow the text of the standard line by line, with no thought of chunks or speed.

    Two things are ours: the limit, and that ids are taken when a frame ends.
    """
    lines = re.split(b"\r\n|\r|\n", body.removeprefix(b"\xef\xbb\xbf"))
    last = lines.pop()
    frames: list[object] = []
    event_id: str | None = None
    block: list[bytes] = []

    def size() -> int:
        return len(b"\n".join(block))

    for line in lines:
        if line:
            block.append(line)
            continue
        if size() > limit:
            frames.append(("too large", b"\n".join(block)[:limit][:SALVAGED_BYTES], limit))
            block = []
            continue
        event, data = "", b""
        for row in block:
            name, value = row, b""
            if b":" in row:
                name, value = row[: row.index(b":")], row[row.index(b":") + 1 :]
                value = value[1:] if value[:1] == b" " else value
            if name == b"event":
                event = value.decode("utf-8", "replace")
            elif name == b"data":
                data += value + b"\n"
            elif name == b"id" and 0 not in value:
                event_id = value.decode("utf-8", "replace")
        if data:
            frames.append(SseFrame(event, data[:-1], event_id))
        block = []
    if last:
        block.append(last)
    if size() > limit:
        frames.append(("too large", b"\n".join(block)[:limit][:SALVAGED_BYTES], limit))
        return frames, b""
    tail = b"\n".join(block)
    return frames, tail if last or not block else tail + b"\n"


# Pieces that meet each other at every seam of the grammar.
PIECES = st.sampled_from(
    [
        *(
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"\r\n\r\n",
            b"\r\r",
            b"data",
            b"data: ",
            b"data:",
            b": ",
        ),
        *(
            b"event: ",
            b"event: tick",
            b"event: tick\ndata: {}\n\n",
            b"id: ",
            b"id: 7\n",
            b"id\n",
            b"id:8",
        ),
        *(
            b"retry: ",
            b"250",
            b":",
            b": ping",
            b" ",
            b"\0",
            b"x",
            b"{}",
            b"\xef\xbb\xbf",
            b"\xef",
            b"\xbb",
        ),
        *(b"\xff", "é".encode(), "\u2028".encode(), "🙂".encode(), b"0123456789" * 3),
    ]
)
BODIES = st.lists(PIECES, max_size=40).map(b"".join)


@each("name", STREAMS)
def test_a_stream_fed_whole_gives_its_frames(name: str) -> None:
    body, frames, tail = STREAMS[name]
    assert drain(SseParser(), [body]) == (frames, tail)


@each("name", STREAMS)
def test_a_stream_fed_byte_by_byte_gives_its_frames(name: str) -> None:
    body, frames, tail = STREAMS[name]
    assert drain(SseParser(), [body[i : i + 1] for i in range(len(body))]) == (frames, tail)


@each("name", STREAMS)
def test_a_stream_cut_once_anywhere_gives_its_frames(name: str) -> None:
    body, frames, tail = STREAMS[name]
    for place in range(len(body) + 1):
        assert drain(SseParser(), [body[:place], b"", body[place:]]) == (frames, tail), place


@each("name", STREAMS)
def test_the_table_agrees_with_the_standard_read_line_by_line(name: str) -> None:
    body, frames, tail = STREAMS[name]
    assert read_by_the_book(body, 10_000) == (frames, tail)


# From 2 on, because two bytes of what may become a BOM are not a frame yet.
@given(BODIES, st.lists(st.integers(min_value=0), max_size=12), st.integers(2, 40))
@example(b"data: 123456\n\ndata: 1\n\n", [12], 6)
@example(b"data: 1\n\n\n", [], 7)
@example(b"\ndata: 1\r\n\r\ndata: 2", [14], 7)
@example(b"data: 1\rdata: 2\r\r\ndata: 3\n\n", [17], 8)
def test_any_split_of_any_bytes_gives_what_the_standard_says(
    body: bytes, places: list[int], limit: int
) -> None:
    expected = read_by_the_book(body, limit)
    frames, tail = drain(SseParser(max_frame_bytes=limit), cut(body, places))
    assert (comparable(frames), tail) == expected


TICK = b"event: tick\ndata: {}\n\n"
NAMED = b"event: tick\nid: 7\ndata: {}\n\n"


@given(st.lists(PIECES | st.sampled_from([TICK, NAMED]), max_size=20), st.integers(2, 40))
@example([TICK, TICK, b"\r", TICK], 40)
@example([NAMED, TICK, b"event: tick\ndata: 1\r2\n\n", TICK], 40)
@example([TICK, b"event: tick\n", TICK, b"data: 123456", b"\n\n"], 22)
@example([TICK, b"event: tick\ndata:{}\n\n", b"event: x\n\ndata: {}\n", b"\n"], 40)
def test_frames_that_come_one_by_one_give_what_the_standard_says(
    pieces: list[bytes], limit: int
) -> None:
    expected = read_by_the_book(b"".join(pieces), limit)
    frames, tail = drain(SseParser(max_frame_bytes=limit), pieces)
    assert (comparable(frames), tail) == expected


@given(st.lists(PIECES | st.sampled_from([TICK, NAMED]), max_size=20), st.integers(2, 40))
@example([b"event: tick\n", b"data: 1\n\n"], 40)
@example([b"event: tick\nid: 7", b"\ndata: {}\n\n"], 40)
@example([b"data: 1\n" * 9, b"\n"], 40)
@example([TICK, b"event: tick\n\n", b"\n"], 40)
def test_long_frames_give_what_the_standard_says(pieces: list[bytes], limit: int) -> None:
    expected = read_by_the_book(b"".join(pieces), limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "_LONG", 0)
        frames, tail = drain(SseParser(max_frame_bytes=limit), pieces)
    assert (comparable(frames), tail) == expected


@given(st.binary(max_size=60), st.lists(st.integers(min_value=0), max_size=6))
def test_arbitrary_bytes_never_crash_and_split_anywhere(body: bytes, places: list[int]) -> None:
    assert drain(SseParser(), cut(body, places)) == drain(SseParser(), [body])


def test_a_frame_is_returned_as_soon_as_its_blank_line_arrived() -> None:
    for end in (b"\n\n", b"\r\r", b"\r\n\r"):
        assert SseParser().feed(b"data: 1" + end) == [SseFrame("", b"1")], end


def test_frames_around_a_too_large_one_are_delivered() -> None:
    parser = SseParser(max_frame_bytes=20)
    frames = parser.feed(b"data: 1\n\nid: 9\ndata: " + b"x" * 100 + b"\n\ndata: 2\n\n")
    assert comparable(frames) == [
        SseFrame("", b"1"),
        ("too large", b"id: 9\ndata: xxxxxxxx", 20),
        SseFrame("", b"2"),
    ]


def test_a_frame_that_never_ends_is_reported_once_and_not_kept() -> None:
    parser = SseParser(max_frame_bytes=1000)
    frames = parser.feed(b"data: 1\n\n")
    for _ in range(10_000):
        frames += parser.feed(b"data: " + b"x" * 94 + b"\n")
        # What is held stays near the limit, whatever arrives.
        assert len(pickle.dumps(parser)) < 2000
    frames += parser.feed(b"\ndata: 2\n\n")
    assert [type(frame) for frame in frames] == [SseFrame, FrameTooLarge, SseFrame]
    too_large = frames[1]
    assert isinstance(too_large, FrameTooLarge)
    assert isinstance(too_large, FramingError)
    assert isinstance(too_large, ValueError)
    assert too_large.limit == 1000
    assert too_large.offending == ((b"data: " + b"x" * 94 + b"\n") * 10)[:1000]
    assert "1000" in str(too_large)


def test_a_frame_of_exactly_the_limit_passes_with_every_line_end() -> None:
    for end in (b"\n", b"\r", b"\r\n"):
        body = b"event: e" + end + b"data: 12" + end + end
        for chunks in ([body], [body[i : i + 1] for i in range(len(body))]):
            frames, _ = drain(SseParser(max_frame_bytes=17), chunks)
            assert frames == [SseFrame("e", b"12")], end
            frames, _ = drain(SseParser(max_frame_bytes=16), chunks)
            assert comparable(frames) == [("too large", b"event: e\ndata: 1", 16)], end


def test_an_unfinished_frame_over_the_limit_has_no_tail() -> None:
    frames, tail = drain(SseParser(max_frame_bytes=5), [b"data: 1"])
    assert (comparable(frames), tail) == ([("too large", b"data:", 5)], b"")


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_frame_bytes"):
        SseParser(max_frame_bytes=0)


def test_nothing_is_held_between_frames() -> None:
    parser = SseParser()
    empty = len(pickle.dumps(parser))
    parser.feed(b"data: " + b"x" * 100_000 + b"\n\n")
    assert len(pickle.dumps(parser)) <= empty + 10


def test_invented_names_are_not_kept_without_bound() -> None:
    parser = SseParser()
    for i in range(10_000):
        assert parser.feed(b"event: e%d\ndata: 1\n\n" % i) == [SseFrame(f"e{i}", b"1")]
    assert parser.feed(b"event: " + b"e" * 50_000 + b"\ndata: 1\n\n") == [
        SseFrame("e" * 50_000, b"1")
    ]
    assert len(pickle.dumps(parser)) < 20_000


def test_the_id_of_a_frame_without_data_counts() -> None:
    parser = SseParser()
    assert parser.feed(b"id: 7\n\n") == []
    assert parser.feed(b"data: 1\n\n") == [SseFrame("", b"1", "7")]


def test_after_close_the_next_body_starts_afresh_with_the_id_kept() -> None:
    parser = SseParser()
    parser.feed(b"id: 1\ndata: a\n\ndata: cut\r")
    assert parser.close() == b"data: cut\n"
    assert parser.close() == b""
    assert parser.feed(b"\n\xef\xbb\xbfdata: no field\n\n") == []
    parser.close()
    assert parser.feed(b"\xef\xbb\xbfdata: b\n\n") == [SseFrame("", b"b", "1")]
    parser.feed(b"data: " + b"x" * 10)
    assert parser.close() == b"data: xxxxxxxxxx"
    parser.feed(b"")
    parser.feed(b"\xef")
    assert parser.close() == b"\xef"


def test_close_while_a_frame_is_skipped_ends_the_skipping() -> None:
    parser = SseParser(max_frame_bytes=8)
    assert len(parser.feed(b"data: 123456")) == 1
    assert parser.close() == b""
    assert parser.feed(b"data: 1\n\n") == [SseFrame("", b"1")]


@pytest.mark.parametrize(
    ("data", "fields", "expected"),
    [
        (b"{}", {}, b"data: {}\n\n"),
        (b"", {}, b"data: \n\n"),
        (b"{}", {"event": "tick"}, b"event: tick\ndata: {}\n\n"),
        (b"{}", {"event": "", "id": ""}, b"event: \nid: \ndata: {}\n\n"),
        (
            b"{}",
            {"event": "größe", "id": "7"},
            "event: größe\nid: 7\ndata: {}\n\n".encode(),
        ),
        (b"a\nb\r\nc\rd\n", {}, b"data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"),
    ],
)
def test_a_frame_is_written_as_event_id_data(
    data: bytes, fields: dict[str, str], expected: bytes
) -> None:
    assert format_sse(data, **fields) == expected


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b", "\n", "\ud800"])
def test_a_name_or_id_that_would_break_the_frame_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match=r"must not hold|surrogates"):
        format_sse(b"{}", event=bad)
    with pytest.raises(ValueError, match=r"must not hold|surrogates"):
        format_sse(b"{}", id=bad)


NAMES = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=8)
DATA = st.one_of(
    st.binary(max_size=30),
    st.lists(st.sampled_from([b"\n", b"\r", b"a", b" ", b":"])).map(b"".join),
)


@given(
    st.lists(st.tuples(DATA, NAMES, NAMES), max_size=5),
    st.lists(st.integers(min_value=0), max_size=8),
)
def test_what_is_written_is_read_back(
    written: list[tuple[bytes, str, str]], places: list[int]
) -> None:
    body = b"".join(
        format_sse(data, event=event, id=id) + b": ping\n\n" for data, event, id in written
    )
    expected = [
        SseFrame(event, data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), id)
        for data, event, id in written
    ]
    assert drain(SseParser(), cut(body, places)) == (expected, b"")


@pytest.mark.parametrize("line", [b"data: 1\n", b":\n", b"a\n"])
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_frame_of_very_many_lines_is_too_full(line: bytes, end: bytes) -> None:
    most, more = line * sse.MAX_FRAME_LINES, line * (sse.MAX_FRAME_LINES + 1)
    around = b"event: tick\ndata: {}\n\n"
    body = b"".join((around, most, b"\n\n", more, b"\n", around)).replace(b"\n", end)
    cuts = [7_000, 7_001, len(body) - 30]
    for chunks in ([body], cut(body, cuts)):
        frames, tail = drain(SseParser(), chunks)
        full = [frame for frame in frames if isinstance(frame, FrameTooFull)]
        assert [str(frame) for frame in full] == [
            f"a frame of {len(more) - 1} bytes has more than 16384 lines and was skipped"
        ]
        assert full[0].offending == more[:-1][:SALVAGED_BYTES]
        assert [frames[0], frames[-1]] == [SseFrame("tick", b"{}"), SseFrame("tick", b"{}")]
        # One with as many as are allowed is read, which is nothing where none of them is data.
        assert len(frames) == 3 + line.startswith(b"data")
        assert tail == b""
