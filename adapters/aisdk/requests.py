"""Reads what a page posts: the whole conversation comes with each request, of which little is new.

New are the words of the person at the end, and what answers an open request. A member that is null
counts as left out, what is unknown is skipped, and what is known and wrong is refused. No refusal
quotes the body: it may hold the value of a sealed request.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from adapters.aisdk import wire
from adapters.aisdk.asked import Given
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
from adapters.wire.errors import ClientProtocolError
from adapters.wire.jsonvalue import JsonError, parse_json

NAME_LIMIT = 512
"""Characters of a chat's, a message's or a call's id: those of the client have 16."""

MAX_PARTS = 256
"""Parts of a message of the person: each costs some hundredths of a millisecond."""

IGNORED_MOST = 32
"""Members of the body that no agent hears of and that are told by name."""

_OWN = frozenset({"id", "messages", "message", "trigger", "messageId"})
"""The members of a body that are the client's; all others are the application's."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRequest:
    """What the body of a POST says. `words` are the messages of the person behind all of the
    agent's, where they are the last ones, and `earlier` reads those of some ids before them.
    `before` reads all that was said before, `known` are the ids of all messages, and `alone` says
    that the last message came alone.
    `message` is the message of the agent that is to go on, which has `steps` steps; `given` is what
    may answer something in it, `older` that in the others.
    `context` is what the application says to the agent, `ignored` what reaches no agent, `history`
    says that an agent has spoken before. `blobs` has the bytes of inline files by hash."""

    chat: str
    again: bool
    edits: bool
    words: tuple[Words, ...]
    earlier: Callable[[Collection[str]], list[Words]]
    before: Callable[[], list[Event]]
    known: tuple[str, ...]
    alone: bool
    message: str | None
    steps: int
    given: tuple[Given, ...]
    older: tuple[Given, ...]
    context: tuple[str, ...]
    ignored: tuple[str, ...]
    history: bool
    blobs: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """Return what the same context has as well."""
        return hashlib.sha256("\0".join(self.context).encode("utf-8", "replace")).hexdigest()[:16]


def parse_chat(body: bytes) -> ChatRequest:
    """Return what the body of a POST says.

    Raises:
        ClientProtocolError: it is not what `useChat` sends.
    """
    value: Any = None
    # Refused outside of it: the error of the reader would be kept as the context of ours.
    with contextlib.suppress(JsonError):
        value = parse_json(body.removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(value, dict):
        _refuse("The body is not a JSON object.")
    trigger = value.get("trigger", wire.SUBMIT)
    if trigger not in (wire.SUBMIT, wire.REGENERATE):
        _refuse(f"`trigger` is neither `{wire.SUBMIT}` nor `{wire.REGENERATE}`.")
    messages = _messages(value)
    named = value.get("messageId")
    if named is not None and not isinstance(named, str):
        _refuse("`messageId` is not a string.")
    goes_on = _goes_on(messages, named, again=trigger == wire.REGENERATE)
    blobs: dict[str, bytes] = {}
    found = () if goes_on is not None else _words(messages, blobs)
    if found and found[-1].wrong is not None:
        raise found[-1].wrong
    return ChatRequest(
        chat=_name(value, "id"),
        again=trigger == wire.REGENERATE,
        edits=bool(found) and found[-1].id == named,
        words=found,
        earlier=lambda ids: _earlier(messages, {*ids} - {one.id for one in found}, blobs),
        before=lambda: _before(messages, {one.id for one in found}),
        alone=value.get("messages") is None,
        known=tuple(one["id"] for one in messages if isinstance(one.get("id"), str)),
        message=None if goes_on is None else _name(messages[goes_on], "id", _at(goes_on)),
        steps=0 if goes_on is None else _steps(messages[goes_on]),
        given=() if goes_on is None else _given(messages, (goes_on,)),
        older=_given(messages, [at for at in range(len(messages)) if at != goes_on]),
        context=_context(messages),
        ignored=_ignored(value, messages),
        history=any(message.get("role") == "assistant" for message in messages),
        blobs=blobs,
    )


def _messages(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given = value.get("messages")
    if given is None and value.get("message") is not None:
        # The vendor's guides let an application send the last message alone.
        given = [value["message"]]
    if not isinstance(given, list) or not given:
        _refuse("`messages` is not a list of messages.")
    for at, message in enumerate(given):
        if not isinstance(message, dict) or not isinstance(message.get("parts"), list):
            _refuse(f"`messages[{at}]` is not a message: an object with `role` and `parts`.")
    return given


def _goes_on(
    messages: Sequence[Mapping[str, Any]], named: str | None, *, again: bool
) -> int | None:
    """Return the place of the agent's message that a request goes on with, if it does."""
    if again:
        return None
    last = len(messages) - 1
    for at in range(last, -1, -1):
        message = messages[at]
        if message.get("role") == "assistant" and (message.get("id") == named or at == last):
            return at
    return None


def _words(messages: Sequence[Mapping[str, Any]], blobs: dict[str, bytes]) -> tuple[Words, ...]:
    """Return the messages of the person behind all of the agent's, where one is the last."""
    if messages[-1].get("role") != "user":
        return ()
    found: list[int] = []
    for at in range(len(messages) - 1, -1, -1):
        role = messages[at].get("role")
        if role == "assistant":
            break
        if role == "user":
            found.append(at)
    if len(found) > MAX_PARTS:
        _refuse(f"`messages` has more than {MAX_PARTS} of the user at its end.")
    return tuple(_said(messages[at], _at(at), blobs) for at in reversed(found))


def _earlier(
    messages: Sequence[Mapping[str, Any]], ids: Collection[str], blobs: dict[str, bytes]
) -> list[Words]:
    """Return the messages of the person with some ids."""
    return [
        _said(message, _at(at), blobs)
        for at, message in enumerate(messages)
        if message.get("role") == "user" and message.get("id") in ids
    ]


def _before(messages: Sequence[Mapping[str, Any]], new: Collection[str]) -> list[Event]:
    """Return what was said before what is new, as events."""
    found: list[Event] = []
    for at, message in enumerate(messages):
        name, role = str(message.get("id") or at), message.get("role")
        parts = [part for part in message["parts"] if isinstance(part, dict)]
        if role == "user" and message.get("id") not in new:
            content = [one for one in map(_named, parts) if one is not None]
            found.append(history.asked_by_person(name, content))
        elif role == "assistant":
            for part in parts:
                found += _done(name, part)
    return found


def _named(part: Mapping[str, Any]) -> Content | None:
    """Return a text, or the name of a file."""
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return Text(text=part["text"])
    if part.get("type") != "file":
        return None
    kind, name = (
        value if isinstance(value := part.get(member), str) and value else None
        for member in ("mediaType", "filename")
    )
    return File(media_type=kind, name=name, ref=FileId(dialect=wire.DIALECT, id=name or "-"))


def _done(name: str, part: Mapping[str, Any]) -> Sequence[Event]:
    """Return what a part of the agent's says that it has said or done."""
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return [history.said_by_agent(name, part["text"])]
    if not isinstance(kind, str) or not (kind == "dynamic-tool" or kind.startswith("tool-")):
        return ()
    state, call = part.get("state"), str(part.get("toolCallId") or "-")
    if state not in ("output-available", "output-error"):
        return ()
    tool = str(part.get("toolName") or kind.removeprefix("tool-"))
    failed = state == "output-error"
    result = part.get("errorText" if failed else "output")
    return history.used_tool(call, tool, part.get("input"), result, failed=failed)


def _said(message: Mapping[str, Any], where: str, blobs: dict[str, bytes]) -> Words:
    return history.read(_name(message, "id", where), lambda: _content(message, where, blobs))


def _content(
    message: Mapping[str, Any], where: str, blobs: dict[str, bytes]
) -> tuple[Content, ...]:
    given = message["parts"]
    if len(given) > MAX_PARTS:
        _refuse(f"`{where}parts` has more than {MAX_PARTS} parts.")
    read = (_part(part, f"{where}parts[{at}]", blobs) for at, part in enumerate(given))
    found = tuple(part for part in read if part is not None)
    if not found:
        _refuse("The message of the user has neither a text nor a file.")
    return found


def _part(value: Any, where: str, blobs: dict[str, bytes]) -> Content | None:
    """Return the content of a part; None for one of another type, which is skipped."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        if not isinstance(value.get("text"), str):
            _refuse(f"`{where}.text` is not a string.")
        return Text(text=value["text"])
    return _file(value, where, blobs) if kind == "file" else None


def _file(value: Mapping[str, Any], where: str, blobs: dict[str, bytes]) -> File:
    given, url, name = value.get("mediaType"), value.get("url"), value.get("filename")
    media_type = media_type_of(given, f"{where}.mediaType")
    kept = name if isinstance(name, str) and name else None
    reference = value.get("providerReference")
    if isinstance(reference, dict) and not url:
        provider, known = next(iter(reference.items()), ("", None))
        if not provider or not isinstance(known, str):
            _refuse(f"`{where}.providerReference` names no file.")
        file_id = FileId(dialect=provider[:NAME_LIMIT], id=known)
        return File(media_type=media_type or UNKNOWN_TYPE, name=kept, ref=file_id)
    if isinstance(url, str) and is_data_url(url):
        named, content = read_data_url(url, f"{where}.url")
        return file_of(content, media_type or named or UNKNOWN_TYPE, blobs, name=kept)
    if not isinstance(url, str) or not re.match(r"(?i)https?://[^\s/?#]", url):
        _refuse(f"`{where}.url` is neither a data URL nor an http or https URL.")
    return File(media_type=media_type or UNKNOWN_TYPE, name=kept, ref=Url(url=url))


def _given(messages: Sequence[Mapping[str, Any]], places: Sequence[int]) -> tuple[Given, ...]:
    """Return what may answer something: answered approvals, and outputs that the page gave."""
    found = []
    for at in places:
        if messages[at].get("role") != "assistant":
            continue
        for number, part in enumerate(messages[at]["parts"]):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "dynamic-tool" or (isinstance(kind, str) and kind.startswith("tool-")):
                given = _answer(part, f"{_at(at)}parts[{number}]")
                if given is not None:
                    found.append(given)
    return tuple(found)


def _answer(part: Mapping[str, Any], where: str) -> Given | None:
    match part.get("state"):
        case "approval-responded":
            approval = part.get("approval")
            approved = approval.get("approved") if isinstance(approval, dict) else None
            if not isinstance(approval, dict) or not isinstance(approved, bool):
                _refuse(f"`{where}.approval` has no `approved`, true or false.")
            reason = approval.get("reason")
            name = _name(approval, "id", f"{where}.approval.")
            return Given(name, approved, reason if isinstance(reason, str) and reason else None)
        case "output-available" if not part.get("providerExecuted"):
            return Given(_name(part, "toolCallId", f"{where}."), output=part.get("output"))
        case "output-denied":
            approval = part.get("approval")
            if not isinstance(approval, dict) or not isinstance(approval.get("id"), str):
                return None
            reason = approval.get("reason")
            words = reason if isinstance(reason, str) and reason else None
            return Given(_name(approval, "id", f"{where}.approval."), False, words)
        case "output-error" if not part.get("providerExecuted"):
            text = part.get("errorText")
            name = _name(part, "toolCallId", f"{where}.")
            return Given(name, output=text if isinstance(text, str) else "", failed=True)
        case _:
            return None


def _steps(message: Mapping[str, Any]) -> int:
    """Return how many steps a message shows."""
    parts = message["parts"]
    return sum(isinstance(part, dict) and part.get("type") == "step-start" for part in parts)


def _context(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what the application says to the agent: its `system` messages."""
    return tuple(
        part["text"]
        for message in messages
        if message.get("role") == "system"
        for part in message["parts"][:MAX_PARTS]
        if isinstance(part, dict) and part.get("type") == "text"
        if isinstance(part.get("text"), str) and part["text"]
    )[:MAX_PARTS]


def _ignored(value: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the members that say something to an agent which no backend has a place for."""
    found = [name[:NAME_LIMIT] for name in value if name not in _OWN and value[name] is not None]
    said = [message for message in messages if message.get("role") == "user"][-1:]
    if any(message.get("metadata") not in (None, {}) for message in said):
        found.append("messages[].metadata")
    kinds = {
        str(part.get("type"))
        for message in said
        for part in message["parts"]
        if isinstance(part, dict) and part.get("type") not in ("text", "file")
    }
    found += [f"messages[].parts: {kind[:NAME_LIMIT]}" for kind in sorted(kinds)]
    return tuple(found[:IGNORED_MOST])


def _at(place: int) -> str:
    return f"messages[{place}]."


def _name(value: Mapping[str, Any], member: str, where: str = "") -> str:
    name = value.get(member)
    if not isinstance(name, str) or not name or len(name) > NAME_LIMIT:
        _refuse(f"`{where}{member}` is not a string of 1 to {NAME_LIMIT} characters.")
    return name


def _refuse(text: str) -> NoReturn:
    raise ClientProtocolError(text)
