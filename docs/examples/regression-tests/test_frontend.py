"""The frontend, against recorded sessions: no backend, no key and no network."""

from __future__ import annotations

from typing import Any

import pytest
from frontend import Agent
from pytest_dragoman import DragomanBackend, Snapshot


@pytest.mark.dragoman(capture="captures/tool.ndjson", serve="herm")
def test_it_shows_the_answer(
    dragoman_backend: DragomanBackend, dragoman_snapshot: Snapshot
) -> None:
    agent = Agent(dragoman_backend.url)
    assert agent.ask("script: tool", approve=lambda tool, given: True)
    dragoman_snapshot(dragoman_backend.log(), "tool", ignore=("usage",))


# An eve was recorded, and is asked as a Herm is. The seed cuts the stream while the agent asks.
@pytest.mark.dragoman(capture="captures/approval.ndjson", serve="herm", faults=177)
def test_a_person_approves_although_the_stream_breaks(
    dragoman_backend: DragomanBackend, dragoman_snapshot: Snapshot
) -> None:
    asked: list[tuple[str, Any]] = []

    def approve(tool: str, given: Any) -> bool:
        asked.append((tool, given))
        return True

    agent = Agent(dragoman_backend.url)
    answer = agent.ask("script: approve", approve)
    assert asked == [("bash", {"command": "rm -rf /srv/exports/2024"})]
    assert answer.endswith("Done, 4.1 GB freed. (turn 1)")
    assert agent.reconnects == 1
    dragoman_snapshot(dragoman_backend.log(), "approval", ignore=("usage",))
