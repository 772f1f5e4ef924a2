"""Where the legs of a session begin in its log: events name the frames of their leg by number, and
the numbers of each leg begin anew."""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from weakref import WeakKeyDictionary

from aiohttp import web

from adapters.model.events import Event, SessionUpdated
from proxy.control.api import TURNS
from proxy.entry.keys import SESSIONS
from proxy.fanout.hub import entry_of
from proxy.journal.base import Journal
from proxy.session import Session


def leg_begun(event: Event) -> int | None:
    """Return the number of the leg that begins with an event, None where none does."""
    if not isinstance(event, SessionUpdated) or event.backend is None:
        return None
    leg = event.backend.get("leg")
    return leg if isinstance(leg, int) else None


@dataclasses.dataclass(slots=True)
class LegStarts:
    """Where the legs of a session begin in its log, as far as that was read."""

    _seqs: list[int] = dataclasses.field(default_factory=lambda: [0])
    _numbers: list[int] = dataclasses.field(default_factory=lambda: [0])
    _read_to: int = 0
    _reading: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    def leg(self, seq: int) -> int:
        """Return the number of the leg that an event is in."""
        return self._numbers[bisect.bisect_right(self._seqs, seq) - 1]

    def start(self, seq: int) -> int:
        """Return the seq with which the leg of an event begins."""
        return self._seqs[bisect.bisect_right(self._seqs, seq) - 1]

    async def read(self, request: web.Request, session: Session, last: int) -> None:
        """Read the log up to a seq, unless it was. Of a session that never moved nothing is read,
        and of others nothing after its last move."""
        async with self._reading:
            if self._numbers[-1] == session.leg.number or self._read_to >= last:
                return
            journal = request.app[SESSIONS].journal
            async with aclosing(request.app[TURNS].of(self._moves(journal, session))) as read:
                async for _ in read:
                    if self._numbers[-1] == session.leg.number or self._read_to >= last:
                        return

    async def _moves(self, journal: Journal, session: Session) -> AsyncGenerator[None]:
        async for chunk in journal.scan(session.row.key, after=self._read_to):
            # To look for a few bytes takes a hundredth of the time of decoding events.
            for line in chunk.body.split(b"\n") if b'"leg":' in chunk.body else ():
                if b'"leg":' not in line or b'"session.updated"' not in line:
                    continue
                entry = entry_of(line, session.id)
                number = leg_begun(entry.event)
                if number is not None and entry.seq > self._seqs[-1]:
                    self._seqs.append(entry.seq)
                    self._numbers.append(number)
            self._read_to = chunk.first + chunk.count - 1
            yield


LEGS: web.AppKey[WeakKeyDictionary[Session, LegStarts]] = web.AppKey("legs", WeakKeyDictionary)
"""Where the legs of sessions in memory begin: what is read of a long log is read once."""
