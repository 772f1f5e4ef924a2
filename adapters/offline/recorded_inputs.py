"""What the user of a recording said: requests of any dialect, read by their shape, and where they
belong in the log.

A recorded response body holds what an agent did, and often nothing of what it was told.
`read_inputs` takes the bodies of the requests that a frontend sent; `RecordedInputs` weaves them
into the events of the body: a message goes to the turn that it began, an answer to the interaction
that it resolved. What a source echoes itself is not said twice.

No sealed value is read: of the answer to a secret only the fact that it was given.

Why one module: requests of all dialects are told apart by their shape, and the shapes stand beside
each other.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from pydantic import ValidationError

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.interactions import answer_of, polarity
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import JsonError, is_json, parse_json

BY = "recording"
"""The `by` of woven inputs: no key of ours sent them."""

_OUTSIDE = frozenset(
    {
        *("session.started", "session.updated", "session.ended"),
        *("input.accepted", "input.settled", "native", "notice", "usage.reported"),
    }
)
"""What may stand between the start of a turn and the source's own echo of its message."""


class BadInput(DragomanError):
    """An input cannot be read. `line` counts from 1; `byte` is the offset in that line, from 0."""

    code = ErrorCode.RECORDING

    def __init__(self, reason: str, *, line: int, byte: int = 0) -> None:
        super().__init__(f"line {line}: byte {byte}: {reason}")
        self.reason = reason
        self.line = line
        self.byte = byte


# Requests to commands.


def read_inputs(data: bytes) -> list[cmd.AnyCommand]:
    """Return the commands of a file of requests: one JSON value, a list of them, or NDJSON.

    Each value is the body of a request of one of the dialects, or a canonical command.

    Raises:
        BadInput: the file is neither, or a value is not a request that says something.
    """
    commands: list[cmd.AnyCommand] = []
    for line, value in _values(data):
        try:
            found = list(_commands(value))
        except (ValidationError, binascii.Error, ValueError) as error:
            raise BadInput(f"no request: {_first_words(error)}", line=line) from error
        if not found:
            raise BadInput("no request of a known shape", line=line)
        commands += found
    return commands


def _values(data: bytes) -> Iterator[tuple[int, Any]]:
    lines = data.splitlines()
    try:
        whole = parse_json(data)
    except JsonError as error:
        told = [number for number, line in enumerate(lines, start=1) if line.strip()]
        if len(told) < 2 or not is_json(lines[told[0] - 1]):
            raise _at(data, error) from None
        for number in told:
            try:
                yield number, parse_json(lines[number - 1])
            except JsonError as wrong:
                raise BadInput(wrong.reason, line=number, byte=wrong.offset or 0) from None
        return
    if isinstance(whole, list):
        yield from ((1, value) for value in whole)
    else:
        yield 1, whole


def _at(data: bytes, error: JsonError) -> BadInput:
    offset = min(error.offset or 0, len(data))
    start = data.rfind(b"\n", 0, offset) + 1
    return BadInput(error.reason, line=data.count(b"\n", 0, offset) + 1, byte=offset - start)


def _first_words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"`{'.'.join(str(part) for part in first['loc'])}`: {first['msg']}"
    return str(error)


def _commands(value: Any) -> Iterator[cmd.AnyCommand]:
    """Return the commands of one request body, none when its shape is not known."""
    if isinstance(value, str):
        yield _message(value)
        return
    if not isinstance(value, dict):
        return
    kind = value.get("type")
    if isinstance(kind, str):
        if kind in cmd.COMMAND_TYPES:
            yield cmd.decode_command(value)
        elif kind in _EVENTS:
            yield _EVENTS[kind](value)
    elif isinstance(events := value.get("events", value.get("initial_events")), list):
        # Herm and Managed Agents: a batch of events; of the latter a create may have one too.
        for event in events:
            yield from _commands(event)
    elif isinstance(params := value.get("params"), dict):
        # Hermes JSON-RPC.
        make = _METHODS.get(str(value.get("method")))
        if make is not None:
            yield make(params)
    elif isinstance(value.get("body"), dict):
        # A request as a value with method and path around it.
        yield from _commands(value["body"])
    else:
        yield from _members(value)


def _members(value: dict[str, Any]) -> Iterator[cmd.AnyCommand]:
    """Return the commands of a body that says by its members what it is."""
    for response in _list(value.get("inputResponses")):
        if isinstance(response, dict):
            option = response.get("optionId")
            yield _answer(
                response.get("requestId"),
                text=response.get("text"),
                option_ids=(option,) if isinstance(option, str) else (),
            )
    if value.get("message") is not None:
        yield _message(value["message"], value.get("media"))
    elif isinstance(value.get("answer"), str):
        yield _answer(
            value.get("request_id"), text=value["answer"], reason=value.get("feedback") or None
        )
    elif isinstance(value.get("choice"), str):
        yield _choice(value)
    elif value.get("input") is not None:
        said = value["input"]
        if isinstance(said, list) and said and isinstance(said[-1], dict):
            said = said[-1].get("content")
        yield _message(said)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _message(said: Any, media: Any = None) -> cmd.SendMessage:
    content = [*_content(said), *_content(_list(media))]
    if not content:
        raise ValueError("a message says nothing")
    return cmd.SendMessage(content=tuple(content), policy="reject")


def _answer(
    request_id: Any,
    *,
    text: Any = None,
    reason: Any = None,
    option_ids: tuple[str, ...] = (),
    decision: Literal["allow", "deny"] | None = None,
    **fields: Any,
) -> cmd.AnswerInteraction:
    # Without an id the oldest open request is meant, as everywhere where a request has none.
    return cmd.AnswerInteraction(
        request_id=request_id if isinstance(request_id, str) else "",
        text=text,
        reason=reason,
        option_ids=option_ids,
        decision=decision,
        **fields,
    )


def _choice(value: dict[str, Any]) -> cmd.AnswerInteraction:
    decision, scope = polarity(value["choice"])
    return _answer(
        value.get("request_id"), decision=decision, scope=scope if decision == "allow" else None
    )


def _confirmation(value: dict[str, Any]) -> cmd.AnswerInteraction:
    return _answer(
        value.get("tool_use_id"),
        decision="allow" if value.get("result") == "allow" else "deny",
        scope=value.get("scope"),
        reason=value.get("deny_message"),
    )


def _custom_result(value: dict[str, Any]) -> cmd.AnswerInteraction:
    return _answer(
        value.get("custom_tool_use_id") or value.get("tool_use_id"),
        content=tuple(_content(value.get("content"))),
        is_error=bool(value.get("is_error")),
    )


def _clarification(value: dict[str, Any]) -> cmd.AnswerInteraction:
    words = value.get("answer")
    if words == "":
        return _answer(value.get("request_id"), skip=True)
    return _answer(value.get("request_id"), text=words)


def _sealed(value: dict[str, Any]) -> cmd.AnswerInteraction:
    return _answer(value.get("request_id"))


def _steer(value: dict[str, Any]) -> cmd.Steer:
    return cmd.Steer(text=value.get("message") or value.get("text") or "")


def _interrupt(value: dict[str, Any]) -> cmd.Interrupt:
    return cmd.Interrupt(note=value.get("message"))


_EVENTS: dict[str, Callable[[dict[str, Any]], cmd.AnyCommand]] = {
    "user.message": lambda value: _message(value.get("content")),
    "user.steer": _steer,
    "user.interrupt": _interrupt,
    "user.tool_confirmation": _confirmation,
    "user.custom_tool_result": _custom_result,
    "user.tool_result": _custom_result,
    "user.clarify_result": _clarification,
    "user.sudo_result": _sealed,
    "user.secret_result": _sealed,
}
"""Herm page, section 3.2; managed-agents page, the table of events that a client sends."""

_METHODS: dict[str, Callable[[dict[str, Any]], cmd.AnyCommand]] = {
    "prompt.submit": lambda params: _message(params.get("text")),
    "session.steer": _steer,
    "session.interrupt": _interrupt,
    "approval.respond": _choice,
    "clarify.respond": _clarification,
    "secret.respond": _sealed,
    "sudo.respond": _sealed,
}
"""Hermes-agent page, the table of JSON-RPC methods."""


def _content(said: Any) -> Iterator[ev.Content]:
    if isinstance(said, str):
        if said:
            yield ev.Text(text=said)
        return
    for block in _list(said):
        if isinstance(block, str):
            yield ev.Text(text=block)
        elif isinstance(block, dict):
            yield _block(block)


def _block(block: dict[str, Any]) -> ev.Content:
    """Return a content block, whichever dialect wrote it; one that is not known keeps its value."""
    if block.get("type") == "text" and isinstance(block.get("text"), str):
        return ev.Text(text=block["text"])
    source = block.get("source")
    if isinstance(source, dict):
        media_type = source.get("media_type")
        if isinstance(data := source.get("data"), str):
            return _blob(base64.b64decode(data), media_type)
        if isinstance(url := source.get("url"), str):
            return ev.File(media_type=media_type, ref=ev.Url(url=url))
    data, media_type = block.get("data"), block.get("mediaType")
    if block.get("type") == "file" and isinstance(data, str):
        if data.startswith("data:"):
            return _blob(base64.b64decode(data.partition(",")[2]), media_type, block)
        return ev.File(media_type=media_type, name=block.get("filename"), ref=ev.Url(url=data))
    return ev.Other(dialect=BY, value=block)


def _blob(data: bytes, media_type: str | None, block: dict[str, Any] | None = None) -> ev.File:
    return ev.File(
        media_type=media_type,
        name=(block or {}).get("filename"),
        size=len(data),
        ref=ev.Blob(sha256=hashlib.sha256(data).hexdigest()),
    )


# Commands into the events of a body.


@dataclasses.dataclass(slots=True)
class _PendingReceipt:
    """A message whose receipt the source may still echo."""

    command_id: str
    command: cmd.SendMessage
    turn_id: str | None


class RecordedInputs:
    """Weaves commands into raw events, in the order in which they were said.

    `session_id` is what ids derive from, `face` the dialect in which the user spoke. What found no
    place so far is counted by `left`.
    """

    def __init__(self, commands: Iterable[cmd.AnyCommand], *, session_id: str, face: str) -> None:
        self._queue = [
            (f"{session_id}-input-{number}", command)
            for number, command in enumerate(commands, start=1)
        ]
        self._face = face
        self._owed: _PendingReceipt | None = None
        self._said_before = False
        self._open: dict[str, ev.InteractionRequested] = {}

    @property
    def left(self) -> int:
        """Return how many commands have found no place."""
        return len(self._queue)

    def weave(self, events: Iterable[ev.Event]) -> list[ev.Event]:
        """Return the events with the inputs that belong between them."""
        out: list[ev.Event] = []
        for event in events:
            if event.thread_id != ev.MAIN:
                out.append(event)
                continue
            match event:
                case ev.MessageReceived(command_id=None):
                    out += self._echo(event)
                case ev.TurnStarted():
                    out += self._begin(event)
                case ev.GuidanceReceived(command_id=None):
                    out += self._guide(event)
                case ev.InteractionResolved():
                    out += [*self._receipt(), *self._resolve(event)]
                case ev.TurnEnded(outcome="interrupted"):
                    out += self._receipt()
                    found = self._take(lambda command: isinstance(command, cmd.Interrupt))
                    out += [] if found is None else self._accept(*found)
                    out.append(event)
                case _:
                    if event.TYPE not in _OUTSIDE:
                        out += self._receipt()
                    if isinstance(event, ev.InteractionRequested):
                        self._open[event.request_id] = event
                    out.append(event)
        return out

    def _take(self, wanted: Callable[[cmd.AnyCommand], bool]) -> tuple[str, cmd.AnyCommand] | None:
        for number, (_, command) in enumerate(self._queue):
            if wanted(command):
                return self._queue.pop(number)
        return None

    def _take_message(self) -> tuple[str, cmd.SendMessage] | None:
        found = self._take(lambda command: isinstance(command, cmd.SendMessage))
        if found is None or not isinstance(found[1], cmd.SendMessage):
            return None
        return found[0], found[1]

    def _accept(
        self, command_id: str, command: cmd.AnyCommand, request_id: str | None = None
    ) -> list[ev.Event]:
        is_message = isinstance(command, cmd.SendMessage)
        fields = command.model_dump(
            mode="json",
            exclude_defaults=True,
            exclude={"type", "content", "policy", "request_id", "sealed"},
        )
        return [
            ev.InputAccepted(
                thread_id=ev.MAIN,
                command_id=command_id,
                kind=command.KIND,
                message_id=command_id if is_message else None,
                content=command.content if isinstance(command, cmd.SendMessage) else None,
                request_id=request_id,
                policy=command.policy if isinstance(command, cmd.SendMessage) else None,
                name=command.TYPE,
                details=fields or None,
                by=BY,
                face=self._face,
            ),
            ev.InputSettled(thread_id=ev.MAIN, command_id=command_id, outcome="taken"),
        ]

    def _receipt(self) -> list[ev.Event]:
        """Say that the message which began the turn was received: the source does not."""
        owed, self._owed = self._owed, None
        if owed is None:
            return []
        return [
            ev.MessageReceived(
                thread_id=ev.MAIN,
                turn_id=owed.turn_id,
                message_id=owed.command_id,
                content=owed.command.content,
                command_id=owed.command_id,
                synthetic=True,
            )
        ]

    def _begin(self, event: ev.TurnStarted) -> list[ev.Event]:
        out = self._receipt()
        found = None if self._said_before else self._take_message()
        if found is not None:
            command_id, command = found
            out += self._accept(command_id, command)
            self._owed = _PendingReceipt(command_id, command, event.turn_id)
        if (found is not None or self._said_before) and event.cause in ("background", "unknown"):
            event = event.model_copy(update={"cause": "message"})
        self._said_before = False
        return [*out, event]

    def _echo(self, event: ev.MessageReceived) -> list[ev.Event]:
        out: list[ev.Event] = []
        if self._owed is not None:
            command_id, self._owed = self._owed.command_id, None
        else:
            found = self._take_message()
            if found is None:
                return [event]
            command_id = found[0]
            out += self._accept(*found)
            self._said_before = event.turn_id is None
        return [*out, event.model_copy(update={"command_id": command_id})]

    def _guide(self, event: ev.GuidanceReceived) -> list[ev.Event]:
        out = self._receipt()
        found = self._take(lambda command: isinstance(command, cmd.Steer))
        if found is None:
            return [*out, event]
        out += self._accept(*found)
        return [*out, event.model_copy(update={"command_id": found[0]})]

    def _resolve(self, event: ev.InteractionResolved) -> list[ev.Event]:
        request = self._open.pop(event.request_id, None)
        names = {"", event.request_id} | ({request.call_id} if request is not None else set())

        def answers(command: cmd.AnyCommand) -> bool:
            return isinstance(command, cmd.AnswerInteraction) and command.request_id in names

        found = self._take(answers)
        if found is None:
            return [event]
        command_id, command = found
        assert isinstance(command, cmd.AnswerInteraction)
        if request is not None and request.kind in ev.SEALED_KINDS:
            # Whatever form it was given in, it may be the secret.
            command = cmd.AnswerInteraction(request_id=command.request_id)
        out = self._accept(command_id, command, event.request_id)
        out.insert(
            1,
            ev.InteractionAnswered(
                thread_id=ev.MAIN, request_id=event.request_id, command_id=command_id, by=BY
            ),
        )
        return [*out, _with_answer(event, command, request)]


def _with_answer(
    event: ev.InteractionResolved,
    command: cmd.AnswerInteraction,
    request: ev.InteractionRequested | None,
) -> ev.InteractionResolved:
    """Return the resolution with what the answer says and the source does not."""
    update: dict[str, Any] = {}
    if event.outcome == "unknown":
        update["outcome"] = _outcome(command, request)
    if event.answer is None:
        given = answer_of(command)
        if given != ev.Answer():
            update["answer"] = given
    if event.scope is None and update.get("outcome", event.outcome) == "approved":
        update["scope"] = command.scope or "once"
    return event.model_copy(update=update) if update else event


def _outcome(command: cmd.AnswerInteraction, request: ev.InteractionRequested | None) -> str:
    if command.skip:
        return "skipped"
    decision = command.decision
    if decision is None and request is not None and request.kind == "approval":
        words = command.option_ids[0] if command.option_ids else command.text or ""
        decision, _ = polarity(words)
    if decision is None:
        return "answered"
    return "approved" if decision == "allow" else "denied"
