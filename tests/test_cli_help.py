"""The help of the command line: what it shows on a terminal, and what it does not load for that."""

from __future__ import annotations

import os
import re
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
from tests.support.each import each

REPOSITORY = Path(__file__).parent.parent
HEAVY = {"aiohttp", "pydantic", "rich", "yaml", "adapters.herm", "adapters.eve", "adapters.engine"}
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


@each("name", sorted(main.commands))
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


SHELLS = {
    "bash": "complete -o nosort -F _dragoman_completion dragoman",
    "zsh": "compdef _dragoman_completion dragoman",
    "fish": "complete --no-files --command dragoman",
}
PAGE = (REPOSITORY / "docs" / "cli.md").read_text("utf-8")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_of_a_shell_is_printed_as_the_documentation_says(shell: str) -> None:
    assert f"{shell}_source" in PAGE
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=REPOSITORY,
        env={**os.environ, "_DRAGOMAN_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert SHELLS[shell] in done.stdout
    assert HEAVY & set(done.stderr.split()) == set()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["se"], ["serve", "sessions"]),
        (["init", "--f"], ["--force"]),
        (["translate", "--fail-on", ""], ["dropped", "approximated"]),
    ],
)
def test_bash_completes_after_the_line_of_the_documentation(
    tmp_path: Path, words: list[str], found: list[str]
) -> None:
    (line,) = re.findall(r'`(eval "\$\(_DRAGOMAN_COMPLETE=bash_source dragoman\)")`', PAGE)
    program = tmp_path / "dragoman"
    program.write_text(
        f"#!{sys.executable}\nfrom dragoman.__main__ import main\nmain(prog_name='dragoman')\n"
    )
    program.chmod(0o755)
    given = " ".join(f"'{word}'" for word in ["dragoman", *words])
    typed = f"COMP_WORDS=({given}); COMP_CWORD={len(words)}; _dragoman_completion dragoman"
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
    }
    done = subprocess.run(
        ["bash", "-c", f'{line}\n{typed}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == found, done.stderr
