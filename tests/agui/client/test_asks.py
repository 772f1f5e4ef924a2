"""What an AG-UI agent asks, and the answers, which go together in one run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import CloseReason
from tests.agui.client.driver import (
    BARE,
    SUCCESS,
    Event,
    Session,
    approval,
    called,
    interrupted,
    posted,
    result,
    said,
    text,
)
from tests.support.each import each


def paused(*interrupts: Event) -> Session:
    """Return a session whose turn waits for answers to these."""
    session = Session()
    session.ask()
    session.run(interrupted(*interrupts))
    return session


def custom(value: Any, name: str | None = None) -> Event:
    """Return an interrupt of the older form; `name` is what the graph calls it."""
    told = {"type": "CUSTOM", "name": "on_interrupt", "value": value}
    return told if name is None else {**told, "rawEvent": {"id": name}}


def question(schema: Any = None, **members: Any) -> Event:
    asked = {"id": "q1", "reason": "input_required", "message": "Which?", **members}
    return asked if schema is None else {**asked, "responseSchema": schema}


def of(schema: Any) -> Any:
    return {"type": "object", "properties": {"value": schema}}


# Asking.


def test_an_approval_pauses_the_turn_about_its_call() -> None:
    session = Session()
    session.ask()
    session.run(*text("Wait."), *called(), interrupted(approval("int-1", "c1")))
    asked = session.last(ev.InteractionRequested)
    assert (asked.request_id, asked.kind, asked.prompt) == ("int-1", "approval", "int-1?")
    assert (asked.call_id, asked.details) == ("c1", {"tool": "mail", "input": {"to": "ann"}})
    assert [(one.id, one.decision, one.scope) for one in asked.options] == [
        ("approve", "allow", "once"),
        ("deny", "deny", None),
    ]
    assert not asked.freeform
    assert asked.extra["reason"] == "tool_call"
    assert session.last(ev.ToolCalled).permission == "ask"
    pause = session.last(ev.TurnPaused)
    assert (pause.on, pause.request_ids) == ("input", ("int-1",))
    assert session.state.busy


@each("reason", ["tool_call", "tool-approval", "confirmation"])
def test_without_a_schema_the_reason_makes_an_approval(reason: str) -> None:
    session = paused({"id": "r", "reason": reason, "responseSchema": {"type": "object"}})
    assert session.last(ev.InteractionRequested).kind == "approval"


@each(
    ("schema", "options", "freeform"),
    [
        (None, [], True),
        (of({"type": "string"}), [], True),
        (of({"enum": ["red", "blue"]}), ["red", "blue"], False),
        ({"enum": ["red", "blue", 5, ""]}, ["red", "blue"], False),
        (of({"anyOf": [{"const": "red"}, {"type": "string"}]}), ["red"], True),
        (of({"oneOf": [{"const": "red"}, {"const": "blue"}]}), ["red", "blue"], False),
        ({"type": "object", "properties": {"a": {"enum": ["x"]}, "b": {}}}, [], True),
        # What makes no sense is asked for in words.
        (of({"enum": 5}), [], True),
        (of({"enum": "red"}), [], True),
        (of({"anyOf": [5, None]}), [], True),
        (of(5), [], True),
        ({"properties": 5}, [], True),
        (5, [], True),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_a_question_has_the_choices_of_its_schema(
    schema: Any, options: list[str], freeform: bool
) -> None:
    asked = paused(question(schema)).last(ev.InteractionRequested)
    assert asked.kind == "question"
    assert [one.id for one in asked.options or ()] == options
    assert asked.freeform is freeform


@each(
    ("members", "prompt"),
    [
        ({"message": "Which?", "metadata": {"reason": "Why?"}}, "Which?"),
        ({"metadata": {"reason": "Which colour?"}}, "Which colour?"),
        ({"metadata": {"reason": {"ask": "Which?"}}}, '{"ask":"Which?"}'),
        ({"metadata": {"reason": 5}}, "question"),
        ({"metadata": 5}, "question"),
    ],
    ids=str,
)
def test_the_words_of_a_question_may_stand_beside_its_name(members: Any, prompt: str) -> None:
    """As a tool of a Strands asks."""
    session = paused({"id": "r", "reason": "question", **members})
    asked = session.last(ev.InteractionRequested)
    assert (asked.kind, asked.prompt, asked.freeform) == ("question", prompt, True)
    (entry,) = posted(session.answer("a1", "r", text="red"))["resume"]
    assert entry["payload"] == "red"


@each("one", [{"id": "r", "reason": ["x"]}, {"id": "r", "reason": {}}, {"id": "r", "message": 5}])
def test_an_interrupt_that_makes_little_sense_is_a_question(one: Event) -> None:
    assert paused(one).last(ev.InteractionRequested).kind == "question"


def test_what_has_no_id_cannot_be_asked() -> None:
    session = paused({"reason": "x"}, approval("int-1"), approval("int-1"))
    assert [one.request_id for one in session.of(ev.InteractionRequested)] == ["int-1"]


@each("value", [json.dumps, dict], ids=["text", "object"])
def test_the_older_form_asks_before_a_bare_end(value: Any) -> None:
    asked = value({"id": "g1", "reason": "tool_call", "message": "Send?", "toolCallId": "c1"})
    session = Session()
    session.ask()
    session.run(*called(), custom(asked), BARE)
    request = session.last(ev.InteractionRequested)
    assert (request.request_id, request.kind, request.call_id) == ("g1", "approval", "c1")
    body = posted(session.answer("a1", "g1", decision="allow"))
    command = body["forwardedProps"]["command"]
    assert json.loads(command["resume"]) == {"approved": True}
    assert command["interruptEvent"] == asked
    assert "resume" not in body
    # The call waits: it has no result yet.
    assert [one["role"] for one in body["messages"]] == ["user", "assistant"]


def test_the_older_form_may_be_mere_words() -> None:
    session = Session()
    session.ask()
    session.run(custom("What colour?"), BARE)
    request = session.last(ev.InteractionRequested)
    assert (request.kind, request.prompt, request.freeform) == ("question", "What colour?", True)
    call = session.answer("a1", request.request_id, text="blue")
    assert posted(call)["forwardedProps"]["command"]["resume"] == "blue"
    session.run(*text("Blue."), BARE)
    assert session.last(ev.TurnEnded).outcome == "completed"


def test_both_forms_at_once_are_asked_once() -> None:
    session = Session()
    session.ask()
    session.run(custom(json.dumps(approval("x"))), interrupted(approval("int-1")))
    assert [one.request_id for one in session.of(ev.InteractionRequested)] == ["int-1"]
    body = posted(session.answer("a1", "int-1", decision="allow"))
    assert body["resume"][0]["interruptId"] == "int-1"
    assert body["forwardedProps"] == {}


@each("ends", ["outcome", "bare"])
def test_a_graph_has_the_answers_to_several_interrupts_in_a_map(ends: str) -> None:
    """A LangGraph cannot take them as entries of `resume`."""
    first, second = approval("g1"), approval("g2")
    older = [custom(json.dumps({**one, "id": "x"}), one["id"]) for one in (first, second)]
    session = Session()
    session.ask()
    session.run(*older, interrupted(first, second) if ends == "outcome" else BARE)
    assert session.last(ev.TurnPaused).request_ids == ("g1", "g2")
    assert session.answer("a1", "g1", decision="allow") is None
    session.restart()
    body = posted(session.answer("a2", "g2", skip=True))
    assert "resume" not in body
    assert body["forwardedProps"]["command"] == {
        "resume": {
            "g1": {"approved": True},
            "g2": {"__agui_cancelled__": True, "interrupt_id": "g2"},
        }
    }


def test_a_request_whose_id_comes_again_is_another_one() -> None:
    session = paused(approval("int-1"))
    session.answer("a1", "int-1", decision="allow")
    session.run(interrupted(approval("int-1")))
    first, second = session.of(ev.InteractionRequested)
    assert second.request_id != first.request_id
    body = posted(session.answer("a2", second.request_id, decision="deny"))
    assert body["resume"] == [
        {"interruptId": "int-1", "status": "resolved", "payload": {"approved": False}}
    ]
    session.run(*text("No."), SUCCESS)
    assert session.last(ev.TurnEnded).outcome == "completed"


# Answering.


@each(
    ("fields", "entry", "outcome"),
    [
        ({"decision": "allow"}, {"approved": True}, "approved"),
        ({"decision": "deny"}, {"approved": False}, "denied"),
        (
            {"decision": "deny", "reason": "Not now."},
            {"approved": False, "reason": "Not now."},
            "denied",
        ),
        ({"option_ids": ("approve",)}, {"approved": True}, "approved"),
        ({"option_ids": ("deny",), "text": "No."}, {"approved": False, "reason": "No."}, "denied"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_approval_is_answered_by_approved(fields: Any, entry: Any, outcome: str) -> None:
    session = paused(approval("int-1"))
    call = session.answer("a1", "int-1", **fields)
    assert posted(call)["resume"] == [
        {"interruptId": "int-1", "status": "resolved", "payload": entry}
    ]
    assert posted(call)["messages"] == [{"id": "k1", "role": "user", "content": "Hello"}]
    session.run(*text("Done."), SUCCESS)
    resolved = session.last(ev.InteractionResolved)
    assert (resolved.outcome, session.settled()["a1"]) == (outcome, "taken")
    assert session.types().index("interaction.resolved") < session.types().index("turn.resumed")


def test_a_reason_stays_here_where_the_schema_has_no_place_for_it() -> None:
    """An Agent Framework refuses what its schema does not name, and all that is said after it."""
    members = {"approved": {"type": "boolean"}, "city": {"type": "string"}}
    session = paused({**approval("int-1"), "responseSchema": {"properties": members}})
    (entry,) = posted(session.answer("a1", "int-1", decision="deny", reason="No."))["resume"]
    assert entry["payload"] == {"approved": False}
    without = paused({"id": "int-1", "reason": "tool_call"})
    (entry,) = posted(without.answer("a1", "int-1", decision="deny", reason="No."))["resume"]
    assert entry["payload"] == {"approved": False, "reason": "No."}


@each("more", [{"editedArgs": {}}, {"to": {}, "accepted": {}}], ids=str)
def test_an_approval_has_no_reason_where_its_schema_names_none(more: Any) -> None:
    """An Agent Framework refuses it, and then every message."""
    schema = {"type": "object", "properties": {"approved": {"type": "boolean"}, **more}}
    session = paused({**approval("int-1"), "responseSchema": schema})
    (entry,) = posted(session.answer("a1", "int-1", decision="deny", reason="No."))["resume"]
    assert entry["payload"] == {"approved": False}
    session.run(*text("No."), BARE)
    assert session.last(ev.InteractionResolved).answer.reason == "No."


@each(
    ("schema", "fields", "payload"),
    [
        (None, {"text": "blue"}, "blue"),
        (None, {"text": '{"a":1}'}, {"a": 1}),
        (None, {"content": (ev.Text(text="blue"),)}, "blue"),
        (of({"type": "string"}), {"text": '{"a":1}'}, {"value": '{"a":1}'}),
        (of({"enum": ["red"]}), {"option_ids": ("red",)}, {"value": "red"}),
        ({"enum": ["red", "blue"]}, {"option_ids": ("red", "blue")}, "red, blue"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_question_is_answered_by_words_or_its_one_member(
    schema: Any, fields: Any, payload: Any
) -> None:
    session = paused(question(schema))
    (entry,) = posted(session.answer("a1", "q1", **fields))["resume"]
    assert entry == {"interruptId": "q1", "status": "resolved", "payload": payload}
    session.run(*text("Ok."), SUCCESS)
    assert session.last(ev.InteractionResolved).outcome == "answered"


@each("asked", [approval("q1"), question()], ids=["approval", "question"])
def test_what_is_skipped_is_cancelled(asked: Event) -> None:
    session = paused(asked)
    (entry,) = posted(session.answer("a1", "q1", skip=True))["resume"]
    assert entry == {"interruptId": "q1", "status": "cancelled"}
    session.run(SUCCESS)
    assert session.last(ev.InteractionResolved).outcome == "skipped"


def test_answers_given_one_by_one_are_kept_until_the_last_is_there() -> None:
    session = paused(approval("int-1"), approval("int-2"), approval("int-3"))
    assert session.answer("a1", "int-1", decision="allow") is None
    assert session.codec.wake_at == 0
    session.due()
    # For the frontends it is over, since they may show one request at a time.
    resolved = session.last(ev.InteractionResolved)
    assert (resolved.request_id, resolved.outcome, resolved.synthetic) == (
        *("int-1", "approved"),
        True,
    )
    assert session.settled()["a1"] == "taken"
    assert session.last(ev.Notice).text.startswith("The agent goes on when 2 more of 3")
    assert session.last(ev.TurnPaused).request_ids == ("int-2", "int-3")
    assert session.answer("a2", "int-2", decision="deny") is None
    session.due()
    call = session.answer("a3", "int-3", decision="allow")
    assert call is not None
    assert call.command_ids == ("a3",)
    entries = posted(call)["resume"]
    assert [(one["interruptId"], one["payload"]["approved"]) for one in entries] == [
        ("int-1", True),
        ("int-2", False),
        ("int-3", True),
    ]
    session.run(*text("Done."), SUCCESS)
    assert len(session.of(ev.InteractionResolved)) == 3
    assert len(session.of(ev.TurnResumed)) == 1
    assert set(session.settled().values()) == {"taken"}
    assert session.last(ev.TurnEnded).outcome == "completed"
    assert session.codec.wake_at is None


def test_answers_given_at_once_go_in_one_run() -> None:
    session = paused(approval("int-1"), approval("int-2"))
    given = {
        name: cmd.AnswerInteraction(request_id=request, decision="allow")
        for name, request in (("a1", "int-1"), ("a2", "int-2"))
    }
    assert session.codec.submit_answers(given, ("k2", said("And this"))) is None
    assert session.submit("a1", given["a1"]) is None
    call = session.submit("a2", given["a2"])
    assert call is not None
    assert call.command_ids == ("a2", "a1")
    assert len(posted(call)["resume"]) == 2
    assert "And this" not in str(posted(call))
    session.open(call)
    session.run(*text("Done."), SUCCESS)
    # The first was on its way when the second came: nothing tells it twice.
    assert session.settled() == {"k1": "taken", "a1": "taken", "a2": "taken"}
    assert [one.request_id for one in session.of(ev.InteractionResolved)] == ["int-1", "int-2"]


def test_one_of_two_answers_outlives_a_restart() -> None:
    session = paused(approval("int-1"), approval("int-2"))
    session.answer("a1", "int-1", decision="deny", reason="No.")
    session.due()
    session.restart()
    assert session.codec.wake_at is None
    call = session.answer("a2", "int-2", decision="allow")
    payloads = [one["payload"] for one in posted(call)["resume"]]
    assert payloads == [{"approved": False, "reason": "No."}, {"approved": True}]


def test_an_answer_kept_before_a_restart_is_told_after_it() -> None:
    session = paused(approval("int-1"), approval("int-2"))
    session.answer("a1", "int-1", decision="allow")
    session.restart()
    # The session gives it again, since nothing says what became of it.
    given = cmd.AnswerInteraction(request_id="int-1", decision="allow")
    assert session.codec.submit("a1", given) is None
    session.due()
    assert session.settled()["a1"] == "taken"
    assert [one.request_id for one in session.of(ev.InteractionResolved)] == ["int-1"]


def test_words_said_while_the_turn_waits_stay_behind_it() -> None:
    session = paused(approval("int-1"))
    session.answer("a1", "int-1", decision="allow")
    session.run(*text("Done."), SUCCESS)
    session.ask("More", "k2")
    assert [one["id"] for one in posted(session.call)["messages"]] == ["k1", "m1", "k2"]


# Refused answers.


def refused(session: Session) -> None:
    session.feed({"type": "RUN_STARTED"}, {"type": "RUN_ERROR", "message": "Not so."})
    session.close()


def test_an_error_with_nothing_before_it_refuses_the_answers() -> None:
    session = paused(approval("int-1"))
    session.answer("a1", "int-1", decision="allow")
    refused(session)
    assert session.settled()["a1"] == "refused"
    settled = session.last(ev.InputSettled)
    assert (settled.error.code, settled.error.message) == ("run_error", "Not so.")
    assert not session.of(ev.TurnEnded)
    assert not session.of(ev.InteractionResolved)
    assert session.state.interactions["int-1"].claimed_by is None
    call = session.answer("a2", "int-1", decision="deny")
    assert posted(call)["resume"][0]["payload"] == {"approved": False}
    session.run(*text("No."), SUCCESS)
    assert session.last(ev.InteractionResolved).outcome == "denied"
    assert session.last(ev.TurnEnded).outcome == "completed"


@pytest.mark.parametrize("status", [400, 500])
def test_a_refused_run_refuses_the_answers(status: int) -> None:
    session = paused(approval("int-1"))
    call = session.submit("a1", cmd.AnswerInteraction(request_id="int-1", decision="allow"))
    session.respond(call, status, {"detail": "No."})
    assert session.settled()["a1"] == "refused"
    assert session.answer("a2", "int-1", decision="allow") is not None


def test_an_answer_that_never_left_can_be_given_again() -> None:
    session = paused(approval("int-1"))
    call = session.submit("a1", cmd.AnswerInteraction(request_id="int-1", decision="allow"))
    session.fail(call, sent=False)
    assert session.settled()["a1"] == "refused"
    assert session.answer("a2", "int-1", decision="allow") is not None


def test_what_is_over_for_frontends_is_not_asked_again_when_a_run_refuses() -> None:
    session = paused(approval("int-1"), approval("int-2"))
    session.answer("a1", "int-1", decision="allow")
    session.due()
    session.answer("a2", "int-2", decision="allow")
    refused(session)
    assert session.settled() == {"k1": "taken", "a1": "taken", "a2": "refused"}
    assert list(session.state.interactions) == ["int-2"]
    call = session.answer("a3", "int-2", decision="deny")
    assert call is not None
    assert call.command_ids == ("a3",)
    assert [one["payload"]["approved"] for one in posted(call)["resume"]] == [True, False]


def test_work_before_an_error_took_the_answers() -> None:
    session = paused(approval("int-1"))
    session.answer("a1", "int-1", decision="allow")
    session.run(*text("Half"), {"type": "RUN_ERROR", "message": "Broke."})
    assert session.settled()["a1"] == "taken"
    assert session.last(ev.TurnEnded).outcome == "failed"


def test_an_answer_is_unknown_where_the_body_broke_before_any_work() -> None:
    session = paused(approval("int-1"))
    session.answer("a1", "int-1", decision="allow")
    session.feed({"type": "RUN_STARTED"})
    session.close(CloseReason.LOST)
    assert session.settled()["a1"] == "unknown"
    assert session.last(ev.TurnEnded).outcome == "failed"


# Tools of the application.


@each(
    "end",
    [SUCCESS, BARE, {**SUCCESS, "pendingToolCallIds": ["c1"]}],
    ids=["success", "bare", "pending"],
)
def test_a_call_without_result_waits_for_the_applications(end: Event) -> None:
    session = Session()
    session.ask()
    session.run(*called(), end)
    asked = session.last(ev.InteractionRequested)
    assert (asked.kind, asked.request_id, asked.call_id) == ("tool_result", "c1", "c1")
    assert session.last(ev.TurnPaused).request_ids == ("c1",)
    body = posted(session.answer("a1", "c1", text="sunny"))
    assert "resume" not in body
    assert body["messages"][-1] == {
        "id": "result-c1",
        "role": "tool",
        "toolCallId": "c1",
        "content": "sunny",
    }
    session.run(*text("Sunny."), SUCCESS)
    assert session.last(ev.TurnEnded).outcome == "completed"
    assert ev.text_of(session.last(ev.ToolReturned).content) == "sunny"
    assert [one["role"] for one in session.next_messages()] == [
        *("user", "assistant", "tool"),
        "assistant",
    ]


@each(
    ("fields", "members"),
    [
        ({"text": "Broke.", "is_error": True}, {"content": "Broke.", "error": "Broke."}),
        ({"skip": True}, {"content": "The call was not carried out."}),
        ({"skip": True, "reason": "No."}, {"content": "No."}),
        ({"content": (ev.Text(text="fine"),)}, {"content": "fine"}),
    ],
    ids=str,
)
def test_a_result_of_the_applications_may_be_a_failure(fields: Any, members: Any) -> None:
    session = Session()
    session.ask()
    session.run(*called(), SUCCESS)
    told = posted(session.answer("a1", "c1", **fields))["messages"][-1]
    assert told == {"id": "result-c1", "role": "tool", "toolCallId": "c1", **members}


def test_two_calls_wait_for_both_results() -> None:
    session = Session()
    session.ask()
    session.run(*called("c1"), *called("c2"), SUCCESS)
    assert session.answer("a1", "c1", text="one") is None
    session.due()
    messages = posted(session.answer("a2", "c2", text="two"))["messages"]
    assert [one.get("content") for one in messages if one["role"] == "tool"] == ["one", "two"]


def test_an_interrupt_without_the_name_of_its_call_leaves_the_call_open() -> None:
    """The agent goes on with the call: no result of ours may stand in its way."""
    session = Session()
    session.ask()
    session.run(*called(), interrupted(question()))
    messages = posted(session.answer("a1", "q1", text="yes"))["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant"]
    session.run(result(), *text("Done."), SUCCESS)
    assert session.last(ev.ToolReturned).output == "sent"


def test_a_cancelled_run_has_no_open_calls() -> None:
    session = Session()
    session.ask()
    session.run(*called(), {"type": "RUN_FINISHED", "outcome": {"type": "cancelled"}})
    assert session.last(ev.TurnEnded).outcome == "interrupted"
    assert not session.of(ev.InteractionRequested)


# Calls that ask for a yes to another one.


def confirmation(name: str = "adk-1", about: str = "c1") -> list[Event]:
    """Return the call by which an ADK asks."""
    original = {"id": about, "name": "mail", "args": {"to": "ann"}}
    asked = {"originalFunctionCall": original, "toolConfirmation": {"hint": "Send?"}}
    return called(name, "adk_request_confirmation", json.dumps(asked))


def changes(name: str = "x", about: str = "c1") -> list[Event]:
    """Return the call by which an Agent Framework tells clients of an approval."""
    asked = {"function_name": "mail", "function_call_id": about, "steps": []}
    return called(name, "confirm_changes", json.dumps(asked))


def is_about_the_mail(session: Session) -> None:
    """Check that an approval is asked about the one call that people see."""
    (call,) = session.of(ev.ToolCalled)
    assert (call.name, call.permission) == ("mail", "ask")
    assert not [one for one in session.of(ev.ToolInputDelta) if one.call_id != "c1"]
    (asked,) = session.of(ev.InteractionRequested)
    assert (asked.kind, asked.call_id) == ("approval", "c1")
    assert asked.details == {"tool": "mail", "input": {"to": "ann"}}


@each(
    ("asking", "fields", "content"),
    [
        (confirmation, {"decision": "allow"}, {"confirmed": True}),
        (confirmation, {"decision": "deny", "reason": "No."}, {"confirmed": False}),
        (confirmation, {"skip": True}, {"confirmed": False}),
        (changes, {"decision": "allow"}, {"accepted": True}),
    ],
)
def test_a_call_that_asks_is_an_approval_answered_by_its_result(
    asking: Any, fields: Any, content: Any
) -> None:
    session = Session()
    session.ask()
    session.run(*called(), *asking("adk-1"), BARE)
    is_about_the_mail(session)
    assert session.last(ev.InteractionRequested).request_id == "adk-1"
    session.restart()
    body = posted(session.answer("a1", "adk-1", **fields))
    assert "resume" not in body
    *before, owner, tool = body["messages"]
    assert [one["role"] for one in before] == ["user", "assistant"]
    assert owner["toolCalls"][0]["id"] == tool["toolCallId"] == "adk-1"
    assert json.loads(tool["content"]) == content
    session.run(result(), *text("Done."), BARE)
    assert session.last(ev.ToolReturned).output == "sent"
    assert session.last(ev.TurnEnded).outcome == "completed"
    assert [one["role"] for one in session.next_messages()] == [
        *("user", "assistant", "tool", "assistant")
    ]


def test_a_call_that_asks_beside_an_interrupt_is_asked_once() -> None:
    session = Session()
    session.ask()
    asked = {"id": "adk-1", "reason": "confirmation", "message": "Send?", "toolCallId": "adk-1"}
    session.run(*called(), *confirmation(), interrupted(asked))
    is_about_the_mail(session)
    body = posted(session.answer("a1", "adk-1", decision="allow"))
    assert body["resume"][0]["payload"] == {"approved": True}
    session.run(result(), *text("Done."), BARE)
    assert session.last(ev.TurnEnded).outcome == "completed"


def test_a_call_that_only_tells_of_an_interrupt_is_not_left_open() -> None:
    """An Agent Framework tells the result of what was denied in a snapshot only."""
    session = Session()
    session.ask()
    session.run(*called(), *changes(), interrupted(approval("af-1", "c1")))
    is_about_the_mail(session)
    session.answer("a1", "af-1", decision="deny")
    calls = [
        {"id": name, "type": "function", "function": {"name": tool, "arguments": "{}"}}
        for name, tool in (("c1", "mail"), ("x", "confirm_changes"))
    ]
    owner = {"id": "m0", "role": "assistant", "content": "", "toolCalls": calls}
    tool = {"id": "t", "role": "tool", "toolCallId": "c1", "content": "Error: rejected."}
    user = {"id": "k1", "role": "user", "content": "Hello"}
    told = {"type": "MESSAGES_SNAPSHOT", "messages": [user, owner, tool]}
    session.run(*text("No."), told, BARE)
    assert [one.output for one in session.of(ev.ToolReturned)] == ["Error: rejected."]
    assert len(session.of(ev.ToolCalled)) == 1
    assert session.last(ev.TurnEnded).outcome == "completed"


def test_an_allowed_call_without_result_is_not_the_applications() -> None:
    """An ADK carries out one of two answers."""
    session = Session()
    session.ask()
    session.run(*called(), *called("c2"), interrupted(approval("a", "c1"), approval("b", "c2")))
    assert session.answer("a1", "a", decision="allow") is None
    session.answer("a2", "b", decision="allow")
    session.run(result("c2"), *text("One."), BARE)
    assert session.last(ev.TurnEnded).outcome == "completed"
    assert [one.kind for one in session.of(ev.InteractionRequested)] == ["approval"] * 2
    returned = {one.call_id: one.status for one in session.of(ev.ToolReturned)}
    assert returned == {"c2": "completed", "c1": "interrupted"}


def test_the_result_before_the_question_is_not_the_calls() -> None:
    """An ADK gives each call of several a result that says what it waits for."""
    waits = "This tool call requires confirmation, please approve or reject."
    session = Session()
    session.ask()
    session.run(*called(), result(content=json.dumps({"error": waits})), *confirmation(), BARE)
    assert not session.of(ev.ToolReturned)
    is_about_the_mail(session)
    session.answer("a1", "adk-1", decision="allow")
    session.run(result(), *text("Done."), BARE)
    assert [one.output for one in session.of(ev.ToolReturned)] == ["sent"]


@each("args", ["", "{}", "[1]", '{"function_call_id":5}'])
def test_a_call_of_that_name_that_asks_nothing_is_a_call(args: str) -> None:
    session = Session()
    session.ask()
    session.run(*called("x", "confirm_changes", args), BARE)
    assert session.last(ev.ToolCalled).name == "confirm_changes"
    assert session.last(ev.InteractionRequested).kind == "tool_result"


def test_a_clients_tool_beside_a_call_that_asks_waits_too() -> None:
    session = Session()
    session.ask()
    session.run(*called(), *called("c2", "color"), *confirmation(), BARE)
    kinds = {one.request_id: one.kind for one in session.of(ev.InteractionRequested)}
    assert kinds == {"adk-1": "approval", "c2": "tool_result"}
    assert session.answer("a1", "c2", text="red") is None
    messages = posted(session.answer("a2", "adk-1", decision="allow"))["messages"]
    tools = {one["toolCallId"]: one["content"] for one in messages if one["role"] == "tool"}
    assert tools == {"c2": "red", "adk-1": '{"confirmed":true}'}
