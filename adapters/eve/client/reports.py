"""Events about a record that says nothing to people."""

from __future__ import annotations

from adapters import events as ev
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
