"""The face: a run is asked for at the base URL; what is there is read below `/threads`.

A run never depends on who reads it: the body of the request that asked for it is one reader of the
thread's events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from adapters.agui import answers, wire
from adapters.agui.intents import asks_anew, check, intent_of, late, names_of, notes_of
from adapters.agui.interactions import interrupt_of
from adapters.agui.requests import RunInput, parse_run
from adapters.agui.server import AguiEncoder
from adapters.agui.state import NOTES
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
)
from adapters.contract.faces.answers import sse_headers
from adapters.model.base import Response
from adapters.serving.conversation import (
    all_other_paths,
    session_in_path,
    sse_reading,
    takes_conversation,
)
from adapters.wire.errors import ClientProtocolError

_Seen = SessionView[AguiEncoder]


def _refuse(failure: RequestFailure) -> Response:
    said = failure.said
    if answers.INTERRUPTS in failure.error.details and isinstance(said, RunInput):
        return answers.asked_again(failure.error, said.thread, said.run)
    return answers.refusal(failure.error, error_id=failure.error_id)


# POST: ask for a run, and stream it.


def _begun(_: Incoming, seen: _Seen, given: RunInput, command_id: str) -> FrameRange | None:
    kept = seen.encoder.run_of(command_id)
    if kept is None:
        return None
    position = seen.encoder.start_for(kept, given.known, modern=given.modern)
    return sse_reading(position, turn=kept.key)


def _late(_: Incoming, seen: _Seen, given: RunInput) -> FrameRange | Response:
    """Tell what came of requests that were answered elsewhere."""
    encoder = seen.encoder
    position = encoder.start_behind(given.known, modern=given.modern)
    if position is None:
        open_ = [one for one in seen.open_interactions if one.kind != "tool_result"]
        interrupts = [interrupt_of(one) for one in open_]
        return answers.passed_over(given.thread, given.run, late(given, seen), interrupts)
    if encoder.state.run is not None:
        return sse_reading(position, turn=encoder.state.run.key)
    return sse_reading(position, stop=encoder.next_cursor)


# GET /threads/…: read what there is.


def _read(incoming: Incoming, seen: _Seen, _: None) -> FrameRange:
    """Read the runs of a thread, those after an event only, to the end of the one that is open."""
    encoder = seen.encoder
    after = incoming.headers.get("Last-Event-ID") or incoming.query.get("after", "0")
    if not re.fullmatch(r"[0-9]{1,16}", after):
        text = "`after` is the `id` of an event: an integer, 0 or more."
        raise ClientProtocolError(text)
    position = min(int(after) + 1, encoder.next_cursor)
    if encoder.state.run is not None:
        return sse_reading(position, turn=encoder.state.run.key)
    return sse_reading(position, stop=encoder.next_cursor)


# The rest.

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

FACE: Face = Face(
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
            does=takes_conversation(
                parse=parse_run,
                name=lambda given: given.thread,
                noun="thread",
                notes=notes_of,
                form=NOTES,
                intent=lambda _, seen, given: intent_of(given, seen),
                check=check,
                names=names_of,
                anew=asks_anew,
                keys=(wire.THREAD_OPTION, wire.NOTES),
                headers=sse_headers,
                begun=_begun,
                late=_late,
                cut=answers.cut,
            ),
        ),
        Route(
            method="GET",
            path=wire.THREAD,
            needs=Action.READ,
            does=Stream(session_in_path, _read),
        ),
        all_other_paths(lambda: FACE.routes),
    ),
)
