"""Serves a capture as a backend, in any dialect: `dragoman replay --serve`.

It is a Dragoman of its own, with a journal in memory. Behind it there is a script in place of a
backend (`adapters.offline.replay`), so all that faces can do is there: streams that go on where
they broke, lists, approvals. Each session that a frontend makes is a replay from the begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from adapters.model.base import Call, ClientCodec, Response
from adapters.model.commands import AnyCommand
from adapters.offline.replay import ReplayClient, ReplayScript
from adapters.wire.errors import NotSupported
from proxy.app.app import create_app, create_listener
from proxy.app.server import GRACE_SECONDS, listen, opened_sessions
from proxy.base.clock import IdSource
from proxy.config.settings import (
    Address,
    BackendSettings,
    JournalSettings,
    ListenerSettings,
    ServerSettings,
    Settings,
)
from proxy.sessions.backends import Backends
from proxy.tools.replay.faults import StreamFaults
from proxy.upstream.client import Load, Upstream, no_files

_log = logging.getLogger(__name__)

HOST = "127.0.0.1"

ROUTE = "replay"
"""The name of the backend, as sessions show it."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What is replayed: a script, the dialect of its backend, and how many times as fast as it was
    recorded."""

    script: ReplayScript
    dialect: str
    speed: float


class _AcceptingUpstream(Upstream):
    """A backend that takes every call; the codec knows by itself what comes of it."""

    async def call(self, call: Call, load: Load = no_files, trace: str | None = None) -> Response:
        """Return that it was taken."""
        return Response(202)


class _LoggedReplayClient(ReplayClient):
    """A replay that tells on stderr what it refuses: a frontend may keep it to itself."""

    def check(self, command: AnyCommand) -> None:
        """Check a command.

        Raises:
            NotSupported: it is not what was recorded.
        """
        try:
            super().check(command)
        except NotSupported as error:
            _log.warning("%s", error.whole)
            raise


class _ScriptBackends(Backends):
    """One backend, which is a script."""

    any_agent = True

    def __init__(
        self, replay: ReplayPlan, settings: Settings, http: aiohttp.ClientSession, ids: IdSource
    ) -> None:
        super().__init__(settings, http, ids)
        self._replay = replay
        self._taking = _AcceptingUpstream(http, settings.backends[0].url, {})

    def codec(self, backend: BackendSettings, task_id: str) -> ClientCodec:
        """Return what plays the script to one session."""
        replay = self._replay
        return _LoggedReplayClient(replay.script, replay.dialect, replay.speed, task_id)

    def upstream(self, backend: BackendSettings) -> Upstream:
        """Return what takes its calls."""
        return self._taking


async def serve_replay(
    replay: ReplayPlan,
    face: str,
    *,
    port: int,
    faults: int | None,
    ready: Callable[[str, str], None],
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set.

    Args:
        replay: what is replayed.
        face: the dialect that frontends speak.
        port: where; 0 for any free one.
        faults: the seed of what goes wrong with streams; None for nothing.
        ready: gets the address for frontends and that of the control API, once requests are
            answered.
        stop: ends it.

    Raises:
        ConfigError: the dialect has no face.
        CannotListen: the port is busy.
        OSError: the port is busy.
    """
    address = Address(HOST, 0 if faults is not None else port)
    listener = ListenerSettings(dialect=face, route=ROUTE, listen=f"{HOST}:{address.port}")
    settings = Settings(
        server=ServerSettings(listen=f"{HOST}:0"),
        journal=JournalSettings(url="memory:"),
        backends=(
            BackendSettings.model_validate(
                {"name": ROUTE, "dialect": replay.dialect, "url": "http://replay.invalid"}
            ),
        ),
        listeners=(listener,),
    )
    async with contextlib.AsyncExitStack() as stack:
        sessions = await stack.enter_async_context(
            opened_sessions(settings, backends=lambda *given: _ScriptBackends(replay, *given))
        )
        runner, inner = await listen(create_listener(sessions, listener), address)
        stack.push_async_callback(runner.cleanup)
        control, at = await listen(create_app(sessions), settings.server.address)
        stack.push_async_callback(control.cleanup)
        outer = inner
        if faults is not None:
            outer = await stack.enter_async_context(StreamFaults(faults).before(inner, port=port))
        ready(f"http://{HOST}:{outer}", f"http://{HOST}:{at}")
        await stop.wait()
        # Streams end first: a handler would wait for them.
        await sessions.drain(GRACE_SECONDS)
