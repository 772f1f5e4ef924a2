"""Builds the aiohttp application: which path is served by whom.

`/as/{dialect}/to/{route}` is the base URL of a frontend, below it come exactly the paths of its
dialect. Beside it there are `/healthz`, `/readyz`, `/metrics` and `/api/v1`, and nothing else. A
listener serves one dialect and route at the root of its own port.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
from collections.abc import Awaitable, Callable

from aiohttp import web
from yarl import URL

from adapters.errors import DragomanError, ErrorCode
from adapters.registry import DIALECTS
from proxy.auth import Key
from proxy.errors import ConfigError
from proxy.keys import ASKED, KEYS, LISTENER_ROUTE, SESSIONS, SETTINGS
from proxy.repeats import Asked
from proxy.routes import control, engine, eve, health, herm, metrics
from proxy.sessions import Sessions
from proxy.settings import ListenerSettings, Settings

FACES: dict[str, Callable[[web.Application, str], None]] = {
    "eve": eve.add_routes,
    "engine": engine.add_routes,
    "herm": herm.add_routes,
}
"""Dialect -> what adds its routes below a prefix; `{route}` in the prefix names the route."""


def _base(settings: Settings, sessions: Sessions) -> web.Application:
    app = web.Application(
        client_max_size=settings.server.max_body_bytes,
        middlewares=(_entrance,),
    )
    app[SETTINGS] = settings
    app[SESSIONS] = sessions
    app[KEYS] = Key.from_settings(settings.keys)
    return app


@web.middleware
async def _entrance(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Keep the sessions that a request looks at in memory until it is answered; without keys,
    refuse what a foreign web page could send."""
    # One for both: what a middleware costs in memory an open stream keeps.
    if not request.app[KEYS] and (refusal := _foreign(request)) is not None:
        return refusal
    try:
        with request.app[SESSIONS].holding():
            response = await handler(request)
            if (asked := request.get(ASKED)) is not None:
                await _reply(request, response, asked)
            return response
    finally:
        if (asked := request.get(ASKED)) is not None:
            asked.over(whole=False)


async def _reply(request: web.Request, response: web.StreamResponse, asked: Asked) -> None:
    """Write a reply here, so that it is known whether it was written to its end."""
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        await response.write_eof()
        asked.over(whole=True)


def _foreign(request: web.Request) -> web.Response | None:
    """Return the refusal of a request by a name that was rebound to loopback, or from a foreign
    origin."""
    for url in (f"http://{request.host}", request.headers.get("Origin")):
        if url is not None and not _is_loopback(url):
            text = (
                "Without keys only programs of this machine are served, "
                f"and `{url[:80]}` is none. Add a [[keys]] table."
            )
            return control.error_response(DragomanError(text, code=ErrorCode.FORBIDDEN))
    return None


@functools.lru_cache(maxsize=256)
def _is_loopback(url: str) -> bool:
    try:
        host = URL(url).host or ""
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def create_app(settings: Settings, sessions: Sessions) -> web.Application:
    """Return the main application."""
    app = _base(settings, sessions)
    health.add_routes(app)
    metrics.add_routes(app)
    control.add_routes(app)
    for dialect, add in FACES.items():
        add(app, f"/as/{dialect}/to/{{route}}")
    app.router.add_route("*", "/{tail:.*}", _nothing)
    return app


def create_listener(
    settings: Settings, sessions: Sessions, listener: ListenerSettings
) -> web.Application:
    """Return the application of a listener: one dialect and route at the root.

    Raises:
        ConfigError: the dialect is not served yet.
    """
    if listener.dialect not in FACES:
        raise ConfigError(
            f"[[listeners]] {listener.listen}: `{listener.dialect}` is not served yet; "
            f"served are: {', '.join(FACES)}."
        )
    app = _base(settings, sessions)
    app[LISTENER_ROUTE] = listener.route
    FACES[listener.dialect](app, "")
    return app


async def _nothing(request: web.Request) -> web.StreamResponse:
    parts = request.path.split("/")
    if len(parts) > 2 and parts[1] == "as" and parts[2] in DIALECTS:
        text = f"`{parts[2]}` is not served yet; served are: {', '.join(FACES)}."
        return control.error_response(DragomanError(text, code=ErrorCode.NOT_FOUND))
    text = "There is nothing here; a frontend's base URL is /as/{dialect}/to/{route}."
    return control.error_response(DragomanError(text, code=ErrorCode.NOT_FOUND))
