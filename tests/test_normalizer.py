"""Every rule of the normalizer: raw events in, lawful events out, the repair counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from adapters.model import events as ev
from adapters.model.normalizer import ABANDONED, END_MISSING, Normalizer, Rule
from adapters.model.raw import BlockEnded, CutDelta, mended
from adapters.model.state import BLOCK_TEXT, OPEN_TEXT, RECENT_IDS, REPAIRED, LogState
from tests.support.each import each

M = ev.MAIN
USAGE = ev.Usage(input_tokens=1)


def start(turn: str | None = "t1", thread: str = M) -> ev.TurnStarted:
    return ev.TurnStarted(thread_id=thread, turn_id=turn, cause="message")


def end(turn: str | None = "t1", outcome: Any = "completed", thread: str = M) -> ev.TurnEnded:
    return ev.TurnEnded(thread_id=thread, turn_id=turn, outcome=outcome)


def delta(text: str, block: str = "b1", turn: str | None = "t1") -> ev.TextDelta:
    return ev.TextDelta(thread_id=M, turn_id=turn, block_id=block, message_id="m", text=text)


def thought(text: str, block: str = "r1") -> ev.ReasoningDelta:
    return ev.ReasoningDelta(thread_id=M, turn_id="t1", block_id=block, message_id="m", text=text)


def said(text: str, block: str = "b1", **fields: Any) -> ev.TextCompleted:
    return ev.TextCompleted(
        thread_id=M, turn_id="t1", block_id=block, message_id="m", text=text, **fields
    )


def called(call: str = "c1", turn: str | None = "t1") -> ev.ToolCalled:
    return ev.ToolCalled(thread_id=M, turn_id=turn, call_id=call, name="run")


def returned(call: str = "c1", turn: str | None = "t1", **fields: Any) -> ev.ToolReturned:
    return ev.ToolReturned(thread_id=M, turn_id=turn, call_id=call, output=1, **fields)


def asked(request: str = "r1", turn: str = "t1", **fields: Any) -> ev.InteractionRequested:
    return ev.InteractionRequested(
        thread_id=M, turn_id=turn, request_id=request, kind="question", prompt="?", **fields
    )


def paused(*requests: str, on: Any = "input", turn: str = "t1") -> ev.TurnPaused:
    return ev.TurnPaused(thread_id=M, turn_id=turn, on=on, request_ids=requests)


def resolved(request: str = "r1") -> ev.InteractionResolved:
    return ev.InteractionResolved(thread_id=M, request_id=request, outcome="answered")


def claim(request: str = "r1", state: Any = "claimed") -> ev.InteractionAnswered:
    return ev.InteractionAnswered(
        thread_id=M, request_id=request, command_id="i1", by="key", state=state
    )


WHOLE = "w" * BLOCK_TEXT
"""A text that one block has just room for."""


def accepted(command: str = "i1", kind: Any = "message") -> ev.InputAccepted:
    return ev.InputAccepted(thread_id=M, command_id=command, kind=kind, by="key")


def settled(command: str = "i1", outcome: Any = "taken") -> ev.InputSettled:
    return ev.InputSettled(thread_id=M, command_id=command, outcome=outcome)


def received(command: str | None = "i1", turn: str | None = None) -> ev.MessageReceived:
    return ev.MessageReceived(
        thread_id=M,
        turn_id=turn,
        message_id="m",
        content=(ev.Text(text="hi"),),
        command_id=command,
    )


def step(index: int) -> ev.StepStarted:
    return ev.StepStarted(thread_id=M, turn_id="t1", step_index=index)


def stepped(index: int) -> ev.StepEnded:
    return ev.StepEnded(thread_id=M, turn_id="t1", step_index=index, usage=USAGE)


def normalized(raw: Sequence[ev.Event]) -> tuple[list[ev.Event], Normalizer]:
    """Feed the events one by one, as frames bring them; check that the result obeys the laws."""
    normalizer = Normalizer()
    out = [event for item in raw for event in normalizer.feed([item])]
    state = LogState()
    for event in out:
        state.apply(event)
    assert state == normalizer.state
    return out, normalizer


def short(event: ev.Event) -> str:
    """Return an event as one word and, where it is ours, an asterisk."""
    details: dict[str, Callable[[Any], str]] = {
        "turn.started": lambda e: e.turn_id,
        "turn.ended": lambda e: f"{e.turn_id}={e.outcome}",
        "turn.paused": lambda e: "+".join(e.request_ids) or e.on,
        "text.delta": lambda e: e.text,
        "text.completed": lambda e: f"{e.text}={e.status}",
        "reasoning.completed": lambda e: f"{e.text}={e.status}",
        "tool.called": lambda e: e.call_id,
        "tool.returned": lambda e: f"{e.call_id}={e.status}",
        "interaction.resolved": lambda e: f"{e.request_id}={e.outcome}",
        "interaction.answered": lambda e: e.state,
        "step.started": lambda e: str(e.step_index),
        "step.ended": lambda e: str(e.step_index),
        "input.settled": lambda e: e.outcome,
        "native": lambda e: e.name,
    }
    detail = details.get(event.TYPE)
    word = event.TYPE if detail is None else f"{event.TYPE} {detail(event)}"
    return word + "*" * event.synthetic


OPEN = [start()]
PAUSED = [start(), asked("r1"), asked("r2"), paused("r1", "r2")]
PAUSED_OUT = [
    "turn.started t1",
    "interaction.requested",
    "interaction.requested",
    "turn.paused r1+r2",
]


def cut(before: int | None, text: str, after: int | None, block: str = "b1") -> CutDelta:
    one = delta(text, block)
    return CutDelta(thread_id=M, turn_id="t1", delta=one, before=before, after=after)


HIGH, LOW = 0xD83D, 0xDE00

TABLE: list[tuple[Rule, list[ev.Event], list[str]]] = [
    (Rule.HALF_CHARACTER, [*OPEN, mended(), delta("a")], ["turn.started t1", "text.delta a"]),
    (
        Rule.JOINED_CHARACTER,
        [*OPEN, cut(None, "a", HIGH), cut(LOW, "b", None)],
        ["turn.started t1", "text.delta a", "text.delta \U0001f600b"],
    ),
    (
        Rule.JOINED_CHARACTER,
        [
            *OPEN,
            cut(None, "", HIGH),
            mended(),
            thought("x"),
            cut(LOW, "", HIGH),
            cut(LOW, "", None),
        ],
        ["turn.started t1", "reasoning.delta", "text.delta \U0001f600", "text.delta \U0001f600"],
    ),
    (Rule.OPEN_TURN, [delta("a")], ["turn.started t1*", "text.delta a"]),
    (Rule.OPEN_TURN, [delta("a", turn=None)], ["turn.started turn-0*", "text.delta a"]),
    (Rule.OPEN_TURN, [end(None)], ["turn.started turn-0*", "turn.ended turn-0=completed"]),
    (Rule.SAME_TURN, [*OPEN, start()], ["turn.started t1"]),
    (Rule.SAME_TURN, [*OPEN, start(None)], ["turn.started t1"]),
    (Rule.SAME_TURN, [*OPEN, start("")], ["turn.started t1"]),
    (
        Rule.END_PREVIOUS_TURN,
        [*OPEN, start("t2")],
        ["turn.started t1", "turn.ended t1=failed*", "turn.started t2"],
    ),
    (
        Rule.END_PREVIOUS_TURN,
        [*OPEN, delta("a", turn="t2")],
        ["turn.started t1", "turn.ended t1=failed*", "turn.started t2*", "text.delta a"],
    ),
    (
        Rule.END_OPEN_TURN,
        [*OPEN, ev.SessionEnded(thread_id=M, outcome="failed")],
        ["turn.started t1", "turn.ended t1=failed*", "session.ended"],
    ),
    (
        Rule.END_OPEN_TURN,
        [start("t1", "kid"), ev.ThreadEnded(thread_id="kid", status="cancelled")],
        ["turn.started t1", "turn.ended t1=interrupted*", "thread.ended"],
    ),
    (
        Rule.RENAME_TURN,
        [start(), end(), start(), delta("a"), end()],
        [
            "turn.started t1",
            "turn.ended t1=completed",
            "turn.started t1~2",
            "text.delta a",
            "text.completed a=complete*",
            "turn.ended t1~2=completed",
        ],
    ),
    (
        Rule.OUTSIDE_TURN,
        [start(), end(), ev.UsageReported(thread_id=M, turn_id="t1", usage=USAGE)],
        ["turn.started t1", "turn.ended t1=completed", "usage.reported"],
    ),
    (Rule.RESUME, [*PAUSED, delta("a")], [*PAUSED_OUT, "turn.resumed*", "text.delta a"]),
    (Rule.RESUME, [*OPEN, ev.TurnResumed(thread_id=M, turn_id="t1")], ["turn.started t1"]),
    (
        Rule.PAUSE_AGAIN,
        [*PAUSED, resolved("r1")],
        [*PAUSED_OUT, "interaction.resolved r1=answered", "turn.paused r2*"],
    ),
    (
        Rule.PAUSE_AGAIN,
        [*PAUSED, asked("r3")],
        [*PAUSED_OUT, "interaction.requested", "turn.paused r1+r2+r3*"],
    ),
    (
        Rule.PAUSE_AGAIN,
        [*PAUSED, claim(), claim(state="released")],
        [
            *PAUSED_OUT,
            "interaction.answered claimed",
            "interaction.answered released",
            "turn.paused r1+r2*",
        ],
    ),
    (
        Rule.PAUSE_NAMES,
        [*OPEN, asked("r1"), paused("r9")],
        ["turn.started t1", "interaction.requested", "turn.paused r1"],
    ),
    (Rule.PAUSE_NAMES, [*OPEN, paused("r1", on="tasks")], ["turn.started t1", "turn.paused tasks"]),
    (
        Rule.SAME_PAUSE,
        [*PAUSED, resolved("r1"), paused("r2")],
        [*PAUSED_OUT, "interaction.resolved r1=answered", "turn.paused r2*"],
    ),
    (Rule.SAME_PAUSE, [*PAUSED, paused()], PAUSED_OUT),
    (Rule.EMPTY_PAUSE, [*OPEN, paused("r1")], ["turn.started t1"]),
    (Rule.EMPTY_PAUSE, [paused()], []),
    (
        # Between two answers that came at once nobody is waited for.
        Rule.ANSWERED_PAUSE,
        [*PAUSED, claim("r1"), claim("r2"), resolved("r1"), paused("r2"), resolved("r2")],
        [
            *PAUSED_OUT,
            *["interaction.answered claimed"] * 2,
            "interaction.resolved r1=answered",
            "interaction.resolved r2=answered",
        ],
    ),
    (
        # And is when the second one comes to nothing.
        Rule.ANSWERED_PAUSE,
        [
            *(*PAUSED, claim("r1"), claim("r2"), resolved("r1"), paused("r2")),
            claim("r2", state="released"),
        ],
        [
            *PAUSED_OUT,
            *["interaction.answered claimed"] * 2,
            "interaction.resolved r1=answered",
            "interaction.answered released",
            "turn.paused r2*",
        ],
    ),
    (
        # Also where the backend has said meanwhile that it works.
        Rule.ANSWERED_PAUSE,
        [
            *(*PAUSED, claim("r1"), claim("r2"), ev.TurnResumed(thread_id=M, turn_id="t1")),
            *(resolved("r1"), paused("r2"), claim("r2", state="released")),
        ],
        [
            *PAUSED_OUT,
            *["interaction.answered claimed"] * 2,
            "turn.resumed",
            "interaction.resolved r1=answered",
            "interaction.answered released",
            "turn.paused r2*",
        ],
    ),
    (
        # One that works shows no pause for it.
        Rule.ANSWERED_PAUSE,
        [
            *(*PAUSED, claim("r1"), claim("r2"), resolved("r1"), paused("r2"), delta("a")),
            claim("r2", state="released"),
        ],
        [
            *PAUSED_OUT,
            *["interaction.answered claimed"] * 2,
            "interaction.resolved r1=answered",
            "turn.resumed*",
            "text.delta a",
            "interaction.answered released",
        ],
    ),
    (Rule.LATE, [start(), end(), delta("a")], ["turn.started t1", "turn.ended t1=completed"]),
    (Rule.LATE, [start(), end(), end()], ["turn.started t1", "turn.ended t1=completed"]),
    (Rule.LATE, [start(), end(), end(None)], ["turn.started t1", "turn.ended t1=completed"]),
    (
        Rule.LATE,
        [start(), end(), BlockEnded(thread_id=M, turn_id="t1", block="text")],
        ["turn.started t1", "turn.ended t1=completed"],
    ),
    (
        Rule.LATE,
        [*OPEN, ev.ToolProgressed(thread_id=M, turn_id="t1", call_id="c")],
        ["turn.started t1"],
    ),
    (
        Rule.LATE,
        [*OPEN, step(0), stepped(0), stepped(0)],
        ["turn.started t1", "step.started 0", "step.ended 0"],
    ),
    (
        Rule.LATE,
        [
            ev.ThreadEnded(thread_id="kid", status="completed"),
            ev.ThreadEnded(thread_id="kid", status="failed"),
        ],
        ["thread.ended"],
    ),
    (
        Rule.CLOSE_BLOCK,
        [*OPEN, delta("a"), delta("b", "b2")],
        ["turn.started t1", "text.delta a", "text.completed a=complete*", "text.delta b"],
    ),
    (
        Rule.CLOSE_BLOCK,
        [*OPEN, thought("h"), delta("a"), end(outcome="interrupted")],
        [
            "turn.started t1",
            "reasoning.delta",
            "text.delta a",
            "reasoning.completed h=partial*",
            "text.completed a=partial*",
            "turn.ended t1=interrupted",
        ],
    ),
    (
        Rule.LONG_BLOCK,
        [*OPEN, delta("a" * BLOCK_TEXT), delta("b"), end(outcome="interrupted")],
        [
            "turn.started t1",
            f"text.delta {'a' * BLOCK_TEXT}",
            f"text.completed {'a' * BLOCK_TEXT}=complete*",
            "text.delta b",
            "text.completed b=partial*",
            "turn.ended t1=interrupted",
        ],
    ),
    (
        Rule.MISSING_DELTA,
        [*OPEN, delta("ab"), said("abcd")],
        ["turn.started t1", "text.delta ab", "text.delta cd*", "text.completed abcd=complete"],
    ),
    (
        Rule.MISSING_DELTA,
        [*OPEN, said("whole")],
        ["turn.started t1", "text.delta whole*", "text.completed whole=complete"],
    ),
    (
        Rule.MISSING_DELTA,
        [*PAUSED, said("whole")],
        [*PAUSED_OUT, "turn.resumed*", "text.delta whole*", "text.completed whole=complete"],
    ),
    (
        Rule.TEXT_DIFFERS,
        [*OPEN, delta("tick "), said("tick")],
        ["turn.started t1", "text.delta tick ", "text.completed tick=complete"],
    ),
    (
        Rule.CLOSE_STEP,
        [*OPEN, step(0), step(1)],
        ["turn.started t1", "step.started 0", "step.ended 0*", "step.started 1"],
    ),
    (
        Rule.CLOSE_STEP,
        [*OPEN, step(0), end()],
        ["turn.started t1", "step.started 0", "step.ended 0*", "turn.ended t1=completed"],
    ),
    (
        Rule.OPEN_STEP,
        [*OPEN, step(0), stepped(1)],
        ["turn.started t1", "step.started 0", "step.ended 0*", "step.started 1*", "step.ended 1"],
    ),
    (
        Rule.ABANDONED_CALL,
        [*OPEN, called(), end()],
        [
            "turn.started t1",
            "tool.called c1",
            "tool.returned c1=interrupted*",
            "turn.ended t1=completed",
        ],
    ),
    (
        Rule.RENAME_CALL,
        [*OPEN, called(), returned(), called(), returned()],
        [
            "turn.started t1",
            "tool.called c1",
            "tool.returned c1=completed",
            "tool.called c1~2",
            "tool.returned c1~2=completed",
        ],
    ),
    (
        Rule.RESULT_WITHOUT_CALL,
        [*OPEN, returned()],
        ["turn.started t1", "tool.called c1*", "tool.returned c1=completed"],
    ),
    (
        Rule.RESULT_WITHOUT_CALL,
        [*PAUSED, returned()],
        [*PAUSED_OUT, "turn.resumed*", "tool.called c1*", "tool.returned c1=completed"],
    ),
    (
        Rule.SECOND_RESULT,
        [*OPEN, called(), returned(), returned()],
        ["turn.started t1", "tool.called c1", "tool.returned c1=completed"],
    ),
    (
        Rule.SECOND_RESULT,
        [*OPEN, called(), returned(turn="t2")],
        [
            "turn.started t1",
            "tool.called c1",
            "tool.returned c1=interrupted*",
            "turn.ended t1=failed*",
            "turn.started t2*",
        ],
    ),
    (Rule.REPEATED_INTERACTION, [*PAUSED, asked("r1")], PAUSED_OUT),
    (
        Rule.REPEATED_INTERACTION,
        [*OPEN, asked(), resolved(), asked()],
        ["turn.started t1", "interaction.requested", "interaction.resolved r1=answered"],
    ),
    (
        Rule.RENAME_INTERACTION,
        [*OPEN, asked(), end(), start("t2"), asked(turn="t2"), paused("r1", turn="t2"), resolved()],
        [
            "turn.started t1",
            "interaction.requested",
            "interaction.resolved r1=withdrawn*",
            "turn.ended t1=completed",
            "turn.started t2",
            "interaction.requested",
            "turn.paused r1~2",
            "interaction.resolved r1~2=answered",
        ],
    ),
    (
        # The end of the turn before was never told.
        Rule.RENAME_INTERACTION,
        [*OPEN, asked(), asked(turn="t2")],
        [
            "turn.started t1",
            "interaction.requested",
            "interaction.resolved r1=withdrawn*",
            "turn.ended t1=failed*",
            "turn.started t2*",
            "interaction.requested",
        ],
    ),
    (Rule.UNKNOWN_INTERACTION, [resolved("r9")], []),
    (Rule.UNKNOWN_INTERACTION, [claim("r9")], []),
    (
        Rule.SECOND_CLAIM,
        [*OPEN, asked(), claim(), claim()],
        ["turn.started t1", "interaction.requested", "interaction.answered claimed"],
    ),
    (
        Rule.SECOND_CLAIM,
        [*OPEN, asked(), claim(state="released")],
        ["turn.started t1", "interaction.requested"],
    ),
    (
        Rule.LEFT_INTERACTION,
        [*OPEN, asked(), end()],
        [
            "turn.started t1",
            "interaction.requested",
            "interaction.resolved r1=withdrawn*",
            "turn.ended t1=completed",
        ],
    ),
    (
        Rule.LEFT_INTERACTION,
        [*OPEN, asked(), end(outcome="interrupted")],
        [
            "turn.started t1",
            "interaction.requested",
            "interaction.resolved r1=cancelled*",
            "turn.ended t1=interrupted",
        ],
    ),
    (
        Rule.ECHO_SETTLES,
        [accepted(), received()],
        ["input.accepted", "input.settled taken*", "message.received"],
    ),
    (
        Rule.SECOND_SETTLEMENT,
        [accepted(), settled(), settled(outcome="refused")],
        ["input.accepted", "input.settled taken"],
    ),
    (
        Rule.SECOND_RECEIPT,
        [accepted(), settled(), received(), received()],
        ["input.accepted", "input.settled taken", "message.received"],
    ),
    (Rule.FOREIGN_RECEIPT, [received("i9")], ["message.received"]),
    (
        Rule.FOREIGN_RECEIPT,
        [accepted(), settled(outcome="refused"), received()],
        ["input.accepted", "input.settled refused", "message.received"],
    ),
    (
        Rule.SESSION_STARTED_AGAIN,
        [ev.SessionStarted(thread_id=M), ev.SessionStarted(thread_id=M)],
        ["session.started", "session.updated"],
    ),
    (
        Rule.AFTER_END,
        [ev.SessionEnded(thread_id=M, outcome="completed"), start()],
        ["session.ended"],
    ),
    (
        Rule.AFTER_END,
        [
            ev.SessionEnded(thread_id=M, outcome="completed"),
            ev.SessionEnded(thread_id=M, outcome="failed"),
            ev.SessionEnded(thread_id=M, outcome="deleted"),
            ev.SessionEnded(thread_id=M, outcome="deleted"),
        ],
        ["session.ended", "session.ended"],
    ),
    (
        Rule.LONG_BLOCK,
        [start(), delta(WHOLE), delta("a"), delta("b"), thought(WHOLE), thought("c"), end()],
        [
            "turn.started t1",
            f"text.delta {WHOLE}",
            f"text.completed {WHOLE}=complete*",
            "text.delta a",
            "text.delta b",
            "reasoning.delta",
            f"reasoning.completed {WHOLE}=complete*",
            "reasoning.delta",
            "reasoning.completed c=complete*",
            "text.completed ab=complete*",
            "turn.ended t1=completed",
        ],
    ),
    (Rule.UNREPAIRED, [accepted(), accepted()], ["input.accepted", "native input.accepted*"]),
]


@each(("rule", "raw", "out"), TABLE, ids=[f"{n}-{row[0]}" for n, row in enumerate(TABLE)])
def test_a_rule_makes_raw_events_lawful(rule: Rule, raw: list[ev.Event], out: list[str]) -> None:
    events, normalizer = normalized(raw)
    assert [short(event) for event in events] == out
    assert normalizer.repairs[rule] >= 1


@pytest.mark.parametrize("rest", ["b", "bc", "x"])
def test_a_block_that_is_too_long_goes_on_as_another_one(rest: str) -> None:
    pieces = [delta(WHOLE), delta("a"), delta(WHOLE), delta("b")]
    events, normalizer = normalized([start(), *pieces, said(rest), delta("c", "b2"), end()])
    blocks = [(e.block_id, e.text) for e in events if isinstance(e, ev.TextCompleted)]
    # What its end says of the whole says nothing of the last piece.
    assert blocks == [("b1", WHOLE), ("b1~2", "a"), ("b1~3", WHOLE), ("b1~4", "b"), ("b2", "c")]
    assert normalizer.repairs[Rule.LONG_BLOCK] == 3
    assert not normalizer.repairs[Rule.TEXT_DIFFERS]
    assert normalizer.state.open_text == 0


def test_all_open_blocks_of_a_session_together_have_room_for_so_much() -> None:
    threads = [f"kid-{number}" for number in range(OPEN_TEXT // BLOCK_TEXT + 1)]
    raw: list[ev.Event] = []
    for name in threads:
        piece: dict[str, Any] = {"turn_id": f"{name}:t", "block_id": f"{name}:b", "message_id": "m"}
        raw += [
            ev.TurnStarted(thread_id=name, turn_id=f"{name}:t", cause="message"),
            ev.TextDelta(thread_id=name, text=WHOLE, **piece),
            ev.TextDelta(thread_id=name, text="a", **piece),
        ]
    events, normalizer = normalized(raw)
    said = "".join(e.text for e in events if isinstance(e, ev.TextDelta))
    assert said == (WHOLE + "a") * len(threads)
    assert normalizer.state.open_text <= OPEN_TEXT


def test_every_rule_is_tested() -> None:
    assert {row[0] for row in TABLE} == set(Rule)


@pytest.mark.parametrize(
    ("after", "out"),
    [
        ([delta("b")], ["text.delta ?b"]),
        ([cut(None, "b", None)], ["text.delta ?b"]),
        (
            [delta("b", "b2")],
            ["text.delta ?", "text.completed a?=complete*", "text.delta b"],
        ),
        ([said("a\ufffd")], ["text.delta ?*", "text.completed a?=complete"]),
        (
            [BlockEnded(thread_id=M, turn_id="t1", block="text")],
            ["text.delta ?", "text.completed a?=complete"],
        ),
        (
            [end()],
            ["text.delta ?", "text.completed a?=complete*", "turn.ended t1=completed"],
        ),
        ([start("t2")], None),
        ([ev.SessionEnded(thread_id=M, outcome="completed")], None),
    ],
)
def test_half_of_a_character_without_the_other_is_replaced(
    after: list[ev.Event], out: list[str] | None
) -> None:
    events, normalizer = normalized([*OPEN, cut(None, "a", HIGH), *after])
    found = [short(event).replace("\ufffd", "?") for event in events]
    assert found[2] == "text.delta ?" if out is None else found[2:] == out
    done = [event.text for event in events if isinstance(event, ev.TextCompleted)]
    assert not done or done[0] == "a\ufffd"
    assert normalizer.repairs[Rule.JOINED_CHARACTER] == 0


def test_lawful_events_pass_as_they_are() -> None:
    raw: list[ev.Event] = [
        ev.SessionStarted(thread_id=M),
        accepted(),
        settled(),
        start(),
        received(turn="t1"),
        step(0),
        thought("hm"),
        ev.ReasoningCompleted(thread_id=M, turn_id="t1", block_id="r1", message_id="m", text="hm"),
        delta("a"),
        delta("b"),
        said("ab"),
        called(),
        ev.ToolProgressed(thread_id=M, turn_id="t1", call_id="c1", output=1),
        stepped(0),
        asked(call_id="c1"),
        paused("r1"),
        claim(),
        resolved(),
        ev.TurnResumed(thread_id=M, turn_id="t1"),
        returned(),
        end(),
        ev.SessionEnded(thread_id=M, outcome="completed"),
    ]
    events, normalizer = normalized(raw)
    assert events == raw
    assert normalizer.repairs.total() == 0


def test_a_block_that_was_only_streamed_ends_with_the_sum_of_its_deltas() -> None:
    native = ev.NativeRef(dialect="engine", type="content_block_stop")
    raw = [
        *OPEN,
        delta("a"),
        delta("b"),
        BlockEnded(
            thread_id=M, block="text", finish_reason="length", native=native, extra={"x": 1}
        ),
        thought("h"),
        BlockEnded(thread_id=M, turn_id="t1", block="reasoning", status="discarded"),
        BlockEnded(thread_id=M, turn_id="t1", block="reasoning"),
    ]
    events, normalizer = normalized(raw)
    text, reasoning = events[3], events[5]
    assert isinstance(text, ev.TextCompleted)
    assert (text.text, text.status, text.finish_reason) == ("ab", "complete", "length")
    assert (text.native, text.extra, text.synthetic) == (native, {"x": 1}, False)
    assert isinstance(reasoning, ev.ReasoningCompleted)
    assert (reasoning.text, reasoning.status) == ("h", "discarded")
    assert len(events) == 6
    assert normalizer.repairs.total() == 0


def test_a_text_that_differs_from_its_deltas_is_marked() -> None:
    events, _ = normalized([*OPEN, delta("tick "), said("tick", extra={"x": 1})])
    assert events[-1].extra == {"x": 1, REPAIRED: True}


def test_a_discarded_text_need_not_be_what_was_streamed() -> None:
    events, normalizer = normalized([*OPEN, delta("abc"), said("", status="discarded")])
    assert short(events[-1]) == "text.completed =discarded"
    assert normalizer.repairs.total() == 0


def test_what_a_rule_adds_says_what_it_is_about() -> None:
    events, _ = normalized([*OPEN, called(), start("t2")])
    abandoned, ended = events[2], events[3]
    assert isinstance(abandoned, ev.ToolReturned)
    assert isinstance(ended, ev.TurnEnded)
    assert abandoned.error is not None
    assert ended.error is not None
    assert (abandoned.error.code, ended.error.code) == (ABANDONED, END_MISSING)


def test_the_repeated_start_of_a_session_updates_it() -> None:
    again = ev.SessionStarted(thread_id=M, title="t", options={"x": 1}, metadata={"a": "b"})
    events, _ = normalized([ev.SessionStarted(thread_id=M), again])
    assert events[1] == ev.SessionUpdated(
        thread_id=M, title="t", options={"x": 1}, metadata={"a": "b"}
    )


def test_an_event_that_nothing_repairs_is_kept_whole() -> None:
    events, normalizer = normalized([accepted(), accepted()])
    native = events[-1]
    assert isinstance(native, ev.Native)
    assert native.frame["command_id"] == "i1"
    assert native.extra is not None
    assert native.extra["reason"].startswith("law 7: input `i1` is accepted twice")
    assert normalizer.state.inputs.keys() == {"i1"}


def test_pauses_in_the_same_frame_are_the_sources_own() -> None:
    normalizer = Normalizer()
    normalizer.feed(PAUSED)
    assert [short(e) for e in normalizer.feed([resolved("r1"), paused("r2")])] == [
        "interaction.resolved r1=answered",
        "turn.paused r2",
    ]
    assert normalizer.repairs.total() == 0


def test_a_pause_follows_whenever_the_agent_took_an_input_and_waits_again() -> None:
    raw = [*PAUSED, received(None), paused("r1", "r2")]
    assert [short(e) for e in normalized(raw)[0]] == [
        *PAUSED_OUT,
        "message.received",
        "turn.paused r1+r2",
    ]


def test_a_child_that_ends_is_no_longer_waited_for_by_the_main_line() -> None:
    child = asked("r1", turn="t9", shown_on=M).model_copy(update={"thread_id": "kid"})
    raw = [start("t9", "kid"), *OPEN, child, asked("r2"), paused(), end("t9", thread="kid")]
    events, _ = normalized(raw)
    assert [short(e) for e in events][-4:] == [
        "turn.paused r1+r2",
        "interaction.resolved r1=withdrawn*",
        "turn.ended t9=completed",
        "turn.paused r2*",
    ]


def test_words_of_a_person_are_never_late() -> None:
    events, normalizer = normalized([start(), end(), received(None, turn="t1")])
    assert short(events[-1]) == "message.received"
    assert events[-1].turn_id is None
    assert normalizer.repairs == {Rule.OUTSIDE_TURN: 1}


@pytest.mark.parametrize("kind", ["message", "steer"])
def test_steering_that_was_sent_as_a_message_is_received_as_one(kind: str) -> None:
    events, normalizer = normalized([accepted(kind=kind), settled(), received()])
    last = events[-1]
    assert isinstance(last, ev.MessageReceived)
    assert last.command_id == "i1"
    assert normalizer.repairs.total() == 0


def test_guidance_settles_its_input_and_comes_once() -> None:
    guidance = ev.GuidanceReceived(thread_id=M, turn_id="t1", text="left", command_id="i1")
    events, _ = normalized([accepted(kind="steer"), start(), guidance, guidance])
    assert [short(e) for e in events] == [
        "input.accepted",
        "turn.started t1",
        "input.settled taken*",
        "guidance.received",
    ]


@pytest.mark.parametrize("left", [["r2"], []])
def test_guidance_for_a_turn_whose_requests_have_changed_comes_after_a_pause(
    left: list[str],
) -> None:
    normalizer = Normalizer()
    normalizer.feed(PAUSED)
    frame: list[ev.Event] = [resolved(r) for r in ("r1", "r2") if r not in left]
    frame.append(ev.GuidanceReceived(thread_id=M, turn_id="t1", text="left"))
    # All of it in one frame, so that the pause cannot wait for the frame's end.
    assert [short(e) for e in normalizer.feed(frame)][-2:] == [
        "turn.paused r2*" if left else "turn.resumed*",
        "guidance.received",
    ]
    assert normalizer.repairs[Rule.UNREPAIRED] == 0


def test_a_late_event_can_be_looked_at_and_does_not_fill_memory() -> None:
    normalizer = Normalizer()
    normalizer.feed([start(), end()])
    normalizer.feed([delta(str(n)) for n in range(128 + 5)])
    assert normalizer.repairs[Rule.LATE] == 128 + 5
    assert len(normalizer.late) == 128


def test_a_request_names_the_call_by_the_name_we_gave_it() -> None:
    raw = [*OPEN, called(), returned(), called(), asked(call_id="c1")]
    last = normalized(raw)[0][-1]
    assert isinstance(last, ev.InteractionRequested)
    assert last.call_id == "c1~2"


def test_threads_have_turns_of_their_own() -> None:
    raw = [*OPEN, start("t2", "kid"), delta("a"), end("t2", thread="kid"), end()]
    events, normalizer = normalized(raw)
    assert [short(e) for e in events] == [
        "turn.started t1",
        "turn.started t2",
        "text.delta a",
        "turn.ended t2=completed",
        "text.completed a=complete*",
        "turn.ended t1=completed",
    ]
    assert normalizer.repairs == {Rule.CLOSE_BLOCK: 1}


def test_a_call_id_that_every_turn_uses_is_a_new_one_each_time() -> None:
    normalizer = Normalizer()
    made: list[str] = []
    for number in range(3 * RECENT_IDS):
        turn = f"t{number}"
        events = normalizer.feed([start(turn), called("c1", turn), end(turn)])
        made += [e.call_id for e in events if isinstance(e, ev.ToolCalled)]
    assert made[:3] == ["c1", "c1~2", "c1~3"]
    assert len(set(made)) == 3 * RECENT_IDS


def test_a_rule_is_called_as_it_is_written_in_the_code() -> None:
    """Its name is shown by `translate --report` and the control API, and searched for here."""
    assert [rule.value for rule in Rule] == [rule.name.lower().replace("_", "-") for rule in Rule]
