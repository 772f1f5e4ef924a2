"""What the scripted Managed Agents service accepts: exactly what its page documents.

The real service may be more lenient. This one refuses unknown members and parameters, so that a
client which only works with a lenient server is found out; with `strict` off it ignores them. The
sections are those of the Managed Agents page.
"""

import datetime as dt
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.scripted.backend import Refusal

BETA = "managed-agents-2026-04-01"
VERSIONS = ("2023-06-01", "2026-10-21")

Members = dict[str, Any]
Check = Callable[[str, Any, bool], None]


def bad(message: str) -> Refusal:
    """Return the refusal of a request that is not valid."""
    return Refusal(400, "invalid_request_error", message)


def check_headers(headers: Mapping[str, str], *, threads: bool) -> None:
    """Check the headers that each call needs (section 1).

    Raises:
        Refusal: 400, the beta or the version is missing; 404 for a route of threads without beta.
    """
    if headers.get("anthropic-version") not in VERSIONS:
        raise bad(f"anthropic-version: must be one of {', '.join(VERSIONS)}")
    betas = {beta.strip() for beta in headers.get("anthropic-beta", "").split(",")}
    if BETA not in betas:
        if threads:
            raise Refusal(404, "not_found_error", "Not found.")
        raise bad(f"anthropic-beta: `{BETA}` is missing")


# Values.


def _text(where: str, value: Any, strict: bool) -> None:
    if not isinstance(value, str):
        raise bad(f"{where}: is not a string")


def _filled(where: str, value: Any, strict: bool) -> None:
    if not isinstance(value, str) or not value:
        raise bad(f"{where}: is not a string, or empty")


def _maybe_text(where: str, value: Any, strict: bool) -> None:
    if value is not None:
        _text(where, value, strict)


def _flag(where: str, value: Any, strict: bool) -> None:
    if not isinstance(value, bool):
        raise bad(f"{where}: is not true or false")


def _objects(where: str, value: Any, strict: bool) -> None:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise bad(f"{where}: is not a list of objects")


def _thing(where: str, value: Any, strict: bool) -> None:
    if not isinstance(value, str | dict):
        raise bad(f"{where}: is neither a string nor an object")


def _one_of(*choices: str) -> Check:
    def check(where: str, value: Any, strict: bool) -> None:
        if value not in choices:
            raise bad(f"{where}: must be one of {', '.join(choices)}")

    return check


def _number(least: int, most: int) -> Check:
    def check(where: str, value: Any, strict: bool) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise bad(f"{where}: is not {least} to {most}")

    return check


@dataclass(frozen=True, slots=True)
class Shape:
    """An object: the members that it needs, and those that it may have besides."""

    needed: Mapping[str, Check]
    optional: Mapping[str, Check] = field(default_factory=dict)

    def __call__(self, where: str, value: Any, strict: bool) -> None:
        """Check an object.

        Raises:
            Refusal: 400, a member is missing, wrong or, in `strict`, unknown.
        """
        if not isinstance(value, dict):
            raise bad(f"{where}: is not an object")
        for name in self.needed:
            if name not in value:
                raise bad(f"{where}.{name}: is required")
        checks = {**self.needed, **self.optional}
        for name, member in value.items():
            check = checks.get(name)
            if check is not None:
                check(f"{where}.{name}", member, strict)
            elif strict and name != "type":
                raise bad(f"{where}.{name}: extra inputs are not permitted")


def _by_type(**shapes: Shape) -> Check:
    def check(where: str, value: Any, strict: bool) -> None:
        shape = shapes.get(str(value.get("type"))) if isinstance(value, dict) else None
        if shape is None:
            raise bad(f"{where}.type: must be one of {', '.join(shapes)}")
        shape(where, value, strict)

    return check


def _list_of(check: Check, least: int, most: int) -> Check:
    def check_all(where: str, value: Any, strict: bool) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise bad(f"{where}: is not a list of {least} to {most}")
        for number, one in enumerate(value):
            check(f"{where}.{number}", one, strict)

    return check_all


# Content blocks (section 4.1). A limit on their number is documented for `system.message` only.
_MANY = 10_000
_SOURCES = {
    "base64": Shape({"media_type": _filled, "data": _filled}),
    "url": Shape({"url": _filled}),
    "file": Shape({"file_id": _filled}),
}
_PLAIN = Shape({"media_type": _one_of("text/plain"), "data": _text})
_TEXT_BLOCK = Shape({"text": _text})
_BLOCKS = {
    "text": _TEXT_BLOCK,
    "image": Shape({"source": _by_type(**_SOURCES)}),
    "document": Shape(
        {"source": _by_type(**_SOURCES, text=_PLAIN)},
        {"title": _maybe_text, "context": _maybe_text},
    ),
}
_SEARCH = Shape(
    {
        "source": _text,
        "title": _text,
        "content": _list_of(_by_type(text=_TEXT_BLOCK), 1, _MANY),
        "citations": Shape({"enabled": _flag}),
    }
)
_CONTENT = _list_of(_by_type(**_BLOCKS), 1, _MANY)
_RESULT = _list_of(_by_type(**_BLOCKS, search_result=_SEARCH), 0, _MANY)

# Input events (section 4.1).
_THREAD: Mapping[str, Check] = {"session_thread_id": _filled}
_OUTCOME = Shape(
    {
        "description": _filled,
        "rubric": _by_type(text=Shape({"content": _filled}), file=Shape({"file_id": _filled})),
    },
    {"max_iterations": _number(1, 20)},
)
_MESSAGE = Shape({"content": _CONTENT})
_INPUTS: Mapping[str, Shape] = {
    "user.message": _MESSAGE,
    "user.interrupt": Shape({}, _THREAD),
    "user.tool_confirmation": Shape(
        {"tool_use_id": _filled, "result": _one_of("allow", "deny")},
        {"deny_message": _maybe_text, **_THREAD},
    ),
    "user.custom_tool_result": Shape(
        {"custom_tool_use_id": _filled}, {"content": _RESULT, "is_error": _flag, **_THREAD}
    ),
    "user.tool_result": Shape(
        {"tool_use_id": _filled}, {"content": _RESULT, "is_error": _flag, **_THREAD}
    ),
    "user.define_outcome": _OUTCOME,
    "system.message": Shape({"content": _list_of(_by_type(text=_TEXT_BLOCK), 1, 1000)}),
}
_ACCOMPANIED = ("user.message", "user.tool_result", "user.custom_tool_result")

# Bodies of sessions (sections 3.1 and 3.3).
_BUDGET = _by_type(
    limit=Shape({"max_list_cost": Shape({"amount": _filled, "currency": _one_of("USD")})})
)
_PINNED: Mapping[str, Check] = {"version": _number(1, 2**31)}
_AGENTS = _by_type(
    agent=Shape({"id": _filled}, _PINNED),
    agent_with_overrides=Shape(
        {"id": _filled},
        {
            **_PINNED,
            "model": _thing,
            "system": _maybe_text,
            "tools": _objects,
            "mcp_servers": _objects,
            "skills": _objects,
        },
    ),
)
_RESOURCES = _by_type(
    file=Shape({"file_id": _filled}, {"mount_path": _text}),
    github_repository=Shape(
        {"url": _filled}, {"authorization_token": _text, "checkout": _thing, "mount_path": _text}
    ),
    memory_store=Shape({"memory_store_id": _filled}, {"access": _text, "instructions": _text}),
)


def _agent(where: str, value: Any, strict: bool) -> None:
    if not isinstance(value, str) or not value:
        _AGENTS(where, value, strict)


def _optional_budget(where: str, value: Any, strict: bool) -> None:
    if value is not None:
        _BUDGET(where, value, strict)
        if not value["max_list_cost"]["amount"].isdecimal():
            raise bad(f"{where}.max_list_cost.amount: is not whole cents")


def _metadata(where: str, value: Any, strict: bool) -> None:
    if not isinstance(value, dict) or len(value) > 16:
        raise bad(f"{where}: is not an object of up to 16 pairs")
    for name, member in value.items():
        if len(name) > 64 or not isinstance(member, str) or len(member) > 512:
            raise bad(f"{where}.{name}: has more than 64 characters, or 512 in its value")


def _patch(where: str, value: Any, strict: bool) -> None:
    kept = value
    if isinstance(value, dict):
        kept = {name: member for name, member in value.items() if member is not None}
    _metadata(where, kept, strict)


def _reserved(where: str, value: Any, strict: bool) -> None:
    raise bad(f"{where}: is reserved")


def _initial(where: str, value: Any, strict: bool) -> None:
    shapes = {"user.message": _MESSAGE, "user.define_outcome": _OUTCOME}
    _list_of(_by_type(**shapes), 0, 50)(where, value, strict)


_CREATE = Shape(
    {"agent": _agent, "environment_id": _filled},
    {
        "title": _maybe_text,
        "metadata": _metadata,
        "resources": _list_of(_RESOURCES, 0, _MANY),
        "vault_ids": _list_of(_text, 0, _MANY),
        "budget": _optional_budget,
        "initial_events": _initial,
    },
)
_UPDATE = Shape(
    {},
    {
        "title": _maybe_text,
        "metadata": _patch,
        "agent": Shape({}, {"tools": _objects, "mcp_servers": _objects}),
        "budget": _optional_budget,
        "vault_ids": _reserved,
    },
)


def _object(body: bytes, content_type: str) -> Members:
    if content_type != "application/json":
        raise bad("content-type: is not application/json")
    try:
        value = json.loads(body)
    except (ValueError, UnicodeDecodeError):
        raise bad("The request body is not valid JSON") from None
    if not isinstance(value, dict):
        raise bad("The request body is not an object")
    return value


def parse_create(body: bytes, content_type: str, *, initial_events: bool, strict: bool) -> Members:
    """Read the body of a create (section 3.1).

    Args:
        body: the bytes as they came.
        content_type: of the request.
        initial_events: whether the server knows them, budgets and overrides.
        strict: refuse unknown members.

    Raises:
        Refusal: 400 for what is not documented, 422 for what this server does not know.
    """
    value = _object(body, content_type)
    agent = value.get("agent")
    overrides = isinstance(agent, dict) and agent.get("type") == "agent_with_overrides"
    if not initial_events and (overrides or value.keys() & {"initial_events", "budget"}):
        raise Refusal(422, "invalid_request_error", "Extra inputs are not permitted")
    _CREATE("body", value, strict)
    return value


def parse_update(body: bytes, content_type: str, *, strict: bool) -> Members:
    """Read the body of an update (section 3.3).

    Raises:
        Refusal: 400 for what is not documented.
    """
    value = _object(body, content_type)
    _UPDATE("body", value, strict)
    return value


def parse_events(body: bytes, content_type: str, *, strict: bool) -> list[Members]:
    """Read the body of a send (section 4.1).

    Raises:
        Refusal: 400 for what is not documented.
    """
    value = _object(body, content_type)
    Shape({"events": _list_of(_event, 1, _MANY)})("body", value, strict)
    events: list[Members] = value["events"]
    kinds = [event["type"] for event in events]
    if len(kinds) > 1 and "system.message" in kinds:
        place = kinds.index("system.message")
        if place < len(kinds) - 1 or kinds[-2] not in _ACCOMPANIED:
            raise bad("events: a system.message stands last, right after what it accompanies")
    return events


def _event(where: str, value: Any, strict: bool) -> None:
    _by_type(**_INPUTS)(where, value, strict)
    if value.get("deny_message") is not None and value["result"] != "deny":
        raise bad(f"{where}.deny_message: is only allowed with `deny`")


# Query strings (sections 1.1, 1.2, 3.3, 5 and 9).

_PASSES = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
_RANGE = re.compile(r"created_at\[(gt|gte|lt|lte)\]")

Query = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ScriptedListQuery:
    """What a list is asked for: how many, from where, in which order, and which entries."""

    limit: int
    order: str
    page: str
    values: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, dt.datetime]

    def within(self, at: dt.datetime | None) -> bool:
        """Say whether a time is in the ranges; what has no time is in no range."""
        if at is None:
            return not self.ranges
        return all(_PASSES[how](at, edge) for how, edge in self.ranges.items())


def _when(name: str, value: str) -> dt.datetime:
    try:
        at = dt.datetime.fromisoformat(value)
    except ValueError:
        raise bad(f"{name}: is not a time") from None
    if at.tzinfo is None:
        raise bad(f"{name}: has no zone")
    return at


def check_query(query: Query, allowed: Sequence[str], *, strict: bool) -> None:
    """Check that a query string has documented parameters only; `beta` is ignored.

    Raises:
        Refusal: 400, there is another one.
    """
    for name, _ in query:
        if strict and name != "beta" and name.removesuffix("[]") not in allowed:
            raise bad(f"{name}: is not a documented parameter")


def parse_page(
    query: Query, filters: Sequence[str], *, order: str, times: bool, strict: bool
) -> ScriptedListQuery:
    """Read the query string of a list.

    Args:
        query: the pairs as they came.
        filters: parameters besides `limit` and `page`.
        order: the default, empty where the list has no order to ask for.
        times: whether it can be filtered by time.
        strict: refuse unknown parameters.

    Raises:
        Refusal: 400, a parameter is unknown or wrong.
    """
    ranges, rest = {}, []
    for name, text in query:
        found = _RANGE.fullmatch(name)
        if found and times:
            ranges[found[1]] = _when(name, text)
        else:
            rest.append((name, text))
    known = ("limit", "page", *(("order",) if order else ()), *filters)
    check_query(rest, known, strict=strict)
    single = dict(rest)
    limit = single.get("limit", "1000")
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit) <= 1000):
        raise bad("limit: is not 1 to 1000")
    asked = single.get("order", order or "asc") if order else "asc"
    if asked not in ("asc", "desc"):
        raise bad("order: is neither asc nor desc")
    values = {
        name: tuple(text for other, text in rest if other.removesuffix("[]") == name)
        for name in filters
    }
    return ScriptedListQuery(int(limit), asked, single.get("page", ""), values, ranges)


def parse_previews(query: Query, *, strict: bool) -> frozenset[str]:
    """Read the query string of a stream: the types to preview (section 9).

    Raises:
        Refusal: 400, a value is neither of the two, or there are more than 100.
    """
    check_query(query, ("event_deltas",), strict=strict)
    values = [text for name, text in query if name.removesuffix("[]") == "event_deltas"]
    if len(values) > 100 or set(values) - {"agent.message", "agent.thinking"}:
        raise bad("event_deltas: takes agent.message and agent.thinking, up to 100 values")
    return frozenset(values)
