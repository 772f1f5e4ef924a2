"""A September Engine that plays scripts: the backend of the demo and of the tests.

It serves the conversation routes of the Engine page (sections 5 to 11) and nothing else. What it
sends are templates of recorded frames (`engine_frames`), what it accepts is only what the page
documents (`engine_requests`), and it shares no code with the Engine codecs, so a codec that is
wrong cannot agree with itself. An `EngineVariant` chooses between the forms that the page leaves
open; a `Faults` plan breaks requests on purpose.

The bodies of `/execute` and `/execute/replay` are readers of a conversation's buffer
(`engine_turns`): a reader that leaves changes nothing for the turn.
"""

import json
from collections.abc import Mapping
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.base.clock import Clock
from proxy.scripted.backend import Refusal, iso
from proxy.scripted.engine_frames import BODIES, FRAMES
from proxy.scripted.engine_requests import parse_answer, parse_execute, parse_replay
from proxy.scripted.engine_turns import (
    DEFAULT,
    EngineConversation,
    EngineTurn,
    EngineVariant,
    ScriptedEngine,
    plain,
)
from proxy.scripted.faults import Faults, Silence, SlowHead, Status
from proxy.scripted.http_app import (
    BodyOver,
    StreamBody,
    application,
    broken,
    fault_of,
    json_response,
    late,
    note,
)

ENGINE: web.AppKey[ScriptedEngine] = web.AppKey("engine", ScriptedEngine)

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
    return json_response(body, status=status)


def _refused_on_purpose(fault: Status) -> web.Response:
    if fault.status == 500:
        # Section 4.1: a reader must accept a body that is not JSON.
        return web.Response(status=500, text="Internal Server Error")
    code = _STATUS_CODES.get(fault.status)
    if code is None:
        # Section 4.3: 504 has no documented code; section 4.1: the framework's own body.
        return json_response({"detail": "refused on purpose"}, status=fault.status)
    details = {} if fault.retry_after is None else {"retry_after": fault.retry_after}
    return _error(fault.status, code, "Refused on purpose.", details)


async def _task_of(request: web.Request, route: str) -> str:
    """The task that a request names; the request may still turn out to be invalid."""
    if route != "execute":
        return request.query.get("task_id", "")
    with suppress(ValueError):
        match json.loads(await request.read()):
            case {"task_id": str(task)}:
                return task
    return ""


@web.middleware
async def _gate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The key first, then the fault of this request, then the route (page, section 3)."""
    engine = request.app[ENGINE]
    route = _ROUTES.get((request.method, request.path), "other")
    await note(engine, request, route)
    try:
        if route != "health" and not engine.admits(request.headers.get("X-Engine-Key")):
            refusal = BODIES["unauthorized"].payload()
            raise Refusal(401, str(refusal["error"]), str(refusal["message"]))
        answer = await broken(
            engine,
            request,
            route,
            stream=route in _STREAMS,
            talk=await _task_of(request, route),
            refused=_refused_on_purpose,
        )
        if answer is not None:
            return answer
        response: web.StreamResponse = await handler(request)
    except Refusal as refusal:
        engine.refusals.append(refusal)
        return _error(refusal.status, refusal.code, refusal.message)
    else:
        return response


async def _stream(
    request: web.Request, task: EngineConversation | None, place: int, turn: EngineTurn | None
) -> web.StreamResponse:
    """Send the buffer of a conversation from a place on, and follow a turn to its end."""
    engine = request.app[ENGINE]
    content_type = await late(engine, request)
    response = web.StreamResponse(
        headers={
            "Content-Type": content_type or "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )
    await response.prepare(request)

    def lose() -> None:
        if task is not None:
            engine.lose(task)

    body = StreamBody(engine, request, response, lose)
    # The body ends by a fault, or the client leaves; the turn goes on.
    with suppress(BodyOver, ConnectionResetError):
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
                await body.write(_heartbeat(engine))
    return response


def _heartbeat(engine: ScriptedEngine) -> bytes:
    if engine.variant.heartbeat_timestamp:
        template = FRAMES["heartbeat"]
        return plain(template.type, template.filled(timestamp=iso(engine.stamp())))
    template = FRAMES["heartbeat_empty"]
    return plain(template.type, template.payload())


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
    if isinstance(fault_of(request), Silence | SlowHead):
        pending.resume(answer)
    content_type = await late(engine, request)
    response = json_response(body, content_type=content_type or "application/json")
    try:
        # Page, section 17: `hitl_resolved` comes on the stream after the 200.
        await response.prepare(request)
        await response.write_eof()
    finally:
        pending.resume(answer)
    return response


async def _pending(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    content_type = await late(engine, request)
    return json_response(
        {"pending": engine.pending()}, content_type=content_type or "application/json"
    )


async def _health(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    content_type = await late(engine, request)
    body = BODIES["health"].filled(uptime_seconds=round(engine.uptime_s(), 1))
    return json_response(body, content_type=content_type or "application/json")


async def _absent(request: web.Request) -> web.StreamResponse:
    return _error(404, "NOT_FOUND", f"There is no {request.method} {request.path} here.")


def create_engine_app(
    *,
    key: str | None = None,
    variant: EngineVariant = DEFAULT,
    faults: Faults | None = None,
    clock: Clock | None = None,
    pace: float = 1.0,
    # Engine page, section 17: every 15 s or so; a little sooner, so that a person sees one.
    heartbeat_s: float = 10.0,
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
    engine = ScriptedEngine(
        key=key,
        variant=variant,
        faults=faults or Faults(),
        clock=clock or Clock(),
        pace=pace,
        heartbeat_s=heartbeat_s,
    )
    app = application(ENGINE, engine, [_gate])
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
    return app
