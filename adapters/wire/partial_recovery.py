"""What can be read of JSON that was cut or is broken: a turn that ends in it ends all the same."""

from __future__ import annotations

import json
import re
from typing import Any

from adapters.wire.framing import SALVAGED_BYTES
from adapters.wire.jsonvalue import MOST_DIGITS, MOST_NAME, Halved

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(rf"true|false|null|-?[0-9]{{1,{MOST_DIGITS}}}(?:\.[0-9]{{1,20}})?(?=[\s,\]}}])")
_STRING = re.compile(r'"((?:[^"\\\x00-\x1f]|\\.)*)("?)')

_HALF_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{0,3}$")

_CUT = object()


def salvage(data: bytes) -> dict[str, Any]:
    """Return the members of an object that are whole, up to the place where it is cut or broken.

    Of an object or array that is cut the begin is taken, of a text only where it is longer than any
    name: an id that is cut is another one.
    """
    reader = _BrokenJsonReader(data[:SALVAGED_BYTES].decode("utf-8", "replace"))
    value = reader.value(0)
    return value if isinstance(value, dict) else {}


def block_of(block: bytes) -> tuple[str, bytes]:
    """Return the name and the data of an event stream's frame that is cut behind its begin."""
    name, data = b"", []
    for line in block[:SALVAGED_BYTES].split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"event":
            name = value.removeprefix(b" ")
        elif field == b"data":
            data.append(value.removeprefix(b" "))
    return name.decode("utf-8", "replace"), b"\n".join(data)


class _BrokenJsonReader:
    """Reads from a place on; nothing does behind what makes no sense."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        # Members and items that are still read.
        self._left = 1_000
        self._over = False

    def value(self, depth: int) -> Any:
        """Return the next value, as much of it as there is."""
        self._space()
        begin = self._text[self._at : self._at + 1]
        self._left -= 1
        # Envelopes have fewer levels.
        if depth > 16 or self._left < 0:
            return self._stop()
        if begin == '"':
            return self._string()
        if begin == "{":
            return self._object(depth)
        if begin == "[":
            return self._array(depth)
        found = _PLAIN.match(self._text, self._at)
        if found is None:
            return self._stop()
        self._at = found.end()
        return json.loads(found[0])

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self._at += 1
        while self._goes_on() and not self._took("}"):
            name = self._string()
            if name is _CUT or not self._goes_on() or not self._took(":"):
                self._stop()
                break
            value = self.value(depth + 1)
            if value is not _CUT:
                members[name] = value
            if self._goes_on() and not self._took(","):
                if not self._took("}"):
                    self._stop()
                break
        return members

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self._at += 1
        while self._goes_on() and not self._took("]"):
            value = self.value(depth + 1)
            if value is not _CUT:
                items.append(value)
            if self._goes_on() and not self._took(","):
                if not self._took("]"):
                    self._stop()
                break
        return items

    def _string(self) -> Any:
        self._space()
        found = _STRING.match(self._text, self._at)
        if found is None:
            return self._stop()
        self._at = found.end()
        whole = found[1] if found[2] else _HALF_ESCAPE.sub("", found[1])
        try:
            text = str(Halved.of(json.loads(f'"{whole}"')))
        except ValueError:
            return self._stop()
        if found[2]:
            return text
        self._stop()
        return f"{text[:MOST_NAME]}…" if len(text) > MOST_NAME else _CUT

    def _took(self, mark: str) -> bool:
        self._space()
        found = self._text.startswith(mark, self._at)
        self._at += found
        return found

    def _space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _goes_on(self) -> bool:
        return not self._over

    def _stop(self) -> Any:
        self._over = True
        return _CUT
