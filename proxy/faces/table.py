"""Adds the routes of a face to an application, and answers errors in the dialect's form."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from aiohttp import web

from adapters.contract.faces import (
    Action,
    Face,
    Forward,
    History,
    Incoming,
    ListSessions,
    Pending,
    RequestFailure,
    Route,
    RouteContext,
    Size,
    Static,
    Stream,
    Submit,
    TurnBody,
)
from adapters.model.base import Response
from adapters.registry import faces
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base import traces
from proxy.base.errors import SessionElsewhere
from proxy.entry.entry import Handler, check_head, takes, tell_quote, to_web
from proxy.entry.keys import FACE, SESSIONS, SHOWN_IN
from proxy.faces.addresses import astray_routes, base_routes
from proxy.faces.face_request import FaceRequest, ServedFace
from proxy.faces.forward import pass_on
from proxy.faces.misdirected import load_faces
from proxy.faces.stream import follow, list_sessions, read_log, tell, waiting
from proxy.faces.submit import say
from proxy.http.lazy_routes import LazyRoutes

_DOES: Mapping[type, Callable[[FaceRequest], Awaitable[web.StreamResponse]]] = {
    Static: tell,
    Submit: say,
    Stream: follow,
    History: read_log,
    ListSessions: list_sessions,
    Pending: waiting,
    Forward: pass_on,
}

_log = logging.getLogger(__name__)


def add_dialect(app: web.Application, dialect: str) -> None:
    """Add all that is below `/as/{dialect}`: its face is imported at the first request, since many
    a server has frontends of one dialect only."""
    start = f"/as/{dialect}"

    def add(router: web.UrlDispatcher) -> None:
        add_face(app, dialect, f"{start}/to/{{route}}", router)
        add_astray(app, dialect, start, router)

    app.router.register_resource(LazyRoutes(start, lambda: faces()[dialect], add))


def add_face(
    app: web.Application, dialect: str, prefix: str, router: web.UrlDispatcher | None = None
) -> None:
    """Add the routes of a dialect's face below `prefix`, which may name the `{route}`; to the
    router of the application, unless another one is given."""
    at, router = ServedFace(app, dialect), app.router if router is None else router
    methods: dict[str, list[str]] = {}
    others: list[Route] = []
    # The root of a listener has no address without its slash.
    paths = ("", "/") if prefix else ("/",)
    for route in _with_base(at.face.routes, paths):
        if route.method == "*":
            others.append(route)
            continue
        methods.setdefault(route.path, []).append(route.method)
        handler = _handler(at, route)
        if route.head:
            router.add_get(f"{prefix}{route.path}", handler)
        else:
            router.add_route(route.method, f"{prefix}{route.path}", handler)
    pages, refusals = base_routes(dialect, at.face, keys=bool(app[SESSIONS].keys), paths=paths)
    for route in pages:
        router.add_get(f"{prefix}{route.path}", _handler(at, route))
    for route in (*refusals, *_wrong_methods(at.face, methods), *others):
        router.add_route("*", f"{prefix}{route.path}", _handler(at, route))


def _with_base(routes: Sequence[Route], paths: Sequence[str]) -> Iterator[Route]:
    """Yield routes, those of the base URL at each of its addresses."""
    for route in routes:
        if route.path == "":
            yield from (dataclasses.replace(route, path=path) for path in paths)
        else:
            yield route


def add_astray(app: web.Application, dialect: str, start: str, router: web.UrlDispatcher) -> None:
    """Say below `start` what an address of the face lacks that has no route in it."""
    at = ServedFace(app, dialect)
    for route in astray_routes(dialect, at.face):
        router.add_route("*", f"{start}{route.path}", _handler(at, route))


def _wrong_methods(face: Face, methods: Mapping[str, list[str]]) -> list[Route]:
    """Return the routes that say which methods a path takes."""
    refuse = face.wrong_method
    if refuse is None:
        return []

    def answer(names: list[str], incoming: Incoming, _: RouteContext) -> Response:
        return refuse(incoming, names)

    return [
        Route(
            method="*",
            path=path,
            needs=Action.READ,
            does=Static(functools.partial(answer, sorted(names))),
        )
        for path, names in methods.items()
    ]


def _handler(at: ServedFace, route: Route) -> Handler:
    """Return what answers the requests of a route: errors in the dialect's own form; what is no
    error of anybody's is logged and answered as one of ours."""
    do, refuse, streams = _DOES[type(route.does)], at.face.refuse, _streams(route)

    @takes(_size(route))
    async def handler(http: web.Request) -> web.StreamResponse:
        request = FaceRequest(http, at, route)
        if at.face.trace_header:
            http[SHOWN_IN] = at.face.trace_header
        try:
            check_head(http)
            request.admit()
            if route.method == "*":
                # What is wrong with a request is told by what other faces take.
                await load_faces()
            if not streams or not request.entered:
                return await do(request)
            with request.sessions.quotas.held(request.owner, "streams"):
                return await do(request)
        except DragomanError as error:
            tell_quote(error)
            return to_web(refuse(_failure(request, error)))
        except (asyncio.CancelledError, ConnectionError, SessionElsewhere, web.HTTPException):
            raise
        except Exception:  # noqa: BLE001 - the root of a request
            error_id = http.app[SESSIONS].ids.uuid()
            _log.exception("%s: request failed, error id `%s`", at.dialect, error_id)
            internal = DragomanError("", code=ErrorCode.INTERNAL)
            return to_web(refuse(_failure(request, internal, error_id)))

    handler.__dict__[FACE] = at.dialect
    return handler


def _failure(
    request: FaceRequest, error: DragomanError, error_id: str | None = None
) -> RequestFailure:
    return RequestFailure(
        error,
        request.incoming,
        request.route,
        request.entered,
        request.said,
        error_id,
        traces.trace_id(traces.current.get() or traces.made()),
    )


def _streams(route: Route) -> bool:
    """Say whether the answers of a route may last for as long as their readers like."""
    act = route.does
    return isinstance(act, Stream | History) or (
        isinstance(act, Submit) and isinstance(act.answer, TurnBody)
    )


def _size(route: Route) -> Size:
    """Return how large the bodies of a route may be; of one that reads none, what may be sent to
    no purpose."""
    act = route.does
    if isinstance(act, Submit | Stream) and act.body is not None:
        return act.body.takes
    return "answer" if isinstance(act, Forward) else "small"
