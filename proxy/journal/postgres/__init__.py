"""The journal in a PostgreSQL database, which many processes may use."""

from __future__ import annotations

from proxy.journal.postgres.journal import PostgresJournal

__all__ = ["PostgresJournal"]
