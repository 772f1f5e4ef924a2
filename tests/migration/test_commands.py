"""Moves as an operator makes them, from the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from proxy.cli import main
from tests.migration.support import House
from tests.support.dragoman import starting
from tests.support.keys import key_of
from tests.support.serving import HOST
from tests.support.waiting import asks, until


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with starting(House, tmp_path) as start:
        yield await start()


async def run(house: House, *arguments: str, key: str | None = None) -> Result:
    given = [*arguments, "--url", f"http://{HOST}:{house.port}", *(["--key", key] if key else [])]
    return await asyncio.to_thread(CliRunner().invoke, main, ["migrate", *given])


async def said(house: House, text: str = "Hello", **options: Any) -> str:
    session = await house.eve_client("old", style="S", **options).create(text)
    await session.read_turn()
    return session.session_id


BOTH = ("--from", "old", "--to", "engine")


async def test_all_sessions_of_a_backend_move_and_come_back(house: House) -> None:
    names = [await said(house) for _ in range(3)]
    would = await run(house, "move", "--all", *BOTH, "--dry-run")
    assert would.exit_code == 0
    assert [line.split("\t")[:4] for line in would.stdout.splitlines()] == [
        [name, "old", "engine", "would move"] for name in reversed(names)
    ]
    moved = await run(house, "move", "--all", *BOTH)
    assert moved.exit_code == 0
    assert "3 of 3 done" in moved.stderr
    assert "moved\t2 exact" in moved.stdout
    assert {(await house.live(name)).leg.backend for name in names} == {"engine"}
    again = await run(house, "move", names[0], *BOTH, "--json")
    assert again.exit_code == 0
    (one,) = json.loads(again.stdout)["sessions"]
    assert (one["moved"], one["before"]) == (False, "engine")
    back = await run(house, "rollback", "--all", "--from", "engine")
    assert back.exit_code == 0
    assert {(await house.live(name)).leg.backend for name in names} == {"old"}
    more = await run(house, "rollback", names[0])
    assert more.exit_code == 1
    assert "nothing to take back" in more.stdout


async def test_what_has_ended_is_not_among_all(house: House) -> None:
    session = await house.eve_client("new", style="S").create("Hello")
    await session.read_turn()
    await session.reset()
    live = await house.live(session.session_id)
    await until(lambda: live.state.ended is not None and live.last_seq == live.state.seq)
    moved = await run(house, "move", "--all", "--from", "new", "--to", "engine")
    assert (moved.exit_code, moved.stdout) == (0, "")
    assert "0 of 0 done" in moved.stderr


async def test_a_session_at_work_is_waited_for(house: House) -> None:
    waits = await house.eve_client("old", style="S").create("script: approve")
    live = await house.live(waits.session_id)
    await until(lambda: asks(live))
    refused = await run(house, "move", "--all", *BOTH)
    assert refused.exit_code == 1
    assert "waits for the answer to request" in refused.stdout
    assert "0 of 1 done" in refused.stderr
    moving = asyncio.create_task(run(house, "move", "--all", *BOTH, "--wait", "10m"))
    turn = await waits.read_turn()
    request = turn.requests[0]["requestId"]
    await waits.respond(request, "approve")
    assert (await moving).exit_code == 0
    assert (await house.live(waits.session_id)).leg.backend == "engine"


async def test_what_is_not_understood_is_said(house: House) -> None:
    name = await said(house)
    for arguments, words in (
        (("move", *BOTH), "name sessions, or give --all"),
        (("rollback", "--all"), "--all needs --from BACKEND"),
    ):
        result = await run(house, *arguments)
        assert (result.exit_code, words in result.stderr) == (2, True)
    result = await run(house, "move", name, "--from", "old", "--to", "nowhere")
    assert (result.exit_code, "There is no backend `nowhere`" in result.stderr) == (1, True)
    result = await run(house, "move", "--all", "--from", "nowhere", "--to", "engine")
    assert (result.exit_code, "`from` names the backend" in result.stderr) == (1, True)
    result = await run(house, "move", "dgs_none", *BOTH)
    assert (result.exit_code, "no session `dgs_none`" in result.stdout) == (1, True)


async def test_only_an_administrator_moves_sessions(tmp_path: Path) -> None:
    keys = (key_of("one"), key_of("boss", admin=True))
    async with starting(House, tmp_path) as start:
        house = await start(settings={"keys": keys})
        name = await said(house, key="k-one")
        for key in ("k-one", "k-nobody"):
            result = await run(house, "move", name, *BOTH, key=key)
            assert result.exit_code == 1
        assert (await house.live(name)).leg.backend == "old"
        assert (await run(house, "move", "--all", *BOTH, key="k-boss")).exit_code == 0
        assert (await house.live(name)).leg.backend == "engine"
