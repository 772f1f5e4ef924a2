"""Finds the session that a request at a face is about, by what its dialect says of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

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
from proxy.faces.face_request import FaceRequest, Match
from proxy.session import Session
from proxy.sessions.stored import looking_at

AT_WORK = ("running", "paused")

_log = logging.getLogger(__name__)


async def find(request: FaceRequest, target: Target, submission: Submission | None = None) -> Match:
    """Return the session that a target stands for.

    Raises:
        SessionNotFound: there is none, or not for this key and route.
        SessionExpired: it is no longer kept.
        DragomanError: no session waits for such an answer.
    """
    match target:
        case NamedSession(name, also):
            session = await _owned(request, name)
            same = also == session.id
            if also is not None and not same:
                same = await _is(request, also, session)
            found = Match(session, also=same)
        case ClientNamedSession(name):
            found = Match(await _chosen(request, name))
        case ChildThread():
            found = await _child(request, target)
        case AnyOf(targets):
            for one in targets[:-1]:
                with contextlib.suppress(SessionNotFound):
                    return await find(request, one)
            return await find(request, targets[-1])
        case NewestSession():
            found = Match(await _newest(request))
        case MatchingSession():
            found = await _that(request, target, submission)
        case FreshSession():
            raise TypeError("a new session is made, not found")
    request.about(found.session)
    return found


def _owned(request: FaceRequest, name: str) -> Coroutine[Any, Any, Session]:
    noun = request.at.face.noun
    return owned(request.http, request.principal, name, request.name, what=noun)


async def _is(request: FaceRequest, name: str, session: Session) -> bool:
    try:
        return await _owned(request, name) is session
    except (SessionNotFound, CursorExpired):
        return False


async def _chosen(request: FaceRequest, name: str) -> Session:
    try:
        return await _owned(request, name)
    except SessionExpired:
        # A session's own id stays with it; to what succeeds it that id is a chosen name.
        successor = await request.sessions.journal.resolve(
            owner=request.owner, route=request.name, kind=AliasKind.TASK, name=name
        )
        if successor is None:
            raise
        return await _owned(request, successor)


async def _child(request: FaceRequest, child: ChildThread) -> Match:
    parent = child.parent
    if parent is not None:
        session = await _owned(request, parent)
        if child.name in session.state.threads:
            return Match(session, child.name)
    else:
        parent = await request.sessions.journal.resolve(
            owner=request.owner, route=request.name, kind=AliasKind.THREAD, name=child.name
        )
        if parent is not None:
            return Match(await _owned(request, parent), child.name)
    raise SessionNotFound("There is no such session.")


async def rows(request: FaceRequest, *states: str) -> list[SessionRow]:
    """Return the sessions of a key on this route, other faces' included."""
    found = await request.sessions.journal.sessions(
        owner=request.owner, route=request.name, states=states or None, limit=10_000
    )
    return [row for row in found if row.state not in ("deleted", "expired")]


async def at_work(request: FaceRequest) -> AsyncGenerator[Match]:
    """Yield the sessions of a key on this route that are at work, a few in a turn of the loop; one
    that another process has only to be looked at, until the next is asked for.

    One that cannot be loaded, such as one whose backend has left the configuration, must not hide
    what the others wait for.
    """
    for row in await rows(request, *AT_WORK):
        await asyncio.sleep(0)
        async with contextlib.AsyncExitStack() as stack:
            looking = looking_at(request.sessions.cache, row.id)
            try:
                session = await stack.enter_async_context(looking)
            except (SessionNotFound, SessionExpired, CursorExpired):
                # Erased since the list was read.
                continue
            except DragomanError as error:
                _log.warning("session `%s` cannot be looked into: %s", row.id, error.whole)
                continue
            yield Match(session)


async def _newest(request: FaceRequest) -> Session:
    found = await rows(request)
    if not found:
        raise SessionNotFound("There is no session yet.")
    return await _chosen(request, max(found, key=lambda row: (row.updated_at, row.key)).id)


async def _matching(
    request: FaceRequest, that: MatchingSession, submission: Submission | None
) -> str | None:
    """Return the id of the session that waits for such an answer, or has had this one."""
    async with contextlib.aclosing(at_work(request)) as found:
        async for one in found:
            gave = submission is not None and one.session.gave(submission)
            if gave or that.test(await request.view(one, shown=True)):
                return one.session.id
    return None


async def _that(
    request: FaceRequest, that: MatchingSession, submission: Submission | None
) -> Match:
    while (match := await _matching(request, that, submission)) is not None:
        # Raises `SessionElsewhere` where another process has it.
        session = await _chosen(request, match)
        ids = None if submission is None else session.repeated(submission)
        found = Match(session, ids=ids, looked=True)
        if ids is not None or that.test(await request.view(found, shown=True)):
            return found
    text = f"No {request.at.face.noun} of this key waits for such an answer on this route."
    raise DragomanError(text, code=ErrorCode.UNKNOWN_INTERACTION)
