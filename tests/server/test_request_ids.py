"""A backend that uses the id of a request a second time: both are asked, and both answers arrive
under the backend's own id, though a restart lies between."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from proxy.migration.moving import move
from proxy.scripted.engine_turns import ScriptedEngine
from proxy.scripted.eve_turns import ScriptedEve
from proxy.scripted.herm_turns import ScriptedHerm
from proxy.session import Session
from tests.migration.support import House
from tests.support.dragoman import Start, starting
from tests.support.waiting import asks, settled, until

ONCE_ONLY = ("hitl", "toolu", "req")


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start[House]]:
    for backend in (ScriptedEngine, ScriptedHerm):
        new_id: Any = backend.new_id

        def named(self: Any, kind: str, new_id: Any = new_id) -> str:
            return f"{kind}-1" if kind in ONCE_ONLY else new_id(self, kind)

        monkeypatch.setattr(backend, "new_id", named)
    name: Any = ScriptedEve.name
    monkeypatch.setattr(
        ScriptedEve, "name", lambda self, kind, n: "A" * n if n == 24 else name(self, kind, n)
    )
    async with starting(House, tmp_path) as start:
        yield start


async def approved(house: House, live: Session) -> str:
    """Have something asked, restart, approve it; return the name that it has here."""
    said = cmd.SendMessage(content=(ev.Text(text="script: approve"),), policy="queue")
    await live.submit([said], by="local", face=live.row.dialect)
    await until(lambda: asks(live))
    await house.restart()
    live = await house.live(live.id)
    await until(lambda: asks(live))
    (request,) = live.open_interactions()
    answer = cmd.AnswerInteraction(request_id=request.request_id, decision="allow")
    await live.submit([answer], by="local", face=live.row.dialect)
    await settled(live)
    return request.request_id


ANSWERS = {"engine": "respond", "herm": "post", "old": "message", "new": "message"}


@pytest.mark.parametrize("backend", ANSWERS)
async def test_the_second_request_of_an_id_is_asked_and_its_answer_arrives(
    start: Start[House], backend: str
) -> None:
    house = await start("sqlite")
    live = await house.sessions.create(owner="local", route=backend, dialect="eve")
    first = await approved(house, live)
    second = await approved(house, await house.live(live.id))
    assert second == f"{first}~2"
    log = await house.log(live.id)
    over = [one for one in log if isinstance(one, ev.InteractionResolved)]
    assert [(one.request_id, one.outcome) for one in over] == [
        (first, "approved"),
        (second, "approved"),
    ]
    assert [one.outcome for one in log if isinstance(one, ev.InputSettled)] == ["taken"] * 4
    bodies = [json.loads(one) for one in house.bodies(backend, ANSWERS[backend]) if one]
    answers = [text for text in map(json.dumps, bodies) if "answer" in text or first in text]
    assert len(answers) == 2
    assert not any("~2" in text for text in answers)


async def test_an_id_that_the_backend_before_has_used_names_another_request(
    start: Start[House],
) -> None:
    house = await start("sqlite")
    live = await house.sessions.create(owner="local", route="engine", dialect="eve")
    assert await approved(house, live) == "hitl-1"
    await move(house.sessions, live.id, to="engine2", by="me")
    assert await approved(house, await house.live(live.id)) == "hitl-1~2"
    assert len(house.bodies("engine2", "respond")) == 1
