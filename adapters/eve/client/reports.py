"""Events about a record that says nothing to people."""

from __future__ import annotations

from adapters.eve import wire
from adapters.eve.client.state import StreamRecord, ThreadState
from adapters.eve.client.values import clean
from adapters.model import events as ev


def as_native(line: ThreadState, record: StreamRecord) -> list[ev.Event]:
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


def as_late(line: ThreadState, record: StreamRecord) -> list[ev.Event]:
    """Return a record of a turn that is over as it came: it is of no turn that is open."""
    (told,) = as_native(line, record)
    return [told.model_copy(update={"turn_id": None, "extra": {wire.LATE: True}})]
