"""Moves a session to another backend between two turns, and back.

A move is one write to the journal: the session gets a leg more, with the history as part of what is
stored of its codec there. Before it nothing has changed; after it the next message goes to the new
backend, and carries the history. The new backend is checked without any effect there, so that
nothing of the session is there before somebody says something.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Support
from adapters.offline.moves import ConversationHistory, HandoverCodec, HistoryPart, HistoryWriter
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode, NotSupported
from proxy.base.errors import reading_back
from proxy.base.rows import BackendBinding
from proxy.config.settings import SHADOWS, BackendSettings
from proxy.fanout.hub import entries_by_steps
from proxy.migration.moved import left_by_the_last_move
from proxy.session import Session
from proxy.sessions.sessions import Sessions

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class MoveResult:
    """What came of a move, or would come of it: `moved` is false where nothing was to do or nothing
    was to be done. `characters` is the size of the text that goes over; `notices` say what could
    not be learned of the backend."""

    session: str
    before: str
    backend: str
    dialect: str
    leg: int
    moved: bool
    history: tuple[HistoryPart, ...] = ()
    characters: int = 0
    notices: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """Where a session is to go on: in the part `leg`, by a codec. Its history begins with the part
    `since`."""

    backend: BackendSettings
    leg: BackendBinding
    codec: HandoverCodec
    since: int


@dataclasses.dataclass(frozen=True, slots=True)
class _MoveSource:
    """What a move needs of a log: how the session was made, and what was said since it was last at
    its new backend."""

    started: ev.SessionStarted
    history: ConversationHistory


async def move(
    sessions: Sessions,
    name: str,
    *,
    to: str,
    by: str,
    expected: str | None = None,
    dry_run: bool = False,
) -> MoveResult:
    """Let a session go on at the backend `to`, where it has not been before; durable on return.

    `by` is who wants it, `expected` the backend that it should be at. A session that is at `to`
    already stays.

    Raises:
        SessionNotFound: there is no such session.
        NotSupported: the backend cannot take what was said.
        DragomanError: there is no such backend or it is not ready, the session is at another one
            than expected, has ended, or something is under way in it.
        JournalError: it could not be read or stored.
    """
    backend = _backend(sessions, to)
    session = await _session(sessions, name)
    leg = session.leg
    if leg.backend == to:
        return MoveResult(session.id, to, to, backend.dialect, leg.number, moved=False)
    if expected is not None and leg.backend != expected:
        raise DragomanError(
            f"Session `{session.id}` is at backend `{leg.backend}`, not at `{expected}`.",
            code=ErrorCode.NOT_ACTIVE,
        )
    legs = await sessions.journal.legs(session.row.key)
    native_id = None
    if DIALECTS[backend.dialect].chosen_names:
        been = any(one.backend == to for one in legs)
        native_id = f"{session.row.id}-{leg.number + 1}" if been else session.row.id
    new = BackendBinding(session.row.key, leg.number + 1, to, native_id)
    codec = HandoverCodec(sessions.backends.codec(backend, native_id or session.row.id))
    plan = _Plan(backend, new, codec, since=0)
    return await _move(sessions, session, plan, by=by, dry_run=dry_run)


async def roll_back(sessions: Sessions, name: str, *, by: str, dry_run: bool = False) -> MoveResult:
    """Let a session go on where it was before it last moved, in the session that it has there; what
    was said since goes over as its history. Durable on return.

    Raises:
        DragomanError: it has not moved, or as `move`.
        JournalError: it could not be read or stored.
    """
    session = await _session(sessions, name)
    legs = await sessions.journal.legs(session.row.key)
    before = left_by_the_last_move(legs)
    if before is None:
        text = f"Session `{session.id}` has not moved: there is nothing to take back."
        raise DragomanError(text, code=ErrorCode.NOT_ACTIVE)
    backend = _backend(sessions, before.backend)
    inner = sessions.backends.codec(backend, before.native_id or session.row.id)
    codec = HandoverCodec(inner)
    with reading_back(f"the state of session `{session.id}` at its backend"):
        if before.number:
            codec.restore(before.state, before.position)
        else:
            inner.restore(before.state, before.position)
    new = BackendBinding(
        session.row.key,
        session.leg.number + 1,
        before.backend,
        before.native_id,
        resumes=before.first,
    )
    # What it never was given, it is given now.
    since = 0 if codec.owes_history else before.number + 1
    plan = _Plan(backend, new, codec, since=since)
    return await _move(sessions, session, plan, by=by, dry_run=dry_run)


async def _session(sessions: Sessions, name: str) -> Session:
    session = await sessions.get(name, owner=None, route=None)
    if session.row.owner == SHADOWS:
        text = f"Session `{session.id}` is a shadow, which stays in its sandbox."
        raise DragomanError(text, code=ErrorCode.NOT_ACTIVE)
    return session


def _backend(sessions: Sessions, name: str) -> BackendSettings:
    backend = sessions.backends.get(name)
    if backend is None:
        known = ", ".join(f"`{one.name}`" for one in sessions.settings.backends)
        text = f"There is no backend `{name}`; configured are: {known}."
        raise DragomanError(text, code=ErrorCode.NOT_FOUND)
    return backend


async def _move(
    sessions: Sessions,
    session: Session,
    plan: _Plan,
    *,
    by: str,
    dry_run: bool,
) -> MoveResult:
    backend, leg, codec = plan.backend, plan.leg, plan.codec
    # First: what is wrong with the backend is so for all sessions.
    notices = await sessions.backends.readiness.require(backend)
    session.check_movable()
    seq = session.last_seq
    found = await _read(sessions, session, plan.since)
    history = found.history.fitting(lambda file: _refusal(codec, file))
    if not codec.remembers:
        history = history.as_messages()
    if history.text:
        _check_takes(backend, codec, history)
    upstream = sessions.backends.upstream(backend)
    if session.last_seq != seq:
        text = f"Session `{session.id}` has gone on meanwhile; move it again."
        raise DragomanError(text, code=ErrorCode.BUSY)
    out = MoveResult(
        session.id,
        session.leg.backend,
        backend.name,
        backend.dialect,
        leg.number,
        moved=not dry_run,
        history=history.carried,
        characters=len(history.text),
        notices=notices,
    )
    if dry_run:
        return out
    codec.started(found.started)
    codec.begin(history)
    event = ev.SessionUpdated(
        thread_id=ev.MAIN,
        backend={
            "name": backend.name,
            "dialect": backend.dialect,
            "leg": leg.number,
            "before": session.leg.backend,
            "history": [one.as_json() for one in history.carried],
        },
        synthetic=True,
    )
    await session.move(
        leg,
        codec,
        upstream,
        event,
        patience=backend.settings.patience_ms,
        quiet=backend.settings.quiet_ms,
    )
    _log.info(
        "session `%s` goes on at backend `%s`, it was at `%s`; moved by `%s`",
        *(session.id, out.backend, out.before, by),
    )
    return out


async def _read(sessions: Sessions, session: Session, since: int) -> _MoveSource:
    """Read the log of a session; its history begins at the leg `since`."""
    started: ev.SessionStarted | None = None
    historian = HistoryWriter()
    async for chunk in sessions.journal.scan(session.row.key):
        async for entry in entries_by_steps(chunk.body, session.id):
            event = entry.event
            if isinstance(event, ev.SessionStarted):
                started = event
            elif isinstance(event, ev.SessionUpdated) and (event.backend or {}).get("leg") == since:
                historian = HistoryWriter()
            historian.feed(event)
    assert started is not None
    about = session.state.about
    changes = {"title": about.title, "metadata": dict(about.metadata) or None}
    return _MoveSource(started.model_copy(update=changes), historian.made())


def _refusal(codec: HandoverCodec, file: ev.File) -> str | None:
    """Return why a backend does not take a file, or None."""
    said = cmd.SendMessage(content=(file, ev.Text(text="?")), policy="queue")
    try:
        codec.check(said)
    except NotSupported as error:
        return error.whole
    return None


def _check_takes(
    backend: BackendSettings, codec: HandoverCodec, history: ConversationHistory
) -> None:
    """Check that a backend takes a history.

    Raises:
        NotSupported: it does not.
    """
    if codec.history.support is Support.IMPOSSIBLE:
        raise NotSupported(
            f"Backend `{backend.name}` of dialect `{backend.dialect}` cannot take what was said: "
            f"{codec.history.how}."
        )
    said = cmd.SendMessage(content=(ev.Text(text="?"),), policy="queue")
    codec.inner.check(codec.inner.with_history(said, history.text, history.files))
