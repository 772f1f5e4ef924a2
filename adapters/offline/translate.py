"""Translates a recorded response body: bytes of one dialect in, the same session in another out.

The way is that of a live session, without its clock: framing, client codec, normalizer, `seq` and
`at`, encoder. Everything is deterministic. `at` is the source's own time where a frame has one,
else one millisecond after the frame before; it never decreases. Codecs that wait for time (a tool
call for its permission) wait for what the body shows next, and at its end for as long as they want.

Input comes in pieces of any size. What is kept is what is open in the session, never the body.
Inputs that break off or are wrong end where they do: nothing is invented to finish them.

Why one module: the way of a recorded body from end to end, whose steps share what has been read.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from multidict import CIMultiDict

from adapters.contract.fidelity import CANONICAL
from adapters.contract.step import stamp
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, CloseReason, EncoderContext, Request, Response
from adapters.model.base import Frame as WrittenFrame
from adapters.model.normalizer import Normalizer
from adapters.model.raw import CharactersRepaired, value_of
from adapters.model.state import LawBroken, LogState
from adapters.offline.compare.similarity import HEAD_BYTES, describe_input
from adapters.offline.recorded_inputs import BadInput, RecordedInputs
from adapters.registry import DIALECTS
from adapters.wire.errors import ErrorCode, NotSupported
from adapters.wire.framing import FrameTooLarge
from adapters.wire.framing.ndjson import DEFAULT_MAX_LINE_BYTES
from adapters.wire.framing.sse import SseFrame, SseParser
from adapters.wire.jsonvalue import JsonError, parse_json

DEFAULT_SESSION = "recording"
"""The session id where neither the caller nor the body names one."""

_STREAM = Call("stream", Request("GET", "/"), stream=True)

_MEDIA = {"sse": "text/event-stream", "ndjson": "application/x-ndjson"}

_LINE_END = {"sse": re.compile(rb"\r\n|\n|\r"), "ndjson": re.compile(rb"\n")}

_NO_EVENT_STREAM = (b"{", b"[", b"<", b'"')
"""How files begin that were taken for an event stream."""

_FIELDS = frozenset({b"", b"event", b"data", b"id", b"retry"})
"""What stands before the colon of a line; nothing does in a comment and in a blank line."""

_NO_JSON = frozenset({b"", b"[DONE]"})
"""Payloads that are not JSON and yet no fault: heartbeats, and the end mark of chat streams."""


Frame = SseFrame | bytes | FrameTooLarge
"""A frame of an event stream or a line of NDJSON, as it was read."""


@dataclasses.dataclass(frozen=True, slots=True)
class TranslateOptions:
    """How to translate. `session_id` is the public id that the session gets, `inputs` what its user
    said, `form` the one of `Face.forms` that is written. With `strict` a frame that makes no sense
    is an error; else it is reported in the log and skipped, as in a live session. `seen` is told of
    each frame: the number that `NativeRef.frame` names it by, its first line, and what it is.
    """

    session_id: str | None = None
    inputs: Sequence[cmd.AnyCommand] = ()
    form: str = ""
    strict: bool = False
    seen: Callable[[int, int, Frame], None] | None = None


class Source(Protocol):
    """Bytes in, entries of the log out. After `BadInput` nothing more may be fed."""

    frames: int
    """How many frames were read."""

    @property
    def skipped(self) -> int:
        """How many of them made no sense."""

    @property
    def first_skipped(self) -> BadInput | None:
        """What is wrong with the first of these, and where."""

    @property
    def looks(self) -> str | None:
        """What the input looks like, where nothing in it was an event of the dialect."""

    @property
    def repairs(self) -> dict[str, int]:
        """How often each rule of the normalizer was used."""

    @property
    def inputs_left(self) -> int:
        """How many inputs have found no place in the body."""

    def feed(self, data: bytes) -> Iterator[ev.Entry]:
        """Return the entries that the next bytes give.

        Raises:
            BadInput: the bytes are wrong; everything valid before has been returned.
        """

    def close(self) -> Iterator[ev.Entry]:
        """End the input and return the entries that were waiting for more.

        Raises:
            BadInput: the input ends in the middle of something.
        """


def readable_dialects() -> list[str]:
    """Return the dialects whose bodies can be read; `canonical` logs can be as well."""
    return [name for name, known in DIALECTS.items() if known.has_client]


def writable_dialects() -> list[str]:
    """Return the dialects that a log can be written in; `canonical` logs can be as well."""
    return [name for name, known in DIALECTS.items() if known.has_face]


def make_source(dialect: str, options: TranslateOptions) -> Source:
    """Return the reader of a dialect's bodies, or of `canonical` logs.

    Raises:
        NotSupported: the dialect has no client codec.
    """
    if dialect == CANONICAL:
        return _CanonicalSource(options)
    known = DIALECTS[dialect]
    if not known.has_client:
        raise NotSupported(f"{known.no_backends or f'`{dialect}` cannot be read yet'}.")
    return _RecordedSource(dialect, options)


def make_sink(dialect: str, options: TranslateOptions) -> Callable[[ev.Entry], bytes]:
    """Return a function that turns the entries of one session, in order, into a dialect's bytes.

    Raises:
        NotSupported: the dialect has no encoder.
    """
    if dialect == CANONICAL:
        return lambda entry: entry.encode() + b"\n"
    frames_of = make_frames(dialect, options)
    return lambda entry: b"".join(frame.data for frame in frames_of(entry))


def make_frames(
    dialect: str, options: TranslateOptions
) -> Callable[[ev.Entry], Sequence[WrittenFrame]]:
    """Return a function that turns the entries of one session, in order, into a dialect's frames.

    Raises:
        NotSupported: the dialect has no encoder.
    """
    known = DIALECTS[dialect]
    make, face = known.encoder, known.face
    if make is None or face is None:
        raise NotSupported(f"{known.no_frontends or f'`{dialect}` cannot be written yet'}.")
    encoder = None

    def frames_of(entry: ev.Entry) -> Sequence[WrittenFrame]:
        nonlocal encoder
        if encoder is None:
            encoder = make(
                EncoderContext(
                    session_id=entry.session_id,
                    secret=hashlib.sha256(b"translate\0" + entry.session_id.encode()).digest(),
                    settings=face.forms.get(options.form, {}),
                )
            )
        return encoder.feed(entry.without_quote())

    return frames_of


# Bytes to lines, and lines to frames that know their place.


class _NumberedLines:
    """Cuts bytes into lines without their ends, each with its number; a line has a limit."""

    def __init__(self, framing: str, *, strict: bool) -> None:
        self._end = _LINE_END[framing]
        self._strict = strict
        self._pieces: list[bytes] = []
        self._size = 0
        # The input so far ends in CR: a LF that comes next belongs to it.
        self._after_cr = False
        self.number = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Return the lines that the next bytes complete."""
        if self._after_cr or self._end.search(data) is not None:
            data = self._joined() + data
        else:
            self._keep(data)
            return
        start = 0
        for match in self._end.finditer(data):
            if match.end() == len(data) and match[0] == b"\r":
                # Perhaps the first half of a CR LF.
                break
            self.number += 1
            yield data[start : match.start()]
            start = match.end()
        self._keep(data[start:])

    def close(self) -> Iterator[bytes]:
        """Return the last line, when it has no line end."""
        rest = self._joined()
        if rest:
            self.number += 1
            yield rest[:-1] if rest.endswith(b"\r") else rest

    def _joined(self) -> bytes:
        joined = b"".join(self._pieces)
        self._pieces, self._size, self._after_cr = [], 0, False
        return joined

    def _keep(self, data: bytes) -> None:
        if self._strict and self._size + len(data) > DEFAULT_MAX_LINE_BYTES:
            reason = f"the line is longer than {DEFAULT_MAX_LINE_BYTES} bytes"
            raise BadInput(reason, line=self.number + 1, byte=DEFAULT_MAX_LINE_BYTES)
        # Of a line that is too long as much is kept as shows that.
        kept = data[: max(0, DEFAULT_MAX_LINE_BYTES + 1 - self._size)]
        self._pieces.append(kept)
        self._size += len(kept)
        self._after_cr = data.endswith(b"\r")


class _PlacedFrame(NamedTuple):
    """A frame, its payload, and where the payload stands: (line, byte in it) of each data line."""

    frame: Frame
    data: bytes
    spans: tuple[tuple[int, int], ...]

    def bad(self, reason: str, offset: int = 0) -> BadInput:
        """Return the error at `offset` of the payload."""
        lines = self.data[:offset].split(b"\n")
        number = min(len(lines), len(self.spans)) - 1
        line, byte = self.spans[number]
        return BadInput(reason, line=line, byte=byte + len(lines[-1]))


class _SseUnits:
    """Lines of an event stream to frames."""

    def __init__(self) -> None:
        self._parser = SseParser(max_frame_bytes=DEFAULT_MAX_LINE_BYTES)
        self._spans: list[tuple[int, int]] = []
        # The first line that a reader of event streams passes by, until there was an event.
        self._strange: int | None = None
        self._any = False

    def feed(self, line: bytes, number: int) -> Iterator[_PlacedFrame]:
        """Return the frame that a line completes."""
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.startswith(_NO_EVENT_STREAM):
            raise BadInput("no line of an event stream", line=number)
        if line.partition(b":")[0] not in _FIELDS and self._strange is None:
            self._strange = number
        if line.startswith(b"data"):
            self._spans.append((number, 6 if line.startswith(b"data: ") else 5))
        yield from self._cut(line + b"\n", number)

    def close(self, number: int) -> Iterator[_PlacedFrame]:
        """Return the last frame where only its blank line is missing."""
        yield from self._cut(b"\n\n", number)
        if self._strange is not None and not self._any:
            raise BadInput("no line of an event stream", line=self._strange)

    def _cut(self, line: bytes, number: int) -> Iterator[_PlacedFrame]:
        for frame in self._parser.feed(line):
            self._any = True
            spans, self._spans = tuple(self._spans) or ((number, 0),), []
            data = b"" if isinstance(frame, FrameTooLarge) else frame.data
            yield _PlacedFrame(frame, data, spans)
        if line == b"\n":
            self._spans = []


class _NdjsonUnits:
    """Lines of NDJSON to frames."""

    def feed(self, line: bytes, number: int) -> Iterator[_PlacedFrame]:
        """Return the line as a frame, unless it is blank."""
        line = line.removesuffix(b"\r")
        if len(line) > DEFAULT_MAX_LINE_BYTES:
            yield _PlacedFrame(
                FrameTooLarge(line, limit=DEFAULT_MAX_LINE_BYTES), b"", ((number, 0),)
            )
        elif line and not line.isspace():
            yield _PlacedFrame(line, line, ((number, 0),))

    def close(self, number: int) -> Iterator[_PlacedFrame]:
        """Return nothing: a last line without end is a line."""
        return iter(())


# The two sources.


class _CanonicalSource:
    """Reads a log that `--to canonical` printed, and holds it to the laws."""

    def __init__(self, options: TranslateOptions) -> None:
        self.frames = 0
        # A log that Dragoman wrote has no such frames.
        self.skipped = 0
        self.first_skipped: BadInput | None = None
        self.repairs: dict[str, int] = {}
        # A log has its inputs in it.
        self.inputs_left = len(options.inputs)
        self._session_id = options.session_id
        self._lines = _NumberedLines("ndjson", strict=True)
        self._units = _NdjsonUnits()
        self._state = LogState()

    @property
    def looks(self) -> str | None:
        """See `Source`."""
        return None if self.frames else describe_input(b"")

    def feed(self, data: bytes) -> Iterator[ev.Entry]:
        """See `Source`."""
        return self._entries(self._lines.feed(data))

    def close(self) -> Iterator[ev.Entry]:
        """See `Source`."""
        return self._entries(self._lines.close())

    def _entries(self, lines: Iterable[bytes]) -> Iterator[ev.Entry]:
        for line in lines:
            for unit in self._units.feed(line, self._lines.number):
                yield self._entry(unit)

    def _entry(self, unit: _PlacedFrame) -> ev.Entry:
        if isinstance(unit.frame, FrameTooLarge):
            raise unit.bad(str(unit.frame))
        try:
            entry = ev.Entry.decode(unit.data)
            self._state.apply_entry(entry)
        except JsonError as error:
            raise unit.bad(error.reason, error.offset or 0) from None
        except LawBroken as error:
            raise unit.bad(str(error)) from None
        except ValueError as error:
            raise unit.bad(str(error)) from None
        self.frames += 1
        if self._session_id is not None:
            entry = entry._replace(session_id=self._session_id)
        return entry


class _RecordedSource:
    """Reads a response body of a dialect through its client codec."""

    def __init__(self, dialect: str, options: TranslateOptions) -> None:
        make = DIALECTS[dialect].client
        assert make is not None
        self.frames = 0
        self._dialect = dialect
        self._make = make
        self._options = options
        # How a body is framed does not depend on the session, whose name is in the body.
        framing = make({"task_id": DEFAULT_SESSION}).framing
        self._lines = _NumberedLines(framing, strict=options.strict)
        self._units: _SseUnits | _NdjsonUnits = _SseUnits() if framing == "sse" else _NdjsonUnits()
        self._kept: list[_PlacedFrame] | None = []
        self._reading: _BodyReader | None = None
        self._head = b""

    @property
    def skipped(self) -> int:
        """Return how many frames made no sense."""
        return 0 if self._reading is None else self._reading.skipped

    @property
    def looks(self) -> str | None:
        """Return what the body looks like, where it is not one of the dialect."""
        looks = describe_input(self._head)
        if self._reading is not None and self._reading.known:
            # A log of ours has types that an eve has too.
            return looks if f"`{CANONICAL}`" in looks else None
        # Some events are known and have no meaning of ours.
        return None if f"`{self._dialect}`" in looks else looks

    @property
    def first_skipped(self) -> BadInput | None:
        """Return what is wrong with the first of these."""
        return None if self._reading is None else self._reading.first_skipped

    @property
    def repairs(self) -> dict[str, int]:
        """Return how often each rule of the normalizer was used."""
        return {} if self._reading is None else self._reading.repairs

    @property
    def inputs_left(self) -> int:
        """Return how many inputs have found no place."""
        return len(self._options.inputs) if self._reading is None else self._reading.inputs_left

    def feed(self, data: bytes) -> Iterator[ev.Entry]:
        """See `Source`."""
        self._head += data[: HEAD_BYTES - len(self._head)]
        return self._guarded(self._feed(data))

    def close(self) -> Iterator[ev.Entry]:
        """See `Source`."""
        return self._guarded(self._close())

    def _guarded(self, entries: Iterator[ev.Entry]) -> Iterator[ev.Entry]:
        """Let out what codecs held back before a fault is told."""
        try:
            yield from entries
        except BadInput:
            yield from self._release()
            if self._reading is not None:
                yield from self._reading.end(CloseReason.LOST)
            raise

    def _feed(self, data: bytes) -> Iterator[ev.Entry]:
        for line in self._lines.feed(data):
            for unit in self._units.feed(line, self._lines.number):
                yield from self._take(unit)

    def _close(self) -> Iterator[ev.Entry]:
        for line in self._lines.close():
            for unit in self._units.feed(line, self._lines.number):
                yield from self._take(unit)
        for unit in self._units.close(self._lines.number):
            yield from self._take(unit)
        yield from self._release()
        if self._reading is None:
            self._reading = self._begin(None)
        yield from self._reading.end(CloseReason.ENDED)

    def _take(self, unit: _PlacedFrame) -> Iterator[ev.Entry]:
        value = _payload(unit, strict=self._options.strict)
        self.frames += 1
        if self._reading is None:
            assert self._kept is not None
            self._kept.append(unit)
            named = _session_of(value, DIALECTS[self._dialect].session_members)
            # A body names its session in its first or its last frame; one that never does is read
            # all the same.
            if named is None and len(self._kept) < 64:
                return
            yield from self._release(named)
        else:
            yield from self._reading.feed(unit)

    def _release(self, named: str | None = None) -> Iterator[ev.Entry]:
        """Read the frames that were kept until the session's name was known."""
        kept, self._kept = self._kept, None
        if not kept:
            return
        self._reading = self._begin(named)
        for unit in kept:
            yield from self._reading.feed(unit)

    def _begin(self, named: str | None) -> _BodyReader:
        session_id = self._options.session_id or named or DEFAULT_SESSION
        return _BodyReader(self._dialect, self._make, session_id, named, self._options)


def _payload(unit: _PlacedFrame, *, strict: bool) -> Any:
    """Return the payload of a frame, None where it has none.

    Raises:
        BadInput: it is not JSON, and that is an error.
    """
    if not strict:
        try:
            return value_of(unit.data)
        except JsonError:
            return None
    if isinstance(unit.frame, FrameTooLarge):
        raise unit.bad(str(unit.frame))
    heartbeat = isinstance(unit.frame, SseFrame) and unit.frame.event == "heartbeat"
    if unit.data.strip() in _NO_JSON:
        return None
    try:
        return parse_json(unit.data)
    except JsonError as error:
        if heartbeat:
            return None
        raise unit.bad(error.reason, error.offset or 0) from None


def _session_of(value: Any, members: Sequence[str]) -> str | None:
    if not isinstance(value, dict):
        return None
    for place in (value, value.get("params")):
        if isinstance(place, dict):
            for name in members:
                if isinstance(found := place.get(name), str) and found:
                    return found
    return None


class _BodyReader:
    """One session as its body is read: codec, inputs, normalizer, and the places in the log."""

    def __init__(
        self,
        dialect: str,
        make: Callable[[dict[str, Any]], Any],
        session_id: str,
        named: str | None,
        options: TranslateOptions,
    ) -> None:
        self.skipped = 0
        self.first_skipped: BadInput | None = None
        # Whether anything in it was an event of the dialect.
        self.known = False
        self._strict = options.strict
        self._seen = options.seen
        self._session_id = session_id
        self._codec = make({"task_id": named or session_id, "single_stream": True})
        self._call = DIALECTS[dialect].recorded_call or _STREAM
        self._inputs = RecordedInputs(options.inputs, session_id=session_id, face=dialect)
        self._normalizer = Normalizer(LogState())
        self._now = 0
        self._opened = False

    @property
    def repairs(self) -> dict[str, int]:
        """Return how often each rule of the normalizer was used."""
        return {str(rule): count for rule, count in sorted(self._normalizer.repairs.items())}

    @property
    def inputs_left(self) -> int:
        """Return how many inputs have found no place."""
        return self._inputs.left

    def feed(self, unit: _PlacedFrame) -> Iterator[ev.Entry]:
        """Return the entries of one frame."""
        raw: list[ev.Event] = [] if self._opened else self._open()
        self._now += 1
        if isinstance(unit.frame, FrameTooLarge):
            offending, reason = unit.frame.offending, str(unit.frame)
            raw += self._codec.garbage(self._call, offending, reason, self._now)
        else:
            raw += self._codec.feed(self._call, unit.frame, self._now)
        if self._seen is not None:
            self._seen(self._codec.frames, unit.spans[0][0], unit.frame)
        for number, event in enumerate(raw):
            if isinstance(event, ev.ErrorReported) and _is_fault(event):
                if self._strict:
                    yield from self._entries(raw[:number])
                    raise unit.bad(event.message)
                self.skipped += 1
                self.first_skipped = self.first_skipped or unit.bad(event.message)
        yield from self._entries(raw)

    def end(self, reason: CloseReason) -> Iterator[ev.Entry]:
        """Return what the codec holds back at the end of the body."""
        raw: list[ev.Event] = [] if self._opened else self._open()
        raw += self._codec.closed(self._call, reason, self._now)
        # Longer than a tool call waits for its permission (design section 3), shorter than what a
        # silence ends.
        last = self._now + 500
        while self._codec.wake_at is not None and self._now < last:
            self._now = min(max(self._now + 1, self._codec.wake_at), last)
            raw += self._codec.tick(self._now)
        if self._strict:
            raw = [event for event in raw if not _is_fault(event)]
        yield from self._entries(raw)
        if not self._normalizer.state.seq:
            yield from self._stamp([self._started()])

    def _open(self) -> list[ev.Event]:
        self._opened = True
        self._codec.started(self._started())
        head = Response(200, CIMultiDict({"Content-Type": _MEDIA[self._codec.framing]}))
        opened: list[ev.Event] = self._codec.opened(self._call, head, self._now)
        return opened

    def _started(self) -> ev.SessionStarted:
        return ev.SessionStarted(thread_id=ev.MAIN, synthetic=True)

    def _entries(self, raw: Sequence[ev.Event]) -> Iterator[ev.Entry]:
        if self._call.command_id is not None:
            raw = [_asked(event) for event in raw if not self._is_of_the_call(event)]
        if not raw:
            return
        self.known = self.known or any(map(_is_known, raw))
        events = self._inputs.weave(raw)
        if not self._normalizer.state.seq:
            events.insert(0, self._started())
        yield from self._stamp(self._normalizer.feed(events))

    def _is_of_the_call(self, event: ev.Event) -> bool:
        """Say whether an event settles the command that only stands for the recorded request."""
        return isinstance(event, ev.InputSettled) and event.command_id == self._call.command_id

    def _stamp(self, events: Sequence[ev.Event]) -> list[ev.Entry]:
        """Give the events of one frame their places and one time, as the journal does."""
        own = max((at for event in events if (at := time_of(event)) is not None), default=None)
        state = self._normalizer.state
        if own is None:
            own = state.at + 1 if state.seq else 0
        return stamp(state, events, own, self._session_id)


def _is_fault(event: ev.Event) -> bool:
    """Say whether an event is the codec's complaint about a frame."""
    return (
        isinstance(event, ev.ErrorReported)
        and event.synthetic
        and event.code == ErrorCode.BACKEND_PROTOCOL
    )


def _is_known(event: ev.Event) -> bool:
    """Say whether an event shows that its dialect is that of the body."""
    return not isinstance(event, ev.Native | CharactersRepaired) and not _is_fault(event)


def _asked(event: ev.Event) -> ev.Event:
    """Return the event as of a body that answers a request: its turns were asked for."""
    if isinstance(event, ev.TurnStarted) and event.cause == "background":
        return event.model_copy(update={"cause": "message"})
    return event


def time_of(event: ev.Event) -> int | None:
    """Return the source's own time of an event in Unix milliseconds, where it has one."""
    if event.native is None or event.native.at is None:
        return None
    text = event.native.at
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        # Seconds below this number, which reach the year 5138; above it milliseconds, from 1973.
        seconds_below = 100_000_000_000
        number = number * 1000 if abs(number) < seconds_below else number
        return round(number) if 0 <= number < seconds_below * 1000 else None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0, round(moment.timestamp() * 1000))
