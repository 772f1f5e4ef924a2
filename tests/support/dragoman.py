"""A Dragoman and the scripted backends behind it, in this process, to be stopped and started.

The proxy is the real application on a port of its own, as `proxy.app.server` runs it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self, TypeVar
from unittest.mock import patch

import aiohttp
import pytest
from aiohttp import web

import proxy.app.server
from adapters.model import events as ev
from proxy.app.app import create_app
from proxy.app.server import opened_sessions
from proxy.config.settings import BackendSettings, Settings
from proxy.journal.base import Journal
from proxy.scripted.agui import AGUI, create_agui_app
from proxy.scripted.engine import ENGINE, create_engine_app
from proxy.scripted.eve import EVE, create_eve_app
from proxy.scripted.herm import HERM, create_herm_app
from proxy.scripted.managed_agents import MANAGED_AGENTS, create_managed_agents_app
from proxy.session import Session
from proxy.sessions.sessions import Sessions
from tests.support.clocks import HurriedClock
from tests.support.eve_client import EveClient, Form, Style
from tests.support.journals import CrashJournal, journal_url, sqlite, stored_entries
from tests.support.keys import credential
from tests.support.serving import HOST, close, serve

__all__ = [
    "BACKEND_KEY",
    "KNOWN",
    "SCRIPTED",
    "Backend",
    "Dragoman",
    "Start",
    "backend_settings",
    "needed_lines",
    "starting",
    "starts",
]

BACKEND_KEY = "k-local-9"
"""The only key that scripted backends let pass."""

SCRIPTED: dict[str, Any] = {}
"""The states of the scripted backends that run, by address."""


class Known(NamedTuple):
    """What the rig knows of a dialect's scripted backend: what makes its application, the key of
    its state there, how its credential is sent, and the members without which its table in the
    configuration is refused."""

    create: Callable[..., web.Application]
    state: web.AppKey[Any]
    header: str = "Authorization"
    scheme: str = "Bearer "
    needed: Mapping[str, Any] = MappingProxyType({})


KNOWN: Mapping[str, Known] = {
    "herm": Known(create_herm_app, HERM, needed={"create": {"agent": "agent_K4"}}),
    "eve": Known(create_eve_app, EVE),
    "engine": Known(create_engine_app, ENGINE, header="X-Engine-Key", scheme=""),
    "agui": Known(create_agui_app, AGUI),
    "managed-agents": Known(
        create_managed_agents_app,
        MANAGED_AGENTS,
        header="x-api-key",
        scheme="",
        needed={"create": {"agent": "agent_9Q", "environment_id": "env_2b"}},
    ),
}
"""Dialect -> its scripted backend."""


def backend_settings(
    name: str, dialect: str, url: str, key: str = BACKEND_KEY, **members: Any
) -> BackendSettings:
    """The table of a backend, with the credential where its dialect has it."""
    known = KNOWN[dialect]
    table = {"name": name, "dialect": dialect, "url": url, **known.needed, **members}
    backend = BackendSettings.model_validate(table)
    return backend.with_credential(known.header, key, scheme=known.scheme)


def needed_lines(dialect: str) -> str:
    """The members without which a backend's table is refused, as TOML."""
    needed = KNOWN[dialect].needed.items()
    return "".join(f"{name} = {_toml(value)}\n" for name, value in needed)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        members = ", ".join(f"{name} = {_toml(one)}" for name, one in value.items())
        return f"{{ {members} }}"
    return json.dumps(value)


@dataclass(slots=True)
class Backend:
    """A scripted backend and how the proxy talks to it; read at each start.

    Args:
        dialect: what it speaks.
        options: arguments of the function that makes its application.
        table: further members of its table in the configuration.
        key: what the proxy sends.
    """

    dialect: str
    options: Mapping[str, Any] = field(default_factory=dict)
    table: Mapping[str, Any] = field(default_factory=dict)
    key: str = BACKEND_KEY


class Dragoman:
    """One proxy over scripted backends; `scripted` are their states by name.

    Args:
        journal: a URL, or a journal that a restart finds again.
        backends: by name.
        settings: further tables of the configuration.
        speed: how much faster than real time the proxy's clock runs.
    """

    def __init__(
        self,
        journal: str | Journal,
        backends: Mapping[str, Backend],
        *,
        settings: Mapping[str, Any] | None = None,
        speed: float = 1.0,
    ) -> None:
        self.backends = dict(backends)
        self.scripted: dict[str, Any] = {}
        self._journal = journal
        self._settings = dict(settings or {})
        self._speed = speed
        self._backend_runners: dict[str, web.AppRunner] = {}
        self._backend_ports: dict[str, int] = {}
        self._runner: web.AppRunner | None = None
        self._stack = contextlib.AsyncExitStack()
        self.port = 0
        self.sessions: Sessions
        self.http: aiohttp.ClientSession

    # Start and stop.

    async def __aenter__(self) -> Self:
        # A connection of its own for each request: what a restart cuts must not look like a bug.
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
        for name in self.backends:
            await self.start_backend(name)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        await self.stop()
        for name in list(self._backend_runners):
            await self.stop_backend(name)

    async def start_backend(self, name: str) -> None:
        """Start a scripted backend, at the address of the one before."""
        backend = self.backends[name]
        known = KNOWN[backend.dialect]
        app = known.create(**{"key": BACKEND_KEY, "pace": 0.0, **backend.options})
        self.scripted[name] = app[known.state]
        self._backend_runners[name], self._backend_ports[name] = await serve(
            app, self._backend_ports.get(name, 0)
        )
        SCRIPTED[self.backend_url(name)] = self.scripted[name]

    async def stop_backend(self, name: str) -> None:
        """Stop a backend: its connections break, its turns are gone."""
        runner = self._backend_runners.pop(name, None)
        if runner is not None:
            await close(runner)
            SCRIPTED.pop(self.backend_url(name), None)

    def backend_url(self, name: str) -> str:
        """The address of a backend."""
        return f"http://{HOST}:{self._backend_ports[name]}"

    @property
    def settings(self) -> Settings:
        """The configuration, as it would be read from a file."""
        backends = tuple(
            backend_settings(
                name, backend.dialect, self.backend_url(name), backend.key, **backend.table
            )
            for name, backend in self.backends.items()
        )
        url = journal_url(self._journal) if isinstance(self._journal, str) else "memory:"
        tables = {"journal": {"url": url, "window_ms": 0}, **self._settings}
        return Settings.model_validate({"backends": backends, **tables})

    async def start(self) -> None:
        """Start the proxy on what the journal holds, at the port that it had before."""
        journal = self._journal
        settings = self.settings
        self._stack = contextlib.AsyncExitStack()
        with contextlib.ExitStack() as patched:
            if isinstance(journal, Journal):
                # The one that the server opens is ours, as a file on a disk would be.
                patched.enter_context(
                    patch.object(proxy.app.server, "open_journal", lambda *_, **__: journal)
                )
            self.sessions = await self._stack.enter_async_context(
                opened_sessions(settings, clock=HurriedClock(self._speed))
            )
        self._runner, self.port = await serve(create_app(self.sessions), self.port)

    async def stop(self) -> None:
        """Stop the proxy in order."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        # The sessions close before the server waits for its handlers, as in `proxy.app.server`.
        await self.sessions.aclose()
        await close(runner)
        await self._stack.aclose()

    async def crash(self) -> None:
        """Stop the proxy as a crash does: connections break, what was not stored is gone."""
        runner = self._runner
        assert runner is not None
        assert runner.server is not None
        for session in self.sessions.cache:
            session.close()
        for connection in list(runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self.stop()

    async def restart(self) -> None:
        """Crash and start again."""
        await self.crash()
        if isinstance(self._journal, CrashJournal):
            self._journal.repaired()
        await self.start()

    async def reconfigure(self, **tables: Any) -> None:
        """Crash and start again with other tables of the configuration."""
        await self.crash()
        self._settings.update(tables)
        await self.start()

    # What tests ask.

    def face(self, dialect: str, backend: str) -> str:
        """The base URL of a face on a backend; the same after a restart."""
        return f"http://{HOST}:{self.port}/as/{dialect}/to/{backend}"

    def eve_client(
        self,
        backend: str,
        form: Form = "all",
        style: Style | None = None,
        *,
        key: str | None = None,
        **options: Any,
    ) -> EveClient:
        """A strict eve client of the eve face on a backend."""
        return EveClient(
            self.http,
            self.face("eve", backend),
            form=form,
            style=style,
            headers=credential(key),
            **options,
        )

    def bodies(self, backend: str, route: str) -> list[bytes]:
        """The bodies that a scripted backend got on a route, in order."""
        received = self.scripted[backend].received
        return [request.body for request in received if request.route == route]

    async def live(self, session_id: str) -> Session:
        """The session in memory, loaded where needed."""
        return await self.sessions.get(session_id, owner=None, route=None)

    async def log(self, session_id: str) -> list[ev.Event]:
        """The canonical events of a session as they are stored."""
        entries = await stored_entries(self.sessions.journal, session_id)
        return [entry.event for entry in entries]


_Kind = TypeVar("_Kind", bound=Dragoman, covariant=True)


class Start(Protocol[_Kind]):
    """What a fixture gives to start Dragomans of a kind; with `journal="sqlite"` on a file."""

    async def __call__(self, journal: str | Journal = "memory:", **options: Any) -> _Kind:
        """Start one; `options` are arguments of the kind."""


@contextlib.asynccontextmanager
async def starting(kind: type[_Kind], folder: Path) -> AsyncIterator[Start[_Kind]]:
    """Give what starts Dragomans of a kind; all of them are stopped in the end."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(journal: str | Journal = "memory:", **options: Any) -> _Kind:
            if journal == "sqlite":
                journal = sqlite(folder)
            made = kind(journal, **options)
            await stack.enter_async_context(made)
            return made

        yield start


def starts(kind: type[_Kind]) -> Callable[[Path], AsyncIterator[Start[_Kind]]]:
    """Return the fixture that gives what starts Dragomans of a kind."""

    @pytest.fixture
    async def start(tmp_path: Path) -> AsyncIterator[Start[_Kind]]:
        async with starting(kind, tmp_path) as start:
            yield start

    return start
