"""`dragoman serve` in processes that are really killed, and soon there again.

One in `EXEC_EVERY` is executed from the command line as a person does; the others are forked from a
process that has everything imported (`python -m tests.proof.process`), which takes a tenth of the
time. All of them run the same command on the same file, and all end by SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

__all__ = ["EXEC_EVERY", "Dragoman"]

EXEC_EVERY = 8
"""More than the tenth of the restarts that must be executed processes."""

START_S = 60.0
"""A start that takes longer hangs, on a machine that does much else."""


class Dragoman:
    """The server under proof: the same port and the same journal in all its lives.

    Args:
        config: its configuration file.
        log: where its stderr goes, appended.
    """

    def __init__(self, config: Path, log: Path) -> None:
        self._config = config
        self._log = log
        self._nursery: asyncio.subprocess.Process | None = None
        self._child: asyncio.subprocess.Process | None = None
        self.pid = 0
        self.lives = 0
        self.executed = 0
        self.up = asyncio.Event()

    async def start(self) -> None:
        """Start it; returns when it listens."""
        if self.lives % EXEC_EVERY == 0:
            await self._execute()
            self.executed += 1
        else:
            await self._fork()
        self.lives += 1
        self.up.set()

    async def _execute(self) -> None:
        with self._log.open("ab") as log:
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy", "serve", "--config", str(self._config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self.pid = self._child.pid
        await _listens(self._child)

    async def _fork(self) -> None:
        if self._nursery is None:
            with self._log.open("ab") as log:
                self._nursery = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.proof.process", str(self._config)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                )
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(b"fork\n")
        async with asyncio.timeout(START_S):
            self.pid = int(await self._nursery.stdout.readline())
        await _listens(self._nursery)

    async def kill(self) -> None:
        """Kill it as nothing can be prepared for."""
        self.up.clear()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        if self._child is not None:
            await self._child.wait()
            self._child = None
        else:
            assert self._nursery is not None
            assert self._nursery.stdout is not None
            async with asyncio.timeout(START_S):
                assert await self._nursery.stdout.readline() == b"gone\n"

    def memory(self) -> int:
        """Return the bytes of memory that it holds, what it shares with nobody included."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def close(self) -> None:
        """Kill it, and the process that it was forked from."""
        if self.up.is_set():
            await self.kill()
        if self._nursery is not None:
            assert self._nursery.stdin is not None
            self._nursery.stdin.close()
            await self._nursery.wait()


async def _listens(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(START_S):
        while line := await process.stdout.readline():
            if b"listening on " in line:
                return
    raise RuntimeError("it does not listen; its log says why")


def main() -> None:
    """Fork a server for each line of stdin; say its pid first and `gone` when it is."""
    # The second is there for the children: what is imported before the fork, none of them imports.
    from proxy import cli, server

    assert callable(server.serve)
    config = sys.argv[1]
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            # The number is written by the child, so that it comes before all that it says.
            sys.stdout.write(f"{os.getpid()}\n")
            sys.stdout.flush()
            with open(os.devnull) as nothing:  # noqa: PTH123 - a descriptor is what is needed
                os.dup2(nothing.fileno(), 0)
            cli.main(["serve", "--config", config])
            os._exit(1)
        os.waitpid(pid, 0)
        sys.stdout.write("gone\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
