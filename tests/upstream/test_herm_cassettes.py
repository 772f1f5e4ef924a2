"""The Herm backend from cassettes: the real upstream client and the real codec, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.model import events as ev
from adapters.wire.jsonvalue import parse_json
from tests.record_cassettes import CASSETTES, HERM
from tests.support.cassettes import load
from tests.support.driver import Driver
from tests.upstream.playing import play, settled, texts, types, without_origin

SESSION = "/v1/sessions/session_19eab72fba00001"


def asked(name: str) -> list[tuple[str, str, Any]]:
    """Return method, target and body of the recorded requests."""
    requests = [exchange["request"] for exchange in load(CASSETTES / "herm" / f"{name}.yaml")]
    return [
        (
            request["method"],
            request["uri"].removeprefix(HERM.host),
            None if request["body"] is None else parse_json(request["body"].encode()),
        )
        for request in requests
    ]


def posted(payload: dict[str, Any]) -> tuple[str, str, Any]:
    return ("POST", f"{SESSION}/events", {"events": [payload]})


def said(text: str) -> tuple[str, str, Any]:
    return posted({"type": "user.message", "content": [{"type": "text", "text": text}]})


def test_a_session_is_made_and_listened_to_before_its_first_message_goes() -> None:
    assert asked("create") == [
        ("POST", "/v1/agents/agent_K4/sessions", {"userId": "user_7"}),
        ("GET", f"{SESSION}/events/stream", None),
        said("script: text"),
    ]


async def test_a_message_becomes_a_turn() -> None:
    driver = await play("herm/create")
    assert types(driver) == [
        "session.started",
        "input.accepted",
        "session.updated",
        "input.settled",
        "turn.started",
        "message.received",
        "text.delta",
        "text.completed",
        "turn.ended",
        "session.updated",
    ]
    assert texts(driver) == [
        "Basil likes six hours of sun — a south-facing sill at the café works. (turn 1)"
    ]
    assert driver.state.status == "idle"


async def test_a_second_message_is_a_second_turn_of_the_same_session() -> None:
    driver = await play("herm/turns")
    ended = [event for event in driver.events if isinstance(event, ev.TurnEnded)]
    assert [event.outcome for event in ended] == ["completed", "completed"]
    assert len({event.turn_id for event in ended}) == 2
    assert texts(driver)[-1].endswith("(turn 2)")
    # Between the two the stream was gone: the list is asked for what it may have carried.
    assert driver.calls == ["create", "stream", "events", "events", "stream", "list 1"]


@pytest.mark.parametrize(
    ("name", "result", "outcome", "status"),
    [("approve", "allow", "approved", "completed"), ("deny", "deny", "denied", "rejected")],
)
async def test_an_approval_is_answered_while_the_stream_is_open(
    name: str, result: str, outcome: str, status: str
) -> None:
    driver = await play(f"herm/{name}")
    (request,) = [e for e in driver.events if isinstance(e, ev.InteractionRequested)]
    (called,) = [e for e in driver.events if isinstance(e, ev.ToolCalled)]
    (resolved,) = [e for e in driver.events if isinstance(e, ev.InteractionResolved)]
    (returned,) = [e for e in driver.events if isinstance(e, ev.ToolReturned)]
    assert (request.kind, request.call_id) == ("approval", called.call_id)
    assert (resolved.request_id, resolved.outcome) == (request.request_id, outcome)
    assert (returned.call_id, returned.status) == (called.call_id, status)
    assert settled(driver) == [("taken", None), ("taken", None)]
    confirmation = {"type": "user.tool_confirmation", "tool_use_id": called.call_id}
    assert asked(name)[-1] == posted({**confirmation, "result": result})


@pytest.mark.parametrize(
    ("name", "options", "answer", "text"),
    [
        ("ask", ("07:40", "09:10"), "09:10", "Holding a seat on the 09:10. (turn 1)"),
        (
            "askopen",
            None,
            "Grüße, \N{SNOWMAN}",
            "The ticket carries the name Grüße, \N{SNOWMAN}. (turn 1)",
        ),
    ],
)
async def test_a_question_is_answered_by_an_option_or_by_words(
    name: str, options: tuple[str, ...] | None, answer: str, text: str
) -> None:
    driver = await play(f"herm/{name}")
    (request,) = [e for e in driver.events if isinstance(e, ev.InteractionRequested)]
    offered = None if request.options is None else tuple(option.id for option in request.options)
    assert (request.kind, offered) == ("question", options)
    assert texts(driver)[-1] == text
    result = {"type": "user.clarify_result", "request_id": request.request_id, "answer": answer}
    assert asked(name)[-1] == posted(result)


async def test_a_failed_turn_says_why() -> None:
    driver = await play("herm/fail")
    (ended,) = [event for event in driver.events if isinstance(event, ev.TurnEnded)]
    assert ended.outcome == "failed"
    assert ended.error is not None
    assert ended.error.message


@pytest.mark.parametrize("name", ["resume", "list"])
async def test_what_a_cut_took_comes_by_position_or_from_the_list(name: str) -> None:
    driver = await play(f"herm/{name}")
    assert driver.calls == ["create", "stream", "events", "stream", "list 1"]
    assert texts(driver) == [
        "Checking the rounding helper.",
        "`to_cents` truncates instead of rounding, so 19.99 becomes 1998. (turn 1)",
    ]
    assert sum(isinstance(event, ev.TurnStarted) for event in driver.events) == 1
    assert [e.outcome for e in driver.events if isinstance(e, ev.TurnEnded)] == ["completed"]
    assert not any(isinstance(event, ev.Gap) for event in driver.events)
    first, second = (
        exchange["request"]["headers"]
        for exchange in load(CASSETTES / "herm" / f"{name}.yaml")
        if exchange["request"]["uri"].endswith("/stream")
    )
    assert "Last-Event-ID" not in first
    assert second["Last-Event-ID"] == ["evt_19eab72fba00007"]


def finished(driver: Driver) -> list[ev.Event]:
    """Return the events without deltas, which no list has, and without the title, which is live."""
    return [
        event
        for event in without_origin(driver)
        if event.TYPE not in {"text.delta", "reasoning.delta", "session.updated"}
    ]


async def test_the_list_tells_what_the_stream_would_have_told() -> None:
    assert [event.TYPE for event in finished(await play("herm/list"))] == [
        event.TYPE for event in finished(await play("herm/resume"))
    ]


async def test_a_refused_answer_releases_its_claim() -> None:
    driver = await play("herm/answer-refused")
    assert settled(driver) == [("taken", None), ("refused", "rate_limited"), ("taken", None)]
    claims = [e.state for e in driver.events if isinstance(e, ev.InteractionAnswered)]
    assert claims == ["claimed", "released", "claimed"]
    (resolved,) = [e for e in driver.events if isinstance(e, ev.InteractionResolved)]
    assert resolved.outcome == "denied"


async def test_a_refused_create_is_told_with_the_gateways_own_code() -> None:
    driver = await play("herm/create-refusals")
    assert settled(driver) == [
        ("refused", code)
        for code in (
            "validation_error",
            "insufficient_credits",
            "forbidden",
            "not_found",
            "deployment_not_ready",
            "invalid_skill",
            "rate_limited",
            "server_error",
        )
    ]
    # Each message makes its session anew, and none became a turn.
    assert driver.calls == ["create"] * 8
    assert not any(isinstance(event, ev.TurnStarted) for event in driver.events)


async def test_a_refused_message_leaves_the_session_as_it_was() -> None:
    driver = await play("herm/refusals")
    assert settled(driver) == [
        ("taken", None),
        ("refused", "validation_error"),
        ("refused", "forbidden"),
        ("refused", "not_found"),
    ]
    assert driver.state.status == "idle"
    assert [text for *_, text in asked("refusals")[-3:]] == [
        said(f"refused {number}")[-1] for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("name", "code"), [("wrong-key", "backend_refused"), ("redirect", "http_302")]
)
async def test_a_wrong_key_and_a_redirect_refuse_the_message(name: str, code: str) -> None:
    driver = await play(f"herm/{name}")
    assert settled(driver) == [("refused", code)]
    assert driver.calls == ["create"]
