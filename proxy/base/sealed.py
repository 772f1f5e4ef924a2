"""Keeps sealed values out of what a backend says of them.

A backend may repeat a secret: in the echo of its input, in a refusal, in the output of a tool. So
what it says is cleaned before anything else sees it, from the moment in which a session takes a
value until the turn that the value was for is over. A backend repeats it in that turn, and what is
no longer in memory cannot leak from a dump of it.

The end of a delta that may be the beginning of a value waits for the next delta of its block, or
for what else its thread says.

This does not find a part of a value (in a frame that was cut), a value that is
spelled otherwise than JSON, URLs and base64 spell it, a number, or a value in a later turn or after
a restart. The names of members and the protocol's own strings stay: a password may be a word of the
dialect.
"""

from __future__ import annotations

import dataclasses
import json
import re
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from adapters.captures.secrets import SpelledValues
from adapters.model import events as ev
from adapters.model.base import Response
from adapters.model.commands import Sealed
from adapters.model.raw import CharactersRepaired, CutDelta
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.framing import FrameTooLarge
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import JsonError, format_json, parse_json

REDACTED = "[redacted]"

MOST_SPELLED = 24 * 1024
"""Bytes of all spellings of a session's values. A private key of 4096 bits takes two thirds."""

_NAME = re.compile(r"type|id|event|status|role|kind|level|source|name|.*(?:_id|_ids|_at|Id|Ids|At)")
"""Members whose strings are the protocol's own: a turn would not end if one were replaced."""

_Delta = ev.TextDelta | ev.ReasoningDelta | ev.ToolInputDelta

_all: weakref.WeakSet[SecretScrubber] = weakref.WeakSet()


class SecretScrubber:
    """The sealed values of one session, by the commands that carry them; `active` while there is
    any."""

    __slots__ = ("__weakref__", "_found", "_spellings", "_tails", "_values", "active")

    def __init__(self) -> None:
        self.active = False
        self._values: dict[str, Sealed] = {}
        # What finds them, however they are spelled; None where there are none.
        self._found: SpelledValues | None = None
        # The longest first: what the end of a delta may begin.
        self._spellings: list[str] = []
        # The ends of deltas that may be the beginning of a value, by thread and block.
        self._tails: dict[tuple[str, str], _Delta] = {}

    def check_room(self, values: Iterable[Sealed]) -> None:
        """Check that these values may be added.

        Raises:
            DragomanError: they are too much, with those that are here.
        """
        spelled = _all_spellings([*self._values.values(), *values])
        if sum(len(one.encode()) for one in spelled) > MOST_SPELLED:
            raise DragomanError(
                f"All that is looked for of the sealed values of a turn, their lines and what "
                f"JSON and URLs make of them, has at most {MOST_SPELLED} bytes.",
                code=ErrorCode.TOO_LARGE,
            )

    def add(self, command_id: str, value: Sealed) -> None:
        """Look for the value of a command from now on."""
        self.active = True
        self._values[command_id] = value
        self._spellings = _all_spellings(self._values.values())
        self._found = SpelledValues({text for one in self._values.values() for text in _texts(one)})
        _all.add(self)

    def is_in(self, command_ids: Collection[str]) -> bool:
        """Say whether one of these commands carries a value that is looked for."""
        return not self._values.keys().isdisjoint(command_ids)

    def clear(self) -> None:
        """Forget all values."""
        self.active = False
        self._values.clear()
        self._found = None
        self._spellings = []
        self._tails.clear()
        _all.discard(self)

    def clean(self, text: str) -> str:
        """Return a text without the values."""
        return text if self._found is None else self._found.replaced(text, REDACTED)

    def frame(self, frame: SseFrame | bytes | FrameTooLarge) -> SseFrame | bytes | FrameTooLarge:
        """Return a frame without the values."""
        match frame:
            case bytes():
                return self.data(frame)
            case SseFrame():
                return frame._replace(data=self.data(frame.data))
            case _:
                return FrameTooLarge(self.data(frame.offending), limit=frame.limit)

    def response(self, response: Response) -> Response:
        """Return an answer without the values in its body."""
        return dataclasses.replace(response, body=self.data(response.body))

    def data(self, data: bytes) -> bytes:
        """Return some JSON, or any other text, without the values; the same where it has none."""
        try:
            value = parse_json(data)
        except JsonError:
            text = data.decode("utf-8", "surrogateescape")
            return self.clean(text).encode("utf-8", "surrogateescape")
        cleaned = self._clean_json(value)
        return data if cleaned == value else format_json(cleaned)

    def _clean_json(self, value: Any, name: str = "") -> Any:
        match value:
            case str():
                return value if _NAME.fullmatch(name) else self.clean(value)
            case list():
                return [self._clean_json(item, name) for item in value]
            case dict():
                return {key: self._clean_json(item, key) for key, item in value.items()}
            case _:
                return value

    def events(self, raw: Sequence[ev.Event]) -> list[ev.Event]:
        """Return what a backend said without values that it cut into several deltas."""
        out: list[ev.Event] = []
        for event in raw:
            if isinstance(event, CutDelta):
                # Halves of characters are not joined while a value is looked for.
                event = event.whole()
            if isinstance(event, CharactersRepaired):
                out.append(event)
                continue
            if not isinstance(event, _Delta):
                for key in [key for key in self._tails if key[0] == event.thread_id]:
                    tail = self._tails.pop(key)
                    text, _ = self._split(tail.text, more=False)
                    out.append(tail.model_copy(update={"text": text}))
                out.append(event)
                continue
            block = event.call_id if isinstance(event, ev.ToolInputDelta) else event.block_id
            before = self._tails.pop((event.thread_id, block), None)
            text, rest = self._split(before.text + event.text if before else event.text)
            if rest:
                self._tails[event.thread_id, block] = event.model_copy(update={"text": rest})
            if text:
                out.append(event.model_copy(update={"text": text}))
        return out

    def _split(self, text: str, *, more: bool = True) -> tuple[str, str]:
        """Return the beginning of a text without the values, and the end that may become one with
        what comes next, if there is `more`."""
        done: list[str] = []
        begin = self._begin(text, 0) if more else len(text)
        at, left = 0, self._spellings
        while places := [(place, one) for one in left if (place := text.find(one, at)) >= 0]:
            # Of those that begin together this is the longest.
            start, found = min(places, key=lambda place: place[0])
            if start >= begin:
                break
            done += text[at:start], REDACTED
            at = start + len(found)
            if at > begin:
                begin = self._begin(text, at)
            left = [one for _, one in places]
        return "".join([*done, text[at:begin]]), text[begin:]

    def _begin(self, text: str, start: int) -> int:
        """Return where the end of a text begins that may become a value: the longest end after
        `start` that is also the beginning of one."""
        most = len(text) - start
        sizes = (
            size
            for one in self._spellings
            for size in range(1, min(len(one) - 1, most) + 1)
            if text.endswith(one[:size])
        )
        return len(text) - max(sizes, default=0)


def any_held() -> bool:
    """Say whether any session has a value: nothing is quoted then that may have a part of one."""
    return bool(_all)


def scrub(text: str) -> str:
    """Return a text without the values of any session."""
    for scrubber in list(_all):
        text = scrubber.clean(text)
    return text


def _all_spellings(values: Iterable[Sealed]) -> list[str]:
    """Return all that is looked for, the longest first: one may be a part of another."""
    spelled = {spelled for one in values for text in _texts(one) for spelled in _spellings(text)}
    return sorted(spelled, key=len, reverse=True)


def _texts(sealed: Sealed) -> Iterator[str]:
    """Yield a value and its long lines."""
    value = sealed.reveal()
    lines = [line.strip() for line in value.splitlines()]
    # Tools show a long key line by line: its lines are looked for alone as well.
    for text in (value.strip(), *(line for line in lines if len(line) >= 8)):
        # A shorter text occurs everywhere: to replace it would only garble the rest.
        if len(text) >= 4:
            yield text


def _spellings(text: str) -> Iterator[str]:
    """Yield a text as it is and as JSON and URLs spell it."""
    yield text
    # As in a JSON text that is itself a string.
    yield format_json(text).decode()[1:-1]
    yield json.dumps(text)[1:-1]
    yield quote(text, safe="")
