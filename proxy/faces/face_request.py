"""One request at a face: who asks, for what, and what its functions are told of a session."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from aiohttp import web

from adapters.contract.faces import (
    Action,
    Backend,
    Face,
    Incoming,
    PublicAccess,
    Route,
    SessionSummary,
    SessionView,
    Submit,
    SubmitResult,
)
from adapters.model import events as ev
from adapters.model.commands import SendMessage
from adapters.model.events import MAIN
from adapters.registry import DIALECTS
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from proxy.base.errors import CursorExpired
from proxy.base.locks import KeyedLock
from proxy.base.rows import SessionRow
from proxy.config.settings import BackendSettings, Settings
from proxy.entry.entry import entered, open_route, routes_shown
from proxy.entry.keys import LISTENER_ROUTE, SESSIONS
from proxy.faces.misdirected import load_faces, of_body, of_path
from proxy.fanout.hub import Feed, entry_of
from proxy.http.auth import Principal
from proxy.recording.recording import ASKING
from proxy.recording.session import RecordedExchange
from proxy.session import Session, told
from proxy.sessions.cache import check_there
from proxy.sessions.sessions import Sessions
from proxy.sessions.turn_clients import TurnClients

NOBODY = Principal("")
"""Who asks at an open route: nobody's sessions."""

_READS: Collection[Action] = (Action.READ,)


@dataclasses.dataclass(slots=True, eq=False)
class ServedFace:
    """A face in one application: what the requests at it have in common.

    `locks` has one lock for each session that is being made under a name that its frontend chose:
    its first two requests must meet in one session.
    """

    app: dataclasses.InitVar[web.Application]
    dialect: str
    face: Face = dataclasses.field(init=False)
    _sessions: Sessions = dataclasses.field(init=False)
    _settings: Settings = dataclasses.field(init=False)
    _served: dict[str, Any] = dataclasses.field(default_factory=dict, init=False)
    _backends: dict[str, Backend] = dataclasses.field(default_factory=dict, init=False)
    started_at: float = dataclasses.field(init=False)
    to_the_end: Collection[Action] = dataclasses.field(init=False)
    locks: KeyedLock = dataclasses.field(default_factory=KeyedLock, init=False)

    def __post_init__(self, app: web.Application) -> None:
        face = DIALECTS[self.dialect].face
        assert face is not None
        self.face = face
        self._sessions = app[SESSIONS]
        self._settings = self._sessions.settings
        self.started_at = self._sessions.clock.monotonic()
        self.to_the_end = _READS if face.reads_while_stopping else ()

    @property
    def turn_clients(self) -> TurnClients:
        """The clients of this face, at whatever listener."""
        return self._sessions.turn_clients[self.dialect]

    def served_on(self, route: str) -> Any:
        """Return what the face made of the configuration of a route."""
        make, settings = self.face.serve, self._sessions.settings
        if make is None:
            return None
        if self._sessions.settings is not self._settings:
            self._reload()
        if route not in self._served:
            made = make(settings.face(self.dialect, route), bool(settings.keys))
            if settings.route(route) is None:
                # Names of nothing are not remembered: anybody may ask for any number of them.
                return made
            self._served[route] = made
        return self._served[route]

    def backend(self, name: str) -> Backend:
        """Return a backend as the face sees it."""
        if self._sessions.settings is not self._settings:
            self._reload()
        found = self._backends.get(name)
        if found is None:
            backend = self._settings.backend(name)
            found = Backend(name, "", name) if backend is None else shown_backend(backend)
            self._backends[name] = found
        return found

    def _reload(self) -> None:
        """Forget what was made of a configuration that does not hold any more."""
        self._settings, self._served, self._backends = self._sessions.settings, {}, {}


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """A session that a request is about, or a thread of it.

    `ids` are those of the commands that an equal request gave it, where that was looked for.
    `since` is the newest event that was stored when the commands of the request were made.
    """

    session: Session
    thread: str = MAIN
    also: bool = False
    ids: Sequence[str] | None = None
    looked: bool = False
    since: int = 0


class SubmitOutcome(NamedTuple):
    """What became of a request that gives commands, and how its session was seen before."""

    match: Match
    result: SubmitResult
    seen: SessionView[Any] | None


@dataclasses.dataclass(slots=True, eq=False)
class FaceRequest:
    """One request, from its head to its answer. `said` is what its body said, once it is read,
    and `action` what is wanted."""

    http: web.Request
    at: ServedFace
    route: Route
    said: Any = dataclasses.field(default=None, init=False)
    action: Action = dataclasses.field(default=Action.READ, init=False)
    name: str = dataclasses.field(init=False)
    """The name of its route, empty where it names none."""
    sessions: Sessions = dataclasses.field(init=False)
    incoming: Incoming = dataclasses.field(init=False)
    owner: str = dataclasses.field(default="", init=False)
    """The name of who asks, who owns the sessions that it makes; empty at an open route."""
    principal: Principal = dataclasses.field(default=NOBODY, init=False)
    """Who asks."""
    _feed: Feed | None = dataclasses.field(default=None, init=False)
    _refused: bytes | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        http = self.http
        self.name = http.match_info.get("route") or http.app.get(LISTENER_ROUTE, "")
        self.sessions = http.app[SESSIONS]
        self.incoming = Incoming(
            http.method,
            http.path,
            http.match_info,
            http.query,
            http.headers,
            self.at.served_on(self.name),
        )
        if (asking := http.get(ASKING)) is not None:
            asking.dialect = self.at.dialect

    # Who asks.

    def enter(self, action: Action) -> None:
        """Check who asks, before any look-up.

        Raises:
            DragomanError: the key, its routes or its scopes do not allow this, or the server stops.
        """
        if self.principal is NOBODY:
            self.principal = entered(self.http, action, self.name)
            self.owner = self.principal.name
        # A key that is let in to a face may do on its route whatever that does.
        if action not in self.at.to_the_end and self.sessions.cache.stopping:
            raise DragomanError("The server is stopping; try again.", code=ErrorCode.STOPPING)
        self.action = action

    def admit(self) -> None:
        """Let in who may do what the route needs, or everybody to an open one.

        Raises:
            DragomanError: see `enter`; or there is no such route.
        """
        needs = self.route.needs
        if not isinstance(needs, PublicAccess):
            self.enter(needs)
        elif needs.of_a_route:
            open_route(self.http)

    @property
    def entered(self) -> bool:
        """Say whether who asks was let in by a key."""
        return self.principal is not NOBODY

    @property
    def settings(self) -> Settings:
        """Return the configuration."""
        return self.sessions.settings

    # Where it is recorded.

    def about(self, session: Session) -> None:
        """Say which session the request is about."""
        if (asking := self.http.get(ASKING)) is not None:
            asked = session.open_interactions()
            sealed = any(one.kind in ev.SEALED_KINDS for one in asked)
            asking.about(session.id, sealed=sealed)

    def making(self) -> contextlib.AbstractContextManager[None]:
        """Let the session that is made in this context be recorded from this request on."""
        asking = self.http.get(ASKING)
        return contextlib.nullcontext() if asking is None else asking.current()

    @property
    def taken(self) -> RecordedExchange | None:
        """Return what the request and its answer are written by, if they are."""
        asking = self.http.get(ASKING)
        return None if asking is None else asking.exchange

    # What functions are told of a session.

    def feed(self, found: Match) -> Feed:
        """Return the frames of a session in the dialect."""
        form = self.route.form
        name = form if isinstance(form, str) else form(self.incoming)
        return found.session.feeds.get(self.at.dialect, found.thread, name)

    def parse(self, body: bytes) -> Any:
        """Return what a body says.

        Raises:
            DragomanError: the face refuses it, see `explain`.
        """
        act = self.route.does
        assert isinstance(act, Submit)
        assert act.body is not None
        try:
            return act.body.parse(body, self.incoming)
        except ClientProtocolError:
            self._refused = body
            raise

    async def explain(self, error: ClientProtocolError) -> None:
        """Say in the error with which a body is refused whose it is, if that shows."""
        if self._refused is not None:
            await load_faces()
            if (elsewhere := of_body(self.http, self.at.dialect, self._refused)) is not None:
                error.add(elsewhere)

    async def view(
        self, found: Match, *, shown: bool = False, tell: bool = False
    ) -> SessionView[Any]:
        """Return a session as it is now; with the encoder, caught up, and with what is told of it
        where that is wanted.

        Raises:
            DragomanError: the journal cannot be read, or the session was shown in a version of the
                dialect that is gone.
        """
        session, encoder, about = found.session, None, None
        journal = self.sessions.journal
        try:
            if shown:
                self._feed = feed = self.feed(found)
                if feed.behind:
                    await feed.catch_up()
                encoder = feed.encoder
            if tell:
                about = await self.told(await journal.session(session.id))
        except CursorExpired:
            # It was erased meanwhile.
            check_there(await journal.session(session.id), session.id, None)
            raise
        return SessionView(
            session.id,
            found.thread,
            session.row.secret,
            self.at.backend(session.leg.backend),
            session.state,
            session.working,
            session.feeds.settings_of(self.at.dialect),
            self.sessions.clock.now(),
            encoder,
            about,
            found.also,
            functools.partial(self.sessions.unread.at, session.id, self.at.dialect),
            functools.partial(self._refusal, session.check_carried),
        )

    async def view_after(
        self, found: Match, seen: SessionView[Any], *, shown: bool, tell: bool
    ) -> SessionView[Any]:
        """Return a session after what was `seen` of it, as `view` does."""
        feed = self._feed
        if tell or (shown and (feed is None or feed.behind or feed.encoder is not seen.shown)):
            return await self.view(found, shown=shown, tell=tell)
        return dataclasses.replace(
            seen, working=found.session.working, now=self.sessions.clock.now()
        )

    def refusal_of_new(self, message: SendMessage) -> DragomanError | None:
        """Return what a message is refused with for what it is that begins a session."""
        return self._refusal(functools.partial(self.sessions.check, self.name), message)

    def _refusal(
        self, check: Callable[[SendMessage], None], message: SendMessage
    ) -> DragomanError | None:
        try:
            self.sessions.bodies.check_new([message])
            check(message)
        except DragomanError as error:
            return error
        return None

    async def told(self, row: SessionRow) -> SessionSummary:
        """Return what a session's own events say: of a long log its newest entries are read, and
        only the lines of these events are decoded, since lists ask for many.

        Raises:
            CursorExpired: it was erased meanwhile.
        """
        journal = self.sessions.journal
        about, after = await told(journal, row)
        async for chunk in journal.scan(row.key, after=after):
            for line in chunk.body.split(b"\n"):
                if b'"type":"session.' in line:
                    entry = entry_of(line, row.id)
                    if entry.seq > after:
                        about.apply(entry.event)
        return SessionSummary(about, row.created_at, row.updated_at)


def shown_backend(backend: BackendSettings) -> Backend:
    """Return a backend as faces see it."""
    rewinds = DIALECTS[backend.dialect].rewinds
    agent = backend.create.agent or backend.name
    return Backend(backend.name, backend.dialect, agent, rewinds=rewinds)


@dataclasses.dataclass(slots=True, eq=False)
class RoutePlace:
    """The route of a request, and the server: `adapters.contract.faces.RouteContext`."""

    request: FaceRequest

    @property
    def route(self) -> str:
        """Return the route's name."""
        return self.request.name

    @property
    def backends(self) -> Sequence[Backend]:
        """Return the backends to which new sessions of the route may go.

        Raises:
            DragomanError: there is no such route.
        """
        return [
            shown_backend(backend) for backend in self.request.sessions.backends.all_of(self.route)
        ]

    @property
    def known(self) -> Sequence[Backend]:
        """Return the backends that frontends may know on the route.

        Raises:
            DragomanError: there is no such route.
        """
        return [
            shown_backend(backend)
            for backend in self.request.sessions.backends.known_on(self.route)
        ]

    @property
    def routes(self) -> Sequence[str]:
        """Return the names of the routes that who asks may use."""
        return routes_shown(self.request.http)

    def elsewhere(self, path: str, *, known: bool) -> str | None:
        """Return which address serves a path that is not of this face."""
        request = self.request
        return of_path(request.http, path, own=request.at.dialect, unsure=known)

    def refusal(self, message: SendMessage) -> DragomanError | None:
        """Return what a message is refused with for what it is that begins a session."""
        return self.request.refusal_of_new(message)

    def draw(self) -> Backend:
        """Return the backend that a new session would go to, drawn by weight.

        Raises:
            DragomanError: there is no such route.
        """
        sessions = self.request.sessions
        shown = shown_backend(sessions.backend_of(self.route))
        return shown._replace(any_agent=sessions.backends.any_agent)

    @property
    def url(self) -> str:
        """Return the address that was asked for.

        Raises:
            ValueError: `Host` is not a host.
        """
        return str(self.request.http.url)

    @property
    def uptime_seconds(self) -> float:
        """Return for how long the server has served."""
        return self.request.sessions.clock.monotonic() - self.request.at.started_at

    @property
    def stopping(self) -> bool:
        """Say whether the server stops."""
        return self.request.sessions.stopping
