"""The face: `/v1/sessions/…`, and the catalogue of what a route has besides."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.contract.faces import (
    Action,
    AnyOf,
    ChildThread,
    Example,
    Face,
    FrameRange,
    FreshSession,
    History,
    Incoming,
    ListSessions,
    LogReader,
    NamedSession,
    Neighbour,
    Opening,
    RequestBody,
    RequestFailure,
    Route,
    RouteContext,
    SessionsPage,
    Stream,
    Submit,
    SubmitResult,
    Target,
)
from adapters.contract.faces.answers import json_answer, sse_headers
from adapters.managed_agents import answers, interactions, requests, wire
from adapters.managed_agents.catalogue import CATALOGUE, check_agent
from adapters.managed_agents.interactions import Seen
from adapters.managed_agents.pages import EventPage, SessionPage
from adapters.managed_agents.requests import EventBatch, SessionChanges, SessionCreate
from adapters.managed_agents.server import ASK_TOOL, PREVIEWS
from adapters.model.base import Response
from adapters.model.commands import (
    AnyCommand,
    Archive,
    ArchiveThread,
    CreateSession,
    Delete,
    UpdateSession,
)
from adapters.model.events import MAIN
from adapters.serving.conversation import all_other_paths
from adapters.serving.members import refuse
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json

_STATUSES = frozenset({"idle", "running", "rescheduling", "terminated"})


def _refuse(failure: RequestFailure) -> Response:
    return answers.refusal(failure.error, failure.trace, failure.error_id)


def _session(incoming: Incoming, _: object = None) -> Target:
    return NamedSession(incoming.names["session"])


def _thread(incoming: Incoming, _: object = None) -> Target:
    """Return the thread of the path; the primary one is the session."""
    session, thread = incoming.names["session"], incoming.names["thread"]
    if (primary := wire.session_of(thread)) is not None:
        return AnyOf([ChildThread(thread, session), NamedSession(session, also=primary)])
    return ChildThread(thread, session)


def _check_thread(incoming: Incoming, seen: Seen) -> None:
    if seen.thread == MAIN and not seen.also:
        text = f"There is no thread `{incoming.names['thread'][:80]}` in this session."
        raise DragomanError(text, code=ErrorCode.NOT_FOUND)


# Sessions (section 3).


def _open(_: Incoming, wanted: SessionCreate, place: RouteContext) -> Opening:
    check_agent(wanted.agent, place)
    kept: dict[str, Any] = {"environment_id": wanted.environment}
    if wanted.version is not None:
        kept["version"] = wanted.version
    return Opening(
        commands=interactions.initial(wanted.initial),
        blobs=wanted.initial.blobs,
        title=wanted.title,
        metadata=wanted.metadata,
        options={wire.OPTIONS: kept},
        checked=CreateSession(title=wanted.title),
    )


def _object(seen: Seen) -> dict[str, Any]:
    assert seen.told is not None
    return answers.session_object(
        seen.id,
        answers.status_of(seen.state.status, working=seen.working),
        *seen.told,
        ask_tool=seen.settings.get(ASK_TOOL) or wire.ASK_TOOL,
        shown=seen.encoder.state,
    )


def _shown(_: Incoming, seen: Seen, __: object, ___: SubmitResult) -> Response:
    return json_answer(200, _object(seen))


def _retrieve(_: Incoming, seen: Seen) -> Response:
    return json_answer(200, _object(seen))


def _update(_: Incoming, __: Seen, wanted: SessionChanges) -> Sequence[AnyCommand]:
    if wanted.title is None and wanted.metadata is None:
        return ()
    metadata = None if wanted.metadata is None else dict(wanted.metadata)
    return [UpdateSession(title=wanted.title, metadata=metadata)]


def _rests(verb: str, _: Incoming, seen: Seen, __: object) -> None:
    """Check that a session does not run (section 3.3)."""
    if answers.status_of(seen.state.status, working=seen.working) == "running":
        refuse(f"Cannot {verb} session {seen.id} while it is running; interrupt it first")


def _archive(_: Incoming, seen: Seen, __: object) -> Sequence[AnyCommand]:
    over = seen.state.archived_at is not None or seen.state.ended is not None
    return () if over else [Archive()]


def _deleted(_: Incoming, seen: Seen, __: object, ___: SubmitResult) -> Response:
    return json_answer(200, {"id": seen.id, "type": "session_deleted"})


def _sessions(incoming: Incoming) -> SessionsPage:
    query = incoming.query
    wanted = requests.parse_list(
        query,
        default=wire.SESSIONS_DEFAULT,
        most=wire.SESSIONS_MOST,
        order="desc",
        array="statuses",
        known=_STATUSES,
    )
    archived = query.get("include_archived", "false").lower() == "true"
    return SessionPage(wanted, query, archived=archived)


# Threads (section 10).


def _thread_objects(seen: Seen) -> dict[str, dict[str, Any]]:
    assert seen.told is not None
    state, told = seen.encoder.state, seen.told
    main = seen.state.thread(MAIN).state
    over = seen.state.archived_at is not None or seen.state.ended is not None
    status = "terminated" if over else answers.status_of(str(main))
    return answers.thread_objects(seen.id, status, state, told.created_at, told.updated_at)


def _threads(incoming: Incoming, seen: Seen) -> Response:
    wanted = requests.parse_list(
        incoming.query,
        default=wire.LIMIT_DEFAULT,
        most=wire.LIMIT_DEFAULT,
        order="asc",
        array="statuses",
        known=_STATUSES,
    )
    rows = [*_thread_objects(seen).values()][wanted.position or 0 :]
    found: list[bytes] = []
    cursor = None
    for place, row in enumerate(rows, (wanted.position or 0) + 1):
        if not wanted.names or row["status"] in wanted.names:
            if len(found) == wanted.limit:
                cursor = requests.page_cursor(place - 1, 0, "asc")
                break
            found.append(format_json(row))
    return answers.data_answer(found, next_page=cursor)


def _one_thread(incoming: Incoming, seen: Seen) -> Response:
    name = incoming.names["thread"]
    primary = wire.primary_thread(seen.id)
    found = _thread_objects(seen).get(primary if wire.session_of(name) == seen.id else name)
    if found is None:
        text = f"There is no thread `{name[:80]}` in this session."
        raise DragomanError(text, code=ErrorCode.NOT_FOUND)
    return json_answer(200, found)


def _archive_thread(incoming: Incoming, seen: Seen, _: object) -> Sequence[AnyCommand]:
    name = incoming.names["thread"]
    child = seen.encoder.state.children.get(name)
    if child is None:
        if wire.session_of(name) == seen.id:
            refuse("The primary thread cannot be archived; archive the session")
        text = f"There is no thread `{name[:80]}` in this session."
        raise DragomanError(text, code=ErrorCode.NOT_FOUND)
    if child.status == "running":
        refuse(f"Cannot archive thread {name} while it is running; interrupt it first")
    return () if child.ended is not None else [ArchiveThread(thread_id=name)]


def _archived_thread(incoming: Incoming, seen: Seen, _: object, __: SubmitResult) -> Response:
    return _one_thread(incoming, seen)


# Events (sections 4 to 6).


def _needs(_: Incoming, batch: EventBatch) -> Action:
    return Action.ANSWER if interactions.needs_answer(batch.events) else Action.WRITE


def _sent(_: Incoming, seen: Seen, batch: EventBatch, done: SubmitResult) -> Response:
    """Return the stored events of a send; one that stops nothing is stored nowhere."""
    stored = seen.encoder.inputs(done.ids)
    bodies = []
    for event in batch.events:
        if stored and stored[0][0] == event.type:
            bodies.append(stored.pop(0)[1])
            if stored and stored[0][0] == "system.message":
                bodies.append(stored.pop(0)[1])
        elif event.type == "user.interrupt":
            bodies.append(seen.encoder.stops_nothing(seen.now))
    return answers.data_answer(bodies)


def _events(incoming: Incoming, seen: Seen) -> LogReader[Any]:
    if "thread" in incoming.names:
        _check_thread(incoming, seen)
    wanted = requests.parse_list(
        incoming.query,
        default=wire.LIMIT_DEFAULT,
        most=wire.LIMIT_DEFAULT,
        order="asc",
        array="types",
    )
    newest = seen.encoder.next_cursor - 1
    order = "desc" if wanted.descending else "asc"
    return EventPage(wanted, order, newest, seen.encoder.waiting)


def _stream(incoming: Incoming, seen: Seen, _: None) -> FrameRange:
    """Return what a stream reads: what comes from now on."""
    if "thread" in incoming.names:
        _check_thread(incoming, seen)
    return FrameRange(
        position=seen.encoder.next_cursor,
        heartbeat=wire.KEEP_ALIVE,
        heartbeat_seconds=wire.KEEP_ALIVE_SECONDS,
        headers=sse_headers(),
        first=wire.CONNECTED + seen.encoder.opening(),
    )


_FORMS = {
    "": frozenset[str](),
    "messages": frozenset({"agent.message"}),
    "thinking": frozenset({"agent.thinking"}),
    "previews": frozenset(wire.PREVIEWED),
}
"""A form -> the events that are previewed in it."""


def _form(incoming: Incoming) -> str:
    """Return in which form a stream is read: with the previews that it asks for."""
    wanted = requests.parse_previews(incoming.query)
    return next(name for name, previews in _FORMS.items() if wanted == previews)


# The routes.

_SESSION = "/v1/sessions/{session}"
_EVENTS = f"{_SESSION}/events"
_THREAD = f"{_SESSION}/threads/{{thread}}"

_MESSAGE = {"type": "user.message", "content": [{"type": "text", "text": "hello"}]}


def _stream_of(path: str, where: Any) -> Route:
    return Route(
        method="GET", path=path, needs=Action.READ, does=Stream(where, _stream), form=_form
    )


def _is_ours(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("environment_id"), str) and "agent" in body


FACE: Face = Face(
    framing="sse",
    refuse=_refuse,
    trace_header="request-id",
    clients=(
        Neighbour(
            title="a client of Claude Managed Agents",
            paths=("/v1/sessions/{session}/events/stream", "/v1/environments"),
            body=_is_ours,
        ),
    ),
    forms={name: {PREVIEWS: sorted(previews)} if name else {} for name, previews in _FORMS.items()},
    child_streams=True,
    routes=(
        Route(
            method="POST",
            path=_EVENTS,
            needs=Action.WRITE,
            example=Example({"events": [_MESSAGE]}),
            does=Submit(
                body=RequestBody(lambda body, _: requests.parse_events(body), takes="files"),
                needs=_needs,
                where=_session,
                commands=lambda _, seen, batch: interactions.to_commands(batch, seen),
                blobs=lambda batch: batch.blobs,
                answer=_sent,
                looks_before=True,
                looks_after=True,
            ),
        ),
        _stream_of(f"{_EVENTS}/stream", _session),
        Route(method="GET", path=_EVENTS, needs=Action.READ, does=History(_session, _events)),
        Route(
            method="GET",
            path=_SESSION,
            needs=Action.READ,
            does=History(_session, _retrieve, told=True),
        ),
        Route(
            method="POST",
            path="/v1/sessions",
            needs=Action.CREATE,
            example=Example({"agent": "{route}", "environment_id": "env"}),
            does=Submit(
                body=RequestBody(lambda body, _: requests.parse_create(body), takes="files"),
                where=lambda _, __: FreshSession(),
                opens=_open,
                commands=lambda _, __, ___: (),
                answer=_shown,
                looks_after=True,
                told=True,
            ),
        ),
        Route(method="GET", path="/v1/sessions", needs=Action.READ, does=ListSessions(_sessions)),
        Route(
            method="POST",
            path=_SESSION,
            needs=Action.CONTROL,
            example=Example({"title": "x"}),
            does=Submit(
                body=RequestBody(lambda body, _: requests.parse_update(body), takes="small"),
                where=_session,
                commands=_update,
                answer=_shown,
                waits=True,
                repeats=False,
                looks_after=True,
                told=True,
            ),
        ),
        Route(
            method="POST",
            path=f"{_SESSION}/archive",
            needs=Action.CONTROL,
            does=Submit(
                where=_session,
                admit=functools.partial(_rests, "archive"),
                commands=_archive,
                answer=_shown,
                waits=True,
                looks_after=True,
                told=True,
            ),
        ),
        Route(
            method="DELETE",
            path=_SESSION,
            needs=Action.CONTROL,
            does=Submit(
                where=_session,
                admit=functools.partial(_rests, "delete"),
                commands=lambda _, __, ___: [Delete()],
                answer=_deleted,
                waits=True,
            ),
        ),
        Route(
            method="GET",
            path=f"{_SESSION}/threads",
            needs=Action.READ,
            does=History(_session, _threads, told=True),
        ),
        Route(
            method="GET",
            path=_THREAD,
            needs=Action.READ,
            does=History(_session, _one_thread, told=True),
        ),
        Route(
            method="POST",
            path=f"{_THREAD}/archive",
            needs=Action.CONTROL,
            does=Submit(
                where=_session,
                commands=_archive_thread,
                answer=_archived_thread,
                waits=True,
                looks_before=True,
                looks_after=True,
                told=True,
            ),
        ),
        Route(
            method="GET",
            path=f"{_THREAD}/events",
            needs=Action.READ,
            does=History(_thread, _events),
        ),
        _stream_of(f"{_THREAD}/stream", _thread),
        Route(
            method="GET",
            path=f"{_SESSION}/resources",
            needs=Action.READ,
            does=History(_session, lambda _, __: answers.data_answer([], next_page=None)),
        ),
        *CATALOGUE,
        all_other_paths(lambda: FACE.routes),
    ),
)
