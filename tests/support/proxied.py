"""A Dragoman in this process over a scripted Engine, with or without keys, for tests of its routes.

Time is real, but waits are short: what comes every ten seconds comes twenty times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from adapters.model.events import InteractionRequested
from proxy.app.app import create_app, create_listener
from proxy.app.server import opened_sessions
from proxy.base.clock import Clock
from proxy.config.settings import BackendSettings, ListenerSettings, Settings
from proxy.scripted.engine import ENGINE, create_engine_app
from proxy.scripted.engine_turns import ScriptedEngine
from proxy.session import Session
from proxy.sessions.sessions import Sessions
from tests.support.clocks import ShortWaits
from tests.support.dragoman import BACKEND_KEY, backend_settings
from tests.support.journals import journal_url
from tests.support.keys import credential
from tests.support.serving import served
from tests.support.waiting import SOON_S

__all__ = ["Proxied", "Served", "proxied"]


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
        """Ask, and return the status and the JSON of the answer, or its text where it is not
        JSON."""
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


def _backend(table: str | Mapping[str, Any] | BackendSettings, url: str) -> BackendSettings:
    if isinstance(table, str):
        return backend_settings(table, "engine", url)
    return BackendSettings.model_validate(table)


@contextlib.asynccontextmanager
async def proxied(
    *,
    engine: Mapping[str, Any] | None = None,
    backends: Sequence[str | Mapping[str, Any] | BackendSettings] = ("engine",),
    change: Callable[[web.Application], None] | None = None,
    clock: Clock | None = None,
    **tables: Any,
) -> AsyncIterator[Proxied]:
    """Start a proxy.

    Args:
        engine: what else the scripted Engine is told.
        backends: names of backends that are the scripted Engine, or whole tables of others, or
            what these give.
        change: is given the main application before it is served.
        clock: by what it waits, if not shortly.
        tables: further tables of the configuration; listeners get any port.
    """
    app = create_engine_app(**{"key": BACKEND_KEY, "pace": 0.0, **(engine or {})})
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(served(app))
        made = [_backend(table, backend) for table in backends]
        listeners: Sequence[ListenerSettings] = tables.get("listeners", ())
        settings = Settings.model_validate(
            {"journal": {"url": journal_url("memory:")}, "backends": made, **tables}
        )
        sessions = await stack.enter_async_context(
            opened_sessions(settings, clock=clock or ShortWaits())
        )
        own = create_app(sessions)
        if change is not None:
            change(own)
        main, *others = [
            Served(await stack.enter_async_context(served(one)), list(one.router.routes()))
            for one in (own, *(create_listener(sessions, at) for at in listeners))
        ]
        # The sessions close before the servers wait for their handlers, as `proxy.app.server` does.
        stack.push_async_callback(sessions.aclose)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Proxied(http, main, others, sessions, app[ENGINE])
