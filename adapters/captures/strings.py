"""The strings of JSON, and where they stand in it: also of JSON that was cut off or is wrong."""

from __future__ import annotations

import dataclasses
import json
import re

__all__ = ["JsonStrings", "Level", "String"]

_TOKEN = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?P<closed>")?|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL
)

_MARKS = frozenset({b"{", b"}", b"[", b"]", b",", b":"})

_CHARACTER = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.",
    re.DOTALL,
)


@dataclasses.dataclass(slots=True, eq=False)
class Level:
    """An object or an array that is open, or the document itself."""

    above: Level | None = None
    array: bool = False
    name: str = ""
    given: bool = False
    strings: dict[str, String] = dataclasses.field(default_factory=dict)
    others: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return the string of a member, "" where it has none."""
        found = self.strings.get(name)
        return "" if found is None else found.text


@dataclasses.dataclass(slots=True, eq=False)
class String:
    """A string in JSON. `start` is a byte, without the quote. `name` is that of its member, or
    of the member whose array it stands in; `is_name` where it is a name itself."""

    raw: bytes
    start: int
    name: str
    owner: Level
    is_name: bool = False
    secret: bool = False
    _text: str | None = None

    @property
    def text(self) -> str:
        """What it says."""
        if self._text is None:
            self._text = _read(self.raw)
        return self._text

    def place(self, index: int) -> int:
        """Return the byte of the document at which a character of the text begins."""
        raw = self.raw
        if b"\\" not in raw:
            if raw.isascii():
                return self.start + index
            return self.start + len(self.text[:index].encode("utf-8", "surrogateescape"))
        written = raw.decode("utf-8", "surrogateescape")
        ends = [0, *(found.end() for found in _CHARACTER.finditer(written))]
        before = written[: ends[min(index, len(ends) - 1)]]
        return self.start + len(before.encode("utf-8", "surrogateescape"))


def _read(raw: bytes) -> str:
    text = raw.decode("utf-8", "surrogateescape")
    if "\\" not in text:
        return text
    # Character by character, so that each one has its place, whatever is wrong in it.
    return "".join(map(_character, _CHARACTER.findall(text)))


def _character(written: str) -> str:
    if len(written) == 1:
        return written
    try:
        return str(json.loads(f'"{written}"'))
    except ValueError:
        return written[-1]


class JsonStrings:
    """Reads a document from its begin to its end, in one part or in several."""

    def __init__(self) -> None:
        self._level = Level()

    @property
    def name(self) -> str:
        """The name of the member that is being read."""
        return self._level.name

    @property
    def closed(self) -> bool:
        """Whether all that was opened is closed."""
        return self._level.above is None

    def read(self, data: bytes, start: int, *, final: bool) -> tuple[list[String], int]:
        """Return the strings from `start`, and where the first token is that is not whole; a last
        one that is cut off counts as whole if it is `final`."""
        out: list[String] = []
        for found in _TOKEN.finditer(data, start):
            token = found[0]
            if token[:1] == b'"':
                if not found["closed"] and not final:
                    return out, found.start()
                end = found.end() - (1 if found["closed"] else 0)
                out.append(self._string(data, found.start() + 1, end))
            elif found.end() == len(data) and not final and token not in _MARKS:
                return out, found.start()
            else:
                self._mark(token)
        return out, len(data)

    def _string(self, data: bytes, start: int, end: int) -> String:
        level = self._level
        raw = data[start:end]
        is_name = level.above is not None and not level.array and not level.given
        if is_name:
            made = String(raw, start, "", level, is_name=True)
            level.name = made.text
            return made
        made = String(raw, start, level.name, level)
        if not level.array:
            level.strings[level.name] = made
        return made

    def _mark(self, token: bytes) -> None:
        level = self._level
        match token:
            case b"{" | b"[":
                array = token == b"["
                self._level = Level(level, array, level.name if array else "")
            case b"}" | b"]":
                if level.above is not None:
                    self._level = level.above
            case b":":
                level.given = True
            case b",":
                level.given = False
            case _:
                if not level.array:
                    level.others[level.name] = token
