"""What a part is, and what follows from hearing something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field

from adapters.model.base import Call
from adapters.model.events import Event

NOT_STORED = Field(exclude=True)
"""Marks a field that concerns a connection: `Annotated[set[str], NOT_STORED]`. After a restart it
has its default."""


class PartOutput(NamedTuple):
    """What follows from hearing something: events for the log, and calls to be done."""

    events: Sequence[Event] = ()
    calls: Sequence[Call] = ()


class CodecPart:
    """One concern of a client codec. A subclass is a slots dataclass whose fields are its state."""

    __slots__ = ()

    @property
    def due(self) -> int | None:
        """When the part wants to be asked again (Unix milliseconds), None for never."""
        return None


def soonest(*dues: int | None) -> int | None:
    """Return the first of some times, None where there is none."""
    first = None
    for due in dues:
        if due is not None and (first is None or due < first):
            first = due
    return first
