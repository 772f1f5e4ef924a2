"""Starts a Dragoman over one scripted backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.alone import Alone
from tests.support.dragoman import Start, starting


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Start[Alone]]:
    """Start a Dragoman over a scripted backend of any dialect."""
    async with starting(Alone, tmp_path) as start:
        yield start
