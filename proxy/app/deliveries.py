"""Deliveries of backends that call us: checked, given to their session, and answered where their
sender waits.

A delivery is answered when what it says is stored. One that waits is answered with the decision of
somebody who watches the session, and blocked where there is none in time.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
from collections.abc import Mapping

from aiohttp import web

from adapters.contract.receiving import Delivery, Receiver
from adapters.registry import DIALECTS
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from proxy.base import metrics
from proxy.base.errors import SessionExpired, SessionNotFound
from proxy.base.locks import KeyedLock
from proxy.base.rows import AliasKind, SessionRow
from proxy.config.settings import BackendSettings
from proxy.control import api
from proxy.entry.entry import admitted, read_bytes, takes
from proxy.entry.keys import SESSIONS
from proxy.session import Session
from proxy.sessions.sessions import Sessions
from proxy.upstream.mailbox import Mailbox

FRESH_SECONDS = 300.0
"""How old a signed delivery may be, besides the time that its sender waits: one that is older may
be somebody else's copy of it."""

MOST_WAITING = 1_000
"""Senders of one backend that wait for decisions at a time; each has a connection."""

KNOWN_NAMES = 10_000
"""Names of sessions that are known without a look into the journal."""

SEEN_MOST = 100_000
"""Deliveries that are known by their ids; those of one session are known by it as well."""

LATE_SECONDS = 5.0
"""How much longer than its time a sender waits at most: the session decides in time by itself."""

AGAIN_SECONDS = 60.0
"""How long a reason to refuse deliveries of a backend is not told again."""

_TIMED_OUT = "Dragoman did not decide in time."

_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True, eq=False)
class DeliveryRoom:
    """Takes the deliveries of all backends that send some."""

    sessions: Sessions
    _order: KeyedLock = dataclasses.field(default_factory=KeyedLock, init=False)
    # The session of a name, by backend; the names that were used longest ago are forgotten.
    _known: collections.OrderedDict[tuple[str, str], str] = dataclasses.field(
        default_factory=collections.OrderedDict, init=False
    )
    # When a delivery was taken, the oldest first.
    _seen: collections.OrderedDict[tuple[str, str], float] = dataclasses.field(
        default_factory=collections.OrderedDict, init=False
    )
    _told: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict, init=False)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a delivery; a refusal is told to who runs this too."""
        name = request.match_info["backend"]
        try:
            return await admitted(request, self._answer)
        except DragomanError as error:
            self._refused(name, error)
            return api.error_response(error)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        backend, receiver = self._backend(request.match_info["backend"])
        body = await read_bytes(request)
        check_sender(request.headers, body, backend, receiver)
        delivery = self.sessions.bodies.parsed(body, receiver.read, "text")
        self._check_fresh(delivery, backend)
        if self.sessions.stopping:
            raise DragomanError("The server is stopping; try again.", code=ErrorCode.STOPPING)
        if delivery.test is not None:
            text = f"Dragoman's gate works. This was a test: {delivery.test}."
            return _json(receiver.block(text))
        if delivery.waits is None and self._is_repeated(delivery, backend):
            metrics.DELIVERIES.labels(backend.name, "repeated").inc()
            return _json(receiver.done)
        session = await self._session_of(delivery, backend)
        if session is None:
            metrics.DELIVERIES.labels(backend.name, "no_session").inc()
            return _json(receiver.done)
        answer = await self._deliver(request, delivery, session, backend, receiver)
        metrics.DELIVERIES.labels(backend.name, "taken").inc()
        self._taken(delivery, backend)
        return answer

    def _backend(self, name: str) -> tuple[BackendSettings, Receiver]:
        backend = self.sessions.settings.backend(name)
        receiver = None if backend is None else DIALECTS[backend.dialect].receiver
        if backend is None or receiver is None:
            text = f"There is no backend `{name[:80]}` that sends deliveries."
            raise DragomanError(text, code=ErrorCode.NOT_FOUND)
        return backend, receiver

    def _check_fresh(self, delivery: Delivery, backend: BackendSettings) -> None:
        if backend.credential is None or delivery.at is None:
            return
        age = abs(self.sessions.clock.now() - delivery.at) / 1000
        if age > FRESH_SECONDS + (delivery.waits or 0) / 1000:
            raise ClientProtocolError(
                f"The delivery is {age:.0f} s old or from the future; at most {FRESH_SECONDS:g} s "
                "are taken. Is a clock wrong?"
            )

    def _is_repeated(self, delivery: Delivery, backend: BackendSettings) -> bool:
        return delivery.id is not None and (backend.name, delivery.id) in self._seen

    def _taken(self, delivery: Delivery, backend: BackendSettings) -> None:
        """Remember a delivery for as long as it would be taken again."""
        if delivery.id is None:
            return
        now, seen = self.sessions.clock.monotonic(), self._seen
        seen[backend.name, delivery.id] = now
        while len(seen) > SEEN_MOST or now - next(iter(seen.values())) > 2 * FRESH_SECONDS:
            seen.popitem(last=False)

    async def _deliver(
        self,
        request: web.Request,
        delivery: Delivery,
        session: Session,
        backend: BackendSettings,
        receiver: Receiver,
    ) -> web.Response:
        if delivery.key is None or delivery.waits is None:
            await session.receive(delivery.frame)
            return _json(receiver.done)
        mailbox = self.sessions.backends.upstream(backend)
        assert isinstance(mailbox, Mailbox)
        if mailbox.count >= MOST_WAITING:
            text = f"{MOST_WAITING} calls of this backend wait for a decision already."
            raise DragomanError(text, code=ErrorCode.OVERLOADED)
        connection = request.protocol

        def there() -> bool:
            transport = connection.transport
            return transport is not None and not transport.is_closing()

        with mailbox.wait(delivery.key, there) as decided:
            await session.receive(delivery.frame)
            try:
                async with asyncio.timeout(delivery.waits / 1000 + LATE_SECONDS):
                    return _json(await decided)
            except TimeoutError:
                return _json(receiver.block(_TIMED_OUT))

    # Sessions.

    async def _session_of(self, delivery: Delivery, backend: BackendSettings) -> Session | None:
        """Return the session that a delivery is of; one that begins is made. None where there is
        none and it begins none."""
        if not delivery.sessions:
            return None
        first = delivery.sessions[0]
        # Those that come at once are of one session, which is made once.
        async with self._order.lock(backend.name, first):
            for name in delivery.sessions:
                session = await self._find(name, backend)
                if session is not None:
                    return session
            return await self._make(first, backend) if delivery.begins else None

    async def _find(self, name: str, backend: BackendSettings) -> Session | None:
        owner, route = backend.owner, backend.name
        key = (backend.name, name)
        known = self._known.get(key)
        if known is None:
            # A child is found by its own name, like its parent.
            for kind in (AliasKind.TASK, AliasKind.THREAD):
                known = await self.sessions.journal.resolve(
                    owner=owner, route=route, kind=kind, name=name
                )
                if known is not None:
                    break
            else:
                return None
        try:
            session = await self.sessions.get(known, owner=owner, route=route)
        except SessionNotFound:
            self._known.pop(key, None)
            text = f"Session `{name[:80]}` was deleted here."
            raise SessionNotFound(text) from None
        except SessionExpired as expired:
            return await self._make(name, backend, succeeds=expired.row)
        self._remember(key, session.id)
        return session

    async def _make(
        self, name: str, backend: BackendSettings, succeeds: SessionRow | None = None
    ) -> Session:
        owner = backend.owner
        self.sessions.quotas.count_session(owner)
        session = await self.sessions.create(
            owner=owner,
            route=backend.name,
            dialect=backend.dialect,
            aliases=[(AliasKind.TASK, name)],
            succeeds=succeeds,
        )
        self._remember((backend.name, name), session.id)
        return session

    def _remember(self, key: tuple[str, str], session_id: str) -> None:
        self._known[key] = session_id
        self._known.move_to_end(key)
        if len(self._known) > KNOWN_NAMES:
            self._known.popitem(last=False)

    def _refused(self, name: str, error: DragomanError) -> None:
        """Count a delivery that is not taken, and tell who runs this of each reason now and
        then."""
        if self.sessions.settings.backend(name) is None:
            # Anybody may ask for any name.
            return
        metrics.DELIVERIES.labels(name, "refused").inc()
        key, now = (name, str(error.code)), self.sessions.clock.monotonic()
        if now - self._told.get(key, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return
        self._told[key] = now
        _log.warning(
            "a delivery of backend `%s` is refused: %s",
            *(name, error.whole),
            extra={"backend": name, "kind": "delivery_refused"},
        )


def check_sender(
    headers: Mapping[str, str], body: bytes, backend: BackendSettings, receiver: Receiver
) -> None:
    """Check that who sends a body has the backend's secret. Without one only programs of this
    machine reach the server at all.

    Raises:
        DragomanError: it does not have it.
    """
    if backend.credential is None:
        return
    secret = backend.credential.secret.get_secret_value().encode()
    if receiver.signed(headers, body, secret):
        return
    raise DragomanError(
        f"The delivery is not signed with this backend's secret: `{receiver.signature}` is missing "
        "or wrong.",
        code=ErrorCode.UNAUTHORIZED,
    )


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def add_routes(app: web.Application) -> None:
    """Serve the address for deliveries."""
    room = DeliveryRoom(app[SESSIONS])

    @takes("text")
    async def receive(request: web.Request) -> web.StreamResponse:
        return await room.handle(request)

    app.router.add_post("/from/{backend}", receive)
