"""Every way in which an Engine can misbehave, and what an eve client sees of it.

Either nothing (the records are those of an undisturbed run), or a turn that failed with a code. In
all cases the session survives: the next message is answered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from adapters import events as ev
from proxy.scripted.engine import Variant
from proxy.scripted.faults import (
    Altered,
    Cut,
    Fault,
    Faults,
    Garbage,
    HalfClose,
    HalfFrame,
    LoseTurn,
    Redirect,
    Reset,
    Silence,
    SlowHead,
    SplitCharacters,
    Stall,
    Status,
    WrongContentType,
)
from tests.e2e.conftest import Run
from tests.support.disturbed import LETTERS, SCRIPT, check_survives, failure
from tests.support.disturbed import SAID as ENDING
from tests.support.dragoman import BACKEND_KEY
from tests.support.eve_client import EveSession, Form, TurnResult
from tests.support.patience import HASTE
from tests.support.resumed import masked
from tests.support.running import BACKEND, Running
from tests.support.waiting import settled

# The script `tool` has 20 frames, and each kind of frame that is no request.
SAID = f"`to_cents` truncates instead of rounding, {ENDING} (turn 1)"
PLACES = (0, 1, 2, 5, 9, 12, 17)

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def run(run: Run) -> Run:
    """Start a Dragoman whose clock lets two silences fit into the patience of a minute."""
    return functools.partial(run, speed=HASTE)


@pytest.fixture
async def undisturbed(run: Run) -> Callable[..., Any]:
    """Play a script without faults; gives its masked records."""

    async def play(script: str = SCRIPT, **engine: Any) -> list[str]:
        running = await run(engine=engine)
        session = await running.eve().create(script)
        await session.read_turn()
        return masked(session.log)

    return play


async def play(
    run: Run, faults: dict[tuple[str, int], Fault], script: str = SCRIPT, **options: Any
) -> tuple[Running, EveSession, TurnResult]:
    engine = {"faults": Faults(faults), **options.pop("engine", {})}
    running = await run(engine=engine, **options)
    session = await running.eve().create(script)
    return running, session, await session.read_turn()


RECOVERED: list[Fault] = [
    *(Cut(after_event=place) for place in PLACES),
    *(Cut(after_event=place, clean=True) for place in PLACES),
    *(Cut(at_byte=place) for place in (1, 60, 333, 700, 1100, 1500)),
    *(Reset(after_event=place) for place in (0, 2, 9, 17)),
    *(Reset(at_byte=place) for place in (1, 700)),
    *(HalfClose(after_event=place) for place in (0, 2, 9, 17)),
    *(HalfClose(at_byte=place) for place in (1, 700)),
    *(HalfFrame(place) for place in PLACES),
    *(Garbage(place) for place in (0, 3, 12)),
    Garbage(4, b"event: text_delta\ndata: [1, 2]\n\n"),
    Garbage(4, b"event: text_delta\ndata: {}\n\n"),
    Garbage(4, b"\x00\xff\xfe\r\r\n\n: \xff\n\ndata\n\n"),
    Garbage(4, b'event: from_the_future\ndata: {"a":1}\n\n'),
    *(Stall(place) for place in (0, 2, 12)),
    Stall(5, 0.02),
    SlowHead(0.05),
    Silence(done=True),
]


@pytest.mark.parametrize("fault", RECOVERED, ids=repr)
async def test_what_replay_brings_back_is_never_missed(
    run: Run, undisturbed: Callable[..., Any], fault: Fault
) -> None:
    running, session, turn = await play(run, {("execute", 1): fault})
    assert turn.text == SAID
    found = masked(session.log)
    if isinstance(fault, Garbage) and b"from_the_future" not in fault.data:
        # A broken frame may stand where a block began, and is no part of the conversation.
        found = [line for line in found if "dragoman.gap" not in line]
    assert found == await undisturbed()
    assert len(running.requests("execute")) == 1
    await check_survives(running, session)
    assert len(running.requests("execute")) == 2


@pytest.mark.parametrize("route", ["execute", "replay"])
async def test_a_character_may_begin_in_one_write_and_end_in_another(run: Run, route: str) -> None:
    faults: dict[tuple[str, int], Fault] = {(route, 1): SplitCharacters()}
    if route == "replay":
        faults["execute", 1] = Cut(after_event=2)
    _, _, turn = await play(run, faults, LETTERS)
    assert turn.text is not None
    assert f"“{LETTERS}”" in turn.text
    assert turn.data("message.received")[0]["message"] == LETTERS
    assert not turn.data("dragoman.gap")


@pytest.mark.parametrize("variant", [Variant(replay_tails=False), Variant(short_lifecycle=True)])
@pytest.mark.parametrize("place", [1, 6, 15])
async def test_a_cut_is_healed_however_replay_works(
    run: Run, undisturbed: Callable[..., Any], variant: Variant, place: int
) -> None:
    running, session, turn = await play(
        run, {("execute", 1): Cut(after_event=place)}, engine={"variant": variant}
    )
    assert turn.text == SAID
    assert masked(session.log) == await undisturbed(variant=variant)
    await check_survives(running, session)


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
async def test_a_replay_that_breaks_is_tried_again(
    run: Run, undisturbed: Callable[..., Any], fault: Fault
) -> None:
    faults = {("execute", 1): Cut(after_event=4), ("replay", 1): fault, ("replay", 2): fault}
    running, session, turn = await play(run, faults)
    assert turn.text == SAID
    assert masked(session.log) == await undisturbed()
    await check_survives(running, session)


@pytest.mark.parametrize("place", [14, 15, 16, 17, 18])
async def test_a_replay_that_differs_is_a_gap_and_doubles_nothing(run: Run, place: int) -> None:
    faults: dict[tuple[str, int], Fault] = {("execute", 1): Cut(after_event=place)}
    faults |= {("replay", number): Altered(b"rounding", b"guessing") for number in (1, 2, 3)}
    running, session, turn = await play(run, faults)
    (gap,) = turn.data("dragoman.gap")
    assert "differs" in gap["reason"]
    said = [data["message"] for data in turn.data("message.completed")]
    # What was shown stays, what came first by the replay is the replay's.
    assert said[0] == "Checking the rounding helper."
    assert said[1:] == [SAID if place > 14 else SAID.replace("rounding", "guessing")]
    assert len(turn.data("action.result")) == 1
    await check_survives(running, session)


REFUSED: list[tuple[Fault, str]] = [
    (Status(401), "INVALID_KEY"),
    (Status(403), "PERMISSION_DENIED"),
    (Status(404), "TASK_NOT_FOUND"),
    (Status(409), "HITL_REQUIRED"),
    (Status(410), "http_410"),
    (Status(422), "CONTEXT_OVERFLOW"),
    (Status(425), "http_425"),
    (Status(429, retry_after=8), "LLM_RATE_LIMITED"),
    (Status(502), "LLM_PROVIDER_ERROR"),
    (Status(503), "MIGRATION_REQUIRED"),
    (Status(400, body=b'{"error": {"deep": true}}'), "http_400"),
    (Redirect(), "http_302"),
    (Redirect(status=307), "http_307"),
]


@pytest.mark.parametrize(("fault", "code"), REFUSED, ids=repr)
async def test_a_refusal_is_a_failed_turn_with_its_code(run: Run, fault: Fault, code: str) -> None:
    running, session, turn = await play(run, {("execute", 1): fault})
    assert failure(turn)["code"] == code
    assert turn.data("message.received")[0]["message"] == SCRIPT
    # Nothing is tried again behind the user's back, and no redirect is followed.
    assert [received.route for received in running.engine.received] == ["execute"]
    await check_survives(running, session)


@pytest.mark.parametrize("form", ["all", "newest"])
async def test_the_delivery_of_a_refused_message_has_its_boundary(run: Run, form: Form) -> None:
    running = await run(
        engine={"faults": Faults({("execute", 2): Status(503)})}, settings={"eve": {"form": form}}
    )
    session = await running.eve(form).create("hello")
    await session.read_turn()
    accepted = await session.send("hello again")
    turn = await session.read_turn(accepted)
    assert failure(turn)["code"] == "MIGRATION_REQUIRED"


@pytest.mark.parametrize("fault", [Status(500), Status(504), Status(500, body=b"\xff\x00<html>")])
async def test_a_refusal_that_the_engine_did_not_write_leaves_open_whether_it_runs(
    run: Run, fault: Status
) -> None:
    # A gateway in between may have given up on a turn that runs: only replay can tell.
    running, session, turn = await play(run, {("execute", 1): fault})
    failed = failure(turn)
    assert failed["code"] == "backend_session_lost"
    assert str(fault.status) in failed["message"]
    assert len(running.requests("execute")) == 1
    await check_survives(running, session)


async def test_an_answer_that_is_no_stream_still_shows_its_turn(run: Run) -> None:
    running, session, turn = await play(run, {("execute", 1): WrongContentType()})
    assert turn.text == SAID
    await check_survives(running, session)


@pytest.mark.parametrize("fault", [LoseTurn(0), LoseTurn(1), LoseTurn(8), Silence(done=False)])
async def test_a_turn_that_the_engine_lost_fails_and_says_so(run: Run, fault: Fault) -> None:
    running, session, turn = await play(run, {("execute", 1): fault})
    assert failure(turn)["code"] == "backend_session_lost"
    assert turn.data("message.received")[0]["message"] == SCRIPT
    # Half a text is never an answer.
    assert SAID not in [data["message"] for data in turn.data("message.completed")]
    assert len(running.requests("execute")) == 1
    await check_survives(running, session)


async def test_an_engine_that_is_down_refuses_and_is_used_again_when_it_is_up(run: Run) -> None:
    running = await run()
    await running.stop_backend(BACKEND)
    session = await running.eve().create("hello")
    assert failure(await session.read_turn())["code"] == "backend_unavailable"
    await running.start_backend(BACKEND)
    await check_survives(running, session)


async def test_an_engine_that_restarts_in_a_turn_loses_the_turn_and_not_the_session(
    run: Run,
) -> None:
    running = await run(engine={"pace": 0.1})
    session = await running.eve().create("script: slow 100")
    async for record in session.stream():
        if record["type"] == "message.appended":
            break
    await running.stop_backend(BACKEND)
    await running.start_backend(BACKEND)
    assert failure(await session.read_turn())["code"] == "backend_session_lost"
    await check_survives(running, session)


async def test_a_wrong_key_for_the_engine_is_said_and_never_shown(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    running = await run("sqlite")
    running.backends[BACKEND].key = "k-wrong-and-secret"
    await running.restart()
    session = await running.eve().create("hello")
    assert failure(await session.read_turn())["code"] == "INVALID_KEY"
    whole = b"".join(await running.lines(session.session_id))
    assert b"k-wrong-and-secret" not in whole
    assert "k-wrong-and-secret" not in caplog.text
    running.backends[BACKEND].key = BACKEND_KEY
    await running.restart()
    session.client.host = running.base
    accepted = await session.send("hello")
    turn = await session.read_turn(accepted)
    assert turn.text is not None


# Answers


RELEASED: list[Fault] = [
    *(Status(status) for status in (401, 403, 404, 409, 410, 422, 425, 429, 500, 502, 503, 504)),
    Redirect(),
    Silence(done=False),
]


@pytest.mark.parametrize("fault", RELEASED, ids=repr)
@pytest.mark.parametrize("form", ["all", "newest"])
async def test_an_answer_that_did_not_arrive_can_be_given_again(
    run: Run, form: Form, fault: Fault
) -> None:
    running = await run(
        engine={"faults": Faults({("respond", 1): fault})}, settings={"eve": {"form": form}}
    )
    session = await running.eve(form).create("script: approve")
    request = (await session.read_turn()).requests[0]
    await session.respond(request["requestId"], "approve")
    # The agent waits again: a boundary tells it (law 6).
    again = await session.read_turn()
    assert again.status == "waiting"
    assert "message.completed" not in again.types
    await session.respond(request["requestId"], "approve")
    turn = await session.read_turn()
    assert turn.text is not None
    assert "4.1 GB freed" in turn.text
    assert [body["answer"] for body in running.requests("respond")] == ["yes", "yes"]
    await settled(await running.live(session.session_id))
    await check_survives_in(form, running, session)


async def check_survives_in(form: Form, running: Running, session: EveSession) -> None:
    accepted = await session.send("hello")
    turn = await session.read_turn(accepted)
    assert turn.text is not None
    assert "(turn 2)" in turn.text


@pytest.mark.parametrize(
    "fault",
    [Silence(done=True), SlowHead(0.05), WrongContentType(), WrongContentType("text/event-stream")],
    ids=repr,
)
@pytest.mark.parametrize(
    "pending", [None, Status(500), Silence(done=False), WrongContentType()], ids=repr
)
async def test_an_answer_that_arrived_counts_though_nobody_said_so(
    run: Run, fault: Fault, pending: Fault | None
) -> None:
    plan: dict[tuple[str, int], Fault] = {("respond", 1): fault}
    if pending is not None:
        plan[("pending", 1)] = pending
    running, session, turn = await play(run, plan, "script: approve")
    await session.respond(turn.requests[0]["requestId"], "approve")
    turn = await session.read_turn()
    assert turn.text is not None
    assert "4.1 GB freed" in turn.text
    assert len(running.requests("respond")) == 1
    await check_survives(running, session)


async def test_the_stream_that_breaks_in_a_pause_brings_the_answer_s_effect_all_the_same(
    run: Run,
) -> None:
    # The frames of `approve` up to its request are nine; the body is cut right behind them.
    for place in (8, 9, 10):
        running, session, turn = await play(
            run, {("execute", 1): Cut(after_event=place)}, "script: approve"
        )
        await session.respond(turn.requests[0]["requestId"], "approve")
        turn = await session.read_turn()
        assert turn.text is not None, place
        assert "4.1 GB freed" in turn.text
        await check_survives(running, session)


async def test_an_answer_given_elsewhere_goes_on_here(run: Run) -> None:
    running, session, turn = await play(run, {}, "script: approve")
    request = turn.requests[0]["requestId"]
    async with running.http.post(
        f"{running.engine_url}/hitl/respond",
        json={"task_id": running.requests("execute")[0]["task_id"], "answer": "no"},
        headers={"X-Engine-Key": BACKEND_KEY},
    ) as response:
        assert response.status == 200
    turn = await session.read_turn()
    assert turn.text is not None
    assert "I left /srv/exports/2024 alone" in turn.text
    events = await running.log(session.session_id)
    resolved = [event for event in events if isinstance(event, ev.InteractionResolved)]
    assert [(event.request_id, event.outcome) for event in resolved] == [(request, "unknown")]


@pytest.mark.parametrize("seed", range(12))
async def test_a_backend_that_breaks_at_random_loses_no_word(run: Run, seed: int) -> None:
    running = await run(engine={"faults": Faults.seeded(seed, rate=0.4)})
    client = running.eve()
    session = await client.create(SCRIPT)
    turn = await session.read_turn()
    assert turn.text == SAID or turn.data("turn.failed")
    for _ in range(6):
        await settled(await running.live(session.session_id))
        accepted = await session.send("hello")
        turn = await session.read_turn(accepted)
        assert (turn.text is not None and "“hello”" in turn.text) or turn.data("turn.failed")
    again = client.attach(session.session_id)
    assert [record async for record in again.stream(0, follow=False)] == session.log
