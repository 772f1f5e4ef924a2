"""`dragoman migrate`: sessions from one backend to another."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import click
import orjson
from yarl import URL

from proxy.cli import printing
from proxy.cli.naming import ids_of
from proxy.cli.printing import (
    JsonObject,
    clean,
    fail,
    print_json,
    print_lines,
    print_rows,
    progress,
)
from proxy.cli.running import OF_A_CONFIGURATION, read_settings
from proxy.cli.servers import JournalFile, ServerClient, of_a_server, of_sessions
from proxy.cli.units import AGE


@click.group()
def migrate() -> None:
    """Move sessions from one backend to another."""


@migrate.command("report", short_help="Say how shadows differ from the sessions that serve.")
@click.option("--route", metavar="NAME", help="This route only.")
@of_a_server
def migrate_report(server: ServerClient, route: str | None) -> None:
    """Say how the shadows of routes differ from the sessions that serve.

    Exit status 0: all that could be compared is the same, 1: something differs, or a shadow stopped
    or is not running, 2: it cannot be said.
    """
    from proxy.migration.reporting import ShadowReportOut, lines_of

    server = ServerClient(server.url, server.key, server.as_json, status=2)
    query = {} if route is None else {"route": route}
    answer = server.ask("GET", "/migration/report", query=query)
    if server.as_json:
        print_json(answer)
    found = ShadowReportOut.model_validate(answer)
    if not server.as_json:
        print_lines([clean(line) for line in lines_of(found)])
    wrong = any(one.differing or one.not_driven or not one.running for one in found.routes)
    sys.exit(1 if wrong else 0)


@migrate.command("plan", short_help="Say what sessions used that another backend cannot do.")
@click.option("--from", "source_name", required=True, metavar="BACKEND", help="Where they are.")
@click.option("--to", "target_name", required=True, metavar="BACKEND", help="Where they are to be.")
@OF_A_CONFIGURATION
@of_sessions
def migrate_plan(
    source: ServerClient | JournalFile, source_name: str, target_name: str, config: Path | None
) -> None:
    """Say what the sessions on a backend used that another backend cannot do.

    First comes whether that one is ready: it answers, takes the credential and speaks its dialect.
    With --journal it reads the sessions of everybody, the backends are those of --config, and none
    is asked. Exit status 0: nothing is impossible there; 1: something is, or it is not ready.
    """
    from proxy.migration import planning

    source = dataclasses.replace(source, status=2)
    with progress(shown=printing.on_terminal() and not source.as_json) as told:
        lines = planning.Lines(told)
        if isinstance(source, JournalFile):
            settings = read_settings(config, resolved=False)
            source.ask(
                lambda journal: planning.planned(journal, settings, source_name, target_name, lines)
            )
        else:
            query = URL.build(query={"from": source_name, "to": target_name})
            source.copy(f"/migration/plan{query}", lines)
    plan = lines.plan
    if plan is None:
        fail("the plan broke off in the middle; try again.", status=2)
    if source.as_json:
        click.echo(orjson.dumps(plan))
    else:
        _print_plan(plan)
    sys.exit(1 if plan["impossible"] or plan["check"]["ready"] == "no" else 0)


def _of_moves(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the sessions that it moves, and how."""
    options = (
        click.argument("names", metavar="SESSION...", nargs=-1),
        click.option("--all", "everything", is_flag=True, help="All sessions that are there."),
        click.option("--dry-run", is_flag=True, help="Say what would move, and move nothing."),
        click.option(
            "--wait",
            type=AGE,
            default="0s",
            metavar="TIME",
            help="How long sessions are waited for that are at work, like `10m`.",
        ),
        of_a_server,
    )
    for option in reversed(options):
        command = option(command)
    return command


@migrate.command("move")
@click.option("--from", "source_name", required=True, metavar="BACKEND", help="Where they are.")
@click.option("--to", "target_name", required=True, metavar="BACKEND", help="Where they go on.")
@_of_moves
def migrate_move(
    server: ServerClient,
    names: tuple[str, ...],
    source_name: str,
    target_name: str,
    *,
    everything: bool,
    dry_run: bool,
    wait: float,
) -> None:
    """Let sessions go on at another backend, each between two turns.

    What was said goes over with the next message. Frontends notice nothing. Nothing moves to a
    backend that does not answer, refuses the credential or speaks another dialect.

    First 10 sessions move, then 100, then all others. It stops once more turns fail than succeed
    at the new backend. Exit status 1: not all have moved; the last lines are the commands that go
    on and that take it back.
    """
    from proxy.cli import moves

    _one_of(names, everything=everything)
    order = moves.to_move(
        server, ids_of(server, names), source_name, target_name, dry_run=dry_run, wait=wait
    )
    moves.run(server, order)


@migrate.command(
    "rollback", short_help="Let sessions go on where they were before they last moved."
)
@click.option("--from", "source_name", metavar="BACKEND", help="Where they are; for --all.")
@_of_moves
def migrate_rollback(
    server: ServerClient,
    names: tuple[str, ...],
    source_name: str | None,
    *,
    everything: bool,
    dry_run: bool,
    wait: float,
) -> None:
    """Let sessions go on where they were before they last moved, in the conversation that they have
    there. What was said since goes over with the next message.

    With --all those that began at BACKEND stay. Exit status 1: not all went back; the last line is
    the command that goes on.
    """
    from proxy.cli import moves

    if everything and source_name is None:
        raise click.UsageError("--all needs --from BACKEND, where the sessions are now")
    _one_of(names, everything=everything)
    order = moves.to_roll_back(
        server, ids_of(server, names), source_name or "", dry_run=dry_run, wait=wait
    )
    moves.run(server, order)


def _one_of(names: tuple[str, ...], *, everything: bool) -> None:
    if not names and not everything:
        raise click.UsageError("name sessions, or give --all")


def _print_plan(plan: JsonObject) -> None:
    from proxy.migration.planning import rows_of, summary_of

    columns = ("verdict", "what", "sessions", "times", "examples", "consequence")
    print_rows(columns, rows_of(plan))
    click.echo(clean(summary_of(plan)), err=True)
