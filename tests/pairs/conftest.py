"""Builds the pair that a scenario is played in, and checks it afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.pairs.scenario import Play
from tests.pairs.world import World
from tests.support.journals import sqlite


@pytest.fixture
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """One pair, as `scenario` says; at the end the laws and the never-dropped list are checked."""
    play: Play = request.param
    journal = sqlite(tmp_path) if play.stored else "memory:"
    async with World(
        play.frontend,
        play.backend,
        play.expect,
        journal=journal,
        pace=play.pace,
        settings=play.settings,
        faults=None if play.faults is None else play.faults(play.backend),
    ) as made:
        yield made
        if play.checked:
            await made.check()
