"""The demo breaks: its server is killed or its streams are cut, and both sides go on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from adapters.wire.errors import DragomanError
from proxy import cli
from proxy.base import logs
from proxy.cli import demo as command
from proxy.cli import printing
from proxy.config.settings import Address
from proxy.scripted import BACKENDS
from proxy.scripted.hermes import GATED_SESSION
from proxy.scripted.scripts import SCRIPT_NAMES
from proxy.tools import demo, demo_server
from tests.support.demos import demo_process, running
from tests.support.eve_client import EveClient, EveSession
from tests.support.keys import credential
from tests.support.proxied import proxied
from tests.support.waiting import SOON_S, until

TICKS = 25
ANSWER = "".join(f"tick {number} " for number in range(TICKS)) + " (turn 1)"


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the log of the tests alone."""
    monkeypatch.setattr(logs, "configure", lambda **_: None)


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that opens a connection for each request, as what was cut is not used again."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        yield http


async def ask(
    http: aiohttp.ClientSession, method: str, url: str, key: str | None = None
) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an answer."""
    async with http.request(method, url, headers=credential(key)) as answer:
        return answer.status, await answer.json()


async def answer_slowly(http: aiohttp.ClientSession, url: str, backend: str) -> EveSession:
    """Begin an answer of some seconds, and return the session of a strict client."""
    eve = EveClient(http, f"{url}/as/eve/to/{backend}", beats=True)
    return await eve.create(f"script: slow {TICKS}")


async def reading(session: EveSession) -> asyncio.Task[Any]:
    """Return once a reader is in the middle of the answer."""
    task = asyncio.create_task(session.read_turn())
    await until(lambda: "tick 2 " in json.dumps(session.log) or task.done())
    assert not task.done()
    return task


async def check_whole(session: EveSession, text: str | None) -> None:
    """Check that a reader has had the whole answer, and what one that was never cut has."""
    assert text == ANSWER
    another = session.client.attach(session.session_id)
    async for _ in another.stream(follow=False):
        pass
    assert session.log == another.log


async def test_a_frontend_gets_every_record_once_though_the_server_is_killed() -> None:
    async with running() as (url, _), client() as http:
        assert (await ask(http, "GET", f"{url}/api/v1/demo"))[1]["started"] == 1
        session = await answer_slowly(http, url, "herm")
        task = await reading(session)
        status, body = await ask(http, "POST", f"{url}/api/v1/demo/kill")
        assert (status, body) == (202, {"version": 1, "killed": True})
        await check_whole(session, (await task).text)
        assert (await ask(http, "GET", f"{url}/api/v1/demo"))[1]["started"] == 2


async def started(http: aiohttp.ClientSession, url: str, number: int) -> None:
    """Wait until this server answers; a request may still reach the one that is being killed."""
    async with asyncio.timeout(SOON_S):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                if (await ask(http, "GET", f"{url}/api/v1/demo"))[1]["started"] == number:
                    return


async def shown(http: aiohttp.ClientSession, stream: str, kind: str, text: str) -> dict[str, Any]:
    """Wait until a session shows a record of a kind with a text, and return its data."""
    async with asyncio.timeout(SOON_S):
        while True:
            async with http.get(stream, params={"follow": "0"}) as answer:
                lines = (await answer.text()).splitlines() if answer.status == 200 else []
            for record in (json.loads(line) for line in lines if text in line):
                if record["type"] == kind:
                    data: dict[str, Any] = record["data"]
                    return data
            await asyncio.sleep(0.05)


async def test_a_hermes_that_waits_for_a_yes_goes_on_when_the_server_was_killed() -> None:
    async with running() as (url, _), client() as http:
        session = f"{url}/as/eve/to/hermes-agent/eve/v1/session/{GATED_SESSION}"
        asked = await shown(http, f"{session}/stream", "input.requested", "echo hi")
        await ask(http, "POST", f"{url}/api/v1/demo/kill")
        await started(http, url, 2)
        answer = {"requestId": asked["requests"][0]["requestId"], "optionId": "approve"}
        async with http.post(session, json={"inputResponses": [answer]}) as response:
            assert response.status == 202, await response.text()
        await shown(http, f"{session}/stream", "message.completed", "The command printed hi.")


async def test_a_frontend_gets_every_record_once_though_its_streams_are_cut() -> None:
    async with running() as (url, _), client() as http:
        session = await answer_slowly(http, url, "engine")
        other = session.client.attach(session.session_id)
        tasks = [await reading(session), await reading(other)]
        assert await ask(http, "POST", f"{url}/api/v1/demo/cut") == (200, {"version": 1, "cut": 2})
        for one, task in zip((session, other), tasks, strict=True):
            await check_whole(one, (await task).text)
        assert (await ask(http, "GET", f"{url}/api/v1/demo"))[1]["started"] == 1
        assert (await ask(http, "POST", f"{url}/api/v1/demo/cut"))[1]["cut"] == 0


async def test_a_demo_says_what_can_be_tried_there() -> None:
    async with running() as (url, _), client() as http:
        status, body = await ask(http, "GET", f"{url}/api/v1/demo")
    assert status == 200
    assert body["backends"] == list(BACKENDS)
    assert [one["name"] for one in body["scripts"]] == ["answer", "slow", "tool", "ask", "fail"]
    for one in body["scripts"]:
        assert one["text"].split()[1] in SCRIPT_NAMES


async def test_only_the_demos_own_key_and_an_administrators_break_it() -> None:
    keys = [
        {"name": "web", "sha256": hashlib.sha256(b"k-web").hexdigest()},
        {"name": "ops", "sha256": hashlib.sha256(b"k-ops").hexdigest(), "admin": True},
    ]
    async with (
        running({"KEYS": json.dumps(keys)}) as (url, own),
        client() as http,
    ):
        for method, path in (("GET", ""), ("POST", "/cut"), ("POST", "/kill")):
            assert (await ask(http, method, f"{url}/api/v1/demo{path}"))[0] == 401
        for path in ("/cut", "/kill"):
            assert (await ask(http, "POST", f"{url}/api/v1/demo{path}", "k-web"))[0] == 403
        assert (await ask(http, "GET", f"{url}/api/v1/demo", "k-web"))[1]["started"] == 1
        for key in (own, "k-ops"):
            assert (await ask(http, "POST", f"{url}/api/v1/demo/cut", key))[0] == 200


async def test_no_other_server_can_be_broken() -> None:
    async with proxied() as served, client() as http:
        for method, path in (("GET", ""), ("POST", "/cut"), ("POST", "/kill")):
            status, _ = await ask(http, method, f"{served.url}/api/v1/demo{path}")
            assert status == 404


@pytest.fixture
def killing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have so many servers killed before they have said anything."""
    left = 0
    start = demo_server.start_server

    async def started(
        plan: demo_server.DemoPlan, environ: Mapping[str, str]
    ) -> asyncio.subprocess.Process:
        nonlocal left
        server = await start(plan, environ)
        if left:
            left -= 1
            server.kill()
        return server

    def kill(number: int) -> None:
        nonlocal left
        left = number

    monkeypatch.setattr(demo_server, "start_server", started)
    return kill


async def test_a_server_that_is_killed_at_its_start_is_started_again(
    killing: Callable[[int], None],
) -> None:
    killing(2)
    async with running() as (url, _), client() as http:
        assert (await ask(http, "GET", f"{url}/api/v1/demo"))[1]["started"] == 3


async def test_a_server_that_is_killed_at_each_start_is_given_up(
    killing: Callable[[int], None],
) -> None:
    killing(demo_server.STARTS)
    with pytest.raises(DragomanError, match="killed at 5 starts in a row"):
        await demo.run_demo(
            environ={},
            host=None,
            port=0,
            ready=lambda *_: pytest.fail("it has started"),
            stop=asyncio.Event(),
        )


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    taken = demo_server.open_sockets(Address("127.0.0.1", 0))[0]
    with taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        listeners = [{"listen": listen, "dialect": "eve", "route": "herm"}]
        variables = {"DRAGOMAN_LISTENERS": json.dumps(listeners), "TMPDIR": str(tmp_path)}
        done = CliRunner().invoke(cli.main, ["demo", "--port", "0"], env=variables)
    assert done.exit_code == 1
    assert "the server of the demo ended by itself, with status 1" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_demo_and_its_server(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with demo_process(tmp_path) as running:
        # As a terminal does with Ctrl-C: to the whole group.
        os.killpg(running.process.pid, number)
        status, said = await running.ended()
    assert (status, said) == (0, "")
    assert list(tmp_path.iterdir()) == []


async def test_a_demo_that_is_killed_leaves_no_server(tmp_path: Path) -> None:
    async with demo_process(tmp_path) as running:
        running.process.kill()
        status, _ = await running.ended()
        assert status == -signal.SIGKILL
        with pytest.raises(aiohttp.ClientConnectionError):
            async with client() as http:
                await ask(http, "GET", f"{running.url}/api/v1/demo")


def test_the_server_of_a_demo_is_started_by_the_demo_alone() -> None:
    done = CliRunner().invoke(cli.main, ["demo", "--server"], input="hello\n")
    assert done.exit_code == 2
    assert "run `dragoman demo`" in done.stderr
    assert "--server" not in CliRunner().invoke(cli.main, ["demo", "--help"]).output


@pytest.mark.parametrize(
    ("environ", "platform", "seen"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "darwin", True),
        ({"DISPLAY": "localhost:10.0", "SSH_CONNECTION": "a 1 b 22"}, "linux", False),
        ({"SSH_CONNECTION": "a 1 b 22"}, "darwin", False),
    ],
)
def test_a_browser_is_opened_where_it_can_be_seen(
    environ: dict[str, str], platform: str, seen: bool
) -> None:
    assert command.has_display(environ, platform) == seen


@pytest.mark.parametrize(
    ("options", "terminal", "opens"),
    [([], True, True), (["--no-browser"], True, False), ([], False, False)],
)
def test_the_page_comes_first_and_is_opened_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, options: list[str], terminal: bool, opens: bool
) -> None:
    found: list[str] = []
    opened = threading.Event()

    class Browser(webbrowser.BaseBrowser):
        def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
            found.append(url)
            opened.set()
            return True

    async def run_demo(*, ready: Callable[[str, str | None], None], **_: object) -> None:
        ready("http://0.0.0.0:1", "secret")
        if opens:
            await asyncio.to_thread(opened.wait)

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setattr(printing, "on_terminal", lambda: terminal)
    monkeypatch.setattr(command, "has_display", lambda *_: True)
    monkeypatch.setattr(webbrowser, "get", lambda *_: Browser())
    done = CliRunner().invoke(cli.main, ["demo", *options])
    assert done.exit_code == 0, done.output
    first, second = done.output.splitlines()[:2]
    assert first == "Open http://127.0.0.1:1/ui/ with the key secret"
    assert second == "listening on http://0.0.0.0:1"
    assert found == (["http://127.0.0.1:1/ui/"] if opens else [])
