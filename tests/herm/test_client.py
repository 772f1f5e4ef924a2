"""The Herm client codec: commands in, requests out; frames in, canonical events out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict

from adapters.driving.doubts import LOOK_AGAIN_MS, LOOK_RETRY_MS, LOOKS
from adapters.herm.client import HermClient, refusal
from adapters.herm.client.abilities import ABILITIES
from adapters.herm.client.catching_up import HOLE_MS
from adapters.herm.client.codec import RUNNING_PATIENCE_MS
from adapters.herm.client.contents import MOST_BLOCKS, output_of
from adapters.herm.client.inputs import BUSY_RETRY_MS
from adapters.herm.client.numbers import HOLES
from adapters.herm.client.records import KEPT, KEPT_BYTES
from adapters.herm.client.turns import HOLD_MS
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.backend_names import for_backend
from adapters.model.base import Call, CloseReason, Request, Response
from adapters.model.normalizer import Rule
from adapters.wire.errors import DragomanError, NotSupported
from adapters.wire.framing.sse import SseFrame, SseParser
from adapters.wire.jsonvalue import MOST_NAME
from proxy.config.matrix import mapping_of
from tests.support.herm_client import Envelope
from tests.support.played import Played

WIRE = Path(__file__).parent.parent.parent / "fixtures" / "wire" / "herm"
NOW = 1_781_775_000_000
SESSION = {"id": "session_7c", "agentId": "agent_K4", "agentVersion": 2, "userId": "team"}


def text(words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words}]


class Driver(Played):
    """Plays the caller of a codec: does its calls with answers of the test's choice."""

    codec: HermClient

    def __init__(self, codec: HermClient | None = None, **settings: Any) -> None:
        given = {"agent": "agent_K4", "task_id": "s", **settings}
        super().__init__(lambda: codec or HermClient(given))
        self.numbers = 100
        self.take([ev.SessionStarted(thread_id=ev.MAIN)])

    @property
    def log(self) -> list[ev.Event]:
        """Return what the journal has."""
        return self.events

    def accept(self, command_id: str, command: cmd.AnyCommand) -> None:
        """Journal an input as the session does."""
        request_id = getattr(command, "request_id", None)
        raw: list[ev.Event] = [
            ev.InputAccepted(thread_id=ev.MAIN, command_id=command_id, kind=command.KIND, by="ann")
        ]
        if request_id is not None and getattr(command, "sealed", None) is None:
            raw.append(
                ev.InteractionAnswered(
                    thread_id=ev.MAIN, request_id=request_id, command_id=command_id, by="ann"
                )
            )
        self.take(raw)

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        theirs = for_backend(command, self.normalizer.state)
        self.codec.check(theirs)
        self.accept(command_id, command)
        return self.codec.submit(command_id, theirs)

    def answer(self, call: Call, status: int = 202, body: Any = None, **headers: str) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        response = Response(status, CIMultiDict(headers), data)
        self.take(self.codec.respond(call, response, NOW))

    def open(self) -> None:
        """Create the session with a message and open its stream."""
        create = self.submit("k1", said("Hello"))
        self.answer(create, 201, SESSION)
        (stream,) = self.codec.streams()
        self.take(self.codec.opened(stream, Response(200), NOW))
        (post,) = self.codec.take_calls()
        self.answer(
            post, 202, {"data": [self.envelope("user.message", {"content": text("Hello")})]}
        )
        self.feed("session.status_running")

    def envelope(self, type_: str, payload: Any = None, **members: Any) -> Envelope:
        self.numbers += 1
        envelope = {
            "id": f"evt_{self.numbers}",
            "type": type_,
            "sessionId": "session_7c",
            "sequence": self.numbers,
            "status": "complete",
            "payload": {"type": type_, **(payload or {})},
            "processedAt": "2026-06-18T09:31:09.441Z",
            "createdAt": "2026-06-18T09:31:09.442Z",
            **members,
        }
        return {key: value for key, value in envelope.items() if value != "-"}

    def feed(self, type_: str, payload: Any = None, **members: Any) -> list[ev.Event]:
        return self.feed_envelope(self.envelope(type_, payload, **members))

    def feed_envelope(self, envelope: Envelope) -> list[ev.Event]:
        frame = SseFrame(envelope["type"], json.dumps(envelope).encode(), envelope.get("id"))
        return self.take(self.codec.feed(STREAM, frame, NOW))

    def types(self) -> list[str]:
        return [event.TYPE for event in self.log]


STREAM = Call("stream", Request("GET", "/"), stream=True)


def said(words: str, policy: Any = "reject", **fields: Any) -> cmd.SendMessage:
    return cmd.SendMessage(content=(ev.Text(text=words),), policy=policy, **fields)


def posted(call: Call) -> Any:
    assert call.request.body is not None
    return json.loads(call.request.body)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.open()
    return driver


# Commands.


def test_the_first_message_makes_a_session_opens_the_stream_and_then_is_posted() -> None:
    driver = Driver(user_id="team")
    driver.codec.started(
        ev.SessionStarted(
            thread_id=ev.MAIN, title="Plan", metadata={"a": 1}, options={"userId": "u"}
        )
    )
    create = driver.submit("k1", said("Hello"))
    assert (create.request.method, create.request.path) == (
        "POST",
        "/v1/agents/agent_K4/sessions",
    )
    assert posted(create) == {"userId": "u", "title": "Plan", "metadata": {"a": 1}}
    assert driver.codec.streams() == ()
    driver.answer(create, 201, SESSION)
    assert driver.codec.native_id == "session_7c"
    assert driver.codec.take_calls() == []
    (stream,) = driver.codec.streams()
    assert stream.request.path == "/v1/sessions/session_7c/events/stream"
    driver.take(driver.codec.opened(stream, Response(200), NOW))
    (post,) = driver.codec.take_calls()
    assert (post.request.path, post.command_id) == ("/v1/sessions/session_7c/events", "k1")
    assert posted(post) == {"events": [{"type": "user.message", "content": text("Hello")}]}
    assert driver.codec.take_calls() == []
    driver.answer(post, 200)
    driver.feed("session.status_running")
    assert driver.types()[-3:] == ["input.settled", "turn.started", "message.received"]
    assert driver.of(ev.MessageReceived)[0].command_id == "k1"


def test_a_message_goes_without_a_stream_when_none_can_be_had() -> None:
    driver = Driver()
    driver.answer(driver.submit("k1", said("Hello")), 200, SESSION)
    (stream,) = driver.codec.streams()
    driver.answer(stream, 503)
    assert [call.name for call in driver.codec.take_calls()] == ["events"]


def test_a_create_that_is_refused_settles_its_command() -> None:
    driver = Driver()
    driver.answer(driver.submit("k1", said("Hi")), 402, {"error": "insufficient_credits"})
    (settled,) = driver.of(ev.InputSettled)
    assert (settled.outcome, settled.error.code) == ("refused", "insufficient_credits")
    assert driver.codec.take_calls() == []


def test_a_400_tries_the_other_spelling_once_and_remembers_what_works() -> None:
    driver = Driver()
    driver.answer(driver.submit("k1", said("Hi")), 201, SESSION)
    driver.codec.opened(STREAM, Response(200), NOW)
    (first,) = driver.codec.take_calls()
    driver.answer(first, 400, {"code": "validation_error", "message": "no"})
    (second,) = driver.codec.take_calls()
    assert posted(second) == {"type": "user.message", "content": text("Hi")}
    driver.answer(second, 202)
    assert driver.of(ev.InputSettled)[-1].outcome == "taken"
    driver.feed("session.status_running")
    steer = driver.submit("k2", cmd.Steer(text="left"))
    assert posted(steer) == {"type": "user.steer", "message": "left"}


def test_a_second_400_is_a_refusal() -> None:
    driver = Driver()
    driver.answer(driver.submit("k1", said("Hi")), 201, SESSION)
    driver.codec.opened(STREAM, Response(200), NOW)
    for _ in range(2):
        (call,) = driver.codec.take_calls()
        driver.answer(call, 400, {"error": {"code": "validation_error", "message": "Why."}})
    (settled,) = driver.of(ev.InputSettled)
    assert (settled.outcome, settled.reason) == ("refused", "Why.")


@pytest.mark.parametrize("policy", ["queue", "steer"])
def test_a_busy_backend_gets_the_message_again_when_it_is_idle(policy: Any) -> None:
    driver = Driver()
    driver.open()
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    call = driver.submit("k2", said("Next", policy))
    driver.answer(call, 409, {"error": {"code": "turn_running", "message": "Busy."}})
    assert driver.codec.wake_at is not None
    # Somebody else's turn.
    driver.feed("session.status_running")
    assert driver.of(ev.TurnStarted)[-1].cause == "background"
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    (again,) = driver.codec.take_calls()
    assert posted(again)["events"][0]["content"] == text("Next")
    driver.answer(again, 202)
    driver.feed("session.status_running")
    assert driver.of(ev.MessageReceived)[-1].command_id == "k2"


def test_a_busy_backend_refuses_what_was_promised_to_be_refused(driver: Driver) -> None:
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    driver.answer(driver.submit("k2", said("Next")), 409, {"code": "x", "message": "Busy."})
    assert driver.of(ev.InputSettled)[-1].outcome == "refused"


@pytest.mark.parametrize(
    ("status", "code", "headers", "wait"),
    [(409, "deployment_not_ready", {}, 2_000), (429, "rate_limited", {"Retry-After": "7"}, 7_000)],
)
def test_a_backend_that_is_not_ready_is_asked_again(
    driver: Driver, status: int, code: str, headers: dict[str, str], wait: int
) -> None:
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    call = driver.submit("k2", said("Next"))
    driver.answer(call, status, {"error": {"code": code, "message": "Later."}}, **headers)
    assert driver.codec.wake_at == NOW + wait
    assert driver.codec.take_calls() == []
    driver.take(driver.codec.tick(NOW + wait))
    (again,) = driver.codec.take_calls()
    assert posted(again) == posted(call)


def test_steering_is_native_and_becomes_guidance(driver: Driver) -> None:
    call = driver.submit("k2", cmd.Steer(text="in French"))
    assert posted(call)["events"] == [{"type": "user.steer", "message": "in French"}]
    driver.answer(call, 202)
    (guidance,) = driver.of(ev.GuidanceReceived)
    assert (guidance.text, guidance.command_id) == ("in French", "k2")
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    late = driver.submit("k3", cmd.Steer(text="too late"))
    driver.answer(late, 202)
    assert driver.of(ev.InputSettled)[-1].outcome == "unknown"


def test_a_message_that_steers_is_steering_where_a_turn_runs(driver: Driver) -> None:
    call = driver.submit("k2", said("in French", "steer"))
    assert posted(call)["events"] == [{"type": "user.steer", "message": "in French"}]


def test_steering_that_comes_too_late_is_a_message_where_it_was_said_as_one(
    driver: Driver,
) -> None:
    first = driver.submit("k2", said("in French", "steer"))
    second = driver.submit("k3", said("and short", "steer"))
    over = {"error": {"code": "no_turn_running", "message": "No turn runs."}}
    driver.answer(first, 409, over)
    driver.answer(second, 409, over)
    assert len(driver.of(ev.InputSettled)) == 1
    assert driver.codec.take_calls() == []
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    for command_id, words in (("k2", "in French"), ("k3", "and short")):
        (post,) = driver.codec.take_calls()
        assert posted(post)["events"] == [{"type": "user.message", "content": text(words)}]
        driver.answer(post, 202)
        driver.feed("session.status_running")
        assert driver.of(ev.MessageReceived)[-1].command_id == command_id
        assert driver.codec.take_calls() == []
        driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})


def test_a_message_waits_for_the_fate_of_the_one_before(driver: Driver) -> None:
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    driver.submit("k2", said("One"))
    later = driver.submit("k3", said("Two"))
    assert later.request.method == "GET"
    driver.answer(later, 200, {"status": "running"})
    driver.feed("session.status_running")
    assert driver.of(ev.MessageReceived)[-1].command_id == "k2"
    assert driver.codec.take_calls() == []
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    (post,) = driver.codec.take_calls()
    assert (post.command_id, posted(post)["events"][0]["content"]) == ("k3", text("Two"))


def test_a_message_that_withdraws_interrupts_first(driver: Driver) -> None:
    call = driver.submit("k2", said("Never mind", "withdraw"))
    assert posted(call)["events"] == [{"type": "user.interrupt"}]
    driver.answer(call, 202)
    assert driver.codec.take_calls() == []
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    assert driver.of(ev.TurnEnded)[-1].outcome == "interrupted"
    (post,) = driver.codec.take_calls()
    assert posted(post)["events"][0]["content"] == text("Never mind")


def test_a_message_that_withdraws_waits_for_the_fate_of_its_interrupt(driver: Driver) -> None:
    """The turn had been stopped already: its end comes before the second interrupt is answered."""
    first = driver.submit("k2", cmd.Interrupt())
    driver.answer(first, 202, {"data": [driver.envelope("user.interrupt")]})
    second = driver.submit("k3", said("Never mind", "withdraw"))
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    # It may be on its way still, and would stop the message.
    assert driver.codec.take_calls() == []
    driver.answer(second, 202, {"data": [driver.envelope("user.interrupt")]})
    (post,) = driver.codec.take_calls()
    driver.answer(
        post, 202, {"data": [driver.envelope("user.message", {"content": text("Never mind")})]}
    )
    driver.feed("session.status_running")
    # The answer told the number of the message: nothing is missing before the turn.
    assert driver.codec.wake_at is None
    assert [e.command_id for e in driver.of(ev.MessageReceived)] == ["k1", "k3"]


def test_a_second_input_of_a_command_is_known_though_the_first_one_was_seen(
    driver: Driver,
) -> None:
    call = driver.submit("k2", said("Never mind", "withdraw"))
    stop = driver.envelope("user.interrupt")
    driver.feed_envelope(stop)
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    (post,) = driver.codec.take_calls()
    message = driver.envelope("user.message", {"content": text("Never mind")})
    running = driver.envelope("session.status_running")
    driver.answer(call, 202, {"data": [stop]})
    driver.feed_envelope(message)
    driver.feed_envelope(running)
    driver.answer(post, 202, {"data": [message]})
    driver.feed_envelope({**message, "status": "complete"})
    assert [e.command_id for e in driver.of(ev.MessageReceived)] == ["k1", "k2"]
    settled = [e.command_id for e in driver.of(ev.InputSettled)]
    assert settled == ["k1", "k2"]


@pytest.mark.parametrize("status", [400, 409, 422, 429])
def test_an_interrupt_that_comes_too_late_does_not_take_its_message_along(
    driver: Driver, status: int
) -> None:
    call = driver.submit("k2", said("Never mind", "withdraw"))
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    driver.answer(call, status, {"error": {"code": "no_turn_running", "message": "No turn."}})
    (post,) = driver.codec.take_calls()
    assert posted(post)["events"][0]["content"] == text("Never mind")
    assert len(driver.of(ev.InputSettled)) == 1


def test_an_interrupt_that_is_refused_before_the_end_is_here_has_its_message_held(
    driver: Driver,
) -> None:
    call = driver.submit("k2", said("Never mind", "withdraw"))
    driver.answer(call, 409, {"error": {"code": "no_turn_running", "message": "No turn."}})
    assert driver.codec.take_calls() == []
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    assert [posted(post)["events"][0]["type"] for post in driver.codec.take_calls()] == [
        "user.message"
    ]


@pytest.mark.parametrize("known", [False, True])
def test_an_interrupt_in_another_spelling_keeps_its_message(known: bool) -> None:
    driver = Driver()
    driver.answer(driver.submit("k1", said("Hello")), 201, SESSION)
    driver.codec.opened(STREAM, Response(200), NOW)
    (first,) = driver.codec.take_calls()
    driver.answer(first, 400, {"code": "validation_error", "message": "no"})
    (alone,) = driver.codec.take_calls()
    # The turn is here before the answer: no spelling is known yet.
    driver.feed("session.status_running")
    call = driver.submit("k2", said("Never mind", "withdraw"))
    if known:
        driver.answer(alone, 202)
    driver.answer(call, 400, {"code": "validation_error", "message": "no"})
    (again,) = driver.codec.take_calls()
    assert posted(again) == {"type": "user.interrupt"}
    driver.answer(again, 202)
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    (post,) = driver.codec.take_calls()
    assert posted(post)["content"] == text("Never mind")


@pytest.mark.parametrize("answered", [False, True])
def test_a_message_that_waits_for_a_turn_that_is_lost_is_refused(
    driver: Driver, answered: bool
) -> None:
    call = driver.submit("k2", said("Never mind", "withdraw"))
    if answered:
        driver.answer(call, 202)
    driver.take(driver.codec.give_up(DragomanError("Away."), NOW))
    (settled,) = [e for e in driver.of(ev.InputSettled) if e.command_id == "k2"]
    assert (settled.outcome, settled.error.code) == ("refused", "backend_session_lost")
    driver.answer(call, 202)
    assert driver.codec.take_calls() == []


@pytest.mark.parametrize("reason", [{"type": "end_turn"}, {"type": "error", "message": "stopped"}])
def test_an_interrupted_turn_ends_as_interrupted(driver: Driver, reason: Any) -> None:
    call = driver.submit("k2", cmd.Interrupt(note="enough"))
    assert posted(call)["events"] == [{"type": "user.interrupt", "message": "enough"}]
    driver.answer(call, 202)
    driver.feed("session.status_idle", {"stop_reason": reason})
    assert driver.of(ev.TurnEnded)[-1].outcome == "interrupted"


def test_what_no_field_carries_is_refused_with_the_reason() -> None:
    codec = HermClient({"agent": "a"})
    file = ev.File(media_type="image/png", ref=ev.Url(url="https://x.example"))
    for command in (
        cmd.SendMessage(content=(file,), policy="reject"),
        said("x", output_schema={}),
        said("x", edit_of="m"),
        said("x", system=(ev.Text(text="s"),)),
        said("x" * 2_000_001),
        cmd.SendMessage(content=(), policy="reject"),
        cmd.Interrupt(thread_id="child"),
        cmd.UpdateSession(agent={}),
        cmd.AnswerInteraction(request_id="r", content=(file,)),
        *(make() for make in (cmd.Compact, cmd.Clear, cmd.ArchiveThread)),
    ):
        with pytest.raises(NotSupported, match="herm: "):
            codec.check(command)
    codec.check(said("x" * 2_000_000))


def test_long_text_and_context_go_in_blocks() -> None:
    driver = Driver()
    driver.open()
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    call = driver.submit("k2", said("x" * 20_001, client_context={"page": 3}))
    blocks = [block["text"] for block in posted(call)["events"][0]["content"]]
    assert blocks == ['Client context:\n{"page":3}', "x" * 20_000, "x"]


@pytest.mark.parametrize(
    ("command", "method", "path", "body"),
    [
        (cmd.Archive(), "POST", "/v1/sessions/session_7c/archive", None),
        (cmd.Reset(), "POST", "/v1/sessions/session_7c/archive", None),
        (cmd.Delete(), "DELETE", "/v1/sessions/session_7c", None),
        (
            cmd.UpdateSession(title="T", metadata={"a": None}),
            "PATCH",
            "/v1/sessions/session_7c",
            {"title": "T", "metadata": {"a": None}},
        ),
    ],
)
def test_sessions_are_administered_at_the_backend(
    driver: Driver, command: Any, method: str, path: str, body: Any
) -> None:
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    call = driver.submit("k2", command)
    assert (call.request.method, call.request.path) == (method, path)
    assert (None if call.request.body is None else posted(call)) == body
    driver.answer(call, 204)
    match command:
        case cmd.Archive():
            assert driver.log[-1].TYPE == "session.updated"
            assert driver.normalizer.state.archived_at == NOW
        case cmd.UpdateSession():
            assert driver.normalizer.state.about.title == "T"
        case _:
            ended = driver.log[-1]
            assert isinstance(ended, ev.SessionEnded)
            assert ended.outcome == ("deleted" if isinstance(command, cmd.Delete) else "completed")


def test_the_abilities_are_those_of_the_mapping() -> None:
    told = {row.command: row.backend for row in mapping_of("herm").commands}
    for name, ability in ABILITIES.items():
        expected = told.get(name) or told[f"{name}:approval"]
        assert ability.support.value == expected, name


# Answers.


def ask(driver: Driver, type_: str, payload: Any, name: str) -> None:
    driver.feed(type_, payload)
    reason = {"type": "requires_action", "event_ids": [name]}
    driver.feed("session.status_idle", {"stop_reason": reason})


APPROVAL = {
    "id": "toolu_1",
    "tool": "shell",
    "input": {"command": "ls"},
    "status": "running",
    "preview": "ls",
    "requires_action": True,
}


@pytest.mark.parametrize(
    ("fields", "result", "outcome", "scope"),
    [
        ({"decision": "allow"}, {"result": "allow"}, "approved", "once"),
        (
            {"decision": "allow", "scope": "always"},
            {"result": "allow", "scope": "always"},
            "approved",
            "always",
        ),
        ({"decision": "deny", "reason": "no"}, {"result": "deny"}, "denied", None),
    ],
)
def test_an_approval_is_answered_and_resolved_when_the_turn_goes_on(
    driver: Driver, fields: Any, result: Any, outcome: str, scope: str | None
) -> None:
    ask(driver, "agent.tool_use", APPROVAL, "toolu_1")
    called = driver.of(ev.ToolCalled)[-1]
    asked = driver.of(ev.InteractionRequested)[-1]
    assert (called.permission, called.preview) == ("ask", "ls")
    assert (asked.kind, asked.call_id) == ("approval", "toolu_1")
    assert asked.details == {"tool": "shell", "input": {"command": "ls"}}
    assert driver.of(ev.TurnPaused)[-1].request_ids == (asked.request_id,)
    call = driver.submit("k2", cmd.AnswerInteraction(request_id="toolu_1", **fields))
    assert posted(call)["events"] == [
        {"type": "user.tool_confirmation", "tool_use_id": "toolu_1", **result}
    ]
    driver.answer(call, 202)
    assert driver.of(ev.InteractionResolved) == []
    driver.feed("session.status_running")
    (resolved,) = driver.of(ev.InteractionResolved)
    assert (resolved.outcome, resolved.scope) == (outcome, scope)
    assert driver.log[-1].TYPE == "turn.resumed"


def test_a_call_that_was_denied_comes_back_rejected(driver: Driver) -> None:
    ask(driver, "agent.tool_use", APPROVAL, "toolu_1")
    call = driver.submit("k2", cmd.AnswerInteraction(request_id="toolu_1", decision="deny"))
    driver.answer(call, 202)
    driver.feed("session.status_running")
    result = {"tool_use_id": "toolu_1", "status": "failed", "is_error": True, "content": []}
    driver.feed("agent.tool_result", result)
    (returned,) = driver.of(ev.ToolReturned)
    assert returned.status == "rejected"
    assert returned.error is not None
    assert returned.error.code == "permission_denied"


def test_a_refused_answer_is_released(driver: Driver) -> None:
    ask(driver, "agent.tool_use", APPROVAL, "toolu_1")
    call = driver.submit("k2", cmd.AnswerInteraction(request_id="toolu_1", decision="allow"))
    driver.answer(call, 422, {"code": "invalid_answer", "message": "No."})
    settled, released = driver.log[-3:-1]
    assert isinstance(settled, ev.InputSettled)
    assert settled.outcome == "refused"
    assert isinstance(released, ev.InteractionAnswered)
    assert released.state == "released"


@pytest.mark.parametrize("status", [404, 409, 410])
def test_an_answer_that_nothing_waits_for_resolves_the_request(driver: Driver, status: int) -> None:
    ask(driver, "agent.tool_use", APPROVAL, "toolu_1")
    call = driver.submit("k2", cmd.AnswerInteraction(request_id="toolu_1", decision="allow"))
    driver.answer(call, status, {"code": "already_answered", "message": "Late."})
    assert [event.outcome for event in driver.of(ev.InputSettled)[-1:]] == ["refused"]
    assert [event.outcome for event in driver.of(ev.InteractionResolved)] == ["unknown"]
    assert driver.log[-1].TYPE == "turn.resumed"


def test_a_herm_that_takes_nothing_for_now_has_not_resolved_the_request(driver: Driver) -> None:
    ask(driver, "agent.tool_use", APPROVAL, "toolu_1")
    call = driver.submit("k2", cmd.AnswerInteraction(request_id="toolu_1", decision="allow"))
    driver.answer(call, 409, {"code": "deployment_not_ready", "message": "Later."})
    assert driver.of(ev.InteractionResolved) == []


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"option_ids": ("09:10",)}, "09:10"),
        ({"text": "a boat"}, "a boat"),
        ({"skip": True}, ""),
        ({"option_ids": ("07:40", "09:10")}, "07:40, 09:10"),
    ],
)
def test_a_clarification_is_one_string(driver: Driver, fields: Any, sent: str) -> None:
    question = {"request_id": "req_1", "question": "Which?", "choices": ["07:40", "09:10"]}
    ask(driver, "agent.clarify_request", question, "req_1")
    asked = driver.of(ev.InteractionRequested)[-1]
    assert [option.label for option in asked.options] == ["07:40", "09:10"]
    call = driver.submit("k2", cmd.AnswerInteraction(request_id="req_1", **fields))
    assert posted(call)["events"] == [
        {"type": "user.clarify_result", "request_id": "req_1", "answer": sent}
    ]


def test_a_custom_tool_is_run_by_the_application(driver: Driver) -> None:
    use = {"id": "custom_toolu_1", "tool": "lookup", "input": {"sku": "b"}}
    ask(driver, "agent.custom_tool_use", use, "custom_toolu_1")
    asked = driver.of(ev.InteractionRequested)[-1]
    assert (asked.kind, asked.call_id, asked.freeform) == ("tool_result", "custom_toolu_1", True)
    answer = cmd.AnswerInteraction(
        request_id="custom_toolu_1", content=(ev.Text(text="12"),), is_error=True
    )
    call = driver.submit("k2", answer)
    assert posted(call)["events"] == [
        {
            "type": "user.custom_tool_result",
            "tool_use_id": "custom_toolu_1",
            "content": text("12"),
            "is_error": True,
        }
    ]
    driver.answer(call, 202)
    # Whether a running comes first is open: the next text shows it too.
    driver.feed("agent.message", {"delta": True, "content": text("So")})
    assert driver.types()[-4:] == [
        "tool.returned",
        "interaction.resolved",
        "turn.resumed",
        "text.delta",
    ]
    (returned,) = driver.of(ev.ToolReturned)
    assert (ev.text_of(returned.content), returned.is_error) == ("12", True)


@pytest.mark.parametrize(
    ("type_", "payload", "kind", "field"),
    [
        ("agent.sudo_request", {"request_id": "q"}, "sudo", "password"),
        (
            "agent.secret_request",
            {"request_id": "q", "prompt": "Token?", "env_var": "TOKEN"},
            "secret",
            "value",
        ),
    ],
)
def test_a_secret_is_in_the_request_and_nowhere_else(
    driver: Driver, type_: str, payload: Any, kind: str, field: str
) -> None:
    ask(driver, type_, payload, "q")
    assert driver.of(ev.InteractionRequested)[-1].kind == kind
    command = cmd.AnswerInteraction(request_id="q", sealed=cmd.Sealed("hunter2"))
    call = driver.submit("k2", command)
    assert posted(call)["events"] == [
        {"type": f"user.{kind}_result", "request_id": "q", field: "hunter2"}
    ]
    driver.answer(call, 202, {"data": []})
    driver.feed("session.status_running")
    assert driver.of(ev.InteractionResolved)[-1].outcome == "answered"
    for sink in (driver.codec.snapshot(), driver.codec.position, repr(driver.log).encode()):
        assert b"hunter2" not in sink


def test_a_secret_is_declined_with_an_empty_string(driver: Driver) -> None:
    ask(driver, "agent.sudo_request", {"request_id": "q"}, "q")
    call = driver.submit("k2", cmd.AnswerInteraction(request_id="q", skip=True))
    assert posted(call)["events"][0]["password"] == ""
    driver.answer(call, 202)
    driver.feed("session.status_running")
    assert driver.of(ev.InteractionResolved)[-1].outcome == "skipped"


def test_an_id_without_an_event_may_be_either_secret(driver: Driver) -> None:
    reason = {"type": "requires_action", "event_ids": ["q"]}
    driver.feed("session.status_idle", {"stop_reason": reason})
    assert driver.of(ev.InteractionRequested)[-1].kind == "unknown"
    command = cmd.AnswerInteraction(request_id="q", sealed=cmd.Sealed("hunter2"))
    first = driver.submit("k2", command)
    assert posted(first)["events"][0]["type"] == "user.secret_result"
    driver.answer(first, 404, {"code": "not_found"})
    (second,) = driver.codec.take_calls()
    assert posted(second)["events"] == [
        {"type": "user.sudo_result", "request_id": "q", "password": "hunter2"}
    ]
    driver.answer(second, 202)
    assert driver.of(ev.InputSettled)[-1].outcome == "taken"


def test_several_answers_come_in_any_order(driver: Driver) -> None:
    driver.feed("agent.tool_use", APPROVAL)
    driver.feed("agent.tool_use", {**APPROVAL, "id": "toolu_2"})
    both = {"type": "requires_action", "event_ids": ["toolu_1", "toolu_2"]}
    driver.feed("session.status_idle", {"stop_reason": both})
    call = driver.submit("k2", cmd.AnswerInteraction(request_id="toolu_2", decision="allow"))
    driver.answer(call, 202)
    driver.feed("session.status_running")
    left = {"type": "requires_action", "event_ids": ["toolu_1"]}
    driver.feed("session.status_idle", {"stop_reason": left})
    (resolved,) = driver.of(ev.InteractionResolved)
    assert resolved.request_id == "toolu_2"
    assert driver.of(ev.TurnPaused)[-1].request_ids == ("toolu_1",)


def test_what_somebody_else_answered_is_resolved_by_what_is_seen(driver: Driver) -> None:
    ask(driver, "agent.tool_use", APPROVAL, "toolu_1")
    result = {
        "tool_use_id": "toolu_1",
        "tool": "shell",
        "status": "failed",
        "content": text("permission denied"),
        "is_error": True,
    }
    driver.feed("agent.tool_result", result)
    (resolved,) = driver.of(ev.InteractionResolved)
    assert resolved.outcome == "denied"
    assert driver.of(ev.ToolReturned)[-1].status == "rejected"


@pytest.mark.parametrize("names", ["payload", "envelope"])
def test_an_ask_that_only_the_pause_names_is_found(driver: Driver, names: str) -> None:
    use = driver.envelope("agent.tool_use", {**APPROVAL, "requires_action": False})
    driver.feed_envelope(use)
    name = "toolu_1" if names == "payload" else use["id"]
    driver.feed(
        "session.status_idle", {"stop_reason": {"type": "requires_action", "event_ids": [name]}}
    )
    asked = driver.of(ev.InteractionRequested)[-1]
    assert (asked.kind, asked.call_id) == ("approval", "toolu_1")


def test_an_ask_that_is_said_later_is_said_once(driver: Driver) -> None:
    driver.feed("agent.tool_use", {**APPROVAL, "requires_action": False})
    assert len(driver.feed("agent.tool_use", APPROVAL)) == 1
    assert driver.feed("agent.tool_use", APPROVAL) == []
    assert driver.codec._s.calls["toolu_1"].asked


def test_what_is_refused_is_not_looked_for_any_more(driver: Driver) -> None:
    call = driver.submit("k2", said("More", "queue"))
    driver.answer(call, 422, {"error": {"code": "no", "message": "No."}})
    assert driver.of(ev.InputSettled)[-1].outcome == "refused"
    assert [item.command_id for item in driver.codec._s.sent] == []


def test_a_payload_id_that_comes_again_is_another_request(driver: Driver) -> None:
    for number in (1, 2):
        ask(driver, "agent.tool_use", APPROVAL, "toolu_1")
        asked = driver.of(ev.InteractionRequested)[-1]
        answer = cmd.AnswerInteraction(request_id=asked.request_id, decision="allow")
        call = driver.submit(f"a{number}", answer)
        assert posted(call)["events"][0]["tool_use_id"] == "toolu_1"
        driver.answer(call, 202)
        driver.feed("session.status_running")
        driver.feed("agent.tool_result", {"tool_use_id": "toolu_1", "content": text("ok")})
    assert len({request.request_id for request in driver.of(ev.InteractionRequested)}) == 2
    assert len(driver.of(ev.ToolReturned)) == 2


def test_a_password_that_is_asked_for_again_under_one_id_is_another_request(
    driver: Driver,
) -> None:
    for _ in range(2):
        ask(driver, "agent.sudo_request", {"request_id": "req_1"}, "req_1")
        driver.feed("session.status_running")
        driver.feed("agent.message", {"content": text("Sorry, try again.")})
    asked = [request.request_id for request in driver.of(ev.InteractionRequested)]
    assert asked == ["req_1", "req_1~2"]


# Frames.


@pytest.mark.parametrize("path", sorted(WIRE.glob("*.sse")), ids=lambda path: path.stem)
def test_every_fixture_becomes_a_lawful_log_without_repairs_that_lose(path: Path) -> None:
    driver = Driver()
    for frame in SseParser().feed(path.read_bytes()):
        assert isinstance(frame, SseFrame)
        driver.take(driver.codec.feed(STREAM, frame, NOW))
    assert driver.normalizer.state.busy is False
    rules = {str(rule) for rule, count in driver.normalizer.repairs.items() if count}
    assert not rules & {"unrepaired", "text-differs", "late", "rename-call", "repeated-interaction"}


def test_a_run_of_deltas_ends_with_its_final_or_with_a_tool(driver: Driver) -> None:
    driver.feed("agent.thinking", {"delta": True, "content": text("Hm")})
    driver.feed("agent.thinking", {"delta": False, "content": text("Hm.")})
    driver.feed("agent.message", {"delta": True, "content": text("Look")})
    driver.feed("agent.tool_use", {"id": "t", "tool": "look", "input": {}})
    completed = [*driver.of(ev.ReasoningCompleted), *driver.of(ev.TextCompleted)]
    finals = [(event.TYPE, event.text) for event in completed]
    assert finals == [("reasoning.completed", "Hm."), ("text.completed", "Look")]


@pytest.mark.parametrize(
    ("payload", "server"),
    [
        ({"server_name": "mail"}, "mail"),
        ({"server": "mail"}, "mail"),
        ({"tool": "mcp__mail__read"}, "mail"),
        ({}, None),
    ],
)
def test_a_connector_is_named_in_one_of_several_ways(
    driver: Driver, payload: Any, server: str | None
) -> None:
    driver.feed("agent.mcp_tool_use", {"id": "t", "tool": "read", "input": {}, **payload})
    called = driver.of(ev.ToolCalled)[-1]
    assert (called.kind, called.server) == ("mcp", server)


def test_unknown_events_fields_and_reasons_are_kept(driver: Driver) -> None:
    driver.feed("agent.weather", {"degrees": 19}, colour="blue")
    native = driver.of(ev.Native)[-1]
    assert (native.name, native.frame["degrees"]) == ("agent.weather", 19)
    assert native.extra == {"envelope": {"colour": "blue"}}
    driver.feed("agent.message", {"delta": False, "content": text("Hi"), "mood": "fine"})
    assert driver.of(ev.TextCompleted)[-1].extra == {"mood": "fine"}
    driver.feed("session.status_idle", {"stop_reason": {"type": "sunset"}})
    ended = driver.of(ev.TurnEnded)[-1]
    assert (ended.outcome, ended.extra) == ("completed", {"stop_reason": {"type": "sunset"}})


def test_an_event_without_envelope_or_lines_is_read_all_the_same(driver: Driver) -> None:
    frame = SseFrame("", json.dumps({"type": "agent.message", "content": text("Bare")}).encode())
    driver.take(driver.codec.feed(STREAM, frame, NOW))
    assert driver.of(ev.TextCompleted)[-1].text == "Bare"


def test_garbage_is_reported_and_the_stream_goes_on(driver: Driver) -> None:
    for data in (b"{", b"[]", b"{}"):
        driver.take(driver.codec.feed(STREAM, SseFrame("", data), NOW))
    assert [event.code for event in driver.of(ev.ErrorReported)] == ["backend_protocol"] * 3
    driver.feed("agent.message", {"delta": False, "content": text("Still here")})
    assert driver.of(ev.TextCompleted)[-1].text == "Still here"


def test_threads_open_with_their_first_message_and_end_with_a_final_status(driver: Driver) -> None:
    driver.feed(
        "agent.thread_message_sent", {"content": text("Go"), "to_thread_id": "th", "name": "n"}
    )
    driver.feed(
        "agent.thread_message_received",
        {"content": text("Half"), "from_thread_id": "th", "status": "running"},
    )
    driver.feed(
        "agent.thread_message_received",
        {"content": text("Done"), "from_thread_id": "th", "status": "completed"},
    )
    assert [e.TYPE for e in driver.log if e.TYPE.startswith("thread")] == [
        "thread.started",
        "thread.message",
        "thread.message",
        "thread.message",
        "thread.ended",
    ]
    (ended,) = driver.of(ev.ThreadEnded)
    assert (ended.thread_id, ended.status, ended.output) == ("th", "completed", "Done")
    # A message that names no thread is not one of a child that is over.
    driver.feed("agent.thread_message_sent", {"content": text("Go")})
    assert driver.of(ev.ThreadStarted)[-1].thread_id == "thread-1"


def test_a_turn_that_was_not_announced_is_opened(driver: Driver) -> None:
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    driver.feed("agent.message", {"delta": False, "content": text("Psst")})
    assert driver.of(ev.TurnStarted)[-1].synthetic
    driver.feed("session.status_idle", {"stop_reason": {"type": "error", "message": "Broke."}})
    ended = driver.of(ev.TurnEnded)[-1]
    assert (ended.outcome, ended.error.message) == ("failed", "Broke.")


# Reconnects.


def reconnect(driver: Driver, listed: Sequence[Envelope], *waiting: Envelope) -> None:
    """Lose the stream, open it again, let frames come while the list is read in two pages."""
    driver.take(driver.codec.closed(STREAM, CloseReason.LOST, NOW))
    (stream,) = driver.codec.streams()
    driver.take(driver.codec.opened(stream, Response(200), NOW))
    (page,) = driver.codec.take_calls()
    assert page.request.query == {"limit": "100", "order": "desc"}
    for envelope in waiting:
        assert driver.feed_envelope(envelope) == []
    half = len(listed) // 2
    driver.answer(page, 200, {"data": list(listed[:half]), "nextCursor": "c1"})
    (page,) = driver.codec.take_calls()
    assert page.request.query == {"limit": "100", "order": "desc", "cursor": "c1"}
    driver.answer(page, 200, {"data": list(listed[half:]), "nextCursor": None})


def test_the_stream_is_resumed_from_the_newest_id(driver: Driver) -> None:
    newest = driver.envelope("agent.message", {"delta": True, "content": text("Hi")})
    driver.feed_envelope(newest)
    driver.codec.closed(STREAM, CloseReason.LOST, NOW)
    (stream,) = driver.codec.streams()
    assert stream.request.headers["Last-Event-ID"] == newest["id"]


def test_what_was_missed_is_listed_and_put_in_its_place(driver: Driver) -> None:
    known = driver.envelope("agent.message", {"delta": False, "content": text("One")})
    driver.feed_envelope(known)
    missed = driver.envelope("agent.tool_use", {"id": "t", "tool": "look", "input": {}})
    result = driver.envelope("agent.tool_result", {"tool_use_id": "t", "content": text("x")})
    delta = driver.envelope("agent.message", {"delta": True, "content": text("Tw")})
    final = driver.envelope("agent.message", {"delta": False, "content": text("Two")})
    reconnect(driver, [known, missed, result, final], delta, final)
    assert driver.types()[-5:] == [
        "tool.called",
        "tool.returned",
        "text.delta",
        "text.delta",
        "text.completed",
    ]
    assert [event.text for event in driver.of(ev.TextCompleted)] == ["One", "Two"]


def test_a_server_that_replays_everything_says_nothing_twice(driver: Driver) -> None:
    seen = [
        driver.envelope("agent.message", {"delta": True, "content": text("O")}),
        driver.envelope("agent.message", {"delta": True, "content": text("ne")}),
        driver.envelope("agent.message", {"delta": False, "content": text("One")}),
    ]
    for envelope in seen:
        driver.feed_envelope(envelope)
    before = len(driver.log)
    new = driver.envelope("agent.message", {"delta": True, "content": text("Two")})
    reconnect(driver, [seen[2]], *seen, new)
    assert [event.TYPE for event in driver.log[before:]] == ["text.delta"]


def test_after_a_restart_numbers_tell_what_is_old() -> None:
    driver = Driver()
    driver.open()
    seen = [
        driver.envelope("agent.message", {"delta": True, "content": text("O")}),
        driver.envelope("agent.message", {"delta": False, "content": text("One")}),
    ]
    for envelope in seen:
        driver.feed_envelope(envelope)
    restored = HermClient({"agent": "agent_K4", "task_id": "session_7c"})
    restored.restore(driver.codec.snapshot(), driver.codec.position)
    assert (restored.native_id, restored.frames) == ("session_7c", driver.codec.frames)
    driver.codec = restored
    before = len(driver.log)
    new = driver.envelope("agent.message", {"delta": False, "content": text("Two")})
    reconnect(driver, [seen[1], new], *seen)
    assert [event.TYPE for event in driver.log[before:]] == ["text.delta", "text.completed"]


def test_an_equal_or_missing_number_on_a_delta_is_no_repeat(driver: Driver) -> None:
    number = driver.numbers
    for sequence in (number, number, "-"):
        driver.feed("agent.message", {"delta": True, "content": text("x")}, sequence=sequence)
    assert len(driver.of(ev.TextDelta)) == 3


def test_our_own_inputs_in_a_list_are_not_said_again(driver: Driver) -> None:
    hello = driver.envelope("user.message", {"content": text("Hello")}, id="evt_101", sequence=101)
    reconnect(driver, [hello])
    assert len(driver.of(ev.MessageReceived)) == 1


def test_an_input_that_somebody_else_sent_is_shown_with_its_turn(driver: Driver) -> None:
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    theirs = driver.envelope("user.message", {"content": text("From the console")})
    running = driver.envelope("session.status_running")
    reconnect(driver, [theirs, running])
    received = driver.of(ev.MessageReceived)[-1]
    assert (ev.text_of(received.content), received.command_id) == ("From the console", None)
    assert driver.of(ev.TurnStarted)[-1].cause == "message"


def fail_lists(driver: Driver, times: int) -> None:
    for _ in range(times):
        (page,) = driver.codec.take_calls()
        driver.answer(page, 500)
        if driver.codec.wake_at is not None:
            driver.take(driver.codec.tick(driver.codec.wake_at))


def reopen(driver: Driver) -> None:
    driver.codec.closed(STREAM, CloseReason.LOST, NOW)
    driver.codec.opened(STREAM, Response(200), NOW)


@pytest.mark.parametrize("number", [103, "-"])
def test_an_input_that_somebody_else_sent_is_not_shown_again_after_a_restart(
    driver: Driver, number: Any
) -> None:
    steer = driver.envelope("user.steer", {"message": "And short"}, sequence=number)
    driver.feed_envelope(steer)
    (told,) = driver.of(ev.GuidanceReceived)
    restored = HermClient({"agent": "agent_K4", "task_id": "session_7c"})
    restored.restore(driver.codec.snapshot(), driver.codec.position)
    driver.codec = restored
    restored.opened(STREAM, Response(200), NOW)
    (page,) = restored.take_calls()
    driver.answer(page, 200, {"data": [steer]})
    assert driver.of(ev.GuidanceReceived) == [told]


def test_a_list_that_fails_is_a_gap_where_numbers_are_missing(driver: Driver) -> None:
    reopen(driver)
    driver.numbers += 1
    driver.feed("agent.message", {"delta": False, "content": text("On")})
    fail_lists(driver, 3)
    assert [gap.synthetic for gap in driver.of(ev.Gap)] == [True]
    assert driver.of(ev.TextCompleted)[-1].text == "On"


def test_a_list_that_fails_while_nothing_comes_is_a_gap_after_a_minute(driver: Driver) -> None:
    reopen(driver)
    fail_lists(driver, LOOKS - 1)
    assert driver.of(ev.Gap) == []
    fail_lists(driver, 1)
    assert len(driver.of(ev.Gap)) == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_list_that_fails_is_not_needed_where_the_stream_goes_on_without_a_hole(
    driver: Driver, first: bool
) -> None:
    reopen(driver)
    if first:
        fail_lists(driver, 1)
    driver.feed("agent.message", {"delta": False, "content": text("On")})
    if not first:
        fail_lists(driver, 1)
    assert driver.of(ev.TextCompleted)[-1].text == "On"
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    assert driver.types()[-1] == "turn.ended"
    assert driver.of(ev.Gap) == []


# What comes in another order than that of its numbers.


def turn_of(driver: Driver) -> list[Envelope]:
    return [
        driver.envelope("agent.message", {"delta": True, "content": text("Lo")}),
        driver.envelope("agent.message", {"delta": True, "content": text("ok.")}),
        driver.envelope("agent.message", {"delta": False, "content": text("Look.")}),
        driver.envelope("agent.tool_use", {"id": "t", "tool": "look", "input": {"at": 1}}),
        driver.envelope("agent.tool_use", {"id": "u", "tool": "look", "input": {"at": 2}}),
        driver.envelope("agent.tool_result", {"tool_use_id": "u", "content": text("x")}),
        driver.envelope("agent.tool_result", {"tool_use_id": "t", "content": text("y")}),
        driver.envelope("session.status_idle", {"stop_reason": {"type": "end_turn"}}),
    ]


def told(driver: Driver) -> list[tuple[object, ...]]:
    return [
        (event.TYPE, getattr(event, "text", None), getattr(event, "call_id", None))
        for event in driver.log
    ]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("place", range(7))
def test_envelopes_in_another_order_are_told_in_that_of_their_numbers(
    driver: Driver, place: int, waits: bool
) -> None:
    in_order = Driver()
    in_order.open()
    for envelope in turn_of(in_order):
        in_order.feed_envelope(envelope)
    envelopes = turn_of(driver)
    envelopes[place : place + 2] = reversed(envelopes[place : place + 2])
    if waits:
        reconnect(driver, [], *envelopes)
    else:
        for envelope in envelopes:
            driver.feed_envelope(envelope)
    assert told(driver) == told(in_order)
    assert driver.codec.take_calls() == []


def test_several_that_come_too_early_are_told_in_order(driver: Driver) -> None:
    deltas = [
        driver.envelope("agent.message", {"delta": True, "content": text(f"{number}")})
        for number in range(6)
    ]
    for place in (1, 3, 0, 4, 2, 5):
        driver.feed_envelope(deltas[place])
    assert "".join(event.text for event in driver.of(ev.TextDelta)) == "012345"
    assert driver.codec.wake_at is None


def test_a_list_that_is_asked_for_a_minute_in_vain_settles_what_is_in_doubt(
    driver: Driver,
) -> None:
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    call = driver.submit("k2", said("More"))
    driver.take(driver.codec.failed(call, DragomanError("Timeout."), sent=True, now=NOW))
    fail_lists(driver, LOOKS)
    settled = driver.of(ev.InputSettled)[-1]
    assert (settled.command_id, settled.outcome) == ("k2", "unknown")
    assert settled.error.code == "no_evidence"
    assert driver.codec.wake_at is None


def test_stored_envelopes_are_sorted_where_deltas_have_no_numbers(driver: Driver) -> None:
    *before, use, other, result = turn_of(driver)[:6]
    for envelope in before:
        driver.feed_envelope(envelope)
    delta = driver.envelope("agent.thinking", {"delta": True, "content": text("Hm")}, sequence="-")
    for envelope in (result, other, delta, use):
        driver.feed_envelope(envelope)
    assert [event.call_id for event in driver.of(ev.ToolCalled)] == ["t", "u"]
    assert driver.of(ev.ReasoningDelta)


def test_the_number_of_an_input_is_no_hole_even_where_its_answer_is_late(driver: Driver) -> None:
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    post = driver.submit("k2", said("More"))
    envelope = driver.envelope("user.message", {"content": text("More")})
    driver.feed("session.status_running")
    assert len(driver.of(ev.TurnStarted)) == 1
    driver.answer(post, 202, {"data": [envelope]})
    assert driver.types()[-3:] == ["input.settled", "turn.started", "message.received"]
    assert driver.codec.wake_at is None


def test_a_hole_that_nothing_fills_is_looked_for_in_the_list(driver: Driver) -> None:
    use = driver.envelope("agent.tool_use", {"id": "t", "tool": "look", "input": {"at": 1}})
    result = driver.envelope("agent.tool_result", {"tool_use_id": "t", "content": text("x")})
    driver.feed_envelope(result)
    assert driver.types()[-1] == "message.received"
    assert driver.codec.wake_at == NOW + HOLE_MS
    driver.take(driver.codec.tick(NOW + HOLE_MS))
    (page,) = driver.codec.take_calls()
    driver.answer(page, 200, {"data": [use, result]})
    assert driver.types()[-2:] == ["tool.called", "tool.returned"]
    assert driver.of(ev.ToolCalled)[0].input == {"at": 1}


def test_numbers_that_have_holes_of_their_own_are_not_waited_for(driver: Driver) -> None:
    for _ in range(HOLES):
        driver.numbers += 5
        driver.feed("agent.message", {"delta": False, "content": text("On")})
        assert driver.codec.wake_at is not None
        driver.take(driver.codec.tick(driver.codec.wake_at))
        (page,) = driver.codec.take_calls()
        driver.answer(page, 200, {"data": [driver.envelope("session.status_running")]})
    driver.numbers += 5
    driver.feed("agent.message", {"delta": False, "content": text("Off")})
    assert [event.text for event in driver.of(ev.TextCompleted)] == [*["On"] * HOLES, "Off"]
    assert driver.codec.wake_at is None


def look(driver: Driver, listed: Sequence[Envelope], status: str = "idle") -> list[Call]:
    """Come back to a list that tells nothing new and ask the session; return what is asked next."""
    reconnect(driver, listed)
    (call,) = driver.codec.take_calls()
    assert (call.request.method, call.request.path) == ("GET", "/v1/sessions/session_7c")
    driver.answer(call, 200, {**SESSION, "status": status, "title": "Named"})
    assert driver.normalizer.state.about.title == "Named"
    assert driver.of(ev.TurnEnded) == []
    return driver.codec.take_calls()


def test_a_session_that_is_idle_ends_a_turn_whose_end_is_in_no_list(driver: Driver) -> None:
    known = driver.envelope("agent.message", {"delta": False, "content": text("One")})
    (page,) = look(driver, [known, known])
    driver.answer(page, 200, {"data": [known]})
    (ended,) = driver.of(ev.TurnEnded)
    assert (ended.outcome, ended.synthetic) == ("completed", True)
    assert driver.codec.take_calls() == []


def test_a_turn_without_end_in_a_list_that_tells_turns_was_forgotten(driver: Driver) -> None:
    driver.feed("agent.message", {"delta": True, "content": text("Half an ans")})
    running = driver.envelope("session.status_running", id="evt_102", sequence=102)
    (page,) = look(driver, [running])
    driver.answer(page, 200, {"data": [running]})
    (ended,) = driver.of(ev.TurnEnded)
    assert (ended.outcome, ended.error.code) == ("failed", "turn_end_missing")
    (half,) = driver.of(ev.TextCompleted)
    assert (half.text, half.status) == ("Half an ans", "partial")
    driver.submit("k2", said("Again"))


def test_an_end_that_was_listed_meanwhile_is_the_end(driver: Driver) -> None:
    running = driver.envelope("session.status_running", id="evt_102", sequence=102)
    (page,) = look(driver, [running])
    final = driver.envelope("agent.message", {"delta": False, "content": text("Done.")})
    idle = driver.envelope("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    driver.answer(page, 200, {"data": [running, final, idle]})
    driver.feed_envelope(idle)
    (ended,) = driver.of(ev.TurnEnded)
    assert (ended.outcome, ended.synthetic) == ("completed", False)
    assert driver.of(ev.TextCompleted)[-1].text == "Done."


def test_a_turn_that_still_runs_is_not_ended(driver: Driver) -> None:
    running = driver.envelope("session.status_running", id="evt_102", sequence=102)
    assert look(driver, [running], "running") == []


def test_an_idle_session_without_a_list_ends_its_turn_once(driver: Driver) -> None:
    known = driver.envelope("agent.message", {"delta": False, "content": text("One")})
    (page,) = look(driver, [known])
    driver.answer(page, 404)
    assert [ended.outcome for ended in driver.of(ev.TurnEnded)] == ["completed"]
    assert driver.of(ev.Gap) == []
    assert driver.codec.take_calls() == []


def test_a_stream_that_stays_away_fails_the_turn(driver: Driver) -> None:
    assert driver.codec.patience == 3_600_000
    driver.answer(STREAM, 503)
    assert driver.codec.patience == 60_000
    driver.take(driver.codec.give_up(DragomanError("Away."), NOW))
    ended = driver.of(ev.TurnEnded)[-1]
    assert (ended.outcome, ended.error.code) == ("failed", "backend_session_lost")
    assert driver.codec.streams() == ()
    driver.submit("k2", said("Again"))
    assert len(driver.codec.streams()) == 1


# Commands that a crash or a timeout left in doubt.


def doubt(driver: Driver) -> Call:
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    call = driver.submit("k2", said("Again"))
    raw = driver.codec.failed(call, DragomanError("Timeout."), sent=True, now=NOW)
    assert raw == []
    (page,) = driver.codec.take_calls()
    return page


def test_a_message_in_the_list_was_taken(driver: Driver) -> None:
    page = doubt(driver)
    echo = driver.envelope("user.message", {"content": text("Again")})
    driver.answer(page, 200, {"data": [echo], "nextCursor": None})
    assert driver.of(ev.InputSettled)[-1].outcome == "taken"
    assert [call.name for call in driver.codec.take_calls()] == []


def look_again(driver: Driver, listed: list[Any]) -> None:
    """Let the time pass after which the list decides, and answer it."""
    assert driver.codec.wake_at == NOW + LOOK_AGAIN_MS
    driver.take(driver.codec.tick(NOW + LOOK_AGAIN_MS))
    (page,) = [call for call in driver.codec.take_calls() if call.name.startswith("list")]
    response = Response(200, CIMultiDict(), json.dumps({"data": listed}).encode())
    driver.take(driver.codec.respond(page, response, NOW + LOOK_AGAIN_MS))


def test_a_message_that_two_lists_do_not_have_is_refused_and_not_sent_again(
    driver: Driver,
) -> None:
    page = doubt(driver)
    driver.answer(page, 200, {"data": [], "nextCursor": None})
    assert driver.of(ev.InputSettled)[-1].command_id == "k1"
    look_again(driver, [])
    settled = driver.of(ev.InputSettled)[-1]
    assert (settled.outcome, settled.error.code) == ("refused", "not_arrived")
    assert [call.name for call in driver.codec.take_calls()] == []


def test_a_message_that_is_listed_late_was_taken(driver: Driver) -> None:
    page = doubt(driver)
    driver.answer(page, 200, {"data": [], "nextCursor": None})
    look_again(driver, [driver.envelope("user.message", {"content": text("Again")})])
    assert driver.of(ev.InputSettled)[-1].outcome == "taken"
    assert driver.codec.take_calls() == []


def test_a_restart_goes_on_waiting_for_what_is_in_doubt(driver: Driver) -> None:
    page = doubt(driver)
    driver.answer(page, 200, {"data": [], "nextCursor": None})
    restored = HermClient({"agent": "agent_K4", "task_id": "session_7c"})
    restored.restore(driver.codec.snapshot(), driver.codec.position)
    driver.codec = restored
    again = restored.recover("k2", said("Again"))
    assert again is not None
    driver.answer(again, 200, {"data": [], "nextCursor": None})
    look_again(driver, [])
    assert driver.of(ev.InputSettled)[-1].outcome == "refused"


def test_a_list_that_cannot_be_read_is_read_until_it_tells(driver: Driver) -> None:
    page = doubt(driver)
    driver.answer(page, 404)
    assert driver.of(ev.InputSettled)[-1].command_id == "k1"
    gaps = len(driver.of(ev.Gap))
    for looks in range(1, LOOKS):
        now = NOW + looks * LOOK_RETRY_MS
        assert driver.codec.wake_at == now
        driver.take(driver.codec.tick(now))
        (page,) = driver.codec.take_calls()
        driver.take(driver.codec.respond(page, Response(404), now))
    assert driver.of(ev.InputSettled)[-1].outcome == "unknown"
    assert len(driver.of(ev.Gap)) == gaps


def test_steering_in_doubt_is_unknown_where_no_input_is_listed(driver: Driver) -> None:
    call = driver.submit("k2", cmd.Steer(text="in French"))
    driver.take(driver.codec.failed(call, DragomanError("Timeout."), sent=True, now=NOW))
    (page,) = driver.codec.take_calls()
    driver.answer(page, 200, {"data": []})
    look_again(driver, [])
    settled = driver.of(ev.InputSettled)[-1]
    assert (settled.outcome, settled.error.code) == ("unknown", "no_evidence")


def test_a_message_that_is_held_is_posted_after_a_restart_and_not_looked_for(
    driver: Driver,
) -> None:
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    call = driver.submit("k2", said("Again", "queue"))
    driver.answer(call, 409, {"error": {"code": "busy", "message": "A turn runs."}})
    restored = HermClient({"agent": "agent_K4", "task_id": "session_7c"})
    restored.restore(driver.codec.snapshot(), driver.codec.position)
    assert restored.recover("k2", said("Again", "queue")) is None
    assert restored.take_calls() == []
    assert restored.wake_at == NOW + BUSY_RETRY_MS
    assert restored.tick(restored.wake_at) == []
    (again,) = restored.take_calls()
    assert posted(again) == posted(call)


def test_after_a_crash_an_answer_is_found_in_the_list() -> None:
    driver = Driver()
    driver.open()
    ask(driver, "agent.tool_use", APPROVAL, "toolu_1")
    restored = HermClient({"agent": "agent_K4", "task_id": "session_7c"})
    restored.restore(driver.codec.snapshot(), driver.codec.position)
    driver.codec = restored
    answer = cmd.AnswerInteraction(request_id="toolu_1", decision="allow", scope="session")
    driver.accept("k2", answer)
    page = restored.recover("k2", answer)
    assert page is not None
    given = {"tool_use_id": "toolu_1", "result": "allow"}
    echo = driver.envelope("user.tool_confirmation", given)
    running = driver.envelope("session.status_running")
    driver.answer(page, 200, {"data": [echo, running]})
    assert driver.of(ev.InputSettled)[-1].outcome == "taken"
    (resolved,) = driver.of(ev.InteractionResolved)
    assert (resolved.outcome, resolved.scope) == ("approved", "session")


def test_an_answer_that_the_list_does_not_have_can_be_given_again() -> None:
    driver = Driver()
    driver.open()
    ask(driver, "agent.tool_use", APPROVAL, "toolu_1")
    restored = HermClient({"agent": "agent_K4", "task_id": "session_7c"})
    restored.restore(driver.codec.snapshot(), driver.codec.position)
    driver.codec = restored
    answer = cmd.AnswerInteraction(request_id="toolu_1", decision="allow")
    driver.accept("k2", answer)
    page = restored.recover("k2", answer)
    assert page is not None
    driver.answer(page, 200, {"data": []})
    look_again(driver, [driver.envelope("user.message", {"content": text("Hello")})])
    assert driver.of(ev.InputSettled)[-1].outcome == "refused"
    assert driver.of(ev.InteractionAnswered)[-1].state == "released"
    assert driver.submit("k3", answer).name == "events"


@pytest.mark.parametrize("begun", [False, True])
def test_deltas_that_come_after_their_text_was_listed_are_no_new_text(
    driver: Driver, begun: bool
) -> None:
    thought = driver.envelope("agent.thinking", {"delta": False, "content": text("Hm.")})
    started = driver.envelope("agent.message", {"delta": True, "content": text("Six ")})
    late = driver.envelope("agent.message", {"delta": True, "content": text("hours.")})
    final = driver.envelope("agent.message", {"delta": False, "content": text("Six hours.")})
    idle = driver.envelope("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    if not begun:
        driver.feed_envelope(started)
    driver.take(driver.codec.closed(STREAM, CloseReason.LOST, NOW))
    (stream,) = driver.codec.streams()
    driver.take(driver.codec.opened(stream, Response(200), NOW))
    (page,) = driver.codec.take_calls()
    if begun:
        driver.feed_envelope(thought)
    # The list is ahead of the stream, which goes on after what it had.
    driver.answer(page, 200, {"data": [thought, final, idle]})
    driver.feed_envelope(late)
    driver.feed_envelope(final)
    driver.feed_envelope(idle)
    assert [event.text for event in driver.of(ev.TextCompleted)] == ["Six hours."]
    assert len(driver.of(ev.TurnStarted)) == len(driver.of(ev.TurnEnded)) == 1


def test_deltas_without_numbers_whose_turn_was_listed_to_its_end_begin_no_turn(
    driver: Driver,
) -> None:
    def delta(type_: str, words: str, name: str) -> Envelope:
        driver.numbers -= 1
        said = {"delta": True, "content": text(words)}
        return driver.envelope(type_, said, sequence="-", id=name)

    reopen_quietly(driver, [])
    thought = driver.envelope("agent.thinking", {"delta": False, "content": text("Hm.")})
    final = driver.envelope("agent.message", {"delta": False, "content": text("Six hours.")})
    idle = driver.envelope("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    # The list is ahead of the stream, which goes on after what it had.
    reconnect(driver, [thought, final, idle])
    for late in (
        delta("agent.thinking", "Hm.", "d1"),
        thought,
        delta("agent.message", "Six ", "d2"),
        delta("agent.message", "hours.", "d3"),
        final,
        idle,
    ):
        driver.feed_envelope(late)
    assert [event.text for event in driver.of(ev.TextCompleted)] == ["Six hours."]
    assert len(driver.of(ev.TurnStarted)) == len(driver.of(ev.TurnEnded)) == 1
    # What is new is shown as it comes.
    driver.feed("session.status_running", {})
    driver.feed_envelope(delta("agent.message", "Next", "d4"))
    assert driver.of(ev.TextDelta)[-1].text == "Next"
    assert len(driver.of(ev.TurnStarted)) == 2


def test_where_nothing_has_a_number_deltas_are_shown_again_after_the_first_text(
    driver: Driver,
) -> None:
    reopen_quietly(driver, [])
    # A Herm that numbers nothing never shows by a number that its stream has caught up.
    driver.codec._at.mark = driver.codec._at.delta_mark = 0
    driver.codec._s.inputs = []
    for words, name, delta in (
        ("Six ", "d1", True),
        ("Six hours.", "d2", False),
        ("Next", "d3", True),
    ):
        said = {"delta": delta, "content": text(words)}
        driver.feed_envelope(driver.envelope("agent.message", said, sequence="-", id=name))
    assert [event.text for event in driver.of(ev.TextDelta)][-1] == "Next"


def reopen_quietly(driver: Driver, listed: Sequence[Envelope], *waiting: Envelope) -> None:
    """Open the stream again at a Herm that does not say what the session does."""
    reconnect(driver, listed, *waiting)
    (look,) = driver.codec.take_calls()
    driver.answer(look, 404)


def begin_in_the_middle(driver: Driver) -> None:
    """Open the stream again, which begins live: a delta was missed before its first one."""
    reopen_quietly(driver, [])
    driver.numbers += 1
    driver.feed("agent.message", {"delta": True, "content": text("hours")})
    if driver.codec.wake_at is not None:
        driver.take(driver.codec.tick(driver.codec.wake_at))
        (page,) = driver.codec.take_calls()
        driver.answer(page, 200, {"data": []})
        driver.codec.take_calls()
    driver.feed("agent.message", {"delta": True, "content": text(".")})


@pytest.mark.parametrize("restarted", [False, True])
def test_deltas_after_missed_ones_wait_for_the_whole_text(driver: Driver, restarted: bool) -> None:
    begin_in_the_middle(driver)
    assert driver.of(ev.TextDelta) == []
    if restarted:
        again = HermClient({"agent": "agent_K4", "task_id": "session_7c"})
        again.restore(driver.codec.snapshot(), driver.codec.position)
        driver.codec = again
        reopen_quietly(driver, [], driver.envelope("agent.message", {"delta": True, "content": []}))
    driver.feed("agent.message", {"delta": False, "content": text("Six hours.")})
    driver.feed("agent.message", {"delta": True, "content": text("Next")})
    assert [event.text for event in driver.of(ev.TextDelta)] == ["Six hours.", "Next"]
    assert not driver.normalizer.repairs[Rule.TEXT_DIFFERS]


def test_deltas_after_missed_ones_are_shown_where_no_whole_text_comes(driver: Driver) -> None:
    begin_in_the_middle(driver)
    driver.feed("agent.tool_use", {"id": "t", "tool": "look", "input": {}})
    assert [event.text for event in driver.of(ev.TextCompleted)] == ["hours."]


def test_deltas_without_numbers_wait_where_a_stream_was_opened_again(driver: Driver) -> None:
    reopen_quietly(driver, [])
    first, second, third = (
        driver.envelope(
            "agent.message", {"delta": True, "content": text("hours.")}, sequence="-", id=name
        )
        for name in ("d1", "d2", "d3")
    )
    driver.numbers -= 3
    driver.feed_envelope(first)
    assert driver.of(ev.TextDelta) == []
    # The list is ahead of the stream, which has it once more.
    final = driver.envelope("agent.message", {"delta": False, "content": text("Six hours.")})
    reopen_quietly(driver, [final])
    for envelope in (second, final, third):
        driver.feed_envelope(envelope)
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    assert [event.text for event in driver.of(ev.TextCompleted)] == ["Six hours.", "hours."]


def test_a_session_that_was_perhaps_made_is_made_again_for_nothing_was_said_in_it() -> None:
    codec = HermClient({"agent": "a"})
    call = codec.recover("k1", said("Hi"))
    assert call == HermClient({"agent": "a"}).submit("k1", said("Hi"))
    assert call is not None
    assert call.name == "create"
    # Where there is no agent nothing was asked for either.
    assert HermClient({}).recover("k1", said("Hi")) is None


@pytest.mark.parametrize("name", ["nested", "flat", "plain"])
def test_an_error_has_three_forms(name: str) -> None:
    body = (WIRE / f"http-error-{name}.response.json").read_bytes()
    error = refusal(Response(404, CIMultiDict(), body))
    assert (error.code, error.message) == ("not_found", "There is no such session.")


def test_an_error_of_no_form_is_quoted() -> None:
    error = refusal(Response(502, CIMultiDict(), b"<html>"))
    assert error.code == "http_502"
    assert "<html>" not in error.message
    assert error.quote == "<html>"


def test_the_state_survives_a_snapshot_at_any_place() -> None:
    data = (WIRE / "03-confirmation.sse").read_bytes()
    frames = SseParser().feed(data)
    whole = Driver()
    for frame in frames:
        assert isinstance(frame, SseFrame)
        whole.take(whole.codec.feed(STREAM, frame, NOW))
    for place in range(len(frames)):
        driver = Driver()
        for number, frame in enumerate(frames):
            assert isinstance(frame, SseFrame)
            if number == place:
                again = HermClient({"agent": "agent_K4", "task_id": "s"})
                again.restore(driver.codec.snapshot(), driver.codec.position)
                driver.codec = again
            driver.take(driver.codec.feed(STREAM, frame, NOW))
        assert driver.log == whole.log


def test_a_result_without_an_answer_of_ours_resumes_the_turn_once(driver: Driver) -> None:
    ask(driver, "agent.tool_use", APPROVAL, "toolu_1")
    done = {"tool_use_id": "toolu_1", "tool": "shell", "status": "completed", "is_error": False}
    driver.feed("agent.tool_result", {**done, "content": text("a.txt")})
    assert driver.codec.patience == RUNNING_PATIENCE_MS
    driver.feed("session.status_running")
    assert len(driver.of(ev.TurnResumed)) == 1


def test_an_idle_session_that_says_so_again_has_no_other_turn(driver: Driver) -> None:
    idle = {"stop_reason": {"type": "end_turn"}}
    driver.feed("session.status_idle", idle)
    before = driver.types()
    driver.feed("session.status_idle", idle)
    assert (driver.types(), before[-1]) == (before, "turn.ended")


def uses(count: int, **payload: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """So many calls that do not return."""
    for number in range(count):
        yield "agent.tool_use", {"id": f"call-{number}", "tool": "bash", "input": {}, **payload}


def test_few_bytes_of_the_inputs_of_open_calls_are_remembered(driver: Driver) -> None:
    driver.feed("session.status_running")
    long = {"command": "x" * (KEPT_BYTES // 2)}
    for type_, payload in uses(3, input=long):
        driver.feed(type_, payload)
    assert len(driver.codec.snapshot()) < 1.1 * KEPT_BYTES
    # Said at once, a request has all of it.
    driver.feed(
        "agent.tool_use",
        {"id": "asks", "tool": "bash", "input": long, "requires_action": True},
    )
    driver.feed("agent.tool_use", {"id": "call-2", "tool": "bash", "requires_action": True} | long)
    waits = {"stop_reason": {"type": "requires_action", "event_ids": ["asks", "call-1", "call-2"]}}
    driver.feed("session.status_idle", waits)
    asked = {e.call_id: e.details or {} for e in driver.of(ev.InteractionRequested)}
    assert asked["asks"] == {"tool": "bash", "input": long}
    assert asked["call-1"] == {"tool": "bash"}
    for number in range(20):
        driver.feed("agent.tool_use", {"id": f"more-{number}", "tool": "bash", "input": long})
    assert len(driver.of(ev.ToolCalled)) == 24
    assert len(driver.codec.snapshot()) < 1.1 * KEPT_BYTES


def test_messages_of_others_that_wait_for_a_turn_have_a_bound(driver: Driver) -> None:
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    driver.log.clear()
    for number in range(KEPT + 2):
        driver.feed("user.message", {"content": text(f"m{number}")}, sequence="-")
    # Those beyond are shown where they came, outside of a turn.
    assert [e.turn_id for e in driver.of(ev.MessageReceived)] == [None] * 2
    driver.feed("session.status_running", sequence="-")
    said = [ev.text_of(e.content) for e in driver.of(ev.MessageReceived)[2:]]
    assert said == [f"m{number}" for number in range(KEPT)]


def test_a_text_that_is_held_back_has_a_bound(driver: Driver) -> None:
    driver.feed("session.status_running")
    # After a hole that nothing fills.
    codec = driver.codec
    codec._s.withheld["text"] = ""
    piece = "x" * (KEPT_BYTES // 3)
    for _ in range(5):
        driver.feed("agent.message", {"delta": True, "content": text(piece)})
    said = "".join(e.text for e in driver.of(ev.TextDelta))
    assert said == piece * 5
    assert not codec._s.withheld


@pytest.mark.parametrize("field", ["id", "tool"])
def test_a_name_that_is_far_too_long_is_none(driver: Driver, field: str) -> None:
    driver.feed("session.status_running")
    payload = {"id": "call-1", "tool": "bash", "input": {}}
    driver.feed("agent.tool_use", payload | {field: "x" * (MOST_NAME + 1)})
    (called,) = driver.of(ev.ToolCalled)
    assert len(called.call_id) < 100
    assert called.name == ("unknown" if field == "tool" else "bash")
    assert len(driver.codec.snapshot()) < 2_000


def test_the_echo_of_a_long_message_is_known_by_what_is_remembered(driver: Driver) -> None:
    words = "z" * 50_000
    driver.feed("session.status_idle", {"stop_reason": {"type": "end_turn"}})
    driver.answer(driver.submit("k2", said(words)))
    (item,) = driver.codec._s.sent
    assert len(item.key) < MOST_NAME
    driver.feed("user.message", {"content": text(words)})
    driver.feed("session.status_running")
    assert [e.command_id for e in driver.of(ev.MessageReceived)] == ["k1", "k2"]


def test_the_texts_of_a_result_of_very_many_blocks_are_one() -> None:
    text, other = {"type": "text", "text": "x"}, {"type": "image", "url": "u"}
    assert output_of([text] * MOST_BLOCKS)[1] == (ev.Text(text="x"),) * MOST_BLOCKS
    many = [*[text] * 700, other, *[text] * 400, {**text, "note": 1}]
    output, content = output_of(many)
    assert output is None
    assert content is not None
    assert content[0] == ev.Text(text="x" * 700)
    assert content[2] == ev.Text(text="x" * 400)
    assert [type(block).__name__ for block in content] == ["Text", "Other", "Text", "Text"]


# What comes late, twice, or in another form.

CASES = Path(__file__).parent.parent.parent / "fixtures" / "cases"
END_TURN = {"stop_reason": {"type": "end_turn"}}
RESULT = {"tool_use_id": "t1", "tool": "shell", "status": "completed", "content": text("ok")}


def waits(*ids: str) -> dict[str, Any]:
    return {"stop_reason": {"type": "requires_action", "event_ids": list(ids)}}


def read_case(name: str) -> Driver:
    driver = Driver()
    for frame in SseParser().feed((CASES / f"{name}.sse").read_bytes()):
        assert isinstance(frame, SseFrame)
        driver.take(driver.codec.feed(STREAM, frame, NOW))
    return driver


def use(driver: Driver, name: str, **members: Any) -> None:
    driver.feed("agent.tool_use", {"id": name, "tool": "shell", "input": {}, **members})


def pass_time(driver: Driver) -> None:
    while driver.codec.wake_at is not None:
        driver.take(driver.codec.tick(driver.codec.wake_at))


@pytest.mark.parametrize("restarts", [False, True])
def test_late_text_has_a_turn_that_ends(restarts: bool) -> None:
    driver = read_case("herm-late-message")
    assert [event.text for event in driver.of(ev.TextCompleted)] == ["Hi", "One more thing."]
    assert driver.of(ev.TurnStarted)[-1].cause == "background"
    if restarts:
        driver.restart()
    assert (driver.state.busy, driver.codec.wake_at) == (True, NOW + HOLD_MS)
    assert driver.codec.tick(NOW + HOLD_MS - 1) == []
    driver.take(driver.codec.tick(NOW + HOLD_MS))
    assert driver.of(ev.TurnEnded)[-1].synthetic
    assert (driver.state.busy, driver.codec.wake_at) == (False, None)


def test_a_recorded_body_leaves_no_turn_of_late_text() -> None:
    driver = Driver(HermClient({"single_stream": True}))
    for frame in SseParser().feed((CASES / "herm-late-message.sse").read_bytes()):
        assert isinstance(frame, SseFrame)
        driver.take(driver.codec.feed(STREAM, frame, NOW))
    driver.take(driver.codec.closed(STREAM, CloseReason.ENDED, NOW))
    assert not driver.state.busy


@pytest.mark.parametrize("type_", ["agent.message", "agent.thinking"])
def test_each_piece_of_late_text_has_its_time(type_: str, driver: Driver) -> None:
    driver.feed("session.status_idle", END_TURN)
    for number in range(3):
        frame = SseFrame(
            type_,
            json.dumps(driver.envelope(type_, {"delta": True, "content": text("a")})).encode(),
        )
        driver.take(driver.codec.feed(STREAM, frame, NOW + number * 1_500))
        assert driver.codec.wake_at == NOW + number * 1_500 + HOLD_MS
    pass_time(driver)
    assert len(driver.of(ev.TurnStarted)) == 2
    assert not driver.state.busy


def test_an_idle_closes_a_late_turn_and_running_makes_it_a_real_one(driver: Driver) -> None:
    driver.feed("session.status_idle", END_TURN)
    driver.feed("agent.message", {"delta": False, "content": text("late")})
    driver.feed("session.status_idle", END_TURN)
    assert (driver.state.busy, driver.codec.wake_at) == (False, None)
    driver.feed("agent.message", {"delta": False, "content": text("late")})
    driver.feed("session.status_running")
    assert (driver.state.busy, driver.codec.wake_at) == (True, None)
    driver.feed("session.status_idle", END_TURN)
    assert len(driver.of(ev.TurnEnded)) == 3


def test_late_text_is_not_of_the_turn_of_the_next_message(driver: Driver) -> None:
    driver.feed("session.status_idle", END_TURN)
    late = driver.envelope("agent.message", {"delta": False, "content": text("late")})
    call = driver.submit("k2", said("More"))
    driver.answer(call, 202, {"data": [driver.envelope("user.message", {"content": text("More")})]})
    driver.feed_envelope(late)
    assert [event.cause for event in driver.of(ev.TurnStarted)] == ["message", "background"]
    driver.feed("session.status_running")
    assert driver.of(ev.MessageReceived)[-1].turn_id == "turn-3"
    assert driver.of(ev.TurnStarted)[-1].cause == "message"
    driver.feed("session.status_idle", END_TURN)
    assert not driver.state.busy


def test_a_message_is_posted_beside_a_late_turn(driver: Driver) -> None:
    driver.feed("session.status_idle", END_TURN)
    driver.feed("agent.message", {"delta": False, "content": text("late")})
    call = driver.submit("k2", said("More", "steer"))
    assert posted(call)["events"][0]["type"] == "user.message"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("reason", ["end_turn", "error"])
def test_the_end_of_a_turn_waits_for_results(reason: str, restarts: bool, driver: Driver) -> None:
    use(driver, "t1")
    use(driver, "t2")
    driver.feed("session.status_idle", {"stop_reason": {"type": reason}})
    driver.feed("agent.tool_result", RESULT)
    if restarts:
        driver.restart()
    assert (driver.state.busy, driver.codec.wake_at) == (True, NOW + HOLD_MS)
    driver.feed("agent.tool_result", {**RESULT, "tool_use_id": "t2"})
    assert not driver.state.busy
    assert [event.status for event in driver.of(ev.ToolReturned)] == ["completed"] * 2
    ended = driver.of(ev.TurnEnded)[-1]
    assert (ended.outcome, ended.native.type) == (
        "completed" if reason == "end_turn" else "failed",
        "session.status_idle",
    )


@pytest.mark.parametrize("next_turn", [False, True])
def test_a_result_after_its_turn_is_a_notice(next_turn: bool, driver: Driver) -> None:
    use(driver, "t1")
    driver.feed("session.status_idle", END_TURN)
    pass_time(driver)
    assert driver.of(ev.ToolReturned)[-1].status == "interrupted"
    driver.restart()
    if next_turn:
        driver.feed("session.status_running")
    turns = len(driver.of(ev.TurnStarted))
    driver.feed("agent.tool_result", RESULT)
    notice = driver.log[-1]
    assert isinstance(notice, ev.Notice)
    assert (notice.call_id, notice.kind) == ("t1", "late_result")
    assert notice.text == "The result of `shell` came after the end of its turn: ok"
    assert len(driver.of(ev.TurnStarted)) == turns
    assert driver.state.busy is next_turn


def test_an_interrupted_turn_waits_for_nothing(driver: Driver) -> None:
    use(driver, "t1")
    call = driver.submit("k2", cmd.Interrupt())
    driver.answer(call, 202)
    driver.feed("session.status_idle", END_TURN)
    assert driver.of(ev.TurnEnded)[-1].outcome == "interrupted"


def test_a_running_backend_ends_the_turn_that_waited(driver: Driver) -> None:
    use(driver, "t1")
    driver.feed("session.status_idle", END_TURN)
    driver.feed("session.status_running")
    assert [event.TYPE for event in driver.log[-2:]] == ["turn.ended", "turn.started"]
    assert driver.codec.wake_at is None


def test_a_session_that_is_given_up_ends_as_it_was_told(driver: Driver) -> None:
    use(driver, "t1")
    driver.feed("session.status_idle", END_TURN)
    driver.take(driver.codec.give_up(DragomanError("gone"), NOW))
    assert driver.of(ev.TurnEnded)[-1].outcome == "completed"


def test_a_pause_asks_nothing_that_was_answered() -> None:
    driver = read_case("herm-stale-pause")
    assert [asked.request_id for asked in driver.of(ev.InteractionRequested)] == ["t1", "t2"]
    assert list(driver.state.interactions) == ["t2"]


@pytest.mark.parametrize("names", ["payload", "envelope"])
def test_a_pause_that_names_what_is_over_asks_nothing(names: str, driver: Driver) -> None:
    shown = driver.envelope("agent.tool_use", {**APPROVAL, "id": "t1"})
    driver.feed_envelope(shown)
    name = "t1" if names == "payload" else shown["id"]
    driver.feed("session.status_idle", waits(name))
    driver.feed("session.status_idle", waits(name))
    call = driver.submit("k2", cmd.AnswerInteraction(request_id="t1", decision="allow"))
    driver.answer(call, 202)
    driver.feed("session.status_idle", waits(name))
    driver.feed("session.status_running")
    for restarts in (False, True):
        if restarts:
            driver.restart()
        driver.feed("session.status_idle", waits(name))
        assert driver.log[-1].TYPE == "notice"
    driver.feed("agent.tool_result", RESULT)
    driver.feed("session.status_idle", waits(name))
    driver.feed("session.status_idle", END_TURN)
    driver.feed("session.status_idle", waits(name))
    assert not driver.state.busy
    assert len(driver.of(ev.InteractionRequested)) == 1


def test_a_request_that_a_pause_leaves_out_is_asked_on(driver: Driver) -> None:
    for name in ("t1", "t2"):
        driver.feed("agent.tool_use", {**APPROVAL, "id": name})
    driver.feed("session.status_idle", waits("t1", "t2"))
    driver.feed("session.status_idle", waits("t2"))
    driver.feed("session.status_idle", waits("t1", "t2"))
    driver.feed("session.status_running")
    assert list(driver.state.interactions) == ["t1", "t2"]
    driver.feed("session.status_idle", waits("t2"))
    driver.feed("session.status_running")
    assert list(driver.state.interactions) == ["t2"]
    driver.feed("session.status_idle", waits("t1", "t2"))
    assert len(driver.of(ev.InteractionRequested)) == 2


def test_a_pause_without_ids_is_reported(driver: Driver) -> None:
    driver.feed("session.status_idle", waits())
    assert driver.log[-1].TYPE == "notice"
    driver.feed("session.status_idle", END_TURN)
    driver.feed("session.status_idle", waits())
    assert not driver.state.busy


def test_events_that_share_an_id_are_no_repeats(driver: Driver) -> None:
    for words in ("one", "two", "one"):
        driver.feed("agent.message", {"content": text(words)}, id="evt_same")
    for words in ("three", "four", "three"):
        driver.feed("agent.message", {"content": text(words)}, id="evt_same", sequence="-")
    texts = [event.text for event in driver.of(ev.TextCompleted)]
    # What is the same in everything, and has no number, is a repeat.
    assert texts == ["one", "two", "one", "three", "four"]


def test_a_repeat_is_known_in_another_spelling(driver: Driver) -> None:
    for number in (None, 2**70):
        shown = driver.envelope("agent.message", {"content": text("é"), "n": number})
        del shown["sequence"]
        driver.feed_envelope(shown)
        again = dict(reversed(shown.items()))
        again["payload"] = dict(reversed(shown["payload"].items()))
        data = json.dumps(again, ensure_ascii=False, indent=1).encode()
        assert driver.take(driver.codec.feed(STREAM, SseFrame("", data), NOW)) == []
        driver.restart()
        assert driver.take(driver.codec.feed(STREAM, SseFrame("", data), NOW)) == []


def test_inputs_that_share_an_id_are_no_repeats(driver: Driver) -> None:
    for words in ("one", "two", "two"):
        driver.feed("user.message", {"content": text(words)}, id="evt_same", sequence="-")
    texts = [ev.text_of(event.content) for event in driver.of(ev.MessageReceived)]
    assert texts == ["Hello", "one", "two"]


def test_a_listed_event_that_shares_an_id_with_one_that_waits_is_shown(driver: Driver) -> None:
    (stream,) = [STREAM]
    driver.take(driver.codec.closed(stream, CloseReason.LOST, NOW))
    driver.take(driver.codec.opened(stream, Response(200), NOW))
    (page,) = driver.codec.take_calls()
    shown = [
        driver.envelope("agent.message", {"content": text(words)}, id="evt_same")
        for words in ("one", "two")
    ]
    driver.feed_envelope(shown[1])
    driver.answer(page, 200, {"data": shown})
    assert [event.text for event in driver.of(ev.TextCompleted)] == ["one", "two"]


def test_the_questions_of_a_batch_are_in_the_prompt() -> None:
    driver = read_case("herm-clarify-batch")
    (asked,) = driver.of(ev.InteractionRequested)
    assert asked.prompt == "1. Which tracker? (GitHub, Linear)\n2. Which team?"
    assert asked.options is None
    assert asked.freeform
    assert len(asked.extra["questions"]) == 2


@pytest.mark.parametrize(
    ("payload", "prompt", "options"),
    [
        ({"question": "Which?", "choices": ["a", "", " ", None, {}]}, "Which?", [("a", "a")]),
        ({"question": "Which?", "choices": ["", " "]}, "Which?", None),
        (
            {"question": "Which?", "choices": [{"label": "A", "value": "a1"}, {"label": "B"}]},
            "Which?",
            [("a1", "A"), ("B", "B")],
        ),
        (
            {"question": "Which?", "choices": [{"label": " ", "value": 3}]},
            "Which?",
            [("3", "3")],
        ),
        (
            {"question": "Which?", "choices": ["a"], "multi_select": True},
            "Which?\nSeveral may be chosen.",
            [("a", "a")],
        ),
        (
            {"questions": [{"question": "Which?", "choices": [{"label": "A", "value": "a1"}]}]},
            "Which?",
            [("a1", "A")],
        ),
        (
            {"question": "First:", "questions": ["One?", {"question": "Two?"}, 3, {}]},
            "First:\n1. One?\n2. Two?",
            None,
        ),
        (
            {"questions": [{"choices": ["a"]}, {"question": "Two?", "multi_select": True}]},
            "1. The agent asks a question and does not say which. (a)\n"
            "2. Two? Several may be chosen.",
            None,
        ),
        ({}, "The agent asks a question and does not say which.", None),
        ({"questions": []}, "The agent asks a question and does not say which.", None),
        (
            {"question": 3, "choices": ["a"]},
            "The agent asks a question and does not say which.",
            [("a", "a")],
        ),
    ],
)
def test_each_form_of_a_question_can_be_read(
    payload: Any, prompt: str, options: Any, driver: Driver
) -> None:
    ask(driver, "agent.clarify_request", {"request_id": "q", **payload}, "q")
    asked = driver.of(ev.InteractionRequested)[-1]
    assert asked.prompt == prompt
    shown = [(option.id, option.label) for option in asked.options or ()]
    assert (shown or None) == options


def test_a_choice_posts_its_value(driver: Driver) -> None:
    choices = [{"label": "A", "value": "a1"}, "B"]
    ask(driver, "agent.clarify_request", {"request_id": "q", "choices": choices}, "q")
    command = cmd.AnswerInteraction(request_id="q", option_ids=("a1", "B"))
    assert posted(driver.submit("k2", command))["events"][0]["answer"] == "a1, B"


def test_another_question_does_not_resolve_the_one_before_it(driver: Driver) -> None:
    for name in ("q1", "q2"):
        ask(driver, "agent.clarify_request", {"request_id": name, "question": "Which?"}, name)
    driver.feed("session.status_idle", waits("q1", "q2"))
    assert list(driver.state.interactions) == ["q1", "q2"]
    assert len(driver.of(ev.InteractionRequested)) == 2
