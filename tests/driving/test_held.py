"""Held calls: state, what is heard, what may go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from adapters.driving.held import HOLD_MS, HeldToolCalls
from adapters.model import events as ev

NOW = 1_000
AT: dict[str, Any] = {"thread_id": ev.MAIN, "turn_id": "t"}


def call(name: str, permission: ev.Permission = "unknown") -> ev.Event:
    return ev.ToolCalled(**AT, call_id=name, name="look", permission=permission)


NEWS = ev.Notice(thread_id=ev.MAIN, text="news")
STEP = ev.StepEnded(**AT, step_index=0)


def held(*events: ev.Event, undecided: Sequence[str] = ("a",), since: int = NOW) -> HeldToolCalls:
    return HeldToolCalls(list(events), list(undecided), since)


NOTHING = HeldToolCalls([], [], NOW)
A = held(call("a"))


@pytest.mark.parametrize(
    ("before", "heard", "told", "after"),
    [
        # Without a call nothing waits.
        (HeldToolCalls(), lambda h: h.keep([NEWS, STEP], NOW), [NEWS, STEP], HeldToolCalls()),
        # A call waits, and what comes behind it; what came before goes.
        (
            HeldToolCalls(),
            lambda h: h.keep([NEWS, call("a"), STEP], NOW),
            [NEWS],
            held(call("a"), STEP),
        ),
        (A, lambda h: h.keep([STEP], NOW + 9), [], held(call("a"), STEP)),
        # The oldest call says how long.
        (
            A,
            lambda h: h.keep([call("b")], NOW + 9),
            [],
            held(call("a"), call("b"), undecided="ab"),
        ),
        (A, lambda h: h.tick(NOW + HOLD_MS - 1), [], A),
        (A, lambda h: h.tick(NOW + HOLD_MS), [call("a")], NOTHING),
        (HeldToolCalls(), lambda h: h.tick(NOW), [], HeldToolCalls()),
        # A call that is decided goes with the next events, up to the next one that is not.
        (A, lambda h: h.decide("a", "ask"), None, held(call("a", "ask"), undecided="")),
        (
            held(call("a", "ask"), NEWS, undecided=""),
            lambda h: h.keep([call("b")], NOW + 9),
            [call("a", "ask"), NEWS],
            held(call("b"), undecided="b", since=NOW + 9),
        ),
        # The first word counts, and only of what is held.
        (
            held(call("a", "ask"), undecided=""),
            lambda h: h.decide("a", "allow"),
            None,
            held(call("a", "ask"), undecided=""),
        ),
        (A, lambda h: h.decide("b", "allow"), None, A),
        # All goes at once: some calls were seen to run, of the others nobody knows.
        (
            held(call("a"), STEP, call("b"), call("c", "ask"), undecided="ab"),
            lambda h: h.let_go({"b", "x"}),
            [call("a"), STEP, call("b", "allow"), call("c", "ask")],
            NOTHING,
        ),
        (A, lambda h: h.let_go(), [call("a")], NOTHING),
        (HeldToolCalls(), lambda h: h.let_go("a"), [], HeldToolCalls()),
    ],
)
def test_a_call_is_held_until_its_permission_is_known(
    before: HeldToolCalls,
    heard: Callable[[HeldToolCalls], Any],
    told: list[ev.Event] | None,
    after: HeldToolCalls,
) -> None:
    # The states of the table are used more than once.
    state = held(*before.events, undecided=before.undecided, since=before.since)
    assert heard(state) == told
    assert state == after
    assert state.due == (state.since + HOLD_MS if state.events else None)


PASSING = frozenset({"tool.progressed", "tool.returned", "notice"})


def progress(name: str) -> ev.Event:
    return ev.ToolProgressed(**AT, call_id=name, output="o")


def returned(name: str) -> ev.Event:
    return ev.ToolReturned(**AT, call_id=name, output="o")


@pytest.mark.parametrize(
    ("undecided", "events", "went", "kept"),
    [
        # What passes a held call, up to the first that does not: behind that, all waits.
        ("a", [call("a"), NEWS, STEP, NEWS], [NEWS], [call("a"), STEP, NEWS]),
        # What comes of a held call waits, what comes of another one does not.
        (
            "a",
            [call("a"), progress("a"), returned("b"), returned("a")],
            [returned("b")],
            [call("a"), progress("a"), returned("a")],
        ),
        # Calls go in the order in which they were asked for.
        (
            "a",
            [call("c", "ask"), call("a"), call("b", "allow"), returned("b"), returned("c")],
            [call("c", "ask"), returned("c")],
            [call("a"), call("b", "allow"), returned("b")],
        ),
        ("", [call("a", "ask"), STEP, returned("a")], [call("a", "ask"), STEP, returned("a")], []),
    ],
)
def test_what_may_pass_a_held_call_passes_it(
    undecided: str, events: list[ev.Event], went: list[ev.Event], kept: list[ev.Event]
) -> None:
    state = HeldToolCalls(list(events), list(undecided), NOW)
    assert state.go(PASSING) == went
    assert state == HeldToolCalls(kept, list(undecided), NOW)


def test_all_calls_are_decided_at_once() -> None:
    state = held(call("a"), NEWS, call("b"), undecided="ab")
    state.decide_all("allow")
    assert state == held(call("a", "allow"), NEWS, call("b", "allow"), undecided="")
    state.decide_all("ask")
    assert state.go() == [call("a", "allow"), NEWS, call("b", "allow")]


def test_a_call_that_is_named_twice_is_decided_twice() -> None:
    state = HeldToolCalls()
    state.keep([call("a"), call("a")], NOW)
    state.decide("a", "allow")
    assert state.keep([], NOW) == [call("a", "allow")] * 2
