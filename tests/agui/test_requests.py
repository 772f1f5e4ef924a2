"""What a `RunAgentInput` says, what of it is skipped, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.agui.answers import refusal
from adapters.agui.intents import names_of
from adapters.agui.interactions import ResumeEntry, interrupt_of, to_answer
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
    for wrong in ({**data, "value": "?"}, {**data, "mimeType": 5}, {**url, "value": "ftp:x"}):
        with pytest.raises(ClientProtocolError):
            parts({"type": "image", "source": wrong})


MAIN_RS = "Zm4gbWFpbigpIHt9"
HELD = "application/octet-stream"


@each(
    ("part", "media_type"),
    [
        ({"type": "data", "value": MAIN_RS, "mimeType": ""}, HELD),
        ({"type": "data", "value": MAIN_RS}, HELD),
        ({"type": "url", "value": f"data:text/x-rust;base64,{MAIN_RS}"}, "text/x-rust"),
        (
            {"type": "url", "value": f"data:text/plain;charset=utf-8;base64,{MAIN_RS}"},
            "text/plain",
        ),
        ({"type": "url", "value": f"data:;base64,{MAIN_RS}", "mimeType": ""}, HELD),
        ({"type": "url", "value": f"DATA:a/b;base64,{MAIN_RS}", "mimeType": "text/rs"}, "text/rs"),
        ({"type": "url", "value": "data:,fn%20main()%20%7B%7D"}, HELD),
        ({"type": "binary", "data": MAIN_RS, "mimeType": ""}, HELD),
        ({"type": "binary", "url": f"data:a/b;base64,{MAIN_RS}", "mimeType": ""}, "a/b"),
    ],
)
def test_a_file_of_which_a_browser_knows_no_type_is_taken(
    part: dict[str, Any], media_type: str
) -> None:
    whole = part if part["type"] == "binary" else {"type": "document", "source": part}
    said = read({"id": "u1", "role": "user", "content": [whole]})
    (file,) = said.words[0].content
    assert isinstance(file, ev.File)
    assert isinstance(file.ref, ev.Blob)
    assert file.media_type == media_type
    assert said.blobs[file.ref.sha256] == b"fn main() {}"


def test_a_file_elsewhere_whose_type_is_empty_has_that_of_its_part() -> None:
    url = {"type": "url", "value": "https://example.com/a", "mimeType": ""}
    (file,) = parts({"type": "image", "source": url})
    assert isinstance(file, ev.File)
    assert file.media_type == "image/*"


@each(
    ("source", "why"),
    [
        ({"type": "url", "value": "data:text/plain"}, "source.value` is not a data URL"),
        ({"type": "url", "value": "data:a/b;base64,?s3cret"}, "source.value` is not base64"),
        ({"type": "url", "value": f"data:,{'x' * (2**20 + 1)}"}, "send base64"),
        ({"type": "url", "value": "data:,x", "mimeType": "text"}, "source.mimeType` is not"),
    ],
)
def test_a_data_url_that_cannot_be_read_is_refused_by_its_place(source: Any, why: str) -> None:
    with pytest.raises(ClientProtocolError) as caught:
        parts({"type": "image", "source": source})
    assert why in caught.value.message
    assert "s3cret" not in caught.value.message
    assert caught.value.__context__ is None


def test_members_are_read_in_snake_case_too() -> None:
    source = {"type": "data", "value": "aGk=", "mime_type": "image/png"}
    picture = {"type": "image", "source": source}
    payload = {"tool_call_id": 1, "editedArgs": {"file_path": "x"}}
    given = {
        "thread_id": "t-1",
        "run_id": "r-1",
        "protocol_version": "1.0",
        "forwarded_props": {"a_b": 1},
        "messages": [
            {"id": "u0", "role": "user", "content": "look"},
            {"id": "a0", "role": "assistant", "tool_calls": []},
            {"id": "t0", "role": "tool", "tool_call_id": "k1", "content": '{"a_b":1}'},
            {"id": "u1", "role": "user", "content": [picture]},
        ],
        "resume": [{"interrupt_id": "i", "status": "resolved", "payload": payload}],
    }
    said = parse_run(json.dumps(given).encode())
    assert (said.thread, said.run, said.modern) == ("t-1", "r-1", True)
    assert said.ignored == ("forwardedProps",)
    assert [(one.call_id, one.text) for one in said.results] == [("k1", '{"a_b":1}')]
    assert said.resume == (ResumeEntry("i", False, payload),)
    (file,) = said.words[0].content
    assert isinstance(file, ev.File)
    assert file.media_type == "image/png"


def test_where_a_member_has_both_spellings_the_camel_case_counts() -> None:
    said = read(USER, thread_id="snake", run_id=5)
    assert (said.thread, said.run) == ("t", "r")
    assert read(USER, threadId=None, thread_id="snake").thread == "snake"
    with pytest.raises(ClientProtocolError, match="`threadId`"):
        read(USER, threadId=5, thread_id="snake")
    with pytest.raises(ClientProtocolError, match="`threadId`"):
        read(USER, threadId="-", thread_id=5)


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
    secret = to_answer(ResumeEntry("r1", False, {"value": "s3cret"}), request("secret"))
    assert secret.sealed is not None
    assert to_answer(ResumeEntry("r1", True), request("secret")).skip
    assert to_answer(ResumeEntry("r1", False, "yes"), request("approval")).decision == "allow"
    asked = request("question", options=(ev.Option(id="a", label="Alpha"),))
    assert to_answer(ResumeEntry("r1", False, "Alpha"), asked).option_ids == ("a",)
    assert to_answer(ResumeEntry("r1", False, {"text": "else"}), asked).text == "else"
    for kind, payload in (("approval", "s3cret"), ("secret", 5), ("authorization", "s3cret")):
        with pytest.raises(ClientProtocolError) as caught:
            to_answer(ResumeEntry("r1", False, payload), request(kind))
        assert "s3cret" not in caught.value.message


@each("code", list(ErrorCode))
def test_every_error_has_a_status_and_the_vendors_form(code: ErrorCode) -> None:
    answer = refusal(DragomanError("why", code=code, details={"retry_after": 2}), error_id="e-1")
    assert 400 <= answer.status < 600
    assert set(json.loads(answer.body)) == {"error", "code", "details"}
    plain = refusal(DragomanError("why", code=code, details={"retry_after": 2}))
    assert plain.headers["Retry-After"] == "2"
