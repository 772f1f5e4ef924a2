"""The ids that a face makes: those of two sessions are never equal, here or elsewhere."""

from __future__ import annotations

import hashlib


def ids_of(kind: str, session_id: str) -> str:
    """Return what stands before the numbers in a session's ids of a kind. Histories travel: a page
    may hold the messages of another session, of another server too."""
    return f"{kind}{hashlib.sha256(session_id.encode()).hexdigest()[:16]}-"
