"""Nodes of one cluster as processes of their own, over one PostgreSQL and one scripted Engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from tests.support.dragoman import BACKEND_KEY
from tests.support.keys import key_of
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.serving import HOST
from tests.support.waiting import SOON_S

SECRET = "0123456789abcdef0123456789abcdef"


class ClusterNode:
    """`dragoman serve` as one process of a cluster; `url` is its public address,
    `environment` what its next start has besides."""

    def __init__(
        self,
        folder: Path,
        number: int,
        journal: str,
        engine: str,
        backends: Sequence[str],
        *,
        pooled: bool = False,
    ) -> None:
        self.number = number
        self.port, self.internal = free_port(), free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.database = journal.rpartition("/")[2]
        self.log = folder / f"node-{number}.log"
        self.environment: dict[str, str] = {}
        self._config = folder / f"node-{number}.toml"
        self._config.write_text(
            f"""
            [server]
            listen = "{HOST}:{self.port}"
            [journal]
            url = "{journal}"
            pooled = {str(pooled).lower()}
            [cluster]
            listen = "{HOST}:{self.internal}"
            advertise = "http://{HOST}:{self.internal}"
            secret_env = "CLUSTER_SECRET"
            """
        )
        for name in backends:
            self.add_backend(name, engine)
        self._process: asyncio.subprocess.Process | None = None

    def drop_backends(self) -> None:
        """Take all backends out of its configuration, for its next start."""
        text = self._config.read_text()
        self._config.write_text(text.partition("[[backends]]")[0])

    def add_key(self, name: str) -> None:
        """Add a key to its configuration, as `key_of` makes it, for its next start."""
        with self._config.open("a") as config:
            config.write(f'[[keys]]\nname = "{name}"\nsha256 = "{key_of(name).sha256}"\n')

    def add_backend(self, name: str, engine: str) -> None:
        """Add a backend to its configuration, for its next start."""
        with self._config.open("a") as config:
            config.write(
                f"""
                [[backends]]
                name = "{name}"
                dialect = "engine"
                url = "{engine}"
                auth = {{ header = "X-Engine-Key", env = "E2E_ENGINE_KEY" }}
                """
            )

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy", "serve", "--config", str(self._config)),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={
                    **os.environ,
                    "E2E_ENGINE_KEY": BACKEND_KEY,
                    "CLUSTER_SECRET": SECRET,
                    **self.environment,
                },
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(SOON_S):
            async for line in self._process.stdout:
                if re.search(rb"listening on (http://\S+)", line):
                    return
        raise AssertionError(f"it does not listen: {self.log.read_text()}")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal: SIGSTOP pauses it, SIGCONT wakes it."""
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.returncode is None

    async def ended(self) -> int:
        """Wait for its end, and return its status."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it: without more as nothing can be prepared for."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            if number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGCONT)
            await self._process.wait()
            await asyncio.sleep(0)

    def face(self, dialect: str) -> str:
        """The base URL of a face on the Engine."""
        return f"{self.url}/as/{dialect}/to/engine"


@contextlib.asynccontextmanager
async def cluster(
    folder: Path,
    postgres: PostgresServer,
    engine: str,
    count: int,
    *,
    backends: Sequence[str] = ("engine",),
    key: str | None = None,
    through: Callable[[str], str] | None = None,
) -> AsyncIterator[list[ClusterNode]]:
    """Run so many nodes; each of their backends is the Engine. With `key` they want that. `through`
    returns the URL of a database behind a pooler."""
    journal = (through or postgres.url)(postgres.new_database())
    nodes = [
        ClusterNode(folder, number, journal, engine, backends, pooled=through is not None)
        for number in range(1, count + 1)
    ]
    try:
        for node in nodes:
            if key is not None:
                node.add_key(key)
            await node.start()
        yield nodes
    finally:
        for node in nodes:
            await node.stop()
