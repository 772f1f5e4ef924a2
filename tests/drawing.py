"""A plugin for pytest that leaves out two thirds of the large cross products: `make test` loads it.

Which third is played follows from the number of commits, so each of three commits in a row plays
another one. `ALL=1 make test` does not load it, nor does pytest by itself: who names a file gets
all of it.
"""

from __future__ import annotations

import os
import subprocess
import zlib
from pathlib import Path

import pytest

DRAWN = (
    "tests/backends/",
    "tests/engine/test_replay.py",
    "tests/faults/",
    "tests/kept/",
    "tests/pairs/",
    "tests/replay/test_whole.py",
    "tests/server/test_orders.py",
    "tests/test_mutated.py",
)
"""Files and folders in which each function has a case for each of many combinations."""

PARTS = 3

_PART = "DRAWN_PART"
"""The variable that tells processes of pytest-xdist what their first one found."""


def part_of(node_id: str) -> int:
    """Return in which part a test is played, from 0: a hash, so that it stays there."""
    return zlib.crc32(node_id.encode()) % PARTS


def is_drawn(node_id: str) -> bool:
    """Tell whether a test is a case of a large cross product."""
    return node_id.startswith(DRAWN) and "[" in node_id


def current_part(folder: Path) -> int:
    """Return the part that the commit of a folder plays; 0 where there is no git."""
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return int(counted.stdout or 0) % PARTS


def pytest_configure() -> None:
    """Find the part once, for all processes: somebody may commit meanwhile."""
    os.environ.setdefault(_PART, str(current_part(Path(__file__).parent)))


def pytest_report_header() -> str:
    """Say what is left out."""
    number = int(os.environ[_PART]) + 1
    return f"cross products: part {number} of {PARTS}, by this commit; ALL=1 make test plays all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the other parts."""
    part = int(os.environ[_PART])
    left_out = [one for one in items if is_drawn(one.nodeid) and part_of(one.nodeid) != part]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [one for one in items if one not in gone]
