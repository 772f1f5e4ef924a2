"""The stored state of the engine client codec: what earlier releases wrote is read, and goes on.

`state-1.json` has snapshots of version 1, by what the session was doing: they were written by the
codec of that time, and are never written anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters import events as ev
from adapters.base import Call
from adapters.driving.asks import Ask, Asks, Given
from adapters.driving.doubts import LOOK_AGAIN_MS, Doubt, Doubts
from adapters.driving.held import HOLD_MS, Held
from adapters.driving.ledger import Input, Ledger
from adapters.engine.client import EngineClient
from adapters.engine.client.state import BLOCK, END_HOLD_MS, Block, Ending, OpenCall, State
from adapters.stored import fill
from adapters.stored import read as read_stored
from tests.engine.driver import START, Session
from tests.engine.test_client import (
    ASK,
    CALL,
    COMPLETED,
    PENDING,
    RESOLVED,
    STARTED,
    TASK,
    all_of,
    only,
    respond,
    types,
)

FIRST: dict[str, list[Any]] = json.loads(Path(__file__).with_name("state-1.json").read_text())

BEGUN: dict[str, Any] = {
    "turn": "turn-1",
    "turns": 1,
    "steps": 1,
    "calls_in_step": True,
    "messages": 1,
    "block": Block(index=-1),
}
CALLED = {"c1": OpenCall("bash", {"command": "ls -l"}, asked=True)}


def message(*, taken: bool) -> Ledger[Input]:
    return Ledger({"c1": Input("c1", "message", (ev.Text(text="go"),), taken)})


def answer() -> Ledger[Input]:
    return Ledger({"c2": Input("c2", "answer")})


def asked(given: Given) -> Asks[Ask]:
    return Asks({"h": Ask("approval", call_id="c1", given=given)})


def native(type_: str, frame: int) -> ev.NativeRef:
    return ev.NativeRef(dialect="engine", type=type_, frame=frame)


HELD: list[ev.Event] = [
    ev.ToolCalled(
        thread_id=ev.MAIN,
        turn_id="turn-1",
        native=native("tool_call", 2),
        call_id="c1",
        name="bash",
        input={"command": "ls -l"},
    ),
    ev.StepEnded(
        thread_id=ev.MAIN,
        turn_id="turn-1",
        native=native("usage", 3),
        step_index=0,
        finish_reason="tool-calls",
        usage=ev.Usage(input_tokens=1, output_tokens=1),
    ),
]
YES = Given("c2", "approved", ev.Answer(reason="fine"), "once")

# Nobody has decided since when nothing is held.
SINCE = START + 2

STATES: dict[str, State] = {
    "sent": State(ledger=message(taken=False)),
    "taken": State(ledger=message(taken=True)),
    "held": State(
        **BEGUN,
        calls={"c1": OpenCall("bash", {"command": "ls -l"})},
        held=Held(HELD, ["c1"], SINCE),
    ),
    "answered": State(
        **BEGUN, calls=CALLED, asks=asked(YES), ledger=answer(), held=Held(since=SINCE)
    ),
    "answer taken": State(**BEGUN, calls=CALLED, asks=asked(YES), held=Held(since=SINCE)),
    "doubt": State(
        **BEGUN,
        calls=CALLED,
        asks=asked(Given("c2", "approved", ev.Answer(), "once")),
        ledger=answer(),
        doubts=Doubts({"c2": Doubt(START + 3 + LOOK_AGAIN_MS)}),
        held=Held(since=SINCE),
    ),
    "denied": State(
        **BEGUN,
        calls=CALLED,
        asks=asked(Given("c2", "denied", claims=False)),
        ledger=Ledger({"c2": Input("c2", "interrupt")}),
        held=Held(since=SINCE),
    ),
    "ending": State(
        **{**BEGUN, "calls_in_step": False, "block": Block("text", number=1)},
        step=0,
        ending=Ending(
            "failed",
            START + 3,
            ev.ErrorInfo(code="CONTEXT_OVERFLOW", message="Too big.", details={"tokens": 9}),
            native("error", 3),
            {"trace": "t"},
        ),
    ),
    "over": State(
        last_turn="turn-1",
        turns=1,
        steps=2,
        calls_in_step=True,
        messages=2,
        unnamed_calls=1,
        unnamed_asks=1,
        held=Held(since=START + 7),
        block=Block(number=1, index=-1),
    ),
}
"""What each of them means."""


def written(name: str) -> bytes:
    return json.dumps(FIRST[name]).encode()


def read(stored: bytes) -> State:
    place, state = read_stored(EngineClient, "a state", stored)
    found = fill(State, state)
    found.block = fill(Block, dict(zip(BLOCK, place[1], strict=True)))
    return found


@pytest.mark.parametrize("name", FIRST)
def test_a_state_of_version_1_is_read(name: str) -> None:
    assert read(written(name)) == STATES[name]


@pytest.mark.parametrize("name", FIRST)
def test_what_was_read_is_written_in_the_newest_version(name: str) -> None:
    codec = EngineClient({"task_id": TASK})
    codec.restore(written(name), None)
    again = EngineClient({"task_id": TASK})
    again.restore(codec.snapshot(), None)
    assert again.snapshot() == codec.snapshot()
    assert read(codec.snapshot()) == read(written(name))
    assert (again.frames, again.wake_at) == (codec.frames, codec.wake_at)


@pytest.mark.parametrize("name", FIRST)
def test_a_position_after_a_snapshot_of_version_1_is_lossless(name: str) -> None:
    codec = EngineClient({"task_id": TASK})
    codec.restore(written(name), json.dumps(FIRST[name][:1]).encode())
    again = EngineClient({"task_id": TASK})
    again.restore(written(name), codec.position)
    assert again.snapshot() == codec.snapshot()


def going_on(name: str, *events: ev.Event) -> Session:
    """A session whose codec was stored by version 1, with so much of its log as matters."""
    session = Session(TASK)
    session.emit(events, upstream=False)
    session.snapshot, session.position = written(name), None
    session.restart()
    return session


def accepted(command_id: str, kind: ev.InputKind) -> ev.Event:
    return ev.InputAccepted(thread_id=ev.MAIN, command_id=command_id, kind=kind, by="key")


def turn() -> tuple[ev.Event, ...]:
    return (
        ev.TurnStarted(thread_id=ev.MAIN, turn_id="turn-1", cause="background"),
        *HELD[:1],
        ev.InteractionRequested(
            thread_id=ev.MAIN, turn_id="turn-1", request_id="h", kind="approval", prompt="?"
        ),
        ev.TurnPaused(thread_id=ev.MAIN, turn_id="turn-1", on="input", request_ids=("h",)),
        accepted("c2", "answer"),
        ev.InteractionAnswered(thread_id=ev.MAIN, request_id="h", command_id="c2", by="key"),
    )


def test_a_message_that_was_sent_goes_on() -> None:
    session = going_on("sent", accepted("c1", "message"))
    session.replay([STARTED])
    assert types(session.log)[2:] == ["input.settled", "turn.started", "message.received"]
    assert only(session, ev.InputSettled).outcome == "taken"


def test_a_call_that_was_held_goes_on() -> None:
    session = going_on("held")
    assert session.codec.wake_at == SINCE + HOLD_MS
    session.tick()
    assert only(session, ev.ToolCalled).permission == "unknown"


def test_an_answer_that_was_given_goes_on() -> None:
    session = going_on("answered", *turn())
    session.replay([STARTED, CALL, ASK, RESOLVED])
    assert only(session, ev.InputSettled).outcome == "taken"
    resolved = only(session, ev.InteractionResolved)
    assert (resolved.outcome, resolved.answer, resolved.scope) == (
        "approved",
        ev.Answer(reason="fine"),
        "once",
    )


def test_an_answer_that_was_doubted_goes_on() -> None:
    session = going_on("doubt", *turn())
    session.now = START + 3 + LOOK_AGAIN_MS
    assert session.codec.wake_at == session.now
    session.emit(session.codec.tick(session.now))
    (look,) = session.codec.take_calls()
    assert isinstance(look, Call)
    respond(session, look, 200, PENDING)
    assert only(session, ev.InputSettled).error.code == "not_delivered"
    assert all_of(session, ev.InteractionAnswered)[-1].state == "released"


def test_a_turn_that_was_ending_goes_on() -> None:
    session = going_on("ending", *turn()[:1])
    assert session.codec.wake_at == START + 3 + END_HOLD_MS
    session.tick()
    ended = only(session, ev.TurnEnded)
    assert (ended.outcome, ended.error.code, ended.extra) == (
        "failed",
        "CONTEXT_OVERFLOW",
        {"trace": "t"},
    )


def test_a_session_that_rested_goes_on() -> None:
    session = going_on("over")
    session.execute([STARTED, COMPLETED])
    assert [event.turn_id for event in all_of(session, ev.TurnEnded)] == ["turn-1"]
    assert session.codec.streams() == ()
