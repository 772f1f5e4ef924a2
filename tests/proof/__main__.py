"""Make the proof, or a part of it: `python -m tests.proof [--fraction 0.02]`.

Works in slices of at most `--minutes`, each with a seed of its own, and adds each to the results
file. Without an end of the time in sight it goes on where the file ends until the goals are met;
`make proof` runs one slice after the other. One slice can be repeated: `--only KIND --seed N`, with
`--pair eve/herm` for one pair alone and `--keep FOLDER` to look at journal and log afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import logging
import math
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.journal.power import lose_power
from tests.proof import results
from tests.proof.attack.hostile import Hostile, plan_of
from tests.proof.attack.run import Attack
from tests.proof.cluster import DECK
from tests.proof.results import Slice
from tests.proof.run import FORMS, PAIRS, SOAK_EVERY_S, Plan, Ran, run

ATTACKS = 1_000_000
KILLS = 2000
DISCONNECTS = 10_000
FAULTS = 500
SOAK_MINUTES = 60.0
POWER_LOSSES = 2000
CLOSING_S = 30.0
PAGE = Path(__file__).parents[2] / "docs" / "evidence.md"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first slice (default 1)")
    parser.add_argument("--attacks", type=int, default=ATTACKS, help="mutated requests")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--disconnects", type=int, default=DISCONNECTS)
    parser.add_argument("--faults", type=int, default=FAULTS, help="that befall a cluster")
    parser.add_argument("--soak", type=float, default=SOAK_MINUTES, help="minutes in all")
    parser.add_argument(
        "--soak-every",
        type=float,
        default=SOAK_EVERY_S,
        help="seconds between conversations of a lane; more where other work runs beside it",
    )
    parser.add_argument("--power-losses", type=int, default=POWER_LOSSES)
    parser.add_argument("--fraction", type=float, default=1.0, help="of all goals")
    parser.add_argument("--minutes", type=float, default=8.0, help="the longest slice")
    parser.add_argument("--once", action="store_true", help="one slice, then stop")
    parser.add_argument("--results", type=Path, default=Path(".cache/proof.jsonl"))
    parser.add_argument("--report", action="store_true", help="print the figures, run nothing")
    parser.add_argument("--docs", action="store_true", help="write the figures into the docs")
    parser.add_argument(
        "--only",
        choices=["attack", "hostile", "kills", "disconnects", "cluster", "soak", "calm", "power"],
    )
    parser.add_argument("--form", choices=["all", "tokens", "newest"], help="of the eve face")
    parser.add_argument("--generation", choices=["T", "S1", "S2"], help="of the eve backend")
    parser.add_argument("--pair", help="frontend/backend")
    parser.add_argument("--keep", type=Path, help="a folder for journal and log")
    return parser.parse_args(arguments)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def one(
    options: argparse.Namespace,
    kind: Any,
    seed: int,
    goal: int,
    seconds: float,
    each: Callable[[Slice], None] | None = None,
) -> Slice:
    """Run one slice and return its figures; of a soak that is longer than a slice, those of the
    last one, and `each` gets those before."""
    pairs = PAIRS
    if options.pair:
        frontend, _, backend = options.pair.partition("/")
        pairs = ((frontend, backend),)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    keep = options.keep
    if kind == "soak" and keep is None:
        # Gigabytes in an hour: they belong where the results are.
        keep = soak_folder(options)
        shutil.rmtree(keep, ignore_errors=True)
        keep.mkdir(parents=True)
    plan = Plan(
        kind,
        seed,
        goal,
        seconds,
        pairs,
        keep=keep,
        form=options.form,
        generation=options.generation,
        slice_s=longest_of(options) if each else 0,
        every_s=options.soak_every,
    )
    process = f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%S}"

    def made(ran: Ran) -> Slice:
        nonlocal begun
        now = time.monotonic()
        begun, took = now, now - begun
        done = Slice(
            kind=kind,
            seed=seed,
            commit=results.commit(),
            date=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d"),
            seconds=round(took, 1),
            counts=dict(ran.counts),
            pairs={name: dict(verdict.counts) for name, verdict in ran.pairs.items()},
            wrong=[text for verdict in ran.pairs.values() for text in verdict.wrong][:200],
            samples=[list(sample) for sample in ran.memory] if kind == "soak" else [],
            process=process if kind == "soak" else "",
            takeovers=ran.takeovers,
            disturbed=ran.disturbed,
        )
        done.counts["memory over"] = int(results.too_much(results.tenths(results.warm(done))))
        return done

    return made(asyncio.run(run(plan, say, each and (lambda ran: each(made(ran))))))


def attacked(options: argparse.Namespace, kind: str, seed: int, goal: int, done: int) -> Slice:
    """Run one slice of an attack and return its figures.

    Args:
        options: the command line.
        kind: who attacks, `attack` or `hostile`.
        seed: of the slice.
        goal: how many requests, or conversations, are still to come.
        done: how many conversations earlier slices had.
    """
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = options.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="proof-")))
        folder.mkdir(parents=True, exist_ok=True)
        ran: Attack | Hostile
        if kind == "attack":
            ran = Attack(seed, goal, longest_of(options), folder, say)
        else:
            # One order for all slices: together they have all conversations.
            plan = plan_of(options.seed)[0][done : done + goal]
            ran = Hostile(seed, plan, longest_of(options), folder, say)
        asyncio.run(ran.run())
    return Slice(
        kind=kind,
        seed=seed,
        commit=results.commit(),
        date=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d"),
        seconds=round(time.monotonic() - begun, 1),
        counts=dict(ran.counts),
        pairs={},
        wrong=ran.wrong[:200],
    )


def without_power(first: int, goal: int, seconds: float) -> Slice:
    """Lose the power at points of the journal that follow from their numbers, `first` and on, and
    return the figures."""
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for point in range(first, first + goal):
        with tempfile.TemporaryDirectory(prefix="proof-") as folder:
            way = lose_power(point, Path(folder))
        counts += way.counts
        counts["taken back"] += bool(way.wrong)
        wrong += [f"point {point}: {text}" for text in way.wrong]
        if time.monotonic() - begun > seconds:
            break
    say(f"power: {counts['power losses']} losses, {counts['taken back']} took something back")
    return Slice(
        kind="power",
        seed=first,
        commit=results.commit(),
        date=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d"),
        seconds=round(time.monotonic() - begun, 1),
        counts=dict(counts),
        pairs={},
        wrong=wrong[:200],
    )


def longest_of(options: argparse.Namespace) -> float:
    """Return how many seconds the traffic of a slice may take; what is looked at after it takes the
    rest of its minutes."""
    minutes: float = options.minutes
    return minutes * 60 - min(CLOSING_S, minutes * 6)


def soak_folder(options: argparse.Namespace) -> Path:
    """Return where the journal of the soak is."""
    results_file: Path = options.results
    return results_file.with_suffix(".soak")


def next_slice(options: argparse.Namespace, done: Sequence[Slice]) -> tuple[str, int, float] | None:
    """Return the kind, goal and seconds of what is to be done next; None when all is done. All that
    is left of the soak is done in one go, in slices, unless one slice was asked for."""
    longest = longest_of(options)
    requests = math.ceil(options.attacks * options.fraction)
    requests -= int(results.total(done, "attack", "requests"))
    if requests > 0:
        return "attack", requests, longest
    plan, once = plan_of(options.seed)
    # Each way to misbehave is seen at least once, however small the fraction.
    talks = max(math.ceil(len(plan) * options.fraction), once if options.fraction > 0 else 0)
    talks -= int(results.total(done, "hostile", "conversations"))
    if talks > 0:
        return "hostile", talks, longest
    kills = math.ceil(options.kills * options.fraction) - results.total(done, "kills", "kills")
    if kills > 0:
        return "kills", int(kills), longest
    wanted = math.ceil(options.disconnects * options.fraction)
    cuts = wanted - int(results.total(done, "disconnects", "disconnects"))
    if cuts > 0:
        # All would go into one slice, and so all of one form and generation of eve.
        return "disconnects", min(cuts, math.ceil(wanted / len(FORMS))), longest
    # Each kind of fault is seen at least once.
    faults = max(math.ceil(options.faults * options.fraction), len(DECK) if options.fraction else 0)
    faults -= int(results.total(done, "cluster", "faults"))
    if faults > 0:
        return "cluster", faults, longest
    left = options.soak * 60 * options.fraction - results.total(done, "soak", "seconds")
    if left > 1:
        left = max(left, 1.5 * results.WARM_UP_S)
        return "soak", 0, min(longest, left) if options.once else left
    points = math.ceil(options.power_losses * options.fraction)
    points -= int(results.total(done, "power", "power losses"))
    return ("power", points, longest) if points > 0 else None


def main(arguments: Sequence[str]) -> int:
    """Run slices until all is done, and return the exit status: 1 when anything was wrong."""
    options = parse(arguments)
    # What the scripted backends log is what is done to them on purpose.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    logging.getLogger("proxy.journal").setLevel(logging.CRITICAL)
    # Some thousand connections at a time, most of them broken and soon closed.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.only:
        goal = {
            "attack": math.ceil(options.attacks * options.fraction),
            "hostile": math.ceil(len(plan_of(options.seed)[0]) * options.fraction),
            "kills": options.kills,
            "disconnects": options.disconnects,
            "cluster": options.faults,
            "power": options.power_losses,
        }.get(options.only, 0)
        if options.only in results.ATTACKS:
            done = [attacked(options, options.only, options.seed, goal, 0)]
        elif options.only == "power":
            done = [without_power(options.seed, goal, longest_of(options))]
        else:
            done = [one(options, options.only, options.seed, goal, longest_of(options))]
    else:
        done = results.read(options.results)

        def add(ran: Slice) -> None:
            results.append(options.results, ran)
            done.append(ran)

        while not options.report and (task := next_slice(options, done)) is not None:
            kind, goal, seconds = task
            seed = options.seed + len(done)
            if kind in results.ATTACKS:
                talked = int(results.total(done, "hostile", "conversations"))
                add(attacked(options, kind, seed, goal, talked))
            elif kind == "power":
                lost = int(results.total(done, "power", "power losses"))
                add(without_power(lost + 1, goal, seconds))
            else:
                add(one(options, kind, seed, goal, seconds, add))
            if options.once:
                break
        if not options.report and next_slice(options, done) is None:
            shutil.rmtree(soak_folder(options), ignore_errors=True)
    say(results.report(done))
    if options.docs:
        results.write_docs(PAGE, done)
    failed = results.failures(done)
    for text in failed:
        say(text)
    fine = "nothing lost, doubled, reordered or done twice; no attack got through"
    say("FAILED" if failed else fine)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
