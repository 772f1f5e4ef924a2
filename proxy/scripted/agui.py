"""An AG-UI agent that plays scripts: the backend of the demo and of the tests.

It answers as an agent of Pydantic AI 2.68 does that keeps no history: one route, where each request
brings the whole conversation and gets one run. What it sends are templates cut from recordings
(`agui_frames`), what it accepts is what Pydantic reads (`agui_requests`), and it shares no code
with the AG-UI codecs, so a codec that is wrong cannot agree with itself. A `Faults` plan breaks
requests on purpose.

There is no heartbeat, and nothing can be asked for again: who leaves the body ends the run.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.base.clock import Clock
from proxy.scripted.agui_requests import AguiRequest, parse_run
from proxy.scripted.agui_turns import AguiStage, ScriptedAgui
from proxy.scripted.backend import Refusal
from proxy.scripted.faults import Faults, Silence, SlowHead, Status
from proxy.scripted.http_app import (
    BodyOver,
    StreamBody,
    application,
    broken,
    fault_of,
    late,
    note,
)

AGUI: web.AppKey[ScriptedAgui] = web.AppKey("agui", ScriptedAgui)

_TYPE = "application/json"


def _refused(refusal: Refusal) -> web.Response:
    """Answer what is refused: a list of errors in JSON, or a line of text."""
    listed = refusal.status == 422
    content_type = _TYPE if listed else "text/plain"
    response = web.Response(status=refusal.status, text=refusal.message, content_type=content_type)
    if refusal.status == 405:
        response.headers["Allow"] = "POST"
    return response


def _refused_on_purpose(fault: Status) -> web.Response:
    text = "Internal Server Error" if fault.status == 500 else "Refused on purpose."
    response = web.Response(status=fault.status, text="[]" if fault.status == 422 else text)
    if fault.status == 422:
        response.content_type = _TYPE
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(fault.retry_after)
    return response


async def _thread_of(request: web.Request) -> str:
    """Return the thread that a request names, which may still turn out to be invalid."""
    with suppress(ValueError):
        match json.loads(await request.read()):
            case {"threadId": str(thread)}:
                return thread
    return ""


def _named(handler: Handler, name: str) -> Handler:
    """Put the gate of a route around its handler: the key, the fault, the refusal."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        agent = request.app[AGUI]
        await note(agent, request, name)
        try:
            if not agent.admits(request.headers.get("Authorization")):
                raise Refusal(401, "unauthorized", "Unauthorized")
            answer = await broken(
                agent,
                request,
                name,
                stream=name == "run",
                talk=await _thread_of(request),
                refused=_refused_on_purpose,
            )
            return answer or await handler(request)
        except Refusal as refusal:
            agent.refusals.append(refusal)
            return _refused(refusal)

    return guarded


async def _run(request: web.Request) -> web.StreamResponse:
    """Play one run into the body of the answer."""
    agent = request.app[AGUI]
    if request.content_type != _TYPE:
        text = f"Expected `Content-Type: {_TYPE}`, got {request.content_type}"
        raise Refusal(415, "", text)
    asked = parse_run(await request.read())
    early: list[bytes] = []
    if isinstance(fault_of(request), Silence | SlowHead):

        async def keep(frames: Sequence[bytes]) -> None:
            early.extend(frames)

        await _play(agent, asked, keep)
    content_type = await late(agent, request)
    response = web.StreamResponse(
        headers={"Content-Type": content_type or "text/event-stream; charset=utf-8"}
    )
    await response.prepare(request)
    # Of a turn nothing is kept that could be lost.
    body = StreamBody(agent, request, response, lambda: None)

    async def write(frames: Sequence[bytes]) -> None:
        if agent.stopping.is_set():
            raise BodyOver
        await body.frames(frames)

    with suppress(BodyOver, ConnectionResetError):
        await body.frames(early)
        if not early:
            await _play(agent, asked, write)
    return response


async def _play(
    agent: ScriptedAgui, asked: AguiRequest, write: Callable[[Sequence[bytes]], Awaitable[None]]
) -> None:
    """Play a run, and note it where its client leaves."""
    talk = agent.begin(asked)
    try:
        await AguiStage(agent, talk, asked, write).play()
    except (asyncio.CancelledError, ConnectionResetError):
        if not agent.stopping.is_set():
            talk.cancelled.append(asked.run_id)
        raise


async def _wrong_method(request: web.Request) -> web.StreamResponse:
    raise Refusal(405, "", "Method Not Allowed")


async def _absent(request: web.Request) -> web.StreamResponse:
    raise Refusal(404, "", "Not Found")


def create_agui_app(
    key: str | None = None,
    pace: float = 1.0,
    faults: Faults | None = None,
    clock: Clock | None = None,
) -> web.Application:
    """Build a scripted AG-UI agent; `app[AGUI]` is its state.

    Args:
        key: the only bearer key that passes; any or none passes without one.
        pace: the factor on the pauses inside scripts; 0 plays them without any.
        faults: which requests break, and how; the one route is `run`.
        clock: the time in events and pauses; real time by default.
    """
    agent = ScriptedAgui(key=key, faults=faults or Faults(), clock=clock or Clock(), pace=pace)
    app = application(AGUI, agent)
    # Where the application is mounted below a path, its root is that path, without a slash too.
    for path in ("/", ""):
        app.router.add_route("POST", path, _named(_run, "run"))
        app.router.add_route("*", path, _named(_wrong_method, "other"))
    app.router.add_route("*", "/{path:.*}", _named(_absent, "other"))
    return app
