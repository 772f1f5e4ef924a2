"""Makes the tables of open-managed-agents, whose wheel brings no migrations. It runs in the
server's own environment.
"""

from __future__ import annotations

import asyncio

# mypy: disable-error-code="import-not-found,unused-ignore"
import app.db.models  # noqa: F401 - registers the tables
from app.db.engine import get_engine
from app.db.models._base import Base


async def main() -> None:
    """Make the tables that are missing."""
    async with get_engine().connect() as connection:
        # A connection that a reader leaves open holds up no writer then; the file keeps it.
        await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    async with get_engine().begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


asyncio.run(main())
