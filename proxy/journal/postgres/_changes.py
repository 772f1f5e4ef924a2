"""What a transaction of the PostgreSQL journal does: plain functions over a connection.

Nearly all writes have the same few parts: events, commands, the codec's state, the session's state.
`Gathered` joins those of many writes, and one statement stores them. What few writes have, such as
names, is stored by functions of its own.

Why one module: what a transaction may change, one function for each change.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import asyncpg

from proxy.base.errors import (
    JournalError,
    NameTaken,
    SequenceConflict,
    SessionClosed,
    SessionNotFound,
)
from proxy.base.rows import (
    Arrival,
    BackendRow,
    Chunk,
    CodecRow,
    NewSession,
    ShareRow,
    StoredSnapshot,
)
from proxy.journal._frames import FrameBatch, pack_frames
from proxy.journal.base import OF_THE_NEWEST, OF_WORDS, Write
from proxy.journal.postgres._database import Connection, plain

ERASE_ROWS = 512
"""Rows that one transaction of a deletion erases, so that the locks of none last."""


IDLE_MS = 3000
"""How long a transaction may be left alone in the middle before the server ends it, in
milliseconds: less than a lease."""


class Fence(NamedTuple):
    """Who writes: the number of a node, and of its newest connection."""

    node: int
    epoch: int


class Fenced(JournalError):
    """Another connection writes in the place of this one."""


@dataclasses.dataclass(slots=True, eq=False)
class Tail:
    """What the writer knows of a session: the seq that its next write begins with, its legs, and
    whether it was erased."""

    next: int
    legs: set[int]
    erased: bool = False


async def check_fence(connection: Connection, fence: Fence) -> None:
    """Check that nobody has taken this node's place; nobody does before the transaction's end.

    Raises:
        Fenced: somebody has.
    """
    # One that is stopped in the middle of a transaction must not hold its place for ever.
    found = await connection.fetchval(
        "SELECT set_config('idle_in_transaction_session_timeout', $3, true)"
        " FROM dragoman.nodes WHERE node = $1 AND epoch = $2 FOR KEY SHARE",
        *(*fence, str(IDLE_MS)),
    )
    if found is None:
        raise Fenced("another process writes in the place of this one")


async def read_tails(connection: Connection, sessions: Iterable[int]) -> dict[int, Tail]:
    """Return what the writer needs to know of sessions; those that do not exist are missing."""
    rows = await connection.fetch(
        "SELECT key, greatest(pruned, coalesce((SELECT first + count - 1 FROM dragoman.events"
        "  WHERE session = key ORDER BY first DESC LIMIT 1), 0)), erased_at IS NOT NULL,"
        " ARRAY(SELECT number FROM dragoman.legs WHERE session = key)"
        " FROM dragoman.sessions WHERE key = ANY($1::bigint[])",
        list(sessions),
    )
    return {key: Tail(last + 1, set(legs), erased) for key, last, erased, legs in rows}


STORE = """
WITH fence AS (
    SELECT 1 FROM dragoman.nodes WHERE node = $1 AND epoch = $2 FOR KEY SHARE
), stored_events AS (
    INSERT INTO dragoman.events (session, first, count, leg, at, position, body)
    SELECT u.* FROM unnest($3::bigint[], $4::bigint[], $5::int[], $6::int[], $7::bigint[],
        $8::bytea[], $9::bytea[]) AS u
    WHERE EXISTS (SELECT FROM fence)
), stored_commands AS (
    INSERT INTO dragoman.commands AS c (session, number, command_id, status, body, at)
    SELECT u.* FROM unnest($10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::bytea[],
        $15::bigint[]) AS u
    WHERE EXISTS (SELECT FROM fence)
    ON CONFLICT (session, number) DO UPDATE SET command_id = excluded.command_id,
        status = excluded.status, body = excluded.body, at = excluded.at
), stored_legs AS (
    UPDATE dragoman.legs SET state = coalesce(u.state, legs.state),
        native_id = coalesce(u.native_id, legs.native_id)
    FROM unnest($16::bigint[], $17::int[], $18::bytea[], $19::text[])
        AS u (session, number, state, native_id)
    WHERE legs.session = u.session AND legs.number = u.number AND EXISTS (SELECT FROM fence)
), stored_sessions AS (
    UPDATE dragoman.sessions SET state = coalesce(u.state, sessions.state),
        title = coalesce(u.title, sessions.title),
        archived_at = coalesce(u.archived_at, sessions.archived_at),
        outcome = coalesce(u.outcome, sessions.outcome),
        updated_at = greatest(sessions.updated_at, u.at),
        erasing = sessions.erasing OR u.erasing
    FROM unnest($20::bigint[], $21::text[], $22::text[], $23::bigint[], $24::text[], $25::bigint[],
        $26::bool[]) AS u (key, state, title, archived_at, outcome, at, erasing)
    WHERE sessions.key = u.key AND EXISTS (SELECT FROM fence)
), stored_positions AS (
    INSERT INTO dragoman.positions AS p (session, leg, seq, position)
    SELECT u.* FROM unnest($27::bigint[], $28::int[], $29::bigint[], $30::bytea[]) AS u
    WHERE EXISTS (SELECT FROM fence)
    ON CONFLICT (session, leg) DO UPDATE SET seq = excluded.seq, position = excluded.position
)
SELECT EXISTS (SELECT FROM fence)
"""
"""Stores the common parts of writes, unless another node has the place of this one: one statement,
so one trip and one commit."""

_WIDTHS = (7, 6, 4, 7, 4)
"""The columns of each part of `STORE`."""


class Gathered:
    """The common parts of writes: of what is stored twice, the later holds."""

    def __init__(self) -> None:
        self._events: list[tuple[Any, ...]] = []
        self._commands: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._legs: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._sessions: dict[int, tuple[Any, ...]] = {}
        self._positions: dict[tuple[int, int], tuple[Any, ...]] = {}

    def __bool__(self) -> bool:
        parts = (self._events, self._commands, self._legs, self._sessions, self._positions)
        return any(parts)

    def add(self, write: Write, tail: Tail) -> None:
        """Add a write that `fault` finds nothing wrong with."""
        session, leg = write.session, write.leg
        if write.count:
            self._events.append(
                (session, write.first, write.count, leg, write.at, write.position, write.body)
            )
            tail.next = write.first + write.count
        elif write.position is not None:
            self._positions[session, leg] = (session, leg, tail.next - 1, write.position)
        for command in write.commands:
            self._commands[session, command.number] = (
                session,
                command.number,
                plain(command.command_id),
                command.status,
                command.body,
                command.at,
            )
        state, native_id = write.leg_state, write.native_id
        if state is not None or native_id is not None:
            if (before := self._legs.get((session, leg))) is not None:
                state = before[2] if state is None else state
                native_id = before[3] if native_id is None else native_id
            if write.native_id is not None:
                native_id = plain(write.native_id)
            self._legs[session, leg] = (session, leg, state, native_id)
        title = None if write.title is None else plain(write.title)
        changed = (write.state, title, write.archived_at, write.outcome)
        if changed != (None, None, None, None):
            at, erasing = write.at, write.state == "deleted"
            if (earlier := self._sessions.get(session)) is not None:
                pairs = zip(changed, earlier[1:5], strict=True)
                changed = tuple(old if new is None else new for new, old in pairs)  # type: ignore[assignment]
                at, erasing = max(at, earlier[5]), erasing or earlier[6]
            self._sessions[session] = (session, *changed, at, erasing)

    def arguments(self) -> list[list[Any]]:
        """Return the arrays that `STORE` takes after the fence."""
        parts = (
            self._events,
            self._commands.values(),
            self._legs.values(),
            self._sessions.values(),
            self._positions.values(),
        )
        found: list[list[Any]] = []
        for rows, width in zip(parts, _WIDTHS, strict=True):
            found += map(list, zip(*rows, strict=True)) if rows else ([] for _ in range(width))
        return found

    async def store(self, connection: Connection, fence: Fence) -> None:
        """Store all of it.

        Raises:
            Fenced: somebody has taken the node's place; nothing is stored.
        """
        if not await connection.fetchval(STORE, *fence, *self.arguments()):
            raise Fenced("another process writes in the place of this one")


def fault(write: Write, tail: Tail | None) -> JournalError | None:
    """Return why a write cannot be stored where that is known without asking."""
    session = write.session
    if write.new is not None:
        return None
    if tail is None:
        return SessionNotFound(f"there is no session with key {session}")
    if tail.erased:
        return SessionClosed(f"session {session} was deleted")
    if write.count and write.first != tail.next:
        return SequenceConflict(f"session {session}: seq {tail.next} is next, not {write.first}")
    named = write.leg_state is not None or write.native_id is not None
    new = None if write.new_leg is None else write.new_leg.number
    if named and write.leg not in tail.legs and write.leg != new:
        return SessionNotFound(f"session {session} has no leg {write.leg}")
    return None


def is_rare(write: Write) -> bool:
    """Say whether a write has parts that `Gathered` does not take."""
    return bool(
        write.new is not None
        or write.new_leg is not None
        or write.aliases
        or write.takes
        or write.blobs
    )


async def store_rare(connection: Connection, write: Write, fence: Fence, kept: set[str]) -> None:
    """Store the parts of a write that few writes have. `kept` are blobs that another write of this
    node is still to name.

    Raises:
        NameTaken: the id or an alias is another session's.
    """
    session = write.session
    if write.new is not None:
        await insert_session(connection, write.new, fence)
    if (leg := write.new_leg) is not None:
        await connection.execute(
            "INSERT INTO dragoman.legs (session, number, backend, native_id, resumes)"
            " VALUES ($1, $2, $3, $4, $5)",
            session,
            leg.number,
            leg.backend,
            None if leg.native_id is None else plain(leg.native_id),
            leg.resumes,
        )
    if write.aliases:
        await add_aliases(connection, session, write.aliases)
    if write.takes:
        await take_aliases(connection, session, write.takes)
    if write.blobs:
        await name_blobs(connection, session, write.blobs)
        await connection.execute(
            "DELETE FROM dragoman.put_blobs WHERE node = $1 AND sha256 = ANY($2::text[])",
            fence.node,
            [name for name in write.blobs if name not in kept],
        )


async def insert_session(connection: Connection, new: NewSession, fence: Fence) -> None:
    """Store a session with its first leg, its codec and its names.

    Raises:
        NameTaken: the id or an alias is taken.
    """
    row = new.row
    codec = new.codec
    try:
        await connection.execute(
            "WITH made AS (INSERT INTO dragoman.sessions"
            "  (key, id, owner, route, dialect, created_at, secret, updated_at, node)"
            "  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $14)), bound AS (INSERT INTO dragoman.legs"
            "  (session, number, backend, native_id) VALUES ($1, 0, $9, $10))"
            " INSERT INTO dragoman.codecs (session, dialect, version, settings)"
            " SELECT $1, $11, $12, $13 WHERE $11::text IS NOT NULL",
            *(row.key, plain(row.id), plain(row.owner), row.route, row.dialect, row.created_at),
            *(row.secret, row.updated_at, new.backend),
            None if new.native_id is None else plain(new.native_id),
            *((None, None, None) if codec is None else dataclasses.astuple(codec)),
            fence.node,
        )
    except asyncpg.UniqueViolationError as error:
        raise _taken(row.id, error) from error
    if new.succeeds is not None and new.aliases:
        await connection.execute(
            "DELETE FROM dragoman.aliases a USING dragoman.sessions s,"
            " unnest($4::text[], $5::text[]) AS u (kind, name)"
            " WHERE a.owner = $1 AND a.route = $2 AND a.kind = u.kind AND md5(a.name) = md5(u.name)"
            " AND a.name = u.name"
            " AND a.session = $3 AND s.key = $3 AND s.state = 'expired'",
            *(plain(row.owner), row.route, new.succeeds),
            *_columns(new.aliases),
        )
    if new.aliases:
        await add_aliases(connection, row.key, new.aliases)
    if new.takes:
        await take_aliases(connection, row.key, new.takes)


def _taken(id: str, error: asyncpg.UniqueViolationError) -> SequenceConflict:
    if error.constraint_name == "sessions_id_key":
        return NameTaken(f"there is a session `{id}` already")
    return SequenceConflict(f"the journal holds the key of session `{id}` already: {error}")


def _columns(names: Iterable[tuple[str, str]]) -> tuple[list[str], list[str]]:
    unique = dict.fromkeys(names)
    return [kind for kind, _ in unique], [plain(name) for _, name in unique]


_ADD = (
    "INSERT INTO dragoman.aliases AS a (owner, route, kind, name, session)"
    " SELECT owner, route, u.kind, u.name, key FROM dragoman.sessions,"
    " unnest($2::text[], $3::text[]) AS u (kind, name) WHERE key = $1"
    # In one order, so that two that want the same names do not wait for each other.
    " ORDER BY u.kind, u.name ON CONFLICT (owner, route, kind, md5(name))"
)


async def add_aliases(
    connection: Connection, session: int, names: Sequence[tuple[str, str]]
) -> None:
    """Give a session names; having them already is not a fault.

    Raises:
        NameTaken: one is another session's.
    """
    kinds, texts = _columns(names)
    given = await connection.fetch(
        f"{_ADD} DO UPDATE SET session = a.session WHERE a.session = excluded.session"
        " RETURNING kind, name",
        *(session, kinds, texts),
    )
    if len(given) < len(kinds):
        got = {(kind, name) for kind, name in given}
        kind, name = next(pair for pair in zip(kinds, texts, strict=True) if pair not in got)
        raise NameTaken(f"the {kind} `{name}` is another session's on its route")


async def take_aliases(
    connection: Connection, session: int, names: Sequence[tuple[str, str]]
) -> None:
    """Give a session names, no matter who had them."""
    text = f"{_ADD} DO UPDATE SET session = excluded.session"
    await connection.execute(text, session, *_columns(names))


async def name_blobs(connection: Connection, session: int, names: Sequence[str]) -> None:
    """Record that a session names blobs; those that it did not name before count as its bytes."""
    await connection.execute(
        "WITH named AS (INSERT INTO dragoman.session_blobs (session, sha256)"
        "  SELECT $1, unnest($2::text[]) ON CONFLICT DO NOTHING RETURNING sha256)"
        " UPDATE dragoman.sessions SET bytes = bytes + coalesce((SELECT sum(size)"
        "  FROM dragoman.blobs WHERE sha256 IN (SELECT sha256 FROM named)), 0) WHERE key = $1",
        session,
        list(dict.fromkeys(names)),
    )


async def put_blob(connection: Connection, fence: Fence, sha256: str, data: bytes) -> None:
    """Store a blob, and that this node puts it."""
    # An update of one that is there: a transaction that is about to erase it looks again.
    await connection.execute(
        "INSERT INTO dragoman.blobs (sha256, size, data) VALUES ($1, $2, $3)"
        " ON CONFLICT (sha256) DO UPDATE SET size = excluded.size",
        *(sha256, len(data), data),
    )
    await connection.execute(
        "INSERT INTO dragoman.put_blobs (node, sha256) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        *(fence.node, sha256),
    )


async def drop_blobs(connection: Connection, fence: Fence, names: Sequence[str]) -> None:
    """Erase blobs that this node has put, unless a session or another node needs them."""
    await connection.execute(
        "DELETE FROM dragoman.put_blobs WHERE node = $1 AND sha256 = ANY($2::text[])",
        *(fence.node, names),
    )
    await erase_blobs(connection, names)


async def erase_blobs(connection: Connection, names: Sequence[str]) -> None:
    """Erase those of these blobs that no session names and no node has put."""
    if not names:
        return
    # A statement sees what was there when it began: who puts one now is seen by the second.
    await connection.execute(
        "SELECT FROM dragoman.blobs WHERE sha256 = ANY($1::text[]) ORDER BY sha256 FOR UPDATE",
        names,
    )
    await connection.execute(
        "DELETE FROM dragoman.blobs b WHERE sha256 = ANY($1::text[])"
        " AND NOT EXISTS (SELECT FROM dragoman.session_blobs n WHERE n.sha256 = b.sha256)"
        " AND NOT EXISTS (SELECT FROM dragoman.put_blobs p WHERE p.sha256 = b.sha256)",
        names,
    )


async def erase_left(connection: Connection) -> None:
    """Erase what nodes that are gone have put, or staged, and nobody needs any more."""
    gone = await connection.fetch(
        "DELETE FROM dragoman.put_blobs WHERE node NOT IN (SELECT node FROM dragoman.nodes)"
        " RETURNING sha256"
    )
    await erase_blobs(connection, [row[0] for row in gone])
    staged = await connection.fetch(
        "DELETE FROM dragoman.staged WHERE node NOT IN (SELECT node FROM dragoman.nodes)"
        " RETURNING session"
    )
    await connection.execute(
        "DELETE FROM dragoman.events WHERE session = ANY($1::bigint[])", [row[0] for row in staged]
    )


async def keep_backends(connection: Connection, backends: Sequence[BackendRow]) -> None:
    """Keep what backends are."""
    await connection.executemany(
        "INSERT INTO dragoman.backends AS b (name, dialect, url) VALUES ($1, $2, $3)"
        " ON CONFLICT (name) DO UPDATE SET dialect = excluded.dialect, url = excluded.url"
        " WHERE b.dialect <> excluded.dialect OR b.url <> excluded.url",
        sorted((backend.name, backend.dialect, backend.url) for backend in backends),
    )


async def keep_shares(connection: Connection, route: str, shares: Sequence[ShareRow]) -> None:
    """Keep the shares of a route in the place of those that were kept."""
    await connection.execute("DELETE FROM dragoman.shares WHERE route = $1", route)
    await connection.executemany(
        "INSERT INTO dragoman.shares (route, number, backend, weight) VALUES ($1, $2, $3, $4)",
        [(route, number, share.backend, share.weight) for number, share in enumerate(shares)],
    )


async def insert_frames(connection: Connection, batches: Sequence[FrameBatch]) -> None:
    """Store batches of frames, unless their session was deleted."""
    if not batches:
        return
    rows = [(b.session, b.leg, b.last, b.at, pack_frames(b.frames)) for b in batches]
    columns = map(list, zip(*rows, strict=True))
    await connection.execute(
        "WITH u AS (SELECT u.* FROM"
        "  unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[], $5::bytea[])"
        "  WITH ORDINALITY AS u (session, leg, last, at, data, place)"
        "  WHERE session IN (SELECT key FROM dragoman.sessions WHERE key = ANY($1::bigint[])"
        "   AND erased_at IS NULL ORDER BY key FOR NO KEY UPDATE)),"
        " counted AS (UPDATE dragoman.sessions SET bytes = bytes + sums.size FROM"
        "  (SELECT session, sum(octet_length(data)) AS size FROM u GROUP BY session) sums"
        "  WHERE key = sums.session)"
        " INSERT INTO dragoman.frames (session, leg, last, at, data)"
        " SELECT session, leg, last, at, data FROM u ORDER BY place",
        *columns,
    )


async def prune_frames(connection: Connection, before: int, limit: int) -> int:
    """Erase up to `limit` batches of frames older than `before` and return how many it were."""
    return int(
        await connection.fetchval(
            "WITH gone AS (DELETE FROM dragoman.frames WHERE row IN"
            "  (SELECT row FROM dragoman.frames WHERE at < $1 LIMIT $2)"
            "  RETURNING session, octet_length(data) AS size),"
            " counted AS (UPDATE dragoman.sessions SET bytes = greatest(bytes - sums.size, 0) FROM"
            "  (SELECT session, sum(size) AS size FROM gone GROUP BY session) sums"
            "  WHERE key = sums.session)"
            " SELECT count(*) FROM gone",
            *(before, limit),
        )
    )


async def count_rows(connection: Connection, sessions: Sequence[int]) -> None:
    """Bring the sums of sessions up to their newest rows."""
    if not sessions:
        return
    await connection.execute(
        "UPDATE dragoman.sessions s SET updated_at = greatest(s.updated_at, sums.at),"
        " bytes = s.bytes + sums.size, counted = sums.last"
        " FROM (SELECT s.key, max(e.at) AS at, sum(octet_length(e.body)) AS size,"
        "   max(e.first + e.count - 1) AS last"
        "  FROM dragoman.sessions s JOIN dragoman.events e ON e.session = s.key"
        "   AND e.first > s.counted"
        "  WHERE s.key = ANY($1::bigint[]) AND s.erased_at IS NULL GROUP BY s.key) sums"
        " WHERE s.key = sums.key AND s.erased_at IS NULL AND s.counted < sums.last",
        sorted(sessions),
    )


async def may_expire(connection: Connection, fence: Fence, session: int, unless_after: int) -> bool:
    """Say whether nothing is open in a session, nothing happened in it after `unless_after`, and no
    other node has it; nobody changes that before the transaction's end."""
    found = await connection.fetchval(
        "SELECT greatest(updated_at, coalesce((SELECT max(at) FROM dragoman.events"
        "  WHERE session = key AND first > counted), 0)) FROM dragoman.sessions"
        " WHERE key = $1 AND erased_at IS NULL AND state IN ('idle', 'ended')"
        " AND (node IS NULL OR node = $2 OR node NOT IN (SELECT node FROM dragoman.nodes))"
        " FOR NO KEY UPDATE",
        *(session, fence.node),
    )
    return found is not None and found <= unless_after


async def keep_codec(connection: Connection, session: int, codec: CodecRow) -> CodecRow:
    """Fix a dialect's codec for a session, unless it is, and return the one that holds.

    Raises:
        SessionNotFound: there is no such session.
        SessionClosed: it was deleted.
    """
    erased = await connection.fetchval(
        "SELECT erased_at IS NOT NULL FROM dragoman.sessions WHERE key = $1 FOR SHARE", session
    )
    if erased is None:
        raise SessionNotFound(f"there is no session with key {session}")
    if erased:
        raise SessionClosed(f"session {session} was deleted")
    await connection.execute(
        "INSERT INTO dragoman.codecs (session, dialect, version, settings)"
        " VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        *(session, codec.dialect, codec.version, codec.settings),
    )
    held = await connection.fetchrow(
        "SELECT dialect, version, settings FROM dragoman.codecs"
        " WHERE session = $1 AND dialect = $2",
        *(session, codec.dialect),
    )
    return CodecRow(*held)


async def insert_snapshots(
    connection: Connection, snapshots: Sequence[tuple[int, StoredSnapshot]]
) -> None:
    """Store snapshots in the place of those with the same cursor, unless their session was
    deleted."""
    if not snapshots:
        return
    await connection.executemany(
        "INSERT INTO dragoman.snapshots (session, kind, version, cursor, seq, data)"
        " SELECT key, $2, $3, $4, $5, $6 FROM dragoman.sessions"
        " WHERE key = $1 AND erased_at IS NULL FOR SHARE"
        " ON CONFLICT (session, kind, version, cursor)"
        " DO UPDATE SET seq = excluded.seq, data = excluded.data",
        [
            (session, s.kind, s.version, s.cursor, s.seq, zlib.compress(s.data, level=1))
            for session, s in snapshots
        ],
    )


async def begin_erasing(connection: Connection, session: int, at: int, state: str) -> bool:
    """Make a tombstone of a session, whose state is `state` from then on; say whether it was none.
    `erase_some` erases the rows afterwards.

    Raises:
        SessionNotFound: there is no such session.
    """
    tail = (await read_tails(connection, [session])).get(session)
    if tail is None:
        raise SessionNotFound(f"there is no session with key {session}")
    if tail.erased:
        return False
    await connection.execute(
        "UPDATE dragoman.sessions SET state = $2, title = NULL, secret = '', pruned = $3,"
        " bytes = 0, counted = $3, updated_at = greatest(updated_at, $4), erased_at = $4,"
        " erasing = true WHERE key = $1",
        *(session, state, tail.next - 1, at),
    )
    await connection.execute("UPDATE dragoman.legs SET state = NULL WHERE session = $1", session)
    for table in ("positions", "commands", "codecs"):
        await connection.execute(f"DELETE FROM dragoman.{table} WHERE session = $1", session)
    await connection.execute(
        "DELETE FROM dragoman.aliases WHERE session = $1 AND kind = ANY($2::text[])",
        *(session, list(OF_WORDS)),
    )
    blobs = await connection.fetch(
        "DELETE FROM dragoman.session_blobs WHERE session = $1 RETURNING sha256", session
    )
    await erase_blobs(connection, [row[0] for row in blobs])
    return True


async def erase_some(connection: Connection, session: int) -> bool:
    """Erase some of a deleted session's rows and say whether there may be more."""
    most = 0
    for table in ("events", "frames", "snapshots"):
        status = await connection.execute(
            f"DELETE FROM dragoman.{table} WHERE ctid = ANY(ARRAY(SELECT ctid"
            f" FROM dragoman.{table} WHERE session = $1 LIMIT {ERASE_ROWS}))",
            session,
        )
        most = max(most, int(status.rpartition(" ")[2]))
    if most >= ERASE_ROWS:
        return True
    await connection.execute("UPDATE dragoman.sessions SET erasing = false WHERE key = $1", session)
    return False


async def stage(
    connection: Connection, fence: Fence, session: int, chunks: Sequence[Chunk]
) -> None:
    """Store entries of a session that arrives."""
    await connection.execute(
        "INSERT INTO dragoman.staged (session, node) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        *(session, fence.node),
    )
    await connection.execute(
        "INSERT INTO dragoman.events (session, first, count, leg, at, body)"
        " SELECT $1, u.first, u.count, 0, 0, u.body"
        " FROM unnest($2::bigint[], $3::int[], $4::bytea[]) AS u (first, count, body)",
        session,
        [chunk.first for chunk in chunks],
        [chunk.count for chunk in chunks],
        [chunk.body for chunk in chunks],
    )


async def unstage_some(connection: Connection, session: int) -> bool:
    """Erase some of what is staged and say whether there may be more; nothing of a session that was
    admitted."""
    if not await connection.fetchval("SELECT 1 FROM dragoman.staged WHERE session = $1", session):
        return False
    status = await connection.execute(
        "DELETE FROM dragoman.events WHERE ctid = ANY(ARRAY(SELECT ctid FROM dragoman.events"
        " WHERE session = $1 LIMIT 64))",
        session,
    )
    if int(status.rpartition(" ")[2]) >= 64:
        return True
    await connection.execute("DELETE FROM dragoman.staged WHERE session = $1", session)
    return False


async def admit(connection: Connection, fence: Fence, arrival: Arrival, kept: set[str]) -> None:
    """Make a session of what is staged. `kept` are blobs that another write of this node is still
    to name.

    Raises:
        NameTaken: the id or an alias is taken.
    """
    row = arrival.row
    last = await connection.fetchval(
        "SELECT coalesce(max(first + count - 1), 0) FROM dragoman.events WHERE session = $1",
        row.key,
    )
    try:
        await connection.execute(
            "INSERT INTO dragoman.sessions (key, id, owner, route, dialect, created_at, secret,"
            " title, state, archived_at, updated_at, outcome, bytes, counted)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
            *(row.key, plain(row.id), plain(row.owner), row.route, row.dialect, row.created_at),
            *(row.secret, None if row.title is None else plain(row.title), row.state),
            *(row.archived_at, row.updated_at, row.outcome, row.bytes, last),
        )
    except asyncpg.UniqueViolationError as error:
        raise _taken(row.id, error) from error
    await connection.executemany(
        "INSERT INTO dragoman.legs (session, number, backend, native_id, state, resumes)"
        " VALUES ($1, $2, $3, $4, $5, $6)",
        [
            (
                row.key,
                leg.number,
                leg.backend,
                None if leg.native_id is None else plain(leg.native_id),
                leg.state,
                leg.resumes,
            )
            for leg in arrival.legs
        ],
    )
    await connection.executemany(
        "INSERT INTO dragoman.positions (session, leg, seq, position) VALUES ($1, $2, $3, $4)",
        [
            (row.key, leg.number, last, leg.position)
            for leg in arrival.legs
            if leg.position is not None
        ],
    )
    newest = [pair for pair in arrival.aliases if pair[0] in OF_THE_NEWEST]
    await connection.execute(f"{_ADD} DO NOTHING", row.key, *_columns(newest))
    others = [pair for pair in arrival.aliases if pair[0] not in OF_THE_NEWEST]
    if others:
        await add_aliases(connection, row.key, others)
    await connection.executemany(
        "INSERT INTO dragoman.codecs (session, dialect, version, settings) VALUES ($1, $2, $3, $4)",
        [(row.key, one.dialect, one.version, one.settings) for one in arrival.codecs],
    )
    await connection.execute(
        "INSERT INTO dragoman.session_blobs (session, sha256) SELECT $1, unnest($2::text[])",
        *(row.key, list(dict.fromkeys(arrival.blobs))),
    )
    await connection.execute(
        "DELETE FROM dragoman.put_blobs WHERE node = $1 AND sha256 = ANY($2::text[])",
        *(fence.node, [name for name in arrival.blobs if name not in kept]),
    )
    await connection.execute("DELETE FROM dragoman.staged WHERE session = $1", row.key)
