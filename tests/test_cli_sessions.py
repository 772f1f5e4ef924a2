"""`dragoman sessions`: the same of a running server and of a journal's file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import Result

from adapters.model.events import Entry
from proxy import cli
from proxy.cli import printing
from proxy.journal.base import Write
from proxy.journal.sqlite import SqliteJournal
from tests.journal.conftest import store
from tests.support.proxied import Proxied, proxied
from tests.test_cli import dragoman

Ask = Callable[..., Any]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Proxied]:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    async with proxied(journal={"url": url, "window_ms": 0}) as made:
        yield made


async def said(running: Proxied, text: str = "hello") -> str:
    session = await running.say(text)
    await running.until_idle(session)
    return session


def file(tmp_path: Path) -> tuple[str, str]:
    return "--journal", str(tmp_path / "own.db")


async def both(running: Proxied, tmp_path: Path, *arguments: str) -> tuple[Result, Result]:
    """What the server says and what its file says, beside it."""
    asked = await dragoman("sessions", *arguments, url=running.url)
    read = await dragoman("sessions", *arguments, *file(tmp_path))
    return asked, read


async def test_list_show_and_export_say_the_same_of_a_server_and_of_its_file(
    running: Proxied, tmp_path: Path
) -> None:
    name = await said(running)
    paused = await running.say("script: approve")
    await running.asked(paused)
    for arguments in (
        ("list",),
        ("list", "--json"),
        ("list", "--state", "paused"),
        ("list", "--limit", "1"),
        ("show", name),
        ("show", paused, "--json"),
        ("export", name),
    ):
        asked, read = await both(running, tmp_path, *arguments)
        assert (asked.exit_code, asked.stderr) == (0, read.stderr), asked.output
        if arguments == ("show", paused, "--json"):
            one, other = json.loads(asked.stdout), json.loads(read.stdout)
            # How often the stream was mended is known to the process that read it.
            assert one.pop("repairs") is not None
            assert other.pop("repairs") == {}
            assert one == other
            assert len(one["open_interactions"]) == 1
        elif arguments == ("list", "--json"):
            one, other = json.loads(asked.stdout), json.loads(read.stdout)
            # What goes on in a session is known to the process that has it in memory.
            assert [each["waiting"] is None for each in one["sessions"]] == [False, True]
            unknown: dict[str, object] = {
                "dialects": {},
                "waiting": None,
                "repairs": None,
                "losses": None,
            }
            for each in one["sessions"]:
                each.update(unknown)
            assert one == other
        elif arguments != ("show", name):
            assert asked.stdout == read.stdout
        assert asked.stdout
    asked, _ = await both(running, tmp_path, "export", name)
    lines = asked.stdout.encode().splitlines()
    entries = [Entry.decode(line) for line in lines]
    assert [entry.seq for entry in entries] == list(range(1, len(lines) + 1))
    output = tmp_path / "out.ndjson"
    written = await dragoman("sessions", "export", name, "-o", str(output), *file(tmp_path))
    assert (written.exit_code, written.stdout) == (0, "")
    assert output.read_bytes() == asked.stdout_bytes
    translated = await dragoman("translate", "--from", "canonical", "--to", "engine", str(output))
    assert translated.exit_code == 0
    assert "You said" in translated.stdout


async def test_the_frames_of_a_session_are_exported_where_they_are_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    async with proxied(journal={"url": url, "window_ms": 0}) as running:
        name = await said(running)
        key = (await running.sessions.journal.session(name)).key
        running.sessions.journal.add_frames(key, 0, 1001, [b"\xff"], 1)
        frames = await running.sessions.journal.frames(key, 0)
    export = ("sessions", "export", name, "--frames")
    read = await dragoman(*export, *file(tmp_path))
    assert (read.exit_code, read.stderr) == (0, "")
    *lines, last = [json.loads(line) for line in read.stdout.splitlines()]
    assert last == {"leg": 0, "number": 1001, "base64": "/w=="}
    kept = [{"leg": 0, "number": at, "text": one.decode()} for at, one in frames[:-1]]
    assert lines == kept
    assert len(lines) > 3
    asked = await dragoman(*export)
    assert asked.exit_code == 2
    assert "add --journal FILE" in asked.stderr


async def test_where_no_frames_are_kept_it_is_said_what_to_set(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    async with proxied(journal={"url": url, "window_ms": 0, "frames": False}) as running:
        name = await said(running)
    read = await dragoman("sessions", "export", name, "--frames", *file(tmp_path))
    assert (read.exit_code, read.stdout) == (1, "")
    assert "set `journal.frames = true`" in read.stderr


async def test_what_does_not_exist_is_status_1(running: Proxied, tmp_path: Path) -> None:
    for command in (("show", "nobody"), ("export", "nobody"), ("delete", "nobody", "--yes")):
        asked = await dragoman("sessions", *command, url=running.url)
        assert (asked.exit_code, asked.stdout) == (1, "")
        assert "There is no session `nobody`" in asked.stderr
    read = await dragoman("sessions", "show", "nobody", *file(tmp_path))
    assert (read.exit_code, read.stdout) == (1, "")
    missing = tmp_path / "missing.db"
    for command in (("show", "x"), ("delete", "x", "--yes")):
        read = await dragoman("sessions", *command, "--journal", str(missing))
        assert read.exit_code == 1
        assert str(missing) in read.stderr
        assert not missing.exists()
    read = await dragoman("sessions", "list", "--journal", "sqlite://")
    assert read.exit_code == 2


async def test_delete_erases_by_the_server_and_in_a_file_that_no_server_writes(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    async with proxied(journal={"url": url, "window_ms": 0}) as running:
        first, second, third = [await said(running, f"MARK-{n}") for n in range(3)]
        asked = await dragoman("sessions", "delete", first, url=running.url)
        assert asked.exit_code == 2
        assert "--yes" in asked.stderr
        asked = await dragoman("sessions", "delete", first, "--yes", url=running.url)
        assert (asked.exit_code, asked.stdout) == (0, f"{first}\tdeleted\n")
        read = await dragoman("sessions", "delete", second, "-y", *file(tmp_path))
        assert read.exit_code == 1
        assert "another process" in read.stderr
        assert "Without --journal the running server is asked" in read.stderr
    read = await dragoman("sessions", "delete", second, "-y", "--json", *file(tmp_path))
    assert (read.exit_code, json.loads(read.stdout)) == (0, {"version": 1, "deleted": [second]})
    listed = await dragoman("sessions", "list", *file(tmp_path))
    assert [line.split("\t")[0] for line in listed.stdout.splitlines()] == [third]
    left = (tmp_path / "own.db").read_bytes()
    assert [n for n in range(3) if f"MARK-{n}".encode() in left] == [2]


async def test_prune_says_what_goes_and_why(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    async with proxied(journal={"url": url, "window_ms": 0}) as running:
        first, second = await said(running), await said(running)
        busy = await running.say("script: approve")
        await running.asked(busy)
        asked, read = await both(running, tmp_path, "prune", "--older-than", "0s", "--dry-run")
        assert asked.exit_code == 0
        assert asked.stdout == read.stdout
        rows = [line.split("\t") for line in asked.stdout.splitlines()]
        assert [row[:4] for row in rows] == [
            [first, "age", "engine", "engine"],
            [second, "age", "engine", "engine"],
        ]
        for arguments in (("--older-than", "30d"), ("--max-bytes", "1GiB")):
            asked = await dragoman("sessions", "prune", *arguments, "--yes", url=running.url)
            assert (asked.exit_code, asked.stdout) == (0, "")
        size = int(rows[0][5]) + 1
        asked = await dragoman(
            "sessions", "prune", "--max-bytes", str(size), "--yes", "--json", url=running.url
        )
        gone = json.loads(asked.stdout)
        assert gone["dry_run"] is False
        assert [one["reason"] for one in gone["sessions"]] == ["bytes", "bytes"]
        shown = await dragoman("sessions", "show", first, url=running.url)
        assert shown.exit_code == 1
        assert "no longer kept" in shown.stderr
    read = await dragoman(
        "sessions", "prune", "--max-bytes-per-backend", "0", "-y", *file(tmp_path)
    )
    assert (read.exit_code, read.stdout) == (0, "")
    listed = await dragoman("sessions", "list", "--state", "expired", "--json", *file(tmp_path))
    assert [one["id"] for one in json.loads(listed.stdout)["sessions"]] == [second, first]


@pytest.mark.parametrize(
    "arguments",
    [
        ("prune",),
        ("prune", "--older-than", "30"),
        ("prune", "--older-than", "soon"),
        ("prune", "--older-than", "9" * 400 + "d"),
        ("prune", "--max-bytes", "99999999999GiB"),
        ("prune", "--max-bytes", "10XB", "--yes"),
        ("prune", "--max-bytes", "10"),
        ("delete",),
        ("delete", "s"),
        ("list", "--state", "gone"),
        ("list", "--before", "x"),
        ("export",),
        ("show", "--jsn", "s"),
    ],
)
async def test_a_command_line_that_means_nothing_is_status_2(arguments: tuple[str, ...]) -> None:
    done = await dragoman("sessions", *arguments, url="http://127.0.0.1:1")
    assert (done.exit_code, done.stdout) == (2, "")


@pytest.mark.parametrize("command", ["list", "show", "export", "delete", "prune"])
async def test_every_command_explains_itself(command: str) -> None:
    done = await dragoman("sessions", command, "--help")
    assert done.exit_code == 0
    assert "--journal" in done.stdout
    assert "--json" in done.stdout


async def test_on_a_terminal_states_have_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(tmp_path / "own.db")
    await journal.open()
    for name in ("one", "two"):
        row = await journal.create_session(
            id=name,
            owner="web",
            route="engine",
            dialect="eve",
            backend="engine",
            secret=b"s",
            at=1,
            body=b'{"seq":1}\n',
        )
        await store(journal, Write(row.key, state="ended"))
    await journal.aclose()
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    listed = await asyncio.to_thread(_invoke, "sessions", "list", *file(tmp_path))
    assert "\x1b[2mended\x1b[0m" in listed.stdout
    assert "updated" in listed.stdout


def _invoke(*arguments: str) -> Result:
    from click.testing import CliRunner

    return CliRunner().invoke(cli.main, arguments, color=True)


async def test_an_export_that_breaks_off_is_status_1() -> None:
    entry = b'{"seq":1,"at":1,"session_id":"s","type":"notice"}\n'
    bodies = [
        entry + b'{"version":1,"error":{"code":"journal_unavailable","message":"the disk"}}\n',
        entry + b'{"seq":2,',
    ]

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=bodies[0], content_type="application/x-ndjson")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        for says in ("the disk", "broke off"):
            done = await dragoman("sessions", "export", "s", url=str(server.make_url("/")))
            assert (done.exit_code, done.stdout) == (1, entry.decode())
            assert says in done.stderr
            bodies.pop(0)


async def test_queued_messages_are_shown_and_withdrawn(running: Proxied, tmp_path: Path) -> None:
    name = await running.say("script: approve")
    await running.asked(name)
    await running.say("later", name)
    asked, read = await both(running, tmp_path, "show", name, "--json")
    (queued,) = json.loads(asked.stdout)["queue"]
    assert json.loads(read.stdout)["queue"] == [queued]
    command = queued["command_id"]
    gone = await dragoman("sessions", "withdraw", name, command, url=running.url)
    assert (gone.exit_code, gone.stdout) == (0, f"{command}\twithdrawn\n")
    asked, read = await both(running, tmp_path, "show", name, "--json")
    assert json.loads(asked.stdout)["queue"] == json.loads(read.stdout)["queue"] == []
    again = await dragoman("sessions", "withdraw", name, command, url=running.url)
    assert again.exit_code == 1
    assert "waits here" in again.stderr


async def test_a_session_that_is_stuck_is_settled(running: Proxied) -> None:
    name = await running.say("script: approve")
    await running.asked(name)
    done = await dragoman("sessions", "settle", name, url=running.url)
    assert (done.exit_code, done.stdout) == (0, f"{name}\tsettled\n")
    again = await dragoman("sessions", "settle", name, url=running.url)
    assert (again.exit_code, again.stdout) == (0, f"{name}\tat rest already\n")
    as_json = await dragoman("sessions", "settle", name, "--json", url=running.url)
    assert json.loads(as_json.stdout) == {"version": 1, "settled": []}
