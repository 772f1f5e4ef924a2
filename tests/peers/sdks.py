"""Lets the vendor's SDKs, unmodified and of many releases, talk through Dragoman's managed-agents
face to scripted backends, and a third party's client of that protocol. Run by `run.sh`:

    python -m tests.peers.sdks --node NODE --cache FOLDER [--client NAME[,NAME]]
                               [--only SCENE[,SCENE]] [--route NAME[,NAME]] [--list]

Prints one line `PASS` or `FAIL` for each; the exit status is 1 after a failure. Without `ALL` in
the environment and without options the oldest and the newest release of each language are played,
so that each pair of a client, a scene and a backend meets.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.peers.cluster import clustered
from tests.peers.plan import covering

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "dialects" / "managed-agents.md"
BASE = "http://127.0.0.1:8787/as/managed-agents/to/eve"
ROUTES = ("eve", "engine", "herm", "managed-agents")
# Only what never comes takes longer.
CELL_S = 600.0
JOBS = 2

PYTHON = "anthropic"
NODE = "@anthropic-ai/sdk"
THIRD = "ag-ui-claude-managed-agents"
RELEASES: Mapping[str, tuple[str, ...]] = {
    PYTHON: (
        *("0.92.0", "0.97.0", "0.105.2", "0.115.0", "1.0.0"),
        *("1.8.0", "1.17.0", "2.0.0", "2.6.0", "2.14.0"),
    ),
    NODE: (
        *("0.88.0", "0.100.1", "0.120.0", "0.137.0"),
        *("1.0.0", "1.3.0", "1.6.0", "1.14.0"),
    ),
    THIRD: ("0.2.2",),
}
SCENES: Mapping[str, tuple[str, ...]] = {
    PYTHON: ("smoke", "initial", "async", "routes", "runner", "quickstart"),
    NODE: ("smoke", "initial", "routes"),
    THIRD: ("recovery",),
}


class Cell(NamedTuple):
    """A release, a scene and a backend."""

    client: str
    release: str
    scene: str
    route: str

    @property
    def values(self) -> tuple[str, str, str]:
        """Return what meets in it."""
        return (f"{self.client} {self.release}", self.scene, self.route)


def _fits(cell: Cell) -> bool:
    newest = cell.release == RELEASES[cell.client][-1]
    if cell.scene == "quickstart":
        return newest
    # Only a Herm asks for the result of an application's tool and questions; the runner came with
    # 1.0.
    runs = cell.route == "herm" and not cell.release.startswith("0.")
    return cell.scene != "runner" or runs


CELLS = [
    cell
    for client, releases in RELEASES.items()
    for release in releases
    for scene in SCENES[client]
    for route in ROUTES
    if _fits(cell := Cell(client, release, scene, route))
]


def chosen(options: argparse.Namespace) -> list[Cell]:
    """Return the cells to play."""
    wanted = [set(filter(None, text.split(","))) for text in (options.client, options.only)]
    routes = set(filter(None, options.route.split(",")))
    if wanted[0] or wanted[1] or routes or os.environ.get("ALL"):
        return [
            cell
            for cell in CELLS
            if (not wanted[0] or wanted[0] & {cell.client, cell.values[0]})
            and (not wanted[1] or cell.scene in wanted[1])
            and (not routes or cell.route in routes)
        ]
    ends = [
        cell
        for cell in CELLS
        if cell.release in (RELEASES[cell.client][0], RELEASES[cell.client][-1])
    ]
    return [ends[at] for at in covering([cell.values for cell in ends])]


@contextlib.asynccontextmanager
async def demo() -> AsyncIterator[str]:
    """Serve scripted backends; return the base URL. With PEERS_CLUSTER in the environment it is
    that of a cluster."""
    if os.environ.get("PEERS_CLUSTER"):
        async with clustered() as url:
            yield url
        return
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "demo", "--port", "0"),
        stdout=PIPE,
        stderr=STDOUT,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    draining: asyncio.Task[bytes] | None = None
    try:
        async for line in process.stdout:
            if found := re.search(rb"listening on (http://\S+)", line):
                draining = asyncio.create_task(process.stdout.read())
                yield found[1].decode()
                return
        raise RuntimeError("the demo does not begin")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if draining is not None:
            await draining


def command(cell: Cell, options: argparse.Namespace, url: str) -> tuple[list[str], dict[str, str]]:
    """Return what plays a cell, and its environment."""
    python = options.cache / "managed_agents" / "python"
    interpreter = str(python / "venv" / "bin" / "python")
    environment = {**os.environ, "ANTHROPIC_API_KEY": "sk-demo"}
    if cell.client == NODE:
        driver = options.cache / "managed_agents" / "node" / "driver.mjs"
        return [str(options.node), str(driver), cell.release, url, cell.scene], environment
    if cell.client == THIRD:
        return [interpreter, str(python / "recovery.py"), url], environment
    if cell.release != RELEASES[PYTHON][-1]:
        environment["PYTHONPATH"] = str(python / "releases" / cell.release)
    if cell.scene == "quickstart":
        (code,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        return [interpreter, "-c", code.replace(BASE, url)], environment
    return [interpreter, str(python / "driver.py"), url, cell.scene], environment


async def play(cell: Cell, options: argparse.Namespace, url: str) -> bool:
    """Play a cell; print what came of it."""
    begun = time.monotonic()
    arguments, environment = command(cell, options, f"{url}/as/managed-agents/to/{cell.route}")
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=PIPE, stderr=STDOUT, env=environment
    )
    try:
        async with asyncio.timeout(CELL_S):
            said, _ = await process.communicate()
        text = said.decode(errors="replace").strip()
    except TimeoutError:
        process.kill()
        await process.wait()
        text = f"no end after {CELL_S:.0f} s"
    passed = process.returncode == 0
    name = f"{' '.join(cell.values)} ({(time.monotonic() - begun) * 1000:.0f} ms)"
    print(f"PASS {name}" if passed else f"FAIL {name}\n     {text[-2000:]}", flush=True)
    return passed


async def run(cells: Sequence[Cell], options: argparse.Namespace) -> int:
    """Play cells, some at once; return the exit code."""
    slots = asyncio.Semaphore(JOBS)
    async with demo() as url:

        async def one(cell: Cell) -> bool:
            async with slots:
                return await play(cell, options, url)

        results = await asyncio.gather(*map(one, cells))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed", flush=True)
    return 0 if results and all(results) else 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.peers.sdks", description=__doc__)
    parser.add_argument("--node", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--client", default="", help="clients, with or without a release")
    parser.add_argument("--only", default="", help="scenes, comma-separated")
    parser.add_argument("--route", default="", help="backends, comma-separated")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    cells = chosen(options)
    if options.list:
        for cell in cells:
            print("  ".join(cell.values))
        return 0
    return asyncio.run(run(cells, options))


if __name__ == "__main__":
    sys.exit(main())
