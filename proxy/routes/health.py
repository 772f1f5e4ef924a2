"""`/healthz` says that the process lives, `/readyz` that it takes work. Neither needs a key."""

from __future__ import annotations

from aiohttp import web

from proxy.keys import SESSIONS


async def healthz(request: web.Request) -> web.Response:
    """Answer 200: the process lives."""
    return web.json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """Answer 200 while new work is taken, 503 while the server stops."""
    if request.app[SESSIONS].stopping:
        return web.json_response({"status": "stopping"}, status=503)
    return web.json_response({"status": "ready", "sessions": len(request.app[SESSIONS])})


def add_routes(app: web.Application) -> None:
    """Add both routes."""
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
