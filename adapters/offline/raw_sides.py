"""What the two sides of a difference were in their dialects: frames, or else how they are written.

An event names its source frame (`NativeRef.frame`). Where the file has no frames, the event is
written as its dialect would show it, and where that shows nothing, its native id and type are left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from adapters.model import events as ev
from adapters.model.state import LawBroken, LogState
from adapters.offline.compare.difference import Comparison, Difference, DifferenceSide
from adapters.offline.frames import RawFrame
from adapters.offline.translate import TranslateOptions, make_sink
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import format_json

Frames = Callable[[Collection[int]], Mapping[int, RawFrame]]

_DELTAS: dict[str, type[ev.TextDelta | ev.ReasoningDelta]] = {
    ev.TextCompleted.TYPE: ev.TextDelta,
    ev.ReasoningCompleted.TYPE: ev.ReasoningDelta,
}


@dataclasses.dataclass(frozen=True, slots=True)
class DialectLog:
    """A log, its dialect where that is known, and what finds its frames, None where it has none."""

    log: Sequence[ev.Entry]
    dialect: str | None = None
    frames: Frames | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RawEvent:
    """An event in a dialect: its `frame`, how it is `written`, or its `native` names."""

    kind: Literal["frame", "written", "native"]
    dialect: str
    place: str
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        place = {"place": self.place} if self.place else {}
        return {"kind": self.kind, "dialect": self.dialect, **place, "text": self.text}

    def title(self, name: str) -> str:
        """Say where it comes from."""
        match self.kind:
            case "frame":
                return f"{name}, {self.place}, in `{self.dialect}`"
            case "written":
                return f"{name}, as `{self.dialect}` writes it"
            case "native":
                return f"{name}, as `{self.dialect}` names it"

    def lines(self, path: str, side: DifferenceSide, other: DifferenceSide) -> list[str]:
        """Return its lines for people: of long ones what is near the difference."""
        marks = [_where_they_part(side.value, other.value), f'"{_field(path)}"']
        lines = [_cut(line, marks) for line in self.text.splitlines()]
        return lines if len(lines) <= 12 else [*lines[:12], "…"]


def raw_sides(
    found: Comparison, a: DialectLog, b: DialectLog
) -> list[tuple[RawEvent | None, RawEvent | None]]:
    """Return what the sides of each difference were, None of one that has no event."""
    pairs = [(one, one.a, one.b) for one in found.differences]
    raws_a = _raws(a, pairs)
    raws_b = _raws(b, [(one, other, side) for one, side, other in pairs])
    return list(zip(raws_a, raws_b, strict=True))


def differences_json(
    found: Comparison, raws: Sequence[tuple[RawEvent | None, RawEvent | None]]
) -> list[dict[str, Any]]:
    """Return the differences as JSON, each side with what `raw_sides` gave for it."""
    told = []
    for one, pair in zip(found.differences, raws, strict=True):
        value = one.as_json()
        for side, raw in zip("ab", pair, strict=True):
            if raw is not None:
                value[side]["raw"] = raw.as_json()
        told.append(value)
    return told


def _raws(
    spoken: DialectLog, sides: Sequence[tuple[Difference, DifferenceSide, DifferenceSide]]
) -> Iterator[RawEvent | None]:
    """Yield what one side of each difference was."""
    places = [list(_places(spoken.log, *one)) for one in sides]
    known = _all_raws(spoken, {index for indices in places for index in indices})
    for (_, side, other), indices in zip(sides, places, strict=True):
        raws = [known[index] for index in indices if index in known]
        mark = _where_they_part(side.value, other.value)
        yield next((raw for raw in raws if mark and mark in raw.text), next(iter(raws), None))


def _places(
    log: Sequence[ev.Entry], difference: Difference, side: DifferenceSide, other: DifferenceSide
) -> Iterator[int]:
    """Yield where the event of a side stands in its log, and of a whole text the piece that says
    what differs."""
    if side.index is None:
        return
    piece = None
    event, value, unlike = log[side.index].event, side.value, other.value
    if (
        event.TYPE in _DELTAS
        and difference.path.endswith(".text")
        and isinstance(value, str)
        and isinstance(unlike, str)
    ):
        piece = _piece(log, side.index, _same(value, unlike))
    if piece is not None and event.native is None:
        yield piece
    yield side.index
    if piece is not None and event.native is not None:
        yield piece


def _piece(log: Sequence[ev.Entry], index: int, at: int) -> int | None:
    """Return where the delta stands that has a character of a whole text."""
    whole: Any = log[index].event
    begin = index
    deltas: list[tuple[int, str]] = []
    while begin and not isinstance(log[begin].event, ev.TurnStarted):
        begin -= 1
        delta: Any = log[begin].event
        if isinstance(delta, _DELTAS[whole.TYPE]) and _block(delta) == _block(whole):
            deltas.insert(0, (begin, delta.text))
    for place, text in deltas:
        if at < len(text):
            return place
        at -= len(text)
    return deltas[-1][0] if deltas else None


def _block(event: Any) -> tuple[str, ...]:
    return (event.thread_id, event.turn_id, event.message_id, event.block_id)


def _all_raws(spoken: DialectLog, indices: Collection[int]) -> dict[int, RawEvent]:
    """Return what these events of a log were."""
    raws: dict[int, RawEvent] = {}
    natives = {index: spoken.log[index].event.native for index in indices}
    numbers = {n.frame for n in natives.values() if n is not None and n.frame is not None}
    frames = spoken.frames(numbers) if spoken.frames is not None and numbers else {}
    for index, native in natives.items():
        frame = None if native is None or native.frame is None else frames.get(native.frame)
        if native is not None and frame is not None and _is_of(frame, native):
            text = frame.data.decode(errors="backslashreplace")
            raws[index] = RawEvent("frame", native.dialect, frame.place, text)
    dialect = spoken.dialect or _dialect_of(spoken.log)
    left = {index for index in indices if index not in raws}
    if dialect is not None and left:
        raws.update(_written(spoken.log, left, dialect))
    for index in left - raws.keys():
        native = natives[index]
        if native is not None:
            names = [f"{what} {one}" for what in ("type", "id") if (one := getattr(native, what))]
            raws[index] = RawEvent("native", native.dialect, "", ", ".join(names))
    return raws


def _is_of(frame: RawFrame, native: ev.NativeRef) -> bool:
    """Say whether an event is of a frame: a server that read it may have counted otherwise."""
    return (native.id or native.type or "").encode() in frame.data


def _dialect_of(log: Sequence[ev.Entry]) -> str | None:
    natives = (entry.event.native for entry in log)
    return next((native.dialect for native in natives if native is not None), None)


def _written(
    log: Sequence[ev.Entry], indices: Collection[int], dialect: str
) -> Iterator[tuple[int, RawEvent]]:
    """Yield how a dialect writes these events, of those that it shows."""
    try:
        sink = make_sink(dialect, TranslateOptions())
    except NotSupported:
        return
    state = LogState()
    for index in range(max(indices) + 1):
        try:
            state.apply_entry(log[index])
        except LawBroken:
            # Somebody has edited it; an encoder relies on the laws.
            return
        data = sink(log[index])
        if index in indices and data.strip():
            text = data.decode(errors="backslashreplace").rstrip("\n")
            yield index, RawEvent("written", dialect, "", text)


# Near what differs.


def _same(a: str, b: str) -> int:
    """Return how many characters two texts have in common at their begin."""
    unlike = (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(unlike, min(len(a), len(b)))


def _where_they_part(value: Any, other: Any) -> str:
    """Return what stands in a frame where a text parts from the other one; nothing for others."""
    if not isinstance(value, str) or not value:
        return ""
    at = _same(value, other) if isinstance(other, str) else 0
    # A dozen characters are enough to find the place.
    text = value[at : at + 12] or value[-12:]
    return format_json(text).decode()[1:-1]


def _field(path: str) -> str:
    return next(part for part in reversed(path.split(".")) if not part.isdecimal())


def _cut(line: str, marks: Sequence[str], width: int = 200) -> str:
    if len(line) <= width:
        return line
    found = (line.find(mark) for mark in marks if mark)
    # Some characters are shown before what differs.
    start = max(0, next((at for at in found if at >= 0), 0) - 60)
    begin, end = ("…" if start else ""), ("…" if start + width < len(line) else "")
    return f"{begin}{line[start : start + width]}{end}"
