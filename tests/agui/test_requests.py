"""What a `RunAgentInput` says, what of it is skipped, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.agui.answers import refusal
from adapters.agui.asked import Resume, interrupt_of, to_answer
from adapters.agui.meant import names_of
from adapters.agui.requests import RunInput, parse_run
from adapters.model import events as ev
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from tests.support.each import each

USER = {"id": "u1", "role": "user", "content": "hello"}


def body(*messages: Any, **more: Any) -> bytes:
    given = {"threadId": "t", "runId": "r", "messages": list(messages), **more}
    return json.dumps({key: value for key, value in given.items() if value != "-"}).encode()


def read(*messages: Any, **more: Any) -> RunInput:
    return parse_run(body(*messages, **more))


def parts(*content: Any) -> tuple[ev.Content, ...]:
    (words,) = read({"id": "u1", "role": "user", "content": list(content)}).words
    return words.content


@each(
    ("given", "why"),
    [
        (b"{", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (body(USER, threadId="-"), "`threadId`"),
        (body(USER, threadId=""), "`threadId`"),
        (body(USER, runId=5), "`runId`"),
        (body(USER, runId="r" * 513), "`runId`"),
        (body(messages="none"), "`messages`"),
        (body(USER, tools={}), "`tools`"),
        (body(USER, context=[{"description": "x"}]), "`context[0]`"),
        (body(USER, context=["x"]), "`context[0]`"),
        (body(USER, resume=["x"]), "`resume[0]`"),
        (body(USER, resume=[{"interruptId": "i", "status": "x"}]), "`resume[0].status`"),
        (body(USER, resume=[{"status": "resolved"}]), "`resume[0].interruptId`"),
        (body("x"), "`messages[0]`"),
        (body({"role": "user", "content": ""}), "`messages[0].id`"),
        (body({"id": "a", "role": "user"}), "`messages[0].content`"),
        (body({"id": "a", "role": "tool", "content": "x"}), "`messages[0].toolCallId`"),
        (body({"id": "a", "role": "tool", "toolCallId": "c"}), "`messages[0].content`"),
        (body(*[USER] * 257), "more than 256"),
    ],
)
def test_what_is_malformed_is_refused_by_its_place(given: bytes, why: str) -> None:
    with pytest.raises(ClientProtocolError) as caught:
        parse_run(given)
    assert why in caught.value.message


def test_what_is_null_unknown_or_left_out_is_no_fault() -> None:
    nothing = dict.fromkeys(("tools", "context", "state", "forwardedProps", "resume"))
    odd = {"id": "a", "role": "assistant", "content": None, "toolCalls": None}
    said = read(odd, {"id": "b", "role": "critic"}, {**USER, "name": None}, x=1, **nothing)
    assert [one.id for one in said.words] == ["u1"]
    assert said.ignored == ()
    assert not said.modern
    assert read(USER, protocolVersion="1.0").modern


def test_parts_are_files_or_skipped() -> None:
    data = {"type": "data", "value": "aGk=", "mimeType": "image/png"}
    url = {"type": "url", "value": "https://example.com/a.pdf"}
    found = parts(
        {"type": "text", "text": "see"},
        {"type": "image", "source": data},
        {"type": "document", "source": url},
        {"type": "binary", "mimeType": "image/png", "data": "aGk=", "filename": "a.png"},
        {"type": "image", "source": {"type": "file", "value": "f-1", "provider": "p"}},
        {"type": "hologram", "source": data},
        {"type": "image", "source": {"type": "cloud", "value": "x"}},
        "x",
    )
    assert [block.type for block in found] == ["text", "file", "file", "file", "file"]
    files = [block for block in found if isinstance(block, ev.File)]
    assert [one.media_type for one in files] == ["image/png", "application/*", "image/png", None]
    assert files[2].name == "a.png"
    for wrong in ({**data, "value": "?"}, {**data, "mimeType": None}, {**url, "value": "ftp:x"}):
        with pytest.raises(ClientProtocolError):
            parts({"type": "image", "source": wrong})


def test_a_repeat_is_known_by_what_it_says_and_never_by_its_run() -> None:
    assert names_of(read(USER)) == names_of(read(USER, runId="r2"))
    yes = {"interruptId": "i", "status": "resolved", "payload": {"approved": True}}
    no = {**yes, "payload": {"approved": False}}
    assert names_of(read(resume=[yes])) != names_of(read(resume=[no]))


def request(kind: Any, **more: Any) -> ev.InteractionRequested:
    fields: dict[str, Any] = {"thread_id": ev.MAIN, "request_id": "r1", "prompt": "May I?"}
    return ev.InteractionRequested(kind=kind, **{**fields, **more})


@pytest.mark.parametrize("kind", ["approval", "question", "secret", "authorization", "limit"])
def test_an_interrupt_has_what_all_clients_want(kind: Any) -> None:
    interrupt = interrupt_of(request(kind, call_id="k1", expires_at=1))
    assert interrupt["reason"] != "tool_call"
    assert interrupt["message"]
    assert isinstance(interrupt["responseSchema"], dict)
    assert "expiresAt" not in interrupt


def test_answers_are_read_and_no_refusal_quotes_them() -> None:
    secret = to_answer(Resume("r1", False, {"value": "s3cret"}), request("secret"))
    assert secret.sealed is not None
    assert to_answer(Resume("r1", True), request("secret")).skip
    assert to_answer(Resume("r1", False, "yes"), request("approval")).decision == "allow"
    asked = request("question", options=(ev.Option(id="a", label="Alpha"),))
    assert to_answer(Resume("r1", False, "Alpha"), asked).option_ids == ("a",)
    assert to_answer(Resume("r1", False, {"text": "else"}), asked).text == "else"
    for kind, payload in (("approval", "s3cret"), ("secret", 5), ("authorization", "s3cret")):
        with pytest.raises(ClientProtocolError) as caught:
            to_answer(Resume("r1", False, payload), request(kind))
        assert "s3cret" not in caught.value.message


@each("code", list(ErrorCode))
def test_every_error_has_a_status_and_the_vendors_form(code: ErrorCode) -> None:
    answer = refusal(DragomanError("why", code=code, details={"retry_after": 2}), error_id="e-1")
    assert 400 <= answer.status < 600
    assert set(json.loads(answer.body)) == {"error", "code", "details"}
    plain = refusal(DragomanError("why", code=code, details={"retry_after": 2}))
    assert plain.headers["Retry-After"] == "2"
