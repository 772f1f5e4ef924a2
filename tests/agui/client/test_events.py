"""What the events of a run mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adapters.agui.client import AguiClient, frames
from adapters.agui.client.state import RESULT_HOLD_MS
from adapters.contract.mapping import parse_mapping
from adapters.driving.held import HOLD_MS
from adapters.model import events as ev
from adapters.model.base import CloseReason
from adapters.wire.framing import TORN
from tests.agui.client.driver import (
    BARE,
    SUCCESS,
    Event,
    Session,
    approval,
    called,
    interrupted,
    posted,
    result,
    text,
)
from tests.support.each import each

MAPPING = Path(__file__).parents[3] / "adapters" / "agui" / "MAPPING.md"


def ran(*events: Event) -> Session:
    """Return a session after a run that had these events and a good end."""
    session = Session()
    session.ask()
    session.run(*events, SUCCESS)
    return session


def texts(session: Session) -> list[str]:
    return [one.text for one in session.of(ev.TextCompleted)]


def test_each_event_that_the_mapping_names_has_a_handler() -> None:
    mapping = parse_mapping(MAPPING.read_text(encoding="utf-8"))
    named = {row.native.partition(".")[0].partition(" ")[0] for row in mapping.events}
    events = {name for name in named if name.isupper() and name.replace("_", "").isalpha()}
    kept = {
        *("STEP_STARTED", "STEP_FINISHED", "STATE_DELTA", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA"),
        *("SUBAGENT_STARTED", "SUBAGENT_FINISHED", "SUBAGENT_ERROR"),
    }
    assert events == set(frames.HANDLERS) | kept


# Runs.


def test_a_run_with_a_text_is_a_turn_with_one_model_call() -> None:
    session = ran(*text("Hi"))
    assert session.types() == [
        *("session.started", "input.accepted", "input.settled"),
        *("turn.started", "message.received", "step.started"),
        *("text.delta", "text.completed", "step.ended", "turn.ended"),
    ]
    started, ended = session.last(ev.TurnStarted), session.last(ev.TurnEnded)
    assert (started.turn_id, started.cause) == ("k1", "message")
    assert (ended.outcome, ended.native.type, ended.native.frame) == (
        *("completed", "RUN_FINISHED"),
        5,
    )
    assert session.last(ev.StepEnded).finish_reason == "stop"


@each(
    ("end", "outcome"),
    [
        (SUCCESS, "completed"),
        (BARE, "completed"),
        ({"type": "RUN_FINISHED", "outcome": {"type": "cancelled"}}, "interrupted"),
        ({"type": "RUN_FINISHED", "outcome": {"type": "interrupt", "interrupts": []}}, "completed"),
        ({"type": "RUN_FINISHED", "outcome": 5}, "completed"),
        ({"type": "RUN_FINISHED", "outcome": {"type": "interrupt", "interrupts": 5}}, "completed"),
    ],
    ids=str,
)
def test_a_run_ends_its_turn(end: Event, outcome: str) -> None:
    session = Session()
    session.ask()
    session.run(end)
    assert session.last(ev.TurnEnded).outcome == outcome
    assert not session.state.busy


@each(
    ("members", "code", "message", "details"),
    [
        ({"message": "Broke."}, "run_error", "Broke.", None),
        ({"message": "Broke.", "code": "too_long"}, "too_long", "Broke.", None),
        (
            {"message": "Broke.", "code": "<class 'RuntimeError'>"},
            "run_error",
            "Broke.",
            {"code": "<class 'RuntimeError'>"},
        ),
        ({}, "run_error", "The run failed; the agent gave no reason.", None),
    ],
    ids=str,
)
def test_an_error_fails_the_turn(members: Any, code: str, message: str, details: Any) -> None:
    session = Session()
    session.ask()
    session.run(*text("Par")[:2], {"type": "RUN_ERROR", **members})
    ended = session.last(ev.TurnEnded)
    assert ended.outcome == "failed"
    assert (ended.error.code, ended.error.message, ended.error.details) == (code, message, details)
    assert session.last(ev.TextCompleted).status == "partial"
    assert session.settled() == {"k1": "taken"}


def test_tokens_are_told_for_the_run_by_model() -> None:
    usage = [
        {"model": "m", "provider": "p", "inputTokens": 5, "outputTokens": 2, "totalTokens": 7},
        {"cachedInputTokens": 3, "cacheWriteInputTokens": 4, "reasoningTokens": 1},
        "x",
    ]
    session = Session()
    session.ask()
    session.run(*text("Hi"), {**SUCCESS, "usage": usage})
    first, second = session.of(ev.UsageReported)
    assert (first.usage.input_tokens, first.usage.output_tokens) == (5, 2)
    assert first.usage.extra == {"provider": "p", "model": "m"}
    assert (first.turn_id, first.scope) == ("k1", "call")
    assert second.usage.cache_read_tokens == 3
    assert (second.usage.cache_write_tokens, second.usage.reasoning_tokens) == (4, 1)


def test_a_failed_run_tells_its_tokens_too() -> None:
    session = Session()
    session.ask()
    session.run({"type": "RUN_ERROR", "message": "x", "usage": [{"inputTokens": 5}]})
    assert session.last(ev.UsageReported).usage.input_tokens == 5


@each("value", [{"a": 1}, "text", 0, False, []])
def test_the_result_of_a_run_is_a_result(value: Any) -> None:
    session = Session()
    session.ask()
    session.run(*text("Hi"), {**SUCCESS, "result": value})
    assert session.last(ev.ResultProduced).value == value
    assert session.types().index("step.ended") < session.types().index("result.produced")


def test_what_an_application_puts_beside_stays_with_it() -> None:
    marked = [{**one, "metadata": {"a": number}} for number, one in enumerate(text("Hi"))]
    session = Session()
    session.ask()
    session.run(*marked, {**SUCCESS, "metadata": {"b": 1}})
    assert session.last(ev.TextDelta).extra == {"metadata": {"a": 1}}
    assert session.last(ev.TextCompleted).extra == {"metadata": {"a": 2}}
    assert session.last(ev.TurnEnded).extra == {"metadata": {"b": 1}}


def test_a_run_that_nobody_asked_for_is_a_turn_of_its_own() -> None:
    session = ran(*text("Hi"))
    session.feed({"type": "RUN_STARTED", "runId": "r2"}, *text("And", "m2"), SUCCESS)
    assert [one.cause for one in session.of(ev.TurnStarted)] == ["message", "background"]
    assert session.last(ev.TurnStarted).turn_id == "r2"


def test_the_next_run_of_a_recording_goes_on_with_a_paused_turn() -> None:
    session = Session()
    session.ask()
    session.feed({"type": "RUN_STARTED"}, interrupted(approval("int-1")))
    session.feed({"type": "RUN_STARTED"}, *text("Done."), SUCCESS)
    assert session.last(ev.InteractionResolved).outcome == "unknown"
    assert len(session.of(ev.TurnStarted)) == len(session.of(ev.TurnEnded)) == 1


def test_the_next_run_of_a_recording_has_the_result_that_was_waited_for() -> None:
    session = Session()
    session.ask()
    session.feed({"type": "RUN_STARTED"}, *called(), SUCCESS)
    session.feed({"type": "RUN_STARTED"}, *text("Done."), SUCCESS)
    assert len(session.of(ev.InteractionRequested)) == 1
    assert session.last(ev.TurnEnded).outcome == "completed"


def test_what_follows_the_end_of_a_run_means_nothing() -> None:
    session = ran(*text("Hi"))
    before = len(session.events)
    session.feed(*text("late", "m2"), {"type": "CUSTOM", "name": "x", "value": 1})
    assert len(session.events) == before


# Text.


def test_the_pieces_of_a_text_are_told_as_they_come() -> None:
    session = Session()
    session.ask()
    start, _, end = text("")
    pieces = ["Hel", "lo", " you"]
    told = [{"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": one} for one in pieces]
    session.run(start, *told, end, SUCCESS)
    deltas = session.of(ev.TextDelta)
    assert [one.text for one in deltas] == pieces
    assert [one.native.frame for one in deltas] == [3, 4, 5]
    assert {one.block_id for one in deltas} == {deltas[0].block_id}
    assert session.last(ev.TextCompleted).text == "Hello you"
    assert session.last(ev.TextCompleted).message_id == "m1"


def test_two_messages_are_two_blocks() -> None:
    session = ran(*text("One"), *text("Two", "m2"))
    assert texts(session) == ["One", "Two"]
    session = ran(text("One")[1], text("Two", "m2")[1])
    assert texts(session) == ["One", "Two"]


def test_an_empty_message_leaves_nothing() -> None:
    session = ran(text("")[0], text("")[2])
    assert not session.of(ev.TextDelta)
    assert not session.of(ev.StepStarted)


def test_the_end_of_another_message_ends_nothing() -> None:
    session = ran(*text("One")[:2], text("", "other")[2], text(" more")[1])
    assert texts(session) == ["One more"]


def test_a_text_of_another_role_is_not_the_agents() -> None:
    start, content, end = text("Hello", "u9")
    session = ran({**start, "role": "user"}, content, end, *text("Hi"))
    assert texts(session) == ["Hi"]
    assert [one.name for one in session.of(ev.Native)] == [
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT"),
        "TEXT_MESSAGE_END",
    ]


def test_a_text_with_a_call_inside_of_it_is_one_message() -> None:
    start, content, end = text("Wait. ")
    session = ran(start, content, *called(), result(), text("Done.")[1], end)
    assert texts(session) == ["Wait. ", "Done."]
    user, owner, tool = session.next_messages()
    assert (owner["id"], owner["content"], tool["toolCallId"]) == ("m1", "Wait. Done.", "c1")
    assert user["role"] == "user"


def test_chunks_of_a_text_need_no_boundaries() -> None:
    chunk = {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m1", "role": "assistant", "delta": "Hel"}
    session = ran(
        chunk,
        {"type": "RAW", "event": {}},
        {"type": "TEXT_MESSAGE_CHUNK", "delta": "lo"},
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m2", "delta": "Bye"},
        {"type": "STEP_STARTED", "stepName": "x"},
        {"type": "TEXT_MESSAGE_CHUNK", "delta": "lost"},
    )
    assert [(one.message_id, one.text) for one in session.of(ev.TextCompleted)] == [
        ("m1", "Hello"),
        ("m2", "Bye"),
    ]


# Reasoning.


def reasoning(words: str = "Hm", name: str = "t1") -> list[Event]:
    kind = "REASONING_MESSAGE"
    return [
        {"type": "REASONING_START", "messageId": name},
        {"type": f"{kind}_START", "messageId": name, "role": "reasoning"},
        {"type": f"{kind}_CONTENT", "messageId": name, "delta": words},
        {"type": f"{kind}_END", "messageId": name},
    ]


OVER = {"type": "REASONING_END", "messageId": "t1"}


def opaque(value: str = "sealed", name: str = "t1", subtype: str = "message") -> Event:
    return {
        "type": "REASONING_ENCRYPTED_VALUE",
        "subtype": subtype,
        "entityId": name,
        "encryptedValue": value,
    }


def test_reasoning_has_the_value_that_its_agent_wants_back() -> None:
    session = ran(*reasoning(), opaque(), OVER, *text("Hi"))
    (done,) = session.of(ev.ReasoningCompleted)
    assert (done.text, done.extra) == ("Hm", {"encryptedValue": "sealed"})
    assert session.next_messages()[1] == {
        "id": "t1",
        "role": "reasoning",
        "content": "Hm",
        "encryptedValue": "sealed",
    }


@each("after", [[OVER], [], [{"type": "REASONING_START", "messageId": "t2"}]])
def test_reasoning_without_a_value_ends_too(after: list[Event]) -> None:
    session = ran(*reasoning(), *after, *text("Hi"))
    (done,) = session.of(ev.ReasoningCompleted)
    assert (done.text, done.extra) == ("Hm", None)
    order = [one for one in session.types() if one.endswith(".completed")]
    assert order == ["reasoning.completed", "text.completed"]


def test_the_older_events_of_reasoning_have_no_names() -> None:
    session = ran(
        {"type": "THINKING_START"},
        {"type": "THINKING_TEXT_MESSAGE_START"},
        {"type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": "H"},
        {"type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": "m"},
        {"type": "THINKING_TEXT_MESSAGE_END"},
        {"type": "THINKING_END"},
        *text("Hi"),
    )
    assert [one.text for one in session.of(ev.ReasoningCompleted)] == ["Hm"]
    assert [one["role"] for one in session.next_messages()] == ["user", "reasoning", "assistant"]


def test_chunks_of_reasoning() -> None:
    chunk = {"type": "REASONING_MESSAGE_CHUNK", "messageId": "t1", "delta": "H"}
    session = ran(chunk, {"type": "REASONING_MESSAGE_CHUNK", "delta": "m"}, *text("Hi"))
    assert [one.text for one in session.of(ev.ReasoningCompleted)] == ["Hm"]


def thought(name: str, *words: str) -> list[Event]:
    """Return the events of reasoning."""
    kind = "REASONING_MESSAGE_CONTENT"
    return [
        {"type": "REASONING_START", "messageId": name},
        {"type": "REASONING_MESSAGE_START", "messageId": name},
        *({"type": kind, "messageId": name, "delta": one} for one in words),
        {"type": "REASONING_MESSAGE_END", "messageId": name},
        {"type": "REASONING_END", "messageId": name},
    ]


def test_reasoning_that_is_told_once_more_as_a_whole_is_told_once() -> None:
    """As an ADK does, in the midst of the text."""
    start, half, end = text("Half ")
    session = ran(*thought("t1", "I ", "add."), start, half, *thought("t2", "I add."), half, end)
    assert [one.text for one in session.of(ev.ReasoningCompleted)] == ["I add."]
    assert texts(session) == ["Half Half "]
    assert [one["id"] for one in session.next_messages()] == ["k1", "t1", "m1"]


def test_other_reasoning_is_not_taken_for_the_same() -> None:
    session = ran(
        *thought("t1", "I ", "add."),
        *thought("t2", "I add. More."),
        *thought("t3", "Hm."),
        *called(),
        result(),
        # Another model call may think the same.
        *thought("t4", "I add. More."),
    )
    told = [one.text for one in session.of(ev.ReasoningCompleted)]
    assert told == ["I add.", "I add. More.", "Hm.", "I add. More."]


def test_a_value_of_what_nobody_knows_is_kept_as_it_is() -> None:
    session = ran(opaque(name="nobody"), {"type": "REASONING_ENCRYPTED_VALUE"})
    assert [one.name for one in session.of(ev.Native)] == ["REASONING_ENCRYPTED_VALUE"] * 2


# Tools.


def test_a_call_has_its_input_and_its_result() -> None:
    session = Session()
    session.ask()
    start, first, end = called(args='{"to":')
    rest = {**first, "delta": '"ann"}'}
    session.run(start, first, rest, end, result(content='{"ok":true}'), SUCCESS)
    call = session.last(ev.ToolCalled)
    assert (call.call_id, call.name, call.input, call.input_known) == (
        *("c1", "mail", {"to": "ann"}),
        True,
    )
    assert call.permission == "allow"
    assert call.native.id == "c1"
    assert [one.text for one in session.of(ev.ToolInputDelta)] == ['{"to":', '"ann"}']
    done = session.last(ev.ToolReturned)
    assert (done.output, done.status, done.is_error) == ({"ok": True}, "completed", False)
    assert session.last(ev.StepEnded).finish_reason == "tool-calls"


@each(
    ("content", "output"),
    [
        ("sent", "sent"),
        ('{"a":1}', {"a": 1}),
        # It is sent back as it was said.
        ('{"a": 1}', '{"a": 1}'),
        ("{broken", "{broken"),
        ('"text"', '"text"'),
        ("", ""),
        ([{"type": "image"}], [{"type": "image"}]),
    ],
)
def test_a_result_is_sent_back_as_it_was_said(content: Any, output: Any) -> None:
    session = ran(*called(), result(content=content))
    assert session.last(ev.ToolReturned).output == output
    if isinstance(content, str):
        assert session.next_messages()[-1]["content"] == content


def test_a_result_in_parts_of_text_is_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    session = ran(*called(), result(content=parts))
    assert [one.text for one in session.last(ev.ToolReturned).content] == ["a", "b"]


def test_calls_beside_each_other_keep_their_order() -> None:
    a, b = called("a"), called("b")
    events = [a[0], a[1], b[0], b[1], a[2], result("a"), b[2], result("b")]
    session = ran(*events, *text("Done."))
    assert [one.call_id for one in session.of(ev.ToolCalled)] == ["a", "b"]
    assert [one.call_id for one in session.of(ev.ToolReturned)] == ["a", "b"]
    roles = [one["role"] for one in session.next_messages()]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_a_call_waits_a_little_for_the_word_whether_it_needs_a_yes() -> None:
    session = Session()
    session.ask()
    session.feed({"type": "RUN_STARTED"}, *called())
    assert not session.of(ev.ToolCalled)
    assert session.codec.wake_at == session.now + HOLD_MS
    session.due()
    assert session.last(ev.ToolCalled).permission == "unknown"


def test_a_result_waits_a_little_for_what_says_that_it_failed() -> None:
    session = Session()
    session.ask()
    session.feed({"type": "RUN_STARTED"}, *called(), result())
    assert not session.of(ev.ToolReturned)
    assert session.codec.wake_at == session.now + RESULT_HOLD_MS
    session.due()
    assert session.last(ev.ToolReturned).output == "sent"


@each(
    ("outcome", "status", "code"),
    [
        ("failed", "failed", "tool_failed"),
        ("retried", "failed", "tool_failed"),
        ("denied", "rejected", "permission_denied"),
        ("returned", "completed", None),
    ],
)
def test_the_mark_behind_a_result_says_what_came_of_it(
    outcome: str, status: str, code: str | None
) -> None:
    mark = json.dumps({"pydantic_ai": {"outcome": outcome}})
    session = ran(*called(), result(content="Not so."), opaque(mark, "r-c1"), *text("Oh."))
    done = session.last(ev.ToolReturned)
    assert (done.status, done.is_error) == (status, code is not None)
    assert (done.error.code if done.error else None) == code
    tool = session.next_messages()[2]
    assert tool["encryptedValue"] == mark
    assert "error" not in tool


@each(
    ("told", "status", "code", "words"),
    [
        ({"isError": True, "status": "failed"}, "failed", "tool_failed", "Not so."),
        (
            {"isError": True, "status": "rejected", "error": {"code": "no", "message": "Denied."}},
            *("rejected", "no", "Denied."),
        ),
        ({"isError": False, "status": "completed"}, "completed", None, None),
        ({"isError": "yes"}, "completed", None, None),
        ("words", "completed", None, None),
    ],
)
def test_a_dragoman_that_serves_an_agent_says_what_came_of_a_call(
    told: Any, status: str, code: str | None, words: str | None
) -> None:
    returned = {**result(content="Not so."), "metadata": {"dragoman": told}}
    session = ran(*called(), returned, *text("Oh."))
    done = session.last(ev.ToolReturned)
    assert (done.status, done.is_error) == (status, code is not None)
    error = done.error
    assert ((error.code, error.message) if error else (None, None)) == (code, words)


def test_a_message_of_a_tool_may_say_its_error() -> None:
    session = ran(*called(), {**result(content="Broke."), "error": "Broke."})
    assert session.last(ev.ToolReturned).status == "failed"
    assert session.next_messages()[-1]["error"] == "Broke."


def test_a_call_has_the_value_that_its_agent_wants_back() -> None:
    start, args, end = called()
    for events in ([start, args, opaque("x", "c1", "tool-call"), end], [start, args, end]):
        session = Session()
        session.ask()
        after = [] if len(events) == 4 else [opaque("x", "c1", "tool-call")]
        session.run(*events, *after, result(), SUCCESS)
        assert session.last(ev.ToolCalled).extra == {"encryptedValue": "x"}
        (call,) = session.next_messages()[1]["toolCalls"]
        assert call["encryptedValue"] == "x"


def test_chunks_of_a_call_need_no_boundaries() -> None:
    call = {"toolCallId": "c1", "toolCallName": "mail"}
    chunk = {"type": "TOOL_CALL_CHUNK", **call, "delta": '{"to"'}
    session = ran(
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m1", "delta": "Wait."},
        chunk,
        {"type": "TOOL_CALL_CHUNK", "delta": ':"ann"}'},
        {**chunk, "toolCallId": "c2", "delta": "{}"},
        result("c1"),
        result("c2"),
    )
    assert [(one.call_id, one.input) for one in session.of(ev.ToolCalled)] == [
        ("c1", {"to": "ann"}),
        ("c2", {}),
    ]
    assert texts(session) == ["Wait."]


def test_a_result_without_its_call_is_not_sent_without_one() -> None:
    session = ran(result("nobody"))
    assert [one["role"] for one in session.next_messages()] == ["user", "assistant", "tool"]


def test_a_second_result_is_not_told() -> None:
    session = ran(*called(), result(), result(content="again"), *text("Done."))
    assert [one.output for one in session.of(ev.ToolReturned)] == ["sent"]


def test_a_call_that_comes_again_when_the_run_resumes_is_told_once() -> None:
    session = Session()
    session.ask()
    session.run(*called(), interrupted(approval("int-1", "c1")))
    session.answer("a1", "int-1", decision="allow")
    session.run(*called(), result(), *text("Done."), BARE)
    assert len(session.of(ev.ToolCalled)) == len(session.of(ev.ToolReturned)) == 1
    assert session.last(ev.TurnEnded).outcome == "completed"


def test_a_call_id_of_an_earlier_turn_is_sent_back_as_the_agent_gave_it() -> None:
    session = ran(*called(), result(), *text("One."))
    session.ask("Again", "k2")
    session.run(*called(), result(content="sent again"), *text("Two.", "m2"), SUCCESS)
    first, second = session.of(ev.ToolCalled)
    assert first.call_id != second.call_id
    messages = session.next_messages()
    calls = [call["id"] for one in messages for call in one.get("toolCalls", ())]
    results = [(one["toolCallId"], one["content"]) for one in messages if one["role"] == "tool"]
    assert calls == ["c1", "c1"]
    assert results == [("c1", "sent"), ("c1", "sent again")]
    names = [one["id"] for one in messages]
    assert len(names) == len(set(names))


def test_a_call_id_of_the_same_turn_has_its_own_result() -> None:
    session = ran(*called(), result(), *called(), result(content="sent again"), *text("Two."))
    messages = session.next_messages()
    results = [(one["toolCallId"], one["content"]) for one in messages if one["role"] == "tool"]
    assert results == [("c1", "sent"), ("c1", "sent again")]
    assert [one["role"] for one in messages] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    names = [one["id"] for one in messages]
    assert len(names) == len(set(names))


# Snapshots.


def snapshot(*messages: Event) -> Event:
    return {"type": "MESSAGES_SNAPSHOT", "messages": list(messages)}


def state(*messages: Event, **members: Any) -> Event:
    return {"type": "STATE_SNAPSHOT", "snapshot": {"messages": list(messages), **members}}


OWNER = {
    "id": "x1",
    "role": "assistant",
    "content": "Wait.",
    "toolCalls": [
        {"id": "c1", "type": "function", "function": {"name": "mail", "arguments": '{"to":"ann"}'}}
    ],
}
LANGCHAIN = {"type": "ai", "tool_calls": [{"id": "c1", "name": "mail", "args": {"to": "ann"}}]}


@each("args", ["", ':"ann"}'], ids=["none", "the rest"])
@each("told", [state(LANGCHAIN), snapshot(OWNER)], ids=["state", "messages"])
def test_a_call_whose_input_came_broken_has_it_from_a_snapshot(args: str, told: Event) -> None:
    """A LangGraph leaves out the first piece of the arguments."""
    session = ran(*text("Wait."), *called(args=args), result(), told, *text("Done.", "m2"))
    assert not session.last(ev.ToolCalled).input_known
    assert session.last(ev.ToolReturned).input == {"to": "ann"}
    (call,) = session.next_messages()[1]["toolCalls"]
    assert json.loads(call["function"]["arguments"]) == {"to": "ann"}


@each("told", [state(LANGCHAIN), snapshot(OWNER)], ids=["state", "messages"])
def test_who_is_asked_for_a_yes_sees_the_input_that_a_snapshot_has(told: Event) -> None:
    session = Session()
    session.ask()
    end = interrupted(approval("int-1", "c1"))
    session.run(*text("Wait."), *called(args=""), told, end)
    call = session.last(ev.ToolCalled)
    assert (call.input, call.input_known, call.permission) == ({"to": "ann"}, True, "ask")
    body = posted(session.answer("a1", "int-1", decision="allow"))
    (sent,) = body["messages"][1]["toolCalls"]
    assert json.loads(sent["function"]["arguments"]) == {"to": "ann"}


def test_results_that_only_a_snapshot_has_are_told() -> None:
    """As a LlamaIndex does, which names each message anew in each snapshot."""
    chunk = {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m1", "delta": "Wait. "}
    call = {
        **{"type": "TOOL_CALL_CHUNK", "toolCallId": "c1", "toolCallName": "mail"},
        "delta": '{"to":"ann"}',
    }
    user = {"id": "k1", "role": "user", "content": "Hello"}
    tool = {"id": "y", "role": "tool", "toolCallId": "c1", "content": "sent"}
    session = ran(
        chunk,
        call,
        snapshot(user, OWNER),
        snapshot(user, {**OWNER, "id": "x2"}, {**tool, "id": "y2"}),
        {**chunk, "messageId": "m2", "delta": "Done."},
        snapshot(user, {**OWNER, "id": "x3"}, {**tool, "id": "y3"}),
    )
    assert texts(session) == ["Wait. ", "Done."]
    assert [one.output for one in session.of(ev.ToolReturned)] == ["sent"]
    assert session.last(ev.TurnEnded).outcome == "completed"


def test_a_result_that_only_the_last_snapshot_has_stands_behind_its_call() -> None:
    """As a LangGraph tells of a tool that has failed."""
    user = {"id": "k1", "role": "user", "content": "Hello"}
    tool = {"id": "y", "role": "tool", "toolCallId": "c1", "content": "Broke."}
    session = ran(*called(), snapshot(user, OWNER, tool))
    order = [one for one in session.types() if one.startswith("tool.")]
    assert order == ["tool.input_delta", "tool.called", "tool.returned"]
    assert session.last(ev.ToolCalled).permission == "allow"
    assert not session.normalizer.repairs


def test_a_failure_that_only_a_snapshot_has_is_told_where_it_happened() -> None:
    """A LangGraph streams nothing of a tool that failed; the call was held until then."""
    old = {"type": "tool", "tool_call_id": "c1", "content": "earlier"}
    tool = {"type": "tool", "tool_call_id": "c1", "content": "Error: no", "status": "error"}
    session = ran(
        *called(args=':"ann"}'),
        state(LANGCHAIN),
        state(old, {"type": "human"}, LANGCHAIN, tool),
        *text("Oh."),
        state(tool),
        snapshot(OWNER, {"role": "tool", "toolCallId": "c1", "content": "Error: no", "id": "t"}),
    )
    (call,) = session.of(ev.ToolCalled)
    assert (call.name, call.input, call.call_id) == ("mail", {"to": "ann"}, "c1")
    (done,) = session.of(ev.ToolReturned)
    assert (done.output, done.status) == ("Error: no", "failed")
    assert done.error.message == "Error: no"
    types = session.types()
    assert types.index("tool.called") < types.index("tool.returned") < types.index("text.delta")
    (tool_message,) = [one for one in session.next_messages() if one["role"] == "tool"]
    assert tool_message["error"] == "Error: no"


def test_a_result_at_the_end_of_a_run_stays_behind_its_call() -> None:
    tool = {"id": "t", "role": "tool", "toolCallId": "c1", "content": "no", "error": "error"}
    session = ran(*called(), snapshot(OWNER, tool))
    assert [one.call_id for one in session.of(ev.ToolCalled)] == ["c1"]
    assert session.types().index("tool.called") < session.types().index("tool.returned")
    assert session.last(ev.ToolReturned).error.message == "no"


def test_a_text_and_a_call_that_only_a_snapshot_has_are_told_once() -> None:
    user = {"id": "k1", "role": "user", "content": "Hello"}
    tool = {"id": "y", "role": "tool", "toolCallId": "c1", "content": "sent"}
    session = ran(snapshot(user, OWNER, tool), snapshot(user, OWNER, tool))
    assert texts(session) == ["Wait."]
    assert [one.input for one in session.of(ev.ToolCalled)] == [{"to": "ann"}]
    assert len(session.of(ev.ToolReturned)) == 1


def test_a_snapshot_tells_nothing_of_earlier_turns() -> None:
    session = ran(*text("One."))
    session.ask("Again", "k2")
    old = {"id": "m1", "role": "assistant", "content": "One."}
    user = {"id": "k2", "role": "user", "content": "Again"}
    session.run(snapshot(old, user), *text("Two.", "m2"), SUCCESS)
    assert texts(session) == ["One.", "Two."]


@each(
    "broken",
    [
        {"type": "MESSAGES_SNAPSHOT"},
        {"type": "MESSAGES_SNAPSHOT", "messages": 5},
        {"type": "STATE_SNAPSHOT"},
        {"type": "STATE_DELTA", "delta": {"op": "add"}},
        {"type": "ACTIVITY_SNAPSHOT", "messageId": "a1", "activityType": "PLAN", "content": [1]},
        {"type": "ACTIVITY_SNAPSHOT", "activityType": "PLAN", "content": {}},
        {"type": "ACTIVITY_DELTA", "messageId": "a1", "activityType": "PLAN", "patch": 5},
    ],
    ids=str,
)
def test_a_snapshot_of_another_form_is_kept_as_it_is(broken: Event) -> None:
    assert ran(broken).last(ev.Native).name == broken["type"]


def test_members_of_a_snapshot_that_make_no_sense_are_passed_by() -> None:
    session = ran(
        *called(args=""),
        result(),
        snapshot(5, None, {"role": "assistant", "toolCalls": 5, "content": 5}),  # type: ignore[arg-type]
        state(5, {"toolCalls": [5, {"id": "c1", "function": {"arguments": "{"}}]}),  # type: ignore[arg-type]
        *text("Hi"),
    )
    assert texts(session) == ["Hi"]


def test_a_state_is_kept_without_the_messages_that_it_repeats() -> None:
    session = ran(state(LANGCHAIN, n=1), state(LANGCHAIN))
    (kept,) = session.of(ev.StateUpdated)
    assert (kept.value, kept.patch) == ({"n": 1}, None)


def test_a_state_is_told_whole_or_as_what_has_changed() -> None:
    patch = [{"op": "add", "path": "/n", "value": 2}]
    session = ran(
        {"type": "STATE_SNAPSHOT", "snapshot": [1]},
        {"type": "STATE_SNAPSHOT", "snapshot": None},
        {"type": "STATE_DELTA", "delta": patch},
    )
    told = [(event.value, event.patch) for event in session.of(ev.StateUpdated)]
    assert told == [([1], None), (None, None), (None, tuple(patch))]


def test_the_newest_state_goes_with_each_run() -> None:
    session = Session()
    first = session.ask("One", shared_state={"n": 1})
    assert posted(first)["state"] == {"n": 1}
    session.run(
        {"type": "STATE_SNAPSHOT", "snapshot": {"n": 2, "log": []}},
        {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/log/-", "value": "x"}]},
        {"type": "STATE_DELTA", "delta": [{"op": "remove", "path": "/none"}]},
    )
    session.close()
    assert posted(session.ask("Two", "k2"))["state"] == {"n": 2, "log": ["x"]}
    session.run()
    session.close()
    assert posted(session.ask("Three", "k3", shared_state={"n": 3}))["state"] == {"n": 3}


def test_an_activity_is_told_whole_or_as_what_has_changed() -> None:
    named = {"messageId": "a1", "activityType": "PLAN"}
    patch = [{"op": "add", "path": "/steps/-", "value": "b"}]
    session = ran(
        {"type": "ACTIVITY_SNAPSHOT", **named, "content": {"steps": ["a"]}, "replace": False},
        {"type": "ACTIVITY_DELTA", **named, "patch": patch},
    )
    whole, changed = session.of(ev.ActivityUpdated)
    assert (whole.activity_id, whole.kind, whole.content) == ("a1", "PLAN", {"steps": ["a"]})
    assert (whole.patch, whole.extra) == (None, {"replace": False})
    assert (changed.content, changed.patch) == (None, tuple(patch))


# The rest.


@each(
    "name",
    [
        *("STEP_STARTED", "STEP_FINISHED", "STATE_DELTA", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA"),
        *("SUBAGENT_STARTED", "SUBAGENT_FINISHED", "SUBAGENT_ERROR", "CUSTOM", "NEVER_HEARD_OF"),
    ],
)
def test_what_has_no_meaning_here_is_kept_as_it_is(name: str) -> None:
    told = {"type": name, "a": {"b": 1}, "rawEvent": {"secret": 1}}
    (kept,) = ran(told).of(ev.Native)
    assert (kept.dialect, kept.name, kept.frame) == ("agui", name, {"type": name, "a": {"b": 1}})


def test_what_only_repeats_is_dropped() -> None:
    session = ran({"type": "RAW", "event": {"x": 1}})
    assert not session.of(ev.Native)


@each("data", [b"[]", b"5", b"{", b"", b"{}", b'{"type":5}', b"\xff"])
def test_what_is_not_an_event_is_told_and_passed_by(data: bytes) -> None:
    session = Session()
    session.ask()
    session.feed({"type": "RUN_STARTED"}, text("Hel")[1], data, text("lo")[1], SUCCESS)
    (told,) = session.of(ev.ErrorReported)
    assert "not a JSON object" in told.message
    assert texts(session) == ["Hello"]


def test_a_frame_that_is_too_long_is_told_and_a_torn_end_is_not() -> None:
    session = Session()
    call = session.ask()
    session.feed({"type": "RUN_STARTED"})
    session.take(session.codec.garbage(call, b"xxx", "the frame is too long", session.now))
    session.take(session.codec.garbage(call, b"data: {", TORN, session.now))
    assert [one.message for one in session.of(ev.ErrorReported)] == [
        session.of(ev.ErrorReported)[0].message
    ]
    assert session.codec.frames == 2
    session.close(CloseReason.LOST)
    assert session.last(ev.TurnEnded).outcome == "failed"


def test_half_a_character_is_mended() -> None:
    session = Session()
    session.ask()
    broken = b'{"type":"TEXT_MESSAGE_CONTENT","messageId":"m1","delta":"a\\ud800"}'
    session.feed({"type": "RUN_STARTED"}, broken, SUCCESS)
    assert texts(session) == ["a\ufffd"]


@each("event", [{"delta": 5}, {"delta": None}, {}], ids=str)
@each("kind", ["TEXT_MESSAGE_CONTENT", "REASONING_MESSAGE_CONTENT"])
def test_a_piece_without_words_is_kept_as_it_is(event: Event, kind: str) -> None:
    session = ran({"type": kind, "messageId": "m1", **event})
    assert [one.name for one in session.of(ev.Native)] == [kind]
    assert not session.of(ev.TextDelta)


@each("event", [{}, {"toolCallId": "c1"}, {"toolCallName": "x"}, {"toolCallId": 5}], ids=str)
def test_a_call_without_names_is_kept_as_it_is(event: Event) -> None:
    session = ran({"type": "TOOL_CALL_START", **event})
    assert [one.name for one in session.of(ev.Native)] == ["TOOL_CALL_START"]


def test_the_codec_asks_for_nothing_by_itself() -> None:
    codec = AguiClient({"task_id": "s"})
    assert codec.streams() == ()
    assert codec.take_calls() == []
    assert codec.wake_at is None
