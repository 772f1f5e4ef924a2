"""An eve says things too late, twice, or to somebody else: no session stays busy, and nobody is
shown what is not theirs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from adapters.model import events as ev
from proxy.scripted.eve_requests import EvePost
from proxy.scripted.eve_turns import EveRecord, ScriptedEve, ScriptedEveSession
from tests.backends.eve.conftest import Serve
from tests.support.eve_client import EveSession
from tests.support.houses import GENERATIONS, Eves
from tests.support.waiting import settled, stored, until

each_generation = pytest.mark.parametrize("generation", GENERATIONS)


def the_talk(house: Eves, generation: str) -> ScriptedEveSession:
    (talk,) = house.eves[generation].talks.values()
    return talk


def says(
    eve: ScriptedEve,
    talk: ScriptedEveSession,
    records: Iterable[tuple[str, dict[str, Any]]],
    *owners: str,
) -> None:
    """Let a backend write records that no script of it has."""
    for kind, data in records:
        meta: dict[str, Any] = {"id": eve.record_id()}
        if owners:
            meta["deliveryIds"] = list(owners)
        record = {"type": kind, "data": data, "meta": meta}
        talk.log.append(EveRecord(kind, json.dumps(record).encode() + b"\n"))
    talk.wake()


def waits(talk: ScriptedEveSession) -> tuple[str, dict[str, Any]]:
    return "session.waiting", {"continuationToken": talk.token, "wait": "next-user-message"}


async def begun(house: Eves, generation: str, words: str = "hello") -> EveSession:
    session = await house.eve(generation).create(words)
    await session.read_turn()
    return session


@each_generation
@pytest.mark.parametrize("rests", [True, False])
async def test_a_session_goes_on_after_late_records(
    serve: Serve, generation: str, rests: bool
) -> None:
    house = await serve()
    session = await begun(house, generation)
    await settled(await house.live(session.session_id))
    talk = the_talk(house, generation)
    place = {"sequence": 0, "turnId": "turn_0", "stepIndex": 0}
    late = [("message.appended", {**place, "messageDelta": f"{n}"}) for n in range(3)]
    failure = {"code": "MODEL_CALL_FAILED", "message": "socket closed"}
    failed = [("step.failed", {**place, **failure}), ("turn.failed", {**place, **failure})]
    says(house.eves[generation], talk, late + failed + [waits(talk)] * rests)
    turn = await session.read_turn(await session.send("and now?"))
    assert (turn.text or "").startswith("You said: “and now?”.")
    await settled(await house.live(session.session_id))
    log = await house.log(session.session_id)
    assert len([e for e in log if isinstance(e, ev.TurnStarted)]) == 2
    kept = [e.name for e in log if isinstance(e, ev.Native)]
    assert kept.count("message.appended") == 3
    assert "turn.failed" in kept
    turn = await session.read_turn(await session.send("goodbye"))
    assert (turn.text or "").startswith("You said: “goodbye”.")


async def test_of_a_step_that_is_tried_again_the_new_request_is_asked_only(serve: Serve) -> None:
    house = await serve()
    session = await house.eve("S2").create("script: approve")
    (asked,) = (await session.read_turn()).requests
    talk = the_talk(house, "S2")
    said = [json.loads(entry.data) for entry in talk.log]
    place = next(r["data"] for r in reversed(said) if r["type"] == "step.started")
    place = {name: place[name] for name in ("sequence", "turnId", "stepIndex")}
    action = {**asked["action"], "callId": "call-again"}
    request = {**asked, "requestId": "aitxt-again", "action": action}
    again: list[tuple[str, dict[str, Any]]] = [
        ("step.started", {**place, "modelId": "m"}),
        ("actions.requested", {**place, "actions": [action]}),
        ("step.completed", {**place, "finishReason": "tool-calls"}),
        ("input.requested", {**place, "requests": [request]}),
        ("turn.waiting", {"sequence": place["sequence"], "turnId": place["turnId"], "on": "input"}),
    ]
    says(house.eves["S2"], talk, again)
    live = await house.live(session.session_id)
    await until(lambda: stored(live) and list(live.state.interactions) == ["aitxt-again"])
    log = await house.log(session.session_id)
    gone = [e for e in log if isinstance(e, ev.InteractionResolved)]
    assert [(e.request_id, e.outcome) for e in gone] == [(asked["requestId"], "withdrawn")]
    (ended,) = [e for e in log if isinstance(e, ev.ToolReturned)]
    assert ended.error is not None
    assert (ended.call_id, ended.error.code) == (asked["action"]["callId"], "discarded")


@pytest.mark.parametrize("generation", ["S1", "S2"])
async def test_the_turn_of_somebody_else_is_not_the_answer_to_us(
    serve: Serve, generation: str
) -> None:
    house = await serve(pace=1.0)
    session = await begun(house, generation)
    await settled(await house.live(session.session_id))
    eve, talk = house.eves[generation], the_talk(house, generation)
    eve.post(talk, EvePost(text="script: slow 4"))
    await until(lambda: talk.busy)
    turn = await session.read_turn(await session.send("ours"))
    assert [data["message"] for data in turn.data("message.received")] == ["ours"]
    assert (turn.text or "").startswith("You said: “ours”.")
    log = await house.log(session.session_id)
    said = [e for e in log if isinstance(e, ev.MessageReceived)]
    assert [e.command_id is None for e in said] == [False, True, False]
    await settled(await house.live(session.session_id))


@pytest.mark.parametrize("rests", [True, False])
async def test_a_turn_that_is_held_goes_on_and_ends_once(serve: Serve, rests: bool) -> None:
    house = await serve()
    session = await begun(house, "S2")
    await settled(await house.live(session.session_id))
    talk = the_talk(house, "S2")
    turn, talk.turns = talk.turns, talk.turns + 1
    place = {"sequence": turn, "turnId": f"turn_{turn}"}
    held: list[tuple[str, dict[str, Any]]] = [
        ("turn.started", place),
        ("message.received", {**place, "message": "count"}),
        ("step.started", {**place, "stepIndex": 0, "modelId": "m"}),
        ("step.completed", {**place, "stepIndex": 0, "finishReason": "stop"}),
        ("turn.completed", {**place, "held": True}),
    ]
    goes_on: list[tuple[str, dict[str, Any]]] = [
        ("message.received", {**place, "kind": "task.result", "message": "4 files"}),
        ("step.started", {**place, "stepIndex": 1, "modelId": "m"}),
        (
            "message.completed",
            {**place, "stepIndex": 1, "message": "Four.", "finishReason": "stop"},
        ),
        ("step.completed", {**place, "stepIndex": 1, "finishReason": "stop"}),
        ("turn.completed", place),
        waits(talk),
    ]
    says(house.eves["S2"], talk, [*held, *[waits(talk)] * rests, *goes_on], "d-theirs")
    answer = await session.read_turn(await session.send("goodbye"))
    assert (answer.text or "").startswith("You said: “goodbye”.")
    await settled(await house.live(session.session_id))
    log = await house.log(session.session_id)
    assert len([e for e in log if isinstance(e, ev.TurnEnded)]) == 3
    words = [ev.text_of(e.content) for e in log if isinstance(e, ev.MessageReceived)]
    assert words == ["hello", "count", "goodbye"]
