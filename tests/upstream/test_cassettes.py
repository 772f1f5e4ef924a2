"""The Engine backend from cassettes: the real upstream client and the real codec, byte for byte.

A cassette plays an answer whole and at once, so it proves what is asked, with which credential,
from which position, and what the answer is taken for. Timing and cuts are in `test_client`.
"""

from __future__ import annotations

import re
from pathlib import Path

import aiohttp
import pytest
from vcr.errors import (  # type: ignore[import-untyped]
    CannotOverwriteExistingCassetteException,
)

from adapters import events as ev
from proxy.upstream.client import Upstream
from tests.record_cassettes import CASSETTES, HOST, KEY, REFUSALS, SCENARIOS, message, record
from tests.support.cassettes import CREDENTIAL, PLACEHOLDER, load, played
from tests.support.driver import Driver

NAMES = sorted(SCENARIOS)


async def play(name: str) -> Driver:
    """Play a scenario from its cassette; every recorded exchange must be asked for."""
    scenario = SCENARIOS[name]
    async with aiohttp.ClientSession() as session:
        driver = scenario.driver(session, HOST)
        with played(CASSETTES / f"{name}.yaml"):
            await scenario.play(driver)
    return driver


def texts(driver: Driver) -> list[str]:
    return [event.text for event in driver.events if isinstance(event, ev.TextCompleted)]


def settled(driver: Driver) -> list[tuple[str, str | None]]:
    return [
        (event.outcome, None if event.error is None else event.error.code)
        for event in driver.events
        if isinstance(event, ev.InputSettled)
    ]


def types(driver: Driver) -> list[str]:
    """Return the types of the events in order, equal neighbours once."""
    found: list[str] = []
    for event in driver.events:
        if not found or found[-1] != event.TYPE:
            found.append(event.TYPE)
    return found


# What the cassettes are.


def test_every_cassette_belongs_to_a_scenario() -> None:
    assert sorted(path.stem for path in CASSETTES.glob("*")) == NAMES


@pytest.mark.parametrize("name", NAMES)
async def test_recording_it_again_gives_the_same_cassette(name: str, tmp_path: Path) -> None:
    await record(name, tmp_path)
    again = (tmp_path / f"{name}.yaml").read_text()
    assert (CASSETTES / f"{name}.yaml").read_text() == again


@pytest.mark.parametrize("name", NAMES)
def test_a_cassette_names_no_machine_and_holds_no_credential(name: str) -> None:
    path = CASSETTES / f"{name}.yaml"
    text = path.read_text()
    assert KEY not in text
    assert "k-wrong" not in text
    hosts = set(re.findall(r"https?://([^\s/'\"]+)", text))
    assert hosts <= {"engine.invalid:8000", "elsewhere.invalid"}
    assert path.stat().st_size < 20_000, "a cassette is to be read"
    for exchange in load(path):
        assert exchange["request"]["headers"][CREDENTIAL] == [PLACEHOLDER]
        if exchange["response"]["status"]["code"] == 200:
            assert exchange["response"]["body"]["string"]


@pytest.mark.parametrize("name", NAMES)
def test_a_body_of_several_lines_is_written_as_it_was_sent(name: str) -> None:
    text = (CASSETTES / f"{name}.yaml").read_text()
    for exchange in load(CASSETTES / f"{name}.yaml"):
        body = exchange["response"]["body"]["string"]
        for line in body.splitlines() if "\n" in body else ():
            assert not line or f"        {line}\n" in text


# What comes of them.


async def test_a_message_becomes_a_turn() -> None:
    driver = await play("create")
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
    driver = await play("turns")
    assert driver.calls == ["execute", "execute"]
    ended = [event for event in driver.events if isinstance(event, ev.TurnEnded)]
    assert [event.outcome for event in ended] == ["completed", "completed"]
    assert len({event.turn_id for event in ended}) == 2
    assert texts(driver)[-1].endswith("(turn 2)")


async def test_a_file_goes_along_as_base64() -> None:
    driver = await play("file")
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
    driver = await play(name)
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
    driver = await play(name)
    (asked,) = [e for e in driver.events if isinstance(e, ev.InteractionRequested)]
    offered = None if asked.options is None else tuple(option.id for option in asked.options)
    assert (asked.kind, offered) == ("question", options)
    assert texts(driver)[-1] == said


async def test_a_failed_turn_says_why() -> None:
    driver = await play("fail")
    (ended,) = [event for event in driver.events if isinstance(event, ev.TurnEnded)]
    assert ended.outcome == "failed"
    assert ended.error is not None
    assert ended.error.code == "LLM_PROVIDER_ERROR"
    (text,) = [event for event in driver.events if isinstance(event, ev.TextCompleted)]
    assert text.status == "partial"


def without_origin(driver: Driver) -> list[ev.Event]:
    return [event.model_copy(update={"native": None}) for event in driver.events]


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
    replayed, streamed = await play(name), await play(whole)
    assert replayed.calls == calls
    assert without_origin(replayed) == without_origin(streamed)


@pytest.mark.parametrize(
    ("name", "calls"),
    [("replay", ["execute", "replay"]), ("replay-twice", ["execute", "replay", "replay"])],
)
async def test_a_replay_repeats_nothing_and_leaves_nothing_out(name: str, calls: list[str]) -> None:
    driver = await play(name)
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
    asked = [exchange["request"]["uri"] for exchange in load(CASSETTES / "replay-twice.yaml")]
    first, second = (uri.partition("?")[2] for uri in asked[1:])
    assert re.fullmatch(r"after=[0-9]{13}&task_id=task-1", first)
    assert re.fullmatch(r"after=[0-9]{13}&task_id=task-1", second)
    assert asked[0] == f"{HOST}/execute"


async def test_an_answer_in_doubt_is_looked_up_and_given_again() -> None:
    driver = await play("pending")
    assert driver.calls == ["execute", "respond", "doubt", "respond"]
    claims = [e.state for e in driver.events if isinstance(e, ev.InteractionAnswered)]
    assert claims == ["claimed", "released", "claimed"]
    assert [outcome for outcome, _ in settled(driver)] == ["taken", "unknown", "taken"]
    assert "Done, 4.1 GB freed." in texts(driver)[-1]


async def test_a_refused_answer_releases_its_claim() -> None:
    driver = await play("answer-refused")
    assert settled(driver) == [("taken", None), ("refused", "LLM_RATE_LIMITED"), ("taken", None)]
    claims = [e.state for e in driver.events if isinstance(e, ev.InteractionAnswered)]
    assert claims == ["claimed", "released", "claimed"]
    (resolved,) = [e for e in driver.events if isinstance(e, ev.InteractionResolved)]
    assert resolved.outcome == "denied"


async def test_each_refusal_is_told_with_the_backends_own_code() -> None:
    driver = await play("refusals")
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
    assert len(REFUSALS) == len(settled(driver))
    # No turn ever began.
    assert driver.state.status == "idle"
    assert not any(isinstance(event, ev.TurnStarted) for event in driver.events)


@pytest.mark.parametrize(("name", "code"), [("wrong-key", "INVALID_KEY"), ("redirect", "http_302")])
async def test_a_wrong_key_and_a_redirect_refuse_the_message(name: str, code: str) -> None:
    driver = await play(name)
    assert settled(driver) == [("refused", code)]
    assert driver.calls == ["execute"]


# What a cassette does not let pass.


@pytest.mark.parametrize(
    ("text", "headers", "url"),
    [
        ("script: reason", {CREDENTIAL: KEY}, HOST),
        ("script: text", {}, HOST),
        ("script: text", {"Authorization": KEY}, HOST),
        ("script: text", {CREDENTIAL: KEY}, "http://engine.invalid:8001"),
    ],
)
async def test_another_request_is_not_answered(
    text: str, headers: dict[str, str], url: str
) -> None:
    async with aiohttp.ClientSession() as session:
        driver = SCENARIOS["create"].driver(session, url)
        driver.upstream = Upstream(session, url, headers)
        cassette = played(CASSETTES / "create.yaml")
        cassette.__enter__()
        try:
            with pytest.raises(CannotOverwriteExistingCassetteException):
                await driver.send(message(text))
        finally:
            with pytest.raises(AssertionError, match="not asked for"):
                cassette.__exit__(None, None, None)


async def test_an_exchange_plays_once() -> None:
    async with aiohttp.ClientSession() as session:
        driver = SCENARIOS["create"].driver(session, HOST)
        with played(CASSETTES / "create.yaml"):
            await driver.send(message("script: text"))
            with pytest.raises(CannotOverwriteExistingCassetteException):
                await driver.send(message("script: text"))
