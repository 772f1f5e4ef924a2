"""A server is killed again and again while its sessions move to and fro and people talk on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adapters.model import events as ev
from adapters.model.events import decode_event
from adapters.model.state import LogState
from tests.migration.support import House
from tests.proof.process import Dragoman
from tests.support.journals import sqlite
from tests.support.ports import HOST, free_port
from tests.support.waiting import SOON_S

pytestmark = pytest.mark.pages

SESSIONS = 6
KILLS = 8
BACKENDS = ("old", "new", "engine", "engine2", "herm", "agents")

Log = list[dict[str, Any]]


class Served:
    """A server in a process of its own, over the scripted backends of this one."""

    def __init__(self, house: House, folder: Path, http: aiohttp.ClientSession) -> None:
        self.url = f"http://{HOST}:{free_port()}"
        self.http = http
        config = folder / "dragoman.toml"
        tables = "".join(
            f'[[backends]]\nname = "{name}"\ndialect = "{backend.dialect}"\n'
            f'url = "{house.backend_url(name)}"\n'
            f'create = {{ agent = "agent_K4", environment_id = "env_2b" }}\n'
            for name, backend in house.backends.items()
        )
        config.write_text(
            f'[server]\nlisten = "{self.url.removeprefix("http://")}"\n'
            f'[journal]\nurl = "{sqlite(folder)}"\n{tables}'
        )
        self.dragoman = Dragoman(config, folder / "serve.log")

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Ask until there is an answer that is not of a server about to go or to come."""
        async with asyncio.timeout(SOON_S):
            while True:
                await self.dragoman.up.wait()
                with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                    async with self.http.request(method, f"{self.url}{path}", json=body) as answer:
                        text = await answer.text()
                        if answer.status < 500:
                            return answer.status, text
                await asyncio.sleep(0.01)

    async def log(self, session: str) -> Log:
        """Return the log of a session."""
        _, text = await self.ask("GET", f"/api/v1/sessions/{session}/events")
        return [json.loads(line) for line in text.splitlines()]


def of(log: Log, type_: str) -> Log:
    return [one for one in log if one["type"] == type_]


async def talk(served: Served, session: str, words: str) -> None:
    """Say something until the session has it, as a person does who sees what there is."""
    said = f"script: text\n{words}"
    path = f"/as/eve/to/old/eve/v1/session/{session}"
    async with asyncio.timeout(SOON_S):
        while True:
            log = await served.log(session)
            mine = [one for one in of(log, "input.accepted") if words in json.dumps(one)]
            settled = {one["command_id"]: one["outcome"] for one in of(log, "input.settled")}
            outcomes = [settled.get(one["command_id"]) for one in mine]
            if "taken" in outcomes and of(log, "turn.ended"):
                ends = of(log, "turn.ended")[-1]["seq"]
                received = [m["seq"] for m in of(log, "message.received") if words in json.dumps(m)]
                if received and ends > received[-1]:
                    return
            elif None not in outcomes:
                # It is not there, or a crash has left it in doubt: it is said again.
                await served.ask("POST", path, {"message": said})
            await asyncio.sleep(0.02)


async def wander(served: Served, session: str, chance: random.Random, over: asyncio.Event) -> int:
    """Move a session to and fro; return how often it has moved."""
    moved = 0
    while not over.is_set():
        if chance.random() < 0.3:
            status, _ = await served.ask("POST", f"/api/v1/sessions/{session}/rollback", {})
        else:
            body = {"to": chance.choice(BACKENDS)}
            status, _ = await served.ask("POST", f"/api/v1/sessions/{session}/move", body)
        assert status in (200, 409)
        moved += status == 200
        await asyncio.sleep(chance.random() * 0.05)
    return moved


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    house = House("memory:")
    for backend in house.backends.values():
        backend.options = {**backend.options, "key": None}
    async with house, aiohttp.ClientSession() as http:
        served = Served(house, tmp_path, http)
        await served.dragoman.start()
        try:
            yield served
        finally:
            await served.dragoman.close()


async def test_nothing_is_lost_and_nothing_half_moved(served: Served) -> None:
    chance = random.Random(8)
    create = "/as/eve/to/old/eve/v1/session"
    sessions = []
    for number in range(SESSIONS):
        _, text = await served.ask("POST", create, {"message": f"script: text\nw{number}x0"})
        sessions.append(json.loads(text)["sessionId"])
    over = asyncio.Event()
    movers = [
        asyncio.create_task(wander(served, name, random.Random(number), over))
        for number, name in enumerate(sessions)
    ]

    async def person(number: int, session: str) -> None:
        for turn in range(1, 6):
            await talk(served, session, f"w{number}x{turn}")

    people = [asyncio.create_task(person(*one)) for one in enumerate(sessions)]
    for _ in range(KILLS):
        await asyncio.sleep(chance.random() * 0.6)
        await served.dragoman.kill()
        await served.dragoman.start()
    await asyncio.gather(*people)
    over.set()
    moves = await asyncio.gather(*movers)
    assert sum(moves) > SESSIONS
    for number, session in enumerate(sessions):
        await check(served, session, number)


async def check(served: Served, session: str, number: int) -> None:
    """Check the log of a session, and that a backend which has never had it is told all of it."""
    log = await served.log(session)
    state = LogState()
    for one in log:
        event = decode_event({k: v for k, v in one.items() if k not in ENTRY})
        state.apply_entry(ev.Entry(one["seq"], one["at"], session, event))
    assert not state.busy
    received = of(log, "message.received")
    ids = [one["command_id"] for one in received]
    assert len(set(ids)) == len(ids)
    legs = [one["backend"] for one in of(log, "session.updated") if "backend" in one]
    assert [one["leg"] for one in legs] == list(range(1, len(legs) + 1))
    # It is at rest where it is now, and is told everything anew by a move.
    to = "engine" if not legs or legs[-1]["name"] != "engine" else "engine2"
    status, text = await served.ask("POST", f"/api/v1/sessions/{session}/move", {"to": to})
    assert status == 200, text
    await served.ask(
        "POST", f"/as/eve/to/old/eve/v1/session/{session}", {"message": "What did I say?"}
    )
    async with asyncio.timeout(SOON_S):
        while (await served.log(session))[-1]["type"] != "turn.ended":  # noqa: ASYNC110 - it is remote
            await asyncio.sleep(0.02)
    said = of(await served.log(session), "text.completed")[-1]["text"]
    # A kill may have left the very first words in doubt, which nobody said again.
    first = f"w{number}x0" in json.dumps(received)
    for turn in range(0 if first else 1, 6):
        assert f"w{number}x{turn}" in said


ENTRY = frozenset({"seq", "at", "session_id"})
