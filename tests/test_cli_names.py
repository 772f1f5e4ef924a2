"""Sessions on the command line: by id, by what that begins with, by title, and by other names."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import Result

from adapters.model import events as ev
from adapters.model.events import MAIN
from proxy.cli import printing
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied
from tests.test_cli import dragoman

ASKED: web.AppKey[list[tuple[str, str]]] = web.AppKey("asked", list)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Proxied]:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    async with proxied(journal={"url": url, "window_ms": 0}, change=_note) as made:
        yield made


def _note(app: web.Application) -> None:
    asked: list[tuple[str, str]] = []
    app[ASKED] = asked

    @web.middleware
    async def note(request: web.Request, handler: Any) -> web.StreamResponse:
        asked.append((request.method, request.path_qs))
        answer: web.StreamResponse = await handler(request)
        return answer

    app.middlewares.append(note)


async def said(running: Proxied, title: str = "", *, key: str | None = None) -> str:
    session = await running.say("hello", key=key)
    await running.until_idle(session)
    if title:
        await entitle(running, session, title)
    return session


async def entitle(running: Proxied, session: str, title: str) -> None:
    live = await running.session(session)
    told = ev.SessionUpdated(thread_id=MAIN, title=title)
    await live._log.until_stored(live._log.emit([told]))


async def task(running: Proxied, name: str) -> str:
    """A session that an Engine frontend has under its own name."""
    body = {"task_id": name, "message": "hello"}
    status, _ = await running.request("POST", "/as/engine/to/engine/execute", json=body)
    assert status == 200
    listed = await dragoman("sessions", "list", "--limit", "1", url=running.url)
    return listed.stdout.split("\t")[0]


async def test_every_name_of_a_session_is_taken(running: Proxied, tmp_path: Path) -> None:
    named = await task(running, "task-1")
    await said(running, "Dinner")
    name = await said(running, "Lunch / at noon?")
    short = name.removeprefix("dgs_")
    for source in (("--url", running.url), ("--journal", str(tmp_path / "own.db"))):
        for called in (name, name[:8], name[:-1], short, short[:4], "Lunch / at noon?"):
            shown = await dragoman("sessions", "show", called, "--json", *source)
            assert shown.exit_code == 0, shown.output
            assert json.loads(shown.stdout)["id"] == name
        shown = await dragoman("sessions", "show", "task-1", "--json", *source)
        assert json.loads(shown.stdout)["id"] == named
        exported = await dragoman("sessions", "export", short[:6], *source)
        assert json.loads(exported.stdout.splitlines()[0])["session_id"] == name
        for called in (short[:3], name[:7], "dgs_", "lunch", name + "0", "%", "dgs_____"):
            shown = await dragoman("sessions", "show", called, *source)
            assert (shown.exit_code, shown.stdout) == (1, ""), called
            assert f"here is no session `{called}`" in shown.stderr
    done = await dragoman("diff", f"{running.url}/api/v1/sessions/{short[:5]}", "-", stdin="")
    assert "no session" not in done.stderr
    done = await dragoman("diff", f"{tmp_path / 'own.db'}#Dinner", "-", stdin="")
    assert "no session" not in done.stderr


async def test_an_id_costs_no_further_question(tmp_path: Path) -> None:
    notes: list[web.Application] = []

    def change(app: web.Application) -> None:
        _note(app)
        notes.append(app)

    async with proxied(change=change) as running:
        name = await said(running)
        asked = notes[0][ASKED]
        asked.clear()
        await dragoman("sessions", "show", name, url=running.url)
        await dragoman("sessions", "export", name, url=running.url)
        path = f"/api/v1/sessions/{name}"
        assert asked == [("GET", path), ("GET", f"{path}/events")]


async def test_what_several_are_called_is_refused_with_all_of_them(
    running: Proxied, tmp_path: Path
) -> None:
    names = [await said(running, "Lunch") for _ in range(2)]
    for source in (("--url", running.url), ("--journal", str(tmp_path / "own.db"))):
        for command in (("show", "Lunch"), ("export", "Lunch"), ("delete", "Lunch", "--yes")):
            done = await dragoman("sessions", *command, *source)
            assert (done.exit_code, done.stdout) == (1, "")
            assert done.stderr.splitlines() == [
                "dragoman: `Lunch` can mean several sessions:",
                f"  {names[1]}  idle     Lunch",
                f"  {names[0]}  idle     Lunch",
                "Write more of an id.",
            ]
    # One that is erased is meant no more.
    await dragoman("sessions", "delete", names[0], "--yes", url=running.url)
    shown = await dragoman("sessions", "show", "Lunch", "--json", url=running.url)
    assert json.loads(shown.stdout)["id"] == names[1]


async def test_very_many_are_not_all_listed(running: Proxied) -> None:
    for _ in range(12):
        await said(running, "Lunch")
    done = await dragoman("sessions", "show", "Lunch", url=running.url)
    assert done.stderr.splitlines()[-2:] == ["  and more", "Write more of an id."]
    assert done.stderr.count("Lunch\n") == 10


async def test_an_id_goes_before_a_title_and_a_title_before_a_beginning(running: Proxied) -> None:
    first, second, third = [await said(running) for _ in range(3)]
    await entitle(running, second, first)
    await entitle(running, third, first[:9])
    for called, id in ((first, first), (first[:9], third)):
        shown = await dragoman("sessions", "show", called, "--json", url=running.url)
        assert json.loads(shown.stdout)["id"] == id


async def test_what_changes_a_session_says_which_one_it_is(
    running: Proxied, tmp_path: Path
) -> None:
    name = await said(running, "Lunch")
    done = await dragoman("sessions", "settle", name[:9], name, url=running.url)
    assert done.stdout == f"{name}\tat rest already\n"
    assert done.stderr == f"`{name[:9]}` is `{name}` (Lunch)\n"
    moved = await dragoman(
        "migrate", "move", "Lunch", "--from", "engine", "--to", "engine", url=running.url
    )
    assert moved.stdout.startswith(f"{name}\tengine\tengine\tthere already")
    assert moved.stderr.startswith(f"`Lunch` is `{name}` (Lunch)\n")
    back = await dragoman("migrate", "rollback", name[4:9], url=running.url)
    assert "nothing to take back" in back.stdout
    assert back.stderr.startswith(f"`{name[4:9]}` is `{name}` (Lunch)\n")
    archive = str(tmp_path / "some.ndjson")
    done = await dragoman("sessions", "export", "Lunch", "--archive", archive, url=running.url)
    assert done.stdout == f"{name}\tarchived\n"
    done = await dragoman("sessions", "delete", "Lunch", "--yes", url=running.url)
    assert done.stdout == f"{name}\tdeleted\n"
    assert done.stderr == f"`Lunch` is `{name}` (Lunch)\n"
    done = await dragoman("sessions", "delete", "Lunch", "--yes", url=running.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "There is no session `Lunch`" in done.stderr


async def test_nothing_is_erased_where_one_of_several_names_is_not_clear(running: Proxied) -> None:
    names = [await said(running, title) for title in ("Tea", "Lunch", "Lunch")]
    done = await dragoman("sessions", "delete", "Tea", "Lunch", "--yes", url=running.url)
    assert (done.exit_code, done.stdout) == (1, "")
    listed = await dragoman("sessions", "list", url=running.url)
    assert len(listed.stdout.splitlines()) == len(names)


async def test_a_session_of_somebody_else_has_no_name() -> None:
    async with proxied(keys=(key_of("one"), key_of("two"))) as running:
        name = await said(running, "Lunch", key="k-one")
        for called in (name[:9], "Lunch"):
            theirs = await dragoman("sessions", "show", called, url=running.url, key="k-two")
            assert (theirs.exit_code, theirs.stdout) == (1, "")
            own = await dragoman("sessions", "show", called, url=running.url, key="k-one")
            assert own.stdout.startswith(f"id\t{name}\n")


async def test_a_server_that_knows_no_names_means_nothing_by_them() -> None:
    session = {"id": "dgs_0123456789", "state": "idle", "title": "Lunch"}
    erased: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        if request.method == "DELETE":
            erased.append(request.path)
        if request.path == "/api/v1/sessions":
            return web.json_response({"version": 1, "sessions": [session], "next": None})
        if request.path.endswith(session["id"]):
            return web.json_response({"version": 1, **session, "aliases": []})
        error = {"code": "not_found", "message": "There is no such session."}
        return web.json_response({"version": 1, "error": error}, status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        done = await dragoman("sessions", "delete", "other", "--yes", url=url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "dragoman: There is no such session.\n"
    assert erased == ["/api/v1/sessions/other"]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "now"),
        (0.9, "now"),
        (1, "1 s ago"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (7200, "2 h ago"),
        (86_400, "1 d ago"),
        (400 * 86_400, "400 d ago"),
        (-7200, "in 2 h"),
        (-30, "in 30 s"),
    ],
)
def test_how_long_ago_a_time_is(seconds: float, told: str) -> None:
    now = 1_767_225_600_000
    assert printing.relative(now - round(seconds * 1000), now) == told


async def _shown(answer: dict[str, Any], *arguments: str) -> Result:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response({"version": 1, **answer})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server:
        return await dragoman("sessions", "show", "s", *arguments, url=str(server.make_url("/")))


async def test_it_is_shown_since_when_a_stream_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1_767_225_600_000
    session = {"id": "s", "updated_at": at - 1000, "reconnecting_since": at}
    done = await _shown(session)
    assert "reconnecting since\t2026-01-01T00:00:00+00:00\n" in done.stdout
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setattr(printing, "now", lambda: at + 180_000)
    done = await _shown(session)
    assert "reconnecting since  3 min ago\n" in done.stdout
    done = await _shown({**session, "reconnecting_since": None})
    assert "reconnecting" not in done.stdout


async def test_an_empty_list_is_said_and_prints_nothing(running: Proxied, tmp_path: Path) -> None:
    for source in (("--url", running.url), ("--journal", str(tmp_path / "own.db"))):
        for arguments, says in (
            (("list",), "no sessions yet\n"),
            (("list", "--state", "ended"), "no sessions in state `ended`\n"),
            (("list", "--before", "3"), "no sessions before 3\n"),
            (("prune", "--older-than", "1d", "--dry-run"), "no session is beyond these limits\n"),
        ):
            done = await dragoman("sessions", *arguments, *source)
            assert (done.exit_code, done.stdout, done.stderr) == (0, "", says)
        done = await dragoman("sessions", "list", "--json", *source)
        assert (json.loads(done.stdout)["sessions"], done.stderr) == ([], "")
    async with proxied(backends=()) as bare:
        done = await dragoman("routes", "list", url=bare.url)
        assert (done.stdout, done.stderr) == ("", "no routes: the server has no backend\n")
        done = await dragoman("routes", "list", "--json", url=bare.url)
        assert (json.loads(done.stdout)["routes"], done.stderr) == ([], "")
