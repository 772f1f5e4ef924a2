"""Retention goes on, whatever goes wrong once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from proxy.base.errors import JournalUnavailable
from proxy.sessions.retention import JUMP_SECONDS, Retention
from proxy.sessions.retention_limits import DAY_MS, RetentionLimits

NOW = 1_700_000_000_000


class Over(Exception):
    """The test has seen enough."""


@pytest.mark.parametrize(
    ("fault", "level", "said"),
    [
        (JournalUnavailable("the disk is full"), "WARNING", "retention waits: the disk is full"),
        (RuntimeError("odd"), "ERROR", "retention failed; it is tried again"),
    ],
)
async def test_retention_that_fails_is_tried_again(
    fault: Exception,
    level: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcomes: list[Any] = [fault, [SimpleNamespace(row=SimpleNamespace(bytes=5))], []]
    waits: list[float] = []

    async def prune(self: Retention, limits: RetentionLimits, **_: Any) -> Any:
        if not outcomes:
            raise Over
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise Over

    nothing: Any = None
    clock: Any = SimpleNamespace(sleep=sleep)
    monkeypatch.setattr(Retention, "prune", prune)
    caplog.set_level("INFO", "proxy.sessions.retention")
    with pytest.raises(Over):
        await Retention(nothing, nothing, tasks=nothing, clock=clock).retain(
            RetentionLimits(bytes=1)
        )
    assert waits == [60.0] * 3
    assert [(one.levelname, one.message) for one in caplog.records] == [
        (level, said),
        ("INFO", "retention erased 1 sessions of 5 bytes"),
    ]


@pytest.mark.parametrize(
    ("newest", "waits_first"),
    [(0, None), (NOW - DAY_MS, None), (NOW - DAY_MS - 1, JUMP_SECONDS)],
)
async def test_a_clock_that_jumped_at_the_start_makes_retention_wait_for_an_hour(
    newest: int,
    waits_first: float | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[Any] = []

    async def prune(self: Retention, limits: RetentionLimits, **_: Any) -> Any:
        done.append("prune")
        return []

    async def sleep(seconds: float) -> None:
        done.append(seconds)
        if done.count(60.0) == 2:
            raise Over

    async def stored() -> int:
        return newest

    nothing: Any = None
    clock: Any = SimpleNamespace(sleep=sleep, now=lambda: NOW)
    journal: Any = SimpleNamespace(newest=stored)
    monkeypatch.setattr(Retention, "prune", prune)
    with pytest.raises(Over):
        await Retention(nothing, journal, tasks=nothing, clock=clock).retain(RetentionLimits(age=1))
    first = [] if waits_first is None else [waits_first]
    assert done == [*first, *["prune", 60.0] * 2]
    assert len(caplog.messages) == len(first)
