"""The results file of the proof: one JSON line for each slice, and the tables made of them."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["BAD", "Slice", "documented", "read", "report", "tenths", "total", "write_docs"]

BAD = (
    "lost",
    "doubled",
    "reordered",
    "twice",
    "commands lost",
    "refused, done",
    "unknown, evident",
    "answered twice",
    "executed twice",
    "stuck",
    "violations",
    "replay differs",
    "broken",
)
"""What must be zero in every pair."""

BAD_OF_ALL = ("answered twice", "executed twice", "memory over", "taken back", "not taken over")
"""What must be zero over all pairs, and without any."""

ATTACKS = {"attack": "strangers and tenants", "hostile": "hostile backends"}
"""The kinds of slices in which somebody attacks, and who."""

MOST = ("slowest probe, ms", "memory at most, MiB")
"""Figures of an attack; the largest one counts."""

ATTACKED = (
    "failures",
    "hangs",
    "hangs of everybody",
    "told apart",
    "leaked",
    "let in",
    "forged headers",
    "broken into",
    "errors logged",
    "memory over",
)
"""What must be zero under attack, by strangers and by backends."""

_COLUMNS: tuple[str, ...] = (
    "conversations",
    "sent",
    "received",
    "not begun",
    "lost",
    "doubled",
    "reordered",
    "once",
    "refused",
    "refused later",
    "unknown",
    "unknown, done",
    "unknown, evident",
    "refused, done",
    "twice",
    "commands lost",
    "stuck",
    "replay differs",
    "answered twice",
)

WARM_UP_S = 60.0
"""Pools, caches and code that is used for the first time fill in this time of a process's life, and
sessions stay in memory for 45 s after their last use. Its memory counts afterwards."""

MEMORY_SHARE = 0.05
MEMORY_BYTES = 5 * 2**20
"""How much more memory the last tenth may need than the first (issue: 5 % + 5 MB)."""

TAKEOVER_MS = 7000
"""Within so many ms 99 of 100 sessions must have another process. A short proof says nothing of it:
it may be played on a slow machine, beside other work."""

BEGIN = "<!-- made by `python -m tests.proof --report --docs`; do not edit -->"
END = "<!-- end of the made part -->"


@dataclass(slots=True)
class Slice:
    """One slice: what it was, and its figures. Slices of a soak with the same `process` are of one
    `dragoman serve`, and the ages in `samples` go on from slice to slice. `takeovers` are ms, and
    `disturbed` those while PostgreSQL was restarted."""

    kind: str
    seed: int
    commit: str
    date: str
    seconds: float
    counts: dict[str, int]
    pairs: dict[str, dict[str, int]]
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    samples: list[list[float]] = field(default_factory=list)
    process: str = ""
    takeovers: list[int] = field(default_factory=list)
    disturbed: list[int] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether anything was found that must not be."""
        return bool(
            any(counts.get(name) for counts in self.pairs.values() for name in BAD)
            or any(self.counts.get(name) for name in (*BAD_OF_ALL, *ATTACKED))
        )


def read(path: Path) -> list[Slice]:
    """Return the slices of a results file, none when there is no file."""
    if not path.exists():
        return []
    return [Slice(**json.loads(line)) for line in path.read_text().splitlines() if line]


def append(path: Path, done: Slice) -> None:
    """Add a slice."""
    row = {name: getattr(done, name) for name in Slice.__dataclass_fields__}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def commit() -> str:
    """Return the commit of the work tree, with a mark when it was changed since."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def total(slices: Iterable[Slice], kind: str, name: str) -> float:
    """Return a figure over all slices of a kind."""
    mine = [one for one in slices if one.kind == kind]
    return sum(one.seconds if name == "seconds" else one.counts.get(name, 0) for one in mine)


def _table(slices: Sequence[Slice]) -> list[str]:
    sums: dict[str, Counter[str]] = {}
    for one in slices:
        for pair, counts in one.pairs.items():
            sums.setdefault(pair, Counter()).update(counts)
    lines = [
        "| frontend > backend | " + " | ".join(_COLUMNS) + " |",
        "|---|" + "---:|" * len(_COLUMNS),
    ]
    for pair, counts in sums.items():
        cells = (str(counts.get(name, 0)) for name in _COLUMNS)
        lines.append(f"| {pair} | " + " | ".join(cells) + " |")
    return lines


def report(slices: Sequence[Slice]) -> str:
    """Return the tables in Markdown: one for each kind of trouble, and what they were made from."""
    lines: list[str] = []
    for kind in ("kills", "disconnects", "cluster", "soak"):
        mine = [one for one in slices if one.kind == kind]
        if not mine:
            continue
        counts: Counter[str] = Counter()
        for one in mine:
            counts.update(one.counts)
        minutes = sum(one.seconds for one in mine) / 60
        dates = sorted({one.date for one in mine})
        head = {
            "kills": f"{counts['kills']} kills; {counts['executed processes']} of the starts were "
            "executed from the command line, the others forked; "
            f"{counts['killed while starting']} of the kills fell into a start",
            "disconnects": f"{counts['disconnects']} connections cut ("
            + ", ".join(
                f"{number} {name.removeprefix('cut: ')}"
                for name, number in sorted(counts.items())
                if name.startswith("cut: ")
            )
            + ")",
            "cluster": f"{counts['faults']} faults: {counts['kill']} processes killed, "
            f"{counts['pause']} paused for 20 s and woken (too late {counts['woken too late']}), "
            f"{counts['crash']} restarts of PostgreSQL with `-m immediate`, {counts['cut']} times "
            "all connections between processes cut, and "
            f"{counts['cut: between processes']} of them in all",
            "soak": "traffic with a tenth of the connections cut",
        }[kind]
        lines += ["", f"### {kind.capitalize()}", "", f"{head}; {minutes:.0f} minutes.", ""]
        lines += _table(mine)
        lines += [
            "",
            f"Answers given: {counts['answers given']}, twice: {counts['answered twice']}.",
        ]
        eves = [
            f"{number} {name}" for name, number in sorted(counts.items()) if name.startswith("eve ")
        ]
        if eves:
            lines += ["", "Slices by form and generation of eve: " + ", ".join(eves) + "."]
        if kind == "soak":
            lines += ["", _memory_report(mine)]
        if kind == "cluster":
            lines += ["", _takeover_report(mine)]
        seeds = ", ".join(str(one.seed) for one in mine)
        commits = ", ".join(sorted({one.commit for one in mine}))
        lines += ["", f"Dates: {dates[0]} to {dates[-1]}. Seeds: {seeds}. Commits: {commits}."]
        wrong = [text for one in mine for text in one.wrong]
        if wrong:
            lines += ["", f"{len(wrong)} complaints, the first of them:", ""]
            lines += [f"- `{text[:240].replace('`', '')}`" for text in wrong[:10]]
    lines += _power_report([one for one in slices if one.kind == "power"])
    lines += _attack_report([one for one in slices if one.kind in ATTACKS])
    return "\n".join(lines).strip() + "\n"


def _power_report(slices: Sequence[Slice]) -> list[str]:
    """Return what losses of power took back."""
    if not slices:
        return []
    counts: Counter[str] = Counter()
    for one in slices:
        counts.update(one.counts)
    dates = sorted({one.date for one in slices})
    commits = ", ".join(sorted({one.commit for one in slices}))
    wrong = [text for one in slices for text in one.wrong]
    return [
        "",
        "### Power",
        "",
        f"{counts['power losses']} losses of power, {counts['failed syncs']} syncs that failed "
        f"before them, {counts['faults at the start']} faults in a start; "
        f"{counts['confirmed']} writes were confirmed, {counts['taken back']} losses took "
        "something back that was shown.",
        "",
        f"Dates: {dates[0]} to {dates[-1]}. Commits: {commits}.",
        *(f"- `{text[:240].replace('`', '')}`" for text in wrong[:10]),
    ]


def _attack_report(slices: Sequence[Slice]) -> list[str]:
    """Return the table of what must be zero under attack, and what was done for it."""
    if not slices:
        return []
    sums = {kind: Counter[str]() for kind in ATTACKS}
    for one in slices:
        for name, number in one.counts.items():
            # The largest of all slices says more than their sum.
            most = name in MOST
            held = sums[one.kind]
            held[name] = max(held[name], number) if most else held[name] + number
    lines = ["", "### Attack", ""]
    lines += ["| figure | " + " | ".join(ATTACKS.values()) + " |", "|---|---:|---:|"]
    for name in (
        "requests",
        "conversations",
        "told apart, asked",
        "vault arrivals",
        *MOST,
        *ATTACKED,
    ):
        cells = (str(sums[kind].get(name, 0)) for kind in ATTACKS)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    dates = sorted({one.date for one in slices})
    minutes = sum(one.seconds for one in slices) / 60
    commits = ", ".join(sorted({one.commit for one in slices}))
    lines += ["", f"{minutes:.0f} minutes. Dates: {dates[0]} to {dates[-1]}. Commits: {commits}."]
    wrong = [text for one in slices for text in one.wrong]
    if wrong:
        lines += ["", f"{len(wrong)} complaints, the first of them:", ""]
        lines += [f"- `{text[:240].replace('`', '')}`" for text in wrong[:10]]
    return lines


def _takeover_report(slices: Sequence[Slice]) -> str:
    """Return how long it took until sessions at work had another process."""
    calm, disturbed = (
        sorted(took for one in slices for took in getattr(one, name))
        for name in ("takeovers", "disturbed")
    )
    text = f"Sessions at work that another process took over: {len(calm)}"
    if calm:
        text += (
            f", after p50 {calm[len(calm) // 2] / 1000:.1f} s, p99 {late(calm) / 1000:.1f} s, "
            f"longest {calm[-1] / 1000:.1f} s"
        )
    text += f"; while PostgreSQL was restarted: {len(disturbed)}"
    if disturbed:
        text += f", longest {disturbed[-1] / 1000:.1f} s"
    return f"{text}; not taken over: {total(slices, 'cluster', 'not taken over'):.0f}."


def late(took: Sequence[int]) -> int:
    """Return the 99th percentile of what is sorted; 0 of nothing."""
    return took[min(len(took) - 1, len(took) * 99 // 100)] if took else 0


def _mib(bytes_: float) -> str:
    return f"{bytes_ / 2**20:.1f}"


def tenths(held: Sequence[float]) -> tuple[float, float] | None:
    """Return the mean of the first tenth and of the last; None of fewer than ten samples."""
    tenth = len(held) // 10
    if not tenth:
        return None
    return sum(held[:tenth]) / tenth, sum(held[-tenth:]) / tenth


def warm(one: Slice) -> list[float]:
    """Return a slice's samples of memory after its warm-up."""
    return [held for age, held in one.samples if age >= WARM_UP_S]


def whole(slices: Iterable[Slice]) -> tuple[float, float] | None:
    """Return the memory of the first tenth and of the last one of all soak slices together."""
    return tenths([held for one in slices if one.kind == "soak" for held in warm(one)])


def processes(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Return the soak slices of each process that was soaked, in order."""
    found: dict[str, list[Slice]] = {}
    for number, one in enumerate(slices):
        if one.kind == "soak":
            found.setdefault(one.process or f"slice {number}", []).append(one)
    return list(found.values())


def too_much(found: tuple[float, float] | None) -> bool:
    """Say whether the last tenth needs more memory than it may."""
    return found is not None and found[1] > found[0] * (1 + MEMORY_SHARE) + MEMORY_BYTES


def _memory_report(slices: Sequence[Slice]) -> str:
    each = [
        f"{_mib(found[0])} to {_mib(found[1])} ({sum(one.seconds for one in mine) / 60:.0f} min)"
        for mine in processes(slices)
        if (found := whole(mine))
    ]
    together = whole(slices)
    if together is None:
        return "Memory: too short to say."
    return (
        f"Memory in MiB after {WARM_UP_S:.0f} s of warm-up, first tenth to last: "
        f"{_mib(together[0])} to {_mib(together[1])} over all slices; in each process: "
        f"{', '.join(each)}."
    )


def documented(text: str, made: str) -> str:
    """Return a page with its made part replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def write_docs(page: Path, slices: Sequence[Slice]) -> None:
    """Write the figures into a page."""
    page.write_text(documented(page.read_text(), report(slices)))


def failures(slices: Sequence[Slice]) -> list[str]:
    """Return the complaints of all slices that failed."""
    found: list[str] = []
    if any(too_much(whole(mine)) for mine in (slices, *processes(slices))):
        found.append(
            f"soak: memory grew: {_memory_report([s for s in slices if s.kind == 'soak'])}"
        )
    kills, executed = (total(slices, "kills", name) for name in ("kills", "executed processes"))
    if kills >= 100 and executed < kills / 10:
        found.append(f"kills: only {executed:.0f} of {kills:.0f} starts were executed")
    took = sorted(took for one in slices for took in one.takeovers)
    if total(slices, "cluster", "faults") >= 100 and late(took) > TAKEOVER_MS:
        found.append(f"cluster: {_takeover_report(slices)}")
    for one in slices:
        if one.failed:
            where: Any = f"{one.kind}, seed {one.seed}"
            found += [f"{where}: {text}" for text in one.wrong] or [f"{where}: {one.counts}"]
    return found
