"""The page about trouble has a row for every code, with its status, and for no other."""

from __future__ import annotations

import re
from pathlib import Path

from adapters.wire.errors import ErrorCode
from proxy.control.control import STATUS

REPOSITORY = Path(__file__).parent.parent
PAGE = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")

SYMPTOMS, CODES = (
    re.findall(r"^\| (.+) \|$", part, re.MULTILINE)[1:] for part in PAGE.split("## Error codes\n")
)


def test_every_code_has_one_row_with_its_status_and_what_to_do() -> None:
    # Code, status, what happened, what to do.
    rows = [row.split(" | ") for row in CODES]
    assert all(len(row) == 4 and all(row) for row in rows)
    told = [(code.strip("`"), int(status)) for code, status, _, _ in rows]
    assert sorted(told) == sorted((str(code), STATUS[code]) for code in ErrorCode)


def test_every_symptom_has_a_row() -> None:
    assert len(SYMPTOMS) >= 7


def test_the_list_of_pages_and_the_readme_lead_to_it() -> None:
    assert "(troubleshooting.md)" in (REPOSITORY / "docs" / "index.md").read_text("utf-8")
    assert "(docs/troubleshooting.md)" in (REPOSITORY / "README.md").read_text("utf-8")
