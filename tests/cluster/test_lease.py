"""A process whose lease is not renewed asks no backend."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp import web

from adapters.model.base import Call, Request
from proxy.app.server import join
from proxy.config.settings import ClusterSettings, Settings
from proxy.upstream.client import Upstream
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
        backends=SimpleNamespace(permit=None),
    )
    async with served(app) as url, aiohttp.ClientSession() as http:
        join(sessions, ClusterSettings.local("x" * 32), http)
        upstream = Upstream(http, url, {}, permit=sessions.backends.permit)
        call = Call(name="health", request=Request("GET", "/health"))
        asking = asyncio.ensure_future(upstream.call(call))
        await asyncio.sleep(0.3)
        assert asked == []
        node.leased = True
        assert (await asking).status == 200
        await until(lambda: asked == ["/health"])
