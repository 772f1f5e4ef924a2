"""Three processes behind nginx or Caddy, which give each request to the next one: docs/deploy.md,
*Many processes*. The strict eve client notices nothing but that a stream breaks off.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
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
from tests.test_proxies import (
    PROXIES,
    AtHome,
    authority,
    caddy,
    environment,
    nginx,
    until_it_answers,
)

pytestmark = pytest.mark.deploy

Run = Start[Running]


NODES = "one.example:8787 two.example:8787 three.example:8787"


def nginx_text() -> str:
    """The page's files for nginx; `UPSTREAM` stands for the nodes."""
    servers = " ".join(f"server {node};" for node in NODES.split())
    balancer = replaced(block("nginx", "upstream dragoman"), (servers, f"server {UPSTREAM}"))
    text = replaced(
        block("nginx", "limit_conn"),
        (f"//{UPSTREAM}", "//dragoman"),
        # The strict client wants to see a header that nginx takes for itself.
        ("proxy_buffering off;", "proxy_buffering off; proxy_pass_header X-Accel-Buffering;"),
    )
    return f"{balancer}{text}"


def caddy_text() -> str:
    """The same for Caddy."""
    balancer = replaced(block("caddyfile", "lb_policy"), (NODES, UPSTREAM))
    text, count = re.subn(
        r"^\treverse_proxy .*?^\t}\n",
        balancer,
        block("caddyfile", "request_body"),
        flags=re.MULTILINE | re.DOTALL,
    )
    assert count == 1
    return text


@contextlib.asynccontextmanager
async def balanced(
    name: str, folder: Path, nodes: Sequence[ClusterNode]
) -> AsyncIterator[tuple[str, ssl.SSLContext]]:
    """Run a proxy with the page's file before nodes; gives its URL and how its clients trust it."""
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, f"{name} is not installed: `make deploy-steps` needs Debian's package"
    hosts = [node.url.removeprefix("http://") for node in nodes]
    ports = free_port(), free_port()
    if name == "caddy":
        _, *arguments = caddy(folder, caddy_text(), ports, " ".join(hosts))
    else:
        servers = " server ".join(f"{host};" for host in hosts)
        _, *arguments = nginx(folder, nginx_text(), ports, servers)
    log = folder / "proxy.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, env=environment(folder), cwd=folder, stdout=out, stderr=out
        )
    try:
        tls = await until_it_answers(process, authority(name, folder), ports[1], log)
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


@pytest.mark.parametrize("name", PROXIES)
async def test_a_client_behind_a_balancer_notices_nothing_but_a_reconnect(
    run: Run, postgres: PostgresServer, tmp_path: Path, name: str
) -> None:
    running = await run(engine={"pace": 0.1})
    async with (
        cluster(tmp_path, postgres, running.engine_url, 3, key="a") as nodes,
        balanced(name, tmp_path, nodes) as (url, tls),
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
