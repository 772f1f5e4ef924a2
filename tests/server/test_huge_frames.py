"""A backend slips one huge frame into an otherwise good stream.

What it says is in the log, or the log says that it was too much; the rest of the stream is used.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.wire.limits import FRAME_VALUES
from tests.support.slipped import conversation, slipped


def eve(kind: str, **data: object) -> bytes:
    """A line of an eve's stream."""
    return b"%b\n" % json.dumps({"type": kind, "data": data}).encode()


async def test_a_long_text_with_many_commas_is_taken(tmp_path: Path) -> None:
    text = "1,2\n" * (200 * 1024)
    data = eve("message.completed", message=text, finishReason="stop")
    async with slipped(tmp_path, "eve", data, 5) as dragoman:
        events = await conversation(dragoman)
    blocks = [event["text"] for event in events if event["type"] == "text.completed"]
    assert text in blocks
    assert not [event for event in events if event["type"] == "error.reported"]


REFUSED = {
    "too long": (
        eve("message.appended", messageDelta="a" * (40 * 2**20)),
        "is longer than the limit of",
    ),
    "a bomb": (eve("message.appended", bomb=[[]] * FRAME_VALUES), " values "),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_frame_with_too_much_in_it_is_told_of_and_skipped(
    tmp_path: Path, what: str
) -> None:
    data, why = REFUSED[what]
    async with slipped(tmp_path, "eve", data, 5) as dragoman:
        events = await conversation(dragoman)
    (told,) = [event["message"] for event in events if event["type"] == "error.reported"]
    assert why in told
    assert told.endswith("and was skipped")
    # The rest of the stream is used.
    assert [event["outcome"] for event in events if event["type"] == "turn.ended"] == ["completed"]
