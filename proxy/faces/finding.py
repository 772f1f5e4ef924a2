"""Finds the session that a request at a face is about, by what its dialect says of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from adapters.contract.faces import (
    AnyOf,
    ChildThread,
    ClientNamedSession,
    FreshSession,
    MatchingSession,
    NamedSession,
    NewestSession,
    Target,
)
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.errors import CursorExpired, SessionExpired, SessionNotFound
from proxy.base.repeats import Submission
from proxy.base.rows import AliasKind, SessionRow
from proxy.entry.entry import owned
from proxy.faces.visit import Found, Visit
from proxy.session import Session

LOOKED_AT = 10_000
"""Sessions of one key and route that are looked at for the most recent one and for open
requests."""

AT_WORK = ("running", "paused")

_log = logging.getLogger(__name__)


async def find(visit: Visit, target: Target, submission: Submission | None = None) -> Found:
    """Return the session that a target stands for.

    Raises:
        SessionNotFound: there is none, or not for this key and route.
        SessionExpired: it is no longer kept.
        DragomanError: no session waits for such an answer.
    """
    found = await _find(visit, target, submission)
    visit.about(found.session)
    return found


async def _find(visit: Visit, target: Target, submission: Submission | None = None) -> Found:
    match target:
        case NamedSession(name, None):
            return Found(await _owned(visit, name))
        case NamedSession(name, also):
            assert also is not None
            session = await _owned(visit, name)
            return Found(session, also=await _is(visit, also, session))
        case ClientNamedSession(name):
            return Found(await _chosen(visit, name))
        case ChildThread():
            return await _child(visit, target)
        case AnyOf(targets):
            for one in targets[:-1]:
                with contextlib.suppress(SessionNotFound):
                    return await _find(visit, one)
            return await _find(visit, targets[-1])
        case NewestSession():
            return Found(await _newest(visit))
        case MatchingSession():
            return await _that(visit, target, submission)
        case FreshSession():
            raise TypeError("a new session is made, not found")


async def _owned(visit: Visit, name: str) -> Session:
    request, principal = visit.request, visit.principal
    return await owned(request, principal, name, visit.action, what=visit.at.face.noun)


async def _is(visit: Visit, name: str, session: Session) -> bool:
    if name == session.id:
        return True
    try:
        return await _owned(visit, name) is session
    except (SessionNotFound, CursorExpired):
        return False


async def _chosen(visit: Visit, name: str) -> Session:
    try:
        return await _owned(visit, name)
    except SessionExpired:
        # A session's own id stays with it; to what succeeds it that id is a chosen name.
        successor = await visit.sessions.journal.resolve(
            owner=visit.owner, route=visit.name, kind=AliasKind.TASK, name=name
        )
        if successor is None:
            raise
        return await _owned(visit, successor)


async def _child(visit: Visit, child: ChildThread) -> Found:
    parent = child.parent
    if parent is not None:
        session = await _owned(visit, parent)
        if child.name in session.state.threads:
            return Found(session, child.name)
    else:
        parent = await visit.sessions.journal.resolve(
            owner=visit.owner, route=visit.name, kind=AliasKind.THREAD, name=child.name
        )
        if parent is not None:
            return Found(await _owned(visit, parent), child.name)
    raise SessionNotFound("There is no such session.")


async def rows(visit: Visit, *states: str) -> list[SessionRow]:
    """Return the sessions of a key on this route, other faces' included."""
    found = await visit.sessions.journal.sessions(
        owner=visit.owner, route=visit.name, states=states or None, limit=LOOKED_AT
    )
    return [row for row in found if row.state not in ("deleted", "expired")]


async def at_work(visit: Visit) -> AsyncIterator[Found]:
    """Yield the sessions of a key on this route that are at work, a few in a turn of the loop.

    One that cannot be loaded, such as one whose backend has left the configuration, must not hide
    what the others wait for.
    """
    for row in await rows(visit, *AT_WORK):
        await asyncio.sleep(0)
        try:
            session = await _chosen(visit, row.id)
        except (SessionNotFound, CursorExpired):
            # Erased since the list was read.
            continue
        except DragomanError as error:
            _log.warning("session `%s` cannot be looked into: %s", row.id, error.whole)
            continue
        yield Found(session)


async def _newest(visit: Visit) -> Session:
    found = await rows(visit)
    if not found:
        raise SessionNotFound("There is no session yet.")
    return await _chosen(visit, max(found, key=lambda row: (row.updated_at, row.key)).id)


async def _that(visit: Visit, that: MatchingSession, submission: Submission | None) -> Found:
    async for one in at_work(visit):
        ids = None if submission is None else one.session.repeated(submission)
        found = Found(one.session, ids=ids, looked=True)
        if ids is not None or that.test(await visit.see(found, shown=True)):
            return found
    text = f"No {visit.at.face.noun} of this key waits for such an answer on this route."
    raise DragomanError(text, code=ErrorCode.UNKNOWN_INTERACTION)
