"""Making sessions: with their first commands, once for each request, under names of their own."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.session_info import check_metadata
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, NotSupported
from proxy.base.clock import Clock, IdSource
from proxy.base.repeats import REQUEST, Submission, identity
from proxy.base.rows import AliasKind, BackendBinding, NewSession, SessionRow
from proxy.config.settings import BackendSettings
from proxy.journal.base import Journal
from proxy.session import Session, codec_of
from proxy.sessions.backends import Backends
from proxy.sessions.cache import SessionCache
from proxy.sessions.shadows import shadowed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """A session as it is asked for: on a route, by the owner's key `by`, through the face of a
    dialect, with its first commands and the bytes of their files.

    `succeeds` is an expired session whose names it takes over. `replaces` is one that goes on
    without the names in `aliases`. `submission` is the request that gave it.
    """

    owner: str
    route: str
    dialect: str
    by: str
    commands: Sequence[cmd.AnyCommand] = ()
    blobs: Mapping[str, bytes] | None = None
    title: str | None = None
    metadata: Mapping[str, Any] | None = None
    options: Mapping[str, Any] | None = None
    aliases: Sequence[tuple[str, str]] = ()
    succeeds: SessionRow | None = None
    replaces: SessionRow | None = None
    submission: Submission | None = None


@dataclasses.dataclass(slots=True, eq=False)
class SessionFactory:
    """Makes sessions."""

    cache: SessionCache
    journal: Journal
    backends: Backends
    _: dataclasses.KW_ONLY
    clock: Clock
    ids: IdSource
    faces: Mapping[str, Mapping[str, Any]]
    # (backend, name) that sessions have which are being made.
    _given: set[tuple[str, str]] = dataclasses.field(default_factory=set, init=False)

    async def make(self, wanted: SessionRequest) -> tuple[Session, list[str]]:
        """Make a session and submit its first commands; return it and their ids. Durable on return,
        as one.

        Raises:
            DragomanError: there is no such route, its backend cannot be driven, or a command is
                refused as by `Session.submit`.
            JournalError: it could not be stored, or a name is taken.
        """
        check_metadata(wanted.metadata or {})
        backend, native_id = self.backends.of(wanted.route), None
        if wanted.succeeds is not None:
            backend, native_id = await self._last_of(wanted.succeeds, backend)
        undriven = DIALECTS[backend.dialect].not_driven
        if undriven and wanted.dialect != backend.dialect:
            raise NotSupported(
                f"Backend `{backend.name}` is of dialect `{backend.dialect}`, {undriven}."
            )
        row = self._new_row(wanted)
        shadow = self.backends.shadow_of(wanted.route)
        codec = None
        if DIALECTS[wanted.dialect].has_face:
            # Else a backend began it, in a dialect that no frontend speaks.
            codec = codec_of(wanted.dialect, backend.name, self.faces.get(wanted.dialect, {}))
        if native_id is None and DIALECTS[backend.dialect].chosen_names:
            native_id = await self._new_name(row, backend, wanted.aliases)
        submission, succeeds = wanted.submission, wanted.succeeds
        takes = [] if submission is None else [(AliasKind.REQUEST, submission.body)]
        new = NewSession(
            row,
            backend.name,
            native_id,
            codec,
            _names(row, wanted, shadow),
            None if succeeds is None else succeeds.key,
            [*takes, *(() if wanted.replaces is None else wanted.aliases)],
        )
        leg = BackendBinding(row.key, 0, backend.name, native_id)
        capture = self.cache.begin_capture(row, backend)
        session = self.cache.make(row, leg, backend, capture)
        # Who finds it on disk before we know that it is there waits for this one: two of it would
        # send its first message twice.
        made = self.cache.loading[row.id] = asyncio.get_running_loop().create_future()
        try:
            ids = await session.begin(
                new,
                _first(row, backend, wanted),
                wanted.commands,
                by=wanted.by,
                blobs=wanted.blobs,
                submission=submission,
            )
            self.cache.admit(session, wanted.aliases)
            made.set_result(self.cache.hold(session))
        except DragomanError as error:
            made.set_exception(error)
            # Its parts let go of each other.
            session.close()
            raise
        finally:
            if native_id is not None:
                self._given.discard((backend.name, native_id))
            del self.cache.loading[row.id]
            # Also where it has failed: else asyncio complains where nobody waits for it.
            made.cancel()
        return session, ids

    def _new_row(self, wanted: SessionRequest) -> SessionRow:
        now = self.clock.now()
        return SessionRow(
            self.journal.new_key(),
            self.ids.mint("dgs"),
            wanted.owner,
            wanted.route,
            wanted.dialect,
            now,
            self.ids.bytes(32),
            updated_at=now,
        )

    async def made_by(
        self, submission: Submission, *, owner: str, route: str
    ) -> tuple[Session, list[str]] | None:
        """Return the session that a create made which `submission` repeats, and the ids of its
        first commands; None where it is new.

        Raises:
            DragomanError: its `Idempotency-Key` is another request's, or that session's, which is
                gone.
        """
        kind, name = (
            (AliasKind.REQUEST, submission.body)
            if submission.key is None
            else (AliasKind.IDEMPOTENT, submission.key)
        )
        found = await self.journal.resolve(owner=owner, route=route, kind=kind, name=name)
        if found is None:
            return None
        try:
            session = await self.cache.get(found, owner=owner, route=route)
        except DragomanError:
            if submission.key is None:
                # Whatever became of it, who asks did not say that it is the same.
                return None
            raise
        ids = session.repeated(submission)
        if ids is None and submission.key is not None:
            # The key holds for as long as the session; what else it said, not so long.
            ids = []
        return None if ids is None else (session, ids)

    async def _last_of(
        self, row: SessionRow, backend: BackendSettings
    ) -> tuple[BackendSettings, str | None]:
        """Return the backend of an expired session, where it is still configured, and the name of
        the task that it is there, if the dialect lets us choose that."""
        leg = (await self.journal.legs(row.key))[-1]
        known = self.backends.get(leg.backend)
        if known is None or not DIALECTS[known.dialect].chosen_names:
            return known or backend, None
        return known, leg.native_id

    async def _new_name(
        self, row: SessionRow, backend: BackendSettings, names: Sequence[tuple[str, str]]
    ) -> str:
        """Return the name that we choose for a new session at its backend, for ever.

        A frontend's own name only where the configuration says whose pass, and where no session
        ever had it, another route's or another owner's: two would share one conversation.
        """
        wanted = next((name for kind, name in names if kind == AliasKind.TASK), None)
        given = (backend.name, wanted or row.id)
        if wanted is None or backend.settings.task_ids_of != row.owner or given in self._given:
            return row.id
        self._given.add(given)
        try:
            free = not await self.journal.is_named(*given)
        except BaseException:
            self._given.discard(given)
            raise
        if free:
            return wanted
        self._given.discard(given)
        return row.id


def _names(row: SessionRow, wanted: SessionRequest, shadow: str | None) -> list[tuple[str, str]]:
    """Return the first names of a session; `shadow` is the backend that shadows it."""
    # Also a session of another dialect is found by the tokens that the eve face shows of it.
    own = wanted.aliases if wanted.replaces is None else ()
    names = [*own, (AliasKind.HANDLE, row.handle)]
    if shadow is not None:
        names.append(shadowed(shadow, row.id))
    if wanted.submission is not None and wanted.submission.key is not None:
        names.append((AliasKind.IDEMPOTENT, wanted.submission.key))
    return names


def _first(row: SessionRow, backend: BackendSettings, wanted: SessionRequest) -> list[ev.Event]:
    """Return the events that a log begins with."""
    options = wanted.options
    if wanted.submission is not None and not wanted.commands:
        # Else the first command has it.
        options = {**(options or {}), REQUEST: identity(wanted.submission, row.id, sealed=False)}
    started = ev.SessionStarted(
        thread_id=ev.MAIN,
        agent={"id": backend.create.agent or backend.name, "name": backend.name},
        title=wanted.title,
        metadata=dict(wanted.metadata) if wanted.metadata else None,
        options=dict(options) if options else None,
        synthetic=True,
    )
    before = wanted.succeeds or wanted.replaces
    if before is None:
        return [started]
    follows = ev.SessionUpdated(thread_id=ev.MAIN, predecessor=before.id, synthetic=True)
    if wanted.succeeds is None:
        return [started, follows]
    return [
        started,
        follows,
        ev.Gap(thread_id=ev.MAIN, reason="What was said before is no longer kept.", synthetic=True),
    ]
