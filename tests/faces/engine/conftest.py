"""Starts a Dragoman over a scripted Engine, and makes strict Engine clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.support.dragoman import Start, starts
from tests.support.engine_client import EngineClient, Expect
from tests.support.running import BACKEND, Running

STAMPED = Expect(stamped=True, known_types=False)
"""What Dragoman promises beyond the page, a stamp on every frame; some event types are its own."""


class Face(Running):
    """A Dragoman as Engine frontends see it; its clock runs as real time does."""

    def __init__(self, journal: Any, **options: Any) -> None:
        super().__init__(journal, **{"speed": 1.0, **options})

    @property
    def url(self) -> str:
        """The base URL of the face."""
        return self.face("engine", BACKEND)

    def client(self, key: str | None = None, expect: Expect = STAMPED) -> EngineClient:
        """A strict client of the face."""
        return EngineClient(self.http, self.url, key, expect=expect)

    async def raw(self, query: str, key: str | None = None, path: str = "/execute/replay") -> bytes:
        """The bytes of a body, heartbeats left out."""
        headers = {} if key is None else {"X-Engine-Key": key}
        async with self.http.get(f"{self.url}{path}?{query}", headers=headers) as response:
            assert response.status == 200, await response.text()
            return without_heartbeats(await response.read())

    def post(self, path: str, **arguments: Any) -> Any:
        """Open a POST to the face."""
        return self.http.post(f"{self.url}{path}", **arguments)


def without_heartbeats(body: bytes) -> bytes:
    """The frames of a body as they are, heartbeats left out."""
    frames = [frame + b"\n\n" for frame in body.split(b"\n\n") if frame]
    return b"".join(frame for frame in frames if not frame.startswith(b"event: heartbeat\n"))


Serve = Start[Face]


serve = starts(Face)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client session of its own."""
    async with aiohttp.ClientSession() as session:
        yield session
