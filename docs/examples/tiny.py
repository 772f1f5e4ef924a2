"""Tiny: a whole dialect for frontends, the example of `docs/adding-a-dialect.md`.

`POST /say {"chat", "text"}` streams a turn as lines of JSON, `POST /answer {"chat", "ask", "text"}`
answers what the agent waits for, `GET /chats/{chat}?after=N` reads the lines after line N.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from multidict import CIMultiDict
from pydantic import TypeAdapter

from adapters.contract import faces
from adapters.contract.dialect import Dialect
from adapters.model import events as ev
from adapters.model.base import EncoderContext, Frame, Response, shape_of
from adapters.model.commands import AnswerInteraction, AnyCommand, SendMessage
from adapters.model.interactions import polarity
from adapters.serving.encoder import EncoderWriter, Handlers, TableEncoder
from adapters.wire.errors import ClientProtocolError
from adapters.wire.jsonvalue import JsonError, format_json, parse_json

TURNS_KEPT = 100
"""Messages whose body can still be asked for: a snapshot stays small however long a chat gets."""


# server.py: the log becomes frames.


@dataclasses.dataclass(slots=True)
class TinyState:
    lines: int = 0
    begun: dict[str, int] = dataclasses.field(default_factory=dict)  # message -> its first line
    running: str | None = None  # the message whose turn is open
    ended: bool = False


@dataclasses.dataclass(slots=True)
class TinyWriter(EncoderWriter[TinyState]):
    def line(self, type_: str, **members: Any) -> None:
        cursor, self.s.lines = self.s.lines, self.s.lines + 1
        self.out.append(Frame(cursor, format_json({"n": cursor, "type": type_, **members}) + b"\n"))

    def end(self, end: Literal["turn", "session"], turn: str | None = None) -> None:
        self.out[-1] = self.out[-1]._replace(end=end, turn_id=turn)


def input_accepted(w: TinyWriter, event: ev.InputAccepted) -> None:
    if event.kind == "message":
        w.s.begun[event.command_id] = w.s.lines
        if len(w.s.begun) > TURNS_KEPT:
            del w.s.begun[next(iter(w.s.begun))]


def input_settled(w: TinyWriter, event: ev.InputSettled) -> None:
    if event.outcome != "taken" and event.command_id in w.s.begun:
        # Its body is open and gets no turn.
        w.line("over", outcome=event.outcome)
        w.end("turn", event.command_id)


def asked(w: TinyWriter, event: ev.InteractionRequested) -> None:
    labels = [option.label for option in event.options or ()]
    w.line("ask", ask=event.request_id, kind=event.kind, text=event.prompt, options=labels)


def message_received(w: TinyWriter, event: ev.MessageReceived) -> None:
    w.s.running = event.command_id
    w.line("said", text=ev.text_of(event.content))


def tool_returned(w: TinyWriter, event: ev.ToolReturned) -> None:
    output = event.output if event.content is None else ev.text_of(event.content)
    w.line("result", call=event.call_id, output=output, failed=event.is_error)


def turn_ended(w: TinyWriter, event: ev.TurnEnded) -> None:
    turn, w.s.running = w.s.running, None
    w.line("over", outcome=event.outcome)
    w.end("turn", turn)


def session_ended(w: TinyWriter, event: ev.SessionEnded) -> None:
    w.s.ended = True
    w.line("closed", outcome=event.outcome)
    w.end("session")


def of_main(write: Callable[[TinyWriter, Any], None]) -> Callable[[TinyWriter, Any], None]:
    """Return a function that writes what the main thread does, and nothing of others."""
    return lambda w, event: write(w, event) if event.thread_id == ev.MAIN else None


HANDLERS: Handlers[TinyWriter] = {
    "input.accepted": input_accepted,
    "input.settled": input_settled,
    "interaction.requested": asked,
    "interaction.resolved": lambda w, e: w.line("answered", ask=e.request_id, outcome=e.outcome),
    "session.ended": session_ended,
    "message.received": of_main(message_received),
    "guidance.received": of_main(lambda w, e: w.line("said", text=e.text)),
    "text.delta": of_main(lambda w, e: w.line("text", text=e.text)),
    "tool.called": of_main(lambda w, e: w.line("tool", call=e.call_id, name=e.name, input=e.input)),
    "tool.returned": of_main(tool_returned),
    "result.produced": of_main(lambda w, e: w.line("value", value=e.value)),
    "turn.ended": of_main(turn_ended),
}


class TinyEncoder(TableEncoder[TinyWriter, TinyState]):
    """Shows the main thread, and what any thread asks, line by line."""

    dialect = "tiny"
    version = 1
    shape = shape_of(1, TinyState)

    def __init__(self, context: EncoderContext) -> None:
        writer = TinyWriter(TinyState(), context.session_id)
        super().__init__(writer, HANDLERS, lambda s: s.lines, TypeAdapter(TinyState))


# requests.py: requests become commands, errors become answers.


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What the body of a request says: a message, or the answer to `ask`."""

    chat: str
    text: str
    ask: str = ""


def parse_said(body: bytes, _: faces.Incoming) -> Said:
    try:
        value: Any = parse_json(body)
        given = [value["chat"], value["text"], value.get("ask", "")]
    except (JsonError, KeyError, TypeError, AttributeError):
        given = []
    if not given or not all(isinstance(text, str) for text in given):
        raise ClientProtocolError("Give `chat` and `text`, both strings.")
    return Said(*given)


def to_answer(said: Said, kind: str | None) -> AnswerInteraction:
    """Return the answer: a decision where the agent asks for one, else the words. Whether it fits
    the request, and whether that is open, the session checks."""
    if kind in ("question", "tool_result"):
        return AnswerInteraction(request_id=said.ask, text=said.text)
    return AnswerInteraction(request_id=said.ask, decision=polarity(said.text)[0])


STATUS = {"unauthorized": 401, "forbidden": 403, "not_found": 404, "unknown_interaction": 404}
STATUS |= {"busy": 409, "paused": 409, "already_answered": 409, "too_large": 413, "internal": 500}


def refuse(failure: faces.RequestFailure) -> Response:
    error = failure.error
    # A failure of ours is in the log under this id; what it says is not for the frontend.
    told = error.message if failure.error_id is None else f"See the log, {failure.error_id}."
    body = format_json({"error": str(error.code), "message": told}) + b"\n"
    return Response(STATUS.get(str(error.code), 400), head(), body)


def head() -> CIMultiDict[str]:
    kept = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-cache, no-transform"}
    return CIMultiDict(kept)


# routes.py: which requests there are, and what they do.


Chat: TypeAlias = faces.SessionView[TinyEncoder]


def chat_of(_: faces.Incoming, said: Said) -> faces.Target:
    return faces.ClientNamedSession(said.chat)


def opening(_: faces.Incoming, said: Said, __: faces.RouteContext) -> faces.Opening:
    return faces.Opening([message(said)])


def message(said: Said) -> SendMessage:
    return SendMessage(content=(ev.Text(text=said.text),), policy="reject")


def says(_: faces.Incoming, __: Chat, said: Said) -> Sequence[AnyCommand]:
    return [message(said)]


def answers(_: faces.Incoming, seen: Chat, said: Said) -> Sequence[AnyCommand]:
    kinds = {asked.request_id: asked.kind for asked in seen.open_interactions}
    return [to_answer(said, kinds.get(said.ask))]


def answered(_: faces.Incoming, __: Chat, ___: Said, ____: faces.SubmitResult) -> Response:
    return Response(200, head(), b"{}\n")


def reading(position: int, *, stop: int | None = None, turn: str | None = None) -> faces.FrameRange:
    return faces.FrameRange(position, b"\n", 10, head(), stop=stop, turn=turn)


def body_of(_: faces.Incoming, seen: Chat, __: Said, command_id: str) -> faces.FrameRange | None:
    first = seen.encoder.state.begun.get(command_id)
    return None if first is None else reading(first, turn=command_id)


def after(incoming: faces.Incoming, seen: Chat, _: None) -> faces.FrameRange | Response:
    try:
        first = int(incoming.query.get("after", "-1")) + 1
    except ValueError:
        raise ClientProtocolError("`after` is the number of a line.") from None
    first = max(first, 0)
    end = seen.encoder.next_cursor
    return Response(204) if first >= end else reading(first, stop=end)


FACE = faces.Face(
    framing="ndjson",
    refuse=refuse,
    noun="chat",
    routes=(
        faces.Route(
            method="POST",
            path="/say",
            needs=faces.Action.WRITE,
            example=faces.Example({"chat": "{session}", "text": "hello"}),
            does=faces.Submit(
                body=faces.RequestBody(parse_said, takes="text"),
                where=chat_of,
                opens=opening,
                commands=says,
                answer=faces.TurnBody(
                    headers=head, begun=body_of, over=lambda seen: seen.encoder.state.ended
                ),
            ),
        ),
        faces.Route(
            method="POST",
            path="/answer",
            needs=faces.Action.ANSWER,
            example=faces.Example({"chat": "{session}", "ask": "{request}", "text": "no"}),
            does=faces.Submit(
                body=faces.RequestBody(parse_said, takes="answer"),
                where=chat_of,
                commands=answers,
                answer=answered,
            ),
        ),
        faces.Route(
            method="GET",
            path="/chats/{session}",
            needs=faces.Action.READ,
            does=faces.Stream(
                lambda incoming, _: faces.ClientNamedSession(incoming.names["session"]), after
            ),
        ),
    ),
)

# adapters/registry.py: one line.

TINY = Dialect("tiny", encoder=TinyEncoder, face=FACE, only="frontends")
