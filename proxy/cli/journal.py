"""`dragoman journal`: journals as a whole."""

from __future__ import annotations

import asyncio

import click

from adapters.wire.errors import DragomanError
from proxy.base.errors import ConfigError
from proxy.cli import printing
from proxy.cli.printing import clean, fail, print_json, print_rows, progress
from proxy.cli.servers import journal_url
from proxy.journal import copy_journal, shown


@click.group(short_help="Carry a journal to another database.")
def journal() -> None:
    """Carry a journal to another database."""


@journal.command("copy", short_help="Copy the journal FROM, whole or not at all, to TO.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def journal_copy(source: str, target: str, *, as_json: bool) -> None:
    """Copy the journal FROM, whole or not at all, to TO.

    Both are files or URLs, like `dragoman.db` and `postgresql://USER@HOST/DATABASE`. The server of
    FROM must be stopped. TO must be a new file, or a database without sessions. Nobody sees the
    copy before every session was compared with the original, which stays as it is.

    Prints TO, the bytes of its events, source frames and files, and how many sessions and events
    are in it.
    """
    try:
        with progress(shown=printing.on_terminal() and not as_json) as told:
            found = asyncio.run(copy_journal(journal_url(source), journal_url(target), told))
    except ConfigError as error:
        fail(clean(error.whole), status=2, code=error.code)
    except DragomanError as error:
        fail(clean(error.whole), code=error.code)
    named = shown(journal_url(target))
    counts = {"bytes": found.bytes, "sessions": found.sessions, "entries": found.entries}
    if as_json:
        print_json({"url": named, **counts})
    else:
        print_rows(("url", *counts), [[named, *counts.values()]])
