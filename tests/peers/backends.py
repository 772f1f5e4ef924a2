"""Plays the same scenarios through Dragoman on real eve servers of both generations.

Each scenario is a conversation of one frontend (eve, Engine, Herm) with one real server behind a
`dragoman serve` that is killed and started again where the scenario says so. The face `compare` is
none: there the scripted eve is held against the real server, without Dragoman. Run by `run.sh`:

    python -m tests.peers.backends --node NODE --cache FOLDER [--only NAME[,NAME]] [--gen VERSION]
                                   [--face FACE] [--list]

Prints one line `PASS` or `FAIL` for each, and the reason of a failure; the exit status is 1 after a
failure.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.peers.compare import CASES, KNOWN, Case, Generation, compare, compare_refusals, scripted
from tests.peers.scenes import SCENES, Scene, Stage
from tests.peers.talks import TALKS, Talk

HOST = "127.0.0.1"
GENERATIONS: dict[str, Generation] = {"0.30.8": "T", "0.80.1": "S2"}
# Real servers compile their agent first: about 15 s on two cores that do nothing else.
START_S = 120.0
# The longest scenario took 33 s on two cores that played four of them at a time.
SCENE_S = 60.0
# The whole of `make peers`, installation and the part `clients` included.
BUDGET_S = 720.0
# Conversations at a time. With several 0.30.8 loses children ("Hook not found") and takes half a
# minute for a turn, with any client; two cores are busy with this.
JOBS = {"0.30.8": 1, "0.80.1": 2}
# A child process that was told to stop and does not is killed.
STOP_S = 10.0


class Program:
    """A program of ours: its output's last lines, its end."""

    def __init__(self, arguments: Sequence[str], cwd: Path, env: dict[str, str]) -> None:
        self._arguments = arguments
        self._cwd = cwd
        self._env = env
        self.tail: list[str] = []
        self.process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._lines: asyncio.Queue[str] = asyncio.Queue()

    async def start(self) -> None:
        """Start it in a process group of its own."""
        self.process = await asyncio.create_subprocess_exec(
            *self._arguments,
            cwd=self._cwd,
            env={**os.environ, **self._env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            text = line.decode(errors="replace").rstrip()
            self.tail = [*self.tail[-60:], text]
            self._lines.put_nowait(text)

    async def line(self, pattern: str) -> re.Match[str]:
        """Wait for a line."""
        async with asyncio.timeout(START_S):
            while True:
                found = re.search(pattern, await self._lines.get())
                if found:
                    return found

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal it and what it started, and wait for its end."""
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if self._reader is not None:
            await self._reader


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class EveServer(Program):
    """A real eve server in development mode."""

    def __init__(self, generation: str, node: Path, folder: Path) -> None:
        self.generation = generation
        self.url = f"http://{HOST}:{free_port()}"
        port = self.url.rsplit(":", 1)[1]
        arguments = [str(node), "node_modules/eve/bin/eve.js", "dev", "--no-ui"]
        arguments += ["--host", HOST, "--port", port]
        if generation != "0.30.8":
            arguments.append("--no-default-extensions")
        env = {
            "EVE_TELEMETRY_DISABLED": "1",
            "DO_NOT_TRACK": "1",
            "PATH": f"{node.parent}:{os.environ['PATH']}",
        }
        super().__init__(arguments, folder, env)

    async def ready(self, http: aiohttp.ClientSession) -> None:
        """Wait until it serves: it listens before it has compiled its agent."""
        good = 0
        try:
            async with asyncio.timeout(START_S):
                while good < 2:
                    await asyncio.sleep(0.5)
                    try:
                        async with http.get(f"{self.url}/eve/v1/health") as response:
                            good = good + 1 if response.status == 200 else 0
                    except aiohttp.ClientError:
                        good = 0
        except TimeoutError:
            tail = "\n".join(self.tail)
            raise TimeoutError(f"eve {self.generation} does not start:\n{tail}") from None


class Dragoman(Program):
    """`dragoman serve` with one backend for each server, on a journal that outlives it."""

    def __init__(self, root: Path, folder: Path, servers: dict[str, str]) -> None:
        self.url = f"http://{HOST}:{free_port()}"
        config = folder / "dragoman.toml"
        tables = "".join(
            f'[[backends]]\nname = "eve-{name}"\ndialect = "eve"\nurl = "{url}"\n'
            for name, url in servers.items()
        )
        config.write_text(
            f'[server]\nlisten = "{self.url.removeprefix("http://")}"\n'
            f'[journal]\nurl = "sqlite:///{folder}/dragoman.db"\n{tables}'
        )
        arguments = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
        super().__init__(arguments, root, {})

    async def start(self) -> None:
        await super().start()
        await self.line(r"listening on http")

    async def kill(self) -> None:
        """Kill it as nothing can be prepared for, and start it again."""
        await self.stop(signal.SIGKILL)
        await self.start()


@dataclass(frozen=True, slots=True)
class Play:
    """A scenario on one server by one frontend."""

    scene: Scene
    generation: str
    talk: type[Talk]

    @property
    def name(self) -> str:
        """What is printed, and what `--only` takes the last word of."""
        return f"{self.generation} {self.talk.face} {self.scene.name}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A conversation with a real server and the scripted one; without a case, the refusals."""

    case: Case | None
    generation: str

    @property
    def name(self) -> str:
        """What is printed, and what `--only` takes the last word of."""
        return f"{self.generation} compare {'refusals' if self.case is None else self.case.name}"


def comparisons(options: argparse.Namespace) -> list[Comparison]:
    """Return what the options choose."""
    only = options.only.split(",") if options.only else None
    if options.face not in (None, "compare"):
        return []
    return [
        found
        for generation in GENERATIONS
        if options.gen in (None, generation)
        for found in (
            *(Comparison(case, generation) for case in CASES),
            Comparison(None, generation),
        )
        if only is None or found.name.rsplit(" ", 1)[1] in only
    ]


async def hold_against(found: Comparison, http: aiohttp.ClientSession, url: str) -> str | None:
    """Compare the scripted eve with a real server; return the differences that are not meant."""
    generation = GENERATIONS[found.generation]
    try:
        async with asyncio.timeout(SCENE_S), scripted(generation) as ours:
            if found.case is None:
                differences = await compare_refusals(http, generation, url, ours)
            elif (found.case.name, generation) in KNOWN:
                return None
            else:
                differences = await compare(http, found.case, generation, url, ours)
    except (TimeoutError, aiohttp.ClientError, AssertionError, KeyError) as error:
        return f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
    return "\n".join(differences) or None


def plays(options: argparse.Namespace) -> list[Play]:
    """Return what the options choose."""
    only = options.only.split(",") if options.only else None
    return [
        Play(scene, generation, talk)
        for generation in GENERATIONS
        for talk in TALKS
        for scene in SCENES
        if (options.gen in (None, generation))
        and (options.face in (None, talk.face))
        and (only is None or scene.name in only)
        and talk.face in scene.faces
        and (scene.generations is None or GENERATIONS[generation] in scene.generations)
    ]


async def play(play: Play, dragoman: Dragoman, http: aiohttp.ClientSession) -> str | None:
    """Play one scenario; return why it failed."""

    def url() -> str:
        return f"{dragoman.url}/as/{play.talk.face}/to/eve-{play.generation}"

    talk = play.talk(http, url, f"{play.scene.name}-{time.monotonic_ns()}")
    stage = Stage(talk, GENERATIONS[play.generation], dragoman.kill, http, url)
    try:
        async with asyncio.timeout(SCENE_S):
            await play.scene.play(stage)
            await talk.check()
    except TimeoutError:
        return f"not over after {SCENE_S:.0f} s\n{traceback.format_exc(limit=-6)}"
    except Exception as error:  # noqa: BLE001 - the root of a scenario
        where = traceback.format_exc(limit=-4)
        return f"{type(error).__name__}: {str(error)[:2000]}\n{where[-2500:]}"
    finally:
        with contextlib.suppress(Exception):
            await talk.aclose()
    return None


@contextlib.asynccontextmanager
async def eve_servers(
    options: argparse.Namespace, names: Sequence[str], http: aiohttp.ClientSession
) -> AsyncIterator[dict[str, str]]:
    """Start the servers that are needed; give their addresses."""
    given = dict(item.split("=", 1) for item in options.server)
    started: list[EveServer] = []
    try:
        for name in names:
            if name not in given:
                folder = options.cache / "servers" / f"eve-{name}"
                server = EveServer(name, options.node, folder)
                started.append(server)
                await server.start()
        for server in started:
            await server.ready(http)
        yield given | {server.generation: server.url for server in started}
    finally:
        for server in started:
            await server.stop()


async def run(
    options: argparse.Namespace, chosen: Sequence[Play], compared: Sequence[Comparison]
) -> int:
    """Play all; returns the number of failures."""
    root = Path(__file__).resolve().parents[2]
    failed = 0
    everything: list[Play | Comparison] = [*compared, *chosen]
    names = sorted({one.generation for one in everything})
    async with contextlib.AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        begun = time.monotonic()
        servers = await stack.enter_async_context(eve_servers(options, names, http))
        print(f"servers ready after {time.monotonic() - begun:.0f} s", flush=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-peers-")))
        dragoman = Dragoman(root, folder, servers)
        stack.push_async_callback(dragoman.stop)
        await dragoman.start()

        async def one(what: Play | Comparison) -> None:
            nonlocal failed
            at = time.monotonic()
            if isinstance(what, Play):
                error = await play(what, dragoman, http)
            else:
                error = await hold_against(what, http, servers[what.generation])
            ms = (time.monotonic() - at) * 1000
            print(f"{'FAIL' if error else 'PASS'} {what.name} ({ms:.0f} ms)", flush=True)
            if error:
                failed += 1
                print("     " + error.replace("\n", "\n     "), flush=True)

        # A restart hits every conversation: those that want one come alone, at the end.
        gates = {name: asyncio.Semaphore(JOBS[name]) for name in names}

        async def gated(what: Play | Comparison) -> None:
            async with gates[what.generation]:
                await one(what)

        restarting = [p for p in chosen if p.scene.restarts]
        await asyncio.gather(*(gated(what) for what in everything if what not in restarting))
        for last in restarting:
            await one(last)
        if failed:
            errors = [line for line in dragoman.tail if "Traceback" in line or "rror" in line]
            print("\n".join(f"serve: {line}" for line in errors[-20:]))
    return failed


async def in_time(
    options: argparse.Namespace,
    chosen: Sequence[Play],
    compared: Sequence[Comparison],
    seconds: float,
) -> int:
    """Play all, or fail when the time is over."""
    budget = asyncio.timeout(seconds)
    try:
        async with budget:
            return await run(options, chosen, compared)
    except TimeoutError as error:
        why = f"over the budget of {BUDGET_S:.0f} s" if budget.expired() else str(error)
        print(f"FAIL {why}")
        return len(chosen) + len(compared)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="backends", description=__doc__)
    parser.add_argument("--node", type=Path, default=Path("node"))
    parser.add_argument("--cache", type=Path, default=Path(".cache/peers"))
    parser.add_argument("--only", help="names of scenarios, comma-separated")
    parser.add_argument("--gen", choices=sorted(GENERATIONS))
    parser.add_argument("--face", choices=[*(talk.face for talk in TALKS), "compare"])
    parser.add_argument("--server", action="append", default=[], help="VERSION=URL that runs")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen, compared = plays(options), comparisons(options)
    if options.list:
        print("\n".join([one.name for one in compared] + [one.name for one in chosen]))
        return
    if not chosen and not compared:
        sys.exit("nothing has that name")
    started = float(os.environ.get("PEERS_STARTED", time.time()))
    failed = asyncio.run(in_time(options, chosen, compared, started + BUDGET_S - time.time()))
    print(f"{time.time() - started:.0f} s")
    passed = len(chosen) + len(compared) - failed
    print(f"{passed} passed, {failed} failed on real servers")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
