"""What is said on a terminal, and to programs: tables, JSON, progress, and why it ends."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import click
import orjson

from proxy.base.clock import Clock

JsonObject = dict[str, Any]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
"""The units of times, and their seconds."""


def fail(message: str, *, status: int = 1, code: str | None = None) -> NoReturn:
    """Say what is wrong and what to do, and exit. With `--json` it is an error in the form of the
    control API, with its `code`; what has none there is `failed`, or `usage` with status 2."""
    context = click.get_current_context(silent=True)
    if context is not None and context.params.get("as_json"):
        print_error(message, code or ("usage" if status == 2 else "failed"))
    else:
        click.echo(f"dragoman: {message}", err=True)
    sys.exit(status)


def print_error(message: str, code: str) -> None:
    """Print an error that a program reads."""
    error = {"version": 1, "error": {"code": code, "message": message}}
    click.echo(orjson.dumps(error), err=True)


def clean(text: str) -> str:
    """Return `text` on one line and without control characters: an agent wrote it, and a terminal
    obeys them.
    """
    return "".join(char if char.isprintable() else " " for char in text)


def on_terminal() -> bool:
    """Tell whether a person reads what is printed."""
    return sys.stdout.isatty()


def cell(value: object) -> str:
    """Return a value as it is in a table."""
    if value is None:
        return ""
    if isinstance(value, str):
        return clean(value)
    return orjson.dumps(value).decode()


def time_cell(value: object) -> str:
    """Return Unix milliseconds as a time that people read: on a terminal how long ago it is."""
    if not isinstance(value, int):
        return ""
    if on_terminal():
        return relative(value, now())
    return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="seconds")


def now() -> int:
    """Return the time, in Unix milliseconds."""
    return Clock().now()


def relative(at: int, now: int) -> str:
    """Return how long ago a time is, or in how long it comes; both are Unix milliseconds."""
    seconds = abs(now - at) // 1000
    if seconds == 0:
        return "now"
    size, unit = next(one for one in _UNITS if seconds >= one[0])
    return f"in {seconds // size} {unit}" if at > now else f"{seconds // size} {unit} ago"


def print_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    spare: Sequence[str] = (),
    empty: str = "",
    heading: bool = True,
) -> None:
    """Print a table on a terminal, else a line for each row with tabs between its cells.

    Args:
        columns: their names, for a terminal.
        rows: the cells of each row.
        spare: the columns that a narrow terminal goes without, the first to go first.
        empty: what is said to a person where there are no rows.
        heading: whether the names stand above a table.
    """
    if not rows and empty:
        click.echo(empty, err=True)
    cells = [[cell(value) for value in row] for row in rows]
    if not on_terminal():
        for row in cells:
            click.echo("\t".join(row))
    elif rows:
        from proxy.cli import tables

        tables.print_table(list(columns), cells, list(spare), heading=heading)


def print_pairs(pairs: Sequence[tuple[str, object]]) -> None:
    """Print names and values, on a terminal without those that are empty."""
    if on_terminal():
        names, values = [name for name, _ in pairs], [cell(value) for _, value in pairs]
        from proxy.cli import tables

        tables.print_block(names, values)
    else:
        print_rows((), pairs)


def print_json(answer: JsonObject) -> None:
    """Print what a program reads, with the version of its form."""
    click.echo(orjson.dumps({"version": 1, **answer}))


@contextlib.contextmanager
def progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Give what takes the progress of a long work; it is gone from the terminal afterwards."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=None)

        def told(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield told


def reader_left() -> None:
    """Write to nowhere: who reads us has enough, and Python would try to write the rest at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_lines(lines: Sequence[str]) -> None:
    """Print lines, on a terminal with colours."""
    if not on_terminal():
        click.echo("\n".join(lines))
        return
    from proxy.cli import tables

    tables.print_lines(lines)
