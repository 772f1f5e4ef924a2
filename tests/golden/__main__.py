"""Checks the golden files, or writes them: see `tests.golden`."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from tests.golden import GOLDEN, REPOSITORY, goldens, stale


def main() -> int:
    """Check or write; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the golden files anew")
    if parser.parse_args().write:
        write()
        return 0
    return 1 if check() else 0


def write() -> None:
    """Write every golden file and delete those that no scenario makes."""
    changed = 0
    for path, content in goldens():
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            changed += 1
    for path in stale():
        path.unlink()
        changed += 1
    for folder in sorted(GOLDEN.rglob("*"), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    print(f"{changed} golden files written or deleted.")


def check() -> int:
    """Print how the golden files differ from what the code makes; return how many do."""
    differing = 0
    for path, content in goldens():
        before = path.read_bytes() if path.exists() else b""
        if before != content or not path.exists():
            differing += 1
            show(path, before, content)
    for path in stale():
        differing += 1
        print(f"{path.relative_to(REPOSITORY)}: no scenario makes it")
    return differing


def show(path: Path, before: bytes, after: bytes) -> None:
    """Print a unified diff."""
    name = str(path.relative_to(REPOSITORY))
    lines = difflib.unified_diff(
        before.decode().splitlines(),
        after.decode().splitlines(),
        name,
        f"{name} (now)",
        lineterm="",
    )
    print("\n".join(lines))


sys.exit(main())
