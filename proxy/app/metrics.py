"""`/metrics`: what the process has counted, as Prometheus reads it. It needs a key where there are
some: how much is going on is not everybody's business."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from proxy.base.metrics import exposition
from proxy.control.api import guarded
from proxy.entry.keys import SESSIONS
from proxy.http.auth import authenticate


async def metrics(request: web.Request) -> web.Response:
    """Return the numbers of the whole process, the same for every key."""
    authenticate(request.headers, request.app[SESSIONS].keys)
    sessions = request.app[SESSIONS]
    body = exposition(
        sessions=len(sessions),
        readers=sessions.readers,
        stored=sessions.journal.stored,
        backlog=sessions.journal.backlog,
    )
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def add_routes(app: web.Application) -> None:
    """Add the route."""
    app.router.add_get("/metrics", guarded(metrics))
