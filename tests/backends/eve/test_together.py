"""Answers and a message in one request are one step, on every eve: the token generation takes both
in one request, the others one after the other, and no frontend sees a boundary between them (eve
page, sections 5 and 8.2)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from contextlib import aclosing
from typing import Any

import aiohttp
import pytest

from adapters.model import events as ev
from proxy.scripted.faults import Faults, Silence, Status
from proxy.session import Session
from tests.backends.eve.conftest import Serve
from tests.support.eve_client import EveSession, Refused, TurnResult
from tests.support.herm_client import HermClient
from tests.support.houses import GENERATIONS, Eves
from tests.support.journals import CrashJournal
from tests.support.patience import shorten
from tests.support.waiting import idle, settled, stored, until

each_generation = pytest.mark.parametrize("generation", GENERATIONS)

DONE, KEPT = " Done, 4.1 GB freed.", "Understood, I left /srv/exports/2024 alone."
LEFT = "Understood, I left /etc/hosts alone. You can add the line yourself: `10.0.0.9 build`."
HELLO = "You said: “hello”."


async def asked(
    house: Eves, generation: str, script: str = "approve"
) -> tuple[EveSession, list[dict[str, Any]]]:
    """A session of a client of the token generation that waits for answers, and its requests."""
    session = await house.eve(generation, "T").create(f"script: {script}")
    return session, (await session.read_turn()).requests


def answers(requests: list[dict[str, Any]], *choices: int) -> list[dict[str, str]]:
    """The same place of its options for each request, in the order in which they were asked."""
    return [
        {"requestId": request["requestId"], "optionId": request["options"][choice]["id"]}
        for request, choice in zip(requests, choices, strict=True)
    ]


def posted(house: Eves, generation: str) -> list[tuple[int, str | None]]:
    """How many answers and which message each request to the backend had, after the first."""
    return [
        (len(body.get("inputResponses", ())), body.get("message"))
        for body in map(json.loads, house.posted(generation))
        if not str(body.get("message")).startswith("script: ap")
    ]


def steps(turn: TurnResult) -> list[str]:
    """What was said in a turn: by a person, and in each step, without the number of the turn."""
    assert turn.types.count("session.waiting") == 1
    assert turn.types.count("turn.started") == 1
    said = ("message.received", "message.completed")
    texts = [r["data"]["message"] for r in turn.records if r["type"] in said]
    return [text.partition(" (turn")[0] for text in texts]


async def log(house: Eves, session: EveSession, *types: type[ev.Event]) -> list[Any]:
    return [e for e in await house.log(session.session_id) if isinstance(e, types)]


async def goes_on(house: Eves, generation: str, session: EveSession) -> None:
    """Check that all is over and read: the next message gets its own answer, and a reader that was
    never there reads the same."""
    await settled(await house.live(session.session_id))
    await session.send("goodbye")
    assert steps(await session.read_turn()) == ["goodbye", "You said: “goodbye”."]
    await settled(await house.live(session.session_id))
    reader = house.eve(generation).attach(session.session_id)
    assert session.log == [record async for record in reader.stream(0, follow=False)]


# What it looks like.


@each_generation
@pytest.mark.parametrize("form", ["all", "tokens"])
@pytest.mark.parametrize(
    ("script", "choices", "told"),
    [
        ("approve", [0], [DONE]),
        ("approve", [1], [KEPT]),
        ("approve2", [0, 1], [DONE + LEFT]),
    ],
)
async def test_the_answer_to_a_message_beside_answers_is_in_their_turn(
    serve: Serve, generation: str, form: Any, script: str, choices: list[int], told: list[str]
) -> None:
    house = await serve(form=form)
    session, requests = await asked(house, generation, script)
    given = answers(requests, *choices)
    await session.respond_all(given, message="hello")
    turn = await session.read_turn()
    assert steps(turn) == ["hello", *told, HELLO]
    assert [d["stepIndex"] for d in turn.data("step.started")] == [0, 1]
    together = [(len(given), "hello")]
    one_by_one = [(len(given), None), (0, "hello")]
    assert posted(house, generation) == (together if generation == "T" else one_by_one)
    await goes_on(house, generation, session)
    received = await log(house, session, ev.MessageReceived)
    assert [event.command_id is not None for event in received] == [True] * 3
    assert {e.outcome for e in await log(house, session, ev.InputSettled)} == {"taken"}
    turns = await log(house, session, ev.TurnStarted)
    assert len(turns) == (2 if generation == "T" else 3)


@each_generation
async def test_a_message_beside_the_answer_to_a_question_is_in_its_turn(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    session, requests = await asked(house, generation, "ask")
    await session.respond_all(answers(requests, 1), message="hello")
    turn = await session.read_turn()
    assert steps(turn)[0] == "hello"
    said = "".join(d["message"] for d in turn.data("message.completed"))
    assert "Holding a seat on the 09:10." in said
    assert HELLO in said
    await goes_on(house, generation, session)


@each_generation
async def test_the_delivery_of_the_message_is_that_of_the_reply(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    session, requests = await asked(house, generation)
    accepted = await session.respond_all(answers(requests, 0), message="hello")
    turn = await session.read_turn()
    (received,) = [r for r in turn.records if r["type"] == "message.received"]
    assert accepted.delivery_id in received["meta"]["deliveryIds"]
    assert turn.records[-1]["meta"]["deliveryIds"][-1] == accepted.delivery_id


@each_generation
async def test_a_message_with_all_that_it_may_have_goes_beside_answers(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    session, requests = await asked(house, generation)
    file = {"type": "file", "mediaType": "text/plain", "data": "aGVsbG8=", "filename": "a.txt"}
    parts = [{"type": "text", "text": "script: structured"}, file]
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    await session.respond_all(
        answers(requests, 0), message=parts, clientContext="page 4", outputSchema=schema
    )
    turn = await session.read_turn()
    assert turn.result is not None
    (body,) = [
        body
        for body in map(json.loads, house.posted(generation))
        if isinstance(body.get("message"), list)
    ]
    assert body["message"][1]["filename"] == "a.txt"
    assert body["message"][1]["data"].endswith("aGVsbG8=")
    assert (body["clientContext"], body["outputSchema"]) == ("page 4", schema)
    # They are the message's, and said once.
    bodies = [json.loads(body) for body in house.posted(generation)]
    assert [body.get("clientContext") for body in bodies].count("page 4") == 1
    assert [body.get("outputSchema") for body in bodies].count(schema) == 1


@each_generation
async def test_a_message_beside_one_of_two_answers_is_answered_after_the_other(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    session, requests = await asked(house, generation, "approve2")
    one, other = answers(requests, 0, 1)
    await session.respond_all([one], message="hello")
    turn = await session.read_turn()
    assert turn.text is None
    assert turn.types[-1] == "session.waiting"
    await session.respond_all([other])
    assert steps(await session.read_turn()) == ["hello", DONE + LEFT, HELLO]
    # No message reaches a backend that waits for an answer.
    assert posted(house, generation) == [(1, None), (1, None), (0, "hello")]
    await goes_on(house, generation, session)


@each_generation
async def test_a_message_is_said_once_where_the_agent_asks_again(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    session, requests = await asked(house, generation, "approve-twice")
    await session.respond_all(answers(requests, 0), message="hello")
    turn = await session.read_turn()
    assert steps(turn) == ["hello", DONE]
    await session.respond_all(answers(turn.requests, 1))
    turn = await session.read_turn()
    assert steps(turn)[-1] == HELLO
    assert LEFT in steps(turn)[-2]
    received = [m for m in await log(house, session, ev.MessageReceived) if m.content]
    assert [ev.text_of(m.content) for m in received] == ["script: approve-twice", "hello"]
    assert [m.command_id is not None for m in received] == [True, True]
    await goes_on(house, generation, session)


@each_generation
async def test_messages_beside_both_answers_in_turn_are_both_answered(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    session, requests = await asked(house, generation, "approve-twice")
    await session.respond_all(answers(requests, 0), message="first")
    turn = await session.read_turn()
    await session.respond_all(answers(turn.requests, 0), message="second")
    turn = await session.read_turn()
    assert turn.text is not None
    assert "second" in turn.text
    received = await log(house, session, ev.MessageReceived)
    assert [ev.text_of(m.content) for m in received][1:] == ["first", "second"]
    await goes_on(house, generation, session)


@each_generation
async def test_a_message_that_waited_before_is_said_before(serve: Serve, generation: str) -> None:
    house = await serve()
    session, requests = await asked(house, generation)
    await session.send("early")
    assert (await session.read_turn()).text is None
    await session.respond_all(answers(requests, 0), message="hello")
    turn = await session.read_turn()
    assert turn.text is not None
    assert turn.text.startswith(HELLO)
    assert posted(house, generation) == [(1, None), (0, "early"), (0, "hello")]
    await goes_on(house, generation, session)


@each_generation
async def test_a_message_beside_the_answer_for_a_child_is_answered_in_what_is_read(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    session, requests = await asked(house, generation, "childask")
    await session.respond_all(answers(requests, 0), message="hello")
    turn = await session.read_turn()
    assert turn.text is not None
    assert turn.text.startswith(HELLO)
    # A token server answers it in a turn of its own too.
    assert posted(house, generation) == [(1, None), (0, "hello")]
    await goes_on(house, generation, session)


async def test_a_message_beside_answers_is_refused_to_clients_of_the_later_generation(
    serve: Serve,
) -> None:
    house = await serve()
    session = await house.eve("T", "S").create("script: approve")
    (request,) = (await session.read_turn()).requests
    with pytest.raises(Refused, match="mutually exclusive"):
        await session.respond_all(answers([request], 0), message="hello")
    await session.respond_all(answers([request], 0))
    assert (await session.read_turn()).text is not None


@each_generation
async def test_a_herm_frontends_hint_beside_an_answer_is_one_step(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    client = HermClient(house.http, house.face("herm", generation.lower()))
    session = (await client.create(generation.lower()))["id"]

    def both(turn: Any) -> list[dict[str, Any]]:
        (id_,) = turn.stop_reason["event_ids"]
        return [
            {"type": "user.tool_confirmation", "tool_use_id": id_, "result": "allow"},
            {"type": "user.steer", "message": "hello"},
        ]

    turn = await client.turn(session, "script: approve", both)
    await settled(await house.live(session))
    assert DONE in turn.text
    assert (HELLO in turn.text) is (generation == "T")
    both_ways = [(1, None), (0, "hello")]
    assert posted(house, generation) == ([(1, "hello")] if generation == "T" else both_ways)


# What goes wrong.


@pytest.mark.parametrize(
    ("generation", "fault"),
    [("T", Status(204, body=b"")), *((g, Status(s)) for g in GENERATIONS for s in (409, 429))],
)
async def test_a_refusal_of_both_is_told_once_and_the_requests_are_open_again(
    serve: Serve, generation: str, fault: Status
) -> None:
    number = 1 if generation == "T" else 2
    house = await serve(faults=Faults({("message", number): fault}))
    session, requests = await asked(house, generation, "approve2")
    await session.respond_all(answers(requests, 0, 1), message="hello")
    live = await house.live(session.session_id)
    await until(lambda: stored(live) and not live.state.inputs)
    assert [open_.claimed_by for open_ in live.state.interactions.values()] == [None, None]
    turn = await session.read_turn()
    again = ["input.resolved", "input.requested"] * 2
    told = ["turn.started", "message.received", "step.started", "step.failed", "turn.completed"]
    assert turn.types == [*again, *told, "session.waiting"]
    settlements = await log(house, session, ev.InputSettled)
    assert [e.outcome for e in settlements] == ["taken", "refused", "refused", "refused"]
    # Nothing more is said until they are answered.
    reader = house.eve(generation).attach(session.session_id)
    assert session.log == [record async for record in reader.stream(0, follow=False)]
    await session.respond_all(answers(turn.requests, 0, 1))
    turn = await session.read_turn()
    assert steps(turn) == [DONE + LEFT]
    assert turn.types[-2:] == ["turn.completed", "session.waiting"]
    sent = [(2, "hello"), (2, None)] if generation == "T" else [(2, None), (2, None)]
    assert posted(house, generation) == sent
    await goes_on(house, generation, session)


@each_generation
@pytest.mark.parametrize("done", [False, True])
async def test_the_stream_shows_what_became_of_both_when_the_reply_is_lost(
    serve: Serve, monkeypatch: Any, generation: str, done: bool
) -> None:
    shorten(monkeypatch, "answer_seconds")
    number = 1 if generation == "T" else 2
    faults = Faults({("message", number): Silence(done=done)})
    house = await serve(faults=faults, speed=20.0)
    session, requests = await asked(house, generation)
    await session.respond_all(answers(requests, 0), message="hello")
    turn = await session.read_turn()
    if done:
        assert steps(turn) == ["hello", DONE, HELLO]
    else:
        # Neither arrived: both are told once.
        outcomes = [e.outcome for e in await log(house, session, ev.InputSettled)]
        assert outcomes == ["taken", "unknown", "unknown" if generation == "T" else "refused"]
        await session.respond_all(answers(turn.requests, 0), message="hello")
        assert steps(await session.read_turn()) == ["hello", DONE, HELLO]
    await goes_on(house, generation, session)
    resolved = await log(house, session, ev.InteractionResolved)
    assert [event.outcome for event in resolved] == ["approved"]


@each_generation
@pytest.mark.parametrize("confirmed", [False, True])
async def test_both_are_done_once_wherever_a_crash_comes(
    serve: Serve, generation: str, confirmed: bool
) -> None:
    outcomes = []
    for writes in itertools.count(1):
        journal = CrashJournal()
        house = await serve(journal, speed=20.0)
        session, requests = await asked(house, generation, "approve2")
        journal.crash_at(writes, confirmed=confirmed)
        given = answers(requests, 0, 1)
        posting = asyncio.create_task(session.respond_all(given, message="hello"))
        live = await house.live(session.session_id)
        crashed = journal.crashed
        await until(lambda live=live, crashed=crashed: crashed.is_set() or _all_done(live))  # type: ignore[misc]
        if not journal.crashed.is_set():
            await posting
            break
        await house.restart()
        with contextlib.suppress(aiohttp.ClientError, Refused):
            await posting
        live = await house.live(session.session_id)
        await until(lambda live=live: _decided(live))  # type: ignore[misc]
        sent = posted(house, generation)
        if live.state.interactions:
            # Nothing has left. What was accepted is asked again, and told to have failed.
            assert sent == []
            again = house.eve(generation, "T").attach(session.session_id)
            records = [record async for record in again.stream(0, follow=False)]
            asked_now = [q for r in records for q in r["data"].get("requests", ())][-2:]
            again.token = records[-1]["data"]["continuationToken"]
            await again.respond_all(answers(asked_now, 0, 1), message="hello")
        await until(lambda live=live: _all_done(live))  # type: ignore[misc]
        sent = posted(house, generation)
        together, one_by_one = [(2, "hello")], [(2, None), (0, "hello")]
        messages = await log(house, session, ev.InputSettled)
        if generation == "T":
            assert sent == together, writes
        elif sent != one_by_one:
            # It was to leave when the crash came.
            assert sent == one_by_one[:1], writes
            assert [e.outcome for e in messages][-1] == "unknown"
        resolved = await log(house, session, ev.InteractionResolved)
        assert sorted(e.outcome for e in resolved) == ["approved", "denied"]
        received = [ev.text_of(e.content) for e in await log(house, session, ev.MessageReceived)]
        assert received.count("hello") == len([1 for _, message in sent if message])
        pauses = await log(house, session, ev.TurnPaused)
        assert {len(pause.request_ids) for pause in pauses} == {2}
        outcomes.append(len(sent))
    assert len(outcomes) > 3


def _all_done(live: Session) -> bool:
    return idle(live) and not live.state.interactions


def _decided(live: Session) -> bool:
    """Whether it is known what became of all answers and messages."""
    claims = [open_.claimed_by for open_ in live.state.interactions.values()]
    return not live.state.inputs and not any(claims)


@pytest.mark.parametrize("generation", ["S1", "S2"])
async def test_a_message_that_is_refused_after_its_answers_ends_their_turn(
    serve: Serve, generation: str
) -> None:
    house = await serve(faults=Faults({("message", 3): Status(422)}))
    session, requests = await asked(house, generation)
    await session.respond_all(answers(requests, 0), message="hello")
    turn = await session.read_turn()
    assert steps(turn) == ["hello", DONE]
    assert turn.types[-2:] == ["turn.failed", "session.waiting"]
    await goes_on(house, generation, session)


@each_generation
async def test_a_cancel_stops_what_was_said_beside_the_answers_too(
    serve: Serve, generation: str
) -> None:
    house = await serve(pace=1.0)
    session, requests = await asked(house, generation, "approve slowly")
    await session.respond_all(answers(requests, 0), message="hello")
    async with aclosing(session.stream()) as records:
        async for record in records:
            if record["type"] == "message.appended":
                break
    await session.cancel()
    turn = await session.read_turn()
    assert turn.types[-2:] == ["turn.cancelled", "session.waiting"]
    assert "hello" not in str(turn.text)
    await settled(await house.live(session.session_id))
    outcomes = [e.outcome for e in await log(house, session, ev.InputSettled)]
    assert outcomes.count("withdrawn") == (0 if generation == "T" else 1)
    await session.send("goodbye")
    turn = await session.read_turn()
    assert "goodbye" in str(turn.text)
    assert "hello" not in str(turn.text)


async def test_a_cancel_while_the_agent_asks_again_withdraws_the_message_in_silence(
    serve: Serve,
) -> None:
    # The others begin a turn of its own for the refusals that come with a cancel.
    house, generation = await serve(), "S2"
    session, requests = await asked(house, generation, "approve-twice")
    await session.respond_all(answers(requests, 0), message="hello")
    await session.read_turn()
    await session.cancel()
    await settled(await house.live(session.session_id))
    # As after any cancel of what rests here, no boundary comes that nobody waits for.
    await goes_on(house, generation, session)
    assert "hello" not in [message for _, message in posted(house, generation)]
    settlements = await log(house, session, ev.InputSettled)
    assert "withdrawn" in [event.outcome for event in settlements]
