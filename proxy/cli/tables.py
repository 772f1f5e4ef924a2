"""Tables and lines as they are drawn on a terminal. Only what draws one imports this, and rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_COLOURS = {
    "running": "green",
    "paused": "yellow",
    "ended": "dim",
    "deleted": "red",
    "expired": "dim",
    "ok": "green",
    "failed": "red",
}
"""The colours of states on a terminal."""

_FREE = frozenset({"title", "prompt", "details"})
_PROSE = _FREE | {
    *("consequence", "examples", "found", "goes over", "how or why", "status", "what", "why"),
}
"""The columns whose words may be broken, and all whose cells may have several lines."""

_GAP = 2
"""Blanks between columns."""


def print_table(
    columns: list[str], cells: list[list[str]], spare: list[str], *, heading: bool
) -> None:
    """Print a table as wide as the terminal; where its words do not fit, each row as a block."""
    console = Console()
    while (widths := _widths(columns, cells, console.width)) is None and spare:
        at = columns.index(spare.pop(0))
        columns, cells = _without(columns, at), [_without(row, at) for row in cells]
    if widths is None:
        for number, row in enumerate(cells):
            if number:
                console.print()
            _print_block(console, columns, row)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=heading)
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column, overflow="fold", width=width)
    for row in cells:
        table.add_row(*map(_styled, columns, row))
    console.print(table)


def _without(values: list[str], at: int) -> list[str]:
    return values[:at] + values[at + 1 :]


def _widths(columns: list[str], cells: list[list[str]], room: int) -> list[int] | None:
    """Return how wide each column is, or None: then there is no room.

    Only prose has several lines. Words are whole, since they may be ids, but for those of titles
    and the like.
    """
    least, most = [], []
    for column, *values in zip(columns, *cells, strict=True):
        whole = max(map(cell_len, (column, *values)))
        words = max((cell_len(word) for value in values for word in value.split()), default=0)
        # A column of prose may become so narrow.
        fewest = 20 if column in _FREE else max(words, 20)
        least.append(min(whole, fewest) if column in _PROSE else whole)
        most.append(whole)
    free = room - sum(least) - _GAP * (len(columns) - 1)
    if free < 0:
        return None
    for at, (given, wanted) in enumerate(zip(least, most, strict=True)):
        more = min(free, wanted - given)
        least[at] += more
        free -= more
    return least


def print_block(names: list[str], values: list[str]) -> None:
    """Print names and values below each other."""
    _print_block(Console(), names, values)


def _print_block(console: Console, names: list[str], values: list[str]) -> None:
    width = max(map(cell_len, names)) + _GAP
    for name, value in zip(names, values, strict=True):
        if not value:
            continue
        if max(map(cell_len, value.split()), default=0) > console.width - width:
            # A word is longer than a line. The terminal breaks it, and it is copied as one piece.
            console.print(Text(f"{name:<{width}}{value}"), soft_wrap=True)
            continue
        line = Table(box=None, pad_edge=False, show_header=False)
        line.add_column(width=width - _GAP, style="bold")
        line.add_column(overflow="fold", max_width=console.width - width)
        line.add_row(name, _styled(name, value))
        console.print(line)


def _styled(column: str, value: str) -> Text:
    """Return a cell as text: rich would take square brackets for its markup."""
    return Text(value, style=_COLOURS.get(value, "") if column in {"state", "status"} else "")


def print_lines(lines: Sequence[str]) -> None:
    """Print lines, in the colours of a diff."""
    console = Console()
    for line in lines:
        style = {"-": "red", "+": "green", ">": "bold"}.get(line[:1], "")
        console.print(Text(line, style=style), soft_wrap=True)
