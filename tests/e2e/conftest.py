"""Starts what the end-to-end tests talk to, and stops it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import Running, sqlite

Run = Callable[..., Awaitable[Running]]


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    """Start a Dragoman over a scripted Engine; with `journal="sqlite"` on a file."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(journal: Any = "memory:", **options: Any) -> Running:
            if journal == "sqlite":
                journal = sqlite(tmp_path)
            return await stack.enter_async_context(Running(journal, **options))

        yield start
