"""The long texts in a state that is stored.

The state of a client codec is written with nearly every step. A message of a megabyte in it took
some ms each time, most of them to look for what is to be escaped, and it is in there as often as it
may be needed: to post it, to post it again, to know its echo. So a long text keeps its JSON.

Values of the model, and events, may be in a state as they are: they are written as they are stored
elsewhere, a value without its defaults.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson

from adapters.events import Event, Model, encode_event
from adapters.jsonvalue import format_json, parse_json

__all__ = ["LONG", "format_state", "held_long", "written_once"]

LONG = 16 * 1024
"""Characters of a text whose JSON is kept with it."""


class _Long(str):
    """A long text with its JSON."""

    __slots__ = ("json",)

    json: bytes


def held_long(value: Any) -> Any:
    """Return a JSON value for a state to hold: what is long in it is quickly written again."""
    return _with_long(value, {})


def _with_long(value: Any, known: dict[str, _Long]) -> Any:
    if isinstance(value, str):
        if len(value) < LONG:
            return value
        # A text that comes several times has its JSON made once.
        long = value if isinstance(value, _Long) else known.get(value) or _Long(value)
        if not hasattr(long, "json"):
            long.json = orjson.dumps(value)
        return known.setdefault(long, long)
    if isinstance(value, dict):
        return {name: _with_long(item, known) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_long(item, known) for item in value]
    if isinstance(value, tuple):
        return tuple(_with_long(item, known) for item in value)
    if isinstance(value, Model):
        items = {name: _with_long(item, known) for name, item in value}
        changed = {name: item for name, item in items.items() if item is not getattr(value, name)}
        return value.model_copy(update=changed) if changed else value
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if (held := _with_long(item, known)) is not item:
                setattr(value, field.name, held)
    return value


def written_once(value: Any) -> Any:
    """Return a JSON value for `format_json`: a long text that comes several times in it is looked
    through once."""
    return _as_fragments(held_long(value))


def _as_fragments(value: Any) -> Any:
    if isinstance(value, _Long):
        return orjson.Fragment(value.json)
    if isinstance(value, dict):
        return {name: _as_fragments(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_fragments(item) for item in value]
    return value


def _json_of(value: object) -> object:
    if isinstance(value, _Long):
        return orjson.Fragment(value.json)
    if isinstance(value, Event):
        return orjson.Fragment(encode_event(value))
    if isinstance(value, Model):
        return value.model_dump(exclude_defaults=True)
    raise TypeError


def format_state(state: Any) -> bytes:
    """Return the JSON of a state, a dataclass, without a copy of all that is open, which `asdict`
    makes.

    Raises:
        JsonError: as `format_json`.
    """
    try:
        return orjson.dumps(state, default=_json_of, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
    except orjson.JSONEncodeError:
        # It holds an integer beyond 64 bits, as events that wait may.
        return format_json(_plain(state))


def _plain(value: Any) -> Any:
    """Return a state as JSON values."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Event):
        return parse_json(encode_event(value))
    if isinstance(value, Model):
        return value.model_dump(mode="json", exclude_defaults=True)
    return value
