"""Takes the `traceparent` of each request, or makes one, and says it in the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from proxy.base import traces

SHOWN_IN = web.RequestKey("SHOWN_IN", str)
"""The header in which the answer to a request names it, where its dialect has one."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_traces(app: web.Application) -> None:
    """Let all requests to an application, and their answers, have a `traceparent`. Call it last:
    what is added before sees them."""
    app.middlewares.insert(0, _traced)
    app.on_response_prepare.insert(0, _tell)


@web.middleware
def _traced(request: web.Request, handler: Handler) -> Awaitable[web.StreamResponse]:
    """Keep the `traceparent` while a request is handled."""
    given = request.headers.getall(traces.HEADER, ())
    # aiohttp handles each request in a task of its own, with which this ends. Not a coroutine: an
    # open stream would keep its memory.
    traces.current.set(traces.taken(given) or traces.made())
    return handler(request)


async def _tell(request: web.Request, response: web.StreamResponse) -> None:
    """Say it in an answer. One that a backend gave for itself stays."""
    trace = traces.current.get()
    if trace is not None:
        response.headers.setdefault(traces.HEADER, trace)
        if (header := request.get(SHOWN_IN)) is not None:
            response.headers.setdefault(header, f"req_{traces.trace_id(trace)}")
