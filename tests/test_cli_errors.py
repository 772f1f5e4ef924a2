"""Errors for programs: with `--json` each is an object in the control API's form, on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.test_cli import dragoman


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("sessions", "list"), 1, "unreachable"),
        (("sessions", "list", "--url", "nonsense"), 2, "usage"),
        (("sessions", "list", "--limit", "many"), 2, "usage"),
        (("sessions", "list", "--stat", "idle"), 2, "usage"),
        (("sessions", "show"), 2, "usage"),
        (("sessions", "show", "s", "--journal", "/nowhere/own.db"), 1, "journal_unavailable"),
        (("sessions", "list", "--journal", "sqlite://"), 2, "config"),
        (("sessions", "watch"), 1, "unreachable"),
        (("sessions", "delete", "s"), 2, "usage"),
        (("answer", "--allow", "--deny"), 2, "usage"),
        (("answer", "--allow"), 1, "unreachable"),
        (("diff", "/nowhere/a", "/nowhere/b"), 2, "usage"),
        (("matrix", "more"), 2, "usage"),
        (("backup", "/nowhere/b.db", "--journal", "/nowhere/a.db"), 1, "failed"),
    ],
)
async def test_an_error_is_an_object(arguments: tuple[str, ...], status: int, code: str) -> None:
    plain = await dragoman(*arguments, url="http://127.0.0.1:1")
    done = await dragoman(*arguments, "--json", url="http://127.0.0.1:1")
    assert (done.exit_code, done.stdout) == (status, "")
    error = json.loads(done.stderr)
    assert error == {"version": 1, "error": {"code": code, "message": error["error"]["message"]}}
    assert plain.exit_code == status
    assert error["error"]["message"] in plain.stderr
    assert len(plain.stderr) > len(error["error"]["message"])


async def test_a_refusal_has_the_servers_code() -> None:
    async def answer(_: web.Request) -> web.Response:
        error = {"code": "forbidden", "message": "Not\x1b yours."}
        return web.json_response({"version": 1, "error": error}, status=403)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        done = await dragoman("sessions", "show", "s", "--json", url=url)
    assert done.exit_code == 1
    assert json.loads(done.stderr)["error"] == {"code": "forbidden", "message": "Not  yours."}


async def test_a_word_that_only_looks_like_json_changes_nothing() -> None:
    done = await dragoman("answer", "--allow", "--deny", "--", "--json")
    assert done.stderr.startswith("Usage: ")
    done = await dragoman("request", "--json")
    assert done.stderr.startswith("Usage: ")


async def test_a_file_that_is_there_is_an_object_too(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"")
    words = ("backup", str(tmp_path / "there"), "--journal", str(tmp_path / "none.db"), "--json")
    done = await dragoman(*words)
    assert done.exit_code in (1, 2)
    assert set(json.loads(done.stderr)["error"]) == {"code", "message"}
