"""Whatever a backend sends, the log obeys the laws (design section 3)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.model import events as ev
from adapters.model.normalizer import _RULES, Normalizer, Rule
from adapters.model.raw import BlockEnded
from adapters.model.state import LogState

# Few names, so that they meet: repeated ids, ids of ended turns, results of other turns' calls.
threads = st.sampled_from(["main", "main", "main", "kid"])
turns = st.sampled_from(["t1", "t2", "t3", "t1~2", "turn-0", None, None, ""])
blocks = st.sampled_from(["b1", "b2"])
calls = st.sampled_from(["c1", "c2", "c1~2"])
requests = st.sampled_from(["r1", "r2", "r3", "r1~2"])
commands = st.sampled_from(["i1", "i2", "i3"])
steps = st.integers(0, 2)
texts = st.sampled_from(["", "a", "ab", "abc", "b"])
contents = st.just((ev.Text(text="hi"),))
errors = st.none() | st.just(ev.ErrorInfo(code="E", message="m"))


def of_turn(cls: Any, **fields: Any) -> st.SearchStrategy[ev.Event]:
    return st.builds(cls, thread_id=threads, turn_id=turns, **fields)


block_fields = {"block_id": blocks, "message_id": st.just("m"), "text": texts}

EVENTS: dict[str, st.SearchStrategy[ev.Event]] = {
    "session.started": of_turn(ev.SessionStarted),
    "session.updated": of_turn(ev.SessionUpdated, title=st.none() | texts),
    "input.accepted": of_turn(
        ev.InputAccepted,
        command_id=commands,
        kind=st.sampled_from(["message", "steer", "answer"]),
        by=st.just("key"),
    ),
    "input.settled": of_turn(
        ev.InputSettled, command_id=commands, outcome=st.sampled_from(["taken", "refused"])
    ),
    "message.received": of_turn(
        ev.MessageReceived,
        message_id=st.just("m"),
        content=contents,
        command_id=st.none() | commands,
    ),
    "guidance.received": of_turn(ev.GuidanceReceived, text=texts, command_id=st.none() | commands),
    "turn.started": of_turn(ev.TurnStarted, cause=st.just("message")),
    "turn.paused": of_turn(
        ev.TurnPaused,
        on=st.sampled_from(["input", "input", "tasks", "retry"]),
        request_ids=st.lists(requests, max_size=2).map(tuple),
    ),
    "turn.resumed": of_turn(ev.TurnResumed),
    "turn.ended": of_turn(
        ev.TurnEnded, outcome=st.sampled_from(["completed", "failed", "interrupted"]), error=errors
    ),
    "step.started": of_turn(ev.StepStarted, step_index=steps),
    "step.ended": of_turn(ev.StepEnded, step_index=steps, error=errors),
    "text.delta": of_turn(ev.TextDelta, **block_fields),
    "text.completed": of_turn(
        ev.TextCompleted,
        **block_fields,
        status=st.sampled_from(["complete", "partial", "discarded"]),
    ),
    "reasoning.delta": of_turn(ev.ReasoningDelta, **block_fields),
    "reasoning.completed": of_turn(ev.ReasoningCompleted, **block_fields),
    "raw.block_ended": of_turn(
        BlockEnded,
        block=st.sampled_from(["text", "reasoning"]),
        status=st.sampled_from(["complete", "partial", "discarded"]),
    ),
    "tool.input_delta": of_turn(ev.ToolInputDelta, call_id=calls, text=texts),
    "tool.called": of_turn(ev.ToolCalled, call_id=calls, name=st.just("run")),
    "tool.progressed": of_turn(ev.ToolProgressed, call_id=calls),
    "tool.returned": of_turn(
        ev.ToolReturned,
        call_id=calls,
        extra=st.none() | st.just({"name": "grep"}) | st.just({"name": 5}),
    ),
    "interaction.requested": of_turn(
        ev.InteractionRequested,
        request_id=requests,
        kind=st.just("approval"),
        prompt=texts,
        shown_on=st.none() | threads,
        call_id=st.none() | calls,
    ),
    "interaction.answered": of_turn(
        ev.InteractionAnswered,
        request_id=requests,
        command_id=commands,
        by=st.just("key"),
        state=st.sampled_from(["claimed", "released"]),
    ),
    "interaction.updated": of_turn(
        ev.InteractionUpdated, request_id=requests, details=st.just({"x": 1})
    ),
    "interaction.resolved": of_turn(
        ev.InteractionResolved, request_id=requests, outcome=st.just("approved")
    ),
    "thread.started": of_turn(ev.ThreadStarted, parent=st.just("main")),
    "thread.ended": of_turn(
        ev.ThreadEnded, status=st.sampled_from(["completed", "failed", "cancelled"])
    ),
    "result.produced": of_turn(ev.ResultProduced, value=st.none()),
    "usage.reported": of_turn(ev.UsageReported, usage=st.just(ev.Usage(input_tokens=1))),
    "context.compacted": of_turn(ev.ContextCompacted),
    "error.reported": of_turn(ev.ErrorReported, code=st.just("E"), message=texts),
    "gap": of_turn(ev.Gap, reason=texts),
}
"""Hostile raw events of every kind that a rule exists for, and of some that pass as they are."""

ENDS = of_turn(
    ev.SessionEnded, outcome=st.sampled_from(["completed", "failed", "terminated", "deleted"])
)


@st.composite
def streams(draw: st.DrawFn) -> list[list[ev.Event]]:
    """Frames of raw events: one to three each, some of them repeated, sometimes an end."""
    some = st.one_of(*EVENTS.values())
    frames = draw(st.lists(st.lists(some, min_size=1, max_size=3), max_size=40))
    out: list[list[ev.Event]] = []
    for frame in frames:
        out.append(frame)
        if draw(st.integers(0, 9)) == 0:
            out.append(frame)
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(out)))
        out.insert(at, [draw(ENDS)])
    return out


def test_every_type_with_a_rule_is_generated() -> None:
    made = {"session.ended", "raw.cut_delta", "raw.mended"}
    assert set(_RULES) - set(EVENTS) == made


@given(streams())
@settings(max_examples=400)
def test_a_hostile_stream_becomes_a_lawful_log(frames: list[list[ev.Event]]) -> None:
    normalizer = Normalizer()
    log = [event for frame in frames for event in normalizer.feed(frame)]
    state = LogState()
    for seq, event in enumerate(log, 1):
        assert not isinstance(event, BlockEnded)
        state.apply_entry(ev.Entry(seq, 1, "s", event))
    state.seq = state.at = 0
    assert state == normalizer.state


@given(streams())
def test_the_same_stream_gives_the_same_log(frames: list[list[ev.Event]]) -> None:
    one, two = Normalizer(), Normalizer()
    assert [one.feed(frame) for frame in frames] == [two.feed(frame) for frame in frames]
    assert (one.repairs, one.late) == (two.repairs, two.late)


@given(streams())
def test_the_state_can_be_put_back_at_any_point(frames: list[list[ev.Event]]) -> None:
    whole, stored = Normalizer(), Normalizer()
    for frame in frames:
        stored = Normalizer(LogState.restore(stored.state.snapshot()))
        assert stored.feed(frame) == whole.feed(frame)
    assert stored.state == whole.state


@given(streams())
def test_the_state_is_the_fold_of_the_log_as_it_is_stored(frames: list[list[ev.Event]]) -> None:
    normalizer = Normalizer()
    state = LogState()
    for frame in frames:
        for event in normalizer.feed(frame):
            row = ev.Entry(state.seq + 1, 1, "s", event).encode_row()
            state.apply_entry(ev.Entry.decode(row, session_id="s"))
    state.seq = state.at = 0
    assert state == normalizer.state


@given(streams())
def test_only_what_is_counted_is_lost(frames: list[list[ev.Event]]) -> None:
    """Words that a person or the agent said are in the log, or in the count of a rule."""
    normalizer = Normalizer()
    log = [event for frame in frames for event in normalizer.feed(frame)]
    raw = [event for frame in frames for event in frame]
    for cls in (ev.MessageReceived, ev.ToolReturned, ev.InteractionRequested, ev.TextCompleted):
        said = sum(isinstance(event, cls) for event in raw)
        kept = sum(isinstance(event, cls) and not event.synthetic for event in log)
        lost = sum(isinstance(event, cls) for event in normalizer.late)
        as_native = sum(isinstance(e, ev.Native) and e.name == cls.TYPE for e in log)
        assert kept + lost + as_native >= said
    added = sum(event.synthetic for event in log)
    assert added <= normalizer.repairs.total()


@given(streams())
def test_nothing_but_an_input_that_comes_twice_is_beyond_repair(
    frames: list[list[ev.Event]],
) -> None:
    normalizer = Normalizer()
    log = [event for frame in frames for event in normalizer.feed(frame)]
    beyond = {event.name for event in log if isinstance(event, ev.Native)}
    assert beyond <= {"input.accepted"}
    assert bool(beyond) == bool(normalizer.repairs[Rule.UNREPAIRED])
