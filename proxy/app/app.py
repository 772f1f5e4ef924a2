"""Builds the aiohttp application: which path is served by whom.

`/as/{dialect}/to/{route}` is the base URL of a frontend, below it come exactly the paths of its
dialect. Beside it there are `/healthz`, `/readyz`, `/metrics`, `/api/v1` and the page `/ui/`, and
nothing else. A listener serves one dialect and route at the root of its own port. Base URLs and `/`
say what they are to people who open them in a browser.
"""

from __future__ import annotations

from aiohttp import web
from aiohttp.log import server_logger

from adapters.registry import faces
from proxy.app import deliveries, health, metrics
from proxy.app.entrance import enter, prepared
from proxy.base.errors import ConfigError
from proxy.config.settings import ListenerSettings
from proxy.control import api, routes
from proxy.control.demo import Demo
from proxy.control.demo import add_routes as add_demo
from proxy.entry.keys import INTERNAL, LISTENER_FACE, LISTENER_ROUTE, SESSIONS
from proxy.entry.origins import add_origins
from proxy.faces import addresses
from proxy.faces.misdirected import load_faces
from proxy.faces.table import add_dialect, add_face
from proxy.http.malformed import NO_HTTP
from proxy.sessions.sessions import Sessions
from proxy.ui import ui


def _base(sessions: Sessions, *, internal: bool = False) -> web.Application:
    app = web.Application(
        # Bodies are read by `proxy.http.bodies`, which knows the limit of each route.
        client_max_size=0,
        middlewares=(enter,),
    )
    server_logger.addFilter(NO_HTTP)
    app[SESSIONS] = sessions
    app[INTERNAL] = internal
    add_origins(app)
    app.on_response_prepare.append(prepared)
    return app


def create_app(
    sessions: Sessions, demo: Demo | None = None, *, internal: bool = False
) -> web.Application:
    """Return the main application; that of a demo can be broken. An `internal` one takes only what
    the processes that share the journal forward to it."""
    app = _base(sessions, internal=internal)
    health.add_routes(app)
    metrics.add_routes(app)
    routes.add_routes(app)
    if demo is not None:
        add_demo(app, demo)
    for path in ("/api", "/api/{tail:.*}"):
        app.router.add_route("*", path, api.guarded(_below_api))
    addresses.add_routes(app)
    if sessions.settings.server.ui:
        ui.add_routes(app)
    deliveries.add_routes(app)
    for dialect in faces():
        add_dialect(app, dialect)
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
    app[LISTENER_FACE] = listener.dialect
    add_face(app, listener.dialect, "")
    return app


async def _below_api(request: web.Request) -> web.StreamResponse:
    """Answer what is not of the control API: frontends have paths below `/api` too."""
    ours = request.path.startswith("/api/v1/")
    if not ours:
        await load_faces()
        if (error := addresses.of_a_frontend(request)) is not None:
            raise error
    return await routes.unknown(request)


async def _nothing(request: web.Request) -> web.StreamResponse:
    await load_faces()
    raise addresses.nothing(request)
