"""What a recorder writes has no secrets in it, however they came."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import quote

import pytest

from adapters.captures import (
    CapturedEvent,
    CapturedPiece,
    CapturedRequest,
    CapturedResponse,
    ExchangeEnd,
    LogLine,
    MissingRecords,
    Record,
    body_of,
)
from adapters.captures import held_bodies as held_module
from adapters.captures.redact import Redactor as AnyRedactor
from adapters.captures.secrets import BadPattern
from adapters.captures.secrets import deltas as deltas_module
from adapters.registry import deltas
from tests.support.each import each

KEY = "sk-live-4f9Kq2Zr8Tn1Vb6Xc3Md"
TOKEN = "t0ken-7d1c9e55aa"
SSE = (("Content-Type", "text/event-stream; charset=utf-8"),)
LINES = (("Content-Type", "application/x-ndjson; charset=utf-8"),)
JSON = (("Content-Type", "application/json"),)

Of = Literal["request", "response"]


def Redactor(salt: bytes, keys: Sequence[str] = (), patterns: Sequence[str] = ()) -> AnyRedactor:
    """Make one that knows the deltas of all dialects."""
    return AnyRedactor(salt, deltas(), keys, patterns)


def asked(number: int = 1, target: str = "/x", headers: Any = JSON) -> CapturedRequest:
    return CapturedRequest(
        exchange=number, side="backend", at=1, method="POST", target=target, headers=headers
    )


def answered(number: int = 1, headers: Any = JSON) -> CapturedResponse:
    return CapturedResponse(exchange=number, at=2, status=200, headers=headers)


def passed(
    pieces: Sequence[bytes],
    headers: Any = JSON,
    *,
    of: Of = "response",
    redactor: AnyRedactor | None = None,
    number: int = 1,
) -> list[bytes]:
    """Return the pieces of a body as they are written."""
    redactor = redactor or Redactor(b"salt")
    out = redactor.add(asked(number, headers=headers if of == "request" else ()))
    if of == "response":
        out += redactor.add(answered(number, headers))
    for at, piece in enumerate(pieces):
        out += redactor.add(body_of(number, of, float(at), piece))
    out += redactor.add(ExchangeEnd(exchange=number, at=99, how="ended"))
    bodies = [one for one in out if isinstance(one, CapturedPiece)]
    assert [one.at for one in bodies] == [float(at) for at in range(len(pieces))]
    assert isinstance(out[-1], ExchangeEnd)
    return [one.data for one in bodies]


def whole(body: bytes, headers: Any = JSON, **given: Any) -> bytes:
    return b"".join(passed([body], headers, **given))


def mark(value: str) -> str:
    redactor = Redactor(b"salt")
    (request,) = redactor.add(asked(headers=(("X-Api-Key", value),)))
    assert isinstance(request, CapturedRequest)
    return request.headers[0][1]


def sse(*frames: tuple[str, Any]) -> list[bytes]:
    return [b"event: %b\ndata: %b\n\n" % (e.encode(), json.dumps(d).encode()) for e, d in frames]


def lines(*records: Any) -> list[bytes]:
    return [json.dumps(one).encode() + b"\n" for one in records]


# heads


def test_credentials_in_headers_have_marks_behind_their_scheme() -> None:
    headers = (
        ("Authorization", f"Bearer {TOKEN}"),
        ("Cookie", "sid=a"),
        ("X-Engine-Key", TOKEN),
        ("Idempotency-Key", "i-1"),
        ("X-Request-Id", "7"),
    )
    (one,) = Redactor(b"salt").add(asked(headers=headers))
    assert isinstance(one, CapturedRequest)
    found = dict(one.headers)
    assert found["Authorization"] == f"Bearer {mark(TOKEN)}"
    assert found["X-Engine-Key"] == mark(TOKEN)
    assert found["Cookie"].startswith("[redacted-")
    assert (found["Idempotency-Key"], found["X-Request-Id"]) == ("i-1", "7")


@pytest.mark.parametrize(
    "name",
    ["token", "access_token", "key", "api-key", "signature", "sig", "code", "X-Amz-Signature"],
)
def test_credentials_in_a_query_have_marks(name: str) -> None:
    target = f"/a/b?startIndex=3&{name}=q%2Fq1&after=x"
    (one,) = Redactor(b"salt").add(asked(target=target))
    assert isinstance(one, CapturedRequest)
    assert one.target == f"/a/b?startIndex=3&{name}={mark('q/q1')}&after=x"


@pytest.mark.parametrize("target", ["/a?", "/a?idempotency_key=i-1&after=2", "/a?page_token=2"])
def test_the_rest_of_a_query_stays(target: str) -> None:
    (one,) = Redactor(b"salt").add(asked(target=target))
    assert isinstance(one, CapturedRequest)
    assert one.target == target


def test_an_address_in_a_header_has_no_credentials() -> None:
    at = (("Location", "https://x.example/cb?code=abc&state=s"), ("X-Note", f"see {KEY}"))
    (link,) = Redactor(b"salt").add(answered(headers=(("Location", "/cb#access_token=a1"),)))
    assert isinstance(link, CapturedResponse)
    assert link.headers == (("Location", f"/cb#access_token={mark('a1')}"),)
    one = Redactor(b"salt").add(answered(headers=at))[-1]
    assert isinstance(one, CapturedResponse)
    assert dict(one.headers)["Location"] == f"https://x.example/cb?code={mark('abc')}&state=s"
    assert dict(one.headers)["X-Note"] == f"see {mark(KEY)}"


def test_the_reason_of_an_end_has_no_credentials() -> None:
    (end,) = Redactor(b"salt").add(ExchangeEnd(exchange=1, at=1, how="broke", why=f"no {KEY}"))
    assert isinstance(end, ExchangeEnd)
    assert end.why == f"no {mark(KEY)}"


# names of members


@pytest.mark.parametrize(
    "name",
    [
        *("password", "secret", "token", "api_key", "apiKey", "API-KEY", "authorization"),
        *("access_token", "refreshToken", "client_secret", "private_key", "continuationToken"),
    ],
)
def test_values_of_members_with_a_secrets_name_have_marks(name: str) -> None:
    body = b'{"a": [{"%b" : "v\\u00e4l\\n1"}], "b": 1.0}' % name.encode()
    told = whole(body)
    assert told == b'{"a":[{"%b":"%b"}],"b":1.0}' % (name.encode(), mark("väl\n1").encode())


@each(
    "body",
    [
        b'{"input_tokens": 12, "output_tokens": "12", "max_tokens": 5, "token_count": "3"}',
        b'{"password": 12, "token": null, "secret": true, "api_key": ""}',
        b'{"idempotency_key": "i-1", "key": "k", "monkey": "m", "next_token": "n"}',
        b'{"type": "token", "kind": "secret", "text": "the password is secret"}',
        b'{"token": "[redacted-00000000]", "authorization": "Bearer [redacted-00000000]"}',
        b'{"cut": "here',
        b"not json {",
        b'{"half": "\\ud83d", "odd": "\\x", "bytes": "\xff"}',
        b"\x00\xff\xfe",
        b"",
    ],
)
@each("headers", [JSON, SSE, LINES, ()])
def test_what_is_not_secret_stays(body: bytes, headers: Any) -> None:
    pieces = [b"data: " + body[:7], body[7:20], b"", body[20:] + b"\n\n"]
    if headers != SSE:
        pieces[0] = pieces[0][6:]
    assert passed(pieces, headers) == pieces


def test_configured_names_and_lists_and_pairs_are_found() -> None:
    redactor = Redactor(b"salt", keys=["Card-Number"])
    body = {
        "cardNumber": "4111",
        "card": {"card_number": ["41", 42, ["43"]]},
        "env": [{"name": "GITHUB_TOKEN", "value": "g-1"}, {"name": "HOME", "value": "/root"}],
        "arguments": json.dumps({"password": "p\n1", "x": "y"}),
    }
    told = json.loads(whole(json.dumps(body).encode(), redactor=redactor))
    assert told == {
        "cardNumber": mark("4111"),
        "card": {"card_number": [mark("41"), 42, [mark("43")]]},
        "env": [
            {"name": "GITHUB_TOKEN", "value": mark("g-1")},
            {"name": "HOME", "value": "/root"},
        ],
        "arguments": f'{{"password":"{mark("p" + chr(10) + "1")}","x":"y"}}',
    }


def test_members_are_found_in_lines_and_in_data_of_event_streams() -> None:
    line = b'{"password":"p-1"}'
    told = b'{"password":"%b"}' % mark("p-1").encode()
    assert whole(line + b"\n\n" + line + b"\r\n" + line, LINES) == (
        told + b"\n\n" + told + b"\r\n" + told
    )
    frame = b'id: 1\r\ndata: {"a":\r\ndata:"b","password":\r\ndata: "p-1"}\r\n\r\n'
    told = b'{"a":"b","password":"%b"}' % mark("p-1").encode()
    assert whole(frame, SSE) == b"id: 1\r\ndata: \r\ndata:\r\ndata: " + told + b"\r\n\r\n"


def test_a_form_has_names_too() -> None:
    form = (("Content-Type", "application/x-www-form-urlencoded"),)
    told = whole(b"password=a%20b&user=u&token=t", form, of="request")
    assert told == f"password={mark('a b')}&user=u&token={mark('t')}".encode()


def test_equal_values_have_equal_marks_where_they_are_used_later() -> None:
    redactor = Redactor(b"salt")
    token = "eve:0b7e3b1c-0000-4000-8000-2f0d3c1a5b77"
    first = whole(json.dumps({"continuationToken": token}).encode(), redactor=redactor)
    second = whole(
        json.dumps({"continuationToken": token, "message": "m"}).encode(),
        of="request",
        redactor=redactor,
        number=2,
    )
    third = redactor.add(asked(3, target=f"/x/{quote(token, safe='')}/stream"))[0]
    assert json.loads(first)["continuationToken"] == mark(token)
    assert json.loads(second)["continuationToken"] == mark(token)
    assert isinstance(third, CapturedRequest)
    assert third.target == f"/x/{mark(token)}/stream"


def test_a_token_that_is_the_id_of_a_session_is_no_secret() -> None:
    redactor = Redactor(b"salt")
    body = json.dumps({"sessionId": "wrun_01M8B3RR", "continuationToken": "wrun_01M8B3RR"})
    assert whole(body.encode(), redactor=redactor) == body.encode()
    # A password is one, whatever else has its value.
    other = {"user_id": "admin", "password": "admin"}
    assert json.loads(whole(json.dumps(other).encode()))["password"] == mark("admin")
    redactor.add(asked(2, target="/eve/v1/session/wrun_01M8B3RS/stream?x=1"))
    (line,) = lines({"data": {"continuationToken": "wrun_01M8B3RS"}})
    assert whole(line, LINES, redactor=redactor, number=3) == line


# looks


PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\nabc+/=\n-----END RSA PRIVATE KEY-----"
LOOKING = [
    KEY,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "11AB_cd" * 6,
    "xoxb-1234567890-abcdef",
    "AKIA" + "Z7" * 8,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    PEM,
]


@each("secret", LOOKING)
@each("around", [("", ""), ("a ", " b"), ("(", ")")])
def test_known_forms_are_found_in_texts(secret: str, around: tuple[str, str]) -> None:
    text = secret.join(around)
    want = mark(secret).join(around)
    assert json.loads(whole(json.dumps({"text": text}).encode())) == {"text": want}
    assert whole(text.encode(), ()) == want.encode()


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abcDEF123456789._~+/-", "abcDEF123456789._~+/-"),
        ("postgres://me:pa5s@db.example/x", "pa5s"),
        ("open https://a.example/?token=abcdefgh12&x=1 now", "abcdefgh12"),
    ],
)
def test_of_some_forms_a_part_is_secret(text: str, secret: str) -> None:
    told = whole(text.encode(), ()).decode()
    written = quote(mark(secret)) if "pa5s" in text else mark(secret)
    assert told == text.replace(secret, written)
    assert whole(told.encode(), ()).decode() == told


def test_configured_patterns_are_found() -> None:
    redactor = Redactor(b"salt", patterns=[r"\bEMP-\d{6}\b"])
    assert whole(b"I am EMP-123456.", (), redactor=redactor) == (
        f"I am {mark('EMP-123456')}.".encode()
    )


@pytest.mark.parametrize("pattern", ["a*", "", "(", "x|", r"\b", "(?:ab)?"])
def test_a_pattern_that_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        Redactor(b"salt", patterns=[pattern])


def test_what_was_a_credential_in_a_header_is_found_in_every_spelling() -> None:
    value = 'pa"ss/wörd+7?'
    redactor = Redactor(b"salt")
    basic = base64.b64encode(f"me:{value}".encode()).decode()
    redactor.add(asked(1, headers=(("Authorization", f"Basic {basic}"),)))
    spelled = [
        value,
        json.dumps(value)[1:-1],
        quote(value, safe=""),
        base64.b64encode(value.encode()).decode(),
        base64.b64encode(b"x:" + value.encode()).decode()[3:-3],
    ]
    for one in spelled:
        for body in (one.encode(), json.dumps({"text": f"<{one}>"}).encode()):
            told = whole(body, (), redactor=redactor, number=2)
            assert mark(value).encode() in told, one


# answers to sealed requests


def test_a_sealed_answer_of_herm_is_not_recorded_nor_its_echo() -> None:
    redactor = Redactor(b"salt")
    events = [
        {"type": "user.secret_result", "request_id": "r", "value": "main"},
        {"value": "hush", "type": "user.sudo_result", "password": "pw-12"},
    ]
    body = json.dumps({"events": events}).encode()
    redactor.add(asked(1))
    # Without the answer, since the echo may come before it.
    (piece,) = redactor.add(body_of(1, "request", 1.0, body))
    assert isinstance(piece, CapturedPiece)
    told = json.loads(piece.data)["events"]
    assert (told[0]["value"], told[1]["password"]) == (mark("main"), mark("pw-12"))
    echo = {"type": "main", "thread_id": "main", "text": "main and pw-12", "main": 1}
    assert json.loads(whole(json.dumps(echo).encode(), redactor=redactor, number=2)) == {
        **echo,
        "text": f"{mark('main')} and {mark('pw-12')}",
    }


# pieces


@each("media", [JSON, SSE, LINES])
def test_what_has_a_secret_stands_in_the_piece_in_which_it_ended(media: Any) -> None:
    begin, end = (b"data: ", b"\n\n") if media == SSE else (b"", b"\n" if media == LINES else b"")
    body = json.dumps({"a": 1, "text": f"see {KEY}, ok"}).encode()
    at = body.index(KEY.encode())
    pieces = [begin + body[: at + 3], body[at + 3 : at + 9], b"", body[at + 9 :] + end]
    told = b'{"a":1,"text":"see %b, ok"}' % mark(KEY).encode()
    assert passed(pieces, media) == [begin, b"", b"", told + end]


def test_a_secret_of_a_text_stands_in_the_piece_in_which_it_ended() -> None:
    assert passed([b"a b ", KEY[:9].encode(), KEY[9:].encode() + b" c", b" d"], ()) == [
        b"a b ",
        b"",
        mark(KEY).encode() + b" c",
        b" d",
    ]


def test_a_body_that_is_whole_is_given_out_at_once() -> None:
    redactor = Redactor(b"salt")
    redactor.add(asked())
    assert redactor.add(body_of(1, "request", 1.0, b'{"a": [1,')) == []
    assert len(redactor.add(body_of(1, "request", 2.0, b"2]}"))) == 2
    redactor.add(answered(headers=(("Content-Length", "4"),)))
    assert redactor.add(body_of(1, "response", 3.0, b"ab")) == []
    assert len(redactor.add(body_of(1, "response", 4.0, b"cd"))) == 2


def test_an_answer_lets_go_a_request_but_no_half_of_json() -> None:
    redactor = Redactor(b"salt")
    for number, body, count in ((1, b"some text", 2), (2, b'{"password": "p', 1)):
        redactor.add(asked(number))
        assert redactor.add(body_of(number, "request", 1.0, body)) == []
        assert len(redactor.add(answered(number))) == count
    redactor.add(body_of(2, "request", 2.0, b'w-1"}'))
    assert redactor.close() == []


def test_of_a_stream_only_what_is_not_whole_is_held_back() -> None:
    redactor = Redactor(b"salt")
    redactor.add(answered(headers=SSE))
    first, second = sse(("a", {"x": 1}), ("b", {"password": "p-1"}))
    assert redactor.add(body_of(1, "response", 1.0, first)) == [body_of(1, "response", 1.0, first)]
    assert redactor.add(body_of(1, "response", 2.0, second[:-8])) == []
    out = redactor.add(body_of(1, "response", 3.0, second[-8:]))
    assert b"".join(one.data for one in out if isinstance(one, CapturedPiece)) == second.replace(
        b'{"password": "p-1"}', b'{"password":"%b"}' % mark("p-1").encode()
    )
    redactor.add(body_of(1, "response", 4.0, b"data: half"))
    end = redactor.add(ExchangeEnd(exchange=1, at=5, how="broke"))
    assert isinstance(end[0], CapturedPiece)
    assert end[0].data == b"data: half"


def test_a_body_that_is_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_module, "DEFAULT_MAX_LINE_BYTES", 1000)
    redactor = Redactor(b"salt")
    redactor.add(asked())
    pieces = [b'{"password": "p-1", "file": "', *[b"Z" * 100] * 20, b'"}']
    out = [one for piece in pieces for one in redactor.add(body_of(1, "request", 5.0, piece))]
    assert out == []
    left, end = redactor.add(ExchangeEnd(exchange=1, at=9, how="ended"))
    assert left == MissingRecords(at=5.0, exchange=1, count=len(pieces))
    assert isinstance(end, ExchangeEnd)


# deltas


def engine_deltas(texts: Sequence[str]) -> tuple[list[bytes], Any]:
    return sse(*(("text_delta", {"text": text}) for text in texts)), SSE


def herm_deltas(texts: Sequence[str]) -> tuple[list[bytes], Any]:
    frames = [
        {
            "type": "agent.message",
            "sequence": number,
            "payload": {"content": [{"type": "text", "text": text}], "delta": True},
        }
        for number, text in enumerate(texts)
    ]
    return sse(*(("agent.message", frame) for frame in frames)), SSE


def eve_deltas(texts: Sequence[str]) -> tuple[list[bytes], Any]:
    records = [
        {
            "type": "message.appended",
            "data": {
                "messageDelta": text,
                "messageSoFar": "".join(texts[: number + 1]),
                "turnId": "t",
            },
            "meta": {"id": f"evt_{number}"},
        }
        for number, text in enumerate(texts)
    ]
    return lines(*records), LINES


@each("deltas", [engine_deltas, herm_deltas, eve_deltas])
@each("secret", [*LOOKING, "abcdefgh-known"])
@each("size", [1, 3, 7])
def test_a_secret_that_deltas_spell_has_its_mark_in_the_first(
    deltas: Any, secret: str, size: int
) -> None:
    text = f"It is {secret}, so."
    texts = [text[at : at + size] for at in range(0, len(text), size)]
    frames, headers = deltas(texts)
    redactor = Redactor(b"salt")
    redactor.add(asked(7, headers=(("X-Api-Key", "abcdefgh-known"),)))
    told = passed(frames, headers, redactor=redactor)
    read = [json.loads(one.partition(b"data: ")[2] or one) for one in told]
    spelled = [
        one.get("text")
        or one.get("data", {}).get("messageDelta")
        or (one["payload"]["content"][0]["text"] if "payload" in one else "")
        for one in read
    ]
    assert "".join(spelled) == f"It is {mark(secret)}, so."
    for one in read:
        so_far = one.get("data", {}).get("messageSoFar", "")
        assert f"It is {mark(secret)}, so.".startswith(so_far) or len(so_far) < 12
        assert secret[:12] not in so_far
    if deltas is eve_deltas:
        assert read[-1]["data"]["messageSoFar"] == f"It is {mark(secret)}, so."


def test_deltas_without_secrets_are_given_out_as_soon_as_that_is_sure() -> None:
    redactor = Redactor(b"salt")
    redactor.add(answered(headers=SSE))
    counts = []
    for at, frame in enumerate(engine_deltas(["Hello w", "orld s", "k", "y is", " blue s"])[0]):
        counts.append(len(redactor.add(body_of(1, "response", float(at), frame))))
    assert counts == [0, 1, 0, 2, 1]
    # The end of the block decides.
    frame = sse(("content_block_stop", {"block_index": 0}))[0]
    assert len(redactor.add(body_of(1, "response", 9.0, frame))) == 2


def test_a_configured_pattern_is_found_in_deltas_word_by_word() -> None:
    redactor = Redactor(b"salt", patterns=["EMP-[0-9]{6}"])
    frames, headers = engine_deltas(["I am E", "MP-12", "3456", " now"])
    told = passed(frames, headers, redactor=redactor)
    texts = [json.loads(one.partition(b"data: ")[2])["text"] for one in told]
    assert texts == [f"I am {mark('EMP-123456')}", "", "", " now"]


def test_a_password_of_an_address_is_found_in_deltas_after_what_was_given_out() -> None:
    frames, headers = engine_deltas(["see https:", "//me:pa5", "sword", "@x.example/ and", " more"])
    told = passed(frames, headers)
    texts = [json.loads(one.partition(b"data: ")[2])["text"] for one in told]
    written = quote(mark("pa5sword"))
    assert texts == ["see https:", f"//me:{written}", "", "@x.example/ and", " more"]


def test_texts_of_two_blocks_do_not_mix() -> None:
    def piece(call: str, text: str) -> Any:
        return {"type": "action.input.appended", "data": {"callId": call, "inputTextDelta": text}}

    half = len(KEY) // 2
    frames = lines(
        piece("a", KEY[:half]), piece("b", "x sk-"), piece("a", KEY[half:]), piece("b", "y z")
    )
    told = [json.loads(one)["data"]["inputTextDelta"] for one in passed(frames, LINES)]
    assert told == [mark(KEY), "x sk-", "", "y z"]


def test_what_is_held_back_for_deltas_is_bounded() -> None:
    redactor = Redactor(b"salt")
    redactor.add(answered(headers=SSE))
    frames = engine_deltas(["sk-", *["abcdefgh"] * 1000])[0]
    out: list[Record] = []
    held = 0
    for at, frame in enumerate(frames):
        out += redactor.add(body_of(1, "response", float(at), frame))
        held = max(held, at + 1 - len(out))
    assert held < 520


def test_a_frame_without_an_end_is_held_back_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_module, "DEFAULT_MAX_LINE_BYTES", 100)
    redactor = Redactor(b"salt")
    redactor.add(answered(headers=LINES))
    first = b'{"password": "p-1", "x": "' + b"y" * 60
    assert redactor.add(body_of(1, "response", 1.0, first)) == []
    out = redactor.add(body_of(1, "response", 2.0, b"z" * 60))
    assert len(out) == 2
    out += redactor.add(body_of(1, "response", 3.0, b'"}\n'))
    told = b"".join(one.data for one in out if isinstance(one, CapturedPiece))
    assert json.loads(told) == {"password": mark("p-1"), "x": "y" * 60 + "z" * 60}


def test_frames_are_held_back_for_deltas_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas_module, "FRAMES_MOST", 3)
    redactor = Redactor(b"salt")
    redactor.add(answered(headers=SSE))
    (delta,) = engine_deltas(["this is s"])[0]
    (other,) = sse(("tool_progress", {"text": "working"}))
    counts = [
        len(redactor.add(body_of(1, "response", float(at), frame)))
        for at, frame in enumerate([delta, other, other, other, other])
    ]
    assert counts == [0, 0, 0, 4, 1]


# entries of the log


def event(seq: int, **members: Any) -> CapturedEvent:
    return CapturedEvent(at=float(seq), entry={"seq": seq, "session_id": "s", **members})


def test_entries_of_the_log_have_no_secrets() -> None:
    redactor = Redactor(b"salt")
    delta = {"type": "text.delta", "block_id": "b", "message_id": "m"}
    half = len(KEY) // 2
    entries = [
        event(1, **delta, text="It is " + KEY[:half]),
        event(2, type="tool.returned", output={"password": "p-1"}),
        event(3, **delta, text=KEY[half:]),
        event(4, type="text.completed", block_id="b", message_id="m", text=f"It is {KEY}"),
    ]
    out = [one for entry in entries for one in redactor.add(entry)]
    out += redactor.close()
    found = [json.loads(one.entry) for one in out if isinstance(one, LogLine)]
    assert [one["seq"] for one in found] == [1, 2, 3, 4]
    assert [found[0]["text"], found[2]["text"]] == [f"It is {mark(KEY)}", ""]
    assert found[1]["output"] == {"password": mark("p-1")}
    assert found[3]["text"] == f"It is {mark(KEY)}"
    assert entries[1].entry["output"] == {"password": "p-1"}
