"""What the scripted Herm accepts: exactly what its page documents, and nothing else.

A real Herm may be more lenient. This one refuses unknown members and parameters, so that a client
which only works with a lenient server is found out; with `strict` off it ignores them (herm page,
sections 2.2, 2.3, 3, 4.2 and, for the codes, 6).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from proxy.scripted.backend import Refusal

Body = Literal["any", "events", "single"]


@dataclass(frozen=True, slots=True)
class HermBatch:
    """A valid body of a POST of events."""

    events: tuple[dict[str, object], ...]


def _bad(message: str) -> Refusal:
    return Refusal(400, "validation_error", message)


# Page, section 3.2: field -> (kind, required).
_FIELDS: Mapping[str, Mapping[str, tuple[str, bool]]] = {
    "user.message": {"content": ("blocks", True)},
    "user.steer": {"message": ("text", True)},
    "user.interrupt": {"message": ("text", False)},
    "user.tool_confirmation": {
        "tool_use_id": ("text", True),
        "result": ("result", True),
        "scope": ("scope", False),
    },
    "user.custom_tool_result": {
        "tool_use_id": ("text", True),
        "content": ("blocks", True),
        "is_error": ("flag", False),
    },
    "user.clarify_result": {"request_id": ("text", True), "answer": ("text", True)},
    "user.sudo_result": {"request_id": ("text", True), "password": ("text", True)},
    "user.secret_result": {"request_id": ("text", True), "value": ("text", True)},
}
_CHOICES = {"result": ("allow", "deny"), "scope": ("once", "session", "always")}


def _json(body: bytes, content_type: str) -> object:
    if content_type != "application/json":
        raise _bad("the body must be sent as application/json")
    try:
        value: object = json.loads(body)
    except (ValueError, UnicodeDecodeError):
        raise _bad("the body is not JSON") from None
    return value


def parse_batch(body: bytes, content_type: str, *, form: Body, strict: bool) -> HermBatch:
    """Read a body of a POST of events; `form` says which spellings of a batch are known.

    Raises:
        Refusal: 400 for anything that sections 3 to 3.2 do not have.
    """
    value = _json(body, content_type)
    if isinstance(value, dict) and "events" in value and form != "single":
        if strict and value.keys() - {"events"}:
            raise _bad("a batch has only `events`")
        value = value["events"]
    elif isinstance(value, dict) and form != "events":
        value = [value]
    elif not (isinstance(value, list) and form == "any"):
        raise _bad("this is not a spelling of a batch that I know")
    if not isinstance(value, list) or not value:
        raise _bad("the batch is empty")
    events = tuple(_event(number, item, strict) for number, item in enumerate(value))
    if sum(event["type"] == "user.message" for event in events) > 1:
        raise _bad("at most one user.message in a request")
    return HermBatch(events)


def _event(number: int, item: object, strict: bool) -> dict[str, object]:
    where = f"events[{number}]"
    if not isinstance(item, dict):
        raise _bad(f"`{where}` is not an object")
    fields = _FIELDS.get(item.get("type", ""))
    if fields is None:
        raise _bad(f"`{where}.type` is unknown")
    unknown = sorted(item.keys() - fields.keys() - {"type"})
    if unknown and strict:
        raise _bad(f"`{where}` has the unknown member `{unknown[0]}`")
    for name, (kind, required) in fields.items():
        if name not in item:
            if required:
                raise _bad(f"`{where}` lacks `{name}`")
            continue
        _check(f"{where}.{name}", kind, item[name])
    return item


def _check(where: str, kind: str, value: object) -> None:
    match kind:
        case "text" if not isinstance(value, str):
            raise _bad(f"`{where}` is not a string")
        case "flag" if not isinstance(value, bool):
            raise _bad(f"`{where}` is not true or false")
        case "result" | "scope" if value not in _CHOICES[kind]:
            raise _bad(f"`{where}` is none of {_CHOICES[kind]}")
        case "blocks":
            _check_blocks(where, value)


def _check_blocks(where: str, value: object) -> None:
    # Page, section 3.1.
    if not isinstance(value, list) or not 1 <= len(value) <= 100:
        raise _bad(f"`{where}` is not 1 to 100 blocks")
    for block in value:
        if not isinstance(block, dict) or block.keys() != {"type", "text"}:
            raise _bad(f"`{where}` has a block that is not {{type, text}}")
        if block["type"] != "text" or not isinstance(block["text"], str):
            raise _bad(f"`{where}` has a block that is not text")
        if len(block["text"]) > 20_000:
            raise _bad(f"`{where}` has a block of more than 20000 characters")


def parse_changes(
    body: bytes, content_type: str, allowed: tuple[str, ...], *, strict: bool
) -> dict[str, object]:
    """Read the body of a create or an update (page, sections 2.2 and 2.3).

    Raises:
        Refusal: 400 for a member that is not documented, or of the wrong type.
    """
    value = _json(body, content_type) if body else {}
    if not isinstance(value, dict):
        raise _bad("the body is not an object")
    for name, member in value.items():
        if name not in allowed:
            if strict:
                raise _bad(f"`{name}` is not a documented member")
        elif not isinstance(member, dict if name == "metadata" else str):
            raise _bad(f"`{name}` has the wrong type")
    return {name: value[name] for name in allowed if name in value}


def parse_page(query: Mapping[str, str], allowed: set[str], *, strict: bool) -> tuple[int, str]:
    """Read `limit` and `cursor` (page, sections 2.3 and 4.2).

    Raises:
        Refusal: 400 for a limit outside of 1 to 100, or an unknown parameter.
    """
    unknown = sorted(query.keys() - allowed - {"limit", "cursor"})
    if unknown and strict:
        raise _bad(f"`{unknown[0]}` is not a documented parameter")
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit) <= 100):
        raise _bad("`limit` is not 1 to 100")
    return int(limit), query.get("cursor", "")
