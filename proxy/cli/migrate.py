"""`dragoman migrate`: sessions from one backend to another."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import click
import orjson
from yarl import URL

from adapters.wire.errors import ErrorCode
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

EXAMPLES = 3
"""Sessions that are named of those that are refused for one reason."""

_QUOTED = re.compile("`[^`]*`")
"""What differs between the refusals of two sessions for one reason: their ids, and those of what
is open in them."""


@click.group()
def migrate() -> None:
    """Move sessions from one backend to another."""


@migrate.command("report", short_help="Say how shadows differ from the sessions that serve.")
@click.option("--route", metavar="NAME", help="This route only.")
@of_a_server
def migrate_report(server: Server, route: str | None) -> None:
    """Say how the shadows of routes differ from the sessions that serve.

    Exit status 0: all that could be compared is the same, 1: something differs, or a shadow stopped
    or is not running, 2: it cannot be said.
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
    wrong = any(one.differing or one.not_driven or not one.running for one in found.routes)
    sys.exit(1 if wrong else 0)


@migrate.command("plan", short_help="Say what sessions used that another backend cannot do.")
@click.option("--from", "source_name", required=True, metavar="BACKEND", help="Where they are.")
@click.option("--to", "target_name", required=True, metavar="BACKEND", help="Where they are to be.")
@OF_A_CONFIGURATION
@of_sessions
def migrate_plan(
    source: Server | JournalFile, source_name: str, target_name: str, config: Path | None
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

    What was said goes over with the next message. Frontends notice nothing. Nothing moves to a
    backend that does not answer, refuses the credential or speaks another dialect. Exit status 1:
    some did not move; give the command again.
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
        while left:
            for number, name in enumerate(left):
                told("moving", len(answers), len(names))
                answers[name] = _answer(server, name, how, body)
                if how == "move" and _code(answers[name]) == ErrorCode.BACKEND_NOT_READY:
                    # It is the backend of all of them.
                    _stop_if_nothing_moved(answers, answers[name]["error"])
                    answers |= dict.fromkeys(left[number:], answers[name])
                    break
            left = [name for name in left if _code(answers[name]) == ErrorCode.BUSY]
            if not left or time.monotonic() >= until:
                break
            time.sleep(MOVE_AGAIN_SECONDS)
    failed = [name for name in names if "error" in answers[name]]
    if server.as_json:
        print_json({"sessions": [{"id": name, **answers[name]} for name in answers]})
    else:
        _print_moves(answers, len(names), dry=bool(body["dry_run"]))
    sys.exit(1 if failed else 0)


def _answer(server: Server, name: str, how: str, body: JsonObject) -> JsonObject:
    """Return what the server says to the move of a session; exits where it lets nobody in."""
    status, answer = server.attempt("POST", path_of(session_path(name), how), body=body)
    if status == 401:
        server.read(status, orjson.dumps(answer))
    return answer


def _code(answer: JsonObject) -> object:
    error = answer.get("error")
    return error.get("code") if isinstance(error, dict) else None


def _stop_if_nothing_moved(answers: Mapping[str, JsonObject], error: JsonObject) -> None:
    """Exit with why a backend is not ready, unless a session has moved there."""
    if any(answer.get("moved") for answer in answers.values()):
        return
    fail(f"{clean(str(error['message']))} Nothing has moved.", code=error["code"])


def _print_moves(answers: Mapping[str, JsonObject], count: int, *, dry: bool) -> None:
    """Print a row for each session that moved, and one for all that are refused for one reason."""
    columns = ("session", "before", "backend", "status", "goes over")
    rows: list[list[object]] = []
    refused: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, answer in answers.items():
        if "error" in answer:
            why = str(answer["error"].get("message"))
            refused[_QUOTED.sub("`…`", why)][name] = why
        else:
            rows.append(_moved_row(answer, dry=dry))
    print_rows(columns, [*rows, *(_refused_row(why, of) for why, of in refused.items())])
    notices = (notice for one in answers.values() for notice in one.get("notices", ()))
    for line in (*dict.fromkeys(notices), *_carried_lines(answers.values())):
        click.echo(clean(line), err=True)
    done = f"{len(rows)} of {count}"
    click.echo(f"{done} would move" if dry else f"{done} done", err=True)


def _moved_row(answer: JsonObject, *, dry: bool) -> list[object]:
    there = answer["before"] == answer["backend"]
    status = "there already" if there else "would move" if dry else "moved"
    counts: Counter[str] = Counter()
    for one in answer["history"]:
        counts[one["fidelity"]] += one["count"]
    over = ", ".join(f"{count} {fidelity}" for fidelity, count in sorted(counts.items()))
    return [answer["id"], answer["before"], answer["backend"], status, over or None]


def _refused_row(alike: str, whys: Mapping[str, str]) -> list[object]:
    """Return the row of sessions whose refusals are alike but for what is quoted in them."""
    names, texts = list(whys), set(whys.values())
    if len(names) == 1:
        return [names[0], None, None, whys[names[0]], None]
    some = ", ".join([*names[:EXAMPLES], *(["…"] if len(names) > EXAMPLES else [])])
    why = alike if len(texts) > 1 else texts.pop()
    return [f"{len(names)} sessions", None, None, f"{why} ({some})", None]


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
