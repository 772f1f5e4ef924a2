"""What a transaction of the SQLite journal does: plain functions, called in the writer's thread.

A `Transaction` gathers the rows of events, to insert them at once, and what changes in memory when
it commits. Everything here may be rolled back: of an `UnindexedRows` nothing but `next` and
`erased` changes before the commit, and `undo` puts these back.

Why one module: what a transaction may change, one function for each change.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, cast

import apsw

from proxy.base.errors import NameTaken, SessionClosed, SessionNotFound
from proxy.base.rows import BackendRow, CodecRow, NewSession, ShareRow, StoredSnapshot
from proxy.journal._frames import FrameBatch, pack_frames
from proxy.journal._unindexed_rows import UnindexedRows
from proxy.journal.base import OF_WORDS, Write

ERASE_ROWS = 512
"""Rows that one transaction of a deletion erases, so that a long session's end does not stop the
others.
"""

INSERT_INDEX = "INSERT OR REPLACE INTO event_index (session, first, row) VALUES (?, ?, ?)"
INSERT_POSITION = (
    "INSERT OR REPLACE INTO positions (session, leg, row, position) VALUES (?, ?, ?, ?)"
)
INSERT_EVENT = (
    "INSERT INTO events (row, session, first, count, leg, position, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)

INSERT_ROWS = 32
"""Rows of events that one statement inserts. Each statement hands Python's lock over twice, which
under load takes longer than the statement; there is a prepared one for each number of rows."""


@functools.cache
def _of_rows(statement: str, rows: int) -> str:
    insert, _, values = statement.partition(" VALUES ")
    return f"{insert} VALUES {', '.join([values] * rows)}"


def insert_rows(
    connection: apsw.Connection, statement: str, rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert many rows by few statements; `statement` is that for one."""
    for start in range(0, len(rows), INSERT_ROWS):
        some = rows[start : start + INSERT_ROWS]
        values = tuple(itertools.chain.from_iterable(some))
        connection.execute(_of_rows(statement, len(some)), values)


class Mark(NamedTuple):
    """How much a transaction has gathered at some point."""

    notes: int = 0
    after: int = 0
    undone: int = 0
    row: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class Transaction:
    """What one transaction has gathered.

    It begins in the database as soon as more than one statement is needed there. `row` is the
    newest row's number, `rows` are not yet inserted, `notes` are (tail, session, first, row, last,
    at, leg, position, size) for each row of the transaction. `after` is called after the commit,
    `undone` when it does not happen. `freed` says that pages may have become free.
    """

    connection: apsw.Connection
    tails: dict[int, UnindexedRows]
    row: int
    rows: list[tuple[int, int, int, int, int, bytes | None, bytes]] = dataclasses.field(
        init=False, default_factory=list
    )
    notes: list[tuple[UnindexedRows, int, int, int, int, int, int, bytes | None, int]] = (
        dataclasses.field(init=False, default_factory=list)
    )
    after: list[Callable[[], None]] = dataclasses.field(init=False, default_factory=list)
    undone: list[Callable[[], None]] = dataclasses.field(init=False, default_factory=list)
    freed: bool = dataclasses.field(init=False, default=False)
    begun: bool = dataclasses.field(init=False, default=False)

    def begin(self) -> None:
        """Begin in the database, unless it has."""
        if not self.begun:
            self.connection.execute("BEGIN IMMEDIATE")
            self.begun = True

    def append(
        self,
        tail: UnindexedRows,
        session: int,
        first: int,
        count: int,
        body: bytes,
        at: int,
        leg: int = 0,
        position: bytes | None = None,
    ) -> None:
        """Add a row of events; the caller knows that `first` is next."""
        self.row = row = self.row + 1
        self.rows.append((row, session, first, count, leg, position, body))
        tail.next = following = first + count
        size = len(body)
        self.notes.append((tail, session, first, row, following - 1, at, leg, position, size))

    def flush(self) -> None:
        """Insert the rows; where they are all there is, in one statement that commits itself."""
        rows = self.rows
        if len(rows) > INSERT_ROWS:
            self.begin()
        insert_rows(self.connection, INSERT_EVENT, rows)
        rows.clear()

    def tail(self, session: int) -> UnindexedRows:
        """Return the tail of a session that takes writes, from the file when it is not known.

        Raises:
            SessionNotFound: there is no such session.
            SessionClosed: it was deleted.
        """
        tail = self.tails.get(session)
        if tail is None:
            found = self.connection.execute(
                "SELECT pruned, erased_at, coalesce(("
                "  SELECT i.first + e.count - 1 FROM event_index i JOIN events e ON e.row = i.row"
                "  WHERE i.session = key ORDER BY i.first DESC LIMIT 1"
                "), 0) FROM sessions WHERE key = ?",
                (session,),
            ).fetchone()
            if found is None:
                raise SessionNotFound(f"there is no session with key {session}")
            pruned, erased_at, last = found
            tail = UnindexedRows(max(pruned, last), erased=erased_at is not None)
            self.tails[session] = tail
        if tail.erased:
            raise SessionClosed(f"session {session} was deleted")
        return tail

    def mark(self) -> Mark:
        """Return where the transaction stands, for `undo`."""
        return Mark(len(self.notes), len(self.after), len(self.undone), self.row)

    def undo(self, mark: Mark) -> None:
        """Put the memory back to where it was at `mark`; rows since then are not inserted, or
        rolled back.
        """
        self.rows.clear()
        for tail, _, first, *_ in reversed(self.notes[mark.notes :]):
            tail.next = first
        for callback in reversed(self.undone[mark.undone :]):
            callback()
        del self.notes[mark.notes :], self.after[mark.after :], self.undone[mark.undone :]
        self.row = mark.row


def insert_session(transaction: Transaction, new: NewSession) -> UnindexedRows:
    """Store a session with its first leg, and return its tail.

    Raises:
        NameTaken: the id or an alias is taken.
    """
    connection = transaction.connection
    row = new.row
    key = row.key
    try:
        connection.execute(
            "INSERT INTO sessions (key, id, owner, route, dialect, created_at, secret, updated_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                key,
                row.id,
                row.owner,
                row.route,
                row.dialect,
                row.created_at,
                row.secret,
                row.updated_at,
            ),
        )
    except apsw.ConstraintError as error:
        raise NameTaken(f"there is a session `{row.id}` already") from error
    connection.execute(
        "INSERT INTO legs (session, number, backend, native_id) VALUES (?, 0, ?, ?)",
        (key, new.backend, new.native_id),
    )
    if new.succeeds is not None:
        connection.executemany(
            "DELETE FROM aliases WHERE owner = ? AND route = ? AND kind = ? AND name = ?"
            " AND session IN (SELECT key FROM sessions WHERE key = ? AND state = 'expired')",
            [(row.owner, row.route, kind, name, new.succeeds) for kind, name in new.aliases],
        )
    for kind, name in new.aliases:
        add_alias(connection, row.owner, row.route, kind, name, key)
    take_aliases(connection, row.owner, row.route, new.takes, key)
    if new.codec is not None:
        insert_codec(connection, key, new.codec)
    tails = transaction.tails
    tail = tails[key] = UnindexedRows(0)
    transaction.undone.append(lambda: tails.__delitem__(key))
    return tail


_UNCHANGED = (None, None, None, None)


def apply_rest(transaction: Transaction, write: Write, tail: UnindexedRows) -> None:
    """Store the parts of a write that few writes have.

    Raises:
        NameTaken: an alias is another session's.
        SessionNotFound: the leg does not exist.
    """
    session = write.session
    connection = transaction.connection
    if write.commands:
        connection.executemany(
            "INSERT OR REPLACE INTO commands (session, number, command_id, status, body, at)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            [(session, c.number, c.command_id, c.status, c.body, c.at) for c in write.commands],
        )
    if (new := write.new_leg) is not None:
        connection.execute(
            "INSERT INTO legs (session, number, backend, native_id, resumes)"
            " VALUES (?, ?, ?, ?, ?)",
            (session, new.number, new.backend, new.native_id, new.resumes),
        )
    # Apart: nearly every write has a state, and a name that is named is put into its index again.
    for column, value in (("state", write.leg_state), ("native_id", write.native_id)):
        if value is None:
            continue
        connection.execute(
            f"UPDATE legs SET {column} = ? WHERE session = ? AND number = ?",
            (value, session, write.leg),
        )
        if not connection.changes():
            raise SessionNotFound(f"session {session} has no leg {write.leg}")
    if (write.state, write.title, write.archived_at, write.outcome) != _UNCHANGED:
        connection.execute(
            "UPDATE sessions SET state = coalesce(?, state), title = coalesce(?, title),"
            " archived_at = coalesce(?, archived_at),"
            " outcome = coalesce(?, outcome), updated_at = max(updated_at, ?),"
            # Anybody who deletes it erases it next, or the next start does.
            " erasing = max(erasing, ?) WHERE key = ?",
            (
                write.state,
                write.title,
                write.archived_at,
                write.outcome,
                write.at,
                write.state == "deleted",
                session,
            ),
        )
    if write.position is not None and not write.count:
        _store_position(transaction, write, tail)
    if write.aliases or write.takes:
        owners = connection.execute(
            "SELECT owner, route FROM sessions WHERE key = ?", (session,)
        ).fetchall()
        for owner, route in cast("list[tuple[str, str]]", owners):
            for kind, name in write.aliases:
                add_alias(connection, owner, route, kind, name, session)
            take_aliases(connection, owner, route, write.takes, session)
    for sha256 in write.blobs:
        connection.execute(
            "INSERT OR IGNORE INTO session_blobs (session, sha256) VALUES (?, ?)", (session, sha256)
        )
        if connection.changes():
            connection.execute(
                "UPDATE sessions SET bytes = bytes + coalesce("
                "(SELECT size FROM blobs WHERE sha256 = ?), 0) WHERE key = ?",
                (sha256, session),
            )


def _store_position(transaction: Transaction, write: Write, tail: UnindexedRows) -> None:
    """Store a position that comes without events: there is no row to carry it."""
    row = transaction.row
    leg = write.leg
    transaction.connection.execute(INSERT_POSITION, (write.session, leg, row, write.position))

    def forget_older() -> None:
        if leg in tail.positions and tail.positions[leg][0] <= row:
            del tail.positions[leg]

    transaction.after.append(forget_older)


def add_alias(
    connection: apsw.Connection, owner: str, route: str, kind: str, name: str, session: int
) -> None:
    """Give a session a name; having it already is not a fault.

    Raises:
        NameTaken: the name is another session's.
    """
    connection.execute(
        "INSERT INTO aliases (owner, route, kind, name, session) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET session = session WHERE session = excluded.session",
        (owner, route, kind, name, session),
    )
    if not connection.changes():
        raise NameTaken(f"the {kind} `{name}` is another session's on route `{route}`")


def take_aliases(
    connection: apsw.Connection,
    owner: str,
    route: str,
    names: Sequence[tuple[str, str]],
    session: int,
) -> None:
    """Give a session names, no matter who had them."""
    connection.executemany(
        "INSERT OR REPLACE INTO aliases (owner, route, kind, name, session) VALUES (?, ?, ?, ?, ?)",
        [(owner, route, kind, name, session) for kind, name in names],
    )


def keep_backends(connection: apsw.Connection, backends: Sequence[BackendRow]) -> None:
    """Keep what backends are; a start that changes nothing needs no room on the disk."""
    connection.executemany(
        "INSERT INTO backends (name, dialect, url) VALUES (?, ?, ?) ON CONFLICT DO UPDATE"
        " SET dialect = excluded.dialect, url = excluded.url"
        " WHERE dialect <> excluded.dialect OR url <> excluded.url",
        [(backend.name, backend.dialect, backend.url) for backend in backends],
    )


def keep_shares(connection: apsw.Connection, route: str, shares: Sequence[ShareRow]) -> None:
    """Keep the shares of a route in the place of those that were kept."""
    connection.execute("DELETE FROM shares WHERE route = ?", (route,))
    connection.executemany(
        "INSERT INTO shares (route, number, backend, weight) VALUES (?, ?, ?, ?)",
        [(route, number, share.backend, share.weight) for number, share in enumerate(shares)],
    )


def insert_frames(connection: apsw.Connection, batch: FrameBatch) -> None:
    """Store a batch of frames, unless its session was deleted."""
    data = pack_frames(batch.frames)
    connection.execute(
        "INSERT INTO frames (session, leg, last, at, data) SELECT key, ?, ?, ?, ? FROM sessions"
        " WHERE key = ? AND erased_at IS NULL",
        (batch.leg, batch.last, batch.at, data, batch.session),
    )
    if connection.changes():
        connection.execute(
            "UPDATE sessions SET bytes = bytes + ? WHERE key = ?", (len(data), batch.session)
        )


def prune_frames(transaction: Transaction, before: int, limit: int) -> int:
    """Erase up to `limit` batches of frames older than `before` and return how many it were."""
    connection = transaction.connection
    pruned = connection.execute(
        "DELETE FROM frames WHERE row IN (SELECT row FROM frames WHERE at < ? LIMIT ?)"
        " RETURNING length(data), session",
        (before, limit),
    ).fetchall()
    connection.executemany("UPDATE sessions SET bytes = max(bytes - ?, 0) WHERE key = ?", pruned)
    transaction.freed = transaction.freed or bool(pruned)
    return len(pruned)


def may_expire(transaction: Transaction, session: int, unless_after: int) -> bool:
    """Say whether nothing is open in a session, and nothing happened in it after `unless_after`."""
    found = transaction.connection.execute(
        "SELECT updated_at FROM sessions"
        " WHERE key = ? AND erased_at IS NULL AND state IN ('idle', 'ended')",
        (session,),
    ).fetchone()
    if found is None:
        return False
    tail = transaction.tails.get(session)
    newest = found[0] if tail is None else max(found[0], tail.at)
    return newest <= unless_after and not any(note[1] == session for note in transaction.notes)


def insert_codec(connection: apsw.Connection, session: int, codec: CodecRow) -> None:
    """Fix a dialect's codec for a session, unless it is."""
    connection.execute(
        "INSERT INTO codecs (session, dialect, version, settings) VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        (session, codec.dialect, codec.version, codec.settings),
    )


def keep_codec(connection: apsw.Connection, session: int, codec: CodecRow) -> CodecRow:
    """Fix a dialect's codec for a session, unless it is, and return the one that holds."""
    insert_codec(connection, session, codec)
    held = connection.execute(
        "SELECT dialect, version, settings FROM codecs WHERE session = ? AND dialect = ?",
        (session, codec.dialect),
    ).fetchone()
    return CodecRow(*cast("tuple[str, int, bytes]", held))


def insert_snapshot(connection: apsw.Connection, session: int, snapshot: StoredSnapshot) -> None:
    """Store a snapshot in the place of the one with the same cursor, unless its session was
    deleted.
    """
    connection.execute(
        "INSERT OR REPLACE INTO snapshots (session, kind, version, cursor, seq, data)"
        " SELECT key, ?, ?, ?, ?, ? FROM sessions WHERE key = ? AND erased_at IS NULL",
        (
            snapshot.kind,
            snapshot.version,
            snapshot.cursor,
            snapshot.seq,
            zlib.compress(snapshot.data, level=1),
            session,
        ),
    )


def begin_erasing(
    transaction: Transaction,
    session: int,
    at: int,
    fresh: Collection[str],
    *,
    state: str = "deleted",
) -> UnindexedRows | None:
    """Make a tombstone of a session and return its tail, whose rows are in the index then; None if
    it is one. Its state is `state` from then on.

    `erase_some` erases the rows afterwards. `fresh` are blobs that were put and not named by any
    session yet: they may be named next.

    Raises:
        SessionNotFound: there is no such session.
    """
    try:
        tail = transaction.tail(session)
    except SessionClosed:
        return None
    connection = transaction.connection
    connection.executemany(INSERT_INDEX, [(session, first, row) for first, row in tail.rows])
    connection.executemany(
        INSERT_INDEX,
        [(session, note[2], note[3]) for note in transaction.notes if note[0] is tail],
    )
    connection.execute(
        "UPDATE sessions SET state = ?, title = NULL, secret = x'', pruned = ?, bytes = 0,"
        " updated_at = max(updated_at, ?), erased_at = ?, erasing = 1 WHERE key = ?",
        (state, tail.next - 1, at, at, session),
    )
    connection.execute("UPDATE legs SET state = NULL WHERE session = ?", (session,))
    connection.execute("DELETE FROM positions WHERE session = ?", (session,))
    connection.execute("DELETE FROM commands WHERE session = ?", (session,))
    connection.execute("DELETE FROM codecs WHERE session = ?", (session,))
    connection.executemany(
        "DELETE FROM aliases WHERE session = ? AND kind = ?", [(session, kind) for kind in OF_WORDS]
    )
    blobs = cast(
        "list[tuple[str]]",
        connection.execute(
            "DELETE FROM session_blobs WHERE session = ? RETURNING sha256", (session,)
        ).fetchall(),
    )
    erase_blobs(connection, [name for (name,) in blobs if name not in fresh])
    tail.erased = True
    transaction.undone.append(lambda: setattr(tail, "erased", False))
    return tail


def erase_blobs(connection: apsw.Connection, names: Iterable[str]) -> None:
    """Erase those of these blobs that no session names."""
    connection.executemany(
        "DELETE FROM blobs WHERE sha256 = ?1"
        " AND NOT EXISTS (SELECT 1 FROM session_blobs WHERE sha256 = ?1)",
        [(name,) for name in names],
    )


def erase_unnamed(connection: apsw.Connection) -> bool:
    """Erase the blobs that a crash left between their own transaction and that of the session which
    was to name them; say whether there were any."""
    connection.execute(
        "DELETE FROM blobs WHERE NOT EXISTS"
        " (SELECT 1 FROM session_blobs WHERE session_blobs.sha256 = blobs.sha256)"
    )
    return connection.changes() > 0


def erase_some(connection: apsw.Connection, session: int) -> bool:
    """Erase some of a deleted session's rows and say whether there may be more."""
    rows = connection.execute(
        "DELETE FROM event_index WHERE (session, first) IN"
        " (SELECT session, first FROM event_index WHERE session = ? LIMIT ?) RETURNING row",
        (session, ERASE_ROWS),
    ).fetchall()
    connection.executemany("DELETE FROM events WHERE row = ?", rows)
    connection.execute(
        "DELETE FROM frames WHERE row IN (SELECT row FROM frames WHERE session = ? LIMIT ?)",
        (session, ERASE_ROWS),
    )
    erased = max(len(rows), connection.changes())
    connection.execute(
        "DELETE FROM snapshots WHERE row IN (SELECT row FROM snapshots WHERE session = ? LIMIT ?)",
        (session, ERASE_ROWS),
    )
    if max(erased, connection.changes()) >= ERASE_ROWS:
        return True
    connection.execute("UPDATE sessions SET erasing = 0 WHERE key = ?", (session,))
    return False
