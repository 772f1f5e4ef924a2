"""Today's code goes on with the sessions of every journal that is kept: see `tests.journals`."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.model import events as ev
from proxy.base.clock import ManualClock, SeededIds
from tests.journals import house
from tests.journals.backends import START
from tests.journals.cases import RUN_S, cases_of
from tests.journals.fixture import FOLDER, load, played_on, write
from tests.journals.house import BACKENDS, FACES
from tests.support.journals import stored_entries

KEPT = sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir())

FACES_OF_ALL = ("herm", "eve", "engine")
"""The dialects of frontends that the first of the kept journals has; later ones have more."""

MOST_BYTES = 1_200_000
"""What a fixture may take: all of them are kept for good."""


@pytest.mark.parametrize(
    ("name", "backend"), [(name, one) for name in KEPT for one in load(FOLDER / name).steps]
)
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
    # Of another generation there are not all.
    dialects = [backend for backend in fixture.steps if BACKENDS[backend][0] == backend]
    assert {(kept.face, kept.backend) for kept in fixture.talks} >= {
        (face, backend) for face in FACES_OF_ALL for backend in dialects
    }
    left = {kept.name for kept in fixture.talks if kept.case != "deleted"}
    assert fixture.after.keys() == left
    assert sum(file.stat().st_size for file in fixture.folder.iterdir()) < MOST_BYTES


def test_each_backend_has_sessions_in_a_kept_journal() -> None:
    assert {one for name in KEPT for one in load(FOLDER / name).steps} == {*BACKENDS}


@pytest.mark.pages
async def test_the_next_journal_can_be_kept(tmp_path: Path) -> None:
    folder = tmp_path / "next"
    await write(folder, tmp_path, ["engine"])
    fixture = load(folder)
    made = [(kept.face, kept.case) for kept in fixture.talks]
    assert made == [(face, case) for face in FACES for case in cases_of(face, "engine", "engine")]
    assert len(fixture.after) == len(made) - len(FACES), "but for those that were deleted"


async def test_a_dialect_that_brings_its_person_has_its_sessions_in_a_journal(
    tmp_path: Path,
) -> None:
    async with (
        house.backends(["engine"]) as made,
        house.House(tmp_path, ManualClock(START), SeededIds(1), made) as running,
    ):
        talk = house.Talk(running, "new", "engine", "engine")
        for number in range(2):
            # An Engine's person stands for that of a dialect which this suite does not know.
            await talk.say_as_person(f"({number})\nscript: text")
            await made["engine"].advance(RUN_S)
            await talk.rests()
        entries = await stored_entries(running.sessions.journal, talk.id)
        received = [e.event for e in entries if isinstance(e.event, ev.MessageReceived)]
        assert [ev.text_of(event.content)[:3] for event in received] == ["(0)", "(1)"]
