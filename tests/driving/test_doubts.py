"""Doubts: state, what a look brings, what follows."""

from __future__ import annotations

import pytest

from adapters.driving.doubts import (
    LOOK_AGAIN_MS,
    LOOK_RETRY_MS,
    LOOKS,
    Doubt,
    Doubts,
    Evidence,
    Verdict,
)

NOW = 10_000
SHOWN, MISSING, UNREAD = Evidence.SHOWN, Evidence.MISSING, Evidence.UNREAD


@pytest.mark.parametrize(
    ("before", "evidence", "verdict", "after"),
    [
        # It arrived, whenever that shows.
        (Doubt(), SHOWN, Verdict.TAKEN, None),
        (Doubt(NOW + 1, 3), SHOWN, Verdict.TAKEN, None),
        # Nothing of it at first: it may be on its way.
        (Doubt(), MISSING, Verdict.TELL, Doubt(NOW + LOOK_AGAIN_MS)),
        (Doubt(None, 2), MISSING, Verdict.TELL, Doubt(NOW + LOOK_AGAIN_MS, 2)),
        # A look that came too early, as after a restart, says nothing.
        (Doubt(NOW + 1), MISSING, Verdict.WAIT, Doubt(NOW + 1)),
        (Doubt(NOW), MISSING, Verdict.LOST, None),
        (Doubt(NOW - 1), MISSING, Verdict.LOST, None),
        # A list that cannot be had is asked for again, so often and no more.
        (Doubt(), UNREAD, Verdict.WAIT, Doubt(NOW + LOOK_RETRY_MS, 1)),
        (Doubt(NOW), UNREAD, Verdict.WAIT, Doubt(NOW + LOOK_RETRY_MS, 1)),
        (Doubt(NOW, LOOKS - 2), UNREAD, Verdict.WAIT, Doubt(NOW + LOOK_RETRY_MS, LOOKS - 1)),
        (Doubt(NOW, LOOKS - 1), UNREAD, Verdict.UNKNOWN, None),
        # It is asked for no more.
        (Doubt(), Evidence.GONE, Verdict.UNKNOWN, None),
        (Doubt(NOW + 1, 3), Evidence.GONE, Verdict.UNKNOWN, None),
    ],
)
def test_a_look_decides_or_says_when_to_look_again(
    before: Doubt, evidence: Evidence, verdict: Verdict, after: Doubt | None
) -> None:
    doubts = Doubts({"a": before, "b": Doubt(7)})
    doubts.look("a")
    assert doubts.hear("a", evidence, NOW) is verdict
    assert doubts == Doubts({"b": Doubt(7)} if after is None else {"a": after, "b": Doubt(7)})


@pytest.mark.parametrize(
    ("at", "begun", "verdict", "after"),
    [
        (None, NOW - 9, Verdict.TELL, Doubt(NOW + LOOK_AGAIN_MS)),
        (NOW - 5, NOW - 6, Verdict.WAIT, Doubt(NOW - 5)),
        (NOW - 5, NOW - 5, Verdict.LOST, None),
    ],
)
def test_a_list_decides_that_was_begun_when_it_was_due(
    at: int | None, begun: int, verdict: Verdict, after: Doubt | None
) -> None:
    doubts = Doubts({"a": Doubt(at)})
    assert doubts.hear("a", MISSING, NOW, begun=begun) is verdict
    assert doubts.open.get("a") == after


def test_what_is_looked_for_is_not_due() -> None:
    doubts = Doubts()
    doubts.look("a")
    assert (doubts.due, doubts.due_at(NOW)) == (None, [])
    doubts.hear("a", MISSING, NOW)
    assert doubts.due == NOW + LOOK_AGAIN_MS
    assert doubts.due_at(NOW + LOOK_AGAIN_MS - 1) == []
    assert doubts.due_at(NOW + LOOK_AGAIN_MS) == ["a"]
    doubts.look("a")
    assert doubts.due_at(NOW + LOOK_AGAIN_MS) == []
    # The time that it was doubted counts.
    assert doubts.open == {"a": Doubt(NOW + LOOK_AGAIN_MS)}


def test_the_first_of_several_is_due() -> None:
    doubts = Doubts({"a": Doubt(NOW + 2), "b": Doubt(NOW + 1), "c": Doubt()})
    assert doubts.due == NOW + 1
    assert doubts.due_at(NOW + 1) == ["b"]
    assert doubts.due_at(NOW + 2) == ["a", "b"]


def test_what_is_known_otherwise_is_doubted_no_more() -> None:
    doubts = Doubts()
    doubts.look("a")
    doubts.forget("a")
    doubts.forget("b")
    assert doubts == Doubts()
