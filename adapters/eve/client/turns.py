"""Turns: begin, go on, and which turn a record is in."""

from __future__ import annotations

from typing import Any

from adapters import events as ev
from adapters.eve.client.holding import Holding
from adapters.eve.client.places import Places
from adapters.eve.client.records import Line, Record, State
from adapters.eve.client.values import sequence_of
from adapters.jsonvalue import text_of


class Turns:
    """The turn of each thread."""

    __slots__ = ("_holding", "_places", "_s")

    def __init__(self, state: State, places: Places, holding: Holding) -> None:
        self._s = state
        self._places = places
        self._holding = holding

    def turn_id(self, line: Line, record: Record) -> str:
        """Return our name of the turn that a record is in."""
        native = record.data.get("turnId")
        if not isinstance(native, str) or not native:
            number = record.data.get("sequence")
            native = f"turn_{number}" if isinstance(number, int) else f"turn_{line.turns}"
        # Every stream counts its turns from 0: a child's are told apart by its name.
        return native if line.thread == ev.MAIN else f"{line.thread}:{native}"

    def begin(
        self, line: Line, turn_id: str, native: ev.NativeRef | None, **fields: Any
    ) -> ev.Event:
        """Begin a turn."""
        line.turn, line.closed, line.paused, line.empty, line.heard = (
            turn_id,
            False,
            None,
            True,
            None,
        )
        line.turns += 1
        line.step, line.step_turn, line.step_open, line.step_done = None, None, False, True
        line.step_base, line.step_top = 0, -1
        place = self._places.of(line.thread)
        place.text = place.reasoning = False
        self._holding.forget_turn(line)
        line.said = {}
        waiting = line.thread != ev.MAIN or bool(self._s.ledger.open)
        return ev.TurnStarted(
            thread_id=line.thread,
            turn_id=turn_id,
            cause="message" if waiting else "unknown",
            native=native,
            **fields,
        )

    def in_turn(self, line: Line, record: Record) -> list[ev.Event]:
        """Open or resume the turn that the work of a record is in, where nothing said so."""
        line.empty = False
        if line.turn is None:
            turn_id = self.turn_id(line, record)
            if self.is_over(line, record):
                return []
            line.native = text_of(record.data.get("turnId"))
            line.sequence = sequence_of(record, line.sequence)
            return [self.begin(line, turn_id, record.native, synthetic=True)]
        if line.paused is None:
            return []
        line.paused = None
        if line.closed:
            # After a relayed request T goes on without a `turn.started` (section 8.2).
            line.closed = False
            line.step_base = line.step_top + 1
            number = sequence_of(record, line.sequence + 1)
            line.native = text_of(record.data.get("turnId")) or f"turn_{number}"
            line.sequence = sequence_of(record, line.sequence)
        return [
            ev.TurnResumed(
                thread_id=line.thread, turn_id=line.turn, native=record.native, synthetic=True
            )
        ]

    def is_over(self, line: Line, record: Record) -> bool:
        """Say whether a record belongs to a turn that has ended."""
        number = record.data.get("sequence")
        return line.last is not None and isinstance(number, int) and number <= line.sequence

    def current(self, line: Line, record: Record) -> str | None:
        """Return the canonical turn of a record: the open one, else the one it is late for."""
        return line.turn if line.turn is not None else line.last
