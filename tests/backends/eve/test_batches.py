"""Several answers in one request are one step, on every eve: one request to the backend, and no
boundary between them (eve page, section 8.2)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import aiohttp
import pytest

from adapters.model import events as ev
from proxy.scripted.faults import Fault, Faults, Silence, Status
from proxy.session import Session
from tests.backends.eve.conftest import Serve
from tests.support.eve_client import EveSession, Refused, TurnResult
from tests.support.herm_client import HermClient
from tests.support.houses import GENERATIONS, Eves
from tests.support.journals import CrashJournal
from tests.support.patience import shorten
from tests.support.waiting import settled, stored, until

each_generation = pytest.mark.parametrize("generation", GENERATIONS)

BOTH = "Done, 4.1 GB freed.Understood, I left /etc/hosts alone."


def answers(turn: TurnResult, *choices: int) -> list[dict[str, str]]:
    """The same place of its options for each request, in the order in which they were asked."""
    return [
        {"requestId": request["requestId"], "optionId": request["options"][choice]["id"]}
        for request, choice in zip(turn.requests, choices, strict=True)
    ]


async def asked(house: Eves, generation: str) -> tuple[EveSession, TurnResult]:
    """A session that waits for two answers."""
    session = await house.eve(generation).create("script: approve2")
    turn = await session.read_turn()
    assert len(turn.requests) == 2
    return session, turn


def responses(house: Eves, generation: str) -> list[list[str]]:
    """What was answered in each request to the backend."""
    bodies = [json.loads(body) for body in house.posted(generation)]
    return [
        [answer["requestId"] for answer in body["inputResponses"]]
        for body in bodies
        if "inputResponses" in body
    ]


async def log(house: Eves, session: EveSession, *types: type[ev.Event]) -> list[Any]:
    return [e for e in await house.log(session.session_id) if isinstance(e, types)]


@each_generation
@pytest.mark.parametrize("order", [1, -1])
async def test_two_answers_in_one_request_are_one_step(
    serve: Serve, generation: str, order: int
) -> None:
    house = await serve()
    session, turn = await asked(house, generation)
    given = answers(turn, 0, 1)[::order]
    await session.respond_all(given)
    turn = await session.read_turn()
    assert turn.text is not None
    assert BOTH in turn.text
    assert turn.requests == []
    assert sorted(d["status"] for d in turn.data("action.result")) == ["completed", "rejected"]
    assert responses(house, generation) == [[answer["requestId"] for answer in given]]
    await settled(await house.live(session.session_id))
    assert session.log == [
        r async for r in house.eve(generation).attach(session.session_id).stream(0, follow=False)
    ]
    resolved = await log(house, session, ev.InteractionResolved)
    assert {e.outcome for e in resolved} == {"approved", "denied"}
    assert [e.outcome for e in await log(house, session, ev.InputSettled)] == ["taken"] * 3


@each_generation
async def test_no_pause_is_shown_between_two_answers_of_a_herm_frontend(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    client = HermClient(house.http, house.face("herm", generation.lower()))
    session = (await client.create(generation.lower()))["id"]

    def both(turn: Any) -> list[dict[str, Any]]:
        ids = turn.stop_reason["event_ids"]
        return [
            {"type": "user.tool_confirmation", "tool_use_id": id_, "result": result}
            for id_, result in zip(ids, ("deny", "allow"), strict=True)
        ]

    turn = await client.turn(session, "script: approve2", both)
    assert "I left /srv/exports/2024 alone.Written to /etc/hosts." in turn.text
    idles = turn.payloads("session.status_idle")
    assert [idle["stop_reason"]["type"] for idle in idles] == ["requires_action", "end_turn"]
    assert [len(r) for r in responses(house, generation)] == [2]


@each_generation
async def test_one_of_two_answers_leaves_the_other_open(serve: Serve, generation: str) -> None:
    house = await serve()
    session, turn = await asked(house, generation)
    first, second = answers(turn, 1, 0)
    await session.respond_all([first])
    between = await session.read_turn()
    assert between.text is None
    assert between.status == "waiting"
    # Real servers of 0.30.8 and 0.80.1 take one answer at a time, in any order, and keep it:
    # nothing of the turn goes on before the last one is there. So each goes out when it is given.
    assert [len(r) for r in responses(house, generation)] == [1]
    live = await house.live(session.session_id)
    assert live.state.status == "paused"
    assert second["requestId"] in live.state.interactions
    assert await log(house, session, ev.ToolReturned) == []
    await session.respond_all([second])
    turn = await session.read_turn()
    assert turn.text is not None
    assert "I left /srv/exports/2024 alone.Written to /etc/hosts." in turn.text
    assert [len(r) for r in responses(house, generation)] == [1, 1]


@each_generation
async def test_a_batch_with_a_stale_answer_is_refused_as_a_whole(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    session, turn = await asked(house, generation)
    first, second = answers(turn, 0, 0)
    await session.respond_all([first])
    await session.read_turn()
    with pytest.raises(Refused):
        await session.respond_all([second, first])
    with pytest.raises(Refused):
        await session.respond_all([second, second])
    live = await house.live(session.session_id)
    assert live.state.interactions[second["requestId"]].claimed_by is None
    await session.respond_all([second])
    turn = await session.read_turn()
    assert turn.text is not None
    assert "Written to /etc/hosts." in turn.text
    assert [len(r) for r in responses(house, generation)] == [1, 1]


@each_generation
@pytest.mark.parametrize("fault", [Status(409), Status(429)])
async def test_both_are_asked_again_when_the_backend_refuses_their_answers(
    serve: Serve, generation: str, fault: Fault
) -> None:
    # After the first message, which S1 and S2 get in a request of its own.
    number = 1 if generation == "T" else 2
    house = await serve(faults=Faults({("message", number): fault}))
    session, turn = await asked(house, generation)
    given = answers(turn, 0, 1)
    await session.respond_all(given)
    live = await house.live(session.session_id)
    await until(lambda: stored(live) and not live.state.inputs)
    assert [open_.claimed_by for open_ in live.state.interactions.values()] == [None, None]
    pauses = await log(house, session, ev.TurnPaused)
    assert [len(pause.request_ids) for pause in pauses] == [2, 2]
    await session.read_turn()
    await session.respond_all(given)
    turn = await session.read_turn()
    assert turn.text is not None
    assert BOTH in turn.text


@each_generation
async def test_the_stream_shows_what_became_of_answers_whose_reply_is_lost(
    serve: Serve, monkeypatch: Any, generation: str
) -> None:
    shorten(monkeypatch, "answer_seconds")
    number = 1 if generation == "T" else 2
    faults = Faults({("message", number): Silence(done=True)})
    house = await serve(faults=faults, speed=20.0)
    session, turn = await asked(house, generation)
    await session.respond_all(answers(turn, 0, 1))
    turn = await session.read_turn()
    assert turn.text is not None
    assert BOTH in turn.text
    await settled(await house.live(session.session_id))
    assert [e.outcome for e in await log(house, session, ev.InputSettled)] == ["taken"] * 3
    assert [len(r) for r in responses(house, generation)] == [2]


@each_generation
async def test_answers_that_never_arrived_are_asked_for_again(
    serve: Serve, monkeypatch: Any, generation: str
) -> None:
    shorten(monkeypatch, "answer_seconds")
    number = 1 if generation == "T" else 2
    faults = Faults({("message", number): Silence(done=False)})
    house = await serve(faults=faults, speed=20.0)
    session, turn = await asked(house, generation)
    given = answers(turn, 0, 1)
    await session.respond_all(given)
    live = await house.live(session.session_id)
    await until(lambda: stored(live) and not live.state.inputs)
    outcomes = [e.outcome for e in await log(house, session, ev.InputSettled)]
    assert outcomes == ["taken", "unknown", "unknown"]
    await session.read_turn()
    await session.respond_all(given)
    turn = await session.read_turn()
    assert turn.text is not None
    assert BOTH in turn.text


@each_generation
@pytest.mark.parametrize("confirmed", [False, True])
async def test_a_batch_is_done_once_wherever_a_crash_comes(
    serve: Serve, generation: str, confirmed: bool
) -> None:
    for writes in range(1, 6):
        journal = CrashJournal()
        house = await serve(journal, speed=20.0)
        session, turn = await asked(house, generation)
        journal.crash_at(writes, confirmed=confirmed)
        given = answers(turn, 0, 1)
        posting = asyncio.create_task(session.respond_all(given))
        await until(journal.crashed.is_set)
        await house.restart()
        with contextlib.suppress(aiohttp.ClientError, Refused):
            await posting
        live = await house.live(session.session_id)
        await until(lambda live=live: _decided(live))  # type: ignore[misc]
        session = house.eve(generation).attach(session.session_id)
        if live.state.interactions:
            # It never left, and both are asked again.
            assert responses(house, generation) == []
            await session.respond_all(given)
        await until(lambda live=live: live.idle)  # type: ignore[misc]
        assert [len(r) for r in responses(house, generation)] == [2], writes
        resolved = await log(house, session, ev.InteractionResolved)
        assert sorted(e.outcome for e in resolved) == ["approved", "denied"]
        pauses = await log(house, session, ev.TurnPaused)
        assert {len(pause.request_ids) for pause in pauses} == {2}


def _decided(live: Session) -> bool:
    """Whether it is known what became of all answers."""
    claims = [open_.claimed_by for open_ in live.state.interactions.values()]
    return not live.state.inputs and not any(claims)
