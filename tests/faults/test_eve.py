"""What an eve alone does wrong, or what comes of it there alone.

It has one stream for a whole session, and another generation may take its sessions over.
"""

from __future__ import annotations

from typing import Literal

import pytest

from adapters.model import events as ev
from proxy.scripted.eve_turns import Generation
from proxy.scripted.faults import Cut, Duplicate, Fault, Silence, Status
from tests.faults.backends import BACKENDS, Kind
from tests.faults.conversation import SAID, SCRIPT, check_replayed, failure, greeted, rested
from tests.faults.playing import Run, begin, check_survives, heard, play
from tests.support.alone import Alone
from tests.support.dragoman import Backend

EVES = [kind for kind in BACKENDS if kind.dialect == "eve"]

# A speed: the patience of ten minutes with streams that do not open, in less than a second.
HURRY = 2000.0

pytestmark = [
    pytest.mark.parametrize("eve", EVES, ids=lambda kind: kind.generation),
    pytest.mark.usefixtures("impatient"),
]

# How many records each generation's turn of `SCRIPT` has.
RECORDS = {"T": 20, "S1": 23, "S2": 23}


@pytest.mark.parametrize("place", [0, 5])
async def test_a_record_that_comes_twice_is_one_place_in_the_log(
    run: Run, eve: Kind, place: int
) -> None:
    conversation = await play(run, eve, {("stream", 1): Duplicate(place)}, journal="sqlite")
    house, session, _ = conversation
    await rested(house, session)
    await house.restart()
    await check_survives(eve, conversation)
    received = house.backend.received
    asked = [int(r.query["startIndex"]) for r in received if r.route == "stream"]
    assert asked == [0, RECORDS[eve.generation]]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_stream_that_is_over_while_nothing_runs_is_opened_again_for_the_next_message(
    run: Run, eve: Kind, clean: bool
) -> None:
    fault = Cut(after_event=RECORDS[eve.generation], clean=clean)
    conversation = await play(run, eve, {("stream", 1): fault})
    assert SAID in (conversation.turn.text or "")
    requests = conversation.house.backend.faults.requests
    assert requests["stream"] == 1
    await check_survives(eve, conversation)
    assert requests["stream"] == 2


@pytest.mark.parametrize("status", [400, 401, 403, 410])
async def test_a_stream_that_is_refused_for_good_ends_the_turn(
    run: Run, eve: Kind, status: int
) -> None:
    house, session, turn = await play(run, eve, {("stream", 1): Status(status)})
    assert failure(turn)["code"] == "backend_session_lost"
    assert turn.data("message.received")[0]["message"] == SCRIPT
    await rested(house, session)
    gaps = [e for e in await house.log(session.session_id) if isinstance(e, ev.Gap)]
    assert len(gaps) == (1 if status == 410 else 0)
    assert heard(eve, house) == [SCRIPT]


@pytest.mark.parametrize("begun", [0, 5])
async def test_a_stream_that_stays_away_fails_the_turn_when_the_patience_is_over(
    run: Run, eve: Kind, begun: int
) -> None:
    plan: dict[tuple[str, int], Fault] = {("stream", n): Status(503) for n in range(2, 400)}
    plan["stream", 1] = Cut(after_event=begun)
    house, session, turn = await play(run, eve, plan, speed=HURRY)
    assert failure(turn)["code"] == "backend_session_lost"
    assert turn.data("message.received")[0]["message"] == SCRIPT
    assert SAID not in str(turn.data("message.completed"))
    assert heard(eve, house) == [SCRIPT]
    assert session.log == turn.records


@pytest.mark.parametrize("done", [True, False])
async def test_a_session_that_was_perhaps_made_is_made_again_before_its_message(
    run: Run, eve: Kind, done: bool
) -> None:
    conversation = await play(run, eve, {("create", 1): Silence(done=done)})
    assert SAID in (conversation.turn.text or "")
    await check_survives(eve, conversation)


async def replace(house: Alone, later: Kind, *, keep: bool = False) -> None:
    """Let the backend die, and another one come up at its address; with `keep` it has the sessions
    of the one before."""
    talks = house.backend.talks
    await house.stop_backend("eve")
    options = {**house.backends["eve"].options, **later.options}
    house.backends["eve"] = Backend("eve", options)
    await house.start_backend("eve")
    if keep:
        house.backend.adopt(talks)


@pytest.mark.parametrize("later", EVES, ids=lambda kind: kind.generation)
async def test_a_backend_that_comes_back_as_another_one_goes_on_with_its_sessions(
    run: Run, eve: Kind, later: Kind
) -> None:
    house, session, _ = await play(run, eve)
    await rested(house, session)
    await replace(house, later, keep=True)
    if later.generation == "T" != eve.generation:
        # It wants a token for the session, and a newer one has never told any.
        accepted = await session.send("hello")
        assert failure(await session.read_turn(accepted))["code"] == "http_400"
        await rested(house, session)
        fresh = await house.eve().create("hello")
        assert "“hello”" in ((await fresh.read_turn()).text or "")
        return
    # A newer one is told again what it did not take in the form of an older one.
    await greeted(house, session)
    await check_replayed(session)
    await rested(house, session)
    accepted = await session.send("and again")
    assert "“and again”" in ((await session.read_turn(accepted)).text or "")
    (talk,) = house.backend.talks.values()
    assert talk.turns == 3


# A T that has forgotten a session shows it as an empty stream (section 7.2), and says its tail.
@pytest.mark.parametrize("later", ["same", "S1", "S2"])
async def test_a_backend_that_comes_back_as_another_one_loses_the_turn_and_serves_new_sessions(
    run: Run, eve: Kind, later: Generation | Literal["same"]
) -> None:
    house = await begin(run, eve, speed=HURRY, pace=0.2)
    session = await house.eve().create("script: slow 400")
    async for record in session.stream():
        if record["type"] == "message.appended":
            break
    # It has forgotten everything: another version, on the same address.
    await replace(house, eve if later == "same" else Kind("eve", later))
    turn = await session.read_turn()
    assert failure(turn)["code"] == "backend_session_lost"
    await rested(house, session)
    accepted = await session.send("still there?")
    again = await session.read_turn(accepted)
    assert again.text is None
    assert {"turn.failed", "session.failed"} & set(again.types)
    fresh = await house.eve().create("hello")
    answered = await fresh.read_turn()
    assert answered.text is not None
    assert "You said: “hello”." in answered.text
