"""`dragoman interactions` and `answer`: what agents wait for."""

from __future__ import annotations

import asyncio
import sys
from typing import NoReturn

import click
import orjson

from adapters.wire.url_paths import path_of
from proxy.cli import printing
from proxy.cli.asked import blocks, cut
from proxy.cli.printing import JsonObject, cell, clean, fail, print_json, print_rows
from proxy.cli.servers import ServerClient, of_a_server, session_path
from proxy.cli.waiting import AnswerWait, interrupted


@click.group()
def interactions() -> None:
    """Look at what agents wait for."""


@interactions.command("list", short_help="List the open requests of your sessions.")
@of_a_server
def interactions_list(server: ServerClient) -> None:
    """List the open requests of your sessions: approvals, questions, secrets and the like.

    On a terminal each has the commands that answer it.
    """
    answer = server.ask("GET", "/interactions")
    if server.as_json:
        print_json(answer)
        return
    if printing.on_terminal():
        if answer["interactions"]:
            click.echo(blocks(answer["interactions"], server.url))
        else:
            click.echo("Nothing is open.", err=True)
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
@click.argument("session", required=False)
@click.argument("request", required=False)
@click.option("--allow", is_flag=True, help="Approve it, once.")
@click.option("--deny", is_flag=True, help="Refuse it.")
@click.option("--option", "options", multiple=True, metavar="ID", help="Choose this option.")
@click.option("--text", help="Answer in words; may stand beside --option.")
@click.option("--skip", is_flag=True, help="Leave the question unanswered and let the agent go on.")
@click.option(
    "--sealed", is_flag=True, help="Answer with a secret: asked for, or read from a pipe."
)
@click.option("--reason", help="Why, for the agent; with --allow or --deny.")
@click.option(
    "--wait/--no-wait",
    default=None,
    help="Say what comes of it, until the agent ends or asks again.  [default: on a terminal]",
)
@of_a_server
def answer(
    server: ServerClient,
    session: str | None,
    request: str | None,
    allow: bool,
    deny: bool,
    options: tuple[str, ...],
    text: str | None,
    skip: bool,
    sealed: bool,
    reason: str | None,
    wait: bool | None,
) -> None:
    """Answer what an agent waits for: REQUEST of SESSION, as `interactions list` prints them.

    Without REQUEST it is what SESSION asks, without SESSION what any session asks, if it is one
    thing. REQUEST may be shortened as long as it is clear. With --wait the exit status is 1 where
    the answer was not taken; ^C leaves the answer and is 130.
    """
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
    if wait is None:
        wait = printing.on_terminal() and not server.as_json
    if request is None:
        session, request = _only_one(server, session)
    assert session is not None
    if sealed:
        body["sealed"] = _sealed_value()
    before = server.ask_of("GET", session) if wait else None
    if before is not None:
        session = str(before["id"])
    request, given = _submit(server, session, request, body)
    if before is not None:
        _wait(server, before, request, given)
    elif server.as_json:
        print_json(given)
    else:
        print_rows(("status", "command"), [[given.get("status"), given.get("command_id")]])


def _open(server: ServerClient, session: str | None) -> list[JsonObject]:
    """Return what is open and not answered yet."""
    if session is None:
        found = server.ask("GET", "/interactions")["interactions"]
    else:
        found = server.ask_of("GET", session)["open_interactions"]
    return [one for one in found if not one.get("claimed")]


def _only_one(server: ServerClient, session: str | None) -> tuple[str, str]:
    """Return the session and the id of the only open request."""
    found = _open(server, session)
    where = "" if session is None else f" in session `{clean(session)}`"
    if not found:
        fail(f"nothing is open{where}.", code="unknown_interaction")
    if len(found) > 1:
        _ambiguous(server, found, f"{len(found)} requests are open{where}; say which.")
    (one,) = found
    if not server.as_json:
        # It may be another than the person thinks of: they see which it was.
        prompt = cut(str(one.get("prompt") or ""), 200)
        click.echo(f"{cell(one['session_id'])}: {prompt}", err=True)
    return str(one["session_id"]), str(one["request_id"])


def _ambiguous(server: ServerClient, found: list[JsonObject], message: str) -> NoReturn:
    if not server.as_json:
        click.echo(blocks(found, server.url) + "\n", err=True)
    fail(message, code="invalid_request")


def _submit(
    server: ServerClient, session: str, request: str, body: JsonObject
) -> tuple[str, JsonObject]:
    """Answer a request, and return its id; names that the server does not know are looked up: the
    session among all, the request among the open ones."""

    def submit() -> tuple[int, JsonObject]:
        path = path_of(session_path(session), "interactions", request)
        return server.attempt("POST", path, body=body)

    status, given = submit()
    if status == 404 and _code(given) == "not_found":
        id = server.other_id(session)
        if id is not None:
            session = id
            status, given = submit()
    if status == 404 and _code(given) == "unknown_interaction":
        found = [
            one for one in _open(server, session) if str(one["request_id"]).startswith(request)
        ]
        if len(found) > 1:
            _ambiguous(server, found, f"`{clean(request)}` is not clear; say which.")
        if found:
            request = str(found[0]["request_id"])
            status, given = submit()
    return request, server.read(status, orjson.dumps(given))


def _code(answer: JsonObject) -> object:
    error = answer.get("error")
    return error.get("code") if isinstance(error, dict) else None


def _wait(server: ServerClient, before: JsonObject, request: str, given: JsonObject) -> None:
    """Print what comes of an answer that is given."""
    others = {
        str(one["request_id"]): one
        for one in before["open_interactions"]
        if one["request_id"] != request and not one.get("claimed")
    }
    waiting = AnswerWait(server, str(before["id"]), request, str(given.get("command_id")), others)
    try:
        asyncio.run(waiting.wait(int(before["last_seq"])))
    except KeyboardInterrupt:
        interrupted()
    if waiting.outcome != "taken":
        fail(waiting.sentence(), code=waiting.outcome)
    if server.as_json:
        came = {"outcome": waiting.outcome, "said": waiting.said, "end": waiting.end}
        print_json({**given, **came, "asks": list(waiting.others.values())})


def _sealed_value() -> str:
    """Read a secret from the terminal without echo, or the first line of a pipe."""
    if sys.stdin.isatty():
        return str(click.prompt("Secret", hide_input=True, err=True))
    value = sys.stdin.readline().rstrip("\r\n")
    if not value:
        raise click.UsageError("--sealed reads the secret from stdin, and there is none")
    return value
