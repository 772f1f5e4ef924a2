"""How a session of another journal arrives: its entries are staged, some at a time, and one
transaction makes the session of them.

What is staged is indexed at once and belongs to no session, so that nobody finds it. A mark in
`meta` says so, and goes with the transaction that makes the session; a start erases what a crash
has left with its mark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

import apsw

from proxy.base.errors import NameTaken
from proxy.base.rows import Arrival, BackendBinding, Chunk, SessionRow
from proxy.journal._changes import (
    INSERT_INDEX,
    INSERT_POSITION,
    Transaction,
    add_alias,
    insert_codec,
)
from proxy.journal.base import OF_THE_NEWEST

_APART = frozenset({"session", "position"})
"""The fields of a leg that are no columns of its row to be named."""

_LEG = [field.name for field in dataclasses.fields(BackendBinding) if field.name not in _APART]
_SESSION = [field.name for field in dataclasses.fields(SessionRow) if field.name != "last_seq"]


def _mark(session: int) -> str:
    return f"staged {session}"


def stage(transaction: Transaction, session: int, chunks: Sequence[Chunk]) -> None:
    """Store entries of a session that arrives."""
    connection = transaction.connection
    connection.execute(
        "INSERT OR IGNORE INTO meta (name, value) VALUES (?, ?)", (_mark(session), session)
    )
    for chunk in chunks:
        transaction.row = row = transaction.row + 1
        connection.execute(
            "INSERT INTO events (row, session, first, count, leg, body) VALUES (?, ?, ?, ?, 0, ?)",
            (row, session, chunk.first, chunk.count, chunk.body),
        )
        connection.execute(INSERT_INDEX, (session, chunk.first, row))


def unstage_some(connection: apsw.Connection, session: int) -> bool:
    """Erase some of what is staged and say whether there may be more; nothing of a session that was
    admitted."""
    if connection.execute("SELECT 1 FROM meta WHERE name = ?", (_mark(session),)).get is None:
        return False
    # Fewer at a time than of a live session: staged rows are larger.
    most = 64
    rows = connection.execute(
        "DELETE FROM event_index WHERE (session, first) IN"
        " (SELECT session, first FROM event_index WHERE session = ? LIMIT ?) RETURNING row",
        (session, most),
    ).fetchall()
    connection.executemany("DELETE FROM events WHERE row = ?", rows)
    if len(rows) >= most:
        return True
    connection.execute("DELETE FROM meta WHERE name = ?", (_mark(session),))
    return False


def unstage_all(connection: apsw.Connection) -> bool:
    """Erase what a crash has left of arrivals, and say whether there was any."""
    left = cast(
        "list[tuple[int]]",
        connection.execute("SELECT value FROM meta WHERE name GLOB 'staged *'").fetchall(),
    )
    for (session,) in left:
        while unstage_some(connection, session):
            pass
    return bool(left)


def admit(transaction: Transaction, arrival: Arrival) -> None:
    """Make a session of what is staged.

    Raises:
        NameTaken: the id or an alias is taken.
    """
    connection, row = transaction.connection, arrival.row
    # Its events are counted in `bytes`, up to the newest row.
    _insert(connection, "sessions", _SESSION, row, counted=transaction.row)
    for leg in arrival.legs:
        _insert(connection, "legs", _LEG, leg, session=row.key)
        if leg.position is not None:
            position = (row.key, leg.number, transaction.row, leg.position)
            connection.execute(INSERT_POSITION, position)
    for kind, name in arrival.aliases:
        if kind in OF_THE_NEWEST:
            connection.execute(
                "INSERT OR IGNORE INTO aliases (owner, route, kind, name, session)"
                " VALUES (?, ?, ?, ?, ?)",
                (row.owner, row.route, kind, name, row.key),
            )
        else:
            add_alias(connection, row.owner, row.route, kind, name, row.key)
    for codec in arrival.codecs:
        insert_codec(connection, row.key, codec)
    connection.executemany(
        "INSERT INTO session_blobs (session, sha256) VALUES (?, ?)",
        [(row.key, sha256) for sha256 in arrival.blobs],
    )
    connection.execute("DELETE FROM meta WHERE name = ?", (_mark(row.key),))


def _insert(
    connection: apsw.Connection,
    table: str,
    columns: Sequence[str],
    record: SessionRow | BackendBinding,
    **more: int,
) -> None:
    names = [*columns, *more]
    values = [*(getattr(record, name) for name in columns), *more.values()]
    places = ", ".join("?" * len(names))
    try:
        connection.execute(
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})", tuple(values)
        )
    except apsw.ConstraintError as error:
        if isinstance(record, SessionRow):
            raise NameTaken(f"there is a session `{record.id}` already") from error
        raise
