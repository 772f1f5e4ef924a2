"""What the yardsticks are made of: a server on uvloop with a client for one origin."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
from aiohttp import web

ORIGIN = web.AppKey("origin", str)
CLIENT = web.AppKey("client", aiohttp.ClientSession)


async def _client(app: web.Application) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        app[CLIENT] = session
        yield


async def serve(
    execute: Callable[[web.Request], Awaitable[web.StreamResponse]],
    port: int,
    origin: str,
    app: web.Application,
) -> None:
    """Serve `POST /execute` until the process ends; the first line of stdout says where."""
    app[ORIGIN] = origin
    app.cleanup_ctx.append(_client)
    app.router.add_post("/execute", execute)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=4096)
    await site.start()
    sys.stdout.write(f"listening on http://127.0.0.1:{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()
