"""What becomes of messages: each ends once, however it became part of the conversation."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.model import events as ev
from adapters.wire.errors import SESSION_LOST
from adapters.wire.jsonvalue import format_json, parse_json
from proxy.base.outcomes import POSSIBLE, SETTLED, Code, MessageOutcome
from proxy.session.messages import MessageResult, MessageTracker


def accepted(name: str, **fields: Any) -> ev.Event:
    values: dict[str, Any] = {"kind": "message", "by": "me", "face": "eve", **fields}
    return ev.InputAccepted(thread_id=ev.MAIN, command_id=name, **values)


def settled(name: str, outcome: Any = "taken", **error: Any) -> ev.Event:
    info = ev.ErrorInfo(message="the words of a backend", **error) if error else None
    return ev.InputSettled(thread_id=ev.MAIN, command_id=name, outcome=outcome, error=info)


def received(name: str) -> ev.Event:
    return ev.MessageReceived(thread_id=ev.MAIN, message_id=name, content=(), command_id=name)


def guided(name: str) -> ev.Event:
    return ev.GuidanceReceived(thread_id=ev.MAIN, text="t", command_id=name)


def began() -> ev.Event:
    return ev.TurnStarted(thread_id=ev.MAIN, turn_id="t", cause="message")


def ended(outcome: Any = "completed", thread_id: str = ev.MAIN, **error: Any) -> ev.Event:
    info = ev.ErrorInfo(message="the words of a backend", **error) if error else None
    return ev.TurnEnded(thread_id=thread_id, turn_id="t", outcome=outcome, error=info)


def reported(code: str) -> ev.Event:
    return ev.ErrorReported(thread_id=ev.MAIN, code=code, message="m", synthetic=True)


def over(*events: ev.Event) -> list[tuple[str, str]]:
    """How messages end with these events."""
    messages = MessageTracker()
    return [(one.outcome, one.code) for event in events for one in messages.hear(event)]


OK = ("completed", "ok")


@pytest.mark.parametrize(
    "events",
    [
        [accepted("a"), settled("a"), began(), received("a"), ended()],
        # The stream may be faster than the answer, to the end of the turn.
        [accepted("a"), began(), received("a"), settled("a"), ended()],
        [accepted("a"), began(), received("a"), ended(), settled("a")],
        # Not every backend shows what it was told.
        [accepted("a"), settled("a"), began(), ended()],
        [accepted("a"), settled("a"), began(), received("a"), ended(thread_id="child"), ended()],
    ],
)
def test_a_message_ends_with_its_turn_in_whatever_order_that_is_told(
    events: list[ev.Event],
) -> None:
    assert over(*events) == [OK]
    assert over(*events, began(), ended()) == [OK]


def test_messages_of_one_turn_end_with_it_and_those_that_wait_do_not() -> None:
    begin = [accepted("a"), settled("a"), began(), received("a")]
    more = [accepted("b", kind="steer"), settled("b"), guided("b"), accepted("c"), settled("c")]
    assert over(*begin, *more, ended()) == [OK, OK]
    last = [began(), received("c"), ended("interrupted")]
    assert over(*begin, *more, ended(), *last) == [OK, OK, ("completed", "interrupted")]


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (settled("a", "withdrawn"), ("withdrawn", "withdrawn")),
        (settled("a", "unknown"), ("unknown", "no_evidence")),
        (settled("a", "unknown", code="http_502", status=502), ("unknown", "backend_5xx")),
        (settled("a", "refused", code="overloaded", status=503), ("refused", "backend_5xx")),
        (settled("a", "refused", code="http_404", status=404), ("refused", "other_dialect")),
        (settled("a", "refused", code="too_long", status=400), ("refused", "backend_4xx")),
        (settled("a", "refused", code="slow", status=429), ("refused", "rate_limited")),
        (
            settled("a", "refused", code="backend_refused", status=401),
            ("refused", "credential_refused"),
        ),
        (settled("a", "refused", code="backend_unavailable"), ("refused", "backend_unavailable")),
        (settled("a", "refused", code="words of a backend"), ("refused", "other")),
    ],
)
def test_a_message_that_is_not_taken_ends_at_once(
    event: ev.Event, outcome: tuple[str, str]
) -> None:
    assert over(accepted("a"), event, began(), ended()) == [outcome]


@pytest.mark.parametrize(
    ("turn", "outcome"),
    [
        (ended("failed", code="model_broke"), ("failed", "agent_error")),
        (ended("failed", code=SESSION_LOST), ("failed", "backend_session_lost")),
        (ended("refused", code="policy"), ("refused", "agent_refused")),
        (ended("exhausted"), ("failed", "exhausted")),
        (ended("over_budget"), ("failed", "over_budget")),
    ],
)
def test_a_turn_that_fails_is_how_its_message_ends(
    turn: ev.Event, outcome: tuple[str, str]
) -> None:
    assert over(accepted("a"), settled("a"), began(), turn) == [outcome]


@pytest.mark.parametrize("code", [SESSION_LOST, SETTLED])
def test_a_message_whose_turn_never_begins_ends_when_it_is_given_up(code: str) -> None:
    waits = [accepted("a"), settled("a")]
    assert over(*waits, reported("input_in_doubt")) == []
    assert over(*waits, reported(code), began(), ended()) == [("failed", code)]


def test_what_is_open_when_the_session_ends_ends_with_it() -> None:
    end = ev.SessionEnded(thread_id=ev.MAIN, outcome="deleted")
    assert over(accepted("a"), settled("a"), end) == [("completed", "session_ended")]
    failed = ev.SessionEnded(thread_id=ev.MAIN, outcome="failed")
    assert over(accepted("a"), settled("a"), failed) == [("failed", "agent_error")]


def test_what_is_no_message_or_was_sent_past_the_proxy_does_not_count() -> None:
    answer = accepted("a", kind="answer")
    assert over(answer, settled("a", "refused"), accepted("b", by="backend"), settled("b")) == []


def test_messages_go_on_from_what_was_stored_of_them() -> None:
    messages, later = MessageTracker(), MessageTracker()
    for event in (accepted("a"), settled("a"), began(), accepted("b"), accepted("c"), settled("c")):
        messages.hear(event)
    later.restore(parse_json(format_json(messages.dump())))
    assert later.dump() == messages.dump()
    assert later.hear(ended()) == [MessageResult("a", "eve", MessageOutcome.COMPLETED, Code.OK)]
    with pytest.raises(ValueError, match="elsewhere"):
        later.restore([["a", "eve", None, "elsewhere"]])


def test_every_code_is_shown_from_the_start() -> None:
    assert {code for codes in POSSIBLE.values() for code in codes} == {*Code}
