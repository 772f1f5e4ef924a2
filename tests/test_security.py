"""The security page names tests that exist, and figures that are counted."""

from __future__ import annotations

import re
from pathlib import Path

from tests.proof.results import ATTACKED

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text()


def _rows(heading: str) -> list[list[str]]:
    """The rows of the tables below a heading."""
    part = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (found,) = (text for text in part if text.startswith(heading))
    rows = [line.strip("| ").split(" | ") for line in found.splitlines() if line.startswith("| ")]
    return [row for row in rows if not row[0].startswith(("what must not", "figure"))]


def test_everything_that_is_defended_names_a_test_that_exists() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    rows = _rows("What is defended")
    assert len(rows) >= 15
    for what, _, shown in rows:
        names = re.findall(r"`(test_\w+)`", shown)
        assert names, f"no test shows that this does not happen: {what}"
        for name in names:
            assert re.search(rf"\bdef {name}\(", tests), f"{what}: there is no {name}"


def test_every_figure_of_an_attack_is_explained_and_none_besides() -> None:
    assert tuple(row[0].strip("`") for row in _rows("The attack")) == ATTACKED
