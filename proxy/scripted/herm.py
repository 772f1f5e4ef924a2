"""A Herm gateway that plays scripts: the backend of the demo and of the tests.

It serves the session routes of the Herm page (sections 2 to 6) and the agents that a client needs
to get there. What it sends are templates quoted from the page (`herm_frames`), what it accepts is
only what the page documents (`herm_requests`), and it shares no code with the Herm codecs, so a
codec that is wrong cannot agree with itself. A `HermVariant` chooses between the forms that the
page leaves open; a `Faults` plan breaks requests on purpose.

Any agent id opens sessions: the story is the same for all.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.base.clock import Clock
from proxy.scripted.backend import Refusal
from proxy.scripted.faults import Faults, Status
from proxy.scripted.herm_frames import BODIES
from proxy.scripted.herm_requests import parse_batch, parse_changes, parse_page
from proxy.scripted.herm_turns import DEFAULT, HermVariant, ScriptedHerm, ScriptedHermSession
from proxy.scripted.http_app import (
    BodyOver,
    StreamBody,
    application,
    broken,
    json_response,
    late,
    note,
)

HEARTBEAT = b": heartbeat\n\n"

HERM: web.AppKey[ScriptedHerm] = web.AppKey("herm", ScriptedHerm)


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
    return json_response(body, status=status)


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
    code = _STATUS_CODES.get(fault.status, "server_error")
    response = _error(herm, fault.status, code, "Refused on purpose.")
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(fault.retry_after)
    return response


def _named(handler: Handler, name: str) -> Handler:
    """Put the gate of a route around its handler: the key, the fault, the refusal (section 6)."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        herm = request.app[HERM]
        await note(herm, request, name)
        try:
            if not herm.admits(request.headers.get("Authorization")):
                raise Refusal(401, "unauthorized", "The key is missing or wrong.")
            answer = await broken(
                herm,
                request,
                name,
                stream=name == "stream",
                talk=request.match_info.get("session", ""),
                refused=lambda fault: _refused_on_purpose(herm, fault),
            )
            if answer is not None:
                return answer
            response = await handler(request)
            # What was asked for has happened; a stream has been late by itself.
            if isinstance(response, web.Response):
                content_type = await late(herm, request)
                if content_type is not None:
                    response.headers["Content-Type"] = content_type
        except Refusal as refusal:
            herm.refusals.append(refusal)
            return _error(herm, refusal.status, refusal.code, refusal.message)
        else:
            return response

    return guarded


# Agents and sessions (sections 2.1 to 2.3).


async def _agents(request: web.Request) -> web.StreamResponse:
    body = BODIES["page"].filled(data=[{"id": "agent_K4", **BODIES["agent"].filled()}])
    return json_response(body)


async def _create(request: web.Request) -> web.StreamResponse:
    herm = request.app[HERM]
    members = parse_changes(
        await request.read(),
        request.content_type,
        ("userId", "title", "metadata"),
        strict=herm.variant.strict,
    )
    talk = herm.create(request.match_info["agent"], members)
    return json_response(herm.describe(talk), status=herm.variant.create_status)


async def _sessions(request: web.Request) -> web.StreamResponse:
    herm = request.app[HERM]
    allowed = {"agentId", "userId", "status"}
    limit, cursor = parse_page(request.query, allowed, strict=herm.variant.strict)
    found = [herm.describe(talk) for talk in reversed(herm.talks.values())]
    for name in allowed & request.query.keys():
        found = [record for record in found if record.get(name) == request.query[name]]
    return _page(found, limit, cursor)


def _page(found: Sequence[object], limit: int, cursor: str) -> web.Response:
    start = int(cursor or 0)
    page, rest = found[start : start + limit], found[start + limit :]
    following = str(start + limit) if rest else None
    return json_response(BODIES["page"].filled(data=page, nextCursor=following))


def _talk(request: web.Request) -> ScriptedHermSession:
    return request.app[HERM].talk(request.match_info["session"])


async def _show(request: web.Request) -> web.StreamResponse:
    herm, talk = request.app[HERM], _talk(request)
    return json_response({**herm.describe(talk), "messages": herm.history(talk)})


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
    return json_response(herm.describe(talk))


async def _archive(request: web.Request) -> web.StreamResponse:
    herm, talk = request.app[HERM], _talk(request)
    talk.archived = True
    return json_response(herm.describe(talk))


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
            return json_response({"data": accepted}, status=variant.post_status)
        case "bare":
            return json_response(accepted, status=variant.post_status)
        case "empty":
            return web.Response(status=variant.post_status)


async def _list(request: web.Request) -> web.StreamResponse:
    herm, talk = request.app[HERM], _talk(request)
    limit, cursor = parse_page(request.query, {"order"}, strict=herm.variant.strict)
    listed = [entry.envelope for entry in talk.entries if entry.listed]
    if herm.variant.list_form == "array":
        return json_response(listed)
    if herm.variant.list_order == "asked" and request.query.get("order") == "desc":
        listed.reverse()
    return _page(listed, limit, cursor)


async def _stream(request: web.Request) -> web.StreamResponse:
    """Send what was missed, then follow; the stream stays open across turns (section 4.3)."""
    herm, talk = request.app[HERM], _talk(request)
    content_type = await late(herm, request)
    place = herm.first_after(talk, request.headers.get("Last-Event-ID"))
    response = web.StreamResponse(
        headers={"Content-Type": content_type or "text/event-stream", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    body = StreamBody(herm, request, response, lambda: herm.lose(talk))
    # The stream ends by a fault, or the client leaves; the turn goes on.
    with suppress(BodyOver, ConnectionResetError):
        await body.frames(())
        while not herm.stopping.is_set() and talk.id in herm.talks:
            changed = talk.changed
            entries = talk.entries[place:]
            place += len(entries)
            frames = [herm.frame(entry) for entry in entries if entry.streamed]
            if frames:
                await body.frames(frames)
            elif not entries and not await herm.clock.wait(changed, herm.heartbeat_s):
                await body.write(HEARTBEAT)
    return response


async def _absent(request: web.Request) -> web.StreamResponse:
    raise Refusal(404, "not_found", f"There is no {request.method} {request.path} here.")


def create_herm_app(
    *,
    key: str | None = None,
    variant: HermVariant = DEFAULT,
    faults: Faults | None = None,
    clock: Clock | None = None,
    pace: float = 1.0,
    # Page, section 4.3: a comment at least every 15 to 30 s; sooner, so that a person sees one.
    heartbeat_s: float = 10.0,
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
    herm = ScriptedHerm(
        key=key,
        variant=variant,
        faults=faults or Faults(),
        clock=clock or Clock(),
        pace=pace,
        heartbeat_s=heartbeat_s,
    )
    app = application(HERM, herm)
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
    return app
