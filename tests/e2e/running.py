"""A Dragoman and the scripted Engine behind it, in this process, that can be stopped and started.

`Running` holds both; the proxy is the real application on a port of its own, as `proxy.server` runs
it. Time runs faster for it (`HurriedClock`), so that a minute of patience takes less than a second.
`CrashJournal` is a disk that a crash leaves in exactly the state that a test wants.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
from aiohttp import web

import proxy.server
from adapters import events as ev
from proxy.app import create_app
from proxy.clock import Clock
from proxy.hub import entries_of
from proxy.journal.base import Journal, Write
from proxy.journal.memory import MemoryJournal
from proxy.scripted.engine import ENGINE, ScriptedEngine, Variant, create_engine_app
from proxy.server import opened_sessions
from proxy.session import Session
from proxy.sessions import Sessions
from proxy.settings import BackendSettings, DialectSettings, Settings
from tests.support.eve_client import EveClient, Form, Style

HOST = "127.0.0.1"
ENGINE_KEY = "k-local-9"
BACKEND = "engine"
# An answer that must come soon, on a machine that does much else.
SOON_S = 30.0
# How much faster than real time it runs: a minute of patience is 0.3 s then.
SPEED = 200.0


LEAST = Variant(
    tool_call_id=False,
    failure="errored",
    heartbeat_timestamp=False,
    short_lifecycle=True,
    blocks=False,
    call_before_request=False,
    options="objects",
    resolved_request_id=False,
    usage=False,
    replay_tails=False,
)
"""An Engine that leaves out whatever the page allows it to."""


class HurriedClock(Clock):
    """Real time, run faster: waits are shorter and `now` moves on in step with them."""

    def __init__(self, speed: float | None = None) -> None:
        self._speed = SPEED if speed is None else speed
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


class CrashJournal(MemoryJournal):
    """A journal that outlives the application, and stops storing where a test wants it to.

    `crash_at(k)` lets the next k writes through and loses all that follow. Without `confirmed` the
    k-th is stored, but nobody hears of it any more, as when power fails between the disk and us.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.crashed = asyncio.Event()
        self._left: int | None = None
        self._confirmed = True

    def crash_at(self, writes: int, *, confirmed: bool) -> None:
        """Arm the crash."""
        self._left = writes
        self._confirmed = confirmed

    def repaired(self) -> None:
        """Store everything again."""
        self._left = None
        self.crashed.clear()

    def submit(self, write: Write) -> None:
        if self._left == 0:
            self.crashed.set()
            return
        self.writes += 1
        if self._left is not None:
            self._left -= 1
            if self._left == 0 and not self._confirmed:
                write.done = None
                super().submit(write)
                self.crashed.set()
                return
        super().submit(write)


class Running:
    """One Dragoman over one scripted Engine.

    Args:
        journal: a URL, or a journal that a restart finds again.
        engine: arguments of `create_engine_app`.
        settings: further tables of the configuration.
        speed: how much faster than real time the proxy's clock runs, `SPEED` by default.
    """

    def __init__(
        self,
        journal: str | Journal,
        *,
        engine: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        speed: float | None = None,
    ) -> None:
        self._journal = journal
        self._engine_options: dict[str, Any] = {"key": ENGINE_KEY, "pace": 0.0, **(engine or {})}
        self._settings = dict(settings or {})
        self._speed = speed
        self.backend_settings: dict[str, Any] = {}
        self.engine_key = ENGINE_KEY
        self._engine_runner: web.AppRunner | None = None
        self._runner: web.AppRunner | None = None
        self._stack = contextlib.AsyncExitStack()
        self._engine_port = 0
        self._port = 0
        self.engine: ScriptedEngine
        self.sessions: Sessions
        self.http: aiohttp.ClientSession

    # Start and stop.

    async def __aenter__(self) -> Running:
        # A connection of its own for each request: what a restart cuts must not look like a bug.
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
        await self.start_engine()
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        await self.stop()
        await self.stop_engine()

    async def start_engine(self) -> None:
        """Start a scripted Engine, at the address of the one before."""
        app = create_engine_app(**self._engine_options)
        self.engine = app[ENGINE]
        self._engine_runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None
        )
        await self._engine_runner.setup()
        await web.TCPSite(self._engine_runner, HOST, self._engine_port, reuse_address=True).start()
        self._engine_port = self._engine_runner.addresses[0][1]

    async def stop_engine(self) -> None:
        """Stop the Engine: its connections break, its turns are gone."""
        runner, self._engine_runner = self._engine_runner, None
        if runner is not None:
            await _closed(runner)

    @property
    def engine_url(self) -> str:
        """The Engine's address."""
        return f"http://{HOST}:{self._engine_port}"

    @property
    def settings(self) -> Settings:
        """The configuration, as it would be read from a file."""
        backend = BackendSettings(
            name=BACKEND,
            dialect="engine",
            url=self.engine_url,
            settings=DialectSettings(**self.backend_settings),
        ).with_credential("X-Engine-Key", self.engine_key)
        url = self._journal if isinstance(self._journal, str) else "memory:"
        tables = {"journal": {"url": url, "window_ms": 0}, **self._settings}
        return Settings.model_validate({"backends": (backend,), **tables})

    async def start(self) -> None:
        """Start the proxy on what the journal holds."""
        journal = self._journal
        settings = self.settings
        self._stack = contextlib.AsyncExitStack()
        with contextlib.ExitStack() as patched:
            if isinstance(journal, Journal):
                # The one that the server opens is ours, as a file on a disk would be.
                patched.enter_context(
                    patch.object(proxy.server, "open_journal", lambda *_, **__: journal)
                )
            self.sessions = await self._stack.enter_async_context(
                opened_sessions(settings, clock=HurriedClock(self._speed))
            )
        app = create_app(settings, self.sessions)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop the proxy in order."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        await self.sessions.aclose()
        await _closed(runner)
        await self._stack.aclose()

    async def crash(self) -> None:
        """Stop the proxy as a crash does: connections break, what was not stored is gone."""
        runner = self._runner
        assert runner is not None
        assert runner.server is not None
        for session in list(self.sessions._live.values()):
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

    # What tests ask.

    @property
    def base(self) -> str:
        """Where an eve client finds the backend."""
        return f"http://{HOST}:{self._port}/as/eve/to/{BACKEND}"

    @property
    def port(self) -> int:
        """The proxy's port; the same after a restart."""
        return self._port

    def eve(
        self,
        form: Form = "all",
        style: Style | None = None,
        *,
        key: str | None = None,
        **options: Any,
    ) -> EveClient:
        """A strict eve client of this proxy."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return EveClient(self.http, self.base, form=form, style=style, headers=headers, **options)

    def requests(self, route: str) -> list[Any]:
        """The bodies that the Engine got on a route, in order; queries of a route without body."""
        return [
            json.loads(received.body) if received.body else dict(received.query)
            for received in self.engine.received
            if received.route == route
        ]

    async def live(self, session_id: str) -> Session:
        """The session in memory, loaded where needed."""
        return await self.sessions.get(session_id, owner=None, route=None)

    async def log(self, session_id: str) -> list[ev.Event]:
        """The canonical events of a session as they are stored."""
        row = await self.sessions.journal.session(session_id)
        return [
            entry.event
            async for chunk in self.sessions.journal.scan(row.key)
            for entry in entries_of(chunk.body, session_id)
        ]

    async def lines(
        self, session_id: str, query: str = "follow=0", *, key: str | None = None
    ) -> list[bytes]:
        """The records of a bounded read, as the bytes of their lines."""
        async with self.get(session_id, query, key=key) as response:
            assert response.status == 200, await response.text()
            body: bytes = await response.read()
        assert body.startswith(b"\n")
        assert body.endswith(b"\n")
        return body[1:].splitlines(keepends=True)

    def get(self, session_id: str, query: str, *, key: str | None = None) -> Any:
        """Open a session's stream."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return self.http.get(
            f"{self.base}/eve/v1/session/{session_id}/stream?{query}", headers=headers
        )


async def _closed(runner: web.AppRunner) -> None:
    """Close a server; who knocks at the last moment is let in and sent away, not left standing."""
    for site in list(runner.sites):
        await site.stop()
    for _ in range(5):
        await asyncio.sleep(0)
    await runner.cleanup()


class Live:
    """A reader that stays: the lines of a stream as they come."""

    def __init__(self, running: Running, session_id: str, query: str = "") -> None:
        self._running = running
        self._session_id = session_id
        self._query = query
        self.lines: list[bytes] = []
        self.blank = 0
        self.over = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Live:
        opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._read(opened))
        await opened
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _read(self, opened: asyncio.Future[None]) -> None:
        rest = b""
        async with self._running.get(self._session_id, self._query) as response:
            assert response.status == 200
            opened.set_result(None)
            with contextlib.suppress(aiohttp.ClientError):
                async for data in response.content.iter_any():
                    *lines, rest = (rest + data).split(b"\n")
                    self.blank += lines.count(b"")
                    self.lines += [line + b"\n" for line in lines if line]
        self.over = True

    async def until(self, condition: Callable[[Live], bool]) -> list[bytes]:
        """Wait until the condition holds of this reader, and return its lines."""
        await until(lambda: condition(self))
        return list(self.lines)

    async def count(self, number: int) -> list[bytes]:
        """Wait for that many lines."""
        return await self.until(lambda live: len(live.lines) >= number)


async def until(condition: Callable[[], bool], seconds: float = SOON_S) -> None:
    """Return once the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


def idle(session: Session) -> bool:
    """Whether nothing of a session is under way, readers aside."""
    state = session.state
    stored = session.last_seq == state.seq
    return stored and not (state.busy or state.inputs or state.unreceived)


async def settled(session: Session) -> None:
    """Return when nothing of a session is under way."""
    await until(lambda: idle(session))


def sqlite(folder: Path) -> str:
    """The URL of a journal in a folder."""
    return f"sqlite:///{folder / 'journal.db'}"


def types(lines: list[bytes]) -> list[str]:
    """The record types of lines, in order."""
    return [json.loads(line)["type"] for line in lines]
