"""Waiting in tests: for what has no event of its own, and for a session to come to rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.session import Session

__all__ = ["SOON_S", "asks", "idle", "moves", "settled", "stored", "until"]

SOON_S = 120.0
"""After so long something that must come soon counts as missing, on the slowest machine too."""


async def until(condition: Callable[[], bool], seconds: float = SOON_S) -> None:
    """Return once the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


def stored(session: Session) -> bool:
    """Whether all that a session knows is stored, and shown: before that no client can know it."""
    return session.last_seq == session.state.seq


def asks(session: Session) -> bool:
    """Whether a session shows that it waits for an answer."""
    return stored(session) and bool(session.state.interactions)


def idle(session: Session) -> bool:
    """Whether nothing of a session is under way, readers aside."""
    state = session.state
    return stored(session) and not (state.busy or state.inputs or state.unreceived)


def moves(session: Session) -> bool:
    """Whether the session waits for something that a client can do, or for nothing."""
    interactions = session.state.interactions.values()
    return (
        session.closed or idle(session) or any(open_.claimed_by is None for open_ in interactions)
    )


async def settled(session: Session) -> None:
    """Return when nothing of a session is under way."""
    await until(lambda: idle(session))
