"""The command `dragoman`, and the only package that prints.

The commands that serve run until they are told to stop. The others are clients of the control API
of a running server; those for sessions work on a journal's file as well. What a program reads goes
to stdout, everything else to stderr. Exit status: 0 done, 1 it could not be done or a check failed,
2 the command line or the configuration is wrong.

A command's module is imported when it is run: `--help`, `--version` and completion need none.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from proxy import __version__
from proxy.base.process import no_collector

_COMMANDS = {
    "answer": ("interactions", "answer", "Answer what an agent waits for."),
    "backup": ("backup", "backup", "Copy a journal to FILE, also while a server writes it."),
    "check": ("check", "check", "Check whether the backends of a configuration can be used."),
    "demo": ("demo", "demo", "Serve scripted backends without any configuration."),
    "diff": ("diff", "diff", "Compare two sessions by meaning."),
    "health": ("serving", "health", "Ask the server of a configuration whether it lives."),
    "hook": ("hook", "hook", "Gate and watch a Hermes Agent by its hooks."),
    "init": ("init", "init", "Write a configuration with comments, to begin with."),
    "interactions": ("interactions", "interactions", "Look at what agents wait for."),
    "journal": ("journal", "journal", "Carry a journal to another database."),
    "matrix": ("matrix", "matrix", "Print how faithfully each pair of dialects crosses."),
    "migrate": ("migrate", "migrate", "Move sessions from one backend to another."),
    "record": ("record", "record", "Record a backend's conversations until SIGINT or SIGTERM."),
    "replay": ("replay", "replay", "Replay a recorded session."),
    "request": ("request", "request", "Make one HTTP request and print the body of the answer."),
    "routes": ("routes", "routes", "Look at routes, and set where their new sessions go."),
    "scripted": ("scripted", "scripted", "Serve a scripted agent server of a dialect."),
    "serve": (
        "serving",
        "serve",
        "Serve until SIGINT or SIGTERM; SIGHUP reloads the configuration.",
    ),
    "sessions": ("sessions", "sessions", "Look at sessions, export and delete them."),
    "translate": ("translate", "translate", "Print a recorded body in another dialect."),
    "verify": ("diff", "verify", "Compare captures with what they give today."),
}
"""Of each command its module here, its name there, and what the help says of it."""


class CommandGroup(click.Group):
    """The commands of a table. Those in `commands` have a name and a summary; that is all until one
    is run."""

    def __init__(self, *, table: Mapping[str, tuple[str, str, str]], **attributes: Any) -> None:
        commands = [click.Command(name, short_help=about) for name, (_, _, about) in table.items()]
        super().__init__(commands=commands, **attributes)
        self._table = table

    def loaded(self, name: str) -> click.Command:
        """Return a command as it is run."""
        module, attribute, _ = self._table[name]
        with no_collector():
            command = getattr(importlib.import_module(f".{module}", __package__), attribute)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remember the words that can be options, also where they mean nothing."""
        ctx.meta[__name__] = args[: args.index("--")] if "--" in args else [*args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run what was asked for; where that means nothing, say so as JSON to who asked for it."""
        words: list[str] = ctx.meta[__name__]
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if "--json" in words and _has_json(error.ctx):
                raise _JsonUsageError(error) from None
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name of the command that `args` begin with, itself, and the rest of them."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if name is None or command is None else self.loaded(name), rest


class _JsonUsageError(click.ClickException):
    """A command line that means nothing, told to a program."""

    exit_code = click.UsageError.exit_code

    def __init__(self, error: click.UsageError) -> None:
        super().__init__(error.format_message())

    def show(self, file: Any = None) -> None:
        """Print it as other errors are."""
        from proxy.cli.printing import print_error

        print_error(self.message, "usage")


def _has_json(ctx: click.Context | None) -> bool:
    return ctx is not None and any(param.name == "as_json" for param in ctx.command.params)


@click.group(
    cls=CommandGroup,
    table=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="dragoman")
def main() -> None:
    """Any agent frontend talks to any agent backend, through one durable event log."""
