"""What only a demo's control API has: what to try there, and ways to break it.

The OpenAPI document does not know these routes: no other server has them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from adapters.wire.errors import DragomanError, ErrorCode
from proxy.control.api import (
    VERSION,
    ApiModel,
    guarded,
    json_response,
    principal_of,
    runs_this,
)
from proxy.entry.keys import SESSIONS

KEY = "demo"
"""The name of the key that a demo makes for itself."""


class DemoScript(ApiModel):
    """A message that makes a scripted backend do something: `text` is what is sent."""

    name: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Demo:
    """What a server knows of the demo that it is of: `backends` play the `scripts`, and it is the
    `started`th process that serves it, from 1."""

    scripts: Sequence[DemoScript]
    backends: Sequence[str]
    started: int


DEMO = web.AppKey("demo", Demo)


class DemoOut(ApiModel):
    """The demo: `backends` are the names of those that play the `scripts`, and `started` counts the
    processes that have served it."""

    version: int = VERSION
    scripts: list[DemoScript]
    backends: list[str]
    started: int


class CutOut(ApiModel):
    """How many streams of frontends were cut."""

    version: int = VERSION
    cut: int


class KillOut(ApiModel):
    """Says that the process is killed once this is written."""

    version: int = VERSION
    killed: bool = True


async def show(request: web.Request) -> web.StreamResponse:
    """Say that this is a demo, and what can be tried."""
    principal_of(request)
    demo = request.app[DEMO]
    return json_response(
        DemoOut(scripts=list(demo.scripts), backends=list(demo.backends), started=demo.started)
    )


async def cut(request: web.Request) -> web.StreamResponse:
    """Cut all streams of frontends, as a network does."""
    _may_break(request)
    return json_response(CutOut(cut=sum(one.feeds.cut() for one in request.app[SESSIONS].cache)))


async def kill(request: web.Request) -> web.StreamResponse:
    """Kill this process once the answer is written."""
    _may_break(request)
    response = json_response(KillOut(), 202)
    response.force_close()
    await response.prepare(request)
    await response.write_eof()
    # Not at once: some loops write at the end of their turn. The reader may leave before that.
    asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGKILL)
    return response


def _may_break(request: web.Request) -> None:
    """Refuse who is neither an administrator nor has the key that the demo has made."""
    if principal_of(request).name != KEY and not runs_this(request):
        raise DragomanError(
            "This needs the key that the demo printed, or one of an administrator.",
            code=ErrorCode.FORBIDDEN,
        )


def add_routes(app: web.Application, demo: Demo) -> None:
    """Add the routes of a demo."""
    app[DEMO] = demo
    app.router.add_route("GET", "/api/v1/demo", guarded(show))
    app.router.add_route("POST", "/api/v1/demo/cut", guarded(cut))
    app.router.add_route("POST", "/api/v1/demo/kill", guarded(kill))
