"""A Herm that says things late, twice, or in newer forms: nobody is asked twice, and no session
stays busy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adapters.herm.client.turns import HOLD_MS
from adapters.model import events as ev
from proxy.scripted.herm_turns import HermVariant, ScriptedHermSession
from proxy.session import Session
from tests.backends.herm.conftest import Serve
from tests.support.houses import HermAndEngine
from tests.support.waiting import SOON_S, asks, settled, until

FAST = 20.0
"""How much faster the proxy's clock runs, where a test waits for it."""


def text(words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words}]


def talk_of(house: HermAndEngine, live: Session) -> ScriptedHermSession:
    there = live.core.codec.native_id
    assert there is not None
    return house.herm.talks[there]


def says(
    house: HermAndEngine, talk: ScriptedHermSession, type_: str, **payload: Any
) -> dict[str, object]:
    return house.herm.write(talk, {"type": type_, **payload}).envelope


def pauses(house: HermAndEngine, talk: ScriptedHermSession, *ids: str) -> None:
    reason = {"type": "requires_action", "event_ids": list(ids)}
    says(house, talk, "session.status_idle", stop_reason=reason)


async def after_a_turn(house: HermAndEngine) -> tuple[str, Session, ScriptedHermSession]:
    client = house.client()
    session = (await client.create())["id"]
    await client.turn(session, "Hello")
    live = await house.live(session)
    await settled(live)
    return session, live, talk_of(house, live)


async def of(
    house: HermAndEngine, session: str, type_: type[Any], least: int = 0, **members: object
) -> list[Any]:
    """The events of a type in the log, once there are so many of them."""
    async with asyncio.timeout(SOON_S):
        while True:
            found = [event for event in await house.log(session) if isinstance(event, type_)]
            found = [one for one in found if members.items() <= vars(one).items()]
            if len(found) >= least:
                return found
            await asyncio.sleep(0.01)


async def test_a_message_after_the_end_is_shown_and_its_turn_ends(serve: Serve) -> None:
    house = await serve(speed=FAST)
    session, live, talk = await after_a_turn(house)
    says(house, talk, "agent.message", delta=False, content=text("One more thing."))
    await of(house, session, ev.TextCompleted, 1, text="One more thing.")
    await settled(live)
    assert (await of(house, session, ev.TurnStarted))[-1].cause == "background"
    assert (await of(house, session, ev.TurnEnded))[-1].outcome == "completed"
    turn = await house.client().turn(session, "And now?")
    assert turn.text.endswith("(turn 2)")


async def test_a_late_turn_that_the_backend_takes_up_is_a_real_one(serve: Serve) -> None:
    house = await serve(speed=FAST)
    session, live, talk = await after_a_turn(house)
    says(house, talk, "agent.message", delta=False, content=text("One more thing."))
    says(house, talk, "session.status_running")
    says(house, talk, "agent.message", delta=False, content=text("And another."))
    await of(house, session, ev.TextCompleted, 1, text="And another.")
    await asyncio.sleep(2 * HOLD_MS / 1000 / FAST)
    assert live.state.busy
    says(house, talk, "session.status_idle", stop_reason={"type": "end_turn"})
    await settled(live)
    assert len(await of(house, session, ev.TurnEnded)) == 2


async def test_the_end_of_a_turn_waits_for_a_result_and_a_later_one_is_a_notice(
    serve: Serve,
) -> None:
    house = await serve(speed=FAST)
    session, live, talk = await after_a_turn(house)
    says(house, talk, "session.status_running")
    for name in ("t1", "t2"):
        says(house, talk, "agent.tool_use", id=name, tool="shell", input={}, status="running")
    says(house, talk, "session.status_idle", stop_reason={"type": "end_turn"})
    result = {"tool": "shell", "status": "completed", "is_error": False}
    says(house, talk, "agent.tool_result", tool_use_id="t1", content=text("one"), **result)
    first, second = await of(house, session, ev.ToolReturned, 2)
    assert (first.call_id, first.output, first.status) == ("t1", "one", "completed")
    assert (second.call_id, second.status) == ("t2", "interrupted")
    says(house, talk, "agent.tool_result", tool_use_id="t2", content=text("two"), **result)
    (notice,) = await of(house, session, ev.Notice, 1)
    assert (notice.call_id, notice.kind) == ("t2", "late_result")
    assert notice.text.endswith("two")
    await settled(live)


async def test_a_pause_that_is_said_again_asks_nothing_new(serve: Serve) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create())["id"]
    await client.say(session, "script: approve2")
    live = await house.live(session)
    await until(lambda: asks(live) and len(live.state.interactions) == 2)
    talk = talk_of(house, live)
    one, two = talk.pending
    pauses(house, talk, one, two)
    pauses(house, talk, two)
    pauses(house, talk, one, two)
    confirmation = {"type": "user.tool_confirmation", "result": "allow"}
    for name in (one, two):
        await client.post(session, {**confirmation, "tool_use_id": name})
        pauses(house, talk, one, two)
    await settled(live)
    pauses(house, talk, one, two)
    await of(house, session, ev.Notice, 1, kind="stale_pause")
    assert {asked.request_id for asked in await of(house, session, ev.InteractionRequested)} == {
        one,
        two,
    }
    await settled(live)
    turn = await client.turn(session, "And now?")
    assert turn.text.endswith("(turn 2)")


async def test_events_that_share_an_id_are_all_shown(serve: Serve) -> None:
    house = await serve(herm={"variant": HermVariant(lines="data")})
    session, _, talk = await after_a_turn(house)
    says(house, talk, "session.status_running")["id"] = "evt_same"
    for words in ("one", "two", "three"):
        shown = says(house, talk, "agent.message", delta=False, content=text(words))
        shown["id"] = "evt_same"
    reason = {"type": "end_turn"}
    says(house, talk, "session.status_idle", stop_reason=reason)["id"] = "evt_same"
    await of(house, session, ev.TurnEnded, 2)
    texts = [event.text for event in await of(house, session, ev.TextCompleted)]
    assert texts[-3:] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("payload", "prompt", "labels", "posted"),
    [
        (
            {
                "questions": [
                    {"qid": "q1", "question": "Which tracker?", "choices": ["GitHub", "Linear"]},
                    {"qid": "q2", "question": "Which team?", "choices": None},
                ]
            },
            "1. Which tracker? (GitHub, Linear)\n2. Which team?",
            None,
            "Linear, blue",
        ),
        (
            {
                "question": "Which tracker?",
                "choices": ["", {"label": "Linear", "value": "lin-1"}, " "],
                "multi_select": True,
            },
            "Which tracker?\nSeveral may be chosen.",
            ["Linear"],
            "lin-1",
        ),
    ],
)
async def test_a_newer_form_of_a_question_is_shown_and_answered(
    serve: Serve, payload: Any, prompt: str, labels: list[str] | None, posted: str
) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create())["id"]
    await client.say(session, "script: askopen")
    live = await house.live(session)
    await until(lambda: asks(live))
    talk = talk_of(house, live)
    (open_,) = talk.pending.values()
    # The same request as the newer Herm would have asked it.
    talk.pending["ab12"] = open_
    says(house, talk, "agent.clarify_request", request_id="ab12", **payload)
    pauses(house, talk, open_.id, "ab12")
    asked = (await of(house, session, ev.InteractionRequested, 2))[-1]
    assert asked.prompt == prompt
    assert (asked.options and [option.label for option in asked.options]) == labels
    answer = labels[0] if labels else posted
    await client.post(
        session, {"type": "user.clarify_result", "request_id": "ab12", "answer": answer}
    )
    await until(lambda: any(f'"{posted}"'.encode() in body for body in house.posts()))
