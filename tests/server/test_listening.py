"""How connections are taken."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time

import aiohttp
from yarl import URL

from proxy.server import TAKEN_AT_ONCE, serve
from proxy.settings import Settings
from tests.support.ports import HOST, free_port
from tests.support.waiting import SOON_S

MANY = 8 * TAKEN_AT_ONCE


async def test_many_more_connections_may_wait_than_are_taken_at_once() -> None:
    tables = {"server": {"listen": f"{HOST}:{free_port()}"}, "journal": {"url": "memory:"}}
    said: asyncio.Queue[str] = asyncio.Queue()
    stop = asyncio.Event()
    settings = Settings.model_validate(tables)
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        group.create_task(serve(settings, ready=said.put_nowait, stop=stop))
        url = URL((await said.get()).split()[-1])
        with contextlib.ExitStack() as stack:
            # Nobody takes one meanwhile: the loop is ours. One that does not fit is tried again
            # after a second.
            knocking = [stack.enter_context(socket.socket()) for _ in range(MANY)]
            for one in knocking:
                one.setblocking(False)
                one.connect_ex((HOST, url.port))
            deadline = time.monotonic() + 0.5
            connected: list[socket.socket] = []
            while len(connected) < MANY and time.monotonic() < deadline:
                connected = select.select([], knocking, [], 0)[1]
            assert len(connected) == MANY
            waiting, loop = knocking[-1], asyncio.get_running_loop()
            head = f"GET /healthz HTTP/1.1\r\nHost: {HOST}:{url.port}\r\n\r\n"
            await loop.sock_sendall(waiting, head.encode())
            assert (await loop.sock_recv(waiting, 100)).startswith(b"HTTP/1.1 200 ")
        async with aiohttp.ClientSession() as http, http.get(url / "healthz") as answer:
            assert answer.status == 200
        stop.set()
