"""Serves one scripted backend by itself, for the command line."""

import asyncio
from collections.abc import Callable

from aiohttp import web

__all__ = ["serve_alone"]


async def serve_alone(
    app: web.Application,
    host: str,
    port: int,
    *,
    ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set; `ready` gets the address once requests are answered.

    Raises:
        OSError: there it cannot listen.
    """
    # A reader that leaves must not leave its handler behind, waiting for the next heartbeat.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=2.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        address, taken = runner.addresses[0][:2]
        shown = f"[{address}]" if ":" in address else address
        ready(f"http://{shown}:{taken}")
        await stop.wait()
    finally:
        await runner.cleanup()
