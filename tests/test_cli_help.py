"""The help of the command line: what it shows on a terminal, and what it does not load for that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from proxy import __version__
from proxy.cli import main

REPOSITORY = Path(__file__).parent.parent
HEAVY = {"aiohttp", "pydantic", "rich", "adapters.herm", "adapters.eve", "adapters.engine"}
COLUMNS = 80

RUN = """
import sys
from dragoman.__main__ import main
try:
    main(sys.argv[1:], prog_name="dragoman")
finally:
    print(*sys.modules, file=sys.stderr)
"""


def groups() -> Iterator[tuple[tuple[str, ...], click.Group]]:
    """Yield the words of each group, and itself."""
    assert isinstance(main, click.Group)
    yield (), main
    for name in main.commands:
        command = main.loaded(name)
        if isinstance(command, click.Group):
            yield (name,), command


@pytest.mark.parametrize("words", [["--help"], ["--version"], []])
def test_what_is_known_of_all_commands_loads_none(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    *said, loaded = (done.stdout + done.stderr).splitlines()
    assert said[0].startswith("Usage: dragoman " if words != ["--version"] else "dragoman, version")
    assert "proxy.cli" in loaded.split()
    assert HEAVY & set(loaded.split()) == set()


def test_the_version_is_that_of_the_program() -> None:
    done = CliRunner().invoke(main, ["--version"])
    assert done.stdout == f"dragoman, version {__version__}\n"


@pytest.mark.parametrize("name", sorted(main.commands))
def test_a_command_says_of_itself_what_the_help_says_of_it(name: str) -> None:
    loaded = main.loaded(name)
    assert loaded.name == name
    assert loaded.get_short_help_str(COLUMNS) == main.commands[name].get_short_help_str(COLUMNS)


@pytest.mark.parametrize(("words", "group"), list(groups()))
def test_each_command_has_a_line_of_the_help(words: tuple[str, ...], group: click.Group) -> None:
    done = CliRunner().invoke(main, [*words, "--help"], terminal_width=COLUMNS)
    assert done.exit_code == 0, done.output
    _, _, commands = done.stdout.partition("\nCommands:\n")
    assert "..." not in commands
    lines = [line.split(maxsplit=1) for line in commands.splitlines()]
    assert [name for name, _ in lines] == sorted(group.commands)
    assert all(about.endswith(".") for _, about in lines)


class Completion(ShellComplete):
    """Completes as a shell does."""

    name = "test"
    source_template = ""

    def __init__(self) -> None:
        """Complete what follows `dragoman`."""
        super().__init__(main, {}, "dragoman", "_DRAGOMAN_COMPLETE")


@pytest.mark.parametrize(
    ("args", "incomplete", "found"),
    [
        ([], "se", ["serve", "sessions"]),
        (["sessions"], "ex", ["export"]),
        (["serve"], "--c", ["--config"]),
        (["migrate", "move"], "--f", ["--from"]),
        (["nothing"], "", sorted(main.commands)),
    ],
)
def test_a_shell_completes_commands_and_options(
    args: list[str], incomplete: str, found: list[str]
) -> None:
    assert [item.value for item in Completion().get_completions(args, incomplete)] == found


def test_a_command_that_is_not_there_is_told_with_one_like_it() -> None:
    done = CliRunner().invoke(main, ["session"])
    assert done.exit_code == 2
    assert "No such command 'session'" in done.stderr
    assert "'sessions'" in done.stderr
