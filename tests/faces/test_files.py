"""Files in requests of several faces."""

from __future__ import annotations

import pytest

from adapters.contract.faces.files import file_of, is_data_url, media_type_of, read_data_url
from adapters.model.events import Blob
from adapters.wire.encodings import PERCENT
from adapters.wire.errors import ClientProtocolError
from tests.support.each import each


def test_a_file_is_named_by_its_bytes_which_are_kept() -> None:
    blobs: dict[str, bytes] = {}
    file = file_of(b"abc", "text/plain", blobs, name="a.txt")
    assert isinstance(file.ref, Blob)
    assert blobs == {file.ref.sha256: b"abc"}
    assert (file.media_type, file.name, file.size) == ("text/plain", "a.txt", 3)


@each(
    ("url", "media_type", "content"),
    [
        ("data:image/png;base64,aGk=", "image/png", b"hi"),
        ("DATA:text/plain;charset=utf-8;BASE64,aGk", "text/plain", b"hi"),
        ("data:a/b;base64;name=x.rs,aGk=", "a/b", b"hi"),
        ("data:;base64,", None, b""),
        ("data:,x,%20y", None, b"x, y"),
        ("data:base64,aGk=", None, b"aGk="),
        ("data: a/b ; base64 ,aGk=", "a/b", b"hi"),
    ],
)
def test_a_data_url_is_read(url: str, media_type: str | None, content: bytes) -> None:
    assert is_data_url(url)
    assert read_data_url(url, "here") == (media_type, content)


@each(
    ("url", "why"),
    [
        ("data:", "`here` is not a data URL"),
        ("data:a/b;base64", "`here` is not a data URL"),
        ("data:a/b;base64,\u00e9", "`here` is not base64"),
        (f"data:,{'x' * (PERCENT + 1)}", "send base64"),
    ],
)
def test_a_data_url_that_cannot_be_read_is_refused_without_its_text(url: str, why: str) -> None:
    with pytest.raises(ClientProtocolError) as caught:
        read_data_url(url, "here")
    assert why in caught.value.message
    assert caught.value.__context__ is None


def test_a_media_type_that_is_empty_is_none() -> None:
    assert media_type_of("", "here") is None
    assert media_type_of(None, "here") is None
    assert media_type_of("a/b", "here") == "a/b"
    for wrong in ("text", 5, ["a/b"]):
        with pytest.raises(ClientProtocolError, match="`here` is not a media type"):
            media_type_of(wrong, "here")
