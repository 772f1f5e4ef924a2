"""The ways between a proxy and its backends, on which a test holds up what it likes.

Requests, their answers and the frames of streams go over connections of their own, and a busy
machine or network carries each at its own speed. A test names an order with gates, or lets a seed
draw the delays.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import pytest

from adapters.model.base import Call
from proxy.scripted import http_app
from proxy.upstream.client import Upstream

__all__ = ["Gate", "Roads"]

DELAYS = (0.0, 0.0, 0.0, 0.003, 0.01, 0.03)
"""Seconds: less than a scene takes, about as long as its steps, and longer than these."""


class Gate:
    """Holds up one request on its way, or its answer; `reached` is set when it is there."""

    def __init__(self, wanted: Callable[[Call], bool], *, answer: bool) -> None:
        self.wanted = wanted
        self.answer = answer
        self.reached = asyncio.Event()
        self._open = asyncio.Event()

    def open(self) -> None:
        """Let it go on."""
        self._open.set()

    async def wait(self) -> None:
        self.reached.set()
        await self._open.wait()


class Roads:
    """All ways of this process, until the test is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._gates: list[Gate] = []
        self._source: random.Random | None = None
        self._frames = asyncio.Event()
        self._frames.set()
        ask, write = Upstream._open, http_app.StreamBody.frames

        async def slow_open(upstream: Upstream, call: Call, *rest: Any) -> aiohttp.ClientResponse:
            gate = next((gate for gate in self._gates if gate.wanted(call)), None)
            if gate is not None:
                self._gates.remove(gate)
            await self._delay()
            if gate is not None and not gate.answer:
                await gate.wait()
            response = await ask(upstream, call, *rest)
            await self._delay()
            if gate is not None and gate.answer:
                await gate.wait()
            return response

        async def slow_frames(body: http_app.StreamBody, frames: Sequence[bytes]) -> None:
            await self._delay()
            await self._frames.wait()
            await write(body, frames)

        monkeypatch.setattr(Upstream, "_open", slow_open)
        monkeypatch.setattr(http_app.StreamBody, "frames", slow_frames)

    async def _delay(self) -> None:
        if self._source is not None:
            await asyncio.sleep(self._source.choice(DELAYS))

    def draw(self, seed: object) -> None:
        """Let everything take as long as a seed says."""
        self._source = random.Random(repr(seed))

    def hold(self, wanted: Callable[[Call], bool], *, answer: bool = False) -> Gate:
        """Hold up the next request that is wanted, or its answer."""
        gate = Gate(wanted, answer=answer)
        self._gates.append(gate)
        return gate

    def hold_frames(self) -> None:
        """Hold up what streams show."""
        self._frames.clear()

    def open_frames(self) -> None:
        """Let streams show it."""
        self._frames.set()
