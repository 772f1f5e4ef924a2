"""Where the cues of recorded conversations stand, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from adapters.model import events as ev
from adapters.offline.replay import ReplayCue, ReplayScript, ReplayStep, script_of
from adapters.offline.replay.script_builder import CUT_OFF
from tests.replay.support import WIRE, body_log, eve_log

EVE = WIRE / "eve"


def shape(script: ReplayScript) -> list[str]:
    """The cues and the events around them that a person sees, in one line each."""
    lines: list[str] = []
    for step in script.steps:
        if isinstance(step, ReplayCue):
            lines.append(cue_line(step))
        elif step.event.TYPE in SHOWN:
            lines.append(step.event.TYPE)
    return lines


SHOWN = {
    *("turn.started", "message.received", "turn.paused", "turn.resumed", "turn.ended"),
    *("interaction.requested", "interaction.resolved"),
}


def cue_line(cue: ReplayCue) -> str:
    if cue.name == "answer":
        return f"> answer {cue.said}"
    words = "any" if cue.words is None and cue.name == "send_message" else cue.words
    also = f", or answer {cue.said}" if cue.request_id else ""
    return f"> {cue.name} {words}{also}{'' if cue.waits else ', not waited for'}"


SCENES = {
    "eve-0.80.1/server/approval-approve": [
        *("> send_message scene: approve", "turn.started", "message.received"),
        *("interaction.requested", "turn.paused"),
        *("> answer `allow`", "interaction.resolved", "turn.resumed", "turn.ended"),
    ],
    # The stream tells of the answer when the agent has gone on; it was given in the pause.
    "eve-0.30.8/server/approval-approve": [
        *("> send_message scene: approve", "turn.started", "message.received"),
        *("interaction.requested", "turn.paused"),
        *("> answer `allow`", "turn.resumed", "interaction.resolved", "turn.ended"),
    ],
    "eve-0.80.1/server/approval-other-message": [
        *("> send_message scene: approve", "turn.started", "message.received"),
        *("interaction.requested", "turn.paused"),
        *("> send_message scene: plain", "interaction.resolved", "turn.resumed"),
        *("message.received", "turn.ended"),
    ],
    # A message that the backend took for the answer is one thing that a person did.
    "eve-0.80.1/server/question-answered-by-message": [
        *("> send_message scene: ask", "turn.started", "message.received", "turn.paused"),
        *("interaction.requested", "turn.paused"),
        *("> send_message Blue, or answer `blue`", "turn.resumed", "message.received"),
        *("interaction.resolved", "turn.ended"),
    ],
    "eve-0.80.1/server/cancel-held-approval": [
        *("> send_message scene: approve", "turn.started", "message.received"),
        *("interaction.requested", "turn.paused"),
        *("> interrupt None", "interaction.resolved", "turn.ended"),
    ],
    # The person said no to going on, which ends the turn: no interrupt.
    "eve-0.80.1/server/session-limit": [
        *("> send_message scene: loop", "turn.started", "message.received"),
        *("interaction.requested", "turn.paused"),
        *("> answer `allow`", "interaction.resolved", "turn.resumed"),
        *("interaction.requested", "turn.paused"),
        *("> answer `deny`", "interaction.resolved", "turn.ended"),
    ],
    # A sign-in is done elsewhere.
    "eve-0.80.1/server/sign-in": [
        *("> send_message scene: ledger", "turn.started", "message.received"),
        *("interaction.requested", "turn.paused", "interaction.resolved", "turn.resumed"),
        "turn.ended",
    ],
    "eve-0.80.1/server/follow-up": [
        *("> send_message scene: plain", "turn.started", "message.received", "turn.ended"),
        *("> send_message scene: weather Rome", "turn.started", "message.received", "turn.ended"),
    ],
}


@pytest.mark.parametrize("scene", SCENES)
def test_a_cue_stands_where_a_person_was_waited_for(scene: str) -> None:
    assert shape(script_of(eve_log(EVE / f"{scene}.json"))) == SCENES[scene]


BODIES = {
    # Nothing says what was said, and a stop of the recording ends the turn.
    "engine/06d-abrupt-eof": ["> send_message any", "turn.started", "message.received"],
    "engine/03-hitl-permission-yes": [
        *("> send_message any", "turn.started", "message.received"),
        *("interaction.requested", "turn.paused"),
        *("> answer None", "interaction.resolved", "turn.resumed"),
    ],
    "herm/05-custom-tool": [
        *("> send_message any", "turn.started", "message.received"),
        *("interaction.requested", "turn.paused"),
        *("> answer None", "interaction.resolved", "turn.resumed"),
    ],
}


@pytest.mark.parametrize("body", BODIES)
def test_a_body_without_its_requests_takes_any_message_and_answer(body: str) -> None:
    dialect = body.split("/")[0]
    assert shape(script_of(body_log(WIRE / f"{body}.sse", dialect))) == [
        *BODIES[body],
        "turn.ended",
    ]


def entries(*events: ev.Event) -> list[ev.Entry]:
    return [ev.Entry(seq, 1_000 + seq, "s", event) for seq, event in enumerate(events, 1)]


def accepted(command_id: str, kind: str, **fields: Any) -> ev.InputAccepted:
    return ev.InputAccepted(
        thread_id="main",
        command_id=command_id,
        kind=kind,  # type: ignore[arg-type]
        by="k",
        **fields,
    )


def taken(command_id: str, outcome: str = "taken", **fields: Any) -> ev.InputSettled:
    return ev.InputSettled(
        thread_id="main",
        command_id=command_id,
        outcome=outcome,  # type: ignore[arg-type]
        **fields,
    )


def received(command_id: str | None, text: str) -> ev.MessageReceived:
    return ev.MessageReceived(
        thread_id="main",
        message_id=f"m-{text}",
        content=(ev.Text(text=text),),
        command_id=command_id,
    )


def said(command_id: str, text: str, **fields: Any) -> ev.InputAccepted:
    content = (ev.Text(text=text),)
    return accepted(command_id, "message", name="send_message", content=content, **fields)


STARTED = ev.SessionStarted(thread_id="main")
BEGIN = ev.TurnStarted(thread_id="main", turn_id="t", cause="message")
AGAIN = ev.TurnStarted(thread_id="main", turn_id="u", cause="message")
END = ev.TurnEnded(thread_id="main", turn_id="t", outcome="completed")
ENDED = ev.TurnEnded(thread_id="main", turn_id="u", outcome="completed")


def lines(*events: ev.Event) -> list[str]:
    return shape(script_of(entries(STARTED, *events)))


def test_a_message_that_waited_for_the_turn_is_said_behind_it() -> None:
    """The session holds it back again; a cue in the turn would wait for what cannot come."""
    log = (said("a", "one"), taken("a"), BEGIN, received("a", "one"), said("b", "two"))
    assert lines(*log, END, taken("b"), AGAIN, received("b", "two"), ENDED) == [
        *("> send_message one", "turn.started", "message.received", "turn.ended"),
        *("> send_message two", "turn.started", "message.received", "turn.ended"),
    ]


def test_a_message_into_a_turn_is_not_waited_for() -> None:
    log = (said("a", "one"), taken("a"), BEGIN, received("a", "one"))
    text = ev.Notice(thread_id="main", turn_id="t", text="working")
    assert lines(*log, text, said("b", "two"), taken("b"), received("b", "two"), END) == [
        *("> send_message one", "turn.started", "message.received"),
        *("> send_message two, not waited for", "message.received", "turn.ended"),
    ]


def test_what_was_withdrawn_is_no_cue() -> None:
    log = (said("a", "one"), taken("a"), BEGIN, received("a", "one"), said("b", "two"))
    assert lines(*log, taken("b", "withdrawn"), END) == [
        *("> send_message one", "turn.started", "message.received", "turn.ended"),
    ]


def test_what_was_refused_is_a_cue_that_is_refused_again() -> None:
    error = ev.ErrorInfo(code="busy", message="Later.")
    script = script_of(
        entries(STARTED, said("a", "one"), taken("a", "refused", error=error, reason="Later."))
    )
    assert [script.cue(n).refused for n in range(len(script.cues))] == [error]


@pytest.mark.parametrize("name", ["create_session", "update_session", "archive", "delete"])
def test_what_needs_no_agent_is_no_cue(name: str) -> None:
    assert script_of(entries(STARTED, accepted("a", "control", name=name))).cues == ()


@pytest.mark.parametrize(
    "events",
    [
        (accepted("a", "interrupt", name="interrupt"), taken("a")),
        (),
    ],
    ids=["in the log", "not in the log"],
)
def test_an_interrupt_stands_before_what_it_closed(events: Sequence[ev.Event]) -> None:
    called = ev.ToolCalled(thread_id="main", turn_id="t", call_id="c", name="bash")
    returned = ev.ToolReturned(
        thread_id="main", turn_id="t", call_id="c", status="interrupted", synthetic=True
    )
    end = ev.TurnEnded(thread_id="main", turn_id="t", outcome="interrupted")
    script = script_of(entries(STARTED, BEGIN, called, *events, returned, end))
    kinds = [
        step.name if isinstance(step, ReplayCue) else step.event.TYPE
        for step in script.steps
        if not isinstance(step, ReplayStep) or step.event.TYPE != "message.received"
    ]
    assert kinds == [
        *("send_message", "turn.started", "tool.called"),
        *("interrupt", "tool.returned", "turn.ended"),
    ]


def test_a_turn_in_which_the_capture_ends_fails() -> None:
    script = script_of(entries(STARTED, BEGIN))
    last = script.steps[-1]
    assert isinstance(last, ReplayStep)
    assert isinstance(last.event, ev.TurnEnded)
    assert last.event.error is not None
    assert (last.event.turn_id, last.event.error.code) == ("t", CUT_OFF)


def test_a_turn_in_which_a_person_is_waited_for_stays_open() -> None:
    asked = ev.InteractionRequested(
        thread_id="main", turn_id="t", request_id="r", kind="approval", prompt="Run it?"
    )
    pause = ev.TurnPaused(thread_id="main", turn_id="t", on="input", request_ids=("r",))
    script = script_of(entries(STARTED, BEGIN, asked, pause))
    assert script.ends_asked
    assert isinstance(script.steps[-1], ReplayStep)
    assert script.steps[-1].event == pause


def test_two_answers_stand_in_their_own_pauses() -> None:
    """Each is looked for by its request, so they may come in the other order too."""
    asked = [
        ev.InteractionRequested(
            thread_id="main", turn_id="t", request_id=name, kind="approval", prompt=name
        )
        for name in ("r", "s")
    ]
    both = ev.TurnPaused(thread_id="main", turn_id="t", on="input", request_ids=("r", "s"))
    one = ev.TurnPaused(thread_id="main", turn_id="t", on="input", request_ids=("s",))
    over = [
        ev.InteractionResolved(
            thread_id="main", turn_id="t", request_id=name, outcome="approved", answer=ev.Answer()
        )
        for name in ("r", "s")
    ]
    resumed = ev.TurnResumed(thread_id="main", turn_id="t")
    assert lines(BEGIN, *asked, both, over[0], one, over[1], resumed, END)[2:] == [
        *("message.received", "interaction.requested", "interaction.requested", "turn.paused"),
        *("> answer `allow`", "interaction.resolved", "turn.paused"),
        *("> answer `allow`", "interaction.resolved", "turn.resumed", "turn.ended"),
    ]


def test_what_the_session_writes_by_itself_is_left_out() -> None:
    script = script_of(eve_log(EVE / "eve-0.80.1/server/approval-approve.json"))
    types = {step.event.TYPE for step in script.steps if isinstance(step, ReplayStep)}
    assert not types & {
        *("session.started", "input.accepted", "input.settled", "interaction.answered"),
    }


def test_frames_are_not_named() -> None:
    """They are counted anew."""
    script = script_of(eve_log(EVE / "eve-0.80.1/server/plain.json"))
    natives = [
        step.event.native
        for step in script.steps
        if isinstance(step, ReplayStep) and step.event.native is not None
    ]
    assert natives
    assert all(native.frame is None for native in natives)
