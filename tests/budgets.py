"""How long each capability is, and how long it may be: `make lint` prints it.

The budgets are lines of files, for each capability and not for the sum: a demand on the sum is met
by cutting elsewhere. One that is exceeded is a warning and fails nothing. A file that belongs to no
capability fails, and so does a path that names nothing, so that the table stays true.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("adapters", "proxy")
TOLERANCE = 1.1
"""A capability may exceed its budget by a tenth; above that, who exceeds it says why."""


class Budget(NamedTuple):
    """What a capability may have: its files and folders, and their lines."""

    capability: str
    lines: int
    paths: tuple[str, ...]


BUDGETS = (
    Budget("wire formats", 1_200, ("adapters/wire",)),
    Budget("canonical model", 4_000, ("adapters/model",)),
    Budget("captures", 1_900, ("adapters/captures",)),
    Budget("parts of clients", 1_200, ("adapters/driving",)),
    Budget("contract of dialects", 1_800, ("adapters/contract",)),
    Budget("parts of faces", 1_100, ("adapters/serving",)),
    Budget("eve", 8_100, ("adapters/eve",)),
    Budget("Herm", 5_500, ("adapters/herm",)),
    Budget("Engine", 4_100, ("adapters/engine",)),
    Budget("AG-UI", 3_850, ("adapters/agui",)),
    Budget("AI SDK UI", 2_050, ("adapters/aisdk",)),
    Budget("Managed Agents", 6_650, ("adapters/managed_agents",)),
    Budget("Hermes Agent", 1_700, ("adapters/hermes_agent", "proxy/app/deliveries.py")),
    Budget("registry", 100, ("adapters/__init__.py", "adapters/registry.py")),
    Budget("translate, compare", 4_100, ("adapters/offline",)),
    Budget("base of the proxy", 1_500, ("proxy/__init__.py", "proxy/base")),
    Budget("configuration", 1_250, ("proxy/config",)),
    Budget("HTTP", 800, ("proxy/http",)),
    Budget("journal", 3_300, ("proxy/journal",)),
    Budget("journal in PostgreSQL", 2_400, ("proxy/journal/postgres",)),
    Budget("recording", 500, ("proxy/recording",)),
    Budget("telemetry", 450, ("proxy/telemetry",)),
    Budget("upstream", 1_050, ("proxy/upstream",)),
    Budget("fan-out", 700, ("proxy/fanout",)),
    Budget("archives", 850, ("proxy/archives",)),
    Budget("session", 3_300, ("proxy/session",)),
    Budget("sessions", 1_600, ("proxy/sessions",)),
    Budget("entry", 400, ("proxy/entry",)),
    Budget("migration", 1_700, ("proxy/migration",)),
    Budget("control API", 1_500, ("proxy/control",)),
    Budget(
        "what the page asks",
        1_650,
        (
            "proxy/control/captures.py",
            "proxy/control/demo.py",
            "proxy/control/dialects.py",
            "proxy/control/legs.py",
            "proxy/control/raw_frames.py",
            "proxy/control/translation.py",
        ),
    ),
    Budget("faces", 1_500, ("proxy/faces",)),
    Budget("page", 150, ("proxy/ui",)),
    Budget("application", 450, ("proxy/app",)),
    Budget("setting hooks up", 1_700, ("proxy/hooks/setup",)),
    Budget("hooks of Hermes", 1_050, ("proxy/hooks",)),
    Budget("tools", 1_150, ("proxy/tools",)),
    Budget("command line", 4_100, ("proxy/__main__.py", "proxy/cli")),
    Budget("plugin for pytest", 400, ("proxy/tools/pytest_plugin",)),
    Budget("scripted backends", 5_200, ("proxy/scripted",)),
)


class Size(NamedTuple):
    """A capability as it is."""

    capability: str
    lines: int
    budget: int

    @property
    def is_over(self) -> bool:
        """Whether it is beyond what is tolerated."""
        return self.lines > self.budget * TOLERANCE

    @property
    def warning(self) -> str:
        """Say how far it is over its budget; nothing where that is tolerated."""
        return f"{self.lines / self.budget - 1:.0%} over" if self.is_over else ""


def count_lines(repository: Path) -> dict[str, int]:
    """Return the lines of each Python file of the packages, by its path in the repository."""
    return {
        file.relative_to(repository).as_posix(): file.read_bytes().count(b"\n")
        for package in PACKAGES
        for file in sorted((repository / package).rglob("*.py"))
    }


def measure(
    lines: Mapping[str, int], budgets: Sequence[Budget] = BUDGETS
) -> tuple[list[Size], list[str]]:
    """Return the size of each capability, and what is wrong with the table."""
    owners = {path: budget for budget in budgets for path in budget.paths}
    sizes = {budget.capability: 0 for budget in budgets}
    used, wrong = set(), []
    for file, count in lines.items():
        path = next(
            (path for path in (file, *map(str, Path(file).parents)) if path in owners), None
        )
        if path is None:
            wrong.append(f"{file} belongs to no capability of tests/budgets.py")
            continue
        used.add(path)
        sizes[owners[path].capability] += count
    wrong += [
        f"tests/budgets.py names {path}, which has no file" for path in owners if path not in used
    ]
    return [Size(b.capability, sizes[b.capability], b.lines) for b in budgets], wrong


def table(sizes: Sequence[Size]) -> list[str]:
    """Return all sizes in aligned columns, with their sum."""
    total = Size("sum", sum(size.lines for size in sizes), sum(size.budget for size in sizes))
    width = max(len(name) for name in ("capability", *(size.capability for size in sizes)))
    rows = [f"{'capability':{width}}   lines  budget"]
    for size in (*sizes, total):
        row = f"{size.capability:{width}} {size.lines:7,} {size.budget:7,}  {size.warning}"
        rows.append(row.rstrip())
    return rows


def summary(sizes: Sequence[Size]) -> list[str]:
    """Return one line for each warning, and one for the sum."""
    total, budget = sum(size.lines for size in sizes), sum(size.budget for size in sizes)
    return [
        *(
            f"warning: {size.capability} has {size.lines:,} lines, {size.warning} its budget of"
            f" {size.budget:,}"
            for size in sizes
            if size.is_over
        ),
        f"{total:,} lines of {' and '.join(PACKAGES)}, budget {budget:,}",
    ]


def main(repository: Path = REPOSITORY, budgets: Sequence[Budget] = BUDGETS) -> int:
    """Print the table, in a pipe its warnings only; return 1 if it does not fit the files."""
    sizes, wrong = measure(count_lines(repository), budgets)
    for line in (*(table(sizes) if sys.stdout.isatty() else summary(sizes)), *wrong):
        sys.stdout.write(f"{line}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
