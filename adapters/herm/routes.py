"""The Herm face: `/v1/agents/…` and `/v1/sessions/…` below a base URL."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.contract.faces import (
    Action,
    Example,
    Face,
    FrameRange,
    FreshSession,
    History,
    Incoming,
    ListedSession,
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
    SessionView,
    Static,
    Stream,
    Submit,
    SubmitResult,
    Target,
    misdirected,
)
from adapters.contract.faces.answers import sse_headers
from adapters.herm import answers, interactions, requests, wire
from adapters.herm.answers import USER_ID, HermRefusal, messages_of, session_object
from adapters.herm.pages import EventsPage
from adapters.herm.requests import HermCreate, UserEvent
from adapters.herm.server import HermEncoder
from adapters.model.base import Response
from adapters.model.commands import AnyCommand, Archive, CreateSession, Delete, UpdateSession
from adapters.model.events import Entry, InteractionRequested
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json

_Seen = SessionView[HermEncoder]
_Events = tuple[UserEvent, ...]


def _refuse(failure: RequestFailure) -> Response:
    if failure.error_id is None:
        return answers.refusal(failure.error)
    text = f"This went wrong here; the log has it under `{failure.error_id}`."
    return answers.refusal(DragomanError(text, code=ErrorCode.INTERNAL))


def _session(incoming: Incoming, _: object = None) -> Target:
    return NamedSession(incoming.names["session"])


# Agents (sections 2 and 2.1): a route has one.


def _agents(_: Incoming, place: RouteContext) -> Response:
    return answers.page_answer([format_json(answers.agent_object(place.draw()))], None)


def _check_agent(incoming: Incoming, place: RouteContext) -> None:
    backend, name = place.draw(), incoming.names["agent"]
    # Whichever is drawn, and wherever the route leads by now: frontends keep the name they have.
    known = {place.route, *(called for one in place.known for called in (one.agent, one.name))}
    if name not in known and not backend.any_agent:
        raise DragomanError(
            f"There is no agent `{name[:80]}`; this route has `{backend.agent}`.",
            code=ErrorCode.NOT_FOUND,
        )


def _agent(incoming: Incoming, place: RouteContext) -> Response:
    _check_agent(incoming, place)
    return answers.json_response(200, answers.agent_object(place.draw()))


# Sessions (sections 2.2 and 2.3).


def _open(_: Incoming, wanted: HermCreate, __: RouteContext) -> Opening:
    return Opening(
        title=wanted.title,
        metadata=wanted.metadata,
        options=None if wanted.user_id is None else {USER_ID: wanted.user_id},
        checked=CreateSession(user_id=wanted.user_id, title=wanted.title),
    )


def _object(seen: _Seen) -> dict[str, Any]:
    assert seen.told is not None
    return session_object(seen.id, seen.state.status, *seen.told)


def _shown(status: int, _: Incoming, seen: _Seen, __: object, ___: SubmitResult) -> Response:
    return answers.json_response(status, _object(seen))


def _update(_: Incoming, __: _Seen, wanted: HermCreate) -> Sequence[AnyCommand]:
    if wanted.title is None and wanted.metadata is None:
        return ()
    return [UpdateSession(title=wanted.title, metadata=wanted.metadata)]


class _SessionsPage(SessionsPage):
    """A page of the list of sessions; archived ones only where asked for (section 2)."""

    def __init__(self, query: requests.SessionQuery) -> None:
        self.before = query.before
        self.rows = wire.LIMIT_MOST
        self._query = query
        self._found: list[bytes] = []
        self._more = False

    def add(self, listed: ListedSession) -> bool:
        value = session_object(listed.id, listed.state, *listed.told)
        if self._is_wanted(value):
            if len(self._found) == self._query.limit:
                self._more = True
                return False
            # Each in the turn of its own: a hundred may have megabytes.
            self._found.append(format_json(value))
        self.before = listed.key
        return True

    def _is_wanted(self, value: Mapping[str, Any]) -> bool:
        query, metadata, status = self._query, value["metadata"], value["status"]
        return (
            (status != "archived" if query.status is None else status == query.status)
            and query.agent_id in (None, value["agentId"])
            and query.user_id in (None, value["userId"])
            and all(metadata.get(name) == wanted for name, wanted in query.metadata.items())
        )

    def cut(self) -> None:
        self._more = True

    def answer(self) -> Response:
        cursor = None
        if self._more and self.before is not None:
            cursor = requests.page_cursor(self.before)
        return answers.page_answer(self._found, cursor)


def _sessions(incoming: Incoming) -> SessionsPage:
    return _SessionsPage(requests.parse_sessions(incoming.query))


class _Conversation(LogReader[HermEncoder]):
    """The session object and the history of its messages."""

    headers: Mapping[str, str] = {"Content-Type": "application/json"}

    def __init__(self, value: dict[str, Any]) -> None:
        self.out = format_json(value)[:-1] + b',"messages":['
        self._comma = b""
        self._encoder: HermEncoder | None = None

    @property
    def wanted(self) -> int | None:
        return HermEncoder.next_cursor if self._encoder is None else None

    def begin(self, encoder: HermEncoder) -> None:
        self._encoder = encoder

    def add(self, entry: Entry) -> bool:
        assert self._encoder is not None
        if messages := messages_of(self._encoder.envelopes(entry)):
            self.out += self._comma + b",".join([format_json(message) for message in messages])
            self._comma = b","
        return True

    def end(self) -> None:
        self.out += b"]}"


# Events (sections 3 and 4).


def _needs(_: Incoming, wanted: _Events) -> Action:
    return Action.ANSWER if any(event.request for event in wanted) else Action.WRITE


def _is_not_archived(_: Incoming, seen: _Seen, __: _Events) -> None:
    if seen.state.archived_at is not None:
        raise HermRefusal("archived", "The session is archived and takes no input.")


def _commands(_: Incoming, seen: _Seen, wanted: _Events) -> Sequence[AnyCommand]:
    state, encoder = seen.state, seen.encoder

    def lookup(name: str) -> InteractionRequested | str | None:
        request_id = encoder.request_of(name)
        if request_id is None:
            return name if name in state.resolved else None
        open_ = state.interactions.get(request_id)
        return request_id if open_ is None else open_.event

    steers = [event for event in wanted if event.type == "user.steer"]
    if steers and not seen.working and not any(e.type == "user.message" for e in wanted):
        text = "No turn is running; send a `user.message`."
        raise HermRefusal("no_turn_running", text)
    return interactions.to_commands(wanted, lookup)


def _events(incoming: Incoming, seen: _Seen) -> LogReader[HermEncoder]:
    wanted = requests.parse_list(incoming.query, seen.id)
    newest = seen.encoder
    return EventsPage(wanted, newest.next_cursor - 1, newest.inputs_now())


def _stream(incoming: Incoming, seen: _Seen, _: None) -> FrameRange:
    """Return what a stream reads: live, or everything after a position (section 4.3)."""
    after = requests.parse_stream(incoming.query, incoming.headers, seen.id)
    now = seen.encoder.next_cursor
    return FrameRange(
        position=now if after is None else min(after + 1, now),
        heartbeat=wire.HEARTBEAT,
        heartbeat_seconds=wire.HEARTBEAT_SECONDS,
        headers=sse_headers(),
        first=wire.HEARTBEAT,
    )


# The rest.


def _not_served(incoming: Incoming, _: RouteContext) -> Response:
    return answers.not_served(incoming.method, incoming.path)


def _wrong_method(incoming: Incoming, names: Sequence[str]) -> Response:
    allowed = ", ".join(names)
    text = f"`{incoming.path}` takes {allowed}, not {incoming.method}."
    response = answers.refusal(DragomanError(text, code=ErrorCode.METHOD_NOT_ALLOWED))
    response.headers["Allow"] = allowed
    return response


def _nothing(incoming: Incoming, place: RouteContext) -> Response:
    asked, path = misdirected.known(FACE.routes), "/" + incoming.names["tail"]
    hint = misdirected.hint(asked, incoming.method, path, place)
    return answers.no_route(incoming.method, incoming.path, hint)


_AGENT = "/v1/agents/{agent}"
_SESSION = "/v1/sessions/{session}"
_EVENTS = f"{_SESSION}/events"


def _is_events(body: Mapping[str, Any]) -> bool:
    events = body.get("events")
    return isinstance(events, list) and any(
        isinstance(one, dict) and str(one.get("type")).startswith("user.") for one in events
    )


FACE = Face(
    framing="sse",
    clients=(Neighbour(title="a Herm client", body=_is_events),),
    refuse=_refuse,
    wrong_method=_wrong_method,
    routes=(
        Route(method="GET", path="/v1/agents", needs=Action.READ, does=Static(_agents)),
        Route(method="GET", path=_AGENT, needs=Action.READ, does=Static(_agent)),
        Route(
            method="POST",
            path=f"{_AGENT}/sessions",
            needs=Action.CREATE,
            does=Submit(
                before=_check_agent,
                body=RequestBody(lambda body, _: requests.parse_create(body), takes="small"),
                where=lambda _, __: FreshSession(),
                opens=_open,
                commands=lambda _, __, ___: (),
                answer=functools.partial(_shown, 201),
                told=True,
            ),
        ),
        Route(method="GET", path="/v1/sessions", needs=Action.READ, does=ListSessions(_sessions)),
        Route(
            method="GET",
            path=_SESSION,
            needs=Action.READ,
            does=History(_session, lambda _, seen: _Conversation(_object(seen)), told=True),
        ),
        Route(
            method="PATCH",
            path=_SESSION,
            needs=Action.CONTROL,
            example=Example({"title": "x"}),
            does=Submit(
                body=RequestBody(lambda body, _: requests.parse_create(body), takes="small"),
                where=_session,
                commands=_update,
                answer=functools.partial(_shown, 200),
                waits=True,
                repeats=False,
                told=True,
            ),
        ),
        Route(
            method="DELETE",
            path=_SESSION,
            needs=Action.CONTROL,
            does=Submit(
                where=_session,
                commands=lambda _, __, ___: [Delete()],
                answer=lambda _, __, ___, ____: Response(204),
                waits=True,
            ),
        ),
        Route(
            method="POST",
            path=f"{_SESSION}/archive",
            needs=Action.CONTROL,
            does=Submit(
                where=_session,
                commands=lambda _, seen, __: [Archive()] if seen.state.archived_at is None else (),
                answer=functools.partial(_shown, 200),
                waits=True,
                told=True,
            ),
        ),
        Route(
            method="POST",
            path=_EVENTS,
            needs=Action.WRITE,
            example=Example(
                {"events": [{"type": "user.message", "content": wire.text_blocks("hello")}]}
            ),
            does=Submit(
                body=RequestBody(lambda body, _: requests.parse_events(body), takes="text"),
                needs=_needs,
                where=_session,
                admit=_is_not_archived,
                commands=_commands,
                answer=lambda _, seen, __, done: answers.events_answer(
                    seen.encoder.inputs(done.ids)
                ),
                looks_before=True,
                looks_after=True,
            ),
        ),
        Route(method="GET", path=_EVENTS, needs=Action.READ, does=History(_session, _events)),
        Route(
            method="GET",
            path=f"{_EVENTS}/stream",
            needs=Action.READ,
            does=Stream(_session, _stream),
        ),
        *(
            Route(method=method, path=path, needs=Action.READ, does=Static(_not_served))
            for method, path in (
                *(("POST", "/v1/agents"), ("PATCH", _AGENT), ("DELETE", _AGENT)),
                ("POST", f"{_AGENT}/archive"),
            )
        ),
        Route(method="*", path="/{tail:.*}", needs=Action.READ, does=Static(_nothing)),
    ),
)
