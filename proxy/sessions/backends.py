"""The backends of the configuration: which one a new session goes to, how each is driven and
reached, and what became of them since the last start."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import aiohttp

from adapters.model import commands as cmd
from adapters.model.base import ClientCodec
from adapters.offline.moves import HandoverCodec
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode, NotSupported
from proxy.base.clock import IdSource
from proxy.base.errors import ConfigError
from proxy.base.rows import BackendBinding, BackendRow, SessionRow
from proxy.config.settings import BackendSettings, Settings, Share
from proxy.http.bodies import RETRY_SECONDS
from proxy.journal.base import Journal
from proxy.sessions.shares import Shares
from proxy.upstream.client import Upstream
from proxy.upstream.fenced_body import Permitted
from proxy.upstream.findings import Kind
from proxy.upstream.health import Health
from proxy.upstream.mailbox import Mailbox
from proxy.upstream.readiness import Readiness

STRANGERS_BYTES = 2**20
"""Bytes of a backend's answer to a route that is open to everybody: a page that says that a sign-in
is done has some thousand."""

MOST_STRANGERS = 64
"""Requests without a key that wait for one backend at a time: a person completes a sign-in now and
then, and a backend that answers none of them holds each connection for a minute."""

_log = logging.getLogger(__name__)


def _parts(shares: Sequence[Share]) -> dict[str, float]:
    """Return which part of all new sessions each backend gets."""
    whole = sum(share.weight for share in shares)
    return {share.name: share.weight / whole for share in shares if share.weight}


def _auth(backend: BackendSettings) -> dict[str, str]:
    credential = backend.credential
    return {} if credential is None else {credential.header: credential.value}


def load_dialects(settings: Settings) -> Settings:
    """Import what drives the configured backends, which may take some tens of milliseconds for
    each dialect; return the same settings."""
    for backend in settings.backends:
        DIALECTS[backend.dialect].load("client", "receiver", "probe")
    return settings


def _silence(backend: BackendSettings) -> float:
    return backend.settings.silence_seconds or DIALECTS[backend.dialect].silence_seconds


@dataclasses.dataclass(eq=False)
class Backends:
    """The backends, and the connections to them."""

    any_agent: ClassVar[bool] = False
    """Whether frontends may give their agent any name: a replay does not know it."""

    settings: Settings
    http: aiohttp.ClientSession
    ids: IdSource
    permitted: Permitted | None = dataclasses.field(default=None, init=False)
    """Says whether this process may ask backends; None where it always may."""
    shares: Shares = dataclasses.field(init=False)
    _upstreams: dict[str, Upstream] = dataclasses.field(default_factory=dict, init=False)
    health: dict[str, Health] = dataclasses.field(init=False)
    readiness: Readiness = dataclasses.field(init=False)
    _codec_settings: dict[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=dict, init=False
    )
    _strangers: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter, init=False
    )

    def __post_init__(self) -> None:
        self.shares = Shares(self.settings)
        self.health = {one.name: Health(one.name, one.url) for one in self.settings.backends}
        self.readiness = Readiness(self.settings, self.http, self.health)

    def get(self, name: str) -> BackendSettings | None:
        """Return the backend with this name, if it is configured."""
        return self.settings.backend(name)

    def of_leg(self, leg: BackendBinding) -> BackendSettings:
        """Return the backend of a part of a session.

        Raises:
            DragomanError: it is not configured.
        """
        backend = self.get(leg.backend)
        if backend is None:
            raise DragomanError(
                f"The session belongs to backend `{leg.backend}`, which is not configured.",
                code=ErrorCode.BACKEND_UNAVAILABLE,
            )
        return backend

    def of(self, route: str) -> BackendSettings:
        """Return the backend that a new session of a route goes to.

        Raises:
            DragomanError: there is no such route.
        """
        shares = self.shares.taking(route)
        draw = self.ids.fraction() * sum(share.weight for share in shares)
        chosen = shares[0].name
        for share in shares:
            chosen = share.name
            draw -= share.weight
            if draw < 0:
                break
        return self._configured(chosen)

    def all_of(self, route: str) -> list[BackendSettings]:
        """Return all backends that new sessions of a route may go to.

        Raises:
            DragomanError: there is no such route.
        """
        return [self._configured(share.name) for share in self.shares.taking(route)]

    def known_on(self, route: str) -> list[BackendSettings]:
        """Return the backends of a route now, and those of its configuration.

        Raises:
            DragomanError: there is no such route.
        """
        shares = (*self.shares.of(route), *self.shares.configured(route))
        return [self._configured(name) for name in dict.fromkeys(share.name for share in shares)]

    async def require_new(self, route: str, wanted: Sequence[Share]) -> list[str]:
        """Check the backends that would get more of a route's new sessions than now; return what
        could not be learned of them. One that would get less need not be ready: it may be the
        reason.

        Raises:
            DragomanError: there is no such route, or one of them is not ready.
        """
        now, then = _parts(self.shares.of(route)), _parts(wanted)
        more = [self.settings.backend(name) for name in then if then[name] > now.get(name, 0.0)]
        checks = [self.readiness.require(backend) for backend in more if backend is not None]
        return list(itertools.chain.from_iterable(await asyncio.gather(*checks)))

    def shadow_of(self, route: str) -> str | None:
        """Return the backend that shadows the new sessions of a route, if one does."""
        found = self.settings.route(route)
        return None if found is None else found.shadow

    def check(self, route: str, command: cmd.AnyCommand) -> None:
        """Check, before a session is made, that every backend of a route can carry a command.

        Raises:
            NotSupported: one cannot, and the session might become its.
        """
        for backend in self.all_of(route):
            self.codec(backend, "check").check(command)

    def _configured(self, name: str) -> BackendSettings:
        backend = self.settings.backend(name)
        assert backend is not None
        return backend

    def codec(self, backend: BackendSettings, task_id: str) -> ClientCodec:
        """Return what drives one session on a backend; `task_id` is the session's name there, where
        its dialect lets who asks choose it.

        Raises:
            NotSupported: the dialect cannot be driven.
        """
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

    def codec_of(
        self, backend: BackendSettings, row: SessionRow, leg: BackendBinding
    ) -> ClientCodec:
        """Return what drives a session on the backend of one of its legs.

        Raises:
            NotSupported: the dialect cannot be driven.
        """
        codec = self.codec(backend, leg.native_id or row.id)
        return HandoverCodec(codec) if leg.number else codec

    def upstream(self, backend: BackendSettings) -> Upstream:
        """Return the connections to a backend."""
        upstream = self._upstreams.get(backend.name)
        if upstream is None:
            receives = DIALECTS[backend.dialect].has_receiver
            make = Mailbox if receives else Upstream
            upstream = self._upstreams[backend.name] = make(
                self.http,
                backend.url,
                _auth(backend),
                silence_seconds=_silence(backend),
                frame_bytes=backend.max_frame_bytes,
                health=self.health[backend.name],
                permitted=self.permitted,
            )
        return upstream

    async def not_ready(self) -> dict[str, Kind | None]:
        """Return what is wrong with each backend that cannot be used, or that did not do what it
        was last asked for, by its name. Those of a dialect that cannot be driven count for nothing:
        no session goes there."""
        driven = [one for one in self.settings.backends if DIALECTS[one.dialect].has_client]
        found = await asyncio.gather(*map(self.readiness.check, driven))
        down = {one.name: one.failed[1].kind for one in found if one.failed is not None}
        failing = [one.name for one in driven if self.health[one.name].failing is not None]
        return {**dict.fromkeys(failing, Kind.MESSAGES_FAIL), **down}

    @contextlib.contextmanager
    def in_public(self, backend: BackendSettings) -> Iterator[Upstream]:
        """Give connections to a backend that carry no credential of ours: for its routes which are
        open to everybody, whose callers must not get rights by passing through here.

        Raises:
            DragomanError: too many of them wait for this backend now.
        """
        if self._strangers[backend.name] >= MOST_STRANGERS:
            raise DragomanError(
                "Too many such requests wait for their answers; try again.",
                code=ErrorCode.OVERLOADED,
                details={"retry_after": RETRY_SECONDS},
            )
        self._strangers[backend.name] += 1
        try:
            yield Upstream(
                self.http,
                backend.url,
                {},
                body_limit=STRANGERS_BYTES,
                health=self.health[backend.name],
            )
        finally:
            self._strangers[backend.name] -= 1

    # What became of them.

    def use(self, settings: Settings) -> None:
        """Take another configuration: calls from now on go where it says."""
        self.settings = settings
        self.shares.use(settings)
        self.readiness.use(settings)
        self._codec_settings.clear()
        for backend in settings.backends:
            self.health.setdefault(backend.name, Health(backend.name, backend.url))
            self.health[backend.name].url = backend.url
            if (upstream := self._upstreams.get(backend.name)) is not None:
                upstream.change(
                    backend.url,
                    _auth(backend),
                    silence_seconds=_silence(backend),
                    frame_bytes=backend.max_frame_bytes,
                )
        # Who still waits for an answer of one that went finds it here.
        for name in self.health.keys() - {backend.name for backend in settings.backends}:
            self.health[name].counts.forget()

    async def open(self, journal: Journal) -> None:
        """Compare the backends with those of the last start that have sessions, and take up the
        shares of routes that were set at run time.

        Raises:
            ConfigError: a backend is of another dialect than it was.
            JournalError: the journal cannot be read or written.
        """
        await self.compare(journal, self.settings)
        await self.keep(journal)

    async def keep(self, journal: Journal) -> None:
        """Store what the backends are, for the next start, and take up the shares of routes that
        were set at run time and hold still.

        Raises:
            JournalError: the journal cannot be read or written.
        """
        now = [BackendRow(one.name, one.dialect, one.url) for one in self.settings.backends]
        await journal.keep_backends(now)
        await self.shares.load(journal)

    async def compare(self, journal: Journal, settings: Settings) -> None:
        """Compare the backends of a configuration with those that sessions were made on.

        Raises:
            ConfigError: a backend is of another dialect than it was.
            JournalError: the journal cannot be read.
        """
        for was in await journal.known_backends():
            backend = settings.backend(was.name)
            if backend is not None and backend.dialect != was.dialect:
                raise ConfigError(
                    f"Backend `{was.name}` was of dialect `{was.dialect}` and is of dialect "
                    f"`{backend.dialect}` now, which cannot go on with its sessions: "
                    "give the new one another name."
                )
            if backend is not None and backend.url != was.url:
                _log.warning(
                    "backend `%s` was at %s and is at %s now: its sessions go on there",
                    *(was.name, was.url, backend.url),
                )
