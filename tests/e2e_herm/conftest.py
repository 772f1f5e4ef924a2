"""Starts a Dragoman over a scripted Herm and a scripted Engine, and makes strict clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from proxy.journal.base import Journal
from proxy.scripted.herm import ScriptedHerm
from tests.support.dragoman import BACKEND_KEY, Backend, Dragoman, Start, starting
from tests.support.eve_client import EveClient, Form, Style
from tests.support.herm_client import Expect, HermClient


class House(Dragoman):
    """A Dragoman over both backends.

    Args:
        journal: a URL, or a journal that a restart finds again.
        herm: arguments of `create_herm_app`.
        settings: further tables of the configuration.
        speed: how much faster than real time the proxy's clock runs.
    """

    def __init__(
        self, journal: str | Journal, *, herm: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        create = {"agent": "agent_K4", "user_id": "team_blue"}
        backends = {
            "herm": Backend("herm", herm or {}, {"create": create}),
            "engine": Backend("engine"),
        }
        super().__init__(journal, backends, **options)

    @property
    def herm(self) -> ScriptedHerm:
        """The state of the scripted Herm."""
        herm: ScriptedHerm = self.scripted["herm"]
        return herm

    def client(
        self, backend: str = "herm", key: str | None = None, expect: Expect | None = None
    ) -> HermClient:
        """A strict Herm client of the Herm face."""
        return HermClient(self.http, self.face("herm", backend), key, expect=expect)

    def direct(self, expect: Expect | None = None) -> HermClient:
        """A strict Herm client of the scripted Herm itself."""
        return HermClient(self.http, self.backend_url("herm"), BACKEND_KEY, expect=expect)

    def eve(
        self, backend: str = "herm", form: Form = "all", style: Style | None = None
    ) -> EveClient:
        """A strict eve client of the eve face."""
        return EveClient(self.http, self.face("eve", backend), form=form, style=style)

    def posts(self, route: str = "post") -> list[bytes]:
        """The bodies that the scripted Herm got on a route, in order."""
        return [received.body for received in self.herm.received if received.route == route]


Serve = Start[House]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a Dragoman over both backends."""
    async with starting(House, tmp_path) as start:
        yield start
