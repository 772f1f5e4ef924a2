"""The eve face: `/eve/v1/…` below a base URL, for both generations of clients.

Everything that can be decided without IO is in `adapters.eve.requests`; here requests are
authorized, sessions found, commands submitted and streams written.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re

from aiohttp import web
from multidict import CIMultiDict, MultiDict
from yarl import URL

from adapters.base import Call, Request
from adapters.commands import AnswerInteraction, AnyCommand, Clear, Compact, Interrupt, Reset
from adapters.errors import DragomanError, ErrorCode, NotSupported
from adapters.eve import requests, wire
from adapters.eve.server import EveEncoder
from adapters.events import MAIN
from proxy.auth import Action, Principal, authorize
from proxy.errors import InteractionConflict, SequenceConflict, SessionNotFound
from proxy.keys import SESSIONS, SETTINGS
from proxy.repeats import Asked
from proxy.routes.entry import Handler, asked_by, entered, route_of, to_web
from proxy.session import SAID_AS_MESSAGE, THREAD, Session
from proxy.sessions import Sessions
from proxy.settings import Settings
from proxy.streams import StreamPlan, write_stream

OPERATION = "operation"
"""The kind of alias under which a create with an `operationId` is found again (eve page, section
4.1)."""

CONTROLS: tuple[requests.ControlKind, ...] = ("reset", "clear", "compact")
"""The controls that both generations have, by token and by id (section 6)."""

TOKEN_NUMBER = "eve_token"
"""The key in an accepted input's `details`: which continuation token it used."""

JOIN_HEADER = "X-Dragoman-Session"
"""A create with this header makes no session: it joins the one named. eve's terminal programs make
a session by their first message and have no other way to come to one (0.30.8 `cli/dev/tui/tui.js`,
`client.session()`; 0.80.1 `cli/dev/tui/runner.js`), but both send headers of one's own."""

_VIEW = re.compile(r"dgv_([0-9]{1,9})_(.+)")
"""The id that such a program is given: the index of its first record, and the session."""

_CALLBACK_HEADERS = frozenset({"content-type", "accept", "traceparent", "tracestate", "baggage"})
"""What passes with a callback: never a credential or a cookie, either way."""

FACE = web.AppKey("eve_face", requests.Face)

TOKEN_STYLE = web.RequestKey("token_style", bool)
"""Whether the request named its session by a token: errors are then those of generation T."""

_log = logging.getLogger(__name__)


def add_routes(app: web.Application, prefix: str) -> None:
    """Add the face's routes below `prefix`, which may name the `{route}`."""
    app[FACE] = _face_of(app[SETTINGS])
    add = app.router.add_route
    base = f"{prefix}/eve/v1"
    # aiohttp tries the routes of a prefix in this order: what comes most often is first.
    add("POST", f"{base}/session", _face("create", create))
    app.router.add_get(f"{base}/session/{{session}}/stream", _face("stream", stream))
    app.router.add_get(f"{base}/health", _face("info", health))
    app.router.add_get(f"{base}/info", _face("info", info))
    for kind in CONTROLS:
        add("POST", f"{base}/session/{kind}", _face("control", _control(kind, by_token=True)))
    add("POST", f"{base}/session/{{session}}", _face("session", follow_up))
    add("POST", f"{base}/session/{{session}}/cancel", _face("cancel", _control("cancel")))
    for kind in CONTROLS:
        path = f"{base}/session/{{session}}/{kind}"
        add("POST", path, _face("control", _control(kind)))
    child = f"{base}/session/{{parent}}/subagents/{{call}}/{{session}}/stream"
    app.router.add_get(child, _face("stream", stream))
    for method in ("GET", "POST"):
        for path in ("{name}/callback/{token}", "{name}/callback/{attempt}/{token}"):
            add(method, f"{base}/connections/{path}", _face("info", called_back))
    for path in ("callback", "task-input"):
        add("POST", f"{base}/{path}/{{token}}", _face("info", called_back))
    add("*", f"{prefix}/{{tail:.*}}", _face("info", nothing))


def _face(route: requests.Route, handler: Handler) -> Handler:
    """Answer errors in eve's own form; what is no error of anybody's is logged and answered 500."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except DragomanError as error:
            return _refused(request, error, route)
        except web.HTTPRequestEntityTooLarge:
            limit = request.app[SETTINGS].server.max_body_bytes
            text = f"The body is longer than {limit} bytes."
            return _refused(request, DragomanError(text, code=ErrorCode.TOO_LARGE), route)
        except (asyncio.CancelledError, ConnectionError, web.HTTPException):
            raise
        except Exception as error:  # noqa: BLE001 - the root of a request
            error_id = request.app[SESSIONS].ids.uuid()
            _log.exception("eve: request failed, error id `%s`", error_id)
            internal = DragomanError(str(error), code=ErrorCode.INTERNAL)
            return _refused(request, internal, route, error_id=error_id)

    return guarded


def _refused(
    request: web.Request,
    error: DragomanError,
    route: requests.Route,
    *,
    error_id: str | None = None,
) -> web.Response:
    return to_web(
        requests.refusal(
            error,
            form=request.app[FACE].form,
            token_style=request.get(TOKEN_STYLE, False),
            session_id=request.match_info.get("session"),
            route=route,
            error_id=error_id,
        )
    )


def _face_of(settings: Settings) -> requests.Face:
    types = settings.eve.upload.media_types
    return requests.Face(
        form=settings.eve.form,
        max_file_bytes=settings.eve.upload.max_bytes,
        media_types=None if "*/*" in types else types,
        authenticated=bool(settings.keys),
    )


def _viewed(name: str) -> tuple[int, str]:
    """Return at which record the client of a session id begins to count, and the session."""
    view = _VIEW.fullmatch(name)
    return (0, name) if view is None else (int(view[1]), view[2])


async def _shown(request: web.Request, session: Session) -> str:
    """Return the id of a session that the client of a request knows it by: S refuses another one,
    T begins to read anew.

    A token addresses its session whatever the path says (section 5).
    """
    name = request.match_info.get("session", session.id)
    if not request.get(TOKEN_STYLE, False):
        return name
    try:
        _, meant = await _found(request, name, Action.READ)
    except SessionNotFound:
        return session.id
    return name if meant is session else session.id


async def _found(request: web.Request, name: str, action: Action) -> tuple[Principal, Session]:
    principal = entered(request, action)
    route = route_of(request)
    _, name = _viewed(name)
    session = await request.app[SESSIONS].get(name, owner=principal.name, route=route)
    if session.row.route != route:
        raise SessionNotFound(f"There is no session `{name}`.")
    authorize(principal, session.row.owner, action, route, request.app[SETTINGS])
    return principal, session


async def _read_session(request: web.Request, name: str) -> tuple[Session, str]:
    """Return a session and the thread whose stream `name` stands for: a child is read as a session
    of its own (section 10).
    """
    try:
        _, session = await _found(request, name, Action.READ)
    except SessionNotFound:
        owner = entered(request, Action.READ).name
        parent = await request.app[SESSIONS].journal.resolve(
            owner=owner, route=route_of(request), kind=THREAD, name=name
        )
        if parent is None:
            raise
        _, session = await _found(request, parent, Action.READ)
        return session, name
    return session, MAIN


async def health(request: web.Request) -> web.StreamResponse:
    """GET /eve/v1/health: open to everybody (section 2.1)."""
    return to_web(requests.json_response(200, requests.health_body()))


async def info(request: web.Request) -> web.StreamResponse:
    """GET /eve/v1/info: the least that clients accept; the agent is the route's backend (section
    12)."""
    entered(request, Action.READ)
    backend = request.app[SESSIONS].backend_of(route_of(request))
    body = requests.info_body(request.app[FACE].form, backend.create.agent or backend.name)
    return to_web(requests.json_response(200, body))


async def nothing(request: web.Request) -> web.StreamResponse:
    """Answer an unknown path or a wrong method as the host framework does (section 2)."""
    return to_web(requests.route_not_found(request.method, str(request.url)))


async def create(request: web.Request) -> web.StreamResponse:
    """POST /eve/v1/session."""
    principal = entered(request, Action.CREATE)
    face = request.app[FACE]
    body = await request.read()
    wanted = requests.parse_create(body, face)
    joined = request.headers.get(JOIN_HEADER)
    if joined is not None:
        return await _join(request, face, joined)
    return await request.app[SESSIONS].keep(
        _create(request, principal, face, wanted, asked_by(request, body))
    )


async def _join(request: web.Request, face: requests.Face, name: str) -> web.Response:
    """Answer as if the session were new: its client reads from the start of the last turn on.

    The message is what the program needs to open a conversation, and is not said. Generation T
    reads up to the first `session.waiting` (section 7.5), so it would not come past the first turn
    of a longer session.
    """
    _, session = await _found(request, name, Action.READ)
    encoder = await _encoder(session)
    view = f"dgv_{encoder.turn_at}_{session.id}"
    return to_web(requests.create_answer(face.form, view, token=encoder.token))


async def _create(
    request: web.Request,
    principal: Principal,
    face: requests.Face,
    wanted: requests.Create,
    asked: Asked,
) -> web.Response:
    sessions, route = request.app[SESSIONS], route_of(request)
    async with sessions.in_order.turn(principal.name, route, asked):
        made = await sessions.made_by(asked, owner=principal.name, route=route)
        session, ids = made or await _made(sessions, principal, route, wanted, asked)
    return to_web(
        requests.create_answer(
            face.form,
            session.id,
            token=await _token(session),
            delivery_id=ids[0] if ids else None,
        )
    )


async def _made(
    sessions: Sessions, principal: Principal, route: str, wanted: requests.Create, asked: Asked
) -> tuple[Session, list[str]]:
    """Make a session and return it with the ids of its first commands; or the first one that was
    made for its `operationId`."""
    if wanted.mode == "task" or wanted.callback is not None:
        what = "callback" if wanted.callback is not None else "mode"
        raise NotSupported(
            f"`{what}` is not carried to backend `{sessions.backend_of(route).name}`: "
            "only an eve backend knows it."
        )
    if wanted.request_input is False:
        raise NotSupported(
            "`capabilities.requestInput` false cannot be promised for backend "
            f"`{sessions.backend_of(route).name}`."
        )
    if wanted.message is not None:
        sessions.check(route, wanted.message)
    aliases = [] if wanted.operation_id is None else [(OPERATION, wanted.operation_id)]
    messages = [] if wanted.message is None else [wanted.message]
    try:
        return await sessions.create_with(
            messages,
            by=principal.name,
            blobs=wanted.blobs,
            owner=principal.name,
            route=route,
            dialect=wire.DIALECT,
            aliases=aliases,
            asked=asked,
        )
    except SequenceConflict:
        if wanted.operation_id is None:
            raise
        first = await sessions.journal.resolve(
            owner=principal.name, route=route, kind=OPERATION, name=wanted.operation_id
        )
        if first is None:
            raise
        session = await sessions.get(first, owner=principal.name, route=route)
        if not session.forgot_its_message:
            return session, []
        return session, await session.submit(
            messages, by=principal.name, face=wire.DIALECT, blobs=wanted.blobs
        )


async def follow_up(request: web.Request) -> web.StreamResponse:
    """POST /eve/v1/session/{session}."""
    entered(request, Action.WRITE)
    face = request.app[FACE]
    body = await request.read()
    wanted, asked = requests.parse_follow_up(body, face), asked_by(request, body)
    request[TOKEN_STYLE] = wanted.token is not None
    return await request.app[SESSIONS].keep(_follow_up(request, face, wanted, asked))


async def _follow_up(
    request: web.Request, face: requests.Face, wanted: requests.FollowUp, asked: Asked
) -> web.Response:
    action = Action.ANSWER if wanted.answers else Action.WRITE
    principal, session, number = await _addressed(
        request, wanted.token, request.match_info["session"], action
    )
    async with request.app[SESSIONS].in_order.turn(principal.name, route_of(request), asked):
        ids = session.repeated(asked)
        if ids is None:
            details = None if number is None else {TOKEN_NUMBER: number}
            ids = await session.submit(
                _said(session, wanted),
                by=principal.name,
                face=wire.DIALECT,
                details=details,
                blobs=wanted.blobs,
                asked=asked,
            )
    return to_web(
        requests.follow_up_answer(
            face.form,
            await _shown(request, session),
            delivery_id=ids[-1],
            token=await _token(session),
        )
    )


def _said(session: Session, wanted: requests.FollowUp) -> list[AnyCommand]:
    """Return the commands of a follow-up, as the session is now."""
    commands: list[AnyCommand] = [_answer(session, response, wanted) for response in wanted.answers]
    if wanted.message is not None:
        # Also beside answers: while a secret is asked for, no other text is taken.
        said = requests.answer_by_message(wanted.text, session.open_interactions())
        if said is not None and not wanted.answers:
            answer = _answer(session, said, wanted)
            options = {**(answer.options or {}), SAID_AS_MESSAGE: wanted.text}
            commands.append(answer.model_copy(update={"options": options}))
        else:
            # What the request was left open for goes with the answers that come beside it.
            paused = bool(session.state.interactions) and not wanted.answers
            policy = wanted.paused_policy if paused else wanted.message.policy
            commands.append(wanted.message.model_copy(update={"policy": policy}))
    return commands


def _answer(
    session: Session, response: requests.InputResponse, wanted: requests.FollowUp
) -> AnswerInteraction:
    open_ = session.state.interactions.get(response.request_id)
    if open_ is None:
        outcome = session.state.resolved.get(response.request_id)
        if outcome is not None:
            raise InteractionConflict(f"The request '{response.request_id}' is over: {outcome}.")
        raise DragomanError(
            f"There is no request '{response.request_id}' in this session.",
            code=ErrorCode.UNKNOWN_INTERACTION,
        )
    return requests.to_command(response, open_.event, wanted.options)


async def _addressed(
    request: web.Request, token: str | None, name: str | None, action: Action
) -> tuple[Principal, Session, int | None]:
    """Return the session that a request names: by its token, whatever the path says, else by the
    path (section 5)."""
    if token is None:
        assert name is not None
        principal, session = await _found(request, name, action)
        return principal, session, None
    handle = requests.token_handle(token)
    if handle is None:
        raise SessionNotFound("The continuation token is none of ours.")
    principal, session = await _found(request, handle, action)
    encoder = await _encoder(session)
    number = requests.token_wait(session.row.secret, token, encoder.waits)
    if number is None or number < min(encoder.used, encoder.waits):
        raise DragomanError("The continuation token is stale.", code=ErrorCode.STALE_TOKEN)
    return principal, session, number


async def _encoder(session: Session) -> EveEncoder:
    feed = session.feed(wire.DIALECT)
    await feed.catch_up()
    assert isinstance(feed.encoder, EveEncoder)
    return feed.encoder


async def _token(session: Session) -> str:
    return (await _encoder(session)).token


def _control(kind: requests.ControlKind, *, by_token: bool = False) -> Handler:
    async def control(request: web.Request) -> web.StreamResponse:
        action = Action.CONTROL if kind == "reset" else Action.WRITE
        entered(request, action)
        face = request.app[FACE]
        name = None if by_token else request.match_info["session"]
        body = await request.read()
        wanted, asked = requests.parse_control(kind, body, face, name), asked_by(request, body)
        request[TOKEN_STYLE] = wanted.token is not None
        return await request.app[SESSIONS].keep(_controlled(request, face, wanted, action, asked))

    return control


async def _controlled(
    request: web.Request,
    face: requests.Face,
    wanted: requests.Control,
    action: Action,
    asked: Asked,
) -> web.Response:
    principal, session, number = await _addressed(request, wanted.token, wanted.session_id, action)
    applied = session.state.ended is None
    command: AnyCommand | None = None
    match wanted.kind:
        case "cancel":
            current = (await _encoder(session)).turn_id
            if wanted.turn_id is None or wanted.turn_id == current:
                command = Interrupt(turn_id=wanted.turn_id)
        case "compact":
            command = Compact()
        case "clear":
            command = Clear()
        case "reset":
            command = Reset(reason=wanted.reason)
    if applied and command is not None:
        async with request.app[SESSIONS].in_order.turn(principal.name, route_of(request), asked):
            if session.repeated(asked) is None:
                details = None if number is None else {TOKEN_NUMBER: number}
                await session.submit(
                    [command], by=principal.name, face=wire.DIALECT, details=details, asked=asked
                )
    shown = await _shown(request, session)
    return to_web(requests.control_answer(wanted.kind, face.form, shown, applied=applied))


async def called_back(request: web.Request) -> web.StreamResponse:
    """Pass what a sign-in's provider or a remote agent brings to an eve backend (sections 9.4, 11).

    These routes are open: their token is the credential, and ours is not sent along. A token that
    we showed stands for the backend's own address; every other is the backend's to judge.
    """
    sessions = request.app[SESSIONS]
    # Who asks may be anybody, and does not learn which routes there are.
    nothing_pending = DragomanError(
        "Nothing is pending here; only eve backends take callbacks.", code=ErrorCode.NOT_FOUND
    )
    try:
        backend = sessions.backend_of(route_of(request))
    except DragomanError:
        raise nothing_pending from None
    if backend.dialect != wire.DIALECT:
        raise nothing_pending
    path = await _webhook(request)
    if path is None:
        raw = request.rel_url.raw_path
        path = raw[raw.index("/eve/v1/") :]
    headers = CIMultiDict(
        {k: v for k, v in request.headers.items() if k.lower() in _CALLBACK_HEADERS}
    )
    body = await request.read()
    query = MultiDict(request.query)
    sent = Request(request.method, path, query, headers, body or None)
    answer = await sessions.public_upstream(backend).call(Call("callback", sent))
    kept = {k: v for k, v in answer.headers.items() if k.lower() in _CALLBACK_HEADERS}
    return web.Response(status=answer.status, headers=kept, body=answer.body)


async def _webhook(request: web.Request) -> str | None:
    """Return the path of the backend's own address that our token stands for, or None for a token
    that is none of ours."""
    token = request.match_info["token"]
    session_id = token.rpartition(".")[0]
    if not session_id:
        return None
    try:
        found = await request.app[SESSIONS].get(session_id, owner=None, route=None)
    except SessionNotFound:
        return None
    if found.row.route != route_of(request):
        return None
    for asked in found.open_interactions():
        ours = requests.webhook_token(found.row.secret, found.id, asked.request_id)
        hook = found.webhook(asked.request_id)
        if hook is not None and hmac.compare_digest(ours.encode(), token.encode()):
            return URL(hook, encoded=True).raw_path
    return None


async def stream(request: web.Request) -> web.StreamResponse:
    """GET /eve/v1/session/{session}/stream (section 7)."""
    session, thread_id = await _read_session(request, request.match_info["session"])
    face = request.app[FACE]
    wanted = requests.parse_stream_query(request.query, face)
    feed = session.feed(wire.DIALECT, thread_id)
    await feed.catch_up()
    begin = _viewed(request.match_info["session"])[0]
    tail = feed.next_cursor - 1 - begin
    name = await _shown(request, session) if thread_id == MAIN else thread_id
    # What the session was first shown as, whatever is configured by now.
    form = session.settings_of(wire.DIALECT).get("form", face.form)
    server = request.app[SETTINGS].server
    plan = StreamPlan(
        heartbeat=wire.HEARTBEAT,
        heartbeat_seconds=min(server.heartbeat_seconds, wire.HEARTBEAT_MS / 1000),
        write_timeout=server.write_timeout_seconds,
        stop=None if wanted.follow else begin + tail + 1,
        lease_seconds=wire.LEASE_MS / 1000 if wanted.lease else None,
        lease_end=wire.LEASE_ENDED,
    )
    response = web.StreamResponse(
        headers=requests.stream_headers(form, name, tail if wanted.include_tail else None)
    )
    first = begin + wanted.first(tail)
    await write_stream(request, response, feed, first, plan, first=wire.HEARTBEAT)
    return response
