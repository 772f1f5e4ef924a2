"""Every way in which a Herm can misbehave, and what an eve client sees of it.

Either nothing (the events are those of an undisturbed run), or a turn that failed with a code. In
all cases the session survives: the next message is answered, and nothing is said twice.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from adapters import events as ev
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
    Reorder,
    Reset,
    Silence,
    SlowHead,
    SplitCharacters,
    Stall,
    Status,
    WrongContentType,
)
from tests.e2e_herm.conftest import House, Serve
from tests.support.disturbed import (
    LETTERS,
    SAID,
    SCRIPT,
    STATUSES,
    check_answered_again,
    check_said_once,
    check_survives,
    failure,
    told,
)
from tests.support.eve_client import EveSession, TurnResult
from tests.support.patience import HASTE, shorten

BROKEN = b'event: x\ndata: {"type":"\xff\xfe\n\n'

pytestmark = pytest.mark.usefixtures("impatient")


async def play(
    serve: Serve, faults: Mapping[tuple[str, int], Fault], script: str = SCRIPT
) -> tuple[House, EveSession, TurnResult]:
    house = await serve(herm={"faults": Faults(faults)}, speed=HASTE)
    session = await house.eve().create(script)
    return house, session, await session.read_turn()


# Those that a stream missed come no more, the whole blocks do (page, section 4.4).
DELTAS = ("text.delta", "reasoning.delta")

# Not before the first event: without a position a new stream begins live, and half a text whose
# begin is missed is a repair that the strict client refuses.
RECOVERED: list[Fault] = [
    *(Cut(after_event=place) for place in (2, 7, 12)),
    *(Cut(after_event=place, clean=True) for place in (1, 6, 11)),
    *(Cut(at_byte=place) for place in (900, 1500)),
    *(Reset(after_event=place) for place in (2, 7, 12)),
    Reset(at_byte=1500),
    *(HalfClose(after_event=place) for place in (1, 6, 11)),
    HalfClose(at_byte=1500),
    *(HalfFrame(place) for place in (5, 11)),
    *(Duplicate(place) for place in (0, 3, 8)),
    *(Reorder(place) for place in range(8)),
    *(Garbage(place, BROKEN) for place in (0, 4, 12)),
    Garbage(5, b"data: [1,2]\n\n"),
    Garbage(5, b"\x00\xff\r\n\n"),
    Garbage(3, b'data: {"type":"from.the.future","a":1}\n\n'),
    Stall(6),
    Stall(5, 0.02),
    SlowHead(0.05),
    Silence(done=True),
    Silence(done=False),
    WrongContentType(),
    Redirect(),
    *(Status(status) for status in STATUSES),
]


@pytest.mark.parametrize("fault", RECOVERED, ids=repr)
async def test_what_a_stream_and_the_list_bring_back_is_never_missed(
    serve: Serve, fault: Fault
) -> None:
    house, session, turn = await play(serve, {("stream", 1): fault})
    assert turn.text is not None
    assert SAID in turn.text
    before, same, _ = await play(serve, {})
    assert await told(house, session, *DELTAS) == await told(before, same, *DELTAS)
    await check_survives(house, session)
    assert len(house.posts("create")) == 1
    assert len(house.posts()) == 2


@pytest.mark.parametrize("place", [0, *range(2, 13)])
async def test_a_list_that_differs_from_the_stream_doubles_nothing(
    serve: Serve, place: int
) -> None:
    """An envelope counts as it came first, from the list or from the stream, and comes once."""
    faults: dict[tuple[str, int], Fault] = {
        ("stream", number): Altered(b"rounding", b"guessing") for number in (1, 2, 3)
    }
    if place:
        faults["stream", 1] = Cut(after_event=place)
    house = await serve(herm={"faults": Faults(faults)}, speed=HASTE)
    session = await house.eve().create(SCRIPT)
    texts = await check_said_once(house, session)
    said = [text.replace("guessing", "rounding") for text in texts]
    assert said[0] == "Checking the rounding helper."
    assert said[1].startswith("`to_cents` truncates instead of rounding, so 19.99")
    if not place:
        assert texts != said


async def test_a_character_may_begin_in_one_write_and_end_in_another(serve: Serve) -> None:
    house, session, turn = await play(serve, {("stream", 1): SplitCharacters()}, LETTERS)
    assert f"“{LETTERS}”" in (turn.text or "")
    assert turn.data("message.received")[0]["message"] == LETTERS
    assert house.herm.faults.requests["stream"] == 1
    await check_survives(house, session)


async def test_a_turn_that_the_herm_has_forgotten_fails_with_what_was_said(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch, "silence_seconds")
    house = await serve(herm={"pace": 0.2})
    session = await house.eve().create("script: slow 400")
    async for record in session.stream():
        if record["type"] == "message.appended":
            break
    # A restart, with the sessions and without what ran in them.
    (talk,) = house.herm.talks.values()
    assert talk.runner is not None
    talk.runner.cancel()
    turn = await session.read_turn()
    assert failure(turn)["code"] == "turn_end_missing"
    said = [e for e in await house.log(session.session_id) if isinstance(e, ev.TextCompleted)]
    assert [(text.status, text.text[:4]) for text in said] == [("partial", "tick")]
    await check_survives(house, session)


async def test_a_frame_that_is_none_is_reported_with_its_bytes(serve: Serve) -> None:
    house, session, _ = await play(serve, {("stream", 1): Garbage(4, BROKEN)})
    events = await house.log(session.session_id)
    reported = [event for event in events if isinstance(event, ev.ErrorReported)]
    assert [event.code for event in reported] == ["backend_protocol"]


CREATED: list[tuple[Fault, str]] = [
    (Status(401), "unauthorized"),
    (Status(403), "forbidden"),
    (Status(404), "not_found"),
    (Status(409), "deployment_not_ready"),
    (Status(410), "server_error"),
    (Status(425), "server_error"),
    (Status(429), "rate_limited"),
    (Status(503), "server_error"),
    (Status(500, body=b"\xff\x00<html>"), "http_500"),
    (Redirect(), "http_302"),
]


@pytest.mark.parametrize(("fault", "code"), CREATED, ids=repr)
async def test_a_create_that_is_refused_is_a_failed_turn_with_its_code(
    serve: Serve, fault: Fault, code: str
) -> None:
    house, session, turn = await play(serve, {("create", 1): fault})
    assert failure(turn)["code"] == code
    # Nothing is tried again behind the user's back, and no redirect is followed.
    assert [received.route for received in house.herm.received] == ["create"]
    await check_survives(house, session)
    assert len(house.posts()) == 1


POSTED: list[tuple[Fault, str | None]] = [
    (Status(401), "unauthorized"),
    (Status(403), "forbidden"),
    (Status(404), "not_found"),
    (Status(410), "server_error"),
    (Status(425), "server_error"),
    # Whether a server took what it failed on only its list can tell.
    *((Status(status), "not_arrived") for status in (500, 502, 503, 504)),
    (Redirect(), "http_302"),
    (Silence(done=True), None),
    (SlowHead(0.05), None),
    (WrongContentType(), None),
]


@pytest.mark.parametrize(("fault", "code"), POSTED, ids=repr)
async def test_a_message_is_sent_once_whatever_becomes_of_it(
    serve: Serve, fault: Fault, code: str | None
) -> None:
    house, session, turn = await play(serve, {("post", 1): fault})
    if code is None:
        assert turn.text is not None
        assert SAID in turn.text
    else:
        assert failure(turn)["code"] == code
    await check_survives(house, session)
    assert sum(SCRIPT.encode() in body for body in house.posts()) == 1


@pytest.mark.parametrize("status", [409, 429])
async def test_a_message_that_is_refused_for_now_is_said_again(serve: Serve, status: int) -> None:
    house, session, turn = await play(serve, {("post", 1): Status(status)})
    assert SAID in (turn.text or "")
    await check_survives(house, session)
    assert sum(SCRIPT.encode() in body for body in house.posts()) == 2


@pytest.mark.parametrize(
    "fault",
    [*(Status(status) for status in STATUSES), Redirect(), Silence(done=False)],
    ids=repr,
)
async def test_an_answer_that_did_not_arrive_can_be_given_again(serve: Serve, fault: Fault) -> None:
    house, session, turn = await play(serve, {("post", 2): fault}, "script: approve")
    await check_answered_again(session, turn)
    await check_survives(house, session)
