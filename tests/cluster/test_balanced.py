"""Three processes behind nginx, which gives each request to the next one: docs/deploy.md, *Many
processes*. The strict eve client notices nothing but that a stream breaks off.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from tests.cluster.nodes import ClusterNode, cluster
from tests.deployed import HOST, UPSTREAM, block, replaced
from tests.support.dragoman import Start
from tests.support.eve_client import EveClient, EveSession, TurnResult
from tests.support.keys import credential
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.running import Running
from tests.test_proxies import AtHome, nginx, until_it_answers

pytestmark = pytest.mark.deploy

Run = Start[Running]


@contextlib.asynccontextmanager
async def balanced(
    folder: Path, nodes: Sequence[ClusterNode]
) -> AsyncIterator[tuple[str, ssl.SSLContext]]:
    """Run nginx with the page's file before nodes; gives its URL and how its clients trust it."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "nginx is not installed: `make deploy-steps` needs Debian's package"
    servers = [f"{node.url.removeprefix('http://')};" for node in nodes]
    text = replaced(
        block("nginx"),
        (f"//{UPSTREAM}", "//dragoman"),
        # The strict client wants to see a header that nginx takes for itself.
        ("proxy_buffering off;", "proxy_buffering off; proxy_pass_header X-Accel-Buffering;"),
    )
    text = f"upstream dragoman {{ server {UPSTREAM} }}\n{text}"
    ports = free_port(), free_port()
    _, *arguments = nginx(folder, text, ports, " server ".join(servers))
    log = folder / "nginx.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, cwd=folder, stdout=out, stderr=out
        )
    try:
        tls = await until_it_answers(process, folder / "cert.pem", ports[1], log)
        yield f"https://{HOST}:{ports[1]}", tls
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def read(session: EveSession) -> TurnResult:
    """Read a turn to its end, and come again where the stream breaks off."""
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            return await session.read_turn()
        await asyncio.sleep(0.1)


def owner(
    postgres: PostgresServer, nodes: Sequence[ClusterNode], session: EveSession
) -> ClusterNode:
    """The node that has a session."""
    (url,) = postgres.query(
        nodes[0].database,
        "SELECT nodes.url FROM dragoman.sessions JOIN dragoman.nodes USING (node)"
        f" WHERE id = '{session.session_id}'",
    )
    (found,) = (node for node in nodes if url == f"http://127.0.0.1:{node.internal}")
    return found


async def test_a_client_behind_nginx_notices_nothing_but_a_reconnect(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run(engine={"pace": 0.1})
    async with (
        cluster(tmp_path, postgres, running.engine_url, 3, key="a") as nodes,
        balanced(tmp_path, nodes) as (url, tls),
    ):
        connector = aiohttp.TCPConnector(force_close=True, ssl=tls, resolver=AtHome())
        async with aiohttp.ClientSession(connector=connector) as http:
            client = EveClient(http, f"{url}/as/eve/to/engine", headers=credential("k-a"))
            slow, held, plain = await asyncio.gather(
                client.create("script: slow 100"),
                client.create("script: approve"),
                client.create("hello"),
            )
            assert (await read(plain)).text is not None
            asked = (await read(held)).requests[0]
            reading = asyncio.ensure_future(read(slow))
            await asyncio.sleep(1)
            # In the middle of an answer.
            first = owner(postgres, nodes, slow)
            await first.stop()
            # In the middle of an approval.
            second = owner(postgres, nodes, held)
            if second is not first:
                await second.stop()
                await second.start()
            await first.start()
            await held.respond(asked["requestId"], "approve")
            assert "4.1 GB freed" in ((await read(held)).text or "")
            told = await reading
            assert told.text == "".join(f"tick {n} " for n in range(100)) + " (turn 1)"
            for session in (slow, held, plain):
                accepted = await session.send("and again")
                turn = await session.read_turn(accepted)
                assert "(turn 2)" in (turn.text or "")
                # A client that looks at it anew sees the same.
                again = client.attach(session.session_id)
                assert [line async for line in again.stream(0, follow=False)] == session.log
    assert len(running.requests("execute")) == 6
    assert len(running.requests("respond")) == 1
