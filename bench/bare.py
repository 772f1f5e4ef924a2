"""The yardstick: an aiohttp server that copies the origin's bytes and does nothing else.

What an aiohttp proxy on uvloop costs before it has parsed, stored or translated anything.
"""

from __future__ import annotations

import argparse

import uvloop
from aiohttp import web

from bench.serving import CLIENT, ORIGIN, serve


async def _execute(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    headers = {"Content-Type": "application/json"}
    url = request.app[ORIGIN] + "/execute"
    async with request.app[CLIENT].post(url, data=body, headers=headers) as upstream:
        response = web.StreamResponse(
            status=upstream.status,
            headers={"Content-Type": upstream.headers["Content-Type"], "Cache-Control": "no-cache"},
        )
        await response.prepare(request)
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(prog="bench.bare", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--origin", required=True, help="base URL of the origin")
    options = parser.parse_args()
    uvloop.run(serve(_execute, options.port, options.origin, web.Application()))


if __name__ == "__main__":
    main()
