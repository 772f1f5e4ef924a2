"""The plugin of `make postgres` names tests that exist, and lets those be played that it names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import on_postgres
from tests.on_postgres import FILES_ONLY, MORE, SUITES, is_in, is_played

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def played() -> list[str]:
    """What `ALL=1 make postgres` plays in the places that the plugin names."""
    # It takes a while: all of them at once.
    places = [place.partition("::")[0] for place in SUITES + MORE]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--collect-only",
            "-p",
            "tests.on_postgres",
            *places,
        ],
        cwd=ROOT,
        env={**os.environ, "ALL": "1"},
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said = done.stdout.decode()
    assert done.returncode == 0, said
    return [line for line in said.splitlines() if "::" in line]


def test_each_place_that_is_played_has_tests(played: list[str]) -> None:
    assert [place for place in SUITES + MORE if not any(is_in(one, place) for one in played)] == []


def test_what_is_about_files_is_there_says_why_and_is_not_played(played: list[str]) -> None:
    for place, why in FILES_ONLY.items():
        assert why
        assert any(is_in(place, other) for other in SUITES + MORE), f"{place} is not played anyway"
        assert not any(is_in(test, place) for test in played)
        file, _, name = place.partition("[")[0].partition("::")
        assert (ROOT / file).exists()
        if name:
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


FEW = ("tests/a/test_g.py::test_k", "tests/a/l/test_m.py::test_n[1]", "tests/test_b.py::T::runs")
ALL = (
    *("tests/c/test_d.py::test_e", "tests/c/test_d.py::test_e[x]"),
    *("tests/f/test_h.py::test_ij", "tests/f/l/test_h.py::test_i"),
)
NEVER = (
    *("tests/a/test_o.py::test_k", "tests/f/test_h.py::test_i", "tests/f/test_h.py::test_i[0]"),
    *("tests/c/test_d.py::test_ex", "tests/ab/test_g.py::test_k", "tests/test_b.pyi::test_k"),
)


class Item:
    """A test as pytest has it."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid
        self.markers: list[pytest.MarkDecorator] = []

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.markers.append(marker)


@pytest.mark.parametrize(("environ", "due"), [("", FEW), ("1", FEW + ALL)])
def test_it_plays_what_it_names_and_no_more(
    monkeypatch: pytest.MonkeyPatch, environ: str, due: tuple[str, ...]
) -> None:
    monkeypatch.setattr(on_postgres, "SUITES", ("tests/a/", "tests/test_b.py"))
    monkeypatch.setattr(on_postgres, "MORE", ("tests/c/test_d.py::test_e", "tests/f/"))
    about = {"tests/a/test_o.py": "a", "tests/f/test_h.py::test_i": "b"}
    monkeypatch.setattr(on_postgres, "FILES_ONLY", about)
    monkeypatch.setenv("ALL", environ)
    for one in FEW + ALL + NEVER:
        assert is_played(one, everything=bool(environ)) == (one in due), one
    items: list[Any] = [Item(one) for one in FEW + ALL + NEVER]
    on_postgres.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items if pytest.mark.postgres in item.markers] == list(due)


def test_who_only_imports_it_turns_nothing_on() -> None:
    program = "import os; import tests.on_postgres; print(os.environ.get('TEST_JOURNAL'))"
    environ = {name: value for name, value in os.environ.items() if name != "TEST_JOURNAL"}
    said = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=environ)
    assert said == b"None\n"
