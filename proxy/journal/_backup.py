"""A copy of a journal's file, made while a server may write it.

It is the state of one moment: all pages are read in one transaction, which waits for no writer and
holds up none. The copy gets its name when it is whole, checked and on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import apsw

from proxy.base.errors import BackupRefused, JournalCorrupt, JournalUnavailable
from proxy.base.rows import BackupSize
from proxy.journal._database import connect_reader, translate

PAGES = 2048
"""Pages that are copied at a time, 8 MiB: what is told of the progress is that fine."""

OWN_SUFFIXES = ("-wal", "-shm", "-journal", ".lock")
"""What the names of the files beside a journal end with."""

LEFT_SUFFIXES = ("-wal", "-journal")
"""The files that SQLite would read into a database that it finds beside them."""

Told = Callable[[str, int, int], object]
"""Gets what is done, how much of it, and of how much: 0 of 0 where nobody knows."""


def back_up(source: Path, target: Path, *, force: bool, told: Told) -> BackupSize:
    """Copy the journal at `source` to `target`.

    Raises:
        BackupRefused: nothing may be, or can be, written at `target`.
        JournalUnavailable: there is no journal, or it cannot be read now.
        JournalCorrupt: it is damaged, no journal, or from a newer version.
    """
    source, target = source.resolve(), target.resolve()
    if not source.exists():
        raise JournalUnavailable(f"there is no journal `{source}`: name it with --journal")
    _check_target(source, target, force)
    part: Path | None = None
    try:
        part = part_beside(target)
        _copy(source, part, target, told)
        told("checking", 0, 0)
        found = _checked(source, part)
        synced(part)
        _check_target(source, target, force)
        part.replace(target)
        synced(target.parent)
    except OSError as error:
        raise unwritten(target, error) from error
    finally:
        if part is not None:
            for suffix in ("", *OWN_SUFFIXES):
                part.with_name(part.name + suffix).unlink(missing_ok=True)
    return found


def _check_target(source: Path, target: Path, force: bool) -> None:
    own = {source.with_name(source.name + suffix) for suffix in ("", *OWN_SUFFIXES)}
    if target in own or (target.exists() and target.samefile(source)):
        raise BackupRefused(f"`{target}` is the journal itself: name another file")
    if target.exists() and not target.is_file():
        raise BackupRefused(f"`{target}` is not a file: name one")
    for suffix in LEFT_SUFFIXES:
        left = target.with_name(target.name + suffix)
        if left.exists():
            raise BackupRefused(
                f"`{left}` belongs to another database, and would be read into the copy: "
                "name another file, or end what uses that one"
            )
    if target.exists() and not force:
        raise BackupRefused(f"`{target}` exists: name another file, or overwrite it with --force")


def part_beside(target: Path) -> Path:
    """Make an empty file beside `target`, for what is to get its name once it is whole."""
    # For our user only: it holds conversations and the sessions' secrets.
    file, name = tempfile.mkstemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent)
    os.close(file)
    return Path(name)


def _copy(source: Path, part: Path, target: Path, told: Told) -> None:
    with contextlib.closing(connect_reader(source)) as journal:
        try:
            with contextlib.closing(apsw.Connection(str(part))) as copy:
                _copy_pages(journal, copy, told)
                # It stands alone: a server makes it a journal with a write-ahead log again.
                copy.pragma("journal_mode", "DELETE")
        except apsw.Error as error:
            _explain(error, source, target)


def _copy_pages(journal: apsw.Connection, copy: apsw.Connection, told: Told) -> None:
    # One snapshot for all steps: without it each commit of the writer would begin the copy anew.
    journal.execute("BEGIN")
    journal.pragma("user_version")
    backup = copy.backup("main", journal, "main")
    try:
        while not backup.done:
            backup.step(PAGES)
            told("copying", backup.page_count - backup.remaining, backup.page_count)
    except BaseException:
        # It would raise the same error once more.
        backup.close(True)
        raise
    backup.finish()


def _explain(error: apsw.Error, source: Path, target: Path) -> NoReturn:
    match error:
        case apsw.FullError():
            raise unwritten(target, OSError(errno.ENOSPC, str(error))) from error
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.TooBigError():
            raise unwritten(target, OSError(errno.EIO, str(error))) from error
        case apsw.IOError():
            raise JournalUnavailable(
                f"the journal `{source}` cannot be copied to `{target}`: {error}; look at both "
                "disks, and try again"
            ) from error
    raise translate(error, source) from error


def unwritten(target: Path, error: OSError, what: str = "backup") -> BackupRefused:
    """Return the error for a copy that the system does not write: it says the way out."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            why = "the disk is full; make room there, or name a file on another disk"
        case errno.ENOENT | errno.ENOTDIR:
            why = f"there is no folder `{target.parent}`; make it, or name a file in another one"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            why = f"this user may not write in `{target.parent}`; name a file in another folder"
        case _:
            why = f"{error.strerror or error}; name another file"
    return BackupRefused(f"the {what} `{target}` cannot be written: {why}")


def _checked(source: Path, part: Path) -> BackupSize:
    """Open the copy as a journal, look at all of it and count what is in it.

    Raises:
        JournalCorrupt: the copy is damaged, as the journal is.
    """
    try:
        with contextlib.closing(connect_reader(part)) as copy:
            said = copy.execute("PRAGMA quick_check(1)").get
            if said != "ok":
                raise JournalCorrupt(_damage(source, str(said)))
            sessions = copy.execute("SELECT count(*) FROM sessions WHERE erased_at IS NULL").get
            entries = copy.execute(
                "SELECT coalesce(sum(count), 0) FROM events JOIN sessions ON key = session"
                " WHERE erased_at IS NULL"
            ).get
    except (apsw.Error, JournalUnavailable) as error:
        raise JournalCorrupt(_damage(source, str(error))) from error
    return BackupSize(part.stat().st_size, int(sessions), int(entries))


def _damage(source: Path, said: str) -> str:
    return (
        f"the journal `{source}` is damaged, and no copy was kept: {' '.join(said.split())}; "
        f"restore an earlier backup, or save what can be read with `sqlite3 {source} .recover`"
    )


def synced(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
