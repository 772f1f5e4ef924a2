"""The body of a request to a backend that has files in it: JSON whose files are named, not made.

To make base64 and JSON of a file of 25 MB takes a tenth of a second and four times its size. So a
codec says where a file stands, by its hash, and anybody who sends the request puts it in, piece by
piece. What a codec has to keep of such a request is as short as its words.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping

import orjson

from adapters.wire.jsonvalue import compact, format_json

_MARK = b"\0"
"""What stands on both sides of a file's name: no JSON has it, since a text that does is escaped."""


class FileBody(bytes):
    """JSON with the names of files in the place of their base64, marked. Others are mere bytes."""

    __slots__ = ()

    @property
    def files(self) -> frozenset[str]:
        """Return the names of the files: their SHA-256 in hex."""
        return frozenset(name.decode() for name in self.split(_MARK)[1::2])

    def size(self, files: Mapping[str, bytes]) -> int:
        """Return how many bytes it has with these files in their places."""
        parts = self.split(_MARK)
        sizes = [(len(files[name.decode()]) + 2) // 3 * 4 for name in parts[1::2]]
        return sum(map(len, parts[::2])) + sum(sizes)

    def pieces(self, files: Mapping[str, bytes]) -> Iterator[bytes]:
        """Yield it with these files in their places, in pieces of at most 64 KiB."""
        for number, part in enumerate(self.split(_MARK)):
            if number % 2:
                data = files[part.decode()]
                # A multiple of three: 64 KiB of text.
                size = 48 * 1024
                for start in range(0, len(data), size):
                    yield base64.b64encode(data[start : start + size])
            else:
                size = 64 * 1024
                for start in range(0, len(part), size):
                    yield part[start : start + size]


def file_in_base64(sha256: str, before: str = "") -> orjson.Fragment:
    """Return what stands in the value of a body for a text of base64: that of the file with this
    hash, after `before`."""
    begin = orjson.dumps(before)[:-1]
    return orjson.Fragment(b"".join((begin, _MARK, sha256.encode(), _MARK, b'"')))


def body_of(value: object) -> bytes:
    """Return a value as the body of a request: a `FileBody` where files stand in it.

    Raises:
        JsonError: as `format_json`.
    """
    body = compact(format_json(value))
    return FileBody(body) if _MARK in body else body


def restored(body: bytes) -> bytes:
    """Return a body that was kept as bytes, as a `FileBody` where it names files."""
    return FileBody(body) if _MARK in body else body
