"""The Herm face: `/v1/agents/…` and `/v1/sessions/…` below a base URL.

Everything that can be decided without IO is in `adapters.herm.requests`; here requests are
authorized, sessions found, commands submitted, lists collected and streams written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from aiohttp import web

from adapters import events as ev
from adapters.commands import AnyCommand, Archive, CreateSession, Delete, UpdateSession
from adapters.errors import DragomanError, ErrorCode
from adapters.herm import requests, wire
from adapters.herm.server import (
    USER_ID,
    HermEncoder,
    SessionFacts,
    messages_of,
)
from adapters.jsonvalue import format_json
from proxy.auth import Action, Principal
from proxy.errors import CursorExpired
from proxy.hub import FIRST_ROWS, WORK_BYTES, WRITE_BYTES
from proxy.journal.base import SessionRow
from proxy.keys import SESSIONS, SETTINGS
from proxy.repeats import Asked
from proxy.routes.entry import Handler, asked_by, entered, owned, route_of, to_web
from proxy.session import Session, told
from proxy.streams import StreamPlan, send_head, write_stream

_log = logging.getLogger(__name__)


def add_routes(app: web.Application, prefix: str) -> None:
    """Add the face's routes below `prefix`, which may name the `{route}`."""
    v1 = f"{prefix}/v1"
    session = f"{v1}/sessions/{{session}}"
    table: tuple[tuple[str, str, Handler], ...] = (
        ("GET", f"{v1}/agents", agents),
        ("GET", f"{v1}/agents/{{agent}}", agent),
        ("POST", f"{v1}/agents/{{agent}}/sessions", create),
        ("GET", f"{v1}/sessions", list_sessions),
        ("GET", session, show),
        ("PATCH", session, update),
        ("DELETE", session, delete),
        ("POST", f"{session}/archive", archive),
        ("POST", f"{session}/events", post_events),
        ("GET", f"{session}/events", list_events),
        ("GET", f"{session}/events/stream", stream),
    )
    methods: dict[str, list[str]] = {}
    for method, path, handler in table:
        app.router.add_route(method, path, _face(handler))
        methods.setdefault(path, []).append(method)
    for method, path, why in requests.NOT_SERVED:
        app.router.add_route(method, f"{v1}{path}", _face(_not_served(why)))
        methods.setdefault(f"{v1}{path}", []).append(method)
    for path, allowed in methods.items():
        app.router.add_route("*", path, _face(_wrong_method(allowed)))
    app.router.add_route("*", f"{prefix}/{{tail:.*}}", _face(nothing))


def _face(handler: Handler) -> Handler:
    """Answer errors in Herm's form; what is no error of anybody's is logged and answered 500."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            limit = request.app[SETTINGS].server.max_body_bytes
            text = f"The body is larger than {limit} bytes."
            return to_web(requests.refusal(DragomanError(text, code=ErrorCode.TOO_LARGE)))
        except DragomanError as error:
            return to_web(requests.refusal(error))
        except (asyncio.CancelledError, ConnectionError, TimeoutError, web.HTTPException):
            raise
        except Exception:  # noqa: BLE001 - the root of a request
            error_id = request.app[SESSIONS].ids.uuid()
            _log.exception("herm: request failed, error id `%s`", error_id)
            text = f"This went wrong here; the log has it under `{error_id}`."
            return to_web(requests.refusal(DragomanError(text, code=ErrorCode.INTERNAL)))

    return guarded


async def _found(request: web.Request, action: Action) -> tuple[Principal, Session]:
    principal = entered(request, action)
    return principal, await owned(request, principal, request.match_info["session"], action)


async def _encoder(session: Session) -> HermEncoder:
    feed = session.feed(wire.DIALECT)
    await feed.catch_up()
    assert isinstance(feed.encoder, HermEncoder)
    return feed.encoder


async def _log_of(
    request: web.Request, key: int, session_id: str, *, after: int = 0
) -> AsyncIterator[ev.Entry]:
    journal = request.app[SESSIONS].journal
    work = 0
    async for chunk in journal.scan(key, after=after, rows=FIRST_ROWS):
        for line in chunk.body.split(b"\n"):
            if line:
                entry = ev.Entry.decode(line, session_id=session_id)
                if entry.seq > after:
                    yield entry
            work += len(line)
            if work >= WORK_BYTES:
                # A long log must not hold up everybody else.
                work = 0
                await asyncio.sleep(0)


# Agents (sections 2 and 2.1): a route has one.


def _agent_id(request: web.Request) -> str:
    backend = request.app[SESSIONS].backend_of(route_of(request))
    return backend.create.agent or backend.name


def _check_agent(request: web.Request) -> None:
    backend = request.app[SESSIONS].backend_of(route_of(request))
    if request.match_info["agent"] not in (_agent_id(request), backend.name, route_of(request)):
        raise DragomanError(
            f"There is no agent `{request.match_info['agent'][:80]}`; this route has "
            f"`{_agent_id(request)}`.",
            code=ErrorCode.NOT_FOUND,
        )


def _agent_object(request: web.Request) -> dict[str, object]:
    backend = request.app[SESSIONS].backend_of(route_of(request))
    return requests.agent_object(
        _agent_id(request), backend.name, f"{backend.dialect}/{backend.name}"
    )


async def agents(request: web.Request) -> web.StreamResponse:
    """GET /v1/agents."""
    entered(request, Action.READ)
    body = {"data": [_agent_object(request)], "nextCursor": None}
    return to_web(requests.json_response(200, body))


async def agent(request: web.Request) -> web.StreamResponse:
    """GET /v1/agents/{agent}."""
    entered(request, Action.READ)
    _check_agent(request)
    return to_web(requests.json_response(200, _agent_object(request)))


# Sessions (sections 2.2 and 2.3).


async def create(request: web.Request) -> web.StreamResponse:
    """POST /v1/agents/{agent}/sessions."""
    principal = entered(request, Action.CREATE)
    _check_agent(request)
    body = await request.read()
    wanted, asked = requests.parse_create(body), asked_by(request, body)
    return await request.app[SESSIONS].keep(_create(request, principal, wanted, asked))


async def _create(
    request: web.Request, principal: Principal, wanted: requests.Create, asked: Asked
) -> web.Response:
    sessions, route = request.app[SESSIONS], route_of(request)
    sessions.check(route, CreateSession(user_id=wanted.user_id, title=wanted.title))
    async with sessions.in_order.turn(principal.name, route, asked):
        earlier = await sessions.made_by(asked, owner=principal.name, route=route)
        if earlier is not None:
            return to_web(requests.json_response(201, await _object(request, earlier[0])))
        session = await sessions.create(
            owner=principal.name,
            route=route,
            dialect=wire.DIALECT,
            title=wanted.title,
            metadata=wanted.metadata,
            options=None if wanted.user_id is None else {USER_ID: wanted.user_id},
            asked=asked,
        )
    return to_web(requests.json_response(201, await _object(request, session)))


async def _object(request: web.Request, session: Session) -> dict[str, object]:
    row = await request.app[SESSIONS].journal.session(session.id)
    facts = await _facts(request, row)
    return facts.to_json(row.id, session.state.status, row.created_at, row.updated_at)


async def _facts(request: web.Request, row: SessionRow) -> SessionFacts:
    """Return what a session's own events say: of a long log these and its newest entries are read,
    and only their lines are decoded, since lists ask for many."""
    journal = request.app[SESSIONS].journal
    facts = SessionFacts()
    known, after = await told(journal, row)
    for seq in known:
        for chunk in await journal.read(row.key, after=seq - 1, limit_rows=1):
            for line in chunk.body.split(b"\n"):
                if b'"type":"session.' in line:
                    entry = ev.Entry.decode(line, session_id=row.id)
                    if entry.seq == seq:
                        facts.apply(entry.event)
    async for chunk in journal.scan(row.key, after=after):
        for line in chunk.body.split(b"\n"):
            if b'"type":"session.' in line:
                entry = ev.Entry.decode(line, session_id=row.id)
                if entry.seq > after:
                    facts.apply(entry.event)
    return facts


async def list_sessions(request: web.Request) -> web.StreamResponse:
    """GET /v1/sessions, newest first; archived ones only where asked for (section 2)."""
    principal = entered(request, Action.READ)
    wanted = requests.parse_sessions(request.query)
    found: list[dict[str, object]] = []
    before, more = wanted.before, False
    while True:
        rows = await request.app[SESSIONS].journal.sessions(
            owner=principal.name,
            route=route_of(request),
            states=("idle", "running", "paused", "ended"),
            before=before,
            limit=wire.LIMIT_MOST,
        )
        for row in rows:
            try:
                facts = await _facts(request, row)
            except CursorExpired:
                # Erased since the list was read.
                before = row.key
                continue
            value = facts.to_json(row.id, row.state, row.created_at, row.updated_at)
            if not _wanted(wanted, value):
                before = row.key
            elif len(found) == wanted.limit:
                more = True
                break
            else:
                found.append(value)
                before = row.key
        if more or len(rows) < wire.LIMIT_MOST:
            break
    cursor = requests.make_cursor(before) if more and before is not None else None
    return to_web(requests.json_response(200, {"data": found, "nextCursor": cursor}))


def _wanted(query: requests.SessionQuery, value: dict[str, object]) -> bool:
    metadata = value["metadata"]
    assert isinstance(metadata, dict)
    status = value["status"]
    return (
        (status != "archived" if query.status is None else status == query.status)
        and query.agent_id in (None, value["agentId"])
        and query.user_id in (None, value["userId"])
        and all(metadata.get(name) == wanted for name, wanted in query.metadata.items())
    )


async def show(request: web.Request) -> web.StreamResponse:
    """GET /v1/sessions/{session}: the object and the history of its messages, which goes out while
    it is read: it is as long as the session."""
    _, session = await _found(request, Action.READ)
    feed = session.feed(wire.DIALECT)
    await feed.catch_up()
    encoder, after = await feed.encoder_at(HermEncoder.next_cursor)
    assert isinstance(encoder, HermEncoder)
    body = format_json(await _object(request, session))[:-1] + b',"messages":['
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    timeout = request.app[SETTINGS].server.write_timeout_seconds
    comma = b""
    try:
        async for entry in _log_of(request, session.row.key, session.id, after=after):
            # What becomes of an input later changes none of its words.
            made = [one for one in encoder.envelopes(entry) if not one.update]
            for message in messages_of(made):
                body += comma + format_json(message)
                comma = b","
            if len(body) >= WRITE_BYTES:
                await send_head(request, response)
                async with asyncio.timeout(timeout):
                    await response.write(body)
                body = b""
        body += b"]}"
        if not response.prepared:
            return web.Response(body=body, content_type="application/json")
        async with asyncio.timeout(timeout):
            await response.write_eof(body)
    except Exception as error:
        # Where the head is sent a body that breaks off says that something went wrong.
        if response.prepared and request.transport is not None:
            request.transport.abort()
        if not isinstance(error, ConnectionError | TimeoutError):
            raise
    return response


async def update(request: web.Request) -> web.StreamResponse:
    """PATCH /v1/sessions/{session}."""
    principal, session = await _found(request, Action.CONTROL)
    wanted = requests.parse_create(await request.read())
    if wanted.title is not None or wanted.metadata is not None:
        command = UpdateSession(title=wanted.title, metadata=wanted.metadata)
        await request.app[SESSIONS].keep(_done(request, principal, session, command))
    return to_web(requests.json_response(200, await _object(request, session)))


async def archive(request: web.Request) -> web.StreamResponse:
    """POST /v1/sessions/{session}/archive."""
    principal, session = await _found(request, Action.CONTROL)
    if session.state.archived_at is None:
        await request.app[SESSIONS].keep(_done(request, principal, session, Archive()))
    return to_web(requests.json_response(200, await _object(request, session)))


async def delete(request: web.Request) -> web.StreamResponse:
    """DELETE /v1/sessions/{session}."""
    principal, session = await _found(request, Action.CONTROL)
    await request.app[SESSIONS].keep(_done(request, principal, session, Delete()))
    return web.Response(status=204)


async def _done(
    request: web.Request, principal: Principal, session: Session, command: AnyCommand
) -> None:
    """Submit a command and wait for what comes of it.

    Raises:
        DragomanError: the backend refused, or did not answer in time.
    """
    await request.app[SESSIONS].carry_out(session, command, by=principal.name, face=wire.DIALECT)


# Events (sections 3 and 4).


async def post_events(request: web.Request) -> web.StreamResponse:
    """POST /v1/sessions/{session}/events."""
    entered(request, Action.WRITE)
    body = await request.read()
    wanted, asked = requests.parse_events(body), asked_by(request, body)
    answers = any(event.request for event in wanted)
    principal, session = await _found(request, Action.ANSWER if answers else Action.WRITE)
    if session.state.archived_at is not None:
        raise requests.HermRefusal(409, "archived", "The session is archived and takes no input.")
    return await request.app[SESSIONS].keep(_posted(request, principal, session, wanted, asked))


async def _posted(
    request: web.Request,
    principal: Principal,
    session: Session,
    wanted: tuple[requests.UserEvent, ...],
    asked: Asked,
) -> web.Response:
    async with request.app[SESSIONS].in_order.turn(principal.name, route_of(request), asked):
        ids = session.repeated(asked)
        if ids is None:
            ids = await _accept(principal, session, wanted, asked)
    return to_web(requests.events_answer((await _encoder(session)).inputs(ids)))


async def _accept(
    principal: Principal,
    session: Session,
    wanted: tuple[requests.UserEvent, ...],
    asked: Asked,
) -> list[str]:
    encoder = await _encoder(session)

    def lookup(name: str) -> ev.InteractionRequested | str | None:
        request_id = encoder.request_of(name)
        if request_id is None:
            return name if name in session.state.resolved else None
        open_ = session.state.interactions.get(request_id)
        return request_id if open_ is None else open_.event

    steers = [event for event in wanted if event.type == "user.steer"]
    if steers and not session.state.busy and not any(e.type == "user.message" for e in wanted):
        text = "No turn is running; send a `user.message`."
        raise requests.HermRefusal(409, "no_turn_running", text)
    commands = requests.to_commands(wanted, lookup)
    return await session.submit(commands, by=principal.name, face=wire.DIALECT, asked=asked)


async def list_events(request: web.Request) -> web.StreamResponse:
    """GET /v1/sessions/{session}/events: the stored events (section 4.2)."""
    _, session = await _found(request, Action.READ)
    wanted = requests.parse_list(request.query, session.id)
    feed = session.feed(wire.DIALECT)
    await feed.catch_up()
    newest = feed.encoder
    assert isinstance(newest, HermEncoder)
    page = requests.Page(wanted, newest.next_cursor - 1, newest.inputs_now())
    while (at := page.wanted) is not None:
        # Of a long log only the parts that the page is made of.
        encoder, after = await feed.encoder_at(at)
        assert isinstance(encoder, HermEncoder)
        page.begin(encoder.next_cursor)
        async for entry in _log_of(request, session.row.key, session.id, after=after):
            if not page.add(encoder.envelopes(entry)):
                break
        page.end()
    return to_web(page.answer())


async def stream(request: web.Request) -> web.StreamResponse:
    """GET /v1/sessions/{session}/events/stream: live, or everything after a position (section
    4.3)."""
    _, session = await _found(request, Action.READ)
    after = requests.parse_stream(request.query, request.headers, session.id)
    feed = session.feed(wire.DIALECT)
    await feed.catch_up()
    position = feed.next_cursor if after is None else min(after + 1, feed.next_cursor)
    server = request.app[SETTINGS].server
    plan = StreamPlan(
        heartbeat=wire.HEARTBEAT,
        heartbeat_seconds=min(server.heartbeat_seconds, wire.HEARTBEAT_SECONDS),
        write_timeout=server.write_timeout_seconds,
    )
    response = web.StreamResponse(headers=requests.stream_headers())
    await write_stream(request, response, feed, position, plan, first=wire.HEARTBEAT)
    return response


# The rest.


def _not_served(why: str) -> Handler:
    async def refuse(request: web.Request) -> web.StreamResponse:
        entered(request, Action.READ)
        return to_web(requests.not_served(request.method, request.path, why))

    return refuse


def _wrong_method(allowed: list[str]) -> Handler:
    async def refuse(request: web.Request) -> web.StreamResponse:
        entered(request, Action.READ)
        names = ", ".join(sorted(allowed))
        error = DragomanError(f"`{request.path}` takes {names}.", code=ErrorCode.METHOD_NOT_ALLOWED)
        response = to_web(requests.refusal(error))
        response.headers["Allow"] = names
        return response

    return refuse


async def nothing(request: web.Request) -> web.StreamResponse:
    """Answer a path that is none, to those with a key."""
    entered(request, Action.READ)
    return to_web(requests.no_route(request.method, request.path))
