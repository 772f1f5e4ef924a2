"""Says and answers to a real backend what a recorded person did: `dragoman replay --drive`.

It is a session of a Dragoman of its own, with a journal in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from adapters.offline.replay import ReplayScript
from adapters.wire.errors import DragomanError
from proxy.app.server import opened_sessions
from proxy.config.settings import Settings
from proxy.migration.scripted_person import Driver, ScriptedRun

OWNER = "replay"


async def drive(
    script: ReplayScript,
    settings: Settings,
    face: str,
    *,
    seconds: float,
    sealed: Sequence[str] = (),
    tell: Callable[[str], None],
    stop: asyncio.Event,
) -> ScriptedRun:
    """Drive the one backend of `settings` through a script.

    Args:
        script: what the person did.
        settings: of a Dragoman with one backend.
        face: the dialect that the session is of.
        seconds: how long nothing may come.
        sealed: values for the secrets that are asked for, in this order; a capture has none.
        tell: hears of each step, for people.
        stop: ends it where it is.

    Raises:
        JournalError: what came could not be stored.
    """
    out = ScriptedRun()
    async with opened_sessions(settings) as sessions:
        driver = Driver(script, out, seconds=seconds, sealed=list(sealed), tell=tell, stop=stop)
        try:
            route = settings.backends[0].name
            session = await sessions.create(owner=OWNER, route=route, dialect=face)
            await driver.begin(sessions, session)
            await driver.run()
        except DragomanError as error:
            out.failed = error.whole
        with contextlib.suppress(DragomanError):
            await driver.read()
    return out
