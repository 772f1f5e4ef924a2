"""An eve that says of a session that it is not active, while it is being made and for no reason."""

from __future__ import annotations

import pytest

from adapters.model import events as ev
from proxy.scripted.faults import Faults, Status
from tests.backends.eve.conftest import Serve
from tests.support.eve_client import EveSession
from tests.support.houses import Eves
from tests.support.waiting import settled

NOT_ACTIVE = Status(409, code="session_not_active")

by_id = pytest.mark.parametrize("generation", ["S1", "S2"])


def refusals(route: str, first: int, count: int) -> Faults:
    return Faults({(route, number): NOT_ACTIVE for number in range(first, first + count)})


async def outcomes(house: Eves, session: EveSession) -> list[str]:
    log = await house.log(session.session_id)
    assert not any(isinstance(event, ev.SessionEnded) for event in log)
    return [event.outcome for event in log if isinstance(event, ev.InputSettled)]


@by_id
@pytest.mark.parametrize("first", [1, 2])
async def test_a_message_is_sent_until_the_session_is_active(
    serve: Serve, generation: str, first: int
) -> None:
    house = await serve(faults=refusals("message", first, 5), speed=20.0)
    session = await house.eve(generation).create("hello")
    await session.read_turn()
    accepted = await session.send("more")
    turn = await session.read_turn(accepted)
    assert (turn.text or "").startswith("You said: “more”.")
    await settled(await house.live(session.session_id))
    assert await outcomes(house, session) == ["taken", "taken"]


@by_id
async def test_a_message_is_refused_alone_when_the_session_does_not_become_active(
    serve: Serve, generation: str
) -> None:
    house = await serve(faults=refusals("message", 2, 6), speed=20.0)
    session = await house.eve(generation).create("hello")
    await session.read_turn()
    await session.send("more")
    live = await house.live(session.session_id)
    await settled(live)
    assert await outcomes(house, session) == ["taken", "refused"]
    accepted = await session.send("still there?")
    turn = await session.read_turn(accepted)
    assert (turn.text or "").startswith("You said: “still there?”.")
    assert await outcomes(house, session) == ["taken", "refused", "taken"]


@by_id
async def test_a_stop_is_sent_until_the_session_is_active(serve: Serve, generation: str) -> None:
    house = await serve(faults=refusals("cancel", 1, 2), speed=20.0, pace=0.05)
    session = await house.eve(generation).create("script: slow 4000")
    live = await house.live(session.session_id)
    await session.cancel()
    turn = await session.read_turn()
    assert turn.types[-2:] == ["turn.cancelled", "session.waiting"]
    await settled(live)
    assert await outcomes(house, session) == ["taken", "taken"]


@by_id
async def test_an_answer_is_sent_until_the_session_is_active(serve: Serve, generation: str) -> None:
    house = await serve(faults=refusals("message", 2, 3), speed=20.0)
    session = await house.eve(generation).create("script: approve")
    turn = await session.read_turn()
    (request,) = turn.requests
    await session.respond_all(
        [{"requestId": request["requestId"], "optionId": request["options"][0]["id"]}]
    )
    turn = await session.read_turn()
    assert turn.text
    await settled(await house.live(session.session_id))
    assert await outcomes(house, session) == ["taken", "taken"]
