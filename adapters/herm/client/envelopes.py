"""Envelopes as they are read: their ids, numbers and order."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Collection
from typing import Any

import orjson

from adapters.herm import wire
from adapters.model import events as ev
from adapters.wire.errors import CODE_LIMIT
from adapters.wire.jsonvalue import MOST_NAME, count_of, name_of, text_of

ENVELOPE_KEYS = frozenset(
    {"id", "type", "sessionId", "sequence", "payload", "processedAt", "createdAt"}
)
STATUS = "session.status"
"""What the types of a session's states begin with (section 4.6)."""

Waiting = tuple[int, dict[str, Any]]
"""A frame's number and its envelope."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReceivedEnvelope:
    """One envelope on its way to what it means; `rest` are the members that an envelope does not
    have, `now` is when it is read."""

    type: str
    envelope: dict[str, Any]
    payload: dict[str, Any]
    native: ev.NativeRef
    rest: dict[str, Any] | None
    now: int

    def extra(self, known: Collection[str] = ()) -> dict[str, Any] | None:
        """Return the payload's members that the model does not know."""
        extra = {k: v for k, v in self.payload.items() if k not in known and k != "type"}
        if self.rest:
            extra["envelope"] = self.rest
        return extra or None


def envelopes_of(body: Any) -> list[dict[str, Any]]:
    """Return the envelopes of an answer: `data`, `events`, a bare array or a single one (sections 3
    and 4.2)."""
    if isinstance(body, dict):
        for name in ("data", "events"):
            if isinstance(body.get(name), list):
                body = body[name]
                break
        else:
            body = [body] if isinstance(body.get("type"), str) else []
    if not isinstance(body, list):
        return []
    return [item for item in body if isinstance(item, dict) and isinstance(item.get("type"), str)]


def id_of(envelope: dict[str, Any]) -> str:
    """Return an envelope's id, or nothing."""
    return name_of(envelope.get("id")) or ""


def check_of(envelope: dict[str, Any]) -> int:
    """Return a sum of what an envelope says: another one may have the same id."""
    said = (envelope.get("type"), envelope.get("sequence"), envelope.get("payload"))
    try:
        text = orjson.dumps(said, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        # A number of more than 64 bits, for example.
        text = json.dumps(said, sort_keys=True).encode()
    return zlib.crc32(text)


def sequence_of(envelope: dict[str, Any]) -> int | None:
    """Return an envelope's number in the backend's count (section 4.1)."""
    return count_of(envelope.get("sequence"))


def text_in(value: dict[str, Any], name: str) -> str | None:
    """Return a member that is a text and says something."""
    return text_of(value.get(name))


def name_in(value: dict[str, Any], field: str) -> str | None:
    """Return a member that is an id or a name, and not far too long."""
    return name_of(value.get(field))


def is_delta(envelope: dict[str, Any]) -> bool:
    """Say whether an envelope has a piece of a text."""
    payload = envelope.get("payload")
    return isinstance(payload, dict) and payload.get("delta") is True


def key_of(payload: dict[str, Any]) -> str:
    """Return what tells an input from others: its type and what it is about, never a sealed
    value."""
    type_ = payload["type"]
    name = payload.get("tool_use_id") or payload.get("request_id")
    if name is not None:
        return f"{type_} {name}"
    if type_ == "user.message":
        return short(f"{type_} {wire.text_of_blocks(payload.get('content'))}")
    return short(f"{type_} {payload.get('message') or ''}")


def short(key: str) -> str:
    """Return what tells a long key from others, and is short."""
    if len(key) <= MOST_NAME:
        return key
    return f"{key[:CODE_LIMIT]} {hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def is_echo(envelope: dict[str, Any], payload: dict[str, Any]) -> bool:
    """Say whether an envelope shows an input; of several answers each is about its own request."""
    if envelope.get("type") != payload["type"]:
        return False
    shown = envelope.get("payload")
    for name in ("tool_use_id", "request_id"):
        if isinstance(shown, dict) and isinstance(shown.get(name), str) and name in payload:
            return bool(shown[name] == payload[name])
    return True


def in_order(waiting: list[Waiting], known: Collection[int]) -> list[Waiting]:
    """Return what waits by number, where the numbers leave nothing out and each is there once.

    Else deltas may count by themselves (section 4.4) and stay in their places, and the stored ones
    alone are sorted.
    """
    ids: dict[int, str] = {}
    for _, envelope in waiting:
        number = sequence_of(envelope)
        if number is None or ids.setdefault(number, id_of(envelope)) != id_of(envelope):
            break
    else:
        if ids and are_all(range(min(ids), max(ids)), {*ids, *known}):
            return sorted(waiting, key=_number)
    stored = iter(sorted((item for item in waiting if not is_delta(item[1])), key=_number))
    return [item if is_delta(item[1]) else next(stored) for item in waiting]


def _number(item: Waiting) -> int:
    return sequence_of(item[1]) or 0


def are_all(numbers: range, known: Collection[int]) -> bool:
    """Say whether every one of the numbers is known."""
    return len(numbers) <= len(known) and all(number in known for number in numbers)
