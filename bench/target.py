"""Starts and stops the processes of a run: the origin, the pass-through, Dragoman."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.load import HANG_SECONDS, EngineFace, EveFace
from bench.machine import pinned

_LISTENING = re.compile(r"listening on (http://\S+)")
ROUTE = "bench"
_ROOT = Path(__file__).parent.parent

BARE = "bare"
DURABLE = "durable"
MEMORY = "memory"
TARGETS = (BARE, DURABLE, MEMORY)
WINDOWS = {"window-1": 1, "window-2": 2, "window-4": 4}
"""Targets that store like `DURABLE`, with the least milliseconds between two commits."""


class StartFailed(Exception):
    """A process of the run did not say that it listens."""


class Process:
    """A child process that says `listening on URL` when it is ready."""

    def __init__(self, name: str, command: list[str], core: int | None, folder: Path) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        self._stopped = False
        self.base = ""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(_ROOT)}
        with pinned(core), self._log.open("wb") as log:
            self._child = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    async def ready(self) -> None:
        """Wait until it listens, and learn its base URL.

        Raises:
            StartFailed: it ended, or hangs.
        """
        end = time.monotonic() + HANG_SECONDS
        while time.monotonic() < end and self._child.poll() is None:
            if found := _LISTENING.search(self.log()):
                self.base = found[1].rstrip("/")
                return
            await asyncio.sleep(0.02)
        raise StartFailed(f"{self.name} does not listen:\n{self.log()[-2000:]}")

    def log(self) -> str:
        """Give what it has printed."""
        return self._log.read_text(errors="replace")

    def hold(self) -> None:
        """Stop it from running, so that it does not disturb the one that is measured."""
        if not self._stopped:
            self._child.send_signal(signal.SIGSTOP)
            self._stopped = True

    def run_on(self) -> None:
        """Let it run again."""
        if self._stopped:
            self._child.send_signal(signal.SIGCONT)
            self._stopped = False

    def end(self) -> None:
        """End it, kindly first."""
        self.run_on()
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(HANG_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()


class Target:
    """One proxy under test and the way through it."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process

    def face(self) -> EngineFace | EveFace:
        """Give a fresh way through this proxy; only Dragoman's is an eve one."""
        if self.name == BARE:
            return EngineFace(self.process.base)
        return EveFace(self.process.base, ROUTE)


def start_origin(core: int | None, folder: Path) -> Process:
    """Start the origin on the load's core."""
    return _module("origin", "bench.origin", [], core, folder)


def start_target(
    name: str, origin: str, dragoman: list[str], core: int | None, folder: Path
) -> Target:
    """Start a proxy by its name; `dragoman` is the command without arguments."""
    if name == BARE:
        return Target(name, _module(name, "bench.bare", ["--origin", origin], core, folder))
    journal = "memory:" if name == MEMORY else f"sqlite:///{folder / name}.db"
    window = f"window_ms = {WINDOWS[name]}\n" if name in WINDOWS else ""
    config = folder / f"{name}.toml"
    config.write_text(
        '[server]\nlisten = "127.0.0.1:0"\n\n'
        f'[journal]\nurl = "{journal}"\n{window}\n'
        f'[[backends]]\nname = "{ROUTE}"\ndialect = "engine"\nurl = "{origin}"\n'
    )
    command = [*dragoman, "serve", "--config", str(config)]
    return Target(name, Process(name, command, core, folder))


def _module(name: str, module: str, options: list[str], core: int | None, folder: Path) -> Process:
    return Process(name, [sys.executable, "-m", module, *options], core, folder)
