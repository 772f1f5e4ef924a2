"""The encoder of the AG-UI face: a log becomes the events of its runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from adapters.agui.server import AguiEncoder
from adapters.model import events as ev
from adapters.model.base import EncoderContext, Frame
from adapters.model.normalizer import Normalizer
from adapters.model.state import LogState
from adapters.serving.later import WAITING_BYTES, WAITING_MOST
from adapters.serving.messages import SaidMessages
from tests.support.agui_client import Applied, Checker, split
from tests.test_laws import streams

CONTEXT = EncoderContext(session_id="dgs_1", secret=b"s" * 32)

MESSAGE = "msg-d265b67ace93d9f9-"
RUN = "dragoman-d265b67ace93d9f9-"
"""What the ids of its messages and runs begin with."""
M = ev.MAIN
CHILD = "child-1"


def entries(events: Iterable[ev.Event], first: int = 1) -> list[ev.Entry]:
    return [ev.Entry(seq, 1000, "dgs_1", event) for seq, event in enumerate(events, first)]


def frames_of(events: Iterable[ev.Event], encoder: AguiEncoder | None = None) -> list[Frame]:
    if encoder is None:
        encoder = AguiEncoder(CONTEXT)
        # As after a run of a client that declares 1.0.
        encoder.state.modern = True
    return [frame for entry in entries(events) for frame in encoder.feed(entry)]


def shown(events: Sequence[ev.Event]) -> list[dict[str, Any]]:
    """Return what a lawful log becomes; it is checked as a client checks it, and applied."""
    state = LogState()
    for entry in entries(events):
        state.apply_entry(entry)
    checker, applied = Checker(stamped=True), Applied()
    seen = split(b"".join(frame.data for frame in frames_of(events)))
    for event in seen:
        applied.apply(checker.feed(event))
    return seen


def kinds(seen: Iterable[dict[str, Any]]) -> list[str]:
    return [event.get("name", event["type"]) for event in seen if "toolCallName" not in event]


def only(seen: Iterable[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (event for event in seen if kind in (event["type"], event.get("name")))
    return found


STARTED = ev.SessionStarted(thread_id=M)


def turn(*events: ev.Event, outcome: Any = "completed", **more: Any) -> list[ev.Event]:
    begun = ev.TurnStarted(thread_id=M, turn_id="t1", cause="background")
    ended = ev.TurnEnded(thread_id=M, turn_id="t1", outcome=outcome, **more)
    return [STARTED, begun, *events, ended]


def asked_for(*events: ev.Event, outcome: Any = "completed", **notes: Any) -> list[ev.Event]:
    """Return a turn that a message of this face began, in a run of its own."""
    place: dict[str, Any] = {"thread_id": M, "turn_id": "t1"}
    words = (ev.Text(text="words of u1"),)
    return [
        STARTED,
        said("c1", "run-1", "u1", **notes),
        settled("c1", "taken"),
        ev.TurnStarted(**place, cause="message"),
        ev.MessageReceived(**place, message_id="c1", content=words, command_id="c1"),
        *events,
        ev.TurnEnded(**place, outcome=outcome),
    ]


def text(words: str, **more: Any) -> list[ev.Event]:
    block: dict[str, Any] = {"thread_id": M, "turn_id": "t1", "block_id": "b", "message_id": "m"}
    return [
        ev.TextDelta(**block, text=words),
        ev.TextCompleted(**block, **{"text": words, **more}),
    ]


def asked(request_id: str = "r1", kind: Any = "approval", **more: Any) -> list[ev.Event]:
    fields: dict[str, Any] = {"thread_id": M, "turn_id": "t1"}
    return [
        ev.InteractionRequested(
            **fields, request_id=request_id, kind=kind, **{"prompt": "May I?", **more}
        ),
        ev.TurnPaused(**fields, on="input", request_ids=(request_id,)),
    ]


def resolved(request_id: str = "r1") -> list[ev.Event]:
    fields: dict[str, Any] = {"thread_id": M, "turn_id": "t1"}
    return [
        ev.InteractionResolved(**fields, request_id=request_id, outcome="approved", reason="ok"),
        ev.TurnResumed(**fields),
    ]


def said(command: str, run: str, *ids: str, **more: Any) -> ev.InputAccepted:
    content = tuple(ev.Text(text=f"words of {name}") for name in ids)
    notes = {"run": run, "parts": 1, "modern": True, "said": [[name, 1] for name in ids], **more}
    return ev.InputAccepted(
        thread_id=M,
        command_id=command,
        kind="message",
        message_id=command,
        content=content,
        policy="reject",
        details={"agui": notes},
        by="key",
        face="agui",
    )


def settled(command: str, outcome: Any, **more: Any) -> ev.InputSettled:
    return ev.InputSettled(thread_id=M, command_id=command, outcome=outcome, **more)


@given(streams())
@settings(max_examples=60)
def test_whatever_a_backend_sends_a_client_takes_it(frames: list[list[ev.Event]]) -> None:
    normalizer = Normalizer()
    log = [event for frame in frames for event in normalizer.feed(frame)]
    shown(log)
    # As to a client that declares nothing.
    checker = Checker(stamped=True)
    for event in split(b"".join(one.data for one in frames_of(log, AguiEncoder(CONTEXT)))):
        assert "subagentRunId" not in checker.feed(event)


@given(streams())
@settings(max_examples=30)
def test_an_encoder_that_was_put_back_goes_on_alike(frames: list[list[ev.Event]]) -> None:
    normalizer = Normalizer()
    log = entries([event for frame in frames for event in normalizer.feed(frame)])
    one, two = AguiEncoder(CONTEXT), AguiEncoder(CONTEXT)
    for entry in log:
        assert one.feed(entry) == two.feed(entry)
        again = AguiEncoder(CONTEXT)
        again.restore(two.snapshot())
        assert again.next_cursor == two.next_cursor
        two = again


def test_a_text_that_is_cut_or_does_not_count_says_so() -> None:
    seen = shown(turn(*text("abc", status="partial")))
    assert only(seen, "TEXT_MESSAGE_END")["metadata"] == {"dragoman": {"status": "partial"}}
    seen = shown(turn(*text("abc", text="xyz", status="discarded")))
    assert only(seen, "TEXT_MESSAGE_END")["metadata"] == {"dragoman": {"status": "discarded"}}


def test_a_text_that_was_repaired_is_told_again() -> None:
    seen = shown(turn(*text("abc", text="xyz", extra={"repaired": True})))
    ends = [event for event in seen if event["type"] == "TEXT_MESSAGE_END"]
    assert [event.get("metadata") for event in ends] == [
        {"dragoman": {"status": "discarded"}},
        None,
    ]
    deltas = [event["delta"] for event in seen if event["type"] == "TEXT_MESSAGE_CONTENT"]
    assert deltas == ["abc", "xyz"]


def test_reasoning_that_is_withheld_leaves_a_mark() -> None:
    block = ev.ReasoningCompleted(
        thread_id=M, turn_id="t1", block_id="b", message_id="m", text="", withheld=True
    )
    seen = shown(turn(block))
    assert only(seen, "REASONING_MESSAGE_END")["metadata"] == {"dragoman": {"withheld": True}}


def test_a_text_that_a_pause_cuts_is_not_told_twice() -> None:
    first, last = text("one ")
    more = [*asked(), *resolved()]
    seen = shown(turn(first, *more, last))
    deltas = [event["delta"] for event in seen if event["type"] == "TEXT_MESSAGE_CONTENT"]
    assert deltas == ["one "]


def test_a_pause_ends_the_run_and_the_answer_of_somebody_else_begins_another() -> None:
    seen = shown(turn(*asked(), *resolved(), *text("done")))
    runs = [event for event in seen if event["type"].startswith("RUN_")]
    assert [event["type"] for event in runs] == ["RUN_STARTED", "RUN_FINISHED"] * 2
    assert [event["runId"] for event in runs] == [RUN + "1"] * 2 + [RUN + "2"] * 2
    assert runs[1]["outcome"]["interrupts"][0]["id"] == "r1"
    assert runs[3]["outcome"] == {"type": "success"}
    told = only(seen, "dragoman.resolved")["value"]
    assert told == {"interruptId": "r1", "outcome": "approved", "reason": "ok"}


def test_the_same_pause_is_told_once_and_another_set_again() -> None:
    pause = ev.TurnPaused(thread_id=M, turn_id="t1", on="input", request_ids=("r1",))
    both = ev.TurnPaused(thread_id=M, turn_id="t1", on="input", request_ids=("r1", "r2"))
    (second, _) = asked("r2")
    seen = shown(turn(*asked(), pause, second, both, *resolved(), *resolved("r2")[:1]))
    interrupts = [
        [one["id"] for one in event["outcome"]["interrupts"]]
        for event in seen
        if event["type"] == "RUN_FINISHED" and "interrupts" in event["outcome"]
    ]
    assert interrupts == [["r1"], ["r1", "r2"]]


def test_the_result_of_a_tool_is_a_call_without_result() -> None:
    details = {"tool": "pick", "input": {"n": 1}}
    seen = shown(turn(*asked(kind="tool_result", details=details), *resolved()))
    finished = [event for event in seen if event["type"] == "RUN_FINISHED"]
    assert finished[0]["outcome"] == {"type": "success", "pendingToolCallIds": ["r1"]}
    assert only(seen, "TOOL_CALL_START")["toolCallName"] == "pick"
    assert only(seen, "TOOL_CALL_ARGS")["delta"] == '{"n":1}'


def test_a_message_that_the_backend_refuses_is_a_run_that_fails_and_may_be_said_again() -> None:
    error = ev.ErrorInfo(code="E", message="No.", details={"n": 1}, status=503)
    encoder = AguiEncoder(CONTEXT)
    log = [STARTED, said("c1", "run-1", "u1"), settled("c1", "refused", error=error)]
    frames = frames_of(log, encoder)
    started, failed = split(b"".join(frame.data for frame in frames))
    assert started["input"]["messages"] == [{"id": "u1", "role": "user", "content": "words of u1"}]
    assert (failed["message"], failed["code"]) == ("No.", "E")
    assert failed["metadata"] == {"dragoman": {"details": {"n": 1}}}
    assert frames[-1].end == "turn"
    assert encoder.state.inputs.heard == SaidMessages(again=["u1"])


def test_a_message_of_which_nobody_knows_stays_heard() -> None:
    encoder = AguiEncoder(CONTEXT)
    frames = frames_of([STARTED, said("c1", "run-1", "u1"), settled("c1", "unknown")], encoder)
    failed = split(frames[-1].data)[0]
    assert failed["code"] == "backend_unavailable"
    assert encoder.state.inputs.heard == SaidMessages(ids=["u1"])


def test_a_turn_of_the_agents_own_does_not_end_the_run_of_a_message() -> None:
    received = ev.MessageReceived(
        thread_id=M, turn_id="t2", message_id="c1", content=(ev.Text(text="x"),), command_id="c1"
    )
    own = turn(*text("by the way"))[1:]
    begun = ev.TurnStarted(thread_id=M, turn_id="t2", cause="message")
    ended = ev.TurnEnded(thread_id=M, turn_id="t2", outcome="completed")
    log = [STARTED, said("c1", "run-1", "u1"), *own, settled("c1", "taken"), begun, received, ended]
    seen = shown(log)
    assert [e["type"] for e in seen if e["type"].startswith("RUN_")] == [
        "RUN_STARTED",
        "RUN_FINISHED",
    ]
    assert only(seen, "dragoman.turn_ended")["value"] == {"outcome": "completed"}


def test_a_paused_turn_that_ends_without_an_answer_has_a_run_of_its_own() -> None:
    gone = ev.InteractionResolved(
        thread_id=M, turn_id="t1", request_id="r1", outcome="cancelled", synthetic=True
    )
    seen = shown(turn(*asked(), gone, outcome="interrupted"))
    assert [event["runId"] for event in seen if event["type"] == "RUN_FINISHED"] == [
        RUN + "1",
        RUN + "2",
    ]


def child(status: Any = "completed", **more: Any) -> tuple[list[ev.Event], list[ev.Event]]:
    fields: dict[str, Any] = {"thread_id": CHILD, "turn_id": "c1"}
    block: dict[str, Any] = {**fields, "block_id": "cb", "message_id": "cm"}
    return (
        [
            ev.ThreadStarted(thread_id=CHILD, parent=M, name="reader"),
            ev.TurnStarted(**fields, cause="message"),
            ev.TextDelta(**block, text="I read."),
        ],
        [
            ev.TextCompleted(**block, text="I read."),
            ev.TurnEnded(**fields, outcome="completed"),
            ev.ThreadEnded(thread_id=CHILD, status=status, **more),
        ],
    )


def test_a_child_is_a_subagent() -> None:
    first, last = child(output={"n": 1})
    renamed = ev.ThreadUpdated(thread_id=CHILD, name="writer")
    seen = shown(turn(*first, renamed, *last))
    assert only(seen, "SUBAGENT_STARTED")["name"] == "reader"
    assert only(seen, "TEXT_MESSAGE_START")["subagentRunId"] == CHILD
    assert only(seen, "SUBAGENT_FINISHED")["result"] == {"n": 1}


def test_a_child_that_fails_says_why() -> None:
    first, last = child("failed", error=ev.ErrorInfo(code="E", message="Lost."))
    failed = only(shown(turn(*first, *last)), "SUBAGENT_ERROR")
    assert (failed["message"], failed["code"]) == ("Lost.", "E")
    first, last = child("failed")
    assert only(shown(turn(*first, *last)), "SUBAGENT_ERROR")["message"] == "The child failed."


def test_a_child_is_suspended_by_a_pause_and_goes_on_in_the_next_run() -> None:
    first, last = child()
    seen = shown(turn(*first, *asked(), *resolved(), *last))
    finished = [event for event in seen if event["type"] == "SUBAGENT_FINISHED"]
    assert [event.get("outcome") for event in finished] == [{"type": "suspended"}, None]
    assert len([event for event in seen if event["type"] == "SUBAGENT_STARTED"]) == 2


def test_what_a_child_says_after_its_end_begins_no_other_child() -> None:
    words = ev.MessageReceived(thread_id=CHILD, message_id="q", content=(ev.Text(text="Go."),))
    ended = ev.ThreadEnded(thread_id=CHILD, status="completed")
    seen = shown(turn(ended, words, ended))
    assert len([event for event in seen if event["type"] == "SUBAGENT_STARTED"]) == 1
    assert only(seen, "TEXT_MESSAGE_START")["subagentRunId"] == CHILD
    assert only(seen, "dragoman.child_ended")["value"]["name"] == CHILD


def test_what_a_child_does_while_somebody_is_asked_is_told_in_the_next_run() -> None:
    first, last = child()
    fields: dict[str, Any] = {"thread_id": CHILD, "turn_id": "c1"}
    called = ev.ToolCalled(**fields, call_id="k1", name="look", input={"a": 1})
    returned = ev.ToolReturned(**fields, call_id="k1", output={"b": 2})
    words = ev.MessageReceived(**fields, message_id="q", content=(ev.Text(text="Go."),))
    more = (*asked(), words, called, returned, *last[:2], *resolved(), last[2])
    seen = shown(turn(*first, *more))
    after = [event["type"] for event in seen].index("RUN_FINISHED")
    rest = [event["type"] for event in seen[after:]]
    assert rest.index("SUBAGENT_STARTED") < rest.index("TOOL_CALL_START")
    assert only(seen, "TOOL_CALL_RESULT")["content"] == '{"b":2}'
    ended = shown([STARTED, *turn()[1:], *first[:1], last[2]])
    assert kinds(ended)[-1] == "RUN_FINISHED"


def test_what_happens_between_runs_waits_for_the_next_and_not_for_ever() -> None:
    notices = [ev.Notice(thread_id=M, text=str(n)) for n in range(WAITING_MOST + 1)]
    seen = shown([STARTED, *notices])
    assert kinds(seen) == ["RUN_STARTED", *["dragoman.notice"] * WAITING_MOST, "RUN_FINISHED"]
    again = shown([STARTED, *notices[:3], *turn()[1:]])
    assert kinds(again) == ["RUN_STARTED", *["dragoman.notice"] * 3, "RUN_FINISHED"]


@pytest.mark.parametrize("before", [WAITING_MOST - 1, WAITING_MOST - 2])
def test_a_message_that_waits_is_never_told_by_halves(before: int) -> None:
    notices = [ev.Notice(thread_id=M, text=str(n)) for n in range(before)]
    words = ev.MessageReceived(thread_id=CHILD, message_id="q", content=(ev.Text(text="Go."),))
    seen = shown([STARTED, *notices, words])
    assert kinds(seen)[-4:] == [
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "SUBAGENT_FINISHED",
        "RUN_FINISHED",
    ]


def test_usage_is_counted_by_model_and_not_twice() -> None:
    fields: dict[str, Any] = {"thread_id": M, "turn_id": "t1"}
    usage = ev.Usage(input_tokens=3, output_tokens=1, cache_read_tokens=2)
    calls: list[ev.Event] = []
    for index in (0, 1):
        calls += [
            ev.StepStarted(**fields, step_index=index, model="m-1"),
            ev.StepEnded(**fields, step_index=index, usage=usage),
            ev.UsageReported(**fields, usage=usage),
        ]
    calls.append(ev.UsageReported(**fields, usage=usage, scope="session"))
    finished = only(shown(turn(*calls)), "RUN_FINISHED")
    assert finished["usage"] == [
        {"model": "m-1", "inputTokens": 6, "outputTokens": 2, "cachedInputTokens": 4}
    ]


def test_a_result_is_told_unless_the_agent_said_it() -> None:
    result = ev.ResultProduced(thread_id=M, turn_id="t1", value={"a": 1})
    seen = shown(turn(*text('{"a": 1}'), result))
    assert seen[-1]["result"] == {"a": 1}
    assert len([event for event in seen if event["type"] == "TEXT_MESSAGE_START"]) == 1
    for words in ("{no JSON", "well"):
        seen = shown(turn(*text(words), result))
        deltas = [event["delta"] for event in seen if event["type"] == "TEXT_MESSAGE_CONTENT"]
        assert deltas == [words, '{"a":1}']


def test_a_call_says_what_it_is_and_how_it_failed() -> None:
    fields: dict[str, Any] = {"thread_id": M, "turn_id": "t1", "call_id": "k1"}
    called = ev.ToolCalled(**fields, name="look", kind="mcp", server="gmail", input_known=False)
    error = ev.ErrorInfo(code="E", message="No token.")
    returned = ev.ToolReturned(
        **fields, is_error=True, status="failed", error=error, input={"q": 1}
    )
    seen = shown(turn(called, returned))
    assert only(seen, "TOOL_CALL_START")["metadata"] == {
        "dragoman": {"server": "gmail", "kind": "mcp"}
    }
    result = only(seen, "TOOL_CALL_RESULT")
    assert result["content"] == "No token."
    assert result["metadata"]["dragoman"] == {
        "isError": True,
        "status": "failed",
        "error": {"code": "E", "message": "No token."},
        "input": {"q": 1},
    }
    words = ev.ToolReturned(**fields, content=(ev.Text(text="a"), ev.Text(text="b")))
    assert only(shown(turn(called, words)), "TOOL_CALL_RESULT")["content"] == "a\nb"


def test_the_end_of_a_session_ends_every_stream() -> None:
    over = ev.SessionEnded(thread_id=M, outcome="completed")
    frames = frames_of([STARTED, over, ev.SessionEnded(thread_id=M, outcome="deleted")])
    assert [frame.end for frame in frames] == [None, None, "session"]
    failed = shown([STARTED, ev.SessionEnded(thread_id=M, outcome="terminated")])
    assert only(failed, "dragoman.turn_failed")["value"]["code"] == "session_ended"


# Answers.


def answered(command: str, request_id: str, **notes: Any) -> list[ev.Event]:
    """Return an answer of this face, accepted and claimed."""
    given = notes.pop("content", None)
    more: dict[str, Any] = {"is_error": True} if notes.pop("failed", False) else {}
    accepted = ev.InputAccepted(
        thread_id=M,
        command_id=command,
        kind="answer",
        request_id=request_id,
        content=given,
        details={"agui": {"run": "run-2", "parts": 1, "modern": True, **notes}, **more},
        by="key",
        face="agui",
    )
    claim = ev.InteractionAnswered(
        thread_id=M, request_id=request_id, command_id=command, by="key", state="claimed"
    )
    return [accepted, claim]


def released(command: str, request_id: str) -> ev.InteractionAnswered:
    return ev.InteractionAnswered(
        thread_id=M, request_id=request_id, command_id=command, by="key", state="released"
    )


def test_answers_that_are_given_at_once_are_one_run() -> None:
    (second, _) = asked("r2", "tool_result", call_id="k1")
    called = ev.ToolCalled(thread_id=M, turn_id="t1", call_id="k1", name="pick", input={})
    both = ev.TurnPaused(thread_id=M, turn_id="t1", on="input", request_ids=("r1", "r2"))
    (first, _) = asked()
    result = (ev.Text(text="green"),)
    notes: dict[str, Any] = {"parts": 2, "answers": {"r2": ["m-9", "k1"]}, "passed": ["r0"]}
    one, two = answered("c1", "r1", **notes), answered("c2", "r2", content=result, **notes)
    returned = ev.ToolReturned(thread_id=M, turn_id="t1", call_id="k1", output="green")
    log = turn(
        called,
        first,
        second,
        both,
        *one,
        *two,
        settled("c1", "taken"),
        settled("c2", "taken"),
        *resolved()[:1],
        *resolved("r2"),
        returned,
    )
    encoder = AguiEncoder(CONTEXT)
    frames_of(log[:6], encoder)
    assert encoder.calls() == {"ask-r1": "r1", "k1": "r2"}
    seen = shown(log)
    assert [e["outcome"]["type"] for e in seen if e["type"] == "RUN_FINISHED"] == [
        "interrupt",
        "success",
    ]
    started = [event for event in seen if event["type"] == "RUN_STARTED"][1]
    assert started["runId"] == "run-2"
    assert started["input"]["messages"] == [
        {"id": "m-9", "role": "tool", "toolCallId": "k1", "content": "green"}
    ]
    assert only(seen, "dragoman.passed_over")["value"]["interruptId"] == "r0"
    assert not [event for event in seen if event["type"] == "TOOL_CALL_RESULT"]


def test_an_answer_that_is_refused_leaves_the_interrupt_open() -> None:
    refused = settled("c1", "refused", reason="Not now.")
    later = [*answered("c2", "r1"), settled("c2", "taken"), *resolved()]
    seen = shown(turn(*asked(), *answered("c1", "r1"), refused, released("c1", "r1"), *later))
    assert only(seen, "dragoman.refused")["value"]["message"] == "Not now."
    outcomes = [e["outcome"]["type"] for e in seen if e["type"] == "RUN_FINISHED"]
    assert outcomes == ["interrupt", "interrupt", "success"]


def test_the_result_of_a_tool_that_is_refused_may_come_from_somebody_else() -> None:
    called = ev.ToolCalled(thread_id=M, turn_id="t1", call_id="k1", name="pick", input={})
    words = (ev.Text(text="broken"),)
    notes: dict[str, Any] = {"answers": {"r1": ["m-9", "k1"]}, "content": words, "failed": True}
    refused = settled("c1", "refused")
    returned = ev.ToolReturned(thread_id=M, turn_id="t1", call_id="k1", output="green")
    log = turn(
        called,
        *asked(kind="tool_result", call_id="k1"),
        *answered("c1", "r1", **notes),
        refused,
        released("c1", "r1"),
        *resolved(),
        returned,
    )
    seen = shown(log)
    started = [event for event in seen if event["type"] == "RUN_STARTED"][1]
    assert started["input"]["messages"][0]["error"] == "broken"
    assert only(seen, "TOOL_CALL_RESULT")["content"] == "green"


def test_a_pause_that_comes_while_an_answer_is_under_way_ends_its_run_when_it_was_taken() -> None:
    (second, _) = asked("r2")
    both = ev.TurnPaused(thread_id=M, turn_id="t1", on="input", request_ids=("r1", "r2"))
    again = ev.TurnPaused(thread_id=M, turn_id="t1", on="input", request_ids=("r2",))
    log = turn(
        *asked(),
        *answered("c1", "r1"),
        second,
        both,
        resolved()[0],
        again,
        settled("c1", "taken"),
        *resolved("r2"),
    )
    interrupts = [
        [one["id"] for one in event["outcome"]["interrupts"]]
        for event in shown(log)
        if event["type"] == "RUN_FINISHED" and "interrupts" in event["outcome"]
    ]
    assert interrupts == [["r1"], ["r2"]]


def test_what_is_asked_by_nobody_that_was_announced_is_the_agents_own() -> None:
    fields: dict[str, Any] = {"thread_id": CHILD, "turn_id": "c1"}
    begun = ev.TurnStarted(**fields, cause="message")
    request = ev.InteractionRequested(
        **fields, request_id="r1", kind="approval", prompt="May I?", shown_on=M
    )
    pause = ev.TurnPaused(thread_id=M, turn_id="t1", on="input", request_ids=("r1",))
    tasks = ev.TurnPaused(thread_id=M, turn_id="t1", on="tasks")
    gone = ev.InteractionResolved(**fields, request_id="r1", outcome="denied")
    over = ev.TurnEnded(**fields, outcome="completed")
    back = ev.TurnResumed(thread_id=M, turn_id="t1")
    seen = shown(turn(begun, request, pause, gone, tasks, back, over))
    (interrupt,) = [
        event["outcome"]["interrupts"][0]
        for event in seen
        if event["type"] == "RUN_FINISHED" and "interrupts" in event["outcome"]
    ]
    assert "subagentRunId" not in interrupt
    assert [event["type"] for event in seen].count("RUN_STARTED") == 2


def test_a_child_of_a_child_names_its_parent() -> None:
    inner = ev.ThreadStarted(thread_id="child-2", parent=CHILD, name="inner", call_id="k1")
    first, last = child()
    ended = ev.ThreadEnded(thread_id="child-2", status="completed")
    unknown = ev.ThreadUpdated(thread_id="child-9", name="x")
    nameless = ev.ThreadUpdated(thread_id=CHILD, path="/x")
    seen = shown([*turn()[:1], first[0], inner, unknown, nameless, *turn(*first[1:])[1:2]])
    assert seen[-1]["type"] == "RUN_STARTED"
    seen = shown(turn(first[0], inner, *first[1:], *asked(), *resolved(), ended, *last))
    started = [event for event in seen if event["type"] == "SUBAGENT_STARTED"]
    assert started[1]["parentSubagentRunId"] == CHILD
    assert started[1]["parentToolCallId"] == "k1"
    assert len(started) == 4


def test_what_is_streamed_while_somebody_is_asked_is_told_when_it_is_whole() -> None:
    block: dict[str, Any] = {"thread_id": CHILD, "turn_id": "c1", "message_id": "m"}
    thought = ev.ReasoningDelta(**block, block_id="x", text="hm")
    thoughts = ev.ReasoningCompleted(**block, block_id="x", text="hm")
    spoken = ev.TextDelta(**block, block_id="y", text="well")
    words = ev.TextCompleted(**block, block_id="y", text="well")
    step = ev.StepStarted(thread_id=CHILD, turn_id="c1", step_index=0)
    done = ev.StepEnded(thread_id=CHILD, turn_id="c1", step_index=0, usage=ev.Usage(), error=None)
    first, last = child()
    quiet = (step, thought, thoughts, spoken, words, done)
    more = [*first[:2], *asked(), *quiet, *resolved(), *last[1:]]
    seen = shown(turn(*more))
    deltas = [event["delta"] for event in seen if event["type"] == "TEXT_MESSAGE_CONTENT"]
    assert deltas == ["well"]
    assert not [event for event in seen if event["type"].startswith("REASONING")]


def test_a_second_block_ends_the_first_and_a_step_says_its_error() -> None:
    block: dict[str, Any] = {"thread_id": M, "turn_id": "t1", "message_id": "m"}
    error = ev.ErrorInfo(code="E", message="No.")
    fields: dict[str, Any] = {"thread_id": M, "turn_id": "t1", "step_index": 0}
    encoder = AguiEncoder(CONTEXT)
    log = [
        STARTED,
        ev.TurnStarted(thread_id=M, turn_id="t1", cause="background"),
        ev.StepStarted(**fields),
        ev.ReasoningDelta(**block, block_id="a", text="1"),
        ev.ReasoningDelta(**block, block_id="b", text="2"),
        ev.TextDelta(**block, block_id="c", text="3"),
        ev.TextDelta(**block, block_id="d", text="4"),
        ev.ReasoningCompleted(**block, block_id="z", text="gone"),
        ev.StepEnded(**fields, error=error, usage=ev.Usage()),
        ev.InteractionAnswered(thread_id=M, request_id="r9", command_id="c", by="key"),
        ev.InteractionUpdated(thread_id=M, request_id="r9", details={}),
        ev.InteractionResolved(thread_id=M, request_id="r9", outcome="denied"),
        ev.SessionEnded(thread_id=M, outcome="failed"),
    ]
    seen = split(b"".join(frame.data for frame in frames_of(log, encoder)))
    assert kinds(seen).count("REASONING_END") == 2
    assert kinds(seen).count("TEXT_MESSAGE_END") == 2
    assert only(seen, "STEP_FINISHED")["metadata"]["dragoman"]["error"]["code"] == "E"
    assert encoder.state.ended


def test_a_thread_is_called_as_its_frontend_calls_it() -> None:
    options = {"agui_thread": "t-7", "agui": {"run": "run-1", "parts": 1, "said": [["u1", 1]]}}
    accepted = said("c1", "run-1", "u1").model_copy(update={"details": None})
    seen = split(
        b"".join(
            frame.data
            for frame in frames_of([ev.SessionStarted(thread_id=M, options=options), accepted])
        )
    )
    assert (seen[0]["threadId"], seen[0]["runId"]) == ("t-7", "run-1")
    assert seen[0]["input"]["messages"][0]["id"] == "u1"
    foreign = accepted.model_copy(update={"face": "herm"})
    assert frames_of([STARTED, foreign]) == []
    told = ev.SessionUpdated(thread_id=M, title="The garden")
    assert only(shown([STARTED, told, *turn()[1:]]), "dragoman.session")["value"] == {
        "title": "The garden"
    }


def started(child: str, parent: str = M) -> ev.ThreadStarted:
    return ev.ThreadStarted(thread_id=child, parent=parent)


def ended(child: str) -> ev.ThreadEnded:
    return ev.ThreadEnded(thread_id=child, status="completed")


def test_children_that_have_called_each_other_are_announced() -> None:
    again = ev.TurnStarted(thread_id=M, turn_id="t2", cause="background")
    works = ev.TurnStarted(thread_id="a", turn_id="x", cause="background")
    seen = shown(
        [
            *turn(started("a"), started("b", "a"), ended("a")),
            started("a", "b"),
            again,
            works,
            ev.StepStarted(thread_id="a", turn_id="x", step_index=0),
        ]
    )
    told = [event for event in seen[-3:] if event["type"] == "SUBAGENT_STARTED"]
    assert [event["subagentRunId"] for event in told] == ["b", "a"]
    assert [event.get("parentSubagentRunId") for event in told] == [None, "b"]


def test_the_end_of_what_is_no_child_ends_no_run() -> None:
    seen = kinds(shown([STARTED, said("c1", "r1", "u1"), ended(M), settled("c1", "refused")]))
    assert seen == ["RUN_STARTED", "RUN_ERROR"]


def test_long_events_that_no_run_follows_get_one() -> None:
    encoder = AguiEncoder(CONTEXT)
    told = [ev.MemoryUpdated(thread_id=M, value="x" * 100_000) for _ in range(20)]
    frames_of([STARTED, *told], encoder)
    assert len(encoder.snapshot()) < WAITING_BYTES


def test_what_waits_while_a_person_is_asked_leaves_the_run_paused() -> None:
    notes = [ev.Notice(thread_id=M, level="info", text="so far") for _ in range(WAITING_MOST)]
    released: dict[str, Any] = {"thread_id": M, "request_id": "r1", "command_id": "c1", "by": "key"}
    seen = shown(
        [
            *turn(*asked())[:-1],
            ev.InteractionAnswered(**released),
            *notes,
            ev.InteractionAnswered(**released, state="released"),
        ]
    )
    assert seen[-1]["outcome"]["type"] == "interrupt"


def test_of_requests_that_wait_for_one_call_the_oldest_is_answered() -> None:
    encoder = AguiEncoder(CONTEXT)
    both = [asked(name, "tool_result", call_id="k1")[0] for name in ("r1", "r2")]
    frames_of([*turn()[:-1], *both], encoder)
    assert encoder.calls() == {"k1": "r1"}


OLD = {"modern": False}


def test_a_client_from_before_1_0_hears_of_no_outcome_that_it_refuses() -> None:
    ended = shown(asked_for(outcome="interrupted", **OLD))[-1]
    assert (ended["type"], "outcome" in ended) == ("RUN_FINISHED", False)
    assert ended["metadata"] == {"dragoman": {"outcome": "interrupted"}}
    assert "outcome" not in shown(asked_for(*asked(kind="tool_result"), **OLD)[:-1])[-1]
    first, last = child(output={"n": 1})
    seen = shown(asked_for(*first, *last, **OLD))
    assert not [event for event in seen if "subagentRunId" in event]
    assert only(seen, "TEXT_MESSAGE_START")["name"] == "reader"
    assert only(seen, "dragoman.child_ended")["value"]["output"] == {"n": 1}


def test_a_client_that_declares_1_0_hears_more() -> None:
    ended = shown(asked_for(outcome="interrupted"))[-1]
    assert ended["outcome"] == {"type": "cancelled"}
    ended = shown(asked_for(*asked(kind="tool_result"))[:-1])[-1]
    assert ended["outcome"] == {"type": "success", "pendingToolCallIds": ["r1"]}


def test_an_old_client_is_asked_by_a_call_as_well_which_gets_a_result() -> None:
    seen = shown(asked_for(*asked(), *resolved(), **OLD))
    call = only(seen, "TOOL_CALL_START")
    assert (call["toolCallId"], call["toolCallName"]) == ("ask-r1", "dragoman_ask")
    given = json.loads(only(seen, "TOOL_CALL_ARGS")["delta"])
    assert (given["interruptId"], given["message"]) == ("r1", "May I?")
    assert given["responseSchema"]["required"] == ["approved"]
    finished = [event for event in seen if event["type"] == "RUN_FINISHED"]
    assert finished[0]["outcome"]["interrupts"][0]["id"] == "r1"
    result = only(seen, "TOOL_CALL_RESULT")
    assert result["toolCallId"] == "ask-r1"
    assert json.loads(result["content"]) == {"outcome": "approved", "reason": "ok"}


def test_an_app_that_has_the_tool_is_asked_by_calls_alone() -> None:
    seen = shown(asked_for(*asked(), **OLD, asks=True)[:-1])
    assert only(seen, "TOOL_CALL_START")["toolCallName"] == "dragoman_ask"
    assert "outcome" not in seen[-1]


def test_a_client_that_declares_1_0_is_asked_once() -> None:
    seen = shown(asked_for(*asked())[:-1])
    assert not [event for event in seen if event["type"] == "TOOL_CALL_START"]
    (interrupt,) = seen[-1]["outcome"]["interrupts"]
    assert interrupt["reason"] == "confirmation"
    assert "expiresAt" not in interrupt


def test_the_answer_of_a_tool_message_is_the_result_of_its_call() -> None:
    notes: dict[str, Any] = {**OLD, "answers": {"r1": ["m-9", "ask-r1"]}}
    log = asked_for(
        *asked(), *answered("c2", "r1", **notes), settled("c2", "taken"), *resolved(), **OLD
    )
    encoder = AguiEncoder(CONTEXT)
    frames_of(log[:7], encoder)
    assert encoder.calls() == {"ask-r1": "r1"}
    seen = shown(log)
    assert not [event for event in seen if event["type"] == "TOOL_CALL_RESULT"]


def test_what_is_ignored_is_reported_once_for_each_thread() -> None:
    place: dict[str, Any] = {"thread_id": M, "turn_id": "t2"}
    log = [
        *asked_for(ignored=["tools", "state"]),
        said("c2", "run-2", "u2", ignored=["state", "messages"]),
        ev.TurnStarted(**place, cause="message"),
    ]
    told = [
        event["value"]["members"] for event in shown(log) if "ignored" in str(event.get("name"))
    ]
    assert told == [["tools", "state"], ["messages"]]


def test_what_others_say_is_a_message_of_the_user() -> None:
    before = ev.MessageReceived(thread_id=M, message_id="m0", content=(ev.Text(text="hello"),))
    guided = ev.GuidanceReceived(thread_id=M, turn_id="t1", text="be brief")
    seen = shown([STARTED, before, *turn(guided)[1:]])
    assert [event["role"] for event in seen if event["type"] == "TEXT_MESSAGE_START"] == [
        "user",
        "user",
    ]
    assert "input" not in seen[0]
    ends = [event.get("metadata") for event in seen if event["type"] == "TEXT_MESSAGE_END"]
    assert ends == [None, {"dragoman": {"kind": "guidance"}}]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [("failed", "turn_failed"), ("refused", "turn_refused"), ("over_budget", "budget_exceeded")],
)
def test_a_run_that_was_asked_for_fails_with_an_error_and_others_end(
    outcome: Any, code: str
) -> None:
    half = text("half", status="partial")
    seen = shown(asked_for(*half, outcome=outcome))
    assert (seen[-1]["type"], seen[-1]["code"]) == ("RUN_ERROR", code)
    assert seen[-2]["type"] == "TEXT_MESSAGE_END"
    seen = shown(turn(*half, outcome=outcome))
    assert only(seen, "dragoman.turn_failed")["value"]["code"] == code
    assert seen[-1]["metadata"] == {"dragoman": {"outcome": "failed"}}


def test_a_picture_in_the_place_of_a_text_is_told_as_words() -> None:
    picture = ev.File(media_type="image/png", ref=ev.Url(url="https://example.com/a.png"))
    block = ev.TextCompleted(
        thread_id=M, turn_id="t1", block_id="b", message_id="m", text="", content=(picture,)
    )
    seen = shown(turn(block))
    assert "image/png" in only(seen, "TEXT_MESSAGE_CONTENT")["delta"]
    told = only(seen, "TEXT_MESSAGE_END")["metadata"]["dragoman"]["content"]
    assert told[0]["media_type"] == "image/png"


def test_an_empty_delta_is_not_written_and_a_call_has_a_message() -> None:
    called = ev.ToolCalled(thread_id=M, turn_id="t1", call_id="k1", name="look", input={})
    again = called.model_copy(update={"call_id": "k2"})
    first, last = text("")
    returned = [
        ev.ToolReturned(thread_id=M, turn_id="t1", call_id=name, output="") for name in ("k1", "k2")
    ]
    seen = shown(turn(first, last, called, again, *returned))
    assert kinds(seen) == [
        "RUN_STARTED",
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_END"),
        *("TOOL_CALL_ARGS", "TOOL_CALL_END") * 2,
        *("TOOL_CALL_RESULT",) * 2,
        "RUN_FINISHED",
    ]
    starts = [event for event in seen if event["type"] == "TOOL_CALL_START"]
    assert {event["parentMessageId"] for event in starts} == {MESSAGE + "1"}


# Where a body begins.


def background(number: int) -> list[ev.Event]:
    """Return a turn that nobody of this dialect began, with a text."""
    place: dict[str, Any] = {"thread_id": M, "turn_id": f"b{number}"}
    block: dict[str, Any] = {**place, "block_id": f"bb{number}", "message_id": f"bm{number}"}
    return [
        ev.TurnStarted(**place, cause="background"),
        ev.TextCompleted(**block, text=f"text {number}"),
        ev.TurnEnded(**place, outcome="completed"),
    ]


def test_what_happened_meanwhile_comes_before_the_run_for_who_was_not_there() -> None:
    encoder = AguiEncoder(CONTEXT)
    log = [*asked_for(*text("one")), *background(1), *background(2), said("c2", "run-2", "u2")]
    frames_of(log, encoder)
    kept = {one.key: one for one in encoder.state.kept}
    run = encoder.run_of("c2")
    assert run is not None

    def start_for(*known: str, modern: bool = True) -> int:
        return encoder.start_for(run, known, modern=modern)

    assert start_for("u1", MESSAGE + "1", "u2") == kept["2"].start
    assert start_for("u1", "u2") == kept["2"].start
    assert start_for("u1", MESSAGE + "1", MESSAGE + "2", "u2") == kept["3"].start
    assert start_for(MESSAGE + "3", "u2") == run.start
    # One that holds back what it has must not be told it again.
    assert start_for("u2") == run.start


def test_no_error_stands_before_a_run_for_clients_that_take_it_for_the_end() -> None:
    encoder = AguiEncoder(CONTEXT)
    place: dict[str, Any] = {"thread_id": M, "turn_id": "t9"}
    other = [
        said("c8", "run-8", "u8"),
        ev.TurnStarted(**place, cause="message"),
        settled("c8", "refused"),
        ev.TurnEnded(**place, outcome="failed"),
    ]
    frames_of(
        [*asked_for(*text("one")), *other, *background(2), said("c2", "run-2", "u2")], encoder
    )
    run, kept = encoder.run_of("c2"), encoder.state.kept
    assert run is not None
    assert [one.failed for one in kept] == [False, True, False, False]
    assert encoder.start_for(run, ["u1"], modern=True) == kept[1].start
    assert encoder.start_for(run, ["u1"], modern=False) == kept[2].start
