"""`dragoman migrate`: sessions from one backend to another."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
import orjson
from yarl import URL

from adapters.wire.paths import path_of
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
from proxy.cli.servers import JournalFile, Server, of_a_server, of_sessions, session_path
from proxy.cli.units import AGE

MOVE_AGAIN_SECONDS = 1.0
"""How long it is waited before a session that was at work is moved again."""


@click.group()
def migrate() -> None:
    """Move sessions from one backend to another."""


@migrate.command("report", short_help="Say how shadows differ from the sessions that serve.")
@click.option("--route", metavar="NAME", help="This route only.")
@of_a_server
def migrate_report(server: Server, route: str | None) -> None:
    """Say how the shadows of routes differ from the sessions that serve.

    Exit status 0: all that could be compared is the same, 1: something differs or was not driven to
    the end, 2: it cannot be said.
    """
    from proxy.migration.reporting import ShadowReportOut, lines_of

    server = Server(server.url, server.key, server.as_json, status=2)
    query = {} if route is None else {"route": route}
    answer = server.ask("GET", "/migration/report", query=query)
    if server.as_json:
        print_json(answer)
    found = ShadowReportOut.model_validate(answer)
    if not server.as_json:
        print_lines([clean(line) for line in lines_of(found)])
    sys.exit(1 if any(one.differing or one.not_driven for one in found.routes) else 0)


@migrate.command("plan", short_help="Say what sessions used that another backend cannot do.")
@click.option("--from", "source_name", required=True, metavar="BACKEND", help="Where they are.")
@click.option("--to", "target_name", required=True, metavar="BACKEND", help="Where they are to be.")
@OF_A_CONFIGURATION
@of_sessions
def migrate_plan(
    source: Server | JournalFile, source_name: str, target_name: str, config: Path | None
) -> None:
    """Say what the sessions on a backend used that another backend cannot do.

    With --journal it reads the sessions of everybody, and the backends are those of --config. Exit
    status 0: nothing is impossible there; 1: something is.
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
    sys.exit(1 if plan["impossible"] else 0)


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
    server: Server,
    names: tuple[str, ...],
    source_name: str,
    target_name: str,
    *,
    everything: bool,
    dry_run: bool,
    wait: float,
) -> None:
    """Let sessions go on at another backend, each between two turns.

    What was said goes over with the next message. Frontends notice nothing. Exit status 1: some did
    not move; give the command again.
    """
    found = ids_of(server, names) or _movable(server, source_name, everything=everything)
    body = {"from": source_name, "to": target_name, "dry_run": dry_run}
    _move(server, found, "move", body, wait=wait)


@migrate.command(
    "rollback", short_help="Let sessions go on where they were before they last moved."
)
@click.option("--from", "source_name", metavar="BACKEND", help="Where they are; for --all.")
@_of_moves
def migrate_rollback(
    server: Server,
    names: tuple[str, ...],
    source_name: str | None,
    *,
    everything: bool,
    dry_run: bool,
    wait: float,
) -> None:
    """Let sessions go on where they were before they last moved, in the conversation that they have
    there. What was said since goes over with the next message."""
    if everything and source_name is None:
        raise click.UsageError("--all needs --from BACKEND, where the sessions are now")
    found = ids_of(server, names) or _movable(server, source_name or "", everything=everything)
    _move(server, found, "rollback", {"dry_run": dry_run}, wait=wait)


def _movable(server: Server, backend: str, *, everything: bool) -> list[str]:
    """Return the sessions that are on a backend."""
    if not everything:
        raise click.UsageError("name sessions, or give --all")
    found: list[str] = []
    query = {"from": backend, "limit": "1000"}
    while True:
        page = server.ask("GET", "/migration/sessions", query=query)
        found += [str(row["id"]) for row in page["sessions"]]
        if page.get("next") is None:
            return found
        query["before"] = str(page["next"])


def _move(server: Server, names: Sequence[str], how: str, body: JsonObject, *, wait: float) -> None:
    """Move sessions one after the other, those that are at work again and again, and print what
    came of it; exits with 1 where one did not move."""
    answers: dict[str, JsonObject] = {}
    left, until = list(names), time.monotonic() + wait
    with progress(shown=printing.on_terminal() and not server.as_json) as told:
        while True:
            for name in left:
                told("moving", len(answers), len(names))
                status, answers[name] = server.attempt(
                    "POST", path_of(session_path(name), how), body=body
                )
                if status == 401:
                    server.read(status, orjson.dumps(answers[name]))
            left = [name for name in left if _is_busy(answers[name])]
            if not left or time.monotonic() >= until:
                break
            time.sleep(MOVE_AGAIN_SECONDS)
    failed = [name for name in names if "error" in answers[name]]
    if server.as_json:
        print_json({"sessions": [{"id": name, **answers[name]} for name in answers]})
    else:
        columns = ("session", "before", "backend", "status", "goes over")
        dry = bool(body["dry_run"])
        print_rows(columns, [_moved_row(name, answers[name], dry=dry) for name in answers])
        for line in _carried_lines(answers.values()):
            click.echo(clean(line), err=True)
        done = f"{len(names) - len(failed)} of {len(names)}"
        click.echo(f"{done} would move" if dry else f"{done} done", err=True)
    sys.exit(1 if failed else 0)


def _is_busy(answer: JsonObject) -> bool:
    error = answer.get("error")
    return isinstance(error, dict) and error.get("code") == "busy"


def _moved_row(name: str, answer: JsonObject, *, dry: bool) -> list[object]:
    error = answer.get("error")
    if error is not None:
        return [name, None, None, error.get("message"), None]
    there = answer["before"] == answer["backend"]
    status = "there already" if there else "would move" if dry else "moved"
    counts: Counter[str] = Counter()
    for one in answer["history"]:
        counts[one["fidelity"]] += one["count"]
    over = ", ".join(f"{count} {fidelity}" for fidelity, count in sorted(counts.items()))
    return [answer["id"], answer["before"], answer["backend"], status, over or None]


def _carried_lines(answers: Iterable[JsonObject]) -> list[str]:
    """Say of all sessions together what does not go over as it was."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for answer in answers:
        for one in answer.get("history", ()):
            if one["fidelity"] != "exact":
                counts[one["fidelity"], one["what"], one["why"]] += one["count"]
    return [
        f"{fidelity}: {count} {what}: {why}"
        for (fidelity, what, why), count in sorted(counts.items())
    ]


def _print_plan(plan: JsonObject) -> None:
    from proxy.migration.planning import rows_of, summary_of

    columns = ("verdict", "what", "sessions", "times", "examples", "consequence")
    print_rows(columns, rows_of(plan))
    click.echo(clean(summary_of(plan)), err=True)
