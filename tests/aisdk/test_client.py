"""The strict client takes what real pages took, has what they had, posts what they posted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.aisdk.recorded import RECORDED, RELEASES, part_of, plays
from tests.support.aisdk_chunks import Checker, Frames, split
from tests.support.aisdk_client import Answer, Page, resends
from tests.support.each import each
from tests.support.strictness import Disconnected, ProtocolViolation

CUT = {"stop/01"}
"""Where the page closed the connection."""

BROKEN = {"approval-resume/03"}
"""What real pages cannot read: the rest of a message without its beginning."""

START = {"type": "start", "messageId": "m1"}
STEP = {"type": "start-step"}
CALL: dict[str, Any] = {
    "type": "tool-input-available",
    "toolCallId": "c1",
    "toolName": "look",
    "input": {},
}
OUTPUT = {"type": "tool-output-available", "toolCallId": "c1", "output": 1}
ASK = {"type": "tool-approval-request", "toolCallId": "c1", "approvalId": "a1"}
ENDS: list[dict[str, Any]] = [{"type": "finish-step"}, {"type": "finish"}]
SAID: list[dict[str, Any]] = [
    {"type": "text-start", "id": "t"},
    {"type": "text-delta", "id": "t", "delta": "hi"},
    {"type": "text-end", "id": "t"},
]


def exchanges(scenario: str, release: str) -> list[tuple[str, dict[str, Any], bytes]]:
    found = []
    for path in sorted((RECORDED / scenario).glob("*.request.json")):
        number = path.name.split(".")[0]
        answer = part_of(scenario, f"{number}.response.sse", release)
        request = json.loads(path.read_bytes())["request"]
        found.append((f"{scenario}/{number}", request, answer.read_bytes() if answer else b""))
    return found


def play(page: Page, name: str, body: dict[str, Any] | None, answer: bytes) -> None:
    """Let a page read a recorded answer."""
    frames, writing = Frames(), Answer(page, body, ours=False)
    for chunk in frames.feed(answer):
        writing.feed(chunk)
    if name in CUT:
        with pytest.raises(Disconnected):
            frames.end()
        return
    frames.end()
    writing.end()


@each(("scenario", "release"), plays())
def test_the_strict_client_has_what_real_pages_had(scenario: str, release: str) -> None:
    path = part_of(scenario, "page.json", release)
    assert path is not None
    recorded = json.loads(path.read_bytes())
    page = Page("chat-1", profile=RELEASES[release], prefix="another")
    for name, request, answer in exchanges(scenario, release):
        if request["method"] == "POST":
            page.messages = request["body"]["messages"]
            play(page, name, request["body"], answer)
            asked = request["body"]["messages"]
            continue
        tab = Page("chat-1", profile=RELEASES[release], messages=asked[:1])
        if name in BROKEN:
            with pytest.raises(ProtocolViolation, match="not of this message"):
                play(tab, name, None, answer)
        elif answer:
            play(tab, name, None, answer)
            assert tab.messages == recorded["secondTab"]["messages"]
    assert page.messages == recorded["messages"]


def test_the_page_posts_what_real_pages_posted() -> None:
    def recorded(name: str) -> Any:
        return json.loads((RECORDED / f"{name}.request.json").read_bytes())["request"]["body"]

    def answer(page: Page, name: str, body: dict[str, Any]) -> None:
        play(page, name, body, (RECORDED / f"{name}.response.sse").read_bytes())

    for scenario, yes, reason in (
        ("approval-allow", True, None),
        ("approval-deny", False, "keep it"),
    ):
        page = Page("chat-1")
        body = page.say("Remove")
        assert body == recorded(f"{scenario}/01")
        answer(page, f"{scenario}/01", body)
        assert page.resends() == []
        message_id = page.approve("id-2", yes, reason)
        assert page.resends() == ["approval responses"]
        assert page.go_on(message_id) == recorded(f"{scenario}/02")

    page = Page("chat-1")
    answer(page, "approval-two/01", page.say("Remove"))
    page.approve("id-2", True)
    assert page.resends() == []
    page.approve("id-3", False)
    assert page.go_on() == recorded("approval-two/02")

    page = Page("chat-1")
    answer(page, "client-tool/01", page.say("Ask me"))
    page.output("call_1", "yes")
    assert page.resends() == ["tool calls"]
    assert page.go_on() == recorded("client-tool/02")

    page = Page("chat-1")
    answer(page, "stop/01", page.say("Go"))
    assert page.say("Again") == recorded("stop/02")

    page = Page("chat-1")
    answer(page, "regenerate/01", page.say("Hello"))
    assert page.regenerate() == recorded("regenerate/02")

    page = Page("chat-1")
    answer(page, "regenerate-edit/01", page.say("Helo"))
    assert page.say("Hello", edits="client-1") == recorded("regenerate-edit/02")

    picture = {"type": "file", "mediaType": "text/plain", "filename": "a.txt"}
    picture["url"] = "data:text/plain;base64,aGk="
    body = Page("chat-1").say("Read", files=[picture], metadata={"from": "me"})
    assert {"model": "fast", **body} == recorded("file-upload/01")


@each(
    ("profile", "chunks", "why"),
    [
        ("6", [STEP], "where the body is new"),
        ("6", [START, START], "where the body is open"),
        ("6", [START, {"type": "hologram"}], "do not know the chunk"),
        ("6", [{**START, "messageMetadata": {}, "more": 1}], "do not know `more`"),
        ("6", [{"type": "start", "messageId": 5}], "`messageId` is of a wrong type"),
        ("6", [START, {"type": "abort", "reason": "x"}], "do not know `reason`"),
        ("6", [START, {"type": "finish", "finishReason": "interrupted"}], "finish reason"),
        ("5", [START, {"type": "finish", "finishReason": "stop"}], "do not know `finishReason`"),
        ("5", [START, STEP, CALL, ASK], "do not know the chunk"),
        ("5", [START, STEP, {**CALL, "title": "x"}], "do not know `title`"),
        ("6", [START, STEP, {**CALL, "input": None, "dynamic": None}], "`dynamic` is of a wrong"),
        ("6", [START, SAID[0]], "outside of a step"),
        ("6", [START, CALL], "outside of a step"),
        ("6", [START, STEP, SAID[1]], "open already, or not yet"),
        ("6", [START, STEP, SAID[0], ENDS[0]], "leaves this open"),
        ("6", [START, STEP, SAID[0], {"type": "error", "errorText": "x"}], "leaves this open"),
        ("6", [START, STEP, ENDS[1]], "within a step"),
        ("6", [START, OUTPUT], "not of this message"),
        ("6", [START, STEP, CALL, OUTPUT, CALL], "the input of a call"),
        ("6", [START, STEP, CALL, ENDS[0], STEP, CALL], "the input of a call"),
        ("6", [START, STEP, CALL, OUTPUT, OUTPUT], "an output of a call"),
        ("6", [START, STEP, CALL, ASK, ASK], "does not wait"),
        ("6", [START, STEP, CALL, {"type": "tool-output-denied", "toolCallId": "c1"}], "a denial"),
        ("5", [START, STEP, {**CALL, "dynamic": True}, OUTPUT], "without `dynamic`"),
        ("6", [START, ENDS[1], START], "where the body is over"),
        ("6", [START, {"type": "data-x", "data": 1, "id": 5}], "`id` is of a wrong type"),
        ("6", [START, {"type": "data-x"}], "it lacks"),
    ],
)
def test_the_strict_client_names_what_is_wrong(
    profile: str, chunks: list[dict[str, Any]], why: str
) -> None:
    checker = Checker(profile, ours=True)
    *good, bad = chunks
    for chunk in good:
        checker.feed(chunk)
    with pytest.raises(ProtocolViolation, match=why):
        checker.feed(bad)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"data: {}\n", "inside an event"),
        (b'data: {"type":"start"}\n\n', r"without \[DONE\]"),
        (b"data: {\n\n", "not JSON"),
        (b"data: 5\n\n", "not an object"),
        (b"event: x\ndata: {}\n\n", "not of the protocol"),
        (b"id: 2\ndata: {}\n\nid: 2\ndata: {}\n\n", "not of the protocol"),
        (b"data: {}\r\n\r\n\n\n", "carriage return"),
        (b"data: [DONE]\n\ndata: {}\n\n", "behind"),
    ],
)
def test_the_strict_client_names_what_is_wrong_in_the_framing(body: bytes, why: str) -> None:
    with pytest.raises((ProtocolViolation, Disconnected), match=why):
        split(body)


def test_dragoman_numbers_its_frames_and_comments_at_once() -> None:
    for body, why in (
        (b"id: 1\ndata: {}\n\n", "no comment"),
        (b": stream-open\n\ndata: {}\n\n", "number"),
    ):
        with pytest.raises(ProtocolViolation, match=why):
            list(Frames(numbered=True).feed(body))
    frames = Frames(numbered=True)
    body = b": stream-open\n\nid: 1\ndata: {}\n\n: keep-alive\n\ndata: [DONE]\n\n"
    assert list(frames.feed(body)) == [{}]
    assert frames.comments == [b"stream-open", b"keep-alive"]
    frames.end()


def feed(page: Page, body: dict[str, Any] | None, *chunks: dict[str, Any]) -> Answer:
    answer = Answer(page, body)
    for chunk in chunks:
        answer.feed(chunk)
    answer.end()
    return answer


def test_what_would_make_a_page_post_for_ever_is_named() -> None:
    # Section 8.1, one line after the other.
    loops: dict[str, list[dict[str, Any]]] = {
        "the end": ENDS,
        "text in the same step": [*SAID, *ENDS],
        "an empty step": [ENDS[0], STEP, *ENDS],
    }
    for more in loops.values():
        page = Page("c")
        with pytest.raises(ProtocolViolation, match="post again"):
            feed(page, page.say("go"), START, STEP, CALL, OUTPUT, *more)
    page = Page("c")
    closing: list[dict[str, Any]] = [
        ENDS[0],
        STEP,
        ENDS[0],
        {"type": "finish", "messageMetadata": {}},
    ]
    feed(page, page.say("go"), START, STEP, CALL, OUTPUT, *closing)
    feed(
        page,
        page.say("go"),
        {**START, "messageId": "m2"},
        STEP,
        CALL,
        OUTPUT,
        ENDS[0],
        STEP,
        *SAID,
        *ENDS,
    )
    executed = {**OUTPUT, "providerExecuted": True}
    for profile, found in (("6", []), ("5", ["tool calls"])):
        page = Page("c", profile=profile)
        answer = Answer(page, page.say("go"), ours=False)
        for chunk in (START, STEP, CALL, executed, *ENDS):
            answer.feed(chunk)
        assert page.resends() == found
    assert resends([]) == []


def test_an_answered_approval_must_come_to_its_end() -> None:
    page = Page("c")
    feed(page, page.say("go"), START, STEP, CALL, ASK, *ENDS)
    body = page.go_on(page.approve("a1", True))
    with pytest.raises(ProtocolViolation, match="without an end"):
        feed(page, body, START, STEP, *SAID, *ENDS)


def test_a_message_keeps_its_id_and_a_new_one_has_its_own() -> None:
    page = Page("c")
    feed(page, page.say("go"), START, STEP, CALL, ASK, *ENDS)
    body = page.go_on(page.approve("a1", False))
    with pytest.raises(ProtocolViolation, match="another id"):
        feed(page, body, {**START, "messageId": "m2"})
    denied = {"type": "tool-output-denied", "toolCallId": "c1"}
    feed(page, body, START, denied, STEP, *SAID, *ENDS)
    assert page.part("c1")["state"] == "output-denied"
    with pytest.raises(ProtocolViolation, match="id of the history"):
        feed(page, page.say("on"), START)
    feed(page, page.go_on(), {**START, "messageId": "m2"}, STEP, *SAID, *ENDS)
    assert [m["id"] for m in page.messages] == ["client-1", "m1", "client-3", "m2"]


def test_a_resume_replaces_the_message_that_is_there() -> None:
    page = Page("c")
    whole = [START, STEP, *SAID, *ENDS]
    feed(page, page.say("go"), *whole)
    feed(page, None, *whole)
    assert [m["id"] for m in page.messages] == ["client-1", "m1"]
    assert page.messages[-1]["parts"] == [
        {"type": "step-start"},
        {"type": "text", "text": "hi", "state": "done"},
    ]


def test_an_error_ends_what_the_page_takes() -> None:
    page = Page("c")
    error = {"type": "error", "errorText": "it fell over"}
    answer = feed(page, page.say("go"), START, STEP, CALL, OUTPUT, error, *ENDS)
    assert answer.error == "it fell over"
    # What was shown stays, and no page posts by itself then (5.0.72 on).
    assert page.resends() == ["tool calls"]
