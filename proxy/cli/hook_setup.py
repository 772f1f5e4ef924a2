"""`dragoman hook install`, `status` and `remove`: the hooks in a home of Hermes Agent."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import click

from proxy.cli import printing
from proxy.cli.printing import clean, fail, print_json, print_lines, print_rows
from proxy.hooks.setup.homes import WAYS, HermesHome, InstallRefused, Way
from proxy.hooks.setup.install import (
    InstallOptions,
    InstallPlan,
    hook_command,
    plan_install,
    plan_removal,
)
from proxy.hooks.setup.status import ProofOptions, read_status

Command = Callable[..., Any]


def _of_a_home(command: Command) -> Command:
    option = click.option(
        "--home",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="The home of Hermes. Without it $HERMES_HOME, else ~/.hermes.",
    )
    return option(command)


def _of_ways(about: str) -> Callable[[Command], Command]:
    return click.option("--way", "ways", multiple=True, type=click.Choice(WAYS), help=about)


_YES = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


@click.command(short_help="Install the hooks in a home of Hermes Agent.")
@_of_ways(
    "How events come: by shell hooks (the default), a plugin or a gateway's hook; repeatable."
)
@_of_a_home
@click.option("--url", help="Where events go. [default: http://127.0.0.1:8787/from/hermes-agent]")
@click.option(
    "--gate",
    metavar="REGEX",
    help="The tools that wait for a decision, as a regular expression over the whole name; '' for "
    "none. [default: .*]",
)
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.IntRange(min=1),
    help="How long a tool waits for a decision; shell hooks at most 285. [default: 240]",
)
@click.option(
    "--on-doubt",
    type=click.Choice(["block", "allow"]),
    help="What becomes of a tool without a decision. [default: block]",
)
@click.option(
    "--secret-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file with the secret that signs what is sent.",
)
@_YES
def install(
    ways: Sequence[str],
    home: Path | None,
    url: str | None,
    gate: str | None,
    wait: int | None,
    on_doubt: str | None,
    secret_file: Path | None,
    yes: bool,
) -> None:
    """Install the hooks in a home of Hermes Agent.

    Shows what changes and asks. Again with other options it changes those; what is not given stays
    as it is. Other hooks and comments stay.
    """
    secret = None if secret_file is None else _secret(secret_file)
    asked = cast("Sequence[Way]", ways or ("shell",))
    options = InstallOptions(asked, url, gate, wait, on_doubt, secret)
    found = _home(home)
    plan = _planned(lambda: plan_install(found, options, now=printing.now()))
    if _made(plan, "Make this change?", yes=yes):
        click.echo("installed; restart Hermes where it runs", err=True)
        click.echo("see whether it works with `dragoman hook status`", err=True)


@click.command(short_help="Take the hooks out of a home of Hermes Agent.")
@_of_ways("What is taken out; repeatable. Without it everything.")
@_of_a_home
@_YES
def remove(ways: Sequence[str], home: Path | None, yes: bool) -> None:
    """Take the hooks out of a home of Hermes Agent.

    Shows what changes and asks. What is not ours stays.
    """
    asked = cast("Sequence[Way]", ways or WAYS)
    found = _home(home)
    plan = _planned(lambda: plan_removal(found, asked, now=printing.now()))
    if _made(plan, "Make this change?", yes=yes):
        click.echo("removed; restart Hermes where it runs", err=True)


@click.command(short_help="Look at what is installed, and prove that it works.")
@_of_a_home
@click.option("--hermes", metavar="PATH", help="The program `hermes`. Without it the one on PATH.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(home: Path | None, hermes: str | None, as_json: bool) -> None:
    """Look at what is installed, and prove that it works.

    Exits with 1 if something is not right. The proof is that Hermes fires its hooks of
    `pre_tool_call` for a test, also those of others, and gets the answer of the server.
    """
    program = shutil.which(hermes or "hermes")
    if hermes is not None and program is None:
        fail(f"{clean(hermes)} is not a program: name Hermes's own with --hermes PATH.", status=2)
    proof = ProofOptions(nonce=secrets.token_hex(16), hermes=program)
    try:
        found = read_status(_home(home), proof)
    except InstallRefused as error:
        fail(clean(str(error)))
    if as_json:
        print_json(found.as_json())
    else:
        rows = [[one.way, one.what, one.state, one.text] for one in found.findings]
        print_rows(("way", "what is seen", "state", "found"), rows)
    sys.exit(0 if found.is_right else 1)


def _home(given: Path | None) -> HermesHome:
    above = click.get_current_context().parent
    named: Path | None = above.params.get("home") if above is not None else None
    folder = given or named or Path(os.environ.get("HERMES_HOME", "").strip() or "~/.hermes")
    folder = Path(os.path.abspath(folder.expanduser()))  # noqa: PTH100 - links stay as they are named
    if not folder.is_dir():
        fail(
            f"{clean(str(folder))} is not a folder: run `hermes` once, or name its home.", status=2
        )
    return HermesHome(folder, hook_command(_program(sys.argv[0]), folder))


def _program(called: str) -> list[str]:
    """Return how this program is run from anywhere."""
    if Path(called).name == "dragoman":
        found = shutil.which(called)
        if found is not None:
            return [os.path.abspath(found)]  # noqa: PTH100
    return [sys.executable, "-m", __name__.partition(".cli.")[0]]


def _secret(file: Path) -> str:
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not text"
        fail(f"{clean(str(file))} cannot be read: {why}", status=2)
    if not secret:
        fail(f"{clean(str(file))} is empty: write the secret into it.", status=2)
    return secret


def _planned(make: Callable[[], InstallPlan]) -> InstallPlan:
    try:
        return make()
    except InstallRefused as error:
        if error.lines:
            click.echo("\n".join(error.lines))
        fail(clean(str(error)))


def can_ask() -> bool:
    """Tell whether a person reads a question and can answer it."""
    return sys.stdin.isatty() and printing.on_terminal()


def _made(plan: InstallPlan, question: str, *, yes: bool) -> bool:
    """Show a plan, ask, and do it; tell whether something changed."""
    if not plan.changes and not plan.folders:
        click.echo("nothing to change", err=True)
        return False
    for change in plan.texts:
        if change.is_made:
            print_lines([clean(line) for line in change.diff()])
    copies = [change for change in plan.copies if change.is_made]
    print_lines(
        [f"{'+' if one.after is not None else '-'} {clean(str(one.path))}" for one in copies]
    )
    if not (yes or can_ask()):
        raise click.UsageError("nothing is changed without a question: add --yes")
    if not yes and not click.confirm(question, err=True):
        fail("nothing was changed.")
    try:
        plan.make()
    except InstallRefused as error:
        fail(clean(str(error)))
    return True
