"""JSON that is altered on purpose: what a careless or a hostile peer might send in place of it.

`altered` takes a value and gives text, since much of what is tried here is no value of Python's: a
number that is too large for any float, a member that comes twice, half of a surrogate pair.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JsonText:
    """JSON text, or what claims to be, as it is to be written."""

    text: str


def _nested(depth: int) -> JsonText:
    return JsonText("[" * depth + "]" * depth)


VALUES: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    0.5,
    # The edges of the numbers that JavaScript, SQLite and C have.
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**70,
    -(2**63) - 1,
    JsonText("1e999"),
    JsonText("-1e999"),
    JsonText("1e308"),
    JsonText("NaN"),
    JsonText("-0"),
    "",
    " ",
    "\0",
    "a\0b",
    "x\r\nX-Injected: 1",
    "..",
    "../../../etc/passwd",
    "%2e%2e%2f",
    "..\\..\\admin",
    "/",
    "a/b?c#d",
    "http://127.0.0.1:9/elsewhere",
    "9999-99-99T99:99:99Z",
    "1e9",
    "true",
    "null",
    "\u202e\u0000\uffff",
    JsonText('"\\ud800"'),
    JsonText('"\\udc00\\ud800"'),
    "\U0001f98a" * 40,
    "A" * 4096,
    [],
    {},
    [[]],
    [None] * 64,
    {"": ""},
    {"type": "nothing.that.anybody.knows"},
    _nested(64),
    _nested(1200),
)
"""What is put in place of a value."""


def written(value: object) -> str:
    """Return a value as JSON text; what is `JsonText` in it stands as it is."""
    match value:
        case JsonText(text):
            return text
        case dict():
            members = (f"{json.dumps(str(name))}:{written(one)}" for name, one in value.items())
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(written, value)) + "]"
        case _:
            return json.dumps(value)


def _places(value: object, here: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield here
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _places(one, (*here, name))
    elif isinstance(value, list):
        for at, one in enumerate(value):
            yield from _places(one, (*here, at))


def _changed(value: object, place: tuple[str | int, ...], source: random.Random) -> object:
    """Return a copy of a value that is another one at a place."""
    if place:
        first, rest = place[0], place[1:]
        if isinstance(value, dict):
            return {n: _changed(v, rest, source) if n == first else v for n, v in value.items()}
        assert isinstance(value, list)
        return [_changed(v, rest, source) if at == first else v for at, v in enumerate(value)]
    match source.randrange(8):
        case 0 if isinstance(value, dict) and value:
            gone = source.choice(sorted(value))
            return {name: one for name, one in value.items() if name != gone}
        case 1 if isinstance(value, dict) and value:
            name = source.choice(sorted(value))
            twice = f"{json.dumps(name)}:{written(source.choice(VALUES))}"
            return JsonText("{" + twice + "," + written(value).removeprefix("{"))
        case 2 if isinstance(value, dict):
            return {**value, source.choice(("__proto__", "extra", "")): source.choice(VALUES)}
        case 3 if isinstance(value, list):
            return value * source.choice((0, 2, 100))
        case 4 if isinstance(value, int | float):
            return str(value)
        case 4 if isinstance(value, str):
            return value + source.choice(("\0", "\n", "%00", "/..", "\U0001f98a", " "))
        case 5:
            return [value]
        case 6:
            return {"value": value}
        case _:
            return source.choice(VALUES)


def altered(value: object, source: random.Random) -> str:
    """Return a value as JSON text that differs from it in one to three places, drawn from
    `source`."""
    for _ in range(source.choice((1, 1, 2, 3))):
        value = _changed(value, source.choice(list(_places(value))), source)
        if isinstance(value, JsonText):
            break
    return written(value)
