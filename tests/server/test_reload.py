"""SIGHUP: what a running server takes from its configuration anew, and what it does not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.app.reloading import plan, reload
from proxy.base.errors import ConfigError
from proxy.base.metrics import exposition
from proxy.config.settings import Settings
from tests.support.dragoman import backend_settings
from tests.support.keys import credential, key_of
from tests.support.proxied import Proxied, proxied
from tests.support.waiting import SOON_S, until

BACKEND = '[[backends]]\nname = "{}"\ndialect = "engine"\nurl = "http://127.0.0.1:9"\n'


def key_table(name: str) -> str:
    key = key_of(name)
    return f'[[keys]]\nname = "{key.name}"\nsha256 = "{key.sha256}"\n'


class Process:
    """`dragoman serve` on a file, and the lines of its log."""

    def __init__(self, file: Path, child: asyncio.subprocess.Process, url: str) -> None:
        self.file = file
        self.child = child
        self.url = url

    async def reload(self) -> dict[str, Any]:
        """Send SIGHUP, and return the line that says what became of it."""
        self.child.send_signal(signal.SIGHUP)
        return await self.said("reloaded")

    async def said(self, part: str) -> dict[str, Any]:
        """Return the next line of the log with this in its message."""
        assert self.child.stderr is not None
        async with asyncio.timeout(SOON_S):
            async for line in self.child.stderr:
                found: dict[str, Any] = json.loads(line)
                if part in found["message"]:
                    return found
        raise AssertionError("it has ended")

    async def status(self, key: str) -> int:
        """Return what the control API answers to a key."""
        url = f"{self.url}/api/v1/sessions"
        async with (
            aiohttp.ClientSession() as http,
            http.get(url, headers=credential(f"k-{key}")) as got,
        ):
            return got.status


@contextlib.asynccontextmanager
async def serving(folder: Path, text: str, **environ: str) -> AsyncIterator[Process]:
    """Serve a configuration in a process of its own, on any port."""
    file = folder / "dragoman.toml"
    file.write_text(text)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve", "--config", str(file)),
        *("--listen", "127.0.0.1:0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "DRAGOMAN_JOURNAL__URL": "memory:", **environ},
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(SOON_S):
            line = (await child.stdout.readline()).decode()
        found = re.search(r"listening on (http://\S+)", line)
        assert found is not None, line
        yield Process(file, child, found[1])
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def test_a_key_that_was_added_is_taken_and_one_that_was_removed_is_refused(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, key_table("stays") + key_table("goes")) as server:
        assert [await server.status(key) for key in ("stays", "goes", "comes")] == [200, 200, 401]
        server.file.write_text(key_table("stays") + key_table("comes"))
        line = await server.reload()
        assert [await server.status(key) for key in ("stays", "goes", "comes")] == [200, 401, 200]
        assert (line["level"], line["message"]) == ("info", "reloaded: keys +1 −1")


async def test_a_configuration_with_a_mistake_changes_nothing_and_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path, key_table("a")) as server:
        server.file.write_text(key_table("b") + "[server]\nlissten = 1\n")
        line = await server.reload()
        assert line["level"] == "error"
        assert line["message"] == (
            "the configuration is not reloaded, nothing changes: "
            f"{server.file}: `[server]`, `lissten`: unknown key; did you mean `listen`?"
        )
        assert [await server.status(key) for key in ("a", "b")] == [200, 401]
        # A file that is gone is a mistake too, and not the defaults.
        server.file.unlink()
        assert "there is no such file" in (await server.reload())["message"]
        # The server can still be told.
        server.file.write_text(key_table("b") + key_table("a"))
        assert (await server.reload())["message"] == "reloaded: keys +1"
        assert [await server.status(key) for key in ("a", "b")] == [200, 200]


async def test_what_needs_a_restart_is_named_and_stays(tmp_path: Path) -> None:
    async with serving(tmp_path, key_table("a")) as server:
        more = "[server]\nheartbeat_seconds = 5\n[limits]\nstreams_per_key = 1\n"
        server.file.write_text(key_table("a") + more + BACKEND.format("late"))
        line = await server.reload()
        assert (line["level"], line["message"]) == (
            "warning",
            "reloaded: backend `late` added; "
            "needs a restart: server.heartbeat_seconds, limits.streams_per_key",
        )


async def test_the_log_level_changes_and_a_new_credential_is_hidden_in_the_log(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("first-credential")
    auth = f'auth = {{ bearer_file = "{secret}" }}\n'
    async with serving(tmp_path, BACKEND.format("one") + auth) as server:
        secret.write_text("second-credential")
        assert (await server.reload())["message"] == "reloaded: backend `one` changed"
        wrong = BACKEND.format("second-credential")
        server.file.write_text(wrong + auth + '[log]\nlevel = "debug"\n')
        line = await server.reload()
        assert "second-credential" not in line["message"]
        assert line["message"].endswith("log.level is `debug`")


# --- in this process


def text_of(dragoman: Proxied) -> str:
    return exposition(sessions=0, readers=0, stored=0, backlog=0).decode()


def reloads(dragoman: Proxied, outcome: str) -> float:
    found = re.search(
        rf'^dragoman_reloads_total{{outcome="{outcome}"}} (\S+)$', text_of(dragoman), re.MULTILINE
    )
    assert found is not None
    return float(found[1])


async def reloaded(dragoman: Proxied, **tables: Any) -> None:
    """Reload to the present configuration with other tables."""
    now = dragoman.sessions.settings
    fields = {name: getattr(now, name) for name in Settings.model_fields}

    def read() -> Settings:
        return Settings.model_validate({**fields, **tables})

    await reload(dragoman.sessions, read)


async def test_a_route_that_was_added_serves_new_sessions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "proxy.app.reloading")
    async with proxied() as dragoman:
        before = reloads(dragoman, "ok")
        path = "/as/eve/to/fresh/eve/v1/session"
        assert (await dragoman.request("POST", path, json={"message": "x"}))[0] == 404
        await reloaded(dragoman, routes=[{"name": "fresh", "backends": ["engine"]}])
        await dragoman.until_idle(await dragoman.say("hello", route="fresh"))
        assert reloads(dragoman, "ok") == before + 1
    assert caplog.messages == ["reloaded: route `fresh` added"]


async def test_a_changed_credential_counts_for_the_next_call_of_a_session_in_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxied() as dragoman:
        (engine,) = dragoman.sessions.settings.backends
        name = await dragoman.say("hello")
        await dragoman.until_idle(name)
        session = await dragoman.session(name)
        await reloaded(dragoman, backends=[backend_settings("engine", "engine", engine.url, "no")])
        await dragoman.say("again", name)
        await until(lambda: "backend `engine` refuses the proxy's credential" in caplog.text)
        await reloaded(dragoman, backends=[engine])
        await dragoman.say("once more", name)
        await until(lambda: "backend `engine` is back again" in caplog.text)
        assert await dragoman.session(name) is session


async def test_a_removed_backend_stays_while_a_session_uses_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxied(backends=("engine", "other")) as dragoman:
        engine, other = dragoman.sessions.settings.backends
        name = await dragoman.say("script: approve", route="other")
        await dragoman.asked(name)
        caplog.set_level("INFO", "proxy.app.reloading")
        await reloaded(dragoman, backends=[engine])
        assert list(dragoman.sessions.settings.backends) == [engine, other]
        dragoman.sessions.cache.forget(name)
        await reloaded(dragoman, backends=[engine])
        assert list(dragoman.sessions.settings.backends) == [engine]
    assert caplog.messages == [
        "reloaded: nothing changed; "
        "backend `other` is still used by 1 session, so it stays until a restart",
        "reloaded: backend `other` removed",
    ]


async def test_shares_that_were_set_and_name_a_removed_backend_hold_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    routes = [{"name": "main", "backends": ["engine"]}]
    async with proxied(backends=("engine", "other"), routes=routes) as dragoman:
        sessions = dragoman.sessions
        put = {"backends": [{"name": "other", "weight": 1}]}
        assert (await dragoman.request("PUT", "/api/v1/routes/main", json=put))[0] == 200
        await reloaded(dragoman, backends=[sessions.settings.backends[0]])
        await dragoman.until_idle(await dragoman.say("hello", route="main"))
        assert await sessions.journal.shares() == []
    assert "the shares of route `main` that were set at run time" in caplog.text


async def test_sessions_are_recorded_from_a_reload_on_and_no_more_after_another(
    tmp_path: Path,
) -> None:
    async with proxied() as dragoman:

        async def recorded() -> set[str]:
            name = await dragoman.say("hello")
            await dragoman.until_idle(name)
            if dragoman.sessions.captures is not None:
                await dragoman.sessions.captures.written()
            return {file.name for file in tmp_path.rglob("*") if file.is_file()}

        assert await recorded() == set()
        await reloaded(dragoman, capture={"dir": tmp_path})
        one = await recorded()
        assert len(one) == 1
        await reloaded(dragoman, capture=None)
        assert await recorded() == one


async def test_a_backend_with_sessions_cannot_become_one_of_another_dialect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxied() as dragoman:
        before = reloads(dragoman, "refused")
        await dragoman.until_idle(await dragoman.say("hello"))
        settings = dragoman.sessions.settings
        eve = backend_settings("engine", "eve", settings.backends[0].url)
        await reloaded(dragoman, backends=[eve])
        assert dragoman.sessions.settings is settings
        assert reloads(dragoman, "refused") == before + 1
    assert "which cannot go on with its sessions" in caplog.text


async def test_a_fault_of_ours_in_a_reload_is_told_and_the_next_one_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxied() as dragoman:

        def odd() -> Settings:
            raise RuntimeError("odd")

        await reload(dragoman.sessions, odd)
        (line,) = (one for one in caplog.records if one.levelno >= logging.ERROR)
        assert line.message == "the configuration is not reloaded"
        await reloaded(dragoman, routes=[{"name": "r", "backends": ["engine"]}])
        assert dragoman.sessions.settings.route("r") is not None


# --- what is decided


def settings(**tables: Any) -> Settings:
    backends = [{"name": "one", "dialect": "engine", "url": "http://127.0.0.1:9"}]
    return Settings.model_validate({"backends": backends, **tables})


def planned(now: Settings, found: Settings, folder: Path | None = None) -> str:
    return str(plan(now, found, using=lambda _: 0, folder=folder))


KEYS: Callable[[], dict[str, Any]] = lambda: {"keys": (key_of("a"),)}  # noqa: E731


def test_the_first_key_and_the_last_keys_removal_need_a_restart() -> None:
    without, with_one = settings(), settings(**KEYS())
    assert planned(without, with_one) == "nothing changed; needs a restart: the first key"
    assert planned(with_one, without) == (
        "nothing changed; needs a restart: the last key's removal"
    )


def test_what_a_listener_serves_until_a_restart_cannot_be_removed() -> None:
    listener = {"listen": "127.0.0.1:8788", "dialect": "eve", "route": "r"}
    routes = [{"name": "r", "backends": ["one"]}]
    now = settings(routes=routes, listeners=[listener])
    with pytest.raises(ConfigError) as refused:
        planned(now, settings())
    assert refused.value.message == (
        "it contradicts what stays until a restart (listeners): "
        "`[[listeners]]` 1, `route`: there is no backend or route `r`; known: one"
    )


def test_captures_go_on_in_their_folder_until_a_restart() -> None:
    now = settings(capture={"dir": "here"})
    found = settings(capture={"dir": "there", "header": True})
    made = plan(now, found, using=lambda _: 0, folder=Path("here"))
    assert str(made) == "capture changed; needs a restart: capture.dir"
    assert made.settings.capture is not None
    assert (made.settings.capture.dir, made.settings.capture.header) == (Path("here"), True)


def test_traces_are_turned_on_by_a_restart() -> None:
    made = plan(settings(), settings(otel={"enabled": True}), using=lambda _: 0, folder=None)
    assert str(made) == "nothing changed; needs a restart: otel.enabled"
    assert not made.settings.otel.enabled


def test_a_backend_keeps_its_dialect_until_a_restart() -> None:
    eve = {"name": "one", "dialect": "eve", "url": "http://127.0.0.1:9"}
    made = plan(settings(), settings(backends=[eve]), using=lambda _: 0, folder=None)
    assert str(made) == "nothing changed; needs a restart: the dialect of backend `one`"
    assert [one.dialect for one in made.settings.backends] == ["engine"]


def test_what_a_key_may_is_told_when_it_changes() -> None:
    now = settings(**KEYS())
    limited = key_of("a").model_copy(update={"backends": ("one",)})
    assert planned(now, settings(keys=(limited,))) == "what keys may changed"
