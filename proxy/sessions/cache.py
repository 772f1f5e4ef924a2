"""The sessions in memory: found by any of their names, loaded from the journal when somebody asks,
kept while a request looks at them, put away when quiet.

Why one module: how a session comes into memory, is found there and leaves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Iterator

from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError
from proxy.base import metrics
from proxy.base.errors import (
    CursorExpired,
    JournalCorrupt,
    JournalError,
    JournalUnavailable,
    SessionElsewhere,
    SessionExpired,
    SessionNotFound,
)
from proxy.base.rows import AliasKind, BackendBinding, SessionRow
from proxy.config.settings import BackendSettings
from proxy.fanout.hub import entries_by_steps
from proxy.journal.base import MINTED
from proxy.recording.recording import Captures
from proxy.recording.session import SessionCapture
from proxy.session import Session, SessionContext, SessionCore
from proxy.sessions.backends import Backends
from proxy.telemetry.tracing import Tracing

UNASKED_MS = 7 * 86_400_000
"""How long a turn may be silent whose backend cannot be asked: its codec ends it before."""

QUIET_SECONDS = 30.0
"""How long a session that nobody uses stays in memory: long enough for a client that reconnects."""

RELOAD_SECONDS = 1.0
"""How long a session with work waits before it is loaded again after the journal failed."""

RETRY_MOST_SECONDS = 30.0
"""The longest wait between two attempts at what the journal refuses."""


_NOT_REACHED = "The process that has the session cannot be reached now; try again."

last_attempt: contextvars.ContextVar[bool] = contextvars.ContextVar("last_attempt", default=False)
"""Whether nobody waits any longer for the process that has a session."""

_OURS = re.compile(f"{MINTED}.*|[0-9a-f]{{16}}")
"""What is like the id or the handle of a session."""

_log = logging.getLogger(__name__)

Loaded = Session | DragomanError | SessionElsewhere
"""A session, or why it is not loaded."""


@dataclasses.dataclass(slots=True, eq=False)
class _RequestHolds:
    """What a request has looked at until it is answered."""

    sessions: list[Session] = dataclasses.field(default_factory=list)
    answered: bool = False


_request: contextvars.ContextVar[_RequestHolds | None] = contextvars.ContextVar(
    "request", default=None
)


@dataclasses.dataclass(eq=False)
class SessionCache:
    """The sessions in memory.

    `erasing` are those whose stored log is being erased: a command ends with them. `stopping` says
    that they begin nothing new, `closed` that no session is to stay. `deleted` hears of a session
    whose log says that it is deleted, `rested` of one that comes to rest, with its newest seq.
    """

    context: SessionContext
    backends: Backends
    _: dataclasses.KW_ONLY
    captures: Captures | None
    tracing: Tracing | None
    deleted: Callable[[Session], None] = dataclasses.field(default=lambda _: None, init=False)
    rested: Callable[[Session, int], None] = dataclasses.field(default=lambda *_: None, init=False)
    loading: dict[str, asyncio.Future[Session | DragomanError | SessionElsewhere]] = (
        dataclasses.field(default_factory=dict, init=False)
    )
    erasing: set[str] = dataclasses.field(default_factory=set, init=False)
    stopping: bool = dataclasses.field(default=False, init=False)
    closed: bool = dataclasses.field(default=False, init=False)
    _sessions: dict[str, Session] = dataclasses.field(default_factory=dict, init=False)
    # By their handles, and by owner, route and a name that a frontend chose.
    _handles: dict[str, Session] = dataclasses.field(default_factory=dict, init=False)
    _tasks: dict[tuple[str, str, str], Session] = dataclasses.field(
        default_factory=dict, init=False
    )

    def __len__(self) -> int:
        """Return how many sessions are in memory."""
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Yield the sessions that are in memory now."""
        return iter(list(self._sessions.values()))

    def __contains__(self, session_id: object) -> bool:
        """Say whether a session is in memory."""
        return session_id in self._sessions

    def at_hand(self, session_id: str) -> Session | None:
        """Return a session if it is in memory."""
        return self._sessions.get(session_id)

    # Who looks at them.

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Keep in memory what is got or made in this context, until its end."""
        request = _RequestHolds()
        token = _request.set(request)
        try:
            yield
        finally:
            _request.reset(token)
            request.answered = True
            for session in request.sessions:
                session.holders -= 1
            # What the request began has its context still.
            request.sessions.clear()

    def hold(self, session: Session) -> Session:
        """Keep a session in memory until the request of this context is answered."""
        request = _request.get()
        # A task that a request began has its context still when the request is over.
        if request is not None and not request.answered and session not in request.sessions:
            request.sessions.append(session)
            session.holders += 1
        return session

    # Finding.

    async def get(self, name: str, *, owner: str | None, route: str | None) -> Session:
        """Return the session that `name` stands for: its public id, or an alias in its owner's
        route.

        `owner` and `route` are None for those who may see all. Whether the asker may is
        `authorize`'s to say; but another owner's session does not count, so that its id is free to
        be a name of the asker's own.

        Raises:
            SessionNotFound: there is none, or it was deleted.
            SessionExpired: it is no longer kept; only its owner is told that, or who may see all.
        """
        live = self._at_hand(name, owner, route)
        if live is not None and not live.closed:
            if live.state.about.ended == "deleted":
                raise SessionNotFound(f"There is no session `{name}`.")
            live.used_at = self.context.clock.monotonic()
            return self.hold(live)
        try:
            async with self.context.slots:
                row = await self.context.journal.session(name)
            if owner not in (None, row.owner):
                # Before it is loaded: whether it can be is nobody else's business.
                raise SessionNotFound("There is no such session.")
        except SessionNotFound:
            if owner is None or route is None:
                raise
            found = await self._resolve(name, owner, route)
            if found is None:
                # In the words of `authorize`: nobody learns whether it is another key's.
                raise SessionNotFound("There is no such session.") from None
            return await self.get(found, owner=owner, route=route)
        check_there(row, name, route)
        try:
            session = await self._load(row)
            while session.closed and not self.closed:
                # It was loaded long before we came to hear of it, and put away again.
                session = await self._load(row)
        except CursorExpired:
            # It was erased while it was loaded.
            check_there(await self.context.journal.session(row.id), name, route)
            raise
        return self.hold(session)

    def _at_hand(self, name: str, owner: str | None, route: str | None) -> Session | None:
        """Return the session in memory that `name` stands for; None where the journal is asked."""
        live = self._sessions.get(name)
        if live is not None and owner in (None, live.row.owner):
            return live
        if owner is None or route is None:
            return None
        live = self._handles.get(name)
        if live is not None and (live.row.owner, live.row.route) == (owner, route):
            return live
        live = self._tasks.get((owner, route, name))
        # Our own ids count before what a frontend chose, and their sessions may not be in memory.
        return None if live is None or _OURS.fullmatch(name) else live

    async def _resolve(self, name: str, owner: str, route: str) -> str | None:
        for kind in (AliasKind.HANDLE, AliasKind.TASK):
            found = await self.context.journal.resolve(
                owner=owner, route=route, kind=kind, name=name
            )
            if found is not None:
                return found
        return None

    # Loading.

    async def _load(self, row: SessionRow) -> Session:
        """Return the session in memory, loading it once however many ask."""
        live = self._sessions.get(row.id)
        if live is not None and not live.closed:
            return live
        loading = self.loading.get(row.id)
        if loading is None:
            loading = self.context.tasks.start(self._read(row), name=f"load {row.id}")
            self.loading[row.id] = loading
            loading.add_done_callback(lambda _: self.loading.pop(row.id, None))
        found = await asyncio.shield(loading)
        if isinstance(found, SessionElsewhere) and last_attempt.get():
            raise JournalUnavailable(str(found), details={"retry_after": 1}, shown=_NOT_REACHED)
        if isinstance(found, Exception):
            raise found
        return found

    async def _read(self, row: SessionRow) -> Loaded:
        """Load a session, or return why it cannot be: where only its backend is missing that is
        for who asks, and no failure that is logged as an error whenever somebody does."""
        try:
            async with self.context.slots:
                return await self._read_now(row)
        except (CursorExpired, SessionElsewhere) as error:
            return error
        except JournalError:
            raise
        except DragomanError as error:
            return error

    async def _read_now(self, row: SessionRow) -> Session:
        journal = self.context.journal
        if journal.shared is None:
            return await self._read_ours(row)
        if (owner := await journal.claim(row.key)) is not None:
            raise SessionElsewhere(owner)
        try:
            # Another may have written to it since it was found.
            return await self._read_ours(await journal.session(row.id))
        except BaseException:
            # Another may be able to.
            journal.let_go(row.key)
            raise

    async def _read_ours(self, row: SessionRow) -> Session:
        leg = (await self.context.journal.legs(row.key))[-1]
        backend = self.backends.of_leg(leg)
        names = await self.context.journal.aliases(row.key)
        session = self.make(row, leg, backend, await self._recorded(row, backend))
        if self.stopping:
            session.drain()
        try:
            await session.load(names)
        except BaseException:
            # What it may have begun ends, and its parts let go of each other.
            session.close()
            raise
        self.admit(session, names)
        return session

    async def _recorded(self, row: SessionRow, backend: BackendSettings) -> SessionCapture | None:
        """Return the capture that goes on with a session, with all that is stored of it."""
        if self.captures is None:
            return None
        capture = await self.captures.go_on(row, backend.dialect)
        if capture is not None:
            # What was stored just before a crash is not there.
            async for chunk in self.context.journal.scan(row.key, after=capture.seq):
                capture.entries([e async for e in entries_by_steps(chunk.body, row.id)])
                # So much is not to wait in memory.
                await self.captures.written()
        return capture

    def begin_capture(self, row: SessionRow, backend: BackendSettings) -> SessionCapture | None:
        """Return where a session that is made now is recorded, if it is."""
        return None if self.captures is None else self.captures.begin(row, backend.dialect)

    def make(
        self,
        row: SessionRow,
        leg: BackendBinding,
        backend: BackendSettings,
        capture: SessionCapture | None = None,
    ) -> Session:
        """Return a session that is neither begun nor loaded; `capture` is where it is recorded."""
        upstream = self.backends.upstream(backend)
        if capture is not None and not leg.number:
            # Of a session that has moved the log is recorded, and what frontends see.
            upstream = upstream.recorded(capture)
        receives = DIALECTS[backend.dialect].has_receiver
        spans = None
        if self.tracing is not None:
            names = {"backend": leg.backend, "dialect": backend.dialect}
            spans = self.tracing.of(row.id, row.route, **names)
        core = SessionCore(
            row,
            leg,
            self.context,
            codec=self.backends.codec_of(backend, row, leg),
            upstream=upstream,
            patience=backend.settings.patience_ms,
            silence=UNASKED_MS if receives else backend.settings.quiet_ms,
            capture=capture,
            spans=spans,
        )
        return Session(core, self._lost, self.deleted, self.rested)

    def admit(self, session: Session, names: Iterable[tuple[str, str]]) -> None:
        """Take a session that is made or loaded among those in memory; `names` are its aliases."""
        if self.closed:
            # Anybody who waits for it finds it closed; what was under way is the next start's.
            session.close()
            return
        if self.stopping:
            session.drain()
        row = session.row
        self._sessions[row.id] = self._handles[row.handle] = session
        for kind, name in names:
            if kind == AliasKind.TASK:
                # Another session may go on without it, see `SessionRequest.replaces`.
                self._tasks[row.owner, row.route, name] = session
                session.names.append(name)

    # Leaving.

    def forget(self, session_id: str) -> None:
        """Let a session leave memory."""
        live = self._sessions.get(session_id)
        if live is not None:
            self._remove(live)
            live.close()

    def _remove(self, session: Session) -> None:
        """Take a session out of memory, and its names."""
        row = session.row
        del self._sessions[row.id], self._handles[row.handle]
        self.context.journal.let_go(row.key)
        for name in session.names:
            if self._tasks.get((row.owner, row.route, name)) is session:
                del self._tasks[row.owner, row.route, name]

    async def forget_erased(self, session_id: str) -> None:
        """Forget a session that is no longer stored, one too that somebody found before
        it was erased and that is still being loaded."""
        loading = self.loading.get(session_id)
        if loading is not None:
            await asyncio.wait([loading])
        self.forget(session_id)

    def using(self, backend: str) -> int:
        """Return how many sessions are busy on a backend, or read by somebody; those of it that are
        not leave memory."""
        busy = 0
        for session in self:
            if session.leg.backend != backend:
                continue
            if session.quiet:
                self.forget(session.id)
            else:
                busy += 1
        return busy

    def put_quiet_away(self) -> None:
        """Let the sessions leave memory that nobody has used for long."""
        limit = self.context.clock.monotonic() - QUIET_SECONDS
        for session in self:
            if session.used_at < limit and session.quiet:
                self.forget(session.id)

    def drain(self) -> None:
        """Begin nothing new and end all readers, of sessions too that are still to come."""
        self.stopping = True
        for session in self:
            session.drain()

    def close(self) -> None:
        """Close all sessions, those too that are still to come."""
        self.stopping = self.closed = True
        for session in self:
            session.close()
        self._sessions.clear()
        self._handles.clear()
        self._tasks.clear()

    def _lost(self, session: Session) -> None:
        """Record that the journal failed under a session: forget it, load it again where it has
        work."""
        if self._sessions.get(session.id) is session:
            self._remove(session)
            metrics.LOST.inc()
        # One that was being made is not there.
        stored = session.last_seq > 0
        if stored and not self.stopping and (session.state.busy or not session.quiet):
            self.reload(session.id)

    def reload(self, session_id: str) -> None:
        """Load a session as soon as the journal can be read."""
        self.context.tasks.start(self._reload(session_id), name=f"reload {session_id}")

    async def _reload(self, session_id: str) -> None:
        wait = RELOAD_SECONDS
        while not self.stopping:
            await self.context.clock.sleep(wait)
            wait = min(wait * 2, RETRY_MOST_SECONDS)
            try:
                await self.get(session_id, owner=None, route=None)
            except (SessionNotFound, CursorExpired, SessionElsewhere):
                return
            except JournalCorrupt as error:
                _log.error("session `%s` stays closed: %s", session_id, error.whole)
                return
            except JournalError as error:
                # Once a journal that fails is told, not for each session and attempt.
                level = logging.DEBUG if wait > 2 * RELOAD_SECONDS else logging.WARNING
                if await self.context.journal.trouble() is not None:
                    level = logging.DEBUG
                text = "session `%s` is not loaded again yet: %s"
                _log.log(level, text, session_id, error.whole)
            else:
                return


def check_there(row: SessionRow, name: str, route: str | None) -> None:
    """Check that a session is kept, for one who may see its owner's and asks by `name` and `route`.

    Raises:
        SessionNotFound: it was deleted, or is no longer kept and of another route.
        SessionExpired: it is no longer kept.
    """
    if row.state == "deleted":
        raise SessionNotFound(f"There is no session `{name}`.")
    if row.state == "expired":
        if route not in (None, row.route):
            raise SessionNotFound("There is no such session.")
        raise SessionExpired(row)
