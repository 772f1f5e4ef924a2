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

SUITES = (
    "tests/agui/test_face.py",
    "tests/faces/engine/test_names.py",
    "tests/faces/eve/test_streams.py",
    "tests/faces/herm/",
    "tests/server/test_restart.py",
    "tests/server/test_stop.py",
    "tests/server/test_storm.py",
    "tests/test_stateful_session.py",
)
"""Files and folders that `make postgres` plays."""

MORE = (
    "tests/aisdk/test_face.py",
    "tests/backends/",
    "tests/control/",
    "tests/faces/",
    "tests/faults/",
    "tests/kept/",
    "tests/migration/",
    "tests/pairs/",
    "tests/server/",
)
"""What it plays besides with `ALL=1`."""

_BROKEN = "it breaks the file, or the code that reads it, under a server"
_ODD = "it writes into a file what no server of this release writes"
_PATH = "a command, or the journal it opens, is given the path of a file"
_WORDS = "a file has no deleted word left, PostgreSQL has it until it vacuums"

FILES_ONLY: dict[str, str] = {
    "tests/migration/test_page.py": "it follows a page whose server has a file",
    "tests/server/test_backup.py": "a backup is a file, taken of a file",
    "tests/server/test_journal_faults.py::"
    "test_a_journal_that_cannot_store_is_told_once_and_makes_the_server_not_ready": _BROKEN,
    "tests/server/test_journal_faults.py::"
    "test_a_turn_that_meets_a_full_disk_is_whole_when_there_is_room": _BROKEN,
    "tests/server/test_journal_faults.py::"
    "test_what_is_damaged_while_it_is_served_is_a_503_in_every_dialect": _BROKEN,
    "tests/server/test_journal_faults.py::"
    "test_while_the_journal_cannot_store_every_face_says_503_and_then_goes_on": _BROKEN,
    "tests/server/test_operators_table.py::"
    "test_a_fault_is_seen_as_its_row_says[the disk is full-played]": _BROKEN,
    "tests/server/test_operators_table.py::"
    "test_a_fault_is_seen_as_its_row_says[the journal is locked-played]": _BROKEN,
    "tests/server/test_operators_table.py::"
    "test_a_fault_is_seen_as_its_row_says[the journal is read-only-played]": _BROKEN,
    "tests/server/test_power_loss.py": "it takes a disk away between two writes of a file",
    "tests/server/test_stored.py::"
    "test_a_session_shown_by_a_later_encoder_is_refused_in_that_dialect_only": _ODD,
    "tests/server/test_stored.py::"
    "test_a_session_that_can_be_read_only_leaves_memory_and_can_be_deleted": _ODD,
    "tests/server/test_stored.py::"
    "test_a_session_whose_state_cannot_be_read_is_shown_and_takes_nothing": _ODD,
    "tests/server/test_archives.py::"
    "test_a_file_is_imported_into_the_journal_of_a_server_that_is_stopped": _PATH,
    "tests/server/test_archives.py::"
    "test_all_sessions_of_all_owners_move_and_a_second_time_changes_nothing": _PATH,
    "tests/server/test_archives.py::"
    "test_what_is_under_way_is_not_archived_and_the_way_out_is_said": _PATH,
    "tests/server/test_captures.py::"
    "test_a_server_that_is_killed_leaves_a_capture_that_the_next_one_goes_on_with": _PATH,
    "tests/server/test_migration_plan.py::test_a_journal_s_file_says_the_same": _PATH,
    "tests/server/test_migration_plan.py::"
    "test_a_plan_that_breaks_off_says_why_in_its_last_line": _BROKEN,
    "tests/server/test_retention.py::test_a_deleted_session_leaves_no_word_behind": _WORDS,
    "tests/server/test_retention.py::"
    "test_a_long_deleted_session_leaves_no_mark_in_any_table_compressed_or_not": _WORDS,
    "tests/server/test_retention.py::test_when_a_deletion_is_answered_its_text_is_nowhere": _WORDS,
}
"""Tests, files or folders that are about files, and why."""


def is_in(node_id: str, place: str) -> bool:
    """Tell whether a test is one that a place names: a folder, a file, or a test with any cells."""
    if place.endswith("/"):
        return node_id.startswith(place)
    return node_id == place or node_id.startswith((f"{place}::", f"{place}["))


def is_played(node_id: str, *, everything: bool) -> bool:
    """Tell whether a test that is not marked `postgres` is played on PostgreSQL."""
    places = SUITES + MORE if everything else SUITES
    named = any(is_in(node_id, place) for place in places)
    return named and not any(is_in(node_id, place) for place in FILES_ONLY)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Tell the helpers, before they are imported."""
    os.environ["TEST_JOURNAL"] = "postgres"


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
