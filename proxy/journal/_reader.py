"""Questions to the SQLite journal: plain functions over a read-only connection, each one a
snapshot.

`tails` is the writer's memory, or None where the writer is another process: then the newest rows
are read from the file. What is needed from `tails` is copied before the snapshot begins (see
`_unindexed_rows`).

Why one module: what may be asked, one function for each question.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import operator
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import apsw

from adapters.wire.jsonvalue import format_json
from proxy.base import metrics
from proxy.base.errors import CursorExpired, JournalCorrupt, SessionNotFound
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
from proxy.journal._unindexed_rows import UnindexedRows, recover_tails
from proxy.journal.base import MINTED, NAMES, SHORTEST

Tails = Mapping[int, UnindexedRows] | None

_FIRST = operator.itemgetter(0)

_SESSION = """
    SELECT key, id, owner, route, dialect, created_at, secret, title, state, archived_at,
        updated_at, max(pruned, coalesce((
            SELECT i.first + e.count - 1 FROM event_index i JOIN events e ON e.row = i.row
            WHERE i.session = sessions.key ORDER BY i.first DESC LIMIT 1
        ), 0)), bytes, outcome
    FROM sessions
"""

_TYPES = frozenset(
    (int, str, str, str, str, int, bytes, title, str, archived_at, int, int, int, outcome)
    for title in (str, type(None))
    for archived_at in (int, type(None))
    for outcome in (str, type(None))
)
"""The types of a session's row."""

_AT_WORK = frozenset({"running", "paused"})
"""The states whose sessions the index `sessions_at_work` has."""

_NAMED = f"""(
    id >= ? AND id < ? OR id = ? OR title = ? OR key IN (
        SELECT session FROM aliases WHERE name = ? AND kind IN ({", ".join("?" * len(NAMES))})
    )
)"""

_BACKEND_OF = "(SELECT backend FROM legs WHERE session = {} ORDER BY number DESC LIMIT 1)"
_BACKEND = _BACKEND_OF.format("key")
_CAME_FROM = "(SELECT backend FROM legs WHERE session = key ORDER BY number DESC LIMIT 1 OFFSET 1)"


@contextlib.contextmanager
def _snapshot(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def read_newest_key(connection: apsw.Connection) -> int:
    """Return the key of the newest session, or 0; erased ones have left theirs."""
    return int(connection.execute("SELECT coalesce(max(key), 0) FROM sessions").get)


def read_newest_time(connection: apsw.Connection, tails: Tails) -> int:
    """Return when the last of all that is stored happened, in Unix milliseconds, or 0."""
    found = int(connection.execute("SELECT coalesce(max(updated_at), 0) FROM sessions").get)
    return max((found, *(tail.at for tail in (tails or {}).values())))


def read_session(connection: apsw.Connection, tails: Tails, id: str) -> SessionRow:
    """Return the session with this public id.

    Raises:
        SessionNotFound: there is none.
    """
    with _snapshot(connection):
        row = connection.execute(f"{_SESSION} WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise SessionNotFound(f"there is no session `{id}`")
        return _session_row(row, recover_tails(connection) if tails is None else tails)


def read_sessions(
    connection: apsw.Connection,
    tails: Tails,
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
    conditions: list[str] = []
    values: list[Any] = []
    for condition, value in (
        ("owner = ?", owner),
        ("route = ?", route),
        (f"{_BACKEND} = ?", backend),
        (f"{_CAME_FROM} = ?", came_from),
        ("key < ?", before),
        ("key > ?", after),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    if named is not None:
        # The beginning of an id, up to what sorts after all that follows it.
        begin = named if named.startswith(MINTED) else MINTED + named
        ends = f"{begin}\x7f" if len(begin) >= len(MINTED) + SHORTEST else begin
        conditions.append(_NAMED)
        values += [begin, ends, named, named, named, *NAMES]
    if changed is not None:
        # A copy is made in one step, whatever the writer's thread does meanwhile.
        newer = {} if tails is None else dict(tails)
        keys = [key for key, tail in newer.items() if tail.at >= changed]
        conditions.append("(updated_at >= ? OR key IN (SELECT value FROM json_each(?)))")
        values += [changed, _json(keys)]
    if states is not None:
        conditions.append(f"state IN ({', '.join('?' * len(states))})")
        values += states
    index = ""
    if states and _AT_WORK.issuperset(states):
        # SQLite takes an index of some rows only where the query says in its own words which.
        conditions.append("state IN ('running', 'paused')")
        index = "INDEXED BY sessions_at_work"
    if failed:
        # In the words of the index `sessions_failed`.
        conditions.append("outcome IN ('failed', 'refused', 'unknown')")
        index = index or "INDEXED BY sessions_failed"
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    order = "DESC" if after is None else "ASC"
    with _snapshot(connection):
        rows = connection.execute(
            f"{_SESSION} {index} {where} ORDER BY key {order} LIMIT ?", (*values, limit)
        ).fetchall()
        if tails is None:
            tails = recover_tails(connection)
        return [_session_row(row, tails) for row in rows]


def _session_row(row: tuple[Any, ...], tails: Mapping[int, UnindexedRows]) -> SessionRow:
    if tuple(map(type, row)) not in _TYPES:
        raise JournalCorrupt(f"a session's row is damaged: {row[:2]}; restore a backup")
    found = SessionRow(*row)
    tail = tails.get(found.key)
    if tail is None:
        return found
    return dataclasses.replace(
        found,
        updated_at=max(found.updated_at, tail.at),
        last_seq=max(found.last_seq, tail.last),
        bytes=found.bytes + tail.size,
    )


def read_sizes(connection: apsw.Connection, tails: Tails, owner: str | None) -> dict[str, int]:
    """Return how many bytes the sessions of each backend take."""
    # A copy is made in one step, whatever the writer's thread does meanwhile.
    newer = {} if tails is None else _uncounted(dict(tails))
    with _snapshot(connection):
        found = connection.execute(
            f"SELECT {_BACKEND}, sum(bytes) FROM sessions"
            " WHERE erased_at IS NULL AND owner = coalesce(?, owner) GROUP BY 1 ORDER BY 1",
            (owner,),
        ).fetchall()
        sizes = dict(cast("list[tuple[str, int]]", found))
        if tails is None:
            newer = _uncounted(recover_tails(connection))
        for session, (size, row) in newer.items():
            # What was indexed since the copy is in the sums already.
            backend = connection.execute(
                f"SELECT {_BACKEND} FROM sessions WHERE key = ? AND counted < ?"
                " AND erased_at IS NULL AND owner = coalesce(?, owner)",
                (session, row, owner),
            ).get
            if backend in sizes:
                sizes[cast("str", backend)] += size
    return sizes


def _uncounted(tails: Mapping[int, UnindexedRows]) -> dict[int, tuple[int, int]]:
    """Return the bytes that `sessions.bytes` lacks, and the newest row that has some of them."""
    found = ((key, tail.size, tail.rows[-1:]) for key, tail in tails.items())
    return {key: (size, rows[0][1]) for key, size, rows in found if size and rows}


def read_oldest(
    connection: apsw.Connection,
    tails: Tails,
    *,
    before: int | None,
    backend: str | None,
    owner: str | None,
    limit: int,
) -> list[tuple[SessionRow, str]]:
    """Return sessions in which nothing is open, the one with the oldest last event first."""
    conditions = ["erased_at IS NULL", "state IN ('idle', 'ended')"]
    values: list[Any] = []
    wanted = (("updated_at < ?", before), (f"{_BACKEND} = ?", backend), ("owner = ?", owner))
    for condition, value in wanted:
        if value is not None:
            conditions.append(condition)
            values.append(value)
    with _snapshot(connection):
        # The keys first: a sorter would otherwise carry, and compute, the whole row of every one.
        keys = connection.execute(
            f"SELECT key, {_BACKEND} FROM sessions WHERE {' AND '.join(conditions)}"
            " ORDER BY updated_at, key LIMIT ?",
            (*values, limit),
        ).fetchall()
        if tails is None:
            tails = recover_tails(connection)
        found: list[tuple[SessionRow, str]] = []
        for key, of_backend in keys:
            row = connection.execute(f"{_SESSION} WHERE key = ?", (key,)).fetchone()
            if row is None:
                raise JournalCorrupt(f"the row of session {key} is gone; restore a backup")
            session = _session_row(row, tails)
            if before is None or session.updated_at < before:
                found.append((session, cast("str", of_backend)))
        return found


def read_alias(
    connection: apsw.Connection, *, owner: str, route: str, kind: str, name: str
) -> str | None:
    """Return the public id of the session that has this alias, or None."""
    return cast(
        "str | None",
        connection.execute(
            "SELECT id FROM aliases JOIN sessions ON key = session"
            " WHERE aliases.owner = ? AND aliases.route = ? AND kind = ? AND name = ?",
            (owner, route, kind, name),
        ).get,
    )


def read_aliases(connection: apsw.Connection, session: int) -> list[tuple[str, str]]:
    """Return the (kind, name) pairs of a session, sorted."""
    found = connection.execute(
        "SELECT kind, name FROM aliases WHERE session = ? ORDER BY kind, name", (session,)
    )
    return cast("list[tuple[str, str]]", found.fetchall())


def read_backends_of(connection: apsw.Connection, sessions: Sequence[int]) -> dict[int, str]:
    """Return the backend of the newest leg of each of these sessions."""
    found = connection.execute(
        f"SELECT value, {_BACKEND_OF.format('value')} FROM json_each(?)", (_json(sessions),)
    )
    return {cast("int", key): cast("str", backend) for key, backend in found if backend is not None}


def _json(keys: Sequence[int]) -> str:
    return format_json(list(keys)).decode()


def read_legs(connection: apsw.Connection, tails: Tails, session: int) -> list[BackendBinding]:
    """Return the legs of a session with their newest positions."""
    tail = None if tails is None else tails.get(session)
    newer = {} if tail is None else dict(tail.positions)
    with _snapshot(connection):
        if tails is None and (tail := recover_tails(connection).get(session)) is not None:
            newer = tail.positions
        return [
            BackendBinding(
                session,
                number,
                backend,
                native_id=native_id,
                state=state,
                position=newer[number][1] if number in newer else position,
                resumes=resumes,
            )
            for number, backend, native_id, state, position, resumes in connection.execute(
                "SELECT number, backend, native_id, state, position, resumes FROM legs"
                " LEFT JOIN positions ON positions.session = legs.session AND leg = number"
                " WHERE legs.session = ? ORDER BY number",
                (session,),
            )
        ]


def read_is_named(connection: apsw.Connection, backend: str, name: str) -> bool:
    """Say whether a backend knows a session by this name, or it is the public id of one."""
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM legs WHERE backend = ?1 AND native_id = ?2)"
        " OR EXISTS (SELECT 1 FROM sessions WHERE id = ?2)",
        (backend, name),
    )
    return bool(found.get)


def read_backends(connection: apsw.Connection) -> list[BackendRow]:
    """Return what was kept of the backends that have sessions which are not gone."""
    return [
        BackendRow(*row)
        for row in connection.execute(
            "SELECT name, dialect, url FROM backends"
            " WHERE EXISTS (SELECT 1 FROM legs JOIN sessions ON key = session"
            "  WHERE backend = name AND erased_at IS NULL) ORDER BY name"
        )
    ]


def read_shares(connection: apsw.Connection) -> list[ShareRow]:
    """Return the shares of routes that were set at run time, in the order of each route."""
    found = connection.execute("SELECT route, backend, weight FROM shares ORDER BY route, number")
    return [ShareRow(*row) for row in found]


def read_commands(
    connection: apsw.Connection, session: int, statuses: Sequence[str]
) -> list[CommandRow]:
    """Return a session's commands in these statuses, in the order of acceptance."""
    # Said once more so that SQLite knows that the index of the open ones has all of them.
    only = "" if "settled" in statuses else " AND status <> 'settled'"
    return [
        CommandRow(*row)
        for row in connection.execute(
            "SELECT session, number, command_id, status, body, at FROM commands"
            f" WHERE session = ? AND status IN ({', '.join('?' * len(statuses))}){only}"
            " ORDER BY number",
            (session, *statuses),
        )
    ]


def read_snapshot(
    connection: apsw.Connection, session: int, kind: str, version: int, cursor: int | None
) -> StoredSnapshot | None:
    """Return the newest snapshot, or the newest with at most this cursor; None if there is none, or
    it is damaged.
    """
    # SQLite's largest integer is above every cursor.
    row = connection.execute(
        "SELECT kind, version, cursor, seq, data FROM snapshots"
        " WHERE session = ? AND kind = ? AND version = ? AND cursor <= ?"
        " ORDER BY cursor DESC LIMIT 1",
        (session, kind, version, (1 << 63) - 1 if cursor is None else cursor),
    ).fetchone()
    if row is None:
        return None
    kind, version, found, seq, data = row
    try:
        return StoredSnapshot(kind, version, found, seq, zlib.decompress(data))
    except zlib.error:
        metrics.count_unusable_snapshot(kind)
        return None


def read_snapshot_of_seq(
    connection: apsw.Connection, session: int, kind: str, version: int, seq: int
) -> StoredSnapshot | None:
    """Return the newest snapshot with at most this seq; None if there is none, or it is damaged.

    Cursors rise with the seqs, and they have the index.
    """
    low, high, best = 0, (1 << 63) - 1, None
    while low <= high:
        middle = (low + high) // 2
        row = connection.execute(
            "SELECT cursor, seq FROM snapshots"
            " WHERE session = ? AND kind = ? AND version = ? AND cursor BETWEEN ? AND ?"
            " ORDER BY cursor DESC LIMIT 1",
            (session, kind, version, low, middle),
        ).fetchone()
        if row is None:
            low = middle + 1
        elif row[1] <= seq:
            best, low = row[0], middle + 1
        else:
            high = row[0] - 1
    return None if best is None else read_snapshot(connection, session, kind, version, best)


def read_codecs(connection: apsw.Connection, session: int) -> list[CodecRow]:
    """Return the codecs that are fixed for a session, by dialect."""
    return [
        CodecRow(*row)
        for row in connection.execute(
            "SELECT dialect, version, settings FROM codecs WHERE session = ? ORDER BY dialect",
            (session,),
        )
    ]


def read_events(
    connection: apsw.Connection,
    tails: Tails,
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
    tail = None if tails is None else tails.get(session)
    rows = [] if tail is None else tail.rows.copy()
    with _snapshot(connection):
        if tails is None and (tail := recover_tails(connection).get(session)) is not None:
            rows = tail.rows
        pruned = connection.execute("SELECT pruned FROM sessions WHERE key = ?", (session,)).get
        if pruned is None:
            raise SessionNotFound(f"there is no session with key {session}")
        if after < pruned:
            raise CursorExpired("its entries are no longer kept")
        joiner = ChunkJoiner(session, after, limit_bytes, limit_rows)
        for first, count, body in connection.execute(
            "SELECT i.first, e.count, e.body FROM event_index i LEFT JOIN events e ON e.row = i.row"
            " WHERE i.session = ?1 AND i.first >= coalesce(("
            "  SELECT first FROM event_index WHERE session = ?1 AND first <= ?2"
            "  ORDER BY first DESC LIMIT 1), 0) ORDER BY i.first",
            (session, after + 1),
        ):
            if not joiner.add(first, count, body):
                return joiner.chunks(), joiner.rows
        start = max(bisect.bisect_right(rows, joiner.wanted, key=_FIRST) - 1, 0)
        for first, row in rows[start:]:
            found = connection.execute(
                "SELECT count, body FROM events WHERE row = ? AND session = ?", (row, session)
            ).fetchone()
            # An entry up to `pruned` is in the copy only because a deletion overtook it.
            if found is None and first <= pruned:
                continue
            count, body = (None, None) if found is None else found
            if not joiner.add(first, count, body):
                break
        return joiner.chunks(), joiner.rows


def read_frames(
    connection: apsw.Connection,
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
    for last, data in connection.execute(
        "SELECT last, data FROM frames WHERE session = ? AND leg = ? AND last >= ?"
        " ORDER BY last, row",
        (session, leg, first),
    ):
        if not joiner.add(last, data):
            break
    return joiner.frames


def read_blob(connection: apsw.Connection, sha256: str) -> bytes | None:
    """Return the bytes of a blob, or None."""
    return cast(
        "bytes | None",
        connection.execute("SELECT data FROM blobs WHERE sha256 = ?", (sha256,)).get,
    )


def read_blobs(connection: apsw.Connection, session: int) -> list[tuple[str, int]]:
    """Return the blobs that a session names, as (SHA-256, size), sorted."""
    found = connection.execute(
        "SELECT sha256, size FROM session_blobs JOIN blobs USING (sha256)"
        " WHERE session = ? ORDER BY sha256",
        (session,),
    )
    return cast("list[tuple[str, int]]", found.fetchall())
