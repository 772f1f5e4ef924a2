"""Journals with long logs or many sessions, written without a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from adapters.model import events as ev
from bench.resume import begun as opened
from proxy.base.rows import CommandRow, NewSession, SessionRow
from proxy.journal.base import Write
from proxy.journal.sqlite import SqliteJournal

__all__ = ["BACKEND", "OWNER", "asked", "block", "keeping", "opened", "put", "started"]

BACKEND = "lab"
"""The name of the backend, and of its route."""

OWNER = "local"
"""Who sessions belong to without keys."""

ROW_EVENTS = 64
"""Events in a row of the journal: as many as a backend that hurries gives in one."""


@contextlib.asynccontextmanager
async def keeping(folder: Path) -> AsyncIterator[SqliteJournal]:
    """The journal that a server finds in a folder."""
    journal = SqliteJournal(folder / "dragoman.db", window_ms=0)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.aclose()


def started(title: str | None = None, **fields: object) -> ev.Event:
    """The first event of a session."""
    return ev.SessionStarted.model_validate(
        {
            "thread_id": ev.MAIN,
            "agent": {"id": BACKEND, "name": BACKEND},
            "title": title,
            "synthetic": True,
            **fields,
        }
    )


def block(pieces: Sequence[str], turn: int = 1, *, whole: bool = True) -> Iterator[ev.Event]:
    """The deltas of a text block, and its end and the turn's where it is whole."""
    main, turn_id = ev.MAIN, f"turn-{turn}"
    names: dict[str, Any] = {"turn_id": turn_id, "message_id": f"m{turn}", "block_id": f"b{turn}"}
    for piece in pieces:
        yield ev.TextDelta(thread_id=main, text=piece, **names)
    if whole:
        yield ev.TextCompleted(thread_id=main, text="".join(pieces), **names)
        yield ev.TurnEnded(thread_id=main, turn_id=turn_id, outcome="completed")


def asked(number: int, turn: int = 1, **fields: object) -> ev.Event:
    """A question that a turn asks."""
    return ev.InteractionRequested.model_validate(
        {
            "thread_id": ev.MAIN,
            "turn_id": f"turn-{turn}",
            "request_id": f"ask-{number}",
            "kind": "question",
            "prompt": f"Which way, {number}?",
            "freeform": True,
            **fields,
        }
    )


async def put(
    journal: SqliteJournal,
    session_id: str,
    events: Iterable[ev.Event],
    *,
    at: int = 1_700_000_000_000,
    state: str | None = None,
    owner: str = OWNER,
    route: str = BACKEND,
    backend: str = BACKEND,
    dialect: str = "eve",
    row_events: int = ROW_EVENTS,
    commands: Sequence[CommandRow] = (),
) -> SessionRow:
    """Store a session with a log; durable on return. The first event is its start."""
    key = journal.new_key()
    row = SessionRow(
        key,
        session_id,
        owner,
        route,
        dialect,
        at,
        session_id.encode().ljust(32, b".")[:32],
        updated_at=at,
    )
    new: NewSession | None = NewSession(row, backend)
    seq = 0
    lines: list[bytes] = []

    def write() -> Write:
        return Write(
            key,
            seq - len(lines) + 1,
            len(lines),
            b"".join(lines),
            at=at + seq,
            new=new,
            state=state,  # type: ignore[arg-type]
            commands=commands if new is not None else (),
        )

    for event in events:
        seq += 1
        lines.append(ev.Entry(seq, at + seq, session_id, event).encode_row() + b"\n")
        if len(lines) >= row_events or new is not None:
            journal.submit(write())
            new, lines = None, []
            if journal.backlog > 1 << 24:
                await asyncio.sleep(0.01)
    await journal.append(write())
    return row
