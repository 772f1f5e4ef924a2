"""Whole conversations of strict eve and Engine clients on scripted eves of every generation."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

from adapters.model import events as ev
from proxy.journal.base import Write
from proxy.scripted.faults import Cut, Faults, HalfFrame, SlowHead, Status
from tests.backends.eve.conftest import Serve
from tests.support.engine_client import EngineEvent, EngineTurn
from tests.support.eve_client import EveSession, Style, TurnResult
from tests.support.houses import GENERATIONS, Eves
from tests.support.journals import UntoldJournal
from tests.support.waiting import SOON_S, until

SCRIPTS = (
    ("text", (), "Basil likes six hours of sun"),
    ("reason", (), "`to_cents` truncates instead of rounding"),
    ("tool", (), "so 19.99 becomes 1998."),
    ("tools", (), "One risk found: b.sql drops table u without a guard."),
    ("toolfail", (), "The mail connector must be connected again."),
    ("approve", ("yes",), "Done, 4.1 GB freed."),
    ("approve", ("no",), "I left /srv/exports/2024 alone."),
    ("approve-twice", ("yes", "no"), "I left /etc/hosts alone."),
    ("ask", ("09:10",), "Holding a seat on the 09:10."),
    ("askopen", ("Ada",), "The ticket carries the name Ada."),
    ("child", (), "The researcher says: 84 m."),
    ("childask", ("yes",), "The cleaner is done."),
    ("long 300", (), "tick 299 "),
)

pytestmark = pytest.mark.parametrize("generation", GENERATIONS)


async def respond(session: EveSession, turn: TurnResult, answer: str) -> TurnResult:
    """Answer the last request as a person does, and read on."""
    request: dict[str, Any] = turn.requests[-1]
    ids = {option["label"]: option["id"] for option in request.get("options", ())}
    by_place = dict(zip(("yes", "no"), ids.values(), strict=False))
    option = ids.get(answer) or by_place.get(answer)
    await session.respond(request["requestId"], option, None if option else answer)
    return await session.read_turn()


@pytest.mark.parametrize(("script", "answers", "text"), SCRIPTS)
async def test_an_eve_client_holds_every_conversation(
    serve: Serve, generation: str, script: str, answers: tuple[str, ...], text: str
) -> None:
    house = await serve()
    client = house.eve(generation)
    session = await client.create(f"script: {script}")
    turn = await session.read_turn()
    for answer in answers:
        turn = await respond(session, turn, answer)
    assert turn.text is not None
    assert text in turn.text
    assert turn.text.endswith("(turn 1)") or generation in ("T", "S1")
    accepted = await session.send("still there?")
    turn = await session.read_turn(accepted)
    assert turn.text is not None
    assert turn.text.startswith("You said: “still there?”.")
    again = client.attach(session.session_id)
    whole = [r async for r in again.stream(0, follow=False)]
    # The end of a child may come later: it is told when its own stream has been read.
    assert whole[: len(session.log)] == session.log


@pytest.mark.parametrize(("script", "answers", "text"), SCRIPTS)
async def test_an_engine_client_holds_every_conversation(
    serve: Serve, generation: str, script: str, answers: tuple[str, ...], text: str
) -> None:
    house = await serve()
    turn = await house.engine(generation).turn(f"script: {script}", "task", answers)
    assert turn.outcome == "completed"
    assert text in turn.text


@pytest.mark.parametrize(("script", "words"), [("text", "still there?"), ("ask", "09:10")])
async def test_a_turn_that_is_faster_than_the_answer_to_its_message_is_seen_whole(
    serve: Serve, generation: str, script: str, words: str
) -> None:
    house = await serve(faults=Faults({("message", 1): SlowHead(0.3)}))
    session = await house.eve(generation, "S").create(f"script: {script}")
    await session.read_turn()
    turn = await session.read_turn(await session.send(words))
    assert turn.types[0] == "turn.started"
    assert turn.types.count("message.received") == 1


@pytest.mark.parametrize("script", ["fail", "failmid"])
async def test_a_failed_turn_is_told_and_the_next_one_works(
    serve: Serve, generation: str, script: str
) -> None:
    house = await serve()
    client = house.engine(generation)
    assert (await client.turn(f"script: {script}", "task")).outcome == "failed"
    assert (await client.turn("hello", "task")).text == "You said: “hello”. (turn 2)"


async def test_a_schema_gets_a_structured_result(serve: Serve, generation: str) -> None:
    house = await serve()
    session = await house.eve(generation).create(
        "script: structured", outputSchema={"type": "object"}
    )
    assert (await session.read_turn()).result == {"title": "Towers", "count": 2}


async def test_a_child_is_read_as_a_session_of_its_own(serve: Serve, generation: str) -> None:
    house = await serve()
    client = house.eve(generation)
    session = await client.create("script: child")
    turn = await session.read_turn()
    (called,) = turn.data("subagent.called")
    child = client.child(called["childSessionId"])
    async with asyncio.timeout(SOON_S), aclosing(child.stream(0)) as records:
        async for record in records:
            if record["type"] == "message.completed":
                assert record["data"]["message"] == "The north tower is 84 m tall."
                break


async def test_an_answer_by_message_reaches_the_question(serve: Serve, generation: str) -> None:
    house = await serve()
    session = await house.eve(generation).create("script: ask")
    await session.read_turn()
    accepted = await session.send("09:10")
    turn = await session.read_turn(accepted)
    assert turn.text is not None
    assert "Holding a seat on the 09:10." in turn.text


async def test_a_cancel_stops_a_turn_also_before_it_began(serve: Serve, generation: str) -> None:
    house = await serve(pace=0.05)
    session = await house.eve(generation).create("script: slow 4000")
    assert await session.cancel() == "accepted"
    async with asyncio.timeout(SOON_S):
        turn = await session.read_turn()
    assert turn.types[-2:] == ["turn.cancelled", "session.waiting"]


@pytest.mark.parametrize("style", ["T", "S1", "S"])
async def test_the_first_message_after_a_cancelled_approval_is_answered(
    serve: Serve, generation: str, style: Style
) -> None:
    house = await serve()
    session = await house.eve(generation, style).create("script: approve")
    await session.read_turn()
    live = await house.live(session.session_id)
    assert await session.cancel() == "accepted"
    await until(lambda: live.idle)
    accepted = await session.send("hello")
    async with asyncio.timeout(SOON_S):
        turn = await session.read_turn(accepted)
    if generation != "S2" and "alone" in (turn.text or ""):
        # What the agent says of the refusal, before the cancel reaches it, is its own turn; clients
        # up to 0.44 take it for the answer to their next message.
        assert style != "S"
        turn = await session.read_turn()
    assert "“hello”" in (turn.text or ""), turn.types


async def test_a_stream_that_breaks_is_taken_up_where_it_was(serve: Serve, generation: str) -> None:
    faults = Faults(
        {
            ("stream", 1): Cut(after_event=3),
            ("stream", 2): HalfFrame(2),
            ("stream", 3): Status(503),
            ("stream", 4): SlowHead(0.01),
            ("stream", 5): Cut(after_event=1, clean=True),
        }
    )
    house = await serve(faults=faults, speed=50.0)
    session = await house.eve(generation).create("script: tool")
    turn = await session.read_turn()
    assert turn.text is not None
    assert "so 19.99 becomes 1998." in turn.text
    events = await house.log(session.session_id)
    texts = [event.text for event in events if isinstance(event, ev.TextDelta)]
    assert "".join(texts).startswith("Checking the rounding helper.")
    assert len([event for event in events if isinstance(event, ev.ToolCalled)]) == 1


async def test_a_session_is_asked_for_by_its_name_only_when_the_name_is_stored(
    serve: Serve, generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await serve()
    journal, asked_for = house.sessions.journal, house.eves[generation].faults.requests
    submit, held = journal.submit, list[Write]()
    early: list[int] = []

    def release() -> None:
        early.append(asked_for["stream"])
        for write in held:
            submit(write)
        held.clear()

    def slow(write: Write) -> None:
        if write.native_id is not None:
            asyncio.get_running_loop().call_later(0.1, release)
        elif not held:
            submit(write)
            return
        held.append(write)

    monkeypatch.setattr(journal, "submit", slow)
    session = await house.eve(generation).create("hello")
    assert (await session.read_turn()).text
    assert early == [0]


async def test_a_turn_goes_on_over_a_restart(serve: Serve, generation: str) -> None:
    house = await serve("sqlite", pace=0.2)
    session = await house.eve(generation).create("script: slow 40")
    async with aclosing(session.stream()) as records:
        async for record in records:
            if record["type"] == "message.appended":
                break
    await house.restart()
    session.client.host = house.eve(generation).host
    turn = await session.read_turn()
    assert turn.text == "".join(f"tick {n} " for n in range(40)) + " (turn 1)"
    assert len(house.posted(generation, "create")) == 1


@pytest.mark.parametrize("script", ["approve", "ask"])
async def test_a_request_is_answered_after_a_restart(
    serve: Serve, generation: str, script: str
) -> None:
    house = await serve("sqlite")
    session = await house.eve(generation).create(f"script: {script}")
    turn = await session.read_turn()
    await house.restart()
    session.client.host = house.eve(generation).host
    turn = await respond(session, turn, {"approve": "yes", "ask": "09:10"}[script])
    assert turn.text is not None
    assert {"approve": "4.1 GB freed", "ask": "the 09:10"}[script] in turn.text
    (posted,) = house.posted(generation)
    assert len(json.loads(posted)["inputResponses"]) == 1


async def test_an_engine_task_is_answered_after_a_restart(serve: Serve, generation: str) -> None:
    house = await serve("sqlite")
    client = house.engine(generation)
    async with aclosing(client.execute("script: approve", "task")) as live:
        async for seen in live:
            if seen.event == "hitl_request":
                break
    await house.restart()
    client = house.engine(generation)
    reader = asyncio.create_task(_replayed(house, generation))
    await client.respond("task", "no", feedback="keep it")
    turn = await reader
    assert turn.outcome == "completed"
    assert "I left /srv/exports/2024 alone." in turn.text


async def _replayed(house: Eves, generation: str) -> EngineTurn:
    turn = EngineTurn()
    async for seen in house.engine(generation).replay(0, "task"):
        turn.events.append(seen)
    return turn


async def test_a_message_while_an_approval_is_open_is_taken_as_the_backend_takes_it(
    serve: Serve, generation: str
) -> None:
    house = await serve()
    session = await house.eve(generation).create("script: approve")
    first = await session.read_turn()
    accepted = await session.send("still there?")
    turn = await session.read_turn(accepted)
    results = [r["data"]["status"] for r in session.log if r["type"] == "action.result"]
    said = "You said: “still there?”."
    if generation == "S2":
        # Section 5.1: it withdraws the request and joins the turn.
        assert results == ["rejected"]
        assert (turn.text or "").startswith(said)
        return
    # Sections 5.1 and 8.2: the request stays open; T would wait, so the message waits here.
    assert (results, turn.text) == ([], None)
    assert len(house.posted(generation)) == (1 if generation == "S1" else 0)
    answered = await respond(session, first, "yes")
    assert "4.1 GB freed" in (answered.text or "")
    if generation == "T":
        later = await session.read_turn(accepted)
        assert (later.text or "").startswith(said)


async def test_who_finds_a_session_before_its_maker_knows_that_it_is_stored_makes_no_second_one(
    serve: Serve, generation: str
) -> None:
    # An Engine client chooses the task's name, so it may ask for a replay at any time.
    journal = UntoldJournal()
    house = await serve(journal)
    client = house.engine(generation)
    journal.told.clear()
    turn = asyncio.create_task(client.turn("hello", "job-1"))
    await until(lambda: bool(journal.late))

    async def read() -> list[EngineEvent]:
        return [event async for event in client.replay(0, "job-1")]

    reader = asyncio.create_task(read())
    await asyncio.sleep(0.1)
    assert not house.eves[generation].received
    journal.told.set()
    assert (await turn).text
    await reader
    assert len(house.posted(generation, "create")) == 1
    assert len(house.eves[generation].talks) == 1
