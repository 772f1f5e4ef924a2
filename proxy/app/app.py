"""Builds the aiohttp application: which path is served by whom.

`/as/{dialect}/to/{route}` is the base URL of a frontend, below it come exactly the paths of its
dialect. Beside it there are `/healthz`, `/readyz`, `/metrics`, `/api/v1` and the page `/ui/`, and
nothing else. A listener serves one dialect and route at the root of its own port. Base URLs and `/`
say what they are to people who open them in a browser.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web
from aiohttp.log import server_logger

from adapters.registry import faces
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.app import deliveries, health, metrics
from proxy.base.errors import ConfigError
from proxy.base.metrics import LEFT
from proxy.base.repeats import Submission
from proxy.config.settings import ListenerSettings
from proxy.control import api, control
from proxy.control.demo import Demo
from proxy.control.demo import add_routes as add_demo
from proxy.entry.capture import add_captures
from proxy.entry.keys import LISTENER_ROUTE, SESSIONS, SUBMISSION
from proxy.entry.origins import add_origins, allowed, is_preflight, preflight
from proxy.entry.tracing import add_traces
from proxy.faces import addresses
from proxy.faces.table import add_astray, add_face
from proxy.http.loopback import foreign_name
from proxy.http.malformed import MALFORMED_HEAD, NO_HTTP, malformed
from proxy.sessions.sessions import Sessions
from proxy.ui import ui


def _base(sessions: Sessions) -> web.Application:
    app = web.Application(
        # Bodies are read by `proxy.http.bodies`, which knows the limit of each route.
        client_max_size=0,
        middlewares=(_entrance,),
    )
    server_logger.addFilter(NO_HTTP)
    app[SESSIONS] = sessions
    add_origins(app)
    add_captures(app)
    add_traces(app)
    return app


@web.middleware
async def _entrance(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Keep the sessions that a request looks at in memory until it is answered; without keys,
    refuse what a foreign web page could send; answer preflights."""
    # One for all: what a middleware costs in memory an open stream keeps.
    sessions = request.app[SESSIONS]
    if (wrong := malformed(request)) is not None:
        # The handler refuses it in the form of its dialect.
        request[MALFORMED_HEAD] = wrong
    else:
        if not sessions.keys and (refusal := _foreign(request)) is not None:
            return refusal
        if request.method == hdrs.METH_OPTIONS and is_preflight(request):
            return _preflight(request)
    try:
        with sessions.cache.holding():
            response = await handler(request)
            if (submission := request.get(SUBMISSION)) is not None:
                await _reply(request, response, submission)
            return response
    except ConnectionError:
        # The client has left. aiohttp finds that out once more, and logs no error for it.
        return web.Response(status=LEFT)
    finally:
        if (submission := request.get(SUBMISSION)) is not None:
            submission.over(whole=False)


async def _reply(
    request: web.Request, response: web.StreamResponse, submission: Submission
) -> None:
    """Write a reply here, so that it is known whether it was written to its end."""
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        await response.write_eof()
        submission.over(whole=True)


def _foreign(request: web.Request) -> web.Response | None:
    """Return the refusal of a request by a name that was rebound to loopback, or from an origin
    that is foreign and not allowed by name."""
    page = request.headers.get(hdrs.ORIGIN)
    if page is not None and allowed(request) is not None:
        page = None
    url = foreign_name(request.host, page)
    if url is None:
        return None
    text = (
        f"Without keys only programs of this machine are served, and `{url[:80]}` is not of it. "
        "Add a [[keys]] table, or allow a web page's origin by name: `server.allowed_origins`."
    )
    return api.error_response(DragomanError(text, code=ErrorCode.FORBIDDEN))


def _preflight(request: web.Request) -> web.Response:
    try:
        return preflight(request)
    except DragomanError as error:
        return api.error_response(error)


def create_app(sessions: Sessions, demo: Demo | None = None) -> web.Application:
    """Return the main application; that of a demo can be broken."""
    app = _base(sessions)
    metrics.count_requests(app)
    health.add_routes(app)
    metrics.add_routes(app)
    control.add_routes(app)
    if demo is not None:
        add_demo(app, demo)
    for path in ("/api", "/api/{tail:.*}"):
        app.router.add_route("*", path, api.guarded(_below_api))
    addresses.add_routes(app)
    if sessions.settings.server.ui:
        ui.add_routes(app)
    deliveries.add_routes(app)
    for dialect in faces():
        add_face(app, dialect, f"/as/{dialect}/to/{{route}}")
        add_astray(app, dialect, f"/as/{dialect}")
    app.router.add_route("*", "/{tail:.*}", api.guarded(_nothing))
    return app


def create_listener(sessions: Sessions, listener: ListenerSettings) -> web.Application:
    """Return the application of a listener: one dialect and route at the root.

    Raises:
        ConfigError: the dialect is not served yet.
    """
    if listener.dialect not in faces():
        why = addresses.not_served(listener.dialect)
        raise ConfigError(f"[[listeners]] {listener.listen}: {why}")
    app = _base(sessions)
    app[LISTENER_ROUTE] = listener.route
    metrics.count_requests(app, listener.dialect)
    add_face(app, listener.dialect, "")
    return app


async def _below_api(request: web.Request) -> web.StreamResponse:
    """Answer what is not of the control API: frontends have paths below `/api` too."""
    ours = request.path.startswith("/api/v1/")
    if not ours and (error := addresses.of_a_frontend(request)) is not None:
        raise error
    return await control.unknown(request)


async def _nothing(request: web.Request) -> web.StreamResponse:
    raise addresses.nothing(request)
