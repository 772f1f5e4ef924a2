"""Make a fixture of a journal: `python -m tests.journals --write NAME [BACKEND ...]`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
import tempfile
import time
from pathlib import Path

from tests.journals.fixture import FOLDER, load, write
from tests.journals.house import BACKENDS


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.journals", description=__doc__)
    parser.add_argument("--write", metavar="NAME", required=True, help="a release, or a commit")
    parser.add_argument("backends", nargs="*", metavar="BACKEND", help="all without")
    given = parser.parse_args()
    name, names = given.write, given.backends or list(BACKENDS)
    if unknown := [one for one in names if one not in BACKENDS]:
        parser.error(f"there is no backend `{unknown[0]}`; there are: {', '.join(BACKENDS)}")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        parser.error("a name has letters, digits, `.`, `_` and `-`")
    folder = FOLDER / name
    if folder.exists():
        parser.error(f"{folder} is there already: what is kept is never written anew")
    # The journal is opened over one backend after the other: the others' sessions are warned of.
    logging.disable(logging.WARNING)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(write(folder, Path(scratch), names))
    sessions = len(load(folder).talks)
    size = sum(file.stat().st_size for file in folder.iterdir())
    seconds = time.monotonic() - begun
    sys.stdout.write(f"{folder}: {sessions} sessions, {size // 1000} kB, {seconds:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
