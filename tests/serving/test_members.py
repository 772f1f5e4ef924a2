"""Members of a JSON body: what stands there, or a refusal that names the place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from adapters.model.events import Blob, File
from adapters.serving import members
from adapters.serving.members import MAX_PARTS, NAME_LIMIT
from adapters.wire.errors import ClientProtocolError

SECRET = "hunter2"
"""What stands in bodies that are refused."""

BYTES = b"\x00cat"


def file(media_type: str, name: str | None = None) -> File:
    ref = Blob(sha256=hashlib.sha256(BYTES).hexdigest())
    return File(media_type=media_type, name=name, size=len(BYTES), ref=ref)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda: members.object_of(b'{"a":[1]}'), {"a": [1]}),
        (lambda: members.object_of(b"\xef\xbb\xbf{}"), {}),
        (lambda: members.name_of("n" * NAME_LIMIT, "id"), "n" * NAME_LIMIT),
        (lambda: members.list_of(None, "parts"), []),
        (lambda: members.list_of([1], "parts"), [1]),
        (lambda: members.list_of([0] * MAX_PARTS, "parts", of="files"), [0] * MAX_PARTS),
        # What is not looked at one by one has no limit.
        (lambda: len(members.list_of([0] * (MAX_PARTS + 1), "parts")), MAX_PARTS + 1),
        (lambda: members.text_of("a"), "a"),
        (lambda: members.text_of(""), None),
        (lambda: members.text_of(7), None),
        (lambda: members.texts_of([{"text": "a"}, {"text": 1}, {}, "b", {"text": ""}]), ["a", ""]),
        (lambda: members.web_url("HTTPS://cats.example/a", "url"), "HTTPS://cats.example/a"),
    ],
)
def test_a_member_is_read(read: Callable[[], Any], value: Any) -> None:
    assert read() == value


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda: members.object_of(f'{{"{SECRET}'.encode()), "The body is not a JSON object."),
        (lambda: members.object_of(f'["{SECRET}"]'.encode()), "The body is not a JSON object."),
        (lambda: members.name_of(None, "id"), "`id` is not a string of 1 to 512 characters."),
        (lambda: members.name_of("", "id"), "`id` is not a string of 1 to 512 characters."),
        (
            lambda: members.name_of("n" * (NAME_LIMIT + 1), "id"),
            "`id` is not a string of 1 to 512 characters.",
        ),
        (lambda: members.list_of({SECRET: 1}, "parts"), "`parts` is not a list."),
        (
            lambda: members.list_of([SECRET] * (MAX_PARTS + 1), "parts", of="files"),
            "`parts` has more than 256 files.",
        ),
        (
            lambda: members.web_url(f"file:///{SECRET}", "url"),
            "`url` is neither a data URL nor an http or https URL.",
        ),
        (
            lambda: members.web_url("http:///path", "url"),
            "`url` is neither a data URL nor an http or https URL.",
        ),
        (
            lambda: members.file_in_url(f"data:{SECRET}", None, "url", {}),
            "`url` is not a data URL.",
        ),
        (
            lambda: members.file_in_base64(f"{SECRET}!", None, "data", {}),
            "`data` has no base64.",
        ),
    ],
)
def test_a_refusal_names_the_place_and_quotes_nothing(read: Callable[[], Any], words: str) -> None:
    with pytest.raises(ClientProtocolError) as refused:
        read()
    assert refused.value.whole == words
    # What failed in a reader may quote: it is not kept either.
    assert refused.value.__context__ is None


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (
            lambda blobs: members.file_in_url("data:image/png;base64,AGNhdA==", None, "url", blobs),
            file("image/png"),
        ),
        (
            lambda blobs: members.file_in_url(
                "data:image/png;base64,AGNhdA==", "image/gif", "url", blobs, "cat.gif"
            ),
            file("image/gif", "cat.gif"),
        ),
        (
            lambda blobs: members.file_in_url("data:,%00cat", None, "url", blobs),
            file("application/octet-stream"),
        ),
        (
            lambda blobs: members.file_in_base64("AGNhdA==", "image/gif", "data", blobs),
            file("image/gif"),
        ),
        (
            lambda blobs: members.file_in_base64("AGNhdA==", None, "data", blobs),
            file("application/octet-stream"),
        ),
    ],
)
def test_the_bytes_of_a_file_are_kept_by_their_hash(
    read: Callable[[dict[str, bytes]], File], found: File
) -> None:
    blobs: dict[str, bytes] = {}
    assert read(blobs) == found
    assert isinstance(found.ref, Blob)
    assert blobs == {found.ref.sha256: BYTES}


def test_equal_texts_have_the_same_digest() -> None:
    digests = [members.digest_of(texts) for texts in (["a", "b"], ["ab"], ["b", "a"], ["\ud800"])]
    assert len(set(digests)) == 4
    assert members.digest_of(["a", "b"]) == digests[0]
