"""All sessions of the process: made, found by any of their names, loaded from the journal, put away
when quiet."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import hmac
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import aiohttp

from adapters import commands as cmd
from adapters import events as ev
from adapters.errors import DragomanError, ErrorCode, NotSupported
from adapters.registry import DIALECTS
from proxy import metrics
from proxy.clock import Clock, Ids
from proxy.errors import CursorExpired, JournalError, SessionExpired, SessionNotFound
from proxy.hub import entries_of
from proxy.journal.base import Journal, LegRow, NewSession, SessionRow
from proxy.repeats import IDEMPOTENT, REQUEST, Asked, InOrder, identity
from proxy.retention import Doomed, Limits, choose
from proxy.session import Session, codec_of
from proxy.settings import BackendSettings, Settings
from proxy.tasks import Tasks
from proxy.upstream.client import Upstream

QUIET_SECONDS = 30.0
"""How long a session that nobody uses stays in memory: long enough for a client that reconnects."""

WORK_AT_ONCE = 6
"""Sessions that are loaded, and readers that are given a piece of history, at the same time: each
takes some milliseconds between two looks at what else there is to do."""

ATTACH_PAGE = 256
"""Sessions with work that are looked for at once after a start: the first of them before anybody is
served, so that a journal which cannot be read ends the start."""

DRAIN_LOOK_SECONDS = 0.02
"""How often it is looked whether the last command has been answered while the server stops."""

RELOAD_SECONDS = 1.0
"""How long a session with work waits before it is loaded again after the journal failed."""

PRUNE_SECONDS = 600.0
"""How often source frames past their retention are erased; retention is hours."""

RETENTION_SECONDS = 60.0
"""How often it is looked whether sessions are kept no longer; looking costs 1 ms for 1,000 of
them."""

SETTLE_SECONDS = 5.0
"""How long a command that its sender waits for is given for the backend's own answer."""

HANDLE = "handle"
"""The kind of alias under which faces find a session by a name of their own, such as half a
token."""

TASK = "task"
"""The kind of alias that a frontend chose: an Engine `task_id`."""

T = TypeVar("T")


def handle_of(secret: bytes) -> str:
    """Return the 16 digits that all tokens of a session have in common, whatever dialect made
    it."""
    return hmac.digest(secret, b"handle", "sha256")[:8].hex()


@dataclasses.dataclass(slots=True, eq=False)
class _Request:
    """What a request has looked at until it is answered."""

    sessions: list[Session] = dataclasses.field(default_factory=list)
    answered: bool = False


_request: contextvars.ContextVar[_Request | None] = contextvars.ContextVar("request", default=None)

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
        self._loading: dict[str, asyncio.Future[Session]] = {}
        self._upstreams: dict[str, Upstream] = {}
        self._codec_settings: dict[str, Mapping[str, Any]] = {}
        self.in_order = InOrder()
        self._requests: set[asyncio.Task[Any]] = set()
        self._gate = asyncio.Semaphore(WORK_AT_ONCE)
        self.stopping = False
        self._closed = False
        self.faces: Mapping[str, Mapping[str, Any]] = {
            "eve": {"form": settings.eve.form, "token_rotation": settings.eve.token_rotation}
        }

    async def open(self) -> None:
        """Begin to load the sessions that have work under way, and to attach to their backends; who
        asks for one of them before has it loaded at once.

        Raises:
            JournalError: the journal cannot be read.
        """
        rows = await self._at_work(None)
        if rows:
            self._tasks.start(self._attach(rows), name="attach to backends")
        self._tasks.start(self._put_away(), name="put quiet sessions away")
        if self.settings.journal.frames:
            self._tasks.start(self._prune_frames(), name="prune source frames")
        if Limits.of(self.settings.retention):
            self._tasks.start(self._retain(), name="retention")

    async def _at_work(self, before: int | None) -> list[SessionRow]:
        return await self.journal.sessions(
            states=("running", "paused"), before=before, limit=ATTACH_PAGE
        )

    async def _attach(self, rows: Sequence[SessionRow]) -> None:
        # As many again as the gate lets through: it is never idle, and who asks waits for few.
        room = asyncio.Semaphore(2 * WORK_AT_ONCE)

        async def attach(session_id: str) -> None:
            try:
                # It may have gone on, or be gone, since it was found.
                await self.get(session_id, owner=None, route=None)
            except (SessionNotFound, CursorExpired):
                return
            except JournalError:
                self._tasks.start(self._reload(session_id), name=f"reload {session_id}")
            except DragomanError as error:
                _log.warning("session `%s` stays closed: %s", session_id, error.message)
            finally:
                room.release()

        while rows and not self.stopping:
            for row in rows:
                await room.acquire()
                if self.stopping:
                    return
                self._tasks.start(attach(row.id), name=f"attach {row.id}")
            rows = await self._following(rows)

    async def _following(self, rows: Sequence[SessionRow]) -> Sequence[SessionRow]:
        """Return the next sessions with work, however long the journal cannot be read."""
        if len(rows) < ATTACH_PAGE:
            return ()
        wait = RELOAD_SECONDS
        while True:
            try:
                return await self._at_work(rows[-1].key)
            except JournalError as error:
                _log.warning("sessions with work are not loaded yet: %s", error.message)
            await self.clock.sleep(wait)
            wait = min(wait * 2, 30.0)

    async def drain(self, seconds: float) -> bool:
        """Refuse new work and end all streams; wait, at most `seconds`, until the requests that
        were taken are answered and so is what they sent to backends. Say whether all was.
        """
        self.stopping = True
        for session in list(self._live.values()):
            session.drain()
        due = self.clock.monotonic() + seconds
        while self._requests or any(session.sending for session in self._live.values()):
            if self.clock.monotonic() >= due:
                return False
            await self.clock.sleep(DRAIN_LOOK_SECONDS)
        return True

    async def aclose(self) -> None:
        """Close all sessions; what is under way is taken up at the next start."""
        self.stopping = self._closed = True
        for session in list(self._live.values()):
            session.close()
        self._live.clear()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Keep in memory what is got or made in this context, until its end."""
        request = _Request()
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

    def _hold(self, session: Session) -> Session:
        request = _request.get()
        # A task that a request began has its context still when the request is over.
        if request is not None and not request.answered and session not in request.sessions:
            request.sessions.append(session)
            session.holders += 1
        return session

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
        settings = self._codec_settings.get(backend.name)
        if settings is None:
            settings = self._codec_settings[backend.name] = {
                **backend.settings.model_dump(exclude_none=True),
                **backend.create.model_dump(exclude_none=True),
            }
        return make({**settings, "task_id": task_id})

    def upstream(self, backend: BackendSettings) -> Upstream:
        """Return the connections to a backend."""
        upstream = self._upstreams.get(backend.name)
        if upstream is None:
            credential = backend.credential
            auth = {} if credential is None else {credential.header: credential.value}
            upstream = self._upstreams[backend.name] = Upstream(self._http, backend.url, auth)
        return upstream

    def public_upstream(self, backend: BackendSettings) -> Upstream:
        """Return connections to a backend that carry no credential of ours: for its routes which
        are open to everybody, whose callers must not get rights by passing through here."""
        return Upstream(self._http, backend.url, {})

    async def create(
        self,
        *,
        owner: str,
        route: str,
        dialect: str,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        aliases: Sequence[tuple[str, str]] = (),
        succeeds: SessionRow | None = None,
        asked: Asked | None = None,
    ) -> Session:
        """Make a session that nothing is said in yet; for the rest see `create_with`."""
        session, _ = await self.create_with(
            (),
            by=owner,
            owner=owner,
            route=route,
            dialect=dialect,
            title=title,
            metadata=metadata,
            options=options,
            aliases=aliases,
            succeeds=succeeds,
            asked=asked,
        )
        return session

    async def create_with(
        self,
        commands: Sequence[cmd.AnyCommand],
        *,
        by: str,
        owner: str,
        route: str,
        dialect: str,
        blobs: Mapping[str, bytes] | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        aliases: Sequence[tuple[str, str]] = (),
        succeeds: SessionRow | None = None,
        asked: Asked | None = None,
    ) -> tuple[Session, list[str]]:
        """Make a session on a route's backend and submit its first commands, `by` a key through the
        face of `dialect`; return it and their ids. Durable on return, as one: when a command is
        refused there is no session either.

        `succeeds` is an expired session whose names it takes over. It begins with a gap, and an
        Engine goes on with the same task: that has a memory of its own. A repeat of the request
        `asked` is found by `made_by` from then on.

        Raises:
            DragomanError: there is no such route, its backend cannot be driven, or a command is
                refused as by `Session.submit`.
            JournalError: it could not be stored, or a name is taken.
        """
        backend, native_id = self.backend_of(route), None
        if succeeds is not None:
            backend, native_id = await self._last_of(succeeds, backend)
        session_id = self.ids.mint("dgs")
        now = self.clock.now()
        if asked is not None and not commands:
            # Else the first command has it.
            options = {**(options or {}), REQUEST: identity(asked, session_id, sealed=False)}
        started = ev.SessionStarted(
            thread_id=ev.MAIN,
            agent={"id": backend.create.agent or backend.name, "name": backend.name},
            title=title,
            metadata=dict(metadata) if metadata else None,
            options=dict(options) if options else None,
            synthetic=True,
        )
        secret = self.ids.bytes(32)
        # Also a session of another dialect is found by the tokens that the eve face shows of it.
        codec = codec_of(dialect, backend.name, self.faces.get(dialect, {}))
        names = [*aliases, (HANDLE, handle_of(secret))]
        if asked is not None and asked.key is not None:
            names.append((IDEMPOTENT, asked.key))
        row = SessionRow(
            self.journal.new_key(), session_id, owner, route, dialect, now, secret, updated_at=now
        )
        new = NewSession(
            row,
            backend.name,
            native_id,
            codec,
            names,
            None if succeeds is None else succeeds.key,
            [] if asked is None else [(REQUEST, asked.body)],
        )
        task_id = native_id or self._task_id(row, backend.name, names)
        session = self._make(row, LegRow(row.key, 0, backend.name, native_id), backend, task_id)
        first: list[ev.Event] = [started]
        if succeeds is not None:
            first += [
                ev.SessionUpdated(thread_id=ev.MAIN, predecessor=succeeds.id, synthetic=True),
                ev.Gap(
                    thread_id=ev.MAIN,
                    reason="What was said before is no longer kept.",
                    synthetic=True,
                ),
            ]
        # Who finds it on disk before we hear that it is there waits for this one: two of it would
        # send its first message twice.
        made = self._loading[row.id] = asyncio.get_running_loop().create_future()
        try:
            ids = await session.begin(new, first, commands, by=by, blobs=blobs, asked=asked)
            self._admit(session)
            made.set_result(self._hold(session))
        except DragomanError as error:
            made.set_exception(error)
            raise
        finally:
            del self._loading[row.id]
            # Also where it has failed: else asyncio complains where nobody waits for it.
            made.cancel()
        return session, ids

    async def made_by(
        self, asked: Asked, *, owner: str, route: str
    ) -> tuple[Session, list[str]] | None:
        """Return the session that a create made which `asked` repeats, and the ids of its first
        commands; None where it is new.

        Raises:
            DragomanError: its `Idempotency-Key` is another request's, or that session's, which is
                gone.
        """
        kind, name = (REQUEST, asked.body) if asked.key is None else (IDEMPOTENT, asked.key)
        found = await self.journal.resolve(owner=owner, route=route, kind=kind, name=name)
        if found is None:
            return None
        try:
            session = await self.get(found, owner=owner, route=route)
        except DragomanError:
            if asked.key is None:
                # Whatever became of it, who asks did not say that it is the same.
                return None
            raise
        ids = session.repeated(asked)
        if ids is None and asked.key is not None:
            # The key holds for as long as the session; what else it said, not so long.
            ids = []
        return None if ids is None else (session, ids)

    async def _last_of(
        self, row: SessionRow, backend: BackendSettings
    ) -> tuple[BackendSettings, str | None]:
        """Return the backend of an expired session, where it is still configured, and the name of
        the task that an Engine knows it by."""
        leg = (await self.journal.legs(row.key))[-1]
        known = self.settings.backend(leg.backend)
        if known is None or known.dialect != "engine":
            return known or backend, None
        names = await self.journal.aliases(row.key)
        return known, leg.native_id or self._task_id(row, known.name, names)

    async def get(self, name: str, *, owner: str | None, route: str | None) -> Session:
        """Return the session that `name` stands for: its public id, or an alias in its owner's
        route.

        `owner` and `route` are None only for those who may see all. Whether the asker may is
        `authorize`'s to say.

        Raises:
            SessionNotFound: there is none, or it was deleted.
            SessionExpired: it is no longer kept; only its owner hears that, or who may see all.
        """
        live = self._live.get(name)
        if live is not None and not live.closed:
            if live.state.ended == "deleted":
                raise SessionNotFound(f"There is no session `{name}`.")
            live.used_at = self.clock.monotonic()
            return self._hold(live)
        try:
            async with self._gate:
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
        if row.state == "expired":
            if owner not in (None, row.owner) or route not in (None, row.route):
                raise SessionNotFound("There is no such session.")
            raise SessionExpired(row)
        session = await self._load(row)
        while session.closed and not self._closed:
            # It was loaded long before we came to hear of it, and put away again.
            session = await self._load(row)
        return self._hold(session)

    async def keep(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that goes on when the client leaves: what is half accepted must not stay half.

        Raises:
            DragomanError: whatever the work raises.
        """

        async def outcome() -> tuple[T | None, DragomanError | None]:
            # The task has no part in the request's context.
            with self.holding():
                try:
                    return await work, None
                except DragomanError as error:
                    return None, error

        task = self._tasks.start(outcome(), name="request")
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        result, error = await asyncio.shield(task)
        if error is not None:
            raise error
        return cast(T, result)

    async def carry_out(
        self, session: Session, command: cmd.AnyCommand, *, by: str, face: str
    ) -> None:
        """Submit a command and wait for what comes of it.

        Raises:
            DragomanError: the backend refused, or did not answer in time.
        """
        after = session.last_seq
        (command_id,) = await session.submit([command], by=by, face=face)
        due = self.clock.monotonic() + SETTLE_SECONDS
        while True:
            news = session.news()
            if command_id not in session.state.inputs:
                break
            left = due - self.clock.monotonic()
            if left <= 0 or session.closed or not await self.clock.wait(news, left):
                text = "The backend has not answered yet; look again later."
                raise DragomanError(text, code=ErrorCode.BACKEND_TIMEOUT)
        if session.state.ended == "deleted":
            # What is stored of it is being erased.
            return
        async for chunk in self.journal.scan(session.row.key, after=after):
            for entry in entries_of(chunk.body, session.id):
                event = entry.event
                if (
                    isinstance(event, ev.InputSettled)
                    and event.command_id == command_id
                    and event.outcome != "taken"
                ):
                    raise DragomanError(
                        event.reason or "The backend refused.", code=ErrorCode.BACKEND_REFUSED
                    )

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
        async with self._gate:
            return await self._read_now(row)

    async def _read_now(self, row: SessionRow) -> Session:
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
        if self.stopping:
            session.drain()
        await session.load(names)
        self._admit(session)
        return session

    def _admit(self, session: Session) -> None:
        """Take a session that is made or loaded among those in memory."""
        if self._closed:
            # Whoever waits for it finds it closed; what was under way is the next start's.
            session.close()
            return
        if self.stopping:
            session.drain()
        self._live[session.id] = session

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
            deleted=self._erase_soon,
            keep_frames=self.settings.journal.frames,
            patience=_milliseconds(backend.settings.patience_seconds),
            face_settings=self.faces,
            gate=self._gate,
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
            metrics.LOST.inc()
        # One that was being made is not there.
        stored = session.last_seq > 0
        if stored and not self.stopping and (session.state.busy or not session.quiet):
            self._tasks.start(self._reload(session.id), name=f"reload {session.id}")

    async def _reload(self, session_id: str) -> None:
        wait = RELOAD_SECONDS
        while not self.stopping:
            await self.clock.sleep(wait)
            wait = min(wait * 2, 30.0)
            try:
                await self.get(session_id, owner=None, route=None)
            except (SessionNotFound, CursorExpired):
                return
            except JournalError as error:
                _log.warning("session `%s` is not loaded again yet: %s", session_id, error.message)
            else:
                return

    async def _put_away(self) -> None:
        while True:
            await self.clock.sleep(QUIET_SECONDS / 2)
            self._put_quiet_away()

    def _put_quiet_away(self) -> None:
        limit = self.clock.monotonic() - QUIET_SECONDS
        for session in list(self._live.values()):
            if session.used_at < limit and session.quiet:
                self._live.pop(session.id, None)
                session.close()

    def _erase_soon(self, session: Session) -> None:
        """Hear that a session was deleted: what is stored of it goes. A stop in between is made
        good by the journal itself when it is opened."""
        if not self.stopping:
            self._tasks.start(self._erase(session.row), name=f"erase {session.id}")

    async def _erase(self, row: SessionRow) -> None:
        wait = RELOAD_SECONDS
        while not self.stopping:
            try:
                await self.erase(row)
            except JournalError as error:
                _log.warning("session `%s` is not erased yet: %s", row.id, error.message)
                await self.clock.sleep(wait)
                wait = min(wait * 2, 30.0)
            else:
                return

    async def erase(self, row: SessionRow) -> None:
        """Erase what is stored of a session, whatever its backend has; durable on return.

        Raises:
            JournalError: it could not be done.
        """
        self._forget(row.id)
        await self.journal.delete(row.key, at=self.clock.now())
        await self._forget_erased(row.id)

    async def _forget_erased(self, session_id: str) -> None:
        """Forget a session of which nothing is stored any more, one too that somebody found before
        it was erased and that is still being loaded."""
        loading = self._loading.get(session_id)
        if loading is not None:
            await asyncio.wait([loading])
        self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        live = self._live.pop(session_id, None)
        if live is not None:
            live.close()

    async def prune(
        self,
        limits: Limits,
        *,
        owner: str | None = None,
        may: Callable[[SessionRow], bool] = lambda _: True,
        dry_run: bool = False,
    ) -> list[Doomed]:
        """Erase the sessions that the limits do not keep, of one owner or of all, and return them.

        One in which something begins meanwhile is kept. With `dry_run` they are returned only.

        Raises:
            JournalError: it could not be done.
        """
        gone: list[Doomed] = []
        for doomed in await choose(
            self.journal, limits, now=self.clock.now(), owner=owner, may=may
        ):
            row = doomed.row
            live = self._live.get(row.id)
            if row.id in self._loading or (live is not None and not live.idle):
                continue
            if not dry_run:
                now = self.clock.now()
                if not await self.journal.expire(row.key, unless_after=row.updated_at, at=now):
                    continue
                # Its readers have all there was; who comes back is told.
                await self._forget_erased(row.id)
            gone.append(doomed)
        return gone

    async def _retain(self) -> None:
        """Keep to the limits of the configuration."""
        limits = Limits.of(self.settings.retention)
        while True:
            try:
                gone = await self.prune(limits)
            except JournalError as error:
                _log.warning("retention waits: %s", error.message)
            else:
                if gone:
                    size = sum(doomed.row.bytes for doomed in gone)
                    _log.info("retention erased %d sessions of %d bytes", len(gone), size)
            await self.clock.sleep(RETENTION_SECONDS)

    async def _prune_frames(self) -> None:
        """Erase source frames that are older than the configuration keeps them."""
        kept = round(self.settings.journal.frame_retention_hours * 3_600_000)
        while True:
            try:
                await self.journal.prune_frames(before=self.clock.now() - kept)
            except JournalError as error:
                _log.warning("source frames were not pruned: %s", error.message)
            await self.clock.sleep(PRUNE_SECONDS)

    @property
    def readers(self) -> int:
        """Return how many streams of frontends are open."""
        return sum([session.readers for session in self._live.values()])

    def __len__(self) -> int:
        """Return how many sessions are in memory."""
        return len(self._live)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
