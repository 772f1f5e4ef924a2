"""The eve client codec: recorded servers become lawful logs, commands the recorded requests."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from multidict import CIMultiDict

from adapters.driving.held import HOLD_MS
from adapters.driving.silence import CATCH_UP_MS, RECOVER_MS
from adapters.eve.client import EveClient
from adapters.eve.client.cancellation import CANCEL_AGAIN_MS, CANCEL_MS, CANCELLED_MS
from adapters.eve.client.session_records import TAKEN_BACK_MS
from adapters.eve.client.streams import STREAMS_MOST
from adapters.eve.server import EveEncoder
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, CloseReason, EncoderContext, Request, Response, Support
from adapters.model.interactions import DECLINED
from adapters.model.normalizer import Normalizer
from adapters.model.state import LogState
from adapters.model.stored import mark, read
from adapters.wire.errors import DragomanError, ErrorCode, NotSupported
from adapters.wire.jsonvalue import format_json
from tests.eve.recorded import SCENARIOS, Player, Scenario, check_laws, next_index, players
from tests.support.bodies import whole
from tests.support.each import each
from tests.support.played import Played
from tests.support.remembered import remembers

WITH_SESSION = [name for name in SCENARIOS if Scenario(name).sessions]

REPAIRS: dict[str, dict[str, int]] = {
    # A turn that is cancelled in the middle of a model call leaves its text and its step open.
    "eve-0.30.8/client/client-controls": {"close-block": 1, "close-step": 1},
    "eve-0.30.8/server/cancel-mid-turn": {"close-block": 1, "close-step": 1},
    "eve-0.80.1/client/client-cancel": {"close-block": 1, "close-step": 1},
    "eve-0.80.1/server/cancel-mid-turn": {"close-block": 1, "close-step": 1},
    # The step that hits a token limit is never completed.
    "eve-0.30.8/server/session-limit": {"close-step": 2},
    "eve-0.80.1/server/session-limit": {"close-step": 2},
    # The call that needed a sign-in is asked again under another id; a cancelled one never returns.
    "eve-0.80.1/server/sign-in": {"abandoned-call": 1},
    "eve-0.80.1/server/sign-in-declined": {"abandoned-call": 1},
    "eve-0.80.1/server/cancel-held-approval": {"abandoned-call": 1},
    # Task mode fails at the first request for a person.
    "eve-0.30.8/server/remote-caller-callback": {"abandoned-call": 1, "left-interaction": 1},
}
"""What the normalizer adds, per scenario; every other one needs nothing."""


GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
GOLDENS = sorted(file.parent.name for file in GOLDEN.glob("engine-*/canonical.ndjson"))

ON_PURPOSE = {
    "cross-generation/new-client-to-old-server": "the wrong client sends the wrong requests",
    "cross-generation/old-client-to-new-server": "the wrong client sends the wrong requests",
    "eve-0.30.8/server/errors": "requests that a server refuses",
    "eve-0.80.1/server/errors": "requests that a server refuses",
    "eve-0.80.1/server/operation-id": "the codec sends no operation ids",
}
"""Scenarios whose recorded requests are not those that the codec should send."""


# Recorded streams.


@each("name", WITH_SESSION)
def test_a_recorded_scenario_becomes_a_lawful_log(name: str) -> None:
    repairs: dict[str, int] = {}
    for player in players(name):
        check_laws(player.events)
        for rule, count in player.normalizer.repairs.items():
            repairs[str(rule)] = repairs.get(str(rule), 0) + count
    assert "unrepaired" not in repairs
    assert repairs == REPAIRS.get(name, {})


@pytest.mark.parametrize("way", ["restart", "bytewise"])
@each("name", WITH_SESSION)
def test_the_log_is_the_same_after_restarts_and_byte_by_byte(name: str, way: str) -> None:
    whole = players(name)
    cut = players(name, **{way: True})
    assert [player.log for player in cut] == [player.log for player in whole]


@each("name", WITH_SESSION)
def test_every_record_is_kept_somewhere(name: str) -> None:
    for player in players(name):
        log = player.scenario.logs.get(player.session, {})
        if not log or player.normalizer.state.ended is not None:
            continue
        assert next_index(player.codec) == len(log)
        said = [
            orjson.loads(record)["data"]["message"]
            for record in log.values()
            if b'"type":"message.completed"' in record
        ]
        written = [
            e.text
            for e in player.of(ev.TextCompleted)
            if e.thread_id == ev.MAIN and e.status == "complete"
        ]
        assert written == said


@each("name", WITH_SESSION)
def test_no_credential_leaves_the_codec(name: str) -> None:
    for player in players(name):
        text = b"\n".join(player.log)
        records = b"\n".join(player.scenario.logs.get(player.session, {}).values())
        secrets = set(re.findall(rb'"(?:webhookUrl|continuationToken)":"([^"]+)"', records))
        secrets.discard(player.session.encode())
        assert [secret for secret in secrets if secret in text] == []
        assert [secret for secret in secrets if secret in player.codec.position] == []


@each("name", [name for name in WITH_SESSION if name not in ON_PURPOSE])
def test_commands_become_the_recorded_requests(name: str) -> None:
    for player in players(name):
        for exchange, call in player.bodies:
            if call.name == "negative":
                # The recorded cancel of a closed pause did nothing; ours denies first.
                assert exchange.path.endswith("/cancel")
                continue
            assert (call.request.method, call.request.path) == (exchange.method, exchange.path)
            wanted = exchange.body if isinstance(exchange.body, dict) else {}
            sent = orjson.loads(whole(call, player.files) or b"{}")
            policy = sent.pop("turnPolicy", None)
            if "turnPolicy" in wanted:
                assert policy == wanted["turnPolicy"]
            assert _without_files(sent) == _without_files(
                {k: v for k, v in wanted.items() if k != "turnPolicy"}
            )


def _without_files(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body with the bytes of its files instead of their spelling, one text as text."""
    message = body.get("message")
    if not isinstance(message, list):
        return body
    if len(message) == 1 and message[0]["type"] == "text":
        return {**body, "message": message[0]["text"]}
    parts = [
        {**part, "data": base64.b64decode(part["data"].rpartition(",")[2])}
        if "data" in part
        else part
        for part in message
    ]
    return {**body, "message": parts}


def one(name: str) -> Player:
    (player, *_) = players(name)
    return player


@pytest.mark.parametrize("version", ["0.30.8", "0.80.1"])
def test_an_approved_call_is_one_turn_in_every_generation(version: str) -> None:
    player = one(f"eve-{version}/server/approval-approve")
    assert [e.turn_id for e in player.of(ev.TurnStarted)] == ["turn_0"]
    (called,) = player.of(ev.ToolCalled)
    assert called.permission == "ask"
    (asked,) = player.of(ev.InteractionRequested)
    assert asked.call_id == called.call_id
    (paused,) = player.of(ev.TurnPaused)
    assert paused.request_ids == (asked.request_id,)
    (resolved,) = player.of(ev.InteractionResolved)
    assert resolved.outcome == "approved"
    assert len(player.of(ev.TurnResumed)) == 1
    (ended,) = player.of(ev.TurnEnded)
    assert ended.outcome == "completed"
    assert [e.step_index for e in player.of(ev.StepStarted)] == [0, 1]


@pytest.mark.parametrize("version", ["0.30.8", "0.80.1"])
def test_a_denied_call_carries_the_reason(version: str) -> None:
    player = one(f"eve-{version}/server/approval-deny")
    (resolved,) = player.of(ev.InteractionResolved)
    assert (resolved.outcome, resolved.reason) == ("denied", "Too expensive.")
    (returned,) = player.of(ev.ToolReturned)
    assert returned.status == "rejected"


def test_an_unrelated_message_leaves_the_approval_of_a_token_server_open() -> None:
    player = one("eve-0.30.8/server/approval-other-message")
    assert len(player.of(ev.TurnStarted)) == 1
    assert [len(e.request_ids) for e in player.of(ev.TurnPaused)] == [1, 1]
    assert not player.of(ev.InteractionResolved)
    assert player.of(ev.MessageReceived)[-1].command_id == "cmd-2"
    assert player.normalizer.state.status == "paused"


def test_an_unrelated_message_withdraws_the_approval_of_a_new_server() -> None:
    player = one("eve-0.80.1/server/approval-other-message")
    (resolved,) = player.of(ev.InteractionResolved)
    assert resolved.outcome == "withdrawn"
    assert player.of(ev.MessageReceived)[-1].command_id == "cmd-2"
    assert len(player.of(ev.TurnStarted)) == 1


def test_a_message_that_answers_gets_its_receipt_where_the_server_gives_none() -> None:
    player = one("eve-0.80.1/server/approval-text-message")
    receipt = player.of(ev.MessageReceived)[-1]
    assert (receipt.command_id, receipt.synthetic) == ("cmd-2", True)


@pytest.mark.parametrize("version", ["0.30.8", "0.80.1"])
def test_a_child_is_a_thread_whose_end_follows_its_own_stream(version: str) -> None:
    player = one(f"eve-{version}/server/subagent")
    (started,) = player.of(ev.ThreadStarted)
    child = started.thread_id
    types = [e.TYPE for e in player.events if e.thread_id == child and e.TYPE != "text.delta"]
    assert types[0] == "thread.started"
    assert types[-2:] == ["turn.ended", "thread.ended"]
    assert player.of(ev.ThreadEnded)[0].output == "Child says: tides follow the moon."


def test_repeats_of_a_retried_step_are_said_once() -> None:
    player = one("eve-0.30.8/server/retried-step-session-failed")
    assert len(player.of(ev.TurnStarted)) == 1
    assert len(player.of(ev.MessageReceived)) == 1
    assert player.of(ev.SessionEnded)[0].error.code == "FatalError"


def test_a_sign_in_pauses_and_is_resolved_by_its_completion() -> None:
    for version in ("0.30.8", "0.80.1"):
        player = one(f"eve-{version}/server/sign-in")
        (asked,) = player.of(ev.InteractionRequested)
        assert asked.kind == "authorization"
        assert asked.details is not None
        assert asked.details["service"] == "ledger"
        assert player.of(ev.InteractionResolved)[0].outcome == "approved"
        assert len(player.of(ev.TurnPaused)) == 1


def test_a_done_sign_in_is_acknowledged_and_stays_open_until_the_backend_says_more() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    wire.in_turn("authorization.required", 0, name="ledger", description="Sign in.", attemptId="A")
    wire.in_turn("turn.waiting", on="input")
    call = wire.command(cmd.AnswerInteraction(request_id="A", decision="allow"))
    assert call.request.method == "GET"
    claim = ev.InteractionAnswered(thread_id=ev.MAIN, request_id="A", command_id="cmd-2", by="test")
    wire.take([claim])
    wire.answer(call, 200, {"ok": True})
    assert wire.of(ev.InteractionAnswered)[-1].state == "released"
    cancel = wire.command(cmd.AnswerInteraction(request_id="A", decision="deny"))
    assert cancel.request.path.endswith("/cancel")
    wire.answer(cancel, 202, {"ok": True})
    wire.in_turn("authorization.completed", 0, name="ledger", attemptId="A", outcome="declined")
    assert wire.of(ev.InteractionResolved)[0].outcome == "denied"


def test_a_stopped_limit_interrupts_the_turn() -> None:
    for version in ("0.30.8", "0.80.1"):
        player = one(f"eve-{version}/server/session-limit")
        assert [e.outcome for e in player.of(ev.InteractionResolved)] == ["approved", "denied"]
        assert player.of(ev.TurnEnded)[0].outcome == "interrupted"
        assert len(player.of(ev.TurnStarted)) == 1


def test_control_events_open_no_turn() -> None:
    for version in ("0.30.8", "0.80.1"):
        player = one(f"eve-{version}/server/controls")
        assert len(player.of(ev.TurnStarted)) == 1
        assert [e.phase for e in player.of(ev.ContextCompacted)] == ["started", "completed"]
        assert len(player.of(ev.ContextCleared)) == 1
        assert player.of(ev.SessionEnded)[0].outcome == "terminated"


def test_the_generation_shows_in_the_first_answers() -> None:
    assert one("eve-0.30.8/server/plain").codec._s.generation == "T"
    assert one("eve-0.80.1/server/plain").codec._s.generation == "S2"
    assert one("eve-0.30.8/server/plain").codec.abilities["steer"].support is Support.EMULATED
    assert one("eve-0.80.1/server/plain").codec.abilities["steer"].support is Support.NATIVE


# Written by hand: what no recording has.


class Wire(Played):
    """A codec in a session of one generation, whose records are written here."""

    codec: EveClient

    def __init__(self, generation: str, version: str | None = None) -> None:
        super().__init__(lambda: EveClient({}))
        self.now = 1_000
        self.number = 0
        self.commands = 0
        self.generation = generation
        self.main = Call("stream", Request("GET", "/"), stream=True)
        answer: dict[str, Any] = {"ok": True, "sessionId": "wrun_1"}
        if generation == "T":
            answer["continuationToken"] = "eve:one"
        else:
            answer["status"] = "accepted"
        self.create = self.command(cmd.SendMessage(content=(ev.Text(text="hi"),), policy="queue"))
        self.answer(self.create, 202, answer)
        runtime = {"agentId": "a", "agentName": "a"}
        default = {"T": "0.30.8", "S1": "0.33.2", "S2": "0.80.1"}[generation]
        self.say("session.started", runtime={**runtime, "eveVersion": version or default})
        self.turn = -1

    def command(self, command: cmd.AnyCommand) -> Call:
        self.commands += 1
        command_id = f"cmd-{self.commands}"
        self.take(
            [
                ev.InputAccepted(
                    thread_id=ev.MAIN, command_id=command_id, kind=command.KIND, by="test"
                )
            ]
        )
        self.codec.check(command)
        call = self.codec.submit(command_id, command)
        if call.name == "prewarm":
            # As a server before 0.59 (section 4.1): the first message goes with the create.
            self.answer(call, 400, {"error": "Missing or empty 'message' field."})
            (call,) = self.codec.take_calls()
        return call

    def answer(self, call: Call, status: int, body: dict[str, Any] | None) -> list[ev.Event]:
        data = b"" if body is None else orjson.dumps(body)
        return self.take(self.codec.respond(call, Response(status, CIMultiDict(), data), self.now))

    def say(self, type_: str, *, thread: str = ev.MAIN, **data: Any) -> list[ev.Event]:
        self.number += 1
        meta: dict[str, Any] = {"id": f"evt_{self.number}", "at": "2026-03-04T05:06:07.089Z"}
        if "deliveries" in data:
            meta["deliveryIds"] = data.pop("deliveries")
        line = orjson.dumps({"type": type_, "data": data, "meta": meta})
        call = Call("stream", self.main.request, stream=True, thread_id=thread)
        return self.take(self.codec.feed(call, line, self.now))

    def in_turn(self, type_: str, step: int | None = None, **data: Any) -> list[ev.Event]:
        place: dict[str, Any] = {"sequence": self.turn, "turnId": f"turn_{self.turn}"}
        if step is not None:
            place["stepIndex"] = step
        return self.say(type_, **place, **data)

    def begin(self, text: str | None = None) -> None:
        self.turn += 1
        self.in_turn("turn.started")
        if text is not None:
            self.in_turn("message.received", message=text)

    def close(self) -> None:
        self.in_turn("turn.completed")
        self.say("session.waiting", continuationToken="eve:two", wait="next-user-message")

    def approval(self, *names: str) -> None:
        self.begin("hi")
        self.in_turn("step.started", 0)
        for name in names:
            action = {"kind": "tool-call", "callId": f"call-{name}", "toolName": "pay", "input": {}}
            self.in_turn("actions.requested", 0, actions=[action])
        self.in_turn("step.completed", 0, finishReason="tool-calls")
        self.in_turn("input.requested", 0, requests=[request(name) for name in names])


def request(name: str) -> dict[str, Any]:
    return {
        "requestId": name,
        "kind": "tool-approval",
        "prompt": "Pay?",
        "display": "confirmation",
        "allowFreeform": False,
        "options": [{"id": "approve", "label": "Yes"}, {"id": "deny", "label": "No"}],
        "action": {"kind": "tool-call", "callId": f"call-{name}", "toolName": "pay", "input": {}},
    }


def allow(name: str) -> cmd.AnswerInteraction:
    return cmd.AnswerInteraction(request_id=name, decision="allow", option_ids=("approve",))


def result(name: str) -> dict[str, Any]:
    return {"kind": "tool-result", "callId": f"call-{name}", "toolName": "pay", "output": 1}


def test_the_boundary_of_a_pause_that_comes_after_the_answer_says_nothing_new() -> None:
    # The stream broke between the end of eve's turn and what follows it.
    wire = Wire("T")
    wire.approval("A")
    wire.in_turn("turn.completed")
    assert wire.codec.wake_at is not None
    wire.take(wire.codec.tick(wire.codec.wake_at))
    assert wire.of(ev.TurnPaused)[-1].request_ids == ("A",)
    wire.answer(wire.command(allow("A")), 200, {"ok": True})
    late = {"continuationToken": "eve:late", "wait": "next-user-message"}
    wire.say("session.waiting", **late)
    assert wire.of(ev.Native) == []
    # Another one is news, though nobody knows of what.
    wire.say("session.waiting", **late)
    assert len(wire.of(ev.Native)) == 1


@pytest.mark.parametrize("late", [True, False])
def test_a_turn_has_one_boundary_however_late_it_comes(late: bool) -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.in_turn("turn.completed")
    if late:
        assert wire.codec.wake_at is not None
        wire.take(wire.codec.tick(wire.codec.wake_at))
    waiting = {"continuationToken": "eve:two", "wait": "next-user-message"}
    wire.say("session.waiting", **waiting)
    assert len(wire.of(ev.TurnEnded)) == 1
    assert wire.of(ev.Native) == []
    wire.say("session.waiting", **waiting)
    assert len(wire.of(ev.Native)) == 1


def test_two_approvals_of_a_token_server_are_answered_one_by_one() -> None:
    wire = Wire("T")
    wire.approval("A", "B")
    wire.close()
    wire.answer(wire.command(allow("A")), 200, {"ok": True})
    wire.begin()
    wire.close()
    assert [e.request_id for e in wire.of(ev.InteractionResolved)] == ["A"]
    assert wire.of(ev.TurnPaused)[-1].request_ids == ("B",)
    wire.answer(wire.command(allow("B")), 200, {"ok": True})
    wire.begin()
    wire.in_turn("step.started", 0)
    wire.in_turn("action.result", 0, result=result("A"), status="completed")
    wire.in_turn("action.result", 0, result=result("B"), status="completed")
    wire.in_turn("step.completed", 0, finishReason="stop")
    wire.close()
    assert [e.outcome for e in wire.of(ev.InteractionResolved)] == ["approved", "approved"]
    assert len(wire.of(ev.TurnStarted)) == len(wire.of(ev.TurnEnded)) == 1
    assert len(wire.of(ev.ToolReturned)) == 2
    assert not wire.normalizer.repairs


def test_two_approvals_of_a_new_server_pause_again_for_the_other() -> None:
    wire = Wire("S2")
    wire.approval("A", "B")
    wire.in_turn("turn.waiting", on="input")
    wire.answer(wire.command(allow("A")), 202, {"ok": True, "status": "accepted"})
    settled = {"outcome": "approved", "responderPrincipalId": "ada"}
    wire.in_turn("approval.settled", 0, requestId="A", **settled)
    wire.in_turn("turn.waiting", on="input")
    assert wire.of(ev.TurnPaused)[-1].request_ids == ("B",)
    wire.in_turn("approval.settled", 0, requestId="B", **settled)
    both = [
        {"requestId": name, "kind": "tool-approval", "outcome": "approved"} for name in ("A", "B")
    ]
    resolved = wire.in_turn("input.resolved", 0, resolutions=both)
    assert [e.request_id for e in resolved if isinstance(e, ev.InteractionResolved)] == ["B"]
    assert [e.by for e in wire.of(ev.InteractionResolved)] == ["ada", "ada"]


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
def test_the_id_of_a_request_in_a_later_turn_is_that_of_another_one(generation: str) -> None:
    wire = Wire(generation)
    for _ in range(2):
        wire.approval("A")
        # What tells it again in its own turn asks nothing new.
        wire.in_turn("input.requested", 0, requests=[request("A")])
        wire.in_turn("action.result", 0, result=result("A"), status="completed")
        wire.in_turn("input.requested", 0, requests=[request("A")])
        wire.close()
    asked = [(one.request_id, one.native_id) for one in wire.of(ev.InteractionRequested)]
    assert asked == [("A", None), ("A~2", "A")]
    # Nor does what is told of it when its turn is over.
    wire.in_turn("input.requested", 0, requests=[request("A")])
    assert len(wire.of(ev.InteractionRequested)) == 2


def test_an_approval_that_is_settled_without_a_resolution_is_resolved_once() -> None:
    wire = Wire("S2")
    wire.approval("A")
    wire.in_turn("turn.waiting", on="input")
    wire.answer(wire.command(allow("A")), 202, {"ok": True, "status": "accepted"})
    assert wire.in_turn("approval.settled", 0, requestId="A", outcome="approved") == []
    due = wire.codec.wake_at
    assert due == wire.now + HOLD_MS
    wire.take(wire.codec.tick(due))
    assert [e.outcome for e in wire.of(ev.InteractionResolved)] == ["approved"]
    # Nothing is left to wake up for.
    assert wire.codec.wake_at is None


def test_an_ordinary_turn_of_an_early_session_server_leaves_the_approval_open() -> None:
    wire = Wire("S1")
    wire.approval("A")
    wire.close()
    wire.begin("something else")
    wire.in_turn("step.started", 0)
    wire.in_turn("message.completed", 0, message="Well.", finishReason="stop")
    wire.in_turn("step.completed", 0, finishReason="stop")
    wire.close()
    assert not wire.of(ev.InteractionResolved)
    assert not wire.of(ev.TurnEnded)
    assert [e.request_ids for e in wire.of(ev.TurnPaused)] == [("A",), ("A",)]


def test_an_interrupt_of_a_closed_pause_denies_and_then_cancels() -> None:
    wire = Wire("T")
    wire.approval("A")
    wire.close()
    call = wire.command(cmd.Interrupt())
    assert orjson.loads(call.request.body or b"")["inputResponses"] == [
        {"requestId": "A", "optionId": "deny"}
    ]
    assert wire.answer(call, 200, {"ok": True}) == []
    assert wire.codec.take_calls() == []
    wire.begin()
    (cancel,) = wire.codec.take_calls()
    assert cancel.request.path == "/eve/v1/session/wrun_1/cancel"
    # A cancel without a name that comes late would stop the turn of the next message.
    assert orjson.loads(cancel.request.body or b"") == {"turnId": "turn_1"}
    wire.in_turn("turn.cancelled")
    wire.say("session.waiting", continuationToken="eve:three", wait="next-user-message")
    assert wire.of(ev.TurnEnded)[-1].outcome == "interrupted"
    assert wire.of(ev.InputSettled)[-1].outcome == "taken"
    assert not wire.normalizer.state.inputs


def sent(wire: Wire, text: str) -> dict[str, Any]:
    """Send a message and return its body."""
    call = wire.command(cmd.SendMessage(content=(ev.Text(text=text),), policy="queue"))
    assert wire.answer(call, 200, {"ok": True})
    body: dict[str, Any] = orjson.loads(call.request.body or b"")
    return body


def resumed(wire: Wire) -> None:
    """Let an approval be answered and its first step begin."""
    wire.approval("A")
    wire.close()
    wire.answer(wire.command(allow("A")), 200, {"ok": True})
    wire.begin()
    wire.in_turn("step.started", 0)
    wire.in_turn("action.result", 0, result=result("A"), status="completed")


def stopped(wire: Wire) -> None:
    """Cancel the turn, as a server that does so in time tells it."""
    wire.answer(wire.command(cmd.Interrupt()), 202, {"ok": True, "status": "accepted"})
    wire.in_turn("turn.cancelled")
    wire.say("session.waiting", continuationToken="eve:two", wait="next-user-message")


REFUSAL = [{"requestId": "A", "optionId": "deny"}]


def test_a_message_refuses_again_what_a_cancel_has_opened_again() -> None:
    wire = Wire("T")
    resumed(wire)
    stopped(wire)
    assert sent(wire, "more")["inputResponses"] == REFUSAL
    # The server says the refusal in the old turn, and its model talks of it in the new one.
    rejected = {**result("A"), "isError": True}
    wire.say("action.result", sequence=0, turnId="turn_0", stepIndex=0, result=rejected)
    wire.begin("more")
    for step, text in enumerate(("Not paid.", "Well.")):
        wire.in_turn("step.started", step)
        wire.in_turn("message.completed", step, message=text, finishReason="stop")
        wire.in_turn("step.completed", step, finishReason="stop")
    wire.close()
    assert [turn.outcome for turn in wire.of(ev.TurnEnded)] == ["interrupted", "completed"]
    assert [event.is_error for event in wire.of(ev.ToolReturned)] == [False]
    assert [event.outcome for event in wire.of(ev.InteractionResolved)] == ["approved"]
    assert "inputResponses" not in sent(wire, "and more")


def test_a_message_that_was_cancelled_too_leaves_the_refusal_to_the_next_one() -> None:
    wire = Wire("T")
    resumed(wire)
    stopped(wire)
    again = EveClient({})
    again.restore(wire.codec.snapshot(), wire.codec.position)
    wire.codec = again
    assert sent(wire, "more")["inputResponses"] == REFUSAL
    wire.begin("more")
    wire.in_turn("step.started", 0)
    stopped(wire)
    assert sent(wire, "and more")["inputResponses"] == REFUSAL


def test_what_a_later_step_builds_on_is_not_refused_after_a_cancel() -> None:
    wire = Wire("T")
    resumed(wire)
    wire.in_turn("step.completed", 0, finishReason="tool-calls")
    wire.in_turn("step.started", 1)
    stopped(wire)
    assert "inputResponses" not in sent(wire, "more")


def test_a_cancel_of_a_turn_without_an_answer_refuses_nothing() -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    stopped(wire)
    assert "inputResponses" not in sent(wire, "more")


def test_a_turn_that_is_taken_back_after_its_end_is_told_once_and_ends_no_other() -> None:
    wire = Wire("T")
    wire.approval("A")
    wire.close()
    wire.answer(wire.command(cmd.Interrupt()), 200, {"ok": True})
    wire.begin()
    wire.codec.take_calls()
    wire.in_turn("step.started", 0)
    wire.close()
    # What comes next waits until it is clear whether the server takes it back.
    assert wire.of(ev.TurnEnded) == []
    wire.now += TAKEN_BACK_MS // 2
    wire.in_turn("turn.cancelled")
    assert [turn.outcome for turn in wire.of(ev.TurnEnded)] == ["completed"]
    assert wire.say("session.waiting", continuationToken="eve:six", wait="next-user-message") == []
    assert [event.code for event in wire.of(ev.ErrorReported)] == ["turn_taken_back"]
    assert sent(wire, "more")["inputResponses"] == REFUSAL
    wire.begin("more")
    wire.in_turn("step.started", 0)
    wire.close()
    assert [turn.outcome for turn in wire.of(ev.TurnEnded)] == ["completed", "completed"]
    assert not wire.of(ev.Native)
    assert sent(wire, "x")["continuationToken"] == "eve:two"


def test_a_message_repeats_no_refusal_of_a_turn_that_ended_before_its_cancel() -> None:
    """It is not open any more: its words would join those of the message (section 8.2)."""
    wire = Wire("T")
    wire.approval("A")
    wire.close()
    wire.answer(wire.command(cmd.Interrupt()), 200, {"ok": True})
    wire.begin()
    wire.codec.take_calls()
    wire.in_turn("step.started", 0)
    wire.close()
    assert wire.codec.wake_at == wire.now + TAKEN_BACK_MS
    wire.take(wire.codec.tick(wire.now + TAKEN_BACK_MS))
    assert [turn.outcome for turn in wire.of(ev.TurnEnded)] == ["completed"]
    assert "inputResponses" not in sent(wire, "more")


def test_a_turn_that_is_taken_back_after_the_next_message_frees_the_one_after_that() -> None:
    wire = Wire("T")
    resumed(wire)
    wire.answer(wire.command(cmd.Interrupt()), 202, {"ok": True, "status": "accepted"})
    wire.close()
    wire.take(wire.codec.tick(wire.now + TAKEN_BACK_MS))
    assert "inputResponses" not in sent(wire, "more")
    wire.begin("more")
    wire.close()
    assert wire.of(ev.TurnEnded)[-1].error.code == "message_held_back"
    assert sent(wire, "and more")["inputResponses"] == REFUSAL


def test_a_message_that_a_server_holds_back_behind_nothing_is_a_failed_turn() -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    wire.close()
    sent(wire, "more")
    wire.begin("more")
    wire.close()
    assert [turn.outcome for turn in wire.of(ev.TurnEnded)] == ["completed", "failed"]
    assert wire.of(ev.TurnEnded)[-1].error.code == "message_held_back"


def test_an_interrupt_whose_turn_never_opens_cancels_all_the_same() -> None:
    wire = Wire("T")
    wire.approval("A")
    wire.close()
    wire.answer(wire.command(cmd.Interrupt()), 200, {"ok": True})
    assert wire.codec.wake_at == wire.now + CANCEL_MS
    wire.take(wire.codec.tick(wire.now + CANCEL_MS))
    assert len(wire.codec.take_calls()) == 1


def test_an_interrupt_while_an_answer_is_on_its_way_answers_no_second_time() -> None:
    """The server would tell the model a second answer as words of the user (section 5)."""
    wire = Wire("T")
    wire.approval("A")
    wire.close()
    answer = wire.command(allow("A"))
    held = wire.command(cmd.Interrupt())
    assert (held.request.method, held.request.path) == ("GET", "/eve/v1/health")
    wire.answer(answer, 200, {"ok": True})
    wire.answer(held, 200, {"ok": True})
    assert wire.codec.take_calls() == []
    wire.begin()
    (cancel,) = wire.codec.take_calls()
    assert orjson.loads(cancel.request.body or b"") == {"turnId": "turn_1"}
    assert [event.outcome for event in wire.of(ev.InputSettled)] == ["taken"] * 3


@pytest.mark.parametrize("arrives", [False, True])
def test_an_interrupt_after_an_answer_waits_for_its_turn_for_a_while(arrives: bool) -> None:
    wire = Wire("T")
    wire.approval("A", "B")
    wire.close()
    wire.command(allow("A"))
    negative = wire.command(cmd.Interrupt())
    assert [
        r["requestId"] for r in orjson.loads(negative.request.body or b"")["inputResponses"]
    ] == ["B"]
    wire.answer(negative, 200, {"ok": True})
    wire.take(wire.codec.tick(wire.now + CANCEL_MS))
    assert len(wire.codec.take_calls()) == 1
    # It came to nothing, and is tried again.
    again = wire.command(cmd.Interrupt())
    if arrives:
        wire.answer(again, 200, {"ok": True})
    else:
        wire.take(wire.codec.failed(again, DragomanError("Away."), sent=False, now=wire.now))
    wire.take(wire.codec.tick(wire.now + CANCEL_MS))
    (cancel,) = wire.codec.take_calls()
    assert cancel.request.path.endswith("/cancel")


def test_an_interrupt_refuses_what_an_answer_in_doubt_was_given_to() -> None:
    wire = Wire("T")
    wire.approval("A")
    wire.close()
    answer = wire.command(allow("A"))
    wire.take(wire.codec.failed(answer, DragomanError("Cut off."), sent=True, now=wire.now))
    assert wire.command(cmd.Interrupt()).name == "negative"


@pytest.mark.parametrize("generation", ["T", "S2"])
def test_a_turn_that_the_server_does_not_know_yet_is_cancelled_again_until_it_ends(
    generation: str,
) -> None:
    wire = working(generation)
    call = wire.command(cmd.Interrupt())
    for _ in range(3):
        wire.answer(call, 200, {"ok": True, "status": "no_active_turn"})
        assert wire.codec.take_calls() == []
        assert wire.codec.wake_at == wire.now + CANCEL_AGAIN_MS
        wire.now += CANCEL_AGAIN_MS
        wire.in_turn("message.appended", 0, messageDelta="more")
        wire.take(wire.codec.tick(wire.now))
        (call,) = wire.codec.take_calls()
        assert orjson.loads(call.request.body or b"") == {"turnId": "turn_0"}
    wire.answer(call, 202, {"ok": True, "status": "accepted"})
    wire.take(wire.codec.tick(wire.now + CANCEL_AGAIN_MS))
    assert wire.codec.take_calls() == []
    assert [event.outcome for event in wire.of(ev.InputSettled)] == ["taken", "taken"]
    wire.in_turn("turn.cancelled")
    wire.say("session.waiting", continuationToken="eve:two", wait="next-user-message")
    assert [turn.outcome for turn in wire.of(ev.TurnEnded)] == ["interrupted"]


def test_a_turn_that_ends_by_itself_is_not_cancelled_again() -> None:
    wire = working("S2")
    wire.answer(wire.command(cmd.Interrupt()), 200, {"ok": True, "status": "no_active_turn"})
    wire.close()
    wire.take(wire.codec.tick(wire.now + CANCEL_AGAIN_MS))
    assert wire.codec.take_calls() == []


def test_an_interrupt_of_a_held_pause_is_one_cancel() -> None:
    wire = Wire("S2")
    wire.approval("A")
    wire.in_turn("turn.waiting", on="input")
    assert wire.command(cmd.Interrupt()).request.path.endswith("/cancel")


def choice(wire: Wire, *, freeform: bool = False) -> None:
    """Let a question ask for one of two colours."""
    options = [{"id": "red", "label": "Red"}, {"id": "blue", "label": "Blue"}]
    question = {**request("A"), "kind": "question", "action": None, "options": options}
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    wire.in_turn("step.completed", 0, finishReason="tool-calls")
    wire.in_turn("input.requested", 0, requests=[question | {"allowFreeform": freeform}])


SKIPS = cmd.AnswerInteraction(request_id="A", skip=True)


@pytest.mark.parametrize("generation", ["T", "S2"])
def test_a_question_that_takes_words_is_declined_in_words(generation: str) -> None:
    wire = Wire(generation)
    choice(wire, freeform=True)
    call = wire.command(SKIPS)
    responses = orjson.loads(call.request.body or b"")["inputResponses"]
    assert responses == [{"requestId": "A", "text": DECLINED}]


def test_a_question_that_takes_its_options_alone_is_declined_by_the_end_of_its_turn() -> None:
    wire = Wire("S2")
    choice(wire)
    wire.in_turn("turn.waiting", on="input")
    call = wire.command(SKIPS)
    assert call.request.path.endswith("/cancel")
    wire.answer(call, 202, {"ok": True, "status": "accepted"})
    assert wire.of(ev.InputSettled)[-1].outcome == "taken"
    cancelled(wire)
    assert [one.outcome for one in wire.of(ev.InteractionResolved)] == ["cancelled"]
    assert wire.of(ev.TurnEnded)[-1].outcome == "interrupted"


def test_a_question_of_a_closed_pause_is_declined_by_the_end_of_the_turn_that_it_opens() -> None:
    wire = Wire("T")
    choice(wire)
    wire.close()
    call = wire.command(SKIPS)
    assert call.name == "negative"
    wire.answer(call, 200, {"ok": True})
    wire.begin()
    (cancel,) = wire.codec.take_calls()
    assert orjson.loads(cancel.request.body or b"") == {"turnId": "turn_1"}
    wire.in_turn("turn.cancelled")
    assert [one.outcome for one in wire.of(ev.InteractionResolved)] == ["cancelled"]


@pytest.mark.parametrize("generation", ["T", "S2"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_question_can_be_answered_whose_turn_could_not_be_stopped(
    generation: str, lost: bool
) -> None:
    wire = Wire(generation)
    choice(wire)
    if generation == "T":
        wire.close()
    else:
        wire.in_turn("turn.waiting", on="input")
    call = wire.command(SKIPS)
    assert call.command_id is not None
    wire.take(
        [
            ev.InteractionAnswered(
                thread_id=ev.MAIN, request_id="A", command_id=call.command_id, by="test"
            )
        ]
    )
    if lost:
        wire.take(wire.codec.failed(call, DragomanError("Cut off."), sent=True, now=wire.now))
    else:
        wire.answer(call, 409, {"code": "no", "error": "No."})
    assert wire.of(ev.InteractionAnswered)[-1].state == "released"
    wire.command(cmd.AnswerInteraction(request_id="A", option_ids=("red",)))


def asked(wire: Wire) -> None:
    """Let a question wait for an answer in a held turn."""
    question = {**request("A"), "kind": "question", "allowFreeform": True, "action": None}
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    wire.in_turn("step.completed", 0, finishReason="tool-calls")
    wire.in_turn("input.requested", 0, requests=[question])
    wire.in_turn("turn.waiting", on="input")


def said_as_answer(wire: Wire, answer: cmd.AnswerInteraction) -> tuple[str, Call]:
    """Answer with a plain message, as the session stores it."""
    wire.commands += 1
    name = f"cmd-{wire.commands}"
    accepted = ev.InputAccepted(thread_id=ev.MAIN, command_id=name, kind="message", by="test")
    wire.take([accepted])
    return name, wire.codec.submit(name, answer)


def cancelled(wire: Wire) -> None:
    resolution = {"requestId": "A", "kind": "question", "outcome": "cancelled"}
    wire.in_turn("input.resolved", 0, resolutions=[resolution])
    wire.in_turn("turn.cancelled")
    wire.say("session.waiting", continuationToken="eve:two", wait="next-user-message")


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ({"text": "Not today"}, "Not today"),
        ({"option_ids": ("approve",)}, "approve"),
        ({"option_ids": ("approve",)}, "Yes"),
    ],
)
def test_an_answer_that_becomes_words_of_the_user_is_not_received_twice(
    answer: dict[str, Any], shown: str, settled: bool
) -> None:
    """The question was cancelled before the answer came (section 5)."""
    wire = Wire("S2")
    asked(wire)
    name, call = said_as_answer(wire, cmd.AnswerInteraction(request_id="A", **answer))
    if settled:
        wire.answer(call, 202, {"ok": True, "sessionId": "wrun_1", "status": "accepted"})
    cancelled(wire)
    if settled:
        # The session writes the receipt of an answer that was said as a message.
        wire.take(
            [ev.MessageReceived(thread_id=ev.MAIN, message_id=name, content=(), command_id=name)]
        )
    wire.begin(shown)
    assert [e.command_id for e in wire.of(ev.MessageReceived)[1:]] == [name]
    wire.close()
    # What somebody else says then is what he says.
    wire.begin(shown)
    assert [e.command_id for e in wire.of(ev.MessageReceived)[1:]] == [name, None]


def test_words_that_nobody_answers_with_any_more_are_what_somebody_says() -> None:
    wire = Wire("S2")
    asked(wire)
    answer = cmd.AnswerInteraction(request_id="A", text="Not today")
    _, call = said_as_answer(wire, answer)
    wire.answer(call, 202, {"ok": True, "sessionId": "wrun_1", "status": "accepted"})
    cancelled(wire)
    wire.begin("something else")
    wire.close()
    wire.begin("Not today")
    assert wire.of(ev.MessageReceived)[-1].command_id is None


def test_the_newest_token_is_sent_and_never_stored_in_an_event() -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.close()
    call = wire.command(cmd.SendMessage(content=(ev.Text(text="more"),), policy="queue"))
    assert orjson.loads(call.request.body or b"") == {
        "message": "more",
        "continuationToken": "eve:two",
    }
    again = EveClient({})
    again.restore(wire.codec.snapshot(), wire.codec.position)
    call = again.submit("x", cmd.SendMessage(content=(ev.Text(text="y"),), policy="queue"))
    assert b"eve:two" in (call.request.body or b"")


def more() -> cmd.SendMessage:
    return cmd.SendMessage(content=(ev.Text(text="more"),), policy="queue")


NO_TOKEN = "Session-ID routes do not accept 'continuationToken'."


def test_what_a_newer_server_refuses_for_its_token_is_sent_without() -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.close()
    assert wire.answer(wire.command(more()), 400, {"ok": False, "error": NO_TOKEN}) == []
    (again,) = wire.codec.take_calls()
    assert orjson.loads(again.request.body or b"") == {"message": "more"}
    wire.answer(again, 200, {"ok": True})
    assert wire.of(ev.InputSettled)[-1].outcome == "taken"
    assert wire.codec._s.generation == "S1"


@pytest.mark.parametrize(
    ("status", "error", "token"),
    [(403, NO_TOKEN, "eve:two"), (400, "No.", "eve:two"), (400, "No continuationToken.", None)],
)
def test_what_is_refused_for_anything_else_is_not_sent_again(
    status: int, error: str, token: str | None
) -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.close()
    if token is None:
        # No position has a token, also where it has the state.
        place, state, _ = read(EveClient, "a state", wire.codec.snapshot())
        wire.codec.restore(None, mark(EveClient.state_version) + format_json([place, state]))
    wire.answer(wire.command(more()), status, {"ok": False, "error": error})
    assert wire.codec.take_calls() == []
    assert wire.of(ev.InputSettled)[-1].outcome == "refused"


def test_a_control_that_is_refused_for_its_token_is_not_sent_again() -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.close()
    wire.answer(wire.command(cmd.Clear()), 400, {"ok": False, "error": NO_TOKEN})
    assert wire.codec.take_calls() == []


@pytest.mark.parametrize(
    ("policy", "sent"), [("steer", "steer"), ("withdraw", "steer"), ("queue", "queue")]
)
def test_a_session_server_is_told_the_policy(policy: Any, sent: str) -> None:
    wire = Wire("S2")
    call = wire.command(cmd.SendMessage(content=(ev.Text(text="more"),), policy=policy))
    assert orjson.loads(call.request.body or b"")["turnPolicy"] == sent


def test_a_steer_joins_the_turn_as_guidance() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    wire.in_turn("reasoning.appended", 0, reasoningDelta="Hm")
    wire.answer(wire.command(cmd.Steer(text="left")), 202, {"ok": True, "deliveryId": "d-2"})
    wire.in_turn("step.completed", 0, finishReason="other")
    wire.in_turn("message.received", message="left", deliveries=["d-1", "d-2"])
    (guided,) = wire.of(ev.GuidanceReceived)
    assert (guided.text, guided.command_id) == ("left", "cmd-2")
    assert wire.of(ev.ReasoningCompleted)[0].status == "partial"


def test_a_steer_that_would_withdraw_a_request_is_refused() -> None:
    wire = Wire("S2")
    wire.approval("A")
    with pytest.raises(NotSupported, match="withdraw"):
        wire.codec.check(cmd.Steer(text="left"))


@pytest.mark.parametrize(
    "command",
    [
        cmd.SendMessage(content=(ev.Text(text="x"),), policy="queue", system=(ev.Text(text="y"),)),
        cmd.SendMessage(content=(ev.Text(text="x"),), policy="queue", edit_of="1"),
        cmd.SendMessage(content=(ev.Text(text=""),), policy="queue"),
        cmd.SendMessage(
            content=(ev.File(ref=ev.FileId(dialect="managed-agents", id="f")),), policy="queue"
        ),
        cmd.SendMessage(content=(ev.Redacted(),), policy="queue"),
        cmd.ToolResult(call_id="c"),
        cmd.DefineOutcome(description="d"),
        cmd.ArchiveThread(),
        cmd.UpdateSession(agent={"id": "b"}),
        cmd.Interrupt(thread_id="child"),
    ],
)
def test_what_no_eve_can_honour_is_refused_before_it_is_accepted(command: cmd.AnyCommand) -> None:
    with pytest.raises(NotSupported, match="eve"):
        EveClient({}).check(command)


def test_a_session_that_is_not_ready_is_asked_again_until_it_is() -> None:
    wire = Wire("S2")
    call = wire.command(cmd.SendMessage(content=(ev.Text(text="more"),), policy="queue"))
    for wait in (250, 500, 1000, 2000, 2000):
        body = {"ok": False, "code": "session_not_ready", "error": "Not ready."}
        wire.answer(call, 409, body)
        assert wire.codec.wake_at == wire.now + wait
        wire.now += wait
        wire.take(wire.codec.tick(wire.now))
        (call,) = wire.codec.take_calls()
    wire.answer(call, 202, {"ok": True, "status": "accepted", "deliveryId": "d"})
    assert wire.of(ev.InputSettled)[-1].outcome == "taken"


@pytest.mark.parametrize(
    ("status", "body", "ends"),
    [
        (404, {"ok": False, "code": "SESSION_NOT_RESUMABLE", "error": "Gone."}, False),
        (409, {"ok": False, "code": "session_stranded", "error": "Other build."}, True),
        (400, {"ok": False, "error": "Bad."}, False),
        (204, None, False),
    ],
)
def test_a_refused_message_is_settled_with_its_reason(
    status: int, body: dict[str, Any] | None, ends: bool
) -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("turn.completed")
    wire.say("session.waiting", continuationToken="wrun_1", wait="next-user-message")
    call = wire.command(cmd.SendMessage(content=(ev.Text(text="more"),), policy="queue"))
    wire.answer(call, status, body)
    settled = wire.of(ev.InputSettled)[-1]
    assert settled.outcome == "refused"
    assert settled.reason
    assert bool(wire.of(ev.SessionEnded)) is ends


def test_a_refused_answer_releases_its_claim() -> None:
    wire = Wire("S2")
    wire.approval("A")
    wire.in_turn("turn.waiting", on="input")
    call = wire.command(allow("A"))
    claim = ev.InteractionAnswered(thread_id=ev.MAIN, request_id="A", command_id="cmd-2", by="test")
    wire.take([claim])
    wire.answer(call, 400, {"ok": False, "error": "Bad."})
    assert wire.of(ev.InteractionAnswered)[-1].state == "released"


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
@pytest.mark.parametrize("reply", [202, 500, None])
def test_an_answer_that_the_stream_shows_before_the_reply_to_it_is_taken(
    generation: str, reply: int | None
) -> None:
    wire = Wire(generation)
    wire.approval("A")
    if generation == "S2":
        wire.in_turn("turn.waiting", on="input")
        call = wire.command(allow("A"))
        shown = {"requestId": "A", "kind": "tool-approval", "outcome": "approved"}
        wire.in_turn("input.resolved", 0, resolutions=[shown])
    else:
        wire.close()
        call = wire.command(allow("A"))
        wire.begin()
        wire.in_turn("step.started", 0)
    wire.in_turn("action.result", 0, result=result("A"), status="completed")
    assert [e.outcome for e in wire.of(ev.InteractionResolved)] == ["approved"]
    assert [(e.command_id, e.outcome) for e in wire.of(ev.InputSettled)] == [
        ("cmd-1", "taken"),
        ("cmd-2", "taken"),
    ]
    if reply is None:
        lost = DragomanError("The connection broke.")
        assert wire.codec.failed(call, lost, sent=True, now=wire.now) == []
    else:
        token = {"continuationToken": "eve:2"} if generation == "T" else {}
        assert wire.answer(call, reply, {"ok": reply == 202, **token}) == []
    # Nothing is in doubt, nothing is left to decide, and nothing of it is kept.
    assert not remembers(wire.codec, "cmd-2")
    wire.take(wire.codec.tick(wire.now + RECOVER_MS + CATCH_UP_MS))
    assert len(wire.of(ev.InputSettled)) == 2
    assert not wire.of(ev.ErrorReported)
    assert not wire.normalizer.repairs
    if generation == "T" and reply == 202:
        body = orjson.loads(wire.command(more()).request.body or b"")
        assert body["continuationToken"] == "eve:2"


@pytest.mark.parametrize("lost", ["connection", "not ready"])
def test_an_answer_that_failed_and_that_the_stream_shows_is_taken(lost: str) -> None:
    wire = Wire("S2")
    wire.approval("A")
    wire.in_turn("turn.waiting", on="input")
    call = wire.command(allow("A"))
    if lost == "connection":
        error = DragomanError("The connection broke.")
        wire.take(wire.codec.failed(call, error, sent=True, now=wire.now))
    else:
        wire.answer(call, 500, {"ok": False, "error": "target session was not found"})
    assert len(wire.of(ev.InputSettled)) == 1
    resolved = {"requestId": "A", "kind": "tool-approval", "outcome": "approved"}
    wire.in_turn("input.resolved", 0, resolutions=[resolved])
    assert [e.outcome for e in wire.of(ev.InputSettled)] == ["taken", "taken"]
    # It is neither sent again nor looked for, and nothing of it is kept.
    wire.take(wire.codec.tick(wire.now + RECOVER_MS + CATCH_UP_MS))
    assert wire.codec.take_calls() == []
    assert len(wire.of(ev.InputSettled)) == 2
    assert not remembers(wire.codec, "cmd-2")


def test_the_reply_to_one_answer_says_nothing_of_another() -> None:
    wire = Wire("S2")
    wire.approval("A", "B")
    wire.in_turn("turn.waiting", on="input")
    first, _ = wire.command(allow("A")), wire.command(allow("B"))
    wire.answer(first, 202, {"ok": True})
    shown = {"requestId": "B", "kind": "tool-approval", "outcome": "approved"}
    wire.in_turn("input.resolved", 0, resolutions=[shown])
    assert [(e.command_id, e.outcome) for e in wire.of(ev.InputSettled)] == [
        ("cmd-1", "taken"),
        ("cmd-2", "taken"),
        ("cmd-3", "taken"),
    ]


def test_an_answer_to_a_request_that_was_withdrawn_meanwhile_is_not_shown_as_taken() -> None:
    wire = Wire("S2")
    wire.approval("A")
    wire.in_turn("turn.waiting", on="input")
    call = wire.command(allow("A"))
    ignored = {"requestId": "A", "kind": "tool-approval", "outcome": "ignored"}
    wire.in_turn("input.resolved", 0, resolutions=[ignored])
    wire.answer(call, 400, {"ok": False, "error": "Nothing to answer."})
    assert [e.outcome for e in wire.of(ev.InputSettled)] == ["taken", "refused"]


def test_a_turn_that_fails_with_an_answer_under_way_leaves_no_stream_wanted() -> None:
    wire = Wire("S2")
    wire.approval("A")
    wire.in_turn("turn.waiting", on="input")
    wire.answer(wire.command(allow("A")), 202, {"ok": True, "status": "accepted"})
    wire.in_turn("turn.failed", code="x", message="No.")
    wire.say("session.waiting", continuationToken="wrun_1", wait="next-user-message")
    assert wire.codec.streams() == ()


def test_the_stream_is_read_for_what_an_answer_becomes_that_came_too_late() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.close()
    assert wire.codec.streams() == ()
    late = wire.command(allow("A"))
    assert [call.name for call in wire.codec.streams()] == ["stream"]
    restored = EveClient({})
    restored.restore(wire.codec.snapshot(), None)
    assert [call.name for call in restored.streams()] == ["stream"]
    wire.answer(late, 202, {"ok": True, "status": "accepted"})
    assert [call.name for call in wire.codec.streams()] == ["stream"]
    second = wire.command(allow("B"))
    assert sorted(wire.codec._s.late) == ["A", "B"]
    wire.answer(second, 409, {"error": "No."})
    assert sorted(wire.codec._s.late) == ["A"]
    wire.approval("A")
    assert not wire.codec._s.late
    assert [given.command_id for given in wire.codec._parts.requests.given()] == [late.command_id]


def test_a_command_that_a_crash_cut_off_is_found_in_the_stream() -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.close()
    message = cmd.SendMessage(content=(ev.Text(text="more"),), policy="queue")
    wire.command(message)
    again = EveClient({})
    again.restore(wire.codec.snapshot(), None)
    again._s.ledger.open.clear()
    wire.codec = again
    assert again.recover("cmd-2", message) is None
    assert [call.name for call in again.streams()] == ["stream"]
    again.opened(again.streams()[0], Response(200), wire.now)
    wire.begin("more")
    assert [e.outcome for e in wire.of(ev.InputSettled)] == ["taken", "taken"]
    assert wire.of(ev.MessageReceived)[-1].command_id == "cmd-2"


FIRST = cmd.SendMessage(content=(ev.Text(text="hi"),), policy="queue")


def restarted(wire: Wire) -> EveClient:
    """Return the codec of the next process, which the wire has from now on."""
    again = EveClient({})
    again.restore(wire.codec.snapshot(), None)
    wire.codec = again
    return again


def first_message() -> tuple[Wire, Call]:
    """Submit a first message and return the create that goes before it."""
    wire = Wire("S2")
    wire.codec, wire.normalizer, wire.events = EveClient({}), Normalizer(LogState()), []
    wire.take(
        [ev.InputAccepted(thread_id=ev.MAIN, command_id="c", kind="message", by="test")],
    )
    return wire, wire.codec.submit("c", FIRST)


MADE = {"ok": True, "sessionId": "wrun_9", "status": "accepted"}


def test_a_session_is_made_before_its_first_message_is_posted() -> None:
    wire, call = first_message()
    assert (call.request.path, call.request.body) == ("/eve/v1/session", None)
    wire.answer(call, 202, MADE)
    assert wire.of(ev.InputSettled) == []
    (ask,) = wire.codec.take_calls()
    assert (ask.request.method, ask.request.path) == ("GET", "/eve/v1/info")
    wire.answer(ask, 200, {"version": 5})
    (post,) = wire.codec.take_calls()
    assert post.request.path == "/eve/v1/session/wrun_9"
    assert orjson.loads(post.request.body or b"") == {"message": "hi", "turnPolicy": "queue"}
    wire.answer(post, 202, {**MADE, "deliveryId": "d1"})
    assert [e.outcome for e in wire.of(ev.InputSettled)] == ["taken"]


def test_a_server_that_makes_no_empty_session_gets_the_message_with_the_create() -> None:
    wire, call = first_message()
    wire.answer(call, 400, {"ok": False, "error": "Invalid JSON body."})
    (create,) = wire.codec.take_calls()
    assert (create.name, create.request.path) == ("create", "/eve/v1/session")
    assert orjson.loads(create.request.body or b"") == {"message": "hi"}


def test_a_session_that_was_perhaps_made_is_made_again_for_its_message() -> None:
    wire, _ = first_message()
    again = restarted(wire)
    second = again.recover("c", FIRST)
    assert second is not None
    assert (second.name, second.request.body) == ("prewarm", None)
    wire.answer(second, 202, MADE)
    (ask,) = again.take_calls()
    assert ask.name == "info"
    # Of an answer that is lost nothing is known, and the message goes.
    lost = DragomanError("Too late.", code=ErrorCode.BACKEND_TIMEOUT)
    assert again.recover("c", FIRST) is None
    assert again.failed(ask, lost, sent=True, now=1_000) == []
    # What is due is not asked for again.
    assert again.recover("c", FIRST) is None
    (post,) = again.take_calls()
    assert orjson.loads(post.request.body or b"")["message"] == "hi"
    # From now on it may have been taken: it is looked for, and not posted again.
    assert again.recover("c", FIRST) is None
    assert [call.name for call in again.streams()] == ["stream"]


def test_a_message_that_is_due_with_its_create_is_not_given_up_at_a_restart() -> None:
    wire, call = first_message()
    wire.answer(call, 400, {"ok": False, "error": "Invalid JSON body."})
    # The process ends before the create is sent.
    again = restarted(wire)
    ask = again.recover("c", FIRST)
    assert ask is not None
    assert ask.name == "info"
    assert again.take_calls() == []
    wire.answer(ask, 404, {})
    (create,) = again.take_calls()
    assert orjson.loads(create.request.body or b"") == {"message": "hi"}
    # From now on it may have been taken, and nothing looks for it.
    assert again.recover("c", FIRST) is None
    assert again.take_calls() == []


def test_a_create_that_fails_without_a_message_is_a_refusal() -> None:
    wire, call = first_message()
    wire.answer(call, 503, {"ok": False, "error": "Away."})
    assert [e.outcome for e in wire.of(ev.InputSettled)] == ["refused"]
    assert wire.codec.take_calls() == []


def test_a_stream_that_is_open_shows_a_command_in_time_or_it_is_unknown() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.take(wire.codec.opened(wire.codec.streams()[0], Response(200), wire.now))
    wire.close()
    call = wire.command(cmd.SendMessage(content=(ev.Text(text="more"),), policy="queue"))
    lost = DragomanError("The connection broke.")
    wire.take(wire.codec.failed(call, lost, sent=True, now=wire.now))
    assert wire.codec.wake_at == wire.now + RECOVER_MS
    wire.take(wire.codec.tick(wire.now + RECOVER_MS))
    assert wire.of(ev.InputSettled)[-1].outcome == "unknown"


def test_the_time_in_which_a_command_must_show_outlives_a_restart() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.close()
    message = cmd.SendMessage(content=(ev.Text(text="more"),), policy="queue")
    call = wire.command(message)
    lost = DragomanError("The connection broke.")
    wire.take(wire.codec.failed(call, lost, sent=True, now=wire.now))
    stream = wire.codec.streams()[0]
    wire.take(wire.codec.opened(stream, Response(200), wire.now))
    # Written, so that what is stored with it is.
    assert wire.of(ev.ErrorReported)[-1].code == "input_in_doubt"
    end = wire.now + RECOVER_MS
    again = EveClient({})
    again.restore(wire.codec.snapshot(), wire.codec.position)
    wire.codec = again
    assert again.recover("cmd-2", message) is None
    # Silence counts only where the stream was read after the time was over.
    assert (again.tick(end), again.wake_at) == ([], None)
    wire.take(again.opened(stream, Response(200), end))
    assert again.wake_at == end + CATCH_UP_MS
    wire.take(again.tick(end + CATCH_UP_MS))
    assert wire.of(ev.InputSettled)[-1].outcome == "unknown"


def test_a_command_of_which_nothing_shows_is_unknown() -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.close()
    message = cmd.SendMessage(content=(ev.Text(text="more"),), policy="queue")
    call = wire.command(message)
    lost = DragomanError("The connection broke.")
    wire.take(wire.codec.failed(call, lost, sent=True, now=wire.now))
    wire.take(wire.codec.opened(wire.codec.streams()[0], Response(200), wire.now))
    assert wire.codec.wake_at == wire.now + RECOVER_MS
    wire.take(wire.codec.tick(wire.now + RECOVER_MS))
    assert wire.of(ev.InputSettled)[-1].outcome == "unknown"
    assert wire.codec.streams() == ()


def test_a_call_waits_a_quarter_of_a_second_for_its_permission() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    action = {"kind": "tool-call", "callId": "c", "toolName": "t", "input": {}}
    assert wire.in_turn("actions.requested", 0, actions=[action]) == []
    assert wire.codec.wake_at == wire.now + HOLD_MS
    (called,) = wire.take(wire.codec.tick(wire.now + HOLD_MS))
    assert isinstance(called, ev.ToolCalled)
    assert called.permission == "unknown"


def test_a_result_overtakes_a_call_whose_permission_is_not_known() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    for name in ("A", "B"):
        action = {"kind": "tool-call", "callId": f"call-{name}", "toolName": "pay", "input": {}}
        wire.in_turn("actions.requested", 0, actions=[action])
    wire.in_turn("action.result", 0, result=result("A"), status="completed")
    assert [e.permission for e in wire.of(ev.ToolCalled)] == ["allow"]
    assert len(wire.of(ev.ToolReturned)) == 1
    assert wire.in_turn("step.completed", 0, finishReason="tool-calls") == []
    wire.in_turn("input.requested", 0, requests=[request("B")])
    assert [e.permission for e in wire.of(ev.ToolCalled)] == ["allow", "ask"]
    assert not wire.normalizer.repairs


def test_what_is_told_of_the_session_overtakes_a_call_too() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    action = {"kind": "tool-call", "callId": "call-A", "toolName": "pay", "input": {}}
    assert wire.in_turn("actions.requested", 0, actions=[action]) == []
    task = {"taskId": "t1", "callId": "call-B", "name": "r"}
    wire.say("task.started", kind="agent", **task)
    told = wire.say("agent.started", sessionId="wrun_2", streamPath="/eve/v1/x", **task)
    assert "thread.updated" in [event.TYPE for event in told]
    assert wire.of(ev.ToolCalled) == []


def test_a_call_that_is_asked_for_again_is_one_open_call() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    action = {"kind": "tool-call", "callId": "call-A", "toolName": "pay", "input": {}}
    for _ in range(2):
        wire.in_turn("actions.requested", 0, actions=[action])
        assert list(wire.codec._parts.calls.callers) == ["call-A"]
    wire.in_turn("turn.waiting", on="tasks")
    assert len(wire.of(ev.ToolCalled)) == 1


@pytest.mark.parametrize("said", ["completed", "failed", "rejected", "odd", None])
def test_what_a_result_says_of_itself_counts_more_than_whether_it_is_an_error(
    said: str | None,
) -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    action = {"kind": "tool-call", "callId": "call-A", "toolName": "pay", "input": {}}
    wire.in_turn("actions.requested", 0, actions=[action])
    wire.in_turn("action.result", 0, result={**result("A"), "isError": True}, status=said)
    (returned,) = wire.of(ev.ToolReturned)
    assert returned.status == (said if said in ("completed", "failed", "rejected") else "failed")


def test_news_of_a_request_that_nobody_knows_are_kept_as_they_are() -> None:
    wire = Wire("S2")
    wire.approval("A")
    (news,) = wire.in_turn("approval.candidate", requestId="B", candidateId="c")
    assert isinstance(news, ev.Native)
    (news,) = wire.in_turn("approval.candidate", requestId="A", candidateId="c")
    assert isinstance(news, ev.InteractionUpdated)


def test_nothing_is_sent_again_after_the_end_of_the_session() -> None:
    wire = Wire("T")
    wire.approval("A")
    wire.in_turn("turn.completed")
    wire.say("session.waiting", continuationToken="eve:two", wait="next-user-message")
    wire.answer(wire.command(allow("A")), 500, {"error": "target session was not found"})
    assert wire.codec._s.retries
    wire.say("session.failed", code="broken", message="Broken.")
    assert wire.of(ev.SessionEnded)
    assert (wire.codec._s.retries, wire.codec.wake_at, wire.codec.take_calls()) == ([], None, [])


def test_a_retried_step_discards_what_the_first_try_wrote() -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    wire.in_turn("message.appended", 0, messageDelta="Hal", messageSoFar="Hal")
    wire.in_turn("step.started", 0)
    wire.in_turn("message.appended", 0, messageDelta="Hello", messageSoFar="Hello")
    wire.in_turn("message.completed", 0, message="Hello", finishReason="stop")
    assert [(e.text, e.status) for e in wire.of(ev.TextCompleted)] == [
        ("Hal", "discarded"),
        ("Hello", "complete"),
    ]


def test_a_null_message_is_what_was_streamed() -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    wire.in_turn("message.appended", 0, messageDelta="Hello", messageSoFar="Hello")
    wire.in_turn("message.completed", 0, message=None, finishReason="stop")
    wire.in_turn("message.completed", 0, message=None, finishReason="stop")
    assert [e.text for e in wire.of(ev.TextCompleted)] == ["Hello", ""]
    assert wire.of(ev.TextCompleted)[0].extra == {"message": None}


def test_a_frame_that_comes_twice_is_taken_once_and_a_lease_is_no_event() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    line = b'{"type":"dragoman.new","data":{"webhookUrl":"u","x":1},"meta":{"id":"evt_x"}}'
    count = next_index(wire.codec)
    (native,) = wire.codec.feed(wire.main, line, 1)
    assert isinstance(native, ev.Native)
    assert native.frame == {"type": "dragoman.new", "data": {"x": 1}}
    assert wire.codec.feed(wire.main, line, 1) == []
    assert wire.codec.feed(wire.main, b'{"$eve":"stream.lease-ended","version":1}', 1) == []
    assert next_index(wire.codec) == count + 1
    assert wire.codec.closed(wire.main, CloseReason.ENDED, 1) == []
    assert wire.codec.streams()[0].request.query["startIndex"] == str(count + 1)


def test_garbage_is_reported_and_the_stream_goes_on() -> None:
    wire = Wire("S2")
    (error,) = wire.codec.feed(wire.main, b"{oops", 1)
    assert isinstance(error, ev.ErrorReported)
    wire.begin("hi")
    assert wire.of(ev.TurnStarted)


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
@pytest.mark.parametrize("first", ["data", "type"])
@pytest.mark.parametrize("words", ["ours", "others", "short", "no longer", "cut"])
def test_a_message_whose_record_is_too_long_to_be_read_has_its_receipt(
    generation: str, first: str, words: str
) -> None:
    wire = Wire(generation)
    wire.begin("hi")
    wire.close()
    text = '"\u00e9\x01\n' * {"short": 10, "no longer": 1_000}.get(words, 30_000)
    call = wire.command(cmd.SendMessage(content=(ev.Text(text=text),), policy="queue"))
    wire.answer(call, 200, {"ok": True, "sessionId": "wrun_1", "status": "accepted"})
    wire.begin()
    said = text if words != "others" else f"not {text}"
    record = {"type": "message.received", "data": {"sequence": 1, "message": said}}
    if first == "data":
        record = {"data": {"message": said, "parts": []}, "type": "message.received"}
    begin = orjson.dumps(record)[: 200 if words == "cut" else 512]
    before = len(wire.of(ev.MessageReceived))
    wire.take(wire.codec.garbage(wire.main, begin, "a frame is too long", wire.now))
    assert wire.of(ev.ErrorReported)[-1].message == "eve: a frame is too long"
    received = wire.of(ev.MessageReceived)[before:]
    assert {one.native.type for one in received if one.native} <= {"message.received"}
    assert [event.content for event in received] == (
        [(ev.Text(text=text),)] if words == "ours" else []
    )
    # It is not received twice, though the stream is read again from before it.
    wire.take(wire.codec.garbage(wire.main, begin, "a frame is too long", wire.now))
    assert len(wire.of(ev.MessageReceived)) == before + len(received)
    wire.close()
    assert not wire.normalizer.repairs


@pytest.mark.parametrize("piece", [5, None, ["x"]])
def test_a_piece_of_an_open_text_that_is_no_text_is_kept_as_what_nobody_knows(piece: Any) -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    wire.in_turn("message.appended", 0, messageDelta="a")
    (kept,) = wire.in_turn("message.appended", 0, messageDelta=piece)
    assert isinstance(kept, ev.Native)
    assert kept.frame["data"]["messageDelta"] == piece
    wire.in_turn("message.appended", 0, messageDelta="b")
    wire.in_turn("message.completed", 0, message="ab", finishReason="stop")
    assert [event.text for event in wire.of(ev.TextDelta)] == ["a", "b"]
    assert [event.text for event in wire.of(ev.TextCompleted)] == ["ab"]
    assert not wire.normalizer.repairs


def test_a_relayed_request_belongs_to_the_child_and_is_shown_on_the_parent() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    action = {"kind": "subagent-call", "callId": "c", "name": "r", "input": {}}
    wire.in_turn("actions.requested", 0, actions=[action])
    wire.in_turn("step.completed", 0, finishReason="tool-calls")
    task = {"callId": "c", "taskId": "r-1", "name": "r", "turnId": "turn_0"}
    wire.say("task.started", kind="agent", **task)
    wire.in_turn("turn.waiting", on="tasks")
    path = "/eve/v1/session/wrun_2/stream"
    wire.say("agent.started", sessionId="wrun_2", streamPath=path, **task)
    (child,) = [c for c in wire.codec.streams() if c.thread_id != ev.MAIN]
    assert child.request.path == path
    wire.in_turn("input.requested", 0, requests=[request("A")], callId="c", taskId="r-1")
    wire.in_turn("turn.waiting", on="input")
    (asked,) = wire.of(ev.InteractionRequested)
    assert (asked.thread_id, asked.shown_on) == (child.thread_id, ev.MAIN)
    assert wire.of(ev.TurnPaused)[-1].request_ids == ("A",)
    place: dict[str, Any] = {"sequence": 0, "turnId": "turn_0", "stepIndex": 0}
    wire.say("turn.started", thread=child.thread_id, sequence=0, turnId="turn_0")
    assert (
        wire.say("input.requested", thread=child.thread_id, requests=[request("A")], **place) == []
    )
    wire.say("turn.waiting", thread=child.thread_id, sequence=0, turnId="turn_0", on="input")
    call = wire.command(allow("A"))
    assert call.request.path == "/eve/v1/session/wrun_1"
    wire.answer(call, 202, {"ok": True})
    wire.in_turn(
        "approval.settled", 0, requestId="A", outcome="approved", responderPrincipalId="ada"
    )
    assert wire.of(ev.TurnPaused)[-1].on == "tasks"
    wire.say("step.started", thread=child.thread_id, **{**place, "stepIndex": 1})
    wire.say("task.settled", kind="agent", status="completed", output="done", **task)
    assert not wire.of(ev.ThreadEnded)
    wire.say(
        "step.completed", thread=child.thread_id, finishReason="stop", **{**place, "stepIndex": 1}
    )
    wire.say("turn.completed", thread=child.thread_id, sequence=0, turnId="turn_0")
    wire.say("session.waiting", thread=child.thread_id, continuationToken="x:0", wait="y")
    (over,) = wire.of(ev.ThreadEnded)
    assert (over.output, over.extra) == ("done", None)
    assert [c.thread_id for c in wire.codec.streams()] == [ev.MAIN]
    assert str(wire.normalizer.repairs).find("unrepaired") < 0


@pytest.mark.parametrize("generation", ["T", "S1"])
def test_a_child_that_closes_its_turn_to_ask_is_paused_once_its_parent_shows_the_request(
    generation: str,
) -> None:
    """Its own stream may be read first: nobody could answer there, and its turn is not over."""
    wire = Wire(generation)
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    action = {"kind": "subagent-call", "callId": "c", "name": "r", "input": {}}
    wire.in_turn("actions.requested", 0, actions=[action])
    wire.in_turn("step.completed", 0, finishReason="tool-calls")
    wire.in_turn("subagent.called", callId="c", childSessionId="wrun_2", name="r")
    child: dict[str, Any] = {"thread": "wrun_2", "sequence": 0, "turnId": "turn_0"}
    wire.say("turn.started", **child)
    wire.say("step.started", **child, stepIndex=0)
    wire.say("actions.requested", **child, stepIndex=0, actions=[request("A")["action"]])
    wire.say("step.completed", **child, stepIndex=0, finishReason="tool-calls")
    wire.say("input.requested", **child, stepIndex=0, requests=[request("A")])
    wire.say("turn.completed", **child)
    wire.say("session.waiting", thread="wrun_2", continuationToken="x:0", wait="y")
    before = (ev.InteractionRequested, ev.TurnPaused, ev.TurnEnded)
    assert not any(isinstance(event, before) for event in wire.events)
    wire.in_turn("input.requested", 0, requests=[request("A")])
    (asked,) = wire.of(ev.InteractionRequested)
    (paused,) = wire.of(ev.TurnPaused)
    assert (asked.thread_id, asked.shown_on) == ("wrun_2", ev.MAIN)
    assert (paused.thread_id, paused.request_ids) == ("wrun_2", ("A",))
    wire.close()
    assert [paused.thread_id for paused in wire.of(ev.TurnPaused)] == ["wrun_2", ev.MAIN]
    assert not wire.of(ev.TurnEnded)


def test_of_very_many_children_some_are_read_at_once_and_the_others_after_them() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    names = [f"wrun_{number}" for number in range(2 * STREAMS_MOST)]
    for name in names:
        wire.in_turn("subagent.called", callId=f"c-{name}", childSessionId=name, name="r")
    read = [call.thread_id for call in wire.codec.streams()]
    assert read == [ev.MAIN, *names[: STREAMS_MOST - 1]]
    wire.take(wire.codec.give_up(DragomanError("Gone."), wire.now, thread_id=names[0]))
    read = [call.thread_id for call in wire.codec.streams()]
    assert read == [ev.MAIN, *names[1:STREAMS_MOST]]


def test_a_child_whose_stream_is_lost_ends_and_the_parent_goes_on() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    action = {"kind": "subagent-call", "callId": "c", "name": "r", "input": {}}
    wire.in_turn("actions.requested", 0, actions=[action])
    task = {"callId": "c", "taskId": "r-1", "name": "r", "turnId": "turn_0"}
    wire.say("task.started", kind="agent", **task)
    wire.say(
        "agent.started", sessionId="wrun_2", streamPath="/eve/v1/session/wrun_2/stream", **task
    )
    (child,) = [c for c in wire.codec.streams() if c.thread_id != ev.MAIN]
    error = DragomanError("Gone.")
    wire.take(wire.codec.give_up(error, wire.now, thread_id=child.thread_id))
    (over,) = wire.of(ev.ThreadEnded)
    assert (over.thread_id, over.status) == (child.thread_id, "failed")
    assert [c.thread_id for c in wire.codec.streams()] == [ev.MAIN]
    assert not wire.of(ev.TurnEnded)


def test_a_child_whose_stream_is_lost_right_behind_the_end_of_its_turn_has_completed_it() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    action = {"kind": "subagent-call", "callId": "c", "name": "r", "input": {}}
    wire.in_turn("actions.requested", 0, actions=[action])
    task = {"callId": "c", "taskId": "r-1", "name": "r", "turnId": "turn_0"}
    wire.say("task.started", kind="agent", **task)
    wire.say(
        "agent.started", sessionId="wrun_2", streamPath="/eve/v1/session/wrun_2/stream", **task
    )
    (child,) = [c.thread_id for c in wire.codec.streams() if c.thread_id != ev.MAIN]
    place: dict[str, Any] = {"thread": child, "sequence": 0, "turnId": "turn_0"}
    wire.say("turn.started", **place)
    wire.say("turn.completed", **place)
    wire.take(wire.codec.give_up(DragomanError("Gone."), wire.now, thread_id=child))
    (ended,) = wire.of(ev.TurnEnded)
    assert (ended.thread_id, ended.outcome, ended.synthetic) == (child, "completed", False)
    assert [over.thread_id for over in wire.of(ev.ThreadEnded)] == [child]


def test_a_token_server_goes_on_after_a_relayed_request_without_a_turn_started() -> None:
    wire = Wire("T")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    action = {"kind": "subagent-call", "callId": "c", "name": "r", "input": {}}
    wire.in_turn("actions.requested", 0, actions=[action])
    wire.in_turn("step.completed", 0, finishReason="tool-calls")
    wire.in_turn("subagent.called", callId="c", childSessionId="wrun_2", name="r")
    wire.in_turn("input.requested", 0, requests=[request("A")])
    wire.close()
    assert wire.of(ev.InteractionRequested)[0].thread_id == "wrun_2"
    assert wire.of(ev.TurnPaused)[-1].request_ids == ("A",)
    wire.answer(wire.command(allow("A")), 200, {"ok": True})
    wire.say("subagent.completed", callId="c", subagentName="r", output="done")
    wire.say("step.started", sequence=1, turnId="", stepIndex=0)
    wire.say(
        "message.completed", sequence=1, turnId="", stepIndex=0, message="ok", finishReason="stop"
    )
    wire.say("step.completed", sequence=1, turnId="", stepIndex=0, finishReason="stop")
    wire.say("turn.completed", sequence=1, turnId="")
    wire.say("session.waiting", continuationToken="eve:two", wait="next-user-message")
    assert [e.turn_id for e in wire.of(ev.TurnEnded) if e.thread_id == ev.MAIN] == ["turn_0"]
    assert wire.of(ev.TextCompleted)[-1].turn_id == "turn_0"


def test_a_lost_backend_ends_the_turn_and_settles_what_was_sent() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.command(cmd.SendMessage(content=(ev.Text(text="more"),), policy="queue"))
    wire.take(wire.codec.give_up(DragomanError("Gone."), wire.now))
    assert wire.of(ev.TurnEnded)[-1].error.code == "backend_session_lost"
    assert wire.of(ev.InputSettled)[-1].outcome == "unknown"
    assert wire.codec.streams() == ()


# A turn that the backend has forgotten.


def working(generation: str) -> Wire:
    """A turn in the middle of its text, and of a call."""
    wire = Wire(generation)
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    wire.in_turn("message.appended", 0, messageDelta="Half an ans")
    wire.take(wire.codec.opened(wire.codec.streams()[0], Response(200), wire.now))
    return wire


def check_forgotten(wire: Wire, code: str = "turn_end_missing") -> None:
    (ended,) = wire.of(ev.TurnEnded)
    assert (ended.outcome, ended.error.code) == ("failed", code)
    (said,) = wire.of(ev.TextCompleted)
    assert (said.text, said.status) == ("Half an ans", "partial")
    assert wire.codec.streams() == ()


@pytest.mark.parametrize("generation", ["T", "S1", "S2", "tasks"])
def test_a_session_that_waits_without_an_end_of_its_turn_has_forgotten_it(generation: str) -> None:
    wire = working("S2" if generation == "tasks" else generation)
    if generation == "tasks":
        wire.in_turn("turn.waiting", on="tasks")
    wire.say("session.waiting", continuationToken="eve:two", wait="next-user-message")
    check_forgotten(wire)
    # The next turn has nothing to do with it.
    wire.begin("next")
    wire.in_turn("step.started", 0)
    wire.in_turn("step.completed", 0, finishReason="stop")
    wire.close()
    assert wire.of(ev.TurnEnded)[-1].outcome == "completed"


def test_the_boundary_of_a_control_does_not_end_a_turn() -> None:
    wire = working("S2")
    wire.answer(wire.command(cmd.Compact()), 202, {"ok": True, "status": "accepted"})
    wire.say("session.waiting", continuationToken="wrun_1", wait="next-user-message")
    assert wire.of(ev.TurnEnded) == []


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
@pytest.mark.parametrize("late", [True, False])
def test_a_boundary_that_comes_late_is_none_of_a_control(generation: str, late: bool) -> None:
    wire = Wire(generation)
    waiting = {"continuationToken": "eve:two", "wait": "next-user-message"}
    wire.begin("hi")
    wire.in_turn("turn.completed")
    if late:
        assert wire.codec.wake_at is not None
        wire.take(wire.codec.tick(wire.codec.wake_at))
    else:
        wire.say("session.waiting", **waiting)
    assert len(wire.of(ev.TurnEnded)) == 1
    assert wire.codec.streams() == ()
    wire.answer(wire.command(cmd.Compact()), 202, {"ok": True, "status": "accepted"})
    if late:
        wire.say("session.waiting", **waiting)
    assert len(wire.codec.streams()) == 1
    wire.say("compaction.completed", sequence=0, turnId="turn_1")
    wire.say("session.waiting", **waiting)
    assert len(wire.of(ev.ContextCompacted)) == 1
    assert wire.codec.streams() == ()


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
def test_the_boundary_of_a_control_that_comes_late_is_none_of_the_next(generation: str) -> None:
    wire = Wire(generation)
    waiting = {"continuationToken": "eve:two", "wait": "next-user-message"}
    wire.begin("hi")
    wire.close()
    wire.answer(wire.command(cmd.Compact()), 202, {"ok": True, "status": "accepted"})
    wire.say("compaction.completed", sequence=0, turnId="turn_1")
    assert wire.of(ev.ContextCompacted) == []
    assert wire.codec.wake_at is not None
    wire.take(wire.codec.tick(wire.codec.wake_at))
    assert len(wire.of(ev.ContextCompacted)) == 1
    assert wire.codec.streams() == ()
    wire.answer(wire.command(cmd.Clear()), 202, {"ok": True, "status": "accepted"})
    wire.say("session.waiting", **waiting)
    # Nobody is told of a boundary twice, and what the second control does is still to come.
    assert wire.of(ev.Native) == []
    assert len(wire.codec.streams()) == 1
    wire.say("context.cleared", sequence=0, turnId="turn_1")
    wire.say("session.waiting", **waiting)
    assert len(wire.of(ev.ContextCleared)) == 1
    assert wire.codec.streams() == ()


def test_of_two_controls_without_a_boundary_between_them_both_are_told() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.close()
    for control in (cmd.Compact(), cmd.Clear()):
        wire.answer(wire.command(control), 202, {"ok": True, "status": "accepted"})
    wire.say("compaction.completed", sequence=0, turnId="turn_1")
    wire.say("context.cleared", sequence=0, turnId="turn_1")
    wire.say("session.waiting", continuationToken="eve:two", wait="next-user-message")
    assert len(wire.of(ev.ContextCompacted)) == len(wire.of(ev.ContextCleared)) == 1
    assert wire.codec.streams() == ()


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
def test_a_control_that_came_to_nothing_is_answered_by_a_boundary_alone(generation: str) -> None:
    wire = Wire(generation)
    wire.begin("hi")
    wire.close()
    wire.answer(wire.command(cmd.Compact()), 202, {"ok": True, "status": "accepted"})
    assert len(wire.codec.streams()) == 1
    wire.say("session.waiting", continuationToken="eve:two", wait="next-user-message")
    assert wire.codec.streams() == ()


def test_a_pause_is_not_ended_by_a_session_that_waits() -> None:
    wire = Wire("S2")
    wire.approval("one")
    wire.in_turn("turn.waiting", on="input")
    wire.say("session.waiting", continuationToken="wrun_1", wait="next-user-message")
    assert wire.of(ev.TurnEnded) == []
    assert wire.normalizer.state.interactions


def test_a_turn_that_begins_ends_the_one_that_was_forgotten_with_its_requests() -> None:
    wire = Wire("S2")
    wire.approval("one")
    wire.in_turn("turn.waiting", on="input")
    wire.begin("next")
    (ended,) = wire.of(ev.TurnEnded)
    assert (ended.turn_id, ended.outcome) == ("turn_0", "failed")
    assert wire.codec.recover("k", allow("one")) is None
    assert wire.codec.patience < 30 * 24 * 3_600_000


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
def test_a_cancel_that_finds_no_turn_ends_the_one_that_shows_no_end(generation: str) -> None:
    wire = working(generation)
    wire.answer(wire.command(cmd.Interrupt()), 200, {"ok": True, "status": "no_active_turn"})
    assert wire.codec.wake_at == wire.now + CANCEL_AGAIN_MS
    # What is on its way still comes.
    wire.now += 500
    wire.in_turn("message.appended", 0, messageDelta="")
    wire.take(wire.codec.tick(wire.now + 500))
    assert wire.of(ev.TurnEnded) == []
    wire.take(wire.codec.tick(wire.now + CATCH_UP_MS))
    check_forgotten(wire)


def test_a_cancel_that_an_idle_server_accepts_ends_the_turn_after_a_minute_of_nothing() -> None:
    wire = working("S2")
    wire.answer(wire.command(cmd.Interrupt()), 202, {"ok": True, "status": "accepted"})
    wire.now += 50_000
    wire.in_turn("message.appended", 0, messageDelta="")
    wire.take(wire.codec.tick(wire.now + 50_000))
    assert wire.of(ev.TurnEnded) == []
    # Silence counts only while the stream is read.
    wire.take(wire.codec.closed(wire.codec.streams()[0], CloseReason.LOST, wire.now))
    assert wire.codec.wake_at is None
    wire.now += 60_000
    wire.take(wire.codec.opened(wire.codec.streams()[0], Response(200), wire.now))
    wire.take(wire.codec.tick(wire.now))
    assert wire.of(ev.TurnEnded) == []
    wire.take(wire.codec.tick(wire.now + CATCH_UP_MS))
    check_forgotten(wire)


def failed_reset(wire: Wire) -> None:
    wire.answer(wire.command(cmd.Reset()), 500, {"ok": False, "error": "broken"})
    assert wire.of(ev.InputSettled)[-1].outcome == "refused"


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
def test_a_reset_that_fails_and_takes_the_turn_along_leaves_nothing_running(
    generation: str,
) -> None:
    wire = working(generation)
    failed_reset(wire)
    wire.take(wire.codec.tick(wire.now + CANCELLED_MS - 1))
    assert wire.of(ev.TurnEnded) == []
    wire.take(wire.codec.tick(wire.now + CANCELLED_MS))
    (ended,) = wire.of(ev.TurnEnded)
    assert (ended.outcome, ended.error.code) == ("failed", "backend_session_lost")
    assert wire.of(ev.SessionEnded) == []


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
def test_a_message_that_a_failed_reset_swallows_is_a_failed_turn(generation: str) -> None:
    wire = working(generation)
    wire.close()
    failed_reset(wire)
    assert wire.codec.wake_at is None
    wire.answer(wire.command(more()), 202, {"ok": True, "deliveryId": "d-2"})
    wire.take(wire.codec.tick(wire.now + CANCELLED_MS))
    assert [turn.outcome for turn in wire.of(ev.TurnEnded)] == ["completed", "failed"]
    assert not wire.normalizer.state.unreceived


@pytest.mark.parametrize("generation", ["T", "S1", "S2"])
def test_a_session_that_goes_on_after_a_failed_reset_is_let_alone(generation: str) -> None:
    wire = working(generation)
    failed_reset(wire)
    wire.in_turn("message.appended", 0, messageDelta="")
    wire.take(wire.codec.tick(wire.now + CANCELLED_MS))
    assert wire.of(ev.TurnEnded) == []


def test_a_pause_that_a_failed_reset_leaves_is_not_counted_as_silence() -> None:
    wire = Wire("S2")
    wire.approval("one")
    wire.in_turn("turn.waiting", on="input")
    failed_reset(wire)
    assert wire.codec.wake_at is None


def test_a_reset_of_a_session_that_the_server_has_no_more_ends_ours() -> None:
    wire = working("S2")
    wire.close()
    wire.answer(wire.command(cmd.Reset()), 200, {"ok": True, "status": "no_active_session"})
    assert wire.of(ev.SessionEnded)[0].outcome == "terminated"
    assert wire.of(ev.InputSettled)[-1].outcome == "taken"


def test_a_cancel_of_another_turn_expects_no_end() -> None:
    wire = working("S2")
    cancel = wire.command(cmd.Interrupt(turn_id="turn_7"))
    wire.answer(cancel, 202, {"ok": True, "status": "accepted"})
    assert wire.codec.wake_at is None


def test_a_cancel_that_finds_no_turn_lets_the_end_come() -> None:
    wire = working("S2")
    wire.answer(wire.command(cmd.Interrupt()), 200, {"ok": True, "status": "no_active_turn"})
    wire.close()
    wire.take(wire.codec.tick(wire.now + CATCH_UP_MS))
    assert [ended.outcome for ended in wire.of(ev.TurnEnded)] == ["completed"]


def test_a_cancel_in_a_closed_pause_does_not_end_it() -> None:
    wire = Wire("T")
    wire.approval("one")
    wire.close()
    cancel = Call("cancel", Request("POST", "/eve/v1/session/wrun_1/cancel"))
    wire.answer(cancel, 202, {"ok": True, "sessionId": "wrun_1", "status": "no_active_turn"})
    assert wire.codec.wake_at is None


def ends(wire: Wire, after: int, reason: CloseReason = CloseReason.ENDED) -> None:
    stream = wire.codec.streams()[0]
    wire.take(wire.codec.opened(stream, Response(200), wire.now))
    wire.now += after
    wire.take(wire.codec.closed(stream, reason, wire.now))


def test_a_stream_that_ends_at_once_again_and_again_has_no_more_to_tell() -> None:
    wire = working("T")
    quiet = wire.codec.patience
    for _ in range(5):
        assert wire.codec.patience == quiet
        ends(wire, 5)
    assert wire.codec.patience == 60_000
    wire.take(wire.codec.give_up(DragomanError("It ends without anything new."), wire.now))
    check_forgotten(wire, "backend_session_lost")


@pytest.mark.parametrize(
    ("after", "reason"), [(60_000, CloseReason.ENDED), (5, CloseReason.LOST)], ids=["late", "cut"]
)
def test_a_stream_that_ends_otherwise_is_borne_as_silence_is(
    after: int, reason: CloseReason
) -> None:
    wire = working("S2")
    quiet = wire.codec.patience
    for _ in range(4):
        ends(wire, 5)
    for _ in range(4):
        ends(wire, after, reason)
    assert wire.codec.patience == quiet


def test_a_log_that_is_empty_after_it_showed_records_is_lost() -> None:
    wire = working("T")
    (stream,) = wire.codec.streams()
    assert stream.request.query["includeTailIndex"] == "1"
    tail = "x-eve-stream-tail-index"
    wire.take(wire.codec.opened(stream, Response(200, CIMultiDict({tail: "3"})), wire.now))
    assert wire.of(ev.TurnEnded) == []
    wire.take(wire.codec.opened(stream, Response(200, CIMultiDict({tail: "-1"})), wire.now))
    check_forgotten(wire, "backend_session_lost")


def test_a_server_that_would_end_at_its_tail_is_not_asked_for_it() -> None:
    (stream,) = working("S2").codec.streams()
    assert "includeTailIndex" not in stream.request.query


# Our own face in between.


def golden_log(name: str) -> list[ev.Event]:
    """Return the canonical log of a golden: an Engine session, nothing in it came from an eve."""
    lines = (GOLDEN / name / "canonical.ndjson").read_bytes().splitlines()
    return [ev.Entry.decode(line).event for line in lines]


def through_eve(events: list[ev.Event], form: str) -> tuple[list[ev.Event], Normalizer]:
    """Return a log after it was written by our own face and read by the client codec."""
    context = EncoderContext(session_id="s", secret=b"x" * 32, settings={"form": form})
    encoder = EveEncoder(context)
    lines: list[bytes] = []
    for number, event in enumerate(events, 1):
        frames = encoder.feed(ev.Entry(number, 1_700_000_000_000 + number, "s", event))
        lines += [frame.data.rstrip(b"\n") for frame in frames]
    session = Played(lambda: EveClient({"session_id": "s"}))
    codec = session.codec
    call = Call("stream", Request("GET", "/"), stream=True)
    version = {"all": "24", "tokens": "21", "newest": "26"}[form]
    codec.opened(call, Response(200, CIMultiDict({"x-eve-stream-version": version})), 0)
    for number, line in enumerate(lines):
        session.take(codec.feed(call, line, number))
    session.take(codec.tick(10_000_000))
    return session.events, session.normalizer


def essence(events: list[ev.Event]) -> list[tuple[Any, ...]]:
    """Return what must survive: words, calls, results, requests, pauses and ends of turns."""
    out: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case ev.TurnStarted() | ev.TurnResumed():
                out.append((event.TYPE,))
            case ev.TextCompleted() | ev.ReasoningCompleted() if event.status == "complete":
                out.append((event.TYPE, event.text))
            case ev.ToolCalled():
                out.append((event.TYPE, event.call_id, event.name, event.input))
            case ev.ToolReturned() if not event.synthetic:
                out.append((event.TYPE, event.call_id, event.output, event.is_error, event.status))
            case ev.InteractionRequested():
                options = [option.id for option in event.options or ()]
                out.append((event.TYPE, event.request_id, event.kind, event.call_id, options))
            case ev.TurnPaused() if event.on == "input":
                out.append((event.TYPE, event.request_ids))
            case ev.TurnEnded():
                out.append((event.TYPE, event.outcome))
    return out


@each("form", ["all", "tokens", "newest"])
@each("name", GOLDENS)
def test_a_log_survives_our_own_face(name: str, form: str) -> None:
    log = golden_log(name)
    read, normalizer = through_eve(log, form)
    check_laws(read)
    assert "unrepaired" not in normalizer.repairs
    wanted, found = essence(log), essence(read)
    if form == "newest":
        # A held turn resumes with its work: nothing says it by itself.
        wanted = [item for item in wanted if item[0] != "turn.resumed"]
        found = [item for item in found if item[0] != "turn.resumed"]
    # Calls are released by their permission: their order among the words may differ.
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


@each("form", ["all", "newest"])
@each("name", GOLDENS)
def test_outcomes_survive_our_own_face_where_the_form_says_them(name: str, form: str) -> None:
    log = golden_log(name)
    read, _ = through_eve(log, form)
    kinds = {e.request_id: e.kind for e in log if isinstance(e, ev.InteractionRequested)}
    wanted = []
    for event in log:
        if isinstance(event, ev.InteractionResolved):
            # eve has no word for what nobody knows (section 9.4): an approval is «cancelled».
            settled = form == "newest" and kinds[event.request_id] == "approval"
            told = {"unknown": "denied" if settled else "answered", "skipped": "answered"}
            wanted.append(told.get(event.outcome, event.outcome))
    assert [e.outcome for e in read if isinstance(e, ev.InteractionResolved)] == wanted


@pytest.mark.parametrize("prewarms", [True, False])
def test_a_create_answer_without_a_session_id_refuses_the_message(prewarms: bool) -> None:
    codec = EveClient({})
    call = codec.submit("c", cmd.SendMessage(content=(ev.Text(text="hi"),), policy="queue"))
    if not prewarms:
        # A server before 0.59 (section 4.1): the message goes with the create.
        body = b'{"ok":false,"error":"Missing or empty \'message\' field."}'
        assert codec.respond(call, Response(400, CIMultiDict(), body), 1_000) == []
        (call,) = codec.take_calls()
    (settled,) = codec.respond(call, Response(202, CIMultiDict(), b'{"ok":true}'), 1_000)
    assert isinstance(settled, ev.InputSettled)
    assert (settled.command_id, settled.error and settled.error.message) == (
        "c",
        "eve: a create answer without usable session id",
    )


def test_a_message_that_failed_in_the_server_is_looked_for_in_the_stream() -> None:
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("turn.completed")
    wire.say("session.waiting", continuationToken="wrun_1", wait="next-user-message")
    call = wire.command(cmd.SendMessage(content=(ev.Text(text="more"),), policy="queue"))
    before = len(wire.of(ev.InputSettled))
    wire.answer(call, 500, {"ok": False, "error": "Oops."})
    assert len(wire.of(ev.InputSettled)) == before
    wire.begin("more")
    settled = wire.of(ev.InputSettled)[before:]
    assert [(one.command_id, one.outcome) for one in settled] == [("cmd-2", "taken")]


# Answers and a message in one request (sections 5 and 8.2).


def together(
    wire: Wire, *names: str, text: str = "more", beside: tuple[str, ...] | None = None
) -> Call | None:
    """Let answers and a message go at once, as the session asks for it."""
    first = wire.commands + 1
    wire.commands += len(names) + 1
    answers = {f"cmd-{first + n}": allow(name) for n, name in enumerate(names)}
    message = cmd.SendMessage(
        content=(ev.Text(text=text),), policy="queue", beside=names if beside is None else beside
    )
    kinds: list[Any] = ["answer"] * len(names) + ["message"]
    wire.take(
        [
            ev.InputAccepted(thread_id=ev.MAIN, command_id=f"cmd-{first + n}", kind=kind, by="test")
            for n, kind in enumerate(kinds)
        ]
    )
    return wire.codec.submit_answers(answers, (f"cmd-{first + len(names)}", message))


def both(wire: Wire, *names: str, text: str = "more") -> Call:
    """Let answers and a message go at once, in one request."""
    call = together(wire, *names, text=text)
    assert call is not None
    assert len(call.command_ids) == len(names) + 1
    return call


def paused(*names: str) -> Wire:
    """A token server that waits for answers."""
    wire = Wire("T")
    wire.approval(*names)
    wire.close()
    return wire


def results(wire: Wire, *names: str, last: bool = True) -> None:
    """The step with the results of what was approved, and the one of the message."""
    wire.in_turn("step.started", 0)
    for name in names:
        wire.in_turn("action.result", 0, result=result(name), status="completed")
    wire.in_turn("step.completed", 0, finishReason="stop")
    if last:
        wire.in_turn("step.started", 1)
        wire.in_turn("step.completed", 1, finishReason="stop")


def settled(wire: Wire) -> list[tuple[str, str]]:
    return [(e.command_id, e.outcome) for e in wire.of(ev.InputSettled)][1:]


def said(wire: Wire) -> list[tuple[str, str | None]]:
    return [(ev.text_of(e.content), e.command_id) for e in wire.of(ev.MessageReceived)][1:]


@pytest.mark.parametrize("reply", ["first", "last"])
def test_a_token_server_gets_answers_and_a_message_in_one_request(reply: str) -> None:
    wire = paused("A", "B")
    call = both(wire, "A", "B")
    assert orjson.loads(call.request.body or b"") == {
        "inputResponses": [
            {"requestId": "A", "optionId": "approve"},
            {"requestId": "B", "optionId": "approve"},
        ],
        "message": "more",
        "continuationToken": "eve:two",
    }
    if reply == "first":
        wire.answer(call, 200, {"ok": True})
    wire.begin("more")
    results(wire, "A", "B")
    if reply == "last":
        assert wire.answer(call, 200, {"ok": True}) == []
    wire.close()
    assert sorted(settled(wire)) == [("cmd-2", "taken"), ("cmd-3", "taken"), ("cmd-4", "taken")]
    assert said(wire) == [("more", "cmd-4")]
    assert [e.outcome for e in wire.of(ev.InteractionResolved)] == ["approved", "approved"]
    assert len(wire.of(ev.TurnStarted)) == len(wire.of(ev.TurnEnded)) == 1
    assert not wire.normalizer.repairs
    assert not wire.normalizer.state.inputs
    assert not wire.codec._parts.inputs.shown
    assert wire.codec.streams() == ()


def test_what_shows_one_part_of_a_request_shows_that_all_of_it_arrived() -> None:
    wire = paused("A", "B")
    call = both(wire, "A", "B")
    wire.begin("more")
    assert sorted(settled(wire)) == [("cmd-2", "taken"), ("cmd-3", "taken"), ("cmd-4", "taken")]
    # A reply that is lost leaves no doubt then.
    lost = DragomanError("The connection broke.")
    assert wire.codec.failed(call, lost, sent=True, now=wire.now) == []
    assert wire.codec._s.silence.open == {}
    assert not wire.codec._parts.inputs.shown
    assert wire.of(ev.InteractionResolved) == []
    results(wire, "A", "B")
    assert len(wire.of(ev.InteractionResolved)) == 2


def test_the_result_of_a_refused_call_shows_that_the_message_arrived() -> None:
    wire = paused("A")
    call = both(wire, "A")
    lost = DragomanError("The connection broke.")
    wire.take(wire.codec.failed(call, lost, sent=True, now=wire.now))
    assert sorted(wire.codec._s.silence.open) == ["cmd-2", "cmd-3"]
    denied = {**result("A"), "output": {"approval": {"status": "denied"}}}
    wire.in_turn("action.result", 0, result=denied, status="rejected")
    assert settled(wire) == [("cmd-2", "taken"), ("cmd-3", "taken")]
    assert wire.codec._s.silence.open == {}
    wire.begin("more")
    assert said(wire) == [("more", "cmd-3")]
    assert len(wire.of(ev.ErrorReported)) == 1


def test_of_a_request_that_the_stream_never_shows_all_is_unknown() -> None:
    wire = paused("A")
    wire.codec.opened(wire.main, Response(200), wire.now)
    call = both(wire, "A")
    lost = DragomanError("The connection broke.")
    wire.take(wire.codec.failed(call, lost, sent=True, now=wire.now))
    again = EveClient({})
    again.restore(wire.codec.snapshot(), wire.codec.position)
    wire.codec = again
    wire.codec.opened(wire.main, Response(200), wire.now)
    wire.take(wire.codec.tick(wire.now + RECOVER_MS + CATCH_UP_MS))
    assert settled(wire) == [("cmd-2", "unknown"), ("cmd-3", "unknown")]
    assert wire.codec._s.ledger.open == {}
    # They may be given anew.
    assert together(wire, "A") is not None


@pytest.mark.parametrize(
    ("status", "code"), [(204, "dropped"), (404, "SESSION_NOT_RESUMABLE"), (413, "http_413")]
)
def test_a_request_that_is_refused_is_refused_as_a_whole(status: int, code: str) -> None:
    wire = paused("A")
    body = None if status == 204 else {"ok": False, "error": "No.", "code": code}
    wire.answer(both(wire, "A"), status, body)
    assert settled(wire) == [("cmd-2", "refused"), ("cmd-3", "refused")]
    errors = [e.error.code for e in wire.of(ev.InputSettled)[1:]]
    assert errors == [code, code]
    assert wire.codec._s.ledger.open == {}
    assert wire.codec._parts.requests.given() == []


def test_a_request_whose_target_is_not_found_yet_is_sent_again_as_a_whole() -> None:
    wire = paused("A")
    call = both(wire, "A")
    wire.answer(call, 500, {"ok": False, "error": "target session was not found"})
    assert settled(wire) == []
    wire.take(wire.codec.tick(wire.now + 1_000))
    (again,) = wire.codec.take_calls()
    assert (again.request.body, again.command_ids) == (call.request.body, call.command_ids)
    wire.answer(again, 200, {"ok": True})
    assert settled(wire) == [("cmd-2", "taken"), ("cmd-3", "taken")]


def test_a_request_that_waits_to_be_sent_again_is_not_once_the_stream_shows_it() -> None:
    wire = paused("A")
    wire.answer(both(wire, "A"), 500, {"ok": False, "error": "target session was not found"})
    wire.begin("more")
    wire.take(wire.codec.tick(wire.now + 1_000))
    assert wire.codec.take_calls() == []
    assert sorted(settled(wire)) == [("cmd-2", "taken"), ("cmd-3", "taken")]
    assert not wire.codec._parts.inputs.shown


def test_a_server_that_takes_one_or_the_other_refuses_both() -> None:
    # A newer eve has come in the place of the one that waits.
    wire = paused("A")
    assert wire.answer(both(wire, "A"), 400, {"ok": False, "error": NO_TOKEN}) == []
    (again,) = wire.codec.take_calls()
    wire.answer(again, 400, {"ok": False, "error": "mutually exclusive"})
    assert settled(wire) == [("cmd-2", "refused"), ("cmd-3", "refused")]
    # It gets one after the other from now on.
    assert together(wire, "A") is None


@pytest.mark.parametrize("generation", ["S1", "S2"])
def test_later_servers_get_answers_alone(generation: str) -> None:
    wire = Wire(generation)
    wire.approval("A", "B")
    assert together(wire, "A") is None
    call = together(wire, "A", "B")
    assert call is not None
    assert call.command_ids == ("cmd-4", "cmd-5")
    assert b"message" not in (call.request.body or b"")


def test_a_message_goes_with_the_answers_after_which_nothing_is_asked() -> None:
    wire = paused("A", "B")
    assert together(wire, "A") is None
    first = wire.command(allow("A"))
    # Nobody knows yet whether the server has it.
    assert together(wire, "B") is None
    wire.answer(first, 200, {"ok": True})
    assert together(wire, "B") is not None


def test_a_message_does_not_go_with_what_was_not_asked_or_for_others() -> None:
    wire = paused("A")
    assert together(wire, "nothing") is None
    limit = {**request("L"), "kind": "session-limit"}
    wire = Wire("T")
    wire.begin("hi")
    wire.in_turn("input.requested", 0, requests=[limit])
    wire.close()
    assert together(wire, "L") is None
    # Of a child, which the parent relays.
    wire = Wire("T")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    wire.in_turn("subagent.called", callId="c", childSessionId="child", name="helper")
    wire.in_turn("step.completed", 0, finishReason="tool-calls")
    wire.in_turn("input.requested", 0, requests=[request("A")])
    wire.close()
    assert wire.codec._s.asks.open["A"].thread_id == "child"
    assert together(wire, "A") is None
    wire = Wire("T")
    wire.begin("hi")
    wire.in_turn("authorization.required", 0, name="ledger", description="Sign in")
    (name,) = wire.codec._s.asks.open
    assert together(wire, name) is None


def test_a_message_does_not_go_with_answers_while_the_server_holds_messages_back() -> None:
    wire = paused("A")
    wire.codec._s.unsaid = [{"requestId": "old", "optionId": "deny"}]
    assert together(wire, "A") is None


def test_what_a_token_server_says_again_of_a_message_beside_an_answer_is_said_once() -> None:
    # The agent asks again before it comes to the message.
    wire = paused("A")
    wire.answer(both(wire, "A"), 200, {"ok": True})
    wire.begin("more")
    results(wire, "A", last=False)
    wire.in_turn("input.requested", 0, requests=[request("B")])
    wire.close()
    wire.answer(both(wire, "B", text="and more"), 200, {"ok": True})
    wire.begin("more\n\nand more")
    results(wire, "B", last=False)
    wire.in_turn("input.requested", 0, requests=[request("C")])
    wire.close()
    wire.answer(wire.command(allow("C")), 200, {"ok": True})
    wire.begin("more\n\nand more")
    results(wire, "C")
    wire.close()
    assert said(wire) == [("more", "cmd-3"), ("and more", "cmd-5")]
    # What is said after that is new, also in the same words.
    wire.begin("more\n\nand more")
    assert said(wire)[2:] == [("more\n\nand more", None)]


@pytest.mark.parametrize("step", ["results", "message"])
def test_a_cancel_lets_a_token_server_say_the_message_again_that_its_step_was_for(
    step: str,
) -> None:
    wire = paused("A")
    wire.answer(both(wire, "A"), 200, {"ok": True})
    wire.begin("more")
    results(wire, "A", last=step == "message")
    wire.in_turn("turn.cancelled")
    wire.say("session.waiting", continuationToken="eve:three", wait="next-user-message")
    call = wire.command(cmd.SendMessage(content=(ev.Text(text="next"),), policy="queue"))
    # The stream is faster than the reply.
    wire.begin("more\n\nnext" if step == "message" else "next")
    wire.answer(call, 200, {"ok": True})
    assert said(wire) == [("more", "cmd-3"), ("next", "cmd-4")]


def test_the_words_of_a_person_may_be_those_that_were_put_aside() -> None:
    wire = paused("A")
    wire.begin("more")
    wire.close()
    assert said(wire) == [("more", None)]
    # Put aside, they are said again; ours in the same words are ours.
    wire.answer(both(wire, "A", text="more"), 200, {"ok": True})
    wire.begin("more\n\nmore")
    assert said(wire) == [("more", None), ("more", "cmd-3")]


def test_the_message_of_a_finished_turn_may_be_said_again() -> None:
    wire = Wire("T")
    for text in ("hi", "hi"):
        wire.begin(text)
        wire.in_turn("step.started", 0)
        wire.in_turn("step.completed", 0, finishReason="stop")
        wire.close()
    assert [ev.text_of(e.content) for e in wire.of(ev.MessageReceived)] == ["hi", "hi"]
