"""Three processes behind nginx that share a journal in PostgreSQL, instead of `dragoman serve`:

    python -m tests.peers.cluster CONFIG

nginx listens where CONFIG says, and gives each request to the next process. `POST /SIGKILL` and
`POST /SIGTERM` at the address that is printed end two of the three, those that have the most of the
sessions at work; they are started again. SIGTERM ends all.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from tests.proof.backends import HOST, Backends
from tests.proof.cluster import Cluster
from tests.proof.configuration import configuration
from tests.support.serving import serve


def restarts(cluster: Cluster) -> web.Application:
    """Return the application that ends processes."""

    async def end(request: web.Request) -> web.Response:
        had = await cluster.end_two(signal.Signals[request.match_info["signal"]])
        # Without one nothing would be shown.
        return web.Response(status=200 if had else 409, text=f"{had} sessions at work\n")

    app = web.Application()
    app.router.add_post("/{signal:SIGKILL|SIGTERM}", end)
    return app


@contextlib.asynccontextmanager
async def clustered() -> AsyncIterator[str]:
    """Run them before scripted backends, which have the names of their dialects; gives the URL."""
    with tempfile.TemporaryDirectory(prefix="dragoman-peers-") as folder:
        cluster = Cluster(Path(folder), "peers", lines=False)
        async with Backends(1.0) as backends:
            try:
                await cluster.start(
                    lambda port, journal: configuration(port, journal, "all", backends.ports)
                )
                yield f"http://{HOST}:{cluster.port}"
            finally:
                await cluster.close()


async def run(config: Path) -> None:
    """Run them until SIGTERM."""
    text = config.read_text()
    listen = re.search(r'^listen = ".*:(\d+)"$', text, re.MULTILINE)
    assert listen, "the file says where to listen"
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)

    def configured(port: int, journal: str) -> str:
        own = text.replace(listen[0], f'listen = "{HOST}:{port}"')
        return re.sub(r'^url = "sqlite:.*"$', f'url = "{journal}"', own, flags=re.MULTILINE)

    with tempfile.TemporaryDirectory(prefix="dragoman-peers-") as folder:
        cluster = Cluster(Path(folder), "peers", lines=False, port=int(listen[1]))
        try:
            await cluster.start(configured)
            runner, port = await serve(restarts(cluster))
            print(f"control at http://{HOST}:{port}", flush=True)
            print(f"listening on http://{HOST}:{cluster.port}", flush=True)
            await stopped.wait()
            await runner.cleanup()
        finally:
            await cluster.close()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
