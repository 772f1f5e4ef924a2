"""JSON text to values and back: orjson's speed, exact numbers, and nothing invalid passes.

Where this differs from orjson:

* Integers beyond 64 bits stay integers; orjson reads them as floats and refuses to write them.
* NaN and the infinities are refused both ways; orjson writes them as `null`.
* Nesting deeper than `MAX_DEPTH` is refused on reading. Without that a value could be read that no
  later stage can write: orjson stops at 254 levels, pydantic at 255, and at 200 when it reads.
* Keys must be text, and only JSON's own types are written: no dates and no dataclasses.

When an object has a key twice, the last one wins, as everywhere in Python and JavaScript.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Container, Mapping
from typing import Any, NoReturn

import orjson
from pydantic import JsonValue

MAX_DEPTH = 128
"""Levels of arrays and objects that are read: below all limits above, with room for envelopes."""

_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"

MOST_COUNT = 2**53 - 1
"""The largest integer that all peers read alike (RFC 8259, section 6): no count comes near it."""

MOST_NAME = 1_000
"""Characters of an id or a name that a peer gives: many are remembered, and the longest that is
known has 100."""

MOST_DIGITS = 640
"""Digits of an integer that are read: twice what a float can have. Reading takes the square of
them: 8 MiB of such numbers 0.1 s, of 4,000 digits each 0.6 s."""


_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME

# Integers that may not fit into 64 bits have 20 digits, or 19 and a sign. Turning every digit into
# 0 and looking for a run of them takes a seventh of the time of a regular expression on a small
# event (0.2 against 1.5 us for 189 bytes, CPython 3.11); the expression then decides. The same pass
# makes every opening bracket a [, which is then cheap to count.
_OUTLINE = bytes.maketrans(b"123456789{", b"000000000[")
_LONG_RUN = b"0" * 19
_STEP = 64 * 1024
_LONG_INTEGER = re.compile(rb"-[0-9]{19}|[0-9]{20}")


REPLACEMENT = "\ufffd"
"""Stands for half of a character: what is left where UTF-16 was cut between its two units."""

_HALF_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")


class JsonError(ValueError):
    """Text is not JSON that we take, or a value cannot be written as JSON.

    `reason` is short and quotes nothing of the text, `offset` is the wrong byte's, if known.
    """

    def __init__(self, reason: str, *, offset: int | None = None) -> None:
        super().__init__(reason if offset is None else f"byte {offset}: {reason}")
        self.reason = reason
        self.offset = offset


def parse_json(data: bytes | str) -> JsonValue:
    """Return the value of `data`, one JSON document.

    Raises:
        JsonError: it is not JSON, not UTF-8, has a lone surrogate, is nested deeper than
            `MAX_DEPTH`, or has an integer of more than `MOST_DIGITS` digits. The offset counts the
            bytes of the UTF-8 form.
    """
    value: JsonValue
    failure: orjson.JSONDecodeError | None = None
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        failure = error.with_traceback(None)
    # Not inside the `except`: orjson's error has the whole text, which may hold a secret, and would
    # be kept as the context of ours. And not with its traceback: that knows this frame, and they
    # would keep each other and the text.
    if failure is not None:
        return _parse_refused(data, failure)
    size = len(data)
    if size >= len(_LONG_RUN):
        raw = data if isinstance(data, bytes) else data.encode()
        outline = raw.translate(_OUTLINE) if size <= _STEP else _outline_of(raw)
        if _LONG_RUN in outline and _LONG_INTEGER.search(raw):
            value = _parse_exactly(raw.decode())
        if size > 2 * MAX_DEPTH and outline.count(b"[") > MAX_DEPTH:
            _refuse_too_deep(value)
    return value


def _outline_of(raw: bytes) -> bytes:
    """Return what is looked for in the outline of a long document, looked for piece by piece: to
    fill as much memory anew takes as long as to read it."""
    run, brackets = b"", 0
    for start in range(0, len(raw), _STEP):
        outline = raw[start : start + _STEP + len(_LONG_RUN) - 1].translate(_OUTLINE)
        brackets += outline.count(b"[", 0, _STEP)
        if _LONG_RUN in outline:
            run = _LONG_RUN
    return run + b"[" * min(brackets, MAX_DEPTH + 1)


class Halved(str):
    """A text of a backend that was cut inside of a character, at its begin or its end.

    As a text it has U+FFFD for each half; `halves` is the text as it came.
    """

    __slots__ = ("halves",)

    halves: str

    @classmethod
    def of(cls, text: str) -> str:
        """Return a text without halves; it remembers those at its begin and its end."""
        whole = _HALF.sub(REPLACEMENT, text)
        if not (_HALF.match(text) or _HALF.match(text[-1:])):
            return whole
        found = cls(whole)
        found.halves = text
        return found


def mended_json(data: bytes) -> JsonValue:
    """Return the value of a document of a backend that `parse_json` refuses, where all that is
    wrong with it are halves of characters: each becomes U+FFFD, see `Halved`.

    Raises:
        JsonError: something else is wrong.
    """
    if not _HALF_ESCAPE.search(data):
        # It says what is wrong.
        return parse_json(data)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        offset = error.start
    else:
        value = _parse_exactly(text)
        _refuse_too_deep(value)
        return _mended(value)
    raise JsonError("not UTF-8", offset=offset)


def _mended(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return value if value.isascii() or not _HALF.search(value) else Halved.of(value)
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_HALF.sub(REPLACEMENT, key): _mended(item) for key, item in value.items()}
    return value


def is_json(data: bytes) -> bool:
    """Say whether bytes are JSON."""
    try:
        parse_json(data)
    except JsonError:
        return False
    return True


def format_json(value: object) -> bytes:
    """Return `value` as JSON without white space, in UTF-8.

    The result of a small value holds on to a buffer of 4 kB: pass what is kept through `compact`.

    Raises:
        JsonError: a number is NaN or infinite, text has a lone surrogate, a key is not text, a
            value is of no JSON type, or the nesting is deeper than 254 levels or endless.
    """
    try:
        text = orjson.dumps(value, option=_OPTIONS)
    except orjson.JSONEncodeError as error:
        if "64-bit" not in str(error):
            raise JsonError(str(error)) from error
        text = _format_exactly(value)
    # orjson writes NaN as null, and without a null there was none.
    if b"null" in text:
        _refuse_not_finite(value)
    return text


def count_of(value: object) -> int | None:
    """Return a member that counts something or is a place, or None where it can be neither."""
    if type(value) is int and 0 <= value <= MOST_COUNT:
        return value
    return None


def int_of(value: object) -> int | None:
    """Return a member that is an integer, or None where it is something else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number_of(value: object) -> float | None:
    """Return a member that is a number, or None where it is something else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def text_of(value: object) -> str | None:
    """Return a member that is a text with something in it, or None."""
    return value if isinstance(value, str) and value else None


def name_of(value: object) -> str | None:
    """Return a member that is an id or a name, or None where it is not one or is far too long."""
    return value if isinstance(value, str) and 0 < len(value) <= MOST_NAME else None


def time_of(value: object) -> int | None:
    """Return a member that is an ISO 8601 time as Unix milliseconds, or None where it is not one;
    without a zone it is UTC."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return round(moment.timestamp() * 1000)


def rest_of(value: Mapping[str, Any], known: Container[str]) -> dict[str, Any] | None:
    """Return the members of an object that are not known, or None where there is none."""
    return {name: member for name, member in value.items() if name not in known} or None


def compact(data: bytes) -> bytes:
    """Return a copy of `data` that takes no more memory than its length.

    orjson makes its results in a buffer of at least 4 kB and does not give the unused part back, so
    that a queue or a log of small results would take sixteen times its size.
    """
    return bytes(memoryview(data))


def _parse_exactly(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(
            text, parse_int=_integer, parse_float=_finite, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        reason, offset = error.msg, _byte_offset(text, error.pos)
    except RecursionError:
        reason, offset = _TOO_DEEP, None
    else:
        return value
    raise JsonError(reason, offset=offset)


def _parse_refused(data: bytes | str, failure: orjson.JSONDecodeError) -> JsonValue:
    """Return the value if all that orjson refused is an integer beyond floats, else raise."""
    raw = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        offset, reason = error.start, "not UTF-8"
    else:
        if "infinity" not in failure.msg or not _LONG_INTEGER.search(raw):
            raise _error_of(failure, text)
        value = _parse_exactly(text)
        _refuse_too_deep(value)
        # Surrogates are the one thing that only orjson checks.
        format_json(value)
        return value
    raise JsonError(reason, offset=offset)


def _error_of(failure: orjson.JSONDecodeError, text: str) -> JsonError:
    reason = failure.msg
    if "depth limit" in reason:
        reason = _TOO_DEEP
    return JsonError(reason, offset=_byte_offset(text, failure.pos))


def _byte_offset(text: str, position: int) -> int:
    return len(text[:position].encode("utf-8", "surrogatepass"))


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise JsonError("an integer has too many digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise JsonError("a number is too large")
    return value


def _refuse_constant(_: str) -> NoReturn:
    raise JsonError("NaN and Infinity are not JSON")


def _containers(level: list[Any]) -> list[Any]:
    """Return the arrays and objects directly inside those of `level`."""
    return [
        member
        for container in level
        for member in (container.values() if isinstance(container, dict) else container)
        if type(member) is dict or type(member) is list
    ]


def _refuse_too_deep(value: JsonValue) -> None:
    """Raise where a value is nested too deep: orjson finds that 20 times as fast as a walk."""
    wrapped = value
    # orjson writes 254 levels.
    for _ in range(254 - MAX_DEPTH):
        wrapped = [wrapped]
    try:
        orjson.dumps(wrapped)
    except orjson.JSONEncodeError:
        # It is, or there is something else that cannot be written.
        _walk_down(value)


def _walk_down(value: JsonValue) -> None:
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = _containers(level)
    if level:
        raise JsonError(_TOO_DEEP)


_FINITE = frozenset({str, int, bool, type(None)})


def _refuse_not_finite(value: object) -> None:
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                raise JsonError("NaN and Infinity are not JSON")
        elif isinstance(item, dict):
            pending += [member for member in item.values() if type(member) not in _FINITE]
        elif isinstance(item, list | tuple):
            pending += [member for member in item if type(member) not in _FINITE]


def _format_exactly(value: object) -> bytes:
    try:
        return orjson.dumps(_spell_long_integers(value, 254), option=_OPTIONS)
    except orjson.JSONEncodeError as error:
        raise JsonError(str(error)) from error


def _spell_long_integers(value: Any, levels: int) -> Any:
    """Return `value` with the integers that orjson refuses replaced by their text."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        try:
            return orjson.Fragment(str(value).encode())
        except ValueError as error:
            raise JsonError("an integer has too many digits") from error
    if not isinstance(value, dict | list | tuple):
        return value
    if levels == 0:
        raise JsonError("Recursion limit reached")
    # Loops, as a comprehension would take a second stack frame per level.
    if isinstance(value, dict):
        members = {}
        for key, member in value.items():
            members[key] = _spell_long_integers(member, levels - 1)
        return members
    items = []
    for item in value:
        items.append(_spell_long_integers(item, levels - 1))  # noqa: PERF401
    return items
