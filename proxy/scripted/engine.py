"""A September Engine that plays scripts: the backend of the demo and of the tests.

It serves the conversation routes of the Engine page (sections 5 to 11) and nothing else. What it
sends are templates of recorded frames (`engine_frames`), what it accepts is only what the page
documents (`engine_requests`), and it shares no code with the Engine codecs, so a codec that is
wrong cannot agree with itself. A `Variant` chooses between the forms that the page leaves open; a
`Faults` plan breaks requests on purpose.

The bodies of `/execute` and `/execute/replay` are readers of a conversation's buffer
(`engine_turns`): a reader that leaves changes nothing for the turn.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.clock import Clock
from proxy.scripted.engine_frames import BODIES, FRAMES, dump
from proxy.scripted.engine_requests import Refusal, parse_answer, parse_execute, parse_replay
from proxy.scripted.engine_turns import (
    DEFAULT,
    Conversation,
    Received,
    ScriptedEngine,
    Turn,
    Variant,
    iso,
    plain,
)
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

__all__ = ["DEFAULT", "ENGINE", "Received", "ScriptedEngine", "Variant", "create_engine_app"]

# Engine page, section 17: every 15 s or so; a little sooner, so that a person sees one.
HEARTBEAT_S = 10.0
# Page, section 6.2: files under 5 MB each; room for several of them as base64.
MAX_BODY = 64 * 2**20
# A backlog is written in pieces of this many frames: one write per frame is several times slower.
FRAMES_PER_WRITE = 256


class _BodyOver(Exception):
    """A fault ends this body here."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """What the plan says about one request."""

    fault: Fault | None


class _Body:
    """Writes the frames of one stream and breaks it where its fault says so."""

    def __init__(
        self,
        engine: ScriptedEngine,
        request: web.Request,
        response: web.StreamResponse,
        task: Conversation | None,
        fault: Fault | None,
    ) -> None:
        self._engine = engine
        self._request = request
        self._response = response
        self._task = task
        self._fault = fault
        self._events = 0
        self._bytes = 0

    async def frames(self, frames: Sequence[bytes]) -> None:
        """Write frames; ends the body by raising `_BodyOver`."""
        if self._fault is None:
            for start in range(0, len(frames), FRAMES_PER_WRITE):
                await self._response.write(b"".join(frames[start : start + FRAMES_PER_WRITE]))
            return
        for frame in disturbed(self._fault, frames, self._events):
            await self._before(frame)
            await self._write(frame)
            self._events += 1
        await self._before(b"")

    async def heartbeat(self, frame: bytes) -> None:
        """Write a frame that does not count as an event."""
        await self._write(frame)

    async def _write(self, data: bytes) -> None:
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
                if self._task is not None:
                    self._engine.lose(self._task)
                await self._end(clean=False)
            case Garbage(place, data) if place == self._events:
                self._fault = None
                await self._response.write(data)
            case Stall(place, seconds) if place == self._events:
                self._fault = None
                if seconds is None:
                    await self._engine.stopping.wait()
                else:
                    await self._engine.clock.wait(self._engine.stopping, seconds)

    async def _end(self, clean: bool) -> None:
        transport = self._request.transport
        if not clean and transport is not None:
            # What was written must leave first: an aborted transport forgets its buffer.
            while transport.get_write_buffer_size() and not transport.is_closing():  # noqa: ASYNC110
                await asyncio.sleep(0)
            transport.abort()
        raise _BodyOver


ENGINE: web.AppKey[ScriptedEngine] = web.AppKey("engine", ScriptedEngine)
_PLANNED: web.RequestKey[_Planned] = web.RequestKey("planned", _Planned)

_ROUTES: Mapping[tuple[str, str], str] = {
    ("POST", "/execute"): "execute",
    ("GET", "/execute/replay"): "replay",
    ("POST", "/hitl/respond"): "respond",
    ("GET", "/hitl/pending"): "pending",
    ("GET", "/health"): "health",
}
_STREAMS = frozenset({"execute", "replay"})

# Page, section 4.3, and section 4.1 for a server whose framework answers by itself.
_STATUS_CODES: Mapping[int, str] = {
    401: "INVALID_KEY",
    403: "PERMISSION_DENIED",
    404: "TASK_NOT_FOUND",
    409: "HITL_REQUIRED",
    422: "CONTEXT_OVERFLOW",
    429: "LLM_RATE_LIMITED",
    502: "LLM_PROVIDER_ERROR",
    503: "MIGRATION_REQUIRED",
}


def _error(status: int, code: str, message: str, details: object = None) -> web.Response:
    body = BODIES["refusal"].filled(error=code, message=message, details=details or {})
    return web.Response(
        status=status, text=dump(body), content_type="application/json", charset="utf-8"
    )


def _json(body: object, content_type: str = "application/json") -> web.Response:
    return web.Response(text=dump(body), content_type=content_type, charset="utf-8")


def _refused_on_purpose(fault: Status) -> web.Response:
    if fault.body is not None:
        return web.Response(status=fault.status, body=fault.body)
    if fault.status == 500:
        # Section 4.1: a reader must accept a body that is not JSON.
        return web.Response(status=500, text="Internal Server Error")
    code = _STATUS_CODES.get(fault.status)
    if code is None:
        # Section 4.3: 504 has no documented code; section 4.1: the framework's own body.
        return web.Response(
            status=fault.status,
            text=dump({"detail": "refused on purpose"}),
            content_type="application/json",
        )
    details = {} if fault.retry_after is None else {"retry_after": fault.retry_after}
    return _error(fault.status, code, "Refused on purpose.", details)


@web.middleware
async def _gate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The key first, then the fault of this request, then the route (page, section 3)."""
    engine = request.app[ENGINE]
    route = _ROUTES.get((request.method, request.path), "other")
    body = await request.read()
    engine.received.append(Received(route, request.headers, request.query, body))
    try:
        if route != "health" and not engine.admits(request.headers.get("X-Engine-Key")):
            refusal = BODIES["unauthorized"].payload()
            raise Refusal(401, str(refusal["error"]), str(refusal["message"]))
        fault = engine.faults.take(route, stream=route in _STREAMS)
        match fault:
            case Status():
                return _refused_on_purpose(fault)
            case Redirect(location, status):
                return web.Response(status=status, headers={"Location": location})
            case Silence(done=False):
                await _never(engine, request)
        request[_PLANNED] = _Planned(fault)
        response: web.StreamResponse = await handler(request)
    except Refusal as refusal:
        engine.refusals.append(refusal)
        return _error(refusal.status, refusal.code, refusal.message)
    else:
        return response


async def _never(engine: ScriptedEngine, request: web.Request) -> NoReturn:
    """Answer nothing while the backend lives."""
    await engine.stopping.wait()
    if request.transport is not None:
        request.transport.abort()
    raise web.HTTPServiceUnavailable


async def _late(engine: ScriptedEngine, request: web.Request) -> str | None:
    """Hold the answer's head back as the fault says; returns a content type to lie about."""
    match request[_PLANNED].fault:
        case Silence():
            await _never(engine, request)
        case SlowHead(seconds):
            await engine.clock.wait(engine.stopping, seconds)
        case WrongContentType(content_type):
            return content_type
    return None


async def _stream(
    request: web.Request, task: Conversation | None, place: int, turn: Turn | None
) -> web.StreamResponse:
    """Send the buffer of a conversation from a place on, and follow a turn to its end."""
    engine = request.app[ENGINE]
    content_type = await _late(engine, request)
    response = web.StreamResponse(
        headers={
            "Content-Type": content_type or "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )
    await response.prepare(request)
    body = _Body(engine, request, response, task, request[_PLANNED].fault)
    try:
        await body.frames(())
        while task is not None and not engine.stopping.is_set():
            changed = task.changed
            end = None if turn is None else turn.end
            entries = task.buffer[place:end]
            place += len(entries)
            if entries:
                await body.frames([entry.data for entry in entries])
            elif turn is None or end is not None:
                break
            elif not await engine.clock.wait(changed, engine.heartbeat_s):
                await body.heartbeat(_heartbeat(engine))
    except (_BodyOver, ConnectionResetError):
        # The body ends here by a fault, or the client has left; the turn goes on.
        return response
    return response


def _heartbeat(engine: ScriptedEngine) -> bytes:
    if engine.variant.heartbeat_timestamp:
        template = FRAMES["heartbeat"]
        return plain(template.event, template.filled(timestamp=iso(engine.stamp())))
    template = FRAMES["heartbeat_empty"]
    return plain(template.event, template.payload())


async def _execute(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    execute = parse_execute(
        await request.read(), request.content_type, strict=engine.variant.strict
    )
    turn = engine.begin(execute)
    return await _stream(request, turn.task, turn.start, turn)


async def _replay(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    replay = parse_replay(request.query, strict=engine.variant.strict)
    task = engine.buffered(replay.task_id)
    if task is None:
        return await _stream(request, None, 0, None)
    turn = task.running if engine.variant.replay_tails else None
    return await _stream(request, task, engine.first_after(task, replay.after), turn)


async def _respond(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    answer = parse_answer(await request.read(), request.content_type, strict=engine.variant.strict)
    pending = engine.answer(answer)
    body = BODIES["resumed"].filled(request_id=pending.record["request_id"])
    if isinstance(request[_PLANNED].fault, Silence | SlowHead):
        pending.resume(answer)
    content_type = await _late(engine, request)
    response = _json(body, content_type or "application/json")
    try:
        # Page, section 17: `hitl_resolved` comes on the stream after the 200.
        await response.prepare(request)
        await response.write_eof()
    finally:
        pending.resume(answer)
    return response


async def _pending(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    content_type = await _late(engine, request)
    return _json({"pending": engine.pending()}, content_type or "application/json")


async def _health(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    content_type = await _late(engine, request)
    body = BODIES["health"].filled(uptime_seconds=round(engine.uptime_s(), 1))
    return _json(body, content_type or "application/json")


async def _absent(request: web.Request) -> web.StreamResponse:
    return _error(404, "NOT_FOUND", f"There is no {request.method} {request.path} here.")


def create_engine_app(
    *,
    key: str | None = None,
    variant: Variant = DEFAULT,
    faults: Faults | None = None,
    clock: Clock | None = None,
    pace: float = 1.0,
    heartbeat_s: float = HEARTBEAT_S,
) -> web.Application:
    """Build a scripted Engine; `app[ENGINE]` is its state.

    Args:
        key: the only `X-Engine-Key` that passes; any or none passes without one.
        variant: the forms that the page leaves open.
        faults: which requests break, and how.
        clock: the time in payloads, pauses and heartbeats; real time by default.
        pace: the factor on the pauses inside scripts; 0 plays them without any.
        heartbeat_s: seconds of the clock without a frame until a heartbeat comes.
    """
    app = web.Application(middlewares=[_gate], client_max_size=MAX_BODY)
    app[ENGINE] = ScriptedEngine(
        key=key,
        variant=variant,
        faults=faults or Faults(),
        clock=clock or Clock(),
        pace=pace,
        heartbeat_s=heartbeat_s,
    )
    handlers = {
        "execute": _execute,
        "replay": _replay,
        "respond": _respond,
        "pending": _pending,
        "health": _health,
    }
    for (method, path), route in _ROUTES.items():
        app.router.add_route(method, path, handlers[route])
    app.router.add_route("*", "/{path:.*}", _absent)

    async def stop(app: web.Application) -> None:
        await app[ENGINE].stop()

    app.on_shutdown.append(stop)
    return app
