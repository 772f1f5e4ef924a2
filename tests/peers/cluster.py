"""The part `cluster`: the unmodified eve clients before nginx and three processes that share a
journal in PostgreSQL. nginx gives each request to the next process.

All scenarios of the part `clients` are played. For those that restart the server two of the three
processes end, those that have the most of the sessions: killed in the middle of an answer and of an
approval, and told to stop. The clients know of one server, and must notice nothing but a reconnect.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from aiohttp import web

from tests.proof.backends import HOST, Backends
from tests.proof.cluster import Cluster
from tests.support.serving import serve

ROOT = Path(__file__).parents[2]


def restarts(cluster: Cluster) -> web.Application:
    """Return an application that ends processes: `POST /SIGKILL`, `POST /SIGTERM`."""

    async def end(request: web.Request) -> web.Response:
        had = await cluster.end_two(signal.Signals[request.match_info["signal"]])
        print(f"{request.match_info['signal']}: two of three ended, with {had} sessions at work")
        # Without one nothing would be shown.
        return web.Response(status=200 if had else 409, text=f"{had} sessions at work\n")

    app = web.Application()
    app.router.add_post("/{signal:SIGKILL|SIGTERM}", end)
    return app


async def play(node: str, cache: Path, words: list[str]) -> int:
    """Play the scenarios; returns the status of the program that does.

    Args:
        node: the program Node.
        cache: where everything is installed.
        words: its other words.
    """
    with tempfile.TemporaryDirectory(prefix="dragoman-peers-") as folder:
        cluster = Cluster(Path(folder), "peers", lines=False)
        async with Backends(1.0) as backends:
            try:
                await cluster.start("all", {"engine": backends.ports["engine"]})
                runner, port = await serve(restarts(cluster))
                try:
                    process = await asyncio.create_subprocess_exec(
                        *(node, str(cache / "run.mjs"), str(ROOT), *words),
                        env={
                            "EVE_HOST": f"http://{HOST}:{cluster.port}/as/eve/to/engine",
                            "EVE_RESTARTS": f"http://{HOST}:{port}",
                            "EVE_TELEMETRY_DISABLED": "1",
                            "PATH": "",
                        },
                    )
                    return await process.wait()
                finally:
                    await runner.cleanup()
            finally:
                await cluster.close()


def main() -> int:
    """Read the command line and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.cluster", description=__doc__)
    parser.add_argument("--node", required=True)
    parser.add_argument("--cache", required=True, type=Path)
    options, words = parser.parse_known_args()
    return asyncio.run(play(options.node, options.cache, words))


if __name__ == "__main__":
    sys.exit(main())
