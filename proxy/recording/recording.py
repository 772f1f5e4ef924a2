"""What is recorded of the sessions of `dragoman serve`, where its configuration says so: what goes
to their backends and back, what frontends ask and read, and the log.

A request of a frontend waits here until it is known which session it is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import logging
import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from aiohttp import web

from adapters.captures.redact import Redactor
from adapters.registry import deltas
from proxy.base import traces
from proxy.base.errors import ConfigError
from proxy.base.rows import SessionRow
from proxy.config.settings import CaptureSettings
from proxy.recording.background import CaptureThread
from proxy.recording.captures import CaptureEnd, Files
from proxy.recording.session import (
    NOTHING,
    SEALED,
    RecordedExchange,
    SessionCapture,
    is_sealed,
    sealed_by,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")

HEADER = "Dragoman-Capture"
"""The header of a request that makes a session which is to be recorded."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class RecordedRequest:
    """A request of a frontend. It is written once it is known which session it is about, if that
    one is recorded; then it has an `exchange`. `dialect` is that of the face, None elsewhere."""

    captures: Captures
    request: web.Request
    dialect: str | None = dataclasses.field(init=False, default=None)
    exchange: RecordedExchange | None = dataclasses.field(init=False, default=None)
    response: web.StreamResponse | None = dataclasses.field(init=False, default=None)
    _at: float = dataclasses.field(init=False)
    _trace: str | None = dataclasses.field(init=False, default_factory=traces.current.get)
    _body: bytes = dataclasses.field(init=False, default=b"")

    def __post_init__(self) -> None:
        self._at = self.captures.now()

    @property
    def wants(self) -> bool:
        """Say whether it asks for the session that it makes to be recorded."""
        return self.request.headers.get(HEADER) == "1"

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Let the session that is made in this context begin with this request."""
        token = _asking.set(self)
        try:
            yield
        finally:
            _asking.reset(token)

    def hearing(self, parse: Callable[[bytes], T]) -> Callable[[bytes], T]:
        """Return what hears the body and parses it."""

        def heard(body: bytes) -> T:
            self._body = body
            return parse(body)

        return heard

    def about(self, session_id: str, *, sealed: bool) -> None:
        """Hear which session it is about, and whether that waits for a sealed answer: whatever is
        said then may be the value, in each dialect, also where it is refused."""
        found = self.captures.at_hand(session_id)
        if found is not None:
            self.of(found, sealed=sealed)

    def of(self, capture: SessionCapture, *, sealed: bool = False) -> None:
        """Write it into a capture; only once."""
        if self.dialect is None or self.exchange is not None:
            return
        request, body, self._body = self.request, self._body, b""
        self.exchange = exchange = capture.asking()
        exchange.asked(request.method, request.raw_path, self._headers(), at=self._at)
        if body:
            seals = sealed_by(self.dialect)
            hidden = sealed or capture.holds or (seals is not None and is_sealed(seals, body))
            exchange.sent(SEALED if hidden else body)

    def _headers(self) -> Iterable[tuple[str, str]]:
        """Return the request's headers, with the `traceparent` under which it is handled: a
        request to the backend is found by that."""
        headers = self.request.headers
        if self._trace is None or traces.taken(headers.getall(traces.HEADER, ())) is not None:
            return headers.items()
        sent = ((n, v) for n, v in headers.items() if n.lower() != traces.HEADER)
        return (*sent, (traces.HEADER, self._trace))


ASKING = web.RequestKey("asking", RecordedRequest)
"""The request as it is recorded; only where something is."""

_asking: contextvars.ContextVar[RecordedRequest | None] = contextvars.ContextVar(
    "asking", default=None
)


class Captures:
    """The captures of a server. `now` is the time in milliseconds.

    Raises:
        ConfigError: the folder cannot be made.
    """

    def __init__(self, settings: CaptureSettings, now: Callable[[], float]) -> None:
        self._settings: CaptureSettings | None = settings
        self.dir = settings.dir
        self._salt = secrets.token_bytes(16)
        self._files = Files(settings.dir, None, now)
        self._background = CaptureThread()
        self._known: weakref.WeakValueDictionary[str, SessionCapture] = (
            weakref.WeakValueDictionary()
        )
        self.now = now
        try:
            settings.dir.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"`[capture]`, `dir`: the folder `{settings.dir}` cannot be made: {error.strerror}"
            ) from error

    def at_hand(self, session_id: str) -> SessionCapture | None:
        """Return the capture of a session in memory, if it is recorded."""
        return self._known.get(session_id)

    def use(self, settings: CaptureSettings | None) -> None:
        """Begin new captures by other settings, or none any more. The folder stays; captures of
        sessions in memory go on as they were begun."""
        self._settings = settings

    def _wanted(self, route: str) -> CaptureSettings | None:
        """Return how a session of a route is recorded, if it is."""
        settings = self._settings
        if settings is None or (settings.routes and route not in settings.routes):
            return None
        return settings

    def begin(self, row: SessionRow, dialect: str) -> SessionCapture | None:
        """Return the capture of a session that is made now on a backend of a dialect, if it is to
        be recorded. Its file is there once the session is stored."""
        asking = _asking.get()
        settings = self._wanted(row.route)
        if settings is None or (settings.header and (asking is None or not asking.wants)):
            return None
        return self._add(row, dialect, NOTHING, asking, settings)

    async def go_on(self, row: SessionRow, dialect: str) -> SessionCapture | None:
        """Return the capture of a session that is loaded, if it was begun before and its route says
        so still."""
        settings = self._wanted(row.route)
        if settings is None:
            return None
        known = self._known.get(row.id)
        if known is not None:
            return known
        try:
            # Behind what is still to be written of it.
            left = await self._background.do(lambda: self._files.left(row.id))
        except (OSError, ValueError) as error:
            _log.error("the capture of session %r is not gone on with: %s", row.id, error)
            return None
        return None if left is None else self._add(row, dialect, left, None, settings)

    def _add(
        self,
        row: SessionRow,
        dialect: str,
        left: CaptureEnd,
        first: RecordedRequest | None,
        settings: CaptureSettings,
    ) -> SessionCapture:
        made = SessionCapture(
            self._files,
            self._background,
            row.id,
            dialect,
            now=self.now,
            redactor=Redactor(self._salt, deltas(), settings.redact_keys, settings.redact_patterns),
            left=left,
            first=None if first is None else first.of,
        )
        self._known[row.id] = made
        return made

    async def written(self) -> None:
        """Wait until all is written that was to be so far."""
        await self._background.do(lambda: None)

    async def aclose(self) -> None:
        """Write what is left, and close the files."""
        for one in list(self._known.values()):
            one.close()
        self._background.put(None, self._files.close)
        await asyncio.to_thread(self._background.close)
