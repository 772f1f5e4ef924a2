"""When the backend is asked how a turn stands."""

from __future__ import annotations

import pytest

from adapters.model import events as ev
from adapters.model import raw
from proxy.session.watch import LIMITS, Watch, is_unread


@pytest.fixture
def watch() -> Watch:
    watch = Watch(60_000)
    watch.begin(1_000)
    return watch


def test_a_turn_is_asked_about_when_it_was_silent(watch: Watch) -> None:
    assert watch.due == 61_000
    watch.heard(50_000)
    assert watch.due == 110_000


def test_each_question_in_vain_doubles_the_time_to_the_next_one(watch: Watch) -> None:
    dues = []
    for _ in range(6):
        now = watch.due
        watch.asked(now)
        dues.append(watch.due - now)
    assert dues == [120_000, 240_000, 480_000, LIMITS.quiet, LIMITS.quiet, LIMITS.quiet]
    watch.heard(now)
    assert watch.due == now + 60_000


def test_what_is_watched_already_does_not_begin_anew(watch: Watch) -> None:
    watch.begin(30_000)
    assert watch.due == 61_000


def test_an_interrupt_is_to_show_something_soon(watch: Watch) -> None:
    watch.hurry(2_000)
    assert watch.due == 2_000 + LIMITS.stopped


def test_what_a_person_stops_ends_ten_seconds_later_whatever_comes(watch: Watch) -> None:
    assert watch.stop(2_000)
    assert not watch.stop(3_000)
    watch.heard(4_000)
    assert watch.ends == 2_000 + LIMITS.stop_ends
    watch.rest()
    assert watch.ends is None


def test_an_answer_behind_a_stop_lets_the_turn_go_on_until_another_stop(watch: Watch) -> None:
    assert watch.stop(2_000)
    watch.lift()
    assert watch.ends is None
    assert not watch.stop(3_000)
    watch.lift(lifted=False)
    assert watch.stop(4_000)
    assert watch.ends == 4_000 + LIMITS.stop_ends


def test_a_message_that_was_taken_is_asked_about_sooner_and_owes_its_turn_for_a_time() -> None:
    watch = Watch(60_000)
    watch.begin(1_000, owed=True)
    assert (watch.due, watch.ends) == (1_000 + LIMITS.owed, 1_000 + LIMITS.owed_ends)
    watch.heard(5_000)
    assert watch.ends == 5_000 + LIMITS.owed_ends
    watch.begin(6_000)
    assert watch.ends is None


def test_nobody_is_asked_twice_at_once(watch: Watch) -> None:
    assert watch.may_ask(2_000)
    watch.asked(2_000)
    assert not watch.may_ask(2_000 + LIMITS.asked - 1)
    assert watch.may_ask(2_000 + LIMITS.asked)


def test_a_frame_that_cannot_be_read_is_asked_about_soon_unless_the_turn_goes_on(
    watch: Watch,
) -> None:
    assert watch.skipped(2_000)
    assert (watch.due, watch.doubts) == (2_000 + LIMITS.skipped, True)
    watch.heard(2_500)
    assert (watch.due, watch.doubts) == (62_500, False)


def test_a_flood_of_frames_that_cannot_be_read_is_asked_about_once(watch: Watch) -> None:
    asked = [watch.skipped(now) for now in range(1_000, 1_000 + LIMITS.unread)]
    assert asked == [True] + [False] * (LIMITS.unread - 1)
    assert watch.unread == LIMITS.unread
    watch.heard(2_000)
    assert watch.unread == 0
    assert not watch.skipped(60_999)
    assert watch.skipped(61_000)


def test_only_the_report_of_a_frame_counts_as_unread() -> None:
    assert is_unread(raw.garbled("eve", "not UTF-8", b"x"))
    other = ev.ErrorReported(thread_id=ev.MAIN, code="backend_protocol", message="m")
    assert not is_unread(other)
    assert not is_unread(raw.in_doubt("m"))
