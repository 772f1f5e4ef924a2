"""Records what goes between frontends and this server, while sessions are recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from proxy.recording.recording import ASKING, Captures, RecordedRequest
from proxy.recording.session import RecordedExchange

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def record(request: web.Request, handler: Handler, captures: Captures) -> web.StreamResponse:
    """Write a request once it is known which session it is about, and its answer."""
    asking = request[ASKING] = RecordedRequest(captures, request)
    try:
        response = await handler(request)
        if asking.exchange is not None:
            await _end(request, response, asking, asking.exchange)
        return response
    except BaseException as error:
        if asking.exchange is not None:
            if _gone(request):
                asking.exchange.ended("left")
            else:
                asking.exchange.ended("broke", type(error).__name__)
        raise
    finally:
        # They know each other, and would stay in memory until a collection of garbage.
        del request[ASKING]


async def _end(
    request: web.Request,
    response: web.StreamResponse,
    asking: RecordedRequest,
    exchange: RecordedExchange,
) -> None:
    """Write an answer that is whole, and how the exchange ended."""
    begun = exchange.answered
    if not response.prepared:
        # Here, so that it is known whether it was written to its end.
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            await response.write_eof()
    if begun and response is not asking.response and response.status >= 500:
        exchange.ended("broke", f"answered with {response.status} after the head was sent")
    elif _gone(request):
        exchange.ended("left")
    else:
        exchange.ended("ended")


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def write_head(request: web.Request, response: web.StreamResponse) -> None:
    """Write the head of an answer as it goes out, and a body that goes out with it."""
    asking = request.get(ASKING)
    if asking is None or asking.exchange is None or asking.exchange.answered:
        return
    asking.response = response
    asking.exchange.responded(response.status, response.headers.items())
    if isinstance(response, web.Response) and request.method != hdrs.METH_HEAD:
        body = response.body
        if isinstance(body, bytes) and body:
            asking.exchange.received(body)
