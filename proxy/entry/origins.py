"""Lets the web pages of configured origins use this server from their browsers (the CORS protocol
of the Fetch standard); nothing here runs where no origin is configured.

No cookie is ever read here, so `Access-Control-Allow-Credentials` is never sent: a page sends its
key in a header, as every frontend does.

aiohttp-cors (0.8.1, of March 2025, the newest) does not fit: it is told of each route by itself and
refuses those that take any method, which our faces end with.
"""

from __future__ import annotations

import re

from aiohttp import hdrs, web

from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.config.settings import ANY_ORIGIN
from proxy.entry.keys import SESSIONS

EXPOSED = ", ".join(
    (
        "allow",
        "retry-after",
        "traceparent",
        "www-authenticate",
        "x-dragoman-error",
        *(name for dialect in DIALECTS.values() for name in dialect.page_headers),
    )
)
"""The headers of our answers that a page may read besides those that every page may."""

METHODS = "GET, HEAD, POST, PATCH, DELETE"
"""The methods of all routes."""

_HEADER_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:\s*,\s*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")


def add_origins(app: web.Application) -> None:
    """Let an application's answers, streams and errors too, say which origins may read them, if any
    are configured."""
    if app[SESSIONS].settings.server.allowed_origins:
        app.on_response_prepare.append(_share)


def allowed(request: web.Request) -> str | None:
    """Return the origin of a request if the configuration names it."""
    origins = request.app[SESSIONS].settings.server.allowed_origins
    origin = request.headers.get(hdrs.ORIGIN)
    if not origins or origin is None:
        return None
    return origin if origin in origins or ANY_ORIGIN in origins else None


def is_preflight(request: web.Request) -> bool:
    """Say whether it is a browser's question whether a page may ask."""
    asked = (hdrs.ORIGIN, hdrs.ACCESS_CONTROL_REQUEST_METHOD)
    return request.method == hdrs.METH_OPTIONS and all(name in request.headers for name in asked)


def preflight(request: web.Request) -> web.Response:
    """Return the answer to a preflight.

    It is the same for every path, and needs no key, since browsers send none with it.

    Raises:
        DragomanError: the configuration does not name the origin.
    """
    if allowed(request) is None:
        raise DragomanError(
            f"Pages of the origin `{request.headers[hdrs.ORIGIN][:80]}` may not use this server: "
            "allow it by name: `server.allowed_origins`.",
            code=ErrorCode.FORBIDDEN,
        )
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
        # A browser asks again within this time after a change of the configuration. Chromium
        # remembers none longer than two hours.
        hdrs.ACCESS_CONTROL_MAX_AGE: "600",
    }
    # SDKs add headers of their own to each request, so what is asked for is allowed: none of them
    # gives a page more than its origin has.
    names = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "").strip()
    # Browsers ask for some dozen.
    if len(names) <= 2048 and _HEADER_NAMES.fullmatch(names):
        headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = names
    return web.Response(status=204, headers=headers)


async def _share(request: web.Request, response: web.StreamResponse) -> None:
    """Say who may read an answer; every answer varies with who asks, also where nobody may."""
    if ANY_ORIGIN in request.app[SESSIONS].settings.server.allowed_origins:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = ANY_ORIGIN
    else:
        response.headers.add(hdrs.VARY, hdrs.ORIGIN)
        origin = allowed(request)
        if origin is None:
            return
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
    response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED
