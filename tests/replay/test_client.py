"""The agent's part of a script, as the client codec of a backend."""

from __future__ import annotations

import math
from typing import Any

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Response, Support
from adapters.offline.replay import ReplayClient, ReplayScript, script_of
from adapters.wire.errors import DragomanError, NotSupported
from tests.replay.support import WIRE, eve_log
from tests.replay.test_script_builder import (
    AGAIN,
    BEGIN,
    END,
    ENDED,
    STARTED,
    accepted,
    entries,
    received,
    said,
    taken,
)

TAKEN = Response(202)


def message(text: str) -> cmd.SendMessage:
    return cmd.SendMessage(content=(ev.Text(text=text),), policy="queue")


class Talk:
    """A codec, and the one who gives it commands."""

    def __init__(self, script: ReplayScript, speed: float = math.inf) -> None:
        self.codec = ReplayClient(script, "eve", speed, "name")
        self.now = 50_000
        self.out: list[ev.Event] = []
        self._given = 0

    def give(self, command: cmd.AnyCommand) -> str:
        self._given += 1
        name = f"c{self._given}"
        self.codec.check(command)
        call = self.codec.submit(name, command)
        self.out += self.codec.respond(call, TAKEN, self.now)
        return name

    def tick(self, ms: int = 0) -> list[str]:
        """Let time pass, and return the types of what came."""
        self.now += ms
        if self.codec.wake_at is None or self.codec.wake_at > self.now:
            return []
        found = self.codec.tick(self.now)
        self.out += found
        return [event.TYPE for event in found]

    def finish(self) -> None:
        while self.codec.wake_at is not None:
            self.tick(max(self.codec.wake_at - self.now, 0))

    @property
    def types(self) -> list[str]:
        return [event.TYPE for event in self.out]


def approval() -> ReplayScript:
    return script_of(eve_log(WIRE / "eve/eve-0.80.1/server/approval-approve.json"))


def request_of(script: ReplayScript) -> str:
    return next(iter(script.requests))


def test_it_plays_up_to_the_question_and_on_from_the_answer() -> None:
    script = approval()
    talk = Talk(script)
    first = talk.give(message("scene:  approve"))
    talk.finish()
    assert talk.types[0] == "input.settled"
    assert talk.types[-1] == "turn.paused"
    received = next(event for event in talk.out if isinstance(event, ev.MessageReceived))
    assert received.command_id == first
    answer = cmd.AnswerInteraction(request_id=request_of(script), decision="allow")
    talk.give(answer)
    talk.finish()
    assert talk.types[-1] == "turn.ended"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (message("other"), "`scene: approve` was recorded here, and the message `other` was said"),
        (
            cmd.AnswerInteraction(request_id="nobody", decision="allow"),
            "`answer` was not recorded, and nothing of its kind is left",
        ),
        (cmd.Interrupt(), "`interrupt` is impossible: the capture has none"),
        (cmd.Compact(), "`compact` is impossible"),
    ],
    ids=["message", "answer", "interrupt", "compact"],
)
def test_what_was_not_recorded_is_refused_with_what_was(
    command: cmd.AnyCommand, words: str
) -> None:
    codec = Talk(approval()).codec
    with pytest.raises(NotSupported, match=words.replace("(", r"\(")):
        codec.check(command)


def test_another_decision_is_refused_and_the_right_one_is_taken_then() -> None:
    script = approval()
    talk = Talk(script)
    talk.give(message("scene: approve"))
    talk.finish()
    deny = cmd.AnswerInteraction(request_id=request_of(script), decision="deny")
    with pytest.raises(NotSupported, match="`allow` was recorded here, and `deny` was said"):
        talk.give(deny)
    talk.give(deny.model_copy(update={"decision": "allow"}))
    talk.finish()
    assert talk.types[-1] == "turn.ended"


def two() -> ReplayScript:
    log = (said("a", "one"), taken("a"), BEGIN, received("a", "one"), END)
    return script_of(
        entries(STARTED, *log, said("b", "two"), taken("b"), AGAIN, received("b", "two"), ENDED)
    )


def test_a_message_may_be_checked_before_those_before_it_are_sent() -> None:
    talk = Talk(two())
    talk.codec.check(message("two"))
    with pytest.raises(NotSupported, match="`one` was recorded here"):
        talk.codec.submit("x", message("two"))


def test_nothing_is_left_behind_the_end() -> None:
    talk = Talk(two())
    talk.give(message("one"))
    talk.finish()
    talk.give(message("two"))
    talk.finish()
    with pytest.raises(NotSupported, match="nothing of its kind is left"):
        talk.give(message("three"))


def test_a_message_that_the_log_does_not_have_is_received_as_it_was_said() -> None:
    script = script_of(entries(STARTED, BEGIN, END))
    talk = Talk(script)
    name = talk.give(message("whatever"))
    talk.finish()
    assert talk.types == ["input.settled", "turn.started", "message.received", "turn.ended"]
    received = talk.out[2]
    assert isinstance(received, ev.MessageReceived)
    assert (received.command_id, received.content) == (name, (ev.Text(text="whatever"),))


def test_a_message_into_a_turn_may_come_late() -> None:
    """The turn does not wait for it, and its receipt comes when it does."""
    log = (said("a", "one"), taken("a"), BEGIN, received("a", "one"))
    text = ev.Notice(thread_id="main", turn_id="t", text="working")
    script = script_of(
        entries(STARTED, *log, text, said("b", "two"), taken("b"), received("b", "two"), END)
    )
    talk = Talk(script)
    assert talk.codec.abilities["steer"].support is Support.NATIVE
    talk.give(message("one"))
    talk.finish()
    assert talk.types[-1] == "turn.ended"
    name = talk.give(message("two"))
    assert talk.types[-2:] == ["input.settled", "message.received"]
    assert talk.out[-1].command_id == name  # type: ignore[attr-defined]


def test_what_the_backend_refused_is_refused() -> None:
    error = ev.ErrorInfo(code="busy", message="Later.")
    script = script_of(
        entries(STARTED, said("a", "one"), taken("a", "refused", error=error, reason="Later."))
    )
    talk = Talk(script)
    talk.give(message("one"))
    settled = talk.out[0]
    assert isinstance(settled, ev.InputSettled)
    assert (settled.outcome, settled.error) == ("refused", error)


def test_an_answer_that_was_refused_leaves_the_request_open() -> None:
    error = ev.ErrorInfo(code="busy", message="Later.")
    asked = ev.InteractionRequested(
        thread_id="main", turn_id="t", request_id="r", kind="approval", prompt="Run it?"
    )
    pause = ev.TurnPaused(thread_id="main", turn_id="t", on="input", request_ids=("r",))
    allowed = {"name": "answer", "request_id": "r", "details": {"decision": "allow"}}
    over = ev.InteractionResolved(thread_id="main", turn_id="t", request_id="r", outcome="approved")
    log = (BEGIN, asked, pause, accepted("x", "answer", **allowed))
    again = (taken("x", "refused", error=error), accepted("y", "answer", **allowed), taken("y"))
    script = script_of(entries(STARTED, *log, *again, over, END))
    talk = Talk(script)
    talk.give(message("go"))
    talk.finish()
    answer = cmd.AnswerInteraction(request_id="r", decision="allow")
    first = talk.give(answer)
    claims = [event for event in talk.out if isinstance(event, ev.InteractionAnswered)]
    assert [(one.command_id, one.state) for one in claims] == [(first, "released")]
    talk.give(answer)
    talk.finish()
    assert talk.types[-1] == "turn.ended"


def slow(speed: float) -> Talk:
    log = [
        ev.Entry(1, 0, "s", STARTED),
        ev.Entry(2, 1_000, "s", BEGIN),
        ev.Entry(3, 1_000, "s", ev.Notice(thread_id="main", turn_id="t", text="a")),
        ev.Entry(4, 1_500, "s", ev.Notice(thread_id="main", turn_id="t", text="b")),
        ev.Entry(5, 3_500, "s", END),
    ]
    talk = Talk(script_of(log), speed)
    talk.give(message("go"))
    return talk


@pytest.mark.parametrize(("speed", "factor"), [(1.0, 1.0), (10.0, 0.1), (0.5, 2.0)])
def test_it_takes_the_time_that_it_took(speed: float, factor: float) -> None:
    talk = slow(speed)
    assert talk.types == ["input.settled", "turn.started", "message.received", "notice"]
    assert talk.codec.wake_at == talk.now + 500 * factor
    assert talk.tick(int(500 * factor)) == ["notice"]
    assert talk.codec.wake_at == talk.now + 2_000 * factor
    assert talk.tick(int(2_000 * factor)) == ["turn.ended"]
    assert talk.codec.wake_at is None


def test_time_that_was_missed_is_made_up() -> None:
    talk = slow(1.0)
    assert talk.tick(2_500) == ["notice", "turn.ended"]


def test_at_the_highest_speed_it_does_not_hold_the_event_loop() -> None:
    notices = [ev.Notice(thread_id="main", turn_id="t", text=str(n)) for n in range(3 * 64)]
    talk = Talk(script_of(entries(STARTED, BEGIN, *notices, END)))
    talk.give(message("go"))
    assert len(talk.out) == 64 + 1
    assert talk.codec.wake_at == talk.now
    talk.finish()
    assert talk.types[-1] == "turn.ended"


def test_it_goes_on_where_it_was_put_away() -> None:
    talk = slow(1.0)
    kept = ReplayClient(talk.codec._script, "eve", 1.0, "name")
    kept.restore(talk.codec.snapshot(), talk.codec.position)
    talk.codec = kept
    assert talk.tick(500) == ["notice"]
    assert talk.tick(1_999) == []
    assert talk.tick(1) == ["turn.ended"]


def test_it_opens_no_stream_and_asks_for_nothing() -> None:
    codec = Talk(two()).codec
    assert codec.streams() == ()
    assert codec.take_calls() == []
    assert codec.look(0) is False


def test_a_call_without_an_answer_leaves_its_input_unknown() -> None:
    codec = Talk(two()).codec
    call = codec.submit("a", message("one"))
    found: list[Any] = codec.failed(call, DragomanError("gone"), sent=True, now=1)
    assert [(event.command_id, event.outcome) for event in found] == [("a", "unknown")]
