"""`session_not_active` of a session that is being made means "not yet", and never ends it alone."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.eve.client import EveClient
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, CloseReason, Response
from tests.eve.test_client import Wire, allow

NOT_ACTIVE = {"ok": False, "code": "session_not_active", "error": "Not active."}

MESSAGE = cmd.SendMessage(content=(ev.Text(text="more"),), policy="queue")

WAITS = (250, 500, 1_000, 2_000, 4_000)

COMMANDS: list[cmd.AnyCommand] = [MESSAGE, allow("A"), cmd.Interrupt(), cmd.Clear(), cmd.Reset()]


def made(command: cmd.AnyCommand) -> tuple[Wire, Call]:
    """A session that has just been made, and the call of a command."""
    wire = Wire("S1")
    if isinstance(command, cmd.AnswerInteraction):
        wire.approval("A")
    else:
        wire.begin("hi")
    if not isinstance(command, cmd.Interrupt):
        wire.close()
    return wire, wire.command(command)


def waited(
    wire: Wire, call: Call, wait: int, status: int = 409, body: dict[str, Any] = NOT_ACTIVE
) -> Call:
    """Refuse a call, and wait for the next one."""
    wire.answer(call, status, body)
    assert wire.codec.take_calls() == []
    wire.now += wait - 1
    wire.take(wire.codec.tick(wire.now))
    assert wire.codec.take_calls() == []
    wire.now += 1
    wire.take(wire.codec.tick(wire.now))
    (again,) = wire.codec.take_calls()
    assert (again.name, again.request.path) == (call.name, call.request.path)
    assert again.request.body == call.request.body
    return again


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_command_to_a_session_that_is_not_active_yet_is_sent_again_and_then_refused_alone(
    command: cmd.AnyCommand, restarts: bool
) -> None:
    wire, call = made(command)
    for wait in WAITS:
        call = waited(wire, call, wait)
        if restarts:
            again = EveClient({})
            again.restore(wire.codec.snapshot(), None)
            wire.codec = again
    wire.answer(call, 409, NOT_ACTIVE)
    settled = wire.of(ev.InputSettled)[-1]
    assert (settled.command_id, settled.outcome) == ("cmd-2", "refused")
    assert wire.codec._s.retries == []
    assert wire.codec.take_calls() == []
    assert wire.of(ev.SessionEnded) == []
    # The session goes on.
    if not isinstance(command, cmd.AnswerInteraction | cmd.Interrupt):
        call = wire.command(MESSAGE)
        wire.answer(call, 202, {"ok": True, "status": "accepted", "deliveryId": "d2"})
        assert wire.of(ev.InputSettled)[-1].outcome == "taken"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_taken_once_the_session_is_active(command: cmd.AnyCommand) -> None:
    wire, call = made(command)
    call = waited(wire, call, WAITS[0])
    call = waited(wire, call, WAITS[1])
    answer: dict[str, Any] = {"ok": True, "status": "accepted", "deliveryId": "d2"}
    wire.answer(call, 202, answer)
    assert [e.outcome for e in wire.of(ev.InputSettled)] == ["taken", "taken"]
    assert wire.codec.take_calls() == []


@pytest.mark.parametrize("command", [cmd.Compact(), cmd.Clear()])
def test_a_control_of_a_session_that_is_just_at_rest_is_sent_again(
    command: cmd.AnyCommand,
) -> None:
    """Seen of a busy 0.80.1, some milliseconds after the boundary."""
    wire, call = made(command)
    for wait in WAITS:
        call = waited(wire, call, wait, 200, {"ok": True, "status": "no_active_session"})
    wire.answer(call, 202, {"ok": True, "status": "accepted"})
    assert [e.outcome for e in wire.of(ev.InputSettled)] == ["taken", "taken"]


@pytest.mark.parametrize("command", [cmd.Compact(), cmd.Clear()])
def test_a_control_that_finds_no_session_in_the_end_is_refused(command: cmd.AnyCommand) -> None:
    wire, call = made(command)
    inactive = {"ok": True, "status": "no_active_session"}
    for wait in WAITS:
        call = waited(wire, call, wait, 200, inactive)
    wire.answer(call, 200, inactive)
    settled = wire.of(ev.InputSettled)[-1]
    assert (settled.outcome, settled.error and settled.error.code) == (
        "refused",
        "no_active_session",
    )


def refused() -> Wire:
    wire, call = made(MESSAGE)
    for wait in WAITS:
        call = waited(wire, call, wait)
    wire.answer(call, 409, NOT_ACTIVE)
    assert wire.of(ev.InputSettled)[-1].outcome == "refused"
    return wire


def test_the_stream_of_a_session_that_is_not_active_shows_that_it_is_over() -> None:
    wire = refused()
    assert wire.codec.streams()
    wire.say("session.completed")
    assert wire.normalizer.state.ended is not None
    assert wire.codec.streams() == ()
    assert wire.codec.wake_at is None


def test_a_session_that_shows_no_end_goes_on() -> None:
    wire = refused()
    (stream,) = wire.codec.streams()
    wire.take(wire.codec.opened(stream, Response(200), wire.now))
    wire.now += 10_000
    due = wire.codec.wake_at
    wire.take(wire.codec.tick(wire.now))
    assert (due, wire.codec.wake_at) == (wire.now, None)
    assert wire.codec.streams() == ()
    wire.take(wire.codec.closed(stream, CloseReason.ENDED, wire.now))
    state = wire.normalizer.state
    assert (state.status, state.inputs, state.ended) == ("idle", {}, None)


@pytest.mark.parametrize("code", ["session_not_active", "session_stranded"])
def test_one_refusal_does_not_end_a_session_whose_stream_is_open(code: str) -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.take(wire.codec.opened(wire.main, Response(200), wire.now))
    call = wire.command(cmd.Steer(text="Faster."))
    if code == "session_not_active":
        for wait in WAITS:
            call = waited(wire, call, wait)
    wire.answer(call, 409, {**NOT_ACTIVE, "code": code})
    assert wire.of(ev.InputSettled)[-1].outcome == "refused"
    wire.in_turn("turn.completed")
    wire.say("session.waiting", continuationToken="wrun_1", wait="next-user-message")
    assert [e.outcome for e in wire.of(ev.TurnEnded)] == ["completed"]
    assert wire.of(ev.SessionEnded) == []


def test_a_session_is_over_that_is_not_active_since_a_reset_of_it_failed() -> None:
    wire, _ = made(MESSAGE)
    wire.answer(wire.command(cmd.Reset()), 500, {"ok": False, "error": "Timed out."})
    wire.answer(wire.command(MESSAGE), 409, NOT_ACTIVE)
    assert wire.normalizer.state.ended is not None
