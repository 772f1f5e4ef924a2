"""How a journal is copied: table by table, then each session of the copy is compared with its own,
read anew from where both are stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from proxy.base.errors import JournalCorrupt
from proxy.base.rows import BackupSize
from proxy.journal._tables import (
    EVENTS,
    SESSIONS,
    TABLES,
    CopySource,
    CopyTarget,
    JournalTable,
    Row,
    digests,
)

Told = Callable[[str, int, int], object]
"""Gets what is done, how much of it, and of how much: 0 of 0 where nobody knows."""


async def copy_rows(source: CopySource, target: CopyTarget, told: Told) -> BackupSize:
    """Copy all rows, compare them, and let everybody see the copy.

    Raises:
        JournalError: it cannot be done; nobody sees anything of the copy.
    """
    total = await source.size()
    progress = _Progress(told, "copying", total)
    sessions = entries = 0
    for table in TABLES:
        batches = source.batches(table)
        async for rows in _consecutive(batches) if table is EVENTS else batches:
            await target.write(table, rows)
            progress.add(table, rows)
            if table is EVENTS:
                entries += sum(row[2] for row in rows)
            elif table is SESSIONS:
                sessions += sum(row[_ERASED_AT] is None for row in rows)
    await target.finish()
    await _compare(source, target, _Progress(told, "comparing", total))
    await source.check_held()
    await target.keep()
    return BackupSize(progress.done, sessions, entries)


_ERASED_AT = SESSIONS.columns.index("erased_at")


class _Progress:
    """Counts what was done to the rows that take room, and tells of it."""

    def __init__(self, told: Told, what: str, total: int) -> None:
        self._told = told
        self._what = what
        self._total = total
        self.done = 0
        told(what, 0, total)

    def add(self, table: JournalTable, rows: list[Row]) -> None:
        """Count rows."""
        if table.is_counted:
            self.done += sum(len(row[-1]) for row in rows)
        # Files that sessions share are in the sums of them all.
        self._told(self._what, min(self.done, self._total), self._total)


async def _consecutive(batches: AsyncIterator[list[Row]]) -> AsyncIterator[list[Row]]:
    """Yield the rows of events, having checked that no session lacks any in between.

    Raises:
        JournalCorrupt: one does.
    """
    before, following = 0, 0
    async for rows in batches:
        for session, first, count, *_ in rows:
            if session == before and first != following:
                raise JournalCorrupt(
                    f"the session with key {session} lacks its entries from seq {following} to "
                    f"{first - 1}: the journal is damaged, restore a backup"
                )
            before, following = session, first + count
        yield rows


async def _compare(source: CopySource, target: CopyTarget, progress: _Progress) -> None:
    """Compare all rows of each session, as both sides have them stored.

    Raises:
        JournalCorrupt: they differ.
    """
    for table in TABLES:
        wanted = digests(table, _counted(source.batches(table), table, progress))
        found = digests(table, target.batches(table))
        while True:
            one, other = await anext(wanted, None), await anext(found, None)
            if one != other:
                key = min(each[0] for each in (one, other) if each is not None)
                raise JournalCorrupt(
                    f"the copy is not what the journal has: {_place(table, key)} differ; nothing "
                    "was kept: look at the disks and the memory of both machines, then try again"
                )
            if one is None:
                break


def _place(table: JournalTable, key: int) -> str:
    rows = f"the rows of `{table.name}`"
    return f"{rows} of the session with key {key}" if table.of_sessions else rows


async def _counted(
    batches: AsyncIterator[list[Row]], table: JournalTable, progress: _Progress
) -> AsyncIterator[list[Row]]:
    async for rows in batches:
        yield rows
        progress.add(table, rows)
