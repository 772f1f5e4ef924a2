"""A Dragoman whose route `main` has a shadow, over scripted backends."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.model import commands as cmd
from adapters.model import events as ev
from proxy.config.settings import LOCAL, SHADOWS
from proxy.journal.base import Journal
from proxy.migration.progress import Progress, progress_of, read_log
from proxy.migration.reporting import RouteOut, report
from proxy.scripted.faults import Faults
from proxy.session import Session
from proxy.sessions.shadows import shadow_of
from tests.support.dragoman import Backend, Dragoman
from tests.support.waiting import SOON_S, asks, settled, until

__all__ = ["Shadowed"]

TABLES: Mapping[str, Mapping[str, Any]] = {
    "agui": {},
    "engine": {},
    "eve": {},
    "herm": {"create": {"agent": "agent_K4", "user_id": "team_blue"}},
    "managed-agents": {},
}


def _message(content: Sequence[ev.Content | str]) -> cmd.SendMessage:
    blocks = tuple(ev.Text(text=one) if isinstance(one, str) else one for one in content)
    return cmd.SendMessage(content=blocks, policy="queue")


class Shadowed(Dragoman):
    """The route `main` on the backend `serving`, with the shadow `shadow`: their dialects, and what
    is wrong with the shadow; `wants` is a key that it wants and is not given."""

    def __init__(
        self,
        journal: str | Journal,
        *,
        serving: str = "engine",
        shadow: str = "engine",
        faults: Faults | None = None,
        wants: str | None = None,
        **options: Any,
    ) -> None:
        wrong: dict[str, Any] = {"faults": faults} if faults is not None else {}
        if wants is not None:
            wrong["key"] = wants
        backends = {
            "serving": Backend(serving, {}, TABLES[serving]),
            "shadow": Backend(shadow, wrong, {**TABLES[shadow], "sandbox": True}),
        }
        route = {"name": "main", "backends": [{"name": "serving"}], "shadow": "shadow"}
        super().__init__(journal, backends, settings={"routes": [route]}, **options)

    async def begin(self, *content: ev.Content | str, face: str = "engine") -> Session:
        """Begin a session with a message."""
        session, _ = await self.sessions.create_with(
            [_message(content)], by=LOCAL, owner=LOCAL, route="main", dialect=face
        )
        return session

    async def say(self, session: Session, *content: ev.Content | str) -> None:
        """Say something in a session, and wait for its rest."""
        await session.submit([_message(content)], by=LOCAL, face=session.row.dialect)
        await settled(session)

    async def answer(self, session: Session, **answer: Any) -> None:
        """Answer what a session asks next."""
        await until(lambda: asks(session))
        (request,) = session.open_interactions()
        command = cmd.AnswerInteraction(request_id=request.request_id, **answer)
        await session.submit([command], by=LOCAL, face=session.row.dialect)

    def replace(self, message: str, instead: str) -> None:
        """Let the shadow, an Engine, play something else for a message."""
        engine = self.scripted["shadow"]
        begin = engine.begin

        def other(request: Any) -> Any:
            said = instead if request.message == message else request.message
            return begin(dataclasses.replace(request, message=said))

        engine.begin = other

    def given(self, backend: str, route: str = "execute") -> list[Any]:
        """The bodies that a backend got on a route."""
        return [json.loads(body) for body in self.bodies(backend, route)]

    async def shadow_log(self, session_id: str) -> list[ev.Entry]:
        """The log of a session's shadow, empty where it has none."""
        journal = self.sessions.journal
        found = await shadow_of(journal, await journal.session(session_id))
        return [] if found is None else await read_log(journal, found)

    async def progress(self, session_id: str) -> Progress:
        """How far the shadow of a session has come."""
        return progress_of(await self.shadow_log(session_id))

    async def followed(self, session_id: str) -> Progress:
        """Wait until a session's shadow has had all, or says why not."""
        async with asyncio.timeout(SOON_S):
            while True:
                now = await self.progress(session_id)
                last = (await self.sessions.journal.session(session_id)).last_seq
                if now.failed is not None or now.seq == last:
                    return now
                await asyncio.sleep(0.01)

    async def caught_up(self, session_id: str) -> Progress:
        """Wait until a session's shadow has had all, whatever went wrong before."""
        async with asyncio.timeout(SOON_S):
            while True:
                now = await self.progress(session_id)
                if now.seq == (await self.sessions.journal.session(session_id)).last_seq:
                    return now
                await asyncio.sleep(0.01)

    async def report(self) -> RouteOut:
        """The report of the route."""
        readiness = self.sessions.backends.readiness
        found = await report(self.sessions.journal, self.sessions.settings, readiness, "main")
        return found.routes[0]

    async def ids(self) -> list[str]:
        """The sessions of the route, newest first."""
        rows = await self.sessions.journal.sessions(route="main", limit=10_000)
        return [row.id for row in rows]

    async def no_shadows(self) -> None:
        """Wait until no shadow is kept."""
        async with asyncio.timeout(SOON_S):
            while True:
                if not await self.shadows():
                    return
                await asyncio.sleep(0.01)

    async def shadows(self) -> list[str]:
        """The shadows that are kept."""
        rows = await self.sessions.journal.sessions(owner=SHADOWS, limit=10_000)
        return [row.id for row in rows if row.state not in {"deleted", "expired"}]
