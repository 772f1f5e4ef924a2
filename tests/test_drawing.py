"""What a short run leaves out of the cross products: another two thirds after each commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import drawing

REPOSITORY = Path(__file__).parent.parent
A_FILE = "tests/test_mutated.py"


def collected(part: int | None) -> set[str]:
    """Return the ids that pytest collects of a file, of all of it without a part."""
    plugin = [] if part is None else ["-p", "tests.drawing"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", *plugin, A_FILE],
        cwd=REPOSITORY,
        env={**os.environ, "DRAWN_PART": str(part or 0)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if line.startswith(A_FILE)}


def test_three_commits_in_a_row_play_every_case_once() -> None:
    whole = collected(None)
    parts = [collected(part) for part in range(drawing.PARTS)]
    assert set.union(*parts) == whole
    always = {one for one in whole if not drawing.is_drawn(one)}
    assert sum(len(part - always) for part in parts) == len(whole - always)
    assert all(always <= part < whole for part in parts)


@pytest.mark.parametrize("path", drawing.DRAWN)
def test_what_is_drawn_exists(path: str) -> None:
    assert (REPOSITORY / path).exists()


@pytest.mark.parametrize(
    "node_id",
    [
        "tests/test_laws.py::test_a_law[1]",
        "tests/journal/test_contract.py::test_a_write[sqlite]",
        "tests/server/test_restart.py::test_a_crash[script: text]",
        "tests/server/test_stop.py::test_a_stop[15]",
        "tests/pairs/test_people.py::test_without_cases",
    ],
)
def test_what_is_always_played(node_id: str) -> None:
    assert not drawing.is_drawn(node_id)
