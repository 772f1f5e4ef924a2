"""A Dragoman in this process over a scripted Engine, with or without keys, for tests of its routes.

Time is real, but waits are short: what comes every ten seconds comes twenty times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from adapters.events import InteractionRequested
from proxy.app import create_app, create_listener
from proxy.clock import Clock
from proxy.scripted.engine import ENGINE, ScriptedEngine, create_engine_app
from proxy.server import opened_sessions
from proxy.session import Session
from proxy.sessions import Sessions
from proxy.settings import BackendSettings, KeySettings, ListenerSettings, Settings

__all__ = ["ENGINE_KEY", "SOON_S", "Proxied", "Served", "credential", "key_of", "proxied"]

ENGINE_KEY = "k-engine-4"
SOON_S = 30.0
"""An answer that must come soon, on a machine that does much else."""

SPEED = 200.0


class ShortWaits(Clock):
    """Real time, but every wait is a two-hundredth of what it says."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / SPEED)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        return await super().wait(event, seconds / SPEED)


class Served(NamedTuple):
    """An application: where it is, and which routes it has."""

    url: str
    routes: Sequence[web.AbstractRoute]


class Proxied:
    """The proxy and its listeners, and the parts that a test looks into."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        main: Served,
        listeners: Sequence[Served],
        sessions: Sessions,
        engine: ScriptedEngine,
    ) -> None:
        self.http = http
        self.url, self.routes = main
        self.listeners = listeners
        self.sessions = sessions
        self.engine = engine

    async def request(
        self, method: str, path: str, *, key: str | None = None, **options: Any
    ) -> tuple[int, Any]:
        """Ask, and return the status and the JSON of the answer, or its text where it is none."""
        headers = {**credential(key), **options.pop("headers", {})}
        url = path if "://" in path else self.url + path
        async with self.http.request(method, url, headers=headers, **options) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.text()

    async def say(
        self,
        text: str,
        session: str | None = None,
        *,
        route: str = "engine",
        key: str | None = None,
    ) -> str:
        """Say something as an eve frontend; returns the session's id."""
        path = f"/as/eve/to/{route}/eve/v1/session" + ("" if session is None else f"/{session}")
        status, body = await self.request("POST", path, json={"message": text}, key=key)
        assert status in (200, 202), body
        session_id: str = body["sessionId"]
        return session_id

    async def session(self, session_id: str) -> Session:
        """Return the session in memory."""
        return await self.sessions.get(session_id, owner=None, route=None)

    async def until_idle(self, session_id: str, *, turns: int = 1) -> None:
        """Wait until so many turns are over."""
        async with asyncio.timeout(SOON_S):
            while True:
                session = await self.session(session_id)
                news = session.news()
                state = session.state
                over = len(state.turn_ids) >= turns and not state.busy
                if over and session.last_seq == state.seq:
                    return
                await news.wait()

    async def asked(self, session_id: str) -> InteractionRequested:
        """Wait until something is asked, and return it."""
        async with asyncio.timeout(SOON_S):
            while True:
                session = await self.session(session_id)
                news = session.news()
                open_ = session.open_interactions()
                if open_ and session.last_seq == session.state.seq:
                    return open_[0]
                await news.wait()


def credential(key: str | None) -> dict[str, str]:
    """Return the headers that carry a key."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def key_of(name: str, backends: tuple[str, ...] | None = None) -> KeySettings:
    """Return a key whose value is `k-` and its name."""
    digest = hashlib.sha256(f"k-{name}".encode()).hexdigest()
    return KeySettings(name=name, sha256=digest, backends=backends)


def _backend(table: str | Mapping[str, Any], url: str) -> BackendSettings:
    if not isinstance(table, str):
        return BackendSettings.model_validate(table)
    made = BackendSettings(name=table, dialect="engine", url=url)
    return made.with_credential("X-Engine-Key", ENGINE_KEY)


async def _served(stack: contextlib.AsyncExitStack, app: web.Application) -> Served:
    """Serve an application as `proxy.server` does."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    return Served(url, list(app.router.routes()))


@contextlib.asynccontextmanager
async def proxied(
    *,
    engine: Mapping[str, Any] | None = None,
    backends: Sequence[str | Mapping[str, Any]] = ("engine",),
    change: Callable[[web.Application], None] | None = None,
    **tables: Any,
) -> AsyncIterator[Proxied]:
    """Start a proxy.

    Args:
        engine: what else the scripted Engine is told.
        backends: names of backends that are the scripted Engine, or whole tables of others.
        change: is given the main application before it is served.
        tables: further tables of the configuration; listeners get any port.
    """
    app = create_engine_app(**{"key": ENGINE_KEY, "pace": 0.0, **(engine or {})})
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(TestServer(app))
        made = [_backend(table, str(backend.make_url(""))) for table in backends]
        listeners: Sequence[ListenerSettings] = tables.get("listeners", ())
        settings = Settings.model_validate(
            {"journal": {"url": "memory:"}, "backends": made, **tables}
        )
        sessions = await stack.enter_async_context(opened_sessions(settings, clock=ShortWaits()))
        own = create_app(settings, sessions)
        if change is not None:
            change(own)
        main = await _served(stack, own)
        others = [
            await _served(stack, create_listener(settings, sessions, listener))
            for listener in listeners
        ]
        # The sessions close before the servers wait for their handlers, as `proxy.server` does.
        stack.push_async_callback(sessions.aclose)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Proxied(http, main, others, sessions, app[ENGINE])
