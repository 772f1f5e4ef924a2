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

import dataclasses
import json
import re
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from adapters import events as ev
from adapters.base import Response
from adapters.commands import Sealed
from adapters.framing import FrameTooLarge
from adapters.framing.sse import SseFrame
from adapters.jsonvalue import JsonError, format_json, parse_json

REDACTED = "[redacted]"

SHORTEST = 4
"""Characters; what is shorter occurs everywhere, and looking for it would only garble the rest."""

SHORTEST_LINE = 8
"""Characters of a line that is looked for by itself, as tools show a key of many lines."""

_NAME = re.compile(r"type|id|event|status|role|kind|level|source|name|.*(?:_id|_ids|_at|Id|Ids|At)")
"""Members whose strings are the protocol's own: a turn would not end if one were replaced."""

_Delta = ev.TextDelta | ev.ReasoningDelta | ev.ToolInputDelta

_all: weakref.WeakSet[Held] = weakref.WeakSet()


class _Search:
    """Finds some texts, the longest first. Nothing of it is a regular expression: `re` keeps every
    pattern that it was given, and a pattern of many texts is slow to make and to look for."""

    __slots__ = ("_longest", "_spellings")

    def __init__(self, spellings: Collection[str]) -> None:
        # The longest first: one may be a part of another.
        self._spellings = sorted(spellings, key=lambda one: (-len(one), one))
        self._longest = len(self._spellings[0]) if self._spellings else 0

    def finds(self, text: str) -> bool:
        """Say whether a text has one of them."""
        return any(one in text for one in self._spellings)

    def clean(self, text: str) -> str:
        """Return a text without them."""
        for one in self._spellings:
            if one in text:
                text = text.replace(one, REDACTED)
        return text

    def split(self, text: str) -> tuple[str, str]:
        """Return the begin of a text without them, and the rest of it that may become one."""
        done: list[str] = []
        while True:
            begin = self._begin(text)
            across = self._across(text, begin)
            if across is None:
                done.append(self.clean(text[:begin]))
                return "".join(done), text[begin:]
            start, end = across
            done += (self.clean(text[:start]), REDACTED)
            text = text[end:]

    def _begin(self, text: str) -> int:
        """Return where the end of a text begins that may become one; its length where none may."""
        found = len(text)
        for one in self._spellings:
            at = text.find(one[0], max(0, len(text) - len(one) + 1))
            while 0 <= at < found:
                if one.startswith(text[at:]):
                    found = at
                at = text.find(one[0], at + 1)
        return found

    def _across(self, text: str, place: int) -> tuple[int, int] | None:
        """Return the first of them that is on both sides of a place."""
        found: tuple[int, int] | None = None
        for one in self._spellings:
            size = len(one)
            at = text.find(one, max(0, place - size + 1), place - 1 + size)
            if at >= 0 and (found is None or at < found[0]):
                found = at, at + size
        return found

    def clean_json(self, value: Any, name: str = "") -> Any:
        """Return a JSON value without them; the same object where it has none."""
        match value:
            case str():
                return (
                    value if _NAME.fullmatch(name) or not self.finds(value) else self.clean(value)
                )
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

    __slots__ = ("__weakref__", "_search", "_tails", "_values")

    def __init__(self) -> None:
        self._values: dict[str, Sealed] = {}
        self._search: _Search | None = None
        # The ends of deltas that may be the begin of a value, by thread and block.
        self._tails: dict[tuple[str, str], _Delta] = {}

    def __bool__(self) -> bool:
        """Say whether there is any."""
        return bool(self._values)

    def add(self, command_id: str, value: Sealed) -> None:
        """Hold the value of a command."""
        self._values[command_id] = value
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
            values = self._values.values()
            self._search = _Search({text for one in values for text in _spellings(one.reveal())})
        return self._search

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
