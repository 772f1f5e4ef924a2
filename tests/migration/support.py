"""A Dragoman over backends of all dialects, between which sessions move."""

from __future__ import annotations

from typing import Any

from adapters.model import events as ev
from proxy.journal.base import Journal
from proxy.scripted.eve_turns import EveVariant
from tests.support.dragoman import Backend, Dragoman
from tests.support.engine_client import EngineClient
from tests.support.herm_client import HermClient

__all__ = ["House"]

CREATE = {"agent": "agent_K4", "user_id": "team_blue"}


class House(Dragoman):
    """A Dragoman over scripted backends `old` and `new` (eves of both generations), `engine`,
    `engine2`, `herm`, `agents` (of Managed Agents) and `runs` (of AG-UI)."""

    def __init__(self, journal: str | Journal, **options: Any) -> None:
        backends = {
            "old": Backend("eve", {"variant": EveVariant("T")}),
            "new": Backend("eve", {"variant": EveVariant("S2")}),
            "engine": Backend("engine"),
            "engine2": Backend("engine"),
            "herm": Backend("herm", {}, {"create": CREATE}),
            "agents": Backend("managed-agents"),
            "runs": Backend("agui"),
        }
        super().__init__(journal, backends, **options)

    def engine(self, route: str) -> EngineClient:
        """A strict Engine client."""
        return EngineClient(self.http, self.face("engine", route))

    def herm(self, route: str) -> HermClient:
        """A strict Herm client."""
        return HermClient(self.http, self.face("herm", route))

    async def texts(self, session_id: str) -> list[str]:
        """What the agents said in a session, in order."""
        log = await self.log(session_id)
        return [event.text for event in log if isinstance(event, ev.TextCompleted)]
