"""The silence of a stream: state, what is heard, what follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapters.driving.silence import CATCH_UP_MS, RECOVER_MS, SilenceTimers

NOW = 100_000


@pytest.mark.parametrize(
    ("before", "heard", "told", "after"),
    [
        # A doubt waits for a stream, and then for what that shows.
        ({}, lambda s: s.doubt("a"), None, {"a": None}),
        ({"a": None}, lambda s: s.listen(NOW), True, {"a": NOW + RECOVER_MS}),
        ({"a": None, "b": 7}, lambda s: s.listen(NOW), True, {"a": NOW + RECOVER_MS, "b": 7}),
        ({}, lambda s: s.doubt("a", NOW), None, {"a": NOW + RECOVER_MS}),
        ({"a": None}, lambda s: s.doubt("a", NOW), None, {"a": NOW + RECOVER_MS}),
        # What waits already goes on to wait.
        ({"a": 7}, lambda s: s.doubt("a", NOW), None, {"a": 7}),
        ({"a": 7}, lambda s: s.doubt("a"), None, {"a": 7}),
        ({"a": 7}, lambda s: s.listen(NOW), False, {"a": 7}),
        ({}, lambda s: s.listen(NOW), False, {}),
        # What is known otherwise is in doubt no more.
        ({"a": None, "b": 7}, lambda s: s.forget("a"), True, {"b": 7}),
        ({"b": 7}, lambda s: s.forget("a"), False, {"b": 7}),
        ({"a": None, "b": 7}, lambda s: s.clear(), None, {}),
    ],
)
def test_a_doubt_waits_for_the_stream(
    before: dict[str, int | None],
    heard: Callable[[SilenceTimers], Any],
    told: bool | None,
    after: dict[str, int | None],
) -> None:
    silence = SilenceTimers(dict(before))
    assert heard(silence) is told
    assert silence == SilenceTimers(after)


@pytest.mark.parametrize(
    ("open_", "opened_at", "due"),
    [
        ({}, NOW, None),
        ({"a": None}, NOW, None),
        ({"a": NOW + 9_000, "b": NOW + 5_000, "c": None}, NOW, NOW + 5_000),
        # A stream that was closed has its time to show what it holds.
        ({"a": NOW - 9_000}, NOW, NOW + CATCH_UP_MS),
        # The silence of a closed one says nothing.
        ({"a": NOW - 9_000}, None, None),
    ],
)
def test_silence_decides_once_the_stream_was_read(
    open_: dict[str, int | None], opened_at: int | None, due: int | None
) -> None:
    silence = SilenceTimers(open_)
    assert silence.due_since(opened_at) == due
    assert silence.due is None
    if due is not None:
        assert silence.unseen(due - 1, opened_at) == []
    else:
        assert silence.unseen(NOW + 10 * RECOVER_MS, opened_at) == []


def test_what_is_unseen_is_what_its_time_is_over_for() -> None:
    silence = SilenceTimers({"a": NOW - 2, "b": None, "c": NOW + 5_000, "d": NOW - 1})
    assert silence.unseen(NOW + CATCH_UP_MS, NOW) == ["a", "d"]
    assert silence.unseen(NOW + 5_000, NOW) == ["a", "c", "d"]
    # They are in doubt until somebody says what became of them.
    assert len(silence.open) == 4
