"""An eve server that plays scripts, of either generation: a backend of the demo and of the tests.

It serves the session routes of the eve page (sections 3 to 7). What it sends are templates of
recorded records (`eve_frames`), what it accepts is what the recordings show (`eve_requests`), and
it shares no code with the eve codecs, so a codec that is wrong cannot agree with itself. A
`Variant` chooses the generation; a `Faults` plan breaks requests on purpose.
"""

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.clock import Clock
from proxy.scripted.eve_frames import dump
from proxy.scripted.eve_requests import (
    Refusal,
    StreamQuery,
    parse_body,
    parse_create,
    parse_follow_up,
)
from proxy.scripted.eve_turns import DEFAULT, Input, Received, ScriptedEve, Talk, Variant
from proxy.scripted.faults import (
    Cut,
    Fault,
    Faults,
    Garbage,
    HalfFrame,
    LoseTurn,
    Redirect,
    Silence,
    SlowHead,
    SplitCharacters,
    Stall,
    Status,
    WrongContentType,
    disturbed,
    pieces,
)

__all__ = ["DEFAULT", "EVE", "Received", "ScriptedEve", "Variant", "create_eve_app"]

# Eve page, section 7.4: a blank line after 10 s without an event, the end of a lease after 60 s.
HEARTBEAT_S = 10.0
LEASE_S = 60.0
LEASE_ENDED = b'{"$eve":"stream.lease-ended","version":1}\n'
MAX_BODY = 64 * 2**20
# A backlog is written in pieces of this many records: one write per record is several times slower.
RECORDS_PER_WRITE = 256

EVE: web.AppKey[ScriptedEve] = web.AppKey("eve", ScriptedEve)
_FAULT: web.RequestKey[Sequence[Fault]] = web.RequestKey("fault", list)

_NOT_ACTIVE = Refusal(409, "The session is no longer active.", "session_not_active")
_NOT_RESUMABLE = Refusal(
    404, "Session is not active and cannot be resumed.", "SESSION_NOT_RESUMABLE"
)
_PREFIX = "/eve/v1/session"


class _BodyOver(Exception):
    """A fault ends this body here."""


class _Body:
    """Writes the records of one stream and breaks it where its fault says so."""

    def __init__(
        self, eve: ScriptedEve, request: web.Request, response: web.StreamResponse, talk: Talk
    ) -> None:
        self._eve = eve
        self._request = request
        self._response = response
        self._talk = talk
        faults = request[_FAULT]
        self._fault: Fault | None = faults[0] if faults else None
        self._records = 0
        self._bytes = 0

    async def records(self, records: Sequence[bytes]) -> None:
        """Write records; ends the body by raising `_BodyOver`."""
        if self._fault is None:
            for start in range(0, len(records), RECORDS_PER_WRITE):
                await self._response.write(b"".join(records[start : start + RECORDS_PER_WRITE]))
            return
        for record in disturbed(self._fault, records, self._records):
            await self._before(record)
            await self.write(record)
            self._records += 1
        await self._before(b"")

    async def write(self, data: bytes) -> None:
        """Write bytes that count for a cut at a byte."""
        if isinstance(self._fault, Cut) and self._fault.at_byte is not None:
            room = self._fault.at_byte - self._bytes
            if len(data) >= room:
                if room > 0:
                    await self._response.write(data[:room])
                await self._end(self._fault.clean)
        for piece in pieces(self._fault, data):
            await self._response.write(piece)
            if isinstance(self._fault, SplitCharacters):
                await asyncio.sleep(0)
        self._bytes += len(data)

    async def _before(self, record: bytes) -> None:
        """Do what the fault does before a record; an empty one when none is there yet."""
        match self._fault:
            case Cut(after_event=place, clean=clean) if place == self._records:
                await self._end(clean)
            case HalfFrame(place) if place == self._records and record:
                await self._response.write(record[: len(record) // 2])
                await self._end(clean=True)
            case LoseTurn(place) if place == self._records:
                self._eve.lose(self._talk)
                await self._end(clean=False)
            case Garbage(place, data) if place == self._records:
                self._fault = None
                await self._response.write(data)
            case Stall(place, seconds) if place == self._records:
                self._fault = None
                if seconds is None:
                    await self._eve.stopping.wait()
                else:
                    await self._eve.clock.wait(self._eve.stopping, seconds)

    async def _end(self, clean: bool) -> None:
        transport = self._request.transport
        if not clean and transport is not None:
            # What was written must leave first: an aborted transport forgets its buffer.
            while transport.get_write_buffer_size() and not transport.is_closing():  # noqa: ASYNC110
                await asyncio.sleep(0)
            transport.abort()
        raise _BodyOver


def _json(status: int, body: object, session: str | None = None) -> web.Response:
    headers = {"cache-control": "no-store"}
    if session is not None:
        headers["x-eve-session-id"] = session
    return web.Response(
        status=status, text=dump(body), content_type="application/json", headers=headers
    )


def _refused(refusal: Refusal) -> web.Response:
    body: dict[str, object] = {"error": refusal.error, "ok": False}
    if refusal.code is not None:
        body["code"] = refusal.code
    return _json(refusal.status, body)


def _refused_on_purpose(fault: Status) -> web.Response:
    if fault.body is not None:
        return web.Response(status=fault.status, body=fault.body)
    response = _refused(Refusal(fault.status, "Refused on purpose."))
    if fault.retry_after is not None:
        response.headers["retry-after"] = str(fault.retry_after)
    return response


def _name_of(request: web.Request) -> str:
    """The route's name for faults and `received`."""
    match request.path.removeprefix("/eve/v1").split("/")[1:]:
        case ["health"]:
            return "health"
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
    body = await request.read()
    eve.received.append(Received(route, request.headers, request.query, body))
    try:
        open_ = route in ("health", "callback")
        if not open_ and not eve.admits(request.headers.get("Authorization")):
            raise Refusal(401, "Authorization is required for this route.", "unauthorized")
        fault = eve.faults.take(route, stream=route == "stream")
        match fault:
            case Status():
                return _refused_on_purpose(fault)
            case Redirect(location, status):
                return web.Response(status=status, headers={"Location": location})
            case Silence(done=False):
                await _never(eve, request)
        request[_FAULT] = [] if fault is None else [fault]
        response: web.StreamResponse = await handler(request)
    except Refusal as refusal:
        eve.refusals.append(refusal)
        return _refused(refusal)
    match fault:
        case Silence():
            await _never(eve, request)
        case SlowHead(seconds) if not response.prepared:
            await eve.clock.wait(eve.stopping, seconds)
        case WrongContentType(content_type) if not response.prepared:
            response.content_type = content_type
    return response


async def _never(eve: ScriptedEve, request: web.Request) -> NoReturn:
    """Answer nothing while the backend lives."""
    await eve.stopping.wait()
    if request.transport is not None:
        request.transport.abort()
    raise web.HTTPServiceUnavailable


async def _callback(request: web.Request) -> web.StreamResponse:
    """The provider's return from a sign-in: a page for the person's browser (section 9.4)."""
    if not request.app[EVE].sign_in(request.match_info["end"]):
        raise web.HTTPNotFound
    return web.Response(text="Signed in; you may close this page.")


async def _health(request: web.Request) -> web.StreamResponse:
    body = {"ok": True, "status": "ready", "workflowId": "workflow//eve//workflowEntry"}
    return _json(200, body)


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
        eve.post(talk, post)
        return _json(200, {"ok": True, "sessionId": talk.id}, talk.id)
    talk = eve.live(request.match_info["session"])
    if talk is None:
        raise _NOT_ACTIVE
    delivery = eve.post(talk, post)
    body = {"ok": True, "sessionId": talk.id, "status": "accepted", "deliveryId": delivery}
    return _json(202, body, talk.id)


async def _object_or_nothing(request: web.Request) -> dict[str, object]:
    body = await request.read()
    value = parse_body(body) if body else {}
    if not isinstance(value, dict):
        raise Refusal(400, "Expected a JSON object.")
    return value


async def _cancel(request: web.Request) -> web.StreamResponse:
    eve = request.app[EVE]
    tokens = eve.variant.tokens
    turn_id = (await _object_or_nothing(request)).get("turnId")
    if turn_id == "" or (turn_id is not None and not isinstance(turn_id, str)):
        raise Refusal(400, "Expected 'turnId' to be a non-empty string.")
    name = request.match_info["session"]
    talk = eve.live(name)
    if talk is None:
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
            raise Refusal(400, "Missing or empty 'continuationToken' field.")
        talk = eve.by_token(token)
    else:
        if "continuationToken" in body:
            raise Refusal(400, "Session-ID routes do not accept 'continuationToken'.")
        talk = eve.live(request.match_info["session"])
    if talk is None:
        return _json(200, {"ok": True, "status": "no_active_session"})
    match name:
        case "reset":
            eve.reset(talk)
            return _json(200, {"ok": True, "previousSessionId": talk.id, "status": "reset"})
        case "compact":
            talk.inbox.put_nowait(Input("compact"))
        case _:
            talk.inbox.put_nowait(Input("clear"))
    return _json(202, {"ok": True, "sessionId": talk.id, "status": "accepted"})


async def _stream(request: web.Request) -> web.StreamResponse:
    """Send a session's log from a place on, and follow it (section 7)."""
    eve = request.app[EVE]
    variant = eve.variant
    wanted = StreamQuery.parse(request.query)
    name = request.match_info["session"]
    talk = eve.talks.get(name)
    if talk is None:
        if not variant.tokens:
            raise Refusal(404, "Session not found.")
        # Section 7.2: an unknown id is an empty open stream.
        talk = Talk(name, "")
    follow = wanted.follow or variant.generation != "S2"
    bounded = variant.generation == "S2" and (wanted.tail or not follow)
    headers = {
        "content-type": "application/x-ndjson; charset=utf-8",
        "cache-control": "no-store, no-transform",
        "x-accel-buffering": "no",
        "x-eve-session-id": name,
        "x-eve-stream-format": "ndjson",
        "x-eve-stream-version": str(variant.stream_version),
    }
    end = len(talk.log) if bounded else None
    if wanted.tail or bounded:
        headers["x-eve-stream-tail-index"] = str(len(talk.log) - 1)
    fault = request[_FAULT][0] if request[_FAULT] else None
    match fault:
        case WrongContentType(content_type):
            headers["content-type"] = content_type
        case SlowHead(seconds):
            await eve.clock.wait(eve.stopping, seconds)
        case Silence():
            await _never(eve, request)
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    place = wanted.start if wanted.start >= 0 else max(len(talk.log) + wanted.start, 0)
    leased = wanted.control and not variant.tokens
    body = _Body(eve, request, response, talk)
    try:
        await body.write(b"\n")
        await body.records(())
        await _follow(eve, talk, body, place, end, leased=leased)
    except (_BodyOver, ConnectionResetError):
        # The body ends here by a fault, or the client has left; the turn goes on.
        return response
    return response


async def _follow(
    eve: ScriptedEve, talk: Talk, body: _Body, place: int, end: int | None, *, leased: bool
) -> None:
    until = eve.clock.monotonic() + LEASE_S
    while not eve.stopping.is_set():
        changed = talk.changed
        entries = talk.log[place:end]
        place += len(entries)
        if entries:
            await body.records([entry.data for entry in entries])
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
        if not await eve.clock.wait(changed, min(HEARTBEAT_S, left)) and left > HEARTBEAT_S:
            await body.write(b"\n")


async def _absent(request: web.Request) -> web.StreamResponse:
    """What the host framework says of a path or a method that it does not know (section 2)."""
    text = f"Cannot find any route matching [{request.method}] {request.url}"
    body = {"error": True, "status": 404, "message": text}
    return web.Response(status=404, text=dump(body), content_type="application/json")


def create_eve_app(
    *,
    key: str | None = None,
    variant: Variant = DEFAULT,
    faults: Faults | None = None,
    clock: Clock | None = None,
    pace: float = 1.0,
) -> web.Application:
    """Build a scripted eve; `app[EVE]` is its state.

    Args:
        key: the only bearer token that passes; any or none passes without one.
        variant: the generation.
        faults: which requests break, and how; the routes are `create`, `message`, `stream`,
            `cancel`, `compact`, `clear`, `reset` and `health`.
        clock: the time in records, pauses and leases; real time by default.
        pace: the factor on the pauses inside scripts; 0 plays them without any.
    """
    app = web.Application(middlewares=[_gate], client_max_size=MAX_BODY)
    app[EVE] = ScriptedEve(
        key=key,
        variant=variant,
        faults=faults or Faults(),
        clock=clock or Clock(),
        pace=pace,
    )
    add = app.router.add_route
    add("GET", "/eve/v1/health", _health)
    add("GET", "/eve/v1/connections/{name}/callback/{end:.+}", _callback)
    add("POST", _PREFIX, _create)
    for name in ("compact", "clear", "reset"):
        path = f"{_PREFIX}/{name}" if variant.tokens else f"{_PREFIX}/{{session}}/{name}"
        add("POST", path, _control)
    add("POST", f"{_PREFIX}/{{session}}", _message)
    add("POST", f"{_PREFIX}/{{session}}/cancel", _cancel)
    add("GET", f"{_PREFIX}/{{session}}/stream", _stream)
    add("*", "/{path:.*}", _absent)

    async def stop(app: web.Application) -> None:
        await app[EVE].stop()

    app.on_shutdown.append(stop)
    return app
