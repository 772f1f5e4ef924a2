"""An answer whose fate nobody can tell: its request is open to be answered again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from adapters.engine.client import EngineClient
from adapters.eve.client import EveClient
from adapters.herm.client import HermClient
from adapters.model import commands as cmd
from adapters.model import events as ev
from proxy.journal.base import Write
from proxy.session import Session
from proxy.session.inbound import InboundReader
from tests.migration.support import House
from tests.support.dragoman import Start, starting
from tests.support.waiting import asks, settled, until


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start[House]]:
    async with starting(House, tmp_path) as start:
        yield start


async def asked(house: House, backend: str) -> tuple[Session, cmd.AnswerInteraction]:
    """Have a backend ask for a yes; return its session, and the answer."""
    live = await house.sessions.create(owner="local", route=backend, dialect="eve")
    said = cmd.SendMessage(content=(ev.Text(text="script: approve"),), policy="queue")
    await live.submit([said], by="local", face="eve")
    await until(lambda: asks(live))
    (request,) = live.open_interactions()
    return live, cmd.AnswerInteraction(request_id=request.request_id, decision="allow")


@pytest.mark.parametrize("backend", ["engine", "herm", "old", "new"])
async def test_a_request_is_open_again_when_nothing_tells_of_its_answer_after_a_crash(
    start: Start[House], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start("sqlite")
    live, answer = await asked(house, backend)
    on_its_way = asyncio.Event()

    async def hang(reading: InboundReader, call: Any) -> Any:
        on_its_way.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as crash:
        crash.setattr(InboundReader, "answer", hang)
        (lost,) = await live.submit([answer], by="local", face="eve")
        await on_its_way.wait()
        for codec in (EngineClient, HermClient, EveClient):
            crash.setattr(codec, "recover", lambda *_: None)
            crash.setattr(codec, "streams", lambda _: ())
        await house.restart()
        live = await house.live(live.id)
        await until(lambda: lost not in live.state.inputs)
        assert live.state.interactions[answer.request_id].claimed_by is None
        assert live.state.waiting_on(ev.MAIN) == (answer.request_id,)
    # The codec expects nothing of it either: another answer is the one that counts.
    await house.restart()
    live = await house.live(live.id)
    await live.submit([answer], by="local", face="eve")
    await settled(live)
    log = await house.log(live.id)
    outcomes = [one.outcome for one in log if isinstance(one, ev.InputSettled)]
    assert outcomes == ["taken", "unknown", "taken"]
    over = [one for one in log if isinstance(one, ev.InteractionResolved)]
    assert [one.outcome for one in over] == ["approved"]


@pytest.mark.parametrize("backend", ["engine", "herm", "old", "new"])
async def test_an_answer_is_stored_as_sent_by_the_write_that_accepts_it(
    start: Start[House], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start("sqlite")
    live, answer = await asked(house, backend)
    stored: list[tuple[str, bool]] = []
    submit = live.core.journal.submit

    def noted(write: Write) -> None:
        stored.extend((row.status, b"input.accepted" in write.body) for row in write.commands)
        submit(write)

    monkeypatch.setattr(live.core.journal, "submit", noted)
    await live.submit([answer], by="local", face="eve")
    await settled(live)
    assert stored == [("sent", True), ("settled", False)]
