"""Sealed values on their way to a backend, and how they are kept out of what that says of them.

A backend may repeat a secret: in the echo of its input, in a refusal, in the output of a tool. So
all that a session hears is cleaned before anything else sees it, from the moment in which it takes
a value until the turn is over that the value was for: what repeats it comes in that turn, and what
is not in memory cannot be told by a dump of it.

The end of a delta that may be the begin of a value waits for the next one.

What this cannot find: a value of which only a part is there (a frame that was cut), in another form
than JSON's or a URL's spelling of it, as a number, in a later turn or after a restart. Members'
names and the protocol's own strings stay: a password may be a word of the dialect.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import json
import re
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from adapters import events as ev
from adapters.base import Response
from adapters.commands import Sealed
from adapters.errors import DragomanError, ErrorCode
from adapters.framing import FrameTooLarge
from adapters.framing.sse import SseFrame
from adapters.jsonvalue import JsonError, format_json, parse_json

REDACTED = "[redacted]"

SHORTEST = 4
"""Characters; what is shorter occurs everywhere, and looking for it would only garble the rest."""

SHORTEST_LINE = 8
"""Characters of a line that is looked for by itself, as tools show a key of many lines."""

MOST_SPELLED = 24 * 1024
"""Bytes of all that is looked for in a session, in every spelling: to get ready for more would take
a turn of the loop too long. A private key of 4096 bits has two thirds of it."""

MOST_PLACES = 4096
"""Of a text that has more of them nothing is left."""

_PIECE = 64 * 1024
"""Bytes of a text that are searched before it is seen whether there are too many."""

_HEAD = 8
"""Bytes of a spelling by which its begin at the end of a text is found."""

_REDACTED = REDACTED.encode()

_NAME = re.compile(r"type|id|event|status|role|kind|level|source|name|.*(?:_id|_ids|_at|Id|Ids|At)")
"""Members whose strings are the protocol's own: a turn would not end if one were replaced."""

_Delta = ev.TextDelta | ev.ReasoningDelta | ev.ToolInputDelta

_all: weakref.WeakSet[Held] = weakref.WeakSet()


class _Search:
    """Finds some texts, of which the longest counts where several begin, in one pass however many
    they are. Nothing of it is a regular expression: `re` keeps every pattern that it was given."""

    __slots__ = ("_automaton", "_heads", "_longest", "_spellings")

    def __init__(self, spellings: Collection[str]) -> None:
        self._spellings = sorted({_bytes(one) for one in spellings})
        self._longest = max(map(len, self._spellings), default=0)
        self._automaton = BytesAhoCorasick(
            self._spellings, MatchKind.LeftmostLongest, Implementation.ContiguousNFA
        )
        heads = sorted({one[:_HEAD] for one in self._spellings})
        self._heads = BytesAhoCorasick(heads, MatchKind.Standard, Implementation.ContiguousNFA)

    def finds(self, text: str) -> bool:
        """Say whether a text has one of them."""
        return self._places(_bytes(text)) != []

    def clean(self, text: str) -> str:
        """Return a text without them; the same object where it has none."""
        data = _bytes(text)
        places = self._places(data)
        if places is None:
            return REDACTED
        return self._joined(data, places) if places else text

    def split(self, text: str) -> tuple[str, str]:
        """Return the begin of a text without them, and the rest of it that may become one."""
        data = _bytes(text)
        begin = self._begin(data, 0)
        places, before = self._places(data), 0
        too_many = places is None
        if places is None:
            places = self._in(data, max(0, begin - self._longest), len(data))
        for start, end in places:
            if start >= begin:
                break
            before += 1
            if end > begin:
                begin = self._begin(data, end)
        done = REDACTED if too_many else self._joined(data[:begin], places[:before])
        return done, _text(data[begin:])

    def _places(self, data: bytes) -> list[tuple[int, int]] | None:
        """Return where they begin and end, None where there are too many."""
        places: list[tuple[int, int]] = []
        at = 0
        while at < len(data):
            edge = at + _PIECE
            # What begins in a piece may end after it.
            places += (one for one in self._in(data, at, edge + self._longest) if one[0] < edge)
            if len(places) > MOST_PLACES:
                return None
            at = max(edge, places[-1][1]) if places else edge
        return places

    def _in(self, data: bytes, at: int, end: int) -> list[tuple[int, int]]:
        found = self._automaton.find_matches_as_indexes(data[at:end])
        return [(at + start, at + end) for _, start, end in found]

    def _joined(self, data: bytes, places: Iterable[tuple[int, int]]) -> str:
        """Return what is between some places."""
        parts: list[bytes] = []
        done = 0
        for start, end in places:
            parts += (data[done:start], _REDACTED)
            done = end
        parts.append(data[done:])
        return _text(b"".join(parts))

    def _begin(self, data: bytes, start: int) -> int:
        """Return where the end of a text begins that may become one, not before `start`; the
        text's length where none may."""
        start = max(start, len(data) - self._longest + 1)
        end = data[start:]
        heads = self._heads.find_matches_as_indexes(end, overlapping=True)
        # Of a head that is not whole yet nothing is found.
        last = range(max(0, len(end) - _HEAD + 1), len(end))
        places: set[int] = {place for _, place, _ in heads}
        for at in sorted(places.union(last)):
            rest = end[at:]
            after = bisect.bisect_right(self._spellings, rest)
            if after < len(self._spellings) and self._spellings[after].startswith(rest):
                return start + at
        return len(data)

    def clean_json(self, value: Any, name: str = "") -> Any:
        """Return a JSON value without them; the same object where it has none."""
        match value:
            case str():
                return value if _NAME.fullmatch(name) else self.clean(value)
            case list():
                items = [self.clean_json(item, name) for item in value]
                changed = any(new is not old for new, old in zip(items, value, strict=True))
                return items if changed else value
            case dict():
                members = {key: self.clean_json(item, key) for key, item in value.items()}
                changed = any(members[key] is not item for key, item in value.items())
                return members if changed else value
            case _:
                return value


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings of a JSON value, but for the names of members."""
    left = [value]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case list() as items:
                left += items
            case dict() as members:
                left += members.values()


class Held:
    """The sealed values of one session, by the commands that carry them."""

    __slots__ = ("__weakref__", "_coming", "_search", "_tails", "_values")

    def __init__(self) -> None:
        self._values: dict[str, Sealed] = {}
        # Those of commands that are not accepted yet.
        self._coming: list[Sealed] = []
        self._search: _Search | None = None
        # The ends of deltas that may be the begin of a value, by thread and block.
        self._tails: dict[tuple[str, str], _Delta] = {}

    def __bool__(self) -> bool:
        """Say whether there is any."""
        return bool(self._values)

    @contextlib.contextmanager
    def expecting(self, values: Sequence[Sealed]) -> Iterator[None]:
        """Get ready for values that may be added before the end of this.

        Raises:
            DragomanError: with what is held they are too much.
        """
        self._coming += values
        self._search = None
        try:
            if sum(map(len, map(_bytes, self._spellings()))) > MOST_SPELLED:
                raise DragomanError(
                    f"All that is looked for of the sealed values of a turn, their lines and what "
                    f"JSON and URLs make of them, has at most {MOST_SPELLED} bytes.",
                    code=ErrorCode.TOO_LARGE,
                )
            yield
        finally:
            held = [id(one) for one in self._values.values()]
            if any(id(one) not in held for one in values):
                self._search = None
            coming = [id(one) for one in values]
            self._coming = [one for one in self._coming if id(one) not in coming]

    def add(self, command_id: str, value: Sealed) -> None:
        """Hold the value of a command."""
        self._values[command_id] = value
        if not any(one is value for one in self._coming):
            self._search = None
        _all.add(self)

    def is_in(self, command_ids: Collection[str]) -> bool:
        """Say whether one of these commands carries a value that is held."""
        return not self._values.keys().isdisjoint(command_ids)

    def clear(self) -> None:
        """Forget them all."""
        self._values.clear()
        self._search = None
        self._tails.clear()
        _all.discard(self)

    @property
    def search(self) -> _Search:
        """Return what finds them, for as long as they are held."""
        if self._search is None:
            self._search = _Search(self._spellings())
        return self._search

    def _spellings(self) -> set[str]:
        values = (*self._values.values(), *self._coming)
        return {text for one in values for text in _spellings(one.reveal())}

    def frame(self, frame: SseFrame | bytes | FrameTooLarge) -> SseFrame | bytes | FrameTooLarge:
        """Return a frame without the values; the same one where it has none."""
        match frame:
            case bytes():
                return self.data(frame)
            case SseFrame():
                data = self.data(frame.data)
                return frame if data is frame.data else frame._replace(data=data)
            case _:
                start = self.data(frame.offending)
                same = start is frame.offending
                return frame if same else FrameTooLarge(start, limit=frame.limit)

    def events(self, raw: Sequence[ev.Event]) -> list[ev.Event]:
        """Return what a backend said without values that it cut into several deltas."""
        search = self.search
        out: list[ev.Event] = []
        for event in raw:
            if not isinstance(event, ev.TextDelta | ev.ReasoningDelta | ev.ToolInputDelta):
                out += self._all_tails(event.thread_id, search)
                out.append(event)
                continue
            block = event.call_id if isinstance(event, ev.ToolInputDelta) else event.block_id
            before = self._tails.pop((event.thread_id, block), None)
            text, tail = search.split(before.text + event.text if before else event.text)
            if tail:
                self._tails[event.thread_id, block] = event.model_copy(update={"text": tail})
            if text:
                out.append(event.model_copy(update={"text": text}))
        return out

    def _all_tails(self, thread_id: str, search: _Search) -> list[ev.Event]:
        keys = [key for key in self._tails if key[0] == thread_id]
        tails = [self._tails.pop(key) for key in keys]
        return [tail.model_copy(update={"text": search.clean(tail.text)}) for tail in tails]

    def response(self, response: Response) -> Response:
        """Return an answer without the values in its body; the same one where it has none."""
        body = self.data(response.body)
        return response if body is response.body else dataclasses.replace(response, body=body)

    def data(self, data: bytes) -> bytes:
        """Return some JSON, or any other text, without the values; the same where it has none."""
        search = self.search
        try:
            value = parse_json(data)
        except JsonError:
            text = data.decode("utf-8", "surrogateescape")
            cleaned = search.clean(text)
            return data if cleaned == text else cleaned.encode("utf-8", "surrogateescape")
        # All at once: there may be very many, and hardly ever one that has a value.
        if not search.finds("\0".join(_strings(value))):
            return data
        cleaned_value = search.clean_json(value)
        return data if cleaned_value is value else format_json(cleaned_value)


def any_held() -> bool:
    """Say whether any session holds a value: nothing is quoted then that may have a part of one."""
    return bool(_all)


def scrub(text: str) -> str:
    """Return a text without any value that any session holds."""
    for held in list(_all):
        text = held.search.clean(text)
    return text


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _spellings(value: str) -> Iterator[str]:
    """Yield a value as JSON and URLs spell it, and its lines."""
    whole = value.strip()
    lines = [line.strip() for line in value.splitlines()]
    for text in (whole, *(line for line in lines if len(line) >= SHORTEST_LINE)):
        if len(text) >= SHORTEST:
            yield text
            # As in a JSON text that is itself a string.
            yield format_json(text).decode("utf-8", "replace")[1:-1]
            yield json.dumps(text)[1:-1]
            yield quote(text.encode("utf-8", "replace"), safe="")
