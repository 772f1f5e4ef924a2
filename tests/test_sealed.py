"""Sealed values are found in what a backend says, however it spells or cuts them; nothing else is
changed.
"""

from __future__ import annotations

import gc
import io
import json
import logging
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.model import events as ev
from adapters.model.base import Response
from adapters.model.commands import Sealed
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.framing import FrameTooLarge
from adapters.wire.framing.sse import SseFrame
from proxy.base import logs
from proxy.base.sealed import SecretScrubber

VALUE = 'pa"ss wörd/1'
END = ev.TurnEnded(thread_id=ev.MAIN, turn_id="t", outcome="completed")


def scrubber(*values: str) -> SecretScrubber:
    made = SecretScrubber()
    for number, value in enumerate(values):
        made.add(f"c{number}", Sealed(value))
    return made


def cleaned(value: Any, *values: str) -> Any:
    data = json.dumps(value).encode()
    return json.loads(scrubber(*values).data(data))


def delta(text: str, block: str = "b", thread: str = ev.MAIN) -> ev.Event:
    return ev.TextDelta(
        thread_id=thread, turn_id="t", block_id=block, message_id="m", index=0, text=text
    )


def texts(events: list[ev.Event], block: str = "b") -> str:
    return "".join(
        event.text
        for event in events
        if isinstance(event, ev.TextDelta) and event.block_id == block
    )


@pytest.mark.parametrize(
    "spelled",
    [VALUE, json.dumps(VALUE)[1:-1], json.dumps(VALUE, ensure_ascii=False)[1:-1], quote(VALUE, "")],
)
def test_every_spelling_is_found(spelled: str) -> None:
    assert cleaned({"output": [f"a {spelled} b"]}, VALUE) == {"output": ["a [redacted] b"]}
    # In what is not JSON too.
    assert scrubber(VALUE).data(f"no json: {spelled}!\xff".encode()) == (
        "no json: [redacted]!\xff".encode()
    )
    assert scrubber(VALUE).data(b"\xff " + spelled.encode()) == b"\xff [redacted]"


def test_frames_and_answers_are_cleaned_and_keep_the_rest() -> None:
    secrets = scrubber("hunter2")
    frame = secrets.frame(SseFrame("e", b'{"n":1.5,"x":"hunter2"}', "id"))
    assert frame == SseFrame("e", b'{"n":1.5,"x":"[redacted]"}', "id")
    large = secrets.frame(FrameTooLarge(b'{"x":"hunter2', limit=20))
    assert isinstance(large, FrameTooLarge)
    assert (large.offending, large.limit) == (b'{"x":"[redacted]', 20)
    assert secrets.response(Response(422, body=b"hunter2 is wrong")).body == b"[redacted] is wrong"
    assert secrets.frame(b"hunter2") == b"[redacted]"
    # What has no value in it is not written anew.
    for data in (b'{"a": 1.10, "b":["x"],"c":{"d":null}}', b"[1e400]", b"not json \xff"):
        assert secrets.data(data) == data


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


def test_what_waits_is_of_its_own_block_and_thread_and_comes_with_what_follows() -> None:
    secrets = scrubber("hunter2")
    out = secrets.events([delta("a hun"), delta("ter2", "other"), delta("x hun", "b", "child")])
    assert texts(out) + texts(out, "other") == "a x ter2"
    assert texts(secrets.events([delta("ter2!")])) == "[redacted]!"
    notice = ev.Notice(thread_id="child", level="info", text="n")
    *waited, last = secrets.events([notice])
    assert texts(waited) == "hun"
    assert last is notice


def test_values_are_known_until_they_are_cleared_to_the_log_too() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter(()))
    log = logging.Logger("test")
    log.addHandler(handler)
    secrets = scrubber("swordfish9")
    assert secrets.is_in({"c0", "c9"})
    assert not secrets.is_in({"c9"})
    log.warning("it is %s", "swordfish9")
    secrets.clear()
    assert not secrets.active
    log.warning("it was %s", "swordfish9")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["message"], second["message"]) == ("it is [redacted]", "it was swordfish9")
    assert "swordfish9" not in repr(secrets)


def test_what_looks_for_a_value_leaves_it_in_no_cache() -> None:
    secrets = scrubber("zebra-giraffe-4711")
    assert secrets.data(b"a zebra-giraffe-4711") == b"a [redacted]"
    secrets.events([delta("zebra-gir")])
    secrets.clear()
    gc.collect()
    patterns = [str(key) for key in re._cache]  # type: ignore[attr-defined]
    assert patterns
    assert not [one for one in patterns if "4711" in one]


def test_what_is_looked_for_in_a_session_has_a_bound() -> None:
    values = [letter * 8192 for letter in "abc"]
    SecretScrubber().check_room(map(Sealed, values))
    with pytest.raises(DragomanError, match="at most 24576 bytes") as caught:
        scrubber(*values).check_room([Sealed("more")])
    assert caught.value.code is ErrorCode.TOO_LARGE


@given(st.data())
def test_however_a_text_is_cut_the_values_are_replaced_and_the_rest_is_unchanged(
    data: st.DataObject,
) -> None:
    # One may be a part of another, or begin with it.
    values = data.draw(st.lists(st.text("ab", min_size=4, max_size=7), min_size=1, max_size=3))
    # The same in several blocks, whose deltas come in any order.
    piece = st.sampled_from([*values, values[0][:-1], "a", "b", "c", "c"])
    left = {block: "".join(data.draw(st.lists(piece, max_size=12))) for block in ("one", "two")}
    # Of those that begin together the longest is replaced.
    longest_first = "|".join(sorted(values, key=len, reverse=True))
    expected = {block: re.sub(longest_first, "[redacted]", text) for block, text in left.items()}
    secrets = scrubber(*values)
    shown: list[ev.Event] = []
    while open_ := [block for block, text in left.items() if text]:
        block = data.draw(st.sampled_from(open_))
        size = data.draw(st.integers(1, len(left[block])))
        shown += secrets.events([delta(left[block][:size], block)])
        left[block] = left[block][size:]
    shown += secrets.events([END])
    assert shown.pop() is END
    assert all(event.text for event in shown if isinstance(event, ev.TextDelta))
    for block, text in expected.items():
        assert texts(shown, block) == text
        assert not any(value in texts(shown, block) for value in values)
