"""What is kept of a conversation for a backend that remembers nothing, and how it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from adapters.agui.client.messages import FORM
from adapters.driving import transcript
from adapters.driving.transcript import INTERRUPTED, GivenResult, written
from adapters.model import conversation
from adapters.model import events as ev
from adapters.model.conversation import HEARD, Conversation, Exchange
from adapters.model.file_body import FileBody, restored
from adapters.model.normalizer import Normalizer
from tests.support.each import each
from tests.test_laws import streams

OURS = ev.NativeRef(dialect="agui")
SHA = "a" * 64


def accepted(name: str, words: str = "", **details: Any) -> ev.InputAccepted:
    return ev.InputAccepted(
        thread_id=ev.MAIN,
        command_id=name,
        kind="message",
        by="ann",
        content=(ev.Text(text=words),) if words else None,
        details=details or None,
    )


def received(name: str, words: str = "", thread: str = ev.MAIN) -> ev.MessageReceived:
    content = (ev.Text(text=words or name),)
    return ev.MessageReceived(thread_id=thread, message_id=name, content=content, command_id=name)


def asked(name: str, words: str = "", **details: Any) -> list[ev.Event]:
    return [accepted(name, words, **details), received(name, words)]


def answered(words: str, name: str = "m1", thread: str = ev.MAIN, **fields: Any) -> ev.Event:
    given = {"native": OURS, "text": words, "message_id": name, "block_id": name, **fields}
    return ev.TextCompleted(thread_id=thread, turn_id="t", **given)


def thought(words: str, name: str = "t1", **fields: Any) -> ev.Event:
    given = {"native": OURS, "text": words, "message_id": name, "block_id": name, **fields}
    return ev.ReasoningCompleted(thread_id=ev.MAIN, turn_id="t", **given)


def called(name: str, own: str | None = None, **fields: Any) -> ev.Event:
    native = ev.NativeRef(dialect="agui", id=own or name)
    given = {"native": native, "input": {"n": name}, **fields}
    return ev.ToolCalled(thread_id=ev.MAIN, turn_id="t", call_id=name, name="run", **given)


def returned(name: str, output: Any = "done", **fields: Any) -> ev.Event:
    given = {"native": OURS, "output": output, **fields}
    return ev.ToolReturned(thread_id=ev.MAIN, turn_id="t", call_id=name, **given)


def heard(*events: ev.Event | list[ev.Event]) -> Conversation:
    said = Conversation()
    for one in events:
        for event in one if isinstance(one, list) else [one]:
            said.hear(event)
    return said


def sent(exchanges: Sequence[Exchange], **options: Any) -> list[dict[str, Any]]:
    pieces = written(FORM, exchanges, **options)
    found: list[dict[str, Any]] = json.loads(b"[%b]" % b",".join(pieces))
    return found


def names(found: Iterable[dict[str, Any]]) -> list[str]:
    return [one["id"] for one in found]


# The fold.


def test_an_exchange_goes_from_one_message_to_the_next() -> None:
    said = heard(asked("k1"), answered("One."), asked("k2"), answered("Two.", "m2"))
    assert [[event.TYPE for event in one.events] for one in said.exchanges] == [
        ["message.received", "text.completed"],
        ["message.received", "text.completed"],
    ]
    assert names(sent(said.exchanges)) == ["k1", "m1", "k2", "m2"]


def test_only_what_a_model_has_to_know_is_kept() -> None:
    said = heard(
        asked("k1"),
        ev.TurnStarted(thread_id=ev.MAIN, turn_id="t", cause="message"),
        ev.TextDelta(thread_id=ev.MAIN, turn_id="t", block_id="b", message_id="m", text="x"),
        answered("of a child", thread="child"),
        received("of a child", thread="child"),
        answered("not meant", status="discarded"),
        answered("half", status="partial"),
    )
    assert [one.get("content") for one in sent(said.exchanges)] == ["k1", "half"]
    assert "text.delta" not in HEARD


def test_work_before_any_message_is_an_exchange_too() -> None:
    assert names(sent(heard(answered("Hello.")).exchanges)) == ["m1"]


def test_what_was_sent_counts_and_not_its_echo() -> None:
    file = ev.File(ref=ev.Url(url="https://example.test/a"), media_type="image/png")
    one = accepted("k1").model_copy(update={"content": (ev.Text(text="See"), file)})
    (message,) = sent(heard(one, received("k1", "See")).exchanges)
    assert [part["type"] for part in message["content"]] == ["text", "image"]


def test_a_refused_message_is_not_part_of_it() -> None:
    refusal = ev.InputSettled(thread_id=ev.MAIN, command_id="k1", outcome="refused")
    said = heard(accepted("k1", "One", client_context="old"), refusal, asked("k2"))
    assert names(sent(said.exchanges)) == ["k2"]
    assert said.context is None


def test_the_newest_context_and_options_count() -> None:
    said = heard(
        asked("k1", client_context="one", options={"a": 1}),
        asked("k2"),
        asked("k3", client_context="two", options={"a": 2}),
        asked("k4"),
    )
    assert (said.context, said.options) == ("two", {"a": 2})


def test_guidance_is_said_by_the_person() -> None:
    guided = ev.GuidanceReceived(thread_id=ev.MAIN, turn_id="t", text="Left!", command_id="g1")
    said = heard(asked("k1"), answered("Going."), guided)
    assert sent(said.exchanges)[-1] == {"id": "g1", "role": "user", "content": "Left!"}


SYSTEM = [{"type": "text", "text": "Be brief."}]


@each("kind", ["edit_of", "retry_of"])
def test_an_edit_forgets_the_message_what_was_said_beside_it_and_all_behind(kind: str) -> None:
    said = heard(
        asked("k1"),
        answered("One."),
        asked("k2", system=SYSTEM),
        answered("Two.", "m2"),
        asked("k3"),
    )
    assert names(sent(said.before("k2"))) == ["k1", "m1"]
    assert names(sent(said.exchanges)) == ["k1", "m1", "k2-system", "k2", "m2", "k3"]
    for event in asked("k4", **{kind: "k2"}):
        said.hear(event)
    assert names(sent(said.exchanges)) == ["k1", "m1", "k4"]
    assert said.size == sum(one.size for one in said.exchanges)
    assert said.place_of("k2") is None
    # Nobody says anything before what is not known.
    assert said.before("nobody") is said.exchanges
    for event in asked("k5", **{kind: "nobody"}):
        said.hear(event)
    assert names(sent(said.exchanges)) == ["k1", "m1", "k4", "k5"]


def test_a_message_that_joins_a_turn_stays_behind_the_results_of_its_calls() -> None:
    said = heard(asked("k1"), called("c1"), asked("k2"), returned("c1"), answered("Done."))
    assert len(said.exchanges) == 1
    assert [one["role"] for one in sent(said.exchanges)] == [
        *("user", "assistant", "tool", "user", "assistant"),
    ]
    for event in asked("k3"):
        said.hear(event)
    assert len(said.exchanges) == 2


def test_an_edit_of_a_message_that_joined_a_turn_cuts_there() -> None:
    said = heard(asked("k1"), called("c1"), asked("k2", system=SYSTEM), returned("c1"))
    for event in asked("k3", edit_of="k2"):
        said.hear(event)
    found = sent(said.exchanges)
    assert names(found) == ["k1", "calls-c1", "result-c1", "k3"]
    # Its result was said behind what is forgotten.
    assert found[2]["content"] == INTERRUPTED


def test_an_edit_forgets_the_open_calls_behind_it() -> None:
    said = heard(asked("k1"), called("c1"), asked("k2", edit_of="k1"), asked("k3"))
    assert [len(one.events) for one in said.exchanges] == [1, 1]


def test_a_context_that_was_cleared_is_forgotten() -> None:
    said = heard(asked("k1"), called("c1"), ev.ContextCleared(thread_id=ev.MAIN), asked("k2"))
    assert names(sent(said.exchanges)) == ["k2"]
    assert said.size == said.exchanges[0].size


def test_the_oldest_exchanges_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "CONVERSATION_BYTES", 4_000)
    said = Conversation()
    for number in range(50):
        for event in (*asked(f"k{number}", "x" * 300), answered("y" * 300, f"m{number}")):
            said.hear(event)
    assert said.size == sum(one.size for one in said.exchanges) <= 4_000
    assert said.left_out == 50 - len(said.exchanges)
    assert names(sent(said.exchanges))[-1] == "m49"
    # The newest is there, however long it is.
    for event in asked("long", "x" * 9_000):
        said.hear(event)
    assert names(sent(said.exchanges)) == ["long"]


# How it is written.


def test_what_is_over_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Writer(transcript._TranscriptWriter):
        def take(self, event: ev.Event) -> None:
            made.append(event.TYPE)
            super().take(event)

    monkeypatch.setattr(transcript, "_TranscriptWriter", Writer)
    said = Conversation()
    for number in range(20):
        for event in (*asked(f"k{number}"), answered("Yes.", f"m{number}")):
            said.hear(event)
        made.clear()
        before = sent(said.exchanges)
        assert len(made) == 2
        assert sent(said.exchanges) == before
        assert len(made) == 2


def test_each_call_has_a_result_or_waits() -> None:
    said = heard(asked("k1"), called("c1"), called("c2"), called("c3"))
    found = sent(said.exchanges, waiting={"c1"}, results={"c2": GivenResult("sunny")})
    assert [(one["toolCallId"], one["content"]) for one in found[2:]] == [
        ("c2", "sunny"),
        ("c3", INTERRUPTED),
    ]
    assert [call["id"] for call in found[1]["toolCalls"]] == ["c1", "c2", "c3"]
    # That holds for this run only.
    assert [one["content"] for one in sent(said.exchanges)[2:]] == [INTERRUPTED] * 3


def test_what_waits_does_so_in_the_newest_exchange_only() -> None:
    said = heard(asked("k1"), called("x", "c1"), returned("x"), asked("k2"), called("y", "c1"))
    found = sent(said.exchanges, waiting={"c1"})
    assert [one["role"] for one in found] == ["user", "assistant", "tool", "user", "assistant"]


@each(
    ("fields", "content"),
    [
        ({"output": "text"}, "text"),
        ({"output": {"a": 1}}, '{"a":1}'),
        ({"output": None, "content": (ev.Text(text="words"),)}, "words"),
        ({"output": None}, ""),
        ({"output": None, "status": "interrupted"}, INTERRUPTED),
        ({"output": None, "error": ev.ErrorInfo(code="x", message="Broke.")}, "Broke."),
        ({"output": False}, "false"),
    ],
    ids=str,
)
def test_a_result_is_a_text(fields: Any, content: str) -> None:
    (*_, tool) = sent(heard(asked("k1"), called("c1"), returned("c1", **fields)).exchanges)
    assert tool["content"] == content


def test_a_failed_result_says_so() -> None:
    error = ev.ErrorInfo(code="x", message="Broke.")
    failed = returned("c1", is_error=True, status="failed", error=error)
    assert sent(heard(called("c1"), failed).exchanges)[-1]["error"] == "Broke."


def test_calls_of_one_answer_are_in_one_message() -> None:
    said = heard(
        *(answered("Wait."), called("a"), called("b"), returned("a"), returned("b")),
        *(called("c"), returned("c")),
    )
    calls = [[call["id"] for call in one.get("toolCalls", ())] for one in sent(said.exchanges)]
    assert [one for one in calls if one] == [["a", "b"], ["c"]]


def test_a_result_may_say_what_the_call_was_given() -> None:
    said = heard(called("c1", input=None, input_known=False), returned("c1", input={"to": "ann"}))
    (call,) = sent(said.exchanges)[0]["toolCalls"]
    assert call["function"]["arguments"] == '{"to":"ann"}'


def test_names_of_people_and_of_the_agent_do_not_meet() -> None:
    said = heard(asked("m1"), answered("One."), thought("Hm", "m1"), called("c1"))
    found = sent(said.exchanges)
    assert len(set(names(found))) == len(found)
    assert [one["role"] for one in found] == [
        *("user", "assistant", "reasoning", "assistant", "tool"),
    ]
    owner = heard(asked("m1"), called("c1", extra={"parentMessageId": "m1"}))
    assert [one["role"] for one in sent(owner.exchanges)] == ["user", "assistant", "tool"]


def test_what_another_backend_did_has_names_made_of_its_own() -> None:
    theirs = ev.NativeRef(dialect="herm", id="x")
    strange = {"parentMessageId": 5, "messageId": ["x"], "encryptedValue": "x"}
    said = heard(
        asked("k1"),
        thought("Hm", native=theirs),
        answered("Wait.", native=theirs),
        called("c1", native=theirs, extra=strange),
        returned("c1", native=theirs, extra=strange),
        asked("k2"),
        answered("Hello."),
    )
    found = sent(said.exchanges)
    assert names(found) == ["k1", "herm-m1", "result-c1", "k2", "m1"]
    assert found[1]["toolCalls"][0]["id"] == "c1"
    assert "encryptedValue" not in str(found)


# Files.


def picture(size: int) -> ev.File:
    return ev.File(ref=ev.Blob(sha256=SHA), media_type="image/png", size=size, name="a.png")


def shown(name: str, size: int) -> list[ev.Event]:
    one = accepted(name).model_copy(update={"content": (picture(size),)})
    return [one, received(name)]


def test_files_go_with_the_newest_messages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "FILES_BYTES", 100)
    said = heard(shown("k1", 60), shown("k2", 60), shown("k3", 60))

    def with_files() -> list[bool]:
        return [bool(_files(one)) for one in written(FORM, said.exchanges)]

    assert with_files() == [False, False, True]
    assert with_files() == [False, False, True]
    # The newest goes however large it is.
    for event in shown("k4", 500):
        said.hear(event)
    assert with_files() == [False, False, False, True]
    kept = json.loads(written(FORM, said.exchanges)[0])["content"][0]
    assert kept["type"] == "text"
    assert "a.png" in kept["text"]


def _files(piece: bytes) -> frozenset[str]:
    body = restored(piece)
    return body.files if isinstance(body, FileBody) else frozenset()


# Whatever the log.


@given(streams())
@settings(max_examples=100, deadline=None)
def test_whatever_the_log_models_are_sent_what_they_take(frames: list[list[ev.Event]]) -> None:
    normalizer, said = Normalizer(), Conversation()
    for frame in frames:
        for event in normalizer.feed(frame):
            said.hear(event)
        open_ = {call for thread in normalizer.state.threads.values() for call in thread.calls}
        assert said.size == sum(one.size for one in said.exchanges)
        check(sent(said.exchanges, waiting=open_), open_)
    for exchange in said.exchanges:
        exchange.written = None
    check(sent(said.exchanges), set())


def check(found: list[dict[str, Any]], waiting: set[str]) -> None:
    """Check that each call has its result right behind its message, and each message a name."""
    assert len(set(names(found))) == len(found)
    owed: list[str] = []
    for message in found:
        if message["role"] == "tool":
            while owed and owed[0] != message["toolCallId"]:
                assert owed.pop(0) in waiting
            assert owed, "a result without its call"
            owed.pop(0)
            continue
        assert set(owed) <= waiting
        owed = [call["id"] for call in message.get("toolCalls", ())]
        assert len(set(owed)) == len(owed)
        assert message["role"] in ("user", "assistant", "system", "reasoning")
        assert isinstance(message["content"], str)
    assert set(owed) <= waiting
