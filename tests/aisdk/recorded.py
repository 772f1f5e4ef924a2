"""Recorded requests and answers of real pages, and what the face reads in the requests: `--write`
writes that anew."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

from adapters.aisdk.requests import parse_chat

REPOSITORY = Path(__file__).parents[2]
RECORDED = REPOSITORY / "fixtures" / "wire" / "aisdk"
GOLDEN = RECORDED / "read.json"

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


def read(path: Path) -> dict[str, Any]:
    """Return what the face reads in a request."""
    body = json.loads(path.read_bytes())["request"]["body"]
    said = dataclasses.asdict(parse_chat(json.dumps(body).encode()))
    del said["earlier"], said["before"]
    value: dict[str, Any] = json.loads(json.dumps(said, default=_plain))
    return value


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value.model_dump()


def main() -> None:
    """Write the golden file."""
    found = {name_of(path): read(path) for path in requests()}
    GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    main()
