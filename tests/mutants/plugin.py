"""The part of `make mutants` inside pytest: choose and order tests, record what they execute.

Loaded with `-p tests.mutants.plugin`. It is told by the environment: `MUTANTS_ORDER` names a file
with the node ids to run, one in a line, in this order; `MUTANTS_REPORT` the file to write;
`MUTANTS_SECONDS`, when set, asks for the executed lines too, and for an early end after so many
seconds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, settings

if TYPE_CHECKING:
    import coverage

# A failure is enough: shrinking it to a small example takes minutes and tells nothing here.
settings.register_profile(
    "mutants",
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
os.environ["HYPOTHESIS_PROFILE"] = "mutants"

_ROOT = Path.cwd()
_tests: dict[str, list[Any]] = {}
_recorder: coverage.Coverage | None = None
_end = float("inf")


def pytest_configure() -> None:
    """Start recording before the first module of the product is imported."""
    global _recorder, _end
    if seconds := os.environ.get("MUTANTS_SECONDS"):
        import coverage

        _end = time.monotonic() + float(seconds)
        _recorder = coverage.Coverage(
            data_file=None,
            config_file=False,
            branch=False,
            include=[f"{_ROOT}/adapters/*", f"{_ROOT}/proxy/*"],
            messages=False,
        )
        # A test file that touches nothing of the product is no reason for a warning, an error here.
        _recorder.set_option("run:disable_warnings", ["no-data-collected"])
        _recorder.start()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that were asked for, in the order asked for."""
    if order := os.environ.get("MUTANTS_ORDER"):
        place = {name: at for at, name in enumerate(Path(order).read_text().splitlines())}
        dropped = [item for item in items if item.nodeid not in place]
        items[:] = sorted(
            (item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid]
        )
        config.hook.pytest_deselected(items=dropped)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note executed lines under the test that executes them."""
    if _recorder is None:
        return (yield)
    _recorder.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _recorder.switch_context("")
        if time.monotonic() > _end:
            item.session.shouldstop = "the time for recording this file is over"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds of a test and remember whether it passed."""
    test = _tests.setdefault(report.nodeid, [0.0, True])
    test[0] = round(test[0] + report.duration, 4)
    test[1] = test[1] and report.outcome == "passed"


def pytest_sessionfinish() -> None:
    """Write the report."""
    found: dict[str, Any] = {"tests": [[name, *facts] for name, facts in _tests.items()]}
    if _recorder is not None:
        _recorder.stop()
        found["lines"] = _lines(_recorder.get_data())
    Path(os.environ["MUTANTS_REPORT"]).write_text(json.dumps(found))


def _lines(data: coverage.CoverageData) -> dict[str, dict[int, str]]:
    """Return per file and line the tests that ran it, as a hexadecimal set of bits."""
    place = {name: at for at, name in enumerate(_tests)}
    lines: dict[str, dict[int, str]] = {}
    for path in sorted(data.measured_files()):
        bits = {
            line: sum(1 << place[name] for name in set(names) if name in place)
            for line, names in data.contexts_by_lineno(path).items()
        }
        lines[str(Path(path).relative_to(_ROOT))] = {
            line: f"{seen:x}" for line, seen in sorted(bits.items()) if seen
        }
    return lines
