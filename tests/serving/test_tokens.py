"""Tokens: each call of a stream is counted once."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.model import events as ev
from adapters.serving.tokens import TokenTotals

NAMES = {"input_tokens": "in", "output_tokens": "out", "cache_read_tokens": "cached"}
USAGE = ev.Usage(input_tokens=5, output_tokens=2, reasoning_tokens=1)
TOKENS = {"in": 5, "out": 2}


def reported(scope: Any = "call", usage: ev.Usage = USAGE) -> ev.UsageReported:
    return ev.UsageReported(thread_id=ev.MAIN, usage=usage, scope=scope)


def step(usage: ev.Usage | None = USAGE) -> ev.StepEnded:
    return ev.StepEnded(thread_id=ev.MAIN, step_index=0, usage=usage)


OTHER = ev.Usage(input_tokens=1)


@pytest.mark.parametrize(
    ("events", "totals"),
    [
        ([step()], TOKENS),
        ([reported()], TOKENS),
        # The report of a call and the end of its step tell the same.
        ([reported(), step()], TOKENS),
        ([reported(), step(), reported(), step()], {"in": 10, "out": 4}),
        ([reported(), step(OTHER)], {"in": 6, "out": 2}),
        ([reported(), step(OTHER), step()], {"in": 11, "out": 4}),
        # A step that tells nothing leaves open what was told of it.
        ([reported(), step(None), step()], TOKENS),
        ([reported("turn"), reported("session"), step(None)], None),
        ([step(ev.Usage(reasoning_tokens=3))], None),
        ([step(ev.Usage(input_tokens=0))], {"in": 0}),
    ],
)
def test_a_call_is_counted_once(
    events: list[ev.StepEnded | ev.UsageReported], totals: dict[str, int] | None
) -> None:
    counted = TokenTotals()
    for event in events:
        counted.count(event, NAMES)
    assert counted.totals == ({} if totals is None else {"": totals})


def test_the_sum_is_told_under_its_name_and_is_no_part_of_what_was_told() -> None:
    counted = TokenTotals()
    counted.count(reported(), NAMES, "small", sum_as="all")
    counted.count(step(), NAMES, "small", sum_as="all")
    counted.count(step(OTHER), NAMES, "small", sum_as="all")
    assert counted.totals == {"small": {"in": 6, "out": 2, "all": 8}}


def test_models_beyond_the_limit_are_counted_under_no_name() -> None:
    counted = TokenTotals()
    most = 16
    names = [f"model-{number}" for number in range(most + 2)]
    for number, name in enumerate([*names, names[0]]):
        counted.count(step(ev.Usage(input_tokens=number + 1)), NAMES, name)
    assert list(counted.totals) == [*names[:most], ""]
    assert counted.totals[""] == {"in": most + 1 + most + 2}
    assert counted.totals[names[0]] == {"in": 1 + most + 3}
