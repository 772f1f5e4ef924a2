"""Sealed values are found in what a backend says, however it spells or cuts them; nothing else is
changed.
"""

from __future__ import annotations

import gc
import io
import itertools
import json
import logging
import random
import re
import string
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import events as ev
from adapters.base import Response
from adapters.commands import Sealed
from adapters.errors import DragomanError, ErrorCode
from adapters.framing import FrameTooLarge
from adapters.framing.sse import SseFrame
from proxy import logs, sealed
from proxy.sealed import MOST_PLACES, Held

VALUE = 'pa"ss wörd/1'
# As a private key of 4096 bits is written.
PEM = "\n".join(
    ["-----BEGIN PRIVATE KEY-----"]
    + ["".join(random.Random(n).choices(string.ascii_letters + "+/", k=64)) for n in range(51)]
    + ["-----END PRIVATE KEY-----"]
)


def holding(*values: str) -> Held:
    held = Held()
    for number, value in enumerate(values):
        held.add(f"c{number}", Sealed(value))
    return held


def cleaned(value: Any, *values: str) -> Any:
    data = json.dumps(value).encode()
    return json.loads(holding(*values).data(data))


def delta(text: str, block: str = "b", thread: str = ev.MAIN) -> ev.Event:
    return ev.TextDelta(
        thread_id=thread, turn_id="t", block_id=block, message_id="m", index=0, text=text
    )


def texts(events: list[ev.Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ev.TextDelta))


@pytest.mark.parametrize(
    "spelled",
    [VALUE, json.dumps(VALUE)[1:-1], json.dumps(VALUE, ensure_ascii=False)[1:-1], quote(VALUE, "")],
)
def test_every_spelling_is_found(spelled: str) -> None:
    assert cleaned({"output": [f"a {spelled} b"]}, VALUE) == {"output": ["a [redacted] b"]}
    # In what is no JSON too.
    assert holding(VALUE).data(f"no json: {spelled}!\xff".encode()) == (
        "no json: [redacted]!\xff".encode()
    )
    assert holding(VALUE).data(b"\xff " + spelled.encode()) == b"\xff [redacted]"


def test_what_has_no_value_in_it_is_the_same_object() -> None:
    held = holding("hunter2hunter2")
    data = b'{"a": 1.10, "b":[1e400, "x"],"c":{"d":null}}'
    frame, large = SseFrame("e", data), FrameTooLarge(b"start", limit=3)
    response = Response(200, body=b"not json")
    assert held.data(data) is data
    assert held.frame(frame) is frame
    assert held.frame(data) is data
    assert held.frame(large) is large
    assert held.response(response) is response


def test_frames_and_answers_are_cleaned_and_keep_the_rest() -> None:
    held = holding("hunter2")
    frame = held.frame(SseFrame("e", b'{"n":1.5,"x":"hunter2"}', "id", 5))
    assert frame == SseFrame("e", b'{"n":1.5,"x":"[redacted]"}', "id", 5)
    large = held.frame(FrameTooLarge(b'{"x":"hunter2', limit=20))
    assert isinstance(large, FrameTooLarge)
    assert (large.offending, large.limit) == (b'{"x":"[redacted]', 20)
    assert held.response(Response(422, body=b"hunter2 is wrong")).body == b"[redacted] is wrong"
    assert held.frame(b"hunter2") == b"[redacted]"


def test_words_of_the_protocol_stay_and_so_does_all_where_a_value_is_very_short() -> None:
    said = {
        "type": "agent.message",
        "id": "evt_message",
        "request_id": "message",
        "createdAt": "message",
        "event_ids": ["message"],
        "message": "a message",
        "n": 1234,
    }
    assert cleaned(said, "message", "1234") == {**said, "message": "a [redacted]"}
    assert cleaned({"x": "abc abcd"}, "abc") == {"x": "abc abcd"}


def test_the_longest_value_is_replaced_and_each_line_by_itself() -> None:
    assert cleaned(["xhunter2hunter2x"], "hunter2", "hunter2hunter2") == ["x[redacted]x"]
    key = "-----BEGIN KEY-----\nMIIEvQIBADAN\nabc\n"
    assert cleaned(["| MIIEvQIBADAN |", "abc"], key) == ["| [redacted] |", "abc"]


@pytest.mark.parametrize("size", range(1, 12))
def test_a_value_in_pieces_is_found_and_no_character_is_lost(size: int) -> None:
    text = "hunt hunter2 huhunter2hunter2. hunter"
    held = holding("hunter2", "hunter2hunter2")
    out: list[ev.Event] = []
    for at in range(0, len(text), size):
        out += held.events([delta(text[at : at + size])])
    end = ev.TextCompleted(
        thread_id=ev.MAIN, turn_id="t", block_id="b", message_id="m", index=0,
        text="all", status="complete",
    )  # fmt: skip
    out += held.events([end])
    assert out[-1] is end
    assert texts(out) == "hunt [redacted] hu[redacted]. hunter"
    assert all(event.text for event in out if isinstance(event, ev.TextDelta))


def test_what_waits_is_of_its_own_block_and_thread() -> None:
    held = holding("hunter2")
    out = held.events([delta("a hun"), delta("ter2", "other"), delta("x hun", "b", "child")])
    assert texts(out) == "a ter2x "
    assert texts(held.events([delta("ter2!")])) == "[redacted]!"
    ended = held.events([ev.Notice(thread_id="child", level="info", text="n")])
    assert texts(ended) == "hun"


def test_values_are_known_until_they_are_cleared_to_the_log_too() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter(()))
    log = logging.Logger("test")
    log.addHandler(handler)
    held = holding("swordfish9")
    assert held.is_in({"c0", "c9"})
    assert not held.is_in({"c9"})
    log.warning("it is %s", "swordfish9")
    held.clear()
    assert not held
    log.warning("it was %s", "swordfish9")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["message"], second["message"]) == ("it is [redacted]", "it was swordfish9")
    assert "swordfish9" not in repr(held)


def test_what_looks_for_a_value_leaves_it_in_no_cache() -> None:
    held = holding("zebra-giraffe-4711")
    assert held.data(b"a zebra-giraffe-4711") == b"a [redacted]"
    held.events([delta("zebra-gir")])
    held.clear()
    gc.collect()
    patterns = [str(key) for key in re._cache]  # type: ignore[attr-defined]
    assert patterns
    assert not [one for one in patterns if "4711" in one]


def test_a_text_of_nothing_but_values_is_replaced_as_a_whole() -> None:
    held = holding("yyyy")
    assert held.data(b"y" * 900_000) == b"[redacted]"
    few = "y" * 4 * MOST_PLACES
    assert cleaned([few, few + "yyyy"], "yyyy") == ["[redacted]" * MOST_PLACES, "[redacted]"]


def test_what_is_looked_for_in_a_session_has_a_bound() -> None:
    held = Held()
    values = [Sealed(chr(97 + number) * 8192) for number in range(3)]
    with held.expecting(values):
        for number, value in enumerate(values):
            held.add(f"c{number}", value)
    before = held.search
    assert held.data(b"a " + b"b" * 8192) == b"a [redacted]"
    with (
        pytest.raises(DragomanError, match="at most 24576 bytes") as caught,
        held.expecting([Sealed("more")]),
    ):
        pytest.fail("it was taken")
    assert caught.value.code is ErrorCode.TOO_LARGE
    # What was held is found as before, what was refused is not.
    assert held.data(b"more " + b"b" * 8192) == b"more [redacted]"
    assert held.search is not before
    held.clear()
    with held.expecting([Sealed("more")]):
        pass
    assert not held


def test_a_value_is_made_ready_for_before_it_is_taken() -> None:
    held = holding("hunter2")
    value = Sealed("swordfish9")
    with held.expecting([value]):
        ready = held.search
        held.add("c", value)
        assert held.search is ready
    assert held.search is ready
    assert held.data(b"hunter2 swordfish9") == b"[redacted] [redacted]"
    # Its turn may be over in between.
    value = Sealed("hunter3")
    with held.expecting([value]):
        held.clear()
        held.add("c", value)
    assert held.data(b"hunter2 hunter3") == b"hunter2 [redacted]"


@given(st.data())
def test_wherever_a_text_is_cut_nothing_of_a_value_is_shown(data: st.DataObject) -> None:
    value = data.draw(st.text("ab", min_size=4, max_size=7))
    text = data.draw(st.text("abc", max_size=40))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    held = holding(value)
    shown: list[ev.Event] = []
    for begin, end in itertools.pairwise([0, *cuts, len(text)]):
        if begin < end:
            shown += held.events([delta(text[begin:end])])
    shown += held.events([ev.TurnEnded(thread_id=ev.MAIN, turn_id="t", outcome="completed")])
    assert value not in texts(shown)
    if value not in text:
        assert texts(shown) == text


@given(st.data())
def test_a_large_text_is_searched_as_a_small_one_is(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.text("ab", min_size=4, max_size=7), min_size=1, max_size=3))
    text = data.draw(st.text("abc", max_size=60))
    expected = cleaned([text], *values)
    split = holding(*values).search.split(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed, "_PIECE", data.draw(st.integers(1, 20)))
        assert cleaned([text], *values) == expected
        assert holding(*values).search.split(text) == split


@given(st.data())
def test_a_text_of_too_many_values_shows_nothing_of_them_wherever_it_is_cut(
    data: st.DataObject,
) -> None:
    value = data.draw(st.text("ab", min_size=4, max_size=6))
    some = st.sampled_from([value, "c", value[:3], "c" + value])
    text = "".join(data.draw(st.lists(some, max_size=12)))
    cut = data.draw(st.integers(0, len(text)))
    pieces = [one for one in (text[:cut], text[cut:]) if one]

    def shown() -> str:
        held = holding(value)
        out = held.events(
            [*map(delta, pieces), ev.Notice(thread_id=ev.MAIN, level="info", text="")]
        )
        return texts(out)

    expected = shown()
    assert value not in expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed, "MOST_PLACES", data.draw(st.integers(0, 3)))
        few = shown()
    # Less is left, and nothing else.
    left = iter(expected.replace("[redacted]", ""))
    assert all(one in left for one in few.replace("[redacted]", ""))
