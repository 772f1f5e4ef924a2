"""A Dragoman over one scripted Engine, as eve clients see it, and readers of its streams.

Time runs faster for it, so that a minute of patience takes less than a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from proxy.journal.base import Journal
from proxy.scripted.engine_turns import ScriptedEngine
from tests.support.alone import Alone
from tests.support.clocks import SPEED
from tests.support.dragoman import Start
from tests.support.waiting import until

__all__ = ["BACKEND", "Live", "Run", "Running", "types"]

BACKEND = "engine"


class Running(Alone):
    """One Dragoman over one scripted Engine.

    Args:
        journal: a URL, or a journal that a restart finds again.
        engine: arguments of `create_engine_app`.
        speed: how much faster than real time the proxy's clock runs.
        options: further arguments of `Alone`.
    """

    def __init__(
        self,
        journal: str | Journal,
        *,
        engine: Mapping[str, Any] | None = None,
        speed: float = SPEED,
        **options: Any,
    ) -> None:
        super().__init__(journal, dialect=BACKEND, options=engine, speed=speed, **options)

    @property
    def engine(self) -> ScriptedEngine:
        """The Engine's state."""
        engine: ScriptedEngine = self.backend
        return engine

    @property
    def engine_url(self) -> str:
        """The Engine's address."""
        return self.backend_url(BACKEND)

    def requests(self, route: str) -> list[Any]:
        """The bodies that the Engine got on a route, in order; queries of a route without body."""
        return [
            json.loads(received.body) if received.body else dict(received.query)
            for received in self.engine.received
            if received.route == route
        ]


Run = Start[Running]


class Live:
    """A reader that stays: the lines of a stream as they come."""

    def __init__(self, running: Running, session_id: str, query: str = "") -> None:
        self._running = running
        self._session_id = session_id
        self._query = query
        self.lines: list[bytes] = []
        self.blank = 0
        self.over = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Live:
        opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._read(opened))
        await opened
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _read(self, opened: asyncio.Future[None]) -> None:
        rest = b""
        async with self._running.get(self._session_id, self._query) as response:
            assert response.status == 200
            opened.set_result(None)
            with contextlib.suppress(aiohttp.ClientError):
                async for data in response.content.iter_any():
                    *lines, rest = (rest + data).split(b"\n")
                    self.blank += lines.count(b"")
                    self.lines += [line + b"\n" for line in lines if line]
        self.over = True

    async def until(self, condition: Callable[[Live], bool]) -> list[bytes]:
        """Wait until the condition holds of this reader, and return its lines."""
        await until(lambda: condition(self))
        return list(self.lines)

    async def count(self, number: int) -> list[bytes]:
        """Wait for that many lines."""
        return await self.until(lambda live: len(live.lines) >= number)


def types(lines: list[bytes]) -> list[str]:
    """The record types of lines, in order."""
    return [json.loads(line)["type"] for line in lines]
