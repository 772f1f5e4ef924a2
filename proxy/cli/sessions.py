"""`dragoman sessions`: look at sessions and erase them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from proxy.cli import archives, printing, watch
from proxy.cli.asked import blocks
from proxy.cli.naming import ids_of, named
from proxy.cli.printing import (
    JsonObject,
    cell,
    fail,
    print_json,
    print_pairs,
    print_rows,
    time_cell,
)
from proxy.cli.servers import DEFAULT_URL, JournalFile, ServerClient, of_a_server, of_sessions
from proxy.cli.units import AGE, SIZE


@click.group(short_help="Look at sessions, export and delete them.")
def sessions() -> None:
    """Look at sessions, export and delete them: of a running server, or in a journal's file."""


sessions.add_command(archives.sessions_export)
sessions.add_command(archives.sessions_import)
sessions.add_command(watch.sessions_watch)


@sessions.command("list", short_help="List your sessions, newest first.")
@click.option(
    "--state",
    type=click.Choice(["idle", "running", "paused", "ended", "deleted", "expired"]),
    help="Only sessions in this state.",
)
@click.option("--failed", is_flag=True, help="Only those whose last message failed, or may have.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many."
)
@click.option(
    "--before",
    type=click.IntRange(0),
    metavar="KEY",
    help="Go on from the key that the last page ended with.",
)
@of_sessions
def sessions_list(
    source: ServerClient | JournalFile,
    state: str | None,
    failed: bool,
    limit: int,
    before: int | None,
) -> None:
    """List your sessions, newest first; with an administrator's key those of everybody."""
    if isinstance(source, JournalFile):
        from proxy.control import offline

        answer = source.ask(
            lambda journal: offline.listed(
                journal, state=state, failed=failed, limit=limit, before=before
            )
        )
    else:
        query = {"limit": str(limit)}
        if state is not None:
            query["state"] = state
        if failed:
            query["failed"] = "1"
        if before is not None:
            query["before"] = str(before)
        answer = source.ask("GET", "/sessions", query=query)
    if source.as_json:
        print_json(answer)
        return
    columns = ("id", "state", "dialect", "route", "owner", "updated", "title")
    rows = [
        [
            *(entry.get(name) for name in columns[:5]),
            time_cell(entry.get("updated_at")),
            entry.get("title"),
        ]
        for entry in answer["sessions"]
    ]
    more = answer.get("next") is not None
    none = "no sessions yet" if state is None else f"no sessions in state `{state}`"
    if failed:
        none = "no sessions whose last message failed"
    if before is not None:
        none = f"no sessions before {before}"
    spare = ("dialect", "owner", "route")
    print_rows(columns, rows, spare=spare, empty="" if more else none)
    if more:
        click.echo(f"There are more: add --before {cell(answer['next'])}", err=True)


@sessions.command("show", short_help="Show what a session waits for, and its backends.")
@click.argument("session")
@of_sessions
def sessions_show(source: ServerClient | JournalFile, session: str) -> None:
    """Show one session: what it waits for, its backends, its other names."""
    if isinstance(source, JournalFile):
        from proxy.control import offline

        answer = source.ask_of(session, offline.shown)
    else:
        answer = source.ask_of("GET", session)
    if source.as_json:
        print_json(answer)
        return
    lists = {
        "open_interactions": "waits for",
        "queue": "queued",
        "legs": "backend",
        "aliases": "also called",
    }
    asked = answer.pop("open_interactions", []) if printing.on_terminal() else []
    pairs: list[tuple[str, object]] = []
    for name, value in answer.items():
        if name in lists:
            pairs += [(lists[name], _entry(name, entry)) for entry in value]
        elif name in {"created_at", "updated_at"}:
            pairs.append((name.removesuffix("_at"), time_cell(value)))
        elif name == "reconnecting_since" and value is not None:
            pairs.append(("reconnecting since", time_cell(value)))
        elif name == "repairs" and printing.on_terminal():
            pairs.append((name, ", ".join(f"{rule}: {count}" for rule, count in value.items())))
        elif name != "version" and value is not None:
            pairs.append((name, value))
    print_pairs(pairs)
    if asked:
        url = source.url if isinstance(source, ServerClient) else DEFAULT_URL
        click.echo("\nIt waits for:\n\n" + blocks(asked, url))


def _entry(name: str, entry: object) -> object:
    """Return an entry of a list of a session: on a terminal what people want of it."""
    if not printing.on_terminal() or not isinstance(entry, dict):
        return entry
    match name:
        case "queue":
            words = " ".join(str(block.get("text") or block["type"]) for block in entry["content"])
            return f"{entry['command_id']}  {words}"
        case _:
            return f"{entry['backend']}  {entry['native_id'] or ''}"


def _check_askable(*, yes: bool) -> None:
    """Refuse to ask where nobody could answer: `--yes` must have said it."""
    if not (yes or (sys.stdin.isatty() and printing.on_terminal())):
        raise click.UsageError("nothing is erased without a question: add --yes")


def _agreed(question: str, *, yes: bool) -> None:
    """Ask on a terminal."""
    if not yes and not click.confirm(question, err=True):
        fail("nothing was erased.")


def _which(source: ServerClient | JournalFile, names: Sequence[str], *, yes: bool) -> list[str]:
    """Return the ids of the sessions to erase, once it was agreed to that."""
    if yes:
        return ids_of(source, names)
    found = {str(one["id"]): one for one in (source.meant(name) or {"id": name} for name in names)}
    if len(found) == 1:
        (session,) = found.values()
        _agreed(f"Erase {named(session)} for ever?", yes=False)
    else:
        for session in found.values():
            click.echo(named(session), err=True)
        _agreed(f"Erase these {len(found)} sessions for ever?", yes=False)
    return list(found)


@sessions.command("delete", short_help="Delete sessions and all that is stored of them.")
@click.argument("names", metavar="SESSION...", nargs=-1, required=True)
@click.option(
    "--local", is_flag=True, help="Erase it here and leave what its backend has, unasked."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@of_sessions
def sessions_delete(
    source: ServerClient | JournalFile, names: tuple[str, ...], local: bool, yes: bool
) -> None:
    """Delete sessions: at their backend where that can, and all that is stored of them.

    In a journal's file their backends are not asked.
    """
    _check_askable(yes=yes)
    answers: list[JsonObject] = []
    for name in _which(source, names, yes=yes):
        if isinstance(source, JournalFile):
            from proxy.control import offline

            given = source.ask(
                lambda journal, name=name: offline.deleted(journal, name),  # type: ignore[misc]
                read_only=False,
            )
        else:
            query = {"local": "1"} if local else {}
            given = source.ask_of("DELETE", name, query=query)
        if not source.as_json:
            row = [given.get("id"), given.get("status")]
            print_rows(("session", "status"), [row], heading=not answers)
        answers.append(given)
    if source.as_json:
        print_json({"deleted": [given.get("id") for given in answers]})


@sessions.command("withdraw", short_help="Withdraw messages that wait for their turn.")
@click.argument("session")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@of_a_server
def sessions_withdraw(server: ServerClient, session: str, inputs: tuple[str, ...]) -> None:
    """Withdraw messages that wait for their turn, as `sessions show` prints them."""
    (id,) = ids_of(server, [session])
    for name in inputs:
        given = server.ask_of("DELETE", id, "inputs", name)
        if not server.as_json:
            row = [given.get("command_id"), given.get("status")]
            print_rows(("input", "status"), [row], heading=name == inputs[0])
    if server.as_json:
        print_json({"withdrawn": list(inputs)})


@sessions.command("settle", short_help="Bring sessions to rest that are stuck.")
@click.argument("names", metavar="SESSION...", nargs=-1, required=True)
@of_a_server
def sessions_settle(server: ServerClient, names: tuple[str, ...]) -> None:
    """Bring sessions to rest that are stuck, whatever their backends say.

    The turn ends as failed, and what it has asked is withdrawn. The backend is not told: interrupt
    a turn that still runs there.
    """
    answers: list[JsonObject] = []
    for name in ids_of(server, names):
        given = server.ask_of("POST", name, "settle")
        if not server.as_json:
            status = "settled" if given.get("settled") else "at rest already"
            print_rows(("session", "status"), [[given.get("id"), status]], heading=not answers)
        answers.append(given)
    if server.as_json:
        print_json({"settled": [a.get("id") for a in answers if a.get("settled")]})


@sessions.command("prune", short_help="Erase the sessions that the given limits do not keep.")
@click.option(
    "--older-than", type=AGE, metavar="AGE", help="Erase what had no event for so long: `30d`."
)
@click.option("--max-bytes", type=SIZE, metavar="SIZE", help="Keep so much in all, like `10GB`.")
@click.option(
    "--max-bytes-per-backend", type=SIZE, metavar="SIZE", help="Keep so much of each backend."
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and erase nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@of_sessions
def sessions_prune(
    source: ServerClient | JournalFile,
    older_than: float | None,
    max_bytes: float | None,
    max_bytes_per_backend: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Erase the sessions that the given limits do not keep, those with the oldest last event first.

    One in which a turn or an interaction is open stays. Prints what went, and why.
    """
    if older_than is None and max_bytes is None and max_bytes_per_backend is None:
        raise click.UsageError(
            "say what is kept: --older-than, --max-bytes or --max-bytes-per-backend"
        )
    if not dry_run:
        _check_askable(yes=yes)
        _agreed("Erase the sessions that these limits do not keep for ever?", yes=yes)
    if isinstance(source, JournalFile):
        from proxy.control import offline
        from proxy.sessions.retention_limits import RetentionLimits

        limits = RetentionLimits(
            age=None if older_than is None else round(older_than * 1000),
            bytes_per_backend=_whole(max_bytes_per_backend),
            bytes=_whole(max_bytes),
        )
        answer = source.ask(
            lambda journal: offline.pruned(journal, limits, dry_run=dry_run), read_only=dry_run
        )
    else:
        body: JsonObject = {
            "older_than_seconds": older_than,
            "max_bytes": _whole(max_bytes),
            "max_bytes_per_backend": _whole(max_bytes_per_backend),
            "dry_run": dry_run,
        }
        given = {name: value for name, value in body.items() if value is not None}
        answer = source.ask("POST", "/prune", body=given)
    if source.as_json:
        print_json(answer)
        return
    columns = ("id", "reason", "backend", "route", "updated", "bytes")
    rows = [
        [
            *(entry.get(name) for name in columns[:4]),
            time_cell(entry.get("updated_at")),
            entry.get("bytes"),
        ]
        for entry in answer["sessions"]
    ]
    spare = ("route", "bytes", "backend")
    print_rows(columns, rows, spare=spare, empty="no session is beyond these limits")


def _whole(size: float | None) -> int | None:
    return None if size is None else round(size)
