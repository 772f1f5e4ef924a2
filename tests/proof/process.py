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
import time
from pathlib import Path

__all__ = ["EXEC_EVERY", "Dragoman", "NotStarted"]

EXEC_EVERY = 8
"""More than the tenth of the restarts that must be executed processes."""

START_S = 600.0
"""A start that takes longer hangs, also on a machine that does much else."""


class NotStarted(RuntimeError):
    """It ended before it listened; its log says why."""


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
        self.up, self.down = asyncio.Event(), asyncio.Event()
        # How long it took to listen, when it was executed and when it was forked.
        self._took = {True: 1.0, False: 0.2}

    async def start(self) -> None:
        """Start it; returns when it listens.

        Raises:
            NotStarted: it ended before.
        """
        executed = self._next_is_executed
        begun = time.monotonic()
        try:
            await _listens(await self._begin())
        except NotStarted:
            if self._child is not None:
                await self._child.wait()
                self._child = None
            raise
        self._took[executed] = time.monotonic() - begun
        self.down.clear()
        self.up.set()

    async def stumble(self, share: float) -> None:
        """Start it and kill it after a share of the time that it takes until it listens."""
        seconds = share * self._took[self._next_is_executed]
        await self._begin()
        await asyncio.sleep(seconds)
        await self.kill()

    @property
    def _next_is_executed(self) -> bool:
        return self.lives % EXEC_EVERY == 0

    async def _begin(self) -> asyncio.subprocess.Process:
        """Start it and return the process whose output says when it listens."""
        executed = self._next_is_executed
        self.lives += 1
        if not executed:
            return await self._fork()
        self.executed += 1
        return await self._execute()

    async def _execute(self) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy", "serve", "--config", str(self._config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self.pid = self._child.pid
        return self._child

    async def _fork(self) -> asyncio.subprocess.Process:
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
        return self._nursery

    async def kill(self) -> None:
        """Kill it as nothing can be prepared for."""
        self.up.clear()
        self.send(signal.SIGKILL)
        async with asyncio.timeout(START_S):
            await self.ended()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal: SIGSTOP pauses it, SIGCONT wakes it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def ended(self) -> None:
        """Wait until it has ended, for whatever reason; it must have listened."""
        if self._child is not None:
            await self._child.wait()
            self._child = None
        else:
            assert self._nursery is not None
            assert self._nursery.stdout is not None
            # What it said before it was killed may be unread.
            while (line := await self._nursery.stdout.readline()) != b"gone\n":
                assert line
        self.up.clear()
        self.down.set()

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
        while (line := await process.stdout.readline()) not in (b"", b"gone\n"):
            if b"listening on " in line:
                return
    raise NotStarted


def main() -> None:
    """Fork a server for each line of stdin; say its pid first and `gone` when it is."""
    # The others are there for the children: what is imported before the fork, none of them imports.
    from proxy import cli
    from proxy.app import server
    from proxy.cli import serving

    assert callable(server.serve)
    assert serving.serve.name
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
