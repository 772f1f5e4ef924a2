"""A session as the journal has it, for who only looks at it: another process may have it in
memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from proxy.session import Session
from proxy.sessions.cache import SessionCache, check_there


@contextlib.asynccontextmanager
async def looking_at(cache: SessionCache, name: str) -> AsyncIterator[Session]:
    """Yield a session, given by its public id, for who only looks at what is stored of it.

    Where processes share the journal, one that is not in memory here is read and not claimed. It
    takes no commands, and is closed afterwards.

    Raises:
        SessionNotFound: there is none, or it was deleted.
        SessionExpired: it is no longer kept.
        CursorExpired: it was erased while it was read.
        DragomanError: its backend is not configured.
    """
    live, journal = cache.at_hand(name), cache.context.journal
    if journal.shared is None or (live is not None and not live.closed):
        yield await cache.get(name, owner=None, route=None)
        return
    async with cache.context.slots:
        row = await journal.session(name)
        check_there(row, name, None)
        leg = (await journal.legs(row.key))[-1]
        names = await journal.aliases(row.key)
        session = cache.make(row, leg, cache.backends.of_leg(leg))
        try:
            await session.look(names)
        except BaseException:
            session.close()
            raise
    try:
        yield session
    finally:
        session.close()
