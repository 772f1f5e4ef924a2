"""The encoder of the Engine face: a log becomes the frames of its stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from adapters.engine.client import EngineClient
from adapters.engine.server import EngineEncoder
from adapters.engine.state import MessageTurn
from adapters.model import events as ev
from adapters.model.base import CloseReason, EncoderContext, Frame, Response
from adapters.model.commands import AnswerInteraction, SendMessage
from adapters.model.state import LogState
from adapters.wire.errors import ErrorCode
from adapters.wire.framing import FrameTooLarge
from adapters.wire.framing.sse import SseFrame, SseParser
from tests.support.engine_client import Expect, StreamChecker
from tests.support.played import Played

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wire" / "engine"
START = 1_780_992_900_000
CONTEXT = EncoderContext(session_id="dgs_1", secret=b"s" * 32)
MAIN = ev.MAIN

Seen = tuple[str, dict[str, Any]]


def entries(events: Iterable[ev.Event], at: int = START) -> list[ev.Entry]:
    """Events in their places, all journaled in the same millisecond."""
    return [ev.Entry(seq, at, "dgs_1", event) for seq, event in enumerate(events, 1)]


def lawful(events: Iterable[ev.Event]) -> list[ev.Event]:
    """Check that a log keeps the laws, and return it."""
    state = LogState()
    out = list(events)
    for entry in entries(out):
        state.apply_entry(entry)
    return out


def encoded(log: Iterable[ev.Entry], encoder: EngineEncoder | None = None) -> list[Frame]:
    encoder = encoder or EngineEncoder(CONTEXT)
    return [frame for entry in log for frame in encoder.feed(entry)]


def frames_of(data: bytes) -> list[SseFrame]:
    frames = SseParser().feed(data)
    assert not any(isinstance(frame, FrameTooLarge) for frame in frames)
    return [frame for frame in frames if isinstance(frame, SseFrame)]


def shown(events: Iterable[ev.Event], *, stamps: bool = False) -> list[Seen]:
    """What a frontend sees of a log: event names and payloads, stamps left out."""
    data = b"".join(frame.data for frame in encoded(entries(lawful(events))))
    seen = [(frame.event, json.loads(frame.data)) for frame in frames_of(data)]
    for _, payload in seen:
        if not stamps:
            del payload["timestamp"]
    return seen


def started(*, task_id: str | None = "task") -> ev.Event:
    options = None if task_id is None else {"task_id": task_id}
    return ev.SessionStarted(thread_id=MAIN, options=options, synthetic=True)


def turn(*inside: ev.Event, outcome: Any = "completed", **ended: Any) -> list[ev.Event]:
    """A turn of the agent's own with these events, to which its id is given."""
    events = [
        ev.TurnStarted(thread_id=MAIN, turn_id="t1", cause="unknown"),
        *(event.model_copy(update={"turn_id": "t1"}) for event in inside),
        ev.TurnEnded(thread_id=MAIN, turn_id="t1", outcome=outcome, **ended),
    ]
    return [started(), *events]


def inner(seen: Sequence[Seen]) -> list[Seen]:
    """The events between the lifecycle events."""
    return [(name, payload) for name, payload in seen if name != "thread_lifecycle"]


def asked(request_id: str, **members: Any) -> ev.InteractionRequested:
    given = {"kind": "approval", "prompt": "Delete it?", **members}
    return ev.InteractionRequested(thread_id=MAIN, request_id=request_id, **given)


def paused(*request_ids: str) -> ev.TurnPaused:
    return ev.TurnPaused(thread_id=MAIN, on="input", request_ids=request_ids)


def resolved(request_id: str, outcome: Any = "approved") -> ev.InteractionResolved:
    return ev.InteractionResolved(thread_id=MAIN, request_id=request_id, outcome=outcome)


def accepted(command_id: str, face: str | None = "engine") -> ev.InputAccepted:
    return ev.InputAccepted(
        thread_id=MAIN,
        command_id=command_id,
        kind="message",
        content=(ev.Text(text="hello"),),
        by="anna",
        face=face,
    )


# Stamps.


def test_stamps_rise_by_one_at_least_and_follow_the_clock() -> None:
    deltas = [
        ev.TextDelta(thread_id=MAIN, turn_id="t1", block_id="b", message_id="m", text="x")
        for _ in range(3)
    ]
    log = entries([started(), ev.TurnStarted(thread_id=MAIN, turn_id="t1", cause="unknown")])
    log += [ev.Entry(3 + n, START + 500 * n, "dgs_1", delta) for n, delta in enumerate(deltas)]
    encoder = EngineEncoder(CONTEXT)
    frames = encoded(log, encoder)
    assert [frame.cursor - START for frame in frames] == [0, 1, 2, 500, 1000]
    assert encoder.next_cursor == START + 1001
    times = [json.loads(frame.data)["timestamp"] for frame in frames_of(frames[3].data)]
    assert times == ["2026-06-09T08:15:00.500Z"]


def test_frames_name_their_turn_and_its_end() -> None:
    frames = encoded(entries(turn(outcome="failed")))
    assert [(frame.end, frame.turn_id) for frame in frames] == [
        (None, "t1"),
        (None, "t1"),
        ("turn", "t1"),
    ]
    assert all(b.cursor > a.cursor for a, b in pairwise(frames))


# Turns and inputs.


def test_a_message_of_this_face_opens_its_turn_at_once_and_is_not_repeated_to_it() -> None:
    message = ev.MessageReceived(
        thread_id=MAIN, turn_id="t1", message_id="c1", content=(), command_id="c1"
    )
    log = [
        started(),
        accepted("c1"),
        ev.InputSettled(thread_id=MAIN, command_id="c1", outcome="taken"),
        ev.TurnStarted(thread_id=MAIN, turn_id="t1", cause="message"),
        message,
        ev.TurnEnded(thread_id=MAIN, turn_id="t1", outcome="completed"),
    ]
    encoder = EngineEncoder(CONTEXT)
    assert len(encoded(entries(log)[:2], encoder)) == 1
    assert encoder.turn_of("c1") == MessageTurn("c1", "c1", START)
    assert encoder.state.turn == "c1"
    assert shown(log) == [
        ("thread_lifecycle", {"phase": "started", "task_id": "task", "turn_id": "c1"}),
        ("thread_lifecycle", {"phase": "completed", "task_id": "task", "turn_id": "c1"}),
    ]


@pytest.mark.parametrize("outcome", ["refused", "unknown", "withdrawn"])
def test_a_message_that_is_not_taken_ends_its_turn_with_an_error(outcome: Any) -> None:
    error = ev.ErrorInfo(code="http_500", message="No.", details={"retry_after": 3})
    log = [
        started(),
        accepted("c1"),
        ev.InputSettled(thread_id=MAIN, command_id="c1", outcome=outcome, error=error),
        accepted("c2", face="eve"),
        ev.InputSettled(thread_id=MAIN, command_id="c2", outcome=outcome, error=error),
    ]
    assert shown(log)[1:] == [
        ("error", {"error": "http_500", "message": "No.", "details": {"retry_after": 3}}),
        ("thread_lifecycle", {"phase": "errored", "task_id": "task", "turn_id": "c1"}),
    ]


def test_a_message_that_is_refused_during_a_turn_gets_a_turn_of_its_own_after_it() -> None:
    encoder = EngineEncoder(CONTEXT)
    log = [
        started(),
        accepted("c1"),
        ev.InputSettled(thread_id=MAIN, command_id="c1", outcome="taken"),
        ev.TurnStarted(thread_id=MAIN, turn_id="t1", cause="message"),
        ev.MessageReceived(
            thread_id=MAIN, turn_id="t1", message_id="c1", content=(), command_id="c1"
        ),
        accepted("c2"),
        ev.InputSettled(thread_id=MAIN, command_id="c2", outcome="refused"),
        ev.TurnEnded(thread_id=MAIN, turn_id="t1", outcome="completed"),
    ]
    phases = [
        (payload["turn_id"], payload["phase"])
        for name, payload in shown(log)
        if name == "thread_lifecycle"
    ]
    assert phases == [
        ("c1", "started"),
        ("c1", "completed"),
        ("c2", "started"),
        ("c2", "errored"),
    ]
    encoded(entries(lawful(log)), encoder)
    turn_of = encoder.turn_of("c2")
    assert turn_of is not None
    assert turn_of.turn_id == "c2"


def test_a_turn_of_the_agents_own_before_that_of_a_message_does_not_end_its_body() -> None:
    log = [
        started(),
        accepted("c1"),
        ev.TurnStarted(thread_id=MAIN, turn_id="t0", cause="background"),
        ev.TurnEnded(thread_id=MAIN, turn_id="t0", outcome="failed"),
        ev.TurnStarted(thread_id=MAIN, turn_id="t1", cause="message"),
        ev.InputSettled(thread_id=MAIN, command_id="c1", outcome="taken"),
        ev.MessageReceived(
            thread_id=MAIN, turn_id="t1", message_id="c1", content=(), command_id="c1"
        ),
        ev.TurnEnded(thread_id=MAIN, turn_id="t1", outcome="completed"),
    ]
    seen = shown(log)
    assert [payload.get("phase", name) for name, payload in seen] == [
        "started",
        "background_turn",
        "completed",
    ]
    assert seen[1][1] == {"turn_id": "t0", "outcome": "failed"}


def test_what_others_say_is_shown_without_a_text_member() -> None:
    file = ev.File(media_type="image/png", name="a.png", ref=ev.Url(url="https://x.example/a"))
    log = [
        started(task_id=None),
        accepted("c1", face="herm"),
        ev.InputSettled(thread_id=MAIN, command_id="c1", outcome="taken"),
        ev.TurnStarted(thread_id=MAIN, turn_id="t1", cause="message"),
        ev.MessageReceived(
            thread_id=MAIN,
            turn_id="t1",
            message_id="c1",
            content=(ev.Text(text="look"), file),
            command_id="c1",
        ),
        ev.GuidanceReceived(thread_id=MAIN, turn_id="t1", text="faster"),
    ]
    seen = shown(log)
    assert seen[0][1]["task_id"] == "dgs_1"
    assert seen[1:] == [
        ("message_received", {"message": "look\n[file: a.png (image/png)]", "kind": "message"}),
        ("message_received", {"message": "faster", "kind": "guidance"}),
    ]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("failed", "LLM_PROVIDER_ERROR"),
        ("interrupted", "TURN_INTERRUPTED"),
        ("refused", "TURN_REFUSED"),
        ("exhausted", "RETRIES_EXHAUSTED"),
        ("over_budget", "BUDGET_EXCEEDED"),
    ],
)
def test_every_outcome_but_completed_is_an_error_that_names_it(outcome: str, code: str) -> None:
    seen = shown(turn(outcome=outcome))
    assert seen[1][0] == "error"
    assert seen[1][1]["error"] == code
    assert seen[1][1]["message"]
    assert seen[2][1]["phase"] == "errored"
    assert seen[2][1].get("outcome", "failed") == outcome


def test_our_own_codes_are_said_in_the_words_of_the_dialect() -> None:
    for code in ErrorCode:
        error = ev.ErrorInfo(code=str(code), message="x")
        stated = shown(turn(outcome="failed", error=error))[1][1]["error"]
        assert stated == stated.upper()
    error = ev.ErrorInfo(code="backend_session_lost", message="x")
    assert shown(turn(outcome="failed", error=error))[1][1]["error"] == "backend_session_lost"


def test_a_frame_of_the_engines_own_is_shown_with_the_names_of_this_face() -> None:
    frame = {"turn_id": "theirs", "task_id": "theirs", "x": 1, "timestamp": 5}
    log = turn(ev.Native(thread_id=MAIN, dialect="engine", name="future", frame=frame))
    ours = shown(turn())[0][1]
    assert shown(log)[1] == (
        "future",
        {"turn_id": ours["turn_id"], "task_id": ours["task_id"], "x": 1},
    )


def test_a_session_that_ends_ends_what_is_open() -> None:
    log = [started(), accepted("c1"), ev.SessionEnded(thread_id=MAIN, outcome="terminated")]
    assert [payload.get("phase", name) for name, payload in shown(log)] == [
        "started",
        "error",
        "errored",
    ]
    assert encoded(entries(log))[-1].end == "session"


# Text, tools, usage.


def delta(text: str, block: str = "b", **members: Any) -> ev.TextDelta:
    return ev.TextDelta(thread_id=MAIN, block_id=block, message_id="m", text=text, **members)


def said(text: str, block: str = "b", **members: Any) -> ev.TextCompleted:
    return ev.TextCompleted(thread_id=MAIN, block_id=block, message_id="m", text=text, **members)


def test_blocks_never_nest_and_count_again_with_each_model_call() -> None:
    thought = ev.ReasoningDelta(thread_id=MAIN, block_id="r", message_id="m", text="hm")
    seen = shown(
        turn(
            ev.StepStarted(thread_id=MAIN, step_index=0),
            delta("a"),
            thought,
            delta("b"),
            ev.ReasoningCompleted(thread_id=MAIN, block_id="r", message_id="m", text="hm"),
            said("ab"),
            ev.StepEnded(thread_id=MAIN, step_index=0),
            ev.StepStarted(thread_id=MAIN, step_index=1),
            delta("c", "b2"),
            said("c", "b2", status="partial"),
            delta("d", "b3"),
            said("d", "b3", status="discarded"),
            ev.StepEnded(thread_id=MAIN, step_index=1),
            outcome="interrupted",
        )
    )
    text, thinking = {"block_type": "text"}, {"block_type": "thinking"}
    assert inner(seen)[:-1] == [
        ("content_block_start", {"block_index": 0, **text}),
        ("text_delta", {"text": "a"}),
        ("content_block_stop", {"block_index": 0, **text}),
        ("content_block_start", {"block_index": 1, **thinking}),
        ("thinking_delta", {"text": "hm"}),
        ("content_block_stop", {"block_index": 1, **thinking}),
        ("content_block_start", {"block_index": 2, **text}),
        ("text_delta", {"text": "b"}),
        ("content_block_stop", {"block_index": 2, **text}),
        ("content_block_start", {"block_index": 0, **text}),
        ("text_delta", {"text": "c"}),
        ("content_block_stop", {"block_index": 0, **text, "status": "partial"}),
        ("content_block_start", {"block_index": 1, **text}),
        ("text_delta", {"text": "d"}),
    ]


def test_a_result_is_shown_as_text_unless_a_text_says_the_same() -> None:
    result = ev.ResultProduced(thread_id=MAIN, value={"b": [1], "a": "é"})
    assert ("text_delta", {"text": '{"b":[1],"a":"é"}'}) in shown(turn(result))
    same = '{"a": "é",\n "b": [1]}'
    texts = [
        payload
        for name, payload in shown(turn(delta(same), said(same), result))
        if name == "text_delta"
    ]
    assert texts == [{"text": same}]


def test_of_many_texts_the_newest_are_known_as_the_result() -> None:
    count = 64 + 1
    texts = [event for n in range(count) for event in (delta(f"[{n}]"), said(f"[{n}]"))]
    for number, times in ((0, 2), (count - 1, 1)):
        seen = shown(turn(*texts, ev.ResultProduced(thread_id=MAIN, value=[number])))
        words = [payload["text"] for name, payload in seen if name == "text_delta"]
        assert words.count(f"[{number}]") == times


def test_tools_carry_what_the_dialect_has_no_field_for_in_members_of_our_own() -> None:
    call = ev.ToolCalled(
        thread_id=MAIN,
        call_id="c1",
        name="look_up",
        kind="mcp",
        server="wiki",
        input_known=False,
        preview="Looking up basil",
    )
    back = ev.ToolReturned(
        thread_id=MAIN,
        call_id="c1",
        content=(ev.Text(text="green"), ev.Text(text="tasty")),
        input={"plant": "basil"},
    )
    assert inner(shown(turn(call, back)))[1:2] + inner(shown(turn(call, back)))[-1:] == [
        (
            "tool_call",
            {
                "tool": "wiki.look_up",
                "tool_call_id": "c1",
                "input": {},
                "preview": "Looking up basil",
            },
        ),
        (
            "tool_result",
            {"tool_call_id": "c1", "output": "green\ntasty", "input": {"plant": "basil"}},
        ),
    ]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"output": {"n": 1}}, {"output": {"n": 1}}),
        ({"output": 0}, {"output": 0}),
        (
            {"is_error": True, "status": "failed", "error": ev.ErrorInfo(code="x", message="no")},
            {"output": "", "error": "no"},
        ),
        (
            {
                "is_error": True,
                "status": "rejected",
                "error": ev.ErrorInfo(code="denied", message="not today"),
            },
            {"output": "", "error": "permission_denied", "reason": "not today"},
        ),
        # A backend may not count as an error what a person denied.
        ({"status": "rejected", "output": ""}, {"output": "", "error": "permission_denied"}),
        (
            {"is_error": True, "status": "interrupted"},
            {"output": "", "error": "failed", "status": "interrupted"},
        ),
    ],
)
def test_error_is_there_only_if_the_call_failed(
    members: dict[str, Any], expected: dict[str, Any]
) -> None:
    call = ev.ToolCalled(thread_id=MAIN, call_id="c1", name="t", input={})
    back = ev.ToolReturned(thread_id=MAIN, call_id="c1", **members)
    (result,) = [p for name, p in shown(turn(call, back)) if name == "tool_result"]
    assert result == {"tool_call_id": "c1", **expected}


def test_usage_is_told_once_for_each_model_call_and_never_as_a_total() -> None:
    usage = ev.Usage(input_tokens=10, output_tokens=2, cache_read_tokens=4)
    total = ev.Usage(input_tokens=99, output_tokens=9)
    seen = shown(
        turn(
            ev.StepStarted(thread_id=MAIN, step_index=0),
            ev.StepEnded(thread_id=MAIN, step_index=0, usage=usage),
            ev.UsageReported(thread_id=MAIN, usage=usage),
            ev.StepStarted(thread_id=MAIN, step_index=1),
            ev.UsageReported(thread_id=MAIN, usage=usage),
            ev.StepEnded(thread_id=MAIN, step_index=1, usage=usage),
            ev.UsageReported(thread_id=MAIN, usage=total, scope="turn"),
        )
    )
    counts = {"input_tokens": 10, "output_tokens": 2, "cache_hit_tokens": 4}
    assert inner(seen) == [("usage", counts), ("usage", counts)]


def test_what_is_outside_of_the_conversation_has_no_text_either() -> None:
    seen = shown(
        [
            started(),
            ev.MemoryUpdated(thread_id=MAIN, value={"text": "note"}),
            ev.MemoryUpdated(thread_id=MAIN, value=[1]),
            ev.ContextCompacted(thread_id=MAIN, phase="started", before_tokens=9.0),
            ev.ContextCompacted(thread_id=MAIN, before_tokens=9.0, after_tokens=3.5),
            ev.ContextCleared(thread_id=MAIN),
            ev.Gap(thread_id=MAIN, reason="lost", cursor_from="7"),
            ev.Notice(thread_id=MAIN, text="status"),
            ev.Native(thread_id=MAIN, dialect="eve", frame={"a": 1}),
            ev.Native(thread_id=MAIN, dialect="engine", name="future", frame={"a": 1}),
        ]
    )
    assert seen == [
        ("working_memory_update", {"value": {"text": "note"}}),
        ("working_memory_update", {"value": [1]}),
        ("compaction_event", {"before_tokens": 9, "after_tokens": 3.5, "strategy": "summary"}),
        ("compaction_event", {"strategy": "clear"}),
        ("gap", {"reason": "lost", "from": "7"}),
        ("future", {"a": 1}),
    ]


def test_a_child_is_not_shown_but_its_requests_are() -> None:
    call = ev.ToolCalled(thread_id=MAIN, call_id="c1", name="delegate", kind="subagent", input={})
    events = turn(call)
    child = [
        ev.ThreadStarted(thread_id="kid", parent=MAIN, name="cleaner", call_id="c1"),
        ev.TurnStarted(thread_id="kid", turn_id="k1", cause="unknown"),
        ev.TextDelta(thread_id="kid", turn_id="k1", block_id="x", message_id="m", text="quiet"),
        ev.InteractionRequested(
            thread_id="kid", turn_id="k1", request_id="r1", kind="question", prompt="Which?"
        ),
    ]
    log = [*events[:3], *child]
    seen = shown(log)
    assert seen[2][1]["kind"] == "subagent"
    assert seen[-1][0] == "hitl_request"
    assert seen[-1][1]["thread"] == "kid"
    assert not any(payload.get("text") == "quiet" for _, payload in seen)


# Interactions.


def test_one_request_is_shown_at_a_time_oldest_first_and_one_answered_elsewhere_is_skipped() -> (
    None
):
    log = turn(
        asked("r1"),
        asked("r2"),
        asked("r3"),
        paused("r1", "r2", "r3"),
        resolved("r2"),
        paused("r1", "r3"),
        resolved("r1"),
        paused("r3"),
        resolved("r3", "denied"),
        ev.TurnResumed(thread_id=MAIN),
    )
    assert [(name, payload["request_id"]) for name, payload in inner(shown(log))] == [
        ("hitl_request", "r1"),
        ("hitl_resolved", "r1"),
        ("hitl_request", "r3"),
        ("hitl_resolved", "r3"),
    ]


def test_what_is_pending_is_what_was_shown_and_not_what_is_claimed() -> None:
    encoder = EngineEncoder(CONTEXT)
    log = entries(turn(asked("r1", expires_at=START + 1000), paused("r1"))[:-1])
    frames = encoded(log, encoder)
    (frame,) = frames_of(frames[-1].data)
    record = json.loads(frame.data)
    del record["timestamp"]
    assert encoder.pending == record
    assert record == {
        "request_id": "r1",
        "task_id": "task",
        "kind": "permission",
        "question": "Delete it?",
        "created_at": "2026-06-09T08:15:00.000Z",
        "expires_at": "2026-06-09T08:15:01.000Z",
    }
    claim = ev.InteractionAnswered(thread_id=MAIN, request_id="r1", command_id="c", by="anna")
    encoder.feed(ev.Entry(9, START, "dgs_1", claim))
    assert encoder.pending is None
    assert encoder.request is None
    released = claim.model_copy(update={"state": "released"})
    (again,) = encoder.feed(ev.Entry(10, START, "dgs_1", released))
    assert encoder.pending == record
    # Anybody who reads the stream is told too, once.
    (frame,) = frames_of(again.data)
    assert frame.event == "hitl_request"
    shown_again = json.loads(frame.data)
    del shown_again["timestamp"]
    assert shown_again == record
    assert not encoder.feed(ev.Entry(11, START, "dgs_1", released))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (
            {"details": {"tool": "bash", "input": {"command": "rm x"}}},
            {
                "kind": "permission",
                "question": 'Delete it?\nbash: {"command":"rm x"}',
                "tool": "bash",
                "input": {"command": "rm x"},
            },
        ),
        (
            {"prompt": "Run `rm x`?", "details": {"command": "rm x"}},
            {"kind": "permission", "question": "Run `rm x`?", "input": {"command": "rm x"}},
        ),
        (
            {"kind": "question", "options": (ev.Option(id="a", label="Tea"),)},
            {"kind": "question", "question": "Delete it?", "options": ["Tea"]},
        ),
        (
            {"kind": "limit"},
            {
                "kind": "question",
                "question": "Delete it?",
                "options": ["continue", "stop"],
                "reason": "limit",
            },
        ),
        (
            {"kind": "tool_result", "prompt": ""},
            {
                "kind": "question",
                "question": "The agent waits for an answer.",
                "reason": "tool_result",
            },
        ),
    ],
)
def test_a_request_shows_what_it_is_about(
    members: dict[str, Any], expected: dict[str, Any]
) -> None:
    (payload,) = [
        p for name, p in shown(turn(asked("r1", **members))[:-1]) if name == "hitl_request"
    ]
    for name in ("request_id", "task_id", "created_at"):
        del payload[name]
    assert payload == expected


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("secret", "decline"),
        ("sudo", "decline"),
        ("unknown", "decline"),
        ("authorization", "cancel"),
    ],
)
def test_what_this_dialect_cannot_answer_offers_one_word(kind: str, option: str) -> None:
    details = {"url": "https://sign.example/in", "user_code": "AB-12"}
    events = turn(asked("r1", kind=kind, details=details, freeform=True))[:-1]
    payload = shown(events)[-1][1]
    assert payload["kind"] == "question"
    assert payload["options"] == [option]
    assert payload["reason"] == kind
    assert ("https://sign.example/in" in payload["question"]) == (kind == "authorization")


# The log as a whole.


def canonical(name: str) -> list[ev.Event]:
    """The log of a recorded body, as a session makes it."""
    return log_of((FIXTURES / name).read_bytes())


def log_of(body: bytes) -> list[ev.Event]:
    """The log that a body of `/execute` gives; what is asked in it is answered when it resolves."""
    frames = frames_of(body)
    task_id = json.loads(frames[0].data)["task_id"]
    session = Played(lambda: EngineClient({"task_id": task_id}))
    codec = session.codec
    session.take([started(task_id=task_id), accepted("c1")])
    message = SendMessage(content=(ev.Text(text="hello"),), policy="reject")
    call = codec.submit("c1", message)
    session.take(codec.opened(call, Response(200, CIMultiDict()), START))
    for frame in frames:
        if frame.event == "hitl_resolved":
            (request_id,) = session.state.interactions
            codec.submit("c2", ANSWER.model_copy(update={"request_id": request_id}))
        session.take(codec.feed(call, frame, START))
    session.take(codec.closed(call, CloseReason.ENDED, START))
    return session.events


ANSWER = AnswerInteraction(request_id="r", decision="allow", text="yes")


def story(log: Iterable[ev.Event]) -> list[Any]:
    """A log without its declared losses: ids that are ours, sources, and what is synthetic."""
    out: list[Any] = []
    for event in log:
        value = event.model_dump(exclude_none=True, exclude_defaults=True)
        for name in ("native", "extra", "turn_id", "synthetic", "thread_id", "evaluation"):
            value.pop(name, None)
        if isinstance(event, ev.InteractionRequested):
            value.pop("details", None)
        if isinstance(event, ev.StepEnded | ev.UsageReported) and event.usage is not None:
            value["usage"].pop("extra", None)
        if isinstance(event, ev.MemoryUpdated | ev.Native):
            inside = dict(event.value if isinstance(event, ev.MemoryUpdated) else event.frame)
            inside.pop("timestamp", None)
            value["value"] = inside
            value.pop("frame", None)
        out.append((event.TYPE, value))
    return out


UNDOCUMENTED = {"10-likely-forms.sse"}
"""Recordings with forms that the page does not have: what comes before their `started` comes after
ours, and no strict client takes them."""

FINISHED = [
    path.name
    for path in sorted(FIXTURES.glob("*.sse"))
    if path.name
    not in ("06d-abrupt-eof.sse", "07a-interrupted.sse", "07d-replay-expired-empty.sse")
    and not path.name.startswith("07")
]


@pytest.mark.parametrize("name", [name for name in FINISHED if name not in UNDOCUMENTED])
def test_what_we_write_of_a_recording_reads_as_the_same_log(name: str) -> None:
    log = canonical(name)
    body = b"".join(frame.data for frame in encoded(entries(log)))
    checker = StreamChecker(expect=Expect(stamped=True, known_types=False))
    checker.feed(body)
    checker.close()
    assert story(log_of(body)) == story(log)


@pytest.mark.parametrize("name", FINISHED)
def test_an_encoder_that_was_put_back_writes_the_same_frames(name: str) -> None:
    log = entries(canonical(name))
    whole = encoded(log)
    for cut in range(len(log) + 1):
        encoder = EngineEncoder(CONTEXT)
        first = encoded(log[:cut], encoder)
        again = EngineEncoder(CONTEXT)
        again.restore(encoder.snapshot())
        assert again.next_cursor == encoder.next_cursor
        assert [*first, *encoded(log[cut:], again)] == whole


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(words, inside, max_size=3),
    max_leaves=6,
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bodies of `/execute` as an Engine may write them."""
    out: list[bytes] = []

    def write(event: str, payload: dict[str, Any]) -> None:
        out.append(b"event: %b\ndata: %b\n\n" % (event.encode(), json.dumps(payload).encode()))

    write("thread_lifecycle", {"phase": "started", "task_id": "task", "turn_id": "t1"})
    acts = draw(
        st.lists(st.sampled_from(("text", "think", "tool", "ask", "memory", "odd")), max_size=8)
    )
    for number, act in enumerate(acts):
        match act:
            case "text" | "think":
                for piece in draw(st.lists(words, min_size=1, max_size=3)):
                    write("text_delta" if act == "text" else "thinking_delta", {"text": piece})
            case "tool":
                ids = [f"call-{number}-{n}" for n in range(draw(st.integers(1, 3)))]
                for call_id in ids:
                    arguments = draw(st.dictionaries(words, values, max_size=2))
                    write("tool_call", {"tool": "t", "tool_call_id": call_id, "input": arguments})
                write("usage", {"input_tokens": 5, "output_tokens": 1, "cache_hit_tokens": 0})
                for call_id in draw(st.permutations(ids)):
                    payload: dict[str, Any] = {"tool_call_id": call_id, "output": draw(values)}
                    failed = draw(st.sampled_from((None, "broken", "permission_denied")))
                    if failed is not None:
                        payload |= {"output": "", "error": failed}
                    write("tool_result", payload)
            case "ask":
                kind = draw(st.sampled_from(("permission", "question")))
                record = {"request_id": f"hitl-{number}", "task_id": "task", "kind": kind}
                record |= {"question": draw(words), "created_at": "2026-06-09T08:15:00.000Z"}
                write("usage", {"input_tokens": 5, "output_tokens": 1, "cache_hit_tokens": 0})
                write("hitl_request", record)
                write("hitl_resolved", {"request_id": f"hitl-{number}", "task_id": "task"})
            case "memory":
                write("working_memory_update", draw(st.dictionaries(words, values, max_size=2)))
            case "odd":
                write("odd_event", {"n": draw(values)})
    if draw(st.booleans()):
        write("error", {"error": "LLM_PROVIDER_ERROR", "message": "It failed.", "details": {}})
        write("thread_lifecycle", {"phase": "errored", "task_id": "task", "turn_id": "t1"})
    else:
        write("thread_lifecycle", {"phase": "completed", "task_id": "task", "turn_id": "t1"})
    return b"".join(out)


@given(bodies())
def test_what_we_write_of_any_log_reads_as_the_same_log(body: bytes) -> None:
    log = log_of(body)
    written = b"".join(frame.data for frame in encoded(entries(log)))
    StreamChecker("task", expect=Expect(stamped=True, known_types=False)).feed(written)
    assert story(log_of(written)) == story(log)
