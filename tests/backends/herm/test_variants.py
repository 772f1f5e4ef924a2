"""What the page leaves open of a Herm, each way of it, with faults and without."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from adapters.model import events as ev
from proxy.scripted.faults import Cut, Fault, Faults, Garbage, HalfFrame, Silence, Status
from proxy.scripted.herm_turns import HermVariant
from tests.backends.herm.conftest import Serve
from tests.support.herm_client import (
    Expect,
    Refused,
    check_join,
    durable,
)
from tests.support.journals import CrashJournal
from tests.support.patience import shorten
from tests.support.waiting import asks, settled, stored, until

ALLOW = {"type": "user.tool_confirmation", "result": "allow"}

FAULTS = {
    "cut": Faults({("stream", 1): Cut(after_event=4)}),
    "clean": Faults({("stream", 1): Cut(after_event=6, clean=True)}),
    "byte": Faults({("stream", 1): Cut(at_byte=900)}),
    "half": Faults({("stream", 1): HalfFrame(5)}),
    "garbage": Faults({("stream", 1): Garbage(3)}),
    "refused": Faults({("stream", 1): Status(503)}),
    "twice": Faults({("stream", 1): Cut(after_event=2), ("stream", 2): Cut(after_event=2)}),
    "list": Faults({("stream", 1): Cut(after_event=3), ("list", 1): Status(500)}),
    "not ready": Faults({("post", 1): Status(409), ("post", 2): Status(429, retry_after=1)}),
}

VARIANTS = {
    "default": HermVariant(),
    "echo": HermVariant(echo_inputs=True, post_answer="empty", post_status=202),
    "equal": HermVariant(delta_numbers="equal", post_answer="bare", post_status=201),
    "none": HermVariant(delta_numbers="none", list_form="array", create_status=200),
    "history": HermVariant(fresh_stream="history", resume=False, post_status=200),
    "live": HermVariant(resume=False, list_inputs=False),
    "data": HermVariant(lines="data", event_ids="envelope", error_form="flat"),
    "single": HermVariant(body="single", error_form="plain", sealed_events=False),
    "events": HermVariant(body="events", running_after_result=False, interrupt_reason="error"),
    "history echo": HermVariant(
        fresh_stream="history", resume=False, echo_inputs=True, delta_numbers="equal"
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
async def test_every_variant_of_a_herm_backend_is_understood(serve: Serve, variant: str) -> None:
    house = await serve(herm={"variant": VARIANTS[variant]})
    client = house.client()
    session = (await client.create())["id"]
    for script, answers, text in (
        ("tool", [], "so 19.99 becomes 1998."),
        ("approve", [ALLOW], "4.1 GB freed."),
        ("ask", [{"type": "user.clarify_result", "answer": "07:40"}], "on the 07:40."),
        (
            "custom",
            [{"type": "user.custom_tool_result", "content": [{"type": "text", "text": "9"}]}],
            "says: 9",
        ),
        ("secret", [{"type": "user.secret_result", "value": "s"}], "The token works."),
        ("sudo", [{"type": _sudo(variant), _sudo_field(variant): "s"}], "is installed."),
    ):
        turn = await client.turn(session, f"script: {script}", answers)
        assert text in turn.text
        check_join(turn.envelopes, await client.list(session))
    assert len(house.posts()) - (variant == "single") - _fallbacks(variant) == 11
    repairs = (await house.live(session)).repairs
    assert not {rule: n for rule, n in repairs.items() if n and str(rule) in _REPAIRS}


_REPAIRS = ("unrepaired", "text-differs", "second-receipt", "repeated-interaction", "rename-call")


def _sudo(variant: str) -> str:
    # Without an event of its own nobody knows which of the two it is: both are taken.
    return "user.secret_result" if variant == "single" else "user.sudo_result"


def _sudo_field(variant: str) -> str:
    return "value" if variant == "single" else "password"


def _fallbacks(variant: str) -> int:
    return 1 if variant == "single" else 0


@pytest.mark.parametrize("variant", ["default", "history", "live", "none", "equal", "history echo"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_of_the_backend_loses_nothing_and_doubles_nothing(
    serve: Serve, fault: str, variant: str
) -> None:
    house = await serve(
        herm={"variant": VARIANTS[variant], "faults": Faults(FAULTS[fault].plan)}, speed=50.0
    )
    # The deltas of a cut are not to be had where the list has only the final text, which says all.
    client = house.client(expect=Expect(whole_runs=False))
    session = (await client.create())["id"]
    turn = await client.turn(session, "script: tool")
    assert turn.text == (
        "Checking the rounding helper.`to_cents` truncates instead of rounding, "
        "so 19.99 becomes 1998. (turn 1)"
    )
    assert turn.stop_reason == {"type": "end_turn"}
    assert len(turn.payloads("agent.tool_result")) == 1
    shown = await client.list(session)
    check_join(turn.envelopes, shown)
    assert [seen["type"] for seen in shown].count("user.message") == 1
    assert len(house.herm.talks) == 1
    again = await client.turn(session, "and now?")
    assert again.text.endswith("(turn 2)")


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("variant", ["default", "echo"])
async def test_a_post_without_an_answer_is_looked_up_and_never_repeated(
    serve: Serve, done: bool, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch, "answer_seconds")
    faults = Faults({("post", 1): Silence(done=done)})
    house = await serve(herm={"variant": VARIANTS[variant], "faults": faults})
    client = house.client()
    session = (await client.create())["id"]
    await client.say(session, "script: tool")
    live = await house.live(session)
    await until(lambda: stored(live) and not (live.state.inputs or live.state.busy))
    shown = [seen for seen in await client.list(session) if seen["type"] == "user.message"]
    assert [seen["status"] for seen in shown] == ["complete" if done else "failed"]
    assert len(house.posts()) == 1
    again = await client.turn(session, "and now?")
    assert again.text.endswith(f"(turn {2 if done else 1})")


async def test_a_lost_backend_fails_the_turn_after_its_patience(
    serve: Serve,
) -> None:
    plan: dict[tuple[str, int], Fault] = {("stream", n): Status(503) for n in range(2, 600)}
    plan["stream", 1] = Cut(after_event=3)
    house = await serve(herm={"faults": Faults(plan), "pace": 1.0}, speed=4000.0)
    client = house.client()
    session = (await client.create())["id"]
    turn = await client.turn(session, "script: slow 4000")
    assert turn.stop_reason["type"] == "error"


async def test_a_crash_at_any_write_leaves_one_message_and_a_whole_log(
    serve: Serve,
) -> None:
    # A run writes ten times or so; where it ends before the crash there is nothing more to try.
    for writes in range(1, 5):
        journal = CrashJournal()
        house = await serve(journal, speed=20.0)
        client = house.client()
        session = (await client.create())["id"]
        journal.crash_at(writes, confirmed=True)
        posting = asyncio.create_task(client.say(session, "script: approve"))
        await until(journal.crashed.is_set)
        await house.restart()
        accepted = True
        try:
            await posting
        except (aiohttp.ClientError, Refused):
            accepted = False
        client = house.client()
        live = await house.live(session)
        await until(lambda live=live: stored(live) and not live.state.inputs)  # type: ignore[misc]
        said = [body for body in house.posts() if b"user.message" in body]
        assert len(said) <= 1, f"after {writes} writes"
        if not said:
            assert not accepted or any(
                isinstance(e, ev.InputSettled) and e.outcome != "taken"
                for e in await house.log(session)
            )
            continue
        await until(lambda live=live: asks(live))  # type: ignore[misc]
        (open_,) = live.open_interactions()
        await client.post(session, {**ALLOW, "tool_use_id": open_.call_id})
        await settled(live)
        listed = await client.list(session)
        texts = "".join(
            block["text"]
            for seen in listed
            if seen["type"] == "agent.message"
            for block in seen["payload"]["content"]
        )
        assert texts.count("4.1 GB freed.") == 1
        assert [seen["type"] for seen in listed].count("user.message") == 1
        assert durable(listed)
        await house.stop()
