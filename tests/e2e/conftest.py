"""Starts what the end-to-end tests talk to, and stops it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.dragoman import Start, starting
from tests.support.running import Running

Run = Start[Running]


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    """Start a Dragoman over a scripted Engine."""
    async with starting(Running, tmp_path) as start:
        yield start
