"""What comes just after a message, before its turn runs: stops and steering on a Herm backend."""

from __future__ import annotations

import asyncio

import pytest

from adapters.model import events as ev
from proxy.scripted.faults import Faults, SlowHead, Status
from tests.backends.herm.conftest import Serve
from tests.support.herm_client import Refused, message
from tests.support.houses import HermAndEngine
from tests.support.waiting import SOON_S, settled, until

LATE = 0.2
"""Seconds that the scripted Herm takes to make a session, or to answer a message."""


async def slow(serve: Serve, route: str) -> HermAndEngine:
    return await serve(herm={"pace": 0.05, "faults": Faults({(route, 1): SlowHead(LATE)})})


@pytest.mark.parametrize("route", ["create", "post", "stream"])
async def test_a_stop_holds_however_early_it_comes(serve: Serve, route: str) -> None:
    house = await slow(serve, route)
    client = house.client()
    session = (await client.create())["id"]
    await client.say(session, "script: slow 4000")
    await client.post(session, {"type": "user.interrupt"})
    live = await house.live(session)
    async with asyncio.timeout(SOON_S):
        await settled(live)
    events = await house.log(session)
    assert [e.outcome for e in events if isinstance(e, ev.TurnEnded)] == ["interrupted"]
    assert len(house.posts("create")) == 1


@pytest.mark.parametrize("route", ["create", "post"])
async def test_steering_just_after_a_message_is_taken_as_the_message_is_not(
    serve: Serve, route: str
) -> None:
    """Both are told that a turn runs."""
    house = await slow(serve, route)
    client = house.client()
    session = (await client.create())["id"]
    await client.say(session, "hello")
    await client.post(session, {"type": "user.steer", "message": "in French"})
    with pytest.raises(Refused) as refused:
        await client.post(session, message("more"))
    assert (refused.value.status, refused.value.code) == (409, "turn_running")
    live = await house.live(session)
    await settled(live)
    said = [e for e in await house.log(session) if isinstance(e, ev.MessageReceived)]
    assert [ev.text_of(e.content) for e in said] == ["hello", "in French"]


async def test_a_reset_of_an_eve_frontend_is_confirmed_when_it_holds(
    serve: Serve,
) -> None:
    house = await slow(serve, "archive")
    session = await house.eve().create("hello")
    await session.read_turn()
    assert await session.reset() == "reset"
    assert (await house.live(session.session_id)).state.ended is not None


async def test_a_reset_of_a_session_that_nothing_was_said_in_makes_none(
    serve: Serve,
) -> None:
    house = await serve()
    session = await house.eve().create(None)
    assert await session.reset() == "reset"
    live = await house.live(session.session_id)
    await until(lambda: live.state.ended is not None)
    assert house.posts("create") == []


@pytest.mark.parametrize("first", ["message", "reset"])
async def test_a_reset_does_not_wait_for_a_message_that_the_herm_refuses_for_now(
    serve: Serve, first: str
) -> None:
    busy = Status(409, body=b'{"error":{"code":"turn_running","message":"A turn runs."}}')
    faults = Faults({("post", number): busy for number in range(2, 4000)})
    house = await serve(herm={"faults": faults}, speed=20.0)
    session = await house.eve().create("hello")
    await session.read_turn()
    await session.send("again")
    if first == "message":
        await until(lambda: len(house.posts()) == 3)
    # Else it comes before the first refusal.
    async with asyncio.timeout(SOON_S):
        assert await session.reset() == "reset"
    live = await house.live(session.session_id)
    outcomes = {e.outcome for e in await house.log(live.id) if isinstance(e, ev.InputSettled)}
    assert outcomes == {"taken", "withdrawn"}
    posted = len(house.posts())
    await asyncio.sleep(0.3)
    assert len(house.posts()) == posted
    assert len(house.posts("archive")) == 1
