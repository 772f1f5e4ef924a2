"""What an AG-UI agent is asked: every command that reaches it is a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multidict import CIMultiDict

from adapters.agui import wire
from adapters.agui.client import messages
from adapters.driving.runs import Run
from adapters.driving.transcript import system_text
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Ability, Call, Request, Response, Support
from adapters.model.conversation import Conversation
from adapters.model.file_body import restored
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import format_json

_NO_ROUTE = "the protocol has one request, a run"

ABILITIES: dict[str, Ability] = {
    "create_session": Ability(Support.EMULATED, "a thread begins with its first run"),
    "send_message": Ability(Support.NATIVE),
    "steer": Ability(Support.EMULATED, "queued as the next message"),
    "interrupt": Ability(
        Support.EMULATED,
        "the body of the run is left: Dragoman no longer listens, and the agent may work on",
    ),
    "answer": Ability(Support.NATIVE),
    "tool_result": Ability(Support.IMPOSSIBLE, "the agent runs its own tools itself"),
    "compact": Ability(Support.IMPOSSIBLE, _NO_ROUTE),
    "clear": Ability(Support.IMPOSSIBLE, _NO_ROUTE),
    "reset": Ability(Support.EMULATED, "the session ends here; what the agent keeps, it keeps"),
    "archive": Ability(Support.EMULATED, "kept here"),
    "archive_thread": Ability(Support.IMPOSSIBLE, _NO_ROUTE),
    "delete": Ability(Support.EMULATED, "erased here; what the agent keeps, it keeps"),
    "define_outcome": Ability(Support.IMPOSSIBLE, _NO_ROUTE),
    "update_session": Ability(Support.EMULATED, "title and metadata are kept here"),
}


# What cannot be carried.


def check(command: cmd.AnyCommand) -> None:
    """Check that a run carries a command's fields.

    Raises:
        NotSupported: it does not.
    """
    match command:
        case cmd.SendMessage():
            if command.output_schema is not None:
                raise NotSupported("agui: `output_schema` is impossible: no member carries it")
            _check_blocks(command.content)
        case cmd.AnswerInteraction():
            if command.system is not None:
                raise NotSupported("agui: `system` beside an answer is impossible")
            if command.sealed is not None:
                raise NotSupported("agui: a sealed answer is impossible: none is asked")
            if any(isinstance(block, ev.File) for block in command.content or ()):
                raise NotSupported("agui: a file in an answer is impossible: it has words only")
            _check_blocks(command.content or ())


def _check_blocks(content: Sequence[Any]) -> None:
    for block in content:
        if isinstance(block, ev.File) and isinstance(block.ref, ev.FileId):
            raise NotSupported(
                f"agui: file `{block.ref.id}` is known to a {block.ref.dialect} backend only; "
                "send its bytes or a URL"
            )
        if not isinstance(block, ev.Text | ev.File):
            raise NotSupported(f"agui: a `{block.type}` block is impossible: no part carries it")


# The request.


def said(command_id: str, command: cmd.SendMessage) -> list[bytes]:
    """Return the messages that a command says."""
    out: list[dict[str, Any]] = []
    if words := system_text(command.system):
        out.append({"id": f"{command_id}-system", "role": "system", "content": words})
    if command.content:
        parts = messages.parts_of(command.content)
        out.append({"id": command_id, "role": "user", "content": parts})
    return [format_json(one) for one in out]


def run(
    thread: str,
    run: Run,
    said: Conversation,
    pieces: Sequence[bytes],
    answers: tuple[Sequence[dict[str, Any]], dict[str, Any] | None],
    **newest: Any,
) -> Call:
    """Return the request of a run, with `pieces` of the conversation that was `said`, and the
    `resume` and `command` that answer. `newest` has what the message with it says of what goes
    along each time: `context`, `options`, `shared_state`."""
    context, options, state = (
        newest.get(name, getattr(said, name)) for name in ("context", "options", "shared_state")
    )
    resume, command = answers
    given = options.get(wire.MEMBERS_OPTION) or {}
    props = given.get("forwardedProps")
    if command is not None:
        props = {**(props if isinstance(props, dict) else {}), "command": command}
    members: dict[str, Any] = {
        "threadId": thread,
        "runId": run.run_id,
        "protocolVersion": wire.PROTOCOL_VERSION,
        "state": {} if state is None else state,
        "tools": given.get("tools", []),
        "context": context_of(context),
        "forwardedProps": {} if props is None else props,
    }
    if resume:
        members["resume"] = list(resume)
    body = b'%b,"messages":[%b]}' % (format_json(members)[:-1], b",".join(pieces))
    headers = CIMultiDict({"Content-Type": "application/json", "Accept": "text/event-stream"})
    request = Request("POST", wire.RUN, headers=headers, body=restored(body))
    first, *also = run.commands
    return Call("run", request, stream=True, command_id=first, also=tuple(also))


def context_of(context: Any) -> list[dict[str, str]]:
    """Return what a frontend says of its surroundings as the items of `context`."""
    items = context if isinstance(context, list) else [] if context is None else [context]
    out: list[dict[str, str]] = []
    for item in items:
        match item:
            case {"description": str(what), "value": str(value)}:
                out.append({"description": what, "value": value})
            case str():
                out.append({"description": "Client context", "value": item})
            case _:
                value = format_json(item).decode()
                out.append({"description": "Client context", "value": value})
    return out


def leave(command_id: str) -> Call:
    """Return what stops a run: its body is left."""
    return Call("leave", Request("POST", wire.RUN), command_id=command_id, leaves=True)


# What it is answered with.


def refusal(response: Response) -> ev.ErrorInfo:
    """Return what a refusal says: the protocol has no form for one, and servers have several."""
    if response.status == 401:
        return raw.credential_refused(response)
    match raw.json_of(response):
        case {"error": str(words)} | {"message": str(words)} | {"detail": str(words)}:
            return raw.refused(response, None, words)
        case {"error": {"message": str(words)}}:
            return raw.refused(response, None, words)
        case [{"msg": str(words), "loc": list(place)}, *_]:
            return raw.refused(response, None, _placed(words, place))
        case {"detail": [{"msg": str(words), "loc": list(place)}, *_]}:
            return raw.refused(response, None, _placed(words, place))
        case None if _is_plain(response):
            return raw.refused(response, None, response.body.decode("utf-8", "replace"))
        case _:
            return raw.quoted(response)


def _is_plain(response: Response) -> bool:
    """Say whether an answer is a line for people, as frameworks write one."""
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return kind == "text/plain" and 0 < len(response.body) <= 1024


def _placed(words: str, place: list[Any]) -> str:
    return f"{'.'.join(map(str, place))}: {words}"
