"""Serves one scripted backend by itself, for the command line."""

import asyncio
from collections.abc import Callable

from aiohttp import web

from proxy.base.errors import CannotListen, why_not_listening


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
        CannotListen: why, and what to do.
    """
    # A reader that leaves must not leave its handler behind, waiting for the next heartbeat.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=2.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, UnicodeError) as error:
            raise CannotListen(why_not_listening(error, host, port)) from error
        address, taken = runner.addresses[0][:2]
        shown = f"[{address}]" if ":" in address else address
        ready(f"http://{shown}:{taken}")
        await stop.wait()
    finally:
        await runner.cleanup()
