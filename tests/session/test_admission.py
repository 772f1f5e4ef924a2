"""What a session takes in and what it refuses, without a session around it."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Ability, Support
from adapters.model.commands import SAID_AS_MESSAGE
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode, NotSupported
from proxy.base.errors import InteractionConflict, SessionClosed
from proxy.session.admission import Origin, beside, check_batch
from proxy.session.settlements import taken
from tests.session.desk import (
    ANSWER,
    ARCHIVE,
    ASKS,
    DOUBTED,
    ENDS,
    INTERRUPT,
    LEAVING,
    NOW,
    OVER,
    QUEUED,
    QUEUES,
    RESET,
    RUNS,
    SECRET,
    SENT,
    SOUGHT,
    STEERS,
    Desk,
    Given,
    names,
    says,
)
from tests.support.each import each

REJECTS, STOPS, STEER = says("reject"), says("interrupt"), cmd.Steer(text="hello")
DELETE = cmd.Delete()
RENAME = cmd.UpdateSession(title="Lunch", metadata={"a": 1})

PAUSED = ev.TurnPaused(thread_id=ev.MAIN, turn_id="t", on="input", request_ids=("r",))
CLAIMED = ev.InteractionAnswered(thread_id=ev.MAIN, request_id="r", command_id="i9", by="other")
RESOLVED = ev.InteractionResolved(thread_id=ev.MAIN, request_id="r", outcome="approved")
ELSEWHERE = ASKS.model_copy(update={"answerable": False})

LOCAL = Ability(Support.EMULATED, "is kept here")
CARRIED = Ability(Support.EMULATED, "is a message", local=False)
IMPOSSIBLE = Ability(Support.IMPOSSIBLE, "has no such thing")

ARCHIVED = ev.SessionUpdated(thread_id=ev.MAIN, archived_at=NOW, synthetic=True)


def asks(kind: ev.InteractionKind) -> ev.Event:
    return ASKS.model_copy(update={"kind": kind})


def refusal(desk: Desk, *commands: cmd.AnyCommand) -> DragomanError:
    before = (desk.state.snapshot(), desk.fates, desk.outbox.size)
    with pytest.raises(DragomanError) as refused:
        desk.submit(*commands)
    assert (desk.state.snapshot(), desk.fates, desk.outbox.size) == before
    return refused.value


# What is refused.


@each(
    ("events", "given", "command", "error", "code"),
    [
        # A session that is over may only be erased.
        *[
            ([OVER], [], one, SessionClosed, ErrorCode.NOT_ACTIVE)
            for one in (QUEUES, STEER, ANSWER, INTERRUPT, RESET, ARCHIVE)
        ],
        # One that is archived takes no input, but it can be stopped, ended and erased.
        *[
            ([RUNS, ASKS, ARCHIVED], [], one, SessionClosed, ErrorCode.NOT_ACTIVE)
            for one in (QUEUES, REJECTS, STEER, ANSWER)
        ],
        # A message where the face promises that it is said now or not at all.
        ([RUNS], [], REJECTS, ClientProtocolError, ErrorCode.BUSY),
        ([RUNS, ASKS, PAUSED], [], REJECTS, ClientProtocolError, ErrorCode.PAUSED),
        *[
            ([], [(QUEUES, fate)], REJECTS, ClientProtocolError, ErrorCode.BUSY)
            for fate in (QUEUED, LEAVING, SENT, SOUGHT, DOUBTED)
        ],
        # A message while a secret is asked for: it may be the secret.
        *[
            ([RUNS, asks(kind)], [], one, ClientProtocolError, ErrorCode.PAUSED)
            for kind in ("secret", "sudo", "unknown")
            for one in (REJECTS, QUEUES, STEERS, STOPS)
        ],
        # An answer that comes too late, or to nothing.
        ([RUNS], [], ANSWER, ClientProtocolError, ErrorCode.UNKNOWN_INTERACTION),
        ([RUNS, ASKS, RESOLVED], [], ANSWER, InteractionConflict, ErrorCode.ALREADY_ANSWERED),
        ([RUNS, ASKS, CLAIMED], [], ANSWER, InteractionConflict, ErrorCode.ALREADY_ANSWERED),
        ([RUNS, ELSEWHERE], [], ANSWER, NotSupported, ErrorCode.NOT_SUPPORTED),
    ],
)
def test_what_the_state_forbids_is_refused(
    events: list[ev.Event],
    given: Given,
    command: cmd.AnyCommand,
    error: type[DragomanError],
    code: ErrorCode,
) -> None:
    found = refusal(Desk(given, events), command)
    assert (type(found), found.code) == (error, code)


@pytest.mark.parametrize(
    ("events", "details"),
    [
        ([RUNS, ASKS, CLAIMED], {"outcome": "claimed"}),
        ([RUNS, ASKS, RESOLVED], {"outcome": "approved"}),
    ],
)
def test_a_conflict_says_how_the_request_was_answered(
    events: list[ev.Event], details: dict[str, str]
) -> None:
    assert refusal(Desk([], events), ANSWER).details == details


def test_an_answer_to_a_request_that_a_sealed_one_has_claimed_is_refused() -> None:
    desk = Desk([], [RUNS, asks("secret")])
    desk.submit(SECRET)
    found = refusal(desk, SECRET)
    assert (found.code, found.details) == (ErrorCode.ALREADY_ANSWERED, {"outcome": "claimed"})
    desk.outbox.claims.discard("r")
    assert names(desk.submit(SECRET).inputs) == ["i2"]


@pytest.mark.parametrize(
    "commands", [[ANSWER, ANSWER], [QUEUES, ANSWER, ANSWER.model_copy(update={"skip": True})]]
)
def test_a_batch_that_answers_a_request_twice_is_refused(commands: list[cmd.AnyCommand]) -> None:
    with pytest.raises(InteractionConflict) as refused:
        check_batch(commands)
    assert refused.value.details == {"outcome": "claimed"}
    other = ANSWER.model_copy(update={"request_id": "r2"})
    check_batch([ANSWER, other, QUEUES])


@pytest.mark.parametrize("command", [QUEUES, STEER, ANSWER, INTERRUPT, RESET, ARCHIVE, DELETE])
def test_what_the_backend_cannot_carry_is_refused(command: cmd.AnyCommand) -> None:
    # Steering waits as a message while something is asked.
    carried = "send_message" if command is STEER else command.TYPE
    desk = Desk([], [RUNS, ASKS], abilities={carried: IMPOSSIBLE})
    assert str(refusal(desk, command)) == f"no {carried}"


def test_no_message_promises_an_interrupt_that_the_backend_lacks() -> None:
    desk = Desk([], [RUNS], abilities={"interrupt": IMPOSSIBLE})
    assert str(refusal(desk, STOPS)) == "no interrupt"
    # Nor is anything of its batch taken.
    assert str(refusal(desk, QUEUES, STOPS)) == "no interrupt"
    # Where nothing is to be stopped, nothing is promised.
    assert names(Desk([], [], abilities={"interrupt": IMPOSSIBLE}).submit(STOPS).inputs) == ["i1"]


# What is taken, and how.


@pytest.mark.parametrize(
    ("events", "given", "command"),
    [
        ([], [], REJECTS),
        ([RUNS, ENDS], [], REJECTS),
        ([], [(ARCHIVE, SENT)], REJECTS),
        ([RUNS, ASKS], [], QUEUES),
        ([RUNS, ASKS], [], STEERS),
        ([RUNS, ASKS], [], ANSWER),
        ([RUNS], [], INTERRUPT),
    ],
)
def test_what_the_state_allows_is_taken_as_it_is(
    events: list[ev.Event], given: Given, command: cmd.AnyCommand
) -> None:
    (one,) = Desk(given, events).submit(command).inputs
    assert one.command == command


@pytest.mark.parametrize("command", [INTERRUPT, RESET, ARCHIVE, DELETE])
def test_a_session_that_is_archived_may_be_stopped_ended_and_erased(
    command: cmd.AnyCommand,
) -> None:
    assert names(Desk([], [RUNS, ARCHIVED]).submit(command).inputs) == ["i1"]


def test_a_session_that_is_over_may_be_erased() -> None:
    desk = Desk([], [OVER])
    assert desk.admission.check(DELETE, desk.state) is DELETE


@pytest.mark.parametrize(
    ("events", "given", "taken_up"),
    [
        ([], [], False),
        ([RUNS], [], True),
        *[([], [(QUEUES, fate)], True) for fate in (QUEUED, LEAVING, SENT, SOUGHT, DOUBTED)],
        ([], [(ARCHIVE, SENT)], False),
    ],
)
def test_an_interrupt_needs_work_to_stop(
    events: list[ev.Event], given: Given, taken_up: bool
) -> None:
    admitted = Desk(given, events).submit(INTERRUPT)
    assert bool(admitted.events) is bool(admitted.inputs) is taken_up


@pytest.mark.parametrize(
    ("events", "steers", "guides"),
    [
        ([RUNS], True, True),
        ([RUNS], False, False),
        ([], True, False),
        ([RUNS, ASKS], True, False),
    ],
)
def test_steering_is_a_message_that_waits_where_it_would_not_guide(
    events: list[ev.Event], steers: bool, guides: bool
) -> None:
    (one,) = Desk([], events, steers=steers).submit(STEER).inputs
    if guides:
        assert one.command is STEER
    else:
        assert one.command == cmd.SendMessage(content=(ev.Text(text="hello"),), policy="queue")


@pytest.mark.parametrize(
    ("events", "given", "stops"),
    [([RUNS], [], True), ([], [(QUEUES, SENT)], True), ([], [], False)],
)
def test_a_message_brings_the_interrupt_that_its_face_promised(
    events: list[ev.Event], given: Given, stops: bool
) -> None:
    desk = Desk(given, events)
    ids = [f"i{len(given) + number}" for number in (1, 2)]
    admitted = desk.submit(STOPS, origin=Origin("key", "eve", {"note": 1}), request={"request": 2})
    accepted = [event for event in admitted.events if isinstance(event, ev.InputAccepted)]
    inputs = [(one.command_id, one.command.TYPE) for one in admitted.inputs]
    told = [(one.command_id, one.kind, one.details) for one in accepted]
    message = (ids[0], "message", {"note": 1, "request": 2})
    if stops:
        # A repeat of the request is found by the message alone.
        assert inputs == [(ids[1], "interrupt"), (ids[0], "send_message")]
        assert told == [(ids[1], "interrupt", {"note": 1}), message]
    else:
        assert inputs == [(ids[0], "send_message")]
        assert told == [message]


def test_a_message_says_which_requests_are_answered_beside_it() -> None:
    other = ANSWER.model_copy(update={"request_id": "r2"})
    message = QUEUES.model_copy(update={"beside": ("r", "r2")})
    assert beside([ANSWER, None, QUEUES, other, INTERRUPT]) == [
        ANSWER,
        None,
        message,
        other,
        INTERRUPT,
    ]
    assert beside([QUEUES, INTERRUPT]) == [QUEUES, INTERRUPT]


# What the log says.


def test_an_input_is_told_with_all_that_was_given() -> None:
    command = says("queue").model_copy(
        update={"client_context": {"page": 3}, "options": {"mode": "task"}, "thread_id": "child"}
    )
    origin = Origin("web", "eve", {"wait": 4})
    assert Desk().submit(command, origin=origin, request={"request": {"id": "x"}}).events == [
        ev.InputAccepted(
            thread_id="child",
            command_id="i1",
            kind="message",
            message_id="i1",
            content=(ev.Text(text="hello"),),
            policy="queue",
            name="send_message",
            details={
                "thread_id": "child",
                "client_context": {"page": 3},
                "options": {"mode": "task"},
                "wait": 4,
                "request": {"id": "x"},
            },
            by="web",
            face="eve",
        )
    ]


def test_an_answer_claims_its_request_in_the_thread_that_asked() -> None:
    asked = ASKS.model_copy(update={"thread_id": "child", "turn_id": "c"})
    began = ev.TurnStarted(thread_id="child", turn_id="c", cause="message")
    accepted, claimed = Desk([], [began, asked]).submit(ANSWER).events
    assert isinstance(accepted, ev.InputAccepted)
    assert (accepted.kind, accepted.request_id, accepted.message_id) == ("answer", "r", None)
    assert accepted.details == {"decision": "allow"}
    assert claimed == ev.InteractionAnswered(
        thread_id="child", request_id="r", command_id="i1", by="key"
    )


def test_a_sealed_answer_claims_nothing_in_the_log_and_is_quoted_nowhere() -> None:
    (accepted,) = Desk([], [RUNS, asks("secret")]).submit(SECRET).events
    assert "hunter2" not in repr(accepted)
    assert isinstance(accepted, ev.InputAccepted)
    assert accepted.details is None


def test_a_message_that_answers_is_a_message_for_those_who_read() -> None:
    answer = ANSWER.model_copy(update={"options": {SAID_AS_MESSAGE: "yes please"}})
    accepted = Desk([], [RUNS, ASKS]).submit(answer).events[0]
    assert isinstance(accepted, ev.InputAccepted)
    assert (accepted.kind, accepted.message_id) == ("message", "i1")
    assert accepted.content == (ev.Text(text="yes please"),)


@pytest.mark.parametrize(
    ("events", "command", "steers", "again"),
    [
        ([RUNS, ASKS, PAUSED], QUEUES, True, True),
        ([RUNS, ASKS, PAUSED], STEERS, True, True),
        ([RUNS, ASKS, PAUSED], says("withdraw"), False, True),
        # What the backend gets at once ends the pause by itself, or withdraws what was asked.
        ([RUNS, ASKS, PAUSED], says("withdraw"), True, False),
        ([RUNS, ASKS, PAUSED], INTERRUPT, True, False),
        ([RUNS, ASKS, PAUSED], QUEUES.model_copy(update={"beside": ("r",)}), True, False),
        ([RUNS, ASKS], QUEUES, True, False),
        ([RUNS, ASKS, PAUSED, RESOLVED], QUEUES, True, False),
        ([RUNS], QUEUES, True, False),
        ([], QUEUES, True, False),
    ],
)
def test_the_pause_is_said_again_when_a_message_waits_behind_it(
    events: list[ev.Event], command: cmd.AnyCommand, steers: bool, again: bool
) -> None:
    _, *rest = Desk([], events, steers=steers).submit(command).events
    assert rest == ([PAUSED.model_copy(update={"synthetic": True})] if again else [])


# What is kept here.


@pytest.mark.parametrize("command", [RESET, ARCHIVE, RENAME, DELETE])
@pytest.mark.parametrize(
    ("ability", "kept"), [(LOCAL, True), (CARRIED, False), (Ability(Support.NATIVE), False)]
)
def test_what_the_backend_has_nothing_for_never_reaches_it(
    command: cmd.AnyCommand, ability: Ability, kept: bool
) -> None:
    admitted = Desk(abilities={command.TYPE: ability}).submit(command)
    assert bool(admitted.inputs) is not kept
    assert (taken("i1") in admitted.events) is kept


@pytest.mark.parametrize("command", [QUEUES, INTERRUPT, ANSWER])
def test_what_a_session_is_for_is_never_kept_here(command: cmd.AnyCommand) -> None:
    desk = Desk([], [RUNS, ASKS], abilities={command.TYPE: LOCAL})
    assert len(desk.submit(command).inputs) == 1


@pytest.mark.parametrize(
    ("command", "follows"),
    [
        (ARCHIVE, ev.SessionUpdated(thread_id=ev.MAIN, archived_at=NOW, synthetic=True)),
        (
            RENAME,
            ev.SessionUpdated(thread_id=ev.MAIN, title="Lunch", metadata={"a": 1}, synthetic=True),
        ),
        (RESET, ev.SessionEnded(thread_id=ev.MAIN, outcome="completed", synthetic=True)),
        (DELETE, ev.SessionEnded(thread_id=ev.MAIN, outcome="deleted", synthetic=True)),
    ],
)
def test_what_is_kept_here_is_done_at_once(command: cmd.AnyCommand, follows: ev.Event) -> None:
    _, *rest = Desk(abilities={command.TYPE: LOCAL}).submit(command).events
    assert rest == [taken("i1"), follows]


@pytest.mark.parametrize("command", [RESET, DELETE])
def test_the_end_of_a_session_settles_what_waited(command: cmd.AnyCommand) -> None:
    desk = Desk([(QUEUES, QUEUED), (ARCHIVE, SENT)], abilities={command.TYPE: LOCAL})
    settled = [
        (event.command_id, event.outcome)
        for event in desk.submit(command).events
        if isinstance(event, ev.InputSettled)
    ]
    assert settled == [("i3", "taken"), ("i1", "withdrawn"), ("i2", "unknown")]
    assert not desk.outbox.busy


@pytest.mark.parametrize(
    ("known", "given", "kept"),
    [(False, [], True), (True, [], False), (False, [(QUEUES, SENT)], False)],
)
def test_a_reset_of_what_the_backend_has_never_heard_of_is_done_here(
    known: bool, given: Any, kept: bool
) -> None:
    desk = Desk(given, known=known)
    assert bool(desk.submit(RESET).inputs) is not kept
    # Nothing else is.
    assert len(Desk(known=False).submit(ARCHIVE).inputs) == 1
