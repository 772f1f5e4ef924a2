"""Which session shadows which: a shadow is a session of its own, and both know it by an alias."""

from __future__ import annotations

from collections.abc import Iterable

from proxy.base.errors import SessionNotFound
from proxy.base.rows import AliasKind, SessionRow
from proxy.config.settings import SHADOWS
from proxy.journal.base import Journal

GONE = frozenset({"deleted", "expired"})
"""The states of sessions whose names alone are stored."""


def shadowed(backend: str, session_id: str) -> tuple[str, str]:
    """Return the alias of a session that a backend shadows."""
    return (AliasKind.SHADOWED, f"{backend}/{session_id}")


def shadow_backend(names: Iterable[tuple[str, str]]) -> str | None:
    """Return the backend that shadows a session, from its aliases."""
    found = (name for kind, name in names if kind == AliasKind.SHADOWED)
    return next((name.partition("/")[0] for name in found), None)


def shadowed_by(names: Iterable[tuple[str, str]]) -> str | None:
    """Return the id of the session that a shadow shadows, from the shadow's aliases."""
    return next((name for kind, name in names if kind == AliasKind.SHADOW), None)


async def shadow_at(journal: Journal, backend: str, session_id: str) -> str | None:
    """Return the id of the shadow that a session has at a backend, one that is gone too."""
    return await journal.resolve(
        owner=SHADOWS, route=backend, kind=AliasKind.SHADOW, name=session_id
    )


async def shadow_of(journal: Journal, row: SessionRow) -> SessionRow | None:
    """Return the shadow of a session, if it has one."""
    backend = shadow_backend(await journal.aliases(row.key))
    found = None if backend is None else await shadow_at(journal, backend, row.id)
    if found is None:
        return None
    try:
        return await journal.session(found)
    except SessionNotFound:
        return None
