"""What a service of Managed Agents alone does wrong, or what comes of it there alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from proxy.scripted import managed_agents as scripted
from proxy.scripted.faults import Cut, LoseTurn
from proxy.scripted.managed_agents_requests import ScriptedListQuery, parse_page
from proxy.scripted.managed_agents_turns import DEFAULT, ManagedAgentsVariant
from tests.faults.backends import BACKENDS, Kind
from tests.faults.conversation import SAID, SCRIPT, failure, rested
from tests.faults.inward import Inward, said
from tests.faults.managed_agents import OTHER
from tests.faults.playing import Run, begin, bodies, check_survives, heard, play
from tests.faults.test_no_is_evidence import rests
from tests.support.alone import Alone
from tests.support.dragoman import BACKEND_KEY
from tests.support.eve_client import Refused
from tests.support.waiting import stored, until

SERVICE = Kind("managed-agents")
KINDS = [kind for kind in BACKENDS if kind.dialect == SERVICE.dialect]
APPROVE2 = "script: approve2"

pytestmark = pytest.mark.usefixtures("impatient")

each = pytest.mark.parametrize("kind", KINDS, ids=str)


def varied(kind: Kind = SERVICE, **members: Any) -> ManagedAgentsVariant:
    """The variant of a kind with other members."""
    variant: ManagedAgentsVariant = kind.options.get("variant", DEFAULT)
    return dataclasses.replace(variant, **members)


async def archivals(house: Alone, session_id: str) -> list[ev.Event]:
    events = await house.log(session_id)
    return [e for e in events if isinstance(e, ev.SessionUpdated) and e.archived_at]


async def kinds_of(house: Alone, session_id: str) -> list[str]:
    return [event.TYPE for event in await house.log(session_id)]


async def elsewhere(house: Alone, path: str, *events: dict[str, Any]) -> int:
    """Do something with the one session as another client of the service; returns the status."""
    (talk,) = house.backend.talks.values()
    async with house.http.post(
        f"{house.backend_url(SERVICE.dialect)}/v1/sessions/{talk.id}/{path}",
        json={"events": list(events)} if events else None,
        headers={
            "x-api-key": BACKEND_KEY,
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "managed-agents-2026-04-01",
        },
    ) as response:
        return response.status


# What is shown of inputs.


@pytest.mark.parametrize("inputs", ["once", "twice", "unprocessed"])
@pytest.mark.parametrize("place", [1, 2, 3, 99])
async def test_a_message_is_received_once_in_its_turn_however_it_is_shown(
    run: Run, inputs: Any, place: int
) -> None:
    plan = {("stream", 1): Cut(after_event=place)}
    conversation = await play(run, SERVICE, plan, variant=varied(inputs=inputs))
    await check_survives(SERVICE, conversation)
    house, session, _ = conversation
    await rested(house, session)
    events = await house.log(session.session_id)
    begun = [(e.turn_id, e.cause) for e in events if isinstance(e, ev.TurnStarted)]
    received = [e.turn_id for e in events if isinstance(e, ev.MessageReceived)]
    assert begun == [(turn, "message") for turn in received]
    assert len(begun) == 2


@pytest.mark.parametrize("inputs", ["once", "unprocessed"])
@pytest.mark.parametrize("place", [0, 7, 15, 99])
async def test_a_stream_that_repeats_the_history_doubles_nothing(
    run: Run, inputs: Any, place: int
) -> None:
    variant = varied(fresh_stream="history", inputs=inputs)
    plan = {("stream", number): Cut(after_event=place) for number in (1, 2)}
    conversation = await play(run, SERVICE, plan, variant=variant)
    assert conversation.turn.text == SAID
    await check_survives(SERVICE, conversation)
    house, session, _ = conversation
    await rested(house, session)
    kinds = await kinds_of(house, session.session_id)
    told = ("turn.started", "message.received", "tool.called", "tool.returned", "turn.ended")
    assert [kinds.count(name) for name in told] == [2, 2, 1, 1, 2]


# Answers.


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("named", [True, False])
async def test_an_answered_use_is_never_asked_again(run: Run, partial: bool, named: bool) -> None:
    variant = varied(partial_idle=partial, idle_names_answered=named)
    house, session, turn = await play(run, SERVICE, script=APPROVE2, variant=variant)
    first, second = (request["requestId"] for request in turn.requests)
    await session.respond(first, "approve")
    live = await house.live(session.session_id)
    await until(lambda: not live.state.inputs and list(live.state.interactions) == [second])
    await session.respond(second, "approve")
    await rested(house, session)
    events = await house.log(session.session_id)
    asked = [e.request_id for e in events if isinstance(e, ev.InteractionRequested)]
    resolved = [(e.request_id, e.outcome) for e in events if isinstance(e, ev.InteractionResolved)]
    assert asked == [first, second]
    assert resolved == [(first, "approved"), (second, "approved")]
    given = [SERVICE.faulty.answers(body) for body in bodies(house)]
    assert given.count("allow") == 2


async def test_a_message_right_behind_the_last_answer_is_sent_until_it_is_taken(run: Run) -> None:
    variant = varied(after_answer="refused_once")
    house, session, turn = await play(run, SERVICE, script="script: approve", variant=variant)
    await session.respond(turn.requests[0]["requestId"], "approve")
    assert "4.1 GB freed" in ((await session.read_turn()).text or "")
    await rested(house, session)
    turn = await session.read_turn(await session.send("hello"))
    assert "“hello”" in (turn.text or "")
    assert heard(SERVICE, house) == ["script: approve", "hello", "hello"]


# Interrupts.


@each
async def test_an_interrupt_of_a_session_that_rests_ends_nothing_and_hangs_nothing(
    kind: Kind,
) -> None:
    async with Inward(kind) as inward:
        await inward.begin("hello")
        assert await inward.until(lambda: rests(inward), 30)
        (talk,) = inward.backend.talks.values()
        inward.backend.take(talk, [{"type": "user.interrupt"}])
        await inward.until(lambda: False, 10)
        assert rests(inward)
        await inward.submit(said("hello again"))
        assert await inward.until(lambda: rests(inward), 30)
        outcomes = [e.outcome for e in inward.events if isinstance(e, ev.TurnEnded)]
        assert outcomes == ["completed", "completed"]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("inputs", ["once", "twice", "unprocessed"])
async def test_each_interrupt_ends_its_turn_though_its_event_has_no_id(
    run: Run, named: bool, inputs: Any
) -> None:
    variant = varied(interrupt_id=named, inputs=inputs)
    house, session, _ = await play(run, SERVICE, script="hello", variant=variant, pace=0.2)
    live = await house.live(session.session_id)
    for _ in range(2):
        await rested(house, session)
        await session.send("script: slow 400")
        await until(lambda: live.state.busy)
        await session.cancel()
    await rested(house, session)
    events = await house.log(session.session_id)
    outcomes = [e.outcome for e in events if isinstance(e, ev.TurnEnded)]
    assert outcomes == ["completed", "interrupted", "interrupted"]


@each
async def test_a_turn_that_runs_for_ever_since_its_server_was_killed_is_freed_by_an_interrupt(
    kind: Kind,
) -> None:
    async with Inward(kind) as inward:
        await inward.begin("script: slow 40")
        assert await inward.until(lambda: inward.session.state.busy, 30)
        (talk,) = inward.backend.talks.values()
        talk.stuck = True
        assert not await inward.until(lambda: rests(inward), 1_000)
        # It plays a turn again when it has dropped this one.
        talk.stuck = False
        await inward.submit(cmd.Interrupt())
        assert await inward.until(lambda: rests(inward), 15)
        await inward.submit(said("hello"))
        assert await inward.until(lambda: rests(inward), 30)
        outcomes = [e.outcome for e in inward.events if isinstance(e, ev.TurnEnded)]
        assert outcomes == ["interrupted", "completed"]


# A server that works for somebody else.


async def test_a_message_waits_for_a_server_that_works_for_somebody_else(run: Run) -> None:
    house, session, _ = await play(run, SERVICE, script="hello", variant=OTHER, pace=0.2)
    await rested(house, session)
    content = [{"type": "text", "text": "script: slow 20"}]
    assert await elsewhere(house, "events", {"type": "user.message", "content": content}) == 200
    live = await house.live(session.session_id)
    await until(lambda: live.state.busy)
    turn = await session.read_turn(await session.send(SCRIPT))
    while "message.received" not in turn.types or SCRIPT not in str(turn.data("message.received")):
        turn = await session.read_turn()
    assert SAID.removesuffix("(turn 1)") in (turn.text or "")
    await rested(house, session)
    (talk,) = house.backend.talks.values()
    assert talk.turns == 3


# Lists.


@each
@pytest.mark.parametrize("place", [0, 2, 9, 17])
async def test_a_list_may_have_pages_of_one_event(run: Run, kind: Kind, place: int) -> None:
    plan = {("stream", 1): Cut(after_event=place)}
    variant = varied(kind, page_limit=1)
    conversation = await play(run, kind, plan, variant=variant)
    assert conversation.turn.text == SAID
    await check_survives(kind, conversation)
    assert conversation.turn.types.count("action.result") == 1


@each
@pytest.mark.parametrize("place", [0, 2, 9, 17])
async def test_a_list_may_heed_no_order(
    run: Run, kind: Kind, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ascending(*given: Any, **named: Any) -> ScriptedListQuery:
        return dataclasses.replace(parse_page(*given, **named), order="asc")

    monkeypatch.setattr(scripted, "parse_page", ascending)
    plan = {("stream", number): Cut(after_event=place) for number in (1, 3)}
    conversation = await play(run, kind, plan, variant=varied(kind, page_limit=4))
    assert conversation.turn.text == SAID
    await check_survives(kind, conversation)
    assert conversation.turn.types.count("action.result") == 1


# Turns and sessions that are gone.


@each
async def test_a_turn_that_the_service_has_lost_fails_and_says_so(run: Run, kind: Kind) -> None:
    conversation = await play(run, kind, {("stream", 1): LoseTurn(9)})
    assert failure(conversation.turn)["code"] == "turn_end_missing"
    await check_survives(kind, conversation)


@each
async def test_a_service_that_has_forgotten_the_session_ends_the_turn(run: Run, kind: Kind) -> None:
    house = await begin(run, kind, pace=0.2)
    session = await house.eve().create("script: slow 400")
    live = await house.live(session.session_id)
    await until(lambda: live.state.busy)
    await house.stop_backend(kind.dialect)
    await house.start_backend(kind.dialect)
    turn = await session.read_turn()
    assert failure(turn)["code"] in ("session_gone", "backend_session_lost")
    await rested(house, session)
    fresh = await house.eve().create("hello")
    assert "“hello”" in ((await fresh.read_turn()).text or "")


# Ends of the session.


@each
async def test_a_session_that_somebody_else_archives_takes_no_message_and_says_so(
    run: Run, kind: Kind
) -> None:
    house, session, _ = await play(run, kind, script="hello")
    await rested(house, session)
    assert await elsewhere(house, "archive") == 200
    live = await house.live(session.session_id)
    await until(lambda: live.state.archived_at is not None and stored(live))
    assert len(await archivals(house, session.session_id)) == 1
    with pytest.raises(Refused, match="no longer active"):
        await session.send("hello again")


@each
async def test_a_session_that_was_archived_and_no_event_says_it_refuses_the_next_message(
    run: Run, kind: Kind
) -> None:
    house, session, _ = await play(run, kind, script="hello")
    await rested(house, session)
    (talk,) = house.backend.talks.values()
    talk.status, talk.record["archived_at"] = "terminated", house.backend.now()
    turn = await session.read_turn(await session.send("hello again"))
    assert "archived session" in failure(turn)["message"]
    await rested(house, session)
    assert [received.route for received in house.backend.received].count("send") == 2
    assert len(await archivals(house, session.session_id)) == 1


@each
async def test_a_session_that_is_terminated_in_a_turn_fails_the_turn_and_ends(
    run: Run, kind: Kind
) -> None:
    variant = varied(kind, failure="terminated")
    house, session, turn = await play(run, kind, script="script: fail", variant=variant)
    assert turn.data("turn.failed")
    # Whether it was archived its object tells.
    live = await house.live(session.session_id)
    await until(lambda: live.state.ended is not None)
    assert live.state.ended == "failed"
