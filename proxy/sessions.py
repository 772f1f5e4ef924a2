"""All sessions of the process: made, found by any of their names, loaded from the journal, put away
when quiet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar, cast

import aiohttp

from adapters import commands as cmd
from adapters import events as ev
from adapters.errors import DragomanError, ErrorCode, NotSupported
from adapters.registry import DIALECTS
from proxy.clock import Clock, Ids
from proxy.errors import JournalError, SessionNotFound
from proxy.journal.base import Journal, LegRow, SessionRow
from proxy.session import Session
from proxy.settings import BackendSettings, Settings
from proxy.tasks import Tasks
from proxy.upstream.client import Upstream

QUIET_SECONDS = 30.0
"""How long a session that nobody uses stays in memory: long enough for a client that reconnects."""

RELOAD_SECONDS = 1.0
"""How long a session with work waits before it is loaded again after the journal failed."""

PRUNE_SECONDS = 600.0
"""How often source frames past their retention are erased; retention is hours."""

HANDLE = "handle"
"""The kind of alias under which faces find a session by a name of their own, such as half a
token."""

TASK = "task"
"""The kind of alias that a frontend chose: an Engine `task_id`."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Sessions:
    """The sessions. Opened with `open`, closed with `aclose`."""

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        http: aiohttp.ClientSession,
        *,
        tasks: Tasks,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self.settings = settings
        self.journal = journal
        self.clock = clock
        self.ids = ids
        self._http = http
        self._tasks = tasks
        self._live: dict[str, Session] = {}
        self._loading: dict[str, asyncio.Task[Session]] = {}
        self._upstreams: dict[str, Upstream] = {}
        self.stopping = False
        self.faces: Mapping[str, Mapping[str, Any]] = {
            "eve": {"form": settings.eve.form, "token_rotation": settings.eve.token_rotation}
        }

    async def open(self) -> None:
        """Load the sessions that have work under way, and attach to their backends."""
        for row in await self.journal.sessions(states=("running", "paused"), limit=1_000_000):
            try:
                await self._load(row)
            except DragomanError as error:
                _log.warning("session `%s` stays closed: %s", row.id, error.message)
        self._tasks.start(self._put_away(), name="put quiet sessions away")
        if self.settings.journal.frames:
            self._tasks.start(self._prune_frames(), name="prune source frames")

    async def aclose(self) -> None:
        """Close all sessions; what is under way is taken up at the next start."""
        self.stopping = True
        for session in list(self._live.values()):
            session.close()
        self._live.clear()

    def backend_of(self, route: str) -> BackendSettings:
        """Return the backend that a new session of a route goes to.

        Raises:
            DragomanError: there is no such route.
        """
        found = self.settings.route(route)
        if found is None:
            raise DragomanError(f"There is no route `{route}`.", code=ErrorCode.NOT_FOUND)
        draw = self.ids.fraction() * sum(share.weight for share in found.backends)
        chosen = found.backends[0].name
        for share in found.backends:
            chosen = share.name
            draw -= share.weight
            if draw < 0:
                break
        backend = self.settings.backend(chosen)
        assert backend is not None
        return backend

    def check(self, route: str, command: cmd.AnyCommand) -> None:
        """Check, before a session is made, that every backend of a route can carry a command.

        Raises:
            NotSupported: one cannot, and the session might become its.
        """
        found = self.settings.route(route)
        if found is None:
            raise DragomanError(f"There is no route `{route}`.", code=ErrorCode.NOT_FOUND)
        for share in found.backends:
            backend = self.settings.backend(share.name)
            assert backend is not None
            self._codec(backend, "check").check(command)

    def _codec(self, backend: BackendSettings, task_id: str) -> Any:
        make = DIALECTS[backend.dialect].client
        if make is None:
            raise NotSupported(
                f"Backend `{backend.name}` is of dialect `{backend.dialect}`, "
                "which cannot be driven yet."
            )
        settings = backend.settings.model_dump(exclude_none=True)
        return make(
            {**settings, **backend.create.model_dump(exclude_none=True), "task_id": task_id}
        )

    def upstream(self, backend: BackendSettings) -> Upstream:
        """Return the connections to a backend."""
        upstream = self._upstreams.get(backend.name)
        if upstream is None:
            credential = backend.credential
            auth = {} if credential is None else {credential.header: credential.value}
            upstream = self._upstreams[backend.name] = Upstream(self._http, backend.url, auth)
        return upstream

    async def create(
        self,
        *,
        owner: str,
        route: str,
        dialect: str,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        handle: str | None = None,
        secret: bytes | None = None,
        aliases: Sequence[tuple[str, str]] = (),
    ) -> Session:
        """Make a session on a route's backend; durable on return.

        Raises:
            DragomanError: there is no such route, or its backend cannot be driven.
            JournalError: it could not be stored, or a name is taken.
        """
        backend = self.backend_of(route)
        session_id = self.ids.mint("dgs")
        now = self.clock.now()
        started = ev.SessionStarted(
            thread_id=ev.MAIN,
            agent={"id": backend.create.agent or backend.name, "name": backend.name},
            title=title,
            metadata=dict(metadata) if metadata else None,
            options=dict(options) if options else None,
            synthetic=True,
        )
        names = list(aliases)
        if handle is not None:
            names.append((HANDLE, handle))
        row = await self.journal.create_session(
            id=session_id,
            owner=owner,
            route=route,
            dialect=dialect,
            backend=backend.name,
            secret=secret if secret is not None else self.ids.bytes(32),
            at=now,
            body=ev.Entry(1, now, session_id, started).encode_row() + b"\n",
            aliases=names,
        )
        task_id = self._task_id(row, backend.name, names)
        session = self._make(row, LegRow(row.key, 0, backend.name), backend, task_id)
        session.begin(ev.Entry(1, now, session_id, started))
        self._live[row.id] = session
        return session

    async def get(self, name: str, *, owner: str | None, route: str | None) -> Session:
        """Return the session that `name` stands for: its public id, or an alias in its owner's
        route.

        `owner` and `route` are None only for those who may see all. Whether the asker may is
        `authorize`'s to say.

        Raises:
            SessionNotFound: there is none, or it was deleted.
        """
        live = self._live.get(name)
        if live is not None and not live.closed:
            if live.state.ended == "deleted":
                raise SessionNotFound(f"There is no session `{name}`.")
            live.used_at = self.clock.monotonic()
            return live
        try:
            row = await self.journal.session(name)
        except SessionNotFound:
            if owner is None or route is None:
                raise
            # In the words of `authorize`: nobody learns whether it is another key's.
            nothing = SessionNotFound("There is no such session.")
            found = None
            for kind in (TASK, HANDLE):
                found = await self.journal.resolve(owner=owner, route=route, kind=kind, name=name)
                if found is not None:
                    break
            if found is None:
                raise nothing from None
            return await self.get(found, owner=owner, route=route)
        if row.state == "deleted":
            raise SessionNotFound(f"There is no session `{name}`.")
        return await self._load(row)

    async def keep(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that goes on when the client leaves: what is half accepted must not stay half.

        Raises:
            DragomanError: whatever the work raises.
        """

        async def outcome() -> tuple[T | None, DragomanError | None]:
            try:
                return await work, None
            except DragomanError as error:
                return None, error

        result, error = await asyncio.shield(self._tasks.start(outcome(), name="request"))
        if error is not None:
            raise error
        return cast(T, result)

    async def _load(self, row: SessionRow) -> Session:
        """Return the session in memory, loading it once however many ask."""
        live = self._live.get(row.id)
        if live is not None and not live.closed:
            return live
        loading = self._loading.get(row.id)
        if loading is None:
            loading = self._tasks.start(self._read(row), name=f"load {row.id}")
            self._loading[row.id] = loading
            loading.add_done_callback(lambda _: self._loading.pop(row.id, None))
        return await asyncio.shield(loading)

    async def _read(self, row: SessionRow) -> Session:
        legs = await self.journal.legs(row.key)
        leg = legs[-1]
        backend = self.settings.backend(leg.backend)
        if backend is None:
            raise DragomanError(
                f"Session `{row.id}` belongs to backend `{leg.backend}`, which is not configured.",
                code=ErrorCode.BACKEND_UNAVAILABLE,
            )
        names = await self.journal.aliases(row.key)
        task_id = leg.native_id or self._task_id(row, backend.name, names)
        session = self._make(row, leg, backend, task_id)
        await session.load()
        self._live[row.id] = session
        return session

    def _make(
        self, row: SessionRow, leg: LegRow, backend: BackendSettings, task_id: str
    ) -> Session:
        return Session(
            row,
            leg,
            journal=self.journal,
            codec=self._codec(backend, task_id),
            upstream=self.upstream(backend),
            tasks=self._tasks,
            clock=self.clock,
            ids=self.ids,
            broken=self._lost,
            keep_frames=self.settings.journal.frames,
            patience=_milliseconds(backend.settings.patience_seconds),
            face_settings=self.faces,
        )

    def _task_id(self, row: SessionRow, backend: str, names: Sequence[tuple[str, str]]) -> str:
        """Return the name under which the backend knows the session.

        A frontend's own name passes unchanged only where no other key can choose the same (design
        section 6).
        """
        keys = [k for k in self.settings.keys if k.backends is None or backend in k.backends]
        if len(keys) <= 1:
            for kind, name in names:
                if kind == TASK:
                    return name
        return row.id

    def _lost(self, session: Session) -> None:
        """Hear that the journal failed under a session: forget it, load it again where it has
        work."""
        if self._live.get(session.id) is session:
            del self._live[session.id]
        if not self.stopping and (session.state.busy or not session.quiet):
            self._tasks.start(self._reload(session.id), name=f"reload {session.id}")

    async def _reload(self, session_id: str) -> None:
        wait = RELOAD_SECONDS
        while not self.stopping:
            await self.clock.sleep(wait)
            wait = min(wait * 2, 30.0)
            try:
                await self.get(session_id, owner=None, route=None)
            except SessionNotFound:
                return
            except JournalError as error:
                _log.warning("session `%s` is not loaded again yet: %s", session_id, error.message)
            else:
                return

    async def _put_away(self) -> None:
        while True:
            await self.clock.sleep(QUIET_SECONDS / 2)
            limit = self.clock.monotonic() - QUIET_SECONDS
            for session in list(self._live.values()):
                if session.used_at < limit and session.quiet:
                    self._live.pop(session.id, None)
                    session.close()

    async def _prune_frames(self) -> None:
        """Erase source frames that are older than the configuration keeps them."""
        kept = round(self.settings.journal.frame_retention_hours * 3_600_000)
        while True:
            try:
                await self.journal.prune_frames(before=self.clock.now() - kept)
            except JournalError as error:
                _log.warning("source frames were not pruned: %s", error.message)
            await self.clock.sleep(PRUNE_SECONDS)

    def __len__(self) -> int:
        """Return how many sessions are in memory."""
        return len(self._live)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
