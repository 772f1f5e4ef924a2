"""Dragomans over several scripted backends at once, and strict clients of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from proxy.journal.base import Journal
from proxy.scripted.eve_turns import EveVariant, Generation, ScriptedEve
from proxy.scripted.herm_turns import ScriptedHerm
from tests.support.dragoman import BACKEND_KEY, Backend, Dragoman
from tests.support.engine_client import EngineClient
from tests.support.eve_client import EveClient, Form, Style
from tests.support.herm_client import Expect, HermClient

__all__ = ["GENERATIONS", "Eves", "HermAndEngine", "eves"]

GENERATIONS: tuple[Generation, ...] = get_args(Generation)


def eves(**options: Any) -> dict[str, Backend]:
    """Scripted eves, one for each generation, named after it; `options` are arguments of
    `create_eve_app`."""
    return {
        generation.lower(): Backend("eve", {"variant": EveVariant(generation), **options})
        for generation in GENERATIONS
    }


class Eves(Dragoman):
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
        super().__init__(journal, eves(**eve), speed=speed, settings={"eve": {"form": form}})

    @property
    def eves(self) -> dict[str, ScriptedEve]:
        """The states of the scripted eves by generation."""
        return {generation: self.scripted[generation.lower()] for generation in GENERATIONS}

    def eve(self, generation: str, style: Style | None = None) -> EveClient:
        """A strict eve client."""
        return self.eve_client(generation.lower(), self._form, style)

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


class HermAndEngine(Dragoman):
    """A Dragoman over a scripted Herm and a scripted Engine.

    Args:
        journal: a URL, or a journal that a restart finds again.
        herm: arguments of `create_herm_app`.
        options: further arguments of `Dragoman`.
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
        return self.eve_client(backend, form, style)

    def posts(self, route: str = "post") -> list[bytes]:
        """The bodies that the scripted Herm got on a route, in order."""
        return self.bodies("herm", route)
