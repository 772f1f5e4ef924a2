"""A Managed Agents service that plays scripts: the backend of the demo and of the tests.

It serves the session and thread routes of the Managed Agents page (section 2), and the lists of
agents and environments that a client needs to get there. By default it behaves as others recorded
the real service ("live page" in `managed_agents_turns`); a `ManagedAgentsVariant` chooses what the
documentation says otherwise, or what another server does. What it sends are templates cut from
recordings or quoted from the page (`managed_agents_frames`), what it accepts is only what the page
documents (`managed_agents_requests`), and it shares no code with the Managed Agents codecs, so a
codec that is wrong cannot agree with itself. A `Faults` plan breaks requests on purpose.

Any agent and any environment open sessions: the story is the same for all.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.base.clock import Clock
from proxy.scripted.backend import Refusal
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
from proxy.scripted.managed_agents_frames import BODIES
from proxy.scripted.managed_agents_requests import (
    ScriptedListQuery,
    bad,
    check_headers,
    check_query,
    parse_create,
    parse_events,
    parse_page,
    parse_previews,
    parse_update,
)
from proxy.scripted.managed_agents_turns import (
    DEFAULT,
    Event,
    ManagedAgentsVariant,
    ScriptedManagedAgents,
    ScriptedSession,
    ScriptedThread,
    StreamedEvent,
    moment,
)

# Live page, section 1.
CONNECTED = b": connected\n\n"
KEEPALIVE = b":keepalive\n\n"

MANAGED_AGENTS: web.AppKey[ScriptedManagedAgents] = web.AppKey(
    "managed_agents", ScriptedManagedAgents
)

# Page, section 12.
_ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def _error(service: ScriptedManagedAgents, status: int, code: str, message: str) -> web.Response:
    """Answer an error in the envelope of section 12."""
    body = BODIES["error"].filled(
        error={"type": code, "message": message}, request_id=service.new_id("req")
    )
    return json_response(body, status=status, headers={"request-id": str(body["request_id"])})


def _refused_on_purpose(service: ScriptedManagedAgents, fault: Status) -> web.Response:
    code = _ERROR_TYPES.get(fault.status, "api_error")
    response = _error(service, fault.status, code, "Refused on purpose.")
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(fault.retry_after)
    return response


def _key(request: web.Request) -> str | None:
    """Return the credential, in either header (section 1)."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return request.headers.get("x-api-key") or (token if scheme == "Bearer" else None)


def _check_head(service: ScriptedManagedAgents, request: web.Request, name: str) -> None:
    if not service.admits(_key(request)):
        raise Refusal(401, "authentication_error", "The key is missing or wrong.")
    if service.variant.strict and name != "other":
        check_headers(request.headers, threads="thread" in name)


def _named(handler: Handler, name: str) -> Handler:
    """Put the gate of a route around its handler: the head, the fault, the refusal."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        service = request.app[MANAGED_AGENTS]
        await note(service, request, name)
        try:
            _check_head(service, request, name)
            answer = await broken(
                service,
                request,
                name,
                stream=name in ("stream", "thread_stream"),
                talk=request.match_info.get("session", ""),
                refused=lambda fault: _refused_on_purpose(service, fault),
            )
            if answer is not None:
                return answer
            response = await handler(request)
            # What was asked for has happened; a stream has been late by itself.
            if isinstance(response, web.Response):
                response.headers["request-id"] = service.new_id("req")
                content_type = await late(service, request)
                if content_type is not None:
                    response.headers["Content-Type"] = content_type
        except Refusal as refusal:
            service.refusals.append(refusal)
            known = refusal.code.endswith("_error")
            code = refusal.code if known else _ERROR_TYPES[refusal.status]
            return _error(service, refusal.status, code, refusal.message)
        else:
            return response

    return guarded


# Pages (sections 1.1 and 1.2).


def _asked(
    request: web.Request, *filters: str, order: str = "", times: bool = False
) -> ScriptedListQuery:
    strict = request.app[MANAGED_AGENTS].variant.strict
    query = [*request.query.items()]
    return parse_page(query, filters, order=order, times=times, strict=strict)


def _page(request: web.Request, found: Sequence[object], asked: ScriptedListQuery) -> web.Response:
    """Answer a page. Its cursor is a place in the order that it was made with."""
    most = request.app[MANAGED_AGENTS].variant.page_limit
    limit = asked.limit if most is None else min(asked.limit, most)
    order, _, place = asked.page.rpartition(".") if asked.page else (asked.order, "", "0")
    if order != asked.order or not (place.isascii() and place.isdecimal()):
        raise bad("page: is not a cursor of this order")
    start = int(place)
    following = f"{order}.{start + limit}" if len(found) > start + limit else None
    template = BODIES["page"]
    members: Event = {"data": list(found[start : start + limit]), "next_page": following}
    if request.path.endswith("/sessions"):
        before = f"{order}.{max(start - limit, 0)}" if start else None
        return json_response(template.filled(**members, prev_page=before))
    return json_response(template.without("prev_page").filled(**members))


async def _agents(request: web.Request) -> web.StreamResponse:
    agent = BODIES["session"].inner("agent")
    return _page(request, [agent], _asked(request))


async def _environments(request: web.Request) -> web.StreamResponse:
    return _page(request, [BODIES["environment"].filled()], _asked(request))


# Sessions (section 3).


def _talk(request: web.Request) -> ScriptedSession:
    return request.app[MANAGED_AGENTS].talk(request.match_info["session"])


def _thread(request: web.Request) -> ScriptedThread:
    service, talk = request.app[MANAGED_AGENTS], _talk(request)
    return service.thread(talk, request.match_info["thread"])


def _plain(request: web.Request) -> None:
    strict = request.app[MANAGED_AGENTS].variant.strict
    check_query([*request.query.items()], (), strict=strict)


async def _create(request: web.Request) -> web.StreamResponse:
    service = request.app[MANAGED_AGENTS]
    _plain(request)
    members = parse_create(
        await request.read(),
        request.content_type,
        initial_events=service.variant.initial_events,
        strict=service.variant.strict,
    )
    talk = service.create(members)
    return json_response(service.describe(talk), status=service.variant.create_status)


async def _sessions(request: web.Request) -> web.StreamResponse:
    service = request.app[MANAGED_AGENTS]
    filters = ("agent_id", "agent_version", "deployment_id", "memory_store_id")
    asked = _asked(request, *filters, "include_archived", "statuses", order="desc", times=True)
    found = [service.describe(talk) for talk in service.talks.values()]
    if asked.values["include_archived"] != ("true",):
        found = [record for record in found if record["archived_at"] is None]
    kept = [record for record in found if _matches(record, asked)]
    return _page(request, kept if asked.order == "asc" else kept[::-1], asked)


def _matches(record: Event, asked: ScriptedListQuery) -> bool:
    stores = {str(one.get("memory_store_id")) for one in record["resources"]}
    has: Mapping[str, set[str]] = {
        "agent_id": {record["agent"]["id"]},
        "agent_version": {str(record["agent"]["version"])},
        "deployment_id": {str(record["deployment_id"])},
        "memory_store_id": stores,
        "statuses": {record["status"]},
    }
    passes = all(not asked.values[name] or has[name] & {*asked.values[name]} for name in has)
    return passes and asked.within(dt.datetime.fromisoformat(record["created_at"]))


async def _show(request: web.Request) -> web.StreamResponse:
    _plain(request)
    return json_response(request.app[MANAGED_AGENTS].describe(_talk(request)))


async def _update(request: web.Request) -> web.StreamResponse:
    service, talk = request.app[MANAGED_AGENTS], _talk(request)
    _plain(request)
    strict = service.variant.strict
    service.update(talk, parse_update(await request.read(), request.content_type, strict=strict))
    return json_response(service.describe(talk))


async def _delete(request: web.Request) -> web.StreamResponse:
    service, talk = request.app[MANAGED_AGENTS], _talk(request)
    _plain(request)
    service.delete(talk)
    return json_response(BODIES["deleted"].filled(id=talk.id))


async def _archive(request: web.Request) -> web.StreamResponse:
    service, talk = request.app[MANAGED_AGENTS], _talk(request)
    _plain(request)
    service.archive(talk)
    return json_response(service.describe(talk))


# Events (sections 4 to 6) and threads (section 10).


async def _send(request: web.Request) -> web.StreamResponse:
    service, talk = request.app[MANAGED_AGENTS], _talk(request)
    _plain(request)
    strict = service.variant.strict
    batch = parse_events(await request.read(), request.content_type, strict=strict)
    return json_response({"data": service.take(talk, batch)})


async def _list(request: web.Request) -> web.StreamResponse:
    service, talk = request.app[MANAGED_AGENTS], _talk(request)
    asked = _asked(request, "types", order="asc", times=True)
    types = asked.values["types"]
    found = [
        stored.event
        for stored in service.listed(talk.primary)
        if (not types or stored.event["type"] in types)
        and asked.within(None if stored.at is None else moment(stored.at))
    ]
    return _page(request, found if asked.order == "asc" else found[::-1], asked)


async def _stream(request: web.Request) -> web.StreamResponse:
    return await _follow(request, _talk(request), _talk(request).primary)


async def _threads(request: web.Request) -> web.StreamResponse:
    service, talk = request.app[MANAGED_AGENTS], _talk(request)
    asked = _asked(request, "statuses")
    found = [service.describe_thread(talk, thread) for thread in talk.threads.values()]
    statuses = asked.values["statuses"]
    kept = [record for record in found if not statuses or record["status"] in statuses]
    return _page(request, kept, asked)


async def _show_thread(request: web.Request) -> web.StreamResponse:
    service, talk = request.app[MANAGED_AGENTS], _talk(request)
    _plain(request)
    return json_response(service.describe_thread(talk, _thread(request)))


async def _archive_thread(request: web.Request) -> web.StreamResponse:
    service, talk, thread = request.app[MANAGED_AGENTS], _talk(request), _thread(request)
    _plain(request)
    service.archive_thread(talk, thread)
    return json_response(service.describe_thread(talk, thread))


async def _thread_list(request: web.Request) -> web.StreamResponse:
    found = [stored.event for stored in request.app[MANAGED_AGENTS].listed(_thread(request))]
    return _page(request, found, _asked(request))


async def _thread_stream(request: web.Request) -> web.StreamResponse:
    return await _follow(request, _talk(request), _thread(request))


def _shown(
    items: Sequence[StreamedEvent], previews: frozenset[str], started: set[str]
) -> list[StreamedEvent]:
    """Return what a reader gets: previews of the types that it asked for, from their start on."""
    shown = []
    for item in items:
        if item.preview:
            if item.preview not in previews:
                continue
            if item.data["type"] == "event_start":
                started.add(item.previewed)
            elif item.previewed not in started:
                continue
        shown.append(item)
    return shown


async def _follow(
    request: web.Request, talk: ScriptedSession, thread: ScriptedThread
) -> web.StreamResponse:
    """Send what a thread says from now on; the stream stays open across turns (section 6)."""
    service = request.app[MANAGED_AGENTS]
    variant = service.variant
    previews: frozenset[str] = frozenset()
    if variant.previews:
        previews = parse_previews([*request.query.items()], strict=variant.strict)
    content_type = await late(service, request)
    place = len(thread.streamed)
    replays = variant.fresh_stream == "history"
    before = [item for item in thread.streamed if replays and not item.preview]
    response = web.StreamResponse(
        headers={
            "Content-Type": content_type or "text/event-stream",
            "Cache-Control": "no-cache",
            "request-id": service.new_id("req"),
        }
    )
    await response.prepare(request)
    body = StreamBody(service, request, response, lambda: service.lose(talk))
    # The stream ends by a fault, or the client leaves; the turn goes on.
    with suppress(BodyOver, ConnectionResetError):
        await body.write(CONNECTED)
        started: set[str] = set()
        await body.frames([service.frame(item) for item in before])
        while not service.stopping.is_set():
            changed = talk.changed
            found = thread.streamed[place:]
            place += len(found)
            await body.frames([service.frame(item) for item in _shown(found, previews, started)])
            if talk.id not in service.talks and place == len(thread.streamed):
                break
            if not found and not await service.clock.wait(changed, service.heartbeat_s):
                await body.write(KEEPALIVE)
    return response


async def _absent(request: web.Request) -> web.StreamResponse:
    raise Refusal(404, "not_found_error", f"There is no {request.method} {request.path} here.")


def create_managed_agents_app(
    *,
    key: str | None = None,
    variant: ManagedAgentsVariant = DEFAULT,
    faults: Faults | None = None,
    clock: Clock | None = None,
    pace: float = 1.0,
    # Live page, section 1: about every 25 s; sooner, so that a person sees one.
    heartbeat_s: float = 10.0,
) -> web.Application:
    """Build a scripted Managed Agents service; `app[MANAGED_AGENTS]` is its state.

    Args:
        key: the only key that passes, in `x-api-key` or as a bearer; anything passes without one.
        variant: what differs from the recorded service.
        faults: which requests break, and how; routes are `agents`, `environments`, `create`,
            `sessions`, `show`, `update`, `delete`, `archive`, `send`, `list`, `stream`, `threads`,
            `thread`, `archive_thread`, `thread_list` and `thread_stream`.
        clock: the time in events, pauses and heartbeats; real time by default.
        pace: the factor on the pauses inside scripts; 0 plays them without any.
        heartbeat_s: seconds of the clock without a frame until a comment comes.
    """
    service = ScriptedManagedAgents(
        key=key,
        variant=variant,
        faults=faults or Faults(),
        clock=clock or Clock(),
        pace=pace,
        heartbeat_s=heartbeat_s,
    )
    app = application(MANAGED_AGENTS, service)
    session = "/v1/sessions/{session}"
    thread = f"{session}/threads/{{thread}}"
    routes: tuple[tuple[str, str, str, Handler], ...] = (
        ("GET", "/v1/agents", "agents", _agents),
        ("GET", "/v1/environments", "environments", _environments),
        ("POST", "/v1/sessions", "create", _create),
        ("GET", "/v1/sessions", "sessions", _sessions),
        ("GET", session, "show", _show),
        ("POST", session, "update", _update),
        ("DELETE", session, "delete", _delete),
        ("POST", f"{session}/archive", "archive", _archive),
        ("POST", f"{session}/events", "send", _send),
        ("GET", f"{session}/events", "list", _list),
        ("GET", f"{session}/events/stream", "stream", _stream),
        ("GET", f"{session}/threads", "threads", _threads),
        ("GET", thread, "thread", _show_thread),
        ("POST", f"{thread}/archive", "archive_thread", _archive_thread),
        ("GET", f"{thread}/events", "thread_list", _thread_list),
        ("GET", f"{thread}/stream", "thread_stream", _thread_stream),
        ("*", "/{path:.*}", "other", _absent),
    )
    for method, path, name, handler in routes:
        app.router.add_route(method, path, _named(handler, name))
    return app
