"""Snapshots of a session's state: what is in them beside the fold of the log, and when to take one.

They are a cache. Without one the whole log is folded when the session is loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from adapters.model import events as ev
from adapters.model.session_info import SessionInfo
from adapters.model.state import SNAPSHOT_SHAPE, LogState
from adapters.model.stored import adapter_of
from adapters.wire.jsonvalue import format_json, parse_json
from proxy.base.errors import reading_back
from proxy.base.repeats import RecentRequests
from proxy.base.rows import SessionRow, StoredSnapshot
from proxy.fanout.hub import SNAPSHOT_MOST
from proxy.journal.base import Journal
from proxy.session.messages import HEARD, MessageResult, MessageTracker
from proxy.session.outbox import Outbox
from proxy.session.start_times import HEARD as TIMED
from proxy.session.start_times import StartTimes

SNAPSHOT_ENTRIES = 128
"""Entries between two snapshots of a session's state: loading folds at most about as many, 1.5
ms."""

SNAPSHOT_SHARE = 2048
"""Bytes of a snapshot of the state for each entry since the one before: a larger one, above 256 KiB
by a long open block, is rarer. Only the newest is kept."""

_ABOUT = adapter_of(SessionInfo)

STATE = "state"
"""The kind of the snapshots of a session's state."""


def may_have_one(row: SessionRow) -> bool:
    """Say whether the log of a session is long enough for a snapshot of its state."""
    return row.last_seq > SNAPSHOT_ENTRIES


async def told(journal: Journal, row: SessionRow) -> tuple[SessionInfo, int]:
    """Return what the events up to some seq say of what a session is, and that seq: what is after
    it is to be read."""
    if not may_have_one(row):
        return SessionInfo(), 0
    found = await journal.snapshot(row.key, STATE, SNAPSHOT_SHAPE)
    if found is None:
        return SessionInfo(), 0
    with reading_back(f"a snapshot of session `{row.id}`"):
        value: Any = parse_json(found.data)
        return _ABOUT.validate_python(value["state"]["about"]), found.seq


@dataclasses.dataclass(slots=True, eq=False)
class Snapshots:
    """Takes the snapshots of one session.

    `due` is the seq from which on the next one is taken. `requests` are those that gave the newest
    inputs, `messages` those that are not over, `times` are those of what is open. `key` is the
    journal's for the session.
    """

    key: int
    outbox: Outbox
    _taken: int = dataclasses.field(default=0, init=False)
    due: int = dataclasses.field(init=False)
    requests: RecentRequests = dataclasses.field(default_factory=RecentRequests, init=False)
    messages: MessageTracker = dataclasses.field(default_factory=MessageTracker, init=False)
    times: StartTimes = dataclasses.field(default_factory=StartTimes, init=False)

    def __post_init__(self) -> None:
        # Sessions that began together, as after an outage, do not all take theirs at once.
        self.due = SNAPSHOT_ENTRIES - self.key % SNAPSHOT_ENTRIES // 2

    def hear(self, event: ev.Event, at: int) -> Sequence[MessageResult]:
        """Hear an event for what of it outlives the log's fold; return the messages that end with
        it."""
        self.requests.hear(event, at)
        if event.TYPE in TIMED:
            self.times.hear(event, at)
        return self.messages.hear(event) if event.TYPE in HEARD else ()

    def take(self, state: LogState) -> StoredSnapshot | None:
        """Return a snapshot when it is time for one; it is stored when the entries are."""
        if state.seq < self.due:
            return None
        data = b'{"owed":%b,"messages":%b,"requests":%b,"times":%b,"state":%b}' % (
            format_json(sorted(self.outbox.owed)),
            format_json(self.messages.dump()),
            format_json(self.requests.dump()),
            format_json(self.times.dump()),
            state.snapshot(),
        )
        if len(data) > SNAPSHOT_MOST:
            self.due = state.seq + SNAPSHOT_MOST // SNAPSHOT_SHARE
            return None
        due = self._taken + len(data) // SNAPSHOT_SHARE
        if state.seq < due:
            self.due = due
            return None
        self._taken = state.seq
        self.due = state.seq + SNAPSHOT_ENTRIES
        return StoredSnapshot(STATE, SNAPSHOT_SHAPE, 0, state.seq, data)

    def restore(self, data: bytes) -> LogState:
        """Put back what a snapshot has, and return the state in it.

        Raises:
            ValueError, TypeError, KeyError: it is of no use.
        """
        value: Any = parse_json(data)
        state = LogState.restore(format_json(value["state"]))
        owed = set(value["owed"])
        self.messages.restore(value["messages"])
        self.requests.restore(value["requests"])
        if "times" in value:
            # Snapshots of earlier releases have none.
            self.times.restore(value["times"])
        self.outbox.restore(owed)
        return state

    def begin_at(self, seq: int) -> None:
        """Record that the newest snapshot is of this seq, or that there is none: of 0."""
        self._taken = seq
        self.due += seq
