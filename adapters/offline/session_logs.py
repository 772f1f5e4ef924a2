"""Reads the log of a session from a file of any form that has one.

A capture and a canonical log are known by their first line; a HAR, a cassette and what `curl -i`
wrote by how they begin. Anything else is read as a recorded body of the dialect that is
named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

from adapters.captures import BadCapture, Capture, CapturedFrame, read_capture
from adapters.captures.foreign import ForeignCapture
from adapters.captures.kinds import is_foreign, read_any
from adapters.model.events import Entry
from adapters.offline.captured_log import frames_of, log_of
from adapters.offline.compare.similarity import HEAD_BYTES, describe_input
from adapters.offline.frames import RawFrame, raw_of
from adapters.offline.raw_sides import DialectLog, Frames
from adapters.offline.recorded_inputs import BadInput
from adapters.offline.translate import Frame, TranslateOptions, make_source
from adapters.wire.errors import DragomanError, ErrorCode, NotSupported
from adapters.wire.jsonvalue import JsonError, parse_json

_JOURNAL = b"SQLite format 3\0"


FileForm = Literal["capture", "har", "cassette", "curl", "canonical", "body"]
"""What a file is: a capture of ours or of another tool, a canonical log, or a recorded body."""


class Unreadable(DragomanError):
    """A file is not a session that can be compared."""

    code = ErrorCode.RECORDING


@dataclass(slots=True)
class SessionLog:
    """A session that was read; `warnings` are for people, `dialect` is that of its backend where
    the file says it. `frames` finds source frames while the file is open, None where it has none;
    `kept` are those of a journal. `form` says what the file is.
    """

    entries: list[Entry]
    warnings: list[str] = field(default_factory=list)
    dialect: str | None = None
    frames: Frames | None = None
    form: FileForm = "canonical"
    kept: Sequence[CapturedFrame] = ()

    @property
    def spoken(self) -> DialectLog:
        """It as one side of a comparison."""
        return DialectLog(self.entries, self.dialect, self.frames)


def read_log(stream: BinaryIO, name: str, dialect: str | None) -> SessionLog:
    """Read a capture, a canonical log, or else a body of `dialect`.

    Raises:
        Unreadable: it is in none of these forms, it has no log, or it breaks off.
        NotSupported: bodies of the dialect cannot be read.
    """
    start = stream.tell() if stream.seekable() else None
    first = stream.readline()
    head = _object(first)
    if head is not None and "capture" in head:
        lines = itertools.chain([first], stream)
        return _of_capture(lambda: read_capture(lines, name), name, dialect)
    if is_log(first):
        return SessionLog(list(_of_log(itertools.chain([first], stream), name)))
    begin = first + stream.read(HEAD_BYTES)
    if is_foreign(begin):
        data = begin + stream.read()
        return _of_capture(lambda: read_any(data, name), name, dialect)
    if begin.startswith(_JOURNAL):
        raise Unreadable(
            f"{name}: it is a journal: name a session of it as {name}#ID. Its ids are in `dragoman"
            f" sessions list --journal {name}`."
        )
    if dialect is None:
        raise Unreadable(
            f"{name}: it is neither a capture nor a canonical log: {describe_input(begin)}."
            " A recorded body needs --from DIALECT."
        )
    log = _of_body(begin, stream, name, dialect)
    if start is not None:
        log.frames = lambda numbers: _read_again(stream, start, dialect, numbers)
    return log


def is_log(first: bytes) -> bool:
    """Tell by its first line whether a file is a canonical log, as a snapshot of a test is."""
    head = _object(first)
    return head is not None and {"seq", "at", "type"} <= head.keys()


def _object(line: bytes) -> dict[str, object] | None:
    try:
        value = parse_json(line)
    except JsonError:
        return None
    return value if isinstance(value, dict) else None  # type: ignore[return-value]


def _of_capture(read: Callable[[], Capture], name: str, dialect: str | None) -> SessionLog:
    """Return the log of the capture that `read` returns."""
    try:
        capture = read()
        found = log_of(capture, dialect)
    except BadCapture as error:
        raise Unreadable(f"{error.whole}.") from None
    notes = [*capture.notes] if isinstance(capture, ForeignCapture) else []
    form: Any = "capture" if capture.head.source is None else capture.head.source
    notes += found.notes
    spoken = dialect or capture.head.dialect
    if all(entry.event.TYPE == "session.started" for entry in found.log):
        why = f" ({notes[0]})" if notes else ""
        raise Unreadable(f"{name}: no stream in it says anything in `{spoken}`{why}.")
    return SessionLog(
        found.log,
        [f"{name}: {note}" for note in notes],
        spoken,
        lambda numbers: _frames_of(capture, spoken, numbers),
        form,
        capture.frames,
    )


def _frames_of(
    capture: Capture, dialect: str | None, numbers: Collection[int]
) -> dict[int, RawFrame]:
    """Return frames of a capture; none where only its log can be read."""
    try:
        return frames_of(capture, dialect, numbers)
    except (BadCapture, NotSupported):
        return {}


def _of_log(lines: Iterator[bytes], name: str) -> Iterator[Entry]:
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            yield Entry.decode(line)
        except (ValueError, DragomanError) as error:
            raise Unreadable(
                f"{name}:{number}: {error}. Make the log anew with `dragoman sessions export`."
            ) from None


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: stream.read(64 * 1024), b"")


def _of_body(first: bytes, stream: BinaryIO, name: str, dialect: str) -> SessionLog:
    reader = make_source(dialect, TranslateOptions())
    entries: list[Entry] = []
    try:
        for data in itertools.chain([first], _pieces(stream)):
            entries += reader.feed(data)
        entries += reader.close()
    except BadInput as error:
        where = f"{name}:{error.line}: byte {error.byte}"
        looks = "" if reader.looks is None else f": {reader.looks}"
        raise Unreadable(f"{where}: {error.reason}{looks}. Is it a body of `{dialect}`?") from None
    if reader.looks is not None:
        raise Unreadable(f"{name}: no event of `{dialect}`: {reader.looks}.")
    if reader.skipped:
        count = reader.skipped
        frames = (
            "1 frame made no sense and was"
            if count == 1
            else f"{count} frames made no sense and were"
        )
        return SessionLog(entries, [f"{name}: {frames} skipped"], dialect, form="body")
    return SessionLog(entries, dialect=dialect, form="body")


def _read_again(
    stream: BinaryIO, start: int, dialect: str, numbers: Collection[int]
) -> dict[int, RawFrame]:
    """Read a body once more, as far as there are frames that are looked for."""
    found: dict[int, RawFrame] = {}

    def seen(number: int, line: int, frame: Frame) -> None:
        if number in numbers and number not in found:
            found[number] = RawFrame(f"line {line}", raw_of(frame))

    reader = make_source(dialect, TranslateOptions(seen=seen))
    stream.seek(start)
    for data in _pieces(stream):
        for _ in reader.feed(data):
            pass
        if len(found) == len(numbers):
            return found
    for _ in reader.close():
        pass
    return found
