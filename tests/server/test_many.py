"""A backend that says something by the thousand in one turn: the log has its bounds and its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters import events as ev
from tests.server.test_huge_frames import conversation, slipped
from tests.support.many import many

COUNT = 1_500

MOST = {"ManyCalls": ev.MOST_CALLS, "ManyChildren": ev.MOST_CHILDREN, "ManyAsks": ev.MOST_OPEN}
TYPE = {
    "ManyCalls": "tool.called",
    "ManyChildren": "thread.started",
    "ManyAsks": "interaction.requested",
}


@pytest.mark.parametrize("kind", MOST)
@pytest.mark.parametrize("dialect", ["eve", "herm"])
async def test_what_is_opened_by_the_thousand_is_taken_up_to_its_bound(
    tmp_path: Path, dialect: str, kind: str
) -> None:
    data = many(kind, dialect, COUNT)
    async with slipped(tmp_path, dialect, data, 4) as dragoman:
        events = await conversation(dragoman)
    types = [event["type"] for event in events]
    assert types.count(TYPE[kind]) == MOST[kind]
    assert types.count("error.reported") >= COUNT // 100
