"""The Engine face: `/execute`, `/execute/replay`, `/hitl/…` and `/health` below a base URL.

Everything that can be decided without IO is in `adapters.engine.requests`; here requests are
authorized, tasks found or made, commands submitted and streams written. A turn never depends on who
reads it: the body of its `/execute` is one reader of the session's frames, a replay is another.
"""

from __future__ import annotations

import asyncio
import logging
import weakref

from aiohttp import web

from adapters import events as ev
from adapters.engine import requests, wire
from adapters.engine.server import TASK_OPTION, EngineEncoder
from adapters.errors import DragomanError, ErrorCode, NotSupported
from proxy.auth import Action, Principal, authorize
from proxy.errors import SequenceConflict, SessionExpired, SessionNotFound
from proxy.hub import Feed, entries_of
from proxy.journal.base import SessionRow
from proxy.keys import SESSIONS, SETTINGS
from proxy.repeats import Asked
from proxy.routes.entry import Handler, asked_by, entered, owned, route_of, to_web
from proxy.session import Session
from proxy.sessions import TASK
from proxy.streams import StreamPlan, send_head, write_stream

HEARTBEAT_SECONDS = 10.0
"""How long a stream is silent at most; the page advises 15 s or so (engine page, section 17)."""

ACTIVE_MS = 3 * 3_600_000
"""How far back a replay reaches: CHANNEL_STATE_TTL_ACTIVE (section 11.1)."""

PAUSED_MS = 72 * 3_600_000
"""The same for a task that waits for an answer: CHANNEL_STATE_TTL_HITL (section 10.4)."""

TASKS_LISTED = 10_000
"""Tasks of one key and route that are looked at for the most recent one and for open requests."""

ASKED_FOR_TASK = web.RequestKey("asked_for_task", bool)
"""Whether the request got past its key and route, so that what is not found is a task."""

TASK_LOCKS: web.AppKey[weakref.WeakValueDictionary[tuple[str, str, str], asyncio.Lock]] = (
    web.AppKey("engine_task_locks", weakref.WeakValueDictionary)
)
"""One lock for each task that is being made: its first two requests must meet in one session."""

STARTED_AT = web.AppKey("engine_started_at", float)

_METHODS = {
    wire.EXECUTE: "POST",
    wire.REPLAY: "GET",
    wire.RESPOND: "POST",
    wire.PENDING: "GET",
    wire.HEALTH: "GET",
}

_OF_AN_ENGINE = ("/rpc", "/assets", "/memory", "/skills", "/admin")
"""Routes of a real Engine that are none of the conversation (sections 5 and 16)."""

_log = logging.getLogger(__name__)


def add_routes(app: web.Application, prefix: str) -> None:
    """Add the face's routes below `prefix`, which may name the `{route}`."""
    app[TASK_LOCKS] = weakref.WeakValueDictionary()
    app[STARTED_AT] = app[SESSIONS].clock.monotonic()
    add = app.router.add_route
    add("POST", f"{prefix}{wire.EXECUTE}", _face(execute))
    add("GET", f"{prefix}{wire.REPLAY}", _face(replay))
    add("POST", f"{prefix}{wire.RESPOND}", _face(respond))
    add("GET", f"{prefix}{wire.PENDING}", _face(pending))
    add("GET", f"{prefix}{wire.HEALTH}", _face(health))
    add("*", f"{prefix}/{{tail:.*}}", _face(nothing))


def _face(handler: Handler) -> Handler:
    """Answer errors in the Engine's own form; what is no error of anybody's is logged as 500."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            limit = request.app[SETTINGS].server.max_body_bytes
            text = f"The body is larger than {limit} bytes."
            error: DragomanError = DragomanError(text, code=ErrorCode.TOO_LARGE)
        except DragomanError as refused:
            error = refused
        except (asyncio.CancelledError, ConnectionError, TimeoutError, web.HTTPException):
            raise
        except Exception:  # noqa: BLE001 - the root of a request
            error_id = request.app[SESSIONS].ids.uuid()
            _log.exception("engine: request failed, error id `%s`", error_id)
            internal = DragomanError("", code=ErrorCode.INTERNAL)
            return to_web(requests.refusal(internal, error_id=error_id))
        return to_web(requests.refusal(error, task=request.get(ASKED_FOR_TASK, False)))

    return guarded


def _entered(request: web.Request, action: Action) -> Principal:
    """Return who asks, after the checks that stand before any look-up (section 3)."""
    principal = entered(request, action, to_the_end=())
    request[ASKED_FOR_TASK] = True
    return principal


async def _found(request: web.Request, principal: Principal, name: str, action: Action) -> Session:
    try:
        return await owned(request, principal, name, action, what="task")
    except SessionExpired:
        # A session's own id stays with it; to what succeeds it that id is the name of a task.
        successor = await request.app[SESSIONS].journal.resolve(
            owner=principal.name, route=route_of(request), kind=TASK, name=name
        )
        if successor is None:
            raise
        return await owned(request, principal, successor, action, what="task")


async def _encoder(session: Session) -> tuple[Feed, EngineEncoder]:
    feed = session.feed(wire.DIALECT)
    await feed.catch_up()
    assert isinstance(feed.encoder, EngineEncoder)
    return feed, feed.encoder


async def _tasks(request: web.Request, principal: Principal, *states: str) -> list[SessionRow]:
    """Return the tasks of a key on this route, other faces' included."""
    rows = await request.app[SESSIONS].journal.sessions(
        owner=principal.name,
        route=route_of(request),
        states=states or None,
        limit=TASKS_LISTED,
    )
    return [row for row in rows if row.state not in ("deleted", "expired")]


# POST /execute.


async def execute(request: web.Request) -> web.StreamResponse:
    """POST /execute: run a turn, and stream it (section 6)."""
    principal = _entered(request, Action.WRITE)
    body = await request.read()
    wanted, asked = requests.parse_execute(body), asked_by(request, body)
    session, command_id = await request.app[SESSIONS].keep(
        _submitted(request, principal, wanted, asked)
    )
    response = web.StreamResponse(headers=requests.stream_headers())
    await send_head(request, response)
    # The head says that it was taken; what a client then misses, it asks for by replay.
    asked.over(whole=True)
    turn = await _begun(session, command_id)
    if turn is None:
        # The session left memory: the body ends without a result, and its client asks for replay.
        await response.write_eof()
        return response
    turn_id, start = turn
    plan = _plan(request, turn=turn_id)
    await write_stream(request, response, session.feed(wire.DIALECT), start, plan)
    return response


async def _submitted(
    request: web.Request, principal: Principal, wanted: requests.Execute, asked: Asked
) -> tuple[Session, str]:
    sessions, route = request.app[SESSIONS], route_of(request)
    async with sessions.in_order.turn(principal.name, route, asked):
        if asked.key is not None:
            # The key may be that of a request which made another task.
            earlier = await sessions.made_by(asked, owner=principal.name, route=route)
            if earlier is not None and earlier[1]:
                return earlier[0], earlier[1][0]
        session, ids = await _task(request, principal, wanted, asked)
        if not ids:
            ids = session.repeated(asked) or []
        if not ids:
            _check_backend(request, wanted, session.leg.backend)
            ids = await session.submit(
                [wanted.message],
                by=principal.name,
                face=wire.DIALECT,
                blobs=wanted.blobs,
                asked=asked,
            )
    return session, ids[0]


async def _task(
    request: web.Request, principal: Principal, wanted: requests.Execute, asked: Asked
) -> tuple[Session, list[str]]:
    """Return the session of a task; a new name opens a new one, with the message in it, whose id is
    returned then (section 1)."""
    sessions, route, name = request.app[SESSIONS], route_of(request), wanted.task_id
    locks = request.app[TASK_LOCKS]
    key = (principal.name, route, name)
    lock = locks.get(key)
    if lock is None:
        lock = locks[key] = asyncio.Lock()
    async with lock:
        succeeds = None
        try:
            return await _found(request, principal, name, Action.WRITE), []
        except (SessionNotFound, SessionExpired) as error:
            if isinstance(error, SessionExpired):
                # Nothing is left of it here; the task goes on all the same, after a gap.
                succeeds = error.row
            authorize(principal, None, Action.CREATE, route, request.app[SETTINGS])
            # What the backend cannot carry leaves no empty task behind.
            _check_backend(request, wanted, sessions.backend_of(route).name)
            sessions.check(route, wanted.message)
        try:
            return await sessions.create_with(
                [wanted.message],
                by=principal.name,
                blobs=wanted.blobs,
                owner=principal.name,
                route=route,
                dialect=wire.DIALECT,
                options={TASK_OPTION: name},
                aliases=[(TASK, name)],
                succeeds=succeeds,
                asked=asked,
            )
        except SequenceConflict:
            # Made meanwhile by another process, or deleted, and then the name stays taken.
            return await _found(request, principal, name, Action.WRITE), []


def _check_backend(request: web.Request, wanted: requests.Execute, name: str) -> None:
    backend = request.app[SETTINGS].backend(name)
    named = requests.for_engine_only(wanted.message)
    if named and backend is not None and backend.dialect != wire.DIALECT:
        raise NotSupported(
            f"`{named[0]}` is not carried to backend `{name}` of dialect `{backend.dialect}`: "
            "only an Engine knows it."
        )


async def _begun(session: Session, command_id: str) -> tuple[str, int] | None:
    """Wait for the turn that a message becomes; None when the session leaves memory before, or for
    a repeat whose turn is long over."""
    while not session.closed:
        news, idle = session.news(), session.idle
        _, encoder = await _encoder(session)
        turn = encoder.turn_of(command_id)
        if turn is not None:
            return turn
        if encoder.over or idle:
            return None
        await news.wait()
    return None


def _plan(request: web.Request, *, turn: str | None = None, stop: int | None = None) -> StreamPlan:
    server = request.app[SETTINGS].server
    return StreamPlan(
        heartbeat=wire.heartbeat,
        heartbeat_seconds=min(server.heartbeat_seconds, HEARTBEAT_SECONDS),
        write_timeout=server.write_timeout_seconds,
        turn=turn,
        stop=stop,
    )


# GET /execute/replay.


async def replay(request: web.Request) -> web.StreamResponse:
    """GET /execute/replay: what is buffered after a stamp, then the running turn (section 11)."""
    principal = _entered(request, Action.READ)
    wanted = requests.parse_replay(request.query)
    response = web.StreamResponse(headers=requests.stream_headers())
    name = wanted.task_id
    if name is None:
        rows = await _tasks(request, principal)
        if not rows:
            await send_head(request, response)
            return response
        name = max(rows, key=lambda row: (row.updated_at, row.key)).id
    try:
        session = await _found(request, principal, name, Action.READ)
    except SessionExpired:
        # Nothing is buffered any more (section 11.1).
        await send_head(request, response)
        return response
    feed, encoder = await _encoder(session)
    position = min(max(wanted.after, _horizon(request, session, encoder)) + 1, feed.next_cursor)
    if encoder.running is not None:
        plan = _plan(request, turn=encoder.running)
    else:
        plan = _plan(request, stop=feed.next_cursor)
    await write_stream(request, response, feed, position, plan)
    return response


def _horizon(request: web.Request, session: Session, encoder: EngineEncoder) -> int:
    """Return the stamp up to which the buffer has expired; a turn that runs is kept whole."""
    kept = PAUSED_MS if session.state.interactions else ACTIVE_MS
    expired = request.app[SESSIONS].clock.now() - kept
    if encoder.running is not None:
        return min(expired, encoder.turn_start - 1)
    return expired


# POST /hitl/respond and GET /hitl/pending.


async def respond(request: web.Request) -> web.StreamResponse:
    """POST /hitl/respond: answer what a task waits for (section 10.1)."""
    principal = _entered(request, Action.ANSWER)
    body = await request.read()
    given, asked = requests.parse_respond(body), asked_by(request, body)
    return await request.app[SESSIONS].keep(_respond(request, principal, given, asked))


async def _respond(
    request: web.Request, principal: Principal, given: requests.Respond, asked: Asked
) -> web.Response:
    sessions = request.app[SESSIONS]
    async with sessions.in_order.turn(principal.name, route_of(request), asked):
        if given.task_id is not None:
            session = await _found(request, principal, given.task_id, Action.ANSWER)
            ids = session.repeated(asked)
        else:
            session, ids = await _asking(request, principal, given.request_id, asked)
        if ids is not None:
            answered = given.request_id or await _answered(request, session, ids[0])
            return to_web(requests.json_response(200, requests.resumed_body(answered)))
        _, encoder = await _encoder(session)
        shown = encoder.request
        if shown is None or given.request_id not in (None, shown.request_id):
            raise DragomanError(
                "This task does not wait for such an answer.", code=ErrorCode.UNKNOWN_INTERACTION
            )
        command = requests.to_command(given, shown)
        await session.submit(
            [command], by=principal.name, face=wire.DIALECT, blobs=given.blobs, asked=asked
        )
        return to_web(requests.json_response(200, requests.resumed_body(shown.request_id)))


async def _answered(request: web.Request, session: Session, command_id: str) -> str:
    """Return the request that a command answered, for a repeat that does not name it."""
    async for chunk in request.app[SESSIONS].journal.scan(session.row.key):
        for entry in entries_of(chunk.body, session.id):
            event = entry.event
            if isinstance(event, ev.InputAccepted) and event.command_id == command_id:
                return event.request_id or ""
    return ""


async def _asking(
    request: web.Request, principal: Principal, request_id: str | None, asked: Asked
) -> tuple[Session, list[str] | None]:
    """Return the task that shows a request, for answers that do not name the task; or the one that
    got this answer before, and the ids of its commands."""
    for row in await _tasks(request, principal, "running", "paused"):
        session = await _found(request, principal, row.id, Action.READ)
        ids = session.repeated(asked)
        if ids is not None:
            return session, ids
        _, encoder = await _encoder(session)
        if encoder.request is not None and encoder.request.request_id == request_id:
            return session, None
    raise DragomanError("There is no such request.", code=ErrorCode.UNKNOWN_INTERACTION)


async def _waiting(request: web.Request, principal: Principal) -> list[Session]:
    rows = await _tasks(request, principal, "running", "paused")
    found = [await _found(request, principal, row.id, Action.READ) for row in rows]
    return [session for session in found if session.state.interactions]


async def pending(request: web.Request) -> web.StreamResponse:
    """GET /hitl/pending: what all tasks of this key on this route wait for (section 10.3)."""
    principal = _entered(request, Action.READ)
    records = []
    for session in await _waiting(request, principal):
        _, encoder = await _encoder(session)
        if encoder.pending is not None:
            records.append(encoder.pending)
    records.sort(key=lambda record: record["created_at"])
    return to_web(requests.json_response(200, requests.pending_body(records)))


# The rest.


async def health(request: web.Request) -> web.StreamResponse:
    """GET /health: open to everybody, and about us (section 16)."""
    sessions = request.app[SESSIONS]
    if sessions.stopping:
        raise DragomanError("The server is stopping.", code=ErrorCode.STOPPING)
    uptime = sessions.clock.monotonic() - request.app[STARTED_AT]
    return to_web(requests.json_response(200, requests.health_body(uptime)))


async def nothing(request: web.Request) -> web.StreamResponse:
    """Answer an unknown path or a wrong method, to those with a key (sections 3, 4.1 and 16)."""
    _entered(request, Action.READ)
    request[ASKED_FOR_TASK] = False
    path = "/" + request.match_info["tail"]
    method = _METHODS.get(path)
    if method is not None:
        raise DragomanError(
            f"{path} takes {method}, not {request.method}.", code=ErrorCode.METHOD_NOT_ALLOWED
        )
    text = f"There is no {request.method} {path[:200]} here."
    if path.startswith(_OF_AN_ENGINE):
        text += " Dragoman serves the conversation; ask the Engine itself for the rest."
    raise DragomanError(text, code=ErrorCode.NOT_FOUND)
