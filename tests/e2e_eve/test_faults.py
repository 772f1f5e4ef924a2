"""Every way in which an eve can misbehave, and what an eve client sees of it.

Either nothing (the records are those of an undisturbed run), or a turn that failed with a code. In
all cases the session survives: the next message is answered, and nothing is said twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pytest

from adapters import events as ev
from proxy.scripted.eve_turns import Generation
from proxy.scripted.faults import (
    Altered,
    Cut,
    Duplicate,
    Fault,
    Faults,
    Garbage,
    HalfClose,
    HalfFrame,
    Redirect,
    Reset,
    Silence,
    SlowHead,
    SplitCharacters,
    Stall,
    Status,
    WrongContentType,
)
from tests.e2e_eve.conftest import GENERATIONS, House, Serve
from tests.support import disturbed
from tests.support.disturbed import LETTERS, SAID, SCRIPT, STATUSES, failure, rested, told
from tests.support.eve_client import EveSession, TurnResult
from tests.support.patience import HASTE

# A speed: the patience of ten minutes with streams that do not open, in less than a second.
HURRY = 2000.0

BROKEN = b'{"type":"message.appended","data":{"text":"\xff\n'

pytestmark = [
    pytest.mark.parametrize("generation", GENERATIONS),
    pytest.mark.usefixtures("impatient"),
]


async def play(
    serve: Serve,
    generation: str,
    faults: Mapping[tuple[str, int], Fault],
    speed: float = HASTE,
    script: str = SCRIPT,
    journal: str = "memory:",
) -> tuple[House, EveSession, TurnResult]:
    house = await serve(journal, speed=speed, faults=Faults(faults))
    session = await house.eve(generation).create(script)
    return house, session, await session.read_turn()


def said(house: House, generation: str, text: str) -> int:
    """How often a text was sent to the eve, whatever it made of it."""
    return sum(text.encode() in received.body for received in house.eves[generation].received)


# What each generation says without faults: played once, as it is compared with often.
_UNDISTURBED: dict[str, list[tuple[str, ...]]] = {}


async def undisturbed(serve: Serve, generation: str) -> list[tuple[str, ...]]:
    """What a session without faults has in its log."""
    if generation not in _UNDISTURBED:
        house, session, _ = await play(serve, generation, {})
        _UNDISTURBED[generation] = await told(house, session)
    return _UNDISTURBED[generation]


async def check_survives(house: House, generation: str, session: EveSession) -> None:
    """The next message is answered, said to the eve once, and replay shows the same."""
    await disturbed.check_survives(house, session)
    assert said(house, generation, "hello") == 1


RECOVERED: list[Fault] = [
    *(Cut(after_event=place) for place in (0, 7)),
    *(Cut(after_event=place, clean=True) for place in (1, 11)),
    *(Cut(at_byte=place) for place in (1, 1500)),
    *(Reset(after_event=place) for place in (0, 7)),
    Reset(at_byte=1500),
    *(HalfClose(after_event=place) for place in (1, 11)),
    HalfClose(at_byte=1500),
    *(HalfFrame(place) for place in (0, 5)),
    *(Duplicate(place) for place in (0, 4, 12, 17)),
    *(Garbage(place, BROKEN) for place in (0, 12)),
    Garbage(5, b"[1,2]\n"),
    Garbage(5, b"\x00\xff\r\n\n"),
    Garbage(3, b'{"type":"from.the.future","data":{"a":1}}\n'),
    *(Stall(place) for place in (0, 6)),
    Stall(5, 0.02),
    SlowHead(0.05),
    Silence(done=True),
    Silence(done=False),
    WrongContentType(),
    Redirect(),
    # Section 7.5: 404, 409, 425 and 5xx pass, and so may what is no answer of an eve.
    *(Status(status) for status in (404, 409, 425, 429, 500, 503)),
]


@pytest.mark.parametrize("fault", RECOVERED, ids=repr)
async def test_what_a_stream_brings_back_is_never_missed(
    serve: Serve, generation: str, fault: Fault
) -> None:
    house, session, turn = await play(serve, generation, {("stream", 1): fault})
    assert turn.text is not None
    assert SAID in turn.text
    assert await told(house, session) == await undisturbed(serve, generation)
    await check_survives(house, generation, session)
    assert said(house, generation, SCRIPT) == 1


async def test_a_character_may_begin_in_one_write_and_end_in_another(
    serve: Serve, generation: str
) -> None:
    faults = {("stream", 1): SplitCharacters()}
    house, session, turn = await play(serve, generation, faults, script=LETTERS)
    assert f"“{LETTERS}”" in (turn.text or "")
    assert turn.data("message.received")[0]["message"] == LETTERS
    assert house.eves[generation].faults.requests["stream"] == 1
    await check_survives(house, generation, session)


# How many records each generation's turn of `SCRIPT` has.
RECORDS = {"T": 20, "S1": 23, "S2": 23}


@pytest.mark.parametrize("place", [0, 5])
async def test_a_record_that_comes_twice_is_one_place_in_the_log(
    serve: Serve, generation: str, place: int
) -> None:
    faults = {("stream", 1): Duplicate(place)}
    house, session, _ = await play(serve, generation, faults, journal="sqlite")
    await rested(house, session)
    await house.restart()
    await check_survives(house, generation, session)
    received = house.eves[generation].received
    asked = [int(r.query["startIndex"]) for r in received if r.route == "stream"]
    assert asked == [0, RECORDS[generation]]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_stream_that_is_over_while_nothing_runs_is_opened_again_for_the_next_message(
    serve: Serve, generation: str, clean: bool
) -> None:
    fault = Cut(after_event=RECORDS[generation], clean=clean)
    house, session, turn = await play(serve, generation, {("stream", 1): fault})
    assert SAID in (turn.text or "")
    eve = house.eves[generation]
    assert eve.faults.requests["stream"] == 1
    await check_survives(house, generation, session)
    assert eve.faults.requests["stream"] == 2


async def test_a_frame_that_is_none_is_reported_with_its_bytes(
    serve: Serve, generation: str
) -> None:
    house, session, _ = await play(serve, generation, {("stream", 1): Garbage(4, BROKEN)})
    reported = [
        event
        for event in await house.log(session.session_id)
        if isinstance(event, ev.ErrorReported)
    ]
    assert [event.code for event in reported] == ["backend_protocol"]


@pytest.mark.parametrize("place", range(11, 19))
async def test_a_stream_that_differs_when_it_comes_back_doubles_nothing(
    serve: Serve, generation: str, place: int
) -> None:
    """No record is read twice, so nothing can be seen to differ but a whole text from its pieces:
    the whole one counts."""
    plan: dict[tuple[str, int], Fault] = {
        ("stream", 1): Cut(after_event=place),
        ("stream", 2): Altered(b"rounding", b"guessing"),
    }
    house = await serve(speed=HASTE, faults=Faults(plan))
    session = await house.eve(generation).create(SCRIPT)
    texts = await disturbed.check_said_once(house, session)
    assert texts[0] == "Checking the rounding helper."
    assert texts[1].replace("guessing", "rounding").startswith("`to_cents` truncates instead of r")
    assert SAID in texts[1]
    assert place > 13 or "guessing" in texts[1]


@pytest.mark.parametrize("status", [400, 401, 403, 410])
async def test_a_stream_that_is_refused_for_good_ends_the_turn(
    serve: Serve, generation: str, status: int
) -> None:
    house, session, turn = await play(serve, generation, {("stream", 1): Status(status)})
    assert failure(turn)["code"] == "backend_session_lost"
    assert turn.data("message.received")[0]["message"] == SCRIPT
    await rested(house, session)
    gaps = [e for e in await house.log(session.session_id) if isinstance(e, ev.Gap)]
    assert len(gaps) == (1 if status == 410 else 0)
    assert said(house, generation, SCRIPT) == 1


@pytest.mark.parametrize("begun", [0, 5])
async def test_a_stream_that_stays_away_fails_the_turn_when_the_patience_is_over(
    serve: Serve, generation: str, begun: int
) -> None:
    plan: dict[tuple[str, int], Fault] = {("stream", n): Status(503) for n in range(2, 400)}
    plan["stream", 1] = Cut(after_event=begun)
    house, session, turn = await play(serve, generation, plan, HURRY)
    assert failure(turn)["code"] == "backend_session_lost"
    assert turn.data("message.received")[0]["message"] == SCRIPT
    assert SAID not in str(turn.data("message.completed"))
    assert said(house, generation, SCRIPT) == 1
    assert session.log == turn.records


REFUSED: list[tuple[Fault, str]] = [
    *((Status(status), f"http_{status}") for status in (401, 404, 409, 410, 425, 429)),
    (Status(500, body=b"\xff\x00<html>"), "http_500"),
    (Status(503), "http_503"),
    (Redirect(), "http_302"),
]


@pytest.mark.parametrize("done", [True, False])
async def test_a_session_that_was_perhaps_made_is_made_again_before_its_message(
    serve: Serve, generation: str, done: bool
) -> None:
    house, session, turn = await play(serve, generation, {("create", 1): Silence(done=done)})
    assert SAID in (turn.text or "")
    await check_survives(house, generation, session)
    assert said(house, generation, SCRIPT) == 1


@pytest.mark.parametrize(("fault", "code"), REFUSED, ids=repr)
async def test_a_create_that_is_refused_is_a_failed_turn_with_its_code(
    serve: Serve, generation: str, fault: Fault, code: str
) -> None:
    house, session, turn = await play(serve, generation, {("create", 1): fault})
    assert failure(turn)["code"] == code
    # Nothing is tried again behind the user's back, and no redirect is followed.
    assert [received.route for received in house.eves[generation].received] == ["create"]
    await check_survives(house, generation, session)
    assert said(house, generation, SCRIPT) <= 1


UNCERTAIN = "no_evidence"

FOLLOWED: list[tuple[Fault, str | None]] = [
    *((Status(status), f"http_{status}") for status in (401, 404, 409, 410, 425, 429)),
    (Redirect(), "http_302"),
    # Whether a server took what it failed on only its stream can tell.
    *((Status(status), UNCERTAIN) for status in (500, 502, 503, 504)),
    (Silence(done=False), UNCERTAIN),
    (Silence(done=True), None),
    (SlowHead(0.05), None),
    (WrongContentType(), None),
]


@pytest.mark.parametrize(("fault", "code"), FOLLOWED, ids=repr)
async def test_a_follow_up_is_sent_once_whatever_becomes_of_it(
    serve: Serve, generation: str, fault: Fault, code: str | None
) -> None:
    house = await serve(speed=HASTE)
    session = await house.eve(generation).create("good morning")
    await session.read_turn()
    await rested(house, session)
    faults = house.eves[generation].faults
    faults.plan["message", faults.requests["message"] + 1] = fault
    accepted = await session.send(SCRIPT)
    turn = await session.read_turn(accepted)
    while "message.received" not in turn.types:
        turn = await session.read_turn(accepted)
    if code is None:
        assert turn.text is not None
        assert SAID in turn.text
    else:
        assert failure(turn)["code"] == code
    await check_survives(house, generation, session)
    assert said(house, generation, SCRIPT) == 1


@pytest.mark.parametrize("later", GENERATIONS)
async def test_a_backend_that_comes_back_as_another_one_goes_on_with_its_sessions(
    serve: Serve, generation: Generation, later: Generation
) -> None:
    house, session, _ = await play(serve, generation, {})
    await rested(house, session)
    await house.replace(generation, later, keep=True)
    if later == "T" != generation:
        # It wants a token for the session, and a newer one has never told any.
        accepted = await session.send("hello")
        assert failure(await session.read_turn(accepted))["code"] == "http_400"
        await rested(house, session)
        fresh = await house.eve(generation).create("hello")
        assert "“hello”" in ((await fresh.read_turn()).text or "")
        return
    await disturbed.check_survives(house, session)
    await rested(house, session)
    accepted = await session.send("and again")
    assert "“and again”" in ((await session.read_turn(accepted)).text or "")
    (talk,) = house.eves[generation].talks.values()
    assert talk.turns == 3


@pytest.mark.parametrize(
    "fault",
    [*(Status(status) for status in STATUSES), Redirect(), Silence(done=False)],
    ids=repr,
)
async def test_an_answer_that_did_not_arrive_can_be_given_again(
    serve: Serve, generation: str, fault: Fault
) -> None:
    house, session, turn = await play(serve, generation, {}, script="script: approve")
    faults = house.eves[generation].faults
    faults.plan["message", faults.requests["message"] + 1] = fault
    await disturbed.check_answered_again(session, turn)
    await check_survives(house, generation, session)


# A T that has forgotten a session shows it as an empty stream (section 7.2), and says its tail.
@pytest.mark.parametrize("later", ["same", "S1", "S2"])
async def test_a_backend_that_comes_back_as_another_one_loses_the_turn_and_serves_new_sessions(
    serve: Serve, generation: Generation, later: Generation | Literal["same"]
) -> None:
    house = await serve(speed=HURRY, pace=0.2)
    session = await house.eve(generation).create("script: slow 400")
    async for record in session.stream():
        if record["type"] == "message.appended":
            break
    # It has forgotten everything: another version, on the same address.
    await house.replace(generation, generation if later == "same" else later)
    turn = await session.read_turn()
    assert failure(turn)["code"] == "backend_session_lost"
    await rested(house, session)
    accepted = await session.send("still there?")
    again = await session.read_turn(accepted)
    assert again.text is None
    assert {"turn.failed", "session.failed"} & set(again.types)
    fresh = await house.eve(generation).create("hello")
    answered = await fresh.read_turn()
    assert answered.text is not None
    assert "You said: “hello”." in answered.text
