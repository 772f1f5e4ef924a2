"""What the control API says of sessions, read from a journal's file: for the command line, beside a
server or without one.

Nobody's keys are asked: who can read the file has everything. Changing it needs the file alone;
a server that writes it is named in the error.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from adapters.model.commands import SendMessage, members_of
from adapters.model.state import LogState
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json, parse_json
from proxy.archives.packing import pack
from proxy.archives.unpacking import Wishes, lines_of, unpack
from proxy.base.clock import Clock
from proxy.base.rows import CommandRow, SessionRow
from proxy.config.settings import SHADOWS, Settings
from proxy.control.api import kept_row
from proxy.control.control import (
    DeletedOut,
    detail_out,
    imported_out,
    open_in,
    pruned_out,
)
from proxy.control.listing import SessionsOut, listed_out
from proxy.fanout.hub import entries_of
from proxy.journal import open_journal
from proxy.journal.base import Journal
from proxy.session import StartTimes
from proxy.sessions.retention_limits import RetentionLimits, choose
from proxy.sessions.shadows import GONE, shadow_of

LIVING: tuple[Literal["idle", "running", "paused", "ended"], ...] = (
    "idle",
    "running",
    "paused",
    "ended",
)
"""The states of sessions that are there."""

JsonObject = dict[str, Any]


@contextlib.asynccontextmanager
async def opened(url: str, *, read_only: bool) -> AsyncIterator[Journal]:
    """Open a journal that exists, and close it.

    Raises:
        JournalError: it cannot be opened, or another process writes it and `read_only` is not set.
        ConfigError: the URL names no journal.
    """
    # Opened for reading first: a file that does not exist must not be made.
    reader = open_journal(url, read_only=True)
    await reader.open()
    if read_only:
        try:
            yield reader
        finally:
            await reader.aclose()
        return
    await reader.aclose()
    journal = open_journal(url)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.aclose()


async def listed(
    journal: Journal, *, state: str | None, failed: bool, limit: int, before: int | None
) -> JsonObject:
    """Return a page of all sessions, newest first."""
    states = LIVING if state is None else (state,)
    rows = await journal.sessions(states=states, failed=failed, before=before, limit=limit)
    return await _page(journal, rows, rows[-1].key if len(rows) == limit else None)


async def _page(journal: Journal, rows: Sequence[SessionRow], following: int | None) -> JsonObject:
    backends = await journal.backends_of([row.key for row in rows])
    found = list(listed_out(rows, backends, None))
    return SessionsOut(sessions=found, next=following).model_dump(mode="json")


async def named(journal: Journal, name: str) -> JsonObject:
    """Return the sessions that people call so."""
    rows = await journal.sessions(states=LIVING, named=name)
    return await _page(journal, [row for row in rows if row.owner != SHADOWS], None)


async def shown(journal: Journal, name: str) -> JsonObject:
    """Return one session with what is open in it.

    Raises:
        SessionNotFound: there is none, or it was deleted.
        SessionExpired: it is no longer kept.
    """
    row = await kept_row(journal, name)
    state, times = LogState(), StartTimes()
    async for chunk in journal.scan(row.key):
        for entry in entries_of(chunk.body, row.id):
            state.apply_entry(entry)
            times.hear(entry.event, entry.at)
    legs, names = await journal.legs(row.key), await journal.aliases(row.key)
    waiting = await journal.commands(row.key, statuses=("accepted",))
    queued = [command for command in waiting if _is_message(command)]
    asked = open_in(row, legs[-1].backend, state, times)
    return detail_out(row, asked, queued, legs, names, {}).model_dump(mode="json")


def _is_message(command: CommandRow) -> bool:
    value: Any = parse_json(command.body)
    return bool(members_of(value)["type"] == SendMessage.TYPE)


async def exported(journal: Journal, name: str) -> AsyncIterator[bytes]:
    """Yield the session's canonical events as NDJSON.

    Raises:
        SessionNotFound: there is none, or it was deleted.
        SessionExpired: it is no longer kept.
    """
    row = await kept_row(journal, name)
    async for chunk in journal.scan(row.key):
        yield b"".join(entry.encode() + b"\n" for entry in entries_of(chunk.body, row.id))


async def exported_frames(journal: Journal, name: str) -> AsyncIterator[bytes]:
    """Yield the kept source frames of a session as NDJSON.

    Raises:
        SessionNotFound: there is none, or it was deleted.
        SessionExpired: it is no longer kept.
        DragomanError: no source frame is kept.
    """
    row = await kept_row(journal, name)
    found = False
    for leg in await journal.legs(row.key):
        first = 0
        while frames := await journal.frames(row.key, leg.number, first=first):
            found, first = True, frames[-1][0] + 1
            yield b"".join(_frame_line(leg.number, number, frame) for number, frame in frames)
    if not found:
        raise DragomanError(
            f"No frames of session `{row.id}` are kept: set `journal.frames = true`, and "
            "`journal.frame_retention_hours` to how long they are wanted, before they come",
            code=ErrorCode.NOT_FOUND,
        )


async def archived(journal: Journal, name: str) -> AsyncIterator[bytes]:
    """Yield a session as another installation imports it.

    Raises:
        DragomanError: it is not there, or something is under way in it.
    """
    packed = await pack(journal, name)
    async for lines in packed.lines():
        yield lines


async def imported(
    journal: Journal, settings: Settings, pieces: AsyncIterator[bytes], wishes: Wishes
) -> JsonObject:
    """Take in a session of an archive, and return what became of it.

    Raises:
        DragomanError: the archive is damaged, or the session does not fit here.
    """
    done = await unpack(journal, settings, lines_of(pieces), wishes)
    return imported_out(done).model_dump(mode="json")


def _frame_line(leg: int, number: int, frame: bytes) -> bytes:
    value: JsonObject = {"leg": leg, "number": number}
    try:
        value["text"] = frame.decode()
    except UnicodeDecodeError:
        value["base64"] = base64.b64encode(frame).decode()
    return format_json(value) + b"\n"


async def deleted(journal: Journal, name: str) -> JsonObject:
    """Erase a session; its backend is not asked.

    Raises:
        SessionNotFound: there is none, or it was deleted.
        SessionExpired: it is no longer kept.
    """
    row = await kept_row(journal, name)
    await _delete_shadow(journal, row)
    await journal.delete(row.key, at=Clock().now())
    return DeletedOut(id=row.id).model_dump(mode="json")


async def _delete_shadow(journal: Journal, row: SessionRow) -> None:
    shadow = await shadow_of(journal, row)
    if shadow is not None and shadow.state not in GONE:
        await journal.delete(shadow.key, at=Clock().now())


async def pruned(journal: Journal, limits: RetentionLimits, *, dry_run: bool) -> JsonObject:
    """Erase the sessions that the limits do not keep, no matter whose they are."""
    now = Clock().now()
    gone = [
        doomed
        for doomed in await choose(journal, limits, now=now)
        if dry_run
        or await journal.expire(doomed.row.key, unless_after=doomed.row.updated_at, at=now)
    ]
    for doomed in () if dry_run else gone:
        await _delete_shadow(journal, doomed.row)
    return pruned_out(gone, dry_run=dry_run).model_dump(mode="json")
