"""The face: a page posts to its chat, comes back to a stream, and may stop the turn.

A turn never depends on who reads it: the body of the answer is one reader of the chat's streams.
Every path is there twice: below `/v5` it shows the form for `ai` 5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.aisdk import answers, wire
from adapters.aisdk.meant import Meant, asks_anew, check, first_words, late, meant_by, names_of
from adapters.aisdk.requests import ChatRequest, parse_chat
from adapters.aisdk.server import AisdkEncoder
from adapters.aisdk.state import Kept
from adapters.contract.faces import (
    Action,
    Body,
    Chosen,
    Done,
    Example,
    Face,
    Failure,
    Follow,
    Incoming,
    Neighbour,
    Opening,
    Place,
    Reading,
    Route,
    Say,
    Seen,
    Target,
    Tell,
    TurnBody,
    astray,
)
from adapters.model.base import Response
from adapters.model.commands import AnyCommand, Interrupt
from adapters.wire.errors import DragomanError, ErrorCode

HEARTBEAT_SECONDS = 10.0
"""How long a stream is silent at most: proxies close what is silent for a minute, or for less."""

_Seen = Seen[AisdkEncoder]


def _refuse(failure: Failure) -> Response:
    return answers.refusal(failure.error, error_id=failure.error_id)


def _reading(
    position: int,
    *,
    turn: str | None = None,
    stop: int | None = None,
    omits: frozenset[int] = frozenset(),
) -> Reading:
    return Reading(
        position=position,
        heartbeat=wire.HEARTBEAT,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        headers=answers.headers(),
        first=wire.OPENING,
        turn=turn,
        stop=stop,
        omits=omits,
    )


# POST: say something, answer something, and stream what comes of it.


def _parse(body: bytes, _: Incoming) -> ChatRequest:
    return parse_chat(body)


def _needs(_: Incoming, given: ChatRequest) -> Action:
    return Action.WRITE if given.words else Action.ANSWER


def _chat_of(_: Incoming, given: ChatRequest) -> Target:
    return Chosen(given.chat)


def _is_of_page(incoming: Incoming) -> bool:
    """Say whether it is the frontend's history that counts, and not what the session has."""
    return bool(incoming.served[wire.MEMORY] == wire.PAGE)


def _afresh(incoming: Incoming, seen: _Seen, given: ChatRequest) -> bool:
    """Say whether a request is of another conversation than the session with its name."""
    return _is_of_page(incoming) and bool(given.words) and not seen.encoder.has_of(given.known)


def _open(incoming: Incoming, given: ChatRequest, place: Place) -> Opening:
    hands_over = _is_of_page(incoming)
    message, notes = first_words(given, place, hands_over=hands_over)
    options = {wire.CHAT_OPTION: given.chat, wire.NOTES: notes}
    before = given.before() if hands_over else ()
    return Opening([message], given.blobs, options=options, before=before)


def _meant(incoming: Incoming, seen: _Seen, given: ChatRequest) -> Meant:
    declines = incoming.served[wire.WORDS_WHILE_ASKED] == wire.DECLINE
    return meant_by(given, seen, declines=declines)


def _notes(incoming: Incoming, seen: _Seen, given: ChatRequest) -> Mapping[str, Any]:
    return {wire.NOTES: _meant(incoming, seen, given).notes}


def _commands(incoming: Incoming, seen: _Seen, given: ChatRequest) -> Sequence[AnyCommand]:
    meant = _meant(incoming, seen, given)
    check(meant, given, seen)
    return meant.commands


def _begun(_: Incoming, seen: _Seen, given: ChatRequest, command_id: str) -> Reading | None:
    found = seen.encoder.stream_of(command_id)
    if found is None:
        return None
    kept, cursor = found
    if cursor > kept.start:
        # In an open stream, which has begun for somebody else.
        return dataclasses.replace(
            _reading(cursor, turn=kept.key), first=answers.opening(cursor - 1, kept.message)
        )
    if kept.message == given.message:
        lacking = seen.encoder.lacking(given.message, given.steps)
        cursor = min(cursor, cursor if lacking is None else lacking.start)
    return _reading(cursor, turn=kept.key)


def _late(_: Incoming, seen: _Seen, given: ChatRequest) -> Reading:
    """Tell what came of a request that was answered elsewhere: what its message went on with."""
    first = late(given, seen)
    assert first is not None
    return _to_the_end(seen.encoder, first)


def _to_the_end(encoder: AisdkEncoder, first: Kept, omits: frozenset[int] = frozenset()) -> Reading:
    running = encoder.running
    if running is not None and running.message == first.message:
        return _reading(first.start, turn=running.key, omits=omits)
    return _reading(first.start, stop=encoder.end_of(first.message), omits=omits)


def _stops(incoming: Incoming) -> bool:
    return incoming.query.get(wire.ON_LEAVE) == wire.STOP


def _cut(_: Incoming, __: ChatRequest) -> bytes:
    return answers.cut()


# GET …/stream: come back to what runs.


def _chat(incoming: Incoming, _: Any) -> Target:
    return Chosen(incoming.names["session"])


def _resume(incoming: Incoming, seen: _Seen, __: None) -> Reading | Response:
    """Read the whole last message, where it has more than a page was answered with. One that stores
    nothing has nothing of what is asked, and says so."""
    encoder = seen.encoder
    lacks = incoming.query.get(wire.ON_RETURN) == wire.REPLAY and encoder.asks
    unread = bool(encoder.state.kept) and seen.unread(encoder.state.over_at)
    if not (encoder.shows_more or lacks or unread):
        return answers.nothing()
    begin = next(one for one in encoder.state.kept if one.message == encoder.state.message)
    return _to_the_end(encoder, begin, encoder.omitted())


# POST …/stop.


def _stop(_: Incoming, seen: _Seen, __: None) -> Sequence[AnyCommand]:
    return [Interrupt()] if seen.working else []


def _stopped(_: Incoming, __: _Seen, ___: None, ____: Done) -> Response:
    return answers.stopped()


# The rest.


def _nothing(incoming: Incoming, place: Place) -> Response:
    """Answer an unknown path or a wrong method."""
    path, method = "/" + incoming.names["tail"], incoming.method
    asked = astray.known(FACE.routes)
    hint = astray.hint(asked, method, path, place)
    if astray.fitting(asked, path):
        text = f"`{path}` does not take {method}. {hint}"
        raise DragomanError(text, code=ErrorCode.METHOD_NOT_ALLOWED)
    text = f"There is no `{method} {path[: astray.SHOWN]}` here. {hint}"
    raise DragomanError(text, code=ErrorCode.NOT_FOUND)


_PART = {
    "type": "tool-a",
    "toolCallId": "c1",
    "state": "approval-responded",
    "input": {},
    "approval": {"id": "{request}", "approved": False},
}
_ANSWER = {
    "id": "{session}",
    "trigger": wire.SUBMIT,
    "messages": [{"id": "msg-1", "role": "assistant", "parts": [_PART]}],
}


def _routes(prefix: str, form: str) -> list[Route]:
    """Return the routes below a prefix: each at the path that a page has by default, and at the
    base URL for one whose `api` is that."""
    say: Say[ChatRequest, AisdkEncoder] = Say(
        body=Body(_parse, takes="conversation"),
        needs=_needs,
        where=_chat_of,
        opens=_open,
        afresh=_afresh,
        admit=_notes,
        names=lambda _, given: names_of(given),
        anew=lambda _, seen, given: asks_anew(given, seen),
        commands=_commands,
        blobs=lambda given: given.blobs,
        looks_before=True,
        answer=TurnBody(
            headers=answers.headers,
            begun=_begun,
            over=lambda seen: seen.encoder.state.ended,
            cut=_cut,
            nothing=_late,
            stops=_stops,
        ),
    )
    resume: Follow[None, AisdkEncoder] = Follow(
        _chat, _resume, missing=answers.nothing, unknown=True
    )
    stop: Say[None, AisdkEncoder] = Say(where=_chat, commands=_stop, answer=_stopped, repeats=False)
    found: list[Route] = []
    for base in (f"{prefix}{wire.CHAT}", prefix):
        chat = f"{base}/{{session}}"
        example = Example(_ANSWER)
        found += [
            Route(
                method="POST", path=base, needs=Action.WRITE, example=example, does=say, form=form
            ),
            Route(method="GET", path=f"{chat}/stream", needs=Action.READ, does=resume, form=form),
            Route(method="POST", path=f"{chat}/stop", needs=Action.CONTROL, does=stop, form=form),
        ]
    return found


def _is_chat(body: Mapping[str, Any]) -> bool:
    listed = body.get("messages")
    messages = listed if isinstance(listed, list) else [body.get("message")]
    return any(isinstance(one, dict) and isinstance(one.get("parts"), list) for one in messages)


FACE = Face(
    framing="sse",
    noun="chat",
    clients=(Neighbour(title="an AI SDK UI page (`useChat`)", body=_is_chat),),
    refuse=_refuse,
    serve=lambda settings, _: settings,
    shaped_by=(wire.ASK_TOOL,),
    forms={"": {}, wire.OLD: {wire.RELEASE: wire.OLD}},
    routes=(
        *_routes("", ""),
        *_routes(wire.OLD_PREFIX, wire.OLD),
        Route(method="*", path="/{tail:.*}", needs=Action.READ, does=Tell(_nothing)),
    ),
)
