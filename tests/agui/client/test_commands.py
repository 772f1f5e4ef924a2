"""What an AG-UI agent is asked: a run with the whole conversation, and what becomes of commands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.agui.client import AguiClient
from adapters.agui.client.state import BUSY_MS
from adapters.driving import runs
from adapters.driving.transcript import INTERRUPTED
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import CloseReason
from adapters.model.file_body import FileBody
from adapters.wire.errors import SESSION_LOST, DragomanError, NotSupported
from tests.agui.client.driver import (
    BARE,
    SUCCESS,
    THREAD,
    Event,
    Session,
    approval,
    called,
    frame,
    interrupted,
    posted,
    result,
    said,
    text,
)
from tests.support.each import each

SHA = "a" * 64


# The request.


def test_a_message_is_a_run_at_the_url_itself() -> None:
    session = Session()
    call = session.submit("k1", said("Hello"))
    assert call is not None
    assert (call.request.method, call.request.path, call.stream) == ("POST", "", True)
    assert call.command_ids == ("k1",)
    assert posted(call) == {
        "threadId": THREAD,
        "runId": "k1",
        "protocolVersion": "1.0",
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
        "messages": [{"id": "k1", "role": "user", "content": "Hello"}],
    }


def test_each_run_has_the_whole_conversation_with_the_names_that_the_agent_gave() -> None:
    session = Session()
    session.ask("Hello")
    call = {**called()[0], "parentMessageId": "m1"}
    session.run(*text("Wait."), call, *called()[1:], result(), *text("Done.", "m2"), SUCCESS)
    function = {"name": "mail", "arguments": '{"to":"ann"}'}
    assert session.next_messages() == [
        {"id": "k1", "role": "user", "content": "Hello"},
        {
            "id": "m1",
            "role": "assistant",
            "content": "Wait.",
            "toolCalls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"id": "r-c1", "role": "tool", "toolCallId": "c1", "content": "sent"},
        {"id": "m2", "role": "assistant", "content": "Done."},
    ]


def test_system_text_is_a_message_of_its_own_now_and_later() -> None:
    session = Session()
    words = (ev.Text(text="Be brief."),)
    session.ask("Hello", system=words)
    system = {"id": "k1-system", "role": "system", "content": "Be brief."}
    user = {"id": "k1", "role": "user", "content": "Hello"}
    assert posted(session.call)["messages"] == [system, user]
    session.run(SUCCESS)
    assert session.next_messages() == [system, user]


@each(
    ("context", "items"),
    [
        ("blue", [{"description": "Client context", "value": "blue"}]),
        ({"page": 2}, [{"description": "Client context", "value": '{"page":2}'}]),
        (
            [{"description": "Page", "value": "2"}, {"description": "Page", "value": 2}, "x"],
            [
                {"description": "Page", "value": "2"},
                {"description": "Client context", "value": '{"description":"Page","value":2}'},
                {"description": "Client context", "value": "x"},
            ],
        ),
        ([], []),
    ],
)
def test_the_context_of_a_client_goes_with_each_run_until_there_is_another(
    context: Any, items: Any
) -> None:
    session = Session()
    session.ask(client_context=context)
    assert posted(session.call)["context"] == items
    session.run(interrupted(approval("int-1")))
    assert posted(session.answer("a1", "int-1", decision="allow"))["context"] == items
    session.run(SUCCESS)
    assert posted(session.submit("k2", said("More")))["context"] == items
    session = Session()
    session.ask(client_context="old")
    session.run(SUCCESS)
    assert posted(session.submit("k2", said("More", client_context=context)))["context"] == items


def test_files_are_parts_of_the_message() -> None:
    session = Session()
    image = ev.File(ref=ev.Blob(sha256=SHA), media_type="image/png", size=3, name="a.png")
    link = ev.File(ref=ev.Url(url="https://example.test/b"))
    command = cmd.SendMessage(content=(ev.Text(text="See"), image, link), policy="queue")
    call = session.submit("k1", command)
    assert call is not None
    body = call.request.body
    assert isinstance(body, FileBody)
    assert body.files == {SHA}
    (piece,) = [b"".join(body.pieces({SHA: b"abc"}))]
    (message,) = json.loads(piece)["messages"]
    assert message["content"] == [
        {"type": "text", "text": "See"},
        {
            "type": "image",
            "source": {"type": "data", "value": "YWJj", "mimeType": "image/png"},
            "metadata": {"filename": "a.png"},
        },
        {"type": "document", "source": {"type": "url", "value": "https://example.test/b"}},
    ]


@each(
    ("command", "why"),
    [
        (cmd.Compact(), "compact"),
        (cmd.SendMessage(content=(), policy="queue", output_schema={}), "output_schema"),
        (said(edit_of="nobody"), "nobody"),
        (said(retry_of="nobody"), "nobody"),
        (
            cmd.SendMessage(
                content=(ev.File(ref=ev.FileId(dialect="herm", id="f1")),), policy="queue"
            ),
            "f1",
        ),
        (cmd.AnswerInteraction(request_id="r", system=(ev.Text(text="x"),)), "system"),
        (cmd.AnswerInteraction(request_id="r", sealed=cmd.Sealed("x")), "sealed"),
        (
            cmd.AnswerInteraction(
                request_id="r", content=(ev.File(ref=ev.Url(url="https://example.test")),)
            ),
            "file",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_no_run_carries_is_refused_before_it_is_sent(command: Any, why: str) -> None:
    with pytest.raises(NotSupported, match=why):
        AguiClient({"task_id": THREAD}).check(command)


def test_an_answer_to_what_is_over_is_refused() -> None:
    session = Session()
    with pytest.raises(NotSupported, match="int-1"):
        session.codec.submit("a1", cmd.AnswerInteraction(request_id="int-1", decision="allow"))


@each("kind", ["edit_of", "retry_of"])
def test_an_edit_or_a_retry_goes_with_what_was_said_before_it(kind: str) -> None:
    session = Session()
    session.ask("One")
    session.run(*text("First."), SUCCESS)
    session.ask("Two", "k2")
    session.run(*text("Second.", "m2"), SUCCESS)
    session.ask("Zwei", "k3", **{kind: "k2"})
    names = [one["id"] for one in posted(session.call)["messages"]]
    assert names == ["k1", "m1", "k3"]
    session.run(*text("Third.", "m3"), SUCCESS)
    assert [one["id"] for one in session.next_messages()] == ["k1", "m1", "k3", "m3"]


# What becomes of a message.


def test_a_message_is_taken_when_the_body_begins_and_received_when_the_run_does() -> None:
    session = Session()
    session.ask()
    assert session.settled() == {"k1": "taken"}
    assert not session.of(ev.MessageReceived)
    session.feed({"type": "RUN_STARTED", "threadId": THREAD, "runId": "k1"})
    assert session.last(ev.MessageReceived).command_id == "k1"
    assert session.last(ev.TurnStarted).cause == "message"


@each(
    ("status", "body", "words"),
    [
        (422, [{"type": "missing", "loc": ["messages"], "msg": "Field required"}], "messages: Fi"),
        (422, {"detail": [{"loc": ["body", "tools"], "msg": "Bad"}]}, "body.tools: Bad"),
        (400, {"error": "No."}, "No."),
        (400, {"error": {"message": "No such."}}, "No such."),
        (404, {"detail": "Not Found"}, "Not Found"),
        (500, b"Internal Server Error", "Internal Server Error"),
        (503, {"message": "Starting."}, "Starting."),
        (400, [], "[]"),
        (405, {}, "{}"),
        (401, {"detail": "Bad token"}, "credential"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_refusal_of_any_form_refuses_the_message(status: int, body: Any, words: str) -> None:
    session = Session()
    session.respond(session.submit("k1", said()), status, body)
    (settled,) = session.of(ev.InputSettled)
    assert settled.outcome == "refused"
    assert words in f"{settled.error.message} {settled.error.quote}"
    assert not session.of(ev.TurnStarted)
    # It can be said again.
    session.ask("Again", "k2")
    session.run(*text("Hi"), SUCCESS)
    assert session.last(ev.TurnEnded).outcome == "completed"
    assert [one["id"] for one in session.next_messages()] == ["k2", "m1"]


@each("status", [502, 504])
def test_what_fails_between_may_have_begun_so_the_turn_has_failed(status: int) -> None:
    session = Session()
    session.respond(session.submit("k1", said()), status, b"<html>", "text/html")
    assert session.settled() == {"k1": "taken"}
    assert session.last(ev.TurnEnded).outcome == "failed"
    assert "not known" in session.last(ev.TurnEnded).error.message


def test_what_something_between_writes_is_kept_with_its_status() -> None:
    session = Session()
    session.respond(session.submit("k1", said()), 502, b"<html>gateway-7", "text/html")
    error = session.last(ev.TurnEnded).error
    assert (error.code, error.status, error.quote) == ("http_502", 502, "<html>gateway-7")


def test_a_body_that_is_not_a_stream_fails_the_turn() -> None:
    session = Session()
    session.respond(session.submit("k1", said()), 200, b"<html>", "text/html; charset=utf-8")
    ended = session.last(ev.TurnEnded)
    assert (ended.outcome, session.settled()) == ("failed", {"k1": "taken"})
    assert "`text/html`" in ended.error.message


def test_what_never_left_is_refused_and_what_may_have_left_has_failed() -> None:
    session = Session()
    session.fail(session.submit("k1", said()), sent=False)
    assert session.settled() == {"k1": "refused"}
    assert not session.of(ev.TurnStarted)
    session = Session()
    session.fail(session.submit("k1", said()), sent=True)
    assert session.settled() == {"k1": "taken"}
    assert session.last(ev.TurnEnded).outcome == "failed"


@each(("reason", "words"), [(CloseReason.ENDED, runs.INCOMPLETE), (CloseReason.LOST, runs.BROKEN)])
def test_a_body_without_the_end_of_its_run_fails_the_turn(reason: Any, words: str) -> None:
    session = Session()
    session.ask()
    session.feed({"type": "RUN_STARTED"}, *text("Par")[:2], *called())
    session.close(reason)
    assert session.last(ev.TextCompleted).status == "complete"
    assert session.last(ev.ToolReturned).status == "interrupted"
    ended = session.last(ev.TurnEnded)
    assert (ended.outcome, ended.error.code, ended.error.message) == (
        *("failed", SESSION_LOST),
        words,
    )
    assert session.codec.streams() == ()
    assert session.codec.take_calls() == []


def test_a_body_that_ends_before_its_run_begins_fails_the_turn_of_its_message() -> None:
    session = Session()
    session.ask()
    session.close(CloseReason.LOST)
    assert session.of(ev.MessageReceived)
    assert session.last(ev.TurnEnded).outcome == "failed"


def test_a_failed_turn_is_part_of_the_conversation_with_a_result_for_its_call() -> None:
    session = Session()
    session.ask()
    session.feed({"type": "RUN_STARTED"}, *called())
    session.close(CloseReason.LOST)
    _, owner, tool = session.next_messages()
    assert owner["toolCalls"][0]["id"] == tool["toolCallId"] == "c1"
    assert tool["content"] == INTERRUPTED


def test_the_end_of_an_earlier_body_does_not_touch_the_run_after_it() -> None:
    session = Session()
    first = session.ask()
    session.feed({"type": "RUN_STARTED"}, interrupted(approval("int-1")))
    session.codec.submit("a1", cmd.AnswerInteraction(request_id="int-1", decision="allow"))
    before = len(session.events)
    session.take(session.codec.feed(first, frame({"type": "CUSTOM", "name": "x"}), session.now))
    session.take(session.codec.closed(first, CloseReason.LOST, session.now))
    assert len(session.events) == before
    assert session.state.interactions


def test_a_message_after_a_turn_survives_the_end_of_the_body_before() -> None:
    session = Session()
    first = session.ask()
    session.feed({"type": "RUN_STARTED"}, SUCCESS)
    second = session.submit("k2", said("More"))
    session.take(session.codec.closed(first, CloseReason.ENDED, session.now))
    assert len(session.of(ev.TurnStarted)) == 1
    assert second is not None
    session.open(second)
    session.run(*text("Hi"), SUCCESS)
    assert [one.outcome for one in session.of(ev.TurnEnded)] == ["completed", "completed"]


# Stopping.


def test_to_stop_is_to_leave_the_body() -> None:
    session = Session()
    session.ask()
    session.feed({"type": "RUN_STARTED"}, *text("Wor")[:2], *called())
    session.stop()
    assert session.settled() == {"k1": "taken", "stop": "taken"}
    assert session.last(ev.ToolReturned).status == "interrupted"
    ended = session.last(ev.TurnEnded)
    assert (ended.outcome, ended.error) == ("interrupted", None)
    assert session.next_messages()[-1]["role"] == "tool"
    assert session.codec.wake_at is None


def test_a_result_that_waited_is_told_when_the_body_is_left() -> None:
    session = Session()
    session.ask()
    session.feed({"type": "RUN_STARTED"}, *called(), result())
    session.stop()
    assert session.last(ev.ToolReturned).output == "sent"


def test_a_stop_before_the_head_came_ends_the_turn() -> None:
    session = Session()
    session.submit("k1", said())
    session.stop()
    assert session.settled() == {"k1": "taken", "stop": "taken"}
    assert session.last(ev.TurnEnded).outcome == "interrupted"
    assert session.of(ev.MessageReceived)


def test_a_stop_while_the_turn_waits_ends_it_here() -> None:
    session = Session()
    session.ask()
    session.run(*called(), interrupted(approval("int-1", "c1")))
    session.stop()
    assert session.last(ev.InteractionResolved).outcome == "cancelled"
    assert session.last(ev.TurnEnded).outcome == "interrupted"
    assert session.next_messages()[-1] == {
        "id": "result-c1",
        "role": "tool",
        "toolCallId": "c1",
        "content": INTERRUPTED,
    }


BUSY = {"type": "RUN_ERROR", "message": "Another run is in progress.", "code": "THREAD_BUSY"}
STARTED = {"type": "RUN_STARTED", "threadId": THREAD, "runId": "x"}


def stopped_and_asked() -> Session:
    """Return a session whose message after a stop was refused by an agent that is busy still."""
    session = Session()
    session.ask()
    session.feed(STARTED, *called())
    session.stop()
    session.ask("And now?", "k2", client_context=["here"])
    session.feed(STARTED, BUSY)
    assert session.codec.streams() == ()
    assert session.call is not None
    session.take(session.codec.closed(session.call, CloseReason.ENDED, session.now))
    return session


def test_an_agent_that_is_busy_with_what_was_left_is_asked_once_more() -> None:
    """A Strands puts a run away after its body is closed."""
    session = stopped_and_asked()
    first = posted(session.call)
    assert len(session.of(ev.TurnEnded)) == 1
    assert session.codec.streams() == ()
    assert session.codec.wake_at == session.now + BUSY_MS
    session.due()
    (again,) = session.codec.streams()
    assert posted(again) == first
    session.open(again)
    assert session.codec.streams() == ()
    session.run(*text("Now."), SUCCESS)
    assert session.last(ev.TurnEnded).outcome == "completed"
    assert len(session.of(ev.TurnStarted)) == 2
    assert len(session.of(ev.MessageReceived)) == 2
    assert session.settled()["k2"] == "taken"


def test_an_agent_that_stays_busy_is_not_asked_for_ever() -> None:
    session = stopped_and_asked()
    session.due()
    (again,) = session.codec.streams()
    session.open(again)
    session.run(BUSY)
    assert session.last(ev.TurnEnded).error.code == "THREAD_BUSY"
    assert session.codec.streams() == ()
    assert session.codec.wake_at is None


@pytest.mark.parametrize("how", ["refused", "unsent", "sent"])
def test_what_is_asked_once_more_may_fail(how: str) -> None:
    session = stopped_and_asked()
    session.due()
    (again,) = session.codec.streams()
    if how == "refused":
        session.respond(again, 503, {"detail": "No."})
    else:
        session.fail(again, sent=how == "sent")
    assert session.last(ev.TurnEnded).outcome == "failed"
    assert session.codec.streams() == ()
    assert not session.state.busy


def test_a_restart_or_a_stop_before_it_is_asked_once_more_ends_the_turn() -> None:
    session = stopped_and_asked()
    session.restart()
    session.due()
    assert session.last(ev.TurnEnded).outcome == "failed"
    assert session.codec.streams() == ()
    for waits in (True, False):
        session = stopped_and_asked()
        if not waits:
            session.due()
        session.stop("stop2")
        assert session.last(ev.TurnEnded).outcome == "interrupted"
        assert session.codec.streams() == ()
        assert session.codec.wake_at is None


@pytest.mark.parametrize("how", ["no stop", "another code", "work before", "state before"])
def test_only_what_has_surely_not_begun_is_asked_once_more(how: str) -> None:
    session = Session()
    session.ask()
    session.feed(STARTED, *called())
    if how == "no stop":
        session.feed(SUCCESS)
        session.answer("a1", "c1", text="done")
        session.run(SUCCESS)
    else:
        session.stop()
    session.ask("And now?", "k2")
    before = {
        "work before": text("No"),
        "state before": [{"type": "STATE_SNAPSHOT", "snapshot": {}}],
    }.get(how, [])
    error = {**BUSY, "code": "broken"} if how == "another code" else BUSY
    session.feed(STARTED, *before, error)
    assert session.last(ev.TurnEnded).outcome == "failed"
    session.close()
    assert session.codec.streams() == ()


REQUIRED = {"type": "RUN_ERROR", "message": "Pending.", "code": "PENDING_INTERRUPTS"}


def older(name: str) -> Event:
    """Return an interrupt as a graph tells it."""
    value = json.dumps({"message": "Send?"})
    return {
        **{"type": "CUSTOM", "name": "on_interrupt", "value": value},
        "rawEvent": {"id": name},
    }


def taken_back(*end: Event) -> Session:
    """Return a session whose paused turn was stopped, and which has said something then."""
    session = Session()
    session.ask()
    session.run(*called(), *end)
    assert session.last(ev.InteractionRequested)
    session.stop()
    session.ask("And now?", "k2")
    return session


def next_run(session: Session) -> Any:
    """Open the run that is asked for without a command; return its body."""
    session.close()
    (call,) = session.codec.streams()
    session.open(call)
    return posted(call)


@each(
    ("end", "again"),
    [
        # A Strands and an Agent Framework refuse the message, a LangGraph only asks again.
        ([interrupted(approval("int-1", "c1"))], [REQUIRED]),
        (
            [interrupted(approval("int-1", "c1"))],
            [{**REQUIRED, "code": "APPROVAL_RESUME_REQUIRED"}],
        ),
        ([interrupted(approval("int-1", "c1"))], [interrupted(approval("int-1"))]),
        ([older("int-1"), BARE], [older("int-1"), BARE]),
    ],
    ids=["strands", "agent framework", "graph", "graph, older"],
)
def test_what_a_stop_took_back_is_cancelled_and_the_message_said_again(
    end: list[Event], again: list[Event]
) -> None:
    session = taken_back(*end)
    first = posted(session.call)
    session.feed(STARTED, *again)
    assert len(session.of(ev.InteractionRequested)) == 1
    body = next_run(session)
    assert [one["id"] for one in body["messages"] if one["role"] == "user"] == ["k1"]
    if "resume" in body:
        assert body["resume"] == [{"interruptId": "int-1", "status": "cancelled"}]
    else:
        assert body["forwardedProps"]["command"]["resume"] == "cancelled"
    # What the agent says to that nobody asked for.
    session.feed(STARTED, result(content="cancelled"), *text("Then not."), BARE)
    assert next_run(session) == first
    session.run(*text("Now.", "m2"), BARE)
    assert [one.text for one in session.of(ev.TextCompleted)] == ["Now."]
    assert [one.outcome for one in session.of(ev.TurnEnded)] == ["interrupted", "completed"]
    assert session.settled()["k2"] == "taken"
    assert session.codec.wake_at is None
    session.ask("More", "k3")
    session.run(REQUIRED)
    assert session.last(ev.TurnEnded).outcome == "failed"


def test_an_agent_that_drops_what_it_refuses_hears_first_what_was_taken_back() -> None:
    asked = {"originalFunctionCall": {"id": "c1"}, "toolConfirmation": {"hint": "Send?"}}
    call = called("adk-1", "adk_request_confirmation", json.dumps(asked))
    end = interrupted({"id": "adk-1", "reason": "confirmation", "toolCallId": "adk-1"})
    session = taken_back(*call, end)
    body = posted(session.call)
    assert [one["id"] for one in body["messages"] if one["role"] == "user"] == ["k1"]
    assert body["resume"] == [{"interruptId": "adk-1", "status": "cancelled"}]
    session.feed(STARTED, result(content="rejected"), *text("Then not."), BARE)
    body = next_run(session)
    assert "resume" not in body
    assert body["messages"][-1] == {"id": "k2", "role": "user", "content": "And now?"}
    session.run(*text("Now.", "m2"), BARE)
    assert [one.text for one in session.of(ev.TextCompleted)] == ["Now."]
    assert [one.outcome for one in session.of(ev.TurnEnded)] == ["interrupted", "completed"]


@pytest.mark.parametrize("how", ["error", "lost", "restart", "stop"])
def test_what_was_taken_back_may_not_be_cancelled(how: str) -> None:
    session = taken_back(interrupted(approval("int-1", "c1")))
    session.feed(STARTED, REQUIRED)
    next_run(session)
    session.feed(STARTED, *text("Half"))
    if how == "error":
        session.feed(REQUIRED)
        session.close()
    elif how == "lost":
        session.close(CloseReason.LOST)
    elif how == "restart":
        session.restart()
        session.due()
    else:
        session.stop("stop2")
    ended = "interrupted" if how == "stop" else "failed"
    assert session.last(ev.TurnEnded).outcome == ended
    assert session.codec.streams() == ()
    assert not session.of(ev.TextDelta)
    session.ask("More", "k3")
    session.run(*text("Now."), SUCCESS)
    assert session.last(ev.TurnEnded).outcome == "completed"


def test_what_is_asked_anew_after_a_stop_is_asked() -> None:
    session = taken_back(interrupted(approval("int-1", "c1")))
    session.run(interrupted(approval("int-1"), approval("int-2")))
    assert session.state.busy
    assert len(session.of(ev.InteractionRequested)) == 3


def test_a_stop_when_nothing_runs_is_taken_and_says_nothing() -> None:
    session = Session()
    session.ask()
    session.run(BARE)
    before = len(session.of(ev.TurnEnded))
    session.stop()
    assert session.settled()["stop"] == "taken"
    assert len(session.of(ev.TurnEnded)) == before


def test_a_stop_after_an_answer_was_sent_settles_the_answer() -> None:
    session = Session()
    session.ask()
    session.run(interrupted(approval("int-1")))
    session.answer("a1", "int-1", decision="allow")
    session.stop()
    assert session.settled()["a1"] == "taken"
    assert not session.state.interactions
    assert session.last(ev.TurnEnded).outcome == "interrupted"


# Restarts.


def test_a_restart_cuts_the_run_at_once_and_sends_nothing_again() -> None:
    session = Session()
    session.ask()
    session.feed({"type": "RUN_STARTED"}, *text("Par")[:2])
    session.restart()
    assert session.codec.wake_at == 0
    session.due()
    ended = session.last(ev.TurnEnded)
    assert (ended.outcome, ended.error.message) == ("failed", runs.RESTARTED)
    assert session.last(ev.TextCompleted).status == "partial"
    assert session.codec.streams() == ()
    assert session.codec.take_calls() == []
    session.ask("Again", "k2")
    session.run(*text("Hi", "m2"), SUCCESS)
    assert session.last(ev.TurnEnded).outcome == "completed"


def test_a_message_that_a_restart_caught_on_its_way_is_never_sent_again() -> None:
    session = Session()
    session.submit("k1", said())
    session.restart()
    session.take(session.codec.unknown(["k1"], session.now))
    assert session.settled() == {"k1": "taken"}
    assert session.last(ev.TurnEnded).error.message == runs.RESTARTED
    assert session.codec.wake_at is None
    assert session.codec.take_calls() == []


def test_answers_that_a_restart_caught_on_their_way_are_unknown() -> None:
    session = Session()
    session.ask()
    session.run(interrupted(approval("int-1")))
    session.submit("a1", cmd.AnswerInteraction(request_id="int-1", decision="allow"))
    session.restart()
    session.take(session.codec.unknown(["a1"], session.now))
    assert session.settled()["a1"] == "unknown"
    assert session.last(ev.TurnEnded).outcome == "failed"


def test_a_paused_turn_outlives_a_restart() -> None:
    session = Session()
    session.ask()
    session.run(*called(), interrupted(approval("int-1", "c1")))
    session.restart()
    assert session.codec.wake_at is None
    session.answer("a1", "int-1", decision="allow")
    session.run(result(), *text("Done."), SUCCESS)
    assert session.last(ev.TurnEnded).outcome == "completed"
    assert len(session.of(ev.TurnStarted)) == 1


def test_nothing_is_told_twice_of_a_snapshot_after_a_restart() -> None:
    session = Session()
    session.ask()
    session.run(
        *text("Wait."), *called(), result(), *called("c2"), interrupted(approval("int-1", "c2"))
    )
    session.restart()
    session.answer("a1", "int-1", decision="allow")
    calls = [
        {"id": name, "type": "function", "function": {"name": "mail", "arguments": "{}"}}
        for name in ("c1", "c2")
    ]
    snapshot = [
        {"id": "k1", "role": "user", "content": "Hello"},
        {"id": "other", "role": "assistant", "content": "Wait.", "toolCalls": calls},
        {"id": "t1", "role": "tool", "toolCallId": "c1", "content": "sent"},
        {"id": "t2", "role": "tool", "toolCallId": "c2", "content": "sent too"},
    ]
    session.run({"type": "MESSAGES_SNAPSHOT", "messages": snapshot}, SUCCESS)
    assert [one.call_id for one in session.of(ev.ToolCalled)] == ["c1", "c2"]
    assert [one.output for one in session.of(ev.ToolReturned)] == ["sent", "sent too"]
    assert [one.text for one in session.of(ev.TextCompleted)] == ["Wait."]


def test_an_interrupt_that_a_restart_caught_is_forgotten() -> None:
    session = Session()
    session.ask()
    session.run(interrupted(approval("int-1")))
    session.submit("stop", cmd.Interrupt())
    session.restart()
    assert session.codec.unknown(["stop"], session.now) == []
    session.stop("stop2")
    told = [one.command_id for one in session.of(ev.InputSettled)]
    assert told == ["k1", "stop2"]


def test_an_answer_that_is_forgotten_can_be_given_again() -> None:
    session = Session()
    session.ask()
    session.run(interrupted(approval("int-1"), approval("int-2")))
    session.submit("a1", cmd.AnswerInteraction(request_id="int-1", decision="allow"))
    session.take(session.codec.unknown(["a1"], session.now))
    # Its answer is not there any more: the other one does not go alone.
    assert session.answer("a2", "int-2", decision="deny") is None
    resume = posted(session.answer("a3", "int-1", decision="deny"))["resume"]
    assert [one["payload"]["approved"] for one in resume] == [False, False]


def test_giving_up_ends_what_runs() -> None:
    session = Session()
    session.ask()
    session.feed({"type": "RUN_STARTED"})
    session.take(session.codec.give_up(DragomanError("No more."), session.now))
    assert session.last(ev.TurnEnded).error.message == "No more."
    assert session.codec.look(session.now) is False
