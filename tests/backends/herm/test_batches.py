"""Several answers in one request are one step on a Herm too: one request, no pause between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import aiohttp
import pytest

from adapters.model import events as ev
from proxy.scripted.faults import Faults, Silence, Status
from proxy.scripted.herm_turns import HermVariant
from proxy.session import Session
from tests.backends.herm.conftest import Serve
from tests.support import eve_client
from tests.support.eve_client import EveSession, TurnResult
from tests.support.herm_client import Envelope, HermTurn, Refused
from tests.support.houses import HermAndEngine
from tests.support.journals import CrashJournal
from tests.support.patience import shorten
from tests.support.waiting import settled, stored, until

BOTH = "Done, 4.1 GB freed.Understood, I left /etc/hosts alone."


def answers(turn: HermTurn) -> list[Envelope]:
    """A yes and a no, in one batch, the last one first."""
    ids = turn.stop_reason["event_ids"]
    return [
        {"type": "user.tool_confirmation", "tool_use_id": id_, "result": result}
        for id_, result in zip(ids[::-1], ("deny", "allow"), strict=True)
    ]


def responses(house: HermAndEngine) -> list[list[str]]:
    """What was answered in each request to the backend."""
    bodies = [json.loads(body) for body in house.posts()]
    batches = [body.get("events", [body]) for body in bodies]
    return [
        [event["tool_use_id"] for event in batch]
        for batch in batches
        if batch[0]["type"] == "user.tool_confirmation"
    ]


async def log(house: HermAndEngine, session: str, *types: type[ev.Event]) -> list[Any]:
    return [e for e in await house.log(session) if isinstance(e, types)]


async def asked(house: HermAndEngine) -> tuple[EveSession, list[dict[str, str]]]:
    """An eve frontend's session that waits for two answers, and these: a yes and a no."""
    session = await house.eve().create("script: approve2")
    turn = await session.read_turn()
    given = [
        {"requestId": request["requestId"], "optionId": request["options"][choice]["id"]}
        for request, choice in zip(turn.requests, (0, -1), strict=True)
    ]
    return session, given


async def finished(house: HermAndEngine, session: EveSession) -> TurnResult:
    """Read the rest of the turn, and check that both answers came."""
    turn = await session.read_turn()
    assert turn.text is not None
    assert BOTH in turn.text
    await settled(await house.live(session.session_id))
    resolved = await log(house, session.session_id, ev.InteractionResolved)
    assert sorted(event.outcome for event in resolved) == ["approved", "denied"]
    return turn


@pytest.mark.parametrize(
    "variant",
    [
        HermVariant(),
        HermVariant(echo_inputs=True),
        HermVariant(list_inputs=False, post_answer="empty"),
        HermVariant(body="single"),
        HermVariant(event_ids="envelope"),
    ],
)
async def test_a_batch_of_answers_is_one_step(serve: Serve, variant: HermVariant) -> None:
    house = await serve(herm={"variant": variant})
    client = house.client()
    session = (await client.create())["id"]
    turn = await client.turn(session, "script: approve2", answers)
    assert BOTH in turn.text
    idles = turn.payloads("session.status_idle")
    assert [idle["stop_reason"]["type"] for idle in idles] == ["requires_action", "end_turn"]
    # One that takes lone events only gets them one after the other, and nobody sees a pause.
    assert [len(r) for r in responses(house)] == ([1, 1] if variant.body == "single" else [2])
    await settled(await house.live(session))
    settlements = await log(house, session, ev.InputSettled)
    assert [event.outcome for event in settlements] == ["taken"] * 3


@pytest.mark.parametrize("body", ["any", "single"])
async def test_an_eve_client_gets_the_whole_answer_of_both(serve: Serve, body: Any) -> None:
    house = await serve(herm={"variant": HermVariant(body=body)})
    session, given = await asked(house)
    await session.respond_all(given)
    turn = await finished(house, session)
    assert sorted(d["status"] for d in turn.data("action.result")) == ["completed", "rejected"]


async def test_a_batch_is_refused_as_a_whole_for_one_stale_answer(
    serve: Serve,
) -> None:
    house = await serve()
    client = house.client()
    session, given = await asked(house)
    await session.respond_all(given[:1])
    await session.read_turn()
    live = await house.live(session.session_id)
    calls = [open_.call_id for open_ in live.open_interactions()]
    over = next(e for e in await log(house, session.session_id, ev.ToolCalled))
    events = [
        {"type": "user.tool_confirmation", "tool_use_id": id_, "result": "deny"}
        for id_ in (*calls, over.call_id)
    ]
    with pytest.raises(Refused):
        await client.post(session.session_id, *events)
    assert [open_.claimed_by for open_ in live.state.interactions.values()] == [None]
    await session.respond_all(given[1:])
    await finished(house, session)
    assert [len(r) for r in responses(house)] == [1, 1]


async def test_both_are_asked_again_when_they_are_refused(serve: Serve) -> None:
    house = await serve(herm={"faults": Faults({("post", 2): Status(409)})})
    session, given = await asked(house)
    await session.respond_all(given)
    live = await house.live(session.session_id)
    await until(lambda: stored(live) and not live.state.inputs)
    assert [open_.claimed_by for open_ in live.state.interactions.values()] == [None, None]
    await session.read_turn()
    await session.respond_all(given)
    await finished(house, session)


async def test_the_second_of_two_lone_answers_is_asked_for_again_when_it_is_refused(
    serve: Serve,
) -> None:
    faults = Faults({("post", 4): Status(409)})
    house = await serve(herm={"variant": HermVariant(body="single"), "faults": faults})
    session, given = await asked(house)
    await session.respond_all(given)
    live = await house.live(session.session_id)
    await until(lambda: stored(live) and not live.state.inputs)
    pauses = await log(house, session.session_id, ev.TurnPaused)
    assert [len(pause.request_ids) for pause in pauses] == [2, 1]
    await session.read_turn()
    await session.respond_all(given[1:])
    await finished(house, session)


@pytest.mark.parametrize("done", [False, True])
async def test_the_list_tells_what_became_of_answers_whose_reply_is_lost(
    serve: Serve, monkeypatch: Any, done: bool
) -> None:
    shorten(monkeypatch, "answer_seconds")
    faults = Faults({("post", 2): Silence(done=done)})
    house = await serve(herm={"faults": faults}, speed=20.0)
    session, given = await asked(house)
    await session.respond_all(given)
    live = await house.live(session.session_id)
    await until(lambda: stored(live) and not live.state.inputs)
    outcomes = [e.outcome for e in await log(house, session.session_id, ev.InputSettled)]
    assert outcomes == (["taken"] * 3 if done else ["taken", "refused", "refused"])
    if not done:
        await session.read_turn()
        await session.respond_all(given)
    await finished(house, session)
    assert [len(r) for r in responses(house)] == ([2] if done else [2, 2])


@pytest.mark.parametrize("confirmed", [False, True])
async def test_a_batch_is_done_once_wherever_a_crash_comes(serve: Serve, confirmed: bool) -> None:
    for writes in range(1, 5):
        journal = CrashJournal()
        house = await serve(journal, speed=20.0)
        session, given = await asked(house)
        journal.crash_at(writes, confirmed=confirmed)
        posting = asyncio.create_task(session.respond_all(given))
        await until(journal.crashed.is_set)
        await house.restart()
        with contextlib.suppress(aiohttp.ClientError, eve_client.Refused):
            await posting
        live = await house.live(session.session_id)
        await until(lambda live=live: _decided(live))  # type: ignore[misc]
        if live.state.interactions:
            # It never left, and both are asked again.
            assert responses(house) == []
            await session.respond_all(given)
        await until(lambda live=live: live.idle)  # type: ignore[misc]
        assert [len(r) for r in responses(house)] == [2], writes
        resolved = await log(house, session.session_id, ev.InteractionResolved)
        assert sorted(event.outcome for event in resolved) == ["approved", "denied"]


def _decided(live: Session) -> bool:
    """Whether it is known what became of all answers."""
    claims = [open_.claimed_by for open_ in live.state.interactions.values()]
    return not live.state.inputs and not any(claims)
