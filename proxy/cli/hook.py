"""`dragoman hook`: what Hermes runs as a shell hook, and the commands that set it up.

Hermes starts it at each event, and a tool waits for it: it loads nothing that it does not need.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proxy.cli import CommandGroup

if TYPE_CHECKING:
    from proxy.hooks.delivery import Directive


_COMMANDS = {
    "install": ("hook_setup", "install", "Install the hooks in a home of Hermes Agent."),
    "remove": ("hook_setup", "remove", "Take the hooks out of a home of Hermes Agent."),
    "status": ("hook_setup", "status", "Look at what is installed, and prove that it works."),
}
"""Of each command that sets hooks up its module, its name there, and what the help says of it."""


@click.group(
    cls=CommandGroup,
    table=_COMMANDS,
    invoke_without_command=True,
    short_help="Gate and watch a Hermes Agent by its hooks.",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    help="The home of Hermes; by default $HERMES_HOME or ~/.hermes.",
)
@click.pass_context
def hook(context: click.Context, home: Path | None) -> None:
    """Gate and watch a Hermes Agent by its hooks.

    Without a command it is a shell hook: it reads an event from stdin, sends it to the URL in
    `dragoman.json` in the home of Hermes, waits for the decision about a tool call, and prints what
    Hermes is to do. Its exit status is always 0.
    """
    if context.invoked_subcommand is None:
        click.echo(json.dumps(_answer(home or _default_home())))


def _default_home() -> Path:
    return Path(os.environ.get("HERMES_HOME", "").strip() or Path.home() / ".hermes")


def _answer(home: Path) -> Directive:
    """Return what the hook answers; if anything fails, a block."""
    try:
        from proxy.hooks.delivery import MOST_STDIN, answer_hook

        raw = sys.stdin.buffer.read(MOST_STDIN + 1)
        return answer_hook(raw, home, note=_note)
    except Exception as error:  # noqa: BLE001 - Hermes runs the tool unless this is answered
        return {
            "action": "block",
            "message": f"Not allowed by Dragoman: its hook failed: {error!r}",
        }


def _note(line: str) -> None:
    click.echo(f"dragoman: {line}", err=True)
