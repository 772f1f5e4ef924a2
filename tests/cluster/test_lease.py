"""A process whose lease is not renewed asks no backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from adapters.model.base import Call, Request
from proxy.app.server import join
from proxy.base.errors import UpstreamUnavailable
from proxy.config.settings import ClusterSettings, Settings
from proxy.upstream.client import Upstream
from proxy.upstream.fenced_body import fenced
from tests.support.serving import served
from tests.support.waiting import until


async def test_a_request_to_a_backend_waits_for_the_lease() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(text="{}")

    app = web.Application()
    app.router.add_get("/health", answer)
    node = SimpleNamespace(number=1, time=lambda: 0.0, leased=False)
    sessions: Any = SimpleNamespace(
        settings=Settings(),
        journal=SimpleNamespace(shared=node),
        tasks=SimpleNamespace(start=lambda work, name: work.close()),
        bodies=SimpleNamespace(keeps=False),
        backends=SimpleNamespace(permitted=None),
    )
    async with served(app) as url, aiohttp.ClientSession() as http:
        join(sessions, ClusterSettings.local("x" * 32), http)
        upstream = Upstream(http, url, {}, permitted=sessions.backends.permitted)
        call = Call(name="health", request=Request("GET", "/health"))
        asking = asyncio.ensure_future(upstream.call(call))
        await asyncio.sleep(0.3)
        assert asked == []
        node.leased = True
        assert (await asking).status == 200
        await until(lambda: asked == ["/health"])


class Lease:
    """A lease that lasts for so many looks at it."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def __call__(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("looks", [1, 2])
async def test_a_request_leaves_only_while_the_lease_lasts(looks: int, size: int) -> None:
    asked: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(len(await request.read()))
        return web.Response(text="{}")

    app = web.Application()
    app.router.add_post("/say", answer)
    async with served(app) as url, aiohttp.ClientSession() as http:
        upstream = Upstream(http, url, {}, permitted=Lease(looks))
        call = Call(name="say", request=Request("POST", "/say", body=b"x" * size))
        if looks == 1:
            # It was paused while the connection was made.
            with pytest.raises(UpstreamUnavailable):
                await upstream.call(call)
        else:
            assert (await upstream.call(call)).status == 200
        # What is asked next is answered, and nothing of the first has arrived.
        upstream = Upstream(http, url, {}, permitted=Lease(2))
        assert (await upstream.call(call)).status == 200
    assert asked == [size] * looks


async def test_each_piece_of_a_long_body_leaves_only_while_the_lease_lasts() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a", b"b", b"c"):
            yield piece

    body: Any = fenced(pieces(), Lease(2))
    assert await anext(body) == b"a"
    assert await anext(body) == b"b"
    with pytest.raises(ConnectionAbortedError):
        await anext(body)
    assert fenced(None, Lease(0)) is None
