"""Since when what is open in a session is open: its turns, and what it asks people."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.model import events as ev

HEARD = frozenset(
    one.TYPE
    for one in (
        ev.TurnStarted,
        ev.TurnPaused,
        ev.TurnResumed,
        ev.TurnEnded,
        ev.InteractionRequested,
        ev.InteractionAnswered,
        ev.InteractionResolved,
    )
)
"""The types of the events that count for `StartTimes.hear`."""


@dataclasses.dataclass(slots=True, eq=False)
class StartTimes:
    """The times of what is open in one session, in Unix milliseconds.

    `turns` has, by thread, since when its turn waits for the same: since it began, paused or went
    on, or something that it asked was answered. `interactions` has when each was asked. What was
    open before a snapshot of an earlier release is not there.
    """

    turns: dict[str, int] = dataclasses.field(default_factory=dict)
    interactions: dict[str, int] = dataclasses.field(default_factory=dict)

    def hear(self, event: ev.Event, at: int) -> None:
        """Hear an event; only those of the types in `HEARD` count."""
        match event:
            case ev.TurnEnded():
                self.turns.pop(event.thread_id, None)
            case ev.InteractionRequested():
                self.interactions[event.request_id] = at
            case ev.InteractionResolved():
                self.interactions.pop(event.request_id, None)
            case ev.InteractionAnswered():
                if event.thread_id in self.turns:
                    self.turns[event.thread_id] = at
            case ev.TurnStarted() | ev.TurnPaused() | ev.TurnResumed():
                self.turns[event.thread_id] = at
            case _:
                pass

    def dump(self) -> list[dict[str, int]]:
        """Return what `restore` takes."""
        return [self.turns, self.interactions]

    def restore(self, value: Any) -> None:
        """Put back what `dump` gave.

        Raises:
            ValueError, TypeError: it is of no use.
        """
        turns, interactions = value
        self.turns, self.interactions = dict(turns), dict(interactions)
