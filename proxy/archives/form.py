"""The form of an archive: NDJSON, one session after the other.

A session is a head, its entries as the journal has them, the bytes of its files in pieces, and a
foot with the SHA-256 of all lines before it: a file that was cut off, or changed, is recognised.
What can be made again is left out: snapshots, the backend's own frames, settled commands.

An archive holds the session's secret and all that was said.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter

from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import MOST_COUNT, JsonError, format_json, int_of, parse_json
from proxy.archives import checks
from proxy.base.rows import BackendBinding, CodecRow, SessionRow

VERSION = 1
"""The version of the form."""

LINE_MOST = 256 * 1024 * 1024
"""Bytes of the longest line that is read. An entry is a line, and has at most what a backend may
send in one frame, `backends.max_frame_bytes`, written as JSON."""

_MARK = "dragoman_archive"
_BYTES = "base64"
_APART = frozenset({"key", "session"})
"""The fields that are a journal's own: its numbers of sessions."""

T = TypeVar("T")


class ArchiveError(DragomanError):
    """The archive is not whole, or is not one; `line` is where, counted from 1."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}", details={"line": line})
        self.line = line
        self.why = why


@dataclasses.dataclass(frozen=True, slots=True)
class SessionHead:
    """What comes before a session's entries. `row`, `legs` have no key yet, it is 0.

    `dialects` has the dialect of each leg's backend, `blobs` the (SHA-256, size) of its files.
    `digest` is the SHA-256 of its `entries`, which have `bytes`.
    """

    row: SessionRow
    legs: Sequence[BackendBinding]
    aliases: Sequence[tuple[str, str]]
    codecs: Sequence[CodecRow]
    dialects: Mapping[str, str]
    blobs: Sequence[tuple[str, int]]
    entries: int
    bytes: int
    digest: str


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a file, in order; `last` says that it is whole, and what its name says."""

    sha256: str
    data: bytes
    last: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Foot:
    """The end of a session that is whole."""

    id: str


def head_line(head: SessionHead) -> bytes:
    """Return the first line of a session."""
    value: dict[str, Any] = {
        _MARK: VERSION,
        "session": _written(head.row),
        "legs": [_written(leg) for leg in head.legs],
        "aliases": [list(alias) for alias in head.aliases],
        "codecs": [_written(codec) for codec in head.codecs],
        "dialects": dict(head.dialects),
        "blobs": [list(blob) for blob in head.blobs],
        "entries": head.entries,
        "bytes": head.bytes,
        "digest": head.digest,
    }
    return format_json(value) + b"\n"


def piece_lines(sha256: str, data: bytes) -> Iterator[bytes]:
    """Yield the lines of a file."""
    # One line has 4 MiB of base64.
    size = 3 * 1024 * 1024
    for start in range(0, max(len(data), 1), size):
        piece = base64.b64encode(data[start : start + size]).decode()
        yield format_json({"blob": sha256, _BYTES: piece}) + b"\n"


def foot_line(id: str, lines: int, sha256: str) -> bytes:
    """Return the last line of a session, with the count and SHA-256 of those before it."""
    return format_json({"end": id, "lines": lines, "sha256": sha256}) + b"\n"


def _written(record: Any) -> dict[str, Any]:
    """Return the fields of a row, whichever it has; bytes as base64."""
    value: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        given = getattr(record, field.name)
        if isinstance(given, bytes):
            given = {_BYTES: base64.b64encode(given).decode()}
        if field.name not in _APART:
            value[field.name] = given
    return value


def _read(kind: type[T], value: Any) -> T:
    """Return the row that `_written` wrote.

    Raises:
        ValueError: it is not one; the text names the field.
    """
    name = kind.__name__.removesuffix("Row").lower()
    if not isinstance(value, dict):
        raise ValueError(f"`{name}` is not an object")
    fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := value.keys() - (fields - _APART):
        raise ValueError(
            f"`{name}` has `{min(unknown)[:40]}`, which is not known: a later Dragoman wrote it"
        )
    given: dict[str, Any] = dict.fromkeys(fields & _APART, 0)
    for field, check in _CHECKS[kind.__name__].items():
        if field not in value:
            # One that the other release did not have.
            continue
        one = value[field]
        try:
            given[field] = check.validate_python(_bytes(one) if isinstance(one, dict) else one)
        except ValueError:
            # Not quoted: it may be the secret.
            raise ValueError(f"`{name}.{field}` is wrong") from None
    try:
        return kind(**given)
    except TypeError:
        raise ValueError(f"a field of `{name}` is missing") from None


def _checks(kind: type[Any]) -> dict[str, TypeAdapter[Any]]:
    # Without the names in the class: `SessionRow.bytes` is not a type.
    hints = get_type_hints(kind, localns={})
    strict = ConfigDict(strict=True)
    return {
        name: TypeAdapter(hint, config=strict) for name, hint in hints.items() if name not in _APART
    }


_CHECKS = {kind.__name__: _checks(kind) for kind in (SessionRow, BackendBinding, CodecRow)}
"""What checks each field of a row."""


def _bytes(value: dict[str, Any]) -> bytes:
    return base64.b64decode(value[_BYTES], validate=True)


_SHA256 = re.compile("[0-9a-f]{64}")


def _read_head(value: dict[str, Any]) -> SessionHead:
    """Return the head in a line's object.

    Raises:
        ValueError, TypeError, LookupError: it is damaged.
    """
    head = SessionHead(
        _read(SessionRow, value["session"]),
        tuple(_read(BackendBinding, leg) for leg in value["legs"]),
        tuple((_text(kind), _text(name)) for kind, name in value["aliases"]),
        tuple(_read(CodecRow, codec) for codec in value["codecs"]),
        {_text(name): _text(dialect) for name, dialect in value["dialects"].items()},
        tuple(
            (_text(sha256), _count(size, f"blobs.{at}"))
            for at, (sha256, size) in enumerate(value["blobs"])
        ),
        _count(value["entries"], "entries"),
        _count(value["bytes"], "bytes"),
        _text(value["digest"]),
    )
    _check_head(head)
    return head


def _check_head(head: SessionHead) -> None:
    """Check what the parts of a head say, and that they fit each other.

    Raises:
        ValueError: something cannot be; the text names its place.
    """
    checks.check_session(head.row)
    for at, leg in enumerate(head.legs):
        checks.check_leg(leg, f"legs.{at}")
    for at, (kind, name) in enumerate(head.aliases):
        checks.check_alias(kind, name, f"aliases.{at}")
    for at, codec in enumerate(head.codecs):
        checks.check_codec(codec, f"codecs.{at}")
    for name, dialect in head.dialects.items():
        checks.check_dialect(dialect, f"dialects.{name[:64]}")
    if [leg.number for leg in head.legs] != list(range(len(head.legs))) or not head.legs:
        raise ValueError("`legs` are not numbered from 0 on")
    if missing := [leg.backend for leg in head.legs if leg.backend not in head.dialects]:
        raise ValueError(f"`dialects` does not have backend `{missing[0]}`")
    if not head.entries or head.entries != head.row.last_seq:
        raise ValueError("`entries` is not `session.last_seq`")
    names = [name for name, _ in head.blobs]
    if len(set(names)) < len(names) or not all(map(_SHA256.fullmatch, names)):
        raise ValueError("`blobs` is damaged")
    if any(size > checks.FILE_MOST for _, size in head.blobs):
        raise ValueError(f"`blobs` has a file of more than {checks.FILE_MOST} bytes")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return value


def _count(value: object, place: str) -> int:
    number = int_of(value)
    if number is None or not 0 <= number <= MOST_COUNT:
        raise ValueError(f"`{place}` is not a whole number from 0 to {MOST_COUNT}")
    return number


class Unpacker:
    """Reads an archive line by line, and checks what each line is and that no line is missing.

    What is in the entries it does not look at.
    """

    def __init__(self) -> None:
        self.line = 0
        """The number of the last line."""
        self.head: SessionHead | None = None
        """The head of the session whose lines come, None between two sessions."""
        self._begun = 0
        self._left = 0
        self._size = 0
        self._blobs: list[tuple[str, int]] = []
        self._blob = hashlib.sha256()
        self._got = 0
        self._all = hashlib.sha256()
        self._entries = hashlib.sha256()

    def take(self, line: bytes) -> SessionHead | bytes | Piece | Foot:
        """Take the next line, with its line feed, and return what it is; an entry as it came.

        Raises:
            ArchiveError: it may not come here, or is damaged.
        """
        self.line += 1
        if line[-1:] != b"\n":
            if len(line) > LINE_MOST:
                raise ArchiveError(self.line, f"it is longer than {LINE_MOST} bytes")
            raise self._cut_off()
        if self._left:
            return self._entry(line)
        value = self._object(line)
        try:
            if self.head is None:
                part: SessionHead | Piece | Foot = self._begin(value)
            elif self._blobs:
                part = self._piece(value)
            else:
                return self._end(self.head, value)
        except ArchiveError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, binascii.Error) as error:
            why = str(error) if isinstance(error, ValueError) else "something is missing"
            raise ArchiveError(self.line, f"it is damaged: {why}") from None
        self._all.update(line)
        return part

    def close(self) -> None:
        """Check that the last session is whole: no more lines come.

        Raises:
            ArchiveError: the last session is not whole, or there is none.
        """
        if self.head is not None:
            raise self._cut_off()
        if not self.line:
            raise ArchiveError(1, "there is nothing in it")

    def _cut_off(self) -> ArchiveError:
        of = "" if self.head is None else f": session `{self.head.row.id[:80]}` is not whole"
        return ArchiveError(max(self.line, 1), f"the archive is cut off here{of}")

    def _object(self, line: bytes) -> dict[str, Any]:
        try:
            value: Any = parse_json(line)
        except JsonError as error:
            raise ArchiveError(self.line, f"it is damaged: {error}") from None
        if not isinstance(value, dict):
            raise ArchiveError(self.line, "it is damaged: an object is missing")
        return value

    def _begin(self, value: dict[str, Any]) -> SessionHead:
        version = value.get(_MARK)
        if version is None:
            raise ArchiveError(self.line, "no session of an archive begins here")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise ArchiveError(self.line, "the archive's version is not a number from 1 on")
        if version > VERSION:
            raise ArchiveError(
                self.line,
                f"the archive has version {version}, and this Dragoman knows versions up to "
                f"{VERSION}: run a later release here",
            )
        head = _read_head(value)
        self.head, self._begun = head, self.line
        self._left, self._size = head.entries, head.bytes
        self._blobs = list(reversed(head.blobs))
        self._all, self._entries = hashlib.sha256(), hashlib.sha256()
        self._blob, self._got = hashlib.sha256(), 0
        return head

    def _entry(self, line: bytes) -> bytes:
        assert self.head is not None
        if not line.startswith(b'{"seq":'):
            raise ArchiveError(self.line, f"an entry was to come, and {self._left} are missing")
        self._left -= 1
        self._size -= len(line)
        self._all.update(line)
        self._entries.update(line)
        if not self._left and (self._size or self._entries.hexdigest() != self.head.digest):
            raise ArchiveError(self.line, "the entries up to here are not those of the head")
        return line

    def _piece(self, value: dict[str, Any]) -> Piece:
        sha256, size = self._blobs[-1]
        if value["blob"] != sha256:
            raise ValueError("another file was to come")
        data = _bytes(value)
        self._blob.update(data)
        self._got += len(data)
        if self._got > size or not (data or not size):
            raise ValueError("the file has another size")
        last = self._got == size
        if last:
            if self._blob.hexdigest() != sha256:
                raise ValueError("the file's SHA-256 is another")
            self._blobs.pop()
            self._blob, self._got = hashlib.sha256(), 0
        return Piece(sha256, data, last)

    def _end(self, head: SessionHead, value: dict[str, Any]) -> Foot:
        if value.get("end") != head.row.id:
            raise ArchiveError(self.line, f"the end of session `{head.row.id[:80]}` was to come")
        counted = self.line - self._begun
        if value.get("lines") != counted or value.get("sha256") != self._all.hexdigest():
            raise ArchiveError(
                self.line,
                f"the lines from {self._begun} to here are not those that were written: their "
                "count or SHA-256 is another",
            )
        self.head = None
        return Foot(head.row.id)
