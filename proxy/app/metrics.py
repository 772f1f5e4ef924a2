"""`/metrics`: what the process has counted, as Prometheus reads it. It needs a key where there are
some: how much is going on is not everybody's business.

Requests are counted here, and those that are refused are told to the operator."""

from __future__ import annotations

import logging

from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from adapters.registry import faces
from proxy.base.metrics import count_request, exposition
from proxy.control.api import guarded
from proxy.entry.entry import REFUSED
from proxy.entry.keys import SESSIONS
from proxy.http.auth import authenticate

_log = logging.getLogger(__name__)


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


def count_requests(app: web.Application, face: str | None = None) -> None:
    """Count the requests to an application: to a face where all of it is one."""

    async def count(request: web.Request, response: web.StreamResponse) -> None:
        at = face or _face_of(request.rel_url.raw_path)
        status = response.get(REFUSED, response.status)
        count_request(at, status)
        # The key is missing, wrong, or not enough.
        if status in (401, 403):
            _tell(request, at, status)

    app.on_response_prepare.append(count)


def _tell(request: web.Request, face: str, status: int) -> None:
    """Log a request that is refused, by the form of its path: an id in it may be a token."""
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    _log.info(
        "%s %s is refused with %d, to %s",
        *(request.method, path, status, request.remote or "nobody"),
        extra={"face": face, "status": status, "remote": request.remote},
    )


def _face_of(path: str) -> str:
    parts = path.split("/", 3)
    if parts[1:2] == ["api"]:
        return "control"
    return parts[2] if parts[1:2] == ["as"] and parts[2:3] and parts[2] in faces() else "other"


def add_routes(app: web.Application) -> None:
    """Add the route."""
    app.router.add_get("/metrics", guarded(metrics))
