"""Writes a session into an archive, where nothing is under way in it."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from adapters.model.state import LogState
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.archives.form import SessionHead, foot_line, head_line, piece_lines
from proxy.base.errors import JournalCorrupt, SessionExpired, SessionNotFound, reading_back
from proxy.base.rows import CommandRow, SessionRow
from proxy.fanout.hub import entries_by_steps
from proxy.journal.base import Journal


def under_way(row: SessionRow, state: LogState, commands: Sequence[CommandRow]) -> str | None:
    """Say what is under way in a session, if anything is."""
    turns = [thread.turn.turn_id for thread in state.threads.values() if thread.turn is not None]
    if turns:
        return f"turn `{turns[0]}` is open"
    if state.interactions:
        return f"interaction `{next(iter(state.interactions))}` is open"
    if commands:
        return f"command `{commands[0].command_id}` is not settled"
    if state.inputs and state.ended is None:
        return f"input `{next(iter(state.inputs))}` is not settled"
    return None if row.state in ("idle", "ended") else "a turn is about to begin"


async def _resting(journal: Journal, name: str) -> tuple[SessionRow, LogState, int, str]:
    """Return a session in which nothing is under way, what its log says, the log's size and its
    SHA-256.

    Raises:
        DragomanError: it is not there, or something is under way.
    """
    row = await journal.session(name)
    if row.state == "deleted":
        raise SessionNotFound(f"There is no session `{row.id}`.")
    if row.state == "expired":
        raise SessionExpired(row)
    state, size, digest = LogState(), 0, hashlib.sha256()
    async for body in _entries(journal, row):
        size += len(body)
        digest.update(body)
        with reading_back(f"the log of session `{row.id}`"):
            async for entry in entries_by_steps(body, row.id):
                state.apply_entry(entry)
    why = under_way(row, state, await journal.commands(row.key))
    if why is not None:
        raise DragomanError(
            f"Session `{row.id}` is not at rest: {why}. Wait until it is over, or end it with "
            f"`dragoman sessions settle {row.id}`.",
            code=ErrorCode.BUSY,
        )
    return row, state, size, digest.hexdigest()


async def _entries(journal: Journal, row: SessionRow) -> AsyncIterator[bytes]:
    """Yield the entries of a session up to the one that `row` says is the last."""
    # Little is read at once: who takes the archive may take nothing for a long time.
    async for chunk in journal.scan(row.key, size=128 * 1024):
        over = chunk.first + chunk.count - 1 - row.last_seq
        body = chunk.body
        if over > 0:
            lines = body.splitlines(keepends=True)
            body = b"".join(lines[:-over])
        if body:
            yield body
        if over >= 0:
            return


@dataclasses.dataclass(frozen=True, slots=True)
class PackedSession:
    """A session that can be written."""

    journal: Journal
    head: SessionHead
    key: int

    async def lines(self) -> AsyncGenerator[bytes]:
        """Yield the session's lines, some at a time.

        Raises:
            DragomanError: something happened in it meanwhile. What was yielded has no foot.
        """
        head, journal = self.head, self.journal
        digest, count = hashlib.sha256(), 0

        def counted(lines: bytes, number: int) -> bytes:
            nonlocal count
            digest.update(lines)
            count += number
            return lines

        yield counted(head_line(head), 1)
        async for body in _entries(journal, dataclasses.replace(head.row, key=self.key)):
            yield counted(body, body.count(b"\n"))
        for sha256, _ in head.blobs:
            data = await journal.blob(sha256)
            if data is None:
                raise JournalCorrupt(f"a file of session `{head.row.id}` is gone; restore a backup")
            for line in piece_lines(sha256, data):
                yield counted(line, 1)
                await asyncio.sleep(0)
        row, legs = await journal.session(head.row.id), await journal.legs(self.key)
        if row.last_seq != head.row.last_seq or tuple(legs) != tuple(head.legs):
            raise DragomanError(
                f"Something happened in session `{row.id}` meanwhile; try again.",
                code=ErrorCode.BUSY,
            )
        yield foot_line(head.row.id, count, digest.hexdigest())


async def pack(journal: Journal, name: str) -> PackedSession:
    """Return a session that can be written.

    Raises:
        DragomanError: it is not there, something is under way in it, or the dialect of its
            backend is not known.
    """
    row, state, size, digest = await _resting(journal, name)
    known = {backend.name: backend.dialect for backend in await journal.known_backends()}
    legs = await journal.legs(row.key)
    for leg in legs:
        if leg.backend not in known:
            raise DragomanError(
                f"Of which dialect backend `{leg.backend}` of session `{row.id}` is, is not in the "
                "journal: start its server once.",
                code=ErrorCode.CONFIG,
            )
    head = SessionHead(
        # As the log has it: what is stored beside it may come a moment later.
        dataclasses.replace(row, last_seq=state.seq),
        legs,
        await journal.aliases(row.key),
        await journal.codecs(row.key),
        {leg.backend: known[leg.backend] for leg in legs},
        await journal.blobs(row.key),
        state.seq,
        size,
        digest,
    )
    return PackedSession(journal, head, row.key)
