"""What is sent again: state, what is heard, what follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adapters.driving.again import Again, Patience
from tests.support.each import each

NOW = 100_000
DOUBLING = Patience(250, 2_000, for_ms=20_000)
COUNTED = Patience(200, 200, tries=3)


def refused(
    at: int, since: int = NOW, tries: int = 1, *, waits: bool = True, ready: bool = False
) -> Again:
    return Again(waits, at, ready, since, tries)


@each(
    ("before", "heard", "told", "after"),
    [
        # It was refused, and is tried again after a while that grows.
        (Again(), lambda a: a.refused(NOW, DOUBLING), True, refused(NOW + 250)),
        (
            Again(since=NOW, tries=2),
            lambda a: a.refused(NOW + 9, DOUBLING),
            True,
            refused(NOW + 1_009, tries=3),
        ),
        (
            Again(since=NOW, tries=9),
            lambda a: a.refused(NOW, DOUBLING),
            True,
            refused(NOW + 2_000, tries=10),
        ),
        # The backend may say itself when.
        (Again(), lambda a: a.refused(NOW, DOUBLING, 7), True, refused(NOW + 7)),
        (Again(), lambda a: a.refused(NOW, DOUBLING, 0), True, refused(NOW)),
        # Its time is over, or it was tried so often.
        (
            Again(since=NOW, tries=1),
            lambda a: a.refused(NOW + 19_999, DOUBLING),
            True,
            refused(NOW + 20_499, tries=2),
        ),
        (
            Again(since=NOW, tries=1),
            lambda a: a.refused(NOW + 20_000, DOUBLING),
            False,
            Again(since=NOW, tries=1),
        ),
        (
            Again(since=NOW, tries=2),
            lambda a: a.refused(NOW + 10**9, COUNTED),
            True,
            refused(NOW + 10**9 + 200, tries=3),
        ),
        (
            Again(since=NOW, tries=3),
            lambda a: a.refused(NOW, COUNTED),
            False,
            Again(since=NOW, tries=3),
        ),
        # It waits for something else.
        (Again(), lambda a: a.wait(), None, Again(waits=True)),
        (refused(NOW, ready=True), lambda a: a.wait(), None, Again(True, None, False, NOW, 1)),
        (Again(), lambda a: a.wait(NOW + 5), None, Again(waits=True, at=NOW + 5)),
        # Its time comes, or it is let go before.
        (refused(NOW + 250), lambda a: a.tick(NOW + 249), None, refused(NOW + 250)),
        (refused(NOW + 250), lambda a: a.tick(NOW + 250), None, Again(True, None, True, NOW, 1)),
        (refused(NOW + 250), lambda a: a.let_go(), None, Again(True, None, True, NOW, 1)),
        (Again(waits=True), lambda a: a.tick(NOW), None, Again(waits=True)),
        # What does not wait is not sent again by that.
        (Again(since=NOW, tries=1), lambda a: a.let_go(), None, Again(since=NOW, tries=1)),
        # What was refused is remembered while it is on its way.
        (
            Again(True, None, True, NOW, 1),
            lambda a: a.sent(),
            None,
            Again(since=NOW, tries=1),
        ),
    ],
)
def test_what_was_refused_for_now_is_sent_again(
    before: Again, heard: Callable[[Again], Any], told: bool | None, after: Again
) -> None:
    assert heard(before) is told
    assert before == after
    assert before.due == before.at


def test_a_wait_of_very_many_tries_is_a_number_like_others() -> None:
    assert Patience(1, 2**40).wait(10**9) == 2**32
