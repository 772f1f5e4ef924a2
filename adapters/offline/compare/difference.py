"""Compares two sessions by meaning: what their canonical logs say, not how it came.

Names of things are compared by what they name: an id of one log stands for one of the other. Times,
`seq`, `native`, `extra`, `by`, `face`, `synthetic` and durations do not count, nor does how a text
was cut, nor a frame without canonical meaning. Calls of one step are a set, and threads run beside
each other. A field that may differ is named by the type of its event and its path in it, as
`tool.returned.output.created_at`, or alone, as `usage`.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from adapters.model import events as ev
from adapters.model.ignored_fields import BLOCK_TEXTS, ignored_of
from adapters.offline.compare.event_pairs import EventPair, lines, match
from adapters.offline.compare.meaning import ComparedEvent, ComparedId, IdSet, LogMeaning
from adapters.wire.jsonvalue import format_json

VALUE_WIDTH = 100
"""Characters of a value that are shown to people."""


class _Absent:
    def __repr__(self) -> str:
        return "(nothing)"


ABSENT: Any = _Absent()
"""What stands for the value on the side that has none."""


@dataclasses.dataclass(frozen=True, slots=True)
class DifferenceSide:
    """One side of a difference: its value, where it stands, and the events up to there. `index` is
    the position of its event in the log, None where it has none."""

    value: Any
    place: str
    events: tuple[str, ...]
    index: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON; without a value where there is none."""
        value = {} if self.value is ABSENT else {"value": self.value}
        return {"place": self.place, **value, "events": list(self.events)}


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """A field with two values, or an event that only one side has: then `path` is its type."""

    path: str
    a: DifferenceSide
    b: DifferenceSide

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"path": self.path, "a": self.a.as_json(), "b": self.b.as_json()}


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """What differs, in the order of the first log."""

    differences: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return bool(self.differences)

    def lines(self, a: str = "A", b: str = "B") -> list[str]:
        """Return the first difference for people, and how many more there are."""
        return [*self.first(a, b), *self.more()]

    def first(self, a: str = "A", b: str = "B") -> list[str]:
        """Return the first difference for people."""
        if not self.differences:
            return []
        first = self.differences[0]
        if ABSENT in (first.a.value, first.b.value) and first.path in ev.EVENT_TYPES:
            lines = [f"only {b if first.a.value is ABSENT else a} has `{first.path}`"]
        else:
            values = _shown(first.a.value, first.b.value)
            lines = [f"`{first.path}` differs", f"- {values[0]}", f"+ {values[1]}"]
        for mark, name, side in (("-", a, first.a), ("+", b, first.b)):
            lines += ["", f"{mark * 3} {name}: {side.place}", *side.events]
        return lines

    def more(self) -> list[str]:
        """Return for people how many more differences there are, and what can be done."""
        if not self.differences:
            return []
        first, *rest = self.differences
        lines: list[str] = []
        counts = Counter(one.path for one in rest)
        if counts:
            more = "1 more difference" if len(rest) == 1 else f"{len(rest)} more differences"
            lines += ["", f"{more}:"]
            lines += [f"  {count} x {path}" for path, count in counts.most_common()]
        return [*lines, "", f"If it may differ, say so: --ignore {first.path}"]


def compare(a: Sequence[ev.Entry], b: Sequence[ev.Entry], ignore: Iterable[str] = ()) -> Comparison:
    """Compare two logs.

    Args:
        a: a log, in its order.
        b: another one.
        ignore: fields that may differ, and types of events.

    Raises:
        UnknownField: no event has such a field.
    """
    ignored = ignored_of(ignore)
    return Comparison(tuple(_Comparer(LogMeaning(a, ignored), LogMeaning(b, ignored)).run()))


# Pairs of what means the same, and what differs in them.


@dataclasses.dataclass(slots=True, eq=False)
class _Comparer:
    """Two logs, and which id of one stands for which of the other."""

    a: LogMeaning
    b: LogMeaning
    there: dict[tuple[str, str], str] = dataclasses.field(init=False, default_factory=dict)
    back: dict[tuple[str, str], str] = dataclasses.field(init=False, default_factory=dict)

    def run(self) -> Iterator[Difference]:
        """Return what differs, in the order of the first log."""
        self._bind("session", self.a.session, self.b.session)
        pairs = sorted(self._pairs(), key=lambda pair: pair.position)
        for pair in pairs:
            if pair.a is not None and pair.b is not None:
                self._bind_all(pair.a.tree, pair.b.tree)
        for pair in pairs:
            yield from self._differences(pair)

    # Which belongs to which.

    def _pairs(self) -> Iterator[EventPair]:
        threads_a, threads_b = list(self.a.threads), list(self.b.threads)
        found = match(
            [_ways_of_thread(self.a, thread) for thread in threads_a],
            [_ways_of_thread(self.b, thread) for thread in threads_b],
        )
        for number, thread in enumerate(threads_a):
            line = self.a.threads[thread]
            if number in found:
                other = threads_b[found[number]]
                self._bind("thread", thread, other)
                yield from lines(line, self.b.threads[other])
            else:
                yield EventPair(line[0].first, None, -1, _last(self.b))
        for number, thread in enumerate(threads_b):
            if number not in found.values():
                yield EventPair(None, self.b.threads[thread][0].first, _last(self.a), -1)

    def _bind(self, kind: str, a: str, b: str) -> None:
        if (kind, a) not in self.there and (kind, b) not in self.back:
            self.there[kind, a] = b
            self.back[kind, b] = a

    def _bind_all(self, a: Any, b: Any) -> None:
        """Take the ids of two events for each other."""
        if isinstance(a, dict) and isinstance(b, dict):
            for name, value in a.items():
                self._bind_all(value, b.get(name))
        elif isinstance(a, list) and isinstance(b, list):
            for value, other in zip(a, b, strict=False):
                self._bind_all(value, other)
        # What an agent says is only looked up.
        elif isinstance(a, ComparedId) and isinstance(b, ComparedId) and a.field and b.field:
            self._bind(a.kinds[0], a.raw, b.raw)

    def _same(self, a: ComparedId, b: ComparedId) -> bool:
        common = [kind for kind in a.kinds if kind in b.kinds]
        if not common:
            return a.raw == b.raw
        return any(self._stands(kind, a.raw, b.raw) for kind in common)

    def _stands(self, kind: str, a: str, b: str) -> bool:
        there, back = self.there.get((kind, a)), self.back.get((kind, b))
        return there == b or (there is None and back is None)

    # What differs.

    def _differences(self, pair: EventPair) -> Iterator[Difference]:
        a, b = pair.a, pair.b
        if a is None or b is None:
            for item in (a, b):
                if item is not None:
                    yield self._difference(
                        pair,
                        item.type,
                        ABSENT if a is None else a.tree,
                        ABSENT if b is None else b.tree,
                    )
            return
        found = False
        for path, one, other in self._unlike(a.tree, b.tree, a.type):
            found = True
            yield self._difference(pair, path, one, other)
        delta = next((d for d, whole in BLOCK_TEXTS.items() if whole == f"{a.type}.text"), None)
        if found or delta is None or "text" not in a.tree:
            return
        one, other = _streamed(a), _streamed(b)
        if one != other:
            yield self._difference(pair, delta, one, other)

    def _unlike(self, a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
        if isinstance(a, ComparedId) and isinstance(b, ComparedId):
            same = self._same(a, b)
        elif isinstance(a, IdSet) and isinstance(b, IdSet):
            same = {self.there.get((a.kind, raw), raw) for raw in a.raws} == b.raws
        elif isinstance(a, dict) and isinstance(b, dict):
            for name in {**a, **b}:
                one, other = a.get(name, ABSENT), b.get(name, ABSENT)
                yield from self._unlike(one, other, f"{path}.{name}")
            return
        elif isinstance(a, list) and isinstance(b, list):
            for number in range(max(len(a), len(b))):
                one = a[number] if number < len(a) else ABSENT
                other = b[number] if number < len(b) else ABSENT
                yield from self._unlike(one, other, f"{path}.{number}")
            return
        else:
            same = _equal(_raw(a), _raw(b))
        if not same:
            yield path, a, b

    def _difference(self, pair: EventPair, path: str, a: Any, b: Any) -> Difference:
        value_a, value_b = _plain(self.a, a), _plain(self.b, b)
        if value_a == value_b:
            # Two ids that are each the first of their log, say: their own names tell them apart.
            value_a, value_b = _plain(None, a), _plain(None, b)
        return Difference(
            path,
            _side(self.a, pair.a, pair.after_a, value_a),
            _side(self.b, pair.b, pair.after_b, value_b),
        )


def _raw(node: Any) -> Any:
    return node.raw if isinstance(node, ComparedId) else node


def _equal(a: Any, b: Any) -> bool:
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _streamed(item: ComparedEvent) -> Any:
    return item.tree["text"] if item.streamed is None else item.streamed


def _last(meaning: LogMeaning) -> int:
    return meaning.items[-1].index if meaning.items else -1


def _ways_of_thread(meaning: LogMeaning, thread: str) -> list[Hashable]:
    """Return by what a thread is known again: the call that began it, its name, its order."""
    main = thread == ev.MAIN
    first = meaning.threads[thread][0]
    started = first.type == ev.ThreadStarted.TYPE
    tree = first.first.tree if started else {}
    call_id = _raw(tree.get("call_id"))
    asked = meaning.calls[call_id].asked if call_id in meaning.calls else ""
    name, kind = tree.get("name"), tree.get("kind")
    return [(main, asked, name, kind), (main, name, kind), main]


# What people see.


def _side(
    meaning: LogMeaning, item: ComparedEvent | None, after: int, value: Any
) -> DifferenceSide:
    """Return a side of a difference, with the events of its thread that lead there."""
    items = meaning.items
    index = after + 1 if item is None else item.index
    here = bisect.bisect_left(items, index, key=lambda one: one.index)
    if item is not None:
        thread = item.place.thread
    else:
        thread = items[here - 1].place.thread if here else ev.MAIN
    before: list[ComparedEvent] = []
    # Other threads' events stand between them.
    nearby = 1_000
    for one in reversed(items[max(0, here - nearby) : here]):
        if one.place.thread == thread and len(before) < 3:
            before.insert(0, one)
    marked = item or next(
        (o for o in items[here : here + nearby] if o.place.thread == thread), None
    )
    lines = [f"  {_line(meaning, one)}" for one in before]
    lines.append(f"> {_line(meaning, marked)}" if marked is not None else "> (the end)")
    if item is not None:
        return DifferenceSide(value, str(item.place), tuple(lines), item.index)
    return DifferenceSide(
        value, f"after {before[-1].place}" if before else "at its begin", tuple(lines)
    )


def _line(meaning: LogMeaning, item: ComparedEvent) -> str:
    """Return an event on one line: what it says that is not so by default."""
    fields = ev.EVENT_TYPES[item.type].model_fields
    said = {
        name: _plain(meaning, value)
        for name, value in item.tree.items()
        if name not in {"thread_id", "turn_id"} and not _is_default(fields[name].default, value)
    }
    return f"{item.place.event:>4} {item.type} {_cut(_text(said))}"


def _is_default(default: Any, value: Any) -> bool:
    if isinstance(value, IdSet):
        return not value.raws
    return value is None or (not isinstance(value, dict | list) and value == default)


def _plain(meaning: LogMeaning | None, node: Any) -> Any:
    """Return a tree as JSON: with its ids as they are shown, or without a log as they are."""
    if isinstance(node, ComparedId):
        return node.raw if meaning is None else meaning.names[node.kinds[0], node.raw]
    if isinstance(node, IdSet):
        return sorted(_plain(meaning, ComparedId((node.kind,), raw)) for raw in node.raws)
    if isinstance(node, dict):
        return {name: _plain(meaning, value) for name, value in node.items()}
    if isinstance(node, list):
        return [_plain(meaning, value) for value in node]
    return node


def _text(value: Any) -> str:
    return repr(ABSENT) if value is ABSENT else format_json(value).decode()


def _cut(text: str, start: int = 0) -> str:
    begin = "" if start == 0 else "…"
    end = "" if len(text) <= start + VALUE_WIDTH else "…"
    return f"{begin}{text[start : start + VALUE_WIDTH]}{end}"


def _shown(a: Any, b: Any) -> tuple[str, str]:
    """Return two values for people: of long ones what is near the place where they part."""
    one, other = _text(a), _text(b)
    unlike = (n for n, (x, y) in enumerate(zip(one, other, strict=False)) if x != y)
    same = next(unlike, min(len(one), len(other)))
    # Some characters are shown before the place where the two part.
    start = max(0, same - 30) if max(len(one), len(other)) > VALUE_WIDTH else 0
    return _cut(one, start), _cut(other, start)
