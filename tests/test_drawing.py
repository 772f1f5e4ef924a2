"""What a short run leaves out of the cross products: another two thirds after each commit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import drawing

REPOSITORY = Path(__file__).parent.parent
A_FILE = "tests/test_mutated.py"


def collected(*options: str) -> set[str]:
    """Return the ids that pytest collects of a file in part 1."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", *options, A_FILE],
        cwd=REPOSITORY,
        env={**os.environ, "DRAWN_PART": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if line.startswith(A_FILE)}


def test_a_part_is_left_out_only_where_the_plugin_is_loaded() -> None:
    whole, drawn = collected(), collected("-p", "tests.drawing")
    assert drawn == {one for one in whole if not drawing.is_drawn(one) or drawing.part_of(one) == 1}
    assert drawn < whole


def test_three_commits_in_a_row_play_every_case() -> None:
    cases = [f"{A_FILE}::test_it[{number}]" for number in range(999)]
    parts = [{one for one in cases if drawing.part_of(one) == part} for part in range(3)]
    assert set.union(*parts) == set(cases)
    assert min(len(part) for part in parts) > 250


def test_each_commit_plays_another_part(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)

    parts = [drawing.current_part(tmp_path)]
    git("init", "-q")
    for _ in range(3):
        git("commit", "-q", "--allow-empty", "-m", "Change nothing")
        parts.append(drawing.current_part(tmp_path))
    assert parts == [0, 1, 2, 0]


@pytest.mark.parametrize(("words", "draws"), [((), True), (("ALL=1",), False)])
def test_make_draws_unless_it_is_told_to_play_all(words: Sequence[str], draws: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ALL"}
    recipe = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "test", *words],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    (test,) = [line for line in recipe.stdout.splitlines() if "-m pytest" in line]
    assert ("-p tests.drawing" in test) is draws


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
