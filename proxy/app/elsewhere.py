"""A request for a session that another process has: it is answered there.

One that nobody can answer now waits here: for the lease of a process that is gone, whose sessions
others take over then, or for one that stops to let go of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from adapters.wire.errors import DragomanError
from proxy.base.errors import SessionElsewhere
from proxy.control import api
from proxy.entry.entry import read_again
from proxy.entry.keys import INTERNAL, LISTENER_FACE, LISTENER_ROUTE, SESSIONS, STARTED
from proxy.http.forwarding import BEFORE, ELSEWHERE, MARK, Forwarder, ForwardRefused
from proxy.http.seals import HEADER, Misdirected
from proxy.sessions.cache import last_attempt

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PATIENCE_SECONDS = 15.0
"""How long a request waits: three leases."""

AGAIN_SECONDS = 0.1
"""The pause before it is looked again who has a session."""


async def answered(
    forwarder: Forwarder, handler: Handler, request: web.Request
) -> web.StreamResponse:
    """Return the answer to a request, from whatever process.

    Raises:
        ConnectionError: it broke off, or the client has left.
        Exception: what the handler raises.
    """
    sessions, clock = request.app[SESSIONS], request.app[SESSIONS].clock
    due = clock.monotonic() + PATIENCE_SECONDS
    if request.app[INTERNAL] and sessions.stopping:
        # Another will have the session in a moment.
        return _not_here()
    while True:
        try:
            return await handler(request)
        except SessionElsewhere as error:
            owner = error.owner
        if STARTED in request:
            # The client comes again, and is answered there.
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the session went to another process")
        if request.app[INTERNAL]:
            return _not_here()
        refused = False
        try:
            response = await forwarder.forward(
                request, _target(request), await read_again(request), owner
            )
        except ForwardRefused:
            response, refused = None, True
        if response is not None:
            return response
        if refused or clock.monotonic() > due:
            # It is refused in the form of its dialect.
            last_attempt.set(True)
        else:
            await clock.sleep(AGAIN_SECONDS)


def _not_here(why: str = "1") -> web.Response:
    return web.Response(status=ELSEWHERE, headers={MARK: why})


def _target(request: web.Request) -> str:
    """Return the path and query of a request at the main application."""
    app = request.app
    if LISTENER_ROUTE not in app:
        return request.raw_path
    return f"/as/{app[LISTENER_FACE]}/to/{app[LISTENER_ROUTE]}{request.raw_path}"


async def refusal(forwarder: Forwarder, request: web.Request) -> web.Response | None:
    """Return what is answered at an internal listener to a request that is not taken: it does not
    come from a process that shares the journal, or is not for this one."""
    body = await read_again(request)
    try:
        forwarder.checker.check(
            request.headers.get(HEADER), method=request.method, target=request.raw_path, body=body
        )
    except DragomanError as error:
        response = api.error_response(error)
        response.headers[MARK] = "refused"
        return response
    except Misdirected as error:
        return _not_here(BEFORE if error.before else "1")
    return None
