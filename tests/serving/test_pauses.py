"""Pauses: how the main thread stands, and which requests wait for a person."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.model import events as ev
from adapters.serving.encoder import EncoderWriter
from adapters.serving.pauses import HEARD, Next, Pauses, ShownRequest, handlers

ASKED = ev.InteractionRequested(
    thread_id="child", request_id="r", kind="question", prompt="Which?", details={"tool": "a"}
)


def started(thread: str = ev.MAIN) -> ev.Event:
    return ev.TurnStarted(thread_id=thread, cause="message")


def paused(on: Any, thread: str = ev.MAIN) -> ev.Event:
    return ev.TurnPaused(thread_id=thread, on=on)


def resumed(thread: str = ev.MAIN) -> ev.Event:
    return ev.TurnResumed(thread_id=thread)


def ended(thread: str = ev.MAIN) -> ev.Event:
    return ev.TurnEnded(thread_id=thread, outcome="completed")


def answered(state: Any, request_id: str = "r") -> ev.InteractionAnswered:
    return ev.InteractionAnswered(
        thread_id="child", request_id=request_id, command_id="c", by="key", state=state
    )


def pauses(**fields: Any) -> Pauses:
    """Return one with two requests, both shown last."""
    requests = {name: ShownRequest(ASKED) for name in ("r", "s")}
    return Pauses(**fields, requests=requests, shown=["r", "s"])


HALTED = {"turn": True, "halted": True, "paused": True}


@pytest.mark.parametrize(
    ("before", "event", "follows", "stands", "shown"),
    [
        ({}, started(), "start", (True, False, False), ["r", "s"]),
        (HALTED, started(), "start", (True, False, False), ["r", "s"]),
        ({"turn": True}, paused("input"), "wait", (True, True, True), ["r", "s"]),
        # What its children do meanwhile is shown in a stream.
        (HALTED, paused("tasks"), "work", (True, False, False), ["r", "s"]),
        (HALTED, paused("retry"), "work", (True, False, False), ["r", "s"]),
        (HALTED, resumed(), "work", (True, False, False), []),
        (HALTED, ended(), "end", (False, False, False), []),
        # How the children stand changes nothing.
        ({}, started("child"), None, (False, False, False), ["r", "s"]),
        ({"turn": True}, paused("input", "child"), None, (True, False, False), ["r", "s"]),
        (HALTED, resumed("child"), None, (True, True, True), ["r", "s"]),
        (HALTED, ended("child"), None, (True, True, True), ["r", "s"]),
        # An answer counts on every thread; one that came to nothing lets the request be shown.
        (HALTED, answered("claimed"), None, (True, True, True), ["r", "s"]),
        (HALTED, answered("released"), "wait", (True, True, True), ["s"]),
        (HALTED, answered("released", "gone"), None, (True, True, True), ["r", "s"]),
    ],
)
def test_what_follows_from_an_event(
    before: dict[str, bool],
    event: ev.Event,
    follows: Next | None,
    stands: tuple[bool, bool, bool],
    shown: list[str],
) -> None:
    found = pauses(**before)
    assert found.hear(event) == follows
    assert (found.turn, found.halted, found.paused) == stands
    assert found.shown == shown
    assert list(found.requests) == ["r", "s"]


def test_a_request_is_answered_in_vain_or_given_again() -> None:
    found = Pauses()
    assert found.requested(ASKED) is found.requests["r"]
    assert (found.unanswered, found.spent("r"), found.spent("gone")) == (["r"], False, False)
    found.hear(answered("claimed"))
    assert (found.unanswered, found.spent("r")) == ([], True)
    found.hear(answered("released"))
    assert (found.unanswered, found.spent("r")) == (["r"], True)
    assert found.requests["r"] == ShownRequest(ASKED, in_vain=True)


def test_news_of_a_request_are_added_to_what_is_known_of_it() -> None:
    found = Pauses()
    found.requested(ASKED)
    news = ev.InteractionUpdated(thread_id="child", request_id="r", details={"input": {"n": 1}})
    request = found.updated(news)
    assert request is found.requests["r"]
    assert request.event.details == {"tool": "a", "input": {"n": 1}}
    assert ASKED.details == {"tool": "a"}
    assert found.updated(news.model_copy(update={"request_id": "gone"})) is None


def test_a_request_is_over_once() -> None:
    found = Pauses()
    request = found.requested(ASKED)
    over = ev.InteractionResolved(thread_id="child", request_id="r", outcome="answered")
    assert found.resolved(over) is request
    assert found.resolved(over) is None
    assert not found.requests


def test_each_event_that_is_heard_calls_the_function_of_what_follows() -> None:
    calls: list[Any] = []
    table = handlers(
        lambda w: calls.append("start"),
        lambda w: calls.append("work"),
        lambda w: calls.append("wait"),
        lambda w, event: calls.append(event),
    )
    assert tuple(table) == HEARD
    state = type("State", (), {"pauses": pauses()})()
    writer = EncoderWriter(state, "session", "m-")
    end = ended()
    events = (started(), paused("input"), answered("claimed"), answered("released"), resumed())
    for event in (*events, started("child"), end):
        table[event.TYPE](writer, event)
    assert calls == ["start", "wait", "wait", "work", end]
