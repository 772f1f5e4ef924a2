"""Which sessions have a body that nobody read to its end: its client left, or is about to."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Unread"]

MOST = 10_000
"""Sessions that are remembered, the newest: a client that comes back does so within seconds."""


class Unread:
    """The sessions, each with the dialect in which it was read."""

    __slots__ = ("_sessions",)

    def __init__(self) -> None:
        self._sessions: OrderedDict[tuple[str, str], None] = OrderedDict()

    def begin(self, session_id: str, dialect: str) -> None:
        """Record that a body begins."""
        self._sessions[session_id, dialect] = None
        self._sessions.move_to_end((session_id, dialect))
        if len(self._sessions) > MOST:
            self._sessions.popitem(last=False)

    def end(self, session_id: str, dialect: str) -> None:
        """Record that a body was read to its end."""
        self._sessions.pop((session_id, dialect), None)

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._sessions
