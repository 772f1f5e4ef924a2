"""Reads a `RunAgentInput`: the whole conversation comes with each run, of which little is new.

New are the words of the person behind the last message of the agent, and what answers an open
request. So only those are read, whatever stands before them. A member that is null counts as left
out, what is unknown is skipped, and what is known and wrong is refused. No refusal quotes the body:
it may hold the value of a sealed request.

Published Python clients write `thread_id` for `threadId`, and so each member; the published Python
parsers read both. What is the application's own, such as a payload, is not looked into.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from adapters.agui import wire
from adapters.agui.asked import Resume
from adapters.contract.faces import history
from adapters.contract.faces.files import (
    UNKNOWN_TYPE,
    file_of,
    is_data_url,
    media_type_of,
    read_data_url,
)
from adapters.contract.faces.history import Words
from adapters.model.events import Content, Event, File, FileId, Text, Url
from adapters.wire.encodings import decode_base64
from adapters.wire.errors import ClientProtocolError
from adapters.wire.jsonvalue import JsonError, parse_json

NAME_LIMIT = 512
"""Characters of a thread, a run or a message's id: UUIDs have 36."""

MAX_PARTS = 256
"""Parts of a message, entries of `resume`, of `context` and new messages: each costs some
hundredths of a millisecond where it is read."""

_AGENTS = ("assistant", "tool", "reasoning", "activity")


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """A message of a tool: the result of a call of the frontend's, or an answer."""

    id: str
    call_id: str
    text: str
    failed: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RunInput:
    """What the body of a run says. `words` are the messages of the person behind all of the
    agent's, and `earlier` reads those of some ids before them. `before` reads all that was said
    before them. `known` are the ids of all messages, `results` those of tools, `asked` is the id of
    the person's last one, where the last of all is the result of a call of the agent's. `context`
    is what the agent shall know beside the words, `ignored` what reaches no agent, `history` says
    that an agent has spoken before. `blobs` has the bytes of inline files by hash."""

    thread: str
    run: str
    modern: bool
    asks: bool
    words: tuple[Words, ...]
    earlier: Callable[[Collection[str]], list[Words]]
    before: Callable[[], list[Event]]
    asked: str
    results: tuple[Told, ...]
    resume: tuple[Resume, ...]
    known: tuple[str, ...]
    context: tuple[str, ...]
    ignored: tuple[str, ...]
    history: bool
    blobs: Mapping[str, bytes]

    @property
    def told(self) -> Told | None:
        """Return the message of a tool that is the last of all, if it is one."""
        last = self.results[-1] if self.results else None
        return last if last is not None and last.id == self.known[-1] else None

    @property
    def digest(self) -> str:
        """Return what the same context has as well."""
        return hashlib.sha256("\0".join(self.context).encode("utf-8", "replace")).hexdigest()[:16]


def parse_run(body: bytes) -> RunInput:
    """Return what the body of a run says.

    Raises:
        ClientProtocolError: it is not a `RunAgentInput`.
    """
    value: Any = None
    # Refused outside of it: the error of the reader would be kept as the context of ours.
    with contextlib.suppress(JsonError):
        value = parse_json(body.removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(value, dict):
        _refuse("The body is not a JSON object.")
    messages = _list(value, "messages")
    blobs: dict[str, bytes] = {}
    words, results = _words(messages, blobs), _results(messages)
    if words and words[-1].wrong is not None:
        raise words[-1].wrong
    tools = [tool.get("name") for tool in _list(value, "tools") if isinstance(tool, dict)]
    return RunInput(
        thread=_name(value, "threadId"),
        run=_name(value, "runId"),
        modern=isinstance(_member(value, "protocolVersion"), str),
        asks=wire.ASK in tools,
        words=words,
        earlier=lambda ids: _earlier(messages, {*ids} - {one.id for one in words}, blobs),
        before=lambda: _before(messages, {one.id for one in words}),
        asked=_last_of_person(messages) if _ends_with_result(messages) else "",
        results=results,
        resume=_resume(value),
        known=tuple(
            message["id"]
            for message in messages
            if isinstance(message, dict) and isinstance(message.get("id"), str)
        ),
        context=_context(value, messages),
        ignored=_ignored(value, tools),
        history=any(isinstance(one, dict) and one.get("role") in _AGENTS for one in messages),
        blobs=blobs,
    )


def _words(messages: Sequence[Any], blobs: dict[str, bytes]) -> tuple[Words, ...]:
    found: list[tuple[int, Mapping[str, Any]]] = []
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if not isinstance(message, dict):
            _refuse(f"`messages[{at}]` is not an object.")
        role = message.get("role")
        if role in _AGENTS:
            break
        if role == "user":
            found.append((at, message))
    if len(found) > MAX_PARTS:
        _refuse(f"`messages` has more than {MAX_PARTS} of the user at its end.")
    return tuple(_said(message, f"messages[{at}]", blobs) for at, message in reversed(found))


def _earlier(messages: Sequence[Any], ids: Collection[str], blobs: dict[str, bytes]) -> list[Words]:
    """Return the messages of the person with some ids."""
    return [
        _said(message, f"messages[{at}]", blobs)
        for at, message in enumerate(messages)
        if isinstance(message, dict) and message.get("role") == "user" and message.get("id") in ids
    ]


def _before(messages: Sequence[Any], new: Collection[str]) -> list[Event]:
    """Return what was said before what is new, as events."""
    found: list[Event] = []
    calls: dict[str, tuple[str, Any]] = {}
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        name, content = str(message.get("id") or at), message.get("content")
        match message.get("role"):
            case "user" if message.get("id") not in new:
                found.append(history.asked_by_person(name, _named(content)))
            case "assistant":
                if isinstance(content, str) and content:
                    found.append(history.said_by_agent(name, content))
                calls |= _calls_of(message)
            case "tool":
                call = str(_member(message, "toolCallId") or "-")
                tool, given = calls.get(call, ("a tool", None))
                error = message.get("error")
                failed = isinstance(error, str) and bool(error)
                found += history.used_tool(call, tool, given, content or error, failed=failed)
    return found


def _named(content: Any) -> list[Content]:
    """Return the texts of a message, and the names of its files."""
    if isinstance(content, str):
        return [Text(text=content)]
    found: list[Content] = []
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            found.append(Text(text=part["text"]))
        elif isinstance(kind, str) and kind != "text":
            name = part.get("filename")
            name = name if isinstance(name, str) and name else kind
            found.append(File(name=name, ref=FileId(dialect=wire.DIALECT, id=name)))
    return found


def _calls_of(message: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the names and inputs of the calls that a message of the agent's has."""
    found: dict[str, tuple[str, Any]] = {}
    calls = _member(message, "toolCalls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            name = str(function.get("name") or "a tool")
            found[str(call.get("id"))] = (name, function.get("arguments"))
    return found


def _ends_with_result(messages: Sequence[Any]) -> bool:
    """Say whether the last message is the result of a call that one of the agent's has."""
    last = messages[-1] if messages else None
    if not isinstance(last, dict) or last.get("role") != "tool":
        return False
    name = _member(last, "toolCallId")
    return any(
        isinstance(call, dict) and call.get("id") == name
        for message in messages
        if isinstance(message, dict) and message.get("role") == "assistant"
        if isinstance(calls := _member(message, "toolCalls"), list)
        for call in calls
    )


def _last_of_person(messages: Sequence[Any]) -> str:
    """Return the id of the last message of the person; empty where there is none."""
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            name = message.get("id")
            return name if isinstance(name, str) else ""
    return ""


def _said(message: Mapping[str, Any], where: str, blobs: dict[str, bytes]) -> Words:
    name = _name(message, "id", f"{where}.")
    return history.read(name, lambda: _content(message.get("content"), where, blobs))


def _content(content: Any, where: str, blobs: dict[str, bytes]) -> tuple[Content, ...]:
    if isinstance(content, str):
        return (Text(text=content),)
    if not isinstance(content, list) or len(content) > MAX_PARTS:
        _refuse(f"`{where}.content` is neither a string nor a list of at most {MAX_PARTS} parts.")
    read = (_part(part, f"{where}.content[{at}]", blobs) for at, part in enumerate(content))
    return tuple(part for part in read if part is not None)


def _results(messages: Sequence[Any]) -> tuple[Told, ...]:
    """Return the messages of tools: any of them may answer what is open still."""
    found = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") != "tool":
            continue
        content, error = message.get("content"), message.get("error")
        if isinstance(content, list):
            texts = (part.get("text") for part in content if isinstance(part, dict))
            content = "".join(text for text in texts if isinstance(text, str))
        if not isinstance(content, str):
            _refuse(f"`messages[{at}].content` is not a string.")
        failed = isinstance(error, str) and bool(error)
        text = str(error) if failed and not content else content
        where = f"messages[{at}]."
        name = _name(message, "id", where)
        found.append(Told(name, _name(message, "toolCallId", where), text, failed))
    return tuple(found)


def _resume(value: Mapping[str, Any]) -> tuple[Resume, ...]:
    entries = _list(value, "resume")
    if len(entries) > MAX_PARTS:
        _refuse(f"`resume` has more than {MAX_PARTS} entries.")
    found = []
    for at, entry in enumerate(entries):
        if not isinstance(entry, dict):
            _refuse(f"`resume[{at}]` is not an object.")
        status = entry.get("status")
        if status not in (wire.RESOLVED, wire.CANCELLED):
            _refuse(f"`resume[{at}].status` is neither `resolved` nor `cancelled`.")
        name = _name(entry, "interruptId", f"resume[{at}].")
        found.append(Resume(name, status == wire.CANCELLED, entry.get("payload")))
    return tuple(found)


def _context(value: Mapping[str, Any], messages: Sequence[Any]) -> tuple[str, ...]:
    """Return what the agent shall know beside the words, as words: `context`, and what the
    application says to it."""
    found = []
    entries = _list(value, "context")
    if len(entries) > MAX_PARTS:
        _refuse(f"`context` has more than {MAX_PARTS} entries.")
    for at, entry in enumerate(entries):
        texts = (entry.get("description"), entry.get("value")) if isinstance(entry, dict) else ()
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            _refuse(f"`context[{at}]` has no `description` and `value`, both strings.")
        found.append(f"{texts[0]}: {texts[1]}" if texts[0] else str(texts[1]))
    for message in messages:
        if isinstance(message, dict) and message.get("role") in ("system", "developer"):
            content = message.get("content")
            if isinstance(content, str) and content:
                found.append(content)
    return tuple(found)


def _ignored(value: Mapping[str, Any], tools: Sequence[Any]) -> tuple[str, ...]:
    """Return the members that say something to an agent which no backend has a place for."""
    found = []
    if any(name != wire.ASK for name in tools):
        found.append("tools")
    if value.get("state") not in (None, {}, []):
        found.append("state")
    if _member(value, "forwardedProps") not in (None, {}):
        found.append("forwardedProps")
    return tuple(found)


def _part(value: Any, where: str, blobs: dict[str, bytes]) -> Content | None:
    """Return the content of a part; None for one of an unknown type, which is skipped."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text" and isinstance(value.get("text"), str):
        return Text(text=value["text"])
    if kind == "binary":
        return _binary(value, where, blobs)
    source = value.get("source") if kind in wire.MEDIA_PARTS else None
    if not isinstance(source, dict):
        return None
    where, given = f"{where}.source", source.get("value")
    if not isinstance(given, str) or not given:
        _refuse(f"`{where}.value` is missing, or is not a string.")
    match source.get("type"):
        case "data":
            return _inline(given, source, where, blobs)
        case "url":
            file = _at_url(given, source, where, "value", blobs)
            family = "application" if kind == "document" else kind
            return file.model_copy(update={"media_type": file.media_type or f"{family}/*"})
        case "file":
            provider = source.get("provider")
            name = provider if isinstance(provider, str) and provider else wire.DIALECT
            ref = FileId(dialect=name[:NAME_LIMIT], id=given)
            return File(media_type=_told_type(source), ref=ref)
        case _:
            return None


def _binary(value: Mapping[str, Any], where: str, blobs: dict[str, bytes]) -> Content | None:
    """Return a file in the form of clients before 1.0."""
    name = value.get("filename")
    found: File | None = None
    if isinstance(data := value.get("data"), str) and data:
        found = _inline(data, value, where, blobs)
    elif isinstance(url := value.get("url"), str) and url:
        found = _at_url(url, value, where, "url", blobs)
    elif isinstance(given := value.get("id"), str) and given:
        found = File(media_type=_told_type(value), ref=FileId(dialect=wire.DIALECT, id=given))
    if found is not None and isinstance(name, str) and name:
        return found.model_copy(update={"name": name})
    return found


def _at_url(
    url: str, source: Mapping[str, Any], where: str, member: str, blobs: dict[str, bytes]
) -> File:
    """Return the file at a URL, or in a data URL."""
    if is_data_url(url):
        given = _inline_type(source, where)
        named, content = read_data_url(url, f"{where}.{member}")
        return file_of(content, given or named or UNKNOWN_TYPE, blobs)
    if not re.match(r"(?i)https?://[^\s/?#]", url):
        _refuse(f"`{where}.{member}` is neither a data URL nor an http or https URL.")
    return File(media_type=_told_type(source), ref=Url(url=url))


def _inline(text: str, source: Mapping[str, Any], where: str, blobs: dict[str, bytes]) -> File:
    given = _inline_type(source, where)
    data: bytes | None = None
    with contextlib.suppress(ValueError):
        data = decode_base64(text)
    if data is None:
        _refuse(f"`{where}` has no base64.")
    return file_of(data, given or UNKNOWN_TYPE, blobs)


def _inline_type(source: Mapping[str, Any], where: str) -> str | None:
    return media_type_of(_member(source, "mimeType"), f"{where}.mimeType")


def _told_type(source: Mapping[str, Any]) -> str | None:
    """Return the type of a file that is elsewhere, which only its reader can check."""
    told = _member(source, "mimeType")
    return told if isinstance(told, str) and told else None


def _name(value: Mapping[str, Any], member: str, where: str = "") -> str:
    name = _member(value, member)
    if not isinstance(name, str) or not name or len(name) > NAME_LIMIT:
        _refuse(f"`{where}{member}` is not a string of 1 to {NAME_LIMIT} characters.")
    return name


def _member(value: Mapping[str, Any], name: str) -> Any:
    """Return a member by its name in camel case, or by that in snake case."""
    found = value.get(name)
    return value.get(_in_snake_case(name)) if found is None else found


@functools.cache
def _in_snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


def _list(value: Mapping[str, Any], member: str) -> list[Any]:
    given = value.get(member)
    if given is None:
        return []
    if not isinstance(given, list):
        _refuse(f"`{member}` is not a list.")
    return given


def _refuse(text: str) -> NoReturn:
    raise ClientProtocolError(text)
