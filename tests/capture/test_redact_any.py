"""Whatever a secret is, wherever it stands and however a body is cut: it is not in the capture."""

from __future__ import annotations

import itertools
import json
import string
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.captures import CapturedPiece, ExchangeEnd, Record, body_of
from adapters.captures.redact import Redactor as AnyRedactor
from tests.capture.test_redact import (
    JSON,
    LINES,
    SSE,
    Redactor,
    answered,
    asked,
    engine_deltas,
    eve_deltas,
    herm_deltas,
)

LETTERS = string.ascii_letters + string.digits

looking = st.one_of(
    st.builds("sk-{}".format, st.text(LETTERS + "-_", min_size=20, max_size=60)),
    st.builds("ghp_{}".format, st.text(LETTERS, min_size=36, max_size=36)),
    st.builds(
        "AKIA{}".format, st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16)
    ),
    st.builds(
        "eyJ{}.eyJ{}.{}".format,
        *[st.text(LETTERS + "-_", min_size=10, max_size=40)] * 3,
    ),
)
# A letter and a digit, since what has a name here is something else elsewhere if it is a word.
named = st.builds("k7{}".format, st.text(st.characters(codec="utf-8"), min_size=8, max_size=40))
words = st.text(st.characters(codec="utf-8", exclude_characters=LETTERS + "-_."), max_size=12)
values = st.recursive(
    st.one_of(words, st.integers(), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)


def cut(draw: Any, body: bytes) -> list[bytes]:
    places = draw(st.lists(st.integers(0, len(body)), max_size=8))
    edges = [0, *sorted(places), len(body)]
    return [body[a:b] for a, b in itertools.pairwise(edges)]


def written(redactor: AnyRedactor, pieces: list[bytes], headers: Any) -> list[bytes]:
    out: list[Record] = [*redactor.add(asked(headers=())), *redactor.add(answered(headers=headers))]
    for at, piece in enumerate(pieces):
        out += redactor.add(body_of(1, "response", float(at), piece))
    out += redactor.add(ExchangeEnd(exchange=1, at=99, how="ended"))
    found = [one.data for one in out if isinstance(one, CapturedPiece)]
    assert len(found) == len(pieces)
    return found


def strings(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [one for inner in value for one in strings(inner)]
        case dict():
            return [one for inner in value.values() for one in [*strings(inner)]] + list(value)
    return []


@settings(max_examples=150, deadline=None)
@given(st.data(), looking, named, values, st.booleans(), st.sampled_from([JSON, SSE, LINES]))
def test_no_secret_is_in_a_body(
    data: st.DataObject, looks: str, secret: str, around: Any, plain: bool, headers: Any
) -> None:
    body: Any = {"x": around, "text": f"« {looks} »", "list": [{"clientSecret": secret}]}
    body["echo"] = f"<{secret}>"
    encoded = json.dumps(body, ensure_ascii=plain).encode()
    if headers == SSE:
        encoded = b"data: " + encoded + b"\n\n"
    told = b"".join(written(Redactor(b"salt"), cut(data.draw, encoded), headers))
    read = json.loads(told.removeprefix(b"data: "))
    if looks not in secret:
        assert not [one for one in strings(read) if looks in one]
    if secret.strip() not in "".join(strings(around)):
        assert read["list"][0]["clientSecret"] != secret
        assert secret.strip() not in read["echo"]
    assert read["x"] == around or secret.strip() in json.dumps(around, ensure_ascii=False)


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    looking,
    words,
    words,
    st.sampled_from([engine_deltas, herm_deltas, eve_deltas]),
)
def test_no_secret_is_spelled_by_deltas(
    data: st.DataObject, secret: str, before: str, after: str, deltas: Any
) -> None:
    text = f"{before} {secret} {after}"
    texts = [one.decode() for one in cut_text(data.draw, text)]
    frames, headers = deltas(texts)
    told = written(Redactor(b"salt"), cut(data.draw, b"".join(frames)), headers)
    spelled = ""
    for line in b"".join(told).split(b"\n"):
        if not line.strip() or line.startswith(b"event:"):
            continue
        read = json.loads(line.removeprefix(b"data: "))
        if "data" in read:
            assert secret not in read["data"]["messageSoFar"]
            spelled += read["data"]["messageDelta"]
        else:
            spelled += read["text"] if "text" in read else read["payload"]["content"][0]["text"]
    assert secret not in spelled
    assert spelled.startswith(before)
    assert spelled.endswith(after)


def cut_text(draw: Any, text: str) -> list[bytes]:
    places = draw(st.lists(st.integers(0, len(text)), max_size=6))
    edges = [0, *sorted(places), len(text)]
    return [text[a:b].encode() for a, b in itertools.pairwise(edges)]


@settings(max_examples=150, deadline=None)
@given(st.data(), values, st.sampled_from([JSON, SSE, LINES, ()]), st.binary(max_size=40))
def test_without_a_secret_each_piece_is_what_it_was(
    data: st.DataObject, value: Any, headers: Any, more: bytes
) -> None:
    body = json.dumps(value).encode()
    joined = b"data: " + body + b"\n\n" + body + b"\r\n" + more
    pieces = cut(data.draw, data.draw(st.sampled_from([body, joined, more])))
    redactor = Redactor(b"salt")
    redactor.add(asked(9, headers=(("Authorization", "Bearer 0123456789abcdef"),)))
    assert written(redactor, pieces, headers) == pieces
