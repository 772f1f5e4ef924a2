"""Looking for secrets takes a time that is linear in what is searched, however that is made."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable

import pytest

from adapters.captures import body_of
from adapters.captures.redact import Redactor as AnyRedactor
from tests.capture.test_redact import LINES, SSE, Redactor, answered, asked, sse

MEGABYTE = 1_000_000

Shape = Callable[[int], bytes]
"""Makes a body of about so many bytes."""


def repeated(text: str, around: str = "{}") -> Shape:
    """A text over and over."""

    def made(size: int) -> bytes:
        return around.format(text * (size // len(text.encode()))).encode()

    return made


def string(text: str) -> Shape:
    """A string of JSON that is a text over and over."""
    return lambda size: json.dumps([text * (size // len(text))]).encode()


def each_of(make: Callable[[int], object], size: int) -> Shape:
    """A list of as many values as have the size together."""
    return lambda whole: json.dumps([make(n) for n in range(whole // size)]).encode()


def members(make: Callable[[int], tuple[str, object]], size: int) -> Shape:
    return lambda whole: json.dumps(dict(map(make, range(whole // size)))).encode()


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
URL = "https://b.example/k?X-Amz-Credential=AKIAZ7Z7Z7Z7Z7Z7Z7Z7&X-Amz-Signature=" + "a1" * 32

SHAPES: dict[str, Shape] = {
    # Begins of what has a look.
    "heads of JWTs": string("eyJ"),
    "JWTs without a third part": string("eyJaaaaaaaa."),
    "heads behind a dash": string("-eyJ"),
    "dots before heads": string(".eyJ"),
    "JWTs": string(JWT + " "),
    "JWTs without a space": string(JWT),
    "begins of keys": string("sk-"),
    "short keys": string("sk-aaaaaaaaaaaaaaaaaaa "),
    "keys": string("sk-aaaaaaaaaaaaaaaaaaaaaa "),
    "tokens of Slack": string("xoxb-"),
    "begins of private keys": string("-----BEGIN PRIVATE KEY-----"),
    "lines of private keys": string("-----BEGIN PRIVATE KEY-----\n" + "A" * 20 + "\n"),
    "ends of private keys": string("-----END PRIVATE KEY-----"),
    "dashes": string("-"),
    "addresses": string("://a:b"),
    "passwords of addresses": string("://" + "a" * 250 + ":" + "b" * 250),
    "bearers": string("bearer "),
    "bearer tokens": string("bearer aaaaaaaaaaaaaaaa1aaaaaaa "),
    "a bearer and spaces": lambda size: json.dumps(["bearer" + " " * size]).encode(),
    "queries": string("?token=aaaaaaa&"),
    "credentials in queries": string("?token=aaaaaaaaa&"),
    "names in queries": string("?" + "a" * 19 + "_"),
    "signed addresses": string(URL + " "),
    "one letter": string("a"),
    "words": string("a "),
    "a file": lambda size: json.dumps([base64.b64encode(bytes(size)).decode()]).encode(),
    # JSON.
    "empty strings": each_of(lambda _: "", 4),
    "numbers": each_of(lambda _: 1, 3),
    "members": members(lambda n: (f"k{n}", 1), 11),
    "members called secrets": members(lambda n: (f"{n}token", "v"), 19),
    "secret members": members(lambda n: (f"{n}token", f"{n}abcdefgh1"), 32),
    "names that are secrets": members(lambda n: (f"sk-{n:020}aaaaaa", 1), 38),
    "tokens that are ids": each_of(lambda n: {"id": f"i{n}", "token": f"i{n}"}, 38),
    "variables": each_of(lambda n: {"name": "API_KEY", "value": f"{n}abcdefg"}, 48),
    "JSON in strings": each_of(lambda n: json.dumps({"token": f"abcdefgh{n}"}), 42),
    "JSON in JSON in JSON": each_of(lambda n: json.dumps([json.dumps([json.dumps([n])])]), 30),
    "brackets in strings": each_of(lambda _: "[" * 100, 104),
    "arrays in arrays": lambda size: (b"[" * 100 + b"]" * 100 + b",") * (size // 201),
    "escapes": repeated(r"\u0041", '["{}"]'),
    "slashes": repeated(r"\/", '["{}"]'),
    # JSON that is cut.
    "a string without an end": repeated("x", '{{"password":"{}'),
    "members without an end": repeated('"token":"', "{{{}"),
    "escaped members": repeated(r'"token":"\"', "{{{}"),
    "backslashes": repeated("\\", '{{"token":"{}'),
    "quotes": repeated('"a" ', "{{{}"),
    "names": repeated('"' + "a" * 64, '{{"token":1{}'),
    # Other texts.
    "a text": repeated("word and more "),
    "a word": repeated("a1"),
    "what is not UTF-8": lambda size: b"\xff\xfe sk-" * (size // 6),
}


def knowing() -> AnyRedactor:
    """Return a redactor that has seen secrets."""
    redactor = Redactor(b"salt")
    for n in range(300):
        redactor.add(asked(n + 2, headers=(("X-Api-Key", f"known-{n}-{'k' * (n % 40)}"),)))
    redactor.add(answered(headers=()))
    return redactor


def in_one(body: bytes) -> float:
    redactor = knowing()
    begin = time.thread_time()
    redactor.add(body_of(1, "response", 1.0, body))
    redactor.close()
    return time.thread_time() - begin


def usual() -> float:
    """The CPU seconds of something that takes 0.1 s on a usual machine."""
    begin = time.thread_time()
    total = 0
    for number in range(2_500_000):
        total += number
    return time.thread_time() - begin


@pytest.mark.parametrize("shape", SHAPES)
def test_a_megabyte_takes_about_a_tenth_of_a_second(shape: str) -> None:
    body = SHAPES[shape](MEGABYTE)
    # A busy machine makes that several times as much; what is not linear takes a hundred times.
    assert any(in_one(body) < 10 * usual() for _ in range(3))


def taken(redactor: AnyRedactor, pieces: list[bytes]) -> float:
    begin = time.thread_time()
    for piece in pieces:
        redactor.add(body_of(1, "response", 1.0, piece))
    redactor.close()
    return time.thread_time() - begin


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


IN_PIECES = ("JWTs", "heads of JWTs", "brackets in strings", "quotes", "what is not UTF-8")


@pytest.mark.parametrize("shape", IN_PIECES)
@pytest.mark.parametrize("media", [(), LINES, SSE])
def test_a_body_in_many_pieces_takes_twice_as_much_for_twice_as_many(
    shape: str, media: tuple[tuple[str, str], ...]
) -> None:
    def took(size: int) -> float:
        redactor = knowing()
        redactor.add(answered(headers=media))
        return taken(redactor, cut(b"data: " + SHAPES[shape](size), 64))

    assert_linear(took, MEGABYTE // 4)


DELTAS = {
    "letters": ["a"],
    "words": ["a", " "],
    "begins of a key": ["sk", "-"],
    "a bearer": ["bearer", " "],
    "begins of a private key": ["-----BEGIN PRIVATE KEY-----", "\n", "A" * 30],
    "quotes": ['"', "'"],
    "known begins": ["known-1 ", "known"],
}


@pytest.mark.parametrize("texts", DELTAS)
@pytest.mark.parametrize("secret", ["known-1 known-2 known-3", "known-1-known-2-known-3"])
def test_deltas_take_twice_as_much_for_twice_as_many(texts: str, secret: str) -> None:
    def took(count: int) -> float:
        redactor = knowing()
        redactor.add(asked(9999, headers=(("X-Api-Key", secret),)))
        redactor.add(answered(headers=SSE))
        parts = DELTAS[texts]
        frames = [("text_delta", {"text": parts[n % len(parts)]}) for n in range(count)]
        return taken(redactor, sse(*frames))

    # More than wait at most.
    assert_linear(took, 5_000)


def assert_linear(took: Callable[[int], float], size: int) -> None:
    # What is square takes four times as much.
    assert any(took(2 * size) < 3 * took(size) + 0.01 for _ in range(5))
