"""Compares a session with its shadow: what they mean, how long their turns took, their tools."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from adapters.model import events as ev
from adapters.offline.compare.difference import compare
from adapters.wire.jsonvalue import format_json

MAY_DIFFER = (
    # Who drives, and how: a shadow gets its inputs from us.
    *("session.started.agent", "session.started.options", "session.updated"),
    *("input.accepted", "input.settled", "interaction.answered", "message.received.message_id"),
    # What no two runs have in common.
    *("usage", "usage.reported", "interaction.requested.expires_at"),
    # The details of a failure have ids and times.
    *("turn.ended.error.details", "step.ended.error.details"),
)
"""What must differ between two live runs: fields, and types of events."""

OF_DIALECTS = (
    # How a dialect cuts its work, and which of its own words stand for it.
    *("step.started", "step.ended", "tool.input_delta", "text.completed.finish_reason"),
    *("text.completed.index", "text.completed.message_id", "text.completed.status"),
    *("reasoning.completed.index", "reasoning.completed.message_id"),
    *("tool.called.kind", "tool.called.permission", "tool.called.preview", "tool.called.server"),
    *("tool.called.label", "tool.returned.error"),
    *("interaction.requested.options", "interaction.requested.prompt"),
    *("interaction.resolved.answer.option_ids", "interaction.resolved.scope", "turn.ended.error"),
)
"""What differs besides where the two backends speak different dialects."""

How = Literal["name", "input", "missing", "additional"]


@dataclasses.dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool that the shadow called otherwise, in a `turn` by its number from 1."""

    turn: int
    how: How
    serving: str | None
    shadow: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class ComparisonResult:
    """What was found: the first difference with the lines that show it, the milliseconds of the
    turns of both, how many tools were called, and which otherwise."""

    path: str | None
    lines: tuple[str, ...]
    serving_ms: tuple[int, ...]
    shadow_ms: tuple[int, ...]
    calls: int
    called: tuple[CalledTool, ...]


def compare_pair(
    serving: Sequence[ev.Entry], shadow: Sequence[ev.Entry], *, one_dialect: bool
) -> ComparisonResult:
    """Compare the log of a session with that of its shadow; `one_dialect` says that their backends
    speak the same."""
    if one_dialect:
        found = compare(serving, shadow, MAY_DIFFER)
    else:
        may_differ = (*MAY_DIFFER, *OF_DIALECTS)
        found = compare(_wordless(serving), _wordless(shadow), may_differ)
    one, other = _calls(serving), _calls(shadow)
    return ComparisonResult(
        found.differences[0].path if found else None,
        tuple(found.first("serving", "shadow")),
        tuple(_times(serving)),
        tuple(_times(shadow)),
        sum(map(len, one.values())),
        tuple(
            called
            for turn in sorted(one.keys() | other.keys())
            for called in _otherwise(turn, one.get(turn, []), other.get(turn, []))
        ),
    )


def _wordless(log: Sequence[ev.Entry]) -> list[ev.Entry]:
    """Return a log in which tools that failed, or were denied, say no more than that: each dialect
    has its own words for it."""
    return [
        entry._replace(event=entry.event.model_copy(update={"output": None}))
        if isinstance(entry.event, ev.ToolReturned) and entry.event.is_error
        else entry
        for entry in log
    ]


def _times(log: Sequence[ev.Entry]) -> Iterator[int]:
    """Yield how long each turn took, without the time in which it waited for a person."""
    begun: int | None = None
    paused: int | None = None
    waited = 0
    for entry in log:
        event = entry.event
        if event.thread_id != ev.MAIN:
            continue
        if isinstance(event, ev.TurnStarted):
            begun, paused, waited = entry.at, None, 0
        elif isinstance(event, ev.TurnPaused) and event.on == "input" and paused is None:
            paused = entry.at
        elif isinstance(event, ev.TurnResumed | ev.TurnEnded) and paused is not None:
            waited += entry.at - paused
            paused = None
        if isinstance(event, ev.TurnEnded) and begun is not None:
            yield entry.at - begun - waited
            begun = None


_Call = tuple[str, str]
"""The name of a tool, and its input as JSON."""


def _calls(log: Sequence[ev.Entry]) -> dict[int, list[_Call]]:
    """Return what was called in each turn; what child agents call is in the turn of the main
    line."""
    out: dict[int, list[_Call]] = {}
    # Some backends tell an input only with the result.
    told = {
        entry.event.call_id: entry.event.input
        for entry in log
        if isinstance(entry.event, ev.ToolReturned)
    }
    turn = 0
    for entry in log:
        event = entry.event
        if isinstance(event, ev.TurnStarted) and event.thread_id == ev.MAIN:
            turn += 1
        elif isinstance(event, ev.ToolCalled):
            out.setdefault(turn, []).append(
                (event.name, _json(event.input if event.input_known else told.get(event.call_id)))
            )
    return out


def _json(value: Any) -> str:
    return format_json(_sorted(value)).decode()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted(one) for one in value]
    return value


def _otherwise(turn: int, one: Sequence[_Call], other: Sequence[_Call]) -> Iterator[CalledTool]:
    """Yield which calls of a turn differ. Equal ones belong together in whatever order, then those
    of one name, then what is left, in order."""
    same = Counter(one) & Counter(other)
    mine, theirs = _without(one, same), _without(other, same)
    for name in dict.fromkeys(name for name, _ in mine):
        ours = [call for call in mine if call[0] == name]
        for call, instead in zip(ours, [c for c in theirs if c[0] == name], strict=False):
            mine.remove(call)
            theirs.remove(instead)
            yield CalledTool(turn, "input", _shown(call), _shown(instead))
    for left, right in itertools.zip_longest(mine, theirs):
        how: How = "missing" if right is None else "additional" if left is None else "name"
        yield CalledTool(turn, how, _shown(left), _shown(right))


def _without(calls: Sequence[_Call], same: Counter[_Call]) -> list[_Call]:
    left, out = same.copy(), []
    for call in calls:
        if left[call]:
            left[call] -= 1
        else:
            out.append(call)
    return out


def _shown(call: _Call | None) -> str | None:
    if call is None:
        return None
    text = f"{call[0]} {call[1]}"
    return text if len(text) <= 200 else f"{text[:200]}…"
