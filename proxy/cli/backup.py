"""`dragoman backup`: the copy of a journal."""

from __future__ import annotations

from pathlib import Path

import click

from adapters.wire.errors import DragomanError
from proxy.base.errors import ConfigError
from proxy.cli import printing
from proxy.cli.printing import clean, fail, print_json, print_rows, progress
from proxy.cli.running import OF_A_CONFIGURATION, read_settings
from proxy.cli.servers import journal_url
from proxy.journal import back_up


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--journal",
    metavar="FILE",
    help="The journal: a file, or a URL like `sqlite:///dragoman.db`. Without it the one of the "
    "configuration.",
)
@OF_A_CONFIGURATION
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def backup(
    file: Path, journal: str | None, config: Path | None, force: bool, as_json: bool
) -> None:
    """Copy a journal to FILE, also while a server writes it.

    The copy is the state of one moment. FILE is there when it is whole, checked and on the disk;
    prints its name, its bytes, and how many sessions and events are in it.
    """
    url = (
        read_settings(config, resolved=False).journal.url
        if journal is None
        else journal_url(journal)
    )
    try:
        with progress(shown=printing.on_terminal() and not as_json) as told:
            found = back_up(url, file, force=force, told=told)
    except ConfigError as error:
        fail(clean(error.whole), status=2)
    except DragomanError as error:
        fail(clean(error.whole))
    counts = {"bytes": found.bytes, "sessions": found.sessions, "entries": found.entries}
    if as_json:
        print_json({"path": str(file.absolute()), **counts})
    else:
        print_rows(("path", *counts), [[str(file.absolute()), *counts.values()]])
