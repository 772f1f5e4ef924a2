"""Nobody waits for a backend that says something by the thousand in one turn, and no log is without
its end for it: no turn of the event loop takes more than 20 ms."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters import events as ev
from tests.server.test_huge_frames import conversation, slipped
from tests.support.many import many

COUNT = 1_500

ATTEMPTS = 3
"""A turn counts as long where it is so each time: beside another program on the core the same work
takes two or three times the CPU now and then."""

MOST = {"ManyCalls": ev.MOST_CALLS, "ManyChildren": ev.MOST_CHILDREN, "ManyAsks": ev.MOST_OPEN}
TYPE = {
    "ManyCalls": "tool.called",
    "ManyChildren": "thread.started",
    "ManyAsks": "interaction.requested",
}


@pytest.mark.parametrize("kind", MOST)
@pytest.mark.parametrize("dialect", ["eve", "herm"])
async def test_what_is_opened_by_the_thousand_is_taken_calmly(
    tmp_path: Path, dialect: str, kind: str
) -> None:
    data = many(kind, dialect, COUNT)
    over: list[int] = []
    while len(over) < ATTEMPTS:
        folder = tmp_path / str(len(over))
        folder.mkdir()
        async with slipped(folder, dialect, data, 4) as dragoman:
            before = await dragoman.turns()
            events = await conversation(dragoman)
            over.append((await dragoman.turns()).over - before.over)
        types = [event["type"] for event in events]
        assert types.count(TYPE[kind]) == MOST[kind]
        assert types.count("error.reported") >= COUNT // 100
        if not over[-1]:
            break
    assert min(over) == 0, over
