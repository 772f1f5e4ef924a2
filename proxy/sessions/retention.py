"""How long sessions are kept: erased when they are deleted, pruned by the limits, and source frames
by their age."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from proxy.base.clock import Clock
from proxy.base.errors import JournalError
from proxy.base.rows import SessionRow
from proxy.base.tasks import Tasks
from proxy.journal.base import Journal
from proxy.session import Session
from proxy.sessions.cache import RELOAD_SECONDS, RETRY_MOST_SECONDS, SessionCache
from proxy.sessions.retention_limits import DAY_MS, ExpiredSession, RetentionLimits, choose
from proxy.sessions.shadows import GONE, shadow_of

JUMP_MS = DAY_MS
"""How long after the last stored event a start is suspicious: ages are limited in days, and who was
stopped for so long loses nothing by an hour more."""

JUMP_SECONDS = 3600.0
"""How long retention waits then: an operator who is told can stop it."""

_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True, eq=False)
class Retention:
    """Erases what is not kept."""

    cache: SessionCache
    journal: Journal
    _: dataclasses.KW_ONLY
    tasks: Tasks
    clock: Clock

    def erase_soon(self, session: Session) -> None:
        """Record that a session was deleted: what is stored of it goes. A stop in between is made
        good by the journal itself when it is opened."""
        if not self.cache.stopping:
            self.tasks.start(self._erase(session.row), name=f"erase {session.id}")

    async def _erase(self, row: SessionRow) -> None:
        wait = RELOAD_SECONDS
        while not self.cache.stopping:
            try:
                await self.erase(row)
            except JournalError as error:
                level = logging.DEBUG if wait > RELOAD_SECONDS else logging.WARNING
                _log.log(level, "session `%s` is not erased yet: %s", row.id, error.whole)
                await self.clock.sleep(wait)
                wait = min(wait * 2, RETRY_MOST_SECONDS)
            else:
                return

    async def erase(self, row: SessionRow) -> None:
        """Erase what is stored of a session, whatever its backend has; durable on return.

        Raises:
            JournalError: it could not be done.
        """
        await self._erase_shadow(row)
        self.cache.erasing.add(row.id)
        try:
            self.cache.forget(row.id)
            await self.journal.delete(row.key, at=self.clock.now())
            await self.cache.forget_erased(row.id)
        finally:
            self.cache.erasing.discard(row.id)

    async def _erase_shadow(self, row: SessionRow) -> None:
        """Erase the shadow of a session that goes, if it has one."""
        shadow = await shadow_of(self.journal, row)
        if shadow is not None and shadow.state not in GONE:
            await self.erase(shadow)

    async def prune(
        self,
        limits: RetentionLimits,
        *,
        owner: str | None,
        may: Callable[[SessionRow], bool],
        dry_run: bool,
    ) -> list[ExpiredSession]:
        """Erase the sessions that the limits do not keep, of one owner or of all, and return them.

        One in which something begins meanwhile is kept. With `dry_run` they are returned only.

        Raises:
            JournalError: it could not be done.
        """
        gone: list[ExpiredSession] = []
        for doomed in await choose(
            self.journal, limits, now=self.clock.now(), owner=owner, may=may
        ):
            row = doomed.row
            live = self.cache.at_hand(row.id)
            if row.id in self.cache.loading or (live is not None and not live.idle):
                continue
            if not dry_run:
                now = self.clock.now()
                if not await self.journal.expire(row.key, unless_after=row.updated_at, at=now):
                    continue
                # Its readers have all there was; who comes back is told.
                await self.cache.forget_erased(row.id)
                await self._erase_shadow(row)
            gone.append(doomed)
        if gone and not dry_run:
            await self.journal.emptied()
        return gone

    async def retain(self, limits: RetentionLimits) -> None:
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
            await self.clock.sleep(60.0)

    async def _doubt_the_clock(self) -> None:
        """Wait if the clock may have jumped forward while the server was stopped.

        Raises:
            JournalError: the journal cannot be read now.
        """
        newest, now = await self.journal.newest(), self.clock.now()
        if newest and now - newest > JUMP_MS:
            _log.warning(
                "retention waits for an hour: the clock is %.1f days after the last event that is "
                "stored; if it is wrong, set it right and restart",
                (now - newest) / DAY_MS,
                extra={"kind": "clock"},
            )
            await self.clock.sleep(JUMP_SECONDS)

    async def prune_frames(self, hours: float) -> None:
        """Erase source frames that are so old, for as long as the server runs."""
        kept = round(hours * 3_600_000)
        while True:
            try:
                await self.journal.prune_frames(before=self.clock.now() - kept)
            except JournalError as error:
                _log.warning("source frames were not pruned: %s", error.whole)
            # Retention is hours.
            await self.clock.sleep(600.0)
