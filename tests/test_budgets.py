"""The table of capabilities: what it counts, what it says, and what fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import budgets
from tests.budgets import Budget, Size

BUDGETS = (
    Budget("first", 10, ("adapters/first", "adapters/__init__.py")),
    Budget("second", 10, ("proxy",)),
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Files of both capabilities: one is a tenth over its budget, the other one line more."""
    for name, lines in (
        ("adapters/__init__.py", 1),
        ("adapters/first/one.py", 10),
        ("adapters/first/MAPPING.md", 100),
        ("proxy/deep/inside/two.py", 12),
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n" * lines)
    return tmp_path


def test_lines_are_counted_for_each_capability(repository: Path) -> None:
    sizes, wrong = budgets.measure(budgets.count_lines(repository), BUDGETS)
    assert sizes == [Size("first", 11, 10), Size("second", 12, 10)]
    assert wrong == []


def test_a_file_belongs_to_the_nearest_path(repository: Path) -> None:
    nested = (*BUDGETS, Budget("third", 10, ("proxy/deep/inside",)))
    (repository / "proxy" / "three.py").write_text("\n")
    sizes, wrong = budgets.measure(budgets.count_lines(repository), nested)
    assert sizes[1:] == [Size("second", 1, 10), Size("third", 12, 10)]
    assert wrong == []


def test_what_is_more_than_a_tenth_over_is_a_warning_and_fails_nothing(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert budgets.main(repository, BUDGETS) == 0
    assert capsys.readouterr().out.splitlines() == [
        "capability   lines  budget",
        "first           11      10",
        "second          12      10  20% over",
        "sum             23      20  15% over",
    ]


def test_in_a_pipe_stand_the_warnings_and_the_sum(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert budgets.main(repository, BUDGETS) == 0
    assert capsys.readouterr().out.splitlines() == [
        "warning: second has 12 lines, 20% over its budget of 10",
        "23 lines of adapters and proxy, budget 20",
    ]


def test_a_file_without_a_capability_and_a_path_without_files_fail(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "adapters" / "new.py").write_text("\n")
    (repository / "proxy" / "empty").mkdir()
    empty = (*BUDGETS, Budget("third", 10, ("proxy/empty",)))
    assert budgets.main(repository, empty) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "adapters/new.py belongs to no capability of tests/budgets.py",
        "tests/budgets.py names proxy/empty, which has no file",
    ]


def test_each_capability_has_a_name_a_budget_and_paths_of_its_own() -> None:
    names = [budget.capability for budget in budgets.BUDGETS]
    paths = [path for budget in budgets.BUDGETS for path in budget.paths]
    assert len(set(names)) == len(names)
    assert len(set(paths)) == len(paths)
    assert min(budget.lines for budget in budgets.BUDGETS) > 0
    assert len(names) <= 40, "it is read on one screen"
