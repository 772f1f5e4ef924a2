"""Crashes, lost connections and broken frames, all at once and at random: what holds all the same.

Each seed is a conversation of several turns with an Engine that breaks a part of its streams, and a
proxy that crashes after a few writes, again and again. For a hunt by hand: CHAOS_SEEDS=250 tries
that many of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import re
from collections import Counter

import aiohttp
import pytest

from adapters.model import events as ev
from proxy.scripted.engine_turns import DEFAULT, EngineVariant
from proxy.scripted.faults import Faults
from tests.support.engine_variants import LEAST
from tests.support.eve_client import EveSession, Form, Refused
from tests.support.journals import CrashJournal
from tests.support.resumed import read
from tests.support.running import Run, Running
from tests.support.waiting import idle, moves, until

ROUNDING = "`to_cents` truncates instead of rounding, so 19.99 becomes 1998."
SCRIPTS = {
    "text": "Basil likes six hours of sun — a south-facing sill at the café works.",
    "reason": ROUNDING,
    "tool": f"Checking the rounding helper.{ROUNDING}",
    "tools": "Starting the audit.One risk found: b.sql drops table u without a guard.",
    "approve": "The old export is 4 GB; removing it frees the disk. Done, 4.1 GB freed.",
    "approve2": "Two things need a go-ahead. Done, 4.1 GB freed.Written to /etc/hosts.",
    "failmid": "",
    "long 30": "".join(f"tick {n} " for n in range(30)),
}
"""Scripts, and all that the agent says in them."""
TURNS = 5
VARIANTS = (
    DEFAULT,
    EngineVariant(replay_tails=False),
    EngineVariant(tool_call_id=False),
    EngineVariant(short_lifecycle=True),
    LEAST,
)
SEEDS = int(os.environ.get("CHAOS_SEEDS", "8"))


pytestmark = pytest.mark.usefixtures("impatient")


async def act(running: Running, session: EveSession, messages: list[str]) -> None:
    """Say what was not said yet, answer what is open, return when all is done."""
    while True:
        live = await running.live(session.session_id)
        await until(functools.partial(moves, live))
        if live.closed:
            return
        said = {
            ev.text_of(event.content)
            for event in await running.log(session.session_id)
            if isinstance(event, ev.InputAccepted) and event.kind == "message"
        }
        left = [message for message in messages if message not in said]
        if live.state.interactions:
            await session.respond(next(iter(live.state.interactions)), "approve")
        elif left and idle(live):
            await session.send(left[0])
        elif idle(live):
            return


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_is_lost_doubled_or_left_open(run: Run, seed: int) -> None:
    source = random.Random(seed)
    form: Form = source.choice(("all", "newest"))
    journal = CrashJournal()
    running = await run(
        journal,
        engine={
            "variant": source.choice(VARIANTS),
            "faults": Faults.seeded(seed, rate=0.25),
        },
        settings={"eve": {"form": form}},
    )
    messages = [f"number {n}\nscript: {source.choice(list(SCRIPTS))}" for n in range(TURNS)]
    client = running.eve(form)
    session = await client.create()
    for _ in range(6):
        journal.crash_at(source.randrange(1, 30), confirmed=source.random() < 0.5)
        reader = asyncio.create_task(read(session))
        actor = asyncio.create_task(act(running, session, messages))
        crash = asyncio.create_task(journal.crashed.wait())
        await asyncio.wait({actor, crash}, return_when=asyncio.FIRST_COMPLETED)
        crashed = crash.done()
        await running.restart()
        client.host = running.base
        with contextlib.suppress(aiohttp.ClientError, Refused):
            await actor
        await reader
        crash.cancel()
        if not crashed:
            break
    await act(running, session, messages)
    async for _ in session.stream(follow=False):
        pass
    again = running.eve(form).attach(session.session_id)
    assert [record async for record in again.stream(0, follow=False)] == session.log
    events = await running.log(session.session_id)
    check_log(events)
    check_texts(events)
    # The Engine has each message at most once, and who reads has each of them exactly once.
    executed = Counter(body["message"] for body in running.requests("execute"))
    assert not [message for message, count in executed.items() if count > 1]
    received = [r["data"]["message"] for r in session.log if r["type"] == "message.received"]
    assert sorted(received) == sorted(messages)
    assert session.log[-1]["type"] == "session.waiting"
    assert all(body["answer"] == "yes" for body in running.requests("respond"))


def check_texts(events: list[ev.Event]) -> None:
    """A turn that completed has all its words, each once."""
    message = said = ""
    for event in events:
        if isinstance(event, ev.TurnStarted):
            message = said = ""
        elif isinstance(event, ev.MessageReceived):
            message = ev.text_of(event.content).partition("script: ")[2]
        elif isinstance(event, ev.TextCompleted) and event.status == "complete":
            said += event.text
        elif isinstance(event, ev.TurnEnded) and event.outcome == "completed":
            assert re.sub(r" \(turn \d+\)$", "", said) == SCRIPTS[message]


def check_log(events: list[ev.Event]) -> None:
    """Every input is settled once, every call returned, every interaction resolved."""
    accepted = [e.command_id for e in events if isinstance(e, ev.InputAccepted)]
    settled = [e.command_id for e in events if isinstance(e, ev.InputSettled)]
    assert sorted(accepted) == sorted(settled)
    called = [e.call_id for e in events if isinstance(e, ev.ToolCalled)]
    returned = [e.call_id for e in events if isinstance(e, ev.ToolReturned)]
    assert sorted(called) == sorted(returned)
    asked = [e.request_id for e in events if isinstance(e, ev.InteractionRequested)]
    resolved = [e.request_id for e in events if isinstance(e, ev.InteractionResolved)]
    assert sorted(asked) == sorted(resolved)
    assert not [e for e in events if isinstance(e, ev.Native) and (e.extra or {}).get("reason")]
