"""One step of a session: what is stored of raw events, and with what of the codec."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.contract.step import StepResult, apply, stamp
from adapters.model import events as ev
from adapters.model.normalizer import Normalizer
from adapters.model.state import LogState


class Codec:
    """Tells how often it was asked for its position and its state, and in which order."""

    changed = False

    def __init__(self) -> None:
        self.asked: list[str] = []

    @property
    def position(self) -> bytes:
        self.asked.append("position")
        return b"p"

    def snapshot(self) -> bytes:
        self.asked.append("snapshot")
        return b"s"


AT: dict[str, Any] = {"thread_id": ev.MAIN, "turn_id": "t1"}
BEGUN = (
    ev.SessionStarted(thread_id=ev.MAIN),
    ev.TurnStarted(**AT, cause="message"),
    ev.TextDelta(**AT, block_id="b", message_id="m", text="a"),
)
DELTA = ev.TextDelta(**AT, block_id="b", message_id="m", text="b")
END = ev.TurnEnded(**AT, outcome="completed")


@pytest.mark.parametrize(
    ("raw", "flags", "types", "whole", "asked"),
    [
        # What comes from the backend goes with its position.
        ([DELTA], {}, ["text.delta"], False, ["position"]),
        ([DELTA, DELTA], {}, ["text.delta"] * 2, False, ["position"]),
        ([DELTA, END], {}, ["text.delta", "text.completed", "turn.ended"], True, "both"),
        # What does not, goes with it only where the state is stored.
        ([DELTA], {"upstream": False}, ["text.delta"], False, []),
        ([END], {"upstream": False}, ["text.completed", "turn.ended"], True, "both"),
        # A command's fate is stored even where nothing happened.
        ([], {"upstream": False, "changes": True}, [], True, "both"),
        ([DELTA], {"changes": True}, ["text.delta"], True, "both"),
    ],
)
def test_what_is_stored_of_a_step(
    raw: list[ev.Event], flags: dict[str, bool], types: list[str], whole: bool, asked: Any
) -> None:
    codec: Any = Codec()
    normalizer = Normalizer()
    assert apply(codec, normalizer, BEGUN, 100, "s") is not None
    codec.asked.clear()
    batch = apply(codec, normalizer, raw, 200, "s", **flags)
    assert batch is not None
    assert [entry.event.TYPE for entry in batch.entries] == types
    assert [entry.seq for entry in batch.entries] == list(range(4, 4 + len(types)))
    assert {entry.at for entry in batch.entries} <= {200}
    # A position has nothing that the snapshot of the same moment has.
    asked = ["snapshot", "position"] if asked == "both" else asked
    assert (batch.whole, codec.asked) == (whole, asked)
    assert batch.position == (b"p" if "position" in asked else None)
    assert batch.state == (b"s" if "snapshot" in asked else None)


@pytest.mark.parametrize("upstream", [True, False])
def test_a_state_that_changed_is_stored_where_that_is_asked_for(upstream: bool) -> None:
    codec: Any = Codec()
    normalizer = Normalizer()
    assert apply(codec, normalizer, [], 1, "s", upstream=upstream, keep=True) is None
    codec.changed = True
    assert apply(codec, normalizer, [], 1, "s", upstream=upstream) is None
    batch = apply(codec, normalizer, [], 1, "s", upstream=upstream, keep=True)
    assert batch == StepResult([], True, b"p", b"s")


def test_nothing_is_stored_of_nothing() -> None:
    codec: Any = Codec()
    normalizer = Normalizer()
    assert apply(codec, normalizer, [], 100, "s") is None
    apply(codec, normalizer, [*BEGUN, END], 100, "s")
    codec.asked.clear()
    # It is late, and dropped.
    assert apply(codec, normalizer, [DELTA], 100, "s") is None
    assert codec.asked == []


def test_time_never_steps_back() -> None:
    state = LogState()
    first = stamp(state, [BEGUN[0]], 500, "s")
    assert first == [ev.Entry(1, 500, "s", BEGUN[0])]
    assert stamp(state, [DELTA, END], 400, "s") == [
        ev.Entry(2, 500, "s", DELTA),
        ev.Entry(3, 500, "s", END),
    ]
    assert (state.seq, state.at) == (3, 500)
    assert stamp(state, [], 600, "s") == []
    assert (state.seq, state.at) == (3, 600)


def test_a_log_that_is_stored_entry_by_entry_obeys_the_first_law() -> None:
    codec: Any = Codec()
    normalizer = Normalizer()
    folded = LogState()
    for at, raw in ((7, list(BEGUN)), (5, [DELTA]), (9, [END])):
        batch = apply(codec, normalizer, raw, at, "s")
        assert isinstance(batch, StepResult)
        for entry in batch.entries:
            folded.apply_entry(entry)
    assert folded == normalizer.state
