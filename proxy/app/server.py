"""Runs the server: journal, sessions, listeners, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence

import aiohttp
from aiohttp import web

from adapters.registry import faces
from proxy import __version__
from proxy.app.app import create_app, create_listener
from proxy.app.configurations import configuration_hash, watch_configurations
from proxy.app.reloading import reload_when_told
from proxy.base import process
from proxy.base.clock import Clock, IdSource
from proxy.base.clock_steps import watch_clock
from proxy.base.errors import CannotListen, ConfigError, JournalError, why_not_listening
from proxy.base.loop_lag import LAG
from proxy.base.tasks import Tasks
from proxy.config.settings import Address, ClusterSettings, Settings
from proxy.control.demo import Demo
from proxy.http.connections import runner_of
from proxy.http.forwarding import Forwarder
from proxy.journal import open_journal, shown
from proxy.migration.shadowing import ShadowDriver
from proxy.recording.recording import Captures
from proxy.sessions.backends import Backends, load_dialects
from proxy.sessions.sessions import ATTACH_PAGE, Sessions
from proxy.telemetry.tracing import open_tracing
from proxy.upstream.backend_check import warn

_log = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that wait to be taken. Beyond it the kernel lets a client wait for a second before it
tries again, and asyncio's own 100 are fewer than come back after a restart."""

GRACE_SECONDS = 0.5
"""How long handlers get to end once the sessions are closed; streams were told to end before."""


@contextlib.asynccontextmanager
async def opened_sessions(
    settings: Settings,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    backends: Callable[[Settings, aiohttp.ClientSession, IdSource], Backends] = Backends,
) -> AsyncIterator[Sessions]:
    """Open the journal, the connections to backends and the sessions; close them in the opposite
    order. `backends` makes what knows the backends.

    Raises:
        JournalError: the journal cannot be opened.
        ConfigError: the folder for captures cannot be made, or spans cannot be sent.
    """
    clock = clock or Clock()
    load_dialects(settings)
    tracing = open_tracing(clock.monotonic) if settings.otel.enabled else None
    journal = open_journal(
        settings.journal.url,
        pooled=settings.journal.pooled,
        advertise=None if settings.cluster is None else settings.cluster.advertise,
        frames=settings.journal.frames,
        frame_limit=settings.journal.frame_limit_bytes,
        window_ms=settings.journal.window_ms,
    )
    tasks = Tasks("sessions")
    sessions: Sessions | None = None
    try:
        await journal.open()
        captures = None if settings.capture is None else Captures(settings.capture, clock.now)
        # No limit: every running turn holds one connection, and the sessions bound those.
        # Unused connections are kept as long as aiohttp does by default.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0)
        async with aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar()
        ) as http:
            ids = ids or IdSource()
            sessions = Sessions(
                settings,
                journal,
                tasks=tasks,
                clock=clock,
                ids=ids,
                backends=backends(settings, http, ids),
                captures=captures,
                tracing=tracing,
            )
            if settings.cluster is not None:
                join(sessions, settings.cluster, http)
            shadowing = ShadowDriver(sessions, tasks)
            sessions.cache.rested = shadowing.rested
            try:
                await sessions.open()
                shadowing.open()
                tasks.start(watch_clock(clock), name="watch the clock")
                yield sessions
            finally:
                await sessions.aclose()
                await tasks.aclose()
    finally:
        await journal.aclose()
        if sessions is not None and sessions.captures is not None:
            await sessions.captures.aclose()
        if tracing is not None:
            await tracing.aclose(_closing_seconds(settings) / 4)


def join(sessions: Sessions, cluster: ClusterSettings, http: aiohttp.ClientSession) -> None:
    """Let sessions be shared with the other processes of a cluster.

    Raises:
        ConfigError: the journal is not one that can be shared.
    """
    node = sessions.journal.shared
    if node is None:
        raise ConfigError("`[cluster]` needs a journal in PostgreSQL")
    sessions.forwarder = Forwarder(sessions.journal, node, cluster.secret, http, sessions.tasks)
    sessions.bodies.keeps = True
    node.configuration = configuration_hash(sessions.settings)
    sessions.tasks.start(watch_configurations(sessions, node), name="compare configurations")

    # Who has not renewed its lease may have lost its place: another may ask the backend.
    sessions.backends.permitted = lambda: node.leased


def _closing_seconds(settings: Settings) -> float:
    # Half of it is for handlers, half for tasks, the journal's last write and the last spans.
    return min(2.0, settings.server.shutdown_seconds / 2)


async def listen(
    app: web.Application,
    address: Address,
    sockets: Sequence[socket.socket] = (),
    *,
    reuse_port: bool = False,
) -> tuple[web.AppRunner, int]:
    """Serve at an address, or at sockets that are bound to it; with `reuse_port` other processes
    may serve there as well."""
    runner = runner_of(app, grace=GRACE_SECONDS)
    await runner.setup()
    sites: list[web.BaseSite] = [web.SockSite(runner, one, backlog=BACKLOG) for one in sockets]
    if not sites:
        host, port = address
        sites.append(
            web.TCPSite(
                *(runner, host, port),
                reuse_address=True,
                reuse_port=reuse_port or None,
                backlog=BACKLOG,
            )
        )
    try:
        for site in sites:
            await site.start()
    except (OSError, UnicodeError) as error:
        await runner.cleanup()
        raise CannotListen(why_not_listening(error, address.host, address.port)) from error
    return runner, int(runner.addresses[0][1])


async def serve(
    settings: Settings,
    *,
    ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
    checked: bool = True,
    failed: Callable[[JournalError], None] | None = None,
    read: Callable[[], Settings] | None = None,
    sockets: Sequence[socket.socket] = (),
    reuse_port: bool = False,
    demo: Demo | None = None,
) -> None:
    """Serve until `stop` is set; `ready` hears the URL once requests are taken. Unless the backends
    are not to be `checked`, the log warns of those that cannot be used, as soon as that is known.
    `failed` ends the process when the journal can store nothing more, see `Journal.when_failed`.
    With `read`, which reads the configuration anew, SIGHUP reloads it. `sockets` are bound to the
    address already, `reuse_port` says that other processes listen there too, and `demo` is what
    this serves, where it does.

    Raises:
        CannotListen: an address cannot be listened on.
        ConfigError: a setting is wrong.
        JournalError: the journal cannot be opened.
    """
    stop, hangup = stop or asyncio.Event(), asyncio.Event()
    process.set_up()
    if read is not None:
        # Already now: without it the signal ends the process.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup.set)
    settings, internal = _internal(settings)
    if read is not None and internal:
        read = functools.partial(_reread, read, settings.cluster)
    async with opened_sessions(settings) as sessions:
        if failed is not None:
            sessions.journal.when_failed(failed)
        runners: list[web.AppRunner] = []
        checks = Tasks("checks")
        try:
            address = settings.server.address
            runner, port = await listen(
                create_app(sessions, demo), address, sockets, reuse_port=reuse_port
            )
            runners.append(runner)
            served = _base_urls(settings, address._replace(port=port))
            if settings.cluster is not None:
                app = create_app(sessions, internal=True)
                runners.append((await listen(app, settings.cluster.address, internal))[0])
            for listener in settings.listeners:
                app = create_listener(sessions, listener)
                at = listener.address
                runner, number = await listen(app, at, reuse_port=reuse_port)
                runners.append(runner)
                served.append(f"{at._replace(port=number).url} {listener.dialect} {listener.route}")
            _started(settings, sessions, address._replace(port=port), served)
            unwatch = LAG.watch(asyncio.get_running_loop())
            try:
                if ready is not None:
                    ready(address._replace(port=port).url)
                if checked:
                    checks.start(warn(settings, sessions.backends.health), "backends")
                if read is not None:
                    checks.start(reload_when_told(sessions, read, hangup), "reload")
                await stop.wait()
                _stopping(sessions, settings.server.shutdown_seconds)
            finally:
                unwatch()
        finally:
            await checks.aclose()
            await _stop(sessions, runners, settings)
    _log.info("stopped", extra={"kind": "stopped"})


def _reread(read: Callable[[], Settings], cluster: ClusterSettings | None) -> Settings:
    """Read the configuration anew, but for what `[cluster]` became at the start."""
    return read().model_copy(update={"cluster": cluster})


def _internal(settings: Settings) -> tuple[Settings, list[socket.socket]]:
    """Bind the internal listener, so that its port is known before others are told of it; return
    the settings with that port. Nobody is listened to yet: a connection that waits for the start
    would be one of which nobody knows what became of its request.

    Raises:
        CannotListen: it cannot be listened on.
    """
    cluster = settings.cluster
    if cluster is None:
        return settings, []
    host, port = cluster.address
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except (OSError, UnicodeError) as error:
        bound.close()
        raise CannotListen(why_not_listening(error, host, port)) from error
    if not port:
        cluster = cluster.at(port=bound.getsockname()[1])
    return settings.model_copy(update={"cluster": cluster}), [bound]


def _base_urls(settings: Settings, address: Address) -> list[str]:
    """Return the base URL of each dialect and route of the main listener, with their names."""
    return [
        f"{address.url}/as/{dialect}/to/{route} {dialect} {route}"
        for route in settings.route_names
        for dialect in faces()
    ]


def _started(
    settings: Settings, sessions: Sessions, address: Address, served: Sequence[str]
) -> None:
    """Tell what was started; there may be more sessions with work than were looked for at once."""
    journal = shown(settings.journal.url)
    more = "at least " if sessions.resumed >= ATTACH_PAGE else ""
    _log.info(
        "started Dragoman %s at %s, journal %s, %s%d sessions with work are resumed",
        *(__version__, address.url, journal, more, sessions.resumed),
        extra={
            "version": __version__,
            "url": address.url,
            "serves": served,
            "journal": journal,
            "sessions": sessions.resumed,
            "kind": "started",
        },
    )


def _stopping(sessions: Sessions, seconds: float) -> None:
    """Tell what a stop ends: the streams of frontends, and turns that the next start goes on
    with."""
    streams, turns = sessions.readers, sum(session.state.busy for session in sessions.cache)
    _log.info(
        "stopping: %d streams end, %d turns go on with the next start; what is on its way has %g "
        "seconds",
        *(streams, turns, seconds),
        extra={"kind": "stopping", "streams": streams, "turns": turns},
    )


async def _stop(sessions: Sessions, runners: Sequence[web.AppRunner], settings: Settings) -> None:
    """Stop within `shutdown_seconds`, less the time for tasks, journal and spans: streams end
    first, so that their clients reconnect; while commands get their answers new work is still
    taken, to be refused as its dialect does; then all is closed."""
    seconds, closing = settings.server.shutdown_seconds, _closing_seconds(settings)
    end = asyncio.get_running_loop().time() + seconds - closing / 2
    if not await sessions.drain(seconds - closing):
        text = "commands on their way were cut off; the next start looks for their answers"
        _log.warning(text, extra={"kind": "cut_off"})
    await sessions.aclose()
    await asyncio.sleep(0)
    # Who has not left by then is cut off.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(end):
            await asyncio.gather(*(runner.cleanup() for runner in runners))
