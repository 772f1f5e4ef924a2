"""Frames of a stream, some of which have more of a text that came before: a secret may be spelled
by several, so they wait until it is known what of them is one."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from adapters.captures.secrets.finder import SecretFinder
from adapters.captures.secrets.running_text import RunningText
from adapters.wire.jsonvalue import JsonError, format_json, parse_json

FRAMES_MOST = 2048
"""Frames that wait behind one."""


Path = tuple[str | int, ...]
"""Names of members, and places in arrays, from the outermost one."""


class DeltaFormat(NamedTuple):
    """A kind of frame that has more of a text, as a dialect declares it.

    `type` is that of the frame: the name of its event, or its member `type`. `text` says where the
    text is, `places` where it says which text that is, `so_far` where the whole text stands as far
    as it came. The frame is one if `when` is true, where that is given. Frames with a type of
    `ends` end the text, if they say nothing else at `places`.
    """

    type: str
    text: Path
    places: tuple[Path, ...] = ()
    so_far: Path | None = None
    when: Path | None = None
    ends: tuple[str, ...] = ()


@dataclasses.dataclass(slots=True, eq=False)
class StreamFrame:
    """A frame that is JSON, or another text. Once it is `settled`, `new` is what stands for it, or
    None where it has no secret."""

    number: int
    data: bytes
    settled: bool = True
    new: bytes | None = None
    # What is written anew, where something beside the text of a delta is secret.
    value: Any = None
    delta: DeltaFormat | None = None
    text: str = ""
    so_far: str | None = None

    def settle(self, text: str, so_far: str | None) -> None:
        """Write what stands for its delta."""
        self.settled = True
        if self.value is None and text == self.text and so_far == self.so_far:
            return
        assert self.delta is not None
        value: Any = parse_json(self.data) if self.value is None else self.value
        _put(value, self.delta.text, text)
        if so_far is not None and self.delta.so_far is not None:
            _put(value, self.delta.so_far, so_far)
        self.new = format_json(value)


@dataclasses.dataclass(slots=True)
class _DeltaText:
    """A text: the frames that wait with the places of their parts, up to its end, and what of it
    has come last."""

    running: RunningText
    parts: deque[tuple[StreamFrame, int, int]] = dataclasses.field(default_factory=deque)
    fresh: list[str] = dataclasses.field(default_factory=list)
    end: int = 0


class DeltaTexts:
    """The frames of one stream, and the texts that come in them."""

    def __init__(self, finder: SecretFinder, deltas: Mapping[str, DeltaFormat]) -> None:
        """`deltas` are those that are known, by their type."""
        self._finder = finder
        self._deltas = deltas
        self._ends: dict[str, set[str]] = {}
        for delta in deltas.values():
            for type_ in delta.ends:
                self._ends.setdefault(type_, set()).add(delta.type)
        self._number = 0
        self._texts: dict[tuple[str, ...], _DeltaText] = {}

    def take(self, frames: Sequence[tuple[bytes, str]], *, clean: bool) -> list[StreamFrame]:
        """Take frames, each with the name that it has beside it; `clean` where it is known that
        none has a secret by itself."""
        out = [self._frame(data, event, clean=clean) for data, event in frames]
        for key, text in [*self._texts.items()]:
            if text.parts and self._number - text.parts[0][0].number >= FRAMES_MOST:
                # The others have waited for it too long.
                self._end(key)
            elif text.fresh:
                self._look(text)
        return out

    def close(self) -> None:
        """Settle all frames: nothing more comes."""
        for key in [*self._texts]:
            self._end(key)

    def _frame(self, data: bytes, event: str, *, clean: bool) -> StreamFrame:
        self._number += 1
        frame = StreamFrame(self._number, data)
        text = ""
        if not clean:
            text = data.decode("utf-8", "surrogateescape")
            clean = self._finder.has_nothing(text)
        try:
            # What is written anew is read exactly.
            value: Any = orjson.loads(data) if clean else parse_json(data)
        except (orjson.JSONDecodeError, JsonError):
            if not clean and (cleaned := self._finder.clean_broken(text)) != text:
                frame.new = cleaned.encode("utf-8", "surrogateescape")
            return frame
        type_ = value.get("type") if type(value) is dict else None
        delta = self._deltas.get(event) or self._deltas.get(type_ if type(type_) is str else "")
        if delta is not None:
            self._take_text(frame, delta, value)
        if frame.delta is None and self._texts:
            self._end_by({event, type_} if type(type_) is str else {event}, value)
        if not clean:
            if frame.delta is not None:
                _put(value, frame.delta.text, "")
            frame.value = self._finder.clean_json(value, text)
            if frame.delta is None and frame.value is not None:
                frame.new = format_json(frame.value)
        return frame

    def _take_text(self, frame: StreamFrame, delta: DeltaFormat, value: Any) -> None:
        """Take the text of a frame that has more of one."""
        if delta.when is not None and _at(value, delta.when) is not True:
            return
        text = _at(value, delta.text)
        if type(text) is not str:
            return
        if delta.so_far is not None and type(so_far := _at(value, delta.so_far)) is str:
            frame.so_far = so_far
        frame.delta, frame.text, frame.settled = delta, text, False
        key = (delta.type, *[str(_at(value, path)) for path in delta.places])
        found = self._texts.get(key)
        if found is None:
            # More texts at a time than any agent writes: the oldest one ends.
            if len(self._texts) >= 256:
                self._end(next(iter(self._texts)))
            found = self._texts[key] = _DeltaText(RunningText(self._finder))
        start, found.end = found.end, found.end + len(text)
        found.parts.append((frame, start, found.end))
        found.fresh.append(text)

    def _look(self, text: _DeltaText) -> None:
        """Look at what has come last of a text."""
        text.running.add("".join(text.fresh))
        text.fresh.clear()
        self._let_go(text)

    def _end(self, key: tuple[str, ...]) -> None:
        text = self._texts.pop(key)
        text.running.add("".join(text.fresh))
        text.running.end()
        self._let_go(text)

    def _end_by(self, types: set[str], value: Any) -> None:
        """End the texts that a frame with these types ends."""
        for name in types:
            kinds = self._ends.get(name)
            for key in [key for key in self._texts if key[0] in kinds] if kinds else ():
                paths = self._deltas[key[0]].places
                said = zip((_at(value, path) for path in paths), key[1:], strict=True)
                if all(one is None or str(one) == had for one, had in said):
                    self._end(key)

    def _let_go(self, text: _DeltaText) -> None:
        """Settle the frames whose part is decided."""
        running, parts = text.running, text.parts
        while parts and parts[0][2] <= running.decided:
            frame, start, end = parts.popleft()
            written, so_far = frame.text, frame.so_far
            if running.spans:
                written = self._between(running, written, start)
            if so_far is not None:
                so_far = self._so_far(running, so_far, end)
            frame.settle(written, so_far)
            running.drop(end)

    def _between(self, running: RunningText, text: str, start: int) -> str:
        """Return a part that begins at a place, without its secrets: the mark of each stands where
        it begins."""
        out: list[str] = []
        at, end = start, start + len(text)
        for span in running.spans:
            if span.start >= end:
                break
            if span.end > at:
                out.append(text[at - start : max(span.start, at) - start])
                if span.start >= start:
                    out.append(self._finder.marked_as(span))
                at = min(span.end, end)
        return "".join([*out, text[at - start :]])

    def _so_far(self, running: RunningText, text: str, end: int) -> str:
        """Return a whole text so far, which ends at a place, without its secrets: its last one may
        be cut."""
        for span in running.spans:
            if span.start < end < span.end and span.value:
                kept = text[: max(0, len(text) - (end - span.start))]
                return self._finder.clean(kept) + self._finder.marked_as(span)
        return self._finder.clean(text)


def by_type(deltas: Iterable[DeltaFormat]) -> dict[str, DeltaFormat]:
    """Return deltas by the type of their frames."""
    return {delta.type: delta for delta in deltas}


LOG = by_type(
    (
        DeltaFormat("text.delta", ("text",), (("block_id",),), ends=("text.completed",)),
        DeltaFormat("reasoning.delta", ("text",), (("block_id",),), ends=("reasoning.completed",)),
        DeltaFormat("tool.input_delta", ("text",), (("call_id",),), ends=("tool.called",)),
    )
)
"""Those of the canonical log."""


def _at(value: Any, path: Path) -> Any:
    for step in path:
        if type(value) is dict:
            value = value.get(step)
        elif type(value) is list and type(step) is int and step < len(value):
            value = value[step]
        else:
            return None
    return value


def _put(value: Any, path: Path, text: str) -> None:
    _at(value, path[:-1])[path[-1]] = text
