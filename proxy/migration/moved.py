"""The sessions that moved: from where, to where a rollback leads, and how their turns went since.

All of it is read from the journal, so that a restart forgets nothing of it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from adapters.model import events as ev
from proxy.base.errors import CursorExpired, JournalCorrupt
from proxy.base.rows import BackendBinding, SessionRow
from proxy.config.settings import SHADOWS
from proxy.fanout.hub import entry_of
from proxy.journal.base import Journal

MOVABLE = ("idle", "running", "paused")
"""The states of sessions that a move does not refuse for ever."""

FAILING = frozenset({"failed", "refused"})
"""The outcomes of turns that speak against a backend. One that a person stopped, or that came to a
limit of the agent, speaks neither for nor against it."""

_TOLD = (b'"turn.ended"', b'"input.settled"', b'"session.updated"')
"""What the lines have that are decoded; the others, which are many more, are not."""


@dataclasses.dataclass(slots=True)
class TurnResults:
    """Turns that succeeded, and how many failed or were refused, by the code of the reason."""

    succeeded: int = 0
    failed: Counter[str] = dataclasses.field(default_factory=Counter)


@dataclasses.dataclass(frozen=True, slots=True)
class MovedSession:
    """A session that is at `backend` since its last move and was at `before`; `taken_back` says
    whether that move was a rollback, and `back` where the next one leads, None where there is
    nothing to take back."""

    id: str
    backend: str
    before: str
    taken_back: bool
    back: str | None
    turns: TurnResults


async def moved_sessions(
    journal: Journal, rows: Iterable[SessionRow], since: int | None
) -> list[MovedSession]:
    """Return those of `rows` that moved, with the turns that ended since a time, in Unix
    milliseconds, or with none.

    Raises:
        JournalError: the journal cannot be read.
    """
    out = []
    for row in rows:
        legs = [] if row.owner == SHADOWS else await journal.legs(row.key)
        if len(legs) < 2:
            continue
        turns = (
            TurnResults() if since is None else await _turns(journal, row, legs[-1].number, since)
        )
        back = left_by_the_last_move(legs)
        out.append(
            MovedSession(
                row.id,
                legs[-1].backend,
                legs[-2].backend,
                legs[-1].resumes is not None,
                None if back is None else back.backend,
                turns,
            )
        )
    return out


def left_by_the_last_move(legs: Sequence[BackendBinding]) -> BackendBinding | None:
    """Return the newest leg at the backend session that the last move left, None where there is
    nothing to take back."""
    began = legs[-1].first
    if began == 0:
        return None
    left = legs[began - 1].first
    return next(leg for leg in reversed(legs) if leg.first == left)


async def _turns(journal: Journal, row: SessionRow, leg: int, since: int) -> TurnResults:
    """Return the turns of a session in its newest leg."""
    turns = TurnResults()
    if row.updated_at < since:
        return turns
    try:
        async for chunk in journal.scan(row.key):
            for line in chunk.body.splitlines():
                if any(told in line for told in _TOLD):
                    turns = _after(turns, entry_of(line, row.id), leg, since)
    except (CursorExpired, JournalCorrupt):
        # One that went, or is damaged, must not hide how all others do.
        return TurnResults()
    return turns


def _after(turns: TurnResults, entry: ev.Entry, leg: int, since: int) -> TurnResults:
    event = entry.event
    if isinstance(event, ev.SessionUpdated) and (event.backend or {}).get("leg") == leg:
        return TurnResults()
    if entry.at < since or event.thread_id != ev.MAIN:
        return turns
    match event:
        case ev.TurnEnded(outcome="completed"):
            turns.succeeded += 1
        case ev.TurnEnded(outcome=outcome, error=error) if outcome in FAILING:
            turns.failed[str(outcome) if error is None else error.code] += 1
        case ev.InputSettled(outcome="refused", error=error):
            turns.failed["refused" if error is None else error.code] += 1
        case _:
            pass
    return turns
