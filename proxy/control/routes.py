"""Adds the control API to an application. Its modules are imported when it is first asked for."""

from __future__ import annotations

import asyncio
import functools
from types import ModuleType
from weakref import WeakKeyDictionary

from aiohttp import web

from proxy.base.turns import RoundRobin
from proxy.control.api import PACKING, READING, TURNS
from proxy.control.legs import LEGS
from proxy.http.lazy_routes import LazyRoutes

API = "/api/v1"


@functools.cache
def _control() -> ModuleType:
    from proxy.control import control

    control.document_json()
    return control


async def unknown(request: web.Request) -> web.StreamResponse:
    """Answer a path that is not one of ours, or a method that a path does not have."""
    control = await asyncio.to_thread(_control)
    answer: web.StreamResponse = await control.unknown(request)
    return answer


def add_routes(app: web.Application) -> None:
    """Add the control API."""
    # Readers have turns of their own: no frontend waits behind them.
    app[TURNS] = RoundRobin(4)
    # An archive is made of a session that is read through first.
    app[PACKING] = asyncio.Semaphore(2)
    app[LEGS] = WeakKeyDictionary()
    # A file takes as long as it is large, and memory besides.
    app[READING] = asyncio.Semaphore(1)
    app.router.register_resource(
        LazyRoutes(API, _control, lambda router: _control().add_routes(router))
    )
