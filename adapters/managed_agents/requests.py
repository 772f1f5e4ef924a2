"""Reads the requests of the face: bodies and queries to values.

Unknown members are ignored, as are headers and the query's `beta`: each generation of the SDKs
sends others (sections 1 and 15). A batch is refused as a whole. No refusal quotes a value of a
body: it may hold the value of a sealed request.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from multidict import MultiMapping

from adapters.managed_agents import blocks, wire
from adapters.model.events import Content
from adapters.model.session_info import TITLE_CHARACTERS
from adapters.serving.cursors import NUMBER, make_cursor, parts_of
from adapters.serving.members import list_of, name_of, object_of, refuse
from adapters.wire.errors import NotSupported

_Json = dict[str, Any]
Decision: TypeAlias = Literal["allow", "deny"]


@dataclasses.dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event that a client sends (section 4.1). `tool` is the id of the use that it answers,
    `system` what the application says behind it."""

    type: str
    number: int
    content: tuple[Content, ...] = ()
    tool: str = ""
    decision: Decision | None = None
    reason: str | None = None
    is_error: bool = False
    thread: str | None = None
    outcome: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    system: tuple[Content, ...] | None = None

    @property
    def place(self) -> str:
        """Return how a refusal names it."""
        return f"{self.type} event at events[{self.number}]"


@dataclasses.dataclass(frozen=True, slots=True)
class EventBatch:
    """The events of a send; `blobs` has the bytes of inline files by hash."""

    events: tuple[ClientEvent, ...]
    blobs: Mapping[str, bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class SessionCreate:
    """A create (section 3.1)."""

    agent: str
    version: int | None
    environment: str
    title: str | None
    metadata: Mapping[str, str] | None
    initial: EventBatch


@dataclasses.dataclass(frozen=True, slots=True)
class SessionChanges:
    """An update (section 3.3); an empty title takes it away, null a member of `metadata`."""

    title: str | None = None
    metadata: Mapping[str, str | None] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TimeRange:
    """`created_at[…]` of a list: microseconds, from `low` to `high`, both exclusive."""

    low: float = float("-inf")
    high: float = float("inf")

    @property
    def is_given(self) -> bool:
        """Say whether it leaves anything out."""
        return (self.low, self.high) != (float("-inf"), float("inf"))

    def has(self, micros: int) -> bool:
        """Say whether a time is in it."""
        return self.low < micros < self.high


@dataclasses.dataclass(frozen=True, slots=True)
class PageQuery:
    """What a reader of a list asks for. `position` is the place of the last entry of the page
    before, `pin` what the first page pinned; `back` asks for the page before instead."""

    limit: int
    descending: bool
    position: int | None = None
    pin: int | None = None
    back: bool = False
    names: frozenset[str] = frozenset()
    created: TimeRange = TimeRange()


# Bodies.


def parse_create(body: bytes) -> SessionCreate:
    """Return what the body of a create says.

    Raises:
        ClientProtocolError: a member is missing or wrong.
        NotSupported: it asks for what only the vendor's service has.
    """
    members = object_of(body)
    agent, version = _agent(members.get("agent"))
    for name in ("resources", "vault_ids"):
        if members.get(name):
            raise NotSupported(f"`{name}`: the backend of this route mounts nothing.")
    if members.get("budget") is not None:
        raise NotSupported("`budget`: the backend of this route has no budgets.")
    initial = members.get("initial_events")
    return SessionCreate(
        agent,
        version,
        name_of(members.get("environment_id"), "environment_id"),
        _title(members),
        _metadata(members, null=False),
        _batch(initial, "initial_events", wire.MAX_INITIAL_EVENTS, initial=True),
    )


def _agent(value: Any) -> tuple[str, int | None]:
    if isinstance(value, str):
        return name_of(value, "agent"), None
    if not isinstance(value, dict) or value.get("type") not in ("agent", "agent_with_overrides"):
        refuse("agent: must be an id, or an object of type `agent` or `agent_with_overrides`")
    version = value.get("version")
    if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
        refuse("agent.version: must be an integer")
    if value["type"] == "agent_with_overrides":
        for name in ("model", "system", "tools", "mcp_servers", "skills"):
            if value.get(name) is not None:
                text = f"`agent.{name}`: the backend of this route takes no overrides of its agent."
                raise NotSupported(text)
    return name_of(value.get("id"), "agent.id"), version


def parse_update(body: bytes) -> SessionChanges:
    """Return what the body of an update says.

    Raises:
        ClientProtocolError: a member is wrong, or is reserved.
        NotSupported: it asks for what only the vendor's service has.
    """
    members = object_of(body) if body.strip() else {}
    if "vault_ids" in members:
        refuse("vault_ids: is reserved and cannot be updated")
    for name in ("agent", "budget"):
        if members.get(name) is not None:
            raise NotSupported(f"`{name}`: the backend of this route cannot change it.")
    title = _title(members)
    if "title" in members and title is None:
        title = ""
    return SessionChanges(title, _metadata(members, null=True))


def _title(members: _Json) -> str | None:
    title = members.get("title")
    if title is not None and not isinstance(title, str):
        refuse("title: must be a string")
    if title is not None and len(title) > TITLE_CHARACTERS:
        refuse(f"title: must have at most {TITLE_CHARACTERS} characters")
    return title


def _metadata(members: _Json, *, null: bool) -> Mapping[str, Any] | None:
    metadata = members.get("metadata")
    if metadata is None:
        return None
    if not isinstance(metadata, dict) or len(metadata) > wire.MAX_METADATA:
        refuse(f"metadata: must be an object of at most {wire.MAX_METADATA} members")
    for name, value in metadata.items():
        if len(name) > wire.MAX_METADATA_KEY:
            refuse(f"metadata: a key has at most {wire.MAX_METADATA_KEY} characters")
        if (null and value is None) or (
            isinstance(value, str) and len(value) <= wire.MAX_METADATA_VALUE
        ):
            continue
        refuse(f"metadata: a value is a string of at most {wire.MAX_METADATA_VALUE} characters")
    return metadata


def parse_events(body: bytes) -> EventBatch:
    """Return the batch of a send, checked as a whole.

    Raises:
        ClientProtocolError: it is not a batch, or one of its events is wrong.
    """
    events = object_of(body).get("events")
    if not isinstance(events, list) or not events:
        refuse("events: must be a non-empty list")
    return _batch(events, "events", wire.MAX_EVENTS)


def _batch(value: Any, place: str, most: int, *, initial: bool = False) -> EventBatch:
    items = list_of(value, place)
    if len(items) > most:
        refuse(f"{place}: must have at most {most} events")
    blobs: dict[str, bytes] = {}
    found: list[ClientEvent] = []
    for number, item in enumerate(items):
        where = f"{place}[{number}]"
        kind = item.get("type") if isinstance(item, dict) else None
        parse = _EVENTS.get(kind) if isinstance(kind, str) else None
        if parse is None or (initial and kind not in _INITIAL):
            names = ", ".join(f"`{name}`" for name in (_INITIAL if initial else _EVENTS))
            refuse(f"{where}.type: must be one of {names}")
        event = parse(item, where, number, blobs)
        if event.type == "system.message":
            if number < len(items) - 1:
                refuse(f"{where}: a `system.message` must be the last event of a request")
            if found and found[-1].type in _ACCOMPANIED:
                found[-1] = dataclasses.replace(found[-1], system=event.content)
                continue
            if found:
                refuse(f"{where}: a `system.message` stands behind a message or a result")
        found.append(event)
    tools = [event.tool for event in found if event.tool]
    if len(set(tools)) < len(tools):
        refuse(f"{place}: each tool use is answered once")
    return EventBatch(tuple(found), blobs)


_INITIAL = ("user.message", "user.define_outcome")
_ACCOMPANIED = ("user.message", "user.tool_result", "user.custom_tool_result")


def _message(item: _Json, place: str, number: int, blobs: dict[str, bytes]) -> ClientEvent:
    takes = ("text", "image", "document")
    content = blocks.parse(item.get("content"), f"{place}.content", blobs, takes=takes)
    return ClientEvent("user.message", number, content=content)


def _system(item: _Json, place: str, number: int, blobs: dict[str, bytes]) -> ClientEvent:
    content = blocks.parse(item.get("content"), f"{place}.content", blobs, takes=("text",))
    return ClientEvent("system.message", number, content=content)


def _interrupt(item: _Json, place: str, number: int, _: dict[str, bytes]) -> ClientEvent:
    return ClientEvent("user.interrupt", number, thread=_thread(item, place))


def _confirmation(item: _Json, place: str, number: int, _: dict[str, bytes]) -> ClientEvent:
    result, reason = item.get("result"), item.get("deny_message")
    if result not in ("allow", "deny"):
        refuse(f"{place}.result: must be `allow` or `deny`")
    if reason is not None and (not isinstance(reason, str) or result == "allow"):
        refuse(f"{place}.deny_message: must be a string, and only beside `deny`")
    return ClientEvent(
        "user.tool_confirmation",
        number,
        tool=name_of(item.get("tool_use_id"), f"{place}.tool_use_id"),
        decision="allow" if result == "allow" else "deny",
        reason=reason or None,
        thread=_thread(item, place),
    )


def _result(type_: str, member: str) -> Callable[[_Json, str, int, dict[str, bytes]], ClientEvent]:
    takes = ("text", "image", "document", "search_result")

    def parse(item: _Json, place: str, number: int, blobs: dict[str, bytes]) -> ClientEvent:
        is_error, content = item.get("is_error"), item.get("content")
        if is_error is not None and not isinstance(is_error, bool):
            refuse(f"{place}.is_error: must be true or false")
        where = f"{place}.content"
        given = blocks.parse(content or [], where, blobs, takes=takes, empty=True)
        return ClientEvent(
            type_,
            number,
            content=given,
            tool=name_of(item.get(member), f"{place}.{member}"),
            is_error=bool(is_error),
            thread=_thread(item, place),
        )

    return parse


def _outcome(item: _Json, place: str, number: int, _: dict[str, bytes]) -> ClientEvent:
    rubric, most = item.get("rubric"), item.get("max_iterations")
    description = item.get("description")
    if not isinstance(description, str) or not description:
        refuse(f"{place}.description: must be a string")
    if not isinstance(rubric, dict) or rubric.get("type") not in ("text", "file"):
        refuse(f"{place}.rubric: must be an object of type `text` or `file`")
    if most is not None and (not isinstance(most, int) or not 1 <= most <= 20):
        refuse(f"{place}.max_iterations: must be an integer from 1 to 20")
    outcome = {"description": description, "rubric": rubric, "max_iterations": most}
    return ClientEvent("user.define_outcome", number, outcome=outcome)


_EVENTS: dict[str, Callable[[_Json, str, int, dict[str, bytes]], ClientEvent]] = {
    "user.message": _message,
    "user.interrupt": _interrupt,
    "user.tool_confirmation": _confirmation,
    "user.custom_tool_result": _result("user.custom_tool_result", "custom_tool_use_id"),
    "user.tool_result": _result("user.tool_result", "tool_use_id"),
    "user.define_outcome": _outcome,
    "system.message": _system,
}
"""Section 4.1."""


def _thread(item: _Json, place: str) -> str | None:
    value = item.get("session_thread_id")
    return None if value is None else name_of(value, f"{place}.session_thread_id")


# Queries.


def values_of(query: MultiMapping[str], name: str) -> list[str]:
    """Return the values of an array, in either spelling (section 1.1)."""
    return [*query.getall(f"{name}[]", []), *query.getall(name, [])]


def parse_previews(query: MultiMapping[str]) -> frozenset[str]:
    """Return the types of events that a stream previews (section 9).

    Raises:
        ClientProtocolError: there are too many, or one has no previews.
    """
    wanted = values_of(query, "event_deltas")
    if len(wanted) > wire.MAX_PREVIEWS:
        refuse(f"event_deltas: must have at most {wire.MAX_PREVIEWS} values")
    if any(name not in wire.PREVIEWED for name in wanted):
        refuse("event_deltas: must be `agent.message` or `agent.thinking`")
    return frozenset(wanted)


def parse_list(
    query: MultiMapping[str],
    *,
    default: int,
    most: int,
    order: Literal["asc", "desc"],
    array: str = "",
    known: frozenset[str] | None = None,
) -> PageQuery:
    """Return what the query of a list asks for; unknown parameters are ignored.

    `default` and `most` are entries of a page: who asks for more gets so many, and a cursor.
    `array` is what the list is narrowed by, of `known` values.

    Raises:
        ClientProtocolError: a parameter is wrong, or the cursor does not fit the others.
    """
    asked = query.get("order", order)
    if asked not in ("asc", "desc"):
        refuse("order: must be `asc` or `desc`")
    names = frozenset(values_of(query, array)) if array else frozenset()
    if known is not None and not names <= known:
        refuse(f"{array}: must be of {', '.join(f'`{name}`' for name in sorted(known))}")
    position = pin = None
    back = False
    if page := query.get("page"):
        position, pin, made_for, back = _cursor(page)
        if made_for != asked:
            refuse("page: the cursor was made with another `order`")
    found = PageQuery(
        limit=min(_limit(query, default), most),
        descending=asked == "desc",
        position=position,
        pin=pin,
        back=back,
        names=names,
        created=_range(query),
    )
    return found


def _limit(query: MultiMapping[str], default: int) -> int:
    text = query.get("limit")
    if text is None:
        return default
    if re.fullmatch(r"[0-9]{1,9}", text) is None or int(text) < 1:
        refuse("limit: must be a positive integer")
    return int(text)


def _range(query: MultiMapping[str]) -> TimeRange:
    low, high = float("-inf"), float("inf")
    for way in ("gt", "gte", "lt", "lte"):
        name = f"created_at[{way}]"
        text = query.get(name)
        if text is None:
            continue
        # A plus sign that nobody encoded is a space here.
        micros = wire.micros_of(text.replace(" ", "+")) if "T" in text else wire.micros_of(text)
        if micros is None:
            refuse(f"{name}: must be an RFC 3339 time")
        if way.startswith("g"):
            low = max(low, micros - (way == "gte"))
        else:
            high = min(high, micros + (way == "lte"))
    return TimeRange(low, high)


def page_cursor(position: int, pin: int, order: str, *, back: bool = False) -> str:
    """Return the cursor of another page: behind which entry, what the first page pinned."""
    return make_cursor(position, pin, order, "b" if back else "f")


def _cursor(text: str) -> tuple[int, int, str, bool]:
    found = parts_of(text, NUMBER, NUMBER, "asc|desc", "[bf]")
    if found is None:
        refuse("page: must be the `next_page` of the page before")
    return int(found[0]), int(found[1]), found[2], found[3] == "b"
