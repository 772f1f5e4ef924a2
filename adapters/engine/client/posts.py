"""What an Engine is asked: a command as one of its four requests, and what no request carries."""

from __future__ import annotations

from typing import Any

from multidict import CIMultiDict, MultiDict

from adapters.driving.asks import PendingInteraction
from adapters.engine import wire
from adapters.engine.client.interactions import allows
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Ability, Call, Request, Support
from adapters.model.file_body import body_of, file_in_base64
from adapters.model.interactions import DECLINED
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import format_json

_IMPOSSIBLE_INTERRUPT = "the Engine has no route that stops a turn (engine page, section 5)"

ABILITIES: dict[str, Ability] = {
    "create_session": Ability(Support.EMULATED, "a task begins with its first message"),
    "send_message": Ability(Support.NATIVE),
    "steer": Ability(Support.EMULATED, "queued as the next message"),
    "interrupt": Ability(Support.IMPOSSIBLE, _IMPOSSIBLE_INTERRUPT),
    "answer": Ability(Support.NATIVE),
    "tool_result": Ability(Support.IMPOSSIBLE, "the Engine runs all tools itself (section 1)"),
    "compact": Ability(Support.IMPOSSIBLE, "the Engine compacts by itself (section 8.11)"),
    "clear": Ability(Support.IMPOSSIBLE, "the Engine has no route for it (section 5)"),
    "reset": Ability(Support.EMULATED, "the session ends here; the task is left alone"),
    "archive": Ability(Support.EMULATED, "kept here"),
    "archive_thread": Ability(Support.IMPOSSIBLE, "an Engine task has one thread (section 1)"),
    "delete": Ability(Support.EMULATED, "erased here; the Engine keeps its task (section 5)"),
    "define_outcome": Ability(Support.IMPOSSIBLE, "the Engine has no outcomes (section 5)"),
    "update_session": Ability(Support.EMULATED, "title and metadata are kept here"),
}

ABILITIES_DENYING: dict[str, Ability] = {
    **ABILITIES,
    "interrupt": Ability(Support.EMULATED, "a held permission is answered no"),
}
"""Where the settings let an interrupt deny what is held."""

_EXECUTE_OPTIONS = frozenset({"direct", "super_thinking"})
"""Members of `POST /execute` that only an Engine frontend can name (section 6.1)."""


# What cannot be carried.


def check_deniable(ask: PendingInteraction | None) -> None:
    """Check that an interrupt has a permission to deny: a "no" to a question would be a false
    answer (traps, 21).

    Raises:
        NotSupported: it has none.
    """
    if ask is None or ask.kind != "approval":
        raise NotSupported(
            "engine: `interrupt` is impossible now: it denies a held permission, and none is "
            "held (engine page, section 12)"
        )


def check(command: cmd.AnyCommand) -> None:
    """Check that a request carries a command's fields.

    Raises:
        NotSupported: it does not.
    """
    match command:
        case cmd.SendMessage():
            if command.output_schema is not None:
                raise NotSupported(
                    "engine: `output_schema` is impossible: no field carries it (6.1)"
                )
            if command.system is not None:
                raise NotSupported("engine: `system` is impossible: no field carries it (6.1)")
            _check_files(command.content)
        case cmd.AnswerInteraction():
            if command.system is not None:
                raise NotSupported("engine: `system` is impossible: no field carries it (10.1)")
            if command.sealed is not None:
                raise NotSupported("engine: a sealed answer is impossible: none is asked (8.8)")
            _check_files(command.content or ())


def _check_files(content: tuple[Any, ...]) -> None:
    for block in content:
        if isinstance(block, ev.File) and isinstance(block.ref, ev.FileId):
            raise NotSupported(
                f"engine: file `{block.ref.id}` is known to a {block.ref.dialect} backend only; "
                "send its bytes or a URL"
            )
        if isinstance(block, ev.Other) and block.dialect == wire.DIALECT:
            continue
        if not isinstance(block, ev.Text | ev.File):
            raise NotSupported(f"engine: a `{block.type}` block is impossible: no field carries it")


# Commands.


def execute(task: str, command_id: str, command: cmd.SendMessage) -> Call:
    """Return the request that begins a turn (section 6)."""
    text, media = _split(command.content)
    if command.client_context is not None:
        text = f"{_context_text(command.client_context)}\n\n{text}"
    body: dict[str, Any] = {"message": text, "task_id": task}
    if media:
        body["media"] = media
    if command.edit_of is not None:
        body["edit_message_id"] = command.edit_of
    if command.retry_of is not None:
        body["retry_message_id"] = command.retry_of
    options = command.options or {}
    for name in sorted(_EXECUTE_OPTIONS & options.keys()):
        body[name] = options[name]
    # What an Engine frontend sent and nobody knows goes on unchanged (section 6.1).
    body = {**(options.get(wire.MEMBERS_OPTION) or {}), **body}
    return _post("execute", wire.EXECUTE, body, command_id, stream=True)


def respond(
    task: str, command_id: str, command: cmd.AnswerInteraction, kind: ev.InteractionKind
) -> Call:
    """Return the request that answers what is asked (section 10.1)."""
    body: dict[str, Any] = {"task_id": task}
    if kind == "approval":
        body["answer"] = wire.YES if allows(command) else wire.NO
        feedback = command.reason or command.text
    else:
        words = command.text if command.text is not None else ", ".join(command.option_ids)
        # No field declines, and an empty answer may be refused.
        body["answer"] = DECLINED if command.skip else words
        feedback = command.reason
    if feedback:
        body["feedback"] = feedback
    if command.content:
        text, media = _split(command.content)
        if text and not body["answer"]:
            body["answer"] = text
        if media:
            body["content_blocks"] = media
    return _post("respond", wire.RESPOND, body, command_id)


def deny(task: str, command_id: str) -> Call:
    """Return the request by which an interrupt answers no."""
    body = {"task_id": task, "answer": wire.NO, "feedback": "stop"}
    return _post("respond", wire.RESPOND, body, command_id)


def _post(
    name: str, path: str, body: dict[str, Any], command_id: str, *, stream: bool = False
) -> Call:
    headers = CIMultiDict({"Content-Type": "application/json"})
    if stream:
        headers["Accept"] = "text/event-stream"
    request = Request("POST", path, headers=headers, body=body_of(body))
    return Call(name, request, stream=stream, command_id=command_id)


def _split(content: tuple[Any, ...]) -> tuple[str, list[dict[str, Any]]]:
    """Return the words and the media blocks of a content (section 6.2: plain base64)."""
    texts, media = [], []
    for block in content:
        match block:
            case ev.Text():
                texts.append(block.text)
            case ev.File(ref=ev.Blob(sha256=digest)):
                kind = block.media_type or "application/octet-stream"
                data = file_in_base64(digest)
                source = {"type": "base64", "media_type": kind, "data": data}
                media.append(wire.media_block(kind, source))
            case ev.File(ref=ev.Url(url=url)):
                # A URL tells no type; only images are documented (section 6.2).
                kind = block.media_type or "image/*"
                media.append(wire.media_block(kind, {"type": "url", "url": url}))
            case ev.Other(dialect=wire.DIALECT):
                media.append(block.value)
            case _:
                raise NotSupported(f"engine: a `{block.type}` block is impossible")
    return "\n".join(texts), media


def _context_text(context: object) -> str:
    """Return a frontend's context as words, as eve shows it to its model (eve page, 4.1)."""
    items = context if isinstance(context, list) else [context]
    return "\n\n".join(
        "Client context:\n" + (item if isinstance(item, str) else format_json(item).decode())
        for item in items
    )


# What is asked besides.


def pending(name: str, command_id: str | None = None) -> Call:
    """Return the question what is pending, which `name` says the reason of (section 10.3)."""
    return Call(name, Request("GET", wire.PENDING), command_id=command_id)


def replay(task: str, time: int | None) -> Call:
    """Return the request for what came from a time on, Unix ms (section 11)."""
    # From just before what we know, so that it is repeated whatever the boundary is (11.2).
    query = MultiDict({"after": str(max(0, (time or 0) - 1)), "task_id": task})
    headers = CIMultiDict({"Accept": "text/event-stream"})
    return Call("replay", Request("GET", wire.REPLAY, query, headers), stream=True)
