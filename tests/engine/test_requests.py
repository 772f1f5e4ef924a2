"""The request side of the Engine face: what is taken, what is refused, and in which words."""

from __future__ import annotations

import hashlib
import json
from typing import Any, get_args

import pytest

from adapters.engine import answers, interactions, requests, wire
from adapters.model.commands import AnswerInteraction
from adapters.model.events import (
    SEALED_KINDS,
    Blob,
    File,
    InteractionKind,
    InteractionRequested,
    Option,
    Other,
    Text,
    Url,
)
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from tests.support.each import each

PNG = b"\x89PNG\r\n\x1a\n"
PNG_BASE64 = "iVBORw0KGgo="


def execute(**members: Any) -> requests.ExecuteRequest:
    body = {"message": "hello", "task_id": "survey-12", **members}
    return requests.parse_execute(json.dumps(body).encode())


def respond(answer: str = "yes", **members: Any) -> requests.RespondRequest:
    body = {"task_id": "survey-12", "answer": answer, **members}
    return requests.parse_respond(json.dumps(body).encode())


def asked(kind: Any = "approval", **members: Any) -> InteractionRequested:
    given = {"thread_id": "main", "request_id": "hitl-1", "prompt": "Delete it?", **members}
    return InteractionRequested(kind=kind, **given)


def answered(answer: str, request: InteractionRequested, **members: Any) -> AnswerInteraction:
    return interactions.to_command(respond(answer, **members), request)


# Execute.


def test_a_message_is_one_text_that_a_busy_task_refuses() -> None:
    wanted = execute()
    assert wanted.task_id == "survey-12"
    assert wanted.message.content == (Text(text="hello"),)
    assert wanted.message.policy == "reject"
    assert wanted.message.options is None
    assert requests.for_engine_only(wanted.message) == []


def test_files_come_inline_as_data_url_or_by_address() -> None:
    def image(**source: Any) -> dict[str, Any]:
        return {"type": "image", "source": source}

    wanted = execute(
        media=[
            image(type="base64", media_type="image/png", data=PNG_BASE64),
            image(type="base64", media_type="image/png", data=f"data:image/x;base64,{PNG_BASE64}"),
            image(type="base64", data="data:image/svg+xml,%3Csvg%2F%3E"),
            image(type="base64", media_type="", data="data:image/svg+xml,%3Csvg%2F%3E"),
            image(type="base64", media_type="", data="data:;base64,PHN2Zy8+"),
            image(type="url", url="https://img.example/tower.jpg"),
            {"type": "document", "source": {"type": "url", "url": "https://doc.example/a.pdf"}},
            {"type": "hologram", "depth": 3},
        ]
    )
    digest = hashlib.sha256(PNG).hexdigest()
    png = File(media_type="image/png", size=len(PNG), ref=Blob(sha256=digest))
    svg = hashlib.sha256(b"<svg/>").hexdigest()
    assert wanted.message.content[1:] == (
        png,
        png,
        *[File(media_type="image/svg+xml", size=6, ref=Blob(sha256=svg))] * 2,
        File(media_type="application/octet-stream", size=6, ref=Blob(sha256=svg)),
        File(media_type="image/*", ref=Url(url="https://img.example/tower.jpg")),
        File(media_type="application/*", ref=Url(url="https://doc.example/a.pdf")),
        Other(dialect="engine", value={"type": "hologram", "depth": 3}),
    )
    assert wanted.blobs == {digest: PNG, svg: b"<svg/>"}


def test_what_only_an_engine_knows_is_named_and_what_nobody_knows_is_kept() -> None:
    wanted = execute(direct=True, effort="high", edit_message_id="m-1", agent={"id": 7})
    assert wanted.message.options == {
        "direct": True,
        "super_thinking": True,
        wire.MEMBERS_OPTION: {"agent": {"id": 7}},
    }
    assert wanted.message.edit_of == "m-1"
    assert requests.for_engine_only(wanted.message) == [
        "direct",
        "super_thinking",
        "edit_message_id",
    ]
    assert requests.for_engine_only(execute(retry_message_id="m-1").message) == ["retry_message_id"]


@pytest.mark.parametrize(
    "members",
    [
        {"direct": False},
        {"super_thinking": False},
        {"effort": "low"},
        {"effort": None},
        {"media": None},
        {"media": []},
        {"edit_message_id": None, "retry_message_id": None},
    ],
)
def test_defaults_are_as_good_as_nothing(members: dict[str, Any]) -> None:
    assert execute(**members).message == execute().message


@each(
    ("members", "named"),
    [
        ({"message": None}, "message"),
        ({"message": ""}, "message"),
        ({"message": ["hello"]}, "message"),
        ({"task_id": None}, "task_id"),
        ({"task_id": ""}, "task_id"),
        ({"task_id": 12}, "task_id"),
        ({"task_id": "é" * 2049}, "task_id"),
        ({"direct": 1}, "direct"),
        ({"super_thinking": "yes"}, "super_thinking"),
        ({"effort": "extreme"}, "effort"),
        ({"effort": 3}, "effort"),
        ({"edit_message_id": ""}, "edit_message_id"),
        ({"edit_message_id": "a", "retry_message_id": "b"}, "retry_message_id"),
        ({"media": {}}, "media"),
        ({"media": ["x"]}, "media[0]"),
        ({"media": [{"type": 1}]}, "media[0]"),
        ({"media": [{"type": "image"}]}, "media[0]"),
        ({"media": [{"type": "image", "source": {"type": "file"}}]}, "source.type"),
        ({"media": [{"type": "image", "source": {"type": "base64"}}]}, "source.data"),
        (
            {"media": [{"type": "image", "source": {"type": "base64", "data": PNG_BASE64}}]},
            "source.media_type",
        ),
        (
            {
                "media": [
                    {"type": "image", "source": {"type": "base64", "media_type": 1, "data": "aa"}}
                ]
            },
            "source.media_type",
        ),
        (
            {
                "media": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "!!"},
                    }
                ]
            },
            "source.data",
        ),
        ({"media": [{"type": "image", "source": {"type": "base64", "data": "data:x"}}]}, "data"),
        (
            {
                "media": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "", "data": PNG_BASE64},
                    }
                ]
            },
            "source.media_type",
        ),
        ({"media": [{"type": "image", "source": {"type": "url"}}]}, "source.url"),
        (
            {"media": [{"type": "image", "source": {"type": "url", "url": "file:///etc/x"}}]},
            "source.url",
        ),
    ],
)
def test_a_refusal_names_the_member(members: dict[str, Any], named: str) -> None:
    with pytest.raises(ClientProtocolError) as refused:
        execute(**members)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert named in refused.value.message


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"x"', b"{", b"\xff", b'{"a":NaN}'])
def test_a_body_that_is_no_object_is_refused_and_not_kept(body: bytes) -> None:
    for parse in (requests.parse_execute, requests.parse_respond):
        with pytest.raises(ClientProtocolError) as refused:
            parse(body)
        assert refused.value.__context__ is None


def test_a_byte_order_mark_is_no_part_of_the_body() -> None:
    body = b'\xef\xbb\xbf{"message":"m","task_id":"t"}'
    assert requests.parse_execute(body).task_id == "t"


# Respond and replay.


def test_an_answer_may_name_the_task_the_request_or_both() -> None:
    assert respond().request_id is None
    given = respond(task_id=None, request_id="hitl-1", feedback="", content_blocks=[])
    assert (given.task_id, given.request_id, given.feedback) == (None, "hitl-1", None)


@pytest.mark.parametrize(
    "members",
    [
        {"task_id": None},
        {"task_id": 3},
        {"answer": None},
        {"answer": True},
        {"feedback": 3},
        {"content_blocks": {}},
        {"request_id": ""},
    ],
)
def test_an_answer_of_a_wrong_form_is_refused(members: dict[str, Any]) -> None:
    body = {"task_id": "t", "answer": "yes", **members}
    with pytest.raises(ClientProtocolError):
        requests.parse_respond(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("query", "after"), [({}, 0), ({"after": "0"}, 0), ({"after": "1777800015002"}, 1777800015002)]
)
def test_after_is_a_count_of_milliseconds(query: dict[str, str], after: int) -> None:
    assert requests.parse_replay(query) == requests.ReplayQuery(after=after, task_id=None)


@pytest.mark.parametrize("after", ["", "-1", "1.5", "1e3", "now", "٣", "9" * 17])
def test_after_is_nothing_else(after: str) -> None:
    with pytest.raises(ClientProtocolError, match="after"):
        requests.parse_replay({"after": after})


# Answers to requests.


@pytest.mark.parametrize("word", ["yes", "YES ", "y", "true", "Allow", "approve", "approved"])
def test_a_permission_is_given(word: str) -> None:
    assert answered(word, asked()).decision == "allow"


@pytest.mark.parametrize("word", ["no", "N", "false", "deny", "denied", "reject"])
def test_a_permission_is_denied_with_a_reason(word: str) -> None:
    command = answered(word, asked(), feedback="not today")
    assert (command.decision, command.reason) == ("deny", "not today")


@pytest.mark.parametrize("word", ["", "maybe", "yes!", "yes and no", "always", "ok?", "0"])
def test_a_permission_takes_nothing_else(word: str) -> None:
    with pytest.raises(ClientProtocolError, match="`yes` or `no`"):
        answered(word, asked())


def test_yes_takes_the_requests_own_option_of_the_narrowest_scope() -> None:
    options = (
        Option(id="always", label="Always", scope="always"),
        Option(id="once", label="Once", scope="once"),
        Option(id="deny", label="Deny"),
    )
    assert answered("yes", asked(options=options)).option_ids == ("once",)
    assert answered("no", asked(options=options)).option_ids == ("deny",)


def test_a_question_takes_an_option_by_its_words_and_other_words_only_where_asked_for() -> None:
    options = (Option(id="o1", label="Green tea"), Option(id="o2", label="Coffee"))
    question = asked("question", options=options)
    assert answered("green TEA", question).option_ids == ("o1",)
    assert answered("o2", question).option_ids == ("o2",)
    with pytest.raises(ClientProtocolError, match="`Green tea`, `Coffee`"):
        answered("Milk", question)
    free = answered("Milk", asked("question", options=options, freeform=True))
    assert (free.text, free.option_ids) == ("Milk", ())
    assert answered("Milk", asked("question")).text == "Milk"
    with pytest.raises(ClientProtocolError):
        answered("", asked("question"))


def test_the_words_of_a_tool_result_are_its_content() -> None:
    command = answered('{"sku":7}', asked("tool_result"))
    assert command.content == (Text(text='{"sku":7}'),)
    picture = {"type": "image", "source": {"type": "url", "url": "https://a.example/x.png"}}
    command = answered("look", asked("tool_result"), content_blocks=[picture])
    assert command.content is not None
    assert [block.type for block in command.content] == ["text", "file"]


@pytest.mark.parametrize(
    ("word", "decision"), [("continue", "allow"), ("yes", "allow"), ("STOP", "deny"), ("n", "deny")]
)
def test_a_limit_takes_continue_or_stop(word: str, decision: str) -> None:
    assert answered(word, asked("limit")).decision == decision
    with pytest.raises(ClientProtocolError, match="`continue` or `stop`"):
        answered("later", asked("limit"))


def test_a_sign_in_can_only_be_cancelled() -> None:
    command = answered(" Cancel", asked("authorization"))
    assert command.decision == "deny"
    with pytest.raises(ClientProtocolError, match="`cancel`"):
        answered("done", asked("authorization"))


@pytest.mark.parametrize("kind", sorted(SEALED_KINDS))
def test_a_sealed_request_can_only_be_declined_and_no_error_quotes_what_was_said(
    kind: str,
) -> None:
    assert answered("decline", asked(kind)).skip
    for given in (respond("hunter2"), respond("decline", feedback="hunter2")):
        with pytest.raises(ClientProtocolError) as refused:
            interactions.to_command(given, asked(kind))
        assert "hunter2" not in repr(refused.value) + str(refused.value.details)


@pytest.mark.parametrize("kind", get_args(InteractionKind))
def test_every_choice_that_is_shown_is_taken(kind: str) -> None:
    options = (Option(id="o1", label="Green tea"), Option(id="o2", label="Coffee"))
    request = asked(kind, options=options if kind == "question" else None)
    choices = interactions.offered(request)
    assert bool(choices) == (kind not in ("approval", "tool_result"))
    for choice in choices or ["yes"]:
        assert answered(choice, request).request_id == "hitl-1"


# Answers to the frontend.


@each("code", ErrorCode)
def test_every_error_has_a_body_in_the_dialects_form(code: ErrorCode) -> None:
    answer = answers.refusal(DragomanError("Nothing to see.", code=code, details={"a": 1}))
    body = json.loads(answer.body)
    assert body == {"error": body["error"], "message": "Nothing to see.", "details": {"a": 1}}
    assert body["error"] == answers.stated_code(str(code))
    assert 400 <= answer.status < 600
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("code", "status", "word"),
    [
        (ErrorCode.UNAUTHORIZED, 401, "INVALID_KEY"),
        (ErrorCode.FORBIDDEN, 403, "PERMISSION_DENIED"),
        (ErrorCode.BUSY, 409, "TASK_BUSY"),
        (ErrorCode.PAUSED, 409, "HITL_REQUIRED"),
        (ErrorCode.ALREADY_ANSWERED, 404, "NOTHING_PENDING"),
        (ErrorCode.KEY_REUSED, 409, "IDEMPOTENCY_KEY_CONFLICT"),
        (ErrorCode.NOT_SUPPORTED, 400, "NOT_SUPPORTED"),
        (ErrorCode.RATE_LIMITED, 429, "LLM_RATE_LIMITED"),
        (ErrorCode.BACKEND_REFUSED, 502, "LLM_PROVIDER_ERROR"),
        (ErrorCode.STOPPING, 503, "DRAINING"),
        (ErrorCode.BACKEND_TIMEOUT, 504, "LLM_TIMEOUT"),
    ],
)
def test_the_statuses_are_those_of_the_page(code: ErrorCode, status: int, word: str) -> None:
    answer = answers.refusal(DragomanError("x", code=code))
    assert (answer.status, json.loads(answer.body)["error"]) == (status, word)


def test_a_task_that_is_not_found_is_said_to_be_a_task() -> None:
    error = DragomanError("x", code=ErrorCode.NOT_FOUND)
    assert json.loads(answers.refusal(error).body)["error"] == "NOT_FOUND"
    assert json.loads(answers.refusal(error, task=True).body)["error"] == "TASK_NOT_FOUND"


def test_a_failure_of_ours_shows_its_number_only() -> None:
    error = DragomanError("secret path", code=ErrorCode.INTERNAL)
    answer = answers.refusal(error, error_id="e-1")
    assert b"secret path" not in answer.body
    assert json.loads(answer.body)["details"] == {"error_id": "e-1"}


def test_a_rate_limit_says_when_to_come_back() -> None:
    error = DragomanError("x", code=ErrorCode.RATE_LIMITED, details={"retry_after": 8})
    assert answers.refusal(error).headers["Retry-After"] == "8"


def test_codes_of_a_backend_stay_as_they_are() -> None:
    assert answers.stated_code("CONTEXT_OVERFLOW") == "CONTEXT_OVERFLOW"
    assert answers.stated_code("backend_unavailable") == "UNAVAILABLE"


def test_the_other_bodies_are_those_of_the_page() -> None:
    assert answers.resumed_body("hitl-1") == {"status": "resumed", "request_id": "hitl-1"}
    assert answers.pending_answer([]).body == b'{"pending":[]}'
    assert answers.pending_answer([b'{"a":1}', b"{}"]).body == b'{"pending":[{"a":1},{}]}'
    assert answers.health_body(88.23) == {
        "status": "ok",
        "uptime_seconds": 88.2,
        "subsystems": {},
    }
