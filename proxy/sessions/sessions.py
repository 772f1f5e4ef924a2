"""All sessions of the process, as the rest of the proxy uses them: the facade of `cache`,
`factory`, `retention` and `backends`, and their start and stop.

Why one module: it is the list of what the rest of the proxy does with sessions, and each is short.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, cast

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base import metrics, traces
from proxy.base.clock import Clock, IdSource
from proxy.base.errors import (
    CursorExpired,
    JournalCorrupt,
    JournalError,
    SessionElsewhere,
    SessionNotFound,
)
from proxy.base.locks import KeyedLock
from proxy.base.repeats import Submission
from proxy.base.rows import SessionRow
from proxy.base.tasks import Tasks
from proxy.config.settings import SHADOWS, BackendSettings, Settings
from proxy.fanout.hub import entries_by_steps
from proxy.http.auth import Key
from proxy.http.bodies import BodyReader
from proxy.http.forwarding import Forwarder
from proxy.http.quotas import Quotas
from proxy.journal.base import Journal
from proxy.recording.recording import Captures
from proxy.session import RESET_SECONDS, Session, SessionContext
from proxy.sessions.backends import Backends
from proxy.sessions.cache import (
    QUIET_SECONDS,
    RELOAD_SECONDS,
    RETRY_MOST_SECONDS,
    SessionCache,
    last_attempt,
)
from proxy.sessions.factory import SessionFactory, SessionRequest
from proxy.sessions.reader_presence import ReaderPresence
from proxy.sessions.retention import Retention
from proxy.sessions.retention_limits import ExpiredSession, RetentionLimits
from proxy.sessions.turn_clients import TurnClients
from proxy.telemetry.tracing import Tracing

TAKE_OVER_SECONDS = 0.25
"""How often it is looked for sessions with work that no process has."""

SHARES_SECONDS = 0.25
"""How often the shares of routes are read that another process may have set."""

WORK_AT_ONCE = 6
"""Sessions that are loaded, and readers that are given a piece of history, at the same time: each
holds up everybody else for a moment."""

ATTACH_PAGE = 256
"""Sessions with work that are looked for at once after a start: the first of them before anybody is
served, so that a journal which cannot be read ends the start."""

SETTLE_SECONDS = 5.0
"""How long a command that its sender waits for is given for the backend's own answer."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class Sessions:
    """The sessions. Opened with `open`, closed with `aclose`."""

    settings: Settings
    journal: Journal
    _: dataclasses.KW_ONLY
    tasks: Tasks
    clock: Clock
    ids: IdSource
    backends: Backends
    captures: Captures | None = None
    tracing: dataclasses.InitVar[Tracing | None] = None
    keys: Sequence[Key] = dataclasses.field(init=False)
    in_order: KeyedLock = dataclasses.field(default_factory=KeyedLock, init=False)
    """Of equal requests, by owner and route: two must be one, and one that comes again while its
    first is still being accepted must find that."""
    turn_clients: Mapping[str, TurnClients] = dataclasses.field(
        default_factory=lambda: defaultdict(TurnClients), init=False
    )
    """By face: who leaves one listener may say more at another, or by way of another process."""
    unread: ReaderPresence = dataclasses.field(init=False)
    arrivals: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock, init=False)
    """One session at a time arrives from another installation."""
    bodies: BodyReader = dataclasses.field(init=False)
    quotas: Quotas = dataclasses.field(init=False)
    slots: asyncio.Semaphore = dataclasses.field(init=False)
    faces: Mapping[str, Mapping[str, Any]] = dataclasses.field(init=False)
    cache: SessionCache = dataclasses.field(init=False)
    forwarder: Forwarder | None = dataclasses.field(default=None, init=False)
    """Asks the processes that share the journal, where there are any."""
    configurations_differ: bool = dataclasses.field(default=False, init=False)
    """Whether one of them has another configuration."""
    resumed: int = dataclasses.field(default=0, init=False)
    """How many sessions with work the start found."""
    _factory: SessionFactory = dataclasses.field(init=False)
    _retention: Retention = dataclasses.field(init=False)
    _requests: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set, init=False)

    def __post_init__(self, tracing: Tracing | None) -> None:
        settings, journal, clock, ids = self.settings, self.journal, self.clock, self.ids
        self.keys = Key.from_settings(settings.keys)
        self.unread = ReaderPresence(clock.now())
        self.bodies = BodyReader(settings.server)
        self.quotas = Quotas(settings.limits, clock.monotonic)
        self.slots = asyncio.Semaphore(WORK_AT_ONCE)
        self.faces = {
            name: {key: settings.face(name)[key] for key in known.shaped_by}
            for name, known in DIALECTS.items()
            if known.has_face
        }
        context = SessionContext(
            journal=journal,
            tasks=self.tasks,
            clock=clock,
            ids=ids,
            slots=self.slots,
            keep_frames=settings.journal.frames,
            faces=self.faces,
        )
        self.cache = SessionCache(context, self.backends, captures=self.captures, tracing=tracing)
        self._factory = SessionFactory(
            self.cache, journal, self.backends, clock=clock, ids=ids, faces=self.faces
        )
        self._retention = Retention(self.cache, journal, tasks=self.tasks, clock=clock)
        self.cache.deleted = self._retention.erase_soon

    # Start and stop.

    async def open(self) -> None:
        """Begin to load the sessions that have work under way, and to attach to their backends; who
        asks for one of them before has it loaded at once.

        Raises:
            JournalError: the journal cannot be read.
            ConfigError: a backend with sessions is of another dialect than it was.
        """
        await self.backends.open(self.journal)
        if self.journal.shared is not None:
            self.tasks.start(self._take_over(), name="take over what nobody has")
            self.tasks.start(self._follow_shares(), name="follow the shares of routes")
        else:
            rows = await self._at_work(None)
            self.resumed = len(rows)
            metrics.RESUMED.inc(len(rows))
            if rows:
                self.tasks.start(self._attach(rows), name="attach to backends")
        self.tasks.start(self._put_away(), name="put quiet sessions away")
        kept = self.settings.journal
        if kept.frames:
            work = self._retention.prune_frames(kept.frame_retention_hours)
            self.tasks.start(work, name="prune source frames")
        if limits := RetentionLimits.of(self.settings.retention):
            self.tasks.start(self._retention.retain(limits), name="retention")

    async def _at_work(self, before: int | None) -> list[SessionRow]:
        return await self.journal.sessions(
            states=("running", "paused"), before=before, limit=ATTACH_PAGE
        )

    async def _attach(self, rows: Sequence[SessionRow]) -> None:
        # Twice as many as there are slots: no slot is ever idle, and who asks waits for few.
        room = asyncio.Semaphore(2 * WORK_AT_ONCE)

        async def attach(session_id: str) -> None:
            try:
                await self._attach_one(session_id)
            finally:
                room.release()

        while rows:
            for row in rows:
                await room.acquire()
                if self.stopping:
                    return
                self.tasks.start(attach(row.id), name=f"attach {row.id}")
            rows = await self._following(rows)
            metrics.RESUMED.inc(len(rows))

    async def _attach_one(self, session_id: str) -> bool:
        """Load a session with work; it may have gone on, or be gone, since it was found. Say
        whether there is no use in trying that again."""
        try:
            await self.cache.get(session_id, owner=None, route=None)
        except (SessionNotFound, CursorExpired, SessionElsewhere):
            return False
        except JournalCorrupt as error:
            # To read it again would find the same.
            _log.error("session `%s` stays closed: %s", session_id, error.whole)
            return True
        except JournalError:
            self.cache.reload(session_id)
        except DragomanError as error:
            _log.warning("session `%s` stays closed: %s", session_id, error.whole)
            return True
        return False

    async def _take_over(self) -> None:
        """Load the sessions with work that no process has: those of one that has stopped, or is
        gone, and after a start of all of them everybody's."""
        closed: set[str] = set()
        while not self.stopping:
            try:
                names = await self.journal.unclaimed(ATTACH_PAGE + len(closed))
            except JournalError as error:
                _log.debug("it is not known which sessions nobody has: %s", error.whole)
                names = []
            new = [name for name in names if name not in self.cache and name not in closed]
            metrics.TAKEN_OVER.inc(len(new))
            useless = await asyncio.gather(*map(self._attach_one, new))
            closed.update(name for name, stays in zip(new, useless, strict=True) if stays)
            if len(new) < ATTACH_PAGE:
                await self.clock.sleep(TAKE_OVER_SECONDS)

    async def _follow_shares(self) -> None:
        """Use the shares of routes that another process sets."""
        while True:
            await self.clock.sleep(SHARES_SECONDS)
            try:
                await self.backends.shares.follow(self.journal)
            except JournalError as error:
                _log.debug("the shares of routes are not known: %s", error.whole)

    async def _following(self, rows: Sequence[SessionRow]) -> Sequence[SessionRow]:
        """Return the next sessions with work, however long the journal cannot be read."""
        if len(rows) < ATTACH_PAGE:
            return ()
        wait = RELOAD_SECONDS
        while True:
            try:
                return await self._at_work(rows[-1].key)
            except JournalError as error:
                level = logging.DEBUG if wait > RELOAD_SECONDS else logging.WARNING
                _log.log(level, "sessions with work are not loaded yet: %s", error.whole)
            await self.clock.sleep(wait)
            wait = min(wait * 2, RETRY_MOST_SECONDS)

    async def _put_away(self) -> None:
        while True:
            await self.clock.sleep(QUIET_SECONDS / 2)
            self.cache.put_quiet_away()

    @property
    def shared(self) -> bool:
        """Say whether other processes have sessions of the same journal."""
        return self.journal.shared is not None

    @property
    def stopping(self) -> bool:
        """Say whether the server stops."""
        return self.cache.stopping

    async def drain(self, seconds: float) -> bool:
        """Refuse new work and end all streams; wait, at most `seconds`, until the requests that
        were taken are answered and so is what they sent to backends. Say whether all was.
        """
        self.cache.drain()
        due = self.clock.monotonic() + seconds
        while self._requests or any(
            session.sending for session in self.cache if session.row.owner != SHADOWS
        ):
            if self.clock.monotonic() >= due:
                return False
            await self.clock.sleep(0.02)
        return True

    async def aclose(self) -> None:
        """Close all sessions; what is under way is taken up at the next start."""
        self.cache.close()

    # Making and finding.

    def backend_of(self, route: str) -> BackendSettings:
        """Return the backend that a new session of a route goes to.

        Raises:
            DragomanError: there is no such route.
        """
        return self.backends.of(route)

    def check(self, route: str, command: cmd.AnyCommand) -> None:
        """Check, before a session is made, that every backend of a route can carry a command.

        Raises:
            NotSupported: one cannot, and the session might become its.
        """
        self.backends.check(route, command)

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
        submission: Submission | None = None,
    ) -> Session:
        """Make a session that nothing is said in yet; for the rest see `create_with`."""
        names: dict[str, Any] = {"owner": owner, "by": owner, "route": route, "dialect": dialect}
        about: dict[str, Any] = {"title": title, "metadata": metadata, "options": options}
        wanted = SessionRequest(
            **names, **about, aliases=aliases, succeeds=succeeds, submission=submission
        )
        return (await self._factory.make(wanted))[0]

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
        replaces: SessionRow | None = None,
        submission: Submission | None = None,
    ) -> tuple[Session, list[str]]:
        """Make a session on a route's backend and submit its first commands, `by` a key through the
        face of `dialect`; return it and their ids. Durable on return, as one: when a command is
        refused there is no session either.

        `succeeds` is an expired session whose names it takes over. It begins with a gap, and an
        Engine goes on with the same task: that has a memory of its own. `replaces` is one that
        goes on without the names in `aliases`. A repeat of the request `submission` is found by
        `made_by` from then on.

        Raises:
            DragomanError: there is no such route, its backend cannot be driven, or a command is
                refused as by `Session.submit`.
            JournalError: it could not be stored, or a name is taken.
        """
        wanted = SessionRequest(
            owner=owner,
            route=route,
            dialect=dialect,
            by=by,
            commands=commands,
            blobs=blobs,
            title=title,
            metadata=metadata,
            options=options,
            aliases=aliases,
            succeeds=succeeds,
            replaces=replaces,
            submission=submission,
        )
        return await self._factory.make(wanted)

    async def made_by(
        self, submission: Submission, *, owner: str, route: str
    ) -> tuple[Session, list[str]] | None:
        """Return the session that a create made which `submission` repeats, and the ids of its
        first commands; None where it is new.

        Raises:
            DragomanError: its `Idempotency-Key` is another request's, or that session's, which is
                gone.
        """
        return await self._factory.made_by(submission, owner=owner, route=route)

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
        return await self.cache.get(name, owner=owner, route=route)

    # Requests.

    def holding(self) -> contextlib.AbstractContextManager[None]:
        """Keep in memory what is got or made in this context, until its end."""
        return self.cache.holding()

    async def keep(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that goes on when the client leaves: what is half accepted must not stay half.

        Raises:
            DragomanError: whatever the work raises.
        """

        async def outcome(
            trace: str | None, last: bool
        ) -> tuple[T | None, DragomanError | SessionElsewhere | None]:
            # The task has no part in the request's context.
            traces.current.set(trace)
            last_attempt.set(last)
            with self.cache.holding():
                try:
                    return await work, None
                except (DragomanError, SessionElsewhere) as error:
                    return None, error

        task = self.tasks.start(outcome(traces.current.get(), last_attempt.get()), name="request")
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        result, error = await asyncio.shield(task)
        if error is None:
            return cast(T, result)
        # What is raised knows this frame: if this frame knew it too, both would be garbage that
        # only a collection finds, with the request.
        del task
        try:
            raise error
        finally:
            del error

    async def carry_out(
        self,
        session: Session,
        command: cmd.AnyCommand,
        *,
        by: str,
        face: str,
        details: Mapping[str, Any] | None = None,
        blobs: Mapping[str, bytes] | None = None,
        submission: Submission | None = None,
    ) -> None:
        """Submit a command and wait for what comes of it; of a reset, until the session has ended.

        Raises:
            DragomanError: the backend refused, or did not answer in time, or the session is gone.
        """
        after = session.last_seq
        (command_id,) = await session.submit(
            [command], by=by, face=face, details=details, blobs=blobs, submission=submission
        )
        patience = RESET_SECONDS if isinstance(command, cmd.Reset) else SETTLE_SECONDS
        due = self.clock.monotonic() + patience
        decided: int | None = None
        while True:
            news = session.news()
            if decided is None and not (command_id in session.state.inputs or session.resetting):
                decided = session.state.seq
            if decided is not None and session.last_seq >= decided:
                break
            left = due - self.clock.monotonic()
            if session.closed:
                # Where somebody has deleted it, it is gone, whatever its backend would answer.
                if session.id in self.cache.erasing:
                    raise SessionNotFound(f"There is no session `{session.id}`.")
                await self.get(session.id, owner=None, route=None)
            if left <= 0 or session.closed or not await self.clock.wait(news, left):
                text = "The backend has not answered yet; look again later."
                raise DragomanError(text, code=ErrorCode.BACKEND_TIMEOUT)
        if session.state.ended == "deleted":
            # Its readers are told before it leaves memory.
            while session.last_seq < session.state.seq and not session.closed:
                await session.news().wait()
            await self.erase(session.row)
            return
        async for chunk in self.journal.scan(session.row.key, after=after):
            async for entry in entries_by_steps(chunk.body, session.id):
                match entry.event:
                    case ev.InputSettled(command_id=name, outcome=outcome, reason=why) if (
                        name == command_id and outcome != "taken"
                    ):
                        over = getattr(command, "request_id", None) in session.state.resolved
                        code = ErrorCode.UNKNOWN_INTERACTION if over else ErrorCode.BACKEND_REFUSED
                        raise DragomanError(why or "The backend refused.", code=code)

    # Keeping.

    async def erase(self, row: SessionRow) -> None:
        """Erase what is stored of a session, whatever its backend has; durable on return.

        Raises:
            JournalError: it could not be done.
        """
        await self._retention.erase(row)

    async def prune(
        self,
        limits: RetentionLimits,
        *,
        owner: str | None = None,
        may: Callable[[SessionRow], bool] = lambda _: True,
        dry_run: bool = False,
    ) -> list[ExpiredSession]:
        """Erase the sessions that the limits do not keep, of one owner or of all, and return them.

        One in which something begins meanwhile is kept. With `dry_run` they are returned only.

        Raises:
            JournalError: it could not be done.
        """
        return await self._retention.prune(limits, owner=owner, may=may, dry_run=dry_run)

    @property
    def readers(self) -> int:
        """Return how many streams of frontends are open."""
        return sum([session.feeds.readers for session in self.cache])

    def __len__(self) -> int:
        """Return how many sessions are in memory."""
        return len(self.cache)
