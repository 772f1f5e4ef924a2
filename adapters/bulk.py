"""What bodies and frames may have in them, for `proxy.bodies` and `proxy.upstream.weigh`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from adapters import limits
from adapters.limits import FRAME_VALUES, LIGHT

__all__ = [
    "LIGHT",
    "TooDeep",
    "TooMuch",
    "Unended",
    "bounded",
    "is_light",
    "outline",
]

VALUES = 20_000
"""Strings, numbers, arrays and objects in a document: they cost memory and time by the piece, a
few microseconds each until they are stored. The largest known, a program's state in `clientContext`
and a schema, have some thousand; a tool's table of 800 rows and eight columns has as many."""

REST = 2**20
"""Bytes of a document that are not in long strings: what is read in one step."""

FRAME_TEXT = 2**20
"""Bytes of a backend's frame without its files: the largest that was recorded has 20 kB, a Herm's
texts have 20,000 characters (Herm page, section 3.1). What is in the log is decoded, stored and
shown in one step each, 2 to 5 ms for 1 MiB."""

DIGITS = 400
"""Digits of a number: floats end at 309, and the time grows with the square."""

ESCAPES = 2**21
"""Backslashes of a document: a file of 72 MiB whose slashes are escaped has half as many, a text of
8 MiB whose every fourth character is a line end as many. They are stepped over one by one."""

_LONG = 256
"""Bytes from which a string is cut out; what takes its place has 70."""

_STEP = 128 * 1024
"""Bytes, or characters, of one step."""

# Whole escapes, pairs of surrogates included, so that a string can be cut behind what it matches.
_PART = re.compile(
    rb'(?:[^"\\]++|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])....|\\[^u])*+', re.DOTALL
)
_DIGITS = re.compile(rb"[0-9]{%d}" % (DIGITS + 1))
_CONTINUED = 0x80
"""How the second and later bytes of a UTF-8 character begin, in two bits."""


_DEEP = b"[" * 1025
"""One level more than orjson goes down before it refuses, so that it stops here at the latest."""


class TooMuch(ValueError):
    """There is more of something than is read; the text says of what."""


class Unended(ValueError):
    """A string does not end or has an escape that is none: this is no JSON."""


class TooDeep(ValueError):
    """Arrays are nested deeper than anything is read, or have no end."""


def is_light(data: bytes, text: int = FRAME_TEXT) -> bool:
    """Say of a backend's JSON, at the speed of C, that it is within what `bounded` allows."""
    return len(data) <= text and limits.is_light(data)


def bounded(data: bytes, text: int = FRAME_TEXT) -> tuple[bytes, int]:
    """Return a backend's JSON, without its files where it is larger than `text`, and the bytes that
    these had. A file is what stands there as a `data:` URL: `null` takes its place.

    Raises:
        TooMuch: it has too many values, or without its files too much text.
    """
    try:
        strings = outline(data, FRAME_VALUES)
    except (TooDeep, Unended):
        # It is no JSON, or none that is read, as its parser will say.
        if len(data) > text:
            raise TooMuch(f"more than {text} bytes") from None
        return data, 0
    if len(data) <= text:
        return data, 0
    out: list[bytes] = []
    at = dropped = 0
    for begin, end in strings:
        if data.startswith(b"data:", begin):
            out += (data[at : begin - 1], b"null")
            at = end + 1
            dropped += end - begin
    if len(data) - dropped > text:
        raise TooMuch(f"more than {text} bytes, files not counted,")
    out.append(data[at:])
    return b"".join(out), dropped


def outline(data: bytes, most: int = VALUES) -> list[tuple[int, int]]:
    """Return where the long strings of a document are.

    It need not be JSON: that the rest and the strings are is for who reads them. It has `most`
    values at most.

    Raises:
        TooMuch: it has too many values, too much besides long strings, or too long a number.
        Unended: a string has no end.
    """
    pieces: list[bytes] = []
    strings: list[tuple[int, int]] = []
    values = size = kept = at = escapes = 0
    while True:
        quote = data.find(b'"', at, at + _STEP)
        end = quote if quote >= 0 else min(at + _STEP, len(data))
        gap = data[at:end]
        if _DEEP in gap:
            raise TooDeep
        values += gap.count(b",") + gap.count(b"[") + gap.count(b"{")
        size += len(gap)
        at = end
        if quote >= 0:
            begin = quote + 1
            last = begin
            for at in _parts(data, begin):
                escapes += data.count(b"\\", last, at)
                if escapes > ESCAPES:
                    raise TooMuch(f"more than {ESCAPES} escapes")
                last = at
            if data[at : at + 1] != b'"':
                raise Unended("a string does not end")
            values += 1
            if at - begin >= _LONG:
                pieces.append(data[kept:quote])
                strings.append((begin, at))
                at = kept = at + 1
            else:
                size += at - quote
                at += 1
        if values > most:
            raise TooMuch(f"more than {most} values")
        if size > REST:
            raise TooMuch(f"more than {REST} bytes besides strings of {_LONG} and more")
        if at >= len(data):
            break
    pieces.append(data[kept:])
    if _DIGITS.search(b"".join(pieces)):
        raise TooMuch(f"a number of more than {DIGITS} digits")
    return strings


def _parts(data: bytes, begin: int) -> Iterator[int]:
    """Yield where a string may be cut, and in the end where it is over; at least once."""
    at = begin
    while True:
        end = data.find(b'"', at, at + _STEP)
        if end < 0:
            end = min(at + _STEP, len(data))
        if data.find(b"\\", at, end) >= 0:
            # The expression takes ten times as long as looking for a byte.
            found = _PART.match(data, at, at + _STEP)
            assert found is not None  # it matches nothing as well
            end = found.end()
        while end < len(data) and end > at and data[end] & 0xC0 == _CONTINUED:
            end -= 1
        over = end >= len(data) or data[end] == ord('"') or end == at
        at = end
        yield at
        if over:
            return
