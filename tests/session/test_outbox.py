"""The fate of an input, from its acceptance to its settlement, without a session around it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.wire.errors import ErrorCode, NotSupported
from proxy.base.rows import CommandRow
from proxy.session.outbox import MOVES, STORED_AS, Fate, OutboxInput
from proxy.session.settlements import refused, settled, taken, unknown, withdrawn
from tests.session.desk import (
    ACCEPTED,
    ANSWER,
    ARCHIVE,
    ASKS,
    DOUBTED,
    ENDS,
    INTERRUPT,
    LATER,
    LEAVING,
    NOW,
    OVER,
    QUEUED,
    QUEUES,
    RESET,
    RUNS,
    SECRET,
    SENT,
    SESSION,
    SOUGHT,
    STEERS,
    WITHDRAWS,
    Desk,
    Given,
    names,
    says,
)
from tests.support.each import each


def received(name: str) -> ev.Event:
    return ev.MessageReceived(
        thread_id=ev.MAIN, message_id=name, content=(ev.Text(text="hello"),), command_id=name
    )


ANSWERED = ev.InteractionAnswered(thread_id=ev.MAIN, request_id="r", command_id="over", by="key")
ANSWERED_BY_I1 = ANSWERED.model_copy(update={"command_id": "i1"})
ASKS_MORE = ASKS.model_copy(update={"request_id": "r2"})
RUNS_AGAIN = RUNS.model_copy(update={"turn_id": "t2"})
WAS_STOPPED = (
    ev.InputAccepted(thread_id=ev.MAIN, command_id="stop", kind="interrupt", by="key"),
    ev.InputSettled(thread_id=ev.MAIN, command_id="stop", outcome="taken"),
)


# The table.


@each(("before", "after"), list(itertools.product(Fate, Fate)))
def test_a_fate_follows_another_only_where_the_table_says_so(before: Fate, after: Fate) -> None:
    one = OutboxInput("i", ARCHIVE, 1, b"", NOW, before)
    if after in MOVES[before]:
        one.move(after)
        assert one.fate is after
    else:
        with pytest.raises(AssertionError):
            one.move(after)
        assert one.fate is before


def test_what_is_stored_as_sent_never_becomes_what_a_start_sends() -> None:
    assert set(MOVES) == set(STORED_AS) == set(Fate)
    for fate, status in STORED_AS.items():
        if status == "sent":
            assert {STORED_AS[after] for after in MOVES[fate]} <= {"sent"}


def test_the_journal_hears_of_each_step_once() -> None:
    desk = Desk()
    assert desk.take(QUEUES, ARCHIVE) == ["i2"]
    message, archive = cmd.encode_command(QUEUES), cmd.encode_command(ARCHIVE)
    assert desk.outbox.rows(desk.outbox.stored(["i1", "i2", "i3"])) == [
        CommandRow(SESSION, 1, "i1", "accepted", message, NOW),
        CommandRow(SESSION, 2, "i2", "accepted", archive, NOW),
    ]
    sent = desk.outbox.send(["i2", "i3"], NOW + 1)
    assert desk.outbox.rows(sent) == [CommandRow(SESSION, 2, "i2", "sent", archive, NOW + 1)]
    assert desk.hear(taken("i2"), withdrawn("i1", "as asked")) == [
        CommandRow(SESSION, 2, "i2", "settled", archive, LATER),
        CommandRow(SESSION, 1, "i1", "settled", message, LATER),
    ]
    assert not desk.outbox.busy
    assert desk.outbox.get("i1") is None
    assert "i2" not in desk.outbox


def test_a_sealed_answer_is_stored_nowhere_and_claims_its_request() -> None:
    desk = Desk([], [RUNS, ASKS])
    assert desk.take(SECRET, ANSWER) == ["i1", "i2"]
    assert desk.outbox.claims == {"r"}
    (row,) = desk.outbox.rows(desk.outbox.send(["i1", "i2"], NOW))
    assert (row.command_id, row.number) == ("i2", 1)
    assert names(desk.outbox.stored(["i1", "i2"])) == ["i2"]
    assert desk.outbox.sending
    assert desk.hear(taken("i2")) != []
    assert not desk.outbox.busy
    assert desk.outbox.sending
    # Anybody who carried it gives the claim back.
    assert desk.hear(taken("i1")) == []
    assert desk.outbox.claims == {"r"}
    assert not desk.outbox.sending


# What waits, and what goes at once.


@each(
    ("command", "steers", "events", "given", "waits"),
    [
        # Without a turn every message begins one, in its order.
        *[(one, True, [], [], True) for one in (says("reject"), QUEUES, STEERS, WITHDRAWS)],
        # A backend that takes no messages into its turn gets them afterwards.
        *[(one, False, [RUNS], [], True) for one in (QUEUES, STEERS, WITHDRAWS)],
        *[(one, False, [RUNS, ASKS], [], True) for one in (QUEUES, STEERS, WITHDRAWS)],
        *[(one, True, [RUNS], [], True) for one in (QUEUES, WITHDRAWS, says("interrupt"))],
        (STEERS, True, [RUNS], [], False),
        (STEERS, True, [RUNS], [(QUEUES, SENT)], False),
        # While something is asked, what steers would withdraw the question.
        *[(one, True, [RUNS, ASKS], [], True) for one in (QUEUES, STEERS)],
        (WITHDRAWS, True, [RUNS, ASKS], [], False),
        # The question came in spite of what steers, so that does not withdraw it.
        *[
            (WITHDRAWS, True, [RUNS, ASKS], [(STEERS, fate)], False)
            for fate in (LEAVING, SENT, SOUGHT, DOUBTED)
        ],
        *[
            (WITHDRAWS, True, [RUNS, ASKS], [(STEERS, SENT), (one, fate)], True)
            for one in (WITHDRAWS, QUEUES)
            for fate in (LEAVING, SENT, SOUGHT, DOUBTED)
        ],
        (WITHDRAWS, True, [RUNS, ASKS], [(QUEUES, QUEUED), (QUEUES, ACCEPTED)], False),
        # What the stream is read for may be anything.
        (WITHDRAWS, True, [RUNS, ASKS], [(ANSWER, SOUGHT)], False),
        (WITHDRAWS, True, [RUNS, ASKS], [(ANSWER, DOUBTED)], True),
        # Nothing withdraws what is answered, or about to be.
        (WITHDRAWS, True, [RUNS, ASKS, ANSWERED], [], True),
        (WITHDRAWS, True, [RUNS, ASKS, ANSWERED, ASKS_MORE], [], False),
        (WITHDRAWS, True, [RUNS, ASKS, ANSWERED_BY_I1, ASKS_MORE], [(ANSWER, SENT)], True),
        # What withdraws ends the turn, or is its end: nothing goes into that beside it.
        *[
            (STEERS, True, [RUNS], [(WITHDRAWS, fate)], True)
            for fate in (LEAVING, SENT, SOUGHT, DOUBTED)
        ],
        # A turn that is being stopped takes nothing, nor does one that has been stopped.
        *[
            (one, True, events, [(stop, fate)], True)
            for one, events in ((STEERS, [RUNS]), (WITHDRAWS, [RUNS, ASKS]))
            for stop in (INTERRUPT, RESET)
            for fate in Fate
        ],
        (STEERS, True, [RUNS, *WAS_STOPPED], [], True),
        (WITHDRAWS, True, [RUNS, ASKS, *WAS_STOPPED], [], True),
        (STEERS, True, [RUNS, *WAS_STOPPED, ENDS, RUNS_AGAIN], [], False),
        # Nothing but a message waits.
        *[(one, True, [RUNS], [], False) for one in (ANSWER, ARCHIVE, INTERRUPT, RESET)],
    ],
)
def test_a_message_waits_for_its_turn_or_goes_into_the_one_that_runs(
    command: cmd.AnyCommand, steers: bool, events: list[ev.Event], given: Given, waits: bool
) -> None:
    desk = Desk(given, events, steers=steers)
    assert desk.outbox.waits(command, desk.state) is waits
    stops = isinstance(command, cmd.Interrupt | cmd.Reset)
    goes = desk.take(command)
    assert bool(goes) is not (waits or stops)
    assert desk.fates[-1] is (LEAVING if goes else QUEUED)


def test_of_two_that_withdraw_in_one_batch_the_second_waits_for_the_first() -> None:
    desk = Desk([], [RUNS, ASKS], steers=True)
    assert desk.take(WITHDRAWS, WITHDRAWS) == ["i1"]
    assert desk.fates == [LEAVING, QUEUED]


@pytest.mark.parametrize(
    ("command", "at_once", "fate"),
    [
        (QUEUES, False, QUEUED),
        # The turn that it was to steer may be over.
        (STEERS, False, QUEUED),
        (INTERRUPT, False, QUEUED),
        (RESET, False, QUEUED),
        (ANSWER, True, LEAVING),
        (ARCHIVE, True, LEAVING),
    ],
)
def test_what_a_crash_left_accepted_goes_on(
    command: cmd.AnyCommand, at_once: bool, fate: Fate
) -> None:
    desk = Desk([(command, ACCEPTED)], [RUNS], steers=True)
    one = desk.outbox.get("i1")
    assert one is not None
    assert desk.outbox.take_up(one) is at_once
    assert desk.fates == [fate]


def test_numbers_go_on_from_what_a_start_finds() -> None:
    desk = Desk()
    row = CommandRow(SESSION, 41, "old", "sent", cmd.encode_command(QUEUES), NOW)
    assert desk.outbox.load(row, QUEUES).fate is SENT
    row = CommandRow(SESSION, 44, "new", "accepted", cmd.encode_command(QUEUES), NOW)
    assert desk.outbox.load(row, QUEUES).fate is ACCEPTED
    desk.take(QUEUES)
    assert [row.number for row in desk.outbox.rows(desk.outbox.stored(["i1"]))] == [45]


# What goes out.


@each(
    ("given", "events", "steers", "goes"),
    [
        ([], [], False, None),
        ([(QUEUES, QUEUED), (QUEUES, QUEUED)], [], False, "i1"),
        ([(INTERRUPT, QUEUED), (QUEUES, QUEUED)], [], False, "i2"),
        ([(ARCHIVE, SENT), (ANSWER, LEAVING), (QUEUES, QUEUED)], [], False, "i3"),
        # One at a time, however the one before went.
        *[
            ([(QUEUES, fate), (QUEUES, QUEUED)], [], False, None)
            for fate in (LEAVING, SENT, SOUGHT, DOUBTED)
        ],
        # What nobody does anything about holds up nothing.
        ([(QUEUES, ACCEPTED), (QUEUES, QUEUED)], [], False, "i2"),
        ([(ARCHIVE, SOUGHT), (QUEUES, QUEUED)], [], False, "i2"),
        ([(ARCHIVE, DOUBTED), (QUEUES, QUEUED)], [], False, None),
        # An interrupt on its way would stop what came before it.
        *[
            ([(QUEUES, QUEUED), (INTERRUPT, fate)], events, True, None)
            for fate in (LEAVING, SENT, SOUGHT, DOUBTED)
            for events in ([], [RUNS])
        ],
        ([(WITHDRAWS, QUEUED), (INTERRUPT, SENT)], [RUNS, ASKS], True, None),
        ([(WITHDRAWS, QUEUED)], [RUNS, ASKS, *WAS_STOPPED], True, None),
        ([(WITHDRAWS, QUEUED)], [RUNS, ASKS, ANSWERED], True, None),
        # A reset loses what is given to the backend meanwhile.
        *[
            ([(QUEUES, QUEUED), (RESET, fate)], [], False, None)
            for fate in (ACCEPTED, QUEUED, LEAVING, SENT, SOUGHT, DOUBTED)
        ],
        # A turn that runs.
        *[([(one, QUEUED)], [RUNS], True, None) for one in (QUEUES, STEERS, WITHDRAWS)],
        ([(STEERS, QUEUED)], [RUNS, ASKS], True, None),
        ([(WITHDRAWS, QUEUED)], [RUNS, ASKS], True, "i1"),
        ([(WITHDRAWS, QUEUED)], [RUNS, ASKS], False, None),
        ([(QUEUES, QUEUED), (WITHDRAWS, QUEUED)], [RUNS, ASKS], True, None),
        ([(STEERS, SENT), (WITHDRAWS, QUEUED)], [RUNS, ASKS], True, None),
        ([(WITHDRAWS, SENT), (WITHDRAWS, QUEUED)], [RUNS, ASKS], True, None),
    ],
)
def test_the_next_message_goes_when_its_turn_has_come(
    given: Given, events: list[ev.Event], steers: bool, goes: str | None
) -> None:
    desk = Desk(given, events, steers=steers)
    assert desk.next() == goes
    # To ask changes nothing.
    assert desk.next() == goes


@each(
    ("given", "events", "due", "vain"),
    [
        ([], [RUNS], [], []),
        ([(QUEUES, QUEUED)], [RUNS], [], []),
        # An interrupt needs a turn that runs, and waits for one that is sure to come.
        ([(INTERRUPT, QUEUED)], [RUNS], ["i1"], []),
        ([(INTERRUPT, QUEUED)], [], [], ["i1"]),
        *[
            ([(QUEUES, fate), (INTERRUPT, QUEUED)], [], [], [])
            for fate in (QUEUED, LEAVING, SENT, SOUGHT, DOUBTED)
        ],
        ([(QUEUES, SENT), (INTERRUPT, QUEUED)], [RUNS], ["i2"], []),
        ([(ANSWER, DOUBTED), (INTERRUPT, QUEUED)], [], [], []),
        ([(ANSWER, SENT), (INTERRUPT, QUEUED)], [], [], ["i2"]),
        # What was said after it is not meant by it.
        ([(INTERRUPT, QUEUED), (QUEUES, QUEUED)], [], [], ["i1"]),
        ([(INTERRUPT, QUEUED), (QUEUES, SENT)], [], [], []),
        ([(QUEUES, QUEUED), (INTERRUPT, QUEUED), (QUEUES, QUEUED)], [], [], []),
        # One after the other: what the first one does is not known yet.
        ([(INTERRUPT, QUEUED), (INTERRUPT, QUEUED)], [RUNS], ["i1"], []),
        *[
            ([(INTERRUPT, fate), (INTERRUPT, QUEUED)], events, [], [])
            for fate in (LEAVING, SENT, SOUGHT, DOUBTED)
            for events in ([], [RUNS])
        ],
        # A reset needs the session at the backend, which a message on its way makes.
        ([(RESET, QUEUED)], [], ["i1"], []),
        ([(RESET, QUEUED)], [RUNS], ["i1"], []),
        ([(QUEUES, QUEUED), (RESET, QUEUED)], [], ["i2"], []),
        *[
            ([(QUEUES, fate), (RESET, QUEUED)], events, [], [])
            for fate in (LEAVING, SENT, SOUGHT, DOUBTED)
            for events in ([], [RUNS])
        ],
        ([(ANSWER, DOUBTED), (RESET, QUEUED)], [], [], []),
        ([(ANSWER, SENT), (RESET, QUEUED)], [], ["i2"], []),
        # What has left goes once.
        *[([(one, LEAVING)], [RUNS], [], []) for one in (INTERRUPT, RESET)],
    ],
)
def test_a_stop_goes_when_the_backend_can_carry_it_out(
    given: Given, events: list[ev.Event], due: list[str], vain: list[str]
) -> None:
    desk = Desk(given, events)
    assert desk.stops() == (due, vain)
    assert desk.stops() == ([], vain)
    assert all(desk.fates[int(name[1:]) - 1] is LEAVING for name in due)


def test_of_two_interrupts_the_second_goes_when_the_fate_of_the_first_is_known() -> None:
    desk = Desk([(INTERRUPT, QUEUED), (INTERRUPT, QUEUED), (INTERRUPT, QUEUED)], [RUNS])
    assert desk.stops() == (["i1"], [])
    desk.hear(taken("i1"))
    assert desk.stops() == (["i2"], [])
    desk.hear(ENDS)
    assert desk.stops() == ([], [])
    desk.hear(taken("i2"))
    assert desk.stops() == ([], ["i3"])


def test_a_reset_does_not_wait_for_a_message_that_the_backend_does_not_have() -> None:
    desk = Desk([(QUEUES, SENT), (QUEUES, QUEUED), (RESET, QUEUED)])
    assert desk.stops() == ([], [])
    desk.backend.held_back = ["i1"]
    assert desk.stops() == (["i3"], [])
    told = [event for event in desk.outbox.left(desk.state) if isinstance(event, ev.InputSettled)]
    assert [event.outcome for event in told] == ["withdrawn", "withdrawn", "taken"]


def test_an_interrupt_waits_for_a_turn_that_is_owed() -> None:
    desk = Desk([(QUEUES, SENT), (INTERRUPT, QUEUED)])
    desk.hear(taken("i1"))
    assert desk.stops() == ([], [])
    desk.hear(RUNS)
    assert desk.stops() == (["i2"], [])


def test_a_reset_does_not_wait_for_a_turn_that_is_owed() -> None:
    desk = Desk([(QUEUES, SENT), (RESET, QUEUED)])
    assert desk.stops() == ([], [])
    desk.hear(taken("i1"))
    assert desk.stops() == (["i2"], [])


# What is said beside answers.

BESIDE = QUEUES.model_copy(update={"beside": ("r", "r2")})


@pytest.mark.parametrize(
    ("given", "events", "answered", "goes"),
    [
        ([(BESIDE, QUEUED)], [RUNS, ASKS], ["r2", "r"], "i1"),
        ([(BESIDE, QUEUED)], [RUNS, ASKS], ["r", "r2", "r3"], "i1"),
        ([(BESIDE, QUEUED)], [], ["r", "r2"], "i1"),
        ([(BESIDE, QUEUED)], [RUNS, ASKS], ["r"], None),
        ([(QUEUES, QUEUED)], [RUNS, ASKS], ["r"], None),
        ([(BESIDE, LEAVING)], [RUNS, ASKS], ["r", "r2"], None),
        # Nothing is overtaken by it.
        ([(QUEUES, QUEUED), (BESIDE, QUEUED)], [RUNS, ASKS], ["r", "r2"], None),
        ([(QUEUES, SENT), (BESIDE, QUEUED)], [RUNS, ASKS], ["r", "r2"], None),
        ([(RESET, QUEUED), (BESIDE, QUEUED)], [RUNS, ASKS], ["r", "r2"], None),
        ([(INTERRUPT, SENT), (BESIDE, QUEUED)], [RUNS, ASKS], ["r", "r2"], None),
    ],
)
def test_a_message_goes_with_the_answers_that_it_came_with(
    given: Given, events: list[ev.Event], answered: list[str], goes: str | None
) -> None:
    desk = Desk(given, events)
    assert desk.outbox.said_beside(answered, desk.state) == (
        None if goes is None else (goes, BESIDE)
    )
    if goes is not None:
        desk.outbox.leave(goes)
        assert desk.fates == [LEAVING]


def test_a_message_beside_answers_waits_for_a_turn_that_is_owed() -> None:
    desk = Desk([(QUEUES, SENT), (BESIDE, QUEUED)])
    desk.hear(taken("i1"))
    assert desk.outbox.said_beside(["r", "r2"], desk.state) is None


STOPPED = ENDS.model_copy(update={"outcome": "interrupted"})


@pytest.mark.parametrize(
    ("event", "command", "fate", "told", "withdraws"),
    [
        (STOPPED, BESIDE, QUEUED, (), True),
        (STOPPED, BESIDE, QUEUED, ("i1",), False),
        (STOPPED, BESIDE, SENT, (), False),
        (STOPPED, QUEUES, QUEUED, (), False),
        (ENDS, BESIDE, QUEUED, (), False),
        (STOPPED.model_copy(update={"thread_id": "child"}), BESIDE, QUEUED, (), False),
    ],
)
def test_what_came_with_the_answers_of_a_stopped_turn_is_withdrawn(
    event: ev.TurnEnded,
    command: cmd.AnyCommand,
    fate: Fate,
    told: tuple[str, ...],
    withdraws: bool,
) -> None:
    desk = Desk([(command, fate)])
    reason = "The turn was stopped that its answers belong to."
    expected = [withdrawn("i1", reason)] if withdraws else []
    assert desk.outbox.stopped_with(event, told) == expected


def released(name: str) -> ev.Event:
    return ev.InteractionAnswered(
        thread_id=ev.MAIN, request_id=name, command_id="a", by="key", state="released"
    )


ASKS_MORE = ASKS.model_copy(update={"request_id": "r2"})
CLAIMS = [
    ev.InteractionAnswered(thread_id=ev.MAIN, request_id=name, command_id="a", by="key")
    for name in ("r", "r2")
]


@pytest.mark.parametrize(
    ("events", "raw", "told", "refuses"),
    [
        ([RUNS, ASKS, ASKS_MORE, *CLAIMS], [released("r"), released("r2")], (), True),
        ([RUNS, ASKS, ASKS_MORE, *CLAIMS], [released("r"), released("r2")], ("i1",), False),
        # One of two answers is still on its way, or was taken.
        ([RUNS, ASKS, ASKS_MORE, *CLAIMS], [released("r")], (), False),
        ([RUNS, ASKS, CLAIMS[0]], [released("r")], (), False),
        # The first of two was released before.
        ([RUNS, ASKS, ASKS_MORE, CLAIMS[1]], [released("r2")], (), True),
        # Nothing was released.
        ([RUNS, ASKS, ASKS_MORE], [], (), False),
        ([RUNS, ASKS, ASKS_MORE, *CLAIMS], CLAIMS, (), False),
    ],
)
def test_what_came_with_answers_that_came_to_nothing_is_refused_with_them(
    events: list[ev.Event], raw: list[ev.Event], told: tuple[str, ...], refuses: bool
) -> None:
    desk = Desk([(BESIDE, QUEUED), (QUEUES, QUEUED)], events)
    error = ev.ErrorInfo(code="no", message="not now")
    why = refused("a", NotSupported("not now")).model_copy(update={"error": error})
    found = desk.outbox.failed_with([why, *raw], desk.state, told)
    reason = "The answers that it came with came to nothing."
    assert found == ([settled("i1", "refused", reason, error)] if refuses else [])
    assert all(isinstance(event, ev.InputSettled) for event in found)


# What comes of it.


@each("fate", Fate)
@each("outcome", ["taken", "refused", "withdrawn", "unknown"])
def test_an_input_may_be_settled_whatever_its_fate(fate: Fate, outcome: Any) -> None:
    desk = Desk([(QUEUES, fate)])
    event = ev.InputSettled(thread_id=ev.MAIN, command_id="i1", outcome=outcome)
    (row,) = desk.hear(event)
    assert (row.command_id, row.status, row.at) == ("i1", "settled", LATER)
    # A message that was taken is owed a turn, and nothing else is left of any.
    assert set(desk.outbox.owed) == ({"i1"} if outcome == "taken" else set())
    assert desk.outbox.working is desk.outbox.busy is (outcome == "taken")
    assert not desk.outbox.sending


def test_the_settlement_of_what_is_not_here_is_no_row() -> None:
    desk = Desk()
    desk.accepted(QUEUES)
    assert desk.hear(taken("i1")) == []
    assert set(desk.outbox.owed) == {"i1"}


@pytest.mark.parametrize(
    ("event", "owes"),
    [
        (RUNS, False),
        (received("i1"), False),
        (received("i1").model_copy(update={"command_id": None}), False),
        (ev.GuidanceReceived(thread_id=ev.MAIN, turn_id="t", text="hello"), False),
        (ENDS, False),
        (OVER, False),
        (ev.Notice(thread_id=ev.MAIN, level="info", text="hello"), True),
        (ev.TurnStarted(thread_id="child", turn_id="c", cause="message"), True),
        (refused("i2", NotSupported("no")), True),
    ],
)
def test_a_turn_is_owed_until_the_backend_begins_something(event: ev.Event, owes: bool) -> None:
    turn = [RUNS] if event.turn_id == "t" and event is not RUNS else []
    desk = Desk([(QUEUES, SENT), (ARCHIVE, SENT)], turn)
    desk.hear(taken("i1"))
    assert desk.outbox.working
    desk.hear(event)
    assert desk.outbox.working is owes
    assert bool(desk.outbox.owed) is owes


def test_nothing_is_owed_of_a_message_that_was_received_with_its_settlement() -> None:
    desk = Desk([(QUEUES, SENT)])
    assert len(desk.hear(taken("i1"), received("i1"))) == 1
    assert not desk.outbox.owed


def test_what_is_owed_is_put_back_from_a_snapshot() -> None:
    desk = Desk([(QUEUES, QUEUED)])
    desk.outbox.restore(["old"])
    assert set(desk.outbox.owed) == {"old"}
    assert desk.next() is None
    desk.hear(RUNS, ENDS)
    assert desk.next() == "i1"


@each("fate", Fate)
@each("outcome", ["taken", "refused", "withdrawn", "unknown"])
def test_a_reset_is_under_way_until_it_is_refused_or_done(fate: Fate, outcome: Any) -> None:
    desk = Desk([(QUEUES, QUEUED), (RESET, fate)])
    assert desk.outbox.resets(desk.state)
    desk.hear(ev.InputSettled(thread_id=ev.MAIN, command_id="i2", outcome=outcome))
    assert desk.outbox.resets(desk.state) is (outcome == "taken")
    assert desk.next() == (None if outcome == "taken" else "i1")


@pytest.mark.parametrize(
    ("command", "fate", "sending", "working"),
    [
        (QUEUES, ACCEPTED, False, False),
        (QUEUES, QUEUED, False, True),
        (QUEUES, LEAVING, True, True),
        (QUEUES, SENT, True, True),
        (QUEUES, SOUGHT, False, True),
        (QUEUES, DOUBTED, False, True),
        (ARCHIVE, LEAVING, True, False),
        (ARCHIVE, SENT, True, False),
        (ARCHIVE, SOUGHT, False, False),
        (ARCHIVE, DOUBTED, False, True),
        (INTERRUPT, QUEUED, False, False),
    ],
)
def test_what_a_session_does_for_an_input(
    command: cmd.AnyCommand, fate: Fate, sending: bool, working: bool
) -> None:
    outbox = Desk([(command, fate)]).outbox
    assert (outbox.sending, outbox.working, outbox.busy) == (sending, working, True)
    assert names(outbox.queue) == (["i1"] if command is QUEUES and fate is QUEUED else [])


# The end.


@pytest.mark.parametrize(
    ("command", "fate", "outcome"),
    [
        *[(QUEUES, fate, "unknown") for fate in (ACCEPTED, LEAVING, SENT, SOUGHT, DOUBTED)],
        *[(one, QUEUED, "withdrawn") for one in (QUEUES, INTERRUPT, RESET)],
        # What was to end the session has ended it, no matter who did.
        *[(RESET, fate, "taken") for fate in (ACCEPTED, LEAVING, SENT, SOUGHT, DOUBTED)],
        (ANSWER, SENT, "unknown"),
    ],
)
def test_the_end_of_a_session_settles_what_is_open(
    command: cmd.AnyCommand, fate: Fate, outcome: str
) -> None:
    desk = Desk([(command, fate)])
    (event,) = desk.outbox.left(desk.state)
    assert isinstance(event, ev.InputSettled)
    assert (event.command_id, event.outcome) == ("i1", outcome)
    assert desk.outbox.left(desk.state, {"i1"}) == []
    desk.hear(event, OVER)
    assert not desk.outbox.busy


def test_what_the_log_alone_knows_ends_with_an_unknown_fate() -> None:
    desk = Desk()
    desk.accepted(QUEUES)
    assert desk.outbox.left(desk.state) == [
        unknown("i1", "The session ended before the backend said what became of it.")
    ]


def test_a_refusal_says_why_in_the_words_of_the_error() -> None:
    event = refused("i1", NotSupported("A Herm takes no files."))
    assert event.reason == "A Herm takes no files."
    assert event.error == ev.ErrorInfo(
        code=ErrorCode.NOT_SUPPORTED.value, message="A Herm takes no files."
    )
