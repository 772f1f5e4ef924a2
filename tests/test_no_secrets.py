"""No recording that stands in the repository has a credential in it."""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.captures.secrets import SecretFinder
from tests.test_project import REPOSITORY

SECRET = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    rb"|(?i:\"(?:authorization|cookie|set-cookie|x-api-key|x-engine-key)\": ?\[?\s*\")"
    rb"(?!\[redacted)[^\"\s]{8,}"
)
"""Begins of private keys, and values of headers."""


def found_in(data: bytes) -> list[str]:
    """Return the begin of each credential: what a recorder takes out of texts, and these."""
    text = data.decode("utf-8", "surrogateescape")
    found = [text[span.start : span.end][:24] for span in SecretFinder(b"").find(text)]
    return found + [match[0][:24].decode(errors="replace") for match in SECRET.finditer(data)]


def recordings() -> Iterator[Path]:
    for folder in ("fixtures", "docs/examples"):
        yield from sorted(p for p in (REPOSITORY / folder).rglob("*") if p.is_file())


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (b'{"key": "sk-ant-' + b"a1" * 20 + b'"}', True),
        (b"AKIA" + b"A1" * 8, True),
        (b"ghp_" + b"a" * 36, True),
        (b"-----BEGIN RSA PRIVATE" + b" KEY-----", True),
        (b"Authorization: Bearer " + b"abc123" * 5, True),
        (b'"Authorization": "' + b"abc123" * 5 + b'"', True),
        (b"Authorization: Bearer [redacted-12345678]", False),
        (b'"Authorization": "[redacted-12345678]"', False),
        (b"the bearer of the internationalisation news", False),
        (b"sk-short", False),
        (b"postgres://me:" + b"pa5sword@db.example/", True),
        (b"https://a.example/?access_token=" + b"a1" * 8, True),
    ],
)
def test_the_search_finds_what_looks_like_a_credential(text: bytes, is_one: bool) -> None:
    assert bool(found_in(text)) == is_one


def test_no_recording_has_a_credential_in_it() -> None:
    found = {}
    number = 0
    for file in recordings():
        number += 1
        data = file.read_bytes()
        if file.suffix == ".xz":
            data = lzma.decompress(data)
        if told := found_in(data):
            found[file.relative_to(REPOSITORY).as_posix()] = told[:3]
    assert number > 100
    assert found == {}
