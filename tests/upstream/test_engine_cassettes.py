"""The Engine backend from cassettes: the real upstream client and the real codec, byte for byte."""

from __future__ import annotations

import re

import pytest

from adapters.model import events as ev
from tests.record_cassettes import CASSETTES, ENGINE
from tests.support.cassettes import load
from tests.upstream.playing import play, settled, texts, types, without_origin


async def test_a_message_becomes_a_turn() -> None:
    driver = await play("engine/create")
    assert types(driver) == [
        "session.started",
        "input.accepted",
        "input.settled",
        "turn.started",
        "message.received",
        "step.started",
        "text.delta",
        "text.completed",
        "step.ended",
        "turn.ended",
    ]
    assert texts(driver) == [
        "Basil likes six hours of sun — a south-facing sill at the café works. (turn 1)"
    ]
    assert driver.state.status == "idle"


async def test_a_second_message_is_a_second_turn_of_the_same_task() -> None:
    driver = await play("engine/turns")
    assert driver.calls == ["execute", "execute"]
    ended = [event for event in driver.events if isinstance(event, ev.TurnEnded)]
    assert [event.outcome for event in ended] == ["completed", "completed"]
    assert len({event.turn_id for event in ended}) == 2
    assert texts(driver)[-1].endswith("(turn 2)")


async def test_a_file_goes_along_as_base64() -> None:
    driver = await play("engine/file")
    assert "I received image image/png of 8 bytes." in texts(driver)[0]


@pytest.mark.parametrize(
    ("name", "outcome", "status", "said"),
    [
        ("approve", "approved", "completed", "Done, 4.1 GB freed."),
        ("deny", "denied", "rejected", "You added: Keep the exports."),
    ],
)
async def test_an_approval_is_answered_while_the_stream_is_open(
    name: str, outcome: str, status: str, said: str
) -> None:
    driver = await play(f"engine/{name}")
    assert driver.calls == ["execute", "respond"]
    (asked,) = [e for e in driver.events if isinstance(e, ev.InteractionRequested)]
    (called,) = [e for e in driver.events if isinstance(e, ev.ToolCalled)]
    (resolved,) = [e for e in driver.events if isinstance(e, ev.InteractionResolved)]
    (returned,) = [e for e in driver.events if isinstance(e, ev.ToolReturned)]
    assert (asked.kind, asked.call_id) == ("approval", called.call_id)
    assert asked.details == {"tool": "bash", "input": {"command": "rm -rf /srv/exports/2024"}}
    assert (resolved.request_id, resolved.outcome) == (asked.request_id, outcome)
    assert (returned.call_id, returned.status) == (called.call_id, status)
    assert said in texts(driver)[-1]
    assert settled(driver) == [("taken", None), ("taken", None)]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("ask", ("07:40", "09:10"), "Holding a seat on the 09:10. (turn 1)"),
        ("askopen", None, "The ticket carries the name Grüße, \N{SNOWMAN}. (turn 1)"),
    ],
)
async def test_a_question_is_answered_by_an_option_or_by_words(
    name: str, options: tuple[str, ...] | None, said: str
) -> None:
    driver = await play(f"engine/{name}")
    (asked,) = [e for e in driver.events if isinstance(e, ev.InteractionRequested)]
    offered = None if asked.options is None else tuple(option.id for option in asked.options)
    assert (asked.kind, offered) == ("question", options)
    assert texts(driver)[-1] == said


async def test_a_failed_turn_says_why() -> None:
    driver = await play("engine/fail")
    (ended,) = [event for event in driver.events if isinstance(event, ev.TurnEnded)]
    assert ended.outcome == "failed"
    assert ended.error is not None
    assert ended.error.code == "LLM_PROVIDER_ERROR"
    (text,) = [event for event in driver.events if isinstance(event, ev.TextCompleted)]
    assert text.status == "partial"


@pytest.mark.parametrize(
    ("name", "whole", "calls"),
    [
        ("replay-approve", "approve", ["execute", "respond", "replay"]),
        ("no-stream", "create", ["execute", "replay"]),
    ],
)
async def test_what_comes_by_replay_is_what_would_have_come(
    name: str, whole: str, calls: list[str]
) -> None:
    replayed, streamed = await play(f"engine/{name}"), await play(f"engine/{whole}")
    assert replayed.calls == calls
    assert without_origin(replayed) == without_origin(streamed)


@pytest.mark.parametrize(
    ("name", "calls"),
    [("replay", ["execute", "replay"]), ("replay-twice", ["execute", "replay", "replay"])],
)
async def test_a_replay_repeats_nothing_and_leaves_nothing_out(name: str, calls: list[str]) -> None:
    driver = await play(f"engine/{name}")
    assert driver.calls == calls
    deltas: dict[str, str] = {}
    for event in driver.events:
        match event:
            case ev.TextDelta() | ev.ReasoningDelta():
                deltas[event.block_id] = deltas.get(event.block_id, "") + event.text
            case ev.TextCompleted() | ev.ReasoningCompleted():
                assert deltas.pop(event.block_id) == event.text
            case ev.Gap():
                pytest.fail("the replay did not align with the stream")
    assert deltas == {}
    assert "so 19.99 becomes 1998." in texts(driver)[-1]
    assert sum(isinstance(event, ev.TurnStarted) for event in driver.events) == 1
    assert sum(isinstance(event, ev.TurnEnded) for event in driver.events) == 1


async def test_a_replay_asks_from_the_position_reached() -> None:
    asked = [
        exchange["request"]["uri"] for exchange in load(CASSETTES / "engine" / "replay-twice.yaml")
    ]
    first, second = (uri.partition("?")[2] for uri in asked[1:])
    assert re.fullmatch(r"after=[0-9]{13}&task_id=task-1", first)
    assert re.fullmatch(r"after=[0-9]{13}&task_id=task-1", second)
    assert asked[0] == f"{ENGINE.host}/execute"


async def test_an_answer_in_doubt_is_looked_up_and_given_again() -> None:
    driver = await play("engine/pending")
    assert driver.calls == ["execute", "respond", "pending", "pending", "respond"]
    claims = [e.state for e in driver.events if isinstance(e, ev.InteractionAnswered)]
    assert claims == ["claimed", "released", "claimed"]
    assert [outcome for outcome, _ in settled(driver)] == ["taken", "refused", "taken"]
    assert "Done, 4.1 GB freed." in texts(driver)[-1]


async def test_a_refused_answer_releases_its_claim() -> None:
    driver = await play("engine/answer-refused")
    assert settled(driver) == [("taken", None), ("refused", "LLM_RATE_LIMITED"), ("taken", None)]
    claims = [e.state for e in driver.events if isinstance(e, ev.InteractionAnswered)]
    assert claims == ["claimed", "released", "claimed"]
    (resolved,) = [e for e in driver.events if isinstance(e, ev.InteractionResolved)]
    assert resolved.outcome == "denied"


async def test_each_refusal_is_told_with_the_backends_own_code() -> None:
    driver = await play("engine/refusals")
    assert settled(driver) == [
        ("refused", code)
        for code in (
            "PERMISSION_DENIED",
            "TASK_NOT_FOUND",
            "HITL_REQUIRED",
            "CONTEXT_OVERFLOW",
            "LLM_RATE_LIMITED",
            "LLM_PROVIDER_ERROR",
            "MIGRATION_REQUIRED",
        )
    ]
    # No turn ever began.
    assert driver.state.status == "idle"
    assert not any(isinstance(event, ev.TurnStarted) for event in driver.events)


@pytest.mark.parametrize(
    ("name", "code"), [("wrong-key", "backend_refused"), ("redirect", "http_302")]
)
async def test_a_wrong_key_and_a_redirect_refuse_the_message(name: str, code: str) -> None:
    driver = await play(f"engine/{name}")
    assert settled(driver) == [("refused", code)]
    assert driver.calls == ["execute"]
