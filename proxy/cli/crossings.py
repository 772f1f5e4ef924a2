"""What a translation kept and lost, in tables and words on stderr."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from adapters.contract.fidelity import ORDER, Ledger, Loss, counts_of
from adapters.model.base import Fidelity
from proxy.cli.printing import clean

MOST_LOSSES = 10
"""How many lost fields are named where one is an error."""

_COLOURS = {"approximated": "yellow", "dropped": "red"}


def print_report(ledger: Ledger) -> None:
    """Print how many fields of each type of event crossed in which way, and which lost something:
    as tables, or as lines with tabs where stderr is not a terminal."""
    counts = {**dict(sorted(ledger.by_type.items())), "all": ledger.totals}
    rows = [[name, *map(str, counts_of(found).values())] for name, found in counts.items()]
    losses = [
        [clean(loss.path), loss.fidelity.value, str(loss.times), clean(loss.why)]
        for loss in ledger.losses()
    ]
    console = Console(stderr=True)
    if not console.is_terminal:
        for row in rows + losses:
            click.echo("\t".join(row), err=True)
        return
    console.print(_table(("event", *map(str, ORDER)), rows))
    if losses:
        console.print()
        console.print(_table(("field", "how", "times", "why"), losses))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        number = column in {*map(str, ORDER), "times"}
        table.add_column(
            column,
            overflow="fold",
            justify="right" if number else "left",
            no_wrap=column == "how",
            style=_COLOURS.get(column, ""),
        )
    for row in rows:
        # As text: rich would take square brackets for its markup.
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    return table


def lost_fields(ledger: Ledger, worst: str) -> bool:
    """Tell whether fields were dropped, or approximated if `worst` says so, and say which."""
    losses = ledger.losses(Fidelity(worst))
    if not losses:
        return False
    counted = [kind for kind in (Fidelity.DROPPED, Fidelity.APPROXIMATED) if ledger.totals[kind]]
    if worst == Fidelity.DROPPED:
        counted = [Fidelity.DROPPED]
    number = sum(ledger.totals[kind] for kind in counted)
    fields = "1 field was" if number == 1 else f"{number} fields were"
    click.echo(f"dragoman: {fields} {' or '.join(counted)}:", err=True)
    for loss in losses[:MOST_LOSSES]:
        click.echo(_wrapped(clean(_line(loss))), err=True)
    if len(losses) > MOST_LOSSES:
        click.echo(f"  and {len(losses) - MOST_LOSSES} more; --report says which", err=True)
    return True


def _wrapped(line: str) -> str:
    """Return a line indented, and on a terminal broken between words."""
    if not sys.stderr.isatty():
        return f"  {line}"
    width = shutil.get_terminal_size().columns
    return click.wrap_text(line, width, initial_indent="  ", subsequent_indent="    ")


def _line(loss: Loss) -> str:
    times = "" if loss.times == 1 else f" {loss.times} times"
    return f"{loss.path}: {loss.fidelity.value}{times}: {loss.why}"
