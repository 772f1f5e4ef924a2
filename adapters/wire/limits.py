"""How many values a backend's JSON may have: a frame of some hundred kB parses into millions; and
how long an id may be."""

from __future__ import annotations

FRAME_VALUES = 100_000
"""Strings, numbers, arrays and objects of a frame or an answer, names and commas counted: a table
of 8,000 rows and four columns."""

ID_BYTES = 4096
"""Bytes of an id that may be any string, an Engine's `task_id` or an eve's `operationId`: enough
for any name, little enough for an index."""

LIGHT = 16 * 1024
"""Bytes that are not counted before they are parsed: they have 5,000 values at most."""


def is_light(data: bytes, most: int = FRAME_VALUES) -> bool:
    """Say of JSON, before it is parsed, that it has `most` values at most.

    It is counted at the speed of C, and its length does not matter: a file in base64 is one value.
    """
    # A comma or a bracket comes with a name and a value at most.
    if len(data) <= LIGHT or 3 * _marks(data) <= most:
        return True
    # In a string they mean nothing: a long table in a text has as many.
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = bare.count(b'"') // 2
    return strings <= most and (strings + _marks(b"".join(bare.split(b'"')[::2])) <= most)


def _marks(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")
