"""`/healthz` says that the process lives, `/readyz` that it takes work. Neither needs a key."""

from __future__ import annotations

from aiohttp import web

from proxy.keys import SESSIONS
from proxy.routes.control import guarded


async def healthz(request: web.Request) -> web.Response:
    """Answer 200: the process lives."""
    return web.json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """Answer 200 while new work is taken, 503 while the server stops."""
    if request.app[SESSIONS].stopping:
        return web.json_response({"status": "stopping"}, status=503)
    # Nothing more: how much is going on is not everybody's business, and stands in `/metrics`.
    return web.json_response({"status": "ready"})


def add_routes(app: web.Application) -> None:
    """Add both routes."""
    app.router.add_get("/healthz", guarded(healthz))
    app.router.add_get("/readyz", guarded(readyz))
