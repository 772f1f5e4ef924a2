"""Stops and resets that come early, on scripted eves that are as slow as real ones.

A real server takes tens of milliseconds to make a session and hundreds to begin a turn, and a
cancel before that is accepted, or answered `no_active_turn`, and does nothing.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from adapters.model import events as ev
from proxy.scripted.faults import Faults, SlowHead, Status
from tests.backends.eve.conftest import Serve
from tests.support.eve_client import EveSession, Refused
from tests.support.herm_client import HermClient
from tests.support.houses import GENERATIONS, Eves
from tests.support.waiting import SOON_S, stored, until

pytestmark = pytest.mark.parametrize("generation", GENERATIONS)

LATE = 0.05
"""Seconds that a scripted server takes for what a real one takes 0.05 to 0.3 s for."""

MOMENTS = ("at once", "made", "said", "begun")
"""When a stop comes: before the session is made, before the first message is posted, before its
turn begins, and after."""


async def moment(house: Eves, generation: str, when: str) -> None:
    """Wait until a conversation with a backend is so far."""
    eve = house.eves[generation]
    match when:
        case "made":
            await until(lambda: bool(eve.talks))
        case "said":
            await until(lambda: any(b'"message"' in r.body for r in eve.received))
            await until(lambda: any(talk.begins or talk.busy for talk in eve.talks.values()))
        case "begun":
            await until(lambda: any(talk.busy for talk in eve.talks.values()))


def slow(when: str) -> dict[str, Any]:
    """Return a backend that is slow where a stop is to come in between."""
    route = {"at once": "create", "said": "message"}.get(when, "none")
    faults = Faults({(route, 1): SlowHead(LATE)})
    return {"faults": faults, "begin_s": 2 * LATE, "pace": 0.02}


@pytest.mark.parametrize("when", MOMENTS)
async def test_a_stop_holds_however_early_it_comes(
    serve: Serve, generation: str, when: str
) -> None:
    house = await serve(**slow(when))
    session = await house.eve(generation).create("script: slow 4000")
    await moment(house, generation, when)
    assert await session.cancel() == "accepted"
    async with asyncio.timeout(SOON_S):
        turn = await session.read_turn()
    assert turn.types[-2:] == ["turn.cancelled", "session.waiting"]
    again = await session.send("still there?")
    assert ((await session.read_turn(again)).text or "").startswith("You said: “still there?”.")


@pytest.mark.parametrize("when", MOMENTS)
async def test_a_stop_of_a_herm_frontend_holds_however_early_it_comes(
    serve: Serve, generation: str, when: str
) -> None:
    house = await serve(**slow(when))
    client = HermClient(house.http, house.face("herm", generation.lower()))
    session = (await client.create(generation.lower()))["id"]
    await client.say(session, "script: slow 4000")
    await moment(house, generation, when)
    await client.post(session, {"type": "user.interrupt"})
    live = await house.live(session)
    await until(lambda: stored(live) and not (live.state.inputs or live.state.busy))
    events = await house.log(session)
    assert [e.outcome for e in events if isinstance(e, ev.TurnEnded)] == ["interrupted"]


async def test_a_stop_is_not_lost_in_a_restart_before_its_turn_began(
    serve: Serve, generation: str
) -> None:
    house = await serve("sqlite", **slow("said"))
    session = await house.eve(generation).create("script: slow 4000")
    await moment(house, generation, "said")
    assert await session.cancel() == "accepted"
    await house.restart()
    session.client.host = house.eve(generation).host
    async with asyncio.timeout(SOON_S):
        turn = await session.read_turn()
    assert turn.types[-2:] == ["turn.cancelled", "session.waiting"]


async def test_a_stop_of_a_message_that_the_backend_refuses_stops_no_other(
    serve: Serve, generation: str
) -> None:
    house = await serve(faults=Faults({("create", 1): Status(503), ("create", 2): Status(503)}))
    session = await house.eve(generation).create("hello")
    assert await session.cancel() == "accepted"
    await session.read_turn()
    live = await house.live(session.session_id)
    assert not live.state.inputs
    assert house.posted(generation, "cancel") == []


# Resets.


async def refused(session: EveSession, text: str) -> Refused:
    with pytest.raises(Refused) as caught:
        await session.send(text)
    return caught.value


async def test_a_reset_is_confirmed_when_it_holds(serve: Serve, generation: str) -> None:
    house = await serve(faults=Faults({("reset", 1): SlowHead(LATE)}))
    session = await house.eve(generation).create("hello")
    await session.read_turn()
    assert await session.reset() == "reset"
    live = await house.live(session.session_id)
    assert live.state.ended is not None
    error = await refused(session, "more")
    assert (error.status, error.code) == (409, "session_not_active")
    assert house.posted(generation) == []


async def test_a_message_during_a_reset_waits_for_its_fate(serve: Serve, generation: str) -> None:
    house = await serve(faults=Faults({("reset", 1): SlowHead(LATE)}))
    session = await house.eve(generation).create("hello")
    await session.read_turn()
    reset = asyncio.create_task(session.reset())
    await until(lambda: any(r.route == "reset" for r in house.eves[generation].received))
    error = await refused(session, "more")
    assert (error.status, error.code) == (409, "session_not_active")
    assert await reset == "reset"
    assert house.posted(generation) == []


async def test_a_refused_reset_leaves_the_session_as_it_was(serve: Serve, generation: str) -> None:
    house = await serve(faults=Faults({("reset", 1): Status(500)}))
    session = await house.eve(generation).create("hello")
    await session.read_turn()
    with pytest.raises(Refused) as caught:
        await session.reset()
    assert caught.value.status == 502
    accepted = await session.send("still there?")
    assert ((await session.read_turn(accepted)).text or "").startswith("You said: “still there?”.")
    assert await session.reset() == "reset"
    assert await session.reset() == "no_active_session"


async def test_what_waits_when_a_reset_comes_is_withdrawn(serve: Serve, generation: str) -> None:
    house = await serve(pace=0.05)
    session = await house.eve(generation).create("script: slow 4000")
    await moment(house, generation, "begun")
    await until(lambda: bool(house.eves[generation].talks))
    await session.send("later", turn_policy="queue")
    assert await session.reset() == "reset"
    live = await house.live(session.session_id)
    assert not live.state.inputs
    events = await house.log(session.session_id)
    settled = [e.outcome for e in events if isinstance(e, ev.InputSettled)]
    assert settled.count("withdrawn") == 1
    assert house.posted(generation) == []


@pytest.mark.parametrize("when", MOMENTS)
async def test_a_reset_holds_however_early_it_comes(
    serve: Serve, generation: str, when: str
) -> None:
    house = await serve(**slow(when))
    session = await house.eve(generation).create("script: slow 4000")
    await moment(house, generation, when)
    assert await session.reset() == "reset"
    live = await house.live(session.session_id)
    assert live.state.ended is not None
    assert not live.state.inputs
    assert [
        json.loads(r.body or b"{}") for r in house.eves[generation].received if r.route == "reset"
    ]


async def test_a_session_that_the_backend_has_no_more_is_reset(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    eve = house.eves[generation]
    session = await house.eve(generation).create("hello")
    await session.read_turn()
    (talk,) = eve.talks.values()
    talk.ended = True
    assert await session.reset() == "reset"
    assert (await house.live(session.session_id)).state.ended is not None
