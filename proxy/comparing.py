"""Reads the two sides of a comparison from their files, and writes what differs for a CI.

A capture and a canonical log are known by their first line; a HAR, a cassette and what `curl -i`
wrote by how they begin. What is none of these is read as a recorded body of the dialect that is
named.
"""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from adapters.capture import BadCapture, Capture, read_capture
from adapters.capture.foreign import Foreign
from adapters.capture.kinds import is_foreign, read_any
from adapters.captured_log import log_of
from adapters.errors import DragomanError, ErrorCode
from adapters.events import Entry
from adapters.jsonvalue import JsonError, parse_json
from adapters.likeness import HEAD_BYTES, likeness
from adapters.translate import BadInput, Options, make_source

__all__ = ["Log", "Unreadable", "junit", "read_log"]

READ_BYTES = 64 * 1024


class Unreadable(DragomanError):
    """A file is not a session that can be compared."""

    code = ErrorCode.RECORDING


@dataclass(slots=True)
class Log:
    """A session that was read; `warnings` are for people, `dialect` is that of its backend where
    the file says it."""

    entries: list[Entry]
    warnings: list[str] = field(default_factory=list)
    dialect: str | None = None


def read_log(stream: BinaryIO, name: str, dialect: str | None) -> Log:
    """Read a capture, a canonical log, or else a body of `dialect`.

    Raises:
        Unreadable: it is none of these, it has no log, or it breaks off.
        NotSupported: bodies of the dialect cannot be read.
    """
    first = stream.readline()
    head = _object(first)
    if head is not None and "capture" in head:
        lines = itertools.chain([first], stream)
        return _of_capture(lambda: read_capture(lines, name), name, dialect)
    if head is not None and {"seq", "at", "type"} <= head.keys():
        return Log(list(_of_log(itertools.chain([first], stream), name)))
    begin = first + stream.read(HEAD_BYTES)
    if is_foreign(begin):
        data = begin + stream.read()
        return _of_capture(lambda: read_any(data, name), name, dialect)
    if dialect is None:
        raise Unreadable(
            f"{name}: it is neither a capture nor a canonical log: {likeness(begin)}. A recorded"
            " body needs --from DIALECT."
        )
    return _of_body(begin, stream, name, dialect)


def _object(line: bytes) -> dict[str, object] | None:
    try:
        value = parse_json(line)
    except JsonError:
        return None
    return value if isinstance(value, dict) else None  # type: ignore[return-value]


def _of_capture(read: Callable[[], Capture], name: str, dialect: str | None) -> Log:
    """Return the log of the capture that `read` returns."""
    try:
        capture = read()
        found = log_of(capture, dialect)
    except BadCapture as error:
        raise Unreadable(f"{error.message}.") from None
    notes = [*capture.notes] if isinstance(capture, Foreign) else []
    notes += found.notes
    spoken = dialect or capture.head.dialect
    if all(entry.event.TYPE == "session.started" for entry in found.log):
        why = f" ({notes[0]})" if notes else ""
        raise Unreadable(f"{name}: no stream in it says anything in `{spoken}`{why}.")
    return Log(found.log, [f"{name}: {note}" for note in notes], spoken)


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


def _of_body(first: bytes, stream: BinaryIO, name: str, dialect: str) -> Log:
    reader = make_source(dialect, Options())
    entries: list[Entry] = []
    try:
        for data in itertools.chain([first], iter(lambda: stream.read(READ_BYTES), b"")):
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
        return Log(entries, [f"{name}: {frames} skipped"])
    return Log(entries)


def junit(name: str, lines: list[str]) -> bytes:
    """Return JUnit XML with one test case, which fails where there are lines."""
    failures = "1" if lines else "0"
    counts = {"tests": "1", "failures": failures, "errors": "0"}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": "dragoman diff", **counts})
    case = ET.SubElement(suite, "testcase", {"classname": "dragoman.diff", "name": name})
    if lines:
        failure = ET.SubElement(case, "failure", {"message": lines[0]})
        failure.text = "\n".join(lines)
    text: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text + b"\n"
