"""Demos: their server is a process of its own; the rest is in this process, or another one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from proxy.tools import demo
from tests.support.waiting import SOON_S

__all__ = ["DemoProcess", "demo_process", "running"]

REPOSITORY = Path(__file__).parent.parent.parent


@contextlib.asynccontextmanager
async def running(
    environ: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[tuple[str, str | None]]:
    """Run a demo, and give its address and its key."""
    stop = asyncio.Event()
    ready: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
    names = {f"DRAGOMAN_{name}": value for name, value in (environ or {}).items()}
    async with asyncio.TaskGroup() as group:
        group.create_task(
            demo.run_demo(
                **{"environ": names, "host": None, "port": 0, **options},
                ready=lambda url, key: ready.set_result((url, key)),
                stop=stop,
            )
        )
        async with asyncio.timeout(SOON_S):
            found = await ready
        try:
            yield found
        finally:
            stop.set()


class DemoProcess:
    """A demo as people run it, with its address."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    async def ended(self) -> tuple[int, str]:
        """Wait until it and its server have ended; return its status, and what both said on
        stderr, which either would hold open."""
        async with asyncio.timeout(SOON_S):
            _, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, err.decode()


@contextlib.asynccontextmanager
async def demo_process(folder: Path, *arguments: str) -> AsyncIterator[DemoProcess]:
    """Run a demo in a process group of its own, with its temporary files in a folder."""
    environ = {n: v for n, v in os.environ.items() if not n.startswith("DRAGOMAN_")}
    environ |= {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(folder), "PYTHONWARNINGS": "error"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman", "demo", "--port", "0", *arguments),
        cwd=folder,
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(SOON_S):
            line = ""
            while not (found := re.fullmatch(r"listening on (http://\S+)\n", line)):
                line = (await process.stdout.readline()).decode()
                assert line, "the demo has not begun"
        yield DemoProcess(process, found[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
