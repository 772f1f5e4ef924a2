"""The entrance of an application: what holds for all its requests and answers.

One middleware, and one signal for all heads: what a middleware costs in memory an open stream
keeps.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from adapters.wire.errors import DragomanError, ErrorCode
from proxy.app.elsewhere import answered, refusal
from proxy.base import traces
from proxy.base.metrics import LEFT, count_request
from proxy.base.repeats import Submission
from proxy.control import api
from proxy.entry.capture import record, write_head
from proxy.entry.entry import REFUSED
from proxy.entry.keys import FACE, INTERNAL, LISTENER_FACE, SESSIONS, SHOWN_IN, STARTED, SUBMISSION
from proxy.entry.origins import allowed, is_preflight, preflight
from proxy.http.loopback import foreign_name
from proxy.http.malformed import MALFORMED_HEAD, malformed
from proxy.recording.recording import ASKING

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_API = re.compile("/api(/|$)")

_log = logging.getLogger(__name__)


@web.middleware
def enter(request: web.Request, handler: Handler) -> Awaitable[web.StreamResponse]:
    """Keep the `traceparent` while a request is handled, and record it if sessions are recorded."""
    given = request.headers.getall(traces.HEADER, None)
    # aiohttp handles each request in a task of its own, with which this ends. Not a coroutine: an
    # open stream would keep its memory.
    traces.current.set((given and traces.taken(given)) or traces.made())
    captures = request.app[SESSIONS].captures
    if captures is None:
        return _serve(handler, request)
    return record(request, functools.partial(_serve, handler), captures)


async def _serve(handler: Handler, request: web.Request) -> web.StreamResponse:
    """Keep the sessions that a request looks at in memory until it is answered; without keys,
    refuse what a foreign web page could send; answer preflights."""
    sessions = request.app[SESSIONS]
    forwarder = sessions.forwarder
    if (
        forwarder is not None
        and request.app[INTERNAL]
        and (refused := await refusal(forwarder, request)) is not None
    ):
        return refused
    if (wrong := malformed(request)) is not None:
        # The handler refuses it in the form of its dialect.
        request[MALFORMED_HEAD] = wrong
    else:
        page = request.headers.get(hdrs.ORIGIN)
        if page is not None and allowed(request) is not None:
            page = None
        if not sessions.keys and (url := foreign_name(request.host, page)) is not None:
            return _foreign(url)
        if request.method == hdrs.METH_OPTIONS and is_preflight(request):
            return _preflight(request)
    try:
        with sessions.cache.holding():
            if forwarder is None:
                response = await handler(request)
            else:
                response = await answered(forwarder, handler, request)
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


def _foreign(url: str) -> web.Response:
    """Return the refusal of a request by a name that was rebound to loopback, or from an origin
    that is foreign and not allowed by name."""
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


async def prepared(request: web.Request, response: web.StreamResponse) -> None:
    """Say the `traceparent` in an answer whose head is about to go out, count it, and write it down
    where it is recorded. One that a backend gave for itself stays."""
    request[STARTED] = True
    headers, trace = response.headers, traces.current.get()
    if trace is not None:
        headers.setdefault(traces.HEADER, trace)
        if (header := request.get(SHOWN_IN)) is not None:
            headers.setdefault(header, f"req_{traces.trace_id(trace)}")
    status = response.get(REFUSED, response.status)
    face = getattr(request.match_info.handler, FACE, None) or request.app.get(LISTENER_FACE)
    if face is None:
        face = "control" if _API.match(request.path) else "other"
    count_request(face, status)
    # The key is missing, wrong, or not enough.
    if status in (401, 403):
        _tell(request, face, status)
    if ASKING in request:
        write_head(request, response)


def _tell(request: web.Request, face: str, status: int) -> None:
    """Log a request that is refused, by the form of its path: an id in it may be a token."""
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    _log.info(
        "%s %s is refused with %d, to %s",
        *(request.method, path, status, request.remote or "nobody"),
        extra={"face": face, "status": status, "remote": request.remote},
    )
