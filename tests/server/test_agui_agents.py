"""A Dragoman over an AG-UI agent: bodies that are left, answers that are kept, and what each turn
costs. The agent is a few lines of its own, so that a test decides when a body ends."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiohttp import web

from adapters.driving import transcript
from adapters.model import events as ev
from proxy.journal.base import Write
from proxy.session import Session
from tests.agui.client.driver import SUCCESS, Event, approval, called, interrupted, result, text
from tests.support.alone import Alone
from tests.support.dragoman import KNOWN, Known, Start, starting
from tests.support.journals import CrashJournal, Outliving
from tests.support.waiting import asks, idle, settled, until

HOLD = "hold"
"""In a script: the body stays open until its client leaves."""


class Agent:
    """An agent that plays its `scripts` one after the other. `runs` are what it was asked, `left`
    the ids of the runs whose client went."""

    def __init__(self) -> None:
        self.scripts: list[list[Event | str]] = []
        self.runs: list[dict[str, Any]] = []
        self.left: list[str] = []

    async def run(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.runs.append(asked)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        script = self.scripts.pop(0) if self.scripts else [*text("Yes."), SUCCESS]
        try:
            for event in ({"type": "RUN_STARTED"}, *script):
                if event == HOLD:
                    await asyncio.Event().wait()
                await response.write(b"data: %b\n\n" % json.dumps(event).encode())
        except (asyncio.CancelledError, ConnectionResetError):
            self.left.append(asked["runId"])
            raise
        return response

    @property
    def said(self) -> list[tuple[str, str]]:
        """What the newest run was told of the conversation: roles and texts."""
        return [(one["role"], one["content"]) for one in self.runs[-1]["messages"]]


AGENT: web.AppKey[Agent] = web.AppKey("agent", Agent)


def create_agent(key: str, pace: float) -> web.Application:
    """Make the application of an agent, which lets everybody in and takes no time."""
    del key, pace
    app = web.Application()
    app[AGENT] = Agent()
    app.router.add_post("/", app[AGENT].run)
    return app


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with patch.dict(KNOWN, {"agui": Known(create_agent, AGENT)}):
        yield


@pytest.fixture
async def run(tmp_path: Path, known: None) -> AsyncIterator[Start[Alone]]:
    async with starting(Alone, tmp_path) as start:
        yield functools.partial(start, dialect="agui")


async def first(alone: Alone, message: str = "Hello") -> tuple[Any, Session]:
    """Begin a session with a message."""
    session = await alone.eve().create(message)
    return session, await alone.live(session.session_id)


async def log_of(alone: Alone, session: Any, kind: type[Any]) -> list[Any]:
    return [one for one in await alone.log(session.session_id) if isinstance(one, kind)]


async def test_to_stop_closes_the_connection_and_the_next_run_knows_what_was_said(
    run: Start[Alone],
) -> None:
    alone = await run()
    agent: Agent = alone.backend
    agent.scripts = [[*text("Working")[:2], *called(), HOLD]]
    session, live = await first(alone)
    await until(lambda: bool(live.state.thread(ev.MAIN).calls))
    assert not agent.left
    assert await session.cancel() == "accepted"
    await until(lambda: agent.left == [agent.runs[0]["runId"]])
    await settled(live)
    (ended,) = await log_of(alone, session, ev.TurnEnded)
    assert (ended.outcome, ended.error) == ("interrupted", None)
    await session.send("Again")
    await until(lambda: len(agent.runs) == 2)
    await settled(live)
    assert agent.said == [
        ("user", "Hello"),
        ("assistant", "Working"),
        ("tool", transcript.INTERRUPTED),
        ("user", "Again"),
    ]
    assert [one.outcome for one in await log_of(alone, session, ev.TurnEnded)][-1] == "completed"


async def test_a_stop_while_the_agent_asks_sends_it_nothing(run: Start[Alone]) -> None:
    alone = await run()
    agent: Agent = alone.backend
    agent.scripts = [[*called(), interrupted(approval("int-1", "c1"))]]
    session, live = await first(alone)
    await until(lambda: asks(live))
    await session.cancel()
    await settled(live)
    assert len(agent.runs) == 1
    assert (await log_of(alone, session, ev.TurnEnded))[-1].outcome == "interrupted"
    await session.send("Again")
    await until(lambda: len(agent.runs) == 2)
    await settled(live)
    assert agent.said[-2:] == [("tool", transcript.INTERRUPTED), ("user", "Again")]
    assert "resume" not in agent.runs[-1]


async def test_a_body_that_stays_open_behind_its_run_is_in_nobodys_way(run: Start[Alone]) -> None:
    alone = await run()
    agent: Agent = alone.backend
    agent.scripts = [[interrupted(approval("int-1")), HOLD], [*text("Done."), SUCCESS, HOLD]]
    session, live = await first(alone)
    await until(lambda: asks(live))
    await session.respond("int-1", "approve")
    await until(lambda: len(agent.runs) == 2)
    await settled(live)
    await session.send("More")
    await until(lambda: len(agent.runs) == 3)
    await settled(live)
    assert [one.outcome for one in await log_of(alone, session, ev.TurnEnded)] == [
        *("completed", "completed"),
    ]
    assert len(agent.runs) == 3


TWO = [interrupted(approval("int-1"), approval("int-2"))]


async def test_an_answer_that_is_kept_outlives_a_crash(run: Start[Alone]) -> None:
    alone = await run("sqlite")
    agent: Agent = alone.backend
    agent.scripts = [list(TWO), [*text("Done."), SUCCESS]]
    session, live = await first(alone)
    await until(lambda: asks(live))
    await session.respond("int-1", "approve")
    await until(lambda: asks(live) and list(live.state.interactions) == ["int-2"])
    assert len(agent.runs) == 1
    await alone.restart()
    session.client.host = alone.base
    live = await alone.live(session.session_id)
    assert list(live.state.interactions) == ["int-2"]
    await session.respond("int-2", "deny")
    await until(lambda: len(agent.runs) == 2)
    await settled(live)
    assert [(one["interruptId"], one["payload"]) for one in agent.runs[1]["resume"]] == [
        ("int-1", {"approved": True}),
        ("int-2", {"approved": False}),
    ]
    assert [one.outcome for one in await log_of(alone, session, ev.TurnEnded)] == ["completed"]
    outcomes = [one.outcome for one in await log_of(alone, session, ev.InteractionResolved)]
    assert outcomes == ["approved", "denied"]


async def test_a_session_that_is_loaded_anew_sends_the_whole_conversation(
    run: Start[Alone],
) -> None:
    alone = await run("sqlite")
    agent: Agent = alone.backend
    agent.scripts = [[*called(), result(), *text("One."), SUCCESS]]
    session, live = await first(alone)
    await settled(live)
    await alone.restart()
    session.client.host = alone.base
    await session.send("Two")
    await until(lambda: len(agent.runs) == 2)
    await settled(await alone.live(session.session_id))
    assert agent.said == [
        ("user", "Hello"),
        ("assistant", ""),
        ("tool", "sent"),
        ("assistant", "One."),
        ("user", "Two"),
    ]


WRITES = 40
"""More writes than the turn below has."""


async def test_a_crash_at_any_write_asks_for_no_run_twice(run: Start[Alone]) -> None:
    crashes = 0
    for writes in range(WRITES):
        journal = CrashJournal()
        alone = await run(journal)
        agent: Agent = alone.backend
        agent.scripts = [list(TWO), [*called(), result(), *text("Done."), SUCCESS]]
        session = await alone.eve().create()
        journal.crash_at(writes, confirmed=writes % 2 == 0)
        actor = asyncio.create_task(act(alone, session.session_id))
        crash = asyncio.create_task(journal.crashed.wait())
        await asyncio.wait({actor, crash}, return_when=asyncio.FIRST_COMPLETED)
        if not crash.done():
            crash.cancel()
            await actor
        else:
            crashes += 1
            actor.cancel()
            await asyncio.gather(actor, return_exceptions=True)
            await alone.restart()
            await act(alone, session.session_id)
        names = [one["runId"] for one in agent.runs]
        assert len(set(names)) == len(names), writes
        assert sum("resume" in one for one in agent.runs) <= 1, writes
        assert not (await alone.live(session.session_id)).state.busy, writes
        ended = await log_of(alone, session, ev.TurnEnded)
        assert ended, writes
        assert all(one.outcome in ("completed", "failed") for one in ended), writes
        await alone.stop()
        if not crash.done() or crash.cancelled():
            break
    assert crashes > 5
    assert crashes < WRITES


async def act(alone: Alone, session_id: str) -> None:
    """Say the message if nobody has it, answer what is open, return when nothing is under way."""
    client = alone.eve()
    session = client.attach(session_id)
    while True:
        live = await alone.live(session_id)
        await until(functools.partial(rests, live))
        log = await alone.log(session_id)
        if not any(isinstance(event, ev.InputAccepted) for event in log):
            await session.send("Hello")
        elif asks_anew(live):
            open_ = [n for n, one in live.state.interactions.items() if one.claimed_by is None]
            await session.respond(open_[0], "approve")
        elif idle(live):
            return


def rests(live: Session) -> bool:
    return asks_anew(live) or idle(live)


def asks_anew(live: Session) -> bool:
    return asks(live) and any(one.claimed_by is None for one in live.state.interactions.values())


# What a turn costs.


class CountingJournal(Outliving):
    """A journal that counts the bytes that it is given to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def submit(self, write: Write) -> None:
        self.bytes += write.size + len(write.position or b"")
        self.bytes += sum(len(row.body or b"") for row in write.commands)
        super().submit(write)


async def test_the_hundredth_turn_writes_as_much_as_the_second(
    run: Start[Alone], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class Writer(transcript._TranscriptWriter):
        def take(self, event: ev.Event) -> None:
            made.append(event.TYPE)
            super().take(event)

    monkeypatch.setattr(transcript, "_TranscriptWriter", Writer)
    journal = CountingJournal()
    alone = await run(journal)
    agent: Agent = alone.backend
    words = "x" * 2_000
    session, live = await first(alone, words)
    await settled(live)
    costs: list[int] = []
    for number in range(2, 101):
        agent.scripts = [[*text(words, f"m{number}"), SUCCESS]]
        before = journal.bytes
        made.clear()
        await session.send(words)
        await until(lambda: len(agent.runs) == number)  # noqa: B023 - awaited in its own round
        await settled(live)
        costs.append(journal.bytes - before)
        # Of all that is sent again, only the exchange before is written.
        assert made == ["message.received", "text.completed"]
    assert costs[-1] <= 2 * costs[0]
    assert costs[0] > 4_000
    assert len(agent.runs[-1]["messages"]) == 199
