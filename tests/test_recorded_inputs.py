"""Where what the user said belongs in the events of a recorded body."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.offline.recorded_inputs import BadInput, RecordedInputs, read_inputs

STARTED = ev.TurnStarted(thread_id="main", turn_id="t", cause="unknown")
STEP = ev.StepStarted(thread_id="main", turn_id="t", step_index=0)
ENDED = ev.TurnEnded(thread_id="main", turn_id="t", outcome="completed")
STOPPED = ev.TurnEnded(thread_id="main", turn_id="t", outcome="interrupted")


def echo(text: str = "Hello", turn_id: str | None = "t") -> ev.MessageReceived:
    return ev.MessageReceived(
        thread_id="main", turn_id=turn_id, message_id="m", content=(ev.Text(text=text),)
    )


def asked(kind: Any = "approval", **fields: Any) -> ev.InteractionRequested:
    return ev.InteractionRequested(
        **{
            "thread_id": "main",
            "turn_id": "t",
            "request_id": "r",
            "kind": kind,
            "prompt": "?",
            **fields,
        }
    )


def resolved(outcome: Any = "unknown", **fields: Any) -> ev.InteractionResolved:
    return ev.InteractionResolved(
        thread_id="main", turn_id="t", request_id="r", outcome=outcome, **fields
    )


def woven(said: Any, *events: ev.Event) -> tuple[list[Any], RecordedInputs]:
    inputs = RecordedInputs(read_inputs(json.dumps(said).encode()), session_id="s", face="herm")
    return list(inputs.weave(events)), inputs


def types(events: list[Any]) -> list[str]:
    return [event.TYPE for event in events]


def test_a_message_that_the_source_echoes_is_not_said_twice() -> None:
    out, inputs = woven(["Hello"], STARTED, echo(), STEP)
    assert types(out) == [
        *("input.accepted", "input.settled", "turn.started"),
        *("message.received", "step.started"),
    ]
    assert out[3].command_id == out[0].command_id == "s-input-1"
    assert (out[0].by, out[0].face, out[2].cause) == ("recording", "herm", "message")
    assert inputs.left == 0


def test_a_message_that_is_echoed_before_its_turn_does_not_cost_the_turn_another() -> None:
    out, inputs = woven(["Hello", "More"], echo(turn_id=None), STARTED, STEP, ENDED)
    assert types(out)[:4] == [
        *("input.accepted", "input.settled", "message.received", "turn.started"),
    ]
    assert types(out).count("message.received") == 1
    assert out[3].cause == "message"
    assert inputs.left == 1


def test_an_echo_in_a_turn_that_runs_takes_the_next_message() -> None:
    out, _ = woven(["Hello", "More"], STARTED, echo(), echo("More"), STARTED)
    received = [event for event in out if event.TYPE == "message.received"]
    assert [event.command_id for event in received] == ["s-input-1", "s-input-2"]
    assert out[-1] == STARTED


def test_an_echo_without_an_input_stays_as_it_is() -> None:
    assert woven([], STARTED, echo())[0] == [STARTED, echo()]


def test_a_message_that_is_not_echoed_is_received_before_the_work_begins() -> None:
    noticed = ev.Notice(thread_id="main", text="soon")
    out, _ = woven(["Hello"], STARTED, noticed, STEP)
    assert types(out)[3:] == ["notice", "message.received", "step.started"]
    assert out[4].synthetic
    assert types(woven(["Hello"], STARTED, ENDED)[0])[-2:] == ["message.received", "turn.ended"]
    assert types(woven(["Hello"], STARTED, STARTED)[0])[-2:] == ["message.received", "turn.started"]


def test_steering_and_interrupts_go_to_what_they_did() -> None:
    said = [
        {"type": "user.interrupt", "message": "stop"},
        {"type": "user.steer", "message": "left"},
    ]
    guided = ev.GuidanceReceived(thread_id="main", turn_id="t", text="left")
    out, inputs = woven(said, STARTED, guided, STOPPED)
    assert types(out) == [
        *("turn.started", "input.accepted", "input.settled", "guidance.received"),
        *("input.accepted", "input.settled", "turn.ended"),
    ]
    assert out[3].command_id == "s-input-2"
    assert (out[1].kind, out[4].kind) == ("steer", "interrupt")
    assert inputs.left == 0
    assert woven([], guided, STOPPED)[0] == [guided, STOPPED]


def test_what_children_do_is_left_alone() -> None:
    child = STARTED.model_copy(update={"thread_id": "child"})
    assert woven(["Hello"], child)[0] == [child]


def test_an_answer_is_found_by_the_request_or_by_its_call() -> None:
    confirmation = {"type": "user.tool_confirmation", "tool_use_id": "c", "result": "allow"}
    for request, given, there in (
        (asked(call_id="c"), confirmation, True),
        (asked(), confirmation, False),
        (asked(), {**confirmation, "tool_use_id": "r"}, True),
        (asked(), {"answer": "yes"}, True),
    ):
        out, inputs = woven([given], request, resolved())
        assert (types(out)[1:4] == ["input.accepted", "interaction.answered", "input.settled"]) is (
            there
        )
        assert out[-1].outcome == ("approved" if there else "unknown")
        assert inputs.left == (0 if there else 1)


@pytest.mark.parametrize(
    ("given", "kind", "outcome", "scope"),
    [
        ({"answer": "yes"}, "approval", "approved", "once"),
        ({"answer": "no"}, "approval", "denied", None),
        ({"inputResponses": [{"requestId": "r", "optionId": "deny"}]}, "approval", "denied", None),
        ({"choice": "always"}, "approval", "approved", "always"),
        ({"answer": "yes"}, "question", "answered", None),
        ({"answer": "who knows"}, "approval", "answered", None),
        (
            {"type": "user.clarify_result", "request_id": "r", "answer": ""},
            "question",
            "skipped",
            None,
        ),
    ],
)
def test_an_answer_says_the_outcome_that_the_source_does_not(
    given: Any, kind: str, outcome: str, scope: str | None
) -> None:
    out, _ = woven([given], asked(kind), resolved())
    assert (out[-1].outcome, out[-1].scope) == (outcome, scope)


def test_what_the_source_says_of_the_outcome_stands() -> None:
    answer = ev.Answer(text="theirs")
    event = resolved("denied", answer=answer)
    out, _ = woven([{"answer": "yes"}], asked(), event)
    assert out[-1] == event


@pytest.mark.parametrize("kind", sorted(ev.SEALED_KINDS))
def test_the_answer_to_a_sealed_request_is_not_kept_in_whatever_form_it_came(kind: str) -> None:
    out, _ = woven([{"answer": "hunter2", "feedback": "hunter2"}], asked(kind), resolved())
    assert types(out)[1] == "input.accepted"
    assert "hunter2" not in repr(out)
    assert out[-1].outcome == "answered"


def test_an_answer_without_its_request_is_matched_by_its_id() -> None:
    given = {"type": "answer", "request_id": "r", "text": "blue"}
    out, _ = woven([given], resolved("answered"))
    assert out[-1].answer == ev.Answer(text="blue")


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("plain", ev.Text(text="plain")),
        (
            {
                "type": "file",
                "mediaType": "image/png",
                "filename": "a.png",
                "data": "data:;base64,AAEC",
            },
            ("a.png", "image/png", 3),
        ),
        (
            {"type": "file", "mediaType": "image/png", "data": "https://plants.example/a.png"},
            ev.File(media_type="image/png", ref=ev.Url(url="https://plants.example/a.png")),
        ),
        (
            {"type": "document", "source": {"type": "url", "url": "https://plants.example/b"}},
            ev.File(ref=ev.Url(url="https://plants.example/b")),
        ),
        (
            {"type": "image", "source": {"type": "file", "file_id": "f"}},
            ev.Other(
                dialect="recording",
                value={"type": "image", "source": {"type": "file", "file_id": "f"}},
            ),
        ),
    ],
)
def test_blocks_of_every_dialect_are_read(block: Any, expected: Any) -> None:
    (command,) = read_inputs(json.dumps({"message": [block, 7]}).encode())
    assert isinstance(command, cmd.SendMessage)
    (found,) = command.content
    if isinstance(expected, tuple):
        assert isinstance(found, ev.File)
        assert (found.name, found.media_type, found.size) == expected
    else:
        assert found == expected


@pytest.mark.parametrize(
    "value",
    [
        {"type": "user.dance"},
        {"method": "session.list", "params": {}},
        {"inputResponses": ["yes"]},
        {"events": []},
        [[1]],
        {"message": {"text": "no list"}},
        {"message": [{"type": "image", "source": {"type": "base64", "data": "A"}}]},
    ],
)
def test_what_is_no_request_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match="no request"):
        read_inputs(json.dumps(value).encode())


def test_the_bytes_of_a_file_are_not_in_the_command() -> None:
    data = base64.b64encode(b"flower").decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    (command,) = read_inputs(
        json.dumps({"input": [{"content": [{"type": "image", "source": source}]}]}).encode()
    )
    assert data not in repr(command)


@pytest.mark.parametrize("name", ["events", "initial_events"])
def test_a_batch_of_events_is_read_also_where_it_makes_the_session(name: str) -> None:
    said = {"type": "user.message", "content": [{"type": "text", "text": "Hello"}]}
    create = {"agent": "agent_1", "environment_id": "env_1", name: [said, {"type": "other"}]}
    (command,) = read_inputs(json.dumps(create).encode())
    assert isinstance(command, cmd.SendMessage)
    assert command.content == (ev.Text(text="Hello"),)


@pytest.mark.parametrize("name", ["user.tool_result", "user.custom_tool_result"])
def test_a_result_of_a_custom_tool_is_an_answer_in_both_spellings(name: str) -> None:
    said = {"type": name, "tool_use_id": "r", "content": [{"type": "text", "text": "12"}]}
    (command,) = read_inputs(json.dumps([said]).encode())
    assert isinstance(command, cmd.AnswerInteraction)
    assert (command.request_id, command.content, command.is_error) == (
        "r",
        (ev.Text(text="12"),),
        False,
    )
