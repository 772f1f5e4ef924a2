"""Which sessions are kept no longer: by the age of their last event, and by the bytes they take.

A session goes as a whole, the one with the oldest last event first, and never while a turn or an
interaction is open in it. Nothing is cut off the front of a log: sessions are loaded, and their
frames made, from the first event on, so that snapshots stay a cache that may be deleted at any
time. Anybody who comes back to a session that went is told so, in its dialect's own words.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Literal

from proxy.base.rows import SessionRow
from proxy.config.settings import RetentionSettings
from proxy.journal.base import Journal

DAY_MS = 86_400_000

Reason = Literal["age", "bytes_per_backend", "bytes"]


@dataclasses.dataclass(frozen=True, slots=True)
class RetentionLimits:
    """What is kept; None means no limit. `age` is in milliseconds since the last event."""

    age: int | None = None
    bytes_per_backend: int | None = None
    bytes: int | None = None

    @classmethod
    def of(cls, settings: RetentionSettings) -> RetentionLimits:
        """Return what the configuration says."""
        days = settings.max_age_days
        return cls(
            age=None if days is None else round(days * DAY_MS),
            bytes_per_backend=settings.max_bytes_per_backend,
            bytes=settings.max_bytes,
        )

    def __bool__(self) -> bool:
        """Say whether anything is limited."""
        return any(limit is not None for limit in dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True, slots=True)
class ExpiredSession:
    """A session that a limit does not keep."""

    row: SessionRow
    backend: str
    reason: Reason


async def _calmly(found: Iterable[tuple[SessionRow, str]]) -> AsyncIterator[tuple[SessionRow, str]]:
    """Yield sessions, and let others work in between."""
    for number, session in enumerate(found):
        if not number % 256:
            await asyncio.sleep(0)
        yield session


async def choose(
    journal: Journal,
    limits: RetentionLimits,
    *,
    now: int,
    owner: str | None = None,
    may: Callable[[SessionRow], bool] = lambda _: True,
) -> list[ExpiredSession]:
    """Return the sessions that the limits do not keep, of one owner or of all, oldest first.

    `may` says which of them may go at all. The rest counts all the same.

    Raises:
        JournalUnavailable: the journal cannot be read now.
    """
    chosen: dict[int, ExpiredSession] = {}
    # What is left over is chosen next time.
    at_once = 10_000
    if limits.age is not None:
        found = await journal.oldest(before=now - limits.age, owner=owner, limit=at_once)
        async for row, backend in _calmly(found):
            if may(row):
                chosen[row.key] = ExpiredSession(row, backend, "age")
    if limits.bytes is None and limits.bytes_per_backend is None:
        return list(chosen.values())
    # A session may go, or come, between two looks at the journal.
    sizes = Counter(await journal.sizes(owner=owner))
    for doomed in chosen.values():
        sizes[doomed.backend] -= doomed.row.bytes

    async def fit(excess: int, backend: str | None, reason: Reason) -> None:
        if excess <= 0:
            return
        found = await journal.oldest(backend=backend, owner=owner, limit=at_once)
        async for row, of_backend in _calmly(found):
            if row.key in chosen or not may(row):
                continue
            chosen[row.key] = ExpiredSession(row, of_backend, reason)
            sizes[of_backend] -= row.bytes
            excess -= row.bytes
            if excess <= 0:
                return

    if limits.bytes_per_backend is not None:
        for backend, size in list(sizes.items()):
            await fit(size - limits.bytes_per_backend, backend, "bytes_per_backend")
    if limits.bytes is not None:
        await fit(sum(sizes.values()) - limits.bytes, None, "bytes")
    return list(chosen.values())
