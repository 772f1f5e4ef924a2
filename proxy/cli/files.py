"""Files that commands read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def named(file: str) -> str:
    """Return how a file is called in what is said of it."""
    return "<stdin>" if file == "-" else file


@contextlib.contextmanager
def readable(file: str) -> Iterator[BinaryIO]:
    """Open a file, or stdin for `-`."""
    with contextlib.ExitStack() as stack:
        yield sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
