"""The Herm face: `/v1/agents/…` and `/v1/sessions/…` below a base URL."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from multidict import CIMultiDict

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
from adapters.herm import requests, wire
from adapters.herm.requests import HermCreate, HermRefusal, UserEvent
from adapters.herm.server import USER_ID, HermEncoder, messages_of, session_object
from adapters.model.base import Response
from adapters.model.commands import AnyCommand, Archive, CreateSession, Delete, UpdateSession
from adapters.model.events import Entry, InteractionRequested
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json

_Seen = SessionView[HermEncoder]
_Events = tuple[UserEvent, ...]


def _refuse(failure: RequestFailure) -> Response:
    if failure.error_id is None:
        return requests.refusal(failure.error)
    text = f"This went wrong here; the log has it under `{failure.error_id}`."
    return requests.refusal(DragomanError(text, code=ErrorCode.INTERNAL))


def _session(incoming: Incoming, _: object = None) -> Target:
    return NamedSession(incoming.names["session"])


# Agents (sections 2 and 2.1): a route has one.


def _agent_object(place: RouteContext) -> dict[str, Any]:
    backend = place.draw()
    return requests.agent_object(backend.agent, backend.name, f"{backend.dialect}/{backend.name}")


def _agents(_: Incoming, place: RouteContext) -> Response:
    return requests.json_response(200, {"data": [_agent_object(place)], "nextCursor": None})


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
    return requests.json_response(200, _agent_object(place))


# Sessions (sections 2.2 and 2.3).


def _parse_create(body: bytes, _: Incoming) -> HermCreate:
    return requests.parse_create(body)


def _new(_: Incoming, __: HermCreate) -> Target:
    return FreshSession()


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


def _created(_: Incoming, seen: _Seen, __: HermCreate, ___: SubmitResult) -> Response:
    return requests.json_response(201, _object(seen))


def _shown(_: Incoming, seen: _Seen, __: object, ___: SubmitResult) -> Response:
    return requests.json_response(200, _object(seen))


def _no_commands(_: Incoming, __: _Seen, ___: object) -> Sequence[AnyCommand]:
    return ()


def _update(_: Incoming, __: _Seen, wanted: HermCreate) -> Sequence[AnyCommand]:
    if wanted.title is None and wanted.metadata is None:
        return ()
    return [UpdateSession(title=wanted.title, metadata=wanted.metadata)]


def _archive(_: Incoming, seen: _Seen, __: object) -> Sequence[AnyCommand]:
    return [Archive()] if seen.state.archived_at is None else ()


def _delete(_: Incoming, __: _Seen, ___: object) -> Sequence[AnyCommand]:
    return [Delete()]


def _deleted(_: Incoming, __: _Seen, ___: object, ____: SubmitResult) -> Response:
    return Response(204)


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
            cursor = requests.make_cursor(self.before)
        body = b'{"data":[%b],"nextCursor":%b}' % (b",".join(self._found), format_json(cursor))
        return Response(200, CIMultiDict({"content-type": "application/json"}), body)


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
        # What becomes of an input later changes none of its words.
        made = [one for one in self._encoder.envelopes(entry) if not one.update]
        if messages := messages_of(made):
            self.out += self._comma + b",".join([format_json(message) for message in messages])
            self._comma = b","
        return True

    def end(self) -> None:
        self.out += b"]}"


def _conversation(_: Incoming, seen: _Seen) -> LogReader[HermEncoder]:
    return _Conversation(_object(seen))


# Events (sections 3 and 4).


def _parse_events(body: bytes, _: Incoming) -> _Events:
    return requests.parse_events(body)


def _needs(_: Incoming, wanted: _Events) -> Action:
    return Action.ANSWER if any(event.request for event in wanted) else Action.WRITE


def _is_not_archived(_: Incoming, seen: _Seen, __: _Events) -> None:
    if seen.state.archived_at is not None:
        raise HermRefusal(409, "archived", "The session is archived and takes no input.")


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
        raise HermRefusal(409, "no_turn_running", text)
    return requests.to_commands(wanted, lookup)


def _accepted(_: Incoming, seen: _Seen, __: _Events, done: SubmitResult) -> Response:
    return requests.events_answer(seen.encoder.inputs(done.ids))


class _EventsPage(LogReader[HermEncoder]):
    """A page of the stored events (section 4.2)."""

    headers: Mapping[str, str] = {}

    def __init__(self, page: requests.Page) -> None:
        self._page = page
        self._encoder: HermEncoder | None = None
        self._answer()

    @property
    def wanted(self) -> int | None:
        return self._page.wanted

    def begin(self, encoder: HermEncoder) -> None:
        self._encoder = encoder
        self._page.begin(encoder.next_cursor)

    def add(self, entry: Entry) -> bool:
        assert self._encoder is not None
        return self._page.add(self._encoder.envelopes(entry))

    def end(self) -> None:
        self._page.end()
        self._answer()

    def _answer(self) -> None:
        if self._page.wanted is None:
            answer = self._page.answer()
            self.headers, self.out = answer.headers, answer.body


def _events(incoming: Incoming, seen: _Seen) -> LogReader[HermEncoder]:
    wanted = requests.parse_list(incoming.query, seen.id)
    newest = seen.encoder
    return _EventsPage(requests.Page(wanted, newest.next_cursor - 1, newest.inputs_now()))


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


def _not_served(why: str, incoming: Incoming, _: RouteContext) -> Response:
    return requests.not_served(incoming.method, incoming.path, why)


def _wrong_method(incoming: Incoming, names: Sequence[str]) -> Response:
    allowed = ", ".join(names)
    text = f"`{incoming.path}` takes {allowed}, not {incoming.method}."
    response = requests.refusal(DragomanError(text, code=ErrorCode.METHOD_NOT_ALLOWED))
    response.headers["Allow"] = allowed
    return response


def _nothing(incoming: Incoming, place: RouteContext) -> Response:
    asked, path = misdirected.known(FACE.routes), "/" + incoming.names["tail"]
    hint = misdirected.hint(asked, incoming.method, path, place)
    return requests.no_route(incoming.method, incoming.path, hint)


_SESSION = "/v1/sessions/{session}"


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
        Route(method="GET", path="/v1/agents/{agent}", needs=Action.READ, does=Static(_agent)),
        Route(
            method="POST",
            path="/v1/agents/{agent}/sessions",
            needs=Action.CREATE,
            does=Submit(
                before=_check_agent,
                body=RequestBody(_parse_create, takes="small"),
                where=_new,
                opens=_open,
                commands=_no_commands,
                answer=_created,
                told=True,
            ),
        ),
        Route(method="GET", path="/v1/sessions", needs=Action.READ, does=ListSessions(_sessions)),
        Route(
            method="GET",
            path=_SESSION,
            needs=Action.READ,
            does=History(_session, _conversation, told=True),
        ),
        Route(
            method="PATCH",
            path=_SESSION,
            needs=Action.CONTROL,
            example=Example({"title": "x"}),
            does=Submit(
                body=RequestBody(_parse_create, takes="small"),
                where=_session,
                commands=_update,
                answer=_shown,
                waits=True,
                repeats=False,
                told=True,
            ),
        ),
        Route(
            method="DELETE",
            path=_SESSION,
            needs=Action.CONTROL,
            does=Submit(where=_session, commands=_delete, answer=_deleted, waits=True),
        ),
        Route(
            method="POST",
            path=f"{_SESSION}/archive",
            needs=Action.CONTROL,
            does=Submit(where=_session, commands=_archive, answer=_shown, waits=True, told=True),
        ),
        Route(
            method="POST",
            path=f"{_SESSION}/events",
            needs=Action.WRITE,
            example=Example(
                {
                    "events": [
                        {"type": "user.message", "content": [{"type": "text", "text": "hello"}]}
                    ]
                }
            ),
            does=Submit(
                body=RequestBody(_parse_events, takes="text"),
                needs=_needs,
                where=_session,
                admit=_is_not_archived,
                commands=_commands,
                answer=_accepted,
                looks_before=True,
                looks_after=True,
            ),
        ),
        Route(
            method="GET",
            path=f"{_SESSION}/events",
            needs=Action.READ,
            does=History(_session, _events),
        ),
        Route(
            method="GET",
            path=f"{_SESSION}/events/stream",
            needs=Action.READ,
            does=Stream(_session, _stream),
        ),
        *(
            Route(
                method=method,
                path=f"/v1{path}",
                needs=Action.READ,
                does=Static(functools.partial(_not_served, why)),
            )
            for method, path, why in requests.NOT_SERVED
        ),
        Route(method="*", path="/{tail:.*}", needs=Action.READ, does=Static(_nothing)),
    ),
)
