"""What an eve can make a session remember has limits, and a record looks through nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.eve.client import EveClient
from adapters.eve.client.child_index import NAMES_MOST
from adapters.eve.client.state import SAID_MOST
from adapters.eve.client.timers import CHILD_HOLD_MS, SLICE
from adapters.eve.client.turn_end import OVER_MOST
from adapters.model import events as ev
from adapters.model.base import Call, Request, Response
from adapters.model.state import RECENT_IDS
from adapters.wire.errors import DragomanError
from adapters.wire.jsonvalue import MOST_NAME
from tests.eve.test_client import Wire, request


@pytest.fixture
def wire() -> Wire:
    wire = Wire("S2")
    wire.begin("hi")
    return wire


def action(name: str, **members: Any) -> dict[str, Any]:
    return {"kind": "tool-call", "callId": name, "toolName": "bash", "input": {}, **members}


def use(wire: Wire, *names: str, **members: Any) -> None:
    wire.in_turn("actions.requested", 0, actions=[action(name, **members) for name in names])


def returned(wire: Wire, name: str, output: Any = "done") -> None:
    result = {"kind": "tool-result", "callId": name, "toolName": "bash", "output": output}
    wire.in_turn("action.result", 0, status="completed", result=result)


def child(wire: Wire, number: int) -> str:
    name = f"wrun_c{number}"
    wire.in_turn("subagent.called", callId=f"c{number}", childSessionId=name, name="r")
    return name


def told(wire: Wire) -> list[str]:
    return [event.message for event in wire.of(ev.ErrorReported)]


# Calls.


def test_of_the_calls_of_a_long_turn_some_are_remembered(wire: Wire) -> None:
    for number in range(3 * RECENT_IDS):
        use(wire, f"call-{number}")
        returned(wire, f"call-{number}")
    assert len(wire.of(ev.ToolReturned)) == 3 * RECENT_IDS
    assert not told(wire)
    codec = wire.codec
    assert len(codec._s.lines[ev.MAIN].calls) == len(codec._s.returned) == RECENT_IDS
    wire.close()
    assert not codec._s.lines[ev.MAIN].calls
    assert not codec._s.returned
    assert not codec._parts.calls.callers


# Children.


def stream_of(wire: Wire, thread: str) -> Any:
    return next(call for call in wire.codec.streams() if call.thread_id == thread)


def test_of_the_children_that_are_over_the_newest_are_remembered(wire: Wire) -> None:
    for number in range(3 * OVER_MOST):
        task = {"callId": f"c{number}", "taskId": f"t{number}", "name": "r", "kind": "agent"}
        wire.say("task.started", **task)
        wire.say("task.settled", status="completed", output="done", **task)
    assert len(wire.of(ev.ThreadEnded)) == 3 * OVER_MOST
    codec = wire.codec
    assert len(codec._s.lines) == len(codec._parts.cursors.by_thread) == OVER_MOST + 1
    assert len(codec._s.tasks) == OVER_MOST
    # The end of one that is forgotten is shown as it came.
    wire.say("task.settled", status="completed", output="again", taskId="t0")
    assert wire.of(ev.Native)[-1].name == "task.settled"
    again = EveClient({})
    again.restore(codec.snapshot(), codec.position)
    assert again.snapshot() == codec.snapshot()


def test_a_child_that_is_forgotten_says_nothing_more(wire: Wire) -> None:
    name = child(wire, 0)
    task = {"callId": "t", "name": "r", "kind": "agent"}
    wire.in_turn("subagent.completed", callId="c0", output="done")
    wire.take(wire.codec.give_up(error(), wire.now, thread_id=name))
    for number in range(OVER_MOST):
        wire.say("task.started", taskId=f"t{number}", **task)
        wire.say("task.settled", taskId=f"t{number}", status="completed", **task)
    assert wire.say("turn.started", thread=name, sequence=1, turnId="turn_1") == []
    assert name not in wire.codec._s.lines
    assert wire.codec.respond(wire_call(name), Response(410), wire.now) == []
    assert wire.codec.give_up(error(), wire.now, thread_id="wrun_none") is not None


def error() -> DragomanError:
    return DragomanError("Gone.")


def wire_call(thread: str) -> Call:
    return Call("stream", Request("GET", "/"), stream=True, thread_id=thread)


def test_a_child_has_a_limited_number_of_names(wire: Wire) -> None:
    for number in range(5 * NAMES_MOST):
        wire.in_turn("subagent.called", callId=f"c{number}", childSessionId="wrun_c", name="r")
    assert len(wire.codec._s.tasks) == len(wire.codec._s.lines["wrun_c"].names) == NAMES_MOST
    assert len(wire.of(ev.ThreadStarted)) == 1


def test_threads_whose_time_has_come_are_looked_after_in_small_steps(wire: Wire) -> None:
    for number in range(3 * SLICE):
        child(wire, number)
        wire.in_turn("subagent.completed", callId=f"c{number}", output="done")
    wire.now += CHILD_HOLD_MS
    steps = []
    while wire.codec.wake_at is not None and wire.codec.wake_at <= wire.now:
        steps.append(wire.take(wire.codec.tick(wire.now)))
    assert len(wire.of(ev.ThreadEnded)) == 3 * SLICE
    assert max(len(step) for step in steps) <= SLICE


def test_children_that_are_left_behind_are_ended_in_small_steps(wire: Wire) -> None:
    for number in range(3 * SLICE):
        child(wire, number)
    wire.close()
    wire.say("session.waiting", continuationToken="eve:two", wait="next-user-message")
    wire.now += CHILD_HOLD_MS
    longest = 0
    while wire.codec.wake_at is not None and wire.codec.wake_at <= wire.now:
        longest = max(longest, len(wire.take(wire.codec.tick(wire.now))))
    ended = wire.of(ev.ThreadEnded)
    assert {event.status for event in ended} == {"cancelled"}
    assert (len(ended), longest) == (3 * SLICE, SLICE)
    assert wire.codec.wake_at is None


# Requests.


def test_of_the_requests_that_are_over_the_newest_are_remembered(wire: Wire) -> None:
    for number in range(RECENT_IDS + 5):
        wire.in_turn("input.requested", 0, requests=[request(f"r{number}")])
        outcome = {"requestId": f"r{number}", "kind": "tool-approval", "outcome": "denied"}
        wire.in_turn("input.resolved", 0, resolutions=[outcome])
    assert len(wire.of(ev.InteractionResolved)) == RECENT_IDS + 5
    assert len(wire.codec._s.resolved) == RECENT_IDS


# Messages.


def test_messages_of_a_turn_are_remembered_by_what_is_short(wire: Wire) -> None:
    long = "z" * 50_000
    for number in range(SAID_MOST + 5):
        wire.in_turn("message.received", message=f"{number}{long}")
    # A step that is tried again repeats it.
    wire.in_turn("message.received", message=f"{SAID_MOST + 4}{long}")
    assert len(wire.of(ev.MessageReceived)) == SAID_MOST + 6
    assert len(wire.codec._s.lines[ev.MAIN].said) == SAID_MOST
    assert len(wire.codec.snapshot()) < 10_000


def test_of_a_long_message_to_a_child_nothing_is_remembered() -> None:
    wire = Wire("T")
    wire.begin("hi")
    name = child(wire, 0)
    place: dict[str, Any] = {"thread": name, "sequence": 0, "turnId": "turn_0"}
    wire.say("turn.started", **place)
    wire.say("message.received", message="short", **place)
    assert wire.codec._s.lines[name].heard == "short"
    wire.say("message.received", message="x" * 4_097, **place)
    assert wire.codec._s.lines[name].heard == ""


@pytest.mark.parametrize("field", ["callId", "toolName"])
def test_a_name_of_an_eve_that_is_far_too_long_is_none(wire: Wire, field: str) -> None:
    use(wire, "call-1", **{field: "x" * (MOST_NAME + 1)})
    wire.in_turn("turn.waiting", on="tasks")
    names = [event.name for event in wire.of(ev.ToolCalled)]
    assert names == (["tool-call"] if field == "toolName" else [])
    assert len(wire.of(ev.Native)) == (field == "callId")
    assert len(wire.codec.snapshot()) < 3_000


# What it takes.


class Watched(dict[str, Any]):
    """A collection that fails a test which looks through it."""

    def _fail(self, *_: object) -> Any:
        raise AssertionError("all of them are looked through")

    values = items = keys = __iter__ = _fail


def test_a_record_looks_through_no_children_and_no_requests(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        child(wire, number)
        wire.in_turn("input.requested", 0, requests=[request(f"r{number}")])
    wire.in_turn("turn.waiting", on="input")
    s = wire.codec._s
    s.lines, s.asks.open = Watched(s.lines), Watched(s.asks.open)
    # What is stored has all of them.
    monkeypatch.setattr(EveClient, "_state", lambda _: b"0")
    wire.in_turn("step.started", 1)
    wire.in_turn("message.appended", 1, messageDelta="a")
    wire.in_turn("message.completed", 1, message="a")
    use(wire, "call-1")
    wire.in_turn("input.requested", 1, requests=[request("new")])
    returned(wire, "call-1")
    wire.in_turn("approval.settled", 1, requestId="new", outcome="approved")
    wire.in_turn("step.completed", 1, finishReason="stop")
    child(wire, 7)
    wire.in_turn("subagent.completed", callId="c7", output="done")
    wire.say("turn.started", thread="wrun_c8", sequence=0, turnId="turn_0")
    wire.say("turn.completed", thread="wrun_c8", sequence=0, turnId="turn_0")
    wire.say("session.waiting", thread="wrun_c8", continuationToken="x", wait="y")
    wire.close()
    wire.say("session.waiting", continuationToken="eve:two", wait="next-user-message")
    assert wire.of(ev.TurnEnded)


def test_the_calls_that_read_streams_are_the_same_while_nothing_changes(wire: Wire) -> None:
    for number in range(10):
        child(wire, number)
    before = wire.codec.streams()
    assert all(one is other for one, other in zip(before, wire.codec.streams(), strict=True))
    wire.say("turn.started", thread="wrun_c3", sequence=0, turnId="turn_0")
    after = wire.codec.streams()
    moved = [one.thread_id for one, other in zip(after, before, strict=True) if one is not other]
    assert moved == ["wrun_c3"]
    assert stream_of(wire, "wrun_c3").request.query["startIndex"] == "1"


INDEXES = (
    ("child_index", "children"),
    ("child_index", "readable"),
    ("child_index", "over"),
    ("child_index", "open"),
    ("calls", "callers"),
    ("requests", "in_thread"),
    ("requests", "of_call"),
)


def indexes(wire: Wire) -> list[Any]:
    return [getattr(getattr(wire.codec._parts, part), name) for part, name in INDEXES]


def busy(wire: Wire) -> Iterator[None]:
    """Records of all that is looked up."""
    for number in range(6):
        name = child(wire, number)
        place: dict[str, Any] = {"thread": name, "sequence": 0, "turnId": "turn_0"}
        wire.say("turn.started", **place)
        wire.say("actions.requested", **place, actions=[action(f"{name}-call")])
        wire.say("input.requested", **place, requests=[request(f"{name}-asked")])
        yield
        wire.in_turn("input.requested", 0, requests=[request(f"{name}-asked")], callId=name)
        yield
    use(wire, "call-1", "call-2")
    returned(wire, "call-1")
    yield
    wire.in_turn("subagent.completed", callId="c0", output="done")
    wire.say("turn.completed", thread="wrun_c0", sequence=0, turnId="turn_0")
    wire.say("session.waiting", thread="wrun_c0", continuationToken="x", wait="y")
    yield
    child(wire, 0)
    yield
    wire.take(wire.codec.give_up(error(), wire.now, thread_id="wrun_c1"))
    yield
    wire.close()
    yield
    wire.say("session.waiting", continuationToken="eve:two", wait="next-user-message")
    yield
    wire.say("session.failed", code="x", message="y")
    yield


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
def test_what_is_looked_up_is_what_a_restart_finds_again(generation: str) -> None:
    wire = Wire(generation)
    wire.begin("hi")
    for _ in busy(wire):
        before = indexes(wire)
        wire.codec._parts.index()
        assert indexes(wire) == before
