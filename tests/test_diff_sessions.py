"""`dragoman diff` of sessions: of a running server, and of a journal's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.keys import key_of
from tests.support.ports import free_port
from tests.support.proxied import proxied
from tests.test_cli import dragoman


async def test_sessions_of_a_server_and_of_its_journal_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "own.db"
    async with proxied(journal={"url": f"sqlite:///{file}", "window_ms": 0}) as running:
        names = [await running.say(text) for text in ("hello", "hello", "goodbye")]
        for name in names:
            await running.until_idle(name)
        one, same, other = (f"{running.url}/api/v1/sessions/{name}" for name in names)
        for a, b in ((one, same), (one, f"{file}#{names[1]}"), (f"{one}/events", one)):
            done = await dragoman("diff", a, b)
            assert (done.exit_code, done.stdout) == (0, "They mean the same.\n"), done.output
        for b in (other, f"{file}#{names[2]}", f"sqlite:///{file}#{names[2]}"):
            done = await dragoman("diff", one, b)
            assert done.exit_code == 1, done.output
            assert "hello" in done.stdout
            assert "goodbye" in done.stdout
        done = await dragoman("diff", one, other, "--json")
        raws = [found["a"].get("raw") for found in json.loads(done.stdout)["differences"]]
        # It came from an Engine, and has no frames here.
        assert ("written", "engine") in [(raw["kind"], raw["dialect"]) for raw in raws if raw]
        # A session and a file.
        exported = tmp_path / "log.ndjson"
        await dragoman("sessions", "export", names[0], "-o", str(exported), url=running.url)
        done = await dragoman("diff", str(exported), one)
        assert done.exit_code == 0

        done = await dragoman("diff", one, f"{running.url}/api/v1/sessions/nobody")
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == (
            "dragoman: There is no session `nobody`. `dragoman sessions list --url"
            f" {running.url}` prints those that are there.\n"
        )
        done = await dragoman("diff", one, f"{file}#nobody")
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == (
            "dragoman: there is no session `nobody`. `dragoman sessions list --journal"
            f" {file}` prints those that are there.\n"
        )
        done = await dragoman("diff", one, str(file))
        assert done.exit_code == 2
        assert f"it is a journal: name a session of it as {file}#ID" in done.stderr


async def test_a_server_that_wants_a_key_gets_it() -> None:
    async with proxied(keys=(key_of("web"),)) as running:
        key = "k-web"
        name = await running.say("hello", key=key)
        url = f"{running.url}/api/v1/sessions/{name}"
        done = await dragoman("diff", url, url)
        assert done.exit_code == 2
        assert "Give it with --key or DRAGOMAN_KEY." in done.stderr
        done = await dragoman("diff", url, url, "--key", key)
        assert done.exit_code == 0, done.output
        assert (await dragoman("diff", url, url, key=key)).exit_code == 0


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("http://127.0.0.1:{port}/api/v1/sessions/x", "no server can be reached at"),
        ("http://127.0.0.1:{port}/api/v1/sessions/x", "the one that runs in its place"),
        ("http://127.0.0.1:{port}/sessions/x", "/api/v1/sessions/ID"),
        ("http:///api/v1/sessions/x", "is not"),
        ("{folder}/none.db#x", "none.db"),
        ("sqlite://#x", "sqlite"),
    ],
)
async def test_what_cannot_be_reached_is_told(named: str, told: str, tmp_path: Path) -> None:
    name = named.format(port=free_port(), folder=tmp_path)
    done = await dragoman("diff", name, name)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert told in done.stderr
    assert not list(tmp_path.iterdir())


async def test_a_file_with_such_a_name_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log#1"
    path.write_text("")
    done = await dragoman("diff", str(path), str(path))
    assert done.exit_code == 2
    assert "the input is empty" in done.stderr
