"""A plugin for pytest that plays the suites of sessions, faces and restarts on a journal in
PostgreSQL: `make postgres` loads it.

The helpers in `tests/support/journals.py` then give databases of one server of the process in the
place of files. Only tests are played that can be: those marked `postgres`, and those of `SUITES`
that are not in `FILES_ONLY`. With `ALL=1` in the environment, those of `MORE` too.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

os.environ["TEST_JOURNAL"] = "postgres"  # before the helpers are imported

SUITES = (
    "tests/agui/test_face.py",
    "tests/faces/engine/test_names.py",
    "tests/faces/eve/test_streams.py",
    "tests/faces/herm/",
    "tests/server/test_restart.py",
    "tests/server/test_stop.py",
    "tests/server/test_storm.py",
)
"""Files and folders that `make postgres` plays."""

MORE = (
    "tests/aisdk/test_face.py",
    "tests/faces/",
)
"""What it plays besides with `ALL=1`."""

FILES_ONLY: dict[str, str] = {}
"""Tests, files or folders that are about files, and why."""


def _is_in(node_id: str, places: tuple[str, ...]) -> bool:
    return any(node_id.startswith(place) for place in places)


def is_played(node_id: str, *, everything: bool) -> bool:
    """Tell whether a test that is not marked `postgres` is played on PostgreSQL."""
    places = SUITES + MORE if everything else SUITES
    return _is_in(node_id, places) and not _is_in(node_id, tuple(FILES_ONLY))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let the marker decide; it is given to what is played."""
    config.option.markexpr = "postgres"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is played."""
    everything = bool(os.environ.get("ALL"))
    for item in items:
        if is_played(item.nodeid, everything=everything):
            item.add_marker(pytest.mark.postgres)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Give back the databases of a test."""
    try:
        return (yield)
    finally:
        from tests.support.journals import release_databases

        release_databases()
