"""Reads a `RunAgentInput`: the whole conversation comes with each run, and little is new.

New are the words of the person behind the last message of the agent, and what answers an open
request. So only those are read, whatever stands before them. A member that is null counts as left
out, what is unknown is skipped, and what is known and wrong is refused. No refusal quotes the body:
it may hold the value of a sealed request.

Published Python clients write `thread_id` for `threadId`, and so each member; the published Python
parsers read both. What is the application's own, such as a payload, is not looked into.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from adapters.agui import wire
from adapters.agui.interactions import ResumeEntry
from adapters.contract.faces.files import is_data_url, media_type_of
from adapters.model.events import Content, Event, File, FileId, Text, Url
from adapters.serving import messages as said
from adapters.serving.conversation import ConversationBody, last_words, reads, words_of
from adapters.serving.members import (
    MAX_PARTS,
    NAME_LIMIT,
    file_in_base64,
    file_in_url,
    list_of,
    name_of,
    object_of,
    refuse,
    text_of,
    texts_of,
    web_url,
)

_AGENTS = ("assistant", "tool", "reasoning", "activity")


@dataclasses.dataclass(frozen=True, slots=True)
class ToolMessage:
    """A message of a tool: the result of a call of the frontend's, or an answer."""

    id: str
    call_id: str
    text: str
    failed: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunInput(ConversationBody):
    """What the body of a run says. `results` are the messages of tools. `asked` is the id of the
    person's last message, where the last of all is the result of a call of the agent's."""

    thread: str
    run: str
    modern: bool
    asks: bool
    asked: str
    results: tuple[ToolMessage, ...]
    resume: tuple[ResumeEntry, ...]
    members: Mapping[str, Any]

    def carried(self, dialect: str) -> Mapping[str, Any]:
        """Return the state that the application shares, and the members that only an agent of this
        dialect takes."""
        if dialect != wire.DIALECT:
            return {}
        members = {name: value for name, value in self.members.items() if name != "state"}
        found: dict[str, Any] = {}
        if "state" in self.members:
            found["shared_state"] = self.members["state"]
        return {**found, "options": {wire.MEMBERS_OPTION: members}} if members else found

    @property
    def told(self) -> ToolMessage | None:
        """Return the message of a tool that is the last of all, if it is one."""
        last = self.results[-1] if self.results else None
        return last if last is not None and last.id == self.known[-1] else None


def parse_run(body: bytes) -> RunInput:
    """Return what the body of a run says.

    Raises:
        ClientProtocolError: it is not a `RunAgentInput`.
    """
    value = object_of(body)
    messages = list_of(value.get("messages"), "messages")
    objects = [message for message in messages if isinstance(message, dict)]
    blobs: dict[str, bytes] = {}
    read = reads(lambda message, place: _content(message.get("content"), place, blobs))
    words = last_words(messages, _AGENTS, read)
    new = {one.id for one in words}
    listed = list_of(value.get("tools"), "tools")
    tools = [tool.get("name") for tool in listed if isinstance(tool, dict)]
    members = _members(value, listed)
    return RunInput(
        thread=_name(value, "threadId"),
        run=_name(value, "runId"),
        modern=isinstance(_member(value, "protocolVersion"), str),
        asks=wire.ASK in tools,
        words=words,
        earlier=lambda ids: words_of(messages, {*ids} - new, read),
        before=lambda: _before(messages, new),
        asked=_last_of_person(objects) if _ends_with_result(messages) else "",
        results=_results(messages),
        resume=_resume(value),
        known=tuple(one["id"] for one in objects if isinstance(one.get("id"), str)),
        context=_context(value, objects),
        ignored=tuple(members),
        members=members,
        history=any(one.get("role") in _AGENTS for one in objects),
        blobs=blobs,
    )


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
                found.append(said.asked_by_person(name, _named(content)))
            case "assistant":
                if isinstance(content, str) and content:
                    found.append(said.said_by_agent(name, content))
                calls |= _calls_of(message)
            case "tool":
                call = str(_member(message, "toolCallId") or "-")
                tool, given = calls.get(call, ("a tool", None))
                error = message.get("error")
                failed = text_of(error) is not None
                found += said.used_tool(call, tool, given, content or error, failed=failed)
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
            name = text_of(part.get("filename")) or kind
            found.append(File(name=name, ref=FileId(dialect=wire.DIALECT, id=name)))
    return found


def _calls_of(message: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the names and inputs of the calls that a message of the agent's has, by their ids."""
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


def _last_of_person(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the id of the last message of the person; empty where there is none."""
    names = (one.get("id") for one in reversed(messages) if one.get("role") == "user")
    return text_of(next(names, None)) or ""


def _content(content: Any, where: str, blobs: dict[str, bytes]) -> tuple[Content, ...]:
    if isinstance(content, str):
        return (Text(text=content),)
    if not isinstance(content, list) or len(content) > MAX_PARTS:
        refuse(f"`{where}.content` is neither a string nor a list of at most {MAX_PARTS} parts.")
    read = (_part(part, f"{where}.content[{at}]", blobs) for at, part in enumerate(content))
    return tuple(part for part in read if part is not None)


def _results(messages: Sequence[Any]) -> tuple[ToolMessage, ...]:
    """Return the messages of tools: any of them may answer what is open still."""
    found = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") != "tool":
            continue
        content, error = message.get("content"), text_of(message.get("error"))
        if isinstance(content, list):
            content = "".join(texts_of(content))
        if not isinstance(content, str):
            refuse(f"`messages[{at}].content` is not a string.")
        where = f"messages[{at}]."
        name, call = _name(message, "id", where), _name(message, "toolCallId", where)
        found.append(ToolMessage(name, call, content or error or "", error is not None))
    return tuple(found)


def _resume(value: Mapping[str, Any]) -> tuple[ResumeEntry, ...]:
    found = []
    for at, entry in enumerate(list_of(value.get("resume"), "resume", of="entries")):
        if not isinstance(entry, dict):
            refuse(f"`resume[{at}]` is not an object.")
        status = entry.get("status")
        if status not in (wire.RESOLVED, wire.CANCELLED):
            refuse(f"`resume[{at}].status` is neither `resolved` nor `cancelled`.")
        name = _name(entry, "interruptId", f"resume[{at}].")
        found.append(ResumeEntry(name, status == wire.CANCELLED, entry.get("payload")))
    return tuple(found)


def _context(value: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what the agent shall know beside the words, as words: `context`, and what the
    application says to it."""
    found = []
    for at, entry in enumerate(list_of(value.get("context"), "context", of="entries")):
        texts = (entry.get("description"), entry.get("value")) if isinstance(entry, dict) else ()
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            refuse(f"`context[{at}]` has no `description` and `value`, both strings.")
        found.append(f"{texts[0]}: {texts[1]}" if texts[0] else str(texts[1]))
    told = (one.get("content") for one in messages if one.get("role") in ("system", "developer"))
    return (*found, *(text for one in told if (text := text_of(one)) is not None))


def _members(value: Mapping[str, Any], listed: Sequence[Any]) -> dict[str, Any]:
    """Return the members that say something to an agent of this dialect, and that no other backend
    has a place for."""
    found: dict[str, Any] = {}
    tools = [tool for tool in listed if isinstance(tool, dict) and tool.get("name") != wire.ASK]
    if tools:
        found["tools"] = tools
    if value.get("state") not in (None, {}, []):
        found["state"] = value["state"]
    if (props := _member(value, "forwardedProps")) not in (None, {}):
        found["forwardedProps"] = props
    return found


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
    where, given = f"{where}.source", text_of(source.get("value"))
    if given is None:
        refuse(f"`{where}.value` is missing, or is not a string.")
    match source.get("type"):
        case "data":
            return file_in_base64(given, _inline_type(source, where), where, blobs)
        case "url":
            file = _at_url(given, source, where, "value", blobs)
            family = "application" if kind == "document" else kind
            return file.model_copy(update={"media_type": file.media_type or f"{family}/*"})
        case "file":
            name = text_of(source.get("provider")) or wire.DIALECT
            ref = FileId(dialect=name[:NAME_LIMIT], id=given)
            return File(media_type=text_of(_member(source, "mimeType")), ref=ref)
        case _:
            return None


def _binary(value: Mapping[str, Any], where: str, blobs: dict[str, bytes]) -> Content | None:
    """Return a file in the form of clients before 1.0."""
    found: File | None = None
    if (data := text_of(value.get("data"))) is not None:
        found = file_in_base64(data, _inline_type(value, where), where, blobs)
    elif (url := text_of(value.get("url"))) is not None:
        found = _at_url(url, value, where, "url", blobs)
    elif (given := text_of(value.get("id"))) is not None:
        ref = FileId(dialect=wire.DIALECT, id=given)
        found = File(media_type=text_of(_member(value, "mimeType")), ref=ref)
    if found is not None and (name := text_of(value.get("filename"))) is not None:
        return found.model_copy(update={"name": name})
    return found


def _at_url(
    url: str, source: Mapping[str, Any], where: str, member: str, blobs: dict[str, bytes]
) -> File:
    """Return the file in a data URL, or the one at a URL: its type only its reader can check."""
    if is_data_url(url):
        return file_in_url(url, _inline_type(source, where), f"{where}.{member}", blobs)
    ref = Url(url=web_url(url, f"{where}.{member}"))
    return File(media_type=text_of(_member(source, "mimeType")), ref=ref)


def _inline_type(source: Mapping[str, Any], where: str) -> str | None:
    return media_type_of(_member(source, "mimeType"), f"{where}.mimeType")


def _name(value: Mapping[str, Any], member: str, where: str = "") -> str:
    return name_of(_member(value, member), f"{where}{member}")


def _member(value: Mapping[str, Any], name: str) -> Any:
    """Return a member by its name in camel case, or by that in snake case."""
    found = value.get(name)
    return value.get(_in_snake_case(name)) if found is None else found


@functools.cache
def _in_snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)
