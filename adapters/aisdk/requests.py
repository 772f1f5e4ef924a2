"""Reads what a page posts: the whole conversation comes with each request, and little is new.

New are the words of the person at the end, and what answers an open request. A member that is null
counts as left out, what is unknown is skipped, and what is known and wrong is refused. No refusal
quotes the body: it may hold the value of a sealed request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from adapters.aisdk import wire
from adapters.aisdk.interactions import PageAnswer
from adapters.contract.faces.files import UNKNOWN_TYPE, is_data_url, media_type_of
from adapters.model.events import Content, Event, File, FileId, Text, Url
from adapters.serving import messages as said
from adapters.serving.conversation import ConversationBody, last_words, reads, words_of
from adapters.serving.members import (
    MAX_PARTS,
    NAME_LIMIT,
    file_in_url,
    name_of,
    object_of,
    refuse,
    text_of,
    web_url,
)
from adapters.serving.messages import PersonMessage

_OWN = frozenset({"id", "messages", "message", "trigger", "messageId"})
"""The members of a body that are the client's; all others are the application's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(ConversationBody):
    """What the body of a POST says. `alone` says that the last message came alone. `message` is the
    message of the agent that is to go on, which has `steps` steps; `given` is what may answer
    something in it, `older` that in the others."""

    chat: str
    again: bool
    edits: bool
    alone: bool
    message: str | None
    steps: int
    given: tuple[PageAnswer, ...]
    older: tuple[PageAnswer, ...]


def parse_chat(body: bytes) -> ChatRequest:
    """Return what the body of a POST says.

    Raises:
        ClientProtocolError: it is not what `useChat` sends.
    """
    value = object_of(body)
    trigger = value.get("trigger", wire.SUBMIT)
    if trigger not in (wire.SUBMIT, wire.REGENERATE):
        refuse(f"`trigger` is neither `{wire.SUBMIT}` nor `{wire.REGENERATE}`.")
    messages = _messages(value)
    named = value.get("messageId")
    if named is not None and not isinstance(named, str):
        refuse("`messageId` is not a string.")
    goes_on = _goes_on(messages, named, again=trigger == wire.REGENERATE)
    blobs: dict[str, bytes] = {}
    read = reads(lambda message, place: _content(message, place, blobs))
    words: tuple[PersonMessage, ...] = ()
    if goes_on is None and messages[-1].get("role") == "user":
        words = last_words(messages, ("assistant",), read)
    new = {one.id for one in words}
    continued = {} if goes_on is None else messages[goes_on]
    return ChatRequest(
        chat=name_of(value.get("id"), "id"),
        again=trigger == wire.REGENERATE,
        edits=bool(words) and words[-1].id == named,
        words=words,
        earlier=lambda ids: words_of(messages, {*ids} - new, read),
        before=lambda: _before(messages, new),
        alone=value.get("messages") is None,
        known=tuple(one["id"] for one in messages if isinstance(one.get("id"), str)),
        message=name_of(continued.get("id"), f"messages[{goes_on}].id") if continued else None,
        steps=_steps(continued) if continued else 0,
        given=() if goes_on is None else _answers(messages, (goes_on,)),
        older=_answers(messages, [at for at in range(len(messages)) if at != goes_on]),
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
        refuse("`messages` is not a list of messages.")
    for at, message in enumerate(given):
        if not isinstance(message, dict) or not isinstance(message.get("parts"), list):
            refuse(f"`messages[{at}]` is not a message: an object with `role` and `parts`.")
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


def _before(messages: Sequence[Mapping[str, Any]], new: Collection[str]) -> list[Event]:
    """Return what was said before what is new, as events."""
    found: list[Event] = []
    for at, message in enumerate(messages):
        name, role = str(message.get("id") or at), message.get("role")
        parts = [part for part in message["parts"] if isinstance(part, dict)]
        if role == "user" and message.get("id") not in new:
            content = [one for one in map(_named, parts) if one is not None]
            found.append(said.asked_by_person(name, content))
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
    kind, name = text_of(part.get("mediaType")), text_of(part.get("filename"))
    return File(media_type=kind, name=name, ref=FileId(dialect=wire.DIALECT, id=name or "-"))


def _done(name: str, part: Mapping[str, Any]) -> Sequence[Event]:
    """Return what a part of the agent's says that it has said or done."""
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return [said.said_by_agent(name, part["text"])]
    if not _is_call(part):
        return ()
    state, call = part.get("state"), str(part.get("toolCallId") or "-")
    if state not in ("output-available", "output-error"):
        return ()
    tool = str(part.get("toolName") or part["type"].removeprefix("tool-"))
    failed = state == "output-error"
    result = part.get("errorText" if failed else "output")
    return said.used_tool(call, tool, part.get("input"), result, failed=failed)


def _content(
    message: Mapping[str, Any], where: str, blobs: dict[str, bytes]
) -> tuple[Content, ...]:
    given = message["parts"]
    if len(given) > MAX_PARTS:
        refuse(f"`{where}.parts` has more than {MAX_PARTS} parts.")
    read = (_part(part, f"{where}.parts[{at}]", blobs) for at, part in enumerate(given))
    found = tuple(part for part in read if part is not None)
    if not found:
        refuse("The message of the user has neither a text nor a file.")
    return found


def _part(value: Any, where: str, blobs: dict[str, bytes]) -> Content | None:
    """Return the content of a part; None for one of another type, which is skipped."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        if not isinstance(value.get("text"), str):
            refuse(f"`{where}.text` is not a string.")
        return Text(text=value["text"])
    return _file(value, where, blobs) if kind == "file" else None


def _file(value: Mapping[str, Any], where: str, blobs: dict[str, bytes]) -> File:
    url, name = value.get("url"), text_of(value.get("filename"))
    media_type = media_type_of(value.get("mediaType"), f"{where}.mediaType")
    reference = value.get("providerReference")
    if isinstance(reference, dict) and not url:
        provider, known = next(iter(reference.items()), ("", None))
        if not provider or not isinstance(known, str):
            refuse(f"`{where}.providerReference` names no file.")
        file_id = FileId(dialect=provider[:NAME_LIMIT], id=known)
        return File(media_type=media_type or UNKNOWN_TYPE, name=name, ref=file_id)
    if isinstance(url, str) and is_data_url(url):
        return file_in_url(url, media_type, f"{where}.url", blobs, name)
    ref = Url(url=web_url(url, f"{where}.url"))
    return File(media_type=media_type or UNKNOWN_TYPE, name=name, ref=ref)


def _is_call(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and (kind == "dynamic-tool" or kind.startswith("tool-"))


def _answers(
    messages: Sequence[Mapping[str, Any]], places: Sequence[int]
) -> tuple[PageAnswer, ...]:
    """Return what may answer something: answered approvals, and outputs that the page gave."""
    found = (
        _answer(part, f"messages[{at}].parts[{number}]")
        for at in places
        if messages[at].get("role") == "assistant"
        for number, part in enumerate(messages[at]["parts"])
        if _is_call(part)
    )
    return tuple(one for one in found if one is not None)


def _answer(part: Mapping[str, Any], where: str) -> PageAnswer | None:
    approval, place = part.get("approval"), f"{where}.approval"
    match part.get("state"):
        case "approval-responded":
            approved = approval.get("approved") if isinstance(approval, dict) else None
            if not isinstance(approval, dict) or not isinstance(approved, bool):
                refuse(f"`{place}` has no `approved`, true or false.")
            name = name_of(approval.get("id"), f"{place}.id")
            return PageAnswer(name, approved, text_of(approval.get("reason")))
        case "output-denied":
            if not isinstance(approval, dict) or not isinstance(approval.get("id"), str):
                return None
            name = name_of(approval["id"], f"{place}.id")
            return PageAnswer(name, False, text_of(approval.get("reason")))
        case "output-available" if not part.get("providerExecuted"):
            name = name_of(part.get("toolCallId"), f"{where}.toolCallId")
            return PageAnswer(name, output=part.get("output"))
        case "output-error" if not part.get("providerExecuted"):
            name = name_of(part.get("toolCallId"), f"{where}.toolCallId")
            return PageAnswer(name, output=text_of(part.get("errorText")) or "", failed=True)
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
    # Each is told by name.
    return tuple(found[:32])
