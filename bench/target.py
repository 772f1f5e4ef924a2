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
from tests.support.postgres import PostgresServer

_LISTENING = re.compile(r"listening on (http://\S+)")
ROUTE = "bench"
_ROOT = Path(__file__).parent.parent

BARE = "bare"
DURABLE = "durable"
MEMORY = "memory"
TARGETS = (BARE, DURABLE, MEMORY)
POSTGRES = "postgres"
TWO_NODES = "two-nodes"
THREE_NODES = "three-nodes"
FORWARDED = "forwarded"
NODES = {POSTGRES: 1, TWO_NODES: 2, THREE_NODES: 3, FORWARDED: 2}
"""Targets with a journal in PostgreSQL, and how many processes share it. Of the last one all
streams are read through the process that does not have the sessions."""
CLUSTERED = (BARE, DURABLE, *NODES)
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
    """One proxy under test, of one process or several, and the way through it; `database` is the
    pid of the PostgreSQL that has its journal, if one has."""

    def __init__(self, name: str, *processes: Process, database: int | None = None) -> None:
        self.name = name
        self.processes = processes
        self.database = database

    @property
    def process(self) -> Process:
        """The first process."""
        return self.processes[0]

    async def ready(self) -> None:
        """Wait until all processes listen.

        Raises:
            StartFailed: one ended, or hangs.
        """
        for process in self.processes:
            await process.ready()

    def hold(self) -> None:
        """Stop all processes from running. Those that share a journal have leases, and run on."""
        if self.name not in NODES:
            self.process.hold()

    def end(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.end()

    def face(self) -> EngineFace | EveFace:
        """Give a fresh way through this proxy; only Dragoman's is an eve one."""
        if self.name == BARE:
            return EngineFace(self.process.base)
        bases = [process.base for process in self.processes]
        if self.name == FORWARDED:
            return EveFace(bases[:1], ROUTE, read=bases[1])
        return EveFace(bases, ROUTE)


def start_origin(core: int | None, folder: Path) -> Process:
    """Start the origin on the load's core."""
    return _module("origin", "bench.origin", [], core, folder)


def start_target(
    name: str,
    origin: str,
    dragoman: list[str],
    core: int | None,
    folder: Path,
    database: PostgresServer | None = None,
) -> Target:
    """Start a proxy by its name; `dragoman` is the command without arguments, and in `database` its
    journal is where the name says so."""
    if name == BARE:
        return Target(name, _module(name, "bench.bare", ["--origin", origin], core, folder))
    journal = "memory:" if name == MEMORY else f"sqlite:///{folder / name}.db"
    window = f"window_ms = {WINDOWS[name]}\n" if name in WINDOWS else ""
    if name in NODES:
        assert database is not None
        journal = database.new_url()
    processes = []
    for number in range(NODES.get(name, 1)):
        config = folder / f"{name}-{number}.toml"
        config.write_text(
            '[server]\nlisten = "127.0.0.1:0"\n\n'
            f'[journal]\nurl = "{journal}"\n{window}\n{_cluster(name, folder)}'
            f'[[backends]]\nname = "{ROUTE}"\ndialect = "engine"\nurl = "{origin}"\n'
        )
        command = [*dragoman, "serve", "--config", str(config)]
        processes.append(Process(f"{name}-{number}", command, core, folder))
    return Target(name, *processes, database=database.pid if name in NODES and database else None)


def _cluster(name: str, folder: Path) -> str:
    """Return the table of a process that shares its journal; empty for one that does not."""
    if NODES.get(name, 1) == 1:
        return ""
    secret = folder / "secret"
    secret.write_text("0123456789abcdef" * 2)
    listen = "127.0.0.1:0"
    return (
        f'[cluster]\nlisten = "{listen}"\nadvertise = "http://{listen}"\n'
        f'secret_file = "{secret}"\n\n'
    )


def _module(name: str, module: str, options: list[str], core: int | None, folder: Path) -> Process:
    return Process(name, [sys.executable, "-m", module, *options], core, folder)
