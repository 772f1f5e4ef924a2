"""A stream of the turn before, when the next turn has begun one of its own.

An Engine's answers may be slow, and what it says of a turn that is over is not part of the
next one.
"""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from adapters.engine.client import state
from adapters.model import commands as cmd
from adapters.model import events as ev
from proxy.base.clock import Clock, IdSource
from proxy.base.tasks import Tasks
from proxy.config.settings import BackendSettings, Settings
from proxy.fanout.hub import entries_of
from proxy.journal.sqlite import TemporaryJournal
from proxy.session import Session
from proxy.sessions.backends import Backends
from proxy.sessions.sessions import Sessions
from tests.support.waiting import until


def frame(name: str, **payload: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(payload)}\n\n".encode()


class SlowEngine:
    """Breaks the connection of its first turn, and answers the replay of it only when the second
    one is running: `replay_first` is whose head comes first."""

    def __init__(self, *, replay_first: bool) -> None:
        self.replay_first = replay_first
        self.turns = 0
        self.replays = 0
        self.task = ""
        self.asked = asyncio.Event()
        self.headed = asyncio.Event()

    def life(self, phase: str, turn: int) -> bytes:
        return frame("thread_lifecycle", phase=phase, task_id=self.task, turn_id=f"native-{turn}")

    def turn(self, number: int, text: str, end: str) -> bytes:
        begin = self.life("started", number) + frame("text_delta", text=text)
        return begin + self.life(end, number)

    async def execute(self, request: web.Request) -> web.StreamResponse:
        self.turns += 1
        number = self.turns
        self.task = (await request.json())["task_id"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if number == 1:
            await response.prepare(request)
            await response.write(self.turn(1, "OLD", "errored"))
            await asyncio.sleep(0.02)
            assert request.transport is not None
            request.transport.abort()
            return response
        self.asked.set()
        if self.replay_first:
            await self.headed.wait()
            await asyncio.sleep(0.05)
        await response.prepare(request)
        self.headed.set()
        await asyncio.sleep(0.1)
        await response.write(self.turn(2, "NEW", "completed"))
        return response

    async def replay(self, request: web.Request) -> web.StreamResponse:
        self.replays += 1
        try:
            await self.asked.wait()
            if not self.replay_first:
                await self.headed.wait()
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            self.headed.set()
            await asyncio.sleep(0.1)
            await response.write(self.turn(1, "OLD", "errored"))
            return response
        finally:
            # It is cut off, or fails, where nobody waits for it any more.
            self.headed.set()


@pytest.mark.parametrize("replay_first", [True, False])
async def test_what_is_said_late_of_a_turn_is_no_part_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch, replay_first: bool
) -> None:
    # How long an end that may be corrected is waited for.
    monkeypatch.setattr(state, "END_HOLD_MS", 200)
    engine = SlowEngine(replay_first=replay_first)
    app = web.Application()
    app.router.add_post("/execute", engine.execute)
    app.router.add_get("/execute/replay", engine.replay)
    journal, tasks = TemporaryJournal(), Tasks("replaced")
    await journal.open()

    def said(text: str) -> cmd.SendMessage:
        return cmd.SendMessage(content=(ev.Text(text=text),), policy="queue")

    async def log(session: Session) -> list[ev.Event]:
        entries: list[ev.Event] = []
        for chunk in await journal.read(session.row.key):
            entries += [entry.event for entry in entries_of(chunk.body, "s")]
        return entries

    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        backend = BackendSettings(name="engine", dialect="engine", url=str(server.make_url("")))
        settings = Settings.model_validate({"backends": (backend,)})
        ids = IdSource()
        backends = Backends(settings, http, ids)
        sessions = Sessions(
            settings, journal, tasks=tasks, clock=Clock(), ids=ids, backends=backends
        )
        await sessions.open()
        session, _ = await sessions.create_with(
            [said("one")], by="k", owner="k", route="engine", dialect="engine"
        )
        await session.submit([said("two")], by="k", face="engine")
        await until(lambda: engine.turns == 2 and session.idle)
        await asyncio.sleep(0.3)
        assert session.idle
        events = await log(session)
        await sessions.aclose()
        await tasks.aclose()
    texts = [event.text for event in events if isinstance(event, ev.TextDelta)]
    outcomes = [event.outcome for event in events if isinstance(event, ev.TurnEnded)]
    assert texts == ["OLD", "NEW"]
    assert outcomes == ["failed", "completed"]
    assert not [event for event in events if isinstance(event, ev.Gap)]
    assert engine.replays == 1
