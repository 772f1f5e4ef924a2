"""What a recorder finds: in the deltas of each face, in every spelling, in what came before it was
known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest

from adapters.captures import (
    CapturedPiece,
    CapturedRequest,
    CapturedResponse,
    LogLine,
    body_of,
    format_record,
)
from adapters.captures.secrets import SecretFinder
from adapters.registry import deltas
from tests.capture.test_redact import (
    JSON,
    KEY,
    LINES,
    LOOKING,
    SSE,
    Redactor,
    answered,
    asked,
    lines,
    mark,
    passed,
    sse,
    whole,
)


def at(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        value = value[step]
    return value


def with_text(type_: str, text: str) -> dict[str, Any]:
    """A frame of a type with more of a text, as the dialect declares it."""
    delta = deltas()[type_]
    frame: dict[str, Any] = {"type": type_}
    for path, given in ((delta.text, text), *((place, "one") for place in delta.places)):
        put(frame, path, given)
    if delta.when is not None:
        put(frame, delta.when, True)
    return frame


def put(frame: Any, path: Sequence[str | int], given: Any) -> None:
    for step, following in zip(path, [*path[1:], None], strict=True):
        last = following is None
        new: Any = given if last else ([] if isinstance(following, int) else {})
        if isinstance(frame, list):
            if len(frame) <= int(step):
                frame.append(new)
        elif last or step not in frame:
            frame[step] = new
        frame = frame[step]


@pytest.mark.parametrize("type_", sorted(deltas()))
@pytest.mark.parametrize("media", [SSE, LINES])
def test_no_face_leaks_a_key_in_pieces(type_: str, media: Any) -> None:
    texts = ["my key is ", KEY[:7], KEY[7:15], KEY[15:], " and more"]
    frames = [with_text(type_, text) for text in texts]
    written = sse(*((type_, one) for one in frames)) if media == SSE else lines(*frames)
    told = [json.loads(one.partition(b"data: ")[2] or one) for one in passed(written, media)]
    assert [at(one, deltas()[type_].text) for one in told] == [
        "my key is ",
        mark(KEY),
        "",
        "",
        " and more",
    ]


def test_every_dialect_with_a_stream_declares_its_deltas() -> None:
    from adapters.registry import DIALECTS

    built = [one for one in DIALECTS.values() if one.has_face]
    assert [one.name for one in built if not one.deltas] == []
    # None of them takes those of another.
    declared = [delta.type for one in built for delta in one.deltas or ()]
    assert len(declared) == len(set(declared)) == len(deltas())


@pytest.mark.parametrize("secret", LOOKING)
def test_a_key_behind_an_escape_is_found(secret: str) -> None:
    arguments = json.dumps({"command": f"run\n{secret}"})
    told = whole(json.dumps({"arguments": arguments}).encode())
    assert secret.splitlines()[-1] not in told.decode()
    broken = whole(json.dumps({"arguments": arguments}).encode()[:-2])
    assert secret.splitlines()[-1] not in broken.decode()


@pytest.mark.parametrize(
    "spelled", [str.upper, str.lower, lambda text: text], ids=["upper", "lower", "as it is"]
)
def test_a_credential_of_an_address_is_found_however_it_is_quoted(spelled: Any) -> None:
    value = "ab/cd+efgh7"
    redactor = Redactor(b"salt")
    redactor.add(asked(headers=(("X-Api-Key", value),)))
    quoted = quote(value, safe="").replace("%2F", spelled("%2f")).replace("%2B", spelled("%2b"))
    (told,) = redactor.add(asked(2, target=f"/x/{quoted}/y"))
    assert isinstance(told, CapturedRequest)
    assert told.target == f"/x/{mark(value)}/y"


def test_a_credential_in_the_path_of_the_first_request_is_found() -> None:
    headers = (("Authorization", "Bearer tok-1234-5678"),)
    (told,) = Redactor(b"salt").add(asked(target="/bot/tok-1234-5678/send", headers=headers))
    assert isinstance(told, CapturedRequest)
    assert told.target == f"/bot/{mark('tok-1234-5678')}/send"


def test_a_credential_of_digits_is_found() -> None:
    redactor = Redactor(b"salt")
    redactor.add(asked(headers=(("X-Api-Key", "9071245518"),)))
    told = whole(b'{"text": "it is 9071245518, yes"}', redactor=redactor, number=2)
    assert json.loads(told) == {"text": f"it is {mark('9071245518')}, yes"}


def test_a_thousand_values_are_found_and_the_oldest_are_forgotten_first() -> None:
    redactor = Redactor(b"salt")
    values = [f"value-{number}-of-many" for number in range(900)]
    for number, value in enumerate(values):
        redactor.add(asked(number + 2, headers=(("X-Api-Key", value),)))
    told = whole(json.dumps({"text": " ".join(values)}).encode(), redactor=redactor, number=1)
    assert not [value for value in values if value in told.decode()]


@pytest.mark.parametrize("value", ["caf\udce9 1", "\udcff\udcfe"])
def test_a_header_that_is_not_utf_8_is_kept(value: str) -> None:
    redactor = Redactor(b"salt")
    headers = (("X-Name", value), ("X-Api-Key", f"key-{value}-0123456"))
    (request,) = redactor.add(asked(target=f"/a{value}", headers=headers))
    (response,) = redactor.add(answered(headers=headers))
    latin = value.encode("utf-8", "surrogateescape").decode("latin-1")
    for record in (request, response):
        assert isinstance(record, CapturedRequest | CapturedResponse)
        told = dict(json.loads(format_record(record))["headers"])
        assert told["X-Name"] == latin
        assert told["X-Api-Key"].startswith("[redacted-")


def test_a_name_that_is_a_secret_is_replaced_also_where_its_value_is_json() -> None:
    body = {KEY: json.dumps({"password": "p-1"}), "other": 1}
    told = json.loads(whole(json.dumps(body).encode()))
    assert told == {"other": 1, mark(KEY): f'{{"password":"{mark("p-1")}"}}'}


def test_numbers_beyond_64_bits_stay() -> None:
    body = b'{"password":"p-1","n":123456789012345678901234567890}'
    assert whole(body) == body.replace(b"p-1", mark("p-1").encode())
    (told, *_) = passed(
        [
            b'{"type":"text-delta","id":"t","delta":"'
            + KEY.encode()
            + b' ","n":1234567890123456789012}\n'
        ],
        LINES,
    )
    assert json.loads(told)["n"] == 1234567890123456789012
    assert KEY not in told.decode()


def test_a_password_of_json_that_is_cut_off_is_found() -> None:
    for body in (b'{"a": {"password": "p-1 two', b'{"a": "{\\"password\\": \\"p-1 two\\", '):
        told = whole(body)
        assert b"p-1" not in told
        assert b"two" not in told


def test_a_text_that_goes_on_for_long_is_given_out_as_it_comes() -> None:
    redactor = Redactor(b"salt")
    redactor.add(asked(headers=()))
    held = most = 0
    for number in range(3000):
        held += 1
        held -= len(redactor.add(body_of(1, "request", float(number), b"some text ")))
        most = max(most, held)
    assert most <= 1


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_every_end_of_a_line_ends_a_frame(end: str, size: int) -> None:
    body = f'data: {{"text":"x"}}{end}{end}event: a{end}data: {{"password":"p-1"}}{end}{end}'
    pieces = [body[at : at + size].encode() for at in range(0, len(body), size)]
    told = b"".join(passed(pieces, SSE)).decode()
    assert told == body.replace("p-1", mark("p-1"))


def test_a_very_long_key_is_hidden_to_its_end() -> None:
    key = "sk-" + "a1" * 8000
    frames = [("text_delta", {"text": text}) for text in ("x ", key[:5000], key[5000:], " y")]
    told = b"".join(passed(sse(*frames), SSE)).decode()
    assert "a1a1" not in told
    assert " y" in told


def test_values_with_spaces_are_found_over_deltas() -> None:
    secret = "correct horse battery staple 4"
    redactor = Redactor(b"salt")
    redactor.add(asked(7, headers=(("X-Api-Key", secret),)))
    frames = [("text_delta", {"text": f"{word} "}) for word in f"say {secret} now or never".split()]
    told = b"".join(passed(sse(*frames), SSE, redactor=redactor)).decode()
    assert "horse" not in told
    assert "never" in told


def test_entries_of_the_log_are_written_as_they_are() -> None:
    redactor = Redactor(b"salt")
    entry = b'{"seq":1,"at":2,"session_id":"s","v":1,"type":"turn.started"}'
    (line,) = redactor.add_log([LogLine(3.5, entry)])
    assert format_record(line) == b'{"type":"event","at":3.5,"entry":%b}\n' % entry


def test_what_is_shown_is_no_secret_in_a_path() -> None:
    finder = SecretFinder(b"salt")
    finder.show("wrun_01M8B3RS")
    assert finder.is_shown("wrun_01M8B3RS")


def test_a_body_without_a_request_is_looked_at_too() -> None:
    redactor = Redactor(b"salt")
    out = redactor.add(body_of(4, "response", 1.0, b'{"password": "p-1"}'))
    assert [one.data for one in out if isinstance(one, CapturedPiece)] == [
        b'{"password":"%b"}' % mark("p-1").encode()
    ]
    assert JSON
