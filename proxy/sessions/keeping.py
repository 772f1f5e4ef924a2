"""How long sessions are kept: erased when they are deleted, pruned by the limits, and source frames
by their age."""

from __future__ import annotations

import logging
from collections.abc import Callable

from proxy.base.clock import Clock
from proxy.base.errors import JournalError
from proxy.base.rows import SessionRow
from proxy.base.tasks import Tasks
from proxy.journal.base import Journal
from proxy.session import Session
from proxy.sessions.live import RELOAD_SECONDS, RETRY_MOST_SECONDS, Live
from proxy.sessions.retention import DAY_MS, Doomed, Limits, choose
from proxy.sessions.shadows import GONE, shadow_of

PRUNE_SECONDS = 600.0
"""How often source frames past their retention are erased; retention is hours."""

RETENTION_SECONDS = 60.0
"""How often it is looked whether sessions are kept no longer; looking costs 1 ms for 1,000 of
them."""

JUMP_MS = DAY_MS
"""How long after the last stored event a start is suspicious: ages are limited in days, and who was
stopped for so long loses nothing by an hour more."""

JUMP_SECONDS = 3600.0
"""How long retention waits then: an operator who is told can stop it."""

_log = logging.getLogger(__name__)


class Keeping:
    """Erases what is not kept."""

    def __init__(self, live: Live, journal: Journal, *, tasks: Tasks, clock: Clock) -> None:
        self._live = live
        self._journal = journal
        self._tasks = tasks
        self._clock = clock

    def erase_soon(self, session: Session) -> None:
        """Record that a session was deleted: what is stored of it goes. A stop in between is made
        good by the journal itself when it is opened."""
        if not self._live.stopping:
            self._tasks.start(self._erase(session.row), name=f"erase {session.id}")

    async def _erase(self, row: SessionRow) -> None:
        wait = RELOAD_SECONDS
        while not self._live.stopping:
            try:
                await self.erase(row)
            except JournalError as error:
                level = logging.DEBUG if wait > RELOAD_SECONDS else logging.WARNING
                _log.log(level, "session `%s` is not erased yet: %s", row.id, error.whole)
                await self._clock.sleep(wait)
                wait = min(wait * 2, RETRY_MOST_SECONDS)
            else:
                return

    async def erase(self, row: SessionRow) -> None:
        """Erase what is stored of a session, whatever its backend has; durable on return.

        Raises:
            JournalError: it could not be done.
        """
        await self._erase_shadow(row)
        self._live.erasing.add(row.id)
        try:
            self._live.forget(row.id)
            await self._journal.delete(row.key, at=self._clock.now())
            await self._live.forget_erased(row.id)
        finally:
            self._live.erasing.discard(row.id)

    async def _erase_shadow(self, row: SessionRow) -> None:
        """Erase the shadow of a session that goes, if it has one."""
        shadow = await shadow_of(self._journal, row)
        if shadow is not None and shadow.state not in GONE:
            await self.erase(shadow)

    async def prune(
        self,
        limits: Limits,
        *,
        owner: str | None,
        may: Callable[[SessionRow], bool],
        dry_run: bool,
    ) -> list[Doomed]:
        """Erase the sessions that the limits do not keep, of one owner or of all, and return them.

        One in which something begins meanwhile is kept. With `dry_run` they are returned only.

        Raises:
            JournalError: it could not be done.
        """
        gone: list[Doomed] = []
        for doomed in await choose(
            self._journal, limits, now=self._clock.now(), owner=owner, may=may
        ):
            row = doomed.row
            live = self._live.at_hand(row.id)
            if row.id in self._live.loading or (live is not None and not live.idle):
                continue
            if not dry_run:
                now = self._clock.now()
                if not await self._journal.expire(row.key, unless_after=row.updated_at, at=now):
                    continue
                # Its readers have all there was; who comes back is told.
                await self._live.forget_erased(row.id)
                await self._erase_shadow(row)
            gone.append(doomed)
        if gone and not dry_run:
            await self._journal.emptied()
        return gone

    async def retain(self, limits: Limits) -> None:
        """Keep to limits, for as long as the server runs."""
        doubted = limits.age is None
        while True:
            try:
                if not doubted:
                    await self._doubt_the_clock()
                    doubted = True
                gone = await self.prune(limits, owner=None, may=lambda _: True, dry_run=False)
            except JournalError as error:
                _log.warning("retention waits: %s", error.whole)
            except Exception:  # noqa: BLE001 - said in the log, and tried again
                # It must not end for ever by what is wrong once.
                _log.exception("retention failed; it is tried again")
            else:
                if gone:
                    size = sum(doomed.row.bytes for doomed in gone)
                    _log.info("retention erased %d sessions of %d bytes", len(gone), size)
            await self._clock.sleep(RETENTION_SECONDS)

    async def _doubt_the_clock(self) -> None:
        """Wait if the clock may have jumped forward while the server was stopped.

        Raises:
            JournalError: the journal cannot be read now.
        """
        newest, now = await self._journal.newest(), self._clock.now()
        if newest and now - newest > JUMP_MS:
            _log.warning(
                "retention waits for an hour: the clock is %.1f days after the last event that is "
                "stored; if it is wrong, set it right and restart",
                (now - newest) / DAY_MS,
                extra={"kind": "clock"},
            )
            await self._clock.sleep(JUMP_SECONDS)

    async def prune_frames(self, hours: float) -> None:
        """Erase source frames that are so old, for as long as the server runs."""
        kept = round(hours * 3_600_000)
        while True:
            try:
                await self._journal.prune_frames(before=self._clock.now() - kept)
            except JournalError as error:
                _log.warning("source frames were not pruned: %s", error.whole)
            await self._clock.sleep(PRUNE_SECONDS)
