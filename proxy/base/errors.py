"""Errors that only IO can cause: of backends, of the journal, of configuration.

The protocol errors are in `adapters.wire.errors`; every error has one `ErrorCode`, and each face
turns codes into its own dialect's answers.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

from adapters.model.stored import SchemaMismatch, StoredByNewer
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.rows import NodeRow, SessionRow


class UpstreamError(DragomanError):
    """A backend could not be used."""

    code = ErrorCode.BACKEND_UNAVAILABLE


class UpstreamUnavailable(UpstreamError):
    """No connection, or it broke before an answer; `sent` says whether the request may have
    arrived."""

    def __init__(self, whole: str, *, sent: bool, shown: str | None = None) -> None:
        super().__init__(whole, shown=shown)
        self.sent = sent


class UpstreamDenied(UpstreamUnavailable):
    """The backend answers, and says that it does not know, or does not take, what it is asked
    for."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=True)


class UpstreamTimeout(UpstreamError):
    """The backend did not answer in time."""

    code = ErrorCode.BACKEND_TIMEOUT


class UpstreamRejected(UpstreamError):
    """The backend answered with a refusal; `status` is its HTTP status."""

    code = ErrorCode.BACKEND_REFUSED

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class JournalError(DragomanError):
    """The journal refused or failed."""

    code = ErrorCode.JOURNAL_UNAVAILABLE


class JournalUnavailable(JournalError):
    """The journal cannot store or read now: disk full, locked, read-only, closed. Nothing was
    stored."""

    SHOWN = "Nothing can be stored or read now; try again later."
    RETRY_SECONDS = 2
    """When to try again, where the error does not say it."""

    def __init__(
        self, whole: str, *, details: dict[str, Any] | None = None, shown: str | None = None
    ) -> None:
        details = {"retry_after": self.RETRY_SECONDS, **(details or {})}
        super().__init__(whole, details=details, shown=shown)


class JournalCorrupt(JournalError):
    """The journal is damaged, or a part of it was written by a newer Dragoman."""

    SHOWN = "This cannot be read any more: what is stored of it is damaged, or of a later release."


class BackupRefused(JournalError):
    """A copy of the journal may not, or cannot, be written where it was asked for."""


UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading raises where the journal gives back what nobody wrote."""


def damaged(what: str, error: Exception) -> JournalCorrupt:
    """Return the error for a part of the journal that cannot be read: a later release wrote it, or
    it is nothing that was written, as SQLite takes many a damaged page for a whole one."""
    if isinstance(error, StoredByNewer):
        return JournalCorrupt(f"{what} cannot be read: {error.whole}")
    # Others quote what they found.
    why = str(error) if isinstance(error, SchemaMismatch) else type(error).__name__
    return JournalCorrupt(
        f"the journal is damaged: {what} is nothing that was written to it ({why}); "
        "restore a backup"
    )


@contextlib.contextmanager
def reading_back(what: str) -> Iterator[None]:
    """Read something that comes from the journal.

    Raises:
        JournalCorrupt: it is damaged, or a later release wrote it.
    """
    try:
        yield
    except UNREADABLE as error:
        raise damaged(what, error) from error


class SessionNotFound(JournalError):
    """No such session for this owner."""

    code = ErrorCode.NOT_FOUND


class SessionClosed(JournalError):
    """The session has ended; it takes no more events."""

    code = ErrorCode.NOT_ACTIVE


class SequenceConflict(JournalError):
    """Somebody else appended to the session: the first seq is not the next one."""

    code = ErrorCode.INTERNAL


class NameTaken(SequenceConflict):
    """The id or an alias of a session is another one's: two asked for it at the same time."""


class CursorExpired(JournalError):
    """The events at the cursor were pruned."""

    code = ErrorCode.CURSOR_EXPIRED


class SessionExpired(CursorExpired):
    """The session was kept no longer: only its names are left. `row` is what is known of it."""

    def __init__(self, row: SessionRow) -> None:
        super().__init__("The session is no longer kept; start a new one.")
        self.row = row


class InteractionConflict(DragomanError):
    """The interaction is answered, or its answer is under way."""

    code = ErrorCode.ALREADY_ANSWERED


class SessionElsewhere(Exception):
    """Another process has the session: what is asked goes there whole. Not a `DragomanError`, so
    that nobody answers it on the way."""

    def __init__(self, owner: NodeRow) -> None:
        super().__init__(f"node {owner.number} at {owner.url} has the session")
        self.owner = owner


class CannotListen(DragomanError):
    """An address cannot be listened on."""

    code = ErrorCode.CONFIG


class ConfigError(DragomanError):
    """The configuration is wrong; the text names the key and the nearest known one."""

    code = ErrorCode.CONFIG


def why_not_listening(error: OSError | UnicodeError, host: str, port: int) -> str:
    """Say why an address cannot be listened on, and what to do. What asyncio says of it is for
    programmers."""
    number = error.errno if isinstance(error, OSError) else None
    match number:
        case errno.EADDRINUSE:
            why = "another program uses this port; stop it, or choose another port"
        case errno.EACCES:
            why = "this user may not use this port; choose one of 1024 or above"
        case errno.EADDRNOTAVAIL:
            why = "this machine does not have this address; choose one that it has"
        case int() if number > 0:
            why = f"{os.strerror(number)}; choose another address"
        case _:
            # The resolver's numbers are below zero, and a name that cannot be one has none.
            why = "no address is known of this name; write an address of this machine"
    return f"cannot listen on {host}:{port}: {why}."
