"""Which sessions have a body that nobody read to its end: its client left, or reads still."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict


@dataclasses.dataclass(slots=True, eq=False)
class ReaderPresence:
    """The sessions, each with the dialect in which it was read, since a time (Unix ms)."""

    since: int
    _sessions: OrderedDict[tuple[str, str], bool] = dataclasses.field(
        default_factory=OrderedDict, init=False
    )

    def begin(self, session_id: str, dialect: str) -> None:
        """Record that a body begins."""
        self._set(session_id, dialect, unread=True)

    def end(self, session_id: str, dialect: str) -> None:
        """Record that a body was read to its end."""
        self._set(session_id, dialect, unread=False)

    def _set(self, session_id: str, dialect: str, *, unread: bool) -> None:
        self._sessions[session_id, dialect] = unread
        self._sessions.move_to_end((session_id, dialect))
        # The newest are remembered: a client that comes back does so within seconds.
        if len(self._sessions) > 10_000:
            self._sessions.popitem(last=False)

    def at(self, session_id: str, dialect: str, ended_at: int) -> bool:
        """Say whether the newest body, which ended at a time, was not read to its end. One that had
        no reader here and ended here was asked for before a restart."""
        return self._sessions.get((session_id, dialect), ended_at >= self.since)
