"""An eve server that plays scripts, of either generation: a backend of the demo and of the tests.

It serves the session routes of the eve page (sections 3 to 7). What it sends are templates of
recorded records (`eve_frames`), what it accepts is what the recordings show (`eve_requests`), and
it shares no code with the eve codecs, so a codec that is wrong cannot agree with itself. A
`EveVariant` chooses the generation; a `Faults` plan breaks requests on purpose.
"""

from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.base.clock import Clock, IdSource
from proxy.scripted.backend import Refusal
from proxy.scripted.eve_requests import (
    ScriptedStreamQuery,
    bad,
    parse_body,
    parse_create,
    parse_follow_up,
)
from proxy.scripted.eve_turns import DEFAULT, EveInput, EveVariant, ScriptedEve, ScriptedEveSession
from proxy.scripted.faults import Faults, Status
from proxy.scripted.http_app import (
    BodyOver,
    StreamBody,
    application,
    broken,
    json_response,
    late,
    note,
)

LEASE_ENDED = b'{"$eve":"stream.lease-ended","version":1}\n'

HEARTBEAT = b'{"$eve":"heartbeat"}\n'
FACTS = (
    b'{"at":"2026-10-28T10:00:00.000Z","facts":[{"type":"delivery.admitted","data":'
    b'{"deliveryId":"d1"}},{"type":"turn.started","scope":{"turnId":"turn_0"},"data":'
    b'{"turnId":"turn_0","cause":{"deliveryId":"d1"},"follows":null}}]}\n',
    b'{"progress":{"type":"content.delta","scope":{"turnId":"turn_0"},"data":'
    b'{"partId":"p1","kind":"text","delta":"Hi"}}}\n',
    b'{"at":"2026-10-28T10:00:01.000Z","facts":[{"type":"turn.settled","scope":'
    b'{"turnId":"turn_0"},"data":{"turnId":"turn_0","outcome":"completed","reply":["p1"]}},'
    b'{"type":"delivery.settled","data":{"deliveryId":"d1","outcome":"handled"}}]}\n',
)
"""Eve 27 page, sections 3 and 5: a stream of version 27 as far as its shape is concerned."""

EVE: web.AppKey[ScriptedEve] = web.AppKey("eve", ScriptedEve)

_NOT_ACTIVE = Refusal(409, "session_not_active", "The session is no longer active.")
_NOT_RESUMABLE = Refusal(
    404, "SESSION_NOT_RESUMABLE", "Session is not active and cannot be resumed."
)
_PREFIX = "/eve/v1/session"


def _json(status: int, body: object, session: str | None = None) -> web.Response:
    headers = {} if status >= 400 else {"cache-control": "no-store"}
    if session is not None:
        headers["x-eve-session-id"] = session
    return json_response(body, status=status, headers=headers)


def _refused(refusal: Refusal) -> web.Response:
    body: dict[str, object] = {"error": refusal.message, "ok": False}
    if refusal.code:
        body["code"] = refusal.code
    return _json(refusal.status, body)


def _refused_on_purpose(fault: Status) -> web.Response:
    response = _refused(Refusal(fault.status, fault.code, "Refused on purpose."))
    if fault.retry_after is not None:
        response.headers["retry-after"] = str(fault.retry_after)
    return response


def _name_of(request: web.Request) -> str:
    """The route's name for faults and `received`."""
    match request.path.removeprefix("/eve/v1").split("/")[1:]:
        case ["health" | "info" as route]:
            return route
        case ["connections", _, "callback", *_]:
            return "callback"
        case ["session"] if request.method == "POST":
            return "create"
        case ["session", "compact" | "clear" | "reset" as control] if request.method == "POST":
            return control
        case ["session", _] if request.method == "POST":
            return "message"
        case ["session", _, "stream"] if request.method == "GET":
            return "stream"
        case ["session", _, "cancel" | "compact" | "clear" | "reset" as control]:
            return control
    return "other"


@web.middleware
async def _gate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The credential first, then the fault of this request, then the route (section 2.1)."""
    eve = request.app[EVE]
    route = _name_of(request)
    await note(eve, request, route)
    try:
        open_ = route in ("health", "callback")
        if not open_ and not eve.admits(request.headers.get("Authorization")):
            raise Refusal(401, "unauthorized", "Authorization is required for this route.")
        answer = await broken(
            eve,
            request,
            route,
            stream=route == "stream",
            talk=request.match_info.get("session", ""),
            refused=_refused_on_purpose,
        )
        if answer is not None:
            return answer
        response: web.StreamResponse = await handler(request)
    except Refusal as refusal:
        eve.refusals.append(refusal)
        return _refused(refusal)
    # What was asked for has happened; a stream has been late by itself.
    if not response.prepared:
        content_type = await late(eve, request)
        if content_type is not None:
            response.content_type = content_type
    return response


async def _callback(request: web.Request) -> web.StreamResponse:
    """The provider's return from a sign-in: a page for the person's browser (section 9.4)."""
    if not request.app[EVE].sign_in(request.match_info["end"]):
        raise web.HTTPNotFound
    return web.Response(text="Signed in; you may close this page.")


async def _health(request: web.Request) -> web.StreamResponse:
    body = {"ok": True, "status": "ready", "workflowId": "workflow//eve//workflowEntry"}
    return _json(200, body)


async def _info(request: web.Request) -> web.StreamResponse:
    """The begin of section 12: which server it is; the rest is not served."""
    variant = request.app[EVE].variant
    return _json(200, {"kind": "eve-agent-info", "version": variant.info_version})


async def _create(request: web.Request) -> web.StreamResponse:
    eve = request.app[EVE]
    post = parse_create(await request.read(), tokens=eve.variant.tokens)
    talk = eve.begin()
    eve.origin = f"{request.scheme}://{request.host}"
    if post.text is not None:
        eve.post(talk, post)
    if eve.variant.tokens:
        body = {"continuationToken": talk.token, "ok": True, "sessionId": talk.id}
    else:
        body = {"ok": True, "sessionId": talk.id, "status": "accepted"}
    return _json(202, body, talk.id)


async def _message(request: web.Request) -> web.StreamResponse:
    eve = request.app[EVE]
    tokens = eve.variant.tokens
    post = parse_follow_up(await request.read(), tokens=tokens)
    if tokens:
        talk = eve.by_token(post.token or "")
        if talk is None:
            raise _NOT_RESUMABLE
        if post.answers:
            talk.take_answer()
        eve.post(talk, post)
        return _json(200, {"ok": True, "sessionId": talk.id}, talk.id)
    talk = eve.live(request.match_info["session"])
    if talk is None:
        raise _NOT_ACTIVE
    if post.answers:
        talk.take_answer()
    delivery = eve.post(talk, post)
    body = {"ok": True, "sessionId": talk.id, "status": "accepted", "deliveryId": delivery}
    return _json(202, body, talk.id)


async def _object_or_nothing(request: web.Request) -> dict[str, object]:
    body = await request.read()
    value = parse_body(body) if body else {}
    if not isinstance(value, dict):
        raise bad("Expected a JSON object.")
    return value


async def _cancel(request: web.Request) -> web.StreamResponse:
    eve = request.app[EVE]
    tokens = eve.variant.tokens
    turn_id = (await _object_or_nothing(request)).get("turnId")
    if turn_id == "" or (turn_id is not None and not isinstance(turn_id, str)):
        raise bad("Expected 'turnId' to be a non-empty string.")
    name = request.match_info["session"]
    talk = eve.live(name)
    if talk is None or talk.begins:
        body: dict[str, object] = {"ok": True, "status": "no_active_turn"}
        if tokens:
            body["sessionId"] = name
        return _json(202 if tokens else 200, body, name if tokens else None)
    # Accepted for every live session; without that turn it does nothing (section 6).
    if talk.busy and turn_id in (None, f"turn_{talk.turns - 1}"):
        eve.cancel(talk)
    body = {"ok": True, "sessionId": talk.id, "status": "accepted"}
    return _json(202, body, talk.id if tokens else None)


async def _control(request: web.Request) -> web.StreamResponse:
    eve = request.app[EVE]
    name = request.path.rsplit("/", 1)[1]
    body = await _object_or_nothing(request)
    if eve.variant.tokens:
        token = body.get("continuationToken")
        if not isinstance(token, str) or not token:
            raise bad("Missing or empty 'continuationToken' field.")
        talk = eve.by_token(token)
    else:
        if "continuationToken" in body:
            raise bad("Session-ID routes do not accept 'continuationToken'.")
        talk = eve.live(request.match_info["session"])
    if talk is None:
        return _json(200, {"ok": True, "status": "no_active_session"})
    match name:
        case "reset":
            eve.reset(talk)
            return _json(200, {"ok": True, "previousSessionId": talk.id, "status": "reset"})
        case "compact":
            talk.inbox.put_nowait(EveInput("compact"))
        case _:
            talk.inbox.put_nowait(EveInput("clear"))
    return _json(202, {"ok": True, "sessionId": talk.id, "status": "accepted"})


async def _stream(request: web.Request) -> web.StreamResponse:
    """Send a session's log from a place on, and follow it (section 7)."""
    eve = request.app[EVE]
    variant = eve.variant
    wanted = ScriptedStreamQuery.parse(request.query)
    name = request.match_info["session"]
    talk = eve.talks.get(name)
    if talk is None:
        if not variant.tokens:
            raise Refusal(404, "", "Session not found.")
        # Section 7.2: an unknown id is an empty open stream.
        talk = ScriptedEveSession(name, "")
    follow = wanted.follow or variant.generation != "S2"
    bounded = variant.generation == "S2" and (wanted.tail or not follow)
    headers = {
        "content-type": "application/x-ndjson; charset=utf-8",
        "cache-control": "no-store, no-transform",
        "x-accel-buffering": "no",
        "x-eve-session-id": name,
        "x-eve-stream-format": "ndjson",
        "x-eve-stream-version": variant.stream_version,
    }
    end = len(talk.log) if bounded else None
    if wanted.tail or bounded:
        headers["x-eve-stream-tail-index"] = str(len(talk.log) - 1)
    content_type = await late(eve, request)
    if content_type is not None:
        headers["content-type"] = content_type
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    place = wanted.start if wanted.start >= 0 else max(len(talk.log) + wanted.start, 0)
    leased = wanted.control and not variant.tokens
    body = StreamBody(eve, request, response, lambda: eve.lose(talk))
    # The body ends by a fault, or the client leaves; the turn goes on.
    with suppress(BodyOver, ConnectionResetError):
        if variant.facts:
            await body.write(HEARTBEAT)
            await body.frames(FACTS[place:])
            await eve.stopping.wait()
            return response
        await body.write(b"\n")
        await body.frames(())
        await _follow(eve, talk, body, place, end, leased=leased)
    return response


async def _follow(
    eve: ScriptedEve,
    talk: ScriptedEveSession,
    body: StreamBody,
    place: int,
    end: int | None,
    *,
    leased: bool,
) -> None:
    # Eve page, section 7.4: a blank line after 10 s without an event, the lease ends after 60 s.
    until = eve.clock.monotonic() + 60.0
    heartbeat_s = 10.0
    while not eve.stopping.is_set():
        changed = talk.changed
        entries = talk.log[place:end]
        place += len(entries)
        if entries:
            await body.frames([entry.data for entry in entries])
            continue
        if talk.closed or end is not None:
            return
        if not leased:
            await changed.wait()
            continue
        left = until - eve.clock.monotonic()
        if left <= 0:
            await body.write(LEASE_ENDED)
            return
        if not await eve.clock.wait(changed, min(heartbeat_s, left)) and left > heartbeat_s:
            await body.write(b"\n")


async def _absent(request: web.Request) -> web.StreamResponse:
    """What the host framework says of a path or a method that it does not know (section 2)."""
    text = f"Cannot find any route matching [{request.method}] {request.url}"
    body = {"error": True, "status": 404, "message": text}
    return json_response(body, status=404)


def create_eve_app(
    *,
    key: str | None = None,
    variant: EveVariant = DEFAULT,
    faults: Faults | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    pace: float = 1.0,
    begin_s: float = 0.0,
) -> web.Application:
    """Build a scripted eve; `app[EVE]` is its state.

    Args:
        key: the only bearer token that passes; any or none passes without one.
        variant: the generation.
        faults: which requests break, and how; the routes are `create`, `message`, `stream`,
            `cancel`, `compact`, `clear`, `reset` and `health`.
        clock: the time in records, pauses and leases; real time by default.
        ids: where the ids of sessions, records and requests come from; random by default.
        pace: the factor on the pauses inside scripts; 0 plays them without any.
        begin_s: how long a message that was accepted waits for its turn to begin; to a cancel
            meanwhile a real 0.80.1 says that there is no active turn, and the turn goes on.
    """
    eve = ScriptedEve(
        key=key,
        variant=variant,
        faults=faults or Faults(),
        clock=clock or Clock(),
        ids=ids or IdSource(),
        pace=pace,
        begin_s=begin_s,
    )
    app = application(EVE, eve, [_gate])
    add = app.router.add_route
    add("GET", "/eve/v1/health", _health)
    add("GET", "/eve/v1/info", _info)
    add("GET", "/eve/v1/connections/{name}/callback/{end:.+}", _callback)
    add("POST", _PREFIX, _create)
    for name in ("compact", "clear", "reset"):
        path = f"{_PREFIX}/{name}" if variant.tokens else f"{_PREFIX}/{{session}}/{name}"
        add("POST", path, _control)
    add("POST", f"{_PREFIX}/{{session}}", _message)
    add("POST", f"{_PREFIX}/{{session}}/cancel", _cancel)
    add("GET", f"{_PREFIX}/{{session}}/stream", _stream)
    add("*", "/{path:.*}", _absent)
    return app
