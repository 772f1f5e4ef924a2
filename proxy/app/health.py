"""`/healthz` says that the process lives, `/readyz` that it takes work, with `?backends=1` that its
backends do too. Neither needs a key."""

from __future__ import annotations

from aiohttp import web

from proxy.control.api import guarded
from proxy.entry.keys import SESSIONS


async def healthz(request: web.Request) -> web.Response:
    """Answer 200: the process lives."""
    return web.json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """Answer 200 while new work is taken, 503 while the server stops or can store nothing; where
    the backends count, 503 too with what is wrong with each that fails its check. That a process
    which shares the journal has another configuration is a warning."""
    sessions = request.app[SESSIONS]
    if sessions.stopping:
        return web.json_response({"status": "stopping"}, status=503)
    if await sessions.journal.trouble() is not None:
        # Why is in the log: it names a file.
        return web.json_response({"status": "journal_unavailable"}, status=503)
    if request.query.get("backends") == "1" and (down := await sessions.backends.not_ready()):
        # The kinds alone: what is said to the operator names addresses and variables.
        body = {"status": "backends_down", "backends": list(down), "why": down}
        return web.json_response(body, status=503)
    # Nothing more: how much is going on is not everybody's business, and stands in `/metrics`.
    body = {"status": "ready"}
    if sessions.configurations_differ:
        # Whose is in the log.
        return web.json_response({**body, "warnings": ["configuration_differs"]})
    return web.json_response(body)


def add_routes(app: web.Application) -> None:
    """Add both routes."""
    app.router.add_get("/healthz", guarded(healthz))
    app.router.add_get("/readyz", guarded(readyz))
