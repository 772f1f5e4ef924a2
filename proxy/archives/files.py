"""Archives as files: written by their owner only, looked through before anything is taken in."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from proxy.archives.form import LINE_MOST, Foot, SessionHead, Unpacker


@dataclasses.dataclass(frozen=True, slots=True)
class ArchivePart:
    """Where a session is in an archive: its first line, and its bytes from `start` to `end`."""

    id: str
    line: int
    start: int
    end: int


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """Give a file that gets its name when it is whole and on the disk; for our user only, as it
    holds conversations and the sessions' secrets.

    Raises:
        OSError: it cannot be written, or is there already.
    """
    file, name = tempfile.mkstemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(file, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        # Not replaced: it may be the only copy of others.
        os.link(name, target)
    finally:
        Path(name).unlink()


def parts_of(file: BinaryIO, told: Callable[[int], object]) -> list[ArchivePart]:
    """Return the sessions of an archive, once all of it is checked but what the entries say; `told`
    hears how many bytes were.

    Raises:
        ArchiveError: it is damaged.
    """
    unpacker, parts, at = Unpacker(), list[ArchivePart](), 0
    begun = (1, 0)
    while line := file.readline(LINE_MOST + 1):
        part = unpacker.take(line)
        if isinstance(part, SessionHead):
            begun = (unpacker.line, at)
        at += len(line)
        if isinstance(part, Foot):
            parts.append(ArchivePart(part.id, *begun, at))
        told(at)
    unpacker.close()
    return parts


async def pieces_of(
    file: BinaryIO, part: ArchivePart, told: Callable[[int], object]
) -> AsyncIterator[bytes]:
    """Yield the bytes of one session; `told` hears how far into the file that is."""
    file.seek(part.start)
    at = part.start
    while piece := file.read(min(256 * 1024, part.end - at)):
        at += len(piece)
        yield piece
        told(at)
