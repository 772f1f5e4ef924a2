"""`dragoman interactions` and `answer`: what agents wait for."""

from __future__ import annotations

import sys

import click

from adapters.paths import path_of
from proxy.cli.printing import JsonObject, print_json, print_rows
from proxy.cli.servers import Server, of_a_server, session_path


@click.group()
def interactions() -> None:
    """Look at what agents wait for."""


@interactions.command("list", short_help="List the open requests of your sessions.")
@of_a_server
def interactions_list(server: Server) -> None:
    """List the open requests of your sessions: approvals, questions, secrets and the like."""
    answer = server.ask("GET", "/interactions")
    if server.as_json:
        print_json(answer)
        return
    columns = ("session", "request", "kind", "options", "answered", "prompt", "details")
    rows = [
        [
            entry.get("session_id"),
            entry.get("request_id"),
            entry.get("kind"),
            ",".join(str(option.get("id")) for option in entry.get("options") or ()),
            "under way" if entry.get("claimed") else "no",
            entry.get("prompt"),
            entry.get("details"),
        ]
        for entry in answer["interactions"]
    ]
    print_rows(columns, rows)


@click.command(short_help="Answer what an agent waits for.")
@click.argument("session")
@click.argument("request")
@click.option("--allow", is_flag=True, help="Approve it, once.")
@click.option("--deny", is_flag=True, help="Refuse it.")
@click.option("--option", "options", multiple=True, metavar="ID", help="Choose this option.")
@click.option("--text", help="Answer in words; may stand beside --option.")
@click.option("--skip", is_flag=True, help="Leave the question unanswered and let the agent go on.")
@click.option(
    "--sealed", is_flag=True, help="Answer with a secret: asked for, or read from a pipe."
)
@click.option("--reason", help="Why, for the agent; with --allow or --deny.")
@of_a_server
def answer(
    server: Server,
    session: str,
    request: str,
    allow: bool,
    deny: bool,
    options: tuple[str, ...],
    text: str | None,
    skip: bool,
    sealed: bool,
    reason: str | None,
) -> None:
    """Answer what an agent waits for: REQUEST of SESSION, as `interactions list` prints them."""
    words = bool(options) or text is not None
    if [allow, deny, words, skip, sealed].count(True) != 1:
        raise click.UsageError(
            "say one thing: --allow, --deny, --option and/or --text, --skip, or --sealed"
        )
    if reason is not None and not (allow or deny):
        raise click.UsageError("--reason goes with --allow or --deny")
    body: JsonObject = {}
    if allow or deny:
        body["decision"] = "allow" if allow else "deny"
    if reason is not None:
        body["reason"] = reason
    if options:
        body["option_ids"] = list(options)
    if text is not None:
        body["text"] = text
    if skip:
        body["skip"] = True
    if sealed:
        body["sealed"] = _sealed_value()
    path = path_of(session_path(session), "interactions", request)
    given = server.ask("POST", path, body=body)
    if server.as_json:
        print_json(given)
    else:
        print_rows(("status", "command"), [[given.get("status"), given.get("command_id")]])


def _sealed_value() -> str:
    """Read a secret from the terminal without echo, or the first line of a pipe."""
    if sys.stdin.isatty():
        return str(click.prompt("Secret", hide_input=True, err=True))
    value = sys.stdin.readline().rstrip("\r\n")
    if not value:
        raise click.UsageError("--sealed reads the secret from stdin, and there is none")
    return value
