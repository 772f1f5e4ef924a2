"""No session moves to a backend that fails its check: nothing changes, and one message says why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from proxy.cli import main
from proxy.config.settings import BackendSettings, Settings
from proxy.scripted.faults import Status
from proxy.upstream.readiness import Readiness
from tests.migration.support import House
from tests.support.dragoman import Start, starting
from tests.support.serving import HOST
from tests.support.waiting import asks, until


class Unready(House):
    """A House with a wrong key for `engine`; at the address of `engine2` there is a Herm, and at
    that of `new` nobody."""

    def __init__(self, journal: Any, **options: Any) -> None:
        super().__init__(journal, **options)
        self.backends["engine"].key = "k-wrong"

    @property
    def settings(self) -> Settings:
        """The configuration, with the wrong address."""
        settings = super().settings
        found = {one.name: one for one in settings.backends}
        wrong = found["engine2"].model_copy(update={"url": self.backend_url("herm")})
        backends = tuple({**found, "engine2": wrong}.values())
        return settings.model_copy(update={"backends": backends})

    async def start(self) -> None:
        """Start the proxy, and stop the backend that is not there."""
        await super().start()
        await self.stop_backend("new")


WRONG = {
    "engine": ("credential_refused", "it refuses our credential (401"),
    "engine2": ("other_dialect", "what answers is of the dialect `herm`"),
    "new": ("connection_refused", "nothing listens on port"),
}
"""By backend: the kind and the words of what is wrong with it."""


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start[Unready]]:
    async with starting(Unready, tmp_path) as start:
        yield start


@pytest.fixture
async def well(tmp_path: Path) -> AsyncIterator[Start[House]]:
    async with starting(House, tmp_path) as start:
        yield start


async def run(house: House, *arguments: str) -> Result:
    given = ["migrate", *arguments, "--url", f"http://{HOST}:{house.port}"]
    return await asyncio.to_thread(CliRunner().invoke, main, given)


async def said(house: House, text: str = "Hello") -> str:
    session = await house.eve_client("old", style="S").create(text)
    await session.read_turn()
    return session.session_id


async def where(house: House, names: list[str]) -> list[list[str]]:
    """The backends at which sessions have been."""
    rows = [(await house.live(name)).row.key for name in names]
    return [[leg.backend for leg in await house.sessions.journal.legs(row)] for row in rows]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("to", WRONG)
async def test_a_move_is_refused_in_one_message_before_anything_moves(
    start: Start[Unready], to: str, dry_run: bool
) -> None:
    house = await start()
    names = [await said(house) for _ in range(3)]
    more = ["--dry-run"] if dry_run else []
    refused = await run(house, "move", "--all", "--from", "old", "--to", to, *more)
    kind, words = WRONG[to]
    assert (refused.exit_code, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"dragoman: Backend `{to}` is not ready: ")
    assert words in line
    assert line.endswith(". Nothing has moved.")
    as_json = await run(house, "move", names[0], "--from", "old", "--to", to, "--json", *more)
    assert as_json.exit_code == 1
    error = json.loads(as_json.stderr)["error"]
    assert error["code"] == "backend_not_ready"
    url = f"http://{HOST}:{house.port}/api/v1/sessions/{names[0]}/move"
    async with house.http.post(url, json={"to": to, "dry_run": dry_run}) as response:
        status, body = response.status, await response.json()
    assert (status, body["error"]["code"]) == (409, "backend_not_ready")
    assert (body["error"]["details"]["backend"], body["error"]["details"]["kind"]) == (to, kind)
    assert await where(house, names) == [["old"]] * 3


async def test_a_session_at_work_is_not_waited_for_where_no_session_can_move(
    start: Start[Unready],
) -> None:
    house = await start()
    session = await house.eve_client("old", style="S").create("script: approve")
    live = await house.live(session.session_id)
    await until(lambda: asks(live))
    # It would wait for the session, and for an hour.
    refused = await run(house, "move", "--all", "--from", "old", "--to", "engine", "--wait", "60m")
    assert refused.exit_code == 1
    assert "is not ready: it refuses our credential" in refused.stderr


async def test_nothing_is_taken_back_to_a_backend_that_is_gone(well: Start[House]) -> None:
    house = await well()
    name = await said(house)
    assert (await run(house, "move", name, "--from", "old", "--to", "engine")).exit_code == 0
    await house.stop_backend("old")
    for more in ([], ["--dry-run"]):
        refused = await run(house, "rollback", name, *more)
        assert refused.exit_code == 1
        assert "Backend `old` is not ready: nothing listens on port" in refused.stdout
    assert await where(house, [name]) == [["old", "engine"]]


async def test_a_backend_that_was_mended_takes_sessions_at_once(start: Start[Unready]) -> None:
    house = await start()
    name = await said(house)
    again = ("move", name, "--from", "old", "--to", "new")
    assert (await run(house, *again)).exit_code == 1
    await house.start_backend("new")
    done = await run(house, *again)
    assert (done.exit_code, "1 of 1 done" in done.stderr) == (0, True)


async def test_what_could_not_be_learned_is_said_once_and_holds_nothing_up(
    well: Start[House],
) -> None:
    """A key can only be tried where a route wants one; this backend has lost that route."""
    house = await well()
    house.scripted["new"].faults.plan.update({("info", n): Status(404) for n in range(1, 10)})
    for _ in range(2):
        await said(house)
    done = await run(house, "move", "--all", "--from", "old", "--to", "new")
    assert done.exit_code == 0
    notice = "Backend `new`: its credential is not known: /eve/v1/info is not there (404)"
    assert done.stderr.count(notice) == 1
    assert "2 of 2 done" in done.stderr


async def test_a_backend_that_goes_while_sessions_move_stops_the_move(
    well: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await well()
    names = [await said(house) for _ in range(4)]
    require, asked = Readiness.require, 0

    async def leaving(readiness: Readiness, backend: BackendSettings) -> list[str]:
        nonlocal asked
        asked += 1
        if asked == 2:
            await house.stop_backend("engine")
            readiness._found.clear()
        return await require(readiness, backend)

    monkeypatch.setattr(Readiness, "require", leaving)
    done = await run(house, "move", *names, "--from", "old", "--to", "engine")
    assert (done.exit_code, asked) == (1, 2)
    moved, refused = [line.split("\t") for line in done.stdout.splitlines()]
    assert (moved[0], moved[3]) == (names[0], "moved")
    assert refused[0] == "3 sessions"
    assert refused[3].startswith("Backend `engine` is not ready: nothing listens on port")
    assert "1 of 4 done" in done.stderr
    assert await where(house, names) == [["old", "engine"], ["old"], ["old"], ["old"]]


async def test_refusals_for_one_reason_are_one_line_and_all_of_them_in_json(
    well: Start[House],
) -> None:
    house = await well()
    names = []
    for _ in range(5):
        session = await house.eve_client("old", style="S").create("script: approve")
        live = await house.live(session.session_id)
        await until(lambda live=live: asks(live))  # type: ignore[misc]
        names.append(session.session_id)
    arguments = ("move", *names, "--from", "old", "--to", "engine")
    refused = await run(house, *arguments)
    assert refused.exit_code == 1
    (line,) = refused.stdout.splitlines()
    said_of_all = "Session `…` waits for the answer to request `…`."
    some = ", ".join(names[:3])
    assert line.split("\t") == ["5 sessions", "", "", f"{said_of_all} ({some}, …)", ""]
    count, go_on = refused.stderr.splitlines()
    assert count == "0 of 5 done: 5 refused"
    assert go_on.startswith(f"go on: dragoman migrate {' '.join(arguments)} --url ")
    as_json = json.loads((await run(house, *arguments, "--json")).stdout)
    assert as_json["summary"]["refused"] == [{"why": said_of_all, "sessions": 5}]
    found = as_json["sessions"]
    assert [one["id"] for one in found] == names
    assert {one["error"]["code"] for one in found} == {"busy"}
