"""Starts a Dragoman over a scripted eve of each generation, and makes strict clients of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from adapters import events as ev
from proxy.app import create_app
from proxy.hub import entries_of
from proxy.scripted.eve import EVE, ScriptedEve, Variant, create_eve_app
from proxy.scripted.eve_turns import Generation
from proxy.server import opened_sessions
from proxy.sessions import Sessions
from proxy.settings import BackendSettings, Settings
from tests.e2e.running import HurriedClock, sqlite
from tests.support.engine_client import EngineClient
from tests.support.eve_client import EveClient

HOST = "127.0.0.1"
KEY = "k-eve-7"
GENERATIONS: tuple[Generation, ...] = ("T", "S1", "S2")


class House:
    """A Dragoman over scripted eves, one backend for each generation, named after it."""

    def __init__(self, journal: str, eve: Mapping[str, Any], speed: float) -> None:
        self._journal = journal
        self._eve = {"pace": 0.0, "key": KEY, **eve}
        self._speed = speed
        self._ports: dict[str, int] = {}
        self._runners: dict[str, web.AppRunner] = {}
        self._stack = contextlib.AsyncExitStack()
        self.eves: dict[str, ScriptedEve] = {}
        self.sessions: Sessions
        self.http: aiohttp.ClientSession

    async def __aenter__(self) -> House:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        self.http = aiohttp.ClientSession(connector=connector)
        for generation in GENERATIONS:
            await self._begin(generation, generation)
        await self.start()
        return self

    async def _begin(self, name: str, generation: Generation) -> None:
        app = create_eve_app(variant=Variant(generation), **self._eve)
        self.eves[name] = app[EVE]
        self._runners[name] = await self._serve(app, name)

    async def replace(self, name: str, generation: Generation) -> None:
        """Let a backend die, and another one of a generation come up at its address."""
        await self._runners[name].cleanup()
        await self._begin(name, generation)

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        await self._stop()
        for runner in self._runners.values():
            await runner.cleanup()

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
        backends = tuple(
            BackendSettings(
                name=generation.lower(),
                dialect="eve",
                url=f"http://{HOST}:{self._ports[generation]}",
            ).with_credential("Authorization", KEY, scheme="Bearer ")
            for generation in GENERATIONS
        )
        tables = {"journal": {"url": self._journal, "window_ms": 0}, "backends": backends}
        settings = Settings.model_validate(tables)
        self._stack = contextlib.AsyncExitStack()
        self.sessions = await self._stack.enter_async_context(
            opened_sessions(settings, clock=HurriedClock(self._speed))
        )
        self._runner = await self._serve(create_app(settings, self.sessions), "proxy")

    async def _stop(self) -> None:
        await self.sessions.aclose()
        await self._runner.cleanup()
        await self._stack.aclose()

    async def restart(self) -> None:
        """Stop the proxy as a crash does, and start it again on what was stored."""
        assert self._runner.server is not None
        for session in list(self.sessions._live.values()):
            session.close()
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self._stop()
        await self.start()

    def _url(self, dialect: str, generation: str) -> str:
        port = self._ports["proxy"]
        return f"http://{HOST}:{port}/as/{dialect}/to/{generation.lower()}"

    def eve(self, generation: str) -> EveClient:
        """A strict eve client on the form for all clients."""
        return EveClient(self.http, self._url("eve", generation), form="all")

    def engine(self, generation: str) -> EngineClient:
        """A strict Engine client."""
        return EngineClient(self.http, self._url("engine", generation))

    def posted(self, generation: str, route: str = "message") -> list[bytes]:
        """The bodies that a scripted eve got on a route, in order; a first message is one of the
        creates, whether it came with the session or after it."""
        found: list[bytes] = []
        empty = 0
        for received in self.eves[generation].received:
            first = received.route == "create"
            if first and b'"message"' not in received.body:
                empty += 1
                continue
            if empty and received.route in ("create", "message"):
                empty, first = empty - 1, True
            if ("create" if first else received.route) == route:
                found.append(received.body)
        return found

    async def log(self, session_id: str) -> list[ev.Event]:
        """The canonical events of a session as they are stored."""
        row = await self.sessions.journal.session(session_id)
        return [
            entry.event
            async for chunk in self.sessions.journal.scan(row.key)
            for entry in entries_of(chunk.body, session_id)
        ]


Serve = Callable[..., Awaitable[House]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a Dragoman over scripted eves; with `stored` on a file."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*, stored: bool = False, speed: float = 1.0, **eve: Any) -> House:
            journal = sqlite(tmp_path) if stored else "memory:"
            return await stack.enter_async_context(House(journal, eve, speed))

        yield start
