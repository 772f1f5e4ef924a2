"""The pytest plugin in `proxy/tools/pytest_plugin`, its example, and the page about both.

`make plugin-steps` runs the marked test. It installs Dragoman and the plugin from their wheels,
each into an environment of its own, and follows the page.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy import __version__
from tests.release import PLUGIN, build
from tests.support.ports import free_port

pytestmark = pytest.mark.pages

REPOSITORY = Path(__file__).parent.parent
EXAMPLE = REPOSITORY / "docs" / "examples" / "regression-tests"
PAGE = (REPOSITORY / "docs" / "regression-tests.md").read_text(encoding="utf-8")
MODULE = PLUGIN / "pytest_dragoman.py"

SECONDS = 240
"""What a run of tests may take on a slow machine."""


class Project:
    """A folder with tests, and what is needed to run them: here nothing is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.pids = folder / "pids"
        self.command = self.dragoman(f"PYTHONPATH='{REPOSITORY}' exec '{sys.executable}' -m proxy")
        self.program("pytest", f"exec '{sys.executable}' -m pytest -p pytest_dragoman \"$@\"")
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("COV", "PYTEST", "DRAGOMAN"))
        } | {
            "HOME": str(folder),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "PYTHONPATH": str(PLUGIN),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
        }
        self.home = folder / "tests"

    def dragoman(self, command: str) -> Path:
        """Let a command be what is started as `dragoman`, and write down each process of it."""
        return self.program("dragoman", f"echo $$ >> '{self.pids}'\n{command} \"$@\"")

    def program(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def check_ended(self) -> None:
        """Check that all programs have ended that were started as `dragoman`. Who listens on their
        ports now may be others."""
        for pid in map(int, self.pids.read_text().split()):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    def example(self) -> Path:
        """Copy the example; return the file of its tests."""
        shutil.copytree(EXAMPLE, self.home, ignore=shutil.ignore_patterns("__pycache__"))
        return self.home / "test_frontend.py"

    def tests(self, text: str) -> None:
        """Write tests beside the frontend and the captures of the example."""
        test = self.example()
        imports = "import pytest\nfrom frontend import Agent\nfrom pytest_dragoman import *\n"
        test.write_text(imports + text)

    def run(self, *arguments: str, status: int = 1) -> str:
        """Run the tests; return what is printed."""
        done = subprocess.run(
            ["pytest", *arguments],
            cwd=self.home,
            env=self.environment,
            executable=self.bin / "pytest",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    @contextlib.contextmanager
    def serving(self, command: str) -> Iterator[str]:
        """Run a server that a command line starts, and yield its address."""
        with subprocess.Popen(
            f"exec {command}",
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            try:
                assert server.stdout
                yield server.stdout.readline().removeprefix("listening on ").strip()
            finally:
                server.kill()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def told(output: str, test: str) -> str:
    """Return what is printed about a test that failed, up to the next one."""
    found = re.search(
        rf"^_+ (?:ERROR at \w+ of )?{test} _+\n(.*?)(?=^_{{4,}} |^=)", output, re.M | re.S
    )
    assert found, output
    return found[1]


# What it is.


def test_it_needs_nothing_but_pytest_and_is_short() -> None:
    text = MODULE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 450
    modules = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        for name in (
            [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert modules - set(sys.stdlib_module_names) == {"pytest"}


def test_it_has_the_version_of_dragoman_and_the_same_build() -> None:
    own, whole = (
        tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        for folder in (PLUGIN, REPOSITORY)
    )
    assert own["project"]["version"] == __version__
    assert own["build-system"] == whole["build-system"]
    assert own["project"]["requires-python"] == whole["project"]["requires-python"]


# The example.


def test_the_example_passes(project: Project) -> None:
    project.example()
    assert "2 passed" in project.run(status=0)


def test_a_changed_field_of_a_capture_is_found_where_it_is(project: Project) -> None:
    project.example()
    capture = project.home / "captures" / "approval.ndjson"
    text = capture.read_text(encoding="utf-8")
    changed = text.replace(r"\"output\":\"\"", r"\"output\":\"removed\"")
    assert changed != text
    capture.write_text(changed, encoding="utf-8")
    output = project.run()
    assert "1 failed, 1 passed" in output
    said = told(output, "test_a_person_approves_although_the_stream_breaks")
    assert said.startswith(
        'they do not mean the same: `tool.returned.output` differs\n- ""\n+ "removed"\n'
    )
    place = "turn 1, step 2, event 24\n"
    assert f"snapshots/approval.ndjson: {place}" in said
    assert f"+++ B: {place}" in said
    assert '\nIf it may differ, say so: ignore=("tool.returned.output",)\n' in said
    assert "Traceback" not in said
    assert "stream 1: cut after 1442 bytes" in said


# Replays.

TESTS = """
def ask(url, words="script: tool"):
    return Agent(url).ask(words, approve=lambda tool, given: True)

replayed = pytest.mark.dragoman(capture="captures/tool.ndjson", serve="herm")

@replayed
def test_fails(dragoman_backend):
    print("at", dragoman_backend.url)
    raise AssertionError

@replayed
def test_refused(dragoman_backend):
    ask(dragoman_backend.url, "something else")

@replayed
def test_no_session(dragoman_backend):
    dragoman_backend.log()

@replayed
def test_no_snapshot(dragoman_backend, dragoman_snapshot):
    ask(dragoman_backend.url)
    dragoman_snapshot(dragoman_backend.log(), "nothing")

@replayed
def test_sessions(dragoman_backend):
    ask(dragoman_backend.url)
    first = dragoman_backend.log()
    ask(dragoman_backend.url)
    newest, older = dragoman_backend.sessions()
    assert older["id"] == first[0]["session_id"]
    assert dragoman_backend.log()[0]["session_id"] == newest["id"]
    assert_same(first, dragoman_backend.log())
    assert_same("captures/tool.ndjson", "captures/tool.ndjson")
    assert_same("snapshots/tool.ndjson", first, ignore=["usage"])

@replayed
def test_other(dragoman_backend):
    assert_same("snapshots/approval.ndjson", "snapshots/tool.ndjson")

@replayed
def test_unknown_field(dragoman_backend):
    assert_same([], [], ignore=["usages"])

@replayed
def test_ignore_is_a_text(dragoman_backend):
    assert_same([], [], ignore="usage")

@pytest.mark.dragoman(capture="captures/none.ndjson", serve="eve")
def test_no_capture(dragoman_backend): ...

@pytest.mark.dragoman(capture="frontend.py", serve="herm")
def test_not_a_capture(dragoman_backend): ...

@pytest.mark.dragoman(serve="herm")
def test_wrong_marker(dragoman_backend): ...

def test_no_marker(dragoman_backend): ...
"""


def test_what_fails_is_told_with_the_way_out(project: Project) -> None:
    project.tests(TESTS)
    output = project.run("-p", "xdist", "-n", "2")
    assert "7 failed, 1 passed, 4 errors" in output
    for test, words in {
        "test_refused": "replay: the message `script: tool` was recorded here, and the message"
        " `something else` was said",
        "test_no_session": "the test has made no session at http://127.0.0.1:",
        "test_no_snapshot": "is missing. `pytest --dragoman-update` writes it.",
        "test_other": "\n--- ",
        "test_unknown_field": "they cannot be compared: ",
        "test_ignore_is_a_text": '`ignore` is a list of fields: ignore=("usage",)',
        "test_no_capture": "Record it from the real backend:\npytest --dragoman-record eve=http",
        "test_not_a_capture": "`dragoman replay` does not start:\ndragoman: ",
        "test_wrong_marker": "missing 1 required positional argument: 'capture'. Write it as @py",
        "test_no_marker": "`dragoman_backend` needs to know what to replay: @pytest.mark.dragoman",
    }.items():
        said = told(output, test)
        assert words in said, said
        if test != "test_refused":
            assert "Error" not in said
            assert "pytest_dragoman.py" not in said
    assert "- dragoman replay -" in told(output, "test_refused")
    assert re.search(r"^at http://(.*)$", output, re.MULTILINE)
    project.check_ended()


ASYNC = """
import asyncio

@pytest.mark.asyncio
@pytest.mark.dragoman("captures/tool.ndjson", "herm", speed=1000)
async def test_in_a_loop(dragoman_backend):
    agent = Agent(dragoman_backend.url)
    assert await asyncio.to_thread(agent.ask, "script: tool", lambda tool, given: True)
    assert dragoman_backend.log()
"""


def test_it_works_in_tests_that_are_coroutines(project: Project) -> None:
    project.tests(ASYNC)
    loop = ("-p", "asyncio", "-o", "asyncio_default_fixture_loop_scope=function")
    assert "1 passed" in project.run(*loop, status=0)


def test_a_command_that_is_missing_is_told_with_the_way_to_install_it(project: Project) -> None:
    project.example()
    project.command.unlink()
    output = project.run()
    assert "there is no `dragoman` on the PATH. Install it on its own with `pipx install" in output
    project.environment["DRAGOMAN"] = "/no/such"
    assert "`/no/such` is not a program." in project.run()
    assert "`/no/other` is not a program." in project.run("--dragoman", "/no/other")


STUBBORN = """
import http.server, json, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
url = "http://127.0.0.1:%d" % server.server_port
print(json.dumps({"url": url, "control": url}), flush=True)
server.serve_forever()
"""


def test_a_command_that_does_not_end_is_killed(project: Project) -> None:
    project.tests(TESTS)
    (project.home / "conftest.py").write_text(
        "import pytest_dragoman\npytest_dragoman.STOP_SECONDS = 0.1\n"
    )
    (project.home / "stubborn.py").write_text(STUBBORN)
    project.dragoman(f"exec '{sys.executable}' '{project.home}/stubborn.py'")
    output = project.run("-k", "test_fails")
    assert re.search(r"^at http://(.*)$", output, re.MULTILINE)
    project.check_ended()


def test_a_snapshot_is_written_where_it_means_something_else(project: Project) -> None:
    project.example()
    snapshots = project.home / "snapshots"
    before = {path.name: path.read_bytes() for path in snapshots.iterdir()}
    tool = snapshots / "tool.ndjson"
    tool.write_text(tool.read_text().replace('"outcome": "completed"', '"outcome": "failed"'))
    assert tool.read_bytes() != before["tool.ndjson"]
    assert "dragoman wrote" not in project.run()
    output = project.run("--dragoman-update", status=0)
    assert re.findall(r"dragoman wrote .*/(.*)", output) == ["tool.ndjson"]
    assert (snapshots / "approval.ndjson").read_bytes() == before["approval.ndjson"]
    assert "2 passed" in project.run(status=0)


# Recording.

RECORDED = """
def ask(url):
    return Agent(url).ask("script: tool", approve=lambda tool, given: True)

@pytest.mark.dragoman(capture="captures/new.ndjson", serve="herm", backend="herm=BACKEND")
def test_new(dragoman_backend, dragoman_snapshot):
    ask(dragoman_backend.url)
    dragoman_snapshot(dragoman_backend.log(), "tool", ignore=["usage"])

@pytest.mark.dragoman(capture="captures/tool.ndjson", serve="herm")
def test_fails(dragoman_backend):
    ask(dragoman_backend.url)
    raise AssertionError

@pytest.mark.dragoman(capture="captures/two.ndjson", serve="herm")
def test_two(dragoman_backend):
    ask(dragoman_backend.url)
    ask(dragoman_backend.url)

@pytest.mark.dragoman(capture="captures/silent.ndjson", serve="herm")
def test_silent(dragoman_backend): ...

@pytest.mark.dragoman(capture="captures/approval.ndjson", serve="eve")
def test_dialect(dragoman_backend): ...
"""


def test_a_backend_is_recorded_once_and_replayed(project: Project) -> None:
    with project.serving("dragoman scripted herm --pace 0") as url:
        project.tests(RECORDED.replace("BACKEND", url))
        captures = project.home / "captures"
        before = {path.name: path.read_bytes() for path in captures.iterdir()}
        output = project.run("--dragoman-record", f"herm={url}")
        assert re.findall(r"dragoman wrote .*/(.*)", output) == ["new.ndjson"]
        assert "recorded up to here" in project.run(
            "-rs", "-k", "new", "--dragoman-record", status=0
        )
        nowhere = project.run("-k", "silent", "--dragoman-record")
    assert "which backend?" in nowhere
    assert "a capture is one session, and the test has made 2: " in told(output, "test_two")
    assert "a capture is one session, and the test has made 0: none" in told(output, "test_silent")
    assert "a backend of `herm` is recorded, but the test asks in `eve`" in told(
        output, "test_dialect"
    )
    made = (captures / "new.ndjson").read_bytes()
    assert {path.name: path.read_bytes() for path in captures.iterdir()} == before | {
        "new.ndjson": made
    }
    # The backend is gone.
    assert "1 passed" in project.run("-k", "new", status=0)


def test_a_backend_that_is_not_there_is_told_beside_the_failure(project: Project) -> None:
    project.tests(RECORDED)
    url = f"http://127.0.0.1:{free_port()}"
    output = project.run("-k", "two", "--dragoman-record", f"herm={url}")
    assert f"The backend takes no connection. Look whether it runs at {url}" in output


def test_a_backend_that_cannot_be_meant_is_told(project: Project) -> None:
    project.example()
    output = project.run("--dragoman-record", "test_frontend.py", status=4)
    assert "`test_frontend.py` is not DIALECT=URL, as engine=http://127.0.0.1:8000." in output


# The page.


def blocks(language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_is_short_and_shows_what_is_there() -> None:
    assert len(PAGE.split()) <= 600
    tests = (EXAMPLE / "test_frontend.py").read_text(encoding="utf-8")
    test, compare = blocks("python")
    assert test in tests
    ast.parse(compare)
    assert set(re.findall(r"-(\d\S*)-py3", PAGE)) == {__version__}


def followed(project: Project) -> None:
    """Run the commands of the page after those that install."""
    _, backend, *rest = blocks("sh")
    port = str(free_port())
    assert backend == "dragoman scripted herm --port 8000\n"
    with project.serving(backend.replace("8000", port)):
        output = shell(project, "".join(rest).replace("8000", port))
    assert re.findall(r"dragoman wrote .*/(.*)", output) == ["tool.ndjson"]
    assert "2 passed" in output
    # What it shows of a failure is what is printed.
    capture = project.folder / "regression-tests" / "captures" / "approval.ndjson"
    text = capture.read_text(encoding="utf-8")
    capture.write_text(text.replace(r"\"output\":\"\"", r"\"output\":\"removed\""), "utf-8")
    output = shell(project, "cd ~/regression-tests\npytest", status=1)
    (shown,) = blocks("text")
    assert set(shown.splitlines()) <= set(output.splitlines())


def shell(project: Project, text: str, *, status: int = 0, cwd: Path = REPOSITORY) -> str:
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", text],
        cwd=cwd,
        env=project.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == status, f"{text}\n{done.stdout}"
    return done.stdout


def test_the_commands_of_the_page_work(project: Project) -> None:
    activate = project.folder / "agent-tests" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    followed(project)


# From the wheels.

PLUGIN_RUNS_ON = ("iniconfig", "packaging", "pluggy", "pygments", "pytest")


def pinned() -> str:
    """Return the lines of the lock for what the tests of a user need."""
    lock = (REPOSITORY / "requirements" / "test.txt").read_text(encoding="utf-8")
    found = re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE)
    return "".join(f"{name}=={version}\n" for name, version in found if name in PLUGIN_RUNS_ON)


@pytest.mark.plugin
@pytest.mark.timeout(1200)  # of one that hangs
def test_the_wheels_work_as_the_page_says(tmp_path: Path) -> None:
    """The page is followed from its first command. `make wheel` builds into a scratch folder, and a
    stand-in for pipx installs what Dragoman needs as its lock says."""
    project = Project(tmp_path)
    for name in ("dragoman", "pytest"):
        (project.bin / name).unlink()
    for name in ("PYTHONPATH", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        del project.environment[name]
    pins = tmp_path / "pins.txt"
    pins.write_text(pinned())
    project.environment["PIP_CONSTRAINT"] = str(pins)
    project.environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"

    clone = tmp_path / "clone"
    (clone / "docs" / "examples").mkdir(parents=True)
    (clone / "docs" / "examples" / EXAMPLE.name).symlink_to(EXAMPLE)
    for source in (REPOSITORY, PLUGIN):
        build(source, clone / "dist")
    project.program("make", '[ "$*" = wheel ]')
    venv.create(tmp_path / "pipx", with_pip=True)
    pip = f"'{tmp_path}/pipx/bin/python' -m pip install --quiet --no-deps"
    lock = REPOSITORY / "requirements" / "run.txt"
    project.program(
        "pipx",
        f"{pip} --require-hashes --only-binary :all: -r '{lock}' && {pip} --no-index \"$2\" &&"
        f" ln -s '{tmp_path}/pipx/bin/dragoman' '{project.bin}/dragoman'",
    )
    project.program("python3", f"exec '{sys.executable}' \"$@\"")

    shell(project, blocks("sh")[0], cwd=clone)
    python = tmp_path / "agent-tests" / "bin" / "python"
    listed = shell(project, f"'{python}' -m pip list --format=json")
    names = {one["name"].lower() for one in json.loads(listed)}
    assert names - {"pip", "setuptools"} == {*PLUGIN_RUNS_ON, "pytest-dragoman"}
    project.environment["PATH"] = f"{python.parent}:{project.environment['PATH']}"
    followed(project)
