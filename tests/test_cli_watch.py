"""`dragoman sessions watch`: a session in words and as its log, the list, restarts, and ^C."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.proxied import Proxied, proxied
from tests.support.running import Running
from tests.support.terminal import COLUMNS, run_in_terminal
from tests.test_cli import dragoman, output, process

pytestmark = pytest.mark.pages


@pytest.fixture
async def running() -> AsyncIterator[Proxied]:
    async with proxied() as made:
        yield made


async def said(running: Proxied, script: str) -> str:
    """Return a session in which a script was played and that is over: a watch ends with it."""
    session = await running.say(f"script: {script}")
    await running.until_idle(session)
    status, _ = await running.request("DELETE", f"/api/v1/sessions/{session}?local=1")
    assert status == 200
    return session


async def lines_until(child: asyncio.subprocess.Process, end: str) -> list[str]:
    """Return what a process prints until a line has these words."""
    assert child.stdout is not None
    lines: list[str] = []
    while not lines or end not in lines[-1]:
        line = await child.stdout.readline()
        assert line, lines
        lines.append(line.decode().rstrip("\n"))
    return lines


async def stopped(child: asyncio.subprocess.Process) -> str:
    """End a watch with ^C; returns what it said on stderr."""
    child.send_signal(signal.SIGINT)
    status, _, err = await output(child)
    assert status == 0
    return err


async def test_a_session_is_told_in_words(running: Proxied, tmp_path: Path) -> None:
    session = await running.say("script: approve")
    request = (await running.asked(session)).request_id
    words = ("sessions", "watch", session[:12], "--url", running.url)
    async with process(*words, "--after", "0", cwd=tmp_path) as child:
        before = await lines_until(child, "--deny")
        answered = await dragoman("answer", "--allow", url=running.url)
        assert answered.exit_code == 0
        after = await lines_until(child, "the turn ended")
        assert await stopped(child) == ""
    told = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in [*before, *after] if line]
    assert told[:5] == [
        "the session begins",
        "the turn begins",
        "user: script: approve",
        "agent: The old export is 4 GB; removing it frees the disk.",
        'agent calls bash {"command":"rm -rf /srv/exports/2024"}',
    ]
    assert told[5] == f"{session}  approval"
    assert f"    {request} --allow" in told
    assert told[-5:] == [
        f"local answers {request}",
        f"{request} is approved",
        "bash returned",
        "agent: Done, 4.1 GB freed. (turn 1)",
        "the turn ended: completed",
    ]


async def test_it_begins_with_what_is_open_and_says_it_once(
    running: Proxied, tmp_path: Path
) -> None:
    session = await running.say("script: approve-twice")
    await running.asked(session)
    async with process("sessions", "watch", session, "--url", running.url, cwd=tmp_path) as child:
        first = await lines_until(child, "--deny")
        assert first[:2] == [f"{session} is paused", ""]
        await dragoman("answer", "--allow", url=running.url)
        second = await lines_until(child, "--deny")
        await stopped(child)
    lines = [*first, *second]
    assert lines.count("  Write to /etc/hosts?") == 1
    assert lines.count("  Run `rm -rf /srv/exports/2024`?") == 1


async def test_json_is_the_log(running: Proxied, tmp_path: Path) -> None:
    session = await running.say("script: tools")
    await running.until_idle(session)
    status, log = await running.request("GET", f"/api/v1/sessions/{session}/events")
    assert status == 200
    words = ("sessions", "watch", session, "--json", "--after", "0", "--url", running.url)
    async with process(*words, cwd=tmp_path) as child:
        assert await lines_until(child, '"turn.ended"') == log.splitlines()
        await stopped(child)


async def test_a_restart_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with Running(f"sqlite:///{tmp_path / 'own.db'}") as server:
        url = f"http://127.0.0.1:{server.port}"
        base = f"{server.base}/eve/v1/session"
        async with server.http.post(base, json={"message": "script: tools"}) as response:
            session = (await response.json())["sessionId"]
        words = ("sessions", "watch", session, "--json", "--after", "0", "--url", url)
        async with process(*words, cwd=tmp_path) as child:
            lines = await lines_until(child, '"turn.ended"')
            await server.crash()
            assert child.stderr is not None
            gone = (await child.stderr.readline()).decode()
            await server.start()
            back = (await child.stderr.readline()).decode()
            body = {"message": "once more"}
            async with server.http.post(f"{base}/{session}", json=body) as response:
                assert response.status in (200, 202)
            lines += await lines_until(child, '"turn.ended"')
            assert await stopped(child) == ""
        assert gone.startswith(f"dragoman: {url}: ")
        assert back == f"dragoman: {url} is back.\n"
        assert [json.loads(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))


async def test_a_stream_that_is_cut_goes_on_at_its_event() -> None:
    asked: list[str] = []

    def entry(seq: int, **members: object) -> bytes:
        base = {"seq": seq, "at": 0, "session_id": "s", "thread_id": "main"}
        return json.dumps({**base, **members}).encode() + b"\n"

    texts = [entry(n, type="text.completed", text=f"text {n}\x1b[2J\nmore") for n in (1, 2, 3)]
    end = entry(4, type="session.ended", outcome="failed", error={"message": "out of money"})
    stopping = b'{"version":1,"error":{"code":"stopping","message":"it stops"}}\n'
    bodies = [
        (200, texts[0] + texts[1][:20]),
        (200, texts[0] + texts[1] + stopping),
        (503, b"{}"),
        (200, b"\n" + texts[2] + end),
    ]

    async def answer(request: web.Request) -> web.Response:
        if not request.path.endswith("/events"):
            return web.json_response(
                {"id": "s", "state": "running", "last_seq": 0, "open_interactions": []}
            )
        asked.append(request.query["after"])
        status, body = bodies.pop(0)
        return web.Response(status=status, body=body, content_type="application/x-ndjson")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        done = await dragoman("sessions", "watch", "s", url=str(server.make_url("/")))
    assert (done.exit_code, asked) == (0, ["0", "1", "2", "2"])
    assert done.stdout.splitlines() == [
        "s is running",
        *(f"00:00:00 agent: text {n} [2J more" for n in (1, 2, 3)),
        "00:00:00 the session ended: failed, out of money",
    ]
    assert done.stderr.count("it stops; it is asked again until ^C") == 1
    assert done.stderr.count("is back") == 1


async def test_what_cannot_be_watched_is_status_1(running: Proxied) -> None:
    for words in (["nobody"], [await said(running, "text")]):
        done = await dragoman("sessions", "watch", *words, url=running.url)
        assert (done.exit_code, done.stdout) == (1, "")
    for words in ([], ["s"]):
        done = await dragoman("sessions", "watch", *words, url="http://127.0.0.1:1")
        assert (done.exit_code, done.stdout) == (1, "")
        assert "no server can be reached" in done.stderr
    done = await dragoman("sessions", "watch", "--after", "0", url=running.url)
    assert done.exit_code == 2


async def test_the_list_has_a_line_for_each_change_in_a_pipe(
    running: Proxied, tmp_path: Path
) -> None:
    await said(running, "text")
    session = await running.say("script: approve")
    await running.asked(session)
    words = ("sessions", "watch", "--url", running.url)
    async with process(*words, cwd=tmp_path) as child:
        (first,) = await lines_until(child, "paused")
        assert first.split("\t")[:2] == [session, "paused"]
        await dragoman("answer", "--allow", url=running.url)
        await lines_until(child, f"{session}\tidle")
        await running.request("DELETE", f"/api/v1/sessions/{session}?local=1")
        await lines_until(child, f"{session}\tdeleted")
        assert await stopped(child) == ""
    other = await running.say("hello")
    async with process(*words, "--json", cwd=tmp_path) as child:
        (line,) = await lines_until(child, '"idle"')
        assert json.loads(line)["id"] == other
        await stopped(child)


async def test_the_list_on_a_terminal_refreshes_until_ctrl_c(running: Proxied) -> None:
    session = await running.say("hello")
    await running.until_idle(session)
    shown = await run_in_terminal(
        ["sessions", "watch"],
        env={"DRAGOMAN_URL": running.url},
        input=b"\x03",
        once=b"idle",
    )
    assert shown.status == 0
    assert shown.lines[0].removeprefix("^C").split() == ["id", "state", "updated", "title"]
    assert shown.lines[1].startswith(f"{session}  idle ")
    assert max(map(len, shown.lines)) <= COLUMNS
