"""What the index on disk does not know yet: the newest rows of sessions, kept by the writer, used
by readers.

The writer thread alone changes an `UnindexedRows`, after the commit that it follows. A reader
copies what it needs **before** it begins its read transaction: what has left the tail by then is in
the index that this transaction sees, what is in the copy is in `events`. So a reader may see an
entry twice, and never misses one.
"""

from __future__ import annotations

import dataclasses

import apsw


@dataclasses.dataclass(slots=True, eq=False)
class UnindexedRows:
    """The newest of one session.

    `last` is the last stored seq, `next` the one that the next write must begin with (ahead of
    `last` inside of a transaction). `rows` are the (first seq, row) pairs that are not indexed,
    `positions` the (row, position) of legs that are newer than the table, `at` the time of the
    newest write, `size` the bytes of events that `sessions.bytes` lacks.
    """

    last: int
    _: dataclasses.KW_ONLY
    erased: bool = False
    next: int = dataclasses.field(init=False)
    rows: list[tuple[int, int]] = dataclasses.field(init=False, default_factory=list)
    positions: dict[int, tuple[int, bytes]] = dataclasses.field(init=False, default_factory=dict)
    at: int = dataclasses.field(init=False, default=0)
    size: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.next = self.last + 1


def recover_tails(connection: apsw.Connection) -> dict[int, UnindexedRows]:
    """Return the tails of all sessions with rows above the indexed ones, from the file."""
    tails: dict[int, UnindexedRows] = {}
    stored = {
        (session, leg): row
        for session, leg, row in connection.execute(
            "SELECT session, leg, row FROM positions"
            " WHERE row > (SELECT value FROM meta WHERE name = 'indexed')"
        )
    }
    for row, session, first, count, leg, position, size in connection.execute(
        "SELECT row, session, first, count, leg, position, length(body) * (row > counted)"
        " FROM events JOIN sessions ON key = session"
        " WHERE row > (SELECT value FROM meta WHERE name = 'indexed') ORDER BY row"
    ):
        tail = tails.get(session)
        if tail is None:
            tail = tails[session] = UnindexedRows(first - 1)
        tail.rows.append((first, row))
        tail.last = first + count - 1
        tail.next = tail.last + 1
        tail.size += size
        if position is not None and row > stored.get((session, leg), 0):
            tail.positions[leg] = (row, position)
    return tails
