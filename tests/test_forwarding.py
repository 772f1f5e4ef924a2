"""What becomes of a request that is forwarded to another process, by what that one does with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from proxy.base.rows import NodeRow
from proxy.base.tasks import Tasks
from proxy.http.forwarding import Forwarder, ForwardRefused
from tests.support.ports import HOST, free_port
from tests.support.serving import serve

ANSWERS = {
    "answers": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    "elsewhere": b"HTTP/1.1 421 -\r\nDragoman-Elsewhere: 1\r\nContent-Length: 0\r\n\r\n",
    "came before": b"HTTP/1.1 421 -\r\nDragoman-Elsewhere: before\r\nContent-Length: 0\r\n\r\n",
    "refuses": b"HTTP/1.1 403 -\r\nDragoman-Elsewhere: refused\r\nContent-Length: 2\r\n\r\nno",
    "breaks off": b"",
}
AGAIN, REFUSED = 299, 298


class Front:
    """A process that forwards all to one that does `behaviour` with it."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.behaviour = "answers"
        self.gone = False
        self.http = http
        self.url = ""
        self.port = free_port()
        journal: Any = SimpleNamespace(nodes=self.nodes)
        node: Any = SimpleNamespace(number=1, time=lambda: 1000.0)
        self.tasks = Tasks("front")
        self.forwarder = Forwarder(journal, node, b"secret", http, self.tasks)

    async def nodes(self) -> list[NodeRow]:
        return [] if self.gone else [self.row]

    @property
    def row(self) -> NodeRow:
        return NodeRow(2, f"http://{HOST}:{self.port}")

    async def owner(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if self.behaviour == "is silent":
            await reader.read()
            writer.close()
            return
        writer.write(ANSWERS[self.behaviour])
        await writer.drain()
        writer.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            response = await self.forwarder.forward(request, "/x", await request.read(), self.row)
        except ForwardRefused:
            return web.Response(status=REFUSED)
        except ConnectionError:
            # As the entrance does it.
            return web.Response(status=499)
        return web.Response(status=AGAIN) if response is None else response

    async def ask(self, method: str, **options: Any) -> int | None:
        """Ask it; None where the connection breaks."""
        try:
            async with self.http.request(method, self.url, **options) as response:
                return response.status
        except aiohttp.ClientError:
            return None


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with aiohttp.ClientSession() as http:
        front = Front(http)
        app = web.Application()
        app.router.add_route("*", "/", front.handle)
        runner, port = await serve(app)
        front.url = f"http://{HOST}:{port}/"
        yield front
        await front.tasks.aclose()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("behaviour", "safe", "post"),
    [
        ("answers", 200, 200),
        ("elsewhere", AGAIN, AGAIN),
        ("refuses", REFUSED, REFUSED),
        # It may have been carried out: only what may be sent twice is.
        ("came before", AGAIN, None),
        ("breaks off", AGAIN, None),
        # Nobody is there.
        ("", AGAIN, AGAIN),
    ],
)
async def test_what_may_have_been_done_is_not_asked_again(
    behaviour: str, safe: int, post: int | None, front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    front.behaviour = behaviour
    if behaviour:
        server = await asyncio.start_server(front.owner, HOST, front.port)
    try:
        assert await front.ask("GET") == safe
        assert await front.ask("POST", data=b"{}") == post
        assert await front.ask("DELETE") == post
        key = {"Idempotency-Key": "k"}
        assert await front.ask("POST", data=b"{}", headers=key) == safe
    finally:
        if behaviour:
            server.close()
    # It is not a fault of ours.
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("connected", [True, False])
async def test_what_was_sent_to_a_process_whose_place_is_taken_is_not_sent_again(
    connected: bool, front: Front
) -> None:
    front.behaviour = "is silent"
    front.gone = True
    with contextlib.ExitStack() as stack:
        if connected:
            server = await asyncio.start_server(front.owner, HOST, front.port)
            stack.callback(server.close)
        else:
            # Its machine is gone: nobody answers to who wants to connect.
            stack.enter_context(socket.create_server((HOST, front.port), backlog=0))
            for _ in range(4):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex((HOST, front.port))
        assert await front.ask("GET") == AGAIN
        assert await front.ask("POST", data=b"{}") == (None if connected else AGAIN)
