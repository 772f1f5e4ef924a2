"""A Herm gateway that plays scripts: the backend of the demo and of the tests.

It serves the session routes of the Herm page (sections 2 to 6) and the agents that a client needs
to get there. What it sends are templates quoted from the page (`herm_frames`), what it accepts is
only what the page documents (`herm_requests`), and it shares no code with the Herm codecs, so a
codec that is wrong cannot agree with itself. A `Variant` chooses between the forms that the page
leaves open; a `Faults` plan breaks requests on purpose.

Any agent id opens sessions: the story is the same for all.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NoReturn

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.clock import Clock
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
from proxy.scripted.herm_frames import BODIES, dump
from proxy.scripted.herm_requests import Refusal, parse_batch, parse_changes, parse_page
from proxy.scripted.herm_turns import DEFAULT, Entry, Received, ScriptedHerm, Talk, Variant

__all__ = ["DEFAULT", "HERM", "Received", "ScriptedHerm", "Variant", "create_herm_app"]

# Page, section 4.3: a comment at least every 15 to 30 seconds; sooner, so that a person sees one.
HEARTBEAT_S = 10.0
HEARTBEAT = b": heartbeat\n\n"
MAX_BODY = 64 * 2**20
# A backlog is written in pieces of this many frames: one write per frame is several times slower.
FRAMES_PER_WRITE = 256

HERM: web.AppKey[ScriptedHerm] = web.AppKey("herm", ScriptedHerm)
_FAULT: web.RequestKey[Sequence[Fault]] = web.RequestKey("fault", list)


class _StreamOver(Exception):
    """A fault ends this stream here."""


class _Body:
    """Writes the frames of one stream and breaks it where its fault says so."""

    def __init__(
        self, herm: ScriptedHerm, request: web.Request, response: web.StreamResponse, talk: Talk
    ) -> None:
        self._herm = herm
        self._request = request
        self._response = response
        self._talk = talk
        faults = request[_FAULT]
        self._fault: Fault | None = faults[0] if faults else None
        self._events = 0
        self._bytes = 0

    async def frames(self, frames: Sequence[bytes]) -> None:
        """Write frames; ends the stream by raising `_StreamOver`."""
        if self._fault is None:
            for start in range(0, len(frames), FRAMES_PER_WRITE):
                await self._response.write(b"".join(frames[start : start + FRAMES_PER_WRITE]))
            return
        for frame in disturbed(self._fault, frames, self._events):
            await self._before(frame)
            await self.write(frame)
            self._events += 1
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

    async def _before(self, frame: bytes) -> None:
        """Do what the fault does before a frame; an empty one when none is there yet."""
        match self._fault:
            case Cut(after_event=place, clean=clean) if place == self._events:
                await self._end(clean)
            case HalfFrame(place) if place == self._events and frame:
                await self._response.write(frame[: len(frame) // 2])
                await self._end(clean=True)
            case LoseTurn(place) if place == self._events:
                self._herm.lose(self._talk)
                await self._end(clean=False)
            case Garbage(place, data) if place == self._events:
                self._fault = None
                await self._response.write(data)
            case Stall(place, seconds) if place == self._events:
                self._fault = None
                if seconds is None:
                    await self._herm.stopping.wait()
                else:
                    await self._herm.clock.wait(self._herm.stopping, seconds)

    async def _end(self, clean: bool) -> None:
        transport = self._request.transport
        if not clean and transport is not None:
            # What was written must leave first: an aborted transport forgets its buffer.
            while transport.get_write_buffer_size() and not transport.is_closing():  # noqa: ASYNC110
                await asyncio.sleep(0)
            transport.abort()
        raise _StreamOver


def _error(herm: ScriptedHerm, status: int, code: str, message: str) -> web.Response:
    """Answer an error in one of the forms that section 6 allows."""
    body: dict[str, object]
    match herm.variant.error_form:
        case "nested":
            body = BODIES["error"].filled(error={"code": code, "message": message})
        case "flat":
            body = {"error": code, "message": message}
        case "plain":
            body = {"code": code, "message": message}
    return _json(body, status)


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status, text=dump(body), content_type="application/json", charset="utf-8"
    )


# Page, section 6.
_STATUS_CODES: Mapping[int, str] = {
    400: "validation_error",
    401: "unauthorized",
    402: "insufficient_credits",
    403: "forbidden",
    404: "not_found",
    409: "deployment_not_ready",
    422: "invalid_skill",
    429: "rate_limited",
    500: "server_error",
}


def _refused_on_purpose(herm: ScriptedHerm, fault: Status) -> web.Response:
    if fault.body is not None:
        return web.Response(status=fault.status, body=fault.body)
    code = _STATUS_CODES.get(fault.status, "server_error")
    response = _error(herm, fault.status, code, "Refused on purpose.")
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(fault.retry_after)
    return response


def _named(handler: Handler, name: str) -> Handler:
    """Put the gate of a route around its handler: the key, the fault, the refusal (section 6)."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        herm = request.app[HERM]
        body = await request.read()
        herm.received.append(Received(name, request.headers, request.query, body))
        try:
            if not herm.admits(request.headers.get("Authorization")):
                raise Refusal(401, "unauthorized", "The key is missing or wrong.")
            fault = herm.faults.take(name, stream=name == "stream")
            request[_FAULT] = [] if fault is None else [fault]
            match fault:
                case Status():
                    return _refused_on_purpose(herm, fault)
                case Redirect(location, status):
                    return web.Response(status=status, headers={"Location": location})
                case Silence(done=False):
                    await _never(herm, request)
            response = await handler(request)
            if name != "stream":
                await _late(herm, request)
        except Refusal as refusal:
            herm.refusals.append(refusal)
            return _error(herm, refusal.status, refusal.code, refusal.message)
        else:
            if isinstance(fault, WrongContentType) and isinstance(response, web.Response):
                response.headers["Content-Type"] = fault.content_type
            return response

    return guarded


async def _never(herm: ScriptedHerm, request: web.Request) -> NoReturn:
    """Answer nothing while the backend lives."""
    await herm.stopping.wait()
    if request.transport is not None:
        request.transport.abort()
    raise web.HTTPServiceUnavailable


async def _late(herm: ScriptedHerm, request: web.Request) -> None:
    """Hold an answer back as the fault says; what was asked for has happened."""
    for fault in request[_FAULT]:
        match fault:
            case Silence():
                await _never(herm, request)
            case SlowHead(seconds):
                await herm.clock.wait(herm.stopping, seconds)


# Agents and sessions (sections 2.1 to 2.3).


async def _agents(request: web.Request) -> web.StreamResponse:
    body = BODIES["page"].filled(data=[{"id": "agent_K4", **BODIES["agent"].filled()}])
    return _json(body)


async def _create(request: web.Request) -> web.StreamResponse:
    herm = request.app[HERM]
    members = parse_changes(
        await request.read(),
        request.content_type,
        ("userId", "title", "metadata"),
        strict=herm.variant.strict,
    )
    talk = herm.create(request.match_info["agent"], members)
    return _json(herm.describe(talk), herm.variant.create_status)


async def _sessions(request: web.Request) -> web.StreamResponse:
    herm = request.app[HERM]
    allowed = {"agentId", "userId", "status"}
    limit, cursor = parse_page(request.query, allowed, strict=herm.variant.strict)
    found = [herm.describe(talk) for talk in reversed(herm.talks.values())]
    for name in allowed & request.query.keys():
        found = [record for record in found if record.get(name) == request.query[name]]
    start = int(cursor or 0)
    page, rest = found[start : start + limit], found[start + limit :]
    return _json(BODIES["page"].filled(data=page, nextCursor=str(start + limit) if rest else None))


def _talk(request: web.Request) -> Talk:
    return request.app[HERM].talk(request.match_info["session"])


async def _show(request: web.Request) -> web.StreamResponse:
    herm, talk = request.app[HERM], _talk(request)
    return _json({**herm.describe(talk), "messages": herm.history(talk)})


async def _update(request: web.Request) -> web.StreamResponse:
    herm, talk = request.app[HERM], _talk(request)
    changes = parse_changes(
        await request.read(),
        request.content_type,
        ("title", "metadata"),
        strict=herm.variant.strict,
    )
    if "title" in changes:
        talk.record["title"] = changes["title"]
    metadata = changes.get("metadata")
    if isinstance(metadata, dict):
        talk.metadata.update(metadata)
    return _json(herm.describe(talk))


async def _archive(request: web.Request) -> web.StreamResponse:
    herm, talk = request.app[HERM], _talk(request)
    talk.archived = True
    return _json(herm.describe(talk))


async def _delete(request: web.Request) -> web.StreamResponse:
    herm, talk = request.app[HERM], _talk(request)
    herm.lose(talk)
    del herm.talks[talk.id]
    return web.Response(status=204)


# Events (sections 3 and 4).


async def _post(request: web.Request) -> web.StreamResponse:
    herm, talk = request.app[HERM], _talk(request)
    variant = herm.variant
    batch = parse_batch(
        await request.read(), request.content_type, form=variant.body, strict=variant.strict
    )
    accepted = herm.take(talk, batch)
    match variant.post_answer:
        case "data":
            return _json({"data": accepted}, variant.post_status)
        case "bare":
            return _json(accepted, variant.post_status)
        case "empty":
            return web.Response(status=variant.post_status)


async def _list(request: web.Request) -> web.StreamResponse:
    herm, talk = request.app[HERM], _talk(request)
    limit, cursor = parse_page(request.query, set(), strict=herm.variant.strict)
    listed = [entry.envelope for entry in talk.entries if entry.listed]
    if herm.variant.list_form == "array":
        return _json(listed)
    start = int(cursor or 0)
    page, rest = listed[start : start + limit], listed[start + limit :]
    return _json(BODIES["page"].filled(data=page, nextCursor=str(start + limit) if rest else None))


async def _stream(request: web.Request) -> web.StreamResponse:
    """Send what was missed, then follow; the stream stays open across turns (section 4.3)."""
    herm, talk = request.app[HERM], _talk(request)
    content_type = "text/event-stream"
    for fault in request[_FAULT]:
        if isinstance(fault, WrongContentType):
            content_type = fault.content_type
    await _late(herm, request)
    place = herm.first_after(talk, request.headers.get("Last-Event-ID"))
    response = web.StreamResponse(
        headers={"Content-Type": content_type, "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    body = _Body(herm, request, response, talk)
    try:
        await body.frames(())
        while not herm.stopping.is_set() and talk.id in herm.talks:
            changed = talk.changed
            entries: list[Entry] = talk.entries[place:]
            place += len(entries)
            frames = [herm.frame(entry) for entry in entries if entry.streamed]
            if frames:
                await body.frames(frames)
            elif not entries and not await herm.clock.wait(changed, herm.heartbeat_s):
                await body.write(HEARTBEAT)
    except (_StreamOver, ConnectionResetError):
        # The stream ends here by a fault, or the client has left; the turn goes on.
        return response
    return response


async def _absent(request: web.Request) -> web.StreamResponse:
    raise Refusal(404, "not_found", f"There is no {request.method} {request.path} here.")


def create_herm_app(
    *,
    key: str | None = None,
    variant: Variant = DEFAULT,
    faults: Faults | None = None,
    clock: Clock | None = None,
    pace: float = 1.0,
    heartbeat_s: float = HEARTBEAT_S,
) -> web.Application:
    """Build a scripted Herm; `app[HERM]` is its state.

    Args:
        key: the only bearer key that passes; any or none passes without one.
        variant: the forms that the page leaves open.
        faults: which requests break, and how; routes are `agents`, `create`, `sessions`, `show`,
            `update`, `archive`, `delete`, `post`, `list` and `stream`.
        clock: the time in envelopes, pauses and heartbeats; real time by default.
        pace: the factor on the pauses inside scripts; 0 plays them without any.
        heartbeat_s: seconds of the clock without a frame until a comment comes.
    """
    app = web.Application(client_max_size=MAX_BODY)
    app[HERM] = ScriptedHerm(
        key=key,
        variant=variant,
        faults=faults or Faults(),
        clock=clock or Clock(),
        pace=pace,
        heartbeat_s=heartbeat_s,
    )
    session = "/v1/sessions/{session}"
    routes: tuple[tuple[str, str, str, Handler], ...] = (
        ("GET", "/v1/agents", "agents", _agents),
        ("POST", "/v1/agents/{agent}/sessions", "create", _create),
        ("GET", "/v1/sessions", "sessions", _sessions),
        ("GET", session, "show", _show),
        ("PATCH", session, "update", _update),
        ("POST", f"{session}/archive", "archive", _archive),
        ("DELETE", session, "delete", _delete),
        ("POST", f"{session}/events", "post", _post),
        ("GET", f"{session}/events", "list", _list),
        ("GET", f"{session}/events/stream", "stream", _stream),
        ("*", "/{path:.*}", "other", _absent),
    )
    for method, path, name, handler in routes:
        app.router.add_route(method, path, _named(handler, name))

    async def stop(app: web.Application) -> None:
        await app[HERM].stop()

    app.on_shutdown.append(stop)
    return app
