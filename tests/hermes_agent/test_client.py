"""What hooks become: turns, messages, calls, children, errors and ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.hermes_agent.client import HermesHooksClient
from adapters.hermes_agent.client.gateway import BEHIND_MS, BUILT_MS
from adapters.hermes_agent.client.turns import (
    BETWEEN_MS,
    FAILED_MS,
    RETRIED_MS,
    SILENT_MS,
    THINKING_MS,
)
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Response
from adapters.wire.errors import NotSupported
from tests.hermes_agent.hooks import (
    BODIES,
    DELIVERED,
    SESSION,
    TURN,
    Watched,
    begun,
    call,
    ended,
    hook,
    recorded,
    types,
)

NAMES = sorted(path.stem for path in BODIES.glob("*.ndjson"))

ENDLESS = {"error"}
"""Recorded sessions whose turn died without an end: it ends by time."""


def found(events: list[ev.Event], kind: type[ev.Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def what_is_said(log: list[ev.Event]) -> list[Any]:
    """What a person reads of a log, in an order that does not matter."""
    said: list[Any] = []
    for event in log:
        match event:
            case ev.TextCompleted():
                said.append(("text", event.thread_id, event.text))
            case ev.MessageReceived():
                said.append(("message", ev.text_of(event.content)))
            case ev.ToolCalled():
                said.append(("call", event.thread_id, event.name, event.call_id))
            case ev.ToolReturned():
                said.append(("result", event.call_id, event.status))
            case ev.TurnEnded():
                said.append(("end", event.thread_id, event.outcome))
            case ev.ReasoningCompleted():
                said.append(("reasoning", event.text))
    return sorted(said, key=repr)


# Recorded sessions.


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_session_is_told_without_repairs_and_comes_to_rest(name: str) -> None:
    watched = Watched()
    watched.hear(*recorded(name))
    watched.wait(FAILED_MS)
    assert not watched.state.busy
    # A text that comes whole has no pieces; what a person stopped was left open by Hermes too.
    allowed = {"missing-delta", "close-step", "abandoned-call"}
    assert {str(rule) for rule in watched._normalizer.repairs} <= allowed


@pytest.mark.parametrize("name", NAMES)
def test_a_session_that_is_stored_at_every_hook_tells_the_same(name: str) -> None:
    watched, stored = Watched(), Watched()
    watched.hear(*recorded(name))
    for one in recorded(name):
        stored.hear(one)
        stored.restart()
    assert [e.model_dump() for e in stored.log] == [e.model_dump() for e in watched.log]


def test_a_position_has_what_changed_since_the_snapshot() -> None:
    codec, again = HermesHooksClient({}), HermesHooksClient({})
    first = codec.snapshot()
    for number, one in enumerate(recorded("child")):
        codec.feed(DELIVERED, json.dumps(one).encode(), number)
    again.restore(first, codec.position)
    assert again.snapshot() == codec.snapshot()
    assert again.frames == len(recorded("child"))


@pytest.mark.parametrize("name", NAMES)
def test_hooks_that_come_twice_and_by_two_ways_are_told_once(name: str) -> None:
    watched, once = Watched(), Watched()
    for one in recorded(name):
        once.hear(one)
        watched.hear(one, one)
        if name != "gateway":
            # A gateway's hooks have one way, and no ids but those of deliveries.
            named = "f" + str(one.get("delivery_id"))[1:]
            watched.hear({**one, "delivery_id": named, "dragoman": {"way": "another"}})
    assert what_is_said(watched.log) == what_is_said(once.log)
    assert len(found(watched.log, ev.InteractionRequested)) == len(
        found(once.log, ev.InteractionRequested)
    )


@given(st.data())
def test_hooks_that_are_lost_or_come_in_any_order_leave_a_lawful_log_that_rests(data: Any) -> None:
    hooks = recorded(data.draw(st.sampled_from(NAMES)))
    kept = data.draw(st.lists(st.sampled_from(range(len(hooks))), unique=True))
    watched = Watched()
    watched.hear(*(hooks[place] for place in kept))
    watched.wait(SILENT_MS + RETRIED_MS)
    assert not watched.state.busy
    assert watched.codec.wake_at is None


def test_the_text_of_a_turn_is_in_its_step_and_the_reasoning_before_it() -> None:
    watched = Watched()
    watched.hear(*recorded("reasoning"))
    assert types(watched.log)[4:] == [
        "step.started",
        "reasoning.delta",
        "reasoning.completed",
        "text.completed",
        "step.ended",
        "turn.ended",
    ]


def test_a_call_belongs_to_the_step_that_asked_for_it() -> None:
    watched = Watched()
    watched.hear(*recorded("tool"))
    assert types(watched.log)[4:] == [
        *("step.started", "text.completed", "tool.called", "step.ended", "tool.returned"),
        *("step.started", "text.completed", "step.ended", "turn.ended"),
    ]
    (result,) = found(watched.log, ev.ToolReturned)
    assert result.output == {"output": "hi", "exit_code": 0, "error": None}
    assert result.duration_ms == 211


def test_a_hook_that_blocks_rejects_the_call() -> None:
    watched = Watched()
    watched.hear(*recorded("blocked"))
    (result,) = found(watched.log, ev.ToolReturned)
    assert (result.status, result.error.code) == ("rejected", "permission_denied")


@pytest.mark.parametrize(
    ("name", "outcome", "status"),
    [
        ("approve", "approved", "completed"),
        ("deny", "denied", "rejected"),
        ("approval-timeout", "expired", "rejected"),
        ("plugin-approval", "approved", "completed"),
    ],
)
def test_an_approval_that_is_asked_elsewhere_is_watched(
    name: str, outcome: str, status: str
) -> None:
    watched = Watched()
    watched.hear(*recorded(name))
    (asked,) = found(watched.log, ev.InteractionRequested)
    (called,) = found(watched.log, ev.ToolCalled)
    assert (asked.answerable, asked.call_id) == (False, called.call_id)
    assert called.permission == "ask"
    assert [e.outcome for e in found(watched.log, ev.InteractionResolved)] == [outcome]
    assert [e.status for e in found(watched.log, ev.ToolReturned)] == [status]


def test_a_child_has_a_thread_of_its_own() -> None:
    watched = Watched()
    watched.hear(*recorded("child"))
    (started,) = found(watched.log, ev.ThreadStarted)
    (ended_,) = found(watched.log, ev.ThreadEnded)
    (called,) = found(watched.log, ev.ToolCalled)
    assert (started.parent, started.call_id) == (ev.MAIN, called.call_id)
    assert (ended_.status, ended_.output) == ("completed", "Hello from the fake model.")
    own = [e for e in watched.log if e.thread_id == started.thread_id]
    assert [e.text for e in found(own, ev.TextCompleted)] == ["Hello from the fake model."]
    assert [e.outcome for e in found(own, ev.TurnEnded)] == ["completed"]


def test_a_child_in_the_background_outlives_the_turn_that_sent_it() -> None:
    watched = Watched()
    watched.hear(*recorded("child-in-background"))
    ends = [e.thread_id for e in found(watched.log, ev.TurnEnded)]
    child = found(watched.log, ev.ThreadStarted)[0].thread_id
    assert ends == [ev.MAIN, child, ev.MAIN]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("completed", "completed"),
        ("success", "completed"),
        ("interrupted", "cancelled"),
        ("cancelled", "cancelled"),
        ("timeout", "failed"),
        (None, "failed"),
    ],
)
def test_a_child_ends_as_hermes_says(said: str | None, status: str) -> None:
    watched = Watched()
    child: dict[str, Any] = {"child_session_id": "c1", "parent_session_id": SESSION}
    stop = hook("subagent_stop", turn=None, **child, child_status=said)
    watched.hear(begun(), hook("subagent_start", turn=None, **child), stop)
    (end,) = found(watched.log, ev.ThreadEnded)
    assert (end.status, end.error is not None) == (status, status == "failed")


def test_gateway_hooks_tell_what_nobody_else_tells() -> None:
    watched = Watched()
    watched.hear(*recorded("gateway"))
    watched.wait(BEHIND_MS)
    assert [e.outcome for e in found(watched.log, ev.TurnEnded)] == ["completed"]
    assert [e.text for e in found(watched.log, ev.TextCompleted)] == ["The command printed hi."]
    assert [e.name for e in found(watched.log, ev.ToolCalled)] == ["terminal"]


def test_gateway_hooks_say_nothing_where_those_of_the_agent_come() -> None:
    watched = Watched()
    watched.hear(*recorded("tool"))
    told = what_is_said(watched.log)
    gateway = [{**one, "session_id": watched.codec.native_id} for one in recorded("gateway")]
    watched.hear(*gateway)
    assert what_is_said(watched.log) == told


@pytest.mark.parametrize("first", [1, 2, 3])
def test_gateway_hooks_that_come_before_those_of_the_agent_say_nothing(first: int) -> None:
    watched, once = Watched(), Watched()
    once.hear(*recorded("tool"))
    own = [{**one, "session_id": once.codec.native_id} for one in recorded("gateway")]
    watched.hear(*own[1 : 1 + first])
    watched.restart()
    watched.hear(*recorded("tool"), *own[1 + first :])
    assert what_is_said(watched.log) == what_is_said(once.log)


def test_a_gateway_that_is_slow_to_build_its_agent_begins_no_turn_of_its_own() -> None:
    watched = Watched()
    start = next(
        one for one in recorded("gateway") if one["hook_event_name"] == "gateway:agent:start"
    )
    watched.hear({**start, "session_id": SESSION})
    watched.wait(BUILT_MS - 1_000)
    watched.hear(begun())
    assert len(found(watched.log, ev.TurnStarted)) == 1


# Ends.


def test_a_turn_that_dies_on_its_model_ends_with_the_error() -> None:
    watched = Watched()
    watched.hear(*recorded("error"))
    assert watched.state.busy
    watched.wait(FAILED_MS)
    (end,) = found(watched.log, ev.TurnEnded)
    assert (end.outcome, end.error.code) == ("failed", "BadRequestError")


def test_a_model_call_that_is_repeated_does_not_end_the_turn() -> None:
    watched = Watched()
    error = hook(
        "api_request_error",
        api_request_id="r1",
        retryable=True,
        retry_count=0,
        max_retries=3,
        error={"type": "Overloaded", "message": "Later."},
    )
    watched.hear(begun(), error)
    watched.wait(RETRIED_MS - 1_000)
    assert watched.state.busy
    watched.hear(hook("pre_api_request", api_request_id="r1"), ended())
    assert [e.outcome for e in found(watched.log, ev.TurnEnded)] == ["completed"]


def model_failed(retries: int, **more: Any) -> dict[str, Any]:
    """Return the hook after a model call that failed."""
    about = {"api_request_id": "r1", "retry_count": retries, "max_retries": 3, **more}
    return hook("api_request_error", **about)


def test_an_error_of_the_model_that_comes_by_two_ways_is_told_once() -> None:
    watched = Watched()
    called = hook("pre_api_request", api_request_id="r1")
    late = hook("pre_api_request", api_request_id="r1")
    watched.hear(begun(), called, model_failed(1), late, model_failed(1))
    watched.wait(FAILED_MS)
    assert len(found(watched.log, ev.ErrorReported)) == 1
    assert [e.outcome for e in found(watched.log, ev.TurnEnded)] == ["failed"]


def test_each_error_of_a_repeated_model_call_is_told() -> None:
    watched = Watched()
    watched.hear(begun(), model_failed(1, retryable=True), model_failed(2, retryable=True))
    assert len(found(watched.log, ev.ErrorReported)) == 2


def test_the_next_turn_ends_one_that_died() -> None:
    watched = Watched()
    other = f"{SESSION}:task:ffff"
    watched.hear(begun(), {**begun(), "extra": {"turn_id": other, "user_message": "Again."}})
    assert [e.outcome for e in found(watched.log, ev.TurnEnded)] == ["interrupted"]
    assert watched.state.busy


def test_a_turn_without_hooks_ends_and_goes_on_when_one_comes() -> None:
    watched = Watched()
    watched.hear(begun(), call())
    watched.wait(SILENT_MS)
    (end,) = found(watched.log, ev.TurnEnded)
    assert (end.outcome, end.error.code) == ("failed", "backend_session_lost")
    returned = hook("post_tool_call", tool="terminal", tool_call_id="call_9", result="ok")
    watched.hear(returned, ended())
    assert [e.outcome for e in found(watched.log, ev.TurnEnded)] == ["failed", "completed"]


@pytest.mark.parametrize(
    ("hooks", "ms"),
    [
        ([], BETWEEN_MS),
        ([hook("pre_api_request", api_request_id="r1")], THINKING_MS),
        ([call()], SILENT_MS),
    ],
)
def test_a_turn_may_be_silent_for_as_long_as_what_is_open_may_take(
    hooks: list[Any], ms: int
) -> None:
    watched = Watched()
    watched.hear(begun(), *hooks)
    watched.wait(ms - 1_000)
    assert watched.state.busy
    watched.wait(2_000)
    assert not watched.state.busy


def test_an_interrupted_turn_is_one_whatever_else_it_says() -> None:
    watched = Watched()
    watched.hear(begun(), ended(completed=True, interrupted=True))
    assert [e.outcome for e in found(watched.log, ev.TurnEnded)] == ["interrupted"]


def test_a_later_version_says_why_a_turn_failed() -> None:
    watched = Watched()
    watched.hear(begun(), ended(completed=False, failed=True, turn_exit_reason="max_iterations"))
    (end,) = found(watched.log, ev.TurnEnded)
    assert (end.outcome, end.error.code) == ("failed", "max_iterations")


def test_an_end_on_exit_that_names_no_turn_ends_what_is_open() -> None:
    watched = Watched()
    watched.hear(begun(), hook("on_session_end", turn=None, completed=False, interrupted=True))
    assert [e.outcome for e in found(watched.log, ev.TurnEnded)] == ["interrupted"]


def test_what_comes_late_of_a_turn_that_is_over_is_kept_and_begins_nothing() -> None:
    watched = Watched()
    watched.hear(begun(), ended())
    late = watched.hear(hook("post_tool_call", tool="terminal", tool_call_id="x", result="ok"))
    assert types(late) == ["native"]
    assert not watched.state.busy


# Forms of later versions, and what is broken.


def test_a_streamed_text_is_told_piece_by_piece_and_once() -> None:
    watched = Watched()
    pieces = [
        hook("on_stream_delta", delta=text, kind="text", iteration=1) for text in ("He", "llo.")
    ]
    thought = hook("on_stream_delta", delta="Hm.", kind="reasoning", iteration=1)
    over = hook("on_stream_end", final_text="Hello.", finished=True, iteration=1)
    whole = hook(
        "post_api_request",
        api_request_id="r1",
        finish_reason="stop",
        response={"assistant_message": {"content": "Hello.", "tool_calls": []}},
    )
    answer = hook("post_llm_call", assistant_response="Hello.")
    watched.hear(begun(), thought, *pieces, over, whole, answer, ended())
    assert [e.text for e in found(watched.log, ev.TextDelta)] == ["He", "llo."]
    assert [e.text for e in found(watched.log, ev.TextCompleted)] == ["Hello."]
    assert [e.text for e in found(watched.log, ev.ReasoningCompleted)] == ["Hm."]


def test_an_answer_that_another_hook_changed_is_what_is_told() -> None:
    watched = Watched()
    first = hook(
        "post_api_request",
        api_request_id="r1",
        finish_reason="stop",
        response={"assistant_message": {"content": "Hello.", "tool_calls": []}},
    )
    watched.hear(begun(), first, hook("post_llm_call", assistant_response="Ahoy."), ended())
    assert [e.text for e in found(watched.log, ev.TextCompleted)] == ["Ahoy."]


def test_an_answer_without_its_model_call_is_told() -> None:
    watched = Watched()
    watched.hear(begun(), hook("post_llm_call", assistant_response="Hello."), ended())
    assert [e.text for e in found(watched.log, ev.TextCompleted)] == ["Hello."]


def test_a_message_in_parts_keeps_its_picture() -> None:
    watched = Watched()
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
    ]
    watched.hear(hook("pre_llm_call", user_message=parts))
    (said,) = found(watched.log, ev.MessageReceived)
    assert ev.text_of(said.content).startswith("What is this?")
    assert said.content[1].ref.url == "https://example.com/cat.png"


@pytest.mark.parametrize(
    "frame", [b"", b"[]", b'"x"', b"{}", b'{"hook_event_name": 3}', b"{nope", b"\xff"]
)
def test_what_is_not_a_hook_is_reported_and_changes_nothing(frame: bytes) -> None:
    watched = Watched()
    watched.hear(begun())
    told = watched.take(watched.codec.feed(DELIVERED, frame, watched.now))
    assert [e.code for e in found(told, ev.ErrorReported)] == ["backend_protocol"]
    watched.hear(ended())
    assert not watched.state.busy


def test_a_hook_that_nobody_knows_is_kept() -> None:
    watched = Watched()
    told = watched.hear(hook("on_something_new", anything=1))
    assert [(e.TYPE, e.name) for e in found(told, ev.Native)] == [("native", "on_something_new")]


def test_hooks_that_did_not_arrive_are_a_gap() -> None:
    watched = Watched()
    watched.hear(begun())
    told = watched.hear({**ended(), "dragoman": {"way": "plugin", "dropped": 3}})
    assert [e.reason[:7] for e in found(told, ev.Gap)] == ["3 hooks"]


# The gate.


def ask(watched: Watched, *, wait: float = 60.0) -> ev.InteractionRequested:
    told = watched.hear(begun(), call(wait=wait))
    (asked,) = found(told, ev.InteractionRequested)
    assert isinstance(asked, ev.InteractionRequested)
    return asked


def answer(watched: Watched, asked: ev.InteractionRequested, decision: Any, **more: Any) -> Any:
    command = cmd.AnswerInteraction(request_id=asked.request_id, decision=decision, **more)
    watched.take(
        [
            ev.InputAccepted(
                thread_id=ev.MAIN,
                command_id="c1",
                kind="answer",
                request_id=asked.request_id,
                by="key",
            ),
            ev.InteractionAnswered(
                thread_id=ev.MAIN, request_id=asked.request_id, command_id="c1", by="key"
            ),
        ]
    )
    return watched.codec.submit("c1", command)


def test_a_gated_call_asks_and_says_until_when() -> None:
    watched = Watched()
    asked = ask(watched)
    assert asked.details == {"tool": "terminal", "input": {"command": "ls"}, "command": "ls"}
    assert asked.expires_at == watched.now + 60_000
    assert [o.decision for o in asked.options or ()] == ["allow", "deny"]
    assert [e.permission for e in found(watched.log, ev.ToolCalled)] == ["ask"]
    assert watched.state.waiting_on(ev.MAIN)


@pytest.mark.parametrize(
    ("decision", "body", "outcome"),
    [
        ("allow", b'{"decision":"allow"}', "approved"),
        ("deny", b'{"decision":"block","message":"Not today."}', "denied"),
    ],
)
def test_an_answer_goes_to_the_hook_that_waits(decision: str, body: bytes, outcome: str) -> None:
    watched = Watched()
    asked = ask(watched)
    sent = answer(watched, asked, decision, reason="Not today." if decision == "deny" else None)
    assert sent.request.body == body
    told = watched.take(watched.codec.respond(sent, Response(200), watched.now))
    assert types(told) == ["input.settled", "interaction.resolved", "turn.resumed"]
    assert [e.outcome for e in found(told, ev.InteractionResolved)] == [outcome]


def test_what_an_answer_changes_is_to_be_stored() -> None:
    watched = Watched()
    sent = answer(watched, ask(watched), "allow")
    watched.codec.snapshot()
    watched.codec.respond(sent, Response(200), watched.now)
    assert watched.codec.changed


def test_a_call_that_was_decided_is_decided_the_same_when_it_comes_again() -> None:
    watched = Watched()
    asked = ask(watched)
    sent = answer(watched, asked, "allow")
    watched.take(watched.codec.respond(sent, Response(200), watched.now))
    assert types(watched.hear(call(wait=60.0))) == []
    (again,) = watched.codec.take_calls()
    assert (again.request.path, again.request.body) == (sent.request.path, sent.request.body)


def test_two_ways_that_wait_for_one_call_ask_once() -> None:
    watched = Watched()
    ask(watched)
    assert types(watched.hear(call(wait=90.0))) == []
    assert len(watched.state.interactions) == 1


def test_a_call_that_nobody_decides_is_blocked_in_time() -> None:
    watched = Watched()
    ask(watched, wait=60.0)
    assert types(watched.wait(59_000)) == []
    told = watched.wait(2_000)
    assert [e.outcome for e in found(told, ev.InteractionResolved)] == ["expired"]
    (blocked,) = watched.codec.take_calls()
    assert b'"block"' in (blocked.request.body or b"")


def test_an_answer_to_a_hook_that_has_left_is_refused_and_the_request_is_over() -> None:
    watched = Watched()
    sent = answer(watched, ask(watched), "allow")
    told = watched.take(watched.codec.respond(sent, Response(410), watched.now))
    assert [(e.outcome, e.error.code) for e in found(told, ev.InputSettled)] == [
        ("refused", "not_waiting")
    ]
    assert [e.outcome for e in found(told, ev.InteractionResolved)] == ["expired"]


def test_the_end_of_a_turn_blocks_what_still_waits_in_it() -> None:
    watched = Watched()
    ask(watched)
    watched.hear(ended(completed=False, interrupted=True))
    (blocked,) = watched.codec.take_calls()
    assert b"over" in (blocked.request.body or b"")
    assert not watched.state.interactions


def test_a_gated_call_that_ran_all_the_same_is_told_as_it_was() -> None:
    watched = Watched()
    ask(watched)
    ran = hook("post_tool_call", tool="terminal", tool_call_id="call_9", result="ok", status="ok")
    told = watched.hear(ran)
    assert [e.outcome for e in found(told, ev.InteractionResolved)] == ["approved"]
    assert [e.status for e in found(told, ev.ToolReturned)] == ["completed"]


def test_the_same_id_in_another_turn_is_another_call() -> None:
    watched = Watched()
    sent = answer(watched, ask(watched), "allow")
    watched.take(watched.codec.respond(sent, Response(200), watched.now))
    watched.hear(ended())
    other = f"{SESSION}:task:ffff"
    asked = hook(
        "pre_tool_call",
        tool="terminal",
        args={"command": "rm"},
        turn=other,
        wait=60.0,
        tool_call_id="call_9",
    )
    assert len(found(watched.hear(asked), ev.InteractionRequested)) == 1


def test_a_restart_forgets_no_call_that_waits() -> None:
    watched = Watched()
    asked = ask(watched)
    watched.restart()
    assert types(watched.hear(call(wait=60.0))) == []
    sent = answer(watched, asked, "allow")
    assert sent.request.body == b'{"decision":"allow"}'


def test_calls_of_two_threads_wait_at_the_same_time() -> None:
    watched = Watched()
    first = call("a", wait=60.0)
    second = call("b", wait=60.0)
    watched.hear(begun(), first, second)
    assert len(watched.state.interactions) == 2
    watched.wait(61_000)
    (blocked, other) = watched.codec.take_calls()
    assert blocked.request.path != other.request.path


@pytest.mark.parametrize(
    "command",
    [
        cmd.SendMessage(content=(ev.Text(text="Hi"),), policy="queue"),
        cmd.Interrupt(),
        cmd.Compact(),
    ],
)
def test_a_hermes_that_is_watched_cannot_be_driven(command: Any) -> None:
    with pytest.raises(NotSupported, match="watched and gated"):
        Watched().codec.check(command)


def test_the_name_of_a_turn_is_opaque() -> None:
    watched = Watched()
    watched.hear(hook("pre_llm_call", turn="no colons", user_message="Hi"))
    watched.hear(hook("on_session_end", turn="no colons", completed=True))
    assert [e.turn_id for e in found(watched.log, ev.TurnEnded)] == ["no colons"]
    assert TURN not in str(watched.log)
