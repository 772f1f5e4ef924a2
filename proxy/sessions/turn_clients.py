"""Who reads a turn at a face and stops it by leaving."""

from __future__ import annotations

import dataclasses
from collections import Counter

from proxy.base.clock import Clock
from proxy.session import Session


@dataclasses.dataclass(slots=True, eq=False)
class TurnClients:
    """The clients of a face whose leaving would interrupt a turn, by session."""

    _of: Counter[str] = dataclasses.field(default_factory=Counter, init=False)

    def add(self, session_id: str) -> None:
        """Record that a client reads a turn, and stops it when it leaves."""
        self._of[session_id] += 1

    def remove(self, session_id: str) -> None:
        """Record that it reads no more, and has stopped what it was to stop."""
        self._of[session_id] -= 1
        if not self._of[session_id]:
            del self._of[session_id]

    async def gone(self, session: Session, clock: Clock) -> None:
        """Wait until a client has left that stops the turn which runs: who says something new has
        left what was said before. For one that stays this waits in vain."""
        # A connection that its client has closed before, or is about to, may tell of that a little
        # later. Ours.
        due = clock.monotonic() + 2.0
        while self._of[session.id] and session.working and not session.closed:
            state, left = session.state, due - clock.monotonic()
            if state.stopping or state.stopped or left <= 0:
                return
            await clock.wait(session.news(), left)
