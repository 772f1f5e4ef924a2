"""Runs the benchmark: `python -m bench [--quick] [--only NAME] [--json FILE] [--write]`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shlex
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import uvloop

from bench import report, resume, stages, told
from bench.load import Connection
from bench.machine import alone, describe, pick_cores, pinned, raise_file_limit
from bench.parts import FULL_SIZES, PARTS, QUICK_SIZES, Lab, PartEntry
from bench.results import Results
from bench.target import BARE, NODES, StartFailed, Target, start_origin, start_target
from bench.wire import BadResponse
from tests.support.postgres import PostgresServer, postgres_server

ROUNDS = 5
STAGES = "stages"
CLUSTER = "cluster"
RESUME = "resume"
"""In a short run, else only where asked for: it writes a journal of a million events, some ten
minutes."""
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def main() -> int:
    """Run what the command line asks for; give 1 if a part failed or an event was lost."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of small loads")
    parser.add_argument(
        "--only", action="append", choices=[*PARTS, STAGES, RESUME], help="only this part"
    )
    parser.add_argument("--rounds", type=int, help=f"rounds to run, {ROUNDS} by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write docs/performance.md; its part about many processes with `--only cluster`",
    )
    parser.add_argument(
        "--dragoman",
        default=shlex.join([sys.executable, "-m", "proxy"]),
        metavar="COMMAND",
        help="the program under test, that of this repository by default",
    )
    parser.add_argument("--folder", type=Path, help="where journals are made, a temporary one")
    options = parser.parse_args()
    raise_file_limit()
    begun = time.monotonic()
    with (
        alone(),
        tempfile.TemporaryDirectory(prefix="dragoman-bench-", dir=options.folder) as name,
    ):
        folder = Path(name)
        rounds = options.rounds or (1 if options.quick else ROUNDS)
        results = Results(describe(folder), quick=options.quick, rounds=rounds)
        chosen = options.only or [*PARTS, STAGES, *([RESUME] if options.quick else [])]
        parts = {name: part for name, part in PARTS.items() if name in chosen}
        with contextlib.ExitStack() as stack:
            database = None
            if any(set(NODES) & set(part.targets) for part in parts.values()):
                with pinned(pick_cores()[1]):
                    database = stack.enter_context(postgres_server())
            if parts:
                command = shlex.split(options.dragoman)
                uvloop.run(_run(results, parts, command, folder, database))
        if STAGES in chosen:
            _say("stages")
            with pinned(pick_cores()[0]):
                results.stages = stages.measure(folder, quick=options.quick)
        resumed = RESUME not in chosen or resume.measured(folder, quick=options.quick)
    results.seconds = time.monotonic() - begun
    sys.stdout.write(report.summary(results))
    if options.json is not None:
        options.json.write_text(json.dumps(results.as_json(), indent=1) + "\n")
    if options.write:
        if chosen == [CLUSTER]:
            PAGE.write_text(report.with_shared_section(PAGE.read_text(), results))
        else:
            PAGE.write_text(report.page(results))
        _say(f"wrote {PAGE}")
    exact = results.total("lost") == 0 and results.total("doubled") == 0
    return 0 if exact and resumed and not results.failures else 1


async def _run(
    results: Results,
    parts: dict[str, PartEntry],
    dragoman: list[str],
    folder: Path,
    database: PostgresServer | None,
) -> None:
    proxy_core, load_core = pick_cores()
    with pinned(load_core):
        origin = start_origin(load_core, folder)
        try:
            await origin.ready()
            control = await Connection.open(origin.base)
            sizes = QUICK_SIZES if results.quick else FULL_SIZES
            lab = Lab(origin, control, sizes)
            for number in range(results.rounds):
                place = folder / f"round{number}"
                place.mkdir()
                _say(f"round {number + 1} of {results.rounds}")
                await _round(results, parts, lab, dragoman, proxy_core, place, number, database)
        finally:
            origin.end()


async def _round(
    results: Results,
    parts: dict[str, PartEntry],
    lab: Lab,
    dragoman: list[str],
    core: int | None,
    place: Path,
    number: int,
    database: PostgresServer | None,
) -> None:
    """Run all parts once: each against all of its targets, which take turns in going first."""
    shared = [name for name, part in parts.items() if not part.fresh]
    wanted = {target for name in shared for target in parts[name].targets}
    async with contextlib.AsyncExitStack() as stack:
        running: dict[str, Target] = {}
        for name in sorted(wanted):
            target = await stack.enter_async_context(
                _started(name, lab.origin.base, dragoman, core, place, database)
            )
            target.hold()
            running[name] = target
        for name in shared:
            for target_name in _turned(parts[name].targets, number):
                target = running[target_name]
                target.process.run_on()
                await _measure(results, number, lab, name, parts[name], target)
                target.hold()
    for name, part in parts.items():
        if not part.fresh:
            continue
        for target_name in _turned(part.targets, number):
            own = place / f"{name}-{target_name}"
            own.mkdir()
            origin = lab.origin.base
            async with _started(target_name, origin, dragoman, core, own, database) as target:
                await _measure(results, number, lab, name, part, target)
                if target_name != BARE:
                    text = await asyncio.to_thread(told.ask, target.process.base)
                    results.add_lag(target_name, told.lag_of(text))


async def _measure(
    results: Results, number: int, lab: Lab, name: str, part: PartEntry, target: Target
) -> None:
    begun = time.monotonic()
    try:
        figures = await part.run(lab, target)
    except (BadResponse, TimeoutError, OSError, KeyError) as error:
        # One part that fails must not cost the figures of the others.
        failure = f"{name} on {target.name}: {type(error).__name__}: {error}"
        results.failures.append(failure)
        _say(f"  {failure}\n{target.process.log()[-1500:]}")
        await lab.stop()
        return
    results.add(number, target.name, figures)
    shown = ", ".join(f"{key.split('.')[-1]} {value:,.2f}" for key, value in figures.items())
    _say(f"  {name:9} {target.name:13} {time.monotonic() - begun:5.1f} s  {shown}")


@contextlib.asynccontextmanager
async def _started(
    name: str,
    origin: str,
    dragoman: list[str],
    core: int | None,
    place: Path,
    database: PostgresServer | None,
) -> AsyncIterator[Target]:
    target = start_target(name, origin, dragoman, core, place, database)
    try:
        await target.ready()
        yield target
    finally:
        target.end()


def _turned(names: tuple[str, ...], number: int) -> Iterator[str]:
    """Give the names in rotation, another one first in each round."""
    for index in range(len(names)):
        yield names[(index + number) % len(names)]


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StartFailed as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
