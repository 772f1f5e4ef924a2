"""`dragoman sessions watch`: follows a session in words, or the list of sessions."""

from __future__ import annotations

import asyncio
import contextlib

import click
import orjson
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from proxy.cli import printing
from proxy.cli.following import Absence, Teller, follow
from proxy.cli.printing import JsonObject, cell, fail, time_cell
from proxy.cli.servers import Away, ServerClient, of_a_server

STATES = ("idle", "running", "paused", "ended", "deleted", "expired")
GONE = frozenset({"deleted", "expired"})

_COLUMNS = ("id", "state", "updated", "title")


@click.command("watch", short_help="Follow a session, or the list of sessions.")
@click.argument("session", required=False)
@click.option(
    "--after",
    type=click.IntRange(0),
    metavar="SEQ",
    help="Begin after this event, with 0 at the first; otherwise with what comes next.",
)
@of_a_server
def sessions_watch(server: ServerClient, session: str | None, after: int | None) -> None:
    """Follow a session in words until it ends, or without SESSION the list of your sessions.

    ^C ends it with exit status 0. When the server restarts it goes on where it was. With --json it
    prints the session's canonical events, or of the list each session that has changed.
    """
    with contextlib.suppress(KeyboardInterrupt):
        if session is not None:
            _watch(server, session, after)
        elif after is not None:
            raise click.UsageError("--after goes with a SESSION")
        else:
            asyncio.run(_watch_list(server))


def _watch(server: ServerClient, session: str, after: int | None) -> None:
    shown = server.ask_of("GET", session)
    teller = Teller(server.url)
    if after is None:
        after = int(shown["last_seq"])
        if not server.as_json:
            click.echo(f"{cell(shown['id'])} is {cell(shown['state'])}")
            for asked in shown["open_interactions"]:
                _print_lines(teller.question(asked))
    if shown["state"] == "ended" and after >= shown["last_seq"]:
        return
    asyncio.run(_follow(server, str(shown["id"]), after, teller))


async def _follow(server: ServerClient, session: str, after: int, teller: Teller) -> None:
    async with contextlib.aclosing(follow(server, session, after)) as events:
        async for line, event in events:
            if server.as_json:
                click.echo(line)
            else:
                _print_lines(teller.tell(event))


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)


async def _watch_list(server: ServerClient) -> None:
    absence = Absence(server)
    known: dict[str, JsonObject] = {}
    live: Live | None = None
    begun = False
    on_terminal = printing.on_terminal() and not server.as_json
    with contextlib.ExitStack() as stack:
        while True:
            try:
                rows = await _listed(server)
            except Away as error:
                if not begun:
                    fail(f"no server can be reached at {server.url}: {error}.", code="unreachable")
                await absence.again(error)
                continue
            absence.over()
            if on_terminal:
                kept = [row for row in rows if row["id"] in known or row["state"] not in GONE]
                if live is None:
                    live = stack.enter_context(Live(console=Console(), auto_refresh=False))
                live.update(_table(kept), refresh=True)
            for row in reversed(rows):
                before = known.get(row["id"])
                if before is None and row["state"] in GONE:
                    continue
                known[row["id"]] = row
                if not on_terminal and _differs(before, row):
                    _print_row(row, as_json=server.as_json)
            begun = True
            await asyncio.sleep(1.0)


async def _listed(server: ServerClient) -> list[JsonObject]:
    """Return the newest sessions, newest first, those too that are gone."""
    lines = server.lines("/sessions", {"limit": "1000", "state": STATES})
    async with contextlib.aclosing(lines):
        async for line in lines:
            rows: list[JsonObject] = orjson.loads(line)["sessions"]
            return rows
    raise Away("it answers nothing")


def _differs(before: JsonObject | None, row: JsonObject) -> bool:
    return before is None or any(before[name] != row[name] for name in ("state", "title"))


def _print_row(row: JsonObject, *, as_json: bool) -> None:
    if as_json:
        click.echo(orjson.dumps(row))
    else:
        click.echo("\t".join(_cells(row)))


def _cells(row: JsonObject) -> list[str]:
    return [
        cell(row["id"]),
        cell(row["state"]),
        time_cell(row["updated_at"]),
        cell(row["title"]),
    ]


def _table(rows: list[JsonObject]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, no_wrap=True, overflow="ellipsis" if column == "title" else "fold")
    for row in rows:
        table.add_row(*(Text(value) for value in _cells(row)))
    return table
