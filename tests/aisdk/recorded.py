"""Recorded requests and answers of real pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
RECORDED = REPOSITORY / "fixtures" / "wire" / "aisdk"

RELEASES = {"v5": "5.0.277", "v6": "6.0.326", "v7": "7.0.173"}


def requests() -> list[Path]:
    """Return the recorded requests that have a body."""
    found = sorted(RECORDED.rglob("*.request.json"))
    return [path for path in found if "body" in json.loads(path.read_bytes())["request"]]


def name_of(path: Path) -> str:
    """Return how a recording is called."""
    return str(path.relative_to(RECORDED)).removesuffix(".request.json")


def plays() -> list[tuple[str, str]]:
    """Return each scenario with each release that has it."""
    found = []
    for folder in sorted(path for path in RECORDED.iterdir() if path.is_dir()):
        first = "v5"
        if folder.name.startswith("approval"):
            first = "v7" if folder.name == "approval-auto" else "v6"
        found += [(folder.name, release) for release in RELEASES if release >= first]
    return found


def part_of(scenario: str, name: str, release: str) -> Path | None:
    """Return the file of a scenario that is of this release, or None.

    Args:
        scenario: its folder.
        name: the file's name without what releases it is of, as `01.response.sse`.
        release: `v5`, `v6` or `v7`.
    """
    stem, _, end = name.rpartition(".")
    for path in sorted((RECORDED / scenario).glob(f"{stem}*.{end}")):
        marks = re.findall(r"v\d", path.name)
        if not marks or release in marks:
            return path
    return None
