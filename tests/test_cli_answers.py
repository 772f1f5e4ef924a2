"""What is open, and the commands that answer it: what they show, and what comes of an answer."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.cli import printing
from proxy.cli.asked import block
from proxy.cli.servers import DEFAULT_URL
from tests.support.alone import Alone
from tests.support.each import each
from tests.support.proxied import Proxied, proxied
from tests.support.terminal import COLUMNS, Shown, run_in_terminal
from tests.support.waiting import stored, until
from tests.test_cli import dragoman, output, process

ALLOWS = {"id": "approve", "label": "Yes", "decision": "allow", "scope": "once"}
ALWAYS = {"id": "always", "label": "Always", "decision": "allow", "scope": "always"}
DENIES = {"id": "deny", "label": "No", "decision": "deny"}


@pytest.fixture
async def running() -> AsyncIterator[Proxied]:
    async with proxied() as made:
        yield made


class Two(NamedTuple):
    """A session that asks two things at once."""

    url: str
    session: str
    requests: list[str]


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    async with Alone("memory:", dialect="herm") as running:
        body = {"message": "script: approve2"}
        async with running.http.post(f"{running.base}/eve/v1/session", json=body) as response:
            session = (await response.json())["sessionId"]
        live = await running.live(session)
        await until(lambda: len(live.open_interactions()) == 2 and stored(live))
        requests = [one.request_id for one in live.open_interactions()]
        yield Two(f"http://127.0.0.1:{running.port}", session, requests)


async def asking(running: Proxied, script: str = "approve") -> tuple[str, str]:
    """Return a session that asks, and the id of what it asks."""
    session = await running.say(f"script: {script}")
    return session, (await running.asked(session)).request_id


async def on_terminal(running: Proxied, *arguments: str) -> Shown:
    return await run_in_terminal(arguments, env={"DRAGOMAN_URL": running.url})


def asked(kind: str, **members: Any) -> dict[str, Any]:
    return {"session_id": "s-1", "request_id": "r-1", "kind": kind, "prompt": "Well?", **members}


def commands(entry: dict[str, Any], url: str = DEFAULT_URL) -> list[list[str]]:
    """The commands of a block, as a shell reads them."""
    text = "\n".join(line for line in block(entry, url)).replace("\\\n", "")
    lines = [line.strip() for line in text.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("dragoman ")]


@each(
    ("entry", "answers"),
    [
        (asked("approval"), ["--allow", "--deny"]),
        (asked("approval", options=[ALLOWS, DENIES]), ["--allow", "--deny"]),
        (
            asked("approval", options=[ALLOWS, ALWAYS, DENIES]),
            ["--allow", "--deny", "--option always"],
        ),
        (asked("approval", options=[ALWAYS, DENIES]), ["--deny", "--option always"]),
        (asked("limit", options=[ALLOWS, DENIES]), ["--allow", "--deny"]),
        (
            asked("question", options=[{"id": "a b", "label": "A"}], freeform=True),
            ["--option a b", "--text …", "--skip"],
        ),
        (
            asked("question", options=[{"id": "a", "label": "A"}, {"id": "\x1b[31m", "label": ""}]),
            ["--option a", "--skip"],
        ),
        (asked("question", freeform=True), ["--text …", "--skip"]),
        (asked("tool_result"), ["--text …", "--skip"]),
        (asked("secret"), ["--sealed", "--skip"]),
        (asked("sudo"), ["--sealed", "--skip"]),
        (asked("unknown"), ["--sealed", "--skip"]),
        (asked("authorization"), ["--deny"]),
        (asked("approval", claimed=True), []),
        (asked("approval", answerable=False), []),
        (asked("approval", request_id="r\n1"), []),
    ],
)
def test_each_kind_has_the_answers_that_it_takes(entry: dict[str, Any], answers: list[str]) -> None:
    found = commands(entry)
    assert all(words[:3] == ["answer", "s-1", "r-1"] for words in found)
    assert [" ".join(words[3:]) for words in found] == answers


def test_a_command_is_broken_at_spaces_only() -> None:
    long = asked("approval", session_id="s" * 90, request_id="-r")
    url = "https://me:secret@x.example:8787/dragoman"
    assert commands(long, url)[0] == [
        *("answer", "--url", "https://x.example:8787/dragoman"),
        *("--allow", "--", "s" * 90, "-r"),
    ]
    lines = list(block(long, url))
    wide = {line for line in lines[1:] if len(line) > COLUMNS}
    assert wide == {"    " + "s" * 90 + " \\"}
    assert "secret" not in "\n".join(lines)


def test_what_an_agent_writes_is_cut_and_moves_no_cursor() -> None:
    details = {"tool": "bash", "input": {"command": "x" * 5000 + "\x1b[2J"}}
    entry = asked("approval", prompt="\x1b[31mRun\n" + "word " * 1000, details=details)
    text = "\n".join(block(entry, DEFAULT_URL))
    assert "\x1b" not in text
    assert len(text) < 1500


@pytest.mark.pages
async def test_open_requests_are_blocks_on_a_terminal(running: Proxied) -> None:
    session, request = await asking(running)
    for arguments in (["interactions", "list"], ["sessions", "show", session]):
        shown = await on_terminal(running, *arguments)
        assert shown.status == 0
        assert max(map(len, shown.lines)) <= COLUMNS
        assert f"{session}  approval" in shown.lines
        assert "  tool:     bash" in shown.lines
        assert '  input:    {"command":"rm -rf /srv/exports/2024"}' in shown.lines
        assert "  options:  approve (Yes), deny (No)" in shown.lines
        pasted = shlex.split(shown.text.replace("\\\n", "").rstrip().splitlines()[-1])
        assert pasted == ["dragoman", "answer", "--url", running.url, session, request, "--deny"]
    done = await on_terminal(running, *pasted[1:])
    assert done.status == 0
    again = await on_terminal(running, "interactions", "list")
    assert again.lines == ["Nothing is open."]


@pytest.mark.parametrize("named", [True, False])
async def test_where_one_thing_is_open_no_ids_are_needed(running: Proxied, named: bool) -> None:
    session, _ = await asking(running)
    words = [session] if named else []
    done = await dragoman("answer", *words, "--allow", url=running.url)
    assert (done.exit_code, done.stdout.split("\t")[0]) == (0, "accepted")
    assert done.stderr == f"{session}: Run `rm -rf /srv/exports/2024`?\n"
    await running.until_idle(session)
    none = await dragoman("answer", *words, "--allow", url=running.url)
    assert (none.exit_code, none.stdout) == (1, "")
    assert none.stderr.startswith("dragoman: nothing is open")


async def test_where_several_are_open_they_are_shown_and_none_is_answered(
    running: Proxied,
) -> None:
    one, _ = await asking(running)
    other, request = await asking(running, "ask")
    done = await dragoman("answer", "--allow", url=running.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.endswith("dragoman: 2 requests are open; say which.\n")
    text = done.stderr.replace("\\\n", "")
    pasted = [shlex.split(line)[4:6] for line in text.splitlines() if "dragoman answer" in line]
    assert pasted[0][0] == one
    assert pasted[-1] == [other, request]
    listed = await dragoman("interactions", "list", url=running.url)
    assert len(listed.stdout.splitlines()) == 2


@pytest.mark.parametrize("given", ["all", "request", "wait"])
async def test_the_session_may_be_shortened_too(running: Proxied, given: str) -> None:
    session, request = await asking(running)
    more = {"all": [request], "request": [], "wait": [request, "--wait"]}[given]
    done = await dragoman("answer", session[:10], *more, "--allow", url=running.url)
    assert done.exit_code == 0, done.stderr
    await running.until_idle(session)
    nobody = await dragoman("answer", "dgs_zzzz", *more, "--allow", url=running.url)
    assert (nobody.exit_code, nobody.stdout) == (1, "")


async def test_a_request_may_be_shortened(running: Proxied) -> None:
    session, request = await asking(running)
    wrong = await dragoman("answer", session, "x" + request, "--allow", url=running.url)
    assert (wrong.exit_code, "has no request" in wrong.stderr) == (1, True)
    done = await dragoman("answer", session, request[:4], "--allow", url=running.url)
    assert (done.exit_code, done.stdout.split("\t")[0]) == (0, "accepted")


async def test_a_short_request_that_two_have_is_refused(two: Two) -> None:
    # Their ids differ in the last digit.
    short = two.requests[0][:-1]
    done = await dragoman("answer", two.session, short, "--allow", url=two.url)
    assert done.exit_code == 1
    assert "is not clear; say which" in done.stderr
    assert all(request in done.stderr for request in two.requests)


@pytest.mark.pages
async def test_an_answer_on_a_terminal_says_what_came_of_it(running: Proxied) -> None:
    session, _ = await asking(running, "approve-twice")
    shown = await on_terminal(running, "answer", session, "--allow")
    assert shown.status == 0
    assert "taken\nagent: Done, 4.1 GB freed.\nit asks:\n" in shown.text
    assert "  Write to /etc/hosts?" in shown.lines
    shown = await on_terminal(running, "answer", session, "--allow")
    assert shown.status == 0
    assert shown.lines[-1] == "the turn ended: completed"
    assert "it asks" not in shown.text


async def test_an_answer_that_is_refused_is_status_1(running: Proxied) -> None:
    session, request = await asking(running, "approve refused")
    shown = await on_terminal(running, "answer", session, request, "--allow")
    assert shown.status == 1
    says = "the answer is refused: This answer is refused on purpose."
    assert shown.lines == [f"dragoman: {says}"]
    session, request = await asking(running, "approve refused")
    done = await dragoman(
        "answer", session, request, "--allow", "--wait", "--json", url=running.url
    )
    assert (done.exit_code, done.stdout) == (1, "")
    assert json.loads(done.stderr)["error"] == {"code": "refused", "message": says}


async def test_what_came_of_it_as_json(running: Proxied) -> None:
    session, _ = await asking(running)
    done = await dragoman("answer", "--allow", "--wait", "--json", url=running.url)
    assert (done.exit_code, done.stderr) == (0, "")
    came = json.loads(done.stdout)
    assert came.pop("command_id")
    assert came == {
        "version": 1,
        "status": "accepted",
        "outcome": "taken",
        "said": ["Done, 4.1 GB freed. (turn 1)"],
        "end": "completed",
        "asks": [],
    }
    await running.until_idle(session)


async def test_another_open_request_ends_the_wait(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    first, second = two.requests
    done = await dragoman("answer", two.session, first, "--deny", url=two.url)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("taken\nit asks:\n")
    assert second in done.stdout


async def test_ctrl_c_ends_the_wait_and_leaves_the_answer(tmp_path: Path) -> None:
    async with proxied(engine={"pace": 100.0}) as running:
        session, request = await asking(running, "approve slowly")
        arguments = ("answer", session, request, "--allow", "--wait", "--url", running.url)
        async with process(*arguments, cwd=tmp_path) as child:
            assert child.stdout is not None
            assert await child.stdout.readline() == b"taken\n"
            child.send_signal(signal.SIGINT)
            status, _, err = await output(child)
        assert (status, err) == (130, "dragoman: no longer waiting; the answer stays.\n")


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (
            {"type": "input.settled", "command_id": "c", "outcome": "unknown", "reason": "no line"},
            "nobody knows whether the backend took the answer: no line",
        ),
        (
            {"type": "interaction.resolved", "request_id": "r", "outcome": "expired"},
            "the request is no longer open: expired",
        ),
        (
            {"type": "session.ended", "outcome": "terminated"},
            "the session ended before the answer was taken",
        ),
    ],
)
async def test_an_answer_that_does_not_count_is_status_1(event: dict[str, Any], says: str) -> None:
    before = {"id": "s", "state": "paused", "last_seq": 4, "open_interactions": []}
    base = {"seq": 5, "at": 0, "session_id": "s", "thread_id": "main"}

    async def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.json_response({"command_id": "c", "status": "accepted"}, status=202)
        if not request.path.endswith("/events"):
            return web.json_response(before)
        assert request.query["after"] == "4"
        body = json.dumps({**base, **event}).encode() + b"\n"
        return web.Response(body=body, content_type="application/x-ndjson")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        words = ("answer", "s", "r", "--allow", "--wait")
        done = await dragoman(*words, url=str(server.make_url("/")))
    assert done.exit_code == 1
    assert done.stderr == f"dragoman: {says}\n"
