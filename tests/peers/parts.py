"""Plays all parts of `make peers`: `run.sh` without the name of a part calls it.

`servers`, `cluster`, `clients`, `services`, `hermes` and `agents` wait more than they compute, so
others are played beside them; `ui` computes and comes last. What a part needs is installed while
others are played. The output of a part is printed when it ends; on a terminal a line counts until
then. Ctrl-C ends all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from itertools import zip_longest
from pathlib import Path

LANES = (
    ("servers", "ui"),
    ("clients", "page", "services", "hermes", "agents"),
    ("terminal", "cluster", "agui", "aisdk", "sdks"),
)
SCRIPT = Path(__file__).with_name("run.sh")
# A part that is told to end says what has failed so far; one that does not is killed.
STOP_S = 20.0
LONGEST_LINE = 16 * 2**20


class Part:
    """A part: it is installed, then played."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.passed = False
        self.installed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._counts: Counter[str] = Counter()
        self._process: asyncio.subprocess.Process | None = None

    async def install(self) -> None:
        """Install what it needs."""
        await self._start("install", self.name)
        self.installed.set_result(await self._ended())

    async def play(self) -> None:
        """Play it; at its end print all that it says."""
        begun = time.monotonic()
        process = await self._start(self.name, output=PIPE)
        assert process.stdout is not None
        lines = []
        async for line in process.stdout:
            lines.append(line.decode(errors="replace").rstrip())
            if found := re.match(r"PASS|FAIL", lines[-1]):
                self._counts[found[0]] += 1
                self._count()
        self.passed = await self._ended()
        verdict = "passed" if self.passed else "FAILED"
        lines.append(f"--- {self.name}: {verdict}, {time.monotonic() - begun:.0f} s")
        text = "\n".join([f"--- {self.name}", *lines])
        print(f"\r\x1b[K{text}" if sys.stdout.isatty() else text, flush=True)

    def signal(self, number: signal.Signals) -> None:
        """Signal what runs, and what that has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _count(self) -> None:
        if sys.stdout.isatty():
            counted = f"{self._counts['PASS']} passed, {self._counts['FAIL']} failed"
            print(f"\r\x1b[K{self.name}: {counted}", end="", flush=True)

    async def _start(self, *words: str, output: int | None = None) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            "sh",
            str(SCRIPT),
            *words,
            stdout=output,
            stderr=None if output is None else STDOUT,
            limit=LONGEST_LINE,
            start_new_session=True,
        )
        return self._process

    async def _ended(self) -> bool:
        assert self._process is not None
        status = await self._process.wait()
        self.signal(signal.SIGKILL)
        self._process = None
        return status == 0


async def play_all() -> bool:
    """Install and play all parts; return whether all passed."""
    lanes = [[Part(name) for name in names] for names in LANES]
    # The first of each lane, then the second of each.
    parts = [part for row in zip_longest(*lanes) for part in row if part is not None]
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        # A program that is told twice leaves its own behind.
        if stopped.is_set():
            return
        stopped.set()
        for part in parts:
            part.signal(signal.SIGINT)
            loop.call_later(STOP_S, part.signal, signal.SIGKILL)

    async def install() -> None:
        for part in parts:
            if stopped.is_set():
                part.installed.set_result(False)
            else:
                await part.install()

    async def play(lane: list[Part]) -> None:
        for part in lane:
            if await part.installed and not stopped.is_set():
                await part.play()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await asyncio.gather(install(), *(play(lane) for lane in lanes))
    failed = [part.name for part in parts if not part.passed]
    print(f"FAIL {', '.join(failed)}" if failed else "all parts passed", flush=True)
    return not failed


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(play_all()) else 1)
