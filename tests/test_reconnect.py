"""When a backend is tried again: growing waits with jitter, and an end to patience."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.clock import SeededIds
from proxy.upstream.reconnect import Attempts, Backoff

NOW = 1_767_225_600_000


def test_waits_double_from_the_first_to_the_most() -> None:
    backoff = Backoff(lambda: 1.0 - 1e-9)
    waits = [backoff.next_wait(NOW) for _ in range(10)]
    assert waits == [250, 500, 1000, 2000, 4000, 8000, 15_000, 15_000, 15_000, 15_000]


def test_jitter_leaves_at_least_half_of_each_wait() -> None:
    backoff = Backoff(lambda: 0.0)
    assert [backoff.next_wait(NOW) for _ in range(8)] == [
        125,
        250,
        500,
        1000,
        2000,
        4000,
        7500,
        7500,
    ]


@given(seed=st.integers(), attempts=st.integers(1, 80))
def test_every_wait_lies_between_half_of_its_ceiling_and_the_ceiling(
    seed: int, attempts: int
) -> None:
    backoff = Backoff(SeededIds(seed).fraction)
    for attempt in range(attempts):
        ceiling = min(15_000, 250 * 2 ** min(attempt, 16))
        assert ceiling // 2 <= backoff.next_wait(NOW) <= ceiling


def test_the_same_seed_gives_the_same_waits_and_others_differ() -> None:
    def waits(seed: int) -> list[int]:
        backoff = Backoff(SeededIds(seed).fraction)
        return [backoff.next_wait(NOW) for _ in range(6)]

    assert waits(1) == waits(1)
    assert waits(1) != waits(2)


def test_something_new_begins_the_waits_and_the_patience_anew() -> None:
    backoff = Backoff(lambda: 0.0)
    for _ in range(5):
        backoff.next_wait(NOW)
    assert backoff.exhausted(NOW + 60_000, 60_000)
    backoff.reset()
    assert not backoff.exhausted(NOW + 60_000, 60_000)
    assert backoff.next_wait(NOW + 60_000) == 250 // 2
    assert not backoff.exhausted(NOW + 60_001, 60_000)


@pytest.mark.parametrize(("later", "exhausted"), [(0, False), (59_999, False), (60_000, True)])
def test_patience_counts_from_the_first_wait(later: int, exhausted: bool) -> None:
    backoff = Backoff(lambda: 0.5)
    assert not backoff.exhausted(NOW, 60_000)
    backoff.next_wait(NOW)
    backoff.next_wait(NOW + 30_000)
    assert backoff.exhausted(NOW + later, 60_000) is exhausted


def test_a_backoff_of_other_bounds_keeps_to_them() -> None:
    backoff = Backoff(lambda: 0.0, first=10, most=35)
    assert [backoff.next_wait(NOW) for _ in range(4)] == [5, 10, 17, 17]


def test_a_session_reconnects_since_its_first_stream_was_lost_that_is_not_open() -> None:
    attempts, opened = Attempts(), {"main"}

    def since() -> int | None:
        return attempts.since(opened.__contains__)

    with attempts.at("main", Backoff(lambda: 0.0)) as main:
        assert since() is None
        main.next_wait(NOW)
        with attempts.at("child", Backoff(lambda: 0.0)) as child:
            child.next_wait(NOW + 5)
            assert since() == NOW + 5
            opened.clear()
            assert since() == NOW
            main.reset()
            assert since() == NOW + 5
    assert since() is None
