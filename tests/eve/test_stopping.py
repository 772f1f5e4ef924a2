"""The tables of eve's cancel: in a state, what is heard, and what follows."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.driving.silence import CATCH_UP_MS
from adapters.eve.client.cancellation import CANCEL_AGAIN_MS, CANCEL_MS, CANCELLED_MS, Cancellation
from adapters.eve.client.input_requests import InputRequests
from adapters.eve.client.posts import EvePosts
from adapters.eve.client.state import (
    ConnectionState,
    EveClientState,
    EveMessage,
    InputRequest,
    PendingInterrupt,
    ThreadState,
)
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call
from adapters.wire.jsonvalue import parse_json

NOW = 1_000_000

REFUSAL = {"requestId": "A", "optionId": "deny"}


class Room:
    """The room, over a T whose turn runs."""

    def __init__(self) -> None:
        self.main = ThreadState(ev.MAIN, turn="turn_0", native="turn_0")
        self.s = EveClientState(session="wrun_1", generation="T", lines={ev.MAIN: self.main})
        self.live = ConnectionState(opened_at=0)
        self.asks = InputRequests(self.s)
        self.stopping = Cancellation(self.s, self.live, EvePosts(self.s), self.asks)

    def ask(self, name: str = "A") -> None:
        """An approval is open."""
        self.asks.open_request(name, InputRequest("approval"))

    def answer(self, name: str = "A") -> None:
        """Its answer is on its way."""
        command = cmd.AnswerInteraction(request_id=name, decision="allow")
        self.asks.remember_answer("cmd-1", command, "approved")

    def close(self) -> None:
        """The turn pauses, which closes it for a T."""
        self.main.closed, self.main.paused = True, "input"

    def interrupt(self) -> Call:
        return self.stopping.interrupt("stop", cmd.Interrupt())

    def cancel(self, status: str, now: int = NOW) -> None:
        """A cancel is answered."""
        call = self.stopping.cancel_call("cancel", None, self.main.native)
        self.stopping.expect_end(call, {"status": status}, now)


@pytest.fixture
def room() -> Room:
    return Room()


def body(call: Call) -> Any:
    return None if call.request.body is None else parse_json(call.request.body)


def settled(events: list[ev.Event]) -> list[str]:
    return [e.command_id for e in events if isinstance(e, ev.InputSettled)]


# The interrupt.


def test_an_interrupt_cancels_the_turn_that_runs(room: Room) -> None:
    call = room.interrupt()
    assert (call.name, body(call), room.s.cancel) == ("cancel", None, None)


def test_in_a_closed_pause_it_answers_first_and_waits(room: Room) -> None:
    room.ask()
    room.close()
    call = room.interrupt()
    assert (call.name, body(call)["inputResponses"]) == ("negative", [REFUSAL])
    assert room.s.cancel == PendingInterrupt("stop")


def test_in_a_closed_pause_where_all_is_answered_nothing_is_posted(room: Room) -> None:
    room.ask()
    room.answer()
    room.close()
    assert room.interrupt().name == "held"
    assert room.s.cancel is not None


def test_it_overtakes_no_answer(room: Room) -> None:
    room.ask()
    room.answer()
    assert room.interrupt().name == "held"
    room.stopping.go_on()
    assert room.stopping.take() == []
    (given,) = room.asks.given()
    given.taken = True
    room.stopping.go_on()
    (call,) = room.stopping.take()
    assert (call.command_id, body(call)) == ("stop", {"turnId": "turn_0"})
    assert room.s.cancel is None
    assert room.stopping.take() == []


def waiting(room: Room) -> None:
    room.ask()
    room.close()
    room.interrupt()
    assert room.stopping.wait(NOW)


def test_it_cancels_the_turn_that_its_answers_open(room: Room) -> None:
    waiting(room)
    assert settled(room.stopping.turn_goes_on("turn_1")) == ["stop"]
    (call,) = room.stopping.take()
    assert (call.command_id, body(call)) == (None, {"turnId": "turn_1"})


def test_it_waits_for_that_turn_for_its_time_only(room: Room) -> None:
    waiting(room)
    assert room.stopping.due() == [NOW + CANCEL_MS]
    assert room.stopping.tick(NOW + CANCEL_MS - 1) == []
    assert settled(room.stopping.tick(NOW + CANCEL_MS)) == ["stop"]
    (call,) = room.stopping.take()
    assert body(call) is None
    assert room.stopping.due() == []


def test_with_the_turn_it_is_over(room: Room) -> None:
    waiting(room)
    assert settled(room.stopping.turn_over()) == ["stop"]
    assert (room.stopping.take(), room.stopping.due()) == ([], [])


def test_with_answers_that_come_to_nothing_it_is_forgotten(room: Room) -> None:
    waiting(room)
    room.stopping.forget()
    assert room.stopping.close() == room.stopping.turn_goes_on("turn_1") == []
    assert not room.stopping.wait(NOW)


# The end of the turn.


def test_a_turn_that_is_cancelled_shows_its_end_or_is_gone(room: Room) -> None:
    room.cancel("cancelled")
    assert room.stopping.due() == [NOW + CANCELLED_MS]
    room.stopping.heard(NOW + 5)
    assert not room.stopping.is_gone(NOW + CANCELLED_MS)
    assert room.stopping.is_gone(NOW + 5 + CANCELLED_MS)
    assert not room.stopping.is_gone(NOW + 5 + CANCELLED_MS)


def test_a_turn_that_is_not_active_is_cancelled_again_and_soon_gone(room: Room) -> None:
    room.cancel("no_active_turn")
    assert room.stopping.due() == [NOW + CANCEL_AGAIN_MS, NOW + CATCH_UP_MS]
    assert room.stopping.tick(NOW + CANCEL_AGAIN_MS) == []
    (call,) = room.stopping.take()
    assert body(call) == {"turnId": "turn_0"}
    # Said once more, it is gone at the same time.
    room.cancel("no_active_turn", NOW + CANCEL_AGAIN_MS)
    assert room.stopping.is_gone(NOW + CATCH_UP_MS)


def test_while_no_stream_is_open_no_turn_is_gone(room: Room) -> None:
    room.cancel("cancelled")
    room.live.opened_at = None
    assert not room.stopping.is_gone(NOW + 10 * CANCELLED_MS)
    room.live.opened_at = NOW + 10 * CANCELLED_MS
    assert room.stopping.due() == [NOW + 10 * CANCELLED_MS + CATCH_UP_MS]


def test_the_end_of_a_turn_ends_all_waiting_for_it(room: Room) -> None:
    room.cancel("no_active_turn")
    assert room.stopping.turn_over() == []
    assert room.stopping.due() == []


def test_after_a_failed_reset_any_record_is_a_sign_of_life(room: Room) -> None:
    room.stopping.mistrust(NOW)
    assert room.stopping.due() == [NOW + CANCELLED_MS]
    room.stopping.heard(NOW + 1)
    assert (room.s.mistrusted, room.stopping.due()) == (False, [])
    room.stopping.taken(NOW + 2)
    assert room.stopping.due() == []


def test_after_a_failed_reset_a_message_that_is_taken_must_show_something(room: Room) -> None:
    room.close()
    room.stopping.mistrust(NOW)
    assert (room.s.mistrusted, room.stopping.due()) == (True, [])
    room.s.ledger.expect(EveMessage("cmd-2", "message"))
    room.stopping.taken(NOW + 7)
    assert room.stopping.due() == [NOW + 7 + CANCELLED_MS]


# What T makes unsaid.


def kept(room: Room) -> dict[str, int]:
    return {name: len(getattr(room.s, name)) for name in ("answered", "lapsed", "unsaid")}


@pytest.mark.parametrize(
    ("heard", "left"),
    [
        ((), (1, 0, 0)),
        (("same step",), (0, 0, 0)),
        (("first step",), (1, 0, 0)),
        (("cancelled",), (0, 0, 1)),
        (("cancelled", "first step"), (1, 0, 0)),
        (("over",), (0, 1, 0)),
        (("over", "over"), (0, 0, 0)),
        (("over", "taken back"), (0, 0, 1)),
        (("cancelled", "over", "taken back"), (0, 0, 1)),
    ],
)
def test_what_becomes_of_the_refusal_of_an_approval(
    room: Room, heard: tuple[str, ...], left: tuple[int, int, int]
) -> None:
    stopping = room.stopping
    stopping.approved("A", "deny")
    for what in heard:
        match what:
            case "same step":
                stopping.step_begins(again=True)
            case "first step":
                stopping.step_begins(again=False)
            case "cancelled":
                stopping.turn_cancelled()
            case "over":
                stopping.turn_over()
            case _:
                stopping.turn_taken_back()
    assert tuple(kept(room).values()) == left


def test_only_a_turn_that_was_told_to_stop_may_be_taken_back(room: Room) -> None:
    room.stopping.approved("A", "deny")
    may = [room.stopping.may_be_taken_back]
    room.interrupt()
    may.append(room.stopping.may_be_taken_back)
    room.stopping.turn_over()
    assert [*may, room.stopping.may_be_taken_back] == [False, True, False]
