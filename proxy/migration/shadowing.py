"""Gives the inputs of sessions to a second backend too, whose tools do no harm.

For each session of a route with a `shadow` there is a session of its own on that backend, which no
frontend sees. Whenever the session that serves comes to rest, what a person did in it since is done
in the shadow, as `dragoman replay --drive` does it. Nothing of this is waited for, and what goes
wrong is noted in the shadow's own log, for the report. A backend that fails its check is given
nothing: what was said meanwhile is caught up when the session rests again.
"""

from __future__ import annotations

import asyncio
import logging

from adapters.model import events as ev
from adapters.offline.replay import ReplayScript, script_of
from adapters.wire.errors import DragomanError
from proxy.base.errors import CursorExpired, JournalError, SessionElsewhere, SessionNotFound
from proxy.base.repeats import REQUEST
from proxy.base.rows import AliasKind, SessionRow
from proxy.base.tasks import Tasks
from proxy.config.settings import SHADOWS
from proxy.migration.progress import progress_of, read_log
from proxy.migration.scripted_person import Driver, ScriptedRun
from proxy.session import Session
from proxy.sessions.sessions import Sessions
from proxy.sessions.shadows import GONE, shadow_at, shadow_backend, shadowed_by

AT_ONCE = 8
"""Shadows that are driven at the same time."""

MOST_WAITING = 1_000
"""Sessions that wait for this; what finds no room is caught up when its session rests again."""

SILENT_SECONDS = 60.0
"""How long nothing may come from a shadow that is driven."""

LOST = "It is not known whether the backend has an input: what came later was not given to it."

_log = logging.getLogger(__name__)


class ShadowDriver:
    """Drives the shadows."""

    def __init__(self, sessions: Sessions, tasks: Tasks) -> None:
        """Begin with nothing to do; `tasks` ends with the sessions."""
        self._sessions = sessions
        self._tasks = tasks
        # The sessions that wait, and those whose shadow is driven: the seq at which they rested.
        self._waiting: dict[str, int] = {}
        self._driven: dict[str, int | None] = {}
        self._complained: set[str] = set()
        self._not_running: set[str] = set()
        self._full = False
        self._stop = asyncio.Event()

    def open(self) -> None:
        """Erase the shadows whose sessions went while nobody looked, and say which backends cannot
        shadow."""
        if self._shadows:
            self._tasks.start(self._sweep(), name="erase shadows that are left")
        for name in set(self._shadows.values()):
            self._tasks.start(self._runs(name), name=f"check shadow {name}")

    @property
    def _shadows(self) -> dict[str, str]:
        """The backend that shadows each route that has one."""
        routes = self._sessions.settings.routes
        return {one.name: one.shadow for one in routes if one.shadow is not None}

    def rested(self, session: Session, seq: int) -> None:
        """Note that a session came to rest, and that its log is stored up to `seq`."""
        if session.row.route in self._shadows and session.row.owner != SHADOWS:
            self._want(session.id, seq)
            self._go_on()

    def _want(self, session_id: str, seq: int) -> None:
        if session_id in self._driven:
            self._driven[session_id] = seq
        elif session_id in self._waiting or len(self._waiting) < MOST_WAITING:
            self._waiting[session_id] = seq
        elif not self._full:
            self._full = True
            _log.warning(
                "%d sessions wait for their shadows: others are caught up when they rest again",
                len(self._waiting),
            )

    def _go_on(self) -> None:
        while self._waiting and len(self._driven) < AT_ONCE and not self._sessions.stopping:
            session_id = next(iter(self._waiting))
            seq = self._waiting.pop(session_id)
            self._driven[session_id] = None
            self._tasks.start(self._follow(session_id, seq), name=f"shadow {session_id}")
        self._full = self._full and len(self._waiting) > MOST_WAITING // 2

    async def _follow(self, session_id: str, seq: int) -> None:
        try:
            await self._catch_up(session_id, seq)
        except (SessionNotFound, CursorExpired, SessionElsewhere):
            # It went meanwhile, or another process goes on with it.
            pass
        except JournalError as error:
            self._complain("the journal", error.whole)
        except Exception:  # noqa: BLE001 - a shadow that fails touches nothing else
            if not self._sessions.stopping:
                _log.exception("session `%s` is not shadowed: this is a bug", session_id)
        finally:
            again = self._driven.pop(session_id)
            if again is not None:
                self._want(session_id, again)
            self._go_on()

    def _complain(self, backend: str, why: str) -> None:
        """Say once of each backend that something is wrong; the report has all."""
        if backend not in self._complained:
            self._complained.add(backend)
            _log.warning("a shadow at `%s` does not follow: %s", backend, why)

    async def _runs(self, name: str) -> bool:
        """Say whether a backend can shadow, and log it when that changes."""
        backend = self._sessions.backends.get(name)
        assert backend is not None
        why = (await self._sessions.backends.readiness.check(backend)).why
        if not why:
            if name in self._not_running:
                self._not_running.discard(name)
                _log.warning("the shadow `%s` is running again", name)
            return True
        if name not in self._not_running:
            self._not_running.add(name)
            _log.warning("the shadow `%s` is not running: %s", name, why)
        return False

    async def _catch_up(self, session_id: str, seq: int) -> None:
        """Do in the shadow what was done in the session up to `seq`."""
        journal = self._sessions.journal
        row = await journal.session(session_id)
        backend = shadow_backend(await journal.aliases(row.key))
        if row.state in GONE or backend is None or backend != self._shadows.get(row.route):
            return
        if not await self._runs(backend):
            return
        log = await read_log(journal, row, seq)
        script = await asyncio.to_thread(script_of, log)
        with self._sessions.holding():
            try:
                shadow = await self._shadow(row, log, backend)
                await self._drive(shadow, script, seq, backend)
            except (SessionNotFound, CursorExpired):
                # The shadow is no longer kept.
                pass
            except JournalError:
                raise
            except DragomanError as error:
                self._complain(backend, error.whole)
        if (await journal.session(session_id)).state in GONE:
            await self._erase(backend, session_id)

    async def _shadow(self, row: SessionRow, log: list[ev.Entry], backend: str) -> Session:
        """Return the shadow of a session, which is made where there is none yet."""
        found = await shadow_at(self._sessions.journal, backend, row.id)
        if found is not None:
            return await self._sessions.get(found, owner=None, route=None)
        started = log[0].event
        assert isinstance(started, ev.SessionStarted)
        options = {k: v for k, v in (started.options or {}).items() if k != REQUEST}
        return await self._sessions.create(
            owner=SHADOWS,
            route=backend,
            dialect=row.dialect,
            title=started.title,
            metadata=started.metadata,
            options=options,
            aliases=[(AliasKind.SHADOW, row.id)],
        )

    async def _drive(self, shadow: Session, script: ReplayScript, seq: int, backend: str) -> None:
        out = ScriptedRun()
        driver = Driver(
            script,
            out,
            seconds=SILENT_SECONDS,
            sealed=[],
            tell=lambda _: None,
            stop=self._stop,
            lasting=True,
        )
        await driver.begin(self._sessions, shadow)
        before = progress_of(out.log)
        if before.seq >= seq:
            return
        if before.lost:
            out.failed = LOST
        else:
            try:
                await driver.run(before.cue)
            except JournalError:
                raise
            except DragomanError as error:
                out.failed = error.whole
        if self._sessions.stopping or shadow.closed:
            # The next rest after the start finds it where it is.
            return
        if out.failed is not None:
            self._complain(backend, out.failed)
        now = before.after(len(script.cues), seq, out.failed, out.notes)
        if now != before:
            await shadow.tell([now.event()])

    # What is left.

    async def _sweep(self) -> None:
        """Erase the shadows whose sessions are gone."""
        journal, before = self._sessions.journal, None
        try:
            while rows := await journal.sessions(owner=SHADOWS, before=before, limit=256):
                for row in rows:
                    await self._sweep_one(row)
                before = rows[-1].key
        except JournalError as error:
            _log.warning("shadows that are left are not erased yet: %s", error.whole)

    async def _sweep_one(self, row: SessionRow) -> None:
        journal = self._sessions.journal
        served = shadowed_by(await journal.aliases(row.key))
        if row.state in GONE or served is None:
            return
        if (await journal.session(served)).state in GONE:
            await self._sessions.erase(row)

    async def _erase(self, backend: str, session_id: str) -> None:
        found = await shadow_at(self._sessions.journal, backend, session_id)
        if found is not None:
            row = await self._sessions.journal.session(found)
            if row.state not in GONE:
                await self._sessions.erase(row)
