"""What goes over to another backend of what was said, and what the report says of the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from adapters.model import events as ev
from adapters.model.base import Fidelity
from adapters.model.commands import SendMessage
from adapters.model.stored import StoredByNewer
from adapters.offline.moves import ConversationHistory, HandoverCodec, HistoryPart, HistoryWriter
from adapters.offline.moves.history import FILES_BYTES, HISTORY_CHARACTERS, VALUE_CHARACTERS
from adapters.registry import DIALECTS


def history_of(events: Iterable[ev.Event]) -> ConversationHistory:
    historian = HistoryWriter()
    for event in events:
        historian.feed(event)
    return historian.made()


def said(text: str, **fields: Any) -> ev.MessageReceived:
    content = (ev.Text(text=text), *fields.pop("files", ()))
    return ev.MessageReceived(thread_id=ev.MAIN, message_id="m", content=content, **fields)


def replied(text: str, **fields: Any) -> ev.TextCompleted:
    return ev.TextCompleted(
        **{"thread_id": ev.MAIN, "block_id": "b", "message_id": "m", "text": text, **fields}
    )


def file(name: str, size: int = 4) -> ev.File:
    return ev.File(media_type="image/png", name=name, size=size, ref=ev.Blob(sha256=name))


def by_name(history: ConversationHistory) -> dict[str, HistoryPart]:
    return {one.what: one for one in history.carried}


def test_words_go_over_as_they_were_and_the_rest_as_lines_of_text() -> None:
    call: Any = {"thread_id": ev.MAIN, "call_id": "c"}
    history = history_of(
        [
            said("Pay Ada."),
            ev.ReasoningCompleted(thread_id=ev.MAIN, block_id="r", message_id="m", text="Hm."),
            replied("I will."),
            ev.ToolCalled(**call, name="pay", input={"to": "Ada"}),
            ev.InteractionRequested(
                thread_id=ev.MAIN, request_id="q", kind="approval", prompt="Pay 5?"
            ),
            ev.InteractionResolved(
                thread_id=ev.MAIN, request_id="q", outcome="approved", reason="She waits"
            ),
            ev.ToolReturned(**call, output={"paid": True}),
            ev.ResultProduced(thread_id=ev.MAIN, value={"n": 1}),
            ev.TurnEnded(
                thread_id=ev.MAIN, outcome="failed", error=ev.ErrorInfo(code="e", message="Boom")
            ),
        ]
    )
    begin, *parts, end = history.text.split("\n\n")
    assert "began on another system" in begin
    assert "What follows is new" in end
    assert parts == [
        "User: Pay Ada.",
        "Assistant: I will.",
        "The user was asked (approval): Pay 5?\nThe answer: approved (She waits)",
        'Tool `pay` was called with {"to":"Ada"} and returned: {"paid":true}',
        'Result: {"n":1}',
        "(The turn ended as failed: Boom)",
    ]
    carried = by_name(history)
    assert carried["messages of people"].fidelity is Fidelity.EXACT
    assert carried["tool calls"].fidelity is Fidelity.APPROXIMATED
    assert carried["reasoning"].fidelity is Fidelity.DROPPED


@pytest.mark.parametrize(
    ("resolved", "line"),
    [
        ({"outcome": "answered", "answer": ev.Answer(option_ids=("b",))}, "Blue"),
        ({"outcome": "answered", "answer": ev.Answer(text="Teal")}, "Teal"),
        ({"outcome": "answered"}, "answered"),
        ({"outcome": "expired"}, "not answered in time"),
        ({"outcome": "denied"}, "denied"),
    ],
)
def test_an_answer_is_told_in_its_words(resolved: dict[str, Any], line: str) -> None:
    history = history_of(
        [
            ev.InteractionRequested(
                thread_id=ev.MAIN,
                request_id="q",
                kind="question",
                prompt="Which?",
                options=(ev.Option(id="b", label="Blue"),),
            ),
            ev.InteractionResolved(thread_id=ev.MAIN, request_id="q", **resolved),
        ]
    )
    assert f"The user was asked (question): Which?\nThe answer: {line}" in history.text


def test_what_is_not_the_conversation_stays() -> None:
    """A child's own words, a step that was repeated, a secret, and what was cleared."""
    secret = ev.InteractionRequested(
        thread_id=ev.MAIN, request_id="s", kind="secret", prompt="Key?"
    )
    history = history_of(
        [
            said("Before."),
            ev.ContextCleared(thread_id=ev.MAIN),
            said("After."),
            replied("Of the child.", thread_id="kid"),
            replied("Again.", status="discarded"),
            ev.ThreadStarted(thread_id="kid", parent=ev.MAIN, name="digger"),
            secret,
            ev.InteractionResolved(thread_id=ev.MAIN, request_id="s", outcome="answered"),
        ]
    )
    assert history.text.split("\n\n")[1:-1] == ["User: After.", "A child agent began: digger"]
    assert by_name(history)["secrets"] == HistoryPart(
        "secrets", 1, Fidelity.DROPPED, "they are never stored"
    )
    assert history_of([]).text == ""


def test_a_long_history_loses_its_oldest_part_and_says_so() -> None:
    piece = "x" * (HISTORY_CHARACTERS // 4)
    history = history_of([said(f"{number} {piece}") for number in range(6)])
    assert "User: 0 " not in history.text
    assert "User: 5 " in history.text
    assert len(history.text) < HISTORY_CHARACTERS + 1_000
    assert by_name(history)["parts"].count == 3
    (one,) = history_of([said(f"a{piece * 5}z")]).text.split("\n\n")[1:-1]
    assert (one[0], one[-1], len(one)) == ("…", "z", HISTORY_CHARACTERS + 1)
    call: Any = {"thread_id": ev.MAIN, "call_id": "c"}
    long = history_of(
        [
            ev.ToolCalled(**call, name="read", input={}),
            ev.ToolReturned(**call, output="y" * (VALUE_CHARACTERS + 7)),
        ]
    )
    assert "… (7 characters more)" in long.text
    assert by_name(long)["long inputs and results of tools"].count == 1


def test_the_files_of_a_message_are_those_that_were_sent() -> None:
    """An echo may have the words only."""
    sent = ev.InputAccepted(
        thread_id=ev.MAIN,
        command_id="i",
        kind="message",
        content=(ev.Text(text="Look."), file("a.png")),
        by="me",
    )
    refused = sent.model_copy(update={"command_id": "j", "content": (file("b.png"),)})
    history = history_of(
        [
            sent,
            refused,
            ev.InputSettled(thread_id=ev.MAIN, command_id="j", outcome="refused"),
            said("Look.", command_id="i"),
        ]
    )
    assert [one.name for one in history.files] == ["a.png"]
    assert "User: Look.\n[file: a.png]" in history.text


def test_of_many_files_the_newest_go_over() -> None:
    half = FILES_BYTES // 2
    history = history_of(
        [said("", files=(file("a", half), file("b", half), file("c", half), file("d", 1)))]
    )
    fitting = history.fitting(lambda one: "no" if one.name == "d" else None)
    assert [one.name for one in fitting.files] == ["c"]
    whys = {what: one.why for what, one in by_name(fitting).items()}
    assert whys["file `d`"] == "no"
    assert "take more than" in whys["file `a`"]
    assert "take more than" in whys["file `b`"]
    assert by_name(fitting)["files"].fidelity is Fidelity.EXACT


@pytest.mark.parametrize(
    "dialect", [name for name, known in DIALECTS.items() if not known.not_driven]
)
def test_every_codec_says_how_it_takes_a_history_and_carries_one(dialect: str) -> None:
    make = DIALECTS[dialect].client
    assert make is not None
    codec = make({"task_id": "t", "agent": "a"})
    assert codec.history.how
    message = SendMessage(content=(ev.Text(text="Now?"),), policy="queue")
    codec.check(codec.with_history(message, "Before.", ()))
    picture = file("a.png")
    made = codec.with_history(message, "Before.", (picture,))
    assert made.content == (ev.Text(text="Before.\n\n"), picture, ev.Text(text="Now?"))


def continuing() -> HandoverCodec:
    make = DIALECTS["engine"].client
    assert make is not None
    return HandoverCodec(make({"task_id": "t"}))


def test_what_is_owed_outlives_a_restart() -> None:
    codec = continuing()
    codec.begin(ConversationHistory("Before.", (file("a"),)))
    before, stored, after = codec.changed, codec.snapshot(), codec.changed
    assert (before, after) == (True, False)
    again = continuing()
    again.restore(stored, codec.position)
    assert again.owes_history
    assert again.snapshot() == stored
    # A message that goes out changes the state, and the position has it.
    message = SendMessage(content=(ev.Text(text="Now?"),), policy="queue")
    again.submit("i", message)
    assert again.changed
    third = continuing()
    third.restore(stored, again.position)
    assert third.snapshot() == again.snapshot()
    with pytest.raises(StoredByNewer):
        third.restore(b"v99 {}\n", None)
    with pytest.raises(ValueError, match="has no version"):
        third.restore(b"nothing", None)


def test_what_was_taken_is_not_given_again_and_is_looked_up_as_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codec = continuing()
    codec.snapshot()
    codec.begin(ConversationHistory("Before."))
    assert codec.changed
    codec.snapshot()
    message = SendMessage(content=(ev.Text(text="Now?"),), policy="queue")
    codec.submit("i", message)
    looked_up: list[Any] = []
    monkeypatch.setattr(codec.inner, "recover", lambda _, command: looked_up.append(command))
    codec.recover("i", message)
    codec.recover("j", message)
    assert [len(command.content) for command in looked_up] == [2, 1]
    refused = ev.InputSettled(thread_id=ev.MAIN, command_id="i", outcome="refused")
    codec._ours([refused])
    owed = codec.owes_history
    codec._ours([refused.model_copy(update={"outcome": "taken"})])
    assert (owed, codec.owes_history) == (True, False)
    # Its echo still has the words of the person only.
    echo = ev.MessageReceived(
        thread_id=ev.MAIN,
        message_id="m",
        content=(ev.Text(text="Before.\n\nNow?"),),
        command_id="i",
    )
    (ours,) = codec._ours([echo])
    assert isinstance(ours, ev.MessageReceived)
    assert ours.content == message.content
