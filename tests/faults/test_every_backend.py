"""What a backend that misbehaves comes to, whichever dialect it speaks.

The rows are those of the dialects' own modules: see `tests.faults.faulty`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from adapters.contract.dialect import Dialect
from adapters.model import events as ev
from adapters.registry import DIALECTS
from proxy.scripted.faults import Fault, Garbage
from proxy.session import log_writer
from tests.faults import backends as kinds
from tests.faults.backends import BACKENDS, Kind, lacking
from tests.faults.conversation import (
    FIRST,
    LETTERS,
    SAID,
    SCRIPT,
    Conversation,
    failure,
    rested,
)
from tests.faults.faulty import Becomes, Differing, Faulty, Plan
from tests.faults.playing import Run, begin, bodies, check_survives, fails_next, heard, play
from tests.support.dragoman import BACKEND_KEY
from tests.support.eve_client import Form
from tests.wire import given_messages

pytestmark = pytest.mark.usefixtures("impatient")

Row = tuple[str, Any]
"""What a row is called, and its value."""

each = pytest.mark.parametrize("kind", BACKENDS, ids=str)


EACH = 3
"""The first generation of a dialect plays all its rows, a later one every third of them."""


def rows(name: str, of: Callable[[Faulty], Iterable[Row]]) -> pytest.MarkDecorator:
    """Return the mark that plays the rows of every backend; `name` is the test's argument."""
    made = []
    for kind in BACKENDS:
        played = list(of(kind.faulty))
        number = list(kind.faulty.generations).index(kind.generation)
        if number and len(played) > EACH:
            played = played[number % EACH :: EACH]
        made += [pytest.param(kind, value, id=f"{kind}-{row}") for row, value in played]
    return pytest.mark.parametrize(("kind", name), made)


def called(values: Iterable[Any]) -> list[Row]:
    """Rows that are called as Python writes them."""
    return [(repr(value), value) for value in values]


def test_every_backend_says_what_goes_wrong_with_it() -> None:
    assert [lack for name in given_messages() if (lack := lacking(name))] == []


def test_a_backend_that_says_nothing_is_told_what_to_write_and_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(DIALECTS, "new-one", Dialect("new-one"))
    assert lacking("new-one").startswith("write tests/faults/new_one.py: `FAULTS`, a `Faulty` of")
    faulty = BACKENDS[0].faulty
    monkeypatch.setattr(kinds, "found", lambda _: faulty)
    assert lacking("new-one") == "add `new-one` to `KNOWN` in tests/support/dragoman.py"


# What each backend comes to without faults: played once, as it is compared with often.
_UNDISTURBED: dict[Kind, list[object]] = {}


async def undisturbed(run: Run, kind: Kind) -> list[object]:
    """What a conversation without faults is compared by."""
    if kind not in _UNDISTURBED:
        _UNDISTURBED[kind] = list(await kind.faulty.seen(await play(run, kind), None))
    return _UNDISTURBED[kind]


@rows("fault", lambda faulty: called(faulty.recovered))
async def test_what_a_stream_brings_back_is_never_missed(
    run: Run, kind: Kind, fault: Fault
) -> None:
    conversation = await play(run, kind, {(kind.faulty.stream, 1): fault})
    assert conversation.turn.text == SAID
    assert await kind.faulty.seen(conversation, fault) == await undisturbed(run, kind)
    await check_survives(kind, conversation)


@rows("plan", lambda faulty: faulty.split.items())
async def test_a_character_may_begin_in_one_write_and_end_in_another(
    run: Run, kind: Kind, plan: Plan
) -> None:
    conversation = await play(run, kind, plan, LETTERS)
    turn = conversation.turn
    assert f"“{LETTERS}”" in (turn.text or "")
    assert turn.data("message.received")[0]["message"] == LETTERS
    assert not turn.data("dragoman.gap")
    requests = conversation.house.backend.faults.requests
    assert {route: requests[route] for route, _ in plan} == {route: 1 for route, _ in plan}
    await check_survives(kind, conversation, [LETTERS])


@rows("differing", lambda faulty: [(str(place), row) for place, row in faulty.differing.items()])
async def test_a_stream_that_differs_when_it_comes_back_doubles_nothing(
    run: Run, kind: Kind, differing: Differing
) -> None:
    house = await begin(run, kind, differing.plan)
    session = await house.eve().create(SCRIPT)
    await rested(house, session)
    events = await house.log(session.session_id)
    kinds = [event.TYPE for event in events]
    assert [kinds.count(name) for name in ("tool.called", "tool.returned", "turn.ended")] == [1] * 3
    texts = [event.text for event in events if isinstance(event, ev.TextCompleted)]
    assert [text.replace("guessing", "rounding") for text in texts] == [FIRST, SAID]
    for text, guessed in zip(texts, differing.guessed, strict=True):
        assert guessed is None or ("guessing" in text) == guessed
    gaps = [event.reason for event in events if isinstance(event, ev.Gap)]
    assert [differing.gap in gap for gap in gaps] == ([True] if differing.gap else [])
    assert heard(kind, house) == [SCRIPT]
    if differing.gap:
        # Where a gap is told, a strict client understands why a text is not that of its pieces.
        turn = await session.read_turn()
        assert [data["reason"] for data in turn.data("dragoman.gap")] == gaps
        assert [data["message"] for data in turn.data("message.completed")] == texts
        assert len(turn.data("action.result")) == 1
        await check_survives(kind, Conversation(house, session, turn))


@each
async def test_a_frame_that_is_none_is_reported(run: Run, kind: Kind) -> None:
    broken = Garbage(4, kind.faulty.broken)
    conversation = await play(run, kind, {(kind.faulty.stream, 1): broken})
    events = await conversation.house.log(conversation.session.session_id)
    reported = [event.code for event in events if isinstance(event, ev.ErrorReported)]
    assert reported == ["backend_protocol"]
    await check_survives(kind, conversation)


@rows("refused", lambda faulty: called(faulty.refused))
async def test_a_first_request_that_is_refused_is_a_failed_turn_with_its_code(
    run: Run, kind: Kind, refused: tuple[Fault, str]
) -> None:
    create = kind.faulty.create
    fault, code = refused
    conversation = await play(run, kind, {(create, 1): fault})
    house, _, turn = conversation
    assert failure(turn)["code"] == code
    assert turn.data("message.received")[0]["message"] == SCRIPT
    # Nothing is tried again behind the user's back, and no redirect is followed.
    assert [received.route for received in house.backend.received] == [create]
    await check_survives(kind, conversation, heard(kind, house))


def at_once(faulty: Faulty) -> list[Row]:
    """What becomes of a first message that goes where a follow-up does, but for what the first
    request shows already where it is that message."""
    shown = [fault for fault, _ in faulty.refused if faulty.create == faulty.message]
    return called(row for row in faulty.sent if faulty.at_once and row.fault not in shown)


@rows("becomes", at_once)
async def test_a_first_message_is_sent_once_whatever_becomes_of_it(
    run: Run, kind: Kind, becomes: Becomes
) -> None:
    conversation = await play(run, kind, {(kind.faulty.message, 1): becomes.fault})
    check_became(conversation, becomes)
    await check_survives(kind, conversation)


@rows("becomes", lambda faulty: called(faulty.sent))
async def test_a_follow_up_is_sent_once_whatever_becomes_of_it(
    run: Run, kind: Kind, becomes: Becomes
) -> None:
    first = "good morning"
    house, session, _ = await play(run, kind, script=first)
    await rested(house, session)
    fails_next(house, kind.faulty.message, becomes.fault)
    accepted = await session.send(SCRIPT)
    turn = await session.read_turn(accepted)
    while "message.received" not in turn.types:
        turn = await session.read_turn(accepted)
    conversation = Conversation(house, session, turn)
    check_became(conversation, becomes)
    await check_survives(kind, conversation, [first, SCRIPT])


def check_became(conversation: Conversation, becomes: Becomes) -> None:
    """The turn of `SCRIPT` is answered, or has failed with the code and the words."""
    turn = conversation.turn
    assert turn.data("message.received")[0]["message"] == SCRIPT
    if becomes.code is None:
        assert turn.text is not None
        assert SAID.removesuffix("(turn 1)") in turn.text
    else:
        failed = failure(turn)
        assert failed["code"] == becomes.code
        assert becomes.words in failed["message"]
        # Half a text is never an answer.
        assert not turn.data("message.completed")


def unanswered(faulty: Faulty) -> list[Row]:
    """Every fault in one form of the eve face, a refusal and a silence in the other one too."""
    ends: list[tuple[Fault, Form]] = [(faulty.unanswered[n], "newest") for n in (0, -1)]
    return called([*((fault, "all") for fault in faulty.unanswered), *ends])


@rows("how", unanswered)
async def test_an_answer_that_did_not_arrive_can_be_given_again(
    run: Run, kind: Kind, how: tuple[Fault, Form]
) -> None:
    fault, form = how
    faulty, script = kind.faulty, "script: approve"
    house, session, turn = await play(run, kind, script=script, form=form)
    request = turn.requests[0]["requestId"]
    fails_next(house, faulty.answer, fault)
    await session.respond(request, "approve")
    # The agent waits again: a boundary tells it (law 6).
    again = await session.read_turn()
    assert again.status == "waiting"
    assert "message.completed" not in again.types
    await session.respond(request, "approve")
    turn = await session.read_turn()
    assert "4.1 GB freed" in (turn.text or "")
    given = [faulty.answers(body) for body in bodies(house)]
    assert [answer for answer in given if answer is not None] == [faulty.approval] * 2
    await check_survives(kind, Conversation(house, session, turn), [script])


@each
async def test_a_backend_that_is_down_refuses_and_is_used_again_when_it_is_up(
    run: Run, kind: Kind
) -> None:
    house = await begin(run, kind)
    await house.stop_backend(kind.dialect)
    session = await house.eve().create(SCRIPT)
    turn = await session.read_turn()
    assert failure(turn)["code"] == "backend_unavailable"
    await house.start_backend(kind.dialect)
    await check_survives(kind, Conversation(house, session, turn), [])


@each
async def test_a_wrong_key_for_the_backend_is_said_and_never_shown(
    run: Run, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    house = await begin(run, kind, journal="sqlite")
    wrong = "k-wrong-and-secret"
    house.backends[kind.dialect].key = wrong
    await house.restart()
    session = await house.eve().create(SCRIPT)
    turn = await session.read_turn()
    assert failure(turn)["code"] == "backend_refused"
    assert wrong.encode() not in b"".join(await house.lines(session.session_id))
    assert wrong not in caplog.text
    house.backends[kind.dialect].key = BACKEND_KEY
    await house.restart()
    session.client.host = house.base
    await check_survives(kind, Conversation(house, session, turn), heard(kind, house))


@each
async def test_a_turn_that_has_more_open_than_can_be_kept_fails_and_says_so(
    run: Run, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "STATE_MOST", 20_000)
    data = kind.faulty.calls(300)
    conversation = await play(run, kind, {(kind.faulty.stream, 1): Garbage(1, data)})
    assert "more open than the 20000 bytes" in failure(conversation.turn)["message"]
    await rested(conversation.house, conversation.session)


@each
async def test_a_turn_with_too_many_open_calls_fails_and_says_so(run: Run, kind: Kind) -> None:
    # Small ones: what is stored of them is far from its limit.
    data = kind.faulty.calls(kind.faulty.too_many)
    conversation = await play(run, kind, {(kind.faulty.stream, 1): Garbage(1, data)})
    assert "more open than 2000 calls" in failure(conversation.turn)["message"]
    await rested(conversation.house, conversation.session)
