"""The client codec of Managed Agents: commands in, requests out; events in, canonical ones out."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from multidict import CIMultiDict

from adapters.driving.doubts import LOOK_AGAIN_MS
from adapters.managed_agents import wire
from adapters.managed_agents.client import ManagedAgentsClient
from adapters.managed_agents.client.ends import LOOK_AGAIN_MS as REST_LOOK_MS
from adapters.managed_agents.client.state import MOST_KNOWN
from adapters.managed_agents.client.turns import REST_MS
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.backend_names import for_backend
from adapters.model.base import Call, CloseReason, Response
from adapters.wire.errors import DragomanError, NotSupported
from adapters.wire.framing.sse import SseFrame
from tests.support.played import Played

NOW = 1_790_000_000_000
SESSION = {"id": "sesn_7Kd", "type": "session", "status": "idle", "environment_id": "env_2b"}
END = {"type": "end_turn"}


def said(words: str, policy: Any = "queue", **fields: Any) -> cmd.SendMessage:
    return cmd.SendMessage(content=(ev.Text(text=words),), policy=policy, **fields)


def text(words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words}]


def posted(call: Call) -> Any:
    assert call.request.body is not None
    return json.loads(call.request.body)


class Driver(Played):
    """Plays the caller of a codec: does its calls with answers of the test's choice."""

    codec: ManagedAgentsClient

    def __init__(self, **settings: Any) -> None:
        given = {"agent": "agent_9Q", "environment_id": "env_2b", "task_id": "s", **settings}
        super().__init__(lambda: ManagedAgentsClient(given))
        self.numbers = itertools.count(1)
        self.now = NOW
        self.take([ev.SessionStarted(thread_id=ev.MAIN)])
        self.streams: dict[str, Call] = {}

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        theirs = for_backend(command, self.normalizer.state)
        self.codec.check(theirs)
        request_id = getattr(command, "request_id", None)
        raw: list[ev.Event] = [
            ev.InputAccepted(thread_id=ev.MAIN, command_id=command_id, kind=command.KIND, by="ann")
        ]
        if request_id is not None:
            thread = self.state.interactions[request_id].event.thread_id
            raw.append(
                ev.InteractionAnswered(
                    thread_id=thread, request_id=request_id, command_id=command_id, by="ann"
                )
            )
        self.take(raw)
        return self.codec.submit(command_id, theirs)

    def answer(self, call: Call, status: int = 200, body: Any = None, **headers: str) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        response = Response(status, CIMultiDict(headers), data)
        self.take(self.codec.respond(call, response, self.now))

    def refuse(
        self, call: Call, status: int, message: str, kind: str = "invalid_request_error"
    ) -> None:
        body = {"type": "error", "error": {"type": kind, "message": message}}
        self.answer(call, status, body)

    def lose(self, call: Call) -> None:
        error = DragomanError("The connection broke.")
        self.take(self.codec.failed(call, error, sent=True, now=self.now))

    def listed(self, call: Call, *events: dict[str, Any], **members: Any) -> None:
        """Answer a list, newest first where it is asked so."""
        newest = call.request.query.get("order") == "desc"
        page = list(reversed(events)) if newest else list(events)
        self.answer(call, 200, {"data": page, "next_page": None, **members})

    def open_stream(self, thread: str = ev.MAIN) -> None:
        (stream,) = [one for one in self.codec.streams() if one.thread_id == thread]
        self.streams[thread] = stream
        self.take(self.codec.opened(stream, Response(200), self.now))

    def open(self, words: str = "Hello") -> None:
        """Make the session with a message, open its stream, begin its turn."""
        self.answer(self.submit("k1", said(words)), 200, SESSION)
        self.open_stream()
        (post,) = self.codec.take_calls()
        message = self.event("user.message", content=text(words))
        self.answer(post, 200, {"data": [{**message, "processed_at": None}]})
        self.feed("session.status_running")
        self.feed("session.thread_status_running", session_thread_id="sthr_p", agent_name="W")
        self.show(message)

    def event(self, type_: str, **members: Any) -> dict[str, Any]:
        number = next(self.numbers)
        at = wire.iso((NOW + number) * 1_000)
        event = {"type": type_, "id": f"sevt_{number}", "processed_at": at, **members}
        return {name: value for name, value in event.items() if value != "-"}

    def show(self, event: dict[str, Any], thread: str = ev.MAIN) -> list[ev.Event]:
        frame = SseFrame("message", json.dumps(event).encode(), None)
        return self.take(self.codec.feed(self.streams[thread], frame, self.now))

    def feed(self, type_: str, thread: str = ev.MAIN, **members: Any) -> dict[str, Any]:
        event = self.event(type_, **members)
        self.show(event, thread)
        return event

    def rest(self, **reason: Any) -> None:
        """Let the session rest."""
        self.feed("session.status_idle", stop_reason=reason or END)

    def close(self, reason: CloseReason = CloseReason.LOST, thread: str = ev.MAIN) -> None:
        self.take(self.codec.closed(self.streams.pop(thread), reason, self.now))

    def tick(self, ms: int = 0) -> None:
        self.now += ms
        self.take(self.codec.tick(self.now))

    def calls(self, name: str = "") -> list[Call]:
        return [call for call in self.codec.take_calls() if call.name.startswith(name)]

    def types(self) -> list[str]:
        return [event.TYPE for event in self.events]


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.open()
    return driver


# Commands.


def test_the_first_message_makes_a_session_opens_its_stream_and_then_is_posted() -> None:
    driver = Driver()
    driver.codec.started(ev.SessionStarted(thread_id=ev.MAIN, title="Notes", metadata={"a": "1"}))
    create = driver.submit("k1", said("Hello"))
    assert (create.request.method, create.request.path) == ("POST", "/v1/sessions")
    told = {"title": "Notes", "metadata": {"a": "1"}}
    assert posted(create) == {"agent": "agent_9Q", "environment_id": "env_2b", **told}
    assert create.request.headers["anthropic-beta"] == "managed-agents-2026-04-01"
    assert driver.codec.streams() == ()
    driver.answer(create, 201, SESSION)
    assert driver.codec.native_id == "sesn_7Kd"
    assert driver.calls() == []
    driver.open_stream()
    stream = driver.streams[ev.MAIN]
    assert stream.request.path == "/v1/sessions/sesn_7Kd/events/stream"
    assert stream.request.query.getall("event_deltas[]") == ["agent.message", "agent.thinking"]
    # Nothing was missed: no list is read.
    (post,) = driver.calls()
    assert (post.request.path, post.command_id) == ("/v1/sessions/sesn_7Kd/events", "k1")
    assert posted(post) == {"events": [{"type": "user.message", "content": text("Hello")}]}


def test_a_create_without_an_agent_or_an_environment_says_what_to_configure() -> None:
    driver = Driver(environment_id=None)
    with pytest.raises(NotSupported, match="environment_id = …"):
        driver.submit("k1", said("Hello"))


def test_a_create_that_is_refused_settles_its_command() -> None:
    driver = Driver()
    create = driver.submit("k1", said("Hi"))
    driver.refuse(create, 400, "Your credit balance is too low")
    (settled,) = driver.of(ev.InputSettled)
    assert (settled.outcome, settled.error.code) == ("refused", "invalid_request_error")
    assert driver.calls() == []


def test_what_is_said_to_the_system_stands_behind_its_message(driver: Driver) -> None:
    driver.rest()
    call = driver.submit("k2", said("Go on", system=(ev.Text(text="Plainly."),)))
    message, system = posted(call)["events"]
    assert (message["type"], system["type"]) == ("user.message", "system.message")
    driver.answer(call, 200, {"data": [{**message, "id": "sevt_m"}, {**system, "id": "sevt_s"}]})
    driver.feed("session.status_running")
    driver.show({**message, "id": "sevt_m", "processed_at": wire.iso(1)})
    before = len(driver.events)
    driver.show({**system, "id": "sevt_s", "processed_at": wire.iso(2)})
    assert len(driver.events) == before
    assert [m.command_id for m in driver.of(ev.MessageReceived)] == ["k1", "k2"]


@pytest.mark.parametrize(
    ("command", "event"),
    [
        (cmd.Interrupt(), {"type": "user.interrupt"}),
        (
            cmd.Interrupt(thread_id="sthr_c"),
            {"type": "user.interrupt", "session_thread_id": "sthr_c"},
        ),
        (
            cmd.DefineOutcome(description="A page", rubric={"type": "text", "content": "x"}),
            {
                "type": "user.define_outcome",
                "description": "A page",
                "rubric": {"type": "text", "content": "x"},
            },
        ),
    ],
)
def test_a_command_is_its_event(driver: Driver, command: Any, event: dict[str, Any]) -> None:
    assert posted(driver.submit("k2", command)) == {"events": [event]}


@pytest.mark.parametrize(
    ("command", "method", "path"),
    [
        (cmd.Archive(), "POST", "/archive"),
        (cmd.Reset(), "POST", "/archive"),
        (cmd.Delete(), "DELETE", ""),
        (cmd.UpdateSession(title="New"), "POST", ""),
        (cmd.ArchiveThread(thread_id="sthr_c"), "POST", "/threads/sthr_c/archive"),
    ],
)
def test_a_command_for_the_whole_session_has_its_route(
    driver: Driver, command: Any, method: str, path: str
) -> None:
    driver.rest()
    call = driver.submit("k2", command)
    assert (call.request.method, call.request.path) == (method, f"/v1/sessions/sesn_7Kd{path}")


# The live page, section 1: a turn.


def test_a_message_that_wakes_the_session_is_received_where_it_is_shown(driver: Driver) -> None:
    assert driver.types()[-3:] == ["input.settled", "turn.started", "message.received"]
    assert driver.of(ev.TurnStarted)[0].cause == "message"
    assert driver.of(ev.MessageReceived)[0].command_id == "k1"


def test_a_message_is_received_before_the_work_that_the_service_shows_without_it() -> None:
    driver = Driver()
    driver.answer(driver.submit("k1", said("Hi")), 200, SESSION)
    driver.open_stream()
    (post,) = driver.calls()
    driver.answer(post, 202)
    driver.feed("session.status_running")
    driver.feed("span.model_request_start")
    assert driver.types()[-3:] == ["turn.started", "message.received", "step.started"]


@pytest.mark.parametrize("again", [True, False], ids=["twice", "once-without-a-time"])
def test_a_message_that_is_shown_without_a_time_is_received_once(again: bool) -> None:
    driver = Driver()
    driver.answer(driver.submit("k1", said("Hi")), 200, SESSION)
    driver.open_stream()
    (post,) = driver.calls()
    message = driver.event("user.message", content=text("Hi"))
    driver.show({**message, "processed_at": None})
    driver.answer(post, 200, {"data": [{**message, "processed_at": None}]})
    driver.feed("session.status_running")
    if again:
        driver.show(message)
    driver.feed("agent.message", content=text("Yes."))
    driver.rest()
    (received,) = driver.of(ev.MessageReceived)
    assert (received.command_id, received.turn_id) == ("k1", "turn-1")


def test_an_error_between_the_running_events_ends_nothing(driver: Driver) -> None:
    error = {"type": "mcp_connection_failed_error", "message": "No answer."}
    driver.feed("session.error", error={**error, "retry_status": {"type": "retrying"}})
    driver.feed("agent.message", content=text("All is well."))
    driver.rest()
    assert driver.of(ev.TurnEnded)[0].outcome == "completed"
    assert driver.of(ev.ErrorReported)[0].retry == "retrying"


def test_previews_are_the_text_of_the_message_that_follows(driver: Driver) -> None:
    driver.show({"type": "event_start", "event": {"type": "agent.message", "id": "sevt_D4"}})
    for piece in ("The chan", "gelog", " is done."):
        delta = {"type": "content_delta", "content": {"type": "text", "text": piece}}
        driver.show({"type": "event_delta", "event_id": "sevt_D4", "delta": delta})
    driver.feed("agent.message", id="sevt_D4", content=text("The changelog is done."))
    assert [d.text for d in driver.of(ev.TextDelta)] == ["The chan", "gelog", " is done."]
    (whole,) = driver.of(ev.TextCompleted)
    assert (whole.text, whole.message_id, whole.extra) == (
        "The changelog is done.",
        "sevt_D4",
        None,
    )


def test_previews_without_their_begin_or_after_a_break_add_nothing(driver: Driver) -> None:
    delta = {"content": {"type": "text", "text": "lost"}}
    driver.show({"type": "event_delta", "event_id": "sevt_D4", "delta": delta})
    start = {"type": "event_start", "event": {"type": "agent.message", "id": "sevt_D4"}}
    driver.show(start)
    driver.show({"type": "event_delta", "event_id": "sevt_D4", "delta": delta})
    driver.close()
    driver.open_stream()
    driver.listed(driver.calls("list")[0])
    driver.show(start)
    driver.show({"type": "event_delta", "event_id": "sevt_D4", "delta": delta})
    driver.feed("agent.message", id="sevt_D4", content=text("lost and found"))
    assert driver.of(ev.TextCompleted)[-1].text == "lost and found"
    assert [d.text for d in driver.of(ev.TextDelta)] == ["lost", " and found"]
    assert not driver.of(ev.TextCompleted)[-1].extra


def test_a_preview_that_is_cut_off_is_partial(driver: Driver) -> None:
    driver.feed("span.model_request_start")
    driver.show({"type": "event_start", "event": {"type": "agent.message", "id": "sevt_D4"}})
    delta = {"content": {"type": "text", "text": "Half a"}}
    driver.show({"type": "event_delta", "event_id": "sevt_D4", "delta": delta})
    driver.feed("span.model_request_end", is_error=True)
    (cut,) = driver.of(ev.TextCompleted)
    assert (cut.text, cut.status) == ("Half a", "partial")


def test_a_message_of_several_blocks_is_one_message(driver: Driver) -> None:
    driver.feed("agent.message", content=[*text("One"), {"type": "redacted"}, *text("Two")])
    blocks = driver.of(ev.TextCompleted)
    assert [(b.index, b.text) for b in blocks] == [(0, "One"), (1, ""), (2, "Two")]
    assert len({b.message_id for b in blocks}) == 1
    assert blocks[1].content == (ev.Redacted(),)


def test_tokens_include_the_cached_ones(driver: Driver) -> None:
    driver.feed("span.model_request_start")
    usage = {
        "input_tokens": 10,
        "output_tokens": 4,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "speed": "fast",
    }
    driver.feed("span.model_request_end", model_usage=usage, is_error=False)
    (ended,) = driver.of(ev.StepEnded)
    assert ended.usage == ev.Usage(
        input_tokens=130,
        output_tokens=4,
        cache_read_tokens=100,
        cache_write_tokens=20,
        extra={"speed": "fast"},
    )


# Answers (live page, section 1).


def ask(driver: Driver, *names: str) -> list[str]:
    """Ask for a permission of each tool."""
    uses = [
        driver.feed("agent.tool_use", name=name, input={}, evaluated_permission="ask")["id"]
        for name in names
    ]
    driver.rest(type="requires_action", event_ids=uses)
    return uses


def test_an_answer_is_resolved_by_its_event_before_the_running_events(driver: Driver) -> None:
    (use,) = ask(driver, "bash")
    paused = driver.of(ev.TurnPaused)[-1]
    assert (paused.on, paused.request_ids) == ("input", (use,))
    call = driver.submit("k2", cmd.AnswerInteraction(request_id=use, decision="allow"))
    event = {"type": "user.tool_confirmation", "tool_use_id": use, "result": "allow"}
    assert posted(call) == {"events": [event]}
    driver.answer(call, 200, {"data": [driver.event(**{"type_": event["type"]}, tool_use_id=use)]})
    driver.feed("user.tool_confirmation", tool_use_id=use, result="allow")
    driver.feed("session.status_running")
    (resolved,) = driver.of(ev.InteractionResolved)
    assert resolved.outcome == "approved"
    assert driver.types()[-2:] == ["interaction.resolved", "turn.resumed"]


def test_a_denial_is_told_by_the_result_of_its_call(driver: Driver) -> None:
    (use,) = ask(driver, "bash")
    command = cmd.AnswerInteraction(request_id=use, decision="deny", reason="No.")
    call = driver.submit("k2", command)
    assert posted(call)["events"][0]["deny_message"] == "No."
    driver.answer(call, 200, {"data": []})
    driver.feed("user.tool_confirmation", tool_use_id=use, result="deny", deny_message="No.")
    driver.feed("session.status_running")
    driver.feed("agent.tool_result", tool_use_id=use, content=text("denied"), is_error=True)
    assert driver.of(ev.ToolReturned)[0].status == "rejected"
    assert driver.of(ev.InteractionResolved)[0].outcome == "denied"


def test_an_idle_that_still_names_an_answered_use_asks_nothing_again(driver: Driver) -> None:
    first, second = ask(driver, "bash", "write")
    driver.answer(driver.submit("k2", cmd.AnswerInteraction(request_id=first, decision="allow")))
    driver.feed("user.tool_confirmation", tool_use_id=first, result="allow")
    driver.rest(type="requires_action", event_ids=[first, second])
    assert driver.of(ev.TurnPaused)[-1].request_ids == (second,)
    driver.answer(driver.submit("k3", cmd.AnswerInteraction(request_id=second, decision="deny")))
    driver.feed("user.tool_confirmation", tool_use_id=second, result="deny")
    # One more that names what was answered: the service is about to go on.
    driver.rest(type="requires_action", event_ids=[second])
    driver.feed("session.status_running")
    driver.rest()
    assert len(driver.of(ev.InteractionRequested)) == 2
    assert [r.outcome for r in driver.of(ev.InteractionResolved)] == ["approved", "denied"]
    assert driver.of(ev.TurnEnded)[0].outcome == "completed"


def test_what_somebody_else_has_answered_is_resolved_with_the_answer(driver: Driver) -> None:
    (use,) = ask(driver, "bash")
    driver.feed("user.tool_confirmation", tool_use_id=use, result="deny", deny_message="Mine.")
    (resolved,) = driver.of(ev.InteractionResolved)
    assert (resolved.outcome, resolved.answer) == ("denied", ev.Answer(reason="Mine."))


def test_a_use_is_asked_that_only_an_idle_says_waits(driver: Driver) -> None:
    """A third party's server tells no permission with the use."""
    use = driver.feed("agent.tool_use", name="bash", input={})["id"]
    assert driver.of(ev.InteractionRequested) == []
    driver.rest(type="requires_action", requires_action={"event_ids": [use]})
    (request,) = driver.of(ev.InteractionRequested)
    assert (request.kind, request.call_id) == ("approval", use)


def test_a_built_in_tool_that_is_allowed_and_waits_takes_its_result(driver: Driver) -> None:
    use = driver.feed("agent.tool_use", name="bash", input={}, evaluated_permission="allow")["id"]
    driver.rest(type="requires_action", event_ids=[use])
    assert driver.of(ev.InteractionRequested)[0].kind == "tool_result"
    result = cmd.AnswerInteraction(request_id=use, content=(ev.Text(text="done"),))
    call = driver.submit("k2", result)
    assert posted(call)["events"] == [
        {"type": "user.tool_result", "tool_use_id": use, "content": text("done")}
    ]
    driver.answer(call)
    driver.feed("user.tool_result", tool_use_id=use, content=text("done"))
    assert driver.of(ev.ToolReturned)[0].content == (ev.Text(text="done"),)


def test_the_result_of_a_custom_tool_can_be_given_before_the_idle(driver: Driver) -> None:
    use = driver.feed("agent.custom_tool_use", name="lookup", input={"sku": 7})["id"]
    result = cmd.AnswerInteraction(request_id=use, content=(ev.Text(text="3"),), is_error=True)
    call = driver.submit("k2", result)
    assert posted(call)["events"] == [
        {
            "type": "user.custom_tool_result",
            "custom_tool_use_id": use,
            "content": text("3"),
            "is_error": True,
        }
    ]
    driver.answer(call)
    driver.feed("user.custom_tool_result", custom_tool_use_id=use, content=text("3"))
    (returned,) = driver.of(ev.ToolReturned)
    assert (returned.call_id, returned.status) == (use, "failed")
    assert driver.of(ev.InteractionResolved)[0].outcome == "answered"


def test_a_refused_answer_can_be_given_again(driver: Driver) -> None:
    (use,) = ask(driver, "bash")
    call = driver.submit("k2", cmd.AnswerInteraction(request_id=use, decision="allow"))
    driver.refuse(call, 400, "`tool_use_id` does not match any tool use event in the session")
    assert driver.of(ev.InputSettled)[-1].outcome == "refused"
    assert driver.of(ev.InteractionAnswered)[-1].state == "released"
    driver.submit("k3", cmd.AnswerInteraction(request_id=use, decision="deny"))


# Interrupts.


def test_a_turn_that_was_interrupted_ends_so_though_its_reason_is_that_of_any(
    driver: Driver,
) -> None:
    use = driver.feed("agent.tool_use", name="bash", input={}, evaluated_permission="allow")["id"]
    driver.answer(driver.submit("k2", cmd.Interrupt()), 200, {"data": []})
    driver.feed("agent.tool_result", tool_use_id=use, content=text("stopped"), is_error=True)
    driver.feed("user.interrupt")
    driver.rest()
    assert driver.of(ev.TurnEnded)[0].outcome == "interrupted"
    assert driver.of(ev.ToolReturned)[0].status == "interrupted"


def test_an_interrupt_of_a_session_that_rests_means_nothing_for_the_next_turn(
    driver: Driver,
) -> None:
    driver.rest()
    driver.feed("user.interrupt")
    driver.feed("session.status_running")
    driver.rest()
    assert [e.outcome for e in driver.of(ev.TurnEnded)] == ["completed", "completed"]


def test_an_interrupt_of_another_application_counts_once_it_has_its_time(driver: Driver) -> None:
    interrupt = driver.event("user.interrupt")
    driver.show({**interrupt, "processed_at": None})
    driver.show(interrupt)
    driver.rest()
    assert driver.of(ev.TurnEnded)[0].outcome == "interrupted"


def test_an_interrupt_while_a_child_rests_does_not_cancel_it(driver: Driver) -> None:
    with_child(driver)
    child = {"session_thread_id": "sthr_c", "agent_name": "Reader"}
    driver.feed("session.thread_status_running", "sthr_c", **child)
    driver.feed("session.thread_status_idle", "sthr_c", **child, stop_reason=END)
    driver.rest()
    driver.feed("user.interrupt")
    driver.feed("session.thread_status_terminated", **child)
    assert [ended.status for ended in driver.of(ev.ThreadEnded)] == ["completed"]


def test_an_interrupt_with_an_empty_id_is_seen_each_time(driver: Driver) -> None:
    for turn in (1, 2):
        driver.feed("user.interrupt", id="", session_thread_id="-" if turn else "")
        driver.rest()
        driver.feed("session.status_running")
    assert [e.outcome for e in driver.of(ev.TurnEnded)] == ["interrupted", "interrupted"]


# Messages that wait.


def test_a_message_that_a_server_refuses_while_it_works_goes_when_the_turn_is_over(
    driver: Driver,
) -> None:
    driver.rest()
    call = driver.submit("k2", said("Next"))
    driver.refuse(call, 409, "The session is running.", "conflict_error")
    assert list(driver.codec.held_back) == ["k2"]
    (look,) = driver.calls()
    driver.answer(look, 200, {**SESSION, "status": "running"})
    # Now a person can see that it works, and stop it.
    assert driver.of(ev.TurnStarted)[-1].partial
    driver.rest()
    (again,) = driver.calls("send")
    assert posted(again) == posted(call)
    driver.answer(again, 200)
    driver.feed("session.status_running")
    driver.feed("agent.message", content=text("Yes."))
    assert driver.of(ev.MessageReceived)[-1].command_id == "k2"


def test_a_message_right_after_the_last_answer_is_sent_again_soon(driver: Driver) -> None:
    driver.rest()
    call = driver.submit("k2", said("Next"))
    words = "Invalid user.message event at events[0]: waiting on responses to events [sevt_1]; only"
    driver.refuse(call, 400, words)
    assert driver.calls() == []
    driver.tick(500)
    assert [posted(one) for one in driver.calls("send")] == [posted(call)]


def test_a_message_that_is_refused_for_good_is_refused(driver: Driver) -> None:
    driver.rest()
    driver.refuse(driver.submit("k2", said("Next", "reject")), 409, "Busy.", "conflict_error")
    assert driver.of(ev.InputSettled)[-1].outcome == "refused"
    driver.calls()
    call = driver.submit("k3", said("Next"))
    driver.refuse(call, 400, "Cannot send events to archived session: sesn_7Kd")
    assert driver.of(ev.InputSettled)[-1].outcome == "refused"
    (look,) = driver.calls()
    archived = {**SESSION, "status": "terminated", "archived_at": "2026-11-02T09:00:00Z"}
    driver.answer(look, 200, archived)
    assert driver.of(ev.SessionUpdated)[-1].archived_at is not None


# Doubt: a send whose answer was lost.


@pytest.mark.parametrize("how", ["lost", "500"])
def test_a_send_whose_answer_is_lost_is_looked_for_and_never_sent_again(
    driver: Driver, how: str
) -> None:
    driver.rest()
    call = driver.submit("k2", said("Next"))
    if how == "lost":
        driver.lose(call)
    else:
        driver.refuse(call, 500, "Oops.", "api_error")
    (page,) = driver.calls()
    message = driver.event("user.message", content=text("Next"))
    driver.listed(page, {**message, "processed_at": None})
    assert driver.of(ev.InputSettled)[-1].outcome == "taken"
    driver.feed("session.status_running")
    driver.show(message)
    assert driver.of(ev.MessageReceived)[-1].command_id == "k2"
    assert driver.calls("send") == []


def test_a_send_that_no_list_shows_did_not_arrive(driver: Driver) -> None:
    driver.rest()
    driver.lose(driver.submit("k2", said("Next")))
    (page,) = driver.calls()
    driver.listed(page)
    driver.tick(LOOK_AGAIN_MS)
    (page,) = driver.calls()
    driver.listed(page)
    settled = driver.of(ev.InputSettled)[-1]
    assert (settled.outcome, settled.error.code) == ("refused", "not_arrived")


def test_a_message_of_the_same_words_that_was_said_before_is_no_evidence(driver: Driver) -> None:
    first = driver.of(ev.MessageReceived)[0]
    driver.rest()
    driver.lose(driver.submit("k2", said("Hello")))
    (page,) = driver.calls()
    native = first.native
    assert native is not None
    old = {"type": "user.message", "id": native.id, "processed_at": native.at}
    driver.listed(page, {**old, "content": text("Hello")})
    assert "taken" not in [s.outcome for s in driver.of(ev.InputSettled) if s.command_id == "k2"]


# Streams and lists.


def test_what_was_missed_is_listed_and_what_both_show_comes_once(driver: Driver) -> None:
    seen = driver.feed("agent.message", content=text("One"))
    driver.close()
    driver.open_stream()
    (page,) = driver.calls()
    assert page.request.query["order"] == "desc"
    missed = driver.event("agent.message", content=text("Two"))
    idle = driver.event("session.status_idle", stop_reason=END)
    # The stream is open, and waits for the list.
    driver.show(idle)
    assert driver.of(ev.TurnEnded) == []
    driver.listed(page, seen, missed, idle)
    assert [t.text for t in driver.of(ev.TextCompleted)] == ["One", "Two"]
    assert len(driver.of(ev.TurnEnded)) == 1


def test_previews_that_waited_for_the_end_of_their_turn_begin_no_other(driver: Driver) -> None:
    driver.close()
    driver.open_stream()
    (page,) = driver.calls()
    driver.show({"type": "event_start", "event": {"type": "agent.message", "id": "sevt_D4"}})
    delta = {"content": {"type": "text", "text": "Half a"}}
    driver.show({"type": "event_delta", "event_id": "sevt_D4", "delta": delta})
    # The message was cut off, so that no list has it; these frames are still on their way.
    idle = driver.event("session.status_idle", stop_reason={"type": "retries_exhausted"})
    driver.listed(page, idle)
    driver.show(idle)
    assert len(driver.of(ev.TurnEnded)) == len(driver.of(ev.TurnStarted)) == 1


def test_previews_before_a_frame_that_is_listed_are_not_of_the_turn_after_it(
    driver: Driver,
) -> None:
    driver.close()
    driver.open_stream()
    (page,) = driver.calls()
    delta = {"content": {"type": "text", "text": "Half a"}}
    driver.show({"type": "event_start", "event": {"type": "agent.message", "id": "sevt_D4"}})
    driver.show({"type": "event_delta", "event_id": "sevt_D4", "delta": delta})
    idle = driver.event("session.status_idle", stop_reason={"type": "retries_exhausted"})
    running = driver.event("session.status_running")
    driver.show(idle)
    driver.show(running)
    driver.show({"type": "event_start", "event": {"type": "agent.message", "id": "sevt_D5"}})
    driver.show({"type": "event_delta", "event_id": "sevt_D5", "delta": delta})
    driver.listed(page, idle, running)
    assert [piece.message_id for piece in driver.of(ev.TextDelta)] == ["sevt_D5"]


def test_pages_of_any_size_are_read_down_to_what_is_known(driver: Driver) -> None:
    seen = driver.feed("agent.message", content=text("One"))
    driver.close()
    driver.open_stream()
    missed = [driver.event("agent.message", content=text(str(n))) for n in range(3)]
    for at, event in enumerate([*reversed(missed), seen]):
        (page,) = driver.calls()
        assert page.request.query.get("page") == (f"c{at}" if at else None)
        driver.answer(page, 200, {"data": [event], "next_page": f"c{at + 1}"})
    assert driver.calls() == []
    assert [t.text for t in driver.of(ev.TextCompleted)] == ["One", "0", "1", "2"]


def test_a_list_that_heeds_no_order_is_read_to_its_end(driver: Driver) -> None:
    driver.feed("agent.message", content=text("One"))
    driver.close()
    driver.open_stream()
    events = [driver.event("agent.message", content=text(str(n))) for n in range(4)]
    (page,) = driver.calls()
    driver.answer(page, 200, {"data": events[:2], "next_page": "c1"})
    (page,) = driver.calls()
    driver.answer(page, 200, {"data": events[2:], "next_page": None})
    assert [t.text for t in driver.of(ev.TextCompleted)] == ["One", "0", "1", "2", "3"]


def test_a_walk_whose_cursor_has_died_begins_again(driver: Driver) -> None:
    driver.close()
    driver.open_stream()
    event = driver.event("agent.message", content=text("Two"))
    (page,) = driver.calls()
    driver.answer(page, 200, {"data": [event], "next_page": "old"})
    (page,) = driver.calls()
    driver.refuse(page, 400, "invalid page")
    (page,) = driver.calls()
    assert "page" not in page.request.query
    driver.listed(page, event)
    assert [t.text for t in driver.of(ev.TextCompleted)] == ["Two"]


def test_a_stream_that_replays_its_history_says_nothing_twice(driver: Driver) -> None:
    history = [driver.feed("agent.message", content=text(str(n))) for n in range(MOST_KNOWN + 40)]
    driver.restart()
    driver.open_stream()
    driver.listed(driver.calls()[0])
    for event in history:
        driver.show(event)
    driver.feed("agent.message", content=text("new"))
    texts = [t.text for t in driver.of(ev.TextCompleted)]
    assert texts == [*map(str, range(MOST_KNOWN + 40)), "new"]


def test_a_list_that_cannot_be_had_is_told_as_a_gap(driver: Driver) -> None:
    driver.close()
    driver.open_stream()
    for _ in range(20):
        for page in driver.calls("list"):
            driver.answer(page, 503)
        if driver.of(ev.Gap):
            break
        driver.feed("session.usage", usage={})
        driver.tick(10_000)
    (gap,) = driver.of(ev.Gap)
    assert "could not be listed" in gap.reason


def test_a_session_begins_with_an_idle_at_a_third_party_and_no_turn_ends() -> None:
    driver = Driver()
    driver.answer(driver.submit("k1", said("Hi")), 201, SESSION)
    driver.open_stream()
    driver.rest()
    assert driver.of(ev.TurnEnded) == []


# What is asked when the stream tells nothing.


def test_a_turn_whose_end_is_nowhere_is_believed_to_be_over_when_it_is_denied_twice(
    driver: Driver,
) -> None:
    assert driver.codec.look(driver.now)
    (look,) = driver.calls()
    driver.answer(look, 200, SESSION)
    assert driver.of(ev.TurnEnded) == []
    driver.tick(REST_LOOK_MS)
    (page,) = driver.calls()
    driver.listed(page)
    (look,) = driver.calls()
    driver.answer(look, 200, SESSION)
    (ended,) = driver.of(ev.TurnEnded)
    assert (ended.outcome, ended.error.code) == ("failed", "turn_end_missing")


def test_a_message_that_is_taken_and_never_run_fails_its_turn() -> None:
    """Two traps of a third party's server: it accepts a message and does nothing."""
    driver = Driver()
    driver.answer(driver.submit("k1", said("Hi")), 200, SESSION)
    driver.open_stream()
    (post,) = driver.calls()
    driver.answer(post, 200, {"data": []})
    driver.codec.look(driver.now)
    (look,) = driver.calls()
    driver.answer(look, 200, SESSION)
    driver.tick(REST_LOOK_MS)
    (page,) = driver.calls()
    driver.listed(page)
    (look,) = driver.calls()
    driver.answer(look, 200, SESSION)
    assert driver.of(ev.MessageReceived)[0].command_id == "k1"
    assert driver.of(ev.TurnEnded)[0].outcome == "failed"
    # The next one is not held up.
    assert driver.submit("k2", said("Again")).name == "send"


def test_a_session_that_is_gone_fails_its_turn_and_is_not_called_deleted(driver: Driver) -> None:
    driver.codec.look(driver.now)
    for _ in range(4):
        for call in driver.calls():
            driver.answer(call, 404)
        driver.tick(REST_LOOK_MS)
    assert driver.of(ev.TurnEnded)[0].error.code == "session_gone"
    assert driver.of(ev.SessionEnded) == []


# Ends.


def test_a_session_that_fails_for_good_is_over(driver: Driver) -> None:
    error = {"type": "model_request_failed_error", "message": "The image is too large."}
    driver.feed("session.error", error={**error, "retry_status": {"type": "terminal"}})
    driver.feed("session.status_terminated")
    (ended,) = driver.of(ev.TurnEnded)
    assert (ended.outcome, ended.error.message) == ("failed", "The image is too large.")
    (look,) = driver.calls()
    driver.answer(look, 200, {**SESSION, "status": "terminated", "archived_at": None})
    (over,) = driver.of(ev.SessionEnded)
    assert (over.outcome, over.error.code) == ("failed", "model_request_failed_error")
    assert driver.codec.streams() == ()


def test_our_archive_is_told_once_whatever_comes_first(driver: Driver) -> None:
    driver.rest()
    call = driver.submit("k2", cmd.Archive())
    driver.feed("session.status_terminated")
    driver.answer(call, 200, {**SESSION, "archived_at": "2026-11-02T09:00:00Z"})
    assert len([u for u in driver.of(ev.SessionUpdated) if u.archived_at is not None]) == 1
    assert driver.calls() == []
    assert driver.of(ev.SessionEnded) == []


def test_a_message_that_waits_for_a_session_that_is_archived_is_refused(driver: Driver) -> None:
    """A third party's server calls such a session idle, and refuses in words of its own."""
    driver.rest()
    driver.refuse(driver.submit("k2", said("Next")), 409, "Not now.", "conflict_error")
    (look,) = driver.calls()
    driver.answer(look, 200, {**SESSION, "archived_at": "2026-11-02T09:00:00Z"})
    settled = driver.of(ev.InputSettled)[-1]
    assert (settled.outcome, settled.error.code) == ("refused", "session_archived")
    assert driver.of(ev.SessionUpdated)[-1].archived_at is not None


@pytest.mark.parametrize("outcome", ["interrupted", "failed"])
def test_a_dragoman_says_with_the_reason_how_a_turn_ended(driver: Driver, outcome: str) -> None:
    driver.rest(type="end_turn", outcome=outcome)
    (ended,) = driver.of(ev.TurnEnded)
    assert (ended.outcome, ended.extra) == (outcome, None)


def test_an_archive_that_is_refused_since_the_status_is_behind_is_asked_again(
    driver: Driver,
) -> None:
    driver.rest()
    call = driver.submit("k2", cmd.Archive())
    driver.refuse(call, 400, "Session is running.")
    driver.tick(500)
    (again,) = driver.calls()
    assert (again.request.path, again.command_id) == (call.request.path, "k2")
    driver.answer(again, 200, SESSION)
    assert driver.of(ev.InputSettled)[-1].outcome == "taken"
    assert list(driver.codec.held_back) == []


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ({"type": "retries_exhausted"}, "exhausted"),
        ({"type": "budget_reached"}, "over_budget"),
        ({"type": "refusal"}, "refused"),
        ({"type": "interrupted"}, "interrupted"),
        ({"type": "error"}, "failed"),
        ({"type": "from_the_future", "more": 1}, "completed"),
    ],
)
def test_a_turn_ends_as_its_reason_says(driver: Driver, reason: Any, outcome: str) -> None:
    driver.rest(**reason)
    (ended,) = driver.of(ev.TurnEnded)
    assert ended.outcome == outcome
    assert ((ended.extra or {}).get("stop_reason") == reason) is ("more" in reason)


# Threads.


def with_child(driver: Driver) -> None:
    """Let the agent call a child, whose stream is opened."""
    driver.feed("session.thread_created", session_thread_id="sthr_c", agent_name="Reader")
    driver.feed("session.thread_status_running", session_thread_id="sthr_c", agent_name="Reader")
    driver.open_stream("sthr_c")
    for page in driver.calls("list"):
        assert page.request.path == "/v1/sessions/sesn_7Kd/threads/sthr_c/events"
        driver.listed(page)


def test_a_child_has_its_own_stream_and_its_turn_is_told_there(driver: Driver) -> None:
    with_child(driver)
    driver.feed("session.thread_status_running", "sthr_c", session_thread_id="sthr_c")
    driver.feed("agent.message", "sthr_c", content=text("84 m."))
    # The session is ahead of the child's stream.
    driver.feed(
        "session.thread_status_idle",
        session_thread_id="sthr_c",
        agent_name="Reader",
        stop_reason=END,
    )
    assert driver.of(ev.TurnEnded) == []
    driver.feed("agent.message", "sthr_c", content=text("Sure."))
    driver.feed("session.thread_status_idle", "sthr_c", session_thread_id="-", stop_reason=END)
    (ended,) = driver.of(ev.TurnEnded)
    assert ended.thread_id == "sthr_c"
    words = [t.text for t in driver.of(ev.TextCompleted) if t.thread_id == "sthr_c"]
    assert words == ["84 m.", "Sure."]


def test_a_child_whose_stream_does_not_end_its_turn_is_ended_by_time(driver: Driver) -> None:
    with_child(driver)
    driver.feed("session.thread_status_running", "sthr_c", session_thread_id="sthr_c")
    driver.feed(
        "session.thread_status_idle",
        session_thread_id="sthr_c",
        agent_name="Reader",
        stop_reason=END,
    )
    assert driver.codec.wake_at == driver.now + REST_MS
    driver.tick(REST_MS)
    assert [e.thread_id for e in driver.of(ev.TurnEnded)] == ["sthr_c"]


def test_a_turn_goes_on_while_children_work_though_the_primary_thread_rests(
    driver: Driver,
) -> None:
    with_child(driver)
    driver.feed("session.thread_status_running", "sthr_c", session_thread_id="sthr_c")
    primary = {"session_thread_id": "sthr_p", "agent_name": "W"}
    driver.feed("session.thread_status_idle", **primary, stop_reason=END)
    assert driver.of(ev.TurnPaused)[-1].on == "tasks"
    driver.feed("session.thread_status_running", **primary)
    assert driver.types()[-1] == "turn.resumed"
    driver.feed("session.thread_status_idle", "sthr_c", session_thread_id="sthr_c", stop_reason=END)
    driver.rest()
    assert [e.thread_id for e in driver.of(ev.TurnEnded)] == ["sthr_c", ev.MAIN]


@pytest.mark.parametrize("first", [ev.MAIN, "sthr_c"])
def test_the_ask_of_a_child_is_one_request_on_two_streams(driver: Driver, first: str) -> None:
    with_child(driver)
    driver.feed("session.thread_status_running", "sthr_c", session_thread_id="sthr_c")
    use = driver.event("agent.tool_use", name="rm", input={}, evaluated_permission="ask")
    posted_on = [(ev.MAIN, {**use, "session_thread_id": "sthr_c"}), ("sthr_c", use)]
    for thread, event in sorted(posted_on, key=lambda one: one[0] != first):
        driver.show(event, thread)
    (request,) = driver.of(ev.InteractionRequested)
    assert (request.thread_id, request.shown_on) == ("sthr_c", ev.MAIN)
    driver.rest(type="requires_action", event_ids=[use["id"]])
    assert driver.of(ev.TurnPaused)[-1].thread_id == ev.MAIN
    command = cmd.AnswerInteraction(request_id=use["id"], decision="allow")
    call = driver.submit("k2", command)
    assert posted(call)["events"][0]["session_thread_id"] == "sthr_c"
    driver.answer(call)
    # The confirmation has another id on each stream.
    driver.feed("user.tool_confirmation", tool_use_id=use["id"], session_thread_id="sthr_c")
    driver.feed("user.tool_confirmation", "sthr_c", tool_use_id=use["id"], result="allow")
    assert len(driver.of(ev.InteractionResolved)) == 1
    driver.feed("agent.tool_result", "sthr_c", tool_use_id=use["id"], content=text("gone"))
    assert [r.status for r in driver.of(ev.ToolReturned)] == ["completed"]


def test_a_stream_of_a_child_that_cannot_be_had_ends_the_child_only(driver: Driver) -> None:
    with_child(driver)
    driver.feed("session.thread_status_running", "sthr_c", session_thread_id="sthr_c")
    driver.close(thread="sthr_c")
    error = DragomanError("No answer.")
    driver.take(driver.codec.give_up(error, driver.now, thread_id="sthr_c"))
    assert [e.thread_id for e in driver.of(ev.TurnEnded)] == ["sthr_c"]
    assert driver.of(ev.ThreadEnded)[0].status == "failed"
    assert driver.state.thread(ev.MAIN).turn is not None


# Restarts.


def test_a_restart_after_each_event_gives_the_same_log() -> None:
    """What is stored is enough to go on: nothing twice, nothing lost."""

    def play(restarts: bool) -> list[str]:
        driver = Driver()
        driver.open()

        def step() -> None:
            if restarts:
                driver.restart()
                driver.open_stream()
                for page in driver.calls("list"):
                    driver.listed(page)

        step()
        (use,) = ask(driver, "bash")
        step()
        driver.answer(driver.submit("k2", cmd.AnswerInteraction(request_id=use, decision="allow")))
        step()
        driver.feed("user.tool_confirmation", tool_use_id=use, result="allow")
        step()
        driver.feed("session.status_running")
        driver.feed("agent.tool_result", tool_use_id=use, content=text("ok"))
        step()
        driver.feed("agent.message", content=text("Done."))
        step()
        driver.rest()
        return driver.types()

    assert play(restarts=True) == play(restarts=False)


def test_a_message_that_was_sent_before_a_crash_is_looked_for(driver: Driver) -> None:
    driver.rest()
    command = said("Next")
    driver.submit("k2", command)
    driver.take([], changes=True, keep=True)
    driver.restart()
    call = driver.codec.recover("k2", command)
    assert call is not None
    assert call.request.method == "GET"
    message = driver.event("user.message", content=text("Next"))
    driver.listed(call, message)
    driver.feed("session.status_running")
    assert driver.of(ev.MessageReceived)[-1].command_id == "k2"


@pytest.mark.parametrize("ours", [True, False])
def test_a_message_whose_time_is_shown_before_its_turn_is_of_that_turn(
    driver: Driver, ours: bool
) -> None:
    driver.rest()
    if ours:
        driver.answer(driver.submit("k2", said("Next")), body={})
    waiting = driver.event("user.message", content=text("Next"))
    driver.show({**waiting, "processed_at": None})
    driver.show(waiting)
    driver.feed("session.status_running")
    turn = driver.of(ev.TurnStarted)[-1]
    assert turn.cause == "message"
    assert [one.turn_id for one in driver.of(ev.MessageReceived)[1:]] == [turn.turn_id]
