"""Doubts: state, what a look brings, what follows."""

from __future__ import annotations

import pytest

from adapters.driving.doubts import (
    LOOK_AGAIN_MS,
    LOOK_RETRY_MS,
    LOOKS,
    Evidence,
    LookVerdict,
    UncertainInput,
    UncertainInputs,
)

NOW = 10_000
SHOWN, MISSING, UNREAD = Evidence.SHOWN, Evidence.MISSING, Evidence.UNREAD


@pytest.mark.parametrize(
    ("before", "evidence", "verdict", "after"),
    [
        # It arrived, whenever that shows.
        (UncertainInput(), SHOWN, LookVerdict.TAKEN, None),
        (UncertainInput(NOW + 1, 3), SHOWN, LookVerdict.TAKEN, None),
        # Nothing of it at first: it may be on its way.
        (UncertainInput(), MISSING, LookVerdict.TELL, UncertainInput(NOW + LOOK_AGAIN_MS)),
        (
            UncertainInput(None, 2),
            MISSING,
            LookVerdict.TELL,
            UncertainInput(NOW + LOOK_AGAIN_MS, 2),
        ),
        # A look that came too early, as after a restart, says nothing.
        (UncertainInput(NOW + 1), MISSING, LookVerdict.WAIT, UncertainInput(NOW + 1)),
        (UncertainInput(NOW), MISSING, LookVerdict.LOST, None),
        (UncertainInput(NOW - 1), MISSING, LookVerdict.LOST, None),
        # A list that cannot be had is asked for again, so often and no more.
        (UncertainInput(), UNREAD, LookVerdict.WAIT, UncertainInput(NOW + LOOK_RETRY_MS, 1)),
        (UncertainInput(NOW), UNREAD, LookVerdict.WAIT, UncertainInput(NOW + LOOK_RETRY_MS, 1)),
        (
            UncertainInput(NOW, LOOKS - 2),
            UNREAD,
            LookVerdict.WAIT,
            UncertainInput(NOW + LOOK_RETRY_MS, LOOKS - 1),
        ),
        (UncertainInput(NOW, LOOKS - 1), UNREAD, LookVerdict.UNKNOWN, None),
        # It is asked for no more.
        (UncertainInput(), Evidence.GONE, LookVerdict.UNKNOWN, None),
        (UncertainInput(NOW + 1, 3), Evidence.GONE, LookVerdict.UNKNOWN, None),
    ],
)
def test_a_look_decides_or_says_when_to_look_again(
    before: UncertainInput, evidence: Evidence, verdict: LookVerdict, after: UncertainInput | None
) -> None:
    doubts = UncertainInputs({"a": before, "b": UncertainInput(7)})
    doubts.look("a")
    assert doubts.hear("a", evidence, NOW) is verdict
    assert doubts == UncertainInputs(
        {"b": UncertainInput(7)} if after is None else {"a": after, "b": UncertainInput(7)}
    )


@pytest.mark.parametrize(
    ("at", "begun", "verdict", "after"),
    [
        (None, NOW - 9, LookVerdict.TELL, UncertainInput(NOW + LOOK_AGAIN_MS)),
        (NOW - 5, NOW - 6, LookVerdict.WAIT, UncertainInput(NOW - 5)),
        (NOW - 5, NOW - 5, LookVerdict.LOST, None),
    ],
)
def test_a_list_decides_that_was_begun_when_it_was_due(
    at: int | None, begun: int, verdict: LookVerdict, after: UncertainInput | None
) -> None:
    doubts = UncertainInputs({"a": UncertainInput(at)})
    assert doubts.hear("a", MISSING, NOW, begun=begun) is verdict
    assert doubts.open.get("a") == after


def test_what_is_looked_for_is_not_due() -> None:
    doubts = UncertainInputs()
    doubts.look("a")
    assert (doubts.due, doubts.due_at(NOW)) == (None, [])
    doubts.hear("a", MISSING, NOW)
    assert doubts.due == NOW + LOOK_AGAIN_MS
    assert doubts.due_at(NOW + LOOK_AGAIN_MS - 1) == []
    assert doubts.due_at(NOW + LOOK_AGAIN_MS) == ["a"]
    doubts.look("a")
    assert doubts.due_at(NOW + LOOK_AGAIN_MS) == []
    # The time that it was doubted counts.
    assert doubts.open == {"a": UncertainInput(NOW + LOOK_AGAIN_MS)}


def test_the_first_of_several_is_due() -> None:
    doubts = UncertainInputs(
        {"a": UncertainInput(NOW + 2), "b": UncertainInput(NOW + 1), "c": UncertainInput()}
    )
    assert doubts.due == NOW + 1
    assert doubts.due_at(NOW + 1) == ["b"]
    assert doubts.due_at(NOW + 2) == ["a", "b"]


def test_what_is_known_otherwise_is_doubted_no_more() -> None:
    doubts = UncertainInputs()
    doubts.look("a")
    doubts.forget("a")
    doubts.forget("b")
    assert doubts == UncertainInputs()
