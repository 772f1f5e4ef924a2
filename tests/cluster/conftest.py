"""A PostgreSQL server, and what starts a scripted Engine."""

from __future__ import annotations

from tests.journal.conftest import postgres
from tests.support.dragoman import starts
from tests.support.running import Running

__all__ = ["postgres", "run"]

run = starts(Running)
