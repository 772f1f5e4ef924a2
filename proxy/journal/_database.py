"""The file of the SQLite journal: connections, the schema's version, the writer's lock, SQLite's
errors as ours.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.resources
import os
from pathlib import Path

import apsw

from proxy.base.errors import JournalCorrupt, JournalError, JournalUnavailable, SequenceConflict

APPLICATION_ID = 0x4452474D
"""`DRGM`: tells a journal from any other SQLite file."""

BUSY_TIMEOUT_MS = 5000
"""How long a statement waits for a lock that a foreign tool holds on the file."""


_FAILED_SYNCS = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)


def is_failed_sync(error: BaseException) -> bool:
    """Say whether the disk refused to make durable what was written to it.

    Linux tells of that once and takes what was lost for written, so that another sync succeeds:
    PostgreSQL's wiki has it under "fsyncgate".
    """
    # The stubs of apsw lack it.
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) in _FAILED_SYNCS


def translate(error: apsw.Error | OSError, path: Path) -> JournalError:
    """Return the journal's error for one of SQLite or the operating system: it names the file and
    the way out.
    """
    match error:
        case apsw.NotADBError():
            return JournalCorrupt(
                f"`{path}` is not a journal, or its beginning is damaged: {error}; name another "
                "file, restore this one from a backup, or save what can be read with "
                f"`sqlite3 {path} .recover`"
            )
        case apsw.CorruptError():
            return JournalCorrupt(
                f"the journal `{path}` is damaged: {error}; restore it from a backup, or save what "
                f"can be read with `sqlite3 {path} .recover` and start with a new file"
            )
        case apsw.ConstraintError():
            return SequenceConflict(f"the journal `{path}` holds this already: {error}")
        case apsw.IOError() if is_failed_sync(error):
            way_out = (
                "the disk did not take what was written, and nobody knows what it has now; mend or "
                "change the disk (`dmesg` tells of it), then start again: what was shown is stored"
            )
        case apsw.FullError() | OSError(errno=errno.ENOSPC | errno.EDQUOT):
            way_out = "the disk is full; make room, and it goes on by itself"
        case apsw.BusyError() | apsw.LockedError():
            way_out = "another program holds it locked; end that program, and it goes on by itself"
        case apsw.ReadOnlyError() | OSError(errno=errno.EROFS | errno.EACCES | errno.EPERM):
            way_out = "it cannot be written; give this user the right to write it and its folder"
        case OSError(errno=errno.EISDIR):
            way_out = "it is a folder; name the file in it"
        case apsw.CantOpenError() | OSError(errno=errno.ENOENT | errno.ENOTDIR):
            way_out = _missing(path)
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            way_out = "no file descriptor is left; raise the limit (`ulimit -n`)"
        case _:
            return JournalUnavailable(f"the journal `{path}` cannot be used now: {error}")
    return JournalUnavailable(f"the journal `{path}` cannot be used now: {way_out} ({error})")


def _missing(path: Path) -> str:
    """Say what is not there for a file that cannot be opened."""
    if not path.parent.is_dir():
        return f"there is no folder `{path.parent}`; make it, or name another file"
    if path.is_dir():
        return "it is a folder; name the file in it"
    if not path.exists():
        return "there is no such file; name another, or start the server once to make it"
    return "give this user the right to read it"


class WriterLock:
    """The right to write a journal, held by one process at a time on a file beside it.

    The kernel gives it back when the process ends, however it ends. The file stays: removing it
    would let two processes hold locks on two files of one name. It has the pid of its holder, and
    nothing after an orderly end: `killed` is the pid of the holder before that did not give it
    back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._fd: int | None = None
        self.killed: str | None = None

    def acquire(self) -> None:
        """Take the lock, or say who has it.

        Raises:
            JournalUnavailable: another writer has it, or the directory cannot be written.
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise translate(error, self._path.with_suffix("")) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _pid_in(fd) or "unknown"
            os.close(fd)
            raise JournalUnavailable(
                f"another process (pid {holder}) writes the journal `{self._path.stem}`; "
                "stop it, name another file, or open this one read-only"
            ) from error
        self.killed = _pid_in(fd) or None
        os.ftruncate(fd, 0)
        # A full disk may refuse it. It is for people: who has the lock is what the kernel says.
        with contextlib.suppress(OSError):
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give the lock back; does nothing when it is not held."""
        if self._fd is not None:
            # A disk that takes nothing more: the next start tells that it was not in order.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def _pid_in(fd: int) -> str:
    return os.pread(fd, 20, 0).decode("ascii", "replace")


def connect_writer(path: Path, *, synced: bool = True) -> apsw.Connection:
    """Return the one writing connection, the file made for our user only and its schema brought up
    to date. Without `synced` a commit does not wait for the disk.

    Raises:
        JournalUnavailable: the file cannot be opened or written.
        JournalCorrupt: it is damaged, no journal, or from a newer version.
    """
    connection = None
    try:
        # It holds conversations and the sessions' secrets; SQLite gives its side files the same
        # mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = apsw.Connection(
            str(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        )
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        _check_version(connection, path)
        # Of a new file only: SQLite keeps account of free pages, so that it can give them back.
        connection.pragma("auto_vacuum", 2)
        connection.pragma("journal_mode", "WAL")
        connection.pragma("synchronous", "FULL" if synced else "OFF")
        connection.pragma("secure_delete", "ON")
        # SQLite says nothing when these two fail: the writer does them.
        connection.wal_autocheckpoint(0)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if synced:
            _rewrite_log(connection)
        migrate(connection)
    except (apsw.Error, OSError) as error:
        if connection is not None:
            connection.close(True)
        raise translate(error, path) from error
    except JournalError:
        if connection is not None:
            connection.close(True)
        raise
    return connection


def _rewrite_log(connection: apsw.Connection) -> None:
    """Make durable what a crash left in the write-ahead log, before anybody is shown it.

    SQLite takes for committed what it finds there, even if the crash came before the sync, or the
    sync failed. After a failure Linux knows no more that it has to write these pages, so they are
    written once more.
    """
    # Another program may write the journal as well.
    connection.execute("BEGIN IMMEDIATE")
    try:
        flags = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        log = apsw.VFSFile(connection.open_vfs, connection.filename_wal, [flags, 0])
        try:
            size = log.xFileSize()
            # SQLite's files take less than 128 KiB at once.
            piece = 64 * 1024
            for at in range(0, size, piece):
                log.xWrite(log.xRead(min(piece, size - at), at), at)
            if size:
                log.xSync(apsw.SQLITE_SYNC_FULL)
        finally:
            log.xClose()
    finally:
        connection.execute("ROLLBACK")


def connect_reader(path: Path) -> apsw.Connection:
    """Return a read-only connection to a journal whose schema is the current one.

    Raises:
        JournalUnavailable: the file cannot be opened, or waits for its writer to bring the schema
        up to date. JournalCorrupt: it is damaged, no journal, or from a newer version.
    """
    connection = None
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        version = _check_version(connection, path)
        if version < len(_migrations()):
            raise JournalUnavailable(
                f"the journal `{path}` has schema {version}; start the server once to bring it to "
                f"{len(_migrations())}"
            )
    except apsw.Error as error:
        if connection is not None:
            connection.close(True)
        raise translate(error, path) from error
    except JournalError:
        if connection is not None:
            connection.close(True)
        raise
    return connection


def _migrations() -> list[str]:
    """Return the schema's steps in order, as SQL; the step at index n leads to version n + 1."""
    folder = importlib.resources.files(__package__) / "migrations"
    steps = sorted((s for s in folder.iterdir() if s.name.endswith(".sql")), key=lambda s: s.name)
    return [step.read_text("utf-8") for step in steps]


def _check_version(connection: apsw.Connection, path: Path) -> int:
    version = int(connection.pragma("user_version"))
    known = len(_migrations())
    if version > known:
        raise JournalCorrupt(
            f"the journal `{path}` has schema {version}, this Dragoman knows up to {known}: "
            "upgrade Dragoman"
        )
    empty = connection.execute("SELECT count(*) FROM sqlite_schema").get == 0
    if not empty and connection.pragma("application_id") != APPLICATION_ID:
        raise JournalCorrupt(
            f"`{path}` is an SQLite file of another program, not a journal; name another file"
        )
    return version


def migrate(connection: apsw.Connection) -> None:
    """Make the schema, or bring it up to date."""
    steps = _migrations()
    for version in range(int(connection.pragma("user_version")), len(steps)):
        with connection:
            connection.execute(steps[version])
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", version + 1)
