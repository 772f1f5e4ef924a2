"""Serves an application on loopback as `proxy.app.server` does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from proxy.entry.keys import SESSIONS
from proxy.http.connections import runner_of

__all__ = ["HOST", "WHOLE_SERVERS", "close", "serve", "served"]

HOST = "127.0.0.1"
GRACE_SECONDS = 0.1
WHOLE_SERVERS = frozenset({"backends", "faces", "faults", "server"})
"""The folders of `tests` whose tests start whole servers, stop them and crash them."""


async def serve(app: web.Application, port: int = 0) -> tuple[web.AppRunner, int]:
    """Serve an application, at any port without one; returns what closes it, and the port."""
    if SESSIONS in app:
        runner = runner_of(app, grace=GRACE_SECONDS)
    else:
        runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=GRACE_SECONDS, access_log=None
        )
    await runner.setup()
    await web.TCPSite(runner, HOST, port, reuse_address=True).start()
    return runner, int(runner.addresses[0][1])


async def close(runner: web.AppRunner) -> None:
    """Close a server; who knocks at the last moment is let in and sent away, not left standing."""
    loop = asyncio.get_running_loop()
    for site in list(runner.sites):
        # asyncio takes a connection in one turn of the loop and attaches it in the next one; where
        # its server is closed between, nobody has it, and its client waits for ever. So nothing
        # more is taken first.
        for listener in getattr(site, "_server").sockets:  # noqa: B009 - private, for mypy too
            loop.remove_reader(listener.fileno())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await site.stop()
    for _ in range(5):
        await asyncio.sleep(0)
    await runner.cleanup()


@contextlib.asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    """Serve an application at any port; gives its URL."""
    runner, port = await serve(app)
    try:
        yield f"http://{HOST}:{port}"
    finally:
        await runner.cleanup()
