"""The image without a container daemon: what its file says, and its steps in a scratch folder.

`make docker-steps` runs the marked test. Each stage gets a folder that stands for `/`. While it is
in use a stage always lives at the same path, as in a container: virtual environments keep absolute
paths.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.config.settings import ServerSettings
from tests.deployed import block, replaced
from tests.support.ports import free_port
from tests.support.waiting import SOON_S

REPOSITORY = Path(__file__).parent.parent
STOP_SECONDS = 10
"""What `docker stop` waits before it kills."""


@dataclass
class Stage:
    """One FROM of the Dockerfile with the instructions below it, in order."""

    image: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]

    def last(self, instruction: str) -> str:
        return self.all(instruction)[-1]

    def command(self, instruction: str) -> list[str]:
        """Return the JSON form of ENTRYPOINT, CMD, or of the CMD in a HEALTHCHECK."""
        text = self.last(instruction)
        words: list[str] = json.loads(text[text.index("[") :])
        return words


def parse_dockerfile(text: str) -> list[Stage]:
    """Return the stages of a Dockerfile with its instructions in capitals, as we write it."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    stages: list[Stage] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        instruction, rest = line.split(None, 1)
        if instruction == "FROM":
            image, *alias = re.split(r" AS ", rest)
            stages.append(Stage(image.strip(), alias[0].strip() if alias else ""))
        else:
            stages[-1].steps.append((instruction, rest.strip()))
    return stages


STAGES = parse_dockerfile((REPOSITORY / "Dockerfile").read_text())
BUILD, FINAL = STAGES


def python_of(stage: Stage) -> str:
    """Return the minor version of the stage's Python, like `3.11`."""
    match = re.fullmatch(r"python:(3\.\d+)-slim", stage.image)
    assert match, f"{stage.image} is not a slim Python image of a minor version"
    return match[1]


def sources_and_target(copy: str) -> tuple[str, list[str], str]:
    """Return the stage that a COPY names (or an empty string), its sources and its target."""
    words = shlex.split(copy)
    stage = next((word[len("--from=") :] for word in words if word.startswith("--from=")), "")
    *sources, target = (word for word in words if not word.startswith("--"))
    return stage, sources, target


def test_both_stages_have_the_same_python() -> None:
    assert python_of(BUILD) == python_of(FINAL)


def test_the_image_runs_nothing_as_root() -> None:
    assert FINAL.all("RUN") == []
    user, _, group = FINAL.last("USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0
    data = next(copy for copy in FINAL.all("COPY") if copy.endswith("/data"))
    assert f"--chown={user}:{group}" in data


def test_the_exposed_port_is_the_default_one() -> None:
    assert FINAL.last("EXPOSE") == str(ServerSettings().address.port)


def test_the_build_sees_exactly_what_it_copies() -> None:
    copied = {
        source.rstrip("/")
        for copy in BUILD.all("COPY")
        for source in sources_and_target(copy)[1]
        if not sources_and_target(copy)[0]
    }
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    assert copied == {line[1:] for line in lines if line.startswith("!")}
    assert {name for name in copied if not (REPOSITORY / name).exists()} == set()


class Scratch:
    """A folder in which the stages of the Dockerfile are carried out.

    `root` stands for `/` of the stage in use. A finished stage is moved aside, so that a later one
    has only what it copies.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        self.root = folder / "root"
        self._finished = folder / "finished"
        self._finished.mkdir()
        self._bin = folder / "bin"
        self._bin.mkdir(parents=True)
        # The image's python. A wrapper and not a link: from a link venv derives a wrong prefix.
        wrapper = self._bin / "python"
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(str(python))} "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        self.environment: dict[str, str] = {}
        self.cwd = self.root

    def path(self, inside: str) -> Path:
        """Return where the absolute path `inside` of the stage is."""
        return self.root / inside.lstrip("/")

    def text(self, inside: str) -> str:
        """Return `inside` with the Dockerfile's absolute paths moved into the scratch folder."""
        return re.sub(r"(?<![\w./-])/(src|build|opt|wheel|data)\b", rf"{self.root}/\1", inside)

    def carry_out(self, stage: Stage) -> None:
        """Do what the stage says, up to the point where its container would start."""
        self.root.mkdir()
        self.cwd = self.root
        # The path of the base image; sh, mkdir and the like are in the system's folders everywhere.
        self.environment = {"PATH": f"{self._bin}:/usr/local/bin:/usr/bin:/bin"}
        for instruction, rest in stage.steps:
            match instruction:
                case "WORKDIR":
                    self.cwd = self.path(rest)
                    self.cwd.mkdir(parents=True, exist_ok=True)
                case "ENV":
                    for word in shlex.split(rest):
                        name, _, value = word.partition("=")
                        value = value.replace("$PATH", self.environment["PATH"])
                        self.environment[name] = self.text(value)
                case "COPY":
                    self._copy(rest)
                case "RUN":
                    self._run(rest)
        if stage.name:
            self.root.rename(self._finished / stage.name)

    def _copy(self, rest: str) -> None:
        stage, sources, target = sources_and_target(rest)
        for source in sources:
            origin = (self._finished / stage if stage else REPOSITORY) / source.lstrip("/")
            goal = self.path(target) if target.startswith("/") else self.cwd / target
            if origin.is_dir():
                ignored = shutil.ignore_patterns("__pycache__") if not stage else None
                shutil.copytree(origin, goal, symlinks=True, ignore=ignored, dirs_exist_ok=True)
            else:
                goal.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, goal)

    def _run(self, command: str) -> None:
        # The machine may say where its package index is; nothing else of it is in the image.
        machine = {
            name: value
            for name, value in os.environ.items()
            if name.startswith("PIP_") or name in {"HOME", "SSL_CERT_FILE", "TMPDIR"}
        }
        done = subprocess.run(
            ["/bin/sh", "-c", self.text(command)],
            cwd=self.cwd,
            env=machine | self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"RUN {command}\n{done.stdout}\n{done.stderr}"

    def files_outside(self, folder: str) -> set[str]:
        """Return the files of the stage that are not below `folder`."""
        kept = self.path(folder)
        return {
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if not path.is_relative_to(kept)
        }


def interpreter(version: str) -> Path:
    """Return a Python of that minor version outside of virtual environments."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = (
        str(Path(sys.base_prefix) / "bin" / f"python{version}")
        if own == version
        else shutil.which(f"python{version}")
    )
    if found is None:
        pytest.fail(f"the steps of the Dockerfile need Python {version}, the one of its image")
    return Path(found)


@pytest.mark.docker
@pytest.mark.timeout(1200)  # of an installation that hangs: no machine and no network is that slow
def test_the_steps_of_the_dockerfile_make_a_proxy_that_starts_and_stops(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path, interpreter(python_of(FINAL)))
    for stage in STAGES:
        scratch.carry_out(stage)
    before = scratch.files_outside("/data")
    assert list(scratch.path("/data").iterdir()) == []

    command = [*FINAL.command("ENTRYPOINT"), *FINAL.command("CMD")]
    program = shutil.which(command[0], path=scratch.environment["PATH"])
    assert program
    assert Path(program).is_relative_to(scratch.root)
    # The files of the page, mounted as it says; a free port instead of the image's, which may be in
    # use on this machine.
    digest = hashlib.sha256(b"key").hexdigest()
    configuration = scratch.path("/data/dragoman.toml")
    configuration.write_text(replaced(block("toml"), ("PUT THE HASH HERE", digest)))
    scratch.environment |= {
        "DRAGOMAN_SERVER__LISTEN": f"0.0.0.0:{free_port()}",
        "ENGINE_KEY": "what-the-engine-wants",
    }
    log = tmp_path / "stderr"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [program, *command[1:]],
            cwd=scratch.cwd,
            env=scratch.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        try:
            assert announced_port(server), log.read_text()
            assert health(scratch) == 0, log.read_text()
            server.send_signal(signal.SIGTERM)
            assert server.wait(STOP_SECONDS) == 0, log.read_text()
        finally:
            server.kill()
    assert health(scratch) == 1
    assert scratch.files_outside("/data") == before


def announced_port(server: subprocess.Popen[str]) -> str:
    """Return the port in the line that says the server is ready, or an empty string at its end."""
    assert server.stdout
    for line in server.stdout:
        if match := re.search(r"listening on http://[^\s:]+:(\d+)", line):
            return match[1]
    return ""


def health(scratch: Scratch) -> int:
    """Run the health check of the image and return its exit code."""
    program, *arguments = FINAL.command("HEALTHCHECK")
    found = shutil.which(program, path=scratch.environment["PATH"])
    assert found
    assert Path(found).is_relative_to(scratch.root)
    return subprocess.run(
        [found, *arguments],
        cwd=scratch.cwd,
        env=scratch.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SOON_S,
        check=False,
    ).returncode
