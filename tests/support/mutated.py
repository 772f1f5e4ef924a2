"""Changes recorded frames field by field, as a backend that is broken or hostile would.

A `Mutation` is drawn by a seeded generator, so that what was found is found again.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

from adapters.wire.framing.ndjson import NdjsonParser
from adapters.wire.framing.sse import SseFrame, SseParser

RAW = "\0raw "
"""A member that begins so is written into the JSON without quotes and escapes."""

DEEP = RAW + "[" * 100 + "]" * 100
TOO_DEEP = RAW + "[" * 300 + "]" * 300

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    1.5,
    -0.0,
    1e308,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    2**70,
    -(2**63) - 1,
    -(2**70),
    10**400,
    RAW + "9" * 5000,
    RAW + "1e999",
    RAW + "-1e999",
    RAW + "NaN",
    RAW + "Infinity",
    RAW + r'"\ud800"',
    RAW + r'"a\u0000b"',
    DEEP,
    TOO_DEEP,
    "",
    " ",
    "\n",
    "a\r\nevent: forged\ndata: {}\n\n",
    "\x1b[31m\x00\x7f\u2028",
    "../../etc/passwd",
    "main",
    "x" * 20_000,
    "12345678901234567890",
    "1e999",
    "NaN",
    "2026-06-18T09:31:09.441Z",
    "9999-12-31T23:59:59.999999+00:00",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+23:59",
    [],
    {},
    [None],
    [[]],
    [{}],
    [1, "a", None, {}, 2**70],
    ["a", "a", "a"],
    ["x"] * 300,
    {"": ""},
    {"type": 5},
    {"type": "unknown"},
    {"type": "text"},
    {"type": "text", "text": 5},
    {"id": 5, "text": None},
    {"__proto__": {}, "constructor": 2**70},
)
"""What a field may hold instead: all types, the ends of all ranges, what libraries trip on."""

BYTES: tuple[bytes, ...] = (b"", b"\xff\xfe", b"{", b"[]", b"null", b"5", b'"x"', b"\x00", b"{}{}")
"""What the whole payload of a frame may be instead."""

Path = tuple[str | int, ...]


def paths_of(value: Any, under: Path = ()) -> list[Path]:
    """Return the place of every member of a value, at any depth."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    found: list[Path] = []
    for name, member in items:
        found.append((*under, name))
        found += paths_of(member, (*under, name))
    return found


def _text(value: Any) -> bytes:
    """Return a value as JSON, `RAW` members as they are."""
    text = json.dumps(value)
    marker = json.dumps(RAW)[:-1]
    while (start := text.find(marker)) >= 0:
        raw, end = json.JSONDecoder().raw_decode(text, start)
        text = text[:start] + raw.removeprefix(RAW) + text[end:]
    return text.encode()


def _other(draw: random.Random) -> Any:
    return copy.deepcopy(draw.choice(VALUES))


def mutated(draw: random.Random, data: bytes) -> bytes:
    """Return a frame's payload with something in it changed."""
    if draw.random() < 0.02:
        return draw.choice(BYTES)
    try:
        value = json.loads(data)
    except ValueError:
        return draw.choice(BYTES)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        places = paths_of(value)
        if not places:
            break
        place = draw.choice(places)
        holder: Any = value
        for step in place[:-1]:
            holder = holder[step]
        name: Any = place[-1]
        match draw.randrange(12):
            case 0:
                del holder[name]
            case 1 if isinstance(holder, dict):
                # A key twice: the second one wins.
                data = _text(value)
                again = json.dumps(name).encode() + b":" + _text(_other(draw)) + b"}"
                return data[:-1] + b"," + again
            case 2 if isinstance(holder, dict):
                holder[draw.choice(("id", "type", "text", "status", ""))] = _other(draw)
            case 3 if isinstance(holder, list):
                holder += [copy.deepcopy(holder[name])] * 3
            case _:
                holder[name] = _other(draw)
    return _text(value)


def frames_of(body: bytes, framing: str) -> list[SseFrame | bytes]:
    """Return the frames of a recorded body."""
    if framing == "sse":
        return [frame for frame in SseParser().feed(body) if isinstance(frame, SseFrame)]
    return [line for line in NdjsonParser().feed(body + b"\n") if isinstance(line, bytes)]


def disturb(
    draw: random.Random, frames: Sequence[SseFrame | bytes], share: float
) -> list[SseFrame | bytes]:
    """Return the frames with a share of them changed, repeated, left out, or in another order."""
    out: list[SseFrame | bytes] = []
    for frame in frames:
        if draw.random() >= share:
            out.append(frame)
            continue
        match draw.randrange(20):
            case 0:
                continue
            case 1:
                out += [frame, frame]
            case 2:
                out.insert(draw.randrange(len(out) + 1), frame)
            case 3 if isinstance(frame, SseFrame):
                out.append(frame._replace(event=draw.choice(("", "heartbeat", "x\ny", "é" * 99))))
            case 4 if isinstance(frame, SseFrame):
                out.append(frame._replace(id=draw.choice(("", "x" * 9_999, "é,1,2", "-1"))))
            case _ if isinstance(frame, SseFrame):
                out.append(frame._replace(data=mutated(draw, frame.data)))
            case _:
                assert isinstance(frame, bytes)
                out.append(mutated(draw, frame))
    return out
