"""The eve face: `/eve/v1/…` below a base URL, for both generations of clients."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

from adapters.contract.faces import (
    Action,
    Example,
    Face,
    Forward,
    FrameRange,
    FreshSession,
    Incoming,
    NamedSession,
    Neighbour,
    Opening,
    PublicAccess,
    RequestBody,
    RequestFailure,
    Route,
    RouteContext,
    Static,
    Stream,
    Submit,
    SubmitResult,
    Target,
    misdirected,
)
from adapters.contract.faces.answers import json_answer
from adapters.eve import requests, wire
from adapters.eve.requests import ControlKind, EveControl, EveCreate, FollowUp
from adapters.eve.session_lookup import (
    JOIN_HEADER,
    EveSeen,
    addressed,
    callback_path,
    face_of,
    nothing_pending,
    read_as,
    session_of,
    shown,
    stands_for,
    token_used,
    viewed,
)
from adapters.model.base import Response
from adapters.model.commands import (
    SAID_AS_MESSAGE,
    AnswerInteraction,
    AnyCommand,
    Clear,
    Compact,
    Interrupt,
    Reset,
)
from adapters.model.events import MAIN
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode, NotSupported

CONTROLS: tuple[ControlKind, ...] = ("reset", "clear", "compact")
"""The controls that both generations have, by token and by id (section 6)."""

_CALLBACK_HEADERS = frozenset({"content-type", "accept", "traceparent", "tracestate", "baggage"})
"""What passes with a callback: never a credential or a cookie, either way."""


def _serve(table: Mapping[str, Any], authenticated: bool) -> requests.EveFaceSettings:
    upload = table["upload"]
    types = tuple(upload["media_types"])
    return requests.EveFaceSettings(
        form=table["form"],
        max_file_bytes=upload["max_bytes"],
        media_types=None if "*/*" in types else types,
        authenticated=authenticated,
    )


def _refuse(failure: RequestFailure) -> Response:
    # Where there is no route there is no session whose end could be told.
    no_route = failure.error.code is ErrorCode.NOT_FOUND and not failure.entered
    return requests.refusal(
        failure.error,
        form=face_of(failure.request).form,
        # Anybody who named the session by a token is answered as generation T does.
        token_style=getattr(failure.said, "token", None) is not None,
        session_id=failure.request.names.get("session"),
        route="info" if no_route else cast("requests.Route", failure.route.errors),
        error_id=failure.error_id,
    )


# POST /eve/v1/session (section 4.1).


def _parse_create(body: bytes, incoming: Incoming) -> EveCreate:
    return requests.parse_create(body, face_of(incoming))


def _joins(incoming: Incoming, _: EveCreate) -> Action:
    return Action.READ if JOIN_HEADER in incoming.headers else Action.CREATE


def _new(incoming: Incoming, _: EveCreate) -> Target:
    joined = incoming.headers.get(JOIN_HEADER)
    return FreshSession() if joined is None else NamedSession(viewed(joined)[1])


def _open(_: Incoming, wanted: EveCreate, place: RouteContext) -> Opening:
    if wanted.mode == "task" or wanted.callback is not None:
        what = "callback" if wanted.callback is not None else "mode"
        raise NotSupported(
            f"`{what}` is not carried to backend `{place.draw().name}`: only an eve backend knows "
            "it."
        )
    if wanted.request_input is False:
        raise NotSupported(
            "`capabilities.requestInput` false cannot be promised for backend "
            f"`{place.draw().name}`."
        )
    commands = () if wanted.message is None else (wanted.message,)
    return Opening(commands, wanted.blobs, once=wanted.operation_id)


def _nothing_said(_: Incoming, __: EveSeen, ___: EveCreate) -> Sequence[AnyCommand]:
    # The message of a request that joins is what the program needs to open a conversation.
    return ()


def _created(incoming: Incoming, seen: EveSeen, _: EveCreate, done: SubmitResult) -> Response:
    """Answer a create; one that joined as if the session were new: its client reads from the start
    of the last turn on.

    Generation T reads up to the first `session.waiting` (section 7.5), so it would not come past
    the first turn of a longer session.
    """
    form, token = face_of(incoming).form, seen.encoder.token
    if JOIN_HEADER in incoming.headers:
        view = f"dgv_{seen.encoder.turn_at}_{seen.id}"
        return requests.create_answer(form, view, token=token)
    delivery_id = done.ids[0] if done.ids else None
    return requests.create_answer(form, seen.id, token=token, delivery_id=delivery_id)


# POST /eve/v1/session/{session} (section 5).


def _parse_follow_up(body: bytes, incoming: Incoming) -> FollowUp:
    return requests.parse_follow_up(body, face_of(incoming))


def _follow_up_needs(_: Incoming, said: FollowUp) -> Action:
    return Action.ANSWER if said.answers else Action.WRITE


def _said(_: Incoming, seen: EveSeen, wanted: FollowUp) -> Sequence[AnyCommand]:
    """Return the commands of a follow-up, as the session is now."""
    commands: list[AnyCommand] = []
    for response in wanted.answers:
        commands.append(_answer(seen, response, wanted))  # noqa: PERF401 - one call less
    if wanted.message is not None:
        # Also beside answers: while a secret is asked for, no other text is taken.
        # What ends with a turn that is being stopped is answered by nothing: this is said to the
        # next.
        said = None
        if seen.state.interactions:
            asked = seen.open_interactions
            open_ = [one for one in asked if not seen.state.drops(one.request_id)]
            said = requests.answer_by_message(wanted.text, open_)
        if said is not None and not wanted.answers:
            answer = _answer(seen, said, wanted)
            options = {**(answer.options or {}), SAID_AS_MESSAGE: wanted.text}
            commands.append(answer.model_copy(update={"options": options}))
        else:
            # What the request was left open for goes with the answers that come beside it.
            paused = bool(seen.state.interactions) and not wanted.answers
            policy = wanted.paused_policy if paused else wanted.message.policy
            commands.append(wanted.message.model_copy(update={"policy": policy}))
    return commands


def _answer(seen: EveSeen, response: requests.InputResponse, wanted: FollowUp) -> AnswerInteraction:
    state = seen.state
    asked_as = response.request_id
    if asked_as not in state.interactions and asked_as not in state.resolved:
        asked_as = requests.first_name(asked_as)
    open_ = state.interactions.get(asked_as)
    if open_ is None:
        outcome = state.resolved.get(asked_as)
        if outcome is not None:
            text = f"The request '{response.request_id}' is over: {outcome}."
            raise DragomanError(text, code=ErrorCode.ALREADY_ANSWERED)
        raise DragomanError(
            f"There is no request '{response.request_id}' in this session; its stream has the ids.",
            code=ErrorCode.UNKNOWN_INTERACTION,
        )
    return requests.to_command(response, open_.event, wanted.options)


def _followed_up(incoming: Incoming, seen: EveSeen, said: FollowUp, done: SubmitResult) -> Response:
    return requests.follow_up_answer(
        face_of(incoming).form,
        shown(incoming, seen, said),
        delivery_id=done.ids[-1],
        token=seen.encoder.token,
    )


# Controls (section 6).


def _parse_control(kind: ControlKind, body: bytes, incoming: Incoming) -> EveControl:
    return requests.parse_control(kind, body, face_of(incoming), incoming.names.get("session"))


def _may_control(incoming: Incoming, seen: EveSeen, said: EveControl) -> Mapping[str, Any] | None:
    details = token_used(incoming, seen, said)
    if seen.state.ended is not None:
        raise DragomanError("The session has ended.", code=ErrorCode.NOT_ACTIVE)
    return details


def _controls(_: Incoming, seen: EveSeen, said: EveControl) -> Sequence[AnyCommand]:
    match said.kind:
        case "cancel":
            of_another = said.turn_id is not None and said.turn_id != seen.encoder.turn_id
            return () if of_another else [Interrupt(turn_id=said.turn_id)]
        case "compact":
            return [Compact()]
        case "clear":
            return [Clear()]
        case "reset":
            return [Reset(reason=said.reason)]


def _controlled(incoming: Incoming, seen: EveSeen, said: EveControl, _: SubmitResult) -> Response:
    return requests.control_answer(said.kind, face_of(incoming).form, shown(incoming, seen, said))


def _control(kind: ControlKind, *, by_token: bool = False) -> Route:
    path = wire.SESSION_PATH if by_token else f"{wire.SESSION_PATH}/{{session}}"
    return Route(
        method="POST",
        path=f"{path}/{kind}",
        needs=Action.CONTROL if kind == "reset" else Action.WRITE,
        errors="cancel" if kind == "cancel" else "control",
        example=Example({"continuationToken": "t-1"}) if by_token else None,
        does=Submit(
            body=RequestBody(functools.partial(_parse_control, kind), takes="small"),
            where=addressed,
            admit=_may_control,
            commands=_controls,
            answer=_controlled,
            # Who is told that a session was reset says nothing more in it.
            waits=kind == "reset",
            looks_before=by_token or kind == "cancel",
        ),
    )


# GET /eve/v1/session/{session}/stream (section 7).


def _stream(incoming: Incoming, seen: EveSeen, _: None) -> FrameRange:
    name, face = incoming.names["session"], face_of(incoming)
    wanted = requests.parse_stream_query(incoming.query, face)
    begin = viewed(name)[0]
    if begin > seen.encoder.next_cursor:
        # No create was given this id.
        raise DragomanError(f"There is no session `{name}`.", code=ErrorCode.NOT_FOUND)
    tail = seen.encoder.next_cursor - 1 - begin
    # What the session was first shown as, whatever is configured by now.
    form = seen.settings.get("form", face.form)
    return FrameRange(
        position=begin + wanted.first(tail),
        heartbeat=wire.HEARTBEAT,
        heartbeat_seconds=10.0,  # section 7.4
        headers=requests.stream_headers(
            form,
            name if seen.thread == MAIN else seen.thread,
            tail if wanted.include_tail else None,
        ),
        first=wire.HEARTBEAT,
        stop=None if wanted.follow else begin + tail + 1,
        lease_seconds=wire.LEASE_MS / 1000 if wanted.lease else None,
        lease_end=wire.LEASE_ENDED,
    )


def _streams(path: str) -> Route:
    return Route(
        method="GET",
        path=f"{wire.SESSION_PATH}/{path}/stream",
        head=True,
        needs=Action.READ,
        errors="stream",
        does=Stream(read_as, _stream),
    )


# Callbacks: what a sign-in's provider or a remote agent brings (sections 9.4 and 11).


def _callback(method: str, kind: str, path: str) -> Route:
    return Route(
        method=method,
        path=f"{wire.PREFIX}/{kind}/{path}",
        needs=PublicAccess("its token is the credential (eve page, section 2.1)", of_a_route=False),
        errors="info",
        does=Forward(
            why="a sign-in's provider and a remote agent call an eve backend back, which they "
            "reach through the address of this face",
            session=session_of,
            stands_for=stands_for,
            to_path=requests.callback_path,
            path=functools.partial(callback_path, kind),
            nothing=nothing_pending,
            headers=_CALLBACK_HEADERS,
        ),
    )


# The rest.


def _health(_: Incoming, __: RouteContext) -> Response:
    return json_answer(200, requests.health_body())


def _info(incoming: Incoming, place: RouteContext) -> Response:
    """Answer with the least that clients accept; the agent is the route's backend (section 12)."""
    body = requests.info_body(face_of(incoming).form, place.draw().agent)
    return json_answer(200, body)


def _nothing(incoming: Incoming, place: RouteContext) -> Response:
    """Answer an unknown path or a wrong method as the host framework does (section 2)."""
    try:
        url = place.url
    except ValueError:
        raise ClientProtocolError("`Host` is not a host.") from None
    asked, path = misdirected.known(FACE.routes), "/" + incoming.names["tail"]
    below = "the base URL"
    if misdirected.fitting(asked, f"/{place.route}{path}"):
        # `/to/eve/v1/session`: what stands for the route is the first part of the path.
        path, below = f"/{place.route}{path}", "a base URL, which ends with `/to/ROUTE`"
    hint = misdirected.hint(asked, incoming.method, path, place, below=below)
    return requests.route_not_found(incoming.method, url, hint)


_MESSAGE = Example({"message": "hello"})


def _is_follow_up(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("continuationToken"), str) or "inputResponses" in body


FACE = Face(
    framing="ndjson",
    clients=(Neighbour(title="an eve client", body=_is_follow_up),),
    refuse=_refuse,
    serve=_serve,
    forms={form: {"form": form} for form in ("all", "tokens", "newest")},
    child_streams=True,
    routes=(
        Route(
            method="POST",
            path=wire.SESSION_PATH,
            needs=Action.CREATE,
            errors="create",
            example=_MESSAGE,
            does=Submit(
                body=RequestBody(_parse_create, takes="files"),
                needs=_joins,
                where=_new,
                opens=_open,
                commands=_nothing_said,
                answer=_created,
                looks_after=True,
            ),
        ),
        _streams("{session}"),
        Route(
            method="GET",
            path=wire.HEALTH_PATH,
            head=True,
            needs=PublicAccess("is open at every eve server (eve page, section 2.1)"),
            errors="info",
            does=Static(_health),
        ),
        Route(
            method="GET",
            path=wire.INFO_PATH,
            head=True,
            needs=Action.READ,
            errors="info",
            does=Static(_info),
        ),
        *(_control(kind, by_token=True) for kind in CONTROLS),
        Route(
            method="POST",
            path=f"{wire.SESSION_PATH}/{{session}}",
            needs=Action.WRITE,
            errors="session",
            example=_MESSAGE,
            does=Submit(
                body=RequestBody(_parse_follow_up, takes="files"),
                needs=_follow_up_needs,
                where=addressed,
                admit=token_used,
                commands=_said,
                blobs=lambda said: said.blobs,
                answer=_followed_up,
                looks_before=True,
                looks_after=True,
            ),
        ),
        _control("cancel"),
        *(_control(kind) for kind in CONTROLS),
        _streams("{parent}/subagents/{call}/{session}"),
        *(
            _callback(method, "connections", path)
            for method in ("GET", "POST")
            for path in ("{name}/callback/{token}", "{name}/callback/{attempt}/{token}")
        ),
        *(_callback("POST", kind, "{token}") for kind in ("callback", "task-input")),
        Route(
            method="*",
            path="/{tail:.*}",
            needs=PublicAccess(
                "is answered as the host framework does (eve page, section 2)", False
            ),
            errors="info",
            does=Static(_nothing),
        ),
    ),
)
