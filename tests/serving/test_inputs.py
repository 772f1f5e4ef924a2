"""Inputs of an encoder: commands that belong together, and what became of each."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.model import events as ev
from adapters.serving.inputs import InputBatch, InputBatches, NotesForm, PendingInput
from adapters.serving.messages import SaidMessages
from adapters.serving.notes import Note

from .notes import SomeNotes

ERROR = ev.ErrorInfo(code="busy", message="It works.", status=409)


def said(
    inputs: InputBatches[SomeNotes],
    command_id: str,
    *,
    notes: SomeNotes | None = None,
    kind: Any = "message",
    policy: Any = "reject",
    messages: tuple[dict[str, Any], ...] = (),
    is_open: bool = False,
) -> InputBatch[SomeNotes] | None:
    event = ev.InputAccepted(
        thread_id=ev.MAIN, command_id=command_id, kind=kind, policy=policy, by="key"
    )
    ids = [f"of-{command_id}"] if kind == "message" else []
    return inputs.accepted(event, notes or SomeNotes(), ids, messages=messages, is_open=is_open)


def settled(command_id: str, outcome: Any, **fields: Any) -> ev.InputSettled:
    return ev.InputSettled(thread_id=ev.MAIN, command_id=command_id, outcome=outcome, **fields)


def received(command_id: str | None = None) -> ev.MessageReceived:
    return ev.MessageReceived(
        thread_id="child", message_id="m", content=(ev.Text(text="hi"),), command_id=command_id
    )


def test_a_batch_is_whole_with_the_last_of_its_commands() -> None:
    inputs: InputBatches[SomeNotes] = InputBatches()
    notes = SomeNotes(parts=2)
    answer = {"toolCallId": "call"}
    assert said(inputs, "a", notes=notes, kind="answer", policy=None, messages=(answer,)) is None
    batch = said(inputs, "b", notes=notes, messages=({"id": "of-b"},))
    assert batch == InputBatch(notes, [answer, {"id": "of-b"}], ["a", "b"])
    assert inputs.awaited == {
        "a": PendingInput(False, calls=["call"]),
        "b": PendingInput(True, ids=["of-b"]),
    }
    assert (inputs.heard, inputs.batch) == (SaidMessages(["of-b"], inputs={"of-b": "b"}), None)


@pytest.mark.parametrize(
    ("policy", "parts", "is_open", "waits"),
    [
        ("queue", 1, True, True),
        ("decline", 1, True, True),
        ("queue", 1, False, False),
        ("reject", 1, True, False),
        ("interrupt", 1, True, False),
        # PersonMessage that came with answers belong to the stream of these.
        ("queue", 2, True, False),
    ],
)
def test_words_wait_for_the_end_of_a_stream_where_they_come_behind_its_turn(
    policy: str, parts: int, is_open: bool, waits: bool
) -> None:
    inputs: InputBatches[SomeNotes] = InputBatches()
    notes = SomeNotes(parts=parts)
    for number in range(parts - 1):
        said(inputs, f"answer-{number}", notes=notes, kind="answer", policy=None, is_open=is_open)
    batch = said(inputs, "a", notes=notes, policy=policy, is_open=is_open)
    assert (batch is None) == waits == (len(inputs.later) == 1) == inputs.awaited["a"].behind
    assert inputs.awaited["a"].queued == (policy in ("queue", "decline"))
    assert inputs.awaited["a"].declines == (policy == "decline")


def test_batches_that_waited_come_in_their_order_and_are_behind_no_more() -> None:
    inputs: InputBatches[SomeNotes] = InputBatches()
    assert inputs.next_later() is None
    said(inputs, "a", policy="queue", is_open=True)
    said(inputs, "b", policy="queue", is_open=True)
    assert (inputs.go_on, inputs.under_way) == (False, False)
    first = inputs.next_later()
    assert first is not None
    assert first.commands == ["a"]
    assert [one.behind for one in inputs.awaited.values()] == [False, True]
    assert (inputs.go_on, inputs.under_way) == (True, False)
    # What became of it is known before its turn comes.
    inputs.settled(settled("b", "withdrawn"))
    second = inputs.next_later()
    assert second is not None
    assert second.commands == ["b"]
    assert inputs.next_later() is None


@pytest.mark.parametrize(
    ("kind", "event", "error", "heard"),
    [
        ("answer", settled("a", "taken"), None, SaidMessages()),
        ("message", settled("a", "refused", error=ERROR), ERROR, SaidMessages([], ["of-a"])),
        (
            "message",
            settled("a", "refused", error=ERROR.model_copy(update={"status": 422})),
            ERROR.model_copy(update={"status": 422}),
            SaidMessages(["of-a"]),
        ),
        (
            "message",
            settled("a", "withdrawn", reason="Somebody stopped it."),
            ev.ErrorInfo(code="backend_unavailable", message="Somebody stopped it."),
            SaidMessages([], ["of-a"]),
        ),
        (
            "message",
            settled("a", "unknown"),
            ev.ErrorInfo(code="backend_unavailable", message="What became of it: unknown."),
            SaidMessages(["of-a"]),
        ),
    ],
)
def test_an_input_whose_fate_is_known_is_returned_once_with_its_error(
    kind: str, event: ev.InputSettled, error: ev.ErrorInfo | None, heard: SaidMessages
) -> None:
    inputs: InputBatches[SomeNotes] = InputBatches()
    said(inputs, "a", kind=kind)
    pending = inputs.awaited["a"]
    assert inputs.settled(event) == (pending, error)
    assert inputs.heard == heard
    assert not inputs.under_way
    assert inputs.settled(event) is None


def test_a_message_that_was_taken_is_awaited_until_it_is_received() -> None:
    inputs: InputBatches[SomeNotes] = InputBatches()
    said(inputs, "a")
    assert inputs.settled(settled("a", "taken")) is None
    assert (inputs.under_way, inputs.go_on) == (True, True)
    assert inputs.from_elsewhere(received("a")) is None
    assert not inputs.awaited


def test_a_batch_keeps_the_error_that_it_got_while_it_waited() -> None:
    inputs: InputBatches[SomeNotes] = InputBatches()
    said(inputs, "a", policy="queue", is_open=True)
    said(inputs, "b", policy="queue", is_open=True)
    inputs.settled(settled("b", "refused", error=ERROR))
    assert [batch.error for batch in inputs.later] == [None, ERROR]


def test_what_was_said_elsewhere_is_told_with_its_thread() -> None:
    inputs: InputBatches[SomeNotes] = InputBatches()
    said(inputs, "a")
    steering = ev.GuidanceReceived(thread_id=ev.MAIN, text="faster", command_id="a")
    assert inputs.from_elsewhere(received()) == ("child", {"text": "hi"})
    assert inputs.from_elsewhere(received("z")) == ("child", {"text": "hi"})
    assert inputs.from_elsewhere(steering) == (ev.MAIN, {"text": "faster", "kind": "guidance"})
    assert list(inputs.awaited) == ["a"]


def test_what_reaches_no_agent_is_told_once_in_a_session() -> None:
    inputs: InputBatches[SomeNotes] = InputBatches()
    first = SomeNotes(1, [("m", "It is too large.")], ["tools", "state"], "digest")
    words = "The agent has no place for these; the run goes on without them."
    assert inputs.begin(InputBatch(first, commands=["a"]), "run-1", 3, goes_on="the run") == [
        Note(
            "left_out",
            {
                "messageId": "m",
                "message": "This message was refused, and the agent goes on without it: "
                "It is too large.",
            },
        ),
        Note("ignored", {"members": ["tools", "state"], "message": words}),
    ]
    assert (inputs.begun, inputs.context) == ({"a": ("run-1", 3)}, "digest")
    assert inputs.knows(["x", "m"])
    assert not inputs.knows(["x"])
    again = InputBatch(SomeNotes(ignored=["state", "forwarded"]), commands=["b"])
    assert inputs.begin(again, "run-2", 9, goes_on="the run") == [
        Note("ignored", {"members": ["forwarded"], "message": words})
    ]
    assert inputs.context == "digest"
    assert inputs.begin(again, "run-3", 10, goes_on="the run") == []


def test_the_oldest_streams_are_forgotten() -> None:
    inputs: InputBatches[SomeNotes] = InputBatches()
    most = 64
    for number in range(most + 2):
        inputs.begin(InputBatch(SomeNotes(), commands=[f"{number}"]), "run", number, goes_on="it")
    assert list(inputs.begun) == [f"{number}" for number in range(2, most + 2)]


def test_the_notes_of_the_first_request_go_with_its_first_command_alone() -> None:
    opening, own = SomeNotes(parts=2), SomeNotes(parts=3)
    inputs = InputBatches(opening)
    assert inputs.notes_for(own) is own
    assert inputs.notes_for(None) is opening
    assert inputs.notes_for(None) is None


def test_the_end_of_the_session_leaves_nothing_that_waits() -> None:
    inputs: InputBatches[SomeNotes] = InputBatches()
    said(inputs, "a", policy="queue", is_open=True)
    said(inputs, "b", notes=SomeNotes(parts=2))
    inputs.ended()
    heard = SaidMessages(["of-a", "of-b"], inputs={"of-a": "a", "of-b": "b"})
    assert inputs == InputBatches(heard=heard)


def test_notes_stand_in_the_log_without_what_is_as_usual() -> None:
    form = NotesForm(SomeNotes)
    notes = SomeNotes(left_out=[("m", "why")])
    assert form.write(SomeNotes()) == {}
    assert form.write(notes) == {"left_out": [["m", "why"]]}
    assert form.read(form.write(notes)) == notes
    assert form.read(None) is None
