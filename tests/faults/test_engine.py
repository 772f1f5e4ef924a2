"""What an Engine alone does wrong, or what comes of it there alone: replay, lost turns, answers."""

from __future__ import annotations

import pytest

from adapters.model import events as ev
from proxy.scripted.engine_turns import EngineVariant
from proxy.scripted.faults import (
    Cut,
    Fault,
    Faults,
    HalfClose,
    HalfFrame,
    LoseTurn,
    Redirect,
    Reset,
    Silence,
    SlowHead,
    Stall,
    Status,
    WrongContentType,
)
from tests.faults.backends import Kind
from tests.faults.conversation import (
    SAID,
    SCRIPT,
    Conversation,
    check_replayed,
    failure,
    rested,
)
from tests.faults.playing import Run, begin, bodies, check_survives, fails_next, play
from tests.support.dragoman import BACKEND_KEY
from tests.support.eve_client import Form
from tests.support.resumed import masked

ENGINE = Kind("engine")
APPROVE = "script: approve"

pytestmark = pytest.mark.usefixtures("impatient")


async def undisturbed(run: Run, variant: EngineVariant | None = None) -> list[str]:
    """What a client reads of `SCRIPT` without faults."""
    _, session, _ = await play(run, ENGINE, variant=variant or EngineVariant())
    return masked(session.log)


@pytest.mark.parametrize(
    "variant", [EngineVariant(replay_tails=False), EngineVariant(short_lifecycle=True)]
)
@pytest.mark.parametrize("place", [1, 6, 15])
async def test_a_cut_is_healed_however_replay_works(
    run: Run, variant: EngineVariant, place: int
) -> None:
    plan = {("execute", 1): Cut(after_event=place)}
    conversation = await play(run, ENGINE, plan, variant=variant)
    assert conversation.turn.text == SAID
    assert masked(conversation.session.log) == await undisturbed(run, variant)
    await check_survives(ENGINE, conversation)


REPEATED: list[Fault] = [
    Cut(after_event=0),
    Cut(after_event=3),
    Cut(at_byte=150),
    Cut(after_event=2, clean=True),
    Reset(after_event=3),
    Reset(at_byte=150),
    HalfClose(after_event=3),
    HalfFrame(2),
    Stall(2),
    Silence(done=False),
    SlowHead(0.05),
    WrongContentType(),
    WrongContentType("application/json"),
    Redirect(),
    *(Status(status) for status in (401, 403, 404, 409, 410, 422, 425, 429)),
    *(Status(status) for status in (500, 502, 503, 504)),
]


@pytest.mark.parametrize("fault", REPEATED, ids=repr)
async def test_a_replay_that_breaks_is_tried_again(run: Run, fault: Fault) -> None:
    plan = {("execute", 1): Cut(after_event=4), ("replay", 1): fault, ("replay", 2): fault}
    conversation = await play(run, ENGINE, plan)
    assert conversation.turn.text == SAID
    assert masked(conversation.session.log) == await undisturbed(run)
    await check_survives(ENGINE, conversation)


@pytest.mark.parametrize("form", ["all", "newest"])
async def test_the_delivery_of_a_refused_message_has_its_boundary(run: Run, form: Form) -> None:
    house, session, _ = await play(run, ENGINE, script="hello", form=form)
    fails_next(house, "execute", Status(503))
    accepted = await session.send("hello again")
    turn = await session.read_turn(accepted)
    assert failure(turn)["code"] == "MIGRATION_REQUIRED"


@pytest.mark.parametrize("fault", [LoseTurn(0), LoseTurn(1), LoseTurn(8)], ids=repr)
async def test_a_turn_that_the_engine_lost_fails_and_says_so(run: Run, fault: Fault) -> None:
    conversation = await play(run, ENGINE, {("execute", 1): fault})
    turn = conversation.turn
    assert failure(turn)["code"] == "backend_session_lost"
    assert turn.data("message.received")[0]["message"] == SCRIPT
    # Half a text is never an answer.
    assert SAID not in [data["message"] for data in turn.data("message.completed")]
    await check_survives(ENGINE, conversation)


async def test_an_engine_that_restarts_in_a_turn_loses_the_turn_and_not_the_session(
    run: Run,
) -> None:
    house = await begin(run, ENGINE, pace=0.1)
    session = await house.eve().create("script: slow 100")
    async for record in session.stream():
        if record["type"] == "message.appended":
            break
    await house.stop_backend("engine")
    await house.start_backend("engine")
    turn = await session.read_turn()
    assert failure(turn)["code"] == "backend_session_lost"
    await check_survives(ENGINE, Conversation(house, session, turn), [])


# Answers


@pytest.mark.parametrize(
    "fault",
    [
        Silence(done=True),
        SlowHead(0.05),
        WrongContentType(),
        WrongContentType("text/event-stream"),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "pending", [None, Status(500), Silence(done=False), WrongContentType()], ids=repr
)
async def test_an_answer_that_arrived_counts_though_nobody_said_so(
    run: Run, fault: Fault, pending: Fault | None
) -> None:
    plan = {("respond", 1): fault}
    if pending is not None:
        plan["pending", 1] = pending
    house, session, turn = await play(run, ENGINE, plan, APPROVE)
    await session.respond(turn.requests[0]["requestId"], "approve")
    turn = await session.read_turn()
    assert "4.1 GB freed" in (turn.text or "")
    assert [body["answer"] for body in bodies(house) if "answer" in body] == ["yes"]
    await check_survives(ENGINE, Conversation(house, session, turn), [APPROVE])


# The frames of `approve` up to its request are nine; the body is cut right behind them.
@pytest.mark.parametrize("place", [8, 9, 10])
async def test_the_stream_that_breaks_in_a_pause_brings_the_answer_s_effect_all_the_same(
    run: Run, place: int
) -> None:
    plan = {("execute", 1): Cut(after_event=place)}
    house, session, turn = await play(run, ENGINE, plan, APPROVE)
    await session.respond(turn.requests[0]["requestId"], "approve")
    turn = await session.read_turn()
    assert "4.1 GB freed" in (turn.text or "")
    await check_survives(ENGINE, Conversation(house, session, turn), [APPROVE])


async def test_an_answer_given_elsewhere_goes_on_here(run: Run) -> None:
    house, session, turn = await play(run, ENGINE, script=APPROVE)
    request = turn.requests[0]["requestId"]
    async with house.http.post(
        f"{house.backend_url('engine')}/hitl/respond",
        json={"task_id": bodies(house)[0]["task_id"], "answer": "no"},
        headers={"X-Engine-Key": BACKEND_KEY},
    ) as response:
        assert response.status == 200
    turn = await session.read_turn()
    assert "I left /srv/exports/2024 alone" in (turn.text or "")
    events = await house.log(session.session_id)
    resolved = [event for event in events if isinstance(event, ev.InteractionResolved)]
    assert [(event.request_id, event.outcome) for event in resolved] == [(request, "unknown")]


@pytest.mark.parametrize("seed", range(12))
async def test_a_backend_that_breaks_at_random_loses_no_word(run: Run, seed: int) -> None:
    house = await begin(run, ENGINE, faults=Faults.seeded(seed, rate=0.4))
    session = await house.eve().create(SCRIPT)
    turn = await session.read_turn()
    assert turn.text == SAID or turn.data("turn.failed")
    for _ in range(6):
        await rested(house, session)
        accepted = await session.send("hello")
        turn = await session.read_turn(accepted)
        assert (turn.text is not None and "“hello”" in turn.text) or turn.data("turn.failed")
    await check_replayed(session)
