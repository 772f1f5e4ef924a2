"""Starts a Dragoman over a scripted eve of each generation, and makes strict clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.journal.base import Journal
from proxy.scripted.eve import ScriptedEve, Variant
from proxy.scripted.eve_turns import Generation
from tests.support.dragoman import Backend, Dragoman, Start, starting
from tests.support.engine_client import EngineClient
from tests.support.eve_client import EveClient, Form, Style

GENERATIONS: tuple[Generation, ...] = ("T", "S1", "S2")


class House(Dragoman):
    """A Dragoman over scripted eves, one backend for each generation, named after it.

    Args:
        journal: a URL, or a journal that a restart finds again.
        speed: how much faster than real time the proxy's clock runs.
        form: of the eve face.
        eve: arguments of `create_eve_app`.
    """

    def __init__(
        self, journal: str | Journal, *, speed: float = 1.0, form: Form = "all", **eve: Any
    ) -> None:
        self._form: Form = form
        backends = {
            generation.lower(): Backend("eve", {"variant": Variant(generation), **eve})
            for generation in GENERATIONS
        }
        super().__init__(journal, backends, speed=speed, settings={"eve": {"form": form}})

    @property
    def eves(self) -> dict[str, ScriptedEve]:
        """The states of the scripted eves by generation."""
        return {generation: self.scripted[generation.lower()] for generation in GENERATIONS}

    def eve(self, generation: str, style: Style | None = None) -> EveClient:
        """A strict eve client."""
        url = self.face("eve", generation.lower())
        return EveClient(self.http, url, form=self._form, style=style)

    def engine(self, generation: str) -> EngineClient:
        """A strict Engine client."""
        return EngineClient(self.http, self.face("engine", generation.lower()))

    def posted(self, generation: str, route: str = "message") -> list[bytes]:
        """The bodies that a scripted eve got on a route, in order; a first message is one of the
        creates, whether it came with the session or after it."""
        found: list[bytes] = []
        empty = 0
        for received in self.eves[generation].received:
            first = received.route == "create"
            if first and b'"message"' not in received.body:
                empty += 1
                continue
            if empty and received.route in ("create", "message"):
                empty, first = empty - 1, True
            if ("create" if first else received.route) == route:
                found.append(received.body)
        return found


Serve = Start[House]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a Dragoman over scripted eves."""
    async with starting(House, tmp_path) as start:
        yield start
