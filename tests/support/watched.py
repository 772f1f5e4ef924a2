"""A Dragoman in a process of its own, whose memory can be asked for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

__all__ = ["Watched", "watched"]

REPOSITORY = Path(__file__).parents[2]


class Watched:
    """A running Dragoman: its address and a client."""

    def __init__(self, url: str, http: aiohttp.ClientSession, pid: int) -> None:
        self.url = url
        self.http = http
        self.pid = pid

    async def get(self, path: str, **options: Any) -> bytes:
        """What a path answers, to its end."""
        async with self.http.get(self.url + path, **options) as response:
            assert response.status == 200, await response.text()
            return await response.read()

    def peak(self) -> int:
        """The most memory that it has had so far, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024


@contextlib.asynccontextmanager
async def watched(folder: Path, configuration: str = "") -> AsyncIterator[Watched]:
    """Serve the journal `dragoman.db` of a folder with further tables of a configuration."""
    (folder / "dragoman.toml").write_text(f'[server]\nlisten = "127.0.0.1:0"\n\n{configuration}')
    environ = {n: v for n, v in os.environ.items() if not n.startswith("DRAGOMAN_")}
    environ |= {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{folder}", "TMPDIR": str(folder)}
    with (folder / "log").open("wb") as log:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "proxy", "serve"),
            cwd=folder,
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        assert child.stdout is not None
        line = (await child.stdout.readline()).decode()
        found = re.fullmatch(r"listening on (http://\S+:\d+)\n", line)
        assert found is not None, f"{line}{(folder / 'log').read_text()}"
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=1 << 22) as http:
            yield Watched(found[1], http, child.pid)
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
