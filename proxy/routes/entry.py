"""What every face does at its door: who asks, on which route, for which session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from aiohttp import web

from adapters.base import Response
from adapters.errors import DragomanError, ErrorCode
from proxy.auth import Action, Principal, authenticate, authorize
from proxy.errors import SessionNotFound
from proxy.keys import ASKED, KEYS, LISTENER_ROUTE, SESSIONS, SETTINGS
from proxy.repeats import Asked
from proxy.session import Session

__all__ = ["Handler", "asked_by", "entered", "owned", "route_of", "to_web"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def route_of(request: web.Request) -> str:
    """Return the route of a request: the one in its path, else its listener's."""
    return request.match_info.get("route") or request.app[LISTENER_ROUTE]


def entered(
    request: web.Request, action: Action, *, to_the_end: Collection[Action] = (Action.READ,)
) -> Principal:
    """Return who asks, after the checks that stand before any look-up.

    `to_the_end` are the actions that are still allowed while the server stops.

    Raises:
        DragomanError: the key, its routes or its scopes do not allow this, or the server stops.
    """
    principal = authenticate(request.headers, request.app[KEYS])
    authorize(principal, None, action, route_of(request), request.app[SETTINGS])
    if action not in to_the_end and request.app[SESSIONS].stopping:
        raise DragomanError("The server is stopping; try again.", code=ErrorCode.STOPPING)
    return principal


def asked_by(request: web.Request, body: bytes) -> Asked:
    """Return what identifies a request that is to give commands; what becomes of its reply is heard
    by the application."""

    def reachable() -> bool:
        transport = request.transport
        return transport is not None and not transport.is_closing()

    asked = Asked(request.method, request.path, request.headers, body, reachable)
    request[ASKED] = asked
    return asked


async def owned(
    request: web.Request, principal: Principal, name: str, action: Action, *, what: str = "session"
) -> Session:
    """Return a session that is there for who asks; `what` is the dialect's word for one.

    Raises:
        SessionNotFound: there is none, or not for this key and route.
    """
    route = route_of(request)
    session = await request.app[SESSIONS].get(name, owner=principal.name, route=route)
    authorize(principal, session.row.owner, action, route, request.app[SETTINGS])
    if session.row.route != route or session.state.ended == "deleted":
        raise SessionNotFound(f"There is no {what} `{name[:80]}`.")
    return session


def to_web(response: Response) -> web.Response:
    """Return an answer of a codec as aiohttp sends it."""
    return web.Response(status=response.status, headers=response.headers, body=response.body)
