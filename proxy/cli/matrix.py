"""`dragoman matrix`: how faithfully dialects cross."""

from __future__ import annotations

import click

from adapters.contract.fidelity import ORDER
from proxy.cli.printing import print_json, print_rows
from proxy.config import matrix as tables


@click.command(short_help="Print how faithfully each pair of dialects crosses.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def matrix(as_json: bool) -> None:
    """Print how faithfully each pair of dialects crosses, and what each backend can be asked."""
    pairs, cells = list(tables.pairs(tables.load_numbers())), list(tables.commands())
    if as_json:
        print_json(
            {
                "pairs": [pair.as_json() for pair in pairs],
                "commands": [cell.as_json() for cell in cells],
            }
        )
        return
    print_rows(
        ("frontend", "backend", *map(str, ORDER)),
        [[pair.frontend, pair.backend, *pair.counts] for pair in pairs],
    )
    click.echo()
    print_rows(
        ("command", "backend", "support", "how or why"),
        [[cell.command, cell.backend, cell.support, cell.how] for cell in cells],
    )
