"""The face: a page posts to its chat, comes back to a stream, and may stop the turn.

A turn never depends on who reads it: the body of the answer is one reader of the chat's streams.
Every path is there twice: below `/v5` it shows the form for `ai` 5.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.aisdk import answers, wire
from adapters.aisdk.intents import asks_anew, check, intent_of, late, names_of, notes_of
from adapters.aisdk.requests import ChatRequest, parse_chat
from adapters.aisdk.server import AisdkEncoder
from adapters.aisdk.state import NOTES, ChatStream
from adapters.contract.faces import (
    Action,
    Example,
    Face,
    FrameRange,
    Incoming,
    Neighbour,
    RequestFailure,
    Route,
    SessionView,
    Stream,
    Submit,
    SubmitResult,
)
from adapters.model.base import Response
from adapters.model.commands import AnyCommand, Interrupt
from adapters.serving.conversation import (
    Intent,
    all_other_paths,
    session_in_path,
    sse_reading,
    takes_conversation,
)

_Seen = SessionView[AisdkEncoder]

_reading = functools.partial(sse_reading, headers=answers.headers, first=wire.OPENING)


def _refuse(failure: RequestFailure) -> Response:
    return answers.refusal(failure.error, error_id=failure.error_id)


# POST: say something, answer something, and stream what comes of it.


def _intent(incoming: Incoming, seen: _Seen, given: ChatRequest) -> Intent:
    declines = incoming.served[wire.WORDS_WHILE_ASKED] == wire.DECLINE
    return intent_of(given, seen, declines=declines)


def _begun(_: Incoming, seen: _Seen, given: ChatRequest, command_id: str) -> FrameRange | None:
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


def _late(_: Incoming, seen: _Seen, given: ChatRequest) -> FrameRange:
    """Tell what came of a request that was answered elsewhere: what its message went on with."""
    first = late(given, seen)
    assert first is not None
    return _to_the_end(seen.encoder, first)


def _to_the_end(
    encoder: AisdkEncoder, first: ChatStream, omits: frozenset[int] = frozenset()
) -> FrameRange:
    running = encoder.running
    if running is not None and running.message == first.message:
        return _reading(first.start, turn=running.key, omits=omits)
    return _reading(first.start, stop=encoder.end_of(first.message), omits=omits)


# GET …/stream: come back to what runs.


def _resume(incoming: Incoming, seen: _Seen, __: None) -> FrameRange | Response:
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


def _stopped(_: Incoming, __: _Seen, ___: None, ____: SubmitResult) -> Response:
    return answers.stopped()


# The rest.

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
    say = takes_conversation(
        parse=parse_chat,
        name=lambda given: given.chat,
        noun="chat",
        notes=notes_of,
        form=NOTES,
        intent=_intent,
        check=check,
        names=names_of,
        anew=asks_anew,
        keys=(wire.CHAT_OPTION, wire.NOTES),
        headers=answers.headers,
        begun=_begun,
        late=_late,
        cut=answers.cut,
    )
    resume: Stream[None, AisdkEncoder] = Stream(
        session_in_path, _resume, missing=answers.nothing, unknown=True
    )
    stop: Submit[None, AisdkEncoder] = Submit(
        where=session_in_path, commands=_stop, answer=_stopped, repeats=False
    )
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


FACE: Face = Face(
    framing="sse",
    noun="chat",
    clients=(Neighbour(title="an AI SDK UI page (`useChat`)", body=_is_chat),),
    refuse=_refuse,
    serve=lambda settings, _: settings,
    forms={"": {}, wire.OLD: {wire.RELEASE: wire.OLD}},
    routes=(
        *_routes("", ""),
        *_routes(wire.OLD_PREFIX, wire.OLD),
        all_other_paths(lambda: FACE.routes),
    ),
)
