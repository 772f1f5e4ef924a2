"""The face: a run is asked for at the base URL; what is there is read below `/threads`.

A run never depends on who reads it: the body of the request that asked for it is one reader of the
thread's events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.agui import answers, wire
from adapters.agui.asked import interrupt_of
from adapters.agui.meant import asks_anew, check, first_words, late, meant_by, names_of
from adapters.agui.requests import RunInput, parse_run
from adapters.agui.server import AguiEncoder
from adapters.contract.faces import (
    Action,
    Body,
    Chosen,
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
from adapters.contract.faces.answers import sse_headers
from adapters.model.base import Response
from adapters.model.commands import AnyCommand
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode

HEARTBEAT_SECONDS = 10.0
"""How long a stream is silent at most: proxies close what is silent for a minute, or for less."""

_Seen = Seen[AguiEncoder]


def _refuse(failure: Failure) -> Response:
    said = failure.said
    if answers.INTERRUPTS in failure.error.details and isinstance(said, RunInput):
        return answers.asked_again(failure.error, said.thread, said.run)
    return answers.refusal(failure.error, error_id=failure.error_id)


def _reading(position: int, *, turn: str | None = None, stop: int | None = None) -> Reading:
    return Reading(
        position=position,
        heartbeat=wire.HEARTBEAT,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        headers=sse_headers(),
        turn=turn,
        stop=stop,
    )


# POST: ask for a run, and stream it.


def _parse(body: bytes, _: Incoming) -> RunInput:
    return parse_run(body)


def _needs(_: Incoming, given: RunInput) -> Action:
    return Action.WRITE if given.words else Action.ANSWER


def _thread_of(_: Incoming, given: RunInput) -> Target:
    return Chosen(given.thread)


def _is_of_page(incoming: Incoming) -> bool:
    """Say whether it is the frontend's history that counts, and not what the session has."""
    return bool(incoming.served[wire.MEMORY] == wire.PAGE)


def _afresh(incoming: Incoming, seen: _Seen, given: RunInput) -> bool:
    """Say whether a request is of another conversation than the session with its name."""
    return _is_of_page(incoming) and bool(given.words) and not seen.encoder.has_of(given.known)


def _open(incoming: Incoming, given: RunInput, place: Place) -> Opening:
    hands_over = _is_of_page(incoming)
    message, notes = first_words(given, place, hands_over=hands_over)
    options = {wire.THREAD_OPTION: given.thread, wire.NOTES: notes}
    before = given.before() if hands_over else ()
    return Opening([message], given.blobs, options=options, before=before)


def _notes(_: Incoming, seen: _Seen, given: RunInput) -> Mapping[str, Any]:
    return {wire.NOTES: meant_by(given, seen).notes}


def _commands(_: Incoming, seen: _Seen, given: RunInput) -> Sequence[AnyCommand]:
    meant = meant_by(given, seen)
    check(meant, given, seen)
    return meant.commands


def _blobs(given: RunInput) -> Mapping[str, bytes]:
    return given.blobs


def _begun(_: Incoming, seen: _Seen, given: RunInput, command_id: str) -> Reading | None:
    kept = seen.encoder.run_of(command_id)
    if kept is None:
        return None
    position = seen.encoder.start_for(kept, given.known, modern=given.modern)
    return _reading(position, turn=kept.key)


def _late(_: Incoming, seen: _Seen, given: RunInput) -> Reading | Response:
    """Tell what came of requests that were answered elsewhere."""
    encoder = seen.encoder
    position = encoder.start_behind(given.known, modern=given.modern)
    if position is None:
        open_ = [one for one in seen.open_interactions if one.kind != "tool_result"]
        interrupts = [interrupt_of(one) for one in open_]
        return answers.passed_over(given.thread, given.run, late(given, seen), interrupts)
    if encoder.state.run is not None:
        return _reading(position, turn=encoder.state.run.key)
    return _reading(position, stop=encoder.next_cursor)


def _stops(incoming: Incoming) -> bool:
    return incoming.query.get(wire.ON_LEAVE) == wire.STOP


def _cut(_: Incoming, __: RunInput) -> bytes:
    return answers.cut()


# GET /threads/…: read what there is.


def _thread(incoming: Incoming, _: None) -> Target:
    return Chosen(incoming.names["session"])


def _read(incoming: Incoming, seen: _Seen, _: None) -> Reading:
    """Read the runs of a thread, those after an event only, to the end of the one that is open."""
    encoder = seen.encoder
    after = incoming.headers.get("Last-Event-ID") or incoming.query.get("after", "0")
    if not re.fullmatch(r"[0-9]{1,16}", after):
        text = "`after` is the `id` of an event: an integer, 0 or more."
        raise ClientProtocolError(text)
    position = min(int(after) + 1, encoder.next_cursor)
    if encoder.state.run is not None:
        return _reading(position, turn=encoder.state.run.key)
    return _reading(position, stop=encoder.next_cursor)


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


_ANSWER = {
    "threadId": "{session}",
    "runId": "r1",
    "messages": [],
    "resume": [{"interruptId": "{request}", "status": wire.CANCELLED}],
}


def _is_run(body: Mapping[str, Any]) -> bool:
    names = (("threadId", "thread_id"), ("runId", "run_id"))
    return all(any(isinstance(body.get(name), str) for name in either) for either in names)


def _is_copilotkit(body: Mapping[str, Any]) -> bool:
    return body.get("method") in ("info", "agent/run", "agent/connect", "agent/stop")


_COPILOTKIT = Neighbour(
    title="a CopilotKit page",
    paths=(
        "/info",
        "/agent/{agent}/run",
        "/agent/{agent}/connect",
        "/agent/{agent}/stop/{thread}",
    ),
    body=_is_copilotkit,
    advice="Let it ask a CopilotKit runtime, whose `HttpAgent` gets `{base}` as its `url`.",
)
"""A page asks the runtime of CopilotKit, and that speaks AG-UI (`@copilotkit/runtime` 1.75)."""

FACE = Face(
    framing="sse",
    noun="thread",
    clients=(Neighbour(title="an AG-UI client", body=_is_run), _COPILOTKIT),
    refuse=_refuse,
    serve=lambda settings, _: settings,
    routes=(
        Route(
            method="POST",
            path=wire.RUN,
            needs=Action.WRITE,
            example=Example(_ANSWER),
            does=Say(
                body=Body(_parse, takes="conversation"),
                needs=_needs,
                where=_thread_of,
                opens=_open,
                afresh=_afresh,
                admit=_notes,
                names=lambda _, given: names_of(given),
                anew=lambda _, seen, given: asks_anew(given, seen),
                commands=_commands,
                blobs=_blobs,
                looks_before=True,
                answer=TurnBody(
                    headers=sse_headers,
                    begun=_begun,
                    over=lambda seen: seen.encoder.state.ended,
                    cut=_cut,
                    nothing=_late,
                    stops=_stops,
                ),
            ),
        ),
        Route(
            method="GET",
            path=wire.THREAD,
            needs=Action.READ,
            does=Follow(_thread, _read),
        ),
        Route(method="*", path="/{tail:.*}", needs=Action.READ, does=Tell(_nothing)),
    ),
)
