"""Answers and a message that an eve client of the token generation sends in one request are one
step on a Herm and on an Engine too: one after the other, without a boundary between them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.model import events as ev
from proxy.scripted.faults import Faults, Status
from proxy.scripted.herm_turns import HermVariant
from tests.backends.herm.conftest import Serve
from tests.support.eve_client import EveSession, TurnResult
from tests.support.houses import HermAndEngine
from tests.support.waiting import settled, stored, until

each_backend = pytest.mark.parametrize("backend", ["herm", "engine"])

DONE, HELLO = "Done, 4.1 GB freed.", "You said: “hello”."
LEFT = "Understood, I left /etc/hosts alone. You can add the line yourself: `10.0.0.9 build`."


async def asked(
    house: HermAndEngine, backend: str, script: str = "approve"
) -> tuple[EveSession, list[dict[str, Any]]]:
    """A session that waits for answers, and its requests."""
    session = await house.eve(backend, style="T").create(f"script: {script}")
    return session, (await session.read_turn()).requests


def answers(requests: list[dict[str, Any]], *choices: int) -> list[dict[str, str]]:
    """The same place of its options for each request, in the order in which they were asked."""
    return [
        {"requestId": request["requestId"], "optionId": request["options"][choice]["id"]}
        for request, choice in zip(requests, choices, strict=True)
    ]


def steps(turn: TurnResult) -> list[str]:
    """What was said in a turn: by a person, and in each step, without the number of the turn."""
    assert turn.types.count("session.waiting") == 1
    said = ("message.received", "message.completed")
    texts = [r["data"]["message"] for r in turn.records if r["type"] in said]
    return [text.partition(" (turn")[0].strip() for text in texts]


async def goes_on(house: HermAndEngine, backend: str, session: EveSession) -> None:
    """Check that all is over and read: the next message gets its own answer, and a reader that was
    never there reads the same."""
    await settled(await house.live(session.session_id))
    await session.send("goodbye")
    assert steps(await session.read_turn()) == ["goodbye", "You said: “goodbye”."]
    await settled(await house.live(session.session_id))
    reader = house.eve(backend).attach(session.session_id)
    assert session.log == [record async for record in reader.stream(0, follow=False)]


@each_backend
@pytest.mark.parametrize("choice", [0, -1])
async def test_the_answer_to_a_message_beside_an_answer_is_in_its_turn(
    serve: Serve, backend: str, choice: int
) -> None:
    house = await serve()
    session, requests = await asked(house, backend)
    await session.respond_all(answers(requests, choice), message="hello")
    turn = await session.read_turn()
    told = DONE if choice == 0 else "Understood, I left /srv/exports/2024 alone."
    assert steps(turn) == ["hello", told, HELLO]
    assert turn.types.count("turn.started") == 1
    await goes_on(house, backend, session)


@each_backend
async def test_a_message_beside_the_answer_to_a_question_is_in_its_turn(
    serve: Serve, backend: str
) -> None:
    house = await serve()
    session, requests = await asked(house, backend, "ask")
    await session.respond_all(answers(requests, 1), message="hello")
    assert steps(await session.read_turn()) == ["hello", "Holding a seat on the 09:10.", HELLO]
    await goes_on(house, backend, session)


@pytest.mark.parametrize("body", ["any", "single"])
async def test_a_message_beside_both_answers_is_in_their_turn(serve: Serve, body: Any) -> None:
    house = await serve(herm={"variant": HermVariant(body=body)})
    session, requests = await asked(house, "herm", "approve2")
    await session.respond_all(answers(requests, 0, -1), message="hello")
    turn = await session.read_turn()
    assert steps(turn) == ["hello", DONE + LEFT, HELLO]
    batches = [json.loads(post) for post in house.posts()]
    batches = [batch.get("events", [batch]) for batch in batches]
    sent = [[event["type"].partition(".")[2] for event in batch] for batch in batches]
    both = [["tool_confirmation"] * 2]
    alone = [["tool_confirmation"]] * 2
    assert sent[-3:] == [["message"], *both, ["message"]] or sent[-3:] == [*alone, ["message"]]
    await goes_on(house, "herm", session)


@each_backend
async def test_a_message_waits_for_all_that_the_agent_asks(serve: Serve, backend: str) -> None:
    house = await serve()
    session, requests = await asked(house, backend, "approve-twice")
    await session.respond_all(answers(requests, 0), message="hello")
    turn = await session.read_turn()
    assert steps(turn)[0] == "hello"
    await session.respond_all(answers(turn.requests, -1))
    turn = await session.read_turn()
    assert steps(turn)[-1] == HELLO
    assert "hello" not in steps(turn)
    await goes_on(house, backend, session)


@each_backend
async def test_both_are_told_once_when_the_answer_is_refused(serve: Serve, backend: str) -> None:
    house = await serve()
    session, requests = await asked(house, backend, "approve refused")
    await session.respond_all(answers(requests, 0), message="hello")
    live = await house.live(session.session_id)
    await until(lambda: stored(live) and not live.state.inputs)
    turn = await session.read_turn()
    assert turn.types[-3:] == ["step.failed", "turn.completed", "session.waiting"]
    assert steps(turn) == ["hello"]
    await session.respond_all(answers(turn.requests, 0), message="hello again")
    turn = await session.read_turn()
    assert steps(turn) == ["hello again", DONE, "You said: “hello again”."]
    await goes_on(house, backend, session)


async def test_a_message_that_is_refused_after_the_answer_ends_its_turn(
    serve: Serve,
) -> None:
    house = await serve(herm={"faults": Faults({("post", 3): Status(422)})})
    session, requests = await asked(house, "herm")
    await session.respond_all(answers(requests, 0), message="hello")
    turn = await session.read_turn()
    assert steps(turn) == ["hello", DONE]
    assert turn.types[-2:] == ["turn.failed", "session.waiting"]
    await goes_on(house, "herm", session)


@each_backend
async def test_a_message_is_said_after_answers_that_failed(serve: Serve, backend: str) -> None:
    house = await serve()
    session, requests = await asked(house, backend, "approve fails")
    await session.respond_all(answers(requests, 0), message="hello")
    turn = await session.read_turn()
    (failed,) = turn.data("step.failed")
    assert failed["message"].endswith("The provider is limiting requests.")
    assert steps(turn)[-1] == HELLO
    assert turn.types[-2:] == ["turn.completed", "session.waiting"]
    outcomes = [
        e.outcome for e in await house.log(session.session_id) if isinstance(e, ev.TurnEnded)
    ]
    assert outcomes == ["failed", "completed"]
    await goes_on(house, backend, session)
