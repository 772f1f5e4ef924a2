"""What the readers of other tools' files share: a capture with notes, and the bodies in it.

Such a file comes from outside. What it makes of itself in memory is bounded, nothing in it is
executed, and no file that it names is opened.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
import zlib
from collections.abc import Iterable

from pydantic import JsonValue

from adapters.captures import BadCapture, Capture, CapturedExchange, CaptureHead, Headers
from adapters.wire.jsonvalue import JsonError, mended_json, parse_json


@dataclasses.dataclass(frozen=True, slots=True)
class ForeignLimits:
    """How much one file of another tool may have.

    Attributes:
        inflated_bytes: Bytes of its compressed bodies, when they are inflated.
        body_bytes: Bytes of all bodies and headers: YAML can name one text many times.
        exchanges: Exchanges: YAML can name one many times.
        pieces: Pieces of one body: each is a record, which takes far more than three bytes of a
            frame.
        values: Values: a HAR has some two hundred for each exchange.
    """

    inflated_bytes: int = 64 * 1024 * 1024
    body_bytes: int = 512 * 1024 * 1024
    exchanges: int = 100_000
    pieces: int = 500_000
    values: int = 2_000_000


LIMITS = ForeignLimits()

_FRAME_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}[\r\n]*")
_LINE_END = re.compile(rb"\n")

_GZIP = b"\x1f\x8b"


@dataclasses.dataclass(slots=True)
class ForeignCapture(Capture):
    """A capture of another tool. `notes` say what the file does not show or was not read of it."""

    notes: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, name: str, source: str, made_by: str) -> ForeignCapture:
        """Return one without exchanges."""
        return cls(name, CaptureHead(made_by=made_by, at=0.0, source=source))

    def add(self, exchange: CapturedExchange) -> None:
        """Add an exchange.

        Raises:
            BadCapture: there are too many.
        """
        if len(self.exchanges) >= LIMITS.exchanges:
            raise BadCapture(
                f"it has more than {LIMITS.exchanges} exchanges: split it", name=self.name
            )
        self.exchanges.append(exchange)


@dataclasses.dataclass(slots=True)
class BodyCounter:
    """The bodies of one file, counted."""

    name: str
    size: int = 0
    inflated: int = 0

    def take(self, data: bytes, line: int = 0) -> bytes:
        """Count a body and return it.

        Raises:
            BadCapture: all bodies together are too large.
        """
        self.size += len(data)
        if self.size > LIMITS.body_bytes:
            raise BadCapture(
                f"its bodies and headers have more than {LIMITS.body_bytes} bytes: split it",
                name=self.name,
                line=line,
            )
        return data

    def count(self, headers: Headers, line: int = 0) -> Headers:
        """Count headers as well, and return them.

        Raises:
            BadCapture: all is too large together.
        """
        # A header takes about 128 bytes besides its text.
        self.size += sum(128 + len(key) + len(value) for key, value in headers)
        self.take(b"", line)
        return headers

    def inflate(self, headers: Headers, body: bytes, line: int = 0) -> tuple[Headers, bytes]:
        """Return the headers and the body of a message without its `Content-Encoding`.

        Most tools keep the header of a body that they have inflated themselves, so it is looked
        whether the body is compressed. What cannot be inflated stays as it is, with its header.

        Raises:
            BadCapture: it is cut or damaged, or it becomes too large.
        """
        coding = header(headers, "content-encoding").strip().lower()
        if not coding or coding == "identity":
            return headers, body
        if coding in ("gzip", "x-gzip", "deflate"):
            plain = self._inflated(coding, body, line)
        elif _is_text(body):
            plain = body
        else:
            return headers, body
        bare = tuple(
            pair
            for pair in headers
            if pair[0].lower() not in ("content-encoding", "content-length")
        )
        return bare, plain

    def _inflated(self, coding: str, body: bytes, line: int) -> bytes:
        if coding == "deflate":
            # A zlib stream by the standard, and bare deflate by some servers.
            begins = body[:1] == b"\x78" and len(body) > 1 and int.from_bytes(body[:2]) % 31 == 0
            if not begins:
                return body
            return self._parts(body, zlib.MAX_WBITS, line)
        if not body.startswith(_GZIP):
            return body
        return self._parts(body, zlib.MAX_WBITS | 16, line)

    def _parts(self, body: bytes, bits: int, line: int) -> bytes:
        """Inflate a body, which may be several gzip members in a row."""
        parts = []
        rest = body
        while rest:
            inflater = zlib.decompressobj(bits)
            left = LIMITS.inflated_bytes - self.inflated
            try:
                part = inflater.decompress(rest, left + 1)
            except zlib.error as error:
                raise BadCapture(
                    f"a compressed body is damaged ({error}): export it again",
                    name=self.name,
                    line=line,
                ) from None
            self.inflated += len(part)
            if self.inflated > LIMITS.inflated_bytes:
                raise BadCapture(
                    f"its compressed bodies have more than {LIMITS.inflated_bytes} bytes when they "
                    "are inflated: split it",
                    name=self.name,
                    line=line,
                )
            parts.append(part)
            if not inflater.eof:
                raise BadCapture(
                    "a compressed body is cut off: export it again", name=self.name, line=line
                )
            rest = inflater.unused_data if bits & 16 else b""
            if not rest.startswith(_GZIP):
                break
        return b"".join(parts)


def header(headers: Headers, name: str) -> str:
    """Return the first value of a header, or nothing."""
    return next((value for key, value in headers if key.lower() == name), "")


def with_host(headers: Headers, host: str) -> Headers:
    """Return the headers of a request with a `Host`, which HTTP/2 and some tools do not have."""
    if not host or header(headers, "host"):
        return headers
    return (("Host", host), *headers)


def address_of(url: str) -> tuple[str, str, str]:
    """Return the scheme, the host and the target of a URL.

    Raises:
        ValueError: it is not a URL.
    """
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.scheme.lower(), host, target


def json_of(data: bytes, name: str, what: str) -> tuple[JsonValue, list[str]]:
    """Return a document of JSON, and notes about what was mended in it.

    Raises:
        BadCapture: it is not JSON, is cut off, or has too many values.
    """
    # A comma or a bracket comes with a name and a value at most.
    marks = data.count(b",") + data.count(b"[") + data.count(b"{")
    # Those in texts are counted too, and a file has far more of them: a body is JSON itself.
    if marks > LIMITS.values and _values(data) > LIMITS.values:
        raise BadCapture(f"it has more than {LIMITS.values} values: split it", name=name)
    try:
        return parse_json(data), []
    except JsonError as error:
        first = error
    try:
        return mended_json(data), ["halves of characters stand as U+FFFD"]
    except JsonError:
        pass
    offset = len(data) if first.offset is None else first.offset
    line = data.count(b"\n", 0, offset) + 1
    told = f"it is not JSON: {first.reason}"
    if offset >= len(data.rstrip()) - 1 and first.offset is not None:
        told = f"{what} is cut off: save it again ({first.reason})"
    raise BadCapture(told, name=name, line=line) from None


def _values(data: bytes) -> int:
    """Return how many values JSON has at most, what stands in its texts left out."""
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    outside = b"".join(bare[::2])
    return len(bare) // 2 + outside.count(b",") + outside.count(b"[") + outside.count(b"{")


def pieces_of(body: bytes, media_type: str, name: str) -> tuple[list[bytes], bool]:
    """Return a body cut behind each frame of an event stream or each line of NDJSON, and whether
    the last one is whole. A body of another type is one piece.

    Raises:
        BadCapture: there are too many.
    """
    if not body:
        return [], True
    bare = media_type.partition(";")[0].strip().lower()
    if bare == "text/event-stream":
        end = _FRAME_END
    elif "ndjson" in bare or "jsonl" in bare or "json-seq" in bare:
        end = _LINE_END
    else:
        return [body], True
    pieces: list[bytes] = []
    start = 0
    for found in end.finditer(body):
        pieces.append(body[start : found.end()])
        start = found.end()
        if len(pieces) > LIMITS.pieces:
            raise BadCapture(f"a body has more than {LIMITS.pieces} frames: split it", name=name)
    if start < len(body):
        pieces.append(body[start:])
    return pieces, start == len(body)


def made_by(names: Iterable[object]) -> str:
    """Return what names a tool, joined."""
    return " ".join(str(name) for name in names if isinstance(name, str) and name)


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
