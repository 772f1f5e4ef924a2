"""What every face does at its door: who asks, on which route, for which session."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aiohttp import web

from adapters.contract.faces import Action, Size
from adapters.model.base import Response
from adapters.wire.errors import DragomanError
from proxy.base.errors import JournalUnavailable, SessionNotFound
from proxy.base.repeats import Submission
from proxy.entry.keys import LISTENER_ROUTE, SESSIONS, SUBMISSION
from proxy.http.auth import Principal, authenticate, authorize, no_route, routes_of
from proxy.http.malformed import MALFORMED_HEAD
from proxy.recording.recording import ASKING
from proxy.session import Session

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TAKES = "takes"
"""The attribute of a handler that says how large the bodies of its requests may be."""

REFUSED = web.ResponseKey("refused", int)
"""The key in an answer of the status under which a refusal is counted that stands in a stream."""

T = TypeVar("T")


def route_of(request: web.Request) -> str:
    """Return the route of a request: the one in its path, else its listener's."""
    return request.match_info.get("route") or request.app[LISTENER_ROUTE]


def entered(request: web.Request, action: Action, route: str) -> Principal:
    """Return who asks on a route, after the checks that stand before any look-up.

    Raises:
        DragomanError: the key, its routes or its scopes do not allow this.
    """
    sessions = request.app[SESSIONS]
    principal = authenticate(request.headers, sessions.keys)
    authorize(principal, None, action, route, sessions.settings)
    return principal


def open_route(request: web.Request) -> None:
    """Check the route of a request that needs no key.

    Without a key one learns whether a name that it guessed is a route, which health of a route
    cannot be without, and nothing else of it. A key learns of its own routes only, as everywhere.

    Raises:
        DragomanError: there is no such route, or not for the key that is shown.
    """
    settings, route = request.app[SESSIONS].settings, route_of(request)
    if settings.route(route) is None:
        raise no_route(route, routes_shown(request))
    try:
        principal = authenticate(request.headers, request.app[SESSIONS].keys)
    except DragomanError:
        return
    authorize(principal, None, Action.READ, route, settings)


def routes_shown(request: web.Request) -> list[str]:
    """Return the names of the routes that who asks may use; strangers learn of none."""
    try:
        principal = authenticate(request.headers, request.app[SESSIONS].keys)
    except DragomanError:
        return []
    return routes_of(principal, request.app[SESSIONS].settings)


def takes(size: Size | int) -> Callable[[Handler], Handler]:
    """Declare how large the bodies of a handler's requests may be; a number of bytes is for one
    that takes them piece by piece."""

    def declare(handler: Handler) -> Handler:
        handler.__dict__[TAKES] = size
        return handler

    return declare


def _limit(request: web.Request) -> tuple[Size | int, int]:
    """Return which bodies the handler of a request takes, and their limit; of one that reads none,
    what may be sent to no purpose."""
    size: Size | int = getattr(request.match_info.handler, TAKES, "small")
    return size, size if isinstance(size, int) else request.app[SESSIONS].bodies.limits[size]


async def admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a handler answer, if the head is text and what it says of the body is taken.

    Raises:
        DragomanError: see `check_head`.
        Exception: what the handler raises.
    """
    check_head(request)
    return await handler(request)


def check_head(request: web.Request) -> None:
    """Check the head of a request, before anything of the body is read.

    Raises:
        DragomanError: it is malformed, or the body has a content coding or a length that is not
            taken.
    """
    if (wrong := request.get(MALFORMED_HEAD)) is not None:
        raise wrong
    _, limit = _limit(request)
    request.app[SESSIONS].bodies.check(request.headers, request.content_length, limit)


async def read(request: web.Request, parse: Callable[[bytes], T]) -> T:
    """Return what a request's body says.

    Raises:
        DragomanError: the body is not taken, or `parse` refuses it.
    """
    bodies, (size, limit) = request.app[SESSIONS].bodies, _limit(request)
    return await _taken(request, lambda body: bodies.parsed(body, parse, size), limit)


async def read_bytes(request: web.Request) -> bytes:
    """Return a request's body.

    Raises:
        DragomanError: it is not taken.
    """
    return await _taken(request, lambda body: body, _limit(request)[1])


def read_again(request: web.Request) -> Coroutine[Any, Any, bytes]:
    """Return a request's body, which may have been read before.

    Raises:
        DragomanError: it is not taken.
    """
    return request.app[SESSIONS].bodies.take(request, _limit(request)[1], bytes)


def read_pieces(request: web.Request) -> AsyncIterator[bytes]:
    """Yield a request's body as it comes; it raises a `DragomanError` where that is not taken."""
    return request.app[SESSIONS].bodies.pieces(request, _limit(request)[1])


def _taken(request: web.Request, parse: Callable[[bytes], T], limit: int) -> Coroutine[Any, Any, T]:
    if (asking := request.get(ASKING)) is not None:
        parse = asking.hearing(parse)
    return request.app[SESSIONS].bodies.take(request, limit, parse)


async def read_submission(
    request: web.Request, parse: Callable[[bytes], T]
) -> tuple[T, Submission]:
    """Return what the body of a request says that is to give commands, and what identifies it;
    what becomes of its reply is heard by the application.

    Raises:
        DragomanError: the body is not taken, or `parse` refuses it.
    """

    # The request will know what asks this: were it known here too, both would stay in memory with
    # their connection until a collection of garbage finds them, 28 objects for each command.
    connection, bodies, (size, limit) = (
        request.protocol,
        request.app[SESSIONS].bodies,
        _limit(request),
    )

    def reachable() -> bool:
        transport = connection.transport
        return transport is not None and not transport.is_closing()

    def both(body: bytes) -> tuple[T, Submission]:
        submission = Submission(request.method, request.path, request.headers, body, reachable)
        return bodies.parsed(body, parse, size), submission

    heard = both if (asking := request.get(ASKING)) is None else asking.hearing(both)
    wanted, submission = await bodies.take(request, limit, heard)
    request[SUBMISSION] = submission
    return wanted, submission


async def owned(
    request: web.Request,
    principal: Principal,
    name: str,
    route: str,
    *,
    what: str = "session",
) -> Session:
    """Return a session that is there for who asks on a route, and was let in there; `what` is the
    dialect's word for one.

    Raises:
        SessionNotFound: there is none, or not for this key and route.
    """
    sessions = request.app[SESSIONS]
    try:
        session = await sessions.cache.get(name, owner=principal.name, route=route)
    except SessionNotFound:
        raise _missing(what, name, route) from None
    row = session.row
    gone = session.state.about.ended == "deleted"
    if gone or (row.owner, row.route) != (principal.name, route):
        raise _missing(what, name, route)
    return session


def _missing(what: str, name: str, route: str) -> SessionNotFound:
    """Return the same words, whether it is another key's, another route's or nobody's."""
    return SessionNotFound(
        f"There is no {what} `{name[:80]}` on the route `{route[:80]}`, or not for this key."
    )


def tell_quote(error: DragomanError) -> None:
    """Tell who runs this what the answer to an error leaves out. That the journal is not to be had
    is told once by itself."""
    if error.quote is not None and not isinstance(error, JournalUnavailable):
        _log.warning("a request fails: %s", error.quote, extra={"kind": "request_failed"})


def to_web(response: Response) -> web.Response:
    """Return an answer of a codec as aiohttp sends it."""
    answer = web.Response(status=response.status, headers=response.headers, body=response.body)
    if response.refused is not None:
        answer[REFUSED] = response.refused
    return answer
