"""The laws of the log, each broken in every way that counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from adapters.model import events as ev
from adapters.model.state import RECENT_IDS, TURN_TABLE, LawBroken, LogState, RecentIds, Turn
from tests.support.each import each

M = ev.MAIN
USAGE = ev.Usage(input_tokens=1)


def event(type_: str, **fields: Any) -> ev.Event:
    return ev.decode_event({"type": type_, "thread_id": M, **fields})


START = event("turn.started", turn_id="t", cause="message")
END = event("turn.ended", turn_id="t", outcome="completed")
CALL = event("tool.called", turn_id="t", call_id="c", name="run")
ASK = event("interaction.requested", turn_id="t", request_id="r", kind="question", prompt="?")
ASK2 = event("interaction.requested", turn_id="t", request_id="r2", kind="question", prompt="?")
RESOLVED = event("interaction.resolved", request_id="r", outcome="answered")
CLAIM = event("interaction.answered", request_id="r", command_id="i", by="key")
RELEASE = event("interaction.answered", request_id="r", command_id="i", by="key", state="released")
PAUSE = event("turn.paused", turn_id="t", on="input", request_ids=["r"])
RESUME = event("turn.resumed", turn_id="t")
ACCEPT = event("input.accepted", command_id="i", kind="message", by="key")
TAKEN = event("input.settled", command_id="i", outcome="taken")
REFUSED = event("input.settled", command_id="i", outcome="refused")
RECEIPT = event(
    "message.received", message_id="m", content=[{"type": "text", "text": "hi"}], command_id="i"
)


def delta(block: str = "b", kind: str = "text", turn: str = "t") -> ev.Event:
    return event(f"{kind}.delta", turn_id=turn, block_id=block, message_id="m", text="ab")


def completed(text: str = "ab", block: str = "b", kind: str = "text", **fields: Any) -> ev.Event:
    return event(
        f"{kind}.completed", turn_id="t", block_id=block, message_id="m", text=text, **fields
    )


def step(type_: str, index: int) -> ev.Event:
    return event(f"step.{type_}", turn_id="t", step_index=index)


def returned(call: str = "c") -> ev.Event:
    return event("tool.returned", turn_id="t", call_id=call)


def folded(events: Sequence[ev.Event]) -> LogState:
    state = LogState()
    for item in events:
        state.apply(item)
    return state


BROKEN: list[tuple[int, list[ev.Event], ev.Event]] = [
    (1, [event("session.started")], event("session.started")),
    (1, [ACCEPT], event("session.started")),
    (2, [], END),
    (2, [], delta()),
    (2, [START], event("turn.started", turn_id="t2", cause="message")),
    (2, [START, END], START),
    (2, [], event("turn.started", cause="message")),
    (2, [START], delta(turn="t2")),
    (2, [START], event("tool.called", call_id="c", name="run")),
    (2, [START], event("usage.reported", turn_id="t2", usage={})),
    (2, [START, END], event("usage.reported", turn_id="t", usage={})),
    (2, [START], RESUME),
    (2, [START, ASK, PAUSE], delta()),
    (2, [START, ASK, PAUSE], CALL),
    (2, [START, step("started", 0)], step("started", 1)),
    (2, [START, step("started", 0)], step("ended", 1)),
    (2, [START], step("ended", 0)),
    (2, [START, step("started", 0)], END),
    (2, [START], event("session.ended", outcome="completed")),
    (2, [START], event("thread.ended", status="completed")),
    (3, [START, delta()], delta("b2")),
    (3, [START, delta(kind="reasoning")], delta("b2", kind="reasoning")),
    (3, [START, delta()], completed(block="b2")),
    (3, [START, delta(kind="reasoning")], completed(block="b2", kind="reasoning")),
    (3, [START, delta()], completed("abc")),
    (3, [START], completed("ab")),
    (3, [START, delta()], END),
    (3, [START, delta(kind="reasoning")], END),
    (4, [START, CALL, returned()], CALL),
    (4, [START], returned()),
    (4, [START], event("tool.progressed", turn_id="t", call_id="c")),
    (4, [START, CALL], END),
    (5, [START, ASK], ASK),
    (5, [START, ASK, RESOLVED], ASK),
    (5, [START, ASK, RESOLVED], RESOLVED),
    (5, [START, ASK, CLAIM], CLAIM),
    (5, [START, ASK], RELEASE),
    (5, [], event("interaction.updated", request_id="r", details={})),
    (5, [START, ASK], END),
    (6, [START, ASK, ASK2], PAUSE),
    (6, [START], event("turn.paused", turn_id="t", on="input")),
    (6, [START], event("turn.paused", turn_id="t", on="tasks", request_ids=["r"])),
    (6, [START, ASK], event("turn.paused", turn_id="t", on="retry", request_ids=["r"])),
    (6, [START, ASK, PAUSE, ASK2], event("guidance.received", turn_id="t", text="left")),
    (6, [START, ASK, PAUSE, CLAIM, RELEASE], event("guidance.received", turn_id="t", text="left")),
    (7, [ACCEPT], ACCEPT),
    (7, [], TAKEN),
    (7, [ACCEPT, TAKEN], TAKEN),
    (7, [ACCEPT], RECEIPT),
    (7, [ACCEPT, REFUSED], RECEIPT),
    (7, [ACCEPT, TAKEN, RECEIPT], RECEIPT),
    (8, [event("session.ended", outcome="completed")], ACCEPT),
    (8, [event("session.ended", outcome="completed")], event("session.ended", outcome="failed")),
    (8, [event("session.ended", outcome="deleted")], event("session.ended", outcome="deleted")),
]


@each(("law", "before", "breaks"), BROKEN, ids=[f"{n}-law{row[0]}" for n, row in enumerate(BROKEN)])
def test_a_broken_law_is_named_and_changes_nothing(
    law: int, before: list[ev.Event], breaks: ev.Event
) -> None:
    state = folded(before)
    snapshot = state.snapshot()
    with pytest.raises(LawBroken) as broken:
        state.apply(breaks)
    assert broken.value.law == law
    assert str(broken.value).startswith(f"law {law}: ")
    assert LogState.restore(snapshot) == state


def test_every_law_is_broken_by_something() -> None:
    assert {row[0] for row in BROKEN} == set(range(1, 9))


@pytest.mark.parametrize(
    "events",
    [
        [
            START,
            ASK,
            PAUSE,
            ASK2,
            event("turn.paused", turn_id="t", on="input", request_ids=["r", "r2"]),
        ],
        [START, ASK, PAUSE, RESUME, delta(), completed()],
        [START, ASK, PAUSE, PAUSE],
        [START, ASK, PAUSE, CLAIM, RELEASE, PAUSE, CLAIM, RESOLVED, RESUME, END],
        [START, CALL, ASK, PAUSE, returned(), RESOLVED, END],
        [START, event("turn.paused", turn_id="t", on="tasks"), RESUME, END],
        [START, delta(), completed("x", status="discarded"), END],
        [START, delta(), completed("x", extra={"repaired": True}), END],
        [START, completed(""), END],
        [START, step("started", 0), step("ended", 0), step("started", 0), step("ended", 0), END],
        [ACCEPT, TAKEN, START, RECEIPT, END],
        [event("session.ended", outcome="failed"), event("session.ended", outcome="deleted")],
        [
            event("context.compacted"),
            event("notice", text="n"),
            START,
            event("gap", reason="g"),
            END,
        ],
    ],
)
def test_what_the_laws_allow_is_taken(events: list[ev.Event]) -> None:
    state = folded(events)
    assert LogState.restore(state.snapshot()) == state


def test_every_type_has_a_place_in_the_table() -> None:
    assert set(TURN_TABLE) == set(ev.EVENT_TYPES)


def entry(seq: int, at: int) -> ev.Entry:
    return ev.Entry(seq, at, "s", event("notice", text="n"))


def test_entries_count_from_one_and_time_never_decreases() -> None:
    state = LogState()
    with pytest.raises(LawBroken, match="law 1: seq 2 follows 0"):
        state.apply_entry(entry(2, 5))
    state.apply_entry(entry(1, 5))
    state.apply_entry(entry(2, 5))
    with pytest.raises(LawBroken, match="law 1: seq 4 follows 2"):
        state.apply_entry(entry(4, 6))
    with pytest.raises(LawBroken, match="law 1: at 4 of seq 3 is before 5"):
        state.apply_entry(entry(3, 4))
    assert (state.seq, state.at) == (2, 5)


def test_the_status_is_that_of_the_busiest_thread() -> None:
    state = LogState()
    assert (state.status, state.busy) == ("idle", False)
    state.apply(START)
    assert (state.status, state.busy) == ("running", True)
    state.apply(ASK)
    state.apply(PAUSE)
    assert (state.status, state.busy) == ("paused", True)
    child = ev.TurnStarted(thread_id="kid", turn_id="t2", cause="background")
    state.apply(child)
    assert state.status == "running"
    state.apply(ev.TurnEnded(thread_id="kid", turn_id="t2", outcome="completed"))
    state.apply(RESOLVED)
    state.apply(END)
    assert state.status == "idle"
    state.apply(event("session.ended", outcome="completed"))
    assert state.status == "ended"
    state.apply(event("session.ended", outcome="deleted"))
    assert state.status == "deleted"


def test_a_pause_names_what_is_shown_on_its_thread_too() -> None:
    state = folded([START])
    state.apply(ev.TurnStarted(thread_id="kid", turn_id="t2", cause="background"))
    asked = ASK2.model_copy(update={"thread_id": "kid", "turn_id": "t2", "shown_on": M})
    state.apply(asked)
    state.apply(ASK)
    assert state.waiting_on(M) == ("r2", "r")
    assert state.waiting_on("kid") == ("r2",)
    with pytest.raises(LawBroken, match="law 6"):
        state.apply(PAUSE)
    # The child's request does not keep the parent's turn open.
    state.apply(RESOLVED)
    state.apply(END)


def test_a_turn_that_was_stopped_drops_what_it_has_asked_until_its_end() -> None:
    def accepted(kind: str) -> ev.Event:
        return event("input.accepted", command_id="stop", kind=kind, by="key")

    def settled(outcome: str) -> ev.Event:
        return event("input.settled", command_id="stop", outcome=outcome)

    def asks(request_id: str) -> ev.Event:
        return event(
            "interaction.requested", turn_id="t", request_id=request_id, kind="approval", prompt="?"
        )

    begun = [event("turn.started", turn_id="t", cause="message"), asks("r")]
    state = folded([*begun, accepted("interrupt")])
    assert (state.stopping, state.stopped) == (True, False)
    assert state.drops("r")
    state.apply(settled("taken"))
    state = LogState.restore(state.snapshot())
    state.apply(asks("later"))
    assert (state.stopping, state.stopped) == (False, True)
    assert [state.drops(name) for name in ("r", "later")] == [True, False]
    for request_id in ("r", "later"):
        state.apply(event("interaction.resolved", request_id=request_id, outcome="cancelled"))
    state.apply(event("turn.ended", turn_id="t", outcome="interrupted"))
    assert (state.stopped, state.drops("r")) == (False, False)
    # What was not taken, or is not an interrupt, stops nothing.
    assert not folded([*begun, accepted("interrupt"), settled("refused")]).drops("r")
    assert not folded([*begun, accepted("control"), settled("taken")]).drops("r")
    # What waits for the turn of a message stops nothing that is open.
    assert not folded([accepted("interrupt")]).drops("r")


def test_titles_and_archives_are_remembered() -> None:
    state = folded([event("session.started", title="one")])
    assert state.about.title == "one"
    state.apply(event("session.updated", title="two"))
    state.apply(event("session.updated", archived_at=5))
    assert (state.about.title, state.archived_at) == ("two", 5)


def test_a_snapshot_keeps_exact_numbers_and_what_is_nested() -> None:
    call = event("tool.called", turn_id="t", call_id="c", name="run")
    asked = ASK.model_copy(update={"details": {"n": 2**70, "x": [None]}})
    state = folded([START, call, asked])
    again = LogState.restore(state.snapshot())
    assert again == state
    assert again.interactions["r"].event.details == {"n": 2**70, "x": [None]}
    assert list(again.threads[M].calls) == ["c"]
    assert again.threads[M].state is Turn.RUNNING


def turn(number: int, call_id: str) -> list[ev.Event]:
    """A whole turn that calls a tool and asks something."""
    turn_id = f"t-{number}"
    return [
        event("turn.started", turn_id=turn_id, cause="message"),
        event("tool.called", turn_id=turn_id, call_id=call_id, name="run"),
        event("tool.returned", turn_id=turn_id, call_id=call_id, status="completed"),
        event(
            "interaction.requested",
            turn_id=turn_id,
            request_id=f"r-{number}",
            kind="question",
            prompt="?",
        ),
        event(
            "interaction.resolved", turn_id=turn_id, request_id=f"r-{number}", outcome="answered"
        ),
        event("turn.ended", turn_id=turn_id, outcome="completed"),
    ]


def test_a_state_stays_small_however_long_the_log_is() -> None:
    state = LogState()
    sizes = []
    for number in range(6 * RECENT_IDS):
        for one in turn(number, f"call-{number}"):
            state.apply(one)
        if number % (2 * RECENT_IDS) == RECENT_IDS:
            sizes.append(len(state.snapshot()))
    assert max(sizes) < min(sizes) * 1.1
    assert max(sizes) < 32_000
    # What is recent is recognised, and what is long over is not.
    for kept in (state.turn_ids, state.call_ids):
        assert len(kept) == RECENT_IDS
        assert kept.total == 6 * RECENT_IDS
    assert f"r-{6 * RECENT_IDS - 1}" in state.resolved
    assert "r-0" not in state.resolved
    assert LogState.restore(state.snapshot()) == state


def test_a_name_that_comes_back_stays_known() -> None:
    ids = RecentIds()
    ids.add("call")
    for number in range(2, 3 * RECENT_IDS):
        ids.add(f"call~{number}")
    assert "call" in ids
    assert "call~2" not in ids


def test_threads_that_ended_long_ago_are_forgotten() -> None:
    state = LogState()
    for number in range(5 * RECENT_IDS):
        name = f"child-{number}"
        state.apply(ev.ThreadStarted(thread_id=name, parent=M, kind="agent"))
        state.apply(ev.ThreadEnded(thread_id=name, status="completed"))
    assert RECENT_IDS < len(state.threads) <= 2 * RECENT_IDS + 1
    assert state.threads[f"child-{5 * RECENT_IDS - 1}"].ended
