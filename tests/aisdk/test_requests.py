"""What the AI SDK face reads of a request: what is new in it, and what answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from adapters.aisdk import answers
from adapters.aisdk.intents import names_of
from adapters.aisdk.interactions import PageAnswer, to_answer
from adapters.aisdk.requests import parse_chat
from adapters.contract.faces.files import UNKNOWN_TYPE
from adapters.model import events as ev
from adapters.model.events import Blob, File, FileId, Text, Url
from adapters.serving.members import MAX_PARTS
from adapters.serving.messages import PersonMessage
from adapters.wire.encodings import PERCENT
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from tests.support.each import each


def user(*parts: Any, name: str = "u1", **more: Any) -> dict[str, Any]:
    return {"id": name, "role": "user", "parts": list(parts), **more}


def text(words: str = "hi") -> dict[str, Any]:
    return {"type": "text", "text": words}


def agent(*parts: Any, name: str = "msg-1") -> dict[str, Any]:
    return {"id": name, "role": "assistant", "parts": list(parts)}


def call(state: str, call_id: str = "k1", **more: Any) -> dict[str, Any]:
    return {"type": "tool-look", "toolCallId": call_id, "state": state, "input": {}, **more}


def body(*messages: Any, **more: Any) -> bytes:
    return json.dumps({"id": "c1", "messages": list(messages), **more}).encode()


ANSWERED = call("approval-responded", approval={"id": "r1", "approved": True})


@each(
    ("given", "why"),
    [
        (b"[]", "not a JSON object"),
        (b"{", "not a JSON object"),
        (json.dumps({"messages": [user(text())]}).encode(), "`id`"),
        (body(user(text()), id="x" * 513), "`id`"),
        (body(), "`messages` is not a list of messages"),
        (body(3), r"`messages\[0\]` is not a message"),
        (body({"role": "user"}), r"`messages\[0\]` is not a message"),
        (body(user(text()), trigger="resume"), "`trigger`"),
        (body(user(text()), messageId=3), "`messageId`"),
        (body({"role": "user", "parts": [text()]}), r"`messages\[0\].id`"),
        (body(user({"type": "text"})), r"parts\[0\].text"),
        (body(user({"type": "file", "mediaType": "text", "url": "data:,x"})), "mediaType"),
        (body(user({"type": "file", "mediaType": 3, "url": "data:,x"})), "mediaType"),
        (body(user({"type": "file", "mediaType": "a/b", "url": "data:a/b"})), "not a data URL"),
        (
            body(user({"type": "file", "mediaType": "a/b", "url": "ftp://x.test/"})),
            "neither a data URL",
        ),
        (body(user({"type": "file", "mediaType": "a/b", "url": "data:a/b;base64,%"})), "base64"),
        (
            body(user({"type": "file", "mediaType": "a/b", "providerReference": {"x": 1}})),
            "providerReference",
        ),
        (body(user(*[text()] * (MAX_PARTS + 1))), f"more than {MAX_PARTS}"),
        (body(agent(call("approval-responded"))), "`approved`"),
        (body(agent(call("approval-responded", approval={"approved": True}))), "approval.id"),
    ],
)
def test_what_is_malformed_is_refused_by_its_place(given: bytes, why: str) -> None:
    with pytest.raises(ClientProtocolError, match=why):
        parse_chat(given)


def test_what_stands_behind_the_agents_last_message_may_be_said() -> None:
    broken = {"type": "file", "mediaType": "a/b", "url": "ftp://x.test/"}
    given = parse_chat(
        body(
            user(text("one")),
            agent(),
            user(broken, name="u2"),
            {"id": "s", "role": "system", "parts": [text("Be brief.")]},
            user(text("two"), name="u3"),
        )
    )
    wrong, last = given.words
    assert (wrong.id, wrong.content, "neither a data URL" in str(wrong.wrong)) == ("u2", (), True)
    assert (last.id, last.content, last.wrong) == ("u3", (Text(text="two"),), None)
    assert (given.history, given.message) == (True, None)
    assert given.earlier(["u1", "u2", "else"]) == [PersonMessage("u1", (Text(text="one"),))]
    alone = parse_chat(json.dumps({"id": "c1", "message": user(text())}).encode())
    assert [one.id for one in alone.words] == ["u1"]


def test_a_message_of_the_agent_at_the_end_goes_on_and_so_does_one_that_is_named() -> None:
    history = (user(text()), agent({"type": "step-start"}, ANSWERED))
    given = parse_chat(body(*history))
    assert (given.message, given.steps, given.words) == ("msg-1", 1, ())
    assert given.given == (PageAnswer("r1", True),)
    later = parse_chat(body(*history, user(text(), name="u2"), messageId="msg-1"))
    assert (later.message, later.words) == ("msg-1", ())
    again = parse_chat(body(*history[:1], trigger="regenerate-message", messageId="msg-1"))
    assert again.words
    assert again.again
    edited = parse_chat(body(user(text("better")), messageId="u1"))
    assert edited.edits


def test_what_may_answer_is_read_of_all_messages() -> None:
    denied = {"id": "r2", "approved": False, "reason": "no"}
    given = parse_chat(
        body(
            agent(call("output-available", "k0", output=1), name="msg-0"),
            user(text()),
            agent(
                call("approval-responded", approval=denied),
                call("output-error", "k2", errorText="broken"),
                call("output-available", "k3", output=2, providerExecuted=True),
                call("output-denied", "k6", approval={**denied, "id": "r6"}),
                call("output-denied", "k7"),
                call("approval-requested", "k4", approval={"id": "r4"}),
                {**call("output-available", "k5", output=None), "type": "dynamic-tool"},
            ),
        )
    )
    assert given.older == (PageAnswer("k0", output=1),)
    assert given.given == (
        PageAnswer("r2", approved=False, reason="no"),
        PageAnswer("k2", output="broken", failed=True),
        PageAnswer("r6", approved=False, reason="no"),
        PageAnswer("k5", output=None),
    )


def test_files_are_read_and_other_parts_are_told() -> None:
    png = base64.b64encode(b"\x89PNG").decode()
    given = parse_chat(
        body(
            {"id": "s", "role": "system", "parts": [text("Be brief.")]},
            user(
                {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{png}"},
                {"type": "file", "mediaType": "text/plain", "url": "data:text/plain,a%20b"},
                {
                    "type": "file",
                    "mediaType": "image/png",
                    "url": "https://x.test/a",
                    "filename": "a.png",
                },
                {"type": "file", "mediaType": "a/b", "providerReference": {"x": "file-1"}},
                {"type": "data-place", "data": 1},
                text(),
                metadata={"mood": "good"},
            ),
            model="fast",
            absent=None,
        )
    )
    first, second, third, fourth, words = given.words[-1].content
    assert isinstance(first, File)
    assert isinstance(first.ref, Blob)
    assert given.blobs[first.ref.sha256] == b"\x89PNG"
    assert isinstance(second, File)
    assert isinstance(second.ref, Blob)
    assert given.blobs[second.ref.sha256] == b"a b"
    assert third == File(media_type="image/png", name="a.png", ref=Url(url="https://x.test/a"))
    assert fourth == File(media_type="a/b", ref=FileId(dialect="x", id="file-1"))
    assert words == Text(text="hi")
    assert given.context == ("Be brief.",)
    assert given.ignored == ("model", "messages[].metadata", "messages[].parts: data-place")


@each(
    ("members", "media_type"),
    [
        ({"mediaType": "", "url": "data:application/octet-stream;base64,aGk="}, UNKNOWN_TYPE),
        ({"mediaType": "", "url": "data:text/x-rust;charset=utf-8;base64,aGk="}, "text/x-rust"),
        ({"mediaType": "text/rs", "url": "data:a/b;base64,aGk="}, "text/rs"),
        ({"url": "data:;base64,aGk="}, UNKNOWN_TYPE),
        ({"mediaType": None, "url": "data:,hi"}, UNKNOWN_TYPE),
    ],
)
def test_a_file_of_which_a_browser_knows_no_type_is_taken(
    members: dict[str, Any], media_type: str
) -> None:
    given = parse_chat(body(user({"type": "file", "filename": "main.rs", **members})))
    (file,) = given.words[-1].content
    assert isinstance(file, File)
    assert isinstance(file.ref, Blob)
    assert (file.media_type, file.name) == (media_type, "main.rs")
    assert given.blobs[file.ref.sha256] == b"hi"


def test_a_file_elsewhere_of_no_type_is_taken() -> None:
    url = {"type": "file", "mediaType": "", "url": "https://x.test/a"}
    known = {"type": "file", "providerReference": {"x": "file-1"}}
    given = parse_chat(body(user(url, known)))
    types = [one.media_type for one in given.words[-1].content if isinstance(one, File)]
    assert types == [UNKNOWN_TYPE, UNKNOWN_TYPE]


def test_a_data_url_in_percent_encoding_has_a_limit() -> None:
    part = {"type": "file", "url": f"data:,{'x' * (PERCENT + 1)}"}
    with pytest.raises(ClientProtocolError, match="send base64"):
        parse_chat(body(user(part)))


def test_a_repeat_is_known_by_what_it_says_or_answers() -> None:
    assert names_of(parse_chat(body(user(text())))) == ["message u1"]
    yes = names_of(parse_chat(body(agent(ANSWERED))))
    no = call("approval-responded", approval={"id": "r1", "approved": False})
    assert yes != names_of(parse_chat(body(agent(no))))


REQUEST: dict[str, Any] = {"thread_id": "main", "request_id": "r1", "prompt": "May I?"}
OPTIONS = (ev.Option(id="a", label="Alpha"), ev.Option(id="once", label="Allow once"))


@each(
    ("kind", "output", "fields"),
    [
        ("approval", "allow", {"decision": "allow"}),
        ("approval", "deny", {"decision": "deny"}),
        ("approval", True, {"decision": "allow"}),
        ("approval", "Allow once", {"option_ids": ("once",)}),
        ("approval", {"optionId": "a"}, {"option_ids": ("a",)}),
        (
            "limit",
            {"approved": False, "reason": "enough"},
            {"decision": "deny", "reason": "enough"},
        ),
        (
            "limit",
            {"approved": True, "scope": "session"},
            {"decision": "allow", "scope": "session"},
        ),
        ("limit", "decline", {"decision": "deny"}),
        ("question", "Alpha", {"option_ids": ("a",)}),
        ("question", "my own words", {"text": "my own words"}),
        ("question", {"optionIds": ["a", "once"]}, {"option_ids": ("a", "once")}),
        ("question", {"text": "words"}, {"text": "words"}),
        ("question", {"decline": True}, {"skip": True}),
        ("secret", "decline", {"skip": True}),
        ("secret", {"optionId": "decline"}, {"skip": True}),
        ("authorization", {"skip": True}, {"skip": True}),
        ("tool_result", {"a": 1}, {"content": (Text(text='{"a":1}'),)}),
    ],
)
def test_an_output_is_an_answer(kind: Any, output: Any, fields: dict[str, Any]) -> None:
    event = ev.InteractionRequested(**REQUEST, kind=kind, options=OPTIONS)
    answer = to_answer(PageAnswer("ask-r1", output=output), event)
    given = {name: getattr(answer, name) for name in fields}
    assert given == fields


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("secret", "hunter2"),
        ("sudo", {"value": "hunter2"}),
        ("authorization", "hunter2"),
        ("approval", "hunter2"),
        ("approval", {"approved": True, "scope": "hunter2"}),
        ("approval", {"approved": True, "reason": 3}),
        ("question", ""),
        ("question", {"other": "hunter2"}),
    ],
)
def test_what_does_not_fit_is_refused_and_never_quoted(kind: Any, output: Any) -> None:
    event = ev.InteractionRequested(**REQUEST, kind=kind)
    with pytest.raises(ClientProtocolError) as caught:
        to_answer(PageAnswer("ask-r1", output=output), event)
    assert "hunter2" not in str(caught.value)


def test_a_failed_output_declines_or_is_the_failure_of_a_tool() -> None:
    failed = PageAnswer("ask-r1", output="broken", failed=True)
    question = ev.InteractionRequested(**REQUEST, kind="question")
    assert to_answer(failed, question).skip
    tool = ev.InteractionRequested(**REQUEST, kind="tool_result")
    answer = to_answer(failed, tool)
    assert (answer.is_error, answer.content) == (True, (Text(text="broken"),))


@each("code", list(ErrorCode))
def test_every_error_has_a_status_and_words_that_a_page_shows(code: ErrorCode) -> None:
    error = DragomanError("It does not work.", code=code, details={"retry_after": 3})
    answer = answers.refusal(error)
    assert 400 <= answer.status < 600
    assert answer.body == b"It does not work."
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["retry-after"] == "3"
    hidden = answers.refusal(error, error_id="e-1")
    assert b"e-1" in hidden.body
    assert b"does not work" not in hidden.body
