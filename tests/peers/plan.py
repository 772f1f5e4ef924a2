"""Chooses the cells that `make peers` plays: so many that each pair of values meets in one of them.

A cell is a client, a server, a backend and a scenario, or some of these. With `ALL` in the
environment all are played. The programs in JavaScript ask by

    python -m tests.peers.plan < CELLS

where `CELLS` is JSON, a list of lists of names; the answer is the list of the places of the chosen.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeVar

__all__ = ["covering", "planned"]

Cell = TypeVar("Cell")


def covering(cells: Sequence[Sequence[str]]) -> list[int]:
    """Return the places of some cells that have each pair of values which a cell has (a pairwise
    covering array). Of cells that add as many pairs the first is taken."""
    pairs = [frozenset(combinations(enumerate(cell), 2)) for cell in cells]
    missing = set().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(cells)), key=lambda at: len(pairs[at] & missing))
        missing -= pairs[best]
        chosen.append(best)
    return sorted(chosen)


def planned(cells: Sequence[Cell], values: Callable[[Cell], Sequence[str]]) -> list[Cell]:
    """Return the cells to play when nobody has chosen any."""
    if os.environ.get("ALL"):
        return list(cells)
    return [cells[at] for at in covering([values(cell) for cell in cells])]


if __name__ == "__main__":
    json.dump(covering(json.load(sys.stdin)), sys.stdout)
