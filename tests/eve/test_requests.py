"""The request side of the eve face against recorded exchanges of 0.30.8 and 0.80.1.

The tables hold request and answer as they were recorded (scenarios `errors`, `upload-policy`,
`stream-cursor`, `controls`, `unauthorized`, `cancel-mid-turn`), and beside them what form `all`
makes of the request. `OK` stands for an accepted one.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import MultiDict

from adapters.eve import wire
from adapters.eve.requests import (
    ControlKind,
    EveFaceSettings,
    EveRefusal,
    InputResponse,
    Route,
    answer_by_message,
    control_answer,
    create_answer,
    follow_up_answer,
    health_body,
    info_body,
    make_token,
    offered_options,
    parse_control,
    parse_create,
    parse_follow_up,
    parse_stream_query,
    refusal,
    route_not_found,
    stream_headers,
    to_command,
    token_handle,
    token_wait,
)
from adapters.model.base import Response
from adapters.model.events import (
    Blob,
    File,
    InteractionKind,
    InteractionRequested,
    Option,
    Text,
    Url,
)
from adapters.wire.errors import DragomanError, ErrorCode
from tests.support.each import each

Verdict = tuple[int, dict[str, Any]] | None
OK: Verdict = None

ALL: tuple[wire.Form, ...] = ("all", "tokens", "newest")
TOKEN = "eve:6d168835-1ddb-4918-b122-6aa3f849d643"
SESSION = "wrun_01M7ZWFYBPREBXS40074RXDBV5"


def refused(error: str, status: int = 400, **members: Any) -> Verdict:
    return status, {"ok": False, "error": error, **members}


def body_of(value: object) -> bytes:
    """A recorded body: text that was not JSON stands as it is, None is an empty one."""
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def verdict_of(call: Any, *arguments: Any) -> Verdict:
    try:
        call(*arguments)
    except EveRefusal as error:
        return error.status, error.body
    return OK


NO_MESSAGE = refused("Missing or empty 'message' field.")
EMPTY = refused("Expected 'message' to be non-empty when provided.")
INVALID = refused("Invalid JSON body. Send a JSON object, in UTF-8.")
NEW = "Start a new one with `POST /eve/v1/session`."
NO_OBJECT = refused("Expected a JSON object.")
BY_ID = refused("Session-ID routes do not accept 'continuationToken'.")
NO_TOKEN = refused("Missing or empty 'continuationToken' field.")
PARTS = refused("Expected 'message' to be a string or an array of text/file parts.")
IMAGE = refused("Unsupported message part type \"image\". Use 'text' or 'file'.")
TEXT = refused("Text parts require a non-empty 'text' string.")
MEDIA = refused("File parts require a non-empty 'mediaType' string.")
CONTEXT = refused("Expected 'clientContext' to be a string, string array, or JSON object.")
SCHEMA = refused("Expected 'outputSchema' to be a JSON-serializable object.")
MODE = refused("Expected 'mode' to be either 'conversation' or 'task'.")
CAPABILITIES = refused("Expected 'capabilities.requestInput' to be a boolean when provided.")
PRINCIPAL = refused("operationId requires an authenticated principal.")
FORWARDED = refused("This deployment does not accept a forwarded principal.", 403)
NO_ANSWERS = refused("'inputResponses' is only accepted for an existing session.")
ANSWER_LIST = refused("Expected 'inputResponses' to be a non-empty array.")
ANSWER_SHAPE = refused(
    "Expected every 'inputResponses' entry to match the HITL response schema: 'requestId', and "
    "'optionId' or 'text', all strings."
)

FORWARDED_BODY = {"message": "x", "forwardedPrincipal": {"current": {}}}
PRIVATE = "10.0.0.1"
"""A host of a private network: no callback may go there (section 11)."""

CALLBACK = {
    "callId": "c",
    "subagentName": "s",
    "token": "t",
    "url": "http://127.0.0.1:9/eve/v1/callback/t",
}

# (body, what 0.30.8 said, what 0.80.1 said, what form `all` says)
CREATES: list[tuple[Any, Verdict, Verdict, Verdict]] = [
    ({"message": "scene: plain"}, OK, OK, OK),
    ("{not json", INVALID, INVALID, INVALID),
    ([1], NO_MESSAGE, NO_OBJECT, NO_OBJECT),
    ({}, NO_MESSAGE, OK, OK),
    ({"message": ""}, NO_MESSAGE, EMPTY, EMPTY),
    ({"message": 5}, PARTS, PARTS, PARTS),
    ({"message": []}, NO_MESSAGE, EMPTY, EMPTY),
    ({"message": [{"type": "image", "image": "x", "mediaType": "image/png"}]}, IMAGE, IMAGE, IMAGE),
    ({"message": [{"type": "text", "text": ""}]}, TEXT, TEXT, TEXT),
    ({"message": [{"type": "file", "data": "aGk="}]}, MEDIA, MEDIA, MEDIA),
    ({"message": "x", "clientContext": 7}, CONTEXT, CONTEXT, CONTEXT),
    ({"message": "x", "outputSchema": "no"}, SCHEMA, SCHEMA, SCHEMA),
    ({"message": "x", "inputResponses": []}, OK, NO_ANSWERS, NO_ANSWERS),
    ({"message": "x", "continuationToken": "abc"}, OK, BY_ID, OK),
    ({"message": "x", "mode": "nope"}, MODE, OK, OK),
    ({"message": "x", "capabilities": {"nope": True}}, CAPABILITIES, CAPABILITIES, CAPABILITIES),
    ({"message": "x", "operationId": "op-1"}, OK, PRINCIPAL, PRINCIPAL),
    (FORWARDED_BODY, FORWARDED, FORWARDED, FORWARDED),
    ({"message": "x", "callback": CALLBACK}, OK, OK, OK),
    (None, INVALID, OK, OK),
]

EITHER = refused("Expected a non-empty 'message' or a non-empty 'inputResponses' array.")
POLICY = refused("Expected 'turnPolicy' to be either 'queue' or 'steer'.")
BOTH = refused("'message' and 'inputResponses' are mutually exclusive.")
RESPONSE = {"requestId": "r"}
EXTRA = {"requestId": "r", "extra": 1}

# The same for follow-ups. Each body was recorded on the generation that it is written for.
FOLLOW_UPS: list[tuple[Any, Verdict, Verdict, Verdict]] = [
    ({}, NO_TOKEN, EITHER, EITHER),
    ({"message": "x"}, NO_TOKEN, OK, OK),
    ({"continuationToken": TOKEN, "message": "x"}, OK, BY_ID, OK),
    ({"continuationToken": TOKEN, "message": "x", "inputResponses": [RESPONSE]}, OK, BY_ID, OK),
    ({"message": "x", "inputResponses": [RESPONSE]}, NO_TOKEN, BOTH, BOTH),
    ({"continuationToken": TOKEN, "inputResponses": []}, ANSWER_LIST, BY_ID, ANSWER_LIST),
    ({"inputResponses": []}, NO_TOKEN, ANSWER_LIST, ANSWER_LIST),
    (
        {"continuationToken": TOKEN, "inputResponses": [{"optionId": "a"}]},
        *(ANSWER_SHAPE, BY_ID, ANSWER_SHAPE),
    ),
    ({"inputResponses": [{"optionId": "a"}]}, NO_TOKEN, ANSWER_SHAPE, ANSWER_SHAPE),
    (
        {"continuationToken": TOKEN, "inputResponses": [EXTRA]},
        *(ANSWER_SHAPE, BY_ID, ANSWER_SHAPE),
    ),
    ({"inputResponses": [EXTRA]}, NO_TOKEN, ANSWER_SHAPE, ANSWER_SHAPE),
    ({"continuationToken": TOKEN, "message": "x", "turnPolicy": "later"}, OK, BY_ID, OK),
    ({"message": "x", "turnPolicy": "later"}, NO_TOKEN, POLICY, POLICY),
    ({"continuationToken": ""}, NO_TOKEN, BY_ID, NO_TOKEN),
    ("{bad", INVALID, INVALID, INVALID),
]


@each(("body", "tokens", "newest", "union"), CREATES)
def test_a_create_is_judged_as_recorded(
    body: Any, tokens: Verdict, newest: Verdict, union: Verdict
) -> None:
    assert verdict_of(parse_create, body_of(body), EveFaceSettings("tokens")) == tokens
    assert verdict_of(parse_create, body_of(body), EveFaceSettings("newest")) == newest
    assert verdict_of(parse_create, body_of(body), EveFaceSettings("all")) == union


@each(("body", "tokens", "newest", "union"), FOLLOW_UPS)
def test_a_follow_up_is_judged_as_recorded(
    body: Any, tokens: Verdict, newest: Verdict, union: Verdict
) -> None:
    assert verdict_of(parse_follow_up, body_of(body), EveFaceSettings("tokens")) == tokens
    assert verdict_of(parse_follow_up, body_of(body), EveFaceSettings("newest")) == newest
    assert verdict_of(parse_follow_up, body_of(body), EveFaceSettings("all")) == union


BIG = {
    "type": "file",
    "mediaType": "image/png",
    "filename": "big.png",
    "data": "data:image/png;base64," + "A" * 4000,
}
PDF = {"type": "file", "mediaType": "application/pdf", "data": "aGk="}
TOO_LARGE = {
    "kind": "too-large",
    "byteLength": 3000,
    "filename": "big.png",
    "limit": 1000,
    "mediaType": "image/png",
}
DISALLOWED = {
    "kind": "disallowed-media-type",
    "allowedMediaTypes": ["image/*", "text/plain"],
    "mediaType": "application/pdf",
}
LARGE_TEXT = "big.png (3000 bytes) exceeds the 1000-byte upload limit."
DISALLOWED_TEXT = (
    'application/pdf has media type "application/pdf" which is not allowed by this route.'
    " Allowed: image/*, text/plain."
)


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([BIG], refused(LARGE_TEXT, 413, violations=[TOO_LARGE])),
        ([PDF], refused(DISALLOWED_TEXT, 415, violations=[DISALLOWED])),
        ([PDF, BIG], refused(DISALLOWED_TEXT, 415, violations=[DISALLOWED, TOO_LARGE])),
    ],
)
def test_the_first_violation_of_the_upload_policy_gives_the_status(
    form: wire.Form, parts: Any, expected: Verdict
) -> None:
    face = EveFaceSettings(form, max_file_bytes=1000, media_types=("image/*", "text/plain"))
    assert verdict_of(parse_create, body_of({"message": parts}), face) == expected
    follow_up = (
        {"message": parts}
        if form != "tokens"
        else {
            "message": parts,
            "continuationToken": TOKEN,
        }
    )
    assert verdict_of(parse_follow_up, body_of(follow_up), face) == expected


# Messages.


def file_part(data: object, **members: object) -> dict[str, Any]:
    return {"message": [{"type": "file", "mediaType": "text/plain", "data": data, **members}]}


def test_the_recorded_message_of_parts_becomes_text_and_files_kept_by_hash() -> None:
    pixel = (
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
        "AABJRU5ErkJggg=="
    )
    body = {
        "message": [
            {"type": "text", "text": "scene: files"},
            {
                "type": "file",
                "mediaType": "image/png",
                "filename": "dot.png",
                "data": f"data:image/png;base64,{pixel}",
            },
            {"type": "file", "mediaType": "text/plain", "data": "aGVsbG8="},
        ]
    }
    create = parse_create(body_of(body), EveFaceSettings())
    assert create.message is not None
    text, image, plain = create.message.content
    assert text == Text(type="text", text="scene: files")
    assert isinstance(image, File)
    assert isinstance(plain, File)
    assert (image.media_type, image.name, image.size) == ("image/png", "dot.png", 70)
    assert isinstance(plain.ref, Blob)
    assert (plain.name, plain.size) == (None, 5)
    assert create.blobs[plain.ref.sha256] == b"hello"
    assert {hashlib.sha256(blob).hexdigest() for blob in create.blobs.values()} == set(create.blobs)


@pytest.mark.parametrize(
    ("data", "content"),
    [
        ("aGVsbG8=", b"hello"),
        ("aGVsbG8", b"hello"),
        ("aGVs\nbG8=\n", b"hello"),
        ("-_-_", b"\xfb\xff\xbf"),
        ("", b""),
        ("data:text/plain;charset=utf-8;base64,aGVsbG8=", b"hello"),
        ("data:text/plain,hello%20w%C3%B6rld", "hello wörld".encode()),
    ],
)
def test_inline_data_is_decoded(data: str, content: bytes) -> None:
    create = parse_create(body_of(file_part(data)), EveFaceSettings())
    assert list(create.blobs.values()) == [content]


def test_a_url_stays_a_url_and_counts_no_bytes() -> None:
    body = file_part("https://files.example/a?b=c")
    create = parse_create(body_of(body), EveFaceSettings(max_file_bytes=1))
    assert create.message is not None
    block = create.message.content[0]
    assert isinstance(block, File)
    assert block.ref == Url(type="url", url="https://files.example/a?b=c")
    assert block.size is None
    assert create.blobs == {}


DATA = refused("File parts require a 'data' string (base64, data URL, or URL).")
INTERNAL = refused("File part 'data' must not use a framework-internal ref scheme.")


@each("form", ALL)
@each(
    ("data", "expected"),
    [
        ("eve-url:https://h.example/x", INTERNAL),
        ("eve-sandbox:?path=a", INTERNAL),
        ("eve-attachment:?v=1", INTERNAL),
        ("EVE-SANDBOX:x", INTERNAL),
        (7, DATA),
        (None, DATA),
        ("data:text/plain", DATA),
        ("file:///etc/passwd", DATA),
        ("https://", DATA),
        ("not base64!", DATA),
        ("a", DATA),
        ("aGk=\u00e9", DATA),
    ],
)
def test_data_that_is_none_of_the_three_kinds_is_refused(
    form: wire.Form, data: object, expected: Verdict
) -> None:
    assert verdict_of(parse_create, body_of(file_part(data)), EveFaceSettings(form)) == expected


@pytest.mark.parametrize(
    ("part", "quoted"),
    [
        ({}, "undefined"),
        ({"type": None}, "null"),
        ({"type": 5.0}, "5"),
        ({"type": {}}, "[object Object]"),
        ({"type": True}, "true"),
        ({"type": ["a", None, 1.5]}, "a,,1.5"),
    ],
)
def test_a_wrong_part_type_is_quoted_as_the_servers_quote_it(part: Any, quoted: str) -> None:
    verdict = verdict_of(parse_create, body_of({"message": [part]}), EveFaceSettings())
    assert verdict == refused(f"Unsupported message part type \"{quoted}\". Use 'text' or 'file'.")


def test_a_face_may_take_no_files_at_all() -> None:
    verdict = verdict_of(parse_create, body_of({"message": [PDF]}), EveFaceSettings(media_types=()))
    assert verdict is not None
    assert verdict[0] == 415
    assert verdict[1]["error"].endswith("which is not allowed by this route.")
    for allowed in ("*", "*/*", "Application/*", "application/PDF"):
        face = EveFaceSettings(media_types=(allowed,))
        assert verdict_of(parse_create, body_of({"message": [PDF]}), face) == OK


def test_the_default_upload_limit_is_that_of_the_servers() -> None:
    assert EveFaceSettings().max_file_bytes == 26_214_400


# Create.


@pytest.mark.parametrize("form", ["all", "newest"])
@pytest.mark.parametrize("body", [b"", b" \n", b"{}", b'{"capabilities":{"requestInput":false}}'])
def test_a_create_without_a_message_is_a_prewarm(form: wire.Form, body: bytes) -> None:
    create = parse_create(body, EveFaceSettings(form))
    assert create.message is None
    assert create.blobs == {}
    assert create.request_input is (False if b"false" in body else None)


@pytest.mark.parametrize(
    "extra", [{"clientContext": ""}, {"callback": CALLBACK}, {"outputSchema": {}}]
)
def test_a_prewarm_takes_nothing_that_belongs_to_a_message(extra: dict[str, Any]) -> None:
    expected = refused(
        "Creating a session without a message does not accept 'clientContext', 'callback', or"
        " 'outputSchema'."
    )
    assert verdict_of(parse_create, body_of(extra), EveFaceSettings("all")) == expected
    assert verdict_of(parse_create, body_of(extra), EveFaceSettings("newest")) == expected
    assert verdict_of(parse_create, body_of(extra), EveFaceSettings("tokens")) == NO_MESSAGE


def test_a_create_carries_everything_that_it_says() -> None:
    body = {
        "message": "hi",
        "clientContext": {"route": "/billing"},
        "outputSchema": {"type": "object"},
        "mode": "task",
        "capabilities": {"requestInput": False},
        "operationId": "order-77",
        "callback": {**CALLBACK, "taskId": "t1"},
        "protocolVersion": 2,
    }
    create = parse_create(body_of(body), EveFaceSettings("all", authenticated=True))
    assert create.message is not None
    assert create.message.content == (Text(type="text", text="hi"),)
    assert create.message.client_context == {"route": "/billing"}
    assert create.message.output_schema == {"type": "object"}
    assert create.operation_id == "order-77"
    assert (create.mode, create.request_input, create.callback) == ("task", False, CALLBACK)


def test_form_newest_ignores_the_mode_and_form_tokens_the_operation() -> None:
    body = body_of({"message": "x", "mode": "task", "operationId": "a", "protocolVersion": "no"})
    newest = parse_create(body, EveFaceSettings("newest", authenticated=True))
    tokens = parse_create(body, EveFaceSettings("tokens"))
    assert (newest.mode, newest.operation_id) == (None, "a")
    assert (tokens.mode, tokens.operation_id) == ("task", None)
    spoken = body_of({"message": "x", "mode": "conversation"})
    assert parse_create(spoken, EveFaceSettings("all")).mode == "conversation"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"stubs": []}, refused("Tool stubbing is not permitted for this caller.", 403)),
        (
            {"message": "x", "operationId": 5},
            refused("Expected 'operationId' to be a non-empty string."),
        ),
        (
            {"message": "x", "operationId": "é" * 2049},
            refused("'operationId' is longer than 4096 bytes."),
        ),
        (
            {"message": "x", "callback": CALLBACK, "protocolVersion": 3},
            refused(
                "This deployment speaks eve remote agent protocol 2, but the caller speaks"
                " protocol 3. Upgrade both deployments to the same eve release.",
                409,
                code="REMOTE_AGENT_PROTOCOL_MISMATCH",
                protocolVersion=2,
            ),
        ),
        (
            {"message": "x", "callback": CALLBACK, "protocolVersion": "2"},
            refused("Expected 'protocolVersion' to be a number."),
        ),
    ],
)
def test_what_cannot_be_ignored_without_harm_is_refused_in_form_all_as_in_newest(
    body: dict[str, Any], expected: Verdict
) -> None:
    assert (
        verdict_of(parse_create, body_of(body), EveFaceSettings("all", authenticated=True))
        == expected
    )
    assert (
        verdict_of(parse_create, body_of(body), EveFaceSettings("newest", authenticated=True))
        == expected
    )
    if "message" in body:
        assert verdict_of(parse_create, body_of(body), EveFaceSettings("tokens")) == OK


NOT_ABSOLUTE = "callback.url: Callback url must be absolute."


@each(
    ("callback", "fault"),
    [
        (None, "callback: Invalid input: expected object, received null"),
        (True, "callback: Invalid input: expected object, received boolean"),
        ("t", "callback: Invalid input: expected object, received string"),
        ([], "callback: Invalid input: expected object, received array"),
        ({**CALLBACK, "url": "http://[h/eve/v1/callback/t"}, NOT_ABSOLUTE),
        (
            {**CALLBACK, "callId": ""},
            "callback.callId: Too small: expected string to have >=1 characters",
        ),
        (
            {**CALLBACK, "token": 5},
            "callback.token: Invalid input: expected string, received number",
        ),
        ({**CALLBACK, "q": 1}, 'callback: Unrecognized key: "q"'),
        ({**CALLBACK, "url": "nope"}, NOT_ABSOLUTE),
        (
            {**CALLBACK, "url": "http://h.example/eve/v1/callback/u"},
            "callback.url: Callback url token must match callback token.",
        ),
        (
            {**CALLBACK, "url": f"http://{PRIVATE}/eve/v1/callback/t"},
            "callback.url: Callback url host must not be a private or reserved address.",
        ),
        (
            {**CALLBACK, "url": f"http://[::ffff:{PRIVATE}]/eve/v1/callback/t"},
            "callback.url: Callback url host must not be a private or reserved address.",
        ),
    ],
)
@each("form", ALL)
def test_a_callback_is_checked_in_the_words_of_the_servers(
    form: wire.Form, callback: Any, fault: str
) -> None:
    body = body_of({"message": "x", "callback": callback})
    assert verdict_of(parse_create, body, EveFaceSettings(form)) == refused(
        f"Invalid callback metadata: {fault}"
    )


def test_the_callback_of_a_named_agent_is_known_to_s_only() -> None:
    callback = {**CALLBACK, "url": "https://h.example/eve/bob/v1/callback/t"}
    body = body_of({"message": "x", "callback": callback})
    assert verdict_of(parse_create, body, EveFaceSettings("all")) == OK
    assert verdict_of(parse_create, body, EveFaceSettings("tokens")) is not None


@pytest.mark.parametrize("value", ["", []])
def test_an_empty_client_context_says_nothing(value: Any) -> None:
    create = parse_create(body_of({"message": "x", "clientContext": value}), EveFaceSettings())
    assert create.message is not None
    assert create.message.client_context is None


@pytest.mark.parametrize("value", [None, [], "x"])
def test_capabilities_are_an_object(value: Any) -> None:
    body = body_of({"message": "x", "capabilities": value})
    expected = refused("Expected 'capabilities' to be an object.")
    assert verdict_of(parse_create, body, EveFaceSettings()) == expected


def test_entries_of_a_client_context_are_words() -> None:
    body = body_of({"message": "x", "clientContext": ["a", ""]})
    expected = refused("Expected 'clientContext' array entries to be non-empty strings.")
    assert verdict_of(parse_create, body, EveFaceSettings()) == expected


# Follow-up.


def test_a_follow_up_with_a_token_queues_and_may_answer_and_speak_at_once() -> None:
    body = {
        "continuationToken": TOKEN,
        "message": "also",
        "inputResponses": [{"requestId": "r", "optionId": "deny", "text": "Too expensive."}],
        "turnPolicy": "steer",
    }
    follow_up = parse_follow_up(body_of(body), EveFaceSettings("all"))
    assert follow_up.token == TOKEN
    assert follow_up.answers == (InputResponse("r", "deny", "Too expensive."),)
    assert follow_up.text == "also"
    assert follow_up.message is not None
    assert follow_up.message.policy == "queue"
    assert follow_up.paused_policy == "queue"


@pytest.mark.parametrize(
    ("given", "policy"),
    [({}, "steer"), ({"turnPolicy": "queue"}, "queue"), ({"turnPolicy": "steer"}, "steer")],
)
def test_a_follow_up_by_id_steers_unless_it_says_queue_and_withdraws_what_is_open(
    given: dict[str, str], policy: str
) -> None:
    follow_up = parse_follow_up(body_of({"message": "x", **given}), EveFaceSettings("all"))
    assert follow_up.message is not None
    assert (follow_up.token, follow_up.message.policy) == (None, policy)
    assert follow_up.paused_policy == "withdraw"


def test_what_comes_with_answers_goes_into_their_options() -> None:
    body = {
        "inputResponses": [RESPONSE],
        "clientContext": "c",
        "outputSchema": {},
        "callback": CALLBACK,
    }
    assert (
        parse_follow_up(body_of({"inputResponses": [RESPONSE]}), EveFaceSettings()).options is None
    )
    follow_up = parse_follow_up(body_of(body), EveFaceSettings())
    assert follow_up.message is None
    assert follow_up.options == {"clientContext": "c", "outputSchema": {}, "callback": CALLBACK}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("tokens", refused("A forwarded principal is only accepted on session creation.")),
        ("newest", FORWARDED),
        ("all", FORWARDED),
    ],
)
def test_a_forwarded_principal_is_refused_in_each_generations_words(
    form: wire.Form, expected: Verdict
) -> None:
    assert verdict_of(parse_follow_up, body_of(FORWARDED_BODY), EveFaceSettings(form)) == expected


def test_stubs_are_fixed_at_creation() -> None:
    body = body_of({"message": "x", "stubs": None})
    assert verdict_of(parse_follow_up, body, EveFaceSettings()) == refused(
        "Tool stubs are fixed at session creation."
    )


# Controls.

WANTS_TOKEN = refused("Expected 'continuationToken' to be a non-empty string.")
TURN = refused("Expected 'turnId' to be a non-empty string.")


@pytest.mark.parametrize("kind", ["compact", "clear", "reset"])
@pytest.mark.parametrize("form", ["all", "tokens"])
def test_controls_by_token_need_one(kind: ControlKind, form: wire.Form) -> None:
    control = parse_control(
        kind, body_of({"continuationToken": TOKEN, "reason": ""}), EveFaceSettings(form)
    )
    assert (control.kind, control.token) == (kind, TOKEN)
    for body, expected in [
        ({}, WANTS_TOKEN),
        ({"continuationToken": ""}, WANTS_TOKEN),
        (None, INVALID),
        ([1], NO_OBJECT),
    ]:
        assert verdict_of(parse_control, kind, body_of(body), EveFaceSettings(form)) == expected


def test_in_form_newest_the_route_of_a_control_by_token_is_a_session_of_that_name() -> None:
    body = body_of({"continuationToken": TOKEN})
    assert verdict_of(parse_control, "reset", body, EveFaceSettings("newest")) == BY_ID
    assert verdict_of(
        parse_control, "reset", body_of({"message": "x"}), EveFaceSettings("newest")
    ) == refused(f"The session is no longer active. {NEW}", 409, code="session_not_active")


@pytest.mark.parametrize("kind", ["compact", "clear", "reset"])
@pytest.mark.parametrize("form", ["all", "newest"])
def test_controls_by_id_take_an_empty_body_and_no_token(kind: ControlKind, form: wire.Form) -> None:
    control = parse_control(kind, b"", EveFaceSettings(form), SESSION)
    assert (control.kind, control.token, control.reason) == (kind, None, None)
    body = body_of({"continuationToken": TOKEN})
    assert verdict_of(parse_control, kind, body, EveFaceSettings(form), SESSION) == BY_ID
    assert verdict_of(parse_control, kind, b"[]", EveFaceSettings(form), SESSION) == NO_OBJECT


def test_form_tokens_has_no_control_by_id() -> None:
    verdict = verdict_of(parse_control, "clear", b"", EveFaceSettings("tokens"), "s1")
    message = "Cannot find any route matching [POST] /eve/v1/session/s1/clear"
    assert verdict == (404, {"error": True, "status": 404, "message": message})


@pytest.mark.parametrize("form", ALL)
def test_a_cancel_may_name_its_turn(form: wire.Form) -> None:
    control = parse_control("cancel", body_of({"turnId": "turn_3"}), EveFaceSettings(form), SESSION)
    assert (control.kind, control.turn_id) == ("cancel", "turn_3")
    assert parse_control("cancel", b" ", EveFaceSettings(form), SESSION).turn_id is None
    assert (
        verdict_of(parse_control, "cancel", b'{"turnId":""}', EveFaceSettings(form), SESSION)
        == TURN
    )
    assert verdict_of(parse_control, "cancel", b"{", EveFaceSettings(form), SESSION) == INVALID


@pytest.mark.parametrize(("form", "expected"), [("all", OK), ("tokens", OK), ("newest", BY_ID)])
def test_a_token_on_cancel_is_only_refused_where_no_token_generation_is_served(
    form: wire.Form, expected: Verdict
) -> None:
    body = body_of({"continuationToken": TOKEN})
    assert verdict_of(parse_control, "cancel", body, EveFaceSettings(form), SESSION) == expected


def test_a_reset_may_give_a_reason() -> None:
    assert (
        parse_control("reset", body_of({"reason": "Start over"}), EveFaceSettings(), SESSION).reason
        == "Start over"
    )
    assert verdict_of(
        parse_control, "reset", b'{"reason":""}', EveFaceSettings(), SESSION
    ) == refused("Expected 'reason' to be a non-empty string.")


# Stream.


@each("form", ALL)
@each("start", ["abc", "1.5", "", "+1", " 1", "1e3", "9007199254740992", "٣", "9" * 5000])
def test_a_start_index_that_is_no_integer_is_refused(form: wire.Form, start: str) -> None:
    verdict = verdict_of(parse_stream_query, {"startIndex": start}, EveFaceSettings(form))
    assert verdict == refused("Expected startIndex to be an integer.")


@pytest.mark.parametrize(
    ("query", "tail", "first"),
    [
        ({}, 11, 0),
        ({"startIndex": "3"}, 11, 3),
        ({"startIndex": "62"}, 11, 62),
        ({"startIndex": "-1"}, 11, 11),
        ({"startIndex": "-3"}, 11, 9),
        ({"startIndex": "-1000"}, 11, 0),
        ({"startIndex": "-1"}, -1, 0),
        ({"startIndex": "-0"}, 11, 0),
    ],
)
def test_a_start_index_counts_events_also_from_the_end(
    query: dict[str, str], tail: int, first: int
) -> None:
    assert parse_stream_query(query, EveFaceSettings()).first(tail) == first


@pytest.mark.parametrize(
    "name", ["includeTailIndex=1", "includeTailIndex=true", "follow=0", "follow=false"]
)
def test_bounded_reads_end_at_the_tail_but_in_the_token_generation(name: str) -> None:
    key, value = name.split("=")
    for form in ("all", "newest"):
        query = parse_stream_query({key: value}, EveFaceSettings(form))
        assert (query.include_tail, query.follow) == (True, False)
    query = parse_stream_query({key: value}, EveFaceSettings("tokens"))
    assert (query.include_tail, query.follow) == (key == "includeTailIndex", True)


def test_a_lease_is_for_those_that_ask_for_it() -> None:
    assert parse_stream_query({"streamControlVersion": "1"}, EveFaceSettings()).lease
    assert not parse_stream_query({"streamControlVersion": "2"}, EveFaceSettings()).lease
    assert not parse_stream_query({"streamControlVersion": "1"}, EveFaceSettings("tokens")).lease
    query = parse_stream_query({"follow": "1", "includeTailIndex": "yes"}, EveFaceSettings())
    assert (query.include_tail, query.follow, query.lease) == (False, True, False)


def test_of_a_repeated_parameter_the_first_counts() -> None:
    query = MultiDict([("startIndex", "2"), ("startIndex", "abc")])
    assert parse_stream_query(query, EveFaceSettings()).start_index == 2


@pytest.mark.parametrize(("form", "version"), [("all", "24"), ("tokens", "21"), ("newest", "26")])
def test_the_head_of_a_stream_is_the_recorded_one(form: wire.Form, version: str) -> None:
    assert dict(stream_headers(form, SESSION, 11)) == {
        "content-type": "application/x-ndjson; charset=utf-8",
        "cache-control": "no-store, no-transform",
        "x-accel-buffering": "no",
        "x-eve-session-id": SESSION,
        "x-eve-stream-format": "ndjson",
        "x-eve-stream-version": version,
        "x-eve-stream-tail-index": "11",
    }
    assert stream_headers(form, SESSION, -1)["x-eve-stream-tail-index"] == "-1"
    assert "x-eve-stream-tail-index" not in stream_headers(form, SESSION)


# Answers.


def shown(response: Response) -> tuple[int, dict[str, Any]]:
    return response.status, json.loads(response.body)


def test_a_create_is_answered_as_each_generation_does() -> None:
    tokens = create_answer("tokens", SESSION, token=TOKEN, delivery_id="d")
    newest = create_answer("newest", SESSION, token=TOKEN, delivery_id="d")
    union = create_answer("all", SESSION, token=TOKEN, delivery_id="d")
    base = {"ok": True, "sessionId": SESSION}
    assert shown(tokens) == (202, {**base, "continuationToken": TOKEN})
    assert shown(newest) == (202, {**base, "status": "accepted"})
    assert shown(union) == (
        202,
        {**base, "status": "accepted", "continuationToken": TOKEN, "deliveryId": "d"},
    )
    assert shown(create_answer("all", SESSION, token=TOKEN)) == (
        202,
        {**base, "status": "accepted", "continuationToken": TOKEN},
    )
    for answer in (tokens, newest, union):
        assert answer.headers["x-eve-session-id"] == SESSION
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"] == "application/json"


def test_a_follow_up_is_answered_as_each_generation_does() -> None:
    base = {"ok": True, "sessionId": SESSION}
    accepted = {**base, "status": "accepted", "deliveryId": "d"}
    answers = {form: follow_up_answer(form, SESSION, delivery_id="d", token=TOKEN) for form in ALL}
    assert shown(answers["tokens"]) == (200, base)
    assert shown(answers["newest"]) == (202, accepted)
    assert shown(answers["all"]) == (202, {**accepted, "continuationToken": TOKEN})
    assert all(answer.headers["x-eve-session-id"] == SESSION for answer in answers.values())


ACCEPTED = {"ok": True, "sessionId": SESSION, "status": "accepted"}
NO_SESSION = {"ok": True, "status": "no_active_session"}
RESET = {"ok": True, "previousSessionId": SESSION, "status": "reset"}


@pytest.mark.parametrize("form", ALL)
def test_controls_are_answered_as_recorded(form: wire.Form) -> None:
    assert shown(control_answer("compact", form, SESSION)) == (202, ACCEPTED)
    assert shown(control_answer("clear", form, SESSION)) == (202, ACCEPTED)
    assert shown(control_answer("reset", form, SESSION)) == (200, RESET)
    assert shown(control_answer("cancel", form, SESSION)) == (202, ACCEPTED)
    for kind in ("compact", "clear", "reset"):
        answer = control_answer(kind, form, SESSION, applied=False)
        assert shown(answer) == (200, NO_SESSION)


def test_a_cancel_without_effect_is_told_in_three_ways() -> None:
    assert shown(control_answer("cancel", "tokens", SESSION, applied=False)) == (
        202,
        {"ok": True, "sessionId": SESSION, "status": "no_active_turn"},
    )
    assert shown(control_answer("cancel", "newest", SESSION, applied=False)) == (
        200,
        {"ok": True, "status": "no_active_turn"},
    )
    assert shown(control_answer("cancel", "all", SESSION, applied=False)) == (202, ACCEPTED)


def test_an_unknown_path_gets_the_answer_of_the_framework() -> None:
    answer = route_not_found("GET", "http://127.0.0.1:4102/eve/v1/nope", "Do so.")
    message = "Cannot find any route matching [GET] http://127.0.0.1:4102/eve/v1/nope. Do so."
    assert shown(answer) == (404, {"error": True, "status": 404, "message": message})


# Errors.


def answered(
    code: ErrorCode,
    form: wire.Form = "all",
    *,
    token_style: bool = False,
    route: Route = "session",
    details: dict[str, Any] | None = None,
) -> tuple[int, dict[str, Any]]:
    error = DragomanError("what happened", code=code, details=details)
    return shown(
        refusal(error, form=form, token_style=token_style, session_id=SESSION, route=route)
    )


def test_missing_credentials_get_the_recorded_answer_with_a_challenge_for_each_scheme() -> None:
    error = DragomanError("Send one.", code=ErrorCode.UNAUTHORIZED)
    answer = refusal(error, form="all", route="info")
    assert shown(answer) == refused(
        "Authorization is required for this route. Send one.", 401, code="unauthorized"
    )
    challenges = answer.headers.getall("www-authenticate")
    assert challenges == ['Bearer realm="eve"', 'Basic realm="eve", charset="UTF-8"']
    assert answered(ErrorCode.FORBIDDEN) == refused("what happened", 403, code="forbidden")


NOT_RESUMABLE = refused(
    f"Session is not active and cannot be resumed. {NEW}", 404, code="SESSION_NOT_RESUMABLE"
)
NOT_ACTIVE = refused(f"The session is no longer active. {NEW}", 409, code="session_not_active")


@pytest.mark.parametrize("code", [ErrorCode.NOT_FOUND, ErrorCode.NOT_ACTIVE])
def test_an_unknown_or_ended_session_is_told_as_the_request_addressed_it(code: ErrorCode) -> None:
    assert answered(code, "tokens") == NOT_RESUMABLE
    assert answered(code, "all", token_style=True) == NOT_RESUMABLE
    assert answered(code, "all") == NOT_ACTIVE
    assert answered(code, "newest", token_style=True) == NOT_ACTIVE
    for form in ALL:
        assert answered(code, form, route="stream") == refused(f"Session not found. {NEW}", 404)
        assert answered(code, form, route="control") == (200, NO_SESSION)


def test_a_cancel_of_an_unknown_session_is_no_accepted_one() -> None:
    code = ErrorCode.NOT_FOUND
    assert answered(code, "all", route="cancel") == refused(f"Session not found. {NEW}", 404)
    assert answered(code, "newest", route="cancel") == (
        200,
        {"ok": True, "status": "no_active_turn"},
    )
    assert answered(code, "tokens", route="cancel") == (
        202,
        {"ok": True, "sessionId": SESSION, "status": "no_active_turn"},
    )
    assert answered(ErrorCode.NOT_ACTIVE, "all", route="cancel") == (202, ACCEPTED)


def test_a_stale_token_says_that_it_is_stale() -> None:
    status, body = answered(ErrorCode.STALE_TOKEN, token_style=True)
    assert (status, body["ok"], body["code"]) == (404, False, "SESSION_NOT_RESUMABLE")
    assert "stale" in body["error"]


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (ErrorCode.ALREADY_ANSWERED, "input_already_resolved"),
        (ErrorCode.KEY_REUSED, "idempotency_key_conflict"),
        (ErrorCode.UNKNOWN_INTERACTION, "input_already_resolved"),
        (ErrorCode.NOT_SUPPORTED, "not_supported"),
        (ErrorCode.BUSY, "session_busy"),
        (ErrorCode.PAUSED, "input_pending"),
    ],
)
def test_a_conflict_is_409_by_id_and_400_by_token(code: ErrorCode, named: str) -> None:
    by_id = refused("what happened", 409, code=named)
    by_token = refused("what happened", 400, code=named)
    assert (answered(code), answered(code, "newest")) == (by_id, by_id)
    assert (answered(code, "tokens"), answered(code, token_style=True)) == (by_token, by_token)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.INVALID_REQUEST, 400),
        (ErrorCode.TOO_LARGE, 413),
        (ErrorCode.UNSUPPORTED_MEDIA, 415),
        (ErrorCode.RATE_LIMITED, 429),
        (ErrorCode.BACKEND_PROTOCOL, 502),
        (ErrorCode.BACKEND_REFUSED, 502),
        (ErrorCode.BACKEND_UNAVAILABLE, 503),
        (ErrorCode.BACKEND_TIMEOUT, 504),
        (ErrorCode.JOURNAL_UNAVAILABLE, 503),
        (ErrorCode.STOPPING, 503),
    ],
)
def test_other_errors_have_their_status_and_say_what_happened(code: ErrorCode, status: int) -> None:
    assert answered(code) == refused("what happened", status)
    shown_on_stream = "Session stream unavailable." if status == 503 else "what happened"
    assert answered(code, route="stream") == refused(shown_on_stream, status)


def test_a_pruned_history_is_410() -> None:
    assert answered(ErrorCode.CURSOR_EXPIRED, route="stream") == refused(
        "Session history is no longer available.", 410, code="session_expired"
    )


def test_a_wrong_method_is_404() -> None:
    assert answered(ErrorCode.METHOD_NOT_ALLOWED) == (
        404,
        {"error": True, "status": 404, "message": "what happened"},
    )


@pytest.mark.parametrize("code", [ErrorCode.INTERNAL, ErrorCode.CONFIG, ErrorCode.RECORDING])
def test_a_failure_of_ours_shows_an_id_and_not_its_text(code: ErrorCode) -> None:
    answer = refusal(DragomanError("boom", code=code), form="all", error_id="e-1")
    assert shown(answer) == refused("Failed to send the session message.", 500, errorId="e-1")
    assert shown(refusal(DragomanError("boom", code=code), form="all", route="cancel")) == refused(
        "Failed to cancel the turn.", 500
    )


def test_details_of_an_error_that_a_client_can_use_are_shown() -> None:
    violations = [TOO_LARGE]
    assert answered(ErrorCode.TOO_LARGE, details={"violations": violations}) == refused(
        "what happened", 413, violations=violations
    )
    error = DragomanError("slow down", code=ErrorCode.RATE_LIMITED, details={"retry_after": 3})
    assert refusal(error, form="all").headers["retry-after"] == "3"
    gone = DragomanError("no such route", code=ErrorCode.NOT_FOUND)
    assert shown(refusal(gone, form="all", route="create")) == refused("no such route", 404)


@each("form", ALL)
@each("code", list(ErrorCode))
def test_every_error_has_an_answer_in_every_form(form: wire.Form, code: ErrorCode) -> None:
    routes: tuple[Route, ...] = ("create", "session", "cancel", "control", "stream", "info")
    for route in routes:
        status, body = answered(code, form, route=route)
        assert 200 <= status < 600
        assert status < 300 or body.get("ok") is False or body.get("error") is True
        # Its client would send answers again and again (section 7.5).
        assert "target session was not found" not in json.dumps(body).lower()


def test_a_refusal_passes_with_its_own_status_and_keeps_nothing_of_the_body() -> None:
    with pytest.raises(EveRefusal) as caught:
        parse_follow_up(b'{"message": "hunter2", "inputResponses": [5]}', EveFaceSettings())
    assert shown(refusal(caught.value, form="all")) == ANSWER_SHAPE
    assert caught.value.__context__ is None
    assert caught.value.code is ErrorCode.INVALID_REQUEST


# Interactions.


def asked(
    kind: InteractionKind,
    request_id: str = "r",
    options: tuple[Option, ...] | None = None,
    *,
    freeform: bool = False,
) -> InteractionRequested:
    return InteractionRequested(
        thread_id="main",
        request_id=request_id,
        kind=kind,
        prompt="?",
        options=options,
        freeform=freeform,
    )


APPROVE = (Option(id="approve", label="Yes"), Option(id="deny", label="No"))
SCOPES = (
    Option(id="allow_always", label="Always"),
    Option(id="allow", label="Allow"),
    Option(id="deny", label="Deny"),
)
COLORS = (Option(id="blue", label="Deep blue"), Option(id="red", label="Red"))


@pytest.mark.parametrize(
    ("text", "option"),
    [("approve", "approve"), (" YES ", "approve"), ("2", "deny"), ("No", "deny")],
)
def test_a_message_answers_by_the_id_the_label_or_the_number_of_an_option(
    text: str, option: str
) -> None:
    answer = answer_by_message(text, [asked("approval", options=APPROVE)])
    assert answer == InputResponse("r", option_id=option)


@pytest.mark.parametrize("text", ["maybe", "3", "0", "", "  ", "9" * 5000, "approve it", "²"])
def test_other_text_is_no_answer_to_an_approval(text: str) -> None:
    assert answer_by_message(text, [asked("approval", options=APPROVE, freeform=True)]) is None


def test_any_text_answers_a_question_that_takes_free_text() -> None:
    free = asked("question", options=COLORS, freeform=True)
    assert answer_by_message("blue", [free]) == InputResponse("r", option_id="blue")
    assert answer_by_message(" green ", [free]) == InputResponse("r", text="green")
    assert answer_by_message("green", [asked("question", options=COLORS)]) is None
    # Without options there is nothing else to answer with, whatever the request says.
    assert answer_by_message("green", [asked("question")]) == InputResponse("r", text="green")


def test_the_first_open_request_that_the_text_fits_is_answered() -> None:
    first = asked("approval", "a", APPROVE)
    second = asked("approval", "b", APPROVE)
    third = asked("question", "c", COLORS)
    assert answer_by_message("approve", [first, second, third]) == InputResponse("a", "approve")
    assert answer_by_message("red", [first, second, third]) == InputResponse("c", "red")
    assert answer_by_message("approve", []) is None


def test_nothing_answers_a_sign_in_by_message() -> None:
    assert answer_by_message("cancel", [asked("authorization")]) is None


def test_a_message_of_parts_is_no_answer() -> None:
    assert answer_by_message(None, [asked("question", freeform=True)]) is None


@pytest.mark.parametrize("kind", ["secret", "sudo"])
@pytest.mark.parametrize("text", ["hunter2", None])
def test_while_a_secret_is_asked_for_no_other_text_is_taken_or_quoted(
    kind: InteractionKind, text: str | None
) -> None:
    question = asked("question", "q", freeform=True)
    with pytest.raises(EveRefusal) as caught:
        answer_by_message(text, [question, asked(kind)])
    assert (caught.value.status, caught.value.body["code"]) == (400, "input_pending")
    assert "hunter2" not in str(caught.value.body) + str(caught.value) + repr(caught.value)
    assert answer_by_message("Decline", [question, asked(kind)]) == InputResponse("r", "decline")


@each(
    ("options", "chosen", "decision", "scope"),
    [
        (APPROVE, "approve", "allow", None),
        (APPROVE, "deny", "deny", None),
        (None, "approve", "allow", None),
        (None, "deny", "deny", None),
        (None, "cancel", "deny", None),
        ((Option(id="allow_always", label="Always"),), "allow_always", "allow", "always"),
        ((Option(id="once", label="Once"),), "once", "allow", "once"),
        ((Option(id="session", label="For this session"),), "session", "allow", "session"),
        ((Option(id="o1", label="Approve"),), "o1", "allow", None),
        ((Option(id="o2", label="Cancel"),), "o2", "deny", None),
        ((Option(id="go", label="Go", style="primary"),), "go", "allow", None),
        ((Option(id="nay", label="Nay", style="danger"),), "nay", "deny", None),
        ((Option(id="approve", label="Run", style="danger"),), "approve", "allow", None),
        ((Option(id="deny", label="Keep", style="primary"),), "deny", "deny", None),
        ((Option(id="later", label="Later"),), "later", None, None),
        ((Option(id="o3", label="Do not approve"),), "o3", None, None),
        (
            (Option(id="allow-for-this-session", label="x"),),
            "allow-for-this-session",
            "allow",
            "session",
        ),
        ((Option(id="deny_always", label="x"),), "deny_always", "deny", None),
    ],
)
def test_an_option_of_an_approval_decides_by_id_label_and_style(
    options: tuple[Option, ...] | None,
    chosen: str,
    decision: Literal["allow", "deny"] | None,
    scope: str | None,
) -> None:
    request = asked("approval", options=options)
    command = to_command(InputResponse("r", chosen, "because"), request)
    assert (command.decision, command.scope) == (decision, scope)
    assert command.option_ids == (chosen,)
    assert (command.reason, command.text) == ("because", None)


@pytest.mark.parametrize(
    ("options", "word", "chosen"),
    [
        (APPROVE, "cancel", "deny"),
        (SCOPES, "approve", "allow"),
        (SCOPES, "cancel", "deny"),
    ],
)
def test_the_words_of_the_terminal_programs_mean_the_options_of_the_request(
    options: tuple[Option, ...], word: str, chosen: str
) -> None:
    command = to_command(InputResponse("r", word), asked("approval", options=options))
    assert command.option_ids == (chosen,)
    assert command.decision == ("allow" if word == "approve" else "deny")


@pytest.mark.parametrize(("chosen", "decision"), [("continue", "allow"), ("stop", "deny")])
def test_a_limit_is_decided_by_continue_and_stop(chosen: str, decision: str) -> None:
    command = to_command(InputResponse("r", chosen), asked("limit"))
    assert (command.decision, command.option_ids) == (decision, (chosen,))


@pytest.mark.parametrize(
    ("request_", "response", "names"),
    [
        (asked("approval", options=APPROVE), InputResponse("r", "yes"), ["'approve'", "'deny'"]),
        (asked("approval", options=SCOPES[:1]), InputResponse("r", "approve"), ["'allow_always'"]),
        (
            asked("approval", options=APPROVE),
            InputResponse("r", text="yes"),
            ["'approve'", "'deny'"],
        ),
        (asked("approval"), InputResponse("r", "blue"), ["'approve'", "'deny'"]),
        (asked("limit"), InputResponse("r", "approve"), ["'continue'", "'stop'"]),
        (asked("authorization"), InputResponse("r", text="done"), ["'cancel'"]),
        (asked("question", options=COLORS), InputResponse("r", text="green"), ["'blue'", "'red'"]),
        (asked("question", options=COLORS), InputResponse("r"), ["'blue'", "'red'"]),
        (
            asked("question", options=COLORS, freeform=True),
            InputResponse("r", "green"),
            ["'blue'", "'red'", "'text'"],
        ),
        (asked("question"), InputResponse("r", text=""), ["'text'"]),
        (asked("question"), InputResponse("r", "blue"), ["'text'"]),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_naming_what_is_offered(
    request_: InteractionRequested, response: InputResponse, names: list[str]
) -> None:
    with pytest.raises(EveRefusal) as caught:
        to_command(response, request_)
    assert caught.value.status == 400
    assert all(name in caught.value.body["error"] for name in names)
    assert "green" not in caught.value.body["error"]


def test_a_question_takes_an_option_words_or_both() -> None:
    request = asked("question", options=COLORS, freeform=True)
    by_option = to_command(InputResponse("r", "blue"), request)
    by_words = to_command(InputResponse("r", text="green"), request)
    both = to_command(InputResponse("r", "blue", "dark"), request, {"clientContext": "c"})
    assert (by_option.option_ids, by_option.text) == (("blue",), None)
    assert (by_words.option_ids, by_words.text) == ((), "green")
    assert (both.option_ids, both.text, both.options) == (("blue",), "dark", {"clientContext": "c"})
    assert by_option.decision is None


def test_the_words_of_an_answer_are_the_result_of_a_custom_tool() -> None:
    command = to_command(InputResponse("r", text="42"), asked("tool_result"))
    assert command.content == (Text(type="text", text="42"),)
    assert command.text is None


@pytest.mark.parametrize("kind", ["secret", "sudo"])
def test_a_sealed_request_takes_only_decline_and_never_quotes(kind: InteractionKind) -> None:
    for response in (InputResponse("r", "decline"), InputResponse("r", text="decline")):
        command = to_command(response, asked(kind))
        assert (command.skip, command.text, command.option_ids) == (True, None, ())
    for response in (
        InputResponse("r", text="hunter2"),
        InputResponse("r", "hunter2"),
        InputResponse("r", "decline", "hunter2"),
        InputResponse("r"),
    ):
        with pytest.raises(EveRefusal) as caught:
            to_command(response, asked(kind))
        assert "hunter2" not in str(caught.value.body) + str(caught.value)
        assert "'decline'" in caught.value.body["error"]


def test_every_request_that_an_option_must_answer_offers_one() -> None:
    assert [option.id for option in offered_options(asked("secret", options=COLORS))] == ["decline"]
    assert [option.id for option in offered_options(asked("authorization"))] == ["cancel"]
    assert [option.id for option in offered_options(asked("approval"))] == ["approve", "deny"]
    assert [option.id for option in offered_options(asked("limit"))] == ["continue", "stop"]
    assert offered_options(asked("question", options=COLORS)) == COLORS
    assert offered_options(asked("question")) == ()


# Health, info and tokens.


def test_health_has_exactly_three_members() -> None:
    assert health_body("demo") == {"ok": True, "status": "ready", "workflowId": "demo"}


def test_info_of_s_has_exactly_the_members_of_the_strict_payload() -> None:
    # The small valid payload of the eve page, section 12.
    info = info_body("all", "demo")
    assert info == info_body("newest", "demo")
    assert (info["kind"], info["version"], info["mode"]) == ("eve-agent-info", 5, "production")
    assert set(info) == {
        *("kind", "version", "mode", "agent", "capabilities", "channels", "composition"),
        *("connections", "diagnostics", "hooks", "instructions", "kernelEffects", "memories"),
        *("remoteAgents", "sandbox", "schedules", "skills", "subagents", "tools", "workspace"),
    }
    assert set(info["agent"]) == {"agentRoot", "appRoot", "name", "nodeId", "config", "model"}
    for source in (info["agent"]["config"], info["sandbox"]):
        assert source["binding"]["logicalPath"] == source["logicalPath"]
        assert source["binding"]["owner"] == source["owner"]
    assert info["capabilities"] == {"devRoutes": False}


def test_info_of_t_has_its_version_and_members() -> None:
    info = info_body("tokens", "demo")
    assert (info["version"], info["agent"]["name"]) == (1, "demo")
    assert {"channels", "sandbox", "tools", "workflow", "workspace"} <= set(info)
    assert set(info["tools"]) == {
        *("authored", "available", "disabledFramework", "dynamic", "framework", "reserved"),
    }


SECRET = b"a session's secret"


def test_a_token_looks_like_a_real_one_and_is_a_pure_function() -> None:
    token = make_token(SECRET, 3)
    assert token == make_token(SECRET, 3)
    assert [len(part) for part in token.removeprefix("eve:").split("-")] == [8, 4, 4, 4, 12]
    assert len({make_token(SECRET, wait) for wait in range(50)}) == 50


def test_all_tokens_of_a_session_share_their_handle_and_no_other_has_it() -> None:
    handles = {token_handle(make_token(SECRET, wait)) for wait in range(5)}
    assert len(handles) == 1
    handle = handles.pop()
    assert handle is not None
    assert len(handle) == 16
    assert token_handle(make_token(b"another", 0)) != handle


@pytest.mark.parametrize(
    "text", ["", "eve:", "eve:op:0123", TOKEN.upper(), TOKEN + "0", TOKEN[4:], "é\ud800"]
)
def test_what_is_no_token_has_no_handle(text: str) -> None:
    assert token_handle(text) is None
    assert token_wait(SECRET, text, 3) is None


def test_the_newest_two_tokens_are_told_apart_and_older_ones_are_stale() -> None:
    assert token_wait(SECRET, make_token(SECRET, 3), 3) == 3
    assert token_wait(SECRET, make_token(SECRET, 2), 3) == 2
    assert token_wait(SECRET, make_token(SECRET, 1), 3) is None
    assert token_wait(SECRET, make_token(SECRET, 4), 3) is None
    assert token_wait(SECRET, make_token(SECRET, 0), 0) == 0
    assert token_wait(b"another", make_token(SECRET, 3), 3) is None


# Whatever comes.

NAMES = [
    *("message", "clientContext", "outputSchema", "mode", "capabilities", "operationId", "stubs"),
    *("callback", "protocolVersion", "forwardedPrincipal", "inputResponses", "continuationToken"),
    *("turnPolicy", "turnId", "reason", "requestInput", "type", "text", "mediaType", "data"),
    *("filename", "requestId", "optionId", "callId", "subagentName", "token", "url"),
]
WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "text",
            "file",
            "task",
            "queue",
            "https://[",
            "data:,%",
            "http://[::1%a]/eve/v1/callback/t",
        ]
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=20,
)
BODIES = st.one_of(
    st.binary(max_size=40),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8).map(
        lambda value: json.dumps(value).encode()
    ),
)


@settings(max_examples=400, deadline=None)
@given(
    body=BODIES,
    form=st.sampled_from(ALL),
    kind=st.sampled_from(["cancel", "compact", "clear", "reset"]),
    by_id=st.booleans(),
)
def test_no_body_raises_anything_but_a_refusal_with_a_json_answer(
    body: bytes, form: wire.Form, kind: ControlKind, by_id: bool
) -> None:
    face = EveFaceSettings(form, max_file_bytes=8, media_types=("text/*",), authenticated=by_id)
    verdicts = [
        verdict_of(parse_create, body, face),
        verdict_of(parse_follow_up, body, face),
        verdict_of(parse_control, kind, body, face, SESSION if by_id else None),
    ]
    for verdict in verdicts:
        if verdict is not None:
            assert 400 <= verdict[0] < 500
            assert json.dumps(verdict[1])


@settings(max_examples=200, deadline=None)
@given(body=BODIES)
def test_form_all_takes_what_both_generations_take_and_refuses_what_both_refuse(
    body: bytes,
) -> None:
    union = verdict_of(parse_create, body, EveFaceSettings("all"))
    tokens = verdict_of(parse_create, body, EveFaceSettings("tokens"))
    newest = verdict_of(parse_create, body, EveFaceSettings("newest"))
    if tokens is OK and newest is OK:
        assert union is OK
    if tokens is not OK and newest is not OK and b"continuationToken" not in body:
        assert union is not OK
