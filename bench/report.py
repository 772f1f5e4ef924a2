"""Renders what a run found: a table for the terminal and the page `docs/performance.md`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.origin import BLOCK_DELTAS, EVENT_SIZES
from bench.parts import FULL_SIZES
from bench.results import Results
from bench.stages import BESIDE, RECORD
from bench.target import (
    BARE,
    DURABLE,
    FORWARDED,
    MEMORY,
    POSTGRES,
    TARGETS,
    THREE_NODES,
    TWO_NODES,
    WINDOWS,
)
from proxy.config.settings import JournalSettings

NOT_MEASURED = "–"
_WINDOWED = "windows.cpu_us"
_SHARED = "cluster.cpu_us"
_CLUSTER = (
    (BARE, "pass-through"),
    (DURABLE, "SQLite"),
    (POSTGRES, "PostgreSQL, one process"),
    (TWO_NODES, "two processes, each with its own sessions"),
    (THREE_NODES, "three"),
    (FORWARDED, "two, all streams forwarded"),
)
_SECTION = "## Many processes"
_BUSY = 0.9
"""Share of the load's core from which on the load, not the proxy, may have set the limit."""

_DEFAULT_WINDOW = JournalSettings().window_ms

_ROWS = (
    ("paced_small.cpu_us", "100 streams × 30/s: CPU per event, µs", 1),
    ("paced_small.p50_ms", "100 × 30/s: latency p50, ms", 2),
    ("paced_small.p99_ms", "100 × 30/s: latency p99, ms", 2),
    ("paced_small.commits_per_s", "100 × 30/s: commits of the journal per second", 0),
    ("paced_small.commit_events", "100 × 30/s: events per commit", 1),
    ("paced_small.commit_us", "100 × 30/s: CPU of the journal's writer per commit, µs", 0),
    ("paced_small.later_us", "100 × 30/s: the same for what it does later, per event, µs", 1),
    ("paced_large.cpu_us", "300 streams × 30/s: CPU per event, µs", 1),
    ("paced_large.p50_ms", "300 × 30/s: latency p50, ms", 2),
    ("paced_large.p99_ms", "300 × 30/s: latency p99, ms", 2),
    ("paced_large.commits_per_s", "300 × 30/s: commits of the journal per second", 0),
    ("paced_large.commit_events", "300 × 30/s: events per commit", 1),
    ("paced_large.commit_us", "300 × 30/s: CPU of the journal's writer per commit, µs", 0),
    ("paced_large.later_us", "300 × 30/s: the same for what it does later, per event, µs", 1),
    ("rate.events_per_s", "highest rate with p99 < 50 ms, events/s", 0),
    ("firehose.events_per_s", "firehose, four streams, events/s", 0),
    ("firehose.cpu_us", "firehose: CPU per event, µs", 1),
    ("first.p50_ms", "first event p50, ms", 2),
    ("first.p99_ms", "first event p99, ms", 2),
    ("fanout.cpu_us", "fan-out to 100 readers: CPU per delivery, µs", 1),
    ("fanout.p99_ms", "fan-out: latency p99, ms", 2),
    ("idle.kb", "2,000 idle streams: memory per stream, kB", 1),
    ("idle.open_us", "opening a stream: CPU, µs", 0),
)
_BUSY_FIGURES = (
    "paced_small.load_busy",
    "paced_large.load_busy",
    "rate.load_busy",
    "firehose.load_busy",
)


def table(results: Results) -> str:
    """Give the figures as one Markdown table."""
    lines = ["| | pass-through | Dragoman | Dragoman, `memory:` |", "|---|---|---|---|"]
    for figure, label, digits in _ROWS:
        if figure in results.figures:
            cells = [_cell(results, figure, target, digits) for target in TARGETS]
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def windows_table(results: Results) -> str:
    """Give what it costs and gives to let the journal's commits begin further apart."""
    lines = [
        "| `journal.window_ms` | CPU per event, µs | p50, ms | p99, ms | commits per second |",
        "|---|---|---|---|---|",
    ]
    columns = (("cpu_us", 1), ("p50_ms", 2), ("p99_ms", 2), ("commits_per_s", 0))
    for target, window in WINDOWS.items():
        cells = [_cell(results, f"windows.{name}", target, digits) for name, digits in columns]
        lines.append(f"| {window} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cluster_table(results: Results) -> str:
    """Give what it costs that processes share a journal, and that one forwards to another."""
    lines = [
        "| | CPU per event of all processes, µs | and of PostgreSQL | p50, ms | p99, ms |",
        "|---|---|---|---|---|",
    ]
    columns = (("cpu_us", 1), ("database_us", 1), ("p50_ms", 2), ("p99_ms", 2))
    for target, label in _CLUSTER:
        cells = [_cell(results, f"cluster.{name}", target, digits) for name, digits in columns]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    forwarding = results.median("cluster.forward_us", FORWARDED)
    if forwarding is not None:
        lines += ["", f"Forwarding alone takes {forwarding:.1f} µs of that."]
    each = results.median("cluster.cpu_us", TWO_NODES)
    stored = results.median("cluster.database_us", TWO_NODES)
    if each and stored:
        lines += [
            "",
            f"By calculation a process with a core of its own carries {1e6 / each:,.0f} events a "
            f"second, and PostgreSQL takes a core for {each / stored:.1f} such processes.",
        ]
    return "\n".join(lines)


def summary(results: Results) -> str:
    """Give the text that a run prints at its end."""
    parts = [table(results), "", _exactness(results), *_lag(results)]
    if _WINDOWED in results.figures:
        parts += ["", windows_table(results)]
    if _SHARED in results.figures:
        parts += ["", cluster_table(results)]
    if results.stages:
        parts += ["", stage_table(results)]
    for busy in _busy(results):
        parts += ["", busy]
    if results.quick:
        parts += ["", "A quick run: its figures say that everything runs, not how fast."]
    parts += [f"FAILED {failure}" for failure in results.failures]
    return "\n".join(parts) + "\n"


def meaning(results: Results) -> str:
    """Say what the figures mean for somebody who runs a Dragoman, as far as they were measured."""

    def found(figure: str, target: str = DURABLE) -> float:
        return results.median(figure, target) or math.nan

    rate, idle = found("rate.events_per_s"), found("idle.kb")
    lines = [
        f"* **How much it carries.** {rate:,.0f} events a second, which is {rate / 30:,.0f} models "
        "that write 30 tokens a second at the same time; what only copies bytes carries "
        f"{found('rate.events_per_s', BARE):,.0f} on the same machine. All of it on one core: more "
        "cores need [more processes](deploy.md#many-processes).",
        "* **What it adds.** With 100 such models an event is at its reader "
        f"{found('paced_small.p50_ms'):.1f} ms after the backend wrote it, and 99 of 100 within "
        f"{found('paced_small.p99_ms'):.0f} ms; with 300 of them {found('paced_large.p50_ms'):.1f} "
        f"and {found('paced_large.p99_ms'):.0f} ms. Without it: "
        f"{found('paced_small.p50_ms', BARE):.1f} and {found('paced_small.p99_ms', BARE):.0f} ms, "
        f"{found('paced_large.p50_ms', BARE):.1f} and {found('paced_large.p99_ms', BARE):.0f} ms. "
        "Most of it is the disk: nobody sees an event before it is stored.",
        f"* **How soon it begins.** The first event is there {found('first.p50_ms'):.1f} ms after "
        f"the request, where {found('first.p50_ms', BARE):.1f} ms would do without: a session is "
        "made and stored, and a message, before the backend is asked.",
        "* **Many readers.** One more reader of a session costs "
        f"{found('fanout.cpu_us'):.0f} µs for each event.",
        f"* **Much that is quiet.** An open stream that brings nothing takes {idle:.0f} kB: "
        f"10,000 of them take {idle * 10:,.0f} MB.",
    ]
    return "\n".join(line for line in lines if "nan" not in line) or "Not measured in this run."


def stage_table(results: Results) -> str:
    """Give what each stage of an event's way costs."""
    lines = ["| stage | µs per event |", "|---|---|"]
    lines += [f"| {stage} | {spent:.2f} |" for stage, spent in results.stages]
    way = sum(spent for name, spent in results.stages if name not in BESIDE)
    lines.append(f"| all of them | {way:.2f} |")
    if (recording := dict(results.stages).get(RECORD)) is not None and way:
        # It has a thread of its own.
        lines.append(f"| recording, in times of all of them | {recording / way:.2f} |")
    return "\n".join(lines)


def shared_section(results: Results) -> str:
    """Give the section of the page about processes that share a journal, with where and when it
    was measured: that may be done alone."""
    machine = results.machine
    shared = "Not measured in this run."
    if _SHARED in results.figures:
        shared = f"""Measured on {machine["date"]} at commit {machine["commit"]}: {machine["cores"]}
cores of {machine["cpu"]}, {machine["system"]}; medians of {results.rounds} rounds.
PostgreSQL is that of Debian, with its defaults.

{cluster_table(results)}

{_exactness(results)}"""
    return f"""{_SECTION}

100 streams, 30 events per second each; all processes share one core, and PostgreSQL the load's, so
that CPU is what counts here. On two cores it was not measured that twice the processes carry twice
as much: where there are more, each has a core of its own, and PostgreSQL is what they have in
common.

{shared}"""


def with_shared_section(text: str, results: Results) -> str:
    """Return the page with that section made anew.

    Raises:
        ValueError: the page has no such section.
    """
    before, found, rest = text.partition(f"{_SECTION}\n")
    if not found:
        raise ValueError(f"the page has no section `{_SECTION}`: write all of it")
    _, head, after = rest.partition("\n## ")
    return f"{before}{shared_section(results)}\n{head}{after}"


def page(results: Results) -> str:
    """Give `docs/performance.md`."""
    machine = results.machine
    low, high = EVENT_SIZES
    missing = "Not measured in this run."
    stages = stage_table(results) if results.stages else missing
    windows = windows_table(results) if _WINDOWED in results.figures else missing
    lag = "".join(f"\n{line}\n" for line in _lag(results))
    busy = "".join(f"\n{line}\n" for line in _busy(results))
    return f"""# Performance

Written by `python -m bench --write`; do not edit. Run `make bench` to measure your own machine.

## What it means

{meaning(results)}

A machine that is slower by half carries half of it. When it is too much,
`dragoman_loop_lag_seconds` in [`/metrics`](monitoring.md#metrics) rises first.

## The figures

Measured on {machine["date"]} at commit {machine["commit"]}: {machine["cores"]} cores of
{machine["cpu"]}, {machine["system"]}, CPython {machine["python"]}, uvloop; writing and syncing one
page to the journal's disk takes {machine["fdatasync_us"]} µs. Medians of {results.rounds}
interleaved rounds.

{table(results)}

{_exactness(results)}
{lag}{busy}
## How it is measured

The proxy runs alone on one core; the origin and the load generator share the other. In each round
every part runs against all proxies before the next part begins, and the proxies that wait are
stopped. The pass-through is an aiohttp server on uvloop that copies the origin's bytes: no parsing,
no translation, no storage (`bench/bare.py`). Ratios are taken within a round, then the median over
the rounds: compare those, not absolute figures. Differences below a quarter are noise.

The origin plays an Engine with deltas of {low} to {high} bytes, in text blocks of {BLOCK_DELTAS}
deltas. The pass-through is read as an Engine; Dragoman is read through its eve face, so that every
event is parsed, translated, journaled (SQLite, `synchronous=FULL`) and encoded before anyone sees
it. Each eve record also repeats the text of its block so far. Every delta carries the time at which
it was sent: latency is the time from the origin's write to the reader's read, and each stamp is
checked to arrive once and in order.

* **Paced**: all streams open, one event after the other in rotation, 30 per second and stream.
* **Highest rate**: {FULL_SIZES.rate_streams:,} streams, so that each stays near 30 events per
  second; the rate rises until p99 exceeds 50 ms or events fall behind, twice; then the interval
  between the last good and the first bad rate is halved {FULL_SIZES.rate_halvings} times.
* **Firehose**: four streams, as fast as the reader takes them: events per second from the start to
  the last one.
* **First event**: one turn at a time, from the request to its first delta. For Dragoman that is the
  creation of a session, a journaled input, a request to the backend and the opening of a stream.
* **Fan-out**: one session with 200 events per second, 100 readers of it.
* **Lag**: how late a timer of the event loop was at most in the idle part, where all streams are
  opened at once. The processes of the other parts are stopped in between, which a timer counts.
* **Idle**: 2,000 sessions with one open stream and one open backend connection each; growth of
  proportional memory in a fresh process.

## Where the time goes

Each stage alone, in one process, over the same recorded stream.

{stages}

## How far apart commits are

100 streams, 30 events per second each, by the setting; unset it is `{_DEFAULT_WINDOW:g}`. Who
writes alone hardly waits for it.

{windows}

{shared_section(results)}

## What decides the speed

* **The layout of the journal decides the tail.** A table clustered by session and position dirties
  one page per session and commit; rows in order of arrival dirty one for all of them.
* **Commits are shared.** Everything that has arrived while a commit ran goes into the next one, and
  one wake-up acknowledges all of it. Two commits begin at least `journal.window_ms` apart: so long
  an event waits at most for the next one, and then for the disk.
* **A wake-up and a socket write cost more than a translation.** What is ready is joined into one
  write under backlog.
* **Encode once per dialect, not per reader**: readers of the same face share the bytes.
* **A slow disk costs latency, not throughput**: a commit takes one sync, however many events it
  holds. Look at the sync time above before you compare with your own disk.
"""


def _cell(results: Results, figure: str, target: str, digits: int) -> str:
    value = results.median(figure, target)
    if value is None:
        return NOT_MEASURED
    shown = f"{value:,.{digits}f}"
    ratio = None if target == BARE else results.ratio(figure, target)
    return shown if ratio is None else f"{shown} ({ratio:.2f} ×)"


def _exactness(results: Results) -> str:
    lost, doubled = int(results.total("lost")), int(results.total("doubled"))
    return f"Events lost: {lost}. Events doubled or out of order: {doubled}."


def _lag(results: Results) -> list[str]:
    """Say how long the event loop kept everybody waiting, where that was asked."""
    return [
        f"Longest lag of the event loop while idle streams are opened, {label}: "
        f"{results.lag[target]:.1f} ms."
        for target, label in ((DURABLE, "stored"), (MEMORY, "`memory:`"))
        if target in results.lag
    ]


def _busy(results: Results) -> list[str]:
    """Say where the load side was too busy to be sure that the proxy set the limit."""
    lines = []
    for figure in _BUSY_FIGURES:
        for target in TARGETS:
            value = results.median(figure, target)
            if value is not None and value > _BUSY:
                part = figure.split(".", 1)[0].replace("paced_", "paced, ")
                lines.append(
                    f"Load's core {value:.0%} busy in {part} for {target}: "
                    "the proxy could perhaps do more."
                )
    return lines


EVIDENCE = Path(__file__).parent.parent / "docs" / "evidence.md"


def documented(
    text: str, module: str, arguments: Sequence[str], machine: Mapping[str, str], lines: list[str]
) -> str:
    """Return a page with the part made by `module` replaced: `lines`, and when, where and by which
    command they were found.

    Raises:
        ValueError: the page has no such part.
    """
    begin = f"<!-- made by `python -m {module} --docs`; do not edit -->"
    end = f"<!-- end of what {module} made -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"there is no place for {module} in the page")
    command = shlex.join(["python", "-m", module, *arguments])
    head = (
        f"Measured on {machine['date']} at commit {machine['commit']} by `{command}`: "
        f"{machine['cores']} cores of {machine['cpu']}, {machine['system']}, CPython "
        f"{machine['python']}."
    )
    made = "\n".join([head, "", *lines])
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


def document(
    module: str, arguments: Sequence[str], machine: Mapping[str, str], lines: list[str]
) -> None:
    """Write what a module of the benchmark has found into `docs/evidence.md`."""
    page = EVIDENCE.read_text()
    EVIDENCE.write_text(documented(page, module, arguments, machine, lines))
