"""Captures: what went over the wire of one session, chunk by chunk, and what it meant.

A capture is a file of lines of JSON (NDJSON). The first line is its head, each other one a record:
a request or a response, a piece of a body, the end of an exchange, an entry of the canonical log,
or a source frame of it. `at` is milliseconds since 1970, with fractions. Lines stand in the order
in which things happened, so a file that was cut off is right up to where it ends.

Bodies stand as they came, cut where they were cut: as `text` where a piece is UTF-8, else as
`base64`. An exchange has one number for its request, its response and its end. Its `side` says who
talked: `frontend` is between a frontend and Dragoman, `backend` between Dragoman and a backend.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from adapters.model import events as ev
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import JsonError, format_json, parse_json

__all__ = [
    "VERSION",
    "BadCapture",
    "Capture",
    "CaptureHead",
    "CapturedEvent",
    "CapturedExchange",
    "CapturedFrame",
    "CapturedPiece",
    "CapturedRequest",
    "CapturedResponse",
    "ExchangeEnd",
    "Headers",
    "LogLine",
    "MissingRecords",
    "Record",
    "Side",
    "body_of",
    "format_record",
    "read_capture",
]

VERSION = 1

Side = Literal["frontend", "backend"]
Headers = tuple[tuple[str, str], ...]


class BadCapture(DragomanError):
    """A capture cannot be read. `line` counts from 1; 0 where it is the file as a whole."""

    code = ErrorCode.RECORDING

    def __init__(self, reason: str, *, name: str, line: int = 0) -> None:
        super().__init__(f"{name}: line {line}: {reason}" if line else f"{name}: {reason}")
        self.reason = reason
        self.line = line


class _CaptureLine(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class CaptureHead(_CaptureLine):
    """The first line. `dialect` is that of the side that was recorded, `session` its id there, or
    None while nothing had named it; `source` says where a capture comes from that was not recorded
    by Dragoman."""

    capture: Literal[1] = 1
    made_by: str
    at: float
    dialect: str | None = None
    session: str | None = None
    source: str | None = None


class CapturedRequest(_CaptureLine):
    """The head of a request. `target` is the path and the query, as they were sent."""

    type: Literal["request"] = "request"
    exchange: int
    side: Side
    at: float
    method: str
    target: str
    headers: Headers = ()


class CapturedResponse(_CaptureLine):
    """The head of a response."""

    type: Literal["response"] = "response"
    exchange: int
    at: float
    status: int
    headers: Headers = ()


class CapturedPiece(_CaptureLine):
    """A piece of a body, as it came: `of` the request or of the response."""

    type: Literal["body"] = "body"
    exchange: int
    of: Literal["request", "response"]
    at: float
    text: str | None = None
    base64: str | None = None

    @property
    def data(self) -> bytes:
        """The bytes of the piece."""
        return _data_of(self)


class ExchangeEnd(_CaptureLine):
    """The end of an exchange: `ended` as HTTP says, `broke` in it, or `left` by its client."""

    type: Literal["end"] = "end"
    exchange: int
    at: float
    how: Literal["ended", "broke", "left"]
    why: str | None = None


class CapturedEvent(_CaptureLine):
    """An entry of the canonical log, as `GET /api/v1/sessions/{id}/events` gives it."""

    type: Literal["event"] = "event"
    at: float
    entry: dict[str, Any]


class LogLine(NamedTuple):
    """An `event` as a recorder has it: with the entry in JSON."""

    at: float
    entry: bytes


class CapturedFrame(_CaptureLine):
    """A source frame as a journal kept it: `number` is what `native.frame` names it by, `leg` the
    part of the session at one backend. The capture of a session that was not recorded has these in
    place of exchanges, each before the first event that came of it."""

    type: Literal["frame"] = "frame"
    at: float
    leg: int
    number: int
    dialect: str
    text: str | None = None
    base64: str | None = None

    @classmethod
    def of(cls, data: bytes, *, at: float, leg: int, number: int, dialect: str) -> CapturedFrame:
        """Return the record of a frame."""
        return cls(at=at, leg=leg, number=number, dialect=dialect, **_members_of(data))

    @property
    def data(self) -> bytes:
        """The bytes of the frame."""
        return _data_of(self)


class MissingRecords(_CaptureLine):
    """How many records are missing here: of an exchange, which ends with them, or of the log.
    The recorder was behind, or a body was too long."""

    type: Literal["left_out"] = "left_out"
    at: float
    count: int
    exchange: int | None = None


def _data_of(record: CapturedPiece | CapturedFrame) -> bytes:
    if record.text is not None:
        return record.text.encode()
    return base64.b64decode(record.base64 or "", validate=True)


def _members_of(data: bytes) -> dict[str, Any]:
    """Return the member that has these bytes."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


Record = (
    CapturedRequest
    | CapturedResponse
    | CapturedPiece
    | ExchangeEnd
    | CapturedEvent
    | CapturedFrame
    | LogLine
    | MissingRecords
)

_RECORD: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        CapturedRequest
        | CapturedResponse
        | CapturedPiece
        | ExchangeEnd
        | CapturedEvent
        | CapturedFrame
        | MissingRecords,
        Field(discriminator="type"),
    ],
    config=ConfigDict(defer_build=True),
)


def body_of(
    exchange: int, of: Literal["request", "response"], at: float, data: bytes
) -> CapturedPiece:
    """Return the record of a piece of a body."""
    return CapturedPiece(exchange=exchange, of=of, at=at, **_members_of(data))


def format_record(record: CaptureHead | Record) -> bytes:
    """Return a record as its line. A header or a target that is not UTF-8 is read as ISO 8859-1, as
    HTTP has it."""
    if isinstance(record, LogLine):
        return b'{"type":"event","at":%b,"entry":%b}\n' % (format_json(record.at), record.entry)
    try:
        return format_json(record.model_dump(exclude_none=True)) + b"\n"
    except JsonError:
        return format_json(_encodable(record.model_dump(exclude_none=True))) + b"\n"


def _encodable(value: Any) -> Any:
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return value.encode("utf-8", "surrogateescape").decode("latin-1")
            return value
        case list() | tuple():
            return [_encodable(one) for one in value]
        case dict():
            return {name: _encodable(one) for name, one in value.items()}
    return value


@dataclasses.dataclass(slots=True)
class CapturedExchange:
    """One request and what came of it. `end` is None where the capture ends before it does."""

    request: CapturedRequest
    sent: list[CapturedPiece] = dataclasses.field(default_factory=list)
    response: CapturedResponse | None = None
    received: list[CapturedPiece] = dataclasses.field(default_factory=list)
    end: ExchangeEnd | None = None

    @property
    def body(self) -> bytes:
        """The body of the request."""
        return b"".join(piece.data for piece in self.sent)

    @property
    def answer(self) -> bytes:
        """The body of the response, as far as it came."""
        return b"".join(piece.data for piece in self.received)


@dataclasses.dataclass(slots=True)
class Capture:
    """A capture that was read. `cut` says why its last line is missing, None where nothing is;
    `left_out` counts the records that the recorder left out."""

    name: str
    head: CaptureHead
    exchanges: list[CapturedExchange] = dataclasses.field(default_factory=list)
    log: list[ev.Entry] = dataclasses.field(default_factory=list)
    frames: list[CapturedFrame] = dataclasses.field(default_factory=list)
    cut: str | None = None
    left_out: int = 0

    def holes(self) -> list[str]:
        """Say what is missing in it."""
        holes = [f"it was cut off: {self.cut}"] if self.cut else []
        if self.left_out:
            holes.append(f"its recorder was behind and left out {self.left_out} records")
        return holes

    def of_side(self, side: Side) -> Sequence[CapturedExchange]:
        """Return the exchanges of one side."""
        return [exchange for exchange in self.exchanges if exchange.request.side == side]


def read_capture(lines: Iterable[bytes], name: str) -> Capture:
    """Read a capture. A last line without its end, as a recorder leaves it that was killed, is left
    out, and `cut` says so.

    Args:
        lines: the lines of the file, each with its end.
        name: of the file, for errors.

    Raises:
        BadCapture: it is empty, something else, of a later version, or a line is wrong.
    """
    numbered = enumerate(lines, 1)
    number, first = next(numbered, (0, b""))
    if not first.strip():
        raise BadCapture("it is empty: nothing was recorded", name=name)
    capture = Capture(name, _head(first, name))
    known: dict[int, CapturedExchange] = {}
    for number, line in numbered:
        if not line.strip():
            continue
        if not line.endswith(b"\n"):
            capture.cut = f"line {number} is not whole: the recorder was stopped in it"
            break
        _take(capture, known, _record(line, name, number), number)
    return capture


def _head(line: bytes, name: str) -> CaptureHead:
    try:
        value = parse_json(line)
    except JsonError as error:
        raise BadCapture(
            f"it is not a capture: its first line is not JSON ({error})", name=name, line=1
        ) from None
    if not isinstance(value, dict) or "capture" not in value:
        raise BadCapture(
            "it is not a capture: its first line has no member `capture`", name=name, line=1
        )
    version = value["capture"]
    if version != VERSION:
        raise BadCapture(
            f"it has version {version!r} of captures, and this release reads {VERSION}: use the"
            " release that made it, or a later one",
            name=name,
            line=1,
        )
    try:
        return CaptureHead.model_validate(value)
    except ValidationError as error:
        raise BadCapture(_told(error), name=name, line=1) from None


def _record(line: bytes, name: str, number: int) -> Any:
    try:
        value: Any = parse_json(line)
    except JsonError as error:
        raise BadCapture(f"it is not JSON: {error}", name=name, line=number) from None
    if isinstance(value, dict) and isinstance(value.get("headers"), list):
        # As the model has them.
        pairs = tuple(tuple(h) if isinstance(h, list) else h for h in value["headers"])
        value = {**value, "headers": pairs}
    try:
        record = _RECORD.validate_python(value)
        if isinstance(record, CapturedPiece | CapturedFrame):
            if (record.text is None) == (record.base64 is None):
                told = f"a `{record.type}` has either `text` or `base64`"
                raise BadCapture(told, name=name, line=number)
            _ = record.data
    except ValidationError as error:
        raise BadCapture(_told(error), name=name, line=number) from None
    except binascii.Error as error:
        raise BadCapture(f"`base64` cannot be read: {error}", name=name, line=number) from None
    return record


def _told(error: ValidationError) -> str:
    """Say the first thing that is wrong, and where in the line."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"`{place}`: {first['msg']}" if place else first["msg"]


def _take(capture: Capture, known: dict[int, CapturedExchange], record: Any, line: int) -> None:
    """Add a record."""
    name = capture.name
    if isinstance(record, CapturedEvent):
        try:
            capture.log.append(ev.Entry.decode(format_json(record.entry)))
        except (DragomanError, ValueError) as error:
            raise BadCapture(f"the entry cannot be read: {error}", name=name, line=line) from None
        return
    if isinstance(record, CapturedFrame):
        capture.frames.append(record)
        return
    if isinstance(record, MissingRecords):
        capture.left_out += record.count
        return
    if isinstance(record, CapturedRequest):
        if record.exchange in known:
            raise BadCapture(
                f"exchange {record.exchange} begins a second time", name=name, line=line
            )
        known[record.exchange] = exchange = CapturedExchange(record)
        capture.exchanges.append(exchange)
        return
    found = known.get(record.exchange)
    if found is None:
        raise BadCapture(
            f"exchange {record.exchange} has no request before this line", name=name, line=line
        )
    if found.end is not None:
        raise BadCapture(f"exchange {record.exchange} has ended before", name=name, line=line)
    match record:
        case CapturedResponse():
            if found.response is not None:
                raise BadCapture(
                    f"exchange {record.exchange} has a second response", name=name, line=line
                )
            found.response = record
        case CapturedPiece(of="request"):
            found.sent.append(record)
        case CapturedPiece():
            if found.response is None:
                raise BadCapture(
                    f"exchange {record.exchange} has a body before its response",
                    name=name,
                    line=line,
                )
            found.received.append(record)
        case ExchangeEnd():
            found.end = record
