"""Run tests in a copy of the tree, so that no mutation can ever reach the work tree.

A copy holds what git tracks or would track. It is made in a temporary folder, which takes the place
of the work tree on the path of every process started in it. These are forks of this one, which has
imported the libraries already: half of what a short run costs.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Exit statuses of pytest: all passed; no test was left to run. Every other one means that something
# broke.
_PASSED, _NO_TESTS = 0, 5
_LIBRARIES = (
    "aiohttp.web",
    "apsw",
    "hypothesis.strategies",
    "multidict",
    "orjson",
    "pydantic",
    "vcr",
)
_OURS = {"adapters", "bench", "proxy", "tests"}
_ARGUMENTS = [
    *("-q", "--no-header", "--tb=no", "--show-capture=no"),
    *("-p", "tests.mutants.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"),
    # Plugins are among the imported libraries: their assertions need no better messages.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
]


@dataclass(frozen=True)
class Outcome:
    """How a run of tests ended."""

    status: str
    """`passed`, `failed`, `timeout` or `none` (no such tests)."""
    test: str = ""
    """The node id of the first test that failed, empty when none had begun."""
    report: dict[str, Any] | None = None


class Copy:
    """A copy of the tree in which tests run."""

    def __init__(self, root: Path, scratch: Path) -> None:
        """Take a folder with the copied tree, and one for reports."""
        self.root = root
        self._scratch = scratch
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("COV")},
            "PYTHONPATH": str(root),
            "MUTANTS_REPORT": str(scratch / "report.json"),
        }

    def read(self, path: str) -> bytes:
        """Return the bytes of a file of the copy."""
        return (self.root / path).read_bytes()

    @contextlib.contextmanager
    def changed(self, path: str, content: bytes) -> Iterator[None]:
        """Give a file other content while the context lasts."""
        file = self.root / path
        before = file.read_bytes()
        # Byte code counts as fresh by size and whole seconds: a quick change of a letter is not
        # seen.
        cached = Path(importlib.util.cache_from_source(str(file)))
        try:
            file.write_bytes(content)
            cached.unlink(missing_ok=True)
            yield
        finally:
            file.write_bytes(before)
            cached.unlink(missing_ok=True)

    def run(
        self, tests: Sequence[str], timeout: float, *, keep_going: bool = False, record: float = 0
    ) -> Outcome:
        """Run tests.

        Args:
            tests: Node ids, in this order; or, with `record`, test files.
            timeout: Seconds after which the run is killed.
            keep_going: Run on after a failure.
            record: When set, note the executed lines too, and begin no test after so many seconds.
        """
        report = self._scratch / "report.json"
        report.unlink(missing_ok=True)
        environment = dict(self._environment)
        if record:
            environment["MUTANTS_SECONDS"] = str(record)
        else:
            order = self._scratch / "order"
            order.write_text("\n".join(tests))
            environment["MUTANTS_ORDER"] = str(order)
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        arguments = [*_ARGUMENTS, *([] if keep_going or record else ["-x"]), *files]
        process = multiprocessing.get_context("fork").Process(
            target=_pytest, args=(self.root, environment, arguments)
        )
        process.start()
        process.join(timeout)
        code = process.exitcode
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        if code is None:
            return Outcome("timeout")
        found = json.loads(report.read_text()) if report.exists() else None
        failed = next((name for name, _, ok in (found or {"tests": []})["tests"] if not ok), "")
        if code == _NO_TESTS:
            return Outcome("none", report=found)
        return Outcome("passed" if code == _PASSED else "failed", failed, found)


def _pytest(root: Path, environment: dict[str, str], arguments: list[str]) -> None:
    """Be a process that has imported nothing but libraries, and run pytest in it."""
    os.setsid()
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silent, stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(root)
    sys.path[:] = [str(root), *(path for path in sys.path if path not in {"", str(ROOT)})]
    for name in [name for name in sys.modules if name.split(".")[0] in _OURS]:
        del sys.modules[name]
    os._exit(pytest.main(arguments))


@contextlib.contextmanager
def copied() -> Iterator[Copy]:
    """Copy the tree into a temporary folder, which is removed in the end."""
    for library in _LIBRARIES:
        importlib.import_module(library)
    gc.freeze()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    with tempfile.TemporaryDirectory(prefix="dragoman-mutants-") as folder:
        root, scratch = Path(folder, "tree"), Path(folder, "scratch")
        scratch.mkdir()
        for name in sorted({os.fsdecode(name) for name in listed.split(b"\0") if name}):
            source, target = ROOT / name, root / name
            if source.is_file() and not name.startswith("tests/peers/"):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        yield Copy(root, scratch)
