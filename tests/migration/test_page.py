"""The page about migration is followed, command by command, as it is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.ports import HOST, free_port
from tests.support.waiting import SOON_S

pytestmark = pytest.mark.pages

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


class Afternoon:
    """A machine on which the page is followed. What it names by a port has another one here."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._ports = {"3001": free_port(), "3002": free_port(), "8787": free_port()}
        (folder / "bin").mkdir()
        program = folder / "bin" / "dragoman"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dragoman "$@"\n')
        program.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "DRAGOMAN_URL": f"http://{HOST}:{self._ports['8787']}",
        }
        self._said = ""

    def at_its_ports(self, text: str) -> str:
        for port, ours in self._ports.items():
            text = text.replace(f":{port}", f":{ours}").replace(f"--port {port}", f"--port {ours}")
        return text

    @contextmanager
    def running(self, command: str, folder: Path) -> Iterator[None]:
        """Run a server."""
        with subprocess.Popen(
            f"exec {self.at_its_ports(command)}",
            shell=True,
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as server:
            try:
                assert server.stdout
                assert "listening on" in server.stdout.readline()
                yield
            finally:
                server.terminate()

    def start(self, command: str, folder: Path | None = None) -> None:
        self._stack.enter_context(self.running(command, folder or self.folder))

    def do(self, commands: str, *, status: int = 0) -> str:
        """Do commands in the shell in which all before were done; return what the last ones
        print."""
        # What was said is said once: its variables are what later commands need.
        script = f"{self._said}\n{self.at_its_ports(commands)}"
        # As long as the machine needs, and not three seconds.
        script = script.replace("sleep 3", "rest")
        done = subprocess.run(
            ["/bin/sh", "-c", f"{REST}\n{script}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SOON_S,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def keep(self, commands: str) -> None:
        """Let later commands know what these have set."""
        self._said += self.at_its_ports(commands) + "\n"

    def wait_for(self, commands: str, expected: str) -> str:
        """Do commands until they print what is expected."""
        for _ in range(600):
            said = self.do(f"{commands.strip()} || true")
            if expected in said:
                return said
        raise AssertionError(said)


REST = """rest() {
  until [ -z "$(dragoman sessions list --state running)" ]; do sleep 0.05; done
}"""


@pytest.fixture
def afternoon(tmp_path: Path) -> Iterator[Afternoon]:
    with ExitStack() as stack:
        yield Afternoon(tmp_path, stack)


def test_every_step_works_and_can_be_taken_back(afternoon: Afternoon) -> None:
    (config,) = blocks("toml")
    old, new, serve, begin, report, plan, weights, reset, moving, *more = blocks("sh")
    asked, back, export, imports, delete = more
    address = f'[server]\nlisten = "{HOST}:8787"\n'
    (afternoon.folder / "dragoman.toml").write_text(afternoon.at_its_ports(address + config))
    for server in (old, new, serve):
        afternoon.start(server.strip())
    first = afternoon.do(begin + "echo $SESSION")
    *heard, session = first.strip().splitlines()
    assert "Rex" in heard[-1]
    assert '"message.completed"' in heard[-1]
    functions, _ = begin.split("SESSION=", 1)
    afternoon.keep(f"{functions}SESSION={session}\n")

    # The shadow lags behind.
    compared = afternoon.wait_for(report, "1 compared, 1 the same")
    assert "route support, shadow trial" in compared
    assert "nothing is impossible" in afternoon.do(plan)
    assert "new\tengine\t10\t10.0%\tset" in afternoon.do(weights)
    assert "configured" in afternoon.do(reset + "dragoman routes list")

    would, moved = afternoon.do(moving).split("would move", 1)
    assert session in would
    assert "\tmoved\t" in moved
    answer = afternoon.do(asked)
    assert "User: My dog is called Rex." in answer
    again = afternoon.do(back)
    assert "What is my dog called?" in again
    assert "(turn 2)" in again
    # And to and fro once more.
    assert "\tmoved\t" in afternoon.do(moving)
    assert "And what did I ask?" in afternoon.do(asked)
    assert "\tmoved\t" in afternoon.do(back)

    export_done = afternoon.do(export)
    assert session in export_done
    other = afternoon.folder / "other"
    other.mkdir()
    port = free_port()
    table = (afternoon.folder / "dragoman.toml").read_text()
    ours = afternoon.at_its_ports(":8787")
    (other / "dragoman.toml").write_text(table.replace(ours, f":{port}"))
    afternoon.start(serve.strip(), other)
    there = f"DRAGOMAN_URL=http://{HOST}:{port}; export DRAGOMAN_URL\n"
    assert session in afternoon.do(there + imports)
    assert session in afternoon.do(f"{there}dragoman sessions show {session} --json")
    said = afternoon.do(
        f"{there}EVE=http://{HOST}:{port}/as/eve/to/support/eve/v1/session\n{asked}"
    )
    assert "What is my dog called?" in said
    # A terminal would ask.
    assert session in afternoon.do(delete.replace("--local", "--local --yes"))
    left = json.loads(afternoon.do("dragoman sessions list --json"))
    assert left["sessions"] == []
