"""Which item of one log belongs to which of the other: in order, and calls of a step as a set."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Hashable, Iterator, Sequence

from adapters.offline.compare.meaning import ComparedCall, ComparedEvent, StepCalls


@dataclasses.dataclass(frozen=True, slots=True)
class EventPair:
    """Two items; where one has no counterpart, the index of what stands before its place."""

    a: ComparedEvent | None
    b: ComparedEvent | None
    after_a: int
    after_b: int

    @property
    def position(self) -> int:
        """Its place in the first log."""
        return self.after_a if self.a is None else self.a.index


_Line = Sequence[ComparedEvent | StepCalls]


def match(a: Sequence[Sequence[Hashable]], b: Sequence[Sequence[Hashable]]) -> dict[int, int]:
    """Match what is alike in the first way, then what is left in the next: in order of each."""
    found: dict[int, int] = {}
    for way in range(len(a[0]) if a else 0):
        waiting: dict[Hashable, list[int]] = {}
        taken = set(found.values())
        for number, ways in enumerate(b):
            if number not in taken:
                waiting.setdefault(ways[way], []).append(number)
        for number, ways in enumerate(a):
            if number not in found and (like := waiting.get(ways[way])):
                found[number] = like.pop(0)
    return found


def lines(a: _Line, b: _Line, after_a: int = -1, after_b: int = -1) -> Iterator[EventPair]:
    """Match two sequences."""
    for one, other in _aligned(a, b):
        if isinstance(one, StepCalls) or isinstance(other, StepCalls):
            calls_a = one.calls if isinstance(one, StepCalls) else []
            calls_b = other.calls if isinstance(other, StepCalls) else []
            yield from _sets(calls_a, calls_b, after_a, after_b)
        else:
            first_a = None if one is None else one.first
            first_b = None if other is None else other.first
            yield EventPair(first_a, first_b, after_a, after_b)
        after_a = after_a if one is None else one.first.index
        after_b = after_b if other is None else other.first.index


def _sets(
    a: list[ComparedCall], b: list[ComparedCall], after_a: int, after_b: int
) -> Iterator[EventPair]:
    """Match the calls of two steps: by all that is said of them, else by tool and input, else by
    the tool, else by their order."""
    found = match([_ways_of_call(call) for call in a], [_ways_of_call(call) for call in b])
    for number, call in enumerate(a):
        if number in found:
            yield from lines(call.items, b[found[number]].items, after_a, after_b)
        else:
            yield EventPair(call.items[0], None, after_a, after_b)
    matched = set(found.values())
    for number, call in enumerate(b):
        if number not in matched:
            yield EventPair(None, call.items[0], after_a, after_b)


def _ways_of_call(call: ComparedCall) -> list[Hashable]:
    return [call.key, call.asked, call.tool, ""]


def _aligned(
    a: _Line, b: _Line
) -> Iterator[tuple[ComparedEvent | StepCalls | None, ComparedEvent | StepCalls | None]]:
    """Match what is the same in two sequences, then what is between by its type."""
    keys_a, keys_b = [unit.key for unit in a], [unit.key for unit in b]
    for start_a, end_a, start_b, end_b in _blocks(keys_a, keys_b):
        if keys_a[start_a:end_a] == keys_b[start_b:end_b]:
            yield from zip(a[start_a:end_a], b[start_b:end_b], strict=True)
            continue
        some_a, some_b = a[start_a:end_a], b[start_b:end_b]
        for from_a, to_a, from_b, to_b in _blocks(
            [unit.type for unit in some_a], [unit.type for unit in some_b]
        ):
            if [u.type for u in some_a[from_a:to_a]] == [u.type for u in some_b[from_b:to_b]]:
                yield from zip(some_a[from_a:to_a], some_b[from_b:to_b], strict=True)
                continue
            yield from ((unit, None) for unit in some_a[from_a:to_a])
            yield from ((None, unit) for unit in some_b[from_b:to_b])


def _blocks(a: list[str], b: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """Return where two sequences are the same and where not: in time that is linear for two that
    differ in one place."""
    most = min(len(a), len(b))
    start = next((n for n in range(most) if a[n] != b[n]), most)
    most -= start
    end = next((n for n in range(most) if a[-1 - n] != b[-1 - n]), most)
    yield 0, start, 0, start
    middle_a, middle_b = a[start : len(a) - end], b[start : len(b) - end]
    for _, from_a, to_a, from_b, to_b in difflib.SequenceMatcher(
        None, middle_a, middle_b
    ).get_opcodes():
        yield start + from_a, start + to_a, start + from_b, start + to_b
    yield len(a) - end, len(a), len(b) - end, len(b)
