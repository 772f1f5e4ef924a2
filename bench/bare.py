"""The yardstick: an aiohttp server that copies the origin's bytes and does nothing else.

What an aiohttp proxy on uvloop costs before it has parsed, stored or translated anything.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web

_ORIGIN = web.AppKey("origin", str)
_CLIENT = web.AppKey("client", aiohttp.ClientSession)


async def _client(app: web.Application) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        app[_CLIENT] = session
        yield


async def _execute(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    headers = {"Content-Type": "application/json"}
    url = request.app[_ORIGIN] + "/execute"
    async with request.app[_CLIENT].post(url, data=body, headers=headers) as upstream:
        response = web.StreamResponse(
            status=upstream.status,
            headers={"Content-Type": upstream.headers["Content-Type"], "Cache-Control": "no-cache"},
        )
        await response.prepare(request)
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


async def _serve(port: int, origin: str) -> None:
    app = web.Application()
    app[_ORIGIN] = origin
    app.cleanup_ctx.append(_client)
    app.router.add_post("/execute", _execute)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=4096)
    await site.start()
    sys.stdout.write(f"listening on http://127.0.0.1:{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(prog="bench.bare", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--origin", required=True, help="base URL of the origin")
    options = parser.parse_args()
    uvloop.run(_serve(options.port, options.origin))


if __name__ == "__main__":
    main()
