"""Sessions move in waves: what goes wrong stops them, and the same command goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result

from proxy.cli import main
from proxy.cli.servers import ServerClient
from proxy.config.settings import BackendSettings
from proxy.migration.moving import MoveResult, move
from proxy.scripted.faults import Status
from proxy.upstream.backend_check import CheckResult
from proxy.upstream.readiness import Readiness
from tests.migration.support import House
from tests.migration.test_kills import Served
from tests.support.dragoman import Start, starting
from tests.support.eve_client import EveSession
from tests.support.serving import HOST
from tests.support.waiting import asks, settled, until

BOTH = ("--from", "old", "--to", "new")


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start[House]]:
    async with starting(House, tmp_path) as start:
        yield start


async def run(url: str, *arguments: str) -> Result:
    given = ["migrate", *arguments, "--url", url]
    return await asyncio.to_thread(CliRunner().invoke, main, given)


def url_of(house: House) -> str:
    return f"http://{HOST}:{house.port}"


async def made(house: House, count: int, route: str = "old") -> list[EveSession]:
    out = []
    for _ in range(count):
        session = await house.eve_client(route, style="S").create("Hello")
        await session.read_turn()
        out.append(session)
    return out


async def at(house: House, backend: str, sessions: list[EveSession]) -> int:
    """How many sessions are at a backend."""
    live = [await house.live(one.session_id) for one in sessions]
    return sum(one.leg.backend == backend for one in live)


class Talking:
    """Somebody says something in sessions as soon as they have moved. Of the messages that the new
    backend gets some fail: those whose numbers are in `failing`."""

    def __init__(
        self,
        house: House,
        sessions: list[EveSession],
        monkeypatch: pytest.MonkeyPatch,
        *,
        messages: int,
        failing: set[int],
    ) -> None:
        self._sessions = {one.session_id: one for one in sessions}
        self._house = house
        self._left = messages
        faults = house.scripted["new"].faults
        faults.plan.update({("create", number): Status(500) for number in failing})
        monkeypatch.setattr("proxy.control.control.move", self.move)

    async def move(self, *given: Any, **options: Any) -> MoveResult:
        """Move a session, and say something in it."""
        moved = await move(*given, **options)
        if self._left and moved.moved:
            self._left -= 1
            await self._sessions[moved.session].send("Are you there?")
            live = await self._house.live(moved.session)
            await until(lambda: not live.state.busy and not live.state.inputs)
            await settled(live)
        return moved


async def test_sessions_stop_moving_once_more_turns_fail_than_succeed(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start()
    sessions = await made(house, 12)
    Talking(house, sessions, monkeypatch, messages=3, failing={1, 3})
    stopped = await run(url_of(house), "move", "--all", *BOTH)
    assert stopped.exit_code == 1
    assert stopped.stderr.splitlines() == [
        "stopped: more turns failed at `new` than succeeded.",
        "turns meanwhile: 1 succeeded, 2 failed (2 http_500)",
        "10 of 12 done: 10 moved, 2 left",
        f"go on: dragoman migrate move --all --from old --to new --url {url_of(house)}",
        f"take back: dragoman migrate rollback --all --from new --url {url_of(house)}",
    ]
    assert await at(house, "new", sessions) == 10
    # Who gives the command again has seen what failed before.
    again = shlex.split(stopped.stderr.splitlines()[3].removeprefix("go on: "))
    done = await asyncio.to_thread(CliRunner().invoke, main, [*again[1:], "--json"])
    assert done.exit_code == 0
    summary = json.loads(done.stdout)["summary"]
    assert (summary["sessions"], summary["moved"], summary["there"]) == (12, 2, 10)
    assert (summary["stopped"], summary["go_on"], summary["left"]) == (None, None, 0)
    back = shlex.split(summary["take_back"])
    assert (await asyncio.to_thread(CliRunner().invoke, main, back[1:])).exit_code == 0
    assert await at(house, "old", sessions) == 12


async def test_as_many_turns_that_succeed_as_fail_stop_nothing(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start()
    sessions = await made(house, 11)
    Talking(house, sessions, monkeypatch, messages=2, failing={2})
    done = await run(url_of(house), "move", "--all", *BOTH)
    assert done.exit_code == 0
    assert "turns meanwhile: 1 succeeded, 1 failed (1 http_500)" in done.stderr
    assert "11 of 11 done: 11 moved" in done.stderr


async def test_turns_that_fail_while_a_session_is_waited_for_stop_the_wait(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start()
    waits = await house.eve_client("old", style="S").create("script: approve")
    live = await house.live(waits.session_id)
    await until(lambda: asks(live))
    sessions = await made(house, 1)
    Talking(house, sessions, monkeypatch, messages=1, failing={1})
    stopped = await run(url_of(house), "move", "--all", *BOTH, "--wait", "60m")
    assert stopped.exit_code == 1
    assert "stopped: more turns failed" in stopped.stderr
    assert "1 of 2 done: 1 moved, 1 refused" in stopped.stderr
    assert "--to new --wait 3600s --url" in stopped.stderr


async def test_turns_count_from_the_newest_move_and_the_time_that_is_asked_for(
    start: Start[House],
) -> None:
    house = await start()
    (session,) = await made(house, 1)
    url = f"{url_of(house)}/api/v1/migration/moved"

    async def moved(**query: str) -> Any:
        async with house.http.get(url, params=query) as answer:
            return await answer.json()

    await run(url_of(house), "move", session.session_id, *BOTH)
    (one,) = (await moved(**{"from": "old"}))["sessions"]
    # The turn at the old backend does not count for the new one.
    assert one == {
        "id": session.session_id,
        "backend": "new",
        "before": "old",
        "taken_back": False,
        "back": "old",
        "succeeded": 0,
        "failed": {},
    }
    await session.send("And now?")
    await session.read_turn()
    live = await house.live(session.session_id)
    await settled(live)
    assert [one["succeeded"] for one in (await moved(to="new", since="0"))["sessions"]] == [1]
    assert [one["succeeded"] for one in (await moved(to="new"))["sessions"]] == [0]
    now = str((await moved(to="new"))["at"] + 1)
    assert [one["succeeded"] for one in (await moved(to="new", since=now))["sessions"]] == [0]
    assert (await moved(to="new", since="0", changed=now))["sessions"] == []
    assert (await moved(to="old"))["sessions"] == []
    for query, status in ({}, 400), ({"to": "nowhere"}, 404):
        async with house.http.get(url, params=query) as answer:
            assert answer.status == status


async def test_a_backend_that_is_gone_is_asked_once_when_all_is_taken_back(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start()
    gone, stays = await made(house, 5), await made(house, 2, "herm")
    began = await made(house, 1, "engine")
    for name in ("old", "herm"):
        moved = await run(url_of(house), "move", "--all", "--from", name, "--to", "engine")
        assert moved.exit_code == 0
    await house.stop_backend("old")
    asked: list[str] = []
    ask = Readiness._ask

    async def counting(readiness: Readiness, backend: BackendSettings) -> CheckResult:
        asked.append(backend.name)
        return await ask(readiness, backend)

    monkeypatch.setattr(Readiness, "_ask", counting)
    back = await run(url_of(house), "rollback", "--all", "--from", "engine")
    assert (back.exit_code, asked.count("old"), await at(house, "herm", stays)) == (1, 1, 2)
    assert "5 sessions\t\t\tBackend `old` is not ready" in back.stdout
    assert "2 of 7 done: 2 moved, 5 refused" in back.stderr
    await house.start_backend("old")
    again = await run(url_of(house), "rollback", "--all", "--from", "engine")
    assert again.exit_code == 0
    assert "7 of 7 done: 5 moved, 2 there already" in again.stderr
    assert (await at(house, "old", gone), await at(house, "engine", began)) == (5, 1)


async def test_of_two_moves_a_session_that_went_back_by_one_counts_as_there(
    start: Start[House],
) -> None:
    house = await start()
    sessions = await made(house, 2)
    for source, target in ("old", "engine"), ("engine", "herm"):
        done = await run(url_of(house), "move", "--all", "--from", source, "--to", target)
        assert done.exit_code == 0
    assert (await run(url_of(house), "rollback", sessions[0].session_id)).exit_code == 0
    back = await run(url_of(house), "rollback", "--all", "--from", "herm")
    assert (back.exit_code, back.stderr) == (0, "2 of 2 done: 1 moved, 1 there already\n")
    further = await run(url_of(house), "rollback", "--all", "--from", "engine")
    assert (further.exit_code, further.stderr) == (0, "2 of 2 done: 2 moved\n")
    assert await at(house, "old", sessions) == 2


async def test_a_person_who_stops_the_command_is_told_what_has_moved(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start()
    sessions = await made(house, 3)
    attempt, asked = ServerClient.attempt, 0

    def interrupted(server: ServerClient, *given: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise KeyboardInterrupt
        return attempt(server, *given, **options)

    monkeypatch.setattr(ServerClient, "attempt", interrupted)
    stopped = await run(url_of(house), "move", "--all", *BOTH)
    assert stopped.exit_code == 1
    assert stopped.stderr.startswith("stopped: interrupted.\n2 of 3 done: 2 moved, 1 left\ngo on: ")
    assert await at(house, "new", sessions) == 2


async def test_a_dry_run_counts_what_would_move_and_names_no_command(start: Start[House]) -> None:
    house = await start()
    first, *_ = await made(house, 3)
    assert (await run(url_of(house), "move", first.session_id, *BOTH)).exit_code == 0
    would = await run(url_of(house), "move", "--all", *BOTH, "--dry-run")
    assert (would.exit_code, would.stderr) == (0, "2 of 3 would move: 1 there already\n")


async def test_a_server_that_is_killed_in_the_middle_stops_the_move_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House("memory:")
    for backend in house.backends.values():
        backend.options = {**backend.options, "key": None}
    async with house, aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as stack:
        served = Served(house, tmp_path, http)
        await served.dragoman.start()
        stack.push_async_callback(served.dragoman.close)
        create = "/as/eve/to/old/eve/v1/session"
        for _ in range(6):
            _, text = await served.ask("POST", create, {"message": "script: text\nHello"})
            await ended(served, json.loads(text)["sessionId"])
        loop, attempt, asked = asyncio.get_running_loop(), ServerClient.attempt, 0

        def killing(server: ServerClient, *given: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 4:
                asyncio.run_coroutine_threadsafe(served.dragoman.kill(), loop).result()
            return attempt(server, *given, **options)

        monkeypatch.setattr(ServerClient, "attempt", killing)
        stopped = await run(served.url, "move", "--all", *BOTH)
        assert stopped.exit_code == 1
        why, count, go_on, _ = stopped.stderr.splitlines()
        assert why.startswith(f"stopped: no server can be reached at {served.url}")
        assert count == "3 of 6 done: 3 moved, 3 left"
        await served.dragoman.start()
        again = shlex.split(go_on.removeprefix("go on: "))
        done = await asyncio.to_thread(CliRunner().invoke, main, again[1:])
        assert done.exit_code == 0
        assert "6 of 6 done: 3 moved, 3 there already" in done.stderr


async def ended(served: Served, session: str) -> None:
    """Wait until the turn of a session is over."""
    while (await served.log(session))[-1]["type"] != "turn.ended":  # noqa: ASYNC110 - it is remote
        await asyncio.sleep(0.01)
