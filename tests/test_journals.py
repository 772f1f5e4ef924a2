"""Today's code goes on with the sessions of every journal that is kept: see `tests.journals`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journals.cases import cases_of
from tests.journals.fixture import FOLDER, load, played_on, write
from tests.journals.house import BACKENDS, FACES

KEPT = sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir())

MOST_BYTES = 600_000
"""What a fixture may take: all of them are kept for good."""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", KEPT)
async def test_the_sessions_of_a_kept_journal_come_to_what_they_came_to_then(
    name: str, backend: str, tmp_path: Path
) -> None:
    fixture = load(FOLDER / name)
    then = fixture.after_of(backend)
    now = await played_on(fixture, backend, tmp_path / "journal")
    assert now.keys() == then.keys()
    for session, came_to in then.items():
        assert now[session] == came_to, session


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_journal_has_all_pairs_and_is_small(name: str) -> None:
    fixture = load(FOLDER / name)
    assert {(kept.face, kept.backend) for kept in fixture.talks} >= {
        (face, backend) for face in FACES for backend in FACES
    }
    left = {kept.name for kept in fixture.talks if kept.case != "deleted"}
    assert fixture.after.keys() == left
    assert sum(file.stat().st_size for file in fixture.folder.iterdir()) < MOST_BYTES


async def test_the_next_journal_can_be_kept(tmp_path: Path) -> None:
    folder = tmp_path / "next"
    await write(folder, tmp_path, ["engine"])
    fixture = load(folder)
    made = [(kept.face, kept.case) for kept in fixture.talks]
    assert made == [(face, case) for face in FACES for case in cases_of(face, "engine", "engine")]
    assert len(fixture.after) == len(made) - len(FACES), "but for those that were deleted"
