"""Events about a record that says nothing to people, or for which there is no room."""

from __future__ import annotations

from adapters import events as ev
from adapters.errors import CODE_LIMIT, ErrorCode, cut
from adapters.eve.client.records import Line, Record
from adapters.eve.client.values import clean


def as_native(line: Line, record: Record) -> list[ev.Event]:
    """Return a record as it came."""
    return [
        ev.Native(
            thread_id=line.thread,
            turn_id=line.turn,
            dialect="eve",
            name=record.type,
            frame={"type": record.type, "data": clean(record.data)},
            native=record.native,
        )
    ]


def too_many(line: Line, count: int, what: str, most: int = ev.MOST_OPEN) -> list[ev.Event]:
    """Report that a record has more than is taken."""
    if count <= most:
        return []
    return [refused_more(line, f"{count} {what}; at most {most} are open at once")]


def no_room(line: Line, what: str, names: list[str], most: int) -> list[ev.Event]:
    """Report what there is no room for, by its name, once for a record."""
    if not names:
        return []
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    text = f"{what} `{cut(names[0], CODE_LIMIT)}`{more}: too many; at most {most} are taken"
    return [refused_more(line, text)]


def refused_more(line: Line, text: str) -> ev.Event:
    """Return a report of what is not taken."""
    return ev.ErrorReported(
        thread_id=line.thread,
        turn_id=line.turn,
        code=str(ErrorCode.BACKEND_PROTOCOL),
        message=f"eve: {text}",
        synthetic=True,
    )
