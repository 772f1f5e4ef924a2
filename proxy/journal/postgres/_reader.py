"""Questions to the PostgreSQL journal: plain functions over a connection.

Each is one statement, so that it sees one state of the journal while others write.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any

from proxy.base import metrics
from proxy.base.errors import CursorExpired, SessionNotFound
from proxy.base.rows import (
    BackendBinding,
    BackendRow,
    Chunk,
    CodecRow,
    CommandRow,
    SessionRow,
    ShareRow,
    StoredSnapshot,
)
from proxy.journal._joining import ChunkJoiner, FrameJoiner
from proxy.journal.base import MINTED, NAMES, SHORTEST
from proxy.journal.postgres._database import Connection, plain, restored

_SESSION = """
    SELECT key, id, owner, route, dialect, created_at, secret, title, state, archived_at,
        greatest(updated_at, coalesce(newer.at, 0)),
        greatest(pruned, counted, coalesce(newer.last, 0)), bytes + coalesce(newer.size, 0), outcome
    FROM dragoman.sessions LEFT JOIN LATERAL (
        SELECT max(at) AS at, max(first + count - 1) AS last, sum(octet_length(body)) AS size
        FROM dragoman.events WHERE session = key AND first > counted
    ) newer ON true
"""
"""Sessions, with the rows that are not counted yet in their sums."""

_AT_WORK = frozenset({"running", "paused"})
"""The states whose sessions the index `sessions_at_work` has."""

_BACKEND = "(SELECT backend FROM dragoman.legs WHERE session = key ORDER BY number DESC LIMIT 1{})"


class _Conditions:
    """The conditions of a question, with what they are about."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.values: list[Any] = []

    def add(self, text: str, *values: Any) -> None:
        """Add a condition; `{}` stands for each of the values, texts as people write them."""
        places = range(len(self.values) + 1, len(self.values) + len(values) + 1)
        self._texts.append(text.format(*(f"${place}" for place in places)))
        self.values += (plain(value) if isinstance(value, str) else value for value in values)

    def __str__(self) -> str:
        return f"WHERE {' AND '.join(self._texts)}" if self._texts else ""


def _session_row(row: Sequence[Any]) -> SessionRow:
    found = SessionRow(*row)
    return dataclasses.replace(
        found,
        id=restored(found.id),
        owner=restored(found.owner),
        title=None if found.title is None else restored(found.title),
    )


async def read_newest_time(connection: Connection) -> int:
    """Return when the last of all that is stored happened, in Unix milliseconds, or 0."""
    return int(
        await connection.fetchval(
            "SELECT coalesce(greatest(max(updated_at), (SELECT max(at) FROM dragoman.sessions"
            "  JOIN dragoman.events ON session = key AND first > counted)), 0)"
            " FROM dragoman.sessions"
        )
    )


async def read_session(connection: Connection, id: str) -> SessionRow:
    """Return the session with this public id.

    Raises:
        SessionNotFound: there is none.
    """
    row = await connection.fetchrow(f"{_SESSION} WHERE id = $1", plain(id))
    if row is None:
        raise SessionNotFound(f"there is no session `{id}`")
    return _session_row(row)


async def read_sessions(
    connection: Connection,
    *,
    owner: str | None,
    route: str | None,
    backend: str | None,
    came_from: str | None,
    states: Sequence[str] | None,
    failed: bool,
    before: int | None,
    after: int | None,
    named: str | None,
    changed: int | None,
    limit: int,
) -> list[SessionRow]:
    """Return sessions that fit all the conditions, newest first, or with `after` oldest first."""
    where = _Conditions()
    for text, value in (
        ("owner = {}", owner),
        ("route = {}", route),
        (_BACKEND.format("") + " = {}", backend),
        (_BACKEND.format(" OFFSET 1") + " = {}", came_from),
        ("key < {}", before),
        ("key > {}", after),
    ):
        if value is not None:
            where.add(text, value)
    if changed is not None:
        # The node that has a session counts its newest rows a moment later.
        where.add(
            "(updated_at >= {} OR node IS NOT NULL AND EXISTS (SELECT FROM dragoman.events"
            "  WHERE session = key AND first > counted AND at >= {}))",
            *(changed, changed),
        )
    if named is not None:
        # The beginning of an id, up to what sorts after all that follows it.
        begin = named if named.startswith(MINTED) else MINTED + named
        ends = f"{begin}\x7f" if len(begin) >= len(MINTED) + SHORTEST else begin
        where.add(
            '(id COLLATE "C" >= {} AND id COLLATE "C" < {} OR id = {} OR title = {}'
            " OR key IN (SELECT session FROM dragoman.aliases"
            "  WHERE md5(name) = md5({}) AND name = {} AND kind = ANY({}::text[])))",
            *(begin, ends, named, named, named, named, list(NAMES)),
        )
    if states is not None:
        where.add("state = ANY({}::text[])", list(states))
        if states and _AT_WORK.issuperset(states):
            # PostgreSQL takes an index of some rows only where the question says which.
            where.add("state IN ('running', 'paused')")
    if failed:
        where.add("outcome IN ('failed', 'refused', 'unknown')")
    order = "DESC" if after is None else "ASC"
    # The keys first: the newest rows of events are looked for in these only.
    rows = await connection.fetch(
        f"{_SESSION} WHERE key IN (SELECT key FROM dragoman.sessions {where}"
        f" ORDER BY key {order} LIMIT ${len(where.values) + 1}) ORDER BY key {order}",
        *(*where.values, limit),
    )
    return list(map(_session_row, rows))


async def read_sizes(connection: Connection, owner: str | None) -> dict[str, int]:
    """Return how many bytes the sessions of each backend take."""
    rows = await connection.fetch(
        f"SELECT {_BACKEND.format('')} AS backend, sum(bytes)::bigint FROM dragoman.sessions"
        " WHERE erased_at IS NULL AND ($1::text IS NULL OR owner = $1) GROUP BY 1 ORDER BY 1",
        None if owner is None else plain(owner),
    )
    return {backend: size for backend, size in rows if backend is not None}


async def read_oldest(
    connection: Connection,
    *,
    before: int | None,
    backend: str | None,
    owner: str | None,
    limit: int,
) -> list[tuple[SessionRow, str]]:
    """Return sessions in which nothing is open, the one with the oldest last event first."""
    where = _Conditions()
    where.add("erased_at IS NULL AND state IN ('idle', 'ended')")
    for text, value in (
        ("updated_at < {}", before),
        (_BACKEND.format("") + " = {}", backend),
        ("owner = {}", owner),
    ):
        if value is not None:
            where.add(text, value)
    rows = await connection.fetch(
        f"WITH found AS (SELECT key AS found, {_BACKEND.format('')} AS backend, updated_at AS at"
        f"  FROM dragoman.sessions {where} ORDER BY updated_at, key"
        f"  LIMIT ${len(where.values) + 1})"
        f" SELECT rows.*, found.backend FROM found JOIN ({_SESSION}) rows ON rows.key = found.found"
        " ORDER BY found.at, found.found",
        *(*where.values, limit),
    )
    found = [(_session_row(row[:-1]), row[-1]) for row in map(tuple, rows)]
    return [one for one in found if before is None or one[0].updated_at < before]


async def read_alias(
    connection: Connection, *, owner: str, route: str, kind: str, name: str
) -> str | None:
    """Return the public id of the session that has this alias, or None."""
    found = await connection.fetchval(
        "SELECT id FROM dragoman.aliases a JOIN dragoman.sessions ON key = session"
        " WHERE a.owner = $1 AND a.route = $2 AND kind = $3 AND md5(name) = md5($4) AND name = $4",
        *(plain(owner), route, kind, plain(name)),
    )
    return None if found is None else restored(found)


async def read_aliases(connection: Connection, session: int) -> list[tuple[str, str]]:
    """Return the (kind, name) pairs of a session, sorted."""
    rows = await connection.fetch(
        "SELECT kind, name FROM dragoman.aliases WHERE session = $1", session
    )
    return sorted((kind, restored(name)) for kind, name in rows)


async def read_backends_of(connection: Connection, sessions: Sequence[int]) -> dict[int, str]:
    """Return the backend of the newest leg of each of these sessions."""
    rows = await connection.fetch(
        "SELECT DISTINCT ON (session) session, backend FROM dragoman.legs"
        " WHERE session = ANY($1::bigint[]) ORDER BY session, number DESC",
        list(sessions),
    )
    return {key: backend for key, backend in rows}  # noqa: C416 - a record is not a tuple


async def read_legs(connection: Connection, session: int) -> list[BackendBinding]:
    """Return the legs of a session with their newest positions."""
    rows = await connection.fetch(
        "SELECT number, backend, native_id, state, coalesce(newer.position, p.position), resumes"
        " FROM dragoman.legs l LEFT JOIN dragoman.positions p"
        "  ON p.session = l.session AND p.leg = number"
        " LEFT JOIN LATERAL (SELECT position FROM dragoman.events e WHERE e.session = l.session"
        "  AND e.leg = number AND e.position IS NOT NULL AND e.first > coalesce(p.seq, 0)"
        "  ORDER BY first DESC LIMIT 1) newer ON true"
        " WHERE l.session = $1 ORDER BY number",
        session,
    )
    return [
        BackendBinding(
            session,
            number,
            backend,
            native_id=None if native_id is None else restored(native_id),
            state=state,
            position=position,
            resumes=resumes,
        )
        for number, backend, native_id, state, position, resumes in rows
    ]


async def read_is_named(connection: Connection, backend: str, name: str) -> bool:
    """Say whether a backend knows a session by this name, or it is the public id of one."""
    return bool(
        await connection.fetchval(
            "SELECT EXISTS (SELECT FROM dragoman.legs"
            "  WHERE backend = $1 AND md5(native_id) = md5($2) AND native_id = $2)"
            " OR EXISTS (SELECT FROM dragoman.sessions WHERE id = $2)",
            *(backend, plain(name)),
        )
    )


async def read_backends(connection: Connection) -> list[BackendRow]:
    """Return what was kept of the backends that have sessions which are not gone."""
    rows = await connection.fetch(
        "SELECT name, dialect, url FROM dragoman.backends"
        " WHERE EXISTS (SELECT FROM dragoman.legs JOIN dragoman.sessions ON key = session"
        '  WHERE backend = name AND erased_at IS NULL) ORDER BY name COLLATE "C"'
    )
    return [BackendRow(*row) for row in rows]


async def read_shares(connection: Connection) -> list[ShareRow]:
    """Return the shares of routes that were set at run time, in the order of each route."""
    rows = await connection.fetch(
        'SELECT route, backend, weight FROM dragoman.shares ORDER BY route COLLATE "C", number'
    )
    return [ShareRow(*row) for row in rows]


async def read_commands(
    connection: Connection, session: int, statuses: Sequence[str]
) -> list[CommandRow]:
    """Return a session's commands in these statuses, in the order of acceptance."""
    # Said once more so that PostgreSQL knows that the index of the open ones has all of them.
    only = "" if "settled" in statuses else " AND status <> 'settled'"
    rows = await connection.fetch(
        "SELECT session, number, command_id, status, body, at FROM dragoman.commands"
        f" WHERE session = $1 AND status = ANY($2::text[]){only} ORDER BY number",
        *(session, list(statuses)),
    )
    return [
        CommandRow(key, number, restored(command_id), status, body, at)
        for key, number, command_id, status, body, at in rows
    ]


async def read_snapshot(
    connection: Connection,
    session: int,
    kind: str,
    version: int,
    cursor: int | None,
    seq: int | None,
) -> StoredSnapshot | None:
    """Return the newest snapshot, or the newest with at most this cursor or seq; None if there is
    none, or it is damaged."""
    row = await connection.fetchrow(
        "SELECT cursor, seq, data FROM dragoman.snapshots"
        " WHERE session = $1 AND kind = $2 AND version = $3"
        " AND ($4::bigint IS NULL OR cursor <= $4) AND ($5::bigint IS NULL OR seq <= $5)"
        " ORDER BY cursor DESC LIMIT 1",
        *(session, kind, version, cursor, seq),
    )
    if row is None:
        return None
    found, at, data = row
    try:
        return StoredSnapshot(kind, version, found, at, zlib.decompress(data))
    except zlib.error:
        metrics.count_unusable_snapshot(kind)
        return None


async def read_codecs(connection: Connection, session: int) -> list[CodecRow]:
    """Return the codecs that are fixed for a session, by dialect."""
    rows = await connection.fetch(
        "SELECT dialect, version, settings FROM dragoman.codecs WHERE session = $1", session
    )
    return sorted((CodecRow(*row) for row in rows), key=lambda row: row.dialect)


ROWS = 512
"""Rows of events that one question reads at most: a look at the log is often for few."""


async def read_events(
    connection: Connection,
    session: int,
    *,
    after: int,
    limit_bytes: int,
    limit_rows: int | None,
) -> tuple[list[Chunk], int]:
    """Return consecutive chunks from the entry after seq `after` on, about `limit_bytes` of them in
    at most `limit_rows` rows, and how many rows were read.

    Raises:
        SessionNotFound: there is no such session.
        CursorExpired: the entries after `after` were pruned.
        JournalCorrupt: entries are missing.
    """
    joiner = ChunkJoiner(session, after, limit_bytes, limit_rows)
    while True:
        begun = joiner.rows
        most = ROWS if limit_rows is None else min(ROWS, limit_rows - begun)
        # A cut of what is in memory at once: rows up to the bytes that are still wanted.
        rows = await connection.fetch(
            "SELECT pruned, e.first, e.count, e.body FROM dragoman.sessions LEFT JOIN LATERAL ("
            "  SELECT first, count, body FROM (SELECT first, count, body,"
            "    sum(octet_length(body)) OVER (ORDER BY first) - octet_length(body) AS before"
            "   FROM (SELECT first, count, body FROM dragoman.events WHERE session = $1"
            "    AND first >= coalesce((SELECT first FROM dragoman.events"
            "     WHERE session = $1 AND first <= $2 ORDER BY first DESC LIMIT 1), 0)"
            "    AND first + count > $2 ORDER BY first LIMIT $3) wanted) sums WHERE before < $4"
            " ) e ON true WHERE key = $1 ORDER BY e.first",
            *(session, joiner.wanted, most, max(joiner.left, 1)),
        )
        if not rows:
            raise SessionNotFound(f"there is no session with key {session}")
        if after < rows[0][0]:
            raise CursorExpired("its entries are no longer kept")
        for _, first, count, body in rows:
            if first is None:
                return joiner.chunks(), joiner.rows
            if not joiner.add(first, count, body):
                return joiner.chunks(), joiner.rows
        if joiner.rows - begun < most:
            return joiner.chunks(), joiner.rows


async def read_frames(
    connection: Connection,
    session: int,
    leg: int,
    *,
    first: int,
    limit: int,
    limit_bytes: int | None,
) -> list[tuple[int, bytes]]:
    """Return up to `limit` kept frames of a leg as (number, bytes), from number `first` on, and
    none more once they have `limit_bytes`.

    Raises:
        JournalCorrupt: a batch is damaged.
    """
    joiner = FrameJoiner(session, first, limit, limit_bytes)
    async with connection.transaction(readonly=True):
        async for last, data in connection.cursor(
            "SELECT last, data FROM dragoman.frames"
            " WHERE session = $1 AND leg = $2 AND last >= $3 ORDER BY last, row",
            *(session, leg, first),
            prefetch=16,
        ):
            if not joiner.add(last, data):
                break
    return joiner.frames


async def read_blob(connection: Connection, sha256: str) -> bytes | None:
    """Return the bytes of a blob, or None."""
    found: bytes | None = await connection.fetchval(
        "SELECT data FROM dragoman.blobs WHERE sha256 = $1", sha256
    )
    return found


async def read_blobs(connection: Connection, session: int) -> list[tuple[str, int]]:
    """Return the blobs that a session names, as (SHA-256, size), sorted."""
    rows = await connection.fetch(
        "SELECT sha256, size FROM dragoman.session_blobs JOIN dragoman.blobs USING (sha256)"
        ' WHERE session = $1 ORDER BY sha256 COLLATE "C"',
        session,
    )
    return [(sha256, size) for sha256, size in rows]
