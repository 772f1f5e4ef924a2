"""The Engine face: `/execute`, `/execute/replay`, `/hitl/…` and `/health` below a base URL.

A turn never depends on who reads it: the body of its `/execute` is one reader of the session's
frames, a replay is another.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.contract.faces import (
    Action,
    Backend,
    ClientNamedSession,
    Example,
    Face,
    FrameRange,
    Incoming,
    MatchingSession,
    Neighbour,
    NewestSession,
    Opening,
    Pending,
    PublicAccess,
    RequestBody,
    RequestFailure,
    Route,
    RouteContext,
    SessionView,
    Static,
    Stream,
    Submit,
    SubmitResult,
    Target,
    TurnBody,
    misdirected,
)
from adapters.contract.faces.answers import json_answer, sse_headers
from adapters.engine import answers, interactions, requests, wire
from adapters.engine.requests import ExecuteRequest, RespondRequest
from adapters.engine.server import TASK_OPTION, EngineEncoder
from adapters.model.base import Response
from adapters.model.commands import AnswerInteraction, AnyCommand, SendMessage
from adapters.wire.errors import DragomanError, ErrorCode, NotSupported
from adapters.wire.jsonvalue import format_json

TASK = "task"
"""The word for errors of routes that are about a task: what is not found there is one."""

_OF_AN_ENGINE = ("/rpc", "/assets", "/memory", "/skills", "/admin")
"""Routes of a real Engine that are none of the conversation (sections 5 and 16)."""

_Seen = SessionView[EngineEncoder]


def _refuse(failure: RequestFailure) -> Response:
    task = failure.entered and failure.route.errors == TASK
    return answers.refusal(failure.error, task=task, error_id=failure.error_id)


# POST /execute: run a turn, and stream it (section 6).


def _task_of(_: Incoming, wanted: ExecuteRequest) -> Target:
    return ClientNamedSession(wanted.task_id)


def _check(message: SendMessage, backends: Sequence[Backend]) -> None:
    """Refuse what a backend would ignore that is not an Engine.

    Raises:
        NotSupported: one is not an Engine, and the message has what only an Engine knows.
    """
    named = requests.for_engine_only(message)
    for backend in backends:
        if named and backend.dialect != wire.DIALECT:
            raise NotSupported(
                f"`{named[0]}` is not carried to backend `{backend.name}` of dialect "
                f"`{backend.dialect}`: only an Engine knows it."
            )


def _open(_: Incoming, wanted: ExecuteRequest, place: RouteContext) -> Opening:
    # What the backend cannot carry leaves no empty task behind.
    _check(wanted.message, place.backends)
    return Opening([wanted.message], wanted.blobs, options={TASK_OPTION: wanted.task_id})


def _message(_: Incoming, seen: _Seen, wanted: ExecuteRequest) -> Sequence[AnyCommand]:
    _check(wanted.message, [seen.backend])
    return [wanted.message]


def _turn_of(_: Incoming, seen: _Seen, __: ExecuteRequest, command_id: str) -> FrameRange | None:
    turn = seen.encoder.turn_of(command_id)
    return None if turn is None else _reading(turn.start, turn=turn.turn_id)


def _reading(position: int, *, turn: str | None = None, stop: int | None = None) -> FrameRange:
    return FrameRange(
        position=position,
        heartbeat=wire.heartbeat,
        # The page advises 15 s or so (section 17).
        heartbeat_seconds=10.0,
        headers=sse_headers(),
        turn=turn,
        stop=stop,
    )


# GET /execute/replay: what is buffered after a stamp, then the running turn (section 11).


def _replayed(incoming: Incoming, _: None) -> Target:
    task_id = requests.parse_replay(incoming.query).task_id
    return NewestSession() if task_id is None else ClientNamedSession(task_id)


def _replay(incoming: Incoming, seen: _Seen, _: None) -> FrameRange:
    encoder = seen.encoder
    after = max(requests.parse_replay(incoming.query).after, _horizon(seen))
    position = min(after + 1, encoder.next_cursor)
    if encoder.state.turn is not None:
        return _reading(position, turn=encoder.state.turn)
    return _reading(position, stop=encoder.next_cursor)


def _horizon(seen: _Seen) -> int:
    """Return the stamp up to which the buffer has expired; a turn that runs is kept whole."""
    # CHANNEL_STATE_TTL_ACTIVE is 3 hours (engine page, section 11.1).
    expired = seen.now - (wire.PAUSED_MS if seen.state.interactions else 3 * 3_600_000)
    if seen.encoder.state.turn is not None:
        return min(expired, seen.encoder.turn_start - 1)
    return expired


# POST /hitl/respond: answer what a task waits for (section 10.1).


def _asking(_: Incoming, given: RespondRequest) -> Target:
    if given.task_id is not None:
        return ClientNamedSession(given.task_id)

    def shows_it(seen: _Seen) -> bool:
        shown = seen.encoder.request
        return shown is not None and shown.request_id == given.request_id

    return MatchingSession(shows_it)


def _answer(_: Incoming, seen: _Seen, given: RespondRequest) -> Sequence[AnyCommand]:
    shown = seen.encoder.request
    if shown is None or given.request_id not in (None, shown.request_id):
        text = (
            f"This task does not wait for such an answer; `GET {wire.PENDING}` lists what is asked."
        )
        raise DragomanError(text, code=ErrorCode.UNKNOWN_INTERACTION)
    return [interactions.to_command(given, shown)]


def _resumed(_: Incoming, __: _Seen, given: RespondRequest, done: SubmitResult) -> Response:
    answered = given.request_id
    for command in done.commands:
        assert isinstance(command, AnswerInteraction)
        answered = command.request_id
    if answered is None:
        answered = next((said.request_id for said in done.recalled if said.request_id), "")
    return json_answer(200, answers.resumed_body(answered))


def _blobs(said: ExecuteRequest | RespondRequest) -> Mapping[str, bytes]:
    return said.blobs


# GET /hitl/pending: what all tasks of this key on this route wait for (section 10.3).


def _asked(seen: _Seen) -> tuple[str, bytes] | None:
    record = seen.encoder.pending
    return None if record is None else (record["created_at"], format_json(record))


def _pending(_: Incoming, asked: Sequence[tuple[str, bytes]]) -> Response:
    in_order = sorted(asked, key=operator.itemgetter(0))
    return answers.pending_answer([record for _, record in in_order])


# The rest.


def _health(_: Incoming, place: RouteContext) -> Response:
    """Answer `GET /health`, which is about us (section 16)."""
    if place.stopping:
        raise DragomanError("The server is stopping.", code=ErrorCode.STOPPING)
    return json_answer(200, answers.health_body(place.uptime_seconds))


def _nothing(incoming: Incoming, place: RouteContext) -> Response:
    """Answer an unknown path or a wrong method, to those with a key (sections 3, 4.1 and 16)."""
    path = "/" + incoming.names["tail"]
    asked, method = misdirected.known(FACE.routes), incoming.method
    hint = misdirected.hint(asked, method, path, place)
    if misdirected.fitting(asked, path):
        text = f"`{path}` does not take {method}. {hint}"
        raise DragomanError(text, code=ErrorCode.METHOD_NOT_ALLOWED)
    if path.startswith(_OF_AN_ENGINE):
        hint = "Dragoman serves the conversation; ask the Engine itself for the rest."
    text = f"There is no `{method} {path[: misdirected.SHOWN]}` here. {hint}"
    raise DragomanError(text, code=ErrorCode.NOT_FOUND)


def _is_execute(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("task_id"), str) and "message" in body


FACE = Face(
    framing="sse",
    clients=(Neighbour(title="a September Engine client", body=_is_execute),),
    # An Engine that drains refuses whatever it is asked (section 4.2).
    reads_while_stopping=False,
    noun="task",
    refuse=_refuse,
    routes=(
        Route(
            method="POST",
            path=wire.EXECUTE,
            needs=Action.WRITE,
            errors=TASK,
            example=Example({"message": "hello", "task_id": "{session}"}),
            does=Submit(
                body=RequestBody(lambda body, _: requests.parse_execute(body), takes="files"),
                where=_task_of,
                opens=_open,
                commands=_message,
                blobs=_blobs,
                answer=TurnBody(
                    headers=sse_headers, begun=_turn_of, over=lambda seen: seen.encoder.state.ended
                ),
            ),
        ),
        Route(
            method="GET",
            path=wire.REPLAY,
            needs=Action.READ,
            errors=TASK,
            example=Example(query={"after": "0", "task_id": "{session}"}),
            # Of what expired nothing is buffered any more (section 11.1).
            does=Stream(_replayed, _replay, missing=lambda: Response(200, sse_headers())),
        ),
        Route(
            method="POST",
            path=wire.RESPOND,
            needs=Action.ANSWER,
            errors=TASK,
            example=Example({"answer": "no", "task_id": "{session}"}),
            does=Submit(
                body=RequestBody(lambda body, _: requests.parse_respond(body), takes="files"),
                where=_asking,
                commands=_answer,
                blobs=_blobs,
                answer=_resumed,
                looks_before=True,
                # It says `resumed`, and so the backend has to have taken it.
                waits=True,
                # A repeat need not name the request that the first one answered.
                recalls=True,
            ),
        ),
        Route(
            method="GET",
            path=wire.PENDING,
            needs=Action.READ,
            errors=TASK,
            does=Pending(_asked, _pending),
        ),
        Route(
            method="GET",
            path=wire.HEALTH,
            needs=PublicAccess("is open at every Engine (engine page, section 3)"),
            does=Static(_health),
        ),
        Route(method="*", path="/{tail:.*}", needs=Action.READ, does=Static(_nothing)),
    ),
)
