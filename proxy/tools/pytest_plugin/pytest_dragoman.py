"""Recorded agent sessions as backends of tests, compared by meaning.

All is done by the command `dragoman`, which is installed on its own: nothing of it is imported. A
test names a capture by the marker `dragoman` and talks to `dragoman_backend.url` as to the backend
that was recorded. `--dragoman-record` puts a recorder before a real backend instead, and writes the
capture. Logs are compared by `dragoman_snapshot` and `assert_same`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias

import pytest

Log: TypeAlias = Sequence[Mapping[str, Any]]
"""A canonical log: its events in their order."""

STOP_SECONDS = 10.0
"""How long the command may take to end before it is killed."""

WROTE = "dragoman wrote"
"""The property of a report that names a file which the test has written."""

UNNAMED = "unnamed.ndjson"
"""Where a recorder puts what names no session."""

HINT = "If it may differ, say so: --ignore "

# Requests to this machine: a proxy that the environment names is not meant for them.
_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Snapshot(Protocol):
    """What the fixture `dragoman_snapshot` is."""

    def __call__(self, log: Log, name: str, ignore: Sequence[str] = ()) -> None:
        """Compare a log with `snapshots/<name>.ndjson` beside the test."""


# What pytest is told.


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("dragoman", "recorded agent sessions")
    group.addoption(
        "--dragoman",
        metavar="PATH",
        help="The command; else the variable DRAGOMAN, else `dragoman` on the PATH.",
    )
    group.addoption(
        "--dragoman-record",
        nargs="?",
        const="",
        metavar="DIALECT=URL",
        help="Record a real backend, as engine=http://127.0.0.1:8000, and write the captures. "
        "Without a value it is the `backend` of each marker.",
    )
    group.addoption(
        "--dragoman-update",
        action="store_true",
        help="Write the snapshots that are missing or mean something else.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and refuse an option that cannot be meant."""
    config.addinivalue_line(
        "markers",
        "dragoman(capture, serve, speed='max', faults=None, backend=None): the recorded session "
        "that `dragoman_backend` replays in the dialect `serve`.",
    )
    given = config.getoption("dragoman_record")
    if given and not re.match(r"\w+=https?://", given):
        raise pytest.UsageError(
            f"--dragoman-record: `{given}` is not DIALECT=URL, as engine=http://127.0.0.1:8000. "
            "Put the option last where each marker has its `backend`."
        )


_running: list[pytest.Item] = []
"""The test that runs."""

_process = pytest.StashKey["_Process"]()
_reports = pytest.StashKey[dict[str, pytest.TestReport]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Remember the test, for `assert_same`."""
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.pop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the command said, where a test failed."""
    report = yield
    item.stash.setdefault(_reports, {})[report.when] = report
    process = item.stash.get(_process, None)
    if report.failed and process is not None and (said := process.said().rstrip()):
        report.sections.append((f"dragoman {process.name}", said))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell which files were written."""
    wrote = {
        str(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == WROTE
    }
    for path in sorted(wrote):
        terminalreporter.write_line(f"{WROTE} {path}")


def _fail(message: str) -> NoReturn:
    __tracebackhide__ = True
    pytest.fail(message, pytrace=False)


# The command.


def _command(config: pytest.Config) -> str:
    __tracebackhide__ = True
    given = config.getoption("dragoman") or os.environ.get("DRAGOMAN")
    found = shutil.which(given or "dragoman")
    if found is None:
        what = f"`{given}` is not a program" if given else "there is no `dragoman` on the PATH"
        _fail(
            f"{what}. Install it on its own with `pipx install dragoman`, or say where it is with "
            "`--dragoman PATH` or the variable DRAGOMAN."
        )
    return found


def _environment() -> dict[str, str]:
    """Return the environment without what would lead the command to this Python's packages."""
    left_out = {"PYTHONPATH", "PYTHONHOME"}
    return {name: value for name, value in os.environ.items() if name not in left_out}


class _Process:
    """The command while it serves. It writes to a file, so that nobody has to read it."""

    def __init__(self, command: str, arguments: Sequence[str], folder: Path) -> None:
        self.name = arguments[0]
        self._errors = folder / "stderr"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(),
                text=True,
            )

    def first_line(self) -> str:
        """Return the line that it prints when it listens."""
        __tracebackhide__ = True
        stdout = self._process.stdout
        assert stdout is not None
        # A slow machine needs a few seconds.
        ready, _, _ = select.select([stdout], [], [], 60.0)
        line = stdout.readline().strip() if ready else ""
        if not line:
            self.stop()
            _fail(f"`dragoman {self.name}` does not start:\n{self.said().rstrip()}")
        return line

    def said(self) -> str:
        """Return what it wrote to stderr up to now; of an error as JSON its message."""
        text = self._errors.read_text(encoding="utf-8", errors="replace")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return f"dragoman: {json.loads(text)['error']['message']}"
        return text

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


# The backend of a test.


@dataclass(frozen=True)
class _MarkerArguments:
    """What the marker says."""

    capture: str
    serve: str
    speed: str | float = "max"
    faults: int | None = None
    backend: str | None = None


def _marked(item: pytest.Item) -> _MarkerArguments:
    __tracebackhide__ = True
    marker = item.get_closest_marker("dragoman")
    example = '@pytest.mark.dragoman(capture="captures/first.ndjson", serve="herm")'
    if marker is None:
        _fail(f"`dragoman_backend` needs to know what to replay: {example}")
    try:
        return _MarkerArguments(*marker.args, **marker.kwargs)
    except TypeError as error:
        _fail(f"the marker `dragoman` is wrong: {error}. Write it as {example}")


class DragomanBackend:
    """A backend that a test talks to.

    Attributes:
        url: the address for the frontend that is tested.
        control: that of the control API; None while a real backend is recorded.
    """

    def __init__(self, url: str, control: str | None) -> None:
        self.url = url
        self.control = control

    def sessions(self) -> list[dict[str, Any]]:
        """Return the sessions that the test has made, newest first."""
        found: list[dict[str, Any]] = json.loads(self._ask("sessions"))["sessions"]
        return found

    def log(self) -> list[dict[str, Any]]:
        """Return the canonical log of the newest session, up to now.

        It has all that the frontend was sent. So read a turn to its end first.
        """
        __tracebackhide__ = True
        sessions = self.sessions()
        if not sessions:
            _fail(f"the test has made no session at {self.url} yet, so there is no log")
        lines = self._ask(f"sessions/{sessions[0]['id']}/events?follow=0").splitlines()
        return [json.loads(line) for line in lines if line]

    def _ask(self, path: str) -> str:
        __tracebackhide__ = True
        if self.control is None:
            pytest.skip("recorded up to here: there is no log yet. Run it without recording.")
        with _http.open(f"{self.control}/api/v1/{path}", timeout=60.0) as answer:
            text: str = answer.read().decode()
            return text


@pytest.fixture
def dragoman_backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DragomanBackend]:
    """The recorded backend of the marker `dragoman`; while recording the real one."""
    __tracebackhide__ = True
    item = request.node
    marked = _marked(item)
    backend = _recorded(request.config, marked)
    folder = tmp_path_factory.mktemp("dragoman")
    captures = folder / "captures"
    arguments = _replay(item, marked) if backend is None else _record(marked, backend, captures)
    process = item.stash[_process] = _Process(_command(request.config), arguments, folder)
    try:
        line = process.first_line()
        if backend is None:
            addresses = json.loads(line)
            yield DragomanBackend(addresses["url"], addresses["control"])
        else:
            yield DragomanBackend(line.removeprefix("listening on "), None)
    finally:
        process.stop()
    if backend is not None:
        _keep(item, captures, item.path.parent / marked.capture)


def _recorded(config: pytest.Config, marked: _MarkerArguments) -> str | None:
    """Return the backend that is recorded, None where the capture is replayed."""
    __tracebackhide__ = True
    given: str | None = config.getoption("dragoman_record")
    if given is None:
        return None
    backend = given or marked.backend
    if backend is None:
        _fail("which backend? Write --dragoman-record DIALECT=URL, or `backend` in the marker.")
    return backend


def _replay(item: pytest.Item, marked: _MarkerArguments) -> list[str]:
    """Return the words of the command that replays a capture."""
    __tracebackhide__ = True
    capture = item.path.parent / marked.capture
    if not capture.is_file():
        _fail(
            f"the capture {marked.capture} is missing. Record it from the real backend:\n"
            f"pytest --dragoman-record {marked.serve}=http://127.0.0.1:8000 '{item.nodeid}'"
        )
    faults = [] if marked.faults is None else ["--faults", str(marked.faults)]
    speed = ["--speed", str(marked.speed)]
    where = ["--serve", marked.serve, "--port", "0", "--json"]
    return ["replay", str(capture), *where, *speed, *faults]


def _record(marked: _MarkerArguments, backend: str, folder: Path) -> list[str]:
    """Return the words of the command that records a backend."""
    __tracebackhide__ = True
    dialect = backend.partition("=")[0]
    if dialect != marked.serve:
        _fail(
            f"a backend of `{dialect}` is recorded, but the test asks in `{marked.serve}`: while "
            f"recording it talks to the backend itself. Record one of `{marked.serve}`, or record "
            f"another client of this backend with `dragoman record --backend {backend}`."
        )
    return ["record", "--backend", backend, "--out", str(folder)]


def _keep(item: pytest.Item, folder: Path, capture: Path) -> None:
    """Make the one session that was recorded the capture of a test, unless it failed."""
    __tracebackhide__ = True
    report = item.stash[_reports].get("call")
    if report is None or report.failed:
        return
    found = sorted(path for path in folder.glob("*.ndjson") if path.name != UNNAMED)
    if len(found) != 1:
        names = ", ".join(path.stem for path in found) or "none"
        _fail(f"a capture is one session, and the test has made {len(found)}: {names}")
    capture.parent.mkdir(parents=True, exist_ok=True)
    capture.write_bytes(found[0].read_bytes())
    item.user_properties.append((WROTE, str(capture)))


# Comparing.


@pytest.fixture
def dragoman_snapshot(request: pytest.FixtureRequest) -> Snapshot:
    """Compares a log by meaning with `snapshots/<name>.ndjson` beside the test."""

    def compare(log: Log, name: str, ignore: Sequence[str] = ()) -> None:
        __tracebackhide__ = True
        path = request.path.parent / "snapshots" / f"{name}.ndjson"
        update = request.config.getoption("dragoman_update")
        if not path.is_file() and not update:
            _fail(f"the snapshot {path} is missing. `pytest --dragoman-update` writes it.")
        if path.is_file():
            differs = _difference(request.config, path, log, ignore)
            if differs is None:
                return
            if not update:
                _fail(f"{differs}\nIf it is right now, `pytest --dragoman-update` writes it.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_lines(log), encoding="utf-8")
        request.node.user_properties.append((WROTE, str(path)))

    return compare


def assert_same(a: Log | str | Path, b: Log | str | Path, ignore: Sequence[str] = ()) -> None:
    """Assert that two sessions mean the same.

    Args:
        a: a log, or where a capture or a log is; relative to the test's file.
        b: another one.
        ignore: fields that may differ, as `usage`, and types of events.
    """
    __tracebackhide__ = True
    if not _running:
        raise RuntimeError("assert_same works inside of a test")
    item = _running[-1]
    first, second = (
        item.path.parent / one if isinstance(one, str | Path) else one for one in (a, b)
    )
    if (differs := _difference(item.config, first, second, ignore)) is not None:
        _fail(differs)


def _difference(
    config: pytest.Config, a: Log | Path, b: Log | Path, ignore: Sequence[str]
) -> str | None:
    """Return what `dragoman diff` says of the first difference, None where there is none."""
    __tracebackhide__ = True
    if isinstance(ignore, str):
        _fail(f'`ignore` is a list of fields: ignore=("{ignore}",)')
    with tempfile.TemporaryDirectory(prefix="dragoman-") as folder:
        # Logs have the names of their sides in what is said.
        sides = [_file(side, Path(folder) / name) for side, name in ((a, "A"), (b, "B"))]
        done = subprocess.run(
            [_command(config), "diff", *sides, *(f"--ignore={field}" for field in ignore)],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):
        _fail(f"they cannot be compared: {done.stderr.strip()}")
    if done.returncode == 0:
        return None
    text = re.sub(rf"{HINT}(\S+)\s*$", r'If it may differ, say so: ignore=("\1",)', done.stdout)
    return f"they do not mean the same: {text.rstrip()}"


def _file(side: Log | Path, new: Path) -> str:
    """Return the name of a side's file, which a log gets only now."""
    if isinstance(side, Path):
        return str(side)
    new.write_text(_lines(side), encoding="utf-8")
    return new.name


def _lines(log: Log) -> str:
    return "".join(f"{json.dumps(entry, ensure_ascii=False)}\n" for entry in log)
