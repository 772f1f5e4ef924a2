"""The encoder of the AI SDK face: a log becomes the streams of its messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from adapters.aisdk.server import AisdkEncoder
from adapters.model import events as ev
from adapters.model.base import EncoderContext, Frame
from adapters.model.normalizer import Normalizer
from adapters.model.state import LogState
from adapters.serving.later import WAITING_BYTES, WAITING_MOST
from adapters.serving.messages import SaidMessages
from tests.support.aisdk_chunks import split
from tests.support.aisdk_client import Answer, Page, tools_of
from tests.test_laws import streams

CONTEXT = EncoderContext(session_id="dgs_1", secret=b"s" * 32)

MESSAGE = "msg-d265b67ace93d9f9-"
"""What the ids of its messages begin with."""
OLD = EncoderContext(session_id="dgs_1", secret=b"s" * 32, settings={"release": "5"})
PROFILES = {"5": OLD, "6": CONTEXT}
M = ev.MAIN
CHILD = "child-1"
PLACE: dict[str, Any] = {"thread_id": M, "turn_id": "t1"}
STARTED = ev.SessionStarted(thread_id=M)


def entries(events: Iterable[ev.Event], first: int = 1) -> list[ev.Entry]:
    return [ev.Entry(seq, 1000, "dgs_1", event) for seq, event in enumerate(events, first)]


def frames_of(events: Iterable[ev.Event], encoder: AisdkEncoder) -> list[Frame]:
    return [frame for entry in entries(events) for frame in encoder.feed(entry)]


def bodies(frames: Iterable[Frame]) -> list[list[dict[str, Any]]]:
    """Return the chunks of each stream that is over."""
    found, body = [], b""
    for frame in frames:
        body += frame.data
        if frame.end is not None:
            chunks = split(body) if b"data:" in body else []
            found += [chunks] if chunks else []
            body = b""
    return found


def read(log: Sequence[ev.Event], profile: str = "6") -> Page:
    """Return a page that has read all streams of a log, each as the answer to a post."""
    page = Page("c1", profile=profile)
    for body in bodies(frames_of(log, AisdkEncoder(PROFILES[profile]))):
        goes_on = any(m["id"] == body[0]["messageId"] for m in page.messages)
        post = page.go_on() if goes_on else None
        answer = Answer(page, post)
        for chunk in body:
            answer.feed(chunk)
        answer.end()
    return page


def shown(log: Sequence[ev.Event], profile: str = "6") -> list[dict[str, Any]]:
    """Return the chunks of a lawful log, which a page reads as well."""
    state = LogState()
    for entry in entries(log):
        state.apply_entry(entry)
    read(log, profile)
    frames = frames_of(log, AisdkEncoder(PROFILES[profile]))
    return [chunk for body in bodies(frames) for chunk in body]


def kinds(seen: Iterable[dict[str, Any]]) -> list[str]:
    return [chunk["type"] for chunk in seen]


def only(seen: Iterable[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (chunk for chunk in seen if chunk["type"] == kind)
    return found


def data(seen: Iterable[dict[str, Any]], name: str) -> list[Any]:
    return [chunk["data"] for chunk in seen if chunk["type"] == f"data-dragoman-{name}"]


def turn(*events: ev.Event, outcome: Any = "completed", **more: Any) -> list[ev.Event]:
    begun = ev.TurnStarted(**PLACE, cause="background")
    return [STARTED, begun, *events, ev.TurnEnded(**PLACE, outcome=outcome, **more)]


def text(words: str, block: str = "b", **more: Any) -> list[ev.Event]:
    where: dict[str, Any] = {**PLACE, "block_id": block, "message_id": "m"}
    return [
        ev.TextDelta(**where, text=words),
        ev.TextCompleted(**where, **{"text": words, **more}),
    ]


def called(call_id: str = "c1", **more: Any) -> ev.ToolCalled:
    return ev.ToolCalled(**PLACE, call_id=call_id, **{"name": "look", "input": {"at": 1}, **more})


def returned(call_id: str = "c1", **more: Any) -> ev.ToolReturned:
    return ev.ToolReturned(**PLACE, call_id=call_id, **{"output": "seen", **more})


def asked(request_id: str = "r1", kind: Any = "approval", **more: Any) -> list[ev.Event]:
    request = ev.InteractionRequested(
        **PLACE, request_id=request_id, kind=kind, **{"prompt": "May I?", **more}
    )
    return [request, ev.TurnPaused(**PLACE, on="input", request_ids=(request_id,))]


def resolved(request_id: str = "r1", outcome: Any = "approved", **more: Any) -> list[ev.Event]:
    return [
        ev.InteractionResolved(**PLACE, request_id=request_id, outcome=outcome, **more),
        ev.TurnResumed(**PLACE),
    ]


def said(command: str, *ids: str, **notes: Any) -> ev.InputAccepted:
    return ev.InputAccepted(
        thread_id=M,
        command_id=command,
        kind="message",
        message_id=command,
        content=(ev.Text(text="words"),),
        policy="reject",
        details={"aisdk": {"said": list(ids), **notes}},
        by="key",
        face="aisdk",
    )


def settled(command: str, outcome: Any, **more: Any) -> ev.InputSettled:
    return ev.InputSettled(thread_id=M, command_id=command, outcome=outcome, **more)


# The laws.


@pytest.mark.parametrize("profile", PROFILES)
@given(frames=streams())
@settings(max_examples=60)
def test_whatever_a_backend_sends_a_page_takes_it(
    profile: str, frames: list[list[ev.Event]]
) -> None:
    normalizer = Normalizer()
    read([event for frame in frames for event in normalizer.feed(frame)], profile)


@given(streams())
@settings(max_examples=30)
def test_an_encoder_that_was_put_back_goes_on_alike(frames: list[list[ev.Event]]) -> None:
    normalizer = Normalizer()
    one, two = AisdkEncoder(CONTEXT), AisdkEncoder(CONTEXT)
    for entry in entries([event for frame in frames for event in normalizer.feed(frame)]):
        assert one.feed(entry) == two.feed(entry)
        again = AisdkEncoder(CONTEXT)
        again.restore(two.snapshot())
        assert again.next_cursor == two.next_cursor
        two = again


# Words.


def test_a_text_is_written_as_it_comes_and_once() -> None:
    seen = shown(turn(*text("one"), *text("two", "b2")))
    assert [chunk["delta"] for chunk in seen if chunk["type"] == "text-delta"] == ["one", "two"]
    assert kinds(seen)[:3] == ["start", "start-step", "text-start"]
    assert kinds(seen)[-2:] == ["finish-step", "finish"]


def test_a_text_that_was_not_streamed_is_told_whole() -> None:
    _, whole = text("one", extra={"repaired": True})
    assert only(shown(turn(whole)), "text-delta")["delta"] == "one"


def test_a_text_that_does_not_count_says_so_and_a_repaired_one_is_told_again() -> None:
    seen = shown(turn(*text("abc", status="discarded")))
    assert data(seen, "discarded") == [{"repaired": False}]
    seen = shown(turn(*text("abc", text="xyz", extra={"repaired": True})))
    assert data(seen, "discarded") == [{"repaired": True}]
    assert [c["delta"] for c in seen if c["type"] == "text-delta"] == ["abc", "xyz"]


def test_a_text_that_a_pause_cuts_is_not_told_twice() -> None:
    first, last = text("one ")
    seen = shown(turn(first, *asked(), *resolved(), last))
    assert only(seen, "text-delta")["delta"] == "one "


def test_reasoning_that_is_withheld_leaves_a_mark() -> None:
    block = ev.ReasoningCompleted(**PLACE, block_id="b", message_id="m", text="", withheld=True)
    end = only(shown(turn(block)), "reasoning-end")
    assert end["providerMetadata"] == {"dragoman": {"withheld": True}}


def test_what_stands_in_the_place_of_words_is_a_part() -> None:
    content = (
        ev.File(media_type="image/png", ref=ev.Url(url="https://x.test/a.png")),
        ev.SearchResult(source="https://x.test/", title="A page"),
        ev.SearchResult(source="shelf 3", title="A book"),
        ev.Redacted(),
        ev.Text(text="words beside"),
    )
    _, whole = text("", content=content)
    seen = shown(turn(whole))
    assert only(seen, "file")["url"] == "https://x.test/a.png"
    assert only(seen, "source-url")["title"] == "A page"
    assert only(seen, "source-document")["title"] == "A book"
    assert data(seen, "content") == [{"type": "redacted"}]
    assert only(seen, "text-delta")["delta"] == "words beside"


def test_a_result_is_told_as_words_unless_the_agent_said_it() -> None:
    result = ev.ResultProduced(**PLACE, value={"a": 1})
    seen = shown(turn(*text('{"a": 1}'), result))
    assert len([c for c in seen if c["type"] == "text-delta"]) == 1
    seen = shown(turn(*text("done"), result))
    assert [c["delta"] for c in seen if c["type"] == "text-delta"] == ["done", '{"a":1}']
    assert data(seen, "result-value") == [{"a": 1}]


# Calls.


def test_a_turn_that_ends_with_a_call_ends_with_an_empty_step() -> None:
    # Else a page with the stock predicate would post for ever; `shown` checks that none would.
    seen = shown(turn(called(), returned()))
    assert kinds(seen)[-5:] == [
        "tool-output-available",
        "finish-step",
        "start-step",
        "finish-step",
        "finish",
    ]
    assert only(seen, "tool-output-available")["providerExecuted"] is True
    seen = shown(turn(called(), returned(), *text("so")))
    assert kinds(seen).count("start-step") == 2


def test_an_input_is_streamed_and_one_that_never_became_a_call_fails() -> None:
    first = ev.ToolInputDelta(**PLACE, call_id="c1", name="look", text='{"a')
    more = ev.ToolInputDelta(**PLACE, call_id="c1", text='t":1}')
    seen = shown(turn(first, more, called(), returned()))
    assert kinds(seen).count("tool-input-start") == 1
    deltas = [c["inputTextDelta"] for c in seen if c["type"] == "tool-input-delta"]
    assert "".join(deltas) == '{"at":1}'
    seen = shown(turn(first))
    assert only(seen, "tool-output-error")["errorText"] == "The call was not made."


def test_an_input_that_is_known_with_the_result_takes_the_place_of_none() -> None:
    unknown = called(input=None, input_known=False)
    log = turn(unknown, returned(input={"at": 2}))
    (part,) = tools_of(read(log).messages[0]["parts"])
    assert (part["input"], part["output"]) == ({"at": 2}, "seen")
    step = ev.StepStarted(**PLACE, step_index=0)
    ended = ev.StepEnded(**PLACE, step_index=0)
    seen = shown(turn(unknown, step, *text("so"), ended, returned(input={"at": 2})))
    assert data(seen, "input") == [{"toolCallId": "c1", "input": {"at": 2}}]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"is_error": True, "output": "no such file"}, "no such file"),
        ({"status": "failed", "output": None}, "failed"),
        (
            {"output": None, "error": ev.ErrorInfo(code="boom", message="It broke.")},
            "It broke.",
        ),
        ({"status": "rejected", "output": None}, "Denied."),
    ],
)
def test_a_call_that_failed_says_why(fields: dict[str, Any], words: str) -> None:
    assert only(shown(turn(called(), returned(**fields))), "tool-output-error")["errorText"] == (
        words
    )


def test_an_interim_output_is_preliminary_where_the_release_knows_that() -> None:
    progress = ev.ToolProgressed(**PLACE, call_id="c1", output="half")
    seen = shown(turn(called(), progress, returned()))
    first, last = (c for c in seen if c["type"] == "tool-output-available")
    assert (first["preliminary"], first["output"], last["output"]) == (True, "half", "seen")
    seen = shown(turn(called(), progress, returned()), "5")
    assert only(seen, "tool-output-available")["output"] == "seen"
    assert data(seen, "progress") == [{"toolCallId": "c1", "output": "half"}]


# What is asked.


def test_an_approval_is_asked_about_its_call_and_goes_on_in_the_same_message() -> None:
    log = turn(called(), *asked(call_id="c1"), *resolved(), returned(output="gone"), *text("done"))
    seen = shown(log)
    request = only(seen, "tool-approval-request")
    assert (request["approvalId"], request["toolCallId"]) == ("r1", "c1")
    assert [c["messageId"] for c in seen if c["type"] == "start"] == [MESSAGE + "1", MESSAGE + "1"]
    second = seen[kinds(seen).index("finish") + 1 :]
    assert kinds(second)[:4] == [
        "start",
        "data-dragoman-request",
        "tool-output-available",
        "start-step",
    ]
    assert [d["state"] for d in data(seen, "request")] == ["open", "approved"]


def test_a_denied_call_says_so_in_its_form() -> None:
    denied = resolved(outcome="denied")
    log = turn(called(), *asked(call_id="c1"), *denied, returned(status="rejected", output=None))
    assert only(shown(log), "tool-output-denied") == {
        "type": "tool-output-denied",
        "toolCallId": "c1",
    }
    seen = shown(log, "5")
    assert only(seen, "tool-output-error")["errorText"] == "Denied."
    ask = next(c for c in seen if c.get("toolName") == "dragoman_ask")
    assert [option["id"] for option in ask["input"]["options"]] == ["allow", "deny"]


def test_an_approval_of_no_call_gets_a_call() -> None:
    details = {"tool": "bash", "input": {"command": "ls"}}
    for outcome, end in (("approved", "tool-output-available"), ("denied", "tool-output-denied")):
        log = turn(*asked(details=details), *resolved(outcome=outcome))
        call = only(shown(log), "tool-input-available")
        assert (call["toolName"], call["input"]) == ("bash", {"command": "ls"})
        assert only(shown(log), end)["toolCallId"] == "ask-r1"
    call = only(shown(turn(*asked(), *resolved())), "tool-input-available")
    assert (call["toolName"], call["input"]) == ("dragoman_approval", {"prompt": "May I?"})


@pytest.mark.parametrize("kind", ["question", "limit", "secret", "sudo", "unknown", "tool_result"])
def test_all_else_is_a_call_with_a_step_of_its_own(kind: Any) -> None:
    outcome = "answered"
    log = turn(called(), *asked(kind=kind), *resolved(outcome=outcome), returned(), *text("so"))
    seen = shown(log)
    place = next(at for at, c in enumerate(seen) if c.get("toolCallId") == "ask-r1")
    assert kinds(seen)[place - 2 : place + 1] == [
        "finish-step",
        "start-step",
        "tool-input-available",
    ]
    assert data(seen, "request")[0]["kind"] == kind
    outputs = [c for c in seen if c["type"] == "tool-output-available"]
    assert [c["toolCallId"] for c in outputs] == ["ask-r1", "c1"]


def test_the_tool_that_asks_has_the_name_that_is_configured() -> None:
    encoder = AisdkEncoder(EncoderContext("dgs_1", b"s", settings={"ask_tool": "please"}))
    frames = frames_of(turn(*asked(kind="question"), *resolved(outcome="answered")), encoder)
    assert any(b'"toolName":"please"' in frame.data for frame in frames)


def test_the_answer_of_a_question_is_the_output_of_its_call() -> None:
    options = (ev.Option(id="a", label="Alpha"), ev.Option(id="b", label="Beta"))
    answer = ev.Answer(option_ids=("b",))
    log = turn(
        *asked(kind="question", options=options), *resolved(outcome="answered", answer=answer)
    )
    assert only(shown(log), "tool-output-available")["output"] == "Beta"
    log = turn(*asked(kind="question"), *resolved(outcome="skipped", reason="later"))
    output = only(shown(log), "tool-output-available")["output"]
    assert output == {"outcome": "skipped", "reason": "later"}


def test_a_stream_stays_open_for_what_is_answered_elsewhere() -> None:
    sign_in = asked(kind="authorization", details={"url": "https://x.test/"})
    seen = shown(turn(*sign_in, *resolved(outcome="approved"), *text("in")))
    assert kinds(seen).count("start") == 1
    watched = asked(kind="question", answerable=False)
    seen = shown(turn(*watched, *resolved(outcome="answered"), *text("in")))
    assert kinds(seen).count("start") == 1
    assert "tool-input-available" not in kinds(seen)


def test_news_about_an_open_request_take_the_place_of_the_old() -> None:
    update = ev.InteractionUpdated(**PLACE, request_id="r1", details={"user_code": "AB"})
    seen = shown(turn(*asked(kind="authorization"), update, *resolved()))
    assert [d.get("details") for d in data(seen, "request")][:2] == [None, {"user_code": "AB"}]


# Streams and messages.


def test_a_message_of_a_page_begins_a_message_and_its_answer_goes_on() -> None:
    encoder = AisdkEncoder(CONTEXT)
    first = [
        STARTED,
        said("c1", "u1"),
        settled("c1", "taken"),
        ev.TurnStarted(**PLACE, cause="message"),
        ev.MessageReceived(
            **PLACE, message_id="c1", content=(ev.Text(text="words"),), command_id="c1"
        ),
        *text("hi"),
        ev.TurnEnded(**PLACE, outcome="completed"),
    ]
    (body,) = bodies(frames_of(first, encoder))
    assert body[0]["messageMetadata"] == {"dragoman": {"session": "dgs_1"}}
    found = encoder.stream_of("c1")
    assert found is not None
    assert (found[0].ids, found[0].own, found[1]) == (["u1"], True, 0)
    assert encoder.state.inputs.heard.ids == ["u1"]
    assert not encoder.shows_more


@pytest.mark.parametrize(
    ("outcome", "status", "heard"),
    [
        ("refused", None, SaidMessages(again=["u1"])),
        ("refused", 503, SaidMessages(again=["u1"])),
        ("refused", 409, SaidMessages(again=["u1"])),
        ("refused", 422, SaidMessages(ids=["u1"])),
        ("refused", 413, SaidMessages(ids=["u1"])),
        ("withdrawn", None, SaidMessages(again=["u1"])),
        ("unknown", None, SaidMessages(ids=["u1"])),
    ],
)
def test_a_message_that_the_backend_does_not_take_fails_its_stream(
    outcome: Any, status: int | None, heard: SaidMessages
) -> None:
    encoder = AisdkEncoder(CONTEXT)
    error = None
    if status is not None:
        error = ev.ErrorInfo(code="x", message="No room.", status=status)
    log = [STARTED, said("c1", "u1"), settled("c1", outcome, reason="No room.", error=error)]
    (body,) = bodies(frames_of(log, encoder))
    assert kinds(body) == ["start", "data-dragoman-failure", "error"]
    assert body[-1]["errorText"] == "No room."
    assert encoder.state.inputs.heard == heard


def test_a_turn_that_fails_says_why_and_one_that_is_stopped_ends_well() -> None:
    error = ev.ErrorInfo(code="busy", message="Too many.")
    seen = shown(turn(*text("half"), outcome="failed", error=error))
    assert kinds(seen)[-4:] == ["text-end", "finish-step", "data-dragoman-failure", "error"]
    assert seen[-2]["data"] == {"code": "busy", "message": "Too many."}
    assert seen[-1]["errorText"] == "Too many."
    assert shown(turn(outcome="refused"))[-1]["errorText"] == "The model refused."
    stopped = returned(output=None, status="interrupted", synthetic=True)
    seen = shown(turn(called(), stopped, outcome="interrupted"))
    assert kinds(seen)[-4:] == ["start-step", "finish-step", "abort", "finish"]
    assert seen[-1]["finishReason"] == "other"


def test_what_others_say_and_do_stands_in_the_next_message() -> None:
    received = ev.MessageReceived(
        thread_id=M, message_id="m1", content=(ev.Text(text="from the desk"),)
    )
    title = ev.SessionUpdated(thread_id=M, title="Basil")
    encoder = AisdkEncoder(CONTEXT)
    log = [STARTED, title, received, *turn(*text("ok"))[1:]]
    (body,) = bodies(frames_of(log, encoder))
    assert data(body, "session") == [{"title": "Basil"}]
    assert data(body, "message") == [{"text": "from the desk"}]
    # Nobody was given it: a page that comes back is.
    assert encoder.shows_more


def test_what_waits_too_long_gets_a_stream_of_its_own() -> None:
    notice = ev.Notice(thread_id=M, text="a note")
    frames = frames_of([STARTED, *[notice] * WAITING_MOST], AisdkEncoder(CONTEXT))
    (body,) = bodies(frames)
    assert len(data(body, "notice")) == WAITING_MOST
    large = ev.Notice(thread_id=M, text="x" * WAITING_BYTES)
    assert bodies(frames_of([STARTED, large], AisdkEncoder(CONTEXT)))


def test_the_result_of_a_call_of_another_message_is_not_one_of_this() -> None:
    log = [
        *turn(called(), *asked(call_id="c1"))[:-1],
        said("c2", "u2"),
        *resolved(outcome="denied"),
        returned(status="rejected", output=None),
        *text("so"),
        ev.TurnEnded(**PLACE, outcome="completed"),
        settled("c2", "refused"),
    ]
    first, second = bodies(frames_of(log, AisdkEncoder(CONTEXT)))
    assert [first[0]["messageId"], second[0]["messageId"]] == [MESSAGE + "1", MESSAGE + "2"]
    assert data(second, "result") == [{"toolCallId": "c1", "state": "output-denied"}]


def test_a_page_that_comes_back_reads_the_whole_message_once() -> None:
    encoder = AisdkEncoder(CONTEXT)
    log = [*turn(called(), *asked(call_id="c1"), *resolved(), returned(), *text("done"))[:-1]]
    frames = frames_of(log, encoder)
    assert encoder.running is not None
    omitted = encoder.omitted()
    kept = b"".join(frame.data for frame in frames if frame.cursor not in omitted)
    assert kept.count(b'"type":"start"') == 1
    assert b'finish"' not in kept.replace(b'"finish-step"', b"")
    assert b"tool-approval-request" not in kept
    # One that is still open is asked again.
    encoder = AisdkEncoder(CONTEXT)
    frames = frames_of(turn(called(), *asked(call_id="c1"))[:-1], encoder)
    assert encoder.shows_more
    assert not encoder.omitted()


def test_the_end_of_a_session_ends_every_stream() -> None:
    end = ev.SessionEnded(thread_id=M, outcome="terminated")
    frames = frames_of([STARTED, end], AisdkEncoder(CONTEXT))
    assert [frame.end for frame in frames] == ["session"]
    frames = frames_of([*turn(*text("one"))[:-1], end], AisdkEncoder(CONTEXT))
    assert frames[-1].end == "session"
    assert bodies(frames)[0][-1] == {
        "type": "error",
        "errorText": "The session has ended: terminated.",
    }
    done = ev.SessionEnded(thread_id=M, outcome="completed")
    frames = frames_of([*turn(*text("one"))[:-1], done], AisdkEncoder(CONTEXT))
    assert bodies(frames)[0][-1]["type"] == "finish"


# Children and the rest.


def test_the_words_of_a_child_are_parts_beside_and_its_calls_are_calls() -> None:
    where: dict[str, Any] = {"thread_id": CHILD, "turn_id": "t2"}
    child = [
        ev.ThreadStarted(thread_id=CHILD, parent=M, name="Scout"),
        ev.TurnStarted(**where, cause="unknown"),
        ev.TextDelta(**where, block_id="b", message_id="m", text="I look"),
        ev.TextCompleted(**where, block_id="b", message_id="m", text="I look"),
        ev.ToolCalled(**where, call_id="k1", name="look"),
        ev.ToolReturned(**where, call_id="k1", output=1),
        ev.TurnEnded(**where, outcome="completed"),
        ev.ThreadEnded(thread_id=CHILD, status="completed", output="found"),
    ]
    seen = shown(turn(*child, *text("so")))
    assert [d["status"] for d in data(seen, "child")] == ["running", "completed"]
    assert data(seen, "child-text") == [{"thread": CHILD, "name": "Scout", "text": "I look"}]
    assert only(seen, "tool-output-available")["toolCallId"] == "k1"
    assert data(seen, "call") == [{"toolCallId": "k1", "thread": CHILD}]


def test_usage_is_counted_once_and_stands_at_the_end() -> None:
    usage = ev.Usage(input_tokens=5, output_tokens=2, cache_read_tokens=1)
    log = turn(
        ev.StepStarted(**PLACE, step_index=0, model="m-1"),
        *text("one"),
        ev.UsageReported(**PLACE, usage=usage),
        ev.StepEnded(**PLACE, step_index=0, usage=usage),
        ev.StepStarted(**PLACE, step_index=1, model="m-1"),
        *text("two", "b2"),
        ev.StepEnded(**PLACE, step_index=1, usage=usage),
    )
    metadata = only(shown(log), "finish")["messageMetadata"]
    assert metadata == {
        "dragoman": {"outcome": "completed"},
        "usage": {"inputTokens": 10, "outputTokens": 4, "totalTokens": 14, "cachedInputTokens": 2},
        "model": "m-1",
    }


def test_what_reaches_no_agent_is_reported_once() -> None:
    log = [
        STARTED,
        said("c1", "u1", ignored=["model"]),
        settled("c1", "refused"),
        said("c2", "u2", ignored=["model"]),
        settled("c2", "refused"),
    ]
    frames = frames_of(log, AisdkEncoder(CONTEXT))
    told = [data(body, "ignored") for body in bodies(frames)]
    assert [len(one) for one in told] == [1, 0]
    assert told[0][0]["members"] == ["model"]
