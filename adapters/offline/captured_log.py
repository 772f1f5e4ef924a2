"""The canonical log of a capture: its own where it has one, else what its bodies say.

A client opens many streams in one conversation, and reads some of it twice. The dialect says what
of a body is new (`adapters.captures.dialect`), so each record counts once.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from adapters.captures import BadCapture, Capture, CapturedExchange
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.offline.frames import RawFrame, data_of, lines_between, raw_of
from adapters.offline.recorded_inputs import BadInput, read_inputs
from adapters.offline.translate import Frame, TranslateOptions, make_source
from adapters.registry import DIALECTS
from adapters.wire.errors import NotSupported


@dataclasses.dataclass(slots=True)
class CapturedLog:
    """A log, and what of the capture it does not hold, in words. `inputs` are what the requests
    said. `skipped` counts the frames that made no sense, and `first_skipped` says where the first
    one is and what is wrong with it. `whole` says that the last stream ended in order."""

    log: list[ev.Entry]
    notes: list[str] = dataclasses.field(default_factory=list)
    skipped: int = 0
    first_skipped: str | None = None
    inputs: Sequence[cmd.AnyCommand] = ()
    whole: bool = False


def log_of(capture: Capture, dialect: str | None = None) -> CapturedLog:
    """Return the log of a capture. `dialect` is that of its bodies, where its head names none.

    Raises:
        BadCapture: nothing says which dialect it is of.
        NotSupported: the dialect cannot be read.
    """
    notes = capture.holes()
    if capture.log:
        return CapturedLog(list(capture.log), notes)
    found = read_exchanges(capture, _recorded(capture), dialect or capture.head.dialect)
    return dataclasses.replace(found, notes=[*notes, *found.notes])


def frames_of(
    capture: Capture, dialect: str | None, numbers: Collection[int]
) -> dict[int, RawFrame]:
    """Return the source frames that these numbers name (`NativeRef.frame`), as far as they are in
    the bodies, or a journal kept them.

    Raises:
        BadCapture: nothing says which dialect it is of.
        NotSupported: the dialect cannot be read.
    """
    if capture.frames:
        return {
            frame.number: RawFrame(f"frame {frame.number}", frame.data)
            for frame in capture.frames
            if frame.number in numbers
        }
    wanted = _FrameSearch(numbers)
    read_exchanges(capture, _recorded(capture), dialect or capture.head.dialect, wanted)
    return wanted.found


def _recorded(capture: Capture) -> Sequence[CapturedExchange]:
    return capture.of_side("backend") or capture.of_side("frontend")


def read_exchanges(
    capture: Capture,
    exchanges: Sequence[CapturedExchange],
    dialect: str | None,
    wanted: _FrameSearch | None = None,
) -> CapturedLog:
    """Return the log that the bodies of these exchanges give, whatever log the capture has.

    Raises:
        BadCapture: nothing says which dialect they are of.
        NotSupported: the dialect cannot be read.
    """
    if dialect is None:
        raise BadCapture(
            "it does not say which dialect it is of: name it with --from", name=capture.name
        )
    known = DIALECTS.get(dialect)
    if known is None:
        raise BadCapture(f"it is of `{dialect}`, which is not a dialect", name=capture.name)
    captured = known.captured
    if captured is None:
        raise NotSupported(f"Captures of `{dialect}` cannot be read yet.")
    notes: list[str] = []
    inputs = list(_inputs(exchanges, notes))
    streams = _JoinedStreams(_streams(exchanges, captured.media))
    options = TranslateOptions(
        session_id=capture.head.session,
        inputs=inputs,
        seen=None if wanted is None else lambda *told: wanted.take(streams, *told),
    )
    source = make_source(dialect, options)
    entries: list[ev.Entry] = []
    for body in captured.new(streams, notes):
        streams.gave(body)
        entries += source.feed(body)
    entries += source.close()
    if source.inputs_left:
        notes.append(f"{source.inputs_left} requests have no place in what was answered")
    skipped = None
    if (first := source.first_skipped) is not None:
        skipped = f"{streams.place(first.line)}: {first.reason}"
    end = streams[-1].end if streams else None
    whole = end is not None and end.how == "ended"
    return CapturedLog(entries, notes, source.skipped, skipped, inputs, whole)


class _JoinedStreams(Sequence[CapturedExchange]):
    """Streams, read one after another, that know which of them gave a line."""

    def __init__(self, streams: Sequence[CapturedExchange]) -> None:
        self._streams = streams
        self._now = 0
        self._line = 1
        self._begins: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._streams)

    def __getitem__(self, number: Any) -> Any:
        found = self._streams[number]
        self._now = number
        return found

    def gave(self, body: bytes) -> None:
        """Take what the stream gives that is read."""
        if not self._begins or self._begins[-1][1] != self._now:
            self._begins.append((self._line, self._now))
        self._line += body.count(b"\n")

    def of(self, line: int) -> CapturedExchange:
        """Return the stream that gave a line."""
        found = bisect.bisect_right(self._begins, line, key=lambda begin: begin[0])
        return self._streams[self._begins[found - 1][1]]

    def place(self, line: int) -> str:
        """Say which exchange gave a line."""
        return f"exchange {self.of(line).request.exchange}"


class _FrameSearch:
    """Frames that are looked for, and where each stands in its exchange."""

    def __init__(self, numbers: Collection[int]) -> None:
        self._numbers = set(numbers)
        self._exchange: CapturedExchange | None = None
        self._body = b""
        self._from = 0
        # A place in the body, and the number of its line.
        self._line = (0, 1)
        self.found: dict[int, RawFrame] = {}

    def take(self, streams: _JoinedStreams, number: int, line: int, frame: Frame) -> None:
        """Look at the next frame."""
        if not self._numbers:
            return
        exchange = streams.of(line)
        if exchange is not self._exchange:
            self._exchange, self._body, self._from = exchange, exchange.answer, 0
            self._line = (0, 1)
        at = self._body.find(data_of(frame), self._from)
        self._from = max(self._from, at + 1)
        if number in self._numbers:
            self._numbers.discard(number)
            place = streams.place(line)
            if at >= 0:
                # Frames come in the order of their lines.
                begin, line = self._line
                self._line = (at, line + lines_between(self._body, begin, at))
                place += f", line {self._line[1]}"
            self.found[number] = RawFrame(place, raw_of(frame))


def _inputs(exchanges: Sequence[CapturedExchange], notes: list[str]) -> Iterator[cmd.AnyCommand]:
    """Yield what the requests said; of those that were refused nothing counts."""
    for exchange in exchanges:
        response = exchange.response
        if exchange.request.method == "GET" or not exchange.sent:
            continue
        if response is None or response.status >= 300:
            notes.append(f"exchange {exchange.request.exchange} was not accepted")
            continue
        try:
            yield from read_inputs(exchange.body)
        except BadInput:
            # A control, or what makes an empty session: its effect is in the answers.
            continue


def _streams(exchanges: Sequence[CapturedExchange], media: str) -> list[CapturedExchange]:
    return [one for one in exchanges if _media_of(one) == media]


def _media_of(exchange: CapturedExchange) -> str | None:
    """Return the media type of an answer, None of a refusal."""
    response = exchange.response
    if response is None or response.status >= 300:
        return None
    media = next((v for name, v in response.headers if name.lower() == "content-type"), "")
    return media.partition(";")[0].strip().lower()
