"""The engine client codec: what every frame means, and what becomes of every command."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from adapters.contract.mapping import parse_mapping
from adapters.driving.doubts import LOOK_AGAIN_MS, LOOK_RETRY_MS, LOOKS
from adapters.engine.client import ABILITIES, APPROVAL_OPTIONS, EngineClient, refusal
from adapters.engine.client.early_results import MOST_EARLY
from adapters.engine.client.work import KEPT_BYTES
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, CloseReason, Response, Support
from adapters.model.commands import COMMAND_TYPES, AnswerInteraction, SendMessage
from adapters.model.interactions import DECLINED
from adapters.model.normalizer import Rule
from adapters.wire.errors import DragomanError, NotSupported
from adapters.wire.framing.sse import SseFrame, SseParser
from adapters.wire.jsonvalue import MOST_NAME
from tests.engine.driver import MESSAGE, START, WIRE, Session, frames_of, recordings, task_of
from tests.support.bodies import whole
from tests.support.each import each
from tests.support.remembered import remembers

TASK = "task"


def frame(name: str, **payload: object) -> SseFrame:
    return SseFrame(name, json.dumps(payload).encode())


STARTED = frame("thread_lifecycle", phase="started", task_id=TASK, turn_id="turn-1")
COMPLETED = frame("thread_lifecycle", phase="completed", task_id=TASK, turn_id="turn-1")
ERRORED = frame("thread_lifecycle", phase="errored", task_id=TASK, turn_id="turn-1", code=7)
ERROR = frame(
    "error", error="CONTEXT_OVERFLOW", message="Too big.", details={"tokens": 9}, trace="t"
)


def text(words: str) -> SseFrame:
    return frame("text_delta", text=words)


def run(*frames: SseFrame, reason: CloseReason = CloseReason.ENDED) -> Session:
    """Send a message, read a whole body that begins with `started`, and let time pass."""
    session = Session(TASK)
    session.execute([STARTED, *frames], reason)
    session.tick()
    return session


def running(*frames: SseFrame) -> tuple[Session, Call]:
    """Send a message and read the beginning of its body."""
    session = Session(TASK)
    call = session.send()
    session.open(call)
    session.feed(call, [STARTED, *frames])
    return session, call


def types(events: Iterable[ev.Event]) -> list[str]:
    return [event.TYPE for event in events]


def only(session: Session, type_: type[Any]) -> Any:
    (found,) = [event for event in session.log if isinstance(event, type_)]
    return found


def all_of(session: Session, type_: type[Any]) -> list[Any]:
    return [event for event in session.log if isinstance(event, type_)]


# Recordings.


@each("path", recordings(), ids=lambda path: path.stem)
def test_a_recording_gives_the_same_events_however_its_bytes_are_cut(path: Any) -> None:
    data = path.read_bytes()
    whole = Session(task_of(frames_of(data)))
    whole.execute(frames_of(data))
    bytewise = Session(task_of(frames_of(data)))
    call = bytewise.send()
    bytewise.open(call)
    parser = SseParser()
    for at in range(len(data)):
        bytewise.feed(call, [f for f in parser.feed(data[at : at + 1]) if isinstance(f, SseFrame)])
    bytewise.close(call, CloseReason.ENDED)
    assert bytewise.log == whole.log
    assert Rule.UNREPAIRED not in whole.normalizer.repairs
    # The rest of a replay has a result without its call; else a recording needs no repair but
    # closing what a failure cut.
    if path.name != "07b-replay-after.sse":
        assert set(whole.normalizer.repairs) <= {Rule.CLOSE_BLOCK, Rule.CLOSE_STEP}


def test_a_text_turn_is_a_turn_a_step_and_a_message() -> None:
    session = Session("garden-17")
    session.execute(frames_of((WIRE / "01-plain-text.sse").read_bytes()))
    assert types(session.log) == [
        "session.started",
        "input.accepted",
        "input.settled",
        "turn.started",
        "message.received",
        "step.started",
        "text.delta",
        "text.delta",
        "text.delta",
        "text.completed",
        "step.ended",
        "turn.ended",
    ]
    started, ended = only(session, ev.TurnStarted), only(session, ev.TurnEnded)
    assert (started.turn_id, started.cause, started.partial) == ("turn-a01", "message", False)
    assert started.native == ev.NativeRef(
        dialect="engine", type="thread_lifecycle", at="2026-06-09T08:15:00.000Z", frame=1
    )
    assert (ended.outcome, ended.error) == ("completed", None)
    completed = only(session, ev.TextCompleted)
    assert completed.text.endswith("at the café works.")
    assert (completed.finish_reason, completed.status) == ("stop", "complete")
    step = only(session, ev.StepEnded)
    assert step.usage == ev.Usage(input_tokens=612, output_tokens=24, cache_read_tokens=0)


def test_reasoning_text_and_a_tool_are_blocks_and_a_call_of_one_step() -> None:
    session = Session("repo-204")
    session.execute(frames_of((WIRE / "02-thinking-and-tool.sse").read_bytes()))
    reasoning, called = only(session, ev.ReasoningCompleted), only(session, ev.ToolCalled)
    assert reasoning.text.startswith("The failing test is about rounding. Look")
    first, second = all_of(session, ev.TextCompleted)
    assert (first.message_id, first.index, first.finish_reason) == ("m1", 1, "tool-calls")
    assert (second.message_id, second.index, second.finish_reason) == ("m2", 0, "stop")
    assert (called.call_id, called.name, called.permission) == ("call-7f01", "read_file", "allow")
    assert called.input == {"path": "/workspace/src/money.py"}
    assert [step.finish_reason for step in all_of(session, ev.StepEnded)] == ["tool-calls", "stop"]
    assert only(session, ev.ToolReturned).output.startswith("def to_cents")


def test_a_permission_is_an_approval_of_its_call() -> None:
    session = Session("ops-33")
    session.execute(frames_of((WIRE / "03-hitl-permission-yes.sse").read_bytes()))
    called, asked = only(session, ev.ToolCalled), only(session, ev.InteractionRequested)
    assert called.permission == "ask"
    assert asked.kind == "approval"
    assert asked.prompt == "Run `rm -rf /srv/exports/2024`?"
    assert asked.call_id == called.call_id
    assert asked.details == {"tool": "bash", "input": {"command": "rm -rf /srv/exports/2024"}}
    assert asked.options == APPROVAL_OPTIONS
    assert not asked.freeform
    assert only(session, ev.TurnPaused).request_ids == ("hitl-5a2e",)
    # Nobody answered through us, so the outcome is not known.
    assert only(session, ev.InteractionResolved).outcome == "unknown"
    assert types(session.log)[7:16] == [
        "text.completed",
        "tool.called",
        "step.ended",
        "interaction.requested",
        "turn.paused",
        "interaction.resolved",
        "turn.resumed",
        "tool.returned",
        "step.started",
    ]


def test_a_refused_call_is_rejected_and_the_turn_completes() -> None:
    session = Session("ops-34")
    session.execute(frames_of((WIRE / "05-hitl-permission-denied.sse").read_bytes()))
    returned = only(session, ev.ToolReturned)
    assert (returned.status, returned.is_error) == ("rejected", True)
    assert returned.error.code == "permission_denied"
    assert only(session, ev.TurnEnded).outcome == "completed"


@pytest.mark.parametrize("name", ["06d-abrupt-eof", "07a-interrupted"])
@pytest.mark.parametrize("reason", CloseReason)
def test_a_body_without_a_terminal_event_ends_nothing(name: str, reason: CloseReason) -> None:
    frames = frames_of((WIRE / f"{name}.sse").read_bytes())
    session = Session(task_of(frames))
    session.execute(frames, reason)
    session.tick()
    assert all_of(session, ev.TurnEnded) == []
    assert session.codec.streams() != ()


def test_a_long_turn_tells_memory_compaction_and_parallel_tools() -> None:
    session = Session("audit-2")
    session.execute(frames_of((WIRE / "08-long-turn.sse").read_bytes()))
    assert all_of(session, ev.MemoryUpdated)[1].value == {
        "key": "finding",
        "value": "b.sql drops table u",
    }
    compacted = only(session, ev.ContextCompacted)
    assert (compacted.before_tokens, compacted.after_tokens) == (31200, 9400)
    assert (compacted.strategy, compacted.phase) == ("summary", "completed")
    assert [e.call_id for e in all_of(session, ev.ToolReturned)] == [
        "call-h1",
        "call-h2",
        "call-h3",
    ]
    # The one whose result came first surely ran; of the other nothing had shown.
    assert [e.permission for e in all_of(session, ev.ToolCalled)] == ["allow", "allow", "unknown"]


def test_unknown_events_and_fields_survive() -> None:
    session = Session("tol-1")
    session.execute(frames_of((WIRE / "09-tolerance.sse").read_bytes()))
    native = only(session, ev.Native)
    assert (native.dialect, native.name, native.frame) == (
        "engine",
        "future_event_kind",
        {"anything": 1},
    )
    assert [e.extra for e in all_of(session, ev.TextDelta)][-1] == {"extra_field": True}
    assert "".join(e.text for e in all_of(session, ev.TextDelta)) == (
        "spans several data lines and no space after the colon, CRLF endings, an id line"
    )


# Variants of every event.


EXTRA = {"novel": [1]}


@pytest.mark.parametrize(
    ("item", "type_"),
    [
        (frame("text_delta", text="a", **EXTRA), ev.TextDelta),
        (frame("thinking_delta", text="a", **EXTRA), ev.ReasoningDelta),
        (frame("tool_call", tool="t", tool_call_id="c", input={}, **EXTRA), ev.ToolCalled),
        (frame("hitl_request", request_id="h", kind="question", **EXTRA), ev.InteractionRequested),
        (frame("compaction_event", before_tokens=1, **EXTRA), ev.ContextCompacted),
        (frame("error", error="X", message="m", **EXTRA), ev.TurnEnded),
        (frame("thread_lifecycle", phase="completed", **EXTRA), ev.TurnEnded),
        (frame("thread_lifecycle", phase="errored", **EXTRA), ev.TurnEnded),
    ],
)
def test_a_field_that_nobody_knows_is_kept_in_extra(item: SseFrame, type_: type[Any]) -> None:
    assert only(run(item), type_).extra == EXTRA


def test_fields_that_nobody_knows_are_kept_of_results_usage_and_resolutions_too() -> None:
    session = run(
        frame("tool_call", tool="t", tool_call_id="c", input={}),
        frame("usage", input_tokens=1, novel=[1]),
        frame("hitl_request", request_id="h", kind="permission", question="?"),
        frame("hitl_resolved", request_id="h", novel=[1]),
        frame("tool_result", tool_call_id="c", output=1, novel=[1]),
        COMPLETED,
    )
    assert only(session, ev.StepEnded).usage.extra == EXTRA
    assert only(session, ev.InteractionResolved).extra == EXTRA
    assert only(session, ev.ToolReturned).extra == EXTRA


def test_times_task_and_turn_on_any_event_are_known_and_no_extra() -> None:
    stamped = {"task_id": TASK, "turn_id": "turn-1", "timestamp": "2026-06-09T08:15:01.000Z"}
    session = run(frame("text_delta", text="a", **stamped), frame("tool_call", tool="t", **stamped))
    delta = only(session, ev.TextDelta)
    assert delta.extra is None
    assert delta.native.at == "2026-06-09T08:15:01.000Z"
    assert only(session, ev.ToolCalled).extra is None


def test_events_of_another_task_are_left_out() -> None:
    session = run(frame("text_delta", text="not mine", task_id="other"), text("mine"), COMPLETED)
    assert only(session, ev.TextDelta).text == "mine"


def test_a_lifecycle_without_ids_and_times_is_enough() -> None:
    session = Session("garden-18")
    session.execute(frames_of((WIRE / "01b-plain-text-short-form.sse").read_bytes()))
    assert only(session, ev.TurnStarted).turn_id == "turn-1"
    assert only(session, ev.TextCompleted).text == "Yes, minze wächst überall 🌱."
    session.execute(frames_of((WIRE / "01b-plain-text-short-form.sse").read_bytes()))
    assert [e.turn_id for e in all_of(session, ev.TurnEnded)] == ["turn-1", "turn-2"]


def test_a_phase_that_is_not_documented_is_kept_as_it_is() -> None:
    session = run(frame("thread_lifecycle", phase="paused", task_id=TASK), COMPLETED)
    assert only(session, ev.Native).frame == {"phase": "paused", "task_id": TASK}


@pytest.mark.parametrize("payload", [{}, {"timestamp": "2026-06-09T08:15:17.310Z"}])
def test_a_heartbeat_means_nothing(payload: dict[str, object]) -> None:
    session, call = running(text("a"))
    before = list(session.log), session.codec.position
    session.feed(call, [frame("heartbeat", **payload), SseFrame("heartbeat", b"not json")])
    assert (session.log, session.codec.position) == before


def test_without_ids_results_belong_to_the_oldest_unanswered_calls() -> None:
    session = run(
        frame("tool_call", tool="a", input={}),
        frame("tool_call", tool="b", input={}),
        frame("tool_result", output=1),
        frame("tool_result", output=2, error="broken"),
        COMPLETED,
    )
    calls, results = all_of(session, ev.ToolCalled), all_of(session, ev.ToolReturned)
    assert [(c.call_id, c.name) for c in calls] == [("call-1", "a"), ("call-2", "b")]
    assert [(r.call_id, r.output, r.status) for r in results] == [
        ("call-1", 1, "completed"),
        ("call-2", 2, "failed"),
    ]
    assert results[1].error == ev.ErrorInfo(code="tool_failed", message="broken")


def test_the_error_of_a_tool_may_be_an_object() -> None:
    error = {"code": "E1", "message": "no disk", "at": [1]}
    session = run(frame("tool_call", tool="a", tool_call_id="c"), frame("tool_result", error=error))
    returned = only(session, ev.ToolReturned)
    assert returned.error == ev.ErrorInfo(code="E1", message="no disk", details=error)
    assert not only(session, ev.ToolCalled).input_known


def test_a_result_without_a_call_brings_its_call() -> None:
    session = run(frame("tool_result", tool="grep", tool_call_id="c9", output="x"), COMPLETED)
    called = only(session, ev.ToolCalled)
    assert (called.call_id, called.name, called.synthetic) == ("c9", "grep", True)


@pytest.mark.parametrize("names", [{"tool_call_id": "c9"}, {}])
def test_a_result_before_its_call_is_joined_to_it(names: Any) -> None:
    session, call = running(frame("tool_result", tool="grep", output="x", **names))
    early = session.codec._s.early
    session.codec.restore(session.codec.snapshot(), None)
    assert session.codec._s.early == early
    assert session.codec.wake_at is not None
    session.feed(call, [frame("tool_call", tool="grep", input={"a": 1}, **names), text("a")])
    called, returned = only(session, ev.ToolCalled), only(session, ev.ToolReturned)
    assert (called.name, called.input, called.permission) == ("grep", {"a": 1}, "allow")
    assert (returned.call_id, returned.output) == (called.call_id, "x")
    assert not session.codec._s.calls
    assert not session.codec._s.early


def test_a_call_that_comes_long_after_its_result_does_not_stay_open() -> None:
    session, call = running(frame("tool_result", tool="grep", tool_call_id="c9", output="x"))
    session.tick()
    assert only(session, ev.ToolReturned).output == "x"
    session.feed(call, [frame("tool_call", tool="grep", tool_call_id="c9", input={"a": 1})])
    assert only(session, ev.ToolCalled).synthetic
    assert only(session, ev.Native).frame["input"] == {"a": 1}
    session.feed(call, [COMPLETED])
    session.close(call, CloseReason.ENDED)
    assert [event.status for event in all_of(session, ev.ToolReturned)] == ["completed"]


def test_results_without_calls_are_told_when_there_are_too_many_or_the_turn_ends() -> None:
    results = [frame("tool_result", tool_call_id=f"c{n}", output=n) for n in range(MOST_EARLY + 1)]
    session, call = running(*results)
    assert only(session, ev.ToolReturned).output == 0
    session.feed(call, [ERROR, ERRORED])
    session.close(call, CloseReason.ENDED)
    assert [event.output for event in all_of(session, ev.ToolReturned)] == [*range(MOST_EARLY + 1)]


def test_a_dotted_tool_belongs_to_a_connector() -> None:
    called = only(run(frame("tool_call", tool="gmail.read_thread", input={})), ev.ToolCalled)
    assert (called.kind, called.server, called.name) == ("mcp", "gmail", "gmail.read_thread")


def test_blocks_that_are_not_announced_are_told_apart_by_channel_tool_and_usage() -> None:
    session = run(
        frame("thinking_delta", text="hm"),
        text("a"),
        text("b"),
        frame("tool_call", tool="t", tool_call_id="c"),
        frame("tool_result", tool_call_id="c"),
        text("c"),
        COMPLETED,
    )
    assert [(e.text, e.message_id, e.index) for e in all_of(session, ev.TextCompleted)] == [
        ("ab", "m1", 1),
        ("c", "m2", 0),
    ]
    assert only(session, ev.ReasoningCompleted).text == "hm"
    # Without `usage` a result ends the model call, and so does the end of the turn.
    assert [e.synthetic for e in all_of(session, ev.StepEnded)] == [True, True]


def test_two_announced_text_blocks_are_two_blocks_of_one_message() -> None:
    start, stop = frame("content_block_start", block_type="text"), frame("content_block_stop")
    session = run(start, text("a"), stop, start, text("b"), stop, COMPLETED)
    assert [(e.block_id, e.index, e.text) for e in all_of(session, ev.TextCompleted)] == [
        ("b1", 0, "a"),
        ("b2", 1, "b"),
    ]


def test_usage_outside_of_a_model_call_is_reported_alone() -> None:
    session = run(frame("usage", input_tokens=5, output_tokens="many"), COMPLETED)
    assert only(session, ev.UsageReported).usage == ev.Usage(input_tokens=5)


def test_a_delta_without_words_is_kept_as_it_is() -> None:
    assert only(run(frame("text_delta", text=None), COMPLETED), ev.Native).name == "text_delta"


def test_garbage_is_reported_and_the_rest_is_used() -> None:
    session = run(text("a"), SseFrame("text_delta", b'{"text": \xff'), text("b"), COMPLETED)
    error = only(session, ev.ErrorReported)
    assert error.code == "backend_protocol"
    assert (error.details, error.quote) == (None, '{"text": \\xff')
    assert only(session, ev.TextCompleted).text == "ab"


def test_bytes_that_framing_could_not_use_are_reported() -> None:
    session, call = running()
    session.emit(session.codec.garbage(call, b"x" * 1000, "a frame is too long", session.now))
    error = only(session, ev.ErrorReported)
    assert error.message == "engine: a frame is too long"
    assert error.quote is not None
    assert len(error.quote) == 512


# The end of a turn.


@pytest.mark.parametrize(
    ("ends", "code", "native"),
    [
        ([ERROR], "CONTEXT_OVERFLOW", "error"),
        ([ERRORED], "errored", "thread_lifecycle"),
        ([ERROR, ERRORED], "CONTEXT_OVERFLOW", "error"),
        ([ERRORED, ERROR], "CONTEXT_OVERFLOW", "thread_lifecycle"),
        ([ERROR, COMPLETED], "CONTEXT_OVERFLOW", "error"),
    ],
)
@pytest.mark.parametrize("reason", [CloseReason.ENDED, CloseReason.LOST])
def test_a_failed_turn_ends_once_whatever_tells_it(
    ends: Sequence[SseFrame], code: str, native: str, reason: CloseReason
) -> None:
    session = run(text("half an ans"), *ends, reason=reason)
    ended = only(session, ev.TurnEnded)
    assert (ended.outcome, ended.error.code) == ("failed", code)
    assert ended.native.type == native
    if ERROR in ends:
        assert ended.error == ev.ErrorInfo(code=code, message="Too big.", details={"tokens": 9})
        assert ended.extra["trace"] == "t"
    if ERRORED in ends:
        assert ended.extra["code"] == 7
    assert only(session, ev.TextCompleted).status == "partial"


def test_the_end_of_a_failed_turn_is_held_for_two_seconds() -> None:
    session, call = running(ERRORED)
    begun = session.now
    assert session.codec.wake_at == begun + 2000
    session.emit(session.codec.tick(begun + 1999))
    assert all_of(session, ev.TurnEnded) == []
    session.emit(session.codec.tick(begun + 2000))
    assert only(session, ev.TurnEnded).error.code == "errored"
    # What comes later is told, and is not a second failure.
    session.feed(call, [ERROR, text("late"), COMPLETED])
    session.close(call, CloseReason.ENDED)
    assert only(session, ev.TurnEnded).error.code == "errored"
    assert only(session, ev.ErrorReported).code == "CONTEXT_OVERFLOW"
    assert session.normalizer.repairs[Rule.LATE] == 1
    assert session.codec.streams() == ()


def test_the_next_turn_ends_the_one_whose_end_is_held() -> None:
    session, call = running(ERROR)
    session.feed(call, [frame("thread_lifecycle", phase="started", turn_id="turn-2"), text("b")])
    assert types(session.log)[-4:] == ["turn.ended", "turn.started", "step.started", "text.delta"]
    assert all_of(session, ev.TurnStarted)[1].cause == "background"


def test_stopping_settles_nothing() -> None:
    session, call = running(ERROR)
    session.close(call, CloseReason.STOPPED)
    assert all_of(session, ev.TurnEnded) == []


def test_an_error_that_is_not_as_documented_is_read() -> None:
    ended = only(run(frame("error", error={"a": 1}, details=[2])), ev.TurnEnded)
    assert ended.error == ev.ErrorInfo(
        code="error", message="error", details={"error": {"a": 1}, "details": [2]}
    )


def test_a_turn_whose_start_is_missing_is_partial() -> None:
    session = Session(TASK)
    session.execute([text("and so"), COMPLETED])
    assert only(session, ev.TurnStarted).partial
    assert only(session, ev.MessageReceived).command_id == "c1"


# Holding a call.


CALL = frame("tool_call", tool="bash", tool_call_id="c1", input={"command": "ls -l"})
USAGE = frame("usage", input_tokens=1, output_tokens=1)


def permission_of(session: Session) -> list[str]:
    return [event.permission for event in all_of(session, ev.ToolCalled)]


def test_a_call_is_held_for_250_ms() -> None:
    session, _ = running(CALL, USAGE)
    assert permission_of(session) == []
    held_since = session.now - 1
    assert session.codec.wake_at == held_since + 250
    session.emit(session.codec.tick(held_since + 249))
    assert permission_of(session) == []
    session.emit(session.codec.tick(held_since + 250))
    assert permission_of(session) == ["unknown"]
    assert types(session.log)[-2:] == ["tool.called", "step.ended"]
    assert session.codec.wake_at is None


def test_a_request_names_the_call_that_asks() -> None:
    other = frame("tool_call", tool="read", tool_call_id="c0", input={"path": "/a/b"})
    asked = frame("hitl_request", request_id="h", kind="permission", question="Run `ls -l`?")
    session, _ = running(other, CALL, USAGE, asked)
    assert permission_of(session) == ["unknown", "ask"]
    assert only(session, ev.InteractionRequested).call_id == "c1"


def test_news_that_are_no_evidence_wait_behind_a_call() -> None:
    memory = frame("working_memory_update", key="a")
    asked = frame("hitl_request", request_id="h", kind="permission", question="Go?")
    session, _ = running(CALL, memory, frame("future"), text(" more"), asked)
    assert permission_of(session) == ["ask"]
    assert types(session.log)[6:10] == ["tool.called", "memory.updated", "native", "text.delta"]


@pytest.mark.parametrize(("end", "permission"), [(COMPLETED, "allow"), (ERROR, "unknown")])
def test_a_call_that_is_held_goes_with_the_end_of_its_turn(end: SseFrame, permission: str) -> None:
    session, call = running(CALL)
    assert permission_of(session) == []
    session.feed(call, [end])
    assert permission_of(session) == [permission]
    # What comes late does not come before it.
    session.feed(call, [text("late")])
    session.tick()
    assert types(session.log)[-1] == "turn.ended"
    assert "tool.called" in types(session.log)


@pytest.mark.parametrize(("end", "permission"), [(COMPLETED, "allow"), (ERROR, "unknown")])
def test_a_call_that_the_turn_ends_with_has_run_if_the_turn_was_completed(
    end: SseFrame, permission: str
) -> None:
    session = run(CALL, end)
    assert permission_of(session) == [permission]
    assert only(session, ev.ToolReturned).error.code == "abandoned"


# Interactions.


@pytest.mark.parametrize(
    ("fields", "call_id"),
    [
        ({"tool_call_id": "c1"}, "c1"),
        ({"tool_call_id": "c7"}, None),
        ({"tool": "read"}, "c0"),
        ({"tool": "nothing like it"}, None),
        ({"question": "May I run `ls -l` now?"}, "c1"),
        ({"question": "May I use bash?"}, "c1"),
        ({"question": "May I?"}, "c0"),
    ],
)
def test_a_permission_finds_its_call(fields: dict[str, object], call_id: str | None) -> None:
    other = frame("tool_call", tool="read", tool_call_id="c0", input={"path": "/a/b"})
    asked = frame("hitl_request", request_id="h", kind="permission", **fields)
    session, _ = running(other, CALL, asked)
    assert only(session, ev.InteractionRequested).call_id == call_id


def test_a_permission_may_come_before_its_call_and_tell_what_it_is_about() -> None:
    session = run(
        text("Let me look."),
        frame(
            "hitl_request",
            request_id="h",
            kind="permission",
            question="Run it?",
            tool="bash",
            input={"command": "ls"},
            tool_call_id="c1",
        ),
        frame("hitl_resolved"),
        frame("tool_call", tool="bash", tool_call_id="c1", input={"command": "ls"}),
        frame("tool_result", tool_call_id="c1", output="a"),
        COMPLETED,
    )
    asked = only(session, ev.InteractionRequested)
    assert asked.call_id is None
    assert asked.details == {"tool": "bash", "input": {"command": "ls"}}
    assert asked.extra == {"tool_call_id": "c1"}
    assert permission_of(session) == ["allow"]


@pytest.mark.parametrize("options", [["07:40", "09:10"], [{"label": "07:40"}, {"text": "09:10"}]])
def test_options_are_texts_or_objects(options: list[object]) -> None:
    asked = frame("hitl_request", request_id="h", kind="question", question="?", options=options)
    session, _ = running(asked)
    request = only(session, ev.InteractionRequested)
    assert [(o.id, o.label) for o in request.options] == [("07:40", "07:40"), ("09:10", "09:10")]
    assert request.freeform


@pytest.mark.parametrize("options", [None, [], "yes", [None, True]])
def test_options_that_are_none_are_left_out(options: object) -> None:
    session, _ = running(frame("hitl_request", request_id="h", question="?", options=options))
    assert only(session, ev.InteractionRequested).options is None


def test_a_request_without_id_and_kind_is_a_question_with_an_id_of_ours() -> None:
    session, call = running(frame("hitl_request", question="Why?"))
    request = only(session, ev.InteractionRequested)
    assert (request.request_id, request.kind) == ("hitl-1", "question")
    session.feed(call, [frame("hitl_resolved"), frame("hitl_request", question="How?")])
    assert [r.request_id for r in all_of(session, ev.InteractionRequested)] == ["hitl-1", "hitl-2"]


ASK = frame("hitl_request", request_id="h", kind="permission", question="Run `ls -l`?")
RESOLVED = frame("hitl_resolved", request_id="h", task_id=TASK)
RESULT = frame("tool_result", tool_call_id="c1", output="a")


def answered(session: Session, **fields: Any) -> tuple[str, Call]:
    """Answer the open request, as a session does: claim, then send."""
    answer = AnswerInteraction(request_id="h", **fields)
    command_id = session.accept(answer)
    claim = ev.InteractionAnswered(
        thread_id=ev.MAIN, request_id="h", command_id=command_id, by="key"
    )
    session.emit([claim], upstream=False)
    return command_id, session.codec.submit(command_id, answer)


def respond(session: Session, call: Call, status: int, body: object = None) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    session.emit(session.codec.respond(call, Response(status, body=data), session.now))


@pytest.mark.parametrize("resolved", [[RESOLVED], []])
@pytest.mark.parametrize(
    ("decision", "word", "outcome"), [("allow", "yes", "approved"), ("deny", "no", "denied")]
)
def test_an_approval_is_answered_yes_or_no(
    decision: Any, word: str, outcome: str, resolved: list[SseFrame]
) -> None:
    session, call = running(CALL, ASK)
    _, post = answered(session, decision=decision, reason="because", scope="always")
    assert (post.request.method, post.request.path, post.stream) == ("POST", "/hitl/respond", False)
    assert json.loads(post.request.body or b"") == {
        "task_id": TASK,
        "answer": word,
        "feedback": "because",
    }
    respond(session, post, 200, {"status": "resumed", "request_id": "h"})
    assert only(session, ev.InteractionAnswered).state == "claimed"
    assert all_of(session, ev.InteractionResolved) == []
    session.feed(call, [*resolved, RESULT, COMPLETED])
    settled = only(session, ev.InteractionResolved)
    assert settled.outcome == outcome
    assert settled.answer.reason == "because"
    assert settled.scope == ("once" if decision == "allow" else None)
    assert settled.synthetic is (not resolved)
    assert [e.outcome for e in all_of(session, ev.InputSettled)] == ["taken", "taken"]


def test_a_question_is_answered_with_the_text_of_its_option() -> None:
    asked = frame("hitl_request", request_id="h", kind="question", options=["07:40", "09:10"])
    session, call = running(asked)
    _, post = answered(session, option_ids=("09:10",))
    assert json.loads(post.request.body or b"") == {"task_id": TASK, "answer": "09:10"}
    session.feed(call, [RESOLVED])
    settled = only(session, ev.InteractionResolved)
    assert (settled.outcome, settled.answer.option_ids) == ("answered", ("09:10",))


def test_a_skipped_question_gets_words_that_say_so() -> None:
    session, call = running(frame("hitl_request", request_id="h", kind="question"))
    _, post = answered(session, skip=True)
    assert json.loads(post.request.body or b"") == {"task_id": TASK, "answer": DECLINED}
    session.feed(call, [RESOLVED])
    assert only(session, ev.InteractionResolved).outcome == "skipped"


def test_an_answer_may_bring_files() -> None:
    session, _ = running(frame("hitl_request", request_id="h", kind="question"))
    url = ev.File(media_type="image/png", ref=ev.Url(url="https://a.example/b.png"))
    _, post = answered(session, content=(ev.Text(text="this one"), url))
    assert json.loads(post.request.body or b"") == {
        "task_id": TASK,
        "answer": "this one",
        "content_blocks": [
            {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
        ],
    }


def test_an_answer_to_a_request_that_does_not_wait_is_not_sent() -> None:
    session, _ = running(CALL, ASK)
    answer = AnswerInteraction(request_id="another", decision="allow")
    with pytest.raises(NotSupported, match="`another` is not the one that waits"):
        session.codec.submit("c9", answer)


@pytest.mark.parametrize(
    "work",
    [
        text("on we go"),
        frame("thinking_delta", text="so"),
        frame("tool_call", tool="x", tool_call_id="c2"),
        RESULT,
        frame("hitl_request", request_id="h2", kind="question"),
        COMPLETED,
    ],
)
def test_work_shows_that_a_request_was_answered_elsewhere(work: SseFrame) -> None:
    session, call = running(CALL, ASK)
    session.feed(call, [work])
    resolved = only(session, ev.InteractionResolved)
    assert (resolved.request_id, resolved.outcome, resolved.synthetic) == ("h", "unknown", True)


@pytest.mark.parametrize("named", [True, False])
def test_a_parallel_tool_that_reports_is_no_answer(named: bool) -> None:
    other = frame("tool_call", tool="read", tool_call_id="c0", input={"path": "/a"})
    session, call = running(other, CALL, ASK)
    result: dict[str, object] = {"tool_call_id": "c0"} if named else {}
    session.feed(call, [frame("tool_result", output=1, **result)])
    assert only(session, ev.ToolReturned).call_id == "c0"
    assert all_of(session, ev.InteractionResolved) == []
    session.feed(call, [RESOLVED, RESULT, COMPLETED])
    assert only(session, ev.InteractionResolved).native.type == "hitl_resolved"


def test_a_request_that_is_told_again_stays_open() -> None:
    session, call = running(CALL, ASK)
    before = len(session.log)
    session.feed(call, [ASK])
    assert len(session.log) == before


def test_a_request_that_a_failed_turn_leaves_is_withdrawn() -> None:
    session, call = running(CALL, ASK)
    session.feed(call, [ERROR])
    session.close(call, CloseReason.ENDED)
    assert only(session, ev.InteractionResolved).outcome == "withdrawn"


# Refusals and failures of calls.


def test_a_message_that_nobody_answers_goes_to_execute() -> None:
    session = Session(TASK)
    call = session.send()
    assert (call.name, call.stream, call.command_id) == ("execute", True, "c1")
    assert (call.request.method, call.request.path) == ("POST", "/execute")
    assert call.request.headers["content-type"] == "application/json"
    assert json.loads(call.request.body or b"") == {"message": "go", "task_id": TASK}
    assert session.codec.streams() == ()
    session.open(call)
    assert only(session, ev.InputSettled).outcome == "taken"


@pytest.mark.parametrize(
    ("status", "body", "code", "message", "details"),
    [
        (
            401,
            {"error": "INVALID_KEY", "message": "The key is wrong."},
            "backend_refused",
            "The backend refused the proxy's credential.",
            None,
        ),
        (
            401,
            {"error": "MCP_TOKEN_EXPIRED", "message": "Sign in to the connector anew."},
            "MCP_TOKEN_EXPIRED",
            "Sign in to the connector anew.",
            None,
        ),
        (
            409,
            {"error": "HITL_REQUIRED", "message": "Waiting.", "details": {}},
            "HITL_REQUIRED",
            "Waiting.",
            None,
        ),
        (
            422,
            {"detail": [{"loc": ["body", "message"], "msg": "field required"}]},
            "http_422",
            "The backend answered 422, not in a form of its dialect.",
            None,
        ),
        (
            429,
            {"error": "LLM_RATE_LIMITED", "message": "Slow down.", "details": {"retry_after": 8}},
            "LLM_RATE_LIMITED",
            "Slow down.",
            {"retry_after": 8},
        ),
        (
            502,
            {"error": "LLM_PROVIDER_ERROR", "details": {"url": "10.1.2.3:80"}},
            "LLM_PROVIDER_ERROR",
            "The backend failed with 502.",
            None,
        ),
        (400, {"error": "No way, Jose"}, "http_400", "No way, Jose", None),
        (
            503,
            b"draining",
            "http_503",
            "The backend answered 503, not in a form of its dialect.",
            None,
        ),
        (
            404,
            b"\xff<html>",
            "http_404",
            "The backend answered 404, not in a form of its dialect.",
            None,
        ),
    ],
)
def test_a_refused_message_says_why_and_is_over(
    status: int, body: object, code: str, message: str, details: dict[str, Any] | None
) -> None:
    session = Session(TASK)
    respond(session, session.send(), status, body)
    settled = only(session, ev.InputSettled)
    assert settled.outcome == "refused"
    shown = ev.ErrorInfo(code=code, message=message, details=details, status=status)
    assert settled.error is not None
    assert settled.error.model_copy(update={"quote": None}) == shown
    wrote = body if isinstance(body, bytes) else json.dumps(body).encode()
    quote = wrote.decode("utf-8", "backslashreplace")
    hidden = message.startswith(("The backend answered", "The backend failed"))
    assert settled.error.quote == (quote if hidden else None)
    assert settled.reason == message
    assert session.codec.streams() == ()
    # Nothing is left of it: the next message is a message of its own.
    session.execute([STARTED, COMPLETED])
    assert only(session, ev.MessageReceived).command_id == "c2"


@pytest.mark.parametrize(
    ("status", "body"), [(500, b"Internal Server Error"), (502, b"<html>"), (504, {"detail": "x"})]
)
def test_a_message_that_may_have_been_taken_is_looked_for_in_replay(
    status: int, body: object
) -> None:
    session = Session(TASK)
    respond(session, session.send(), status, body)
    assert all_of(session, ev.InputSettled) == []
    session.replay([STARTED, text("here"), COMPLETED])
    assert only(session, ev.InputSettled).outcome == "taken"
    assert only(session, ev.MessageReceived).content == MESSAGE.content
    assert only(session, ev.TurnEnded).outcome == "completed"


def test_a_message_that_was_not_sent_is_refused() -> None:
    session = Session(TASK)
    call = session.send()
    error = DragomanError("connection refused")
    session.emit(session.codec.failed(call, error, sent=False, now=session.now))
    assert only(session, ev.InputSettled).outcome == "refused"
    assert session.codec.streams() == ()


def test_a_message_that_may_have_been_sent_is_looked_for_and_at_last_unknown() -> None:
    session = Session(TASK)
    call = session.send()
    error = DragomanError("connection reset")
    session.emit(session.codec.failed(call, error, sent=True, now=session.now))
    assert all_of(session, ev.InputSettled) == []
    assert len(session.codec.streams()) == 1
    session.emit(session.codec.give_up(error, session.now))
    settled = only(session, ev.InputSettled)
    assert (settled.outcome, settled.error.code) == ("unknown", "backend_session_lost")
    assert session.codec.streams() == ()


def test_a_message_that_was_taken_and_never_shown_is_shown_as_failed() -> None:
    session = Session(TASK)
    call = session.send()
    session.open(call)
    session.close(call)
    session.emit(session.codec.give_up(DragomanError("gone"), session.now))
    assert types(session.log)[3:] == ["turn.started", "message.received", "turn.ended"]
    assert only(session, ev.TurnEnded).error.code == "backend_session_lost"


def test_a_turn_that_cannot_be_had_again_has_failed() -> None:
    session, call = running(text("half"), CALL, ASK)
    session.close(call)
    session.emit(session.codec.give_up(DragomanError("The backend is gone."), session.now))
    ended = only(session, ev.TurnEnded)
    assert (ended.outcome, ended.error.code) == ("failed", "backend_session_lost")
    assert ended.error.message == "The backend is gone."
    assert only(session, ev.InteractionResolved).outcome == "withdrawn"
    assert session.codec.streams() == ()


@pytest.mark.parametrize("status", [400, 401, 403, 409, 422])
def test_a_refused_answer_gives_its_claim_back(status: int) -> None:
    session, _ = running(CALL, ASK)
    command_id, post = answered(session, decision="allow")
    respond(session, post, status, {"error": "NO", "message": "no"})
    assert not session.codec.take_calls()
    assert types(session.log)[-3:] == ["input.settled", "interaction.answered", "turn.paused"]
    released = all_of(session, ev.InteractionAnswered)[-1]
    assert (released.state, released.command_id) == ("released", command_id)
    assert all_of(session, ev.TurnPaused)[-1].synthetic
    # And it can be answered again.
    _, post = answered(session, decision="deny")
    respond(session, post, 200, {})
    assert [e.outcome for e in all_of(session, ev.InputSettled)] == ["taken", "refused", "taken"]


@pytest.mark.parametrize("pending", [{"pending": []}, {}, b"oops", None])
def test_an_answer_to_what_nobody_waits_for_shows_that_it_was_answered(pending: Any) -> None:
    session, _ = running(CALL, ASK)
    _, post = answered(session, decision="allow")
    respond(session, post, 404, {"error": "NOTHING", "message": "nothing pending"})
    (look,) = session.codec.take_calls()
    assert (look.request.method, look.request.path) == ("GET", "/hitl/pending")
    if pending is None:
        error = DragomanError("connection refused")
        session.emit(session.codec.failed(look, error, sent=False, now=session.now))
    else:
        respond(session, look, 200, pending)
    assert types(session.log)[-4:] == [
        "input.settled",
        "interaction.answered",
        "interaction.resolved",
        "turn.resumed",
    ]
    assert only(session, ev.InteractionResolved).outcome == "unknown"


def test_a_404_of_something_in_between_leaves_the_request_open() -> None:
    session, _ = running(CALL, ASK)
    _, post = answered(session, decision="allow")
    respond(session, post, 404, {"error": "NOTHING", "message": "nothing pending"})
    (look,) = session.codec.take_calls()
    respond(session, look, 200, PENDING)
    assert not all_of(session, ev.InteractionResolved)
    _, post = answered(session, decision="deny")
    respond(session, post, 200, {})
    assert [e.outcome for e in all_of(session, ev.InputSettled)] == ["taken", "refused", "taken"]


def test_what_a_404_leaves_open_may_be_decided_before_the_look() -> None:
    session, call = running(CALL, ASK)
    _, post = answered(session, decision="allow")
    respond(session, post, 404, {"error": "NOTHING", "message": "nothing pending"})
    (look,) = session.codec.take_calls()
    session.feed(call, [RESOLVED])
    before = list(session.log)
    respond(session, look, 200, {"pending": []})
    assert session.log == before


def test_an_answer_that_was_not_sent_gives_its_claim_back() -> None:
    session, _ = running(CALL, ASK)
    _, post = answered(session, decision="allow")
    error = DragomanError("connection refused")
    session.emit(session.codec.failed(post, error, sent=False, now=session.now))
    assert all_of(session, ev.InputSettled)[-1].outcome == "refused"
    assert all_of(session, ev.InteractionAnswered)[-1].state == "released"


PENDING = {"pending": [{"request_id": "h", "task_id": TASK, "kind": "permission"}]}


def looks(session: Session) -> Call:
    """Return the one call that asks what is pending."""
    (look,) = session.codec.take_calls()
    assert (look.request.method, look.request.path) == ("GET", "/hitl/pending")
    return look


def in_doubt(how: str) -> tuple[Session, Call]:
    session, call = running(CALL, ASK)
    _, post = answered(session, decision="allow")
    if how == "500":
        respond(session, post, 500, b"oops")
    else:
        error = DragomanError("connection reset")
        session.emit(session.codec.failed(post, error, sent=True, now=session.now))
    return session, call


def settlements(session: Session) -> list[str]:
    """Return what became of the inputs after the first message."""
    return [event.outcome for event in all_of(session, ev.InputSettled)][1:]


@pytest.mark.parametrize("how", ["failed", "500"])
def test_an_answer_that_may_have_arrived_is_taken_when_nothing_is_pending(how: str) -> None:
    session, call = in_doubt(how)
    assert settlements(session) == []
    respond(session, looks(session), 200, {"pending": []})
    assert settlements(session) == ["taken"]
    session.feed(call, [RESOLVED])
    assert only(session, ev.InteractionResolved).outcome == "approved"
    assert session.codec.wake_at is None
    assert not session.normalizer.repairs


def test_another_request_of_the_task_is_no_evidence_against_an_answer() -> None:
    session, _ = in_doubt("failed")
    later = {"request_id": "h2", "task_id": TASK, "kind": "permission"}
    respond(session, looks(session), 200, {"pending": [later]})
    assert settlements(session) == ["taken"]


def test_an_answer_is_refused_that_did_not_arrive_in_time() -> None:
    session, _ = in_doubt("failed")
    respond(session, looks(session), 200, PENDING)
    assert settlements(session) == []
    assert session.codec.wake_at == session.now + LOOK_AGAIN_MS
    session.now += LOOK_AGAIN_MS
    session.emit(session.codec.tick(session.now))
    look = looks(session)
    # It is asked once, however long that takes.
    assert session.codec.tick(session.now + LOOK_AGAIN_MS) == []
    assert session.codec.take_calls() == []
    respond(session, look, 200, PENDING)
    settled = all_of(session, ev.InputSettled)[-1]
    assert (settled.outcome, settled.error.code) == ("refused", "not_delivered")
    assert [e.state for e in all_of(session, ev.InteractionAnswered)] == ["claimed", "released"]
    _, post = answered(session, decision="deny")
    respond(session, post, 200, {})
    assert settlements(session) == ["refused", "taken"]


def test_an_answer_that_arrives_late_is_taken() -> None:
    session, _ = in_doubt("failed")
    respond(session, looks(session), 200, PENDING)
    session.now += LOOK_AGAIN_MS
    session.emit(session.codec.tick(session.now))
    respond(session, looks(session), 200, {"pending": []})
    assert settlements(session) == ["taken"]


@pytest.mark.parametrize("place", ["before the reply", "during the look", "between two looks"])
def test_an_answer_that_the_stream_shows_is_taken(place: str) -> None:
    if place == "before the reply":
        session, call = running(CALL, ASK)
        _, post = answered(session, decision="allow")
        session.feed(call, [RESOLVED])
        error = DragomanError("connection reset")
        assert session.codec.failed(post, error, sent=True, now=session.now) == []
    else:
        session, call = in_doubt("failed")
        look = looks(session)
        if place == "between two looks":
            respond(session, look, 200, PENDING)
        session.feed(call, [RESOLVED])
        if place == "during the look":
            respond(session, look, 200, PENDING)
    assert settlements(session) == ["taken"]
    assert only(session, ev.InteractionResolved).outcome == "approved"
    session.emit(session.codec.tick(session.now + LOOK_AGAIN_MS))
    assert session.codec.take_calls() == []
    assert session.codec.wake_at is None
    assert not session.normalizer.repairs
    # Nothing of it is kept.
    assert not remembers(session.codec, "c2")


def test_an_answer_whose_reply_came_is_settled_once() -> None:
    session, call = running(CALL, ASK)
    _, post = answered(session, decision="allow")
    respond(session, post, 200, {})
    session.feed(call, [RESOLVED])
    assert settlements(session) == ["taken"]
    assert not session.normalizer.repairs


# After a crash.


def crashed_answer() -> tuple[Session, str, AnswerInteraction]:
    session, _ = running(CALL, ASK)
    command_id, _ = answered(session, decision="allow", reason="fine")
    session.restart()
    return session, command_id, AnswerInteraction(request_id="h", decision="allow", reason="fine")


def test_an_answer_that_is_still_pending_was_not_delivered() -> None:
    session, command_id, answer = crashed_answer()
    look = session.codec.recover(command_id, answer)
    assert look is not None
    assert look.request.path == "/hitl/pending"
    respond(session, look, 200, PENDING)
    assert all_of(session, ev.ErrorReported)[-1].code == "input_in_doubt"
    # The time goes on over a restart that comes before it is over, and is not begun again.
    end = session.now + LOOK_AGAIN_MS
    session.now += LOOK_AGAIN_MS // 2
    session.restart()
    look = session.codec.recover(command_id, answer)
    assert look is not None
    respond(session, look, 200, PENDING)
    assert session.codec.wake_at == end
    session.now = end
    session.emit(session.codec.tick(end))
    respond(session, looks(session), 200, PENDING)
    settled = all_of(session, ev.InputSettled)[-1]
    assert (settled.outcome, settled.error.code) == ("refused", "not_delivered")
    assert all_of(session, ev.InteractionAnswered)[-1].state == "released"


def test_an_answer_that_is_no_longer_pending_was_taken() -> None:
    session, command_id, answer = crashed_answer()
    look = session.codec.recover(command_id, answer)
    assert look is not None
    other = {"request_id": "h0", "task_id": "another"}
    respond(session, look, 200, {"pending": [other]})
    assert all_of(session, ev.InputSettled)[-1].outcome == "taken"
    session.replay([STARTED, CALL, ASK, RESOLVED, RESULT])
    resolved = only(session, ev.InteractionResolved)
    assert (resolved.outcome, resolved.answer.reason) == ("approved", "fine")


@pytest.mark.parametrize(
    "reply",
    [(500, b""), (500, {"pending": []}), (200, b"<html>"), (200, {"pending": 1}), None],
)
def test_an_answer_is_unknown_when_what_is_pending_cannot_be_read(reply: Any) -> None:
    session, command_id, answer = crashed_answer()
    look = session.codec.recover(command_id, answer)
    for number in range(LOOKS):
        assert look is not None
        assert settlements(session) == []
        if reply is None:
            error = DragomanError("gone")
            session.emit(session.codec.failed(look, error, sent=True, now=session.now))
        else:
            respond(session, look, *reply)
        if number < LOOKS - 1:
            assert session.codec.wake_at == session.now + LOOK_RETRY_MS
            session.now += LOOK_RETRY_MS
            session.emit(session.codec.tick(session.now))
            look = looks(session)
    assert settlements(session) == ["unknown"]
    assert session.codec.take_calls() == []


def test_a_command_that_leaves_no_trace_is_not_looked_for() -> None:
    session = Session(TASK)
    assert session.codec.recover("c1", cmd.Archive()) is None
    assert session.codec.streams() == ()


# Patience.


def test_patience_is_that_of_what_is_known() -> None:
    timed = frame("thread_lifecycle", phase="started", timestamp="2026-06-09T08:15:00.000Z")
    session = Session(TASK)
    session.execute([timed, text("a")], CloseReason.LOST)
    assert session.codec.patience == 60_000
    session.replay([timed, text("a"), text("b")], CloseReason.LOST)
    assert session.codec.patience == 600_000
    session.replay([])
    assert session.codec.patience == 60_000


def test_a_paused_turn_is_waited_for_as_long_as_the_engine_keeps_it() -> None:
    session, call = running(CALL, ASK)
    session.close(call)
    session.restart()
    assert session.codec.patience == 72 * 3_600_000
    (replay,) = session.codec.streams()
    # A backend that is down says nothing about the turn.
    error = DragomanError("down")
    session.emit(session.codec.failed(replay, error, sent=False, now=session.now))
    assert session.codec.patience == 72 * 3_600_000
    # One that was killed does: its replay is empty.
    session.replay([])
    assert session.codec.patience == 60_000


def test_a_refused_replay_is_asked_for_again() -> None:
    session, call = running(text("a"))
    session.close(call)
    (replay,) = session.codec.streams()
    respond(session, replay, 503, b"")
    assert len(session.codec.streams()) == 1


@pytest.mark.parametrize("reason", [CloseReason.ENDED, CloseReason.LOST])
def test_a_body_that_ends_after_the_next_message_was_sent_ends_nothing_of_that(
    reason: CloseReason,
) -> None:
    session, first = running(text("a"))
    session.feed(first, [COMPLETED])
    session.tick()
    second = session.send()
    session.close(first, reason)
    # A replay beside the stream of the new turn would tell all of it twice.
    assert session.codec.streams() == ()
    session.open(second)
    session.feed(second, [STARTED, text("b"), COMPLETED])
    session.close(second, CloseReason.ENDED)
    session.tick()
    assert [event.text for event in all_of(session, ev.TextDelta)] == ["a", "b"]
    assert [event.outcome for event in all_of(session, ev.TurnEnded)] == ["completed"] * 2


# Commands.


def test_every_command_says_how_it_is_carried_as_the_mapping_says() -> None:
    assert set(ABILITIES) == set(COMMAND_TYPES)
    mapping = parse_mapping((WIRE.parents[2] / "adapters/engine/MAPPING.md").read_text())
    for command, ability in ABILITIES.items():
        row = mapping.command.get(command) or mapping.command[f"{command}:approval"]
        assert row.backend == ability.support.value, command


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (cmd.Interrupt(), "no route that stops a turn"),
        (cmd.ToolResult(call_id="c"), "runs all tools itself"),
        (cmd.Compact(), "compacts by itself"),
        (cmd.Clear(), "no route"),
        (cmd.ArchiveThread(), "one thread"),
        (cmd.DefineOutcome(description="d"), "no outcomes"),
        (SendMessage(content=(), policy="reject", output_schema={}), "`output_schema`"),
        (SendMessage(content=(), policy="reject", system=()), "`system`"),
        (AnswerInteraction(request_id="h", system=()), "`system`"),
        (AnswerInteraction(request_id="h", sealed=cmd.Sealed("pw")), "sealed"),
        (
            SendMessage(
                content=(ev.File(ref=ev.FileId(dialect="managed-agents", id="f1")),),
                policy="reject",
            ),
            "`f1` is known to a managed-agents backend only",
        ),
        (
            AnswerInteraction(request_id="h", content=(ev.SearchResult(source="s", title="t"),)),
            "`search_result` block",
        ),
    ],
)
def test_what_an_engine_cannot_carry_is_refused_before_it_is_stored(
    command: cmd.AnyCommand, reason: str
) -> None:
    with pytest.raises(NotSupported, match=reason):
        EngineClient({"task_id": TASK}).check(command)


@pytest.mark.parametrize(
    "command",
    [
        MESSAGE,
        cmd.CreateSession(),
        cmd.Steer(text="left"),
        cmd.Reset(),
        cmd.Archive(),
        cmd.Delete(),
        cmd.UpdateSession(title="t"),
        AnswerInteraction(request_id="h", decision="allow"),
    ],
)
def test_what_an_engine_or_we_can_carry_passes(command: cmd.AnyCommand) -> None:
    EngineClient({"task_id": TASK}).check(command)


def test_a_message_carries_images_options_and_ids() -> None:
    blob = ev.File(media_type="image/png", ref=ev.Blob(sha256="abc"))
    url = ev.File(ref=ev.Url(url="https://plants.example/leaf.jpg"))
    message = SendMessage(
        content=(ev.Text(text="Which plant is this?"), blob, ev.Text(text="And this?"), url),
        policy="reject",
        options={"super_thinking": True, "direct": True, "mode": "of another dialect"},
        edit_of="m1",
        retry_of="m2",
    )
    call = EngineClient({"task_id": TASK}).submit("c", message)
    assert json.loads(whole(call, {"abc": b"\x89PNG"})) == {
        "message": "Which plant is this?\nAnd this?",
        "task_id": TASK,
        "media": [
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": "image/png",
                    "data": base64.b64encode(b"\x89PNG").decode(),
                },
            },
            {"type": "image", "source": {"type": "url", "url": "https://plants.example/leaf.jpg"}},
        ],
        "super_thinking": True,
        "direct": True,
        "edit_message_id": "m1",
        "retry_message_id": "m2",
    }


@pytest.mark.parametrize(
    ("media_type", "family"),
    [("audio/ogg", "audio"), ("video/mp4", "video"), ("application/pdf", "document")],
)
def test_files_that_are_no_images_get_the_likely_names(media_type: str, family: str) -> None:
    file = ev.File(media_type=media_type, ref=ev.Url(url="https://a.example/f"))
    message = SendMessage(content=(file,), policy="reject")
    call = EngineClient({"task_id": TASK}).submit("c", message)
    body = json.loads(call.request.body or b"")
    assert (body["message"], body["media"][0]["type"]) == ("", family)


def test_a_block_of_the_engines_own_dialect_passes_unchanged() -> None:
    block = {"type": "hologram", "source": {"type": "url", "url": "https://a.example/h"}}
    message = SendMessage(content=(ev.Other(dialect="engine", value=block),), policy="reject")
    client = EngineClient({"task_id": TASK})
    client.check(message)
    assert json.loads(client.submit("c", message).request.body or b"")["media"] == [block]


def test_a_context_stands_before_the_message() -> None:
    message = SendMessage(
        content=(ev.Text(text="Go on."),), policy="reject", client_context=["a page", {"x": 1}]
    )
    call = EngineClient({"task_id": TASK}).submit("c", message)
    assert json.loads(call.request.body or b"")["message"] == (
        'Client context:\na page\n\nClient context:\n{"x":1}\n\nGo on.'
    )


def test_an_interrupt_denies_a_held_permission_where_that_is_set() -> None:
    session = Session(TASK, interrupt="deny")
    assert session.codec.abilities["interrupt"].support is Support.EMULATED
    call = session.send()
    session.open(call)
    session.feed(call, [STARTED, CALL, ASK])
    session.codec.check(cmd.Interrupt())
    post = session.send(cmd.Interrupt())
    assert json.loads(post.request.body or b"") == {
        "task_id": TASK,
        "answer": "no",
        "feedback": "stop",
    }
    respond(session, post, 200, {})
    session.feed(call, [RESOLVED, text("Fine."), COMPLETED])
    assert only(session, ev.InteractionResolved).outcome == "denied"
    # The turn's end is reported as it comes.
    assert only(session, ev.TurnEnded).outcome == "completed"


@pytest.mark.parametrize("frames", [[], [frame("hitl_request", request_id="h", kind="question")]])
def test_an_interrupt_with_nothing_to_deny_is_refused(frames: list[SseFrame]) -> None:
    session = Session(TASK, interrupt="deny")
    call = session.send()
    session.open(call)
    session.feed(call, [STARTED, *frames])
    with pytest.raises(NotSupported, match="denies a held permission"):
        session.codec.check(cmd.Interrupt())
    with pytest.raises(NotSupported, match="denies a held permission"):
        session.codec.submit("c2", cmd.Interrupt())


def test_a_refused_interrupt_takes_nobodys_claim() -> None:
    session = Session(TASK, interrupt="deny")
    call = session.send()
    session.open(call)
    session.feed(call, [STARTED, CALL, ASK])
    post = session.send(cmd.Interrupt())
    respond(session, post, 409, {"error": "X", "message": "no"})
    assert all_of(session, ev.InputSettled)[-1].outcome == "refused"
    assert all_of(session, ev.InteractionAnswered) == []


def test_other_commands_have_no_call() -> None:
    with pytest.raises(NotSupported, match="nothing carries `archive`"):
        EngineClient({"task_id": TASK}).submit("c", cmd.Archive())


def test_a_refusal_quotes_no_more_than_its_beginning() -> None:
    assert len(refusal(Response(500, body=b"x" * 5000)).message) < 600


# The state.


def test_a_new_codec_can_be_restored_from_nothing() -> None:
    codec = EngineClient({"task_id": TASK})
    codec.restore(None, None)
    assert (codec.frames, codec.streams(), codec.wake_at) == (0, (), None)


def test_a_position_is_short_while_only_text_comes() -> None:
    session, call = running(text("a"))
    session.feed(call, [text(f"word {n}") for n in range(100)])
    assert len(session.codec.position) < 200


def test_what_is_restored_ticks_at_the_same_time() -> None:
    session, _ = running(CALL, USAGE)
    # Something is stored while the call is held.
    session.accept(MESSAGE)
    wake_at = session.codec.wake_at
    session.restart()
    assert session.codec.wake_at == wake_at
    session.tick()
    assert permission_of(session) == ["unknown"]


def test_the_clock_of_the_recordings_is_read() -> None:
    session, call = running(frame("hitl_request", request_id="h", created_at="no time"))
    session.close(call)
    (replay,) = session.codec.streams()
    assert replay.request.query["after"] == "0"
    assert START == 1_780_992_900_000


def test_an_event_without_a_timestamp_has_the_time_at_which_it_was_made() -> None:
    made = "2026-06-09T08:15:00.000Z"
    session, _ = running(frame("hitl_request", request_id="h", created_at=made))
    assert only(session, ev.InteractionRequested).native.at == made


def test_a_permission_takes_yes_or_no() -> None:
    session, _ = running(CALL, ASK)
    options = only(session, ev.InteractionRequested).options
    assert [(o.id, o.decision) for o in options] == [("approve", "allow"), ("deny", "deny")]


# What is remembered has a bound.


def call(number: int, **payload: object) -> SseFrame:
    payload = {"tool": "bash", "tool_call_id": f"call-{number}", "input": {"n": number}} | payload
    return frame("tool_call", **payload)


def test_few_bytes_of_the_inputs_of_open_calls_are_remembered() -> None:
    long = {"command": "x" * (KEPT_BYTES // 2 - 100)}
    session, stream = running(*(call(number, input=long) for number in range(80)))
    session.tick()
    assert len(all_of(session, ev.ToolCalled)) == 80
    assert len(session.codec.snapshot()) < 1.2 * KEPT_BYTES
    for number in (0, 5):
        asks = {"kind": "permission", "question": "Ok?", "tool_call_id": f"call-{number}"}
        session.feed(stream, [frame("hitl_request", request_id=f"r{number}", **asks)])
    first, later = (e.details for e in all_of(session, ev.InteractionRequested))
    assert first == {"tool": "bash", "input": long}
    assert later == {"tool": "bash"}


@pytest.mark.parametrize("field", ["tool", "tool_call_id"])
def test_a_name_that_is_far_too_long_is_none(field: str) -> None:
    session, _ = running(call(7, **{field: "x" * (MOST_NAME + 1)}))
    session.tick()
    called = only(session, ev.ToolCalled)
    assert called.name == ("unknown" if field == "tool" else "bash")
    assert called.call_id == ("call-7" if field == "tool" else "call-1")


def test_ids_of_requests_and_turns_that_are_far_too_long_are_none() -> None:
    long = "x" * (MOST_NAME + 1)
    begun = frame("thread_lifecycle", phase="started", task_id=TASK, turn_id=long)
    session = Session(TASK)
    session.execute([begun, frame("hitl_request", kind="question", request_id=long)])
    assert only(session, ev.TurnStarted).turn_id == "turn-1"
    assert only(session, ev.InteractionRequested).request_id == "hitl-1"


def test_a_long_question_is_compared_with_calls_by_its_begin() -> None:
    words = "y" * 4_000
    session, stream = running(call(0, input={"a": "first"}), call(1, input={"a": "second"}))
    session.feed(stream, [frame("hitl_request", kind="permission", question=f"second {words}")])
    assert only(session, ev.InteractionRequested).call_id == "call-1"
    session, stream = running(call(0, input={"a": "first"}), call(1, input={"a": "second"}))
    session.feed(stream, [frame("hitl_request", kind="permission", question=f"{words} second")])
    assert only(session, ev.InteractionRequested).call_id == "call-0"


# What is asked when the stream tells nothing.


def looked(session: Session, *pending: object) -> list[ev.Event]:
    """Have the codec ask how the turn stands, and answer with what is pending."""
    assert session.codec.look(session.now)
    (call,) = session.codec.take_calls()
    assert (call.request.method, call.request.path) == ("GET", "/hitl/pending")
    before = len(session.log)
    respond(session, call, 200, {"pending": list(pending)})
    return session.log[before:]


def asked(request_id: str, *, task: str = TASK, at: str = "2026-06-09T08:00:00Z") -> object:
    return {
        "request_id": request_id,
        "task_id": task,
        "kind": "permission",
        "question": "Overwrite?",
        "created_at": at,
    }


def test_a_request_that_the_stream_did_not_show_is_asked() -> None:
    session, call = running(text("a"))
    events = looked(session, asked("other", task="t2"), asked("h1"))
    assert [event.TYPE for event in events[-2:]] == ["interaction.requested", "turn.paused"]
    (request,) = [one for one in events if isinstance(one, ev.InteractionRequested)]
    assert (request.request_id, request.kind, request.prompt) == ("h1", "approval", "Overwrite?")
    # The stream shows it late.
    again = frame("hitl_request", request_id="h1", kind="permission", question="Overwrite?")
    assert looked(session, asked("h1")) == []
    assert session.codec.feed(call, again, session.now) == []


def test_a_request_that_is_pending_no_more_is_over() -> None:
    request = frame("hitl_request", request_id="h1", kind="permission", question="Overwrite?")
    session, _ = running(request)
    assert looked(session, asked("h1", at="2026-06-09T07:00:00Z")) == []
    events = looked(session)
    assert [event.TYPE for event in events] == ["interaction.resolved", "turn.resumed"]


def test_what_was_asked_before_the_newest_frame_is_not_asked_again() -> None:
    late = frame("thinking_delta", text="x", timestamp="2026-06-09T08:00:01Z")
    session, _ = running(late)
    assert looked(session, asked("h1"), asked("h2", at="soon"), {"task_id": TASK}, 7) == []


def test_nothing_is_asked_where_no_turn_runs() -> None:
    session = run(text("a"), COMPLETED)
    assert looked(session, asked("h1")) == []
