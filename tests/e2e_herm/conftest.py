"""Starts a Dragoman over a scripted Herm and a scripted Engine, and makes strict clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import pytest
from aiohttp import web

import proxy.server
from adapters import events as ev
from proxy.app import create_app
from proxy.clock import Clock
from proxy.hub import entries_of
from proxy.journal.base import Journal
from proxy.scripted.engine import ENGINE, ScriptedEngine, create_engine_app
from proxy.scripted.herm import HERM, ScriptedHerm, create_herm_app
from proxy.server import opened_sessions
from proxy.sessions import Sessions
from proxy.settings import BackendSettings, Settings
from tests.e2e.running import CrashJournal, sqlite
from tests.support.eve_client import EveClient, Form
from tests.support.herm_client import Expect, HermClient

HOST = "127.0.0.1"
KEY = "k-local-9"


class FastClock(Clock):
    """Real time, run faster: waits are shorter and `now` moves on in step with them."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._start = super().now()
        self._zero = time.monotonic()

    def now(self) -> int:
        return self._start + int((time.monotonic() - self._zero) * self._speed * 1000)

    def monotonic(self) -> float:
        return (time.monotonic() - self._zero) * self._speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        return await super().wait(event, seconds / self._speed)


class House:
    """A Dragoman over both backends; `herm` and `engine` are their states.

    Args:
        journal: a URL, or a journal that a restart finds again.
        herm: arguments of `create_herm_app`.
        settings: further tables of the configuration.
        speed: how much faster than real time the proxy's clock runs.
    """

    def __init__(
        self,
        journal: str | Journal,
        *,
        herm: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        speed: float = 1.0,
    ) -> None:
        self._journal = journal
        self._herm_options: dict[str, Any] = {"key": KEY, "pace": 0.0, **(herm or {})}
        self._settings = dict(settings or {})
        self._speed = speed
        self._stack = contextlib.AsyncExitStack()
        self._backends = contextlib.AsyncExitStack()
        self._runner: web.AppRunner | None = None
        self._ports: dict[str, int] = {}
        self.herm: ScriptedHerm
        self.engine: ScriptedEngine
        self.sessions: Sessions
        self.http: aiohttp.ClientSession

    async def __aenter__(self) -> House:
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
        herm = create_herm_app(**self._herm_options)
        engine = create_engine_app(key=KEY, pace=0.0)
        self.herm, self.engine = herm[HERM], engine[ENGINE]
        for name, app in (("herm", herm), ("engine", engine)):
            runner = await self._serve(app, name)
            self._backends.push_async_callback(runner.cleanup)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        await self.stop()
        await self._backends.aclose()

    async def _serve(self, app: web.Application, name: str) -> web.AppRunner:
        runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None
        )
        await runner.setup()
        await web.TCPSite(runner, HOST, self._ports.get(name, 0), reuse_address=True).start()
        self._ports[name] = runner.addresses[0][1]
        return runner

    async def start(self) -> None:
        """Start the proxy on what the journal holds."""
        backends = (
            BackendSettings.model_validate(
                {
                    "name": "herm",
                    "dialect": "herm",
                    "url": f"http://{HOST}:{self._ports['herm']}",
                    "create": {"agent": "agent_K4", "user_id": "team_blue"},
                }
            ).with_credential("Authorization", KEY, scheme="Bearer "),
            BackendSettings(
                name="engine", dialect="engine", url=f"http://{HOST}:{self._ports['engine']}"
            ).with_credential("X-Engine-Key", KEY),
        )
        journal = self._journal
        url = journal if isinstance(journal, str) else "memory:"
        tables = {"journal": {"url": url, "window_ms": 0}, **self._settings}
        settings = Settings.model_validate({"backends": backends, **tables})
        self._stack = contextlib.AsyncExitStack()
        with contextlib.ExitStack() as patched:
            if isinstance(journal, Journal):
                patched.enter_context(
                    patch.object(proxy.server, "open_journal", lambda *_, **__: journal)
                )
            self.sessions = await self._stack.enter_async_context(
                opened_sessions(settings, clock=FastClock(self._speed))
            )
        self._runner = await self._serve(create_app(settings, self.sessions), "proxy")

    async def stop(self) -> None:
        """Stop the proxy in order."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        await self.sessions.aclose()
        await runner.cleanup()
        await self._stack.aclose()

    async def restart(self) -> None:
        """Stop the proxy as a crash does, and start it again on what was stored."""
        assert self._runner is not None
        assert self._runner.server is not None
        for session in list(self.sessions._live.values()):
            session.close()
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self.stop()
        if isinstance(self._journal, CrashJournal):
            self._journal.repaired()
        await self.start()

    def url(self, dialect: str, backend: str) -> str:
        """The base URL of a face on a backend."""
        return f"http://{HOST}:{self._ports['proxy']}/as/{dialect}/to/{backend}"

    def client(
        self, backend: str = "herm", key: str | None = None, expect: Expect | None = None
    ) -> HermClient:
        """A strict Herm client of the Herm face."""
        return HermClient(self.http, self.url("herm", backend), key, expect=expect)

    def direct(self, expect: Expect | None = None) -> HermClient:
        """A strict Herm client of the scripted Herm itself."""
        return HermClient(self.http, f"http://{HOST}:{self._ports['herm']}", KEY, expect=expect)

    def eve(self, backend: str = "herm", form: Form = "all") -> EveClient:
        """A strict eve client of the eve face."""
        return EveClient(self.http, self.url("eve", backend), form=form)

    async def log(self, session_id: str) -> list[ev.Event]:
        """The canonical events of a session as they are stored."""
        row = await self.sessions.journal.session(session_id)
        return [
            entry.event
            async for chunk in self.sessions.journal.scan(row.key)
            for entry in entries_of(chunk.body, session_id)
        ]

    def posts(self, route: str = "post") -> list[bytes]:
        """The bodies that the scripted Herm got on a route, in order."""
        return [received.body for received in self.herm.received if received.route == route]


Serve = Callable[..., Awaitable[House]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a Dragoman over both backends; with `journal="sqlite"` on a file."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(journal: Any = "memory:", **options: Any) -> House:
            if journal == "sqlite":
                journal = sqlite(tmp_path)
            return await stack.enter_async_context(House(journal, **options))

        yield start
