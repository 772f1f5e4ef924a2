"""What an eve says too late, twice or of somebody else: the log has it, and nothing stays open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapters.eve.client import EveClient
from adapters.eve.wire import LATE
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, Request
from tests.eve.test_client import Wire, allow, request, result
from tests.support.each import each

CASES = Path(__file__).parent / "cases"

TURN: dict[str, Any] = {"sequence": 0, "turnId": "turn_0"}

LATE_WORK: dict[str, dict[str, Any]] = {
    "step.started": {"stepIndex": 1},
    "step.completed": {"stepIndex": 0, "finishReason": "stop"},
    "step.failed": {"stepIndex": 0, "code": "X", "message": "x"},
    "reasoning.appended": {"stepIndex": 0, "reasoningDelta": "Hm"},
    "reasoning.completed": {"stepIndex": 0, "reasoning": "Hm"},
    "message.appended": {"stepIndex": 0, "messageDelta": "old"},
    "message.completed": {"stepIndex": 0, "message": "old", "finishReason": "stop"},
    "result.completed": {"stepIndex": 0, "result": 1},
    "action.input.appended": {
        "stepIndex": 0,
        "callId": "c",
        "toolName": "t",
        "inputTextDelta": "x",
    },
    "actions.requested": {
        "stepIndex": 0,
        "actions": [{"kind": "tool-call", "callId": "c", "toolName": "t", "input": {}}],
    },
    "action.partial": {"stepIndex": 0, "result": result("x")},
    "action.result": {"stepIndex": 0, "result": result("x"), "status": "completed"},
    "input.requested": {"stepIndex": 0, "requests": [request("x")]},
    "authorization.required": {"stepIndex": 0, "name": "mail", "description": "Sign in."},
    "turn.started": {},
    "turn.waiting": {"on": "input"},
    "turn.completed": {},
    "turn.failed": {"code": "X", "message": "x", "terminal": False},
    "message.received": {"message": "something old"},
}


def played(name: str) -> Wire:
    """Play a case without anything that we have said."""
    wire = Wire("S2")
    wire.events.clear()
    wire.normalizer = type(wire.normalizer)()
    wire.codec = EveClient({"single_stream": True})
    call = Call("stream", Request("GET", "/"), stream=True)
    for line in (CASES / name).read_bytes().splitlines():
        wire.take(wire.codec.feed(call, line, 0))
    return wire


def busy(wire: Wire) -> bool:
    return wire.normalizer.state.busy


def begun(wire: Wire, text: str = "new") -> None:
    """Begin a turn that has a text open."""
    wire.begin()
    wire.in_turn("step.started", 0)
    wire.in_turn("message.appended", 0, messageDelta=text)


# Late records.


def test_what_comes_after_the_end_of_its_turn_opens_none() -> None:
    wire = played("late-after-end.ndjson")
    assert [event.turn_id for event in wire.of(ev.TurnStarted)] == ["turn_0", "turn_1"]
    assert [event.outcome for event in wire.of(ev.TurnEnded)] == ["completed"] * 2
    late = [event.name for event in wire.of(ev.Native) if event.extra == {LATE: True}]
    assert late == ["message.appended", "message.appended", "step.failed", "turn.failed"]
    assert not busy(wire)


@each("end", ["turn.completed", "turn.failed", "turn.cancelled"])
@each("place", [TURN, {"turnId": "turn_0"}, {"sequence": 0}], ids=str)
@each("type_", LATE_WORK)
def test_work_of_a_turn_that_is_over_is_kept_and_changes_nothing(
    type_: str, place: dict[str, Any], end: str
) -> None:
    wire = Wire("S2")
    wire.begin("hi")
    failure: dict[str, Any] = {"code": "X", "message": "x"} if end == "turn.failed" else {}
    wire.in_turn(end, **failure)
    wire.say("session.waiting", wait="next-user-message")
    for _ in range(3):
        (kept,) = wire.say(type_, **place, **LATE_WORK[type_])
        assert isinstance(kept, ev.Native)
        assert kept.extra == {LATE: True}
    assert not busy(wire)

    begun(wire)
    (kept,) = wire.say(type_, **place, **LATE_WORK[type_])
    assert isinstance(kept, ev.Native)
    assert kept.turn_id is None
    wire.in_turn("message.appended", 0, messageDelta=" words")
    wire.in_turn("message.completed", 0, message="new words", finishReason="stop")
    assert wire.of(ev.TextCompleted)[-1].text == "new words"
    assert len(wire.of(ev.TurnEnded)) == 1
    assert len(wire.of(ev.TurnStarted)) == 2
    wire.close()
    assert not busy(wire)


def test_work_that_comes_before_the_boundary_of_its_turn_is_late_too() -> None:
    wire = Wire("S2")
    begun(wire)
    wire.in_turn("turn.completed")
    wire.in_turn("message.appended", 0, messageDelta="more")
    assert not busy(wire)
    wire.say("session.waiting", wait="next-user-message")
    assert len(wire.of(ev.TurnStarted)) == 1
    assert wire.of(ev.Native)[-1].name == "message.appended"


def test_what_is_late_for_an_older_turn_does_not_take_the_usage_of_an_end() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.close()
    wire.begin("more")
    wire.in_turn("turn.completed")
    wire.say("message.appended", **TURN, stepIndex=0, messageDelta="old")
    wire.say("session.waiting", wait="next-user-message", usage={"inputTokens": 7})
    assert wire.of(ev.TurnEnded)[-1].usage == ev.Usage(input_tokens=7)


def test_a_second_cancel_of_a_turn_is_kept_and_takes_no_boundary() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("turn.cancelled")
    wire.say("session.waiting", wait="next-user-message")
    (kept,) = wire.in_turn("turn.cancelled")
    assert isinstance(kept, ev.Native)
    wire.begin("more")
    wire.close()
    assert not busy(wire)


def test_what_is_late_does_not_resume_a_turn_that_rests() -> None:
    wire = Wire("T")
    wire.approval("A")
    wire.close()
    wire.in_turn("message.appended", 0, messageDelta="old")
    assert wire.of(ev.TurnResumed) == []
    wire.answer(wire.command(allow("A")), 200, {"ok": True})
    wire.begin()
    wire.in_turn("step.started", 0)
    wire.in_turn("action.result", 0, result=result("A"), status="completed")
    wire.close()
    assert [event.outcome for event in wire.of(ev.TurnEnded)] == ["completed"]


def test_a_session_at_rest_has_no_turn_that_nobody_named() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.close()
    wire.say("message.appended", messageDelta="whose?")
    assert busy(wire)
    wire.say("session.waiting", wait="next-user-message")
    assert not busy(wire)


def test_what_a_child_says_too_late_opens_no_turn_of_it() -> None:
    wire = Wire("S1")
    wire.begin("hi")
    call = {"kind": "subagent-call", "callId": "k", "name": "kid", "input": {}}
    wire.in_turn("step.started", 0)
    wire.in_turn("actions.requested", 0, actions=[call])
    wire.in_turn("subagent.called", callId="k", childSessionId="kid_1", name="kid")
    wire.say("turn.started", thread="kid_1", **TURN)
    wire.say("turn.completed", thread="kid_1", **TURN)
    wire.say("session.waiting", thread="kid_1", wait="next-user-message")
    late = {**TURN, "stepIndex": 0, "messageDelta": "old"}
    for _ in range(2):
        (kept,) = wire.say("message.appended", thread="kid_1", **late)
        assert isinstance(kept, ev.Native)
    wire.in_turn("subagent.completed", callId="k", subagentName="kid", output="done")
    wire.say("message.appended", thread="kid_1", **{**late, "sequence": 1, "turnId": "turn_1"})
    wire.in_turn("step.completed", 0, finishReason="stop")
    wire.close()
    assert len([e for e in wire.of(ev.TurnStarted) if e.thread_id == "kid_1"]) == 1
    assert not busy(wire)


# A step that is tried again.


def test_a_try_that_does_not_count_takes_its_calls_and_requests_with_it() -> None:
    wire = played("step-retry-approval.ndjson")
    assert list(wire.normalizer.state.interactions) == ["aitxt-B"]
    (gone,) = wire.of(ev.InteractionResolved)
    assert (gone.request_id, gone.outcome) == ("aitxt-A", "withdrawn")
    (ended,) = wire.of(ev.ToolReturned)
    assert ended.call_id == "cA"
    assert ended.error is not None
    assert (ended.status, ended.error.code) == ("interrupted", "discarded")
    assert wire.of(ev.TurnPaused)[-1].request_ids == ("aitxt-B",)


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
def test_what_a_step_asks_again_is_asked_still(generation: str) -> None:
    wire = Wire(generation)
    wire.approval("A")
    wire.in_turn("step.started", 0)
    action = {"kind": "tool-call", "callId": "call-A", "toolName": "pay", "input": {}}
    wire.in_turn("actions.requested", 0, actions=[action])
    wire.in_turn("input.requested", 0, requests=[request("A")])
    wire.in_turn("step.completed", 0, finishReason="tool-calls")
    assert wire.of(ev.InteractionResolved) == []
    assert wire.of(ev.ToolReturned) == []
    assert list(wire.normalizer.state.interactions) == ["A"]


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
def test_a_turn_whose_second_try_asks_nothing_does_not_wait(generation: str) -> None:
    wire = Wire(generation)
    wire.approval("A", "B")
    wire.in_turn("step.started", 0)
    wire.in_turn("message.completed", 0, message="Done.", finishReason="stop")
    wire.in_turn("step.completed", 0, finishReason="stop")
    wire.close()
    assert [event.outcome for event in wire.of(ev.InteractionResolved)] == ["withdrawn"] * 2
    assert [event.outcome for event in wire.of(ev.TurnEnded)] == ["completed"]
    assert not busy(wire)
    # A refusal of what T does not ask any more would join the words of the next message.
    assert wire.codec._s.lapsed == wire.codec._s.unsaid == []


# Whose turn it is.


def more(wire: Wire, text: str = "more", delivery: str = "d-ours") -> str:
    call = wire.command(cmd.SendMessage(content=(ev.Text(text=text),), policy="queue"))
    wire.answer(call, 202, {"ok": True, "status": "accepted", "deliveryId": delivery})
    assert call.command_id is not None
    return call.command_id


@pytest.mark.parametrize("named", [True, False])
def test_a_turn_of_somebody_else_gets_none_of_our_messages(named: bool) -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.close()
    ours = more(wire)
    wire.turn += 1
    wire.in_turn("turn.started", deliveries=["d-theirs"])
    names: dict[str, Any] = {"deliveries": ["d-theirs"]} if named else {}
    wire.in_turn("message.received", message="more", **names)
    assert wire.of(ev.TurnStarted)[-1].cause == "background"
    assert wire.of(ev.MessageReceived)[-1].command_id is None
    wire.close()
    wire.turn += 1
    wire.in_turn("turn.started", deliveries=["d-ours"])
    wire.in_turn("message.received", message="more", deliveries=["d-ours"])
    assert wire.of(ev.TurnStarted)[-1].cause == "message"
    assert wire.of(ev.MessageReceived)[-1].command_id == ours


def test_a_turn_that_names_a_message_of_ours_gets_that_one() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.close()
    first, second = more(wire, "same", "d-1"), more(wire, "same", "d-2")
    for delivery in ("d-2", "d-1"):
        wire.turn += 1
        wire.in_turn("turn.started", deliveries=[delivery])
        wire.in_turn("message.received", message="same", deliveries=[delivery])
        wire.close()
    assert [event.command_id for event in wire.of(ev.MessageReceived)][-2:] == [second, first]


def test_a_turn_that_names_nobody_gets_our_message_in_its_order() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.close()
    first, second = more(wire, "same", "d-1"), more(wire, "same", "d-2")
    for _ in range(2):
        wire.begin("same")
        wire.close()
    assert [event.command_id for event in wire.of(ev.MessageReceived)][-2:] == [first, second]


# A turn that is held.


@pytest.mark.parametrize("rests", [True, False])
def test_a_turn_that_is_held_goes_on(rests: bool) -> None:
    wire = Wire("S2")
    begun(wire)
    wire.in_turn("message.completed", 0, message="new", finishReason="stop")
    wire.in_turn("step.completed", 0, finishReason="stop")
    wire.in_turn("turn.completed", held=True)
    if rests:
        wire.say("session.waiting", wait="next-user-message")
    assert wire.of(ev.TurnEnded) == []
    (paused,) = wire.of(ev.TurnPaused)
    assert (paused.on, paused.extra) == ("tasks", {"held": True})
    wire.in_turn("message.received", kind="task.result", message="4 files")
    assert wire.of(ev.Native)[-1].name == "message.received"
    wire.in_turn("step.started", 1)
    wire.in_turn("message.completed", 1, message="Done.", finishReason="stop")
    wire.in_turn("step.completed", 1, finishReason="stop")
    wire.close()
    assert len(wire.of(ev.TurnStarted)) == len(wire.of(ev.TurnEnded)) == 1
    assert "4 files" not in str(wire.of(ev.MessageReceived))
    assert not busy(wire)


def test_the_result_of_a_task_is_not_our_message() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.close()
    ours = more(wire, "4 files")
    wire.turn += 1
    wire.in_turn("turn.started")
    wire.in_turn("message.received", kind="task.result", message="4 files")
    wire.in_turn("message.received", message="4 files", deliveries=["d-ours"])
    assert wire.of(ev.MessageReceived)[-1].command_id == ours
