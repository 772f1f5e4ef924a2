"""Reads the requests of the Herm face: bodies and queries to values.

It takes what section 9 of the herm page asks a server to take: all three spellings of a batch,
unknown fields, an id or a number as a position. It refuses with 400 `validation_error` what section
3 does not allow, and a batch as a whole. No refusal quotes a value of the body: it may be a
password.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from adapters.herm import wire
from adapters.model.commands import Sealed
from adapters.model.interactions import SCOPES, Decision, Scope
from adapters.model.session_info import TITLE_CHARACTERS
from adapters.serving.cursors import NUMBER, make_cursor, parts_of
from adapters.serving.members import refuse
from adapters.wire.jsonvalue import JsonError, parse_json

_Json = dict[str, Any]

MAX_EVENTS = 100
"""Events of a batch, as many as a message has blocks (section 3.2): each is a command."""


@dataclasses.dataclass(frozen=True, slots=True)
class HermCreate:
    """A create, or the changes of a PATCH (sections 2.2 and 2.3)."""

    user_id: str | None = None
    title: str | None = None
    metadata: _Json | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class UserEvent:
    """One `user.*` event that keeps to section 3.2; of a batch, `place` is its path in the body."""

    type: str
    place: str
    text: str = ""
    blocks: tuple[str, ...] = ()
    request: str = ""
    decision: Decision | None = None
    scope: Scope | None = None
    is_error: bool = False
    sealed: Sealed | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ListQuery:
    """What a reader of a list asks for (section 4.2).

    `after` is a sequence, exclusive. `pin` is the highest sequence that the pages of this list
    have.
    """

    limit: int = wire.LIMIT_DEFAULT
    after: int | None = None
    pin: int | None = None
    descending: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class SessionQuery:
    """What a list of sessions is narrowed to (section 2.3); `before` is where its page begins."""

    limit: int = wire.LIMIT_DEFAULT
    before: int | None = None
    agent_id: str | None = None
    user_id: str | None = None
    status: str | None = None
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


# Bodies.


def _value(body: bytes) -> Any:
    # Refused outside of it: the error of the reader, kept as the context of ours, may quote it.
    with contextlib.suppress(JsonError):
        return parse_json(body)
    refuse("The body must be JSON, in UTF-8.")


def parse_create(body: bytes) -> HermCreate:
    """Return what the body of a create or of a PATCH says; an empty one says nothing.

    Raises:
        ClientProtocolError: it is not a JSON object, or a member has the wrong type.
    """
    members = _value(body) if body.strip() else {}
    if not isinstance(members, dict):
        refuse("The body must be a JSON object.")
    metadata = members.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        refuse("`metadata` must be an object.")
    return HermCreate(
        user_id=_label(members, "userId"), title=_label(members, "title"), metadata=metadata
    )


def _label(members: _Json, name: str) -> str | None:
    value = members.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        refuse(f"`{name}` must be a string.")
    # Not documented; a label is never longer.
    if len(value) > TITLE_CHARACTERS:
        refuse(f"`{name}` must have at most {TITLE_CHARACTERS} characters.")
    return value


def parse_events(body: bytes) -> tuple[UserEvent, ...]:
    """Return the batch of a POST of events, checked as a whole (sections 3 and 3.1).

    Raises:
        ClientProtocolError: it is not a batch, an event breaks section 3.2, or two of them cannot
        go
            together.
    """
    value = _value(body)
    prefix = ""
    if isinstance(value, dict) and "events" in value:
        value, prefix = value["events"], "events"
    elif isinstance(value, dict) and "type" in value:
        value = [value]
    if not isinstance(value, list):
        refuse("The body must be an object with `events`, an array of events, or one event.")
    if not value:
        refuse("`events` must have at least one event.")
    if len(value) > MAX_EVENTS:
        refuse(f"The batch has more than {MAX_EVENTS} events.")
    events = tuple(
        _event(item, f"{prefix}[{n}]" if prefix or len(value) > 1 else "event")
        for n, item in enumerate(value)
    )
    if sum(event.type == "user.message" for event in events) > 1:
        refuse("A request may have at most one `user.message`.")
    answered = [event.request for event in events if event.request]
    if len(set(answered)) != len(answered):
        refuse("A request may answer each id once.")
    return events


def _event(item: Any, place: str) -> UserEvent:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        refuse(f"`{place}` must be an object with a `type`.")
    parse = _EVENTS.get(item["type"])
    if parse is None:
        known = ", ".join(f"`{name}`" for name in _EVENTS)
        refuse(f"`{place}.type` is not one of {known}.")
    return parse(item, place)


def _message(item: _Json, place: str) -> UserEvent:
    if item.get("attachments"):
        refuse(f"`{place}.attachments` is not taken: only text blocks are (section 3.1).")
    return UserEvent("user.message", place, blocks=_content(item, place))


def _steer(item: _Json, place: str) -> UserEvent:
    return UserEvent("user.steer", place, text=_words(item, "message", place, empty=False))


def _interrupt(item: _Json, place: str) -> UserEvent:
    note = "" if item.get("message") is None else _words(item, "message", place)
    return UserEvent("user.interrupt", place, text=note)


def _confirmation(item: _Json, place: str) -> UserEvent:
    result, named = item.get("result"), item.get("scope")
    if result not in ("allow", "deny"):
        refuse(f"`{place}.result` must be `allow` or `deny`.")
    scope = next((scope for scope in SCOPES if scope == named), None)
    if named is not None and scope is None:
        refuse(f"`{place}.scope` must be `once`, `session` or `always`.")
    return UserEvent(
        "user.tool_confirmation",
        place,
        request=_words(item, "tool_use_id", place, empty=False),
        decision="allow" if result == "allow" else "deny",
        scope=scope,
    )


def _tool_result(item: _Json, place: str) -> UserEvent:
    is_error = item.get("is_error", False)
    if is_error is not None and not isinstance(is_error, bool):
        refuse(f"`{place}.is_error` must be true or false.")
    return UserEvent(
        "user.custom_tool_result",
        place,
        blocks=_content(item, place),
        request=_words(item, "tool_use_id", place, empty=False),
        is_error=bool(is_error),
    )


def _clarify(item: _Json, place: str) -> UserEvent:
    return UserEvent(
        "user.clarify_result",
        place,
        text=_words(item, "answer", place),
        request=_words(item, "request_id", place, empty=False),
    )


def _sealed(field: str, item: _Json, place: str) -> UserEvent:
    request, value = _words(item, "request_id", place, empty=False), _words(item, field, place)
    # The empty string declines (design section 7): there is no value to seal then.
    return UserEvent(item["type"], place, request=request, sealed=Sealed(value) if value else None)


_EVENTS: dict[str, Callable[[_Json, str], UserEvent]] = {
    "user.message": _message,
    "user.steer": _steer,
    "user.interrupt": _interrupt,
    "user.tool_confirmation": _confirmation,
    "user.custom_tool_result": _tool_result,
    "user.clarify_result": _clarify,
    "user.sudo_result": functools.partial(_sealed, "password"),
    "user.secret_result": functools.partial(_sealed, "value"),
}
"""Section 3.2."""


def _words(item: _Json, name: str, place: str, *, empty: bool = True) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        refuse(f"`{place}.{name}` must be a string.")
    if not value and not empty:
        refuse(f"`{place}.{name}` must not be empty.")
    return value


def _content(item: _Json, place: str) -> tuple[str, ...]:
    blocks = item.get("content")
    if not isinstance(blocks, list) or not 1 <= len(blocks) <= wire.MAX_BLOCKS:
        refuse(f"`{place}.content` must be an array of 1 to {wire.MAX_BLOCKS} text blocks.")
    texts = []
    for number, block in enumerate(blocks):
        where = f"{place}.content[{number}]"
        if not isinstance(block, dict) or block.get("type") != "text":
            refuse(f"`{where}` must be a block of type `text`.")
        text = block.get("text")
        if not isinstance(text, str):
            refuse(f"`{where}.text` must be a string.")
        if len(text) > wire.MAX_BLOCK_TEXT:
            refuse(f"`{where}.text` must have at most {wire.MAX_BLOCK_TEXT} characters.")
        texts.append(text)
    return tuple(texts)


# Queries.


def parse_list(query: Mapping[str, str], session_id: str) -> ListQuery:
    """Return what a list's query asks for; unknown parameters are ignored (section 4.2).

    Raises:
        ClientProtocolError: a parameter is not a number, position or order.
    """
    limit = _limit(query)
    order = query.get("order", "asc")
    if order not in ("asc", "desc"):
        refuse("`order` must be `asc` or `desc`.")
    after = query.get("after")
    position = None if after is None else parse_position(after, session_id, "after")
    pin = None
    if cursor := query.get("cursor"):
        position, pin = _cursor(cursor)
    return ListQuery(limit, position, pin, order == "desc")


def parse_position(text: str, session_id: str, name: str) -> int:
    """Return the sequence that a position names: a number, or the id of an envelope.

    Raises:
        ClientProtocolError: it is neither; `name` is what the parameter is called.
    """
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    position = wire.position_of(text, session_id)
    if position is None:
        refuse(f"`{name}` must be a sequence number or the id of an event of this session.")
    return position


def parse_stream(
    query: Mapping[str, str], headers: Mapping[str, str], session_id: str
) -> int | None:
    """Return the sequence after which a stream begins, or None for live (sections 4.3 and 9).

    Raises:
        ClientProtocolError: a position is not of this session.
    """
    named = {wire.LAST_EVENT_ID: headers.get(wire.LAST_EVENT_ID)}
    named |= {name: query.get(name) for name in ("after", "sequence")}
    found = ((name, text) for name, text in named.items() if text)
    return next((parse_position(text, session_id, name) for name, text in found), None)


def parse_sessions(query: Mapping[str, str]) -> SessionQuery:
    """Return what a list of sessions is narrowed to (section 2.3).

    `metadata[key]=value` is ours: the page names the filter and no syntax.

    Raises:
        ClientProtocolError: `limit` or `cursor` is not valid.
    """
    before = _cursor(cursor)[0] if (cursor := query.get("cursor")) else None
    metadata = {
        name[len("metadata[") : -1]: value
        for name, value in query.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    return SessionQuery(
        limit=_limit(query),
        before=before,
        agent_id=query.get("agentId"),
        user_id=query.get("userId"),
        status=query.get("status"),
        metadata=metadata,
    )


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit")
    if text is None:
        return wire.LIMIT_DEFAULT
    if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= wire.LIMIT_MOST:
        return int(text[:6])
    refuse(f"`limit` must be a number from 1 to {wire.LIMIT_MOST}.")


def page_cursor(position: int, pin: int = 0) -> str:
    """Return the cursor of a next page: where it begins, and what the first page pinned."""
    return make_cursor(position, pin)


def _cursor(text: str) -> tuple[int, int]:
    found = parts_of(text, NUMBER, NUMBER)
    if found is None:
        refuse("`cursor` must be the `nextCursor` of the page before.")
    return int(found[0]), int(found[1])
