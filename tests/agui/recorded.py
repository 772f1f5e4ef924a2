"""What the face reads in recorded requests of real clients: `--write` writes it anew."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from adapters.agui.requests import parse_run

REPOSITORY = Path(__file__).parents[2]
RECORDED = REPOSITORY / "fixtures" / "wire" / "agui"
GOLDEN = RECORDED / "read.json"


def requests() -> list[Path]:
    """Return the recorded requests."""
    return sorted(RECORDED.rglob("*.request.json"))


def name_of(path: Path) -> str:
    """Return how a recording is called."""
    return str(path.relative_to(RECORDED)).removesuffix(".request.json")


def read(path: Path) -> dict[str, Any]:
    """Return what the face reads in a request."""
    body = json.loads(path.read_bytes())["request"]["body"]
    said = dataclasses.asdict(parse_run(json.dumps(body).encode()))
    del said["earlier"], said["before"]
    value: dict[str, Any] = json.loads(json.dumps(said, default=lambda block: block.model_dump()))
    return value


def main() -> None:
    """Write the golden file."""
    found = {name_of(path): read(path) for path in requests()}
    GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    main()
