"""The files of captures: `dragoman record` writes them, and `dragoman serve` where it is told to.
`adapters.captures` has the format.

Each record is one line, written at once, so what is killed leaves files that are right up to their
last whole line. A disk that refuses ends the capture, and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from adapters.captures import CaptureHead, Record, format_record
from adapters.wire.jsonvalue import parse_json
from proxy import __version__
from proxy.base.metrics import CAPTURES_BROKEN

_log = logging.getLogger(__name__)

UNNAMED = "unnamed"
"""The file of what names no session."""

FILES_OPEN = 64
"""Captures that are open at a time; one that was closed is opened again."""

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+|^\.+")
"""What of an id is not taken into the name of a file."""


class CaptureEnd(NamedTuple):
    """Where a capture ends: the newest exchange in it, and the newest entry of the log."""

    exchange: int
    seq: int


@dataclasses.dataclass(slots=True, eq=False)
class Files:
    """The captures of a folder. The newest used are open."""

    folder: Path
    dialect: str | None
    now: Callable[[], float]
    _paths: dict[str | None, Path] = dataclasses.field(default_factory=dict, init=False)
    _open: dict[str | None, BinaryIO] = dataclasses.field(default_factory=dict, init=False)
    _broken: set[str | None] = dataclasses.field(default_factory=set, init=False)

    def line(self, record: CaptureHead | Record) -> bytes:
        """Return a record as it is written. No other place makes lines of records."""
        return format_record(record)

    def write(self, session: str | None, lines: bytes, dialect: str | None = None) -> None:
        """Add lines to a session's capture. Where that fails nothing more is added to it, and the
        log says so: what passes is not held up by it. `dialect` is that of its backend, where they
        have several."""
        if session in self._broken:
            return
        try:
            file = self._open.pop(session, None)
            if file is None:
                file = self._opened(session, dialect or self.dialect)
            # The last one of a dictionary is the newest.
            self._open[session] = file
            file.write(lines)
        except OSError as error:
            self._broken.add(session)
            CAPTURES_BROKEN.inc()
            name = "what names no session" if session is None else f"session {session!r}"
            why = error.strerror or type(error).__name__
            _log.error("the capture of %s ends here: %s", name, why)

    def _opened(self, session: str | None, dialect: str | None) -> BinaryIO:
        if len(self._open) >= FILES_OPEN:
            self._open.pop(next(iter(self._open))).close()
        if session in self._paths:
            # One that was taken away meanwhile is not begun anew without its head.
            return open(self._paths[session], "ab", buffering=0, opener=_existing)
        for number in itertools.count(1):
            path = self._path(session, number)
            with contextlib.suppress(FileExistsError):
                file = open(path, "xb", buffering=0, opener=_private)  # noqa: SIM115
                break
        self._paths[session] = path
        made_by = f"dragoman {__version__}"
        head = CaptureHead(made_by=made_by, at=self.now(), dialect=dialect, session=session)
        file.write(self.line(head))
        return file

    def _path(self, session: str | None, number: int) -> Path:
        stem = UNNAMED if session is None else _UNFIT.sub("_", session)[:100]
        return self.folder / (f"{stem}.ndjson" if number == 1 else f"{stem}.{number}.ndjson")

    def left(self, session: str) -> CaptureEnd | None:
        """Return where the capture of a session ends that was begun before, None where there is
        none. What is not a whole line at its end is cut off.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not a capture.
        """
        path = self._path(session, 1)
        try:
            with path.open("r+b") as file:
                found = _left(file)
        except FileNotFoundError:
            return None
        self._paths[session] = path
        return found

    def close(self) -> None:
        """Close them all."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def _private(path: str, flags: int) -> int:
    """Open a file for its owner only: it has conversations."""
    return os.open(path, flags, 0o600)


def _existing(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_CREAT)


def _left(file: BinaryIO) -> CaptureEnd:
    request = event = b""
    whole = 0
    for line in file:
        if not line.endswith(b"\n"):
            break
        whole += len(line)
        if line.startswith(b'{"type":"request"'):
            request = line
        elif line.startswith(b'{"type":"event"'):
            event = line
    if not whole:
        raise ValueError("it has no head")
    if whole < file.seek(0, os.SEEK_END):
        file.truncate(whole)
    asked: Any = parse_json(request) if request else {"exchange": 0}
    told: Any = parse_json(event) if event else {"entry": {"seq": 0}}
    try:
        return CaptureEnd(int(asked["exchange"]), int(told["entry"]["seq"]))
    except (TypeError, KeyError) as error:
        raise ValueError(f"a line of it has no {error}") from None
