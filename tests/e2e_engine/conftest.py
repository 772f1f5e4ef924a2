"""Starts a Dragoman over a scripted Engine, and makes strict Engine clients of it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.running import HOST, Running, sqlite
from tests.support.engine_client import EngineClient, Expect

STAMPED = Expect(stamped=True, known_types=False)
"""What Dragoman promises beyond the page, a stamp on every frame; some event types are its own."""


class Face(Running):
    """A Dragoman as Engine frontends see it; its clock runs as real time does."""

    def __init__(self, journal: Any, **options: Any) -> None:
        super().__init__(journal, **{"speed": 1.0, **options})

    @property
    def url(self) -> str:
        """The base URL of the face."""
        return f"http://{HOST}:{self.port}/as/engine/to/engine"

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


def keys(*names: str) -> list[dict[str, str]]:
    """The settings of keys whose values are their names."""
    return [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in names]


Serve = Callable[..., Awaitable[Face]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a Dragoman over a scripted Engine; with `journal="sqlite"` on a file."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(journal: Any = "memory:", **options: Any) -> Face:
            if journal == "sqlite":
                journal = sqlite(tmp_path)
            face = await stack.enter_async_context(Face(journal, **options))
            assert isinstance(face, Face)
            return face

        yield start


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client session of its own."""
    async with aiohttp.ClientSession() as session:
        yield session
