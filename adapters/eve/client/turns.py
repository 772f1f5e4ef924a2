"""Turns: begin, go on, and which turn a record is in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from adapters.eve.client.cursors import StreamCursors
from adapters.eve.client.pending_calls import PendingCalls
from adapters.eve.client.state import EveClientState, StreamRecord, ThreadState
from adapters.eve.client.values import sequence_of
from adapters.model import events as ev
from adapters.wire.jsonvalue import text_of


@dataclasses.dataclass(slots=True)
class EveTurns:
    """The turn of each thread."""

    state: EveClientState
    cursors: StreamCursors
    calls: PendingCalls

    def turn_id(self, line: ThreadState, record: StreamRecord) -> str:
        """Return our name of the turn that a record is in."""
        native = record.data.get("turnId")
        if not isinstance(native, str) or not native:
            number = record.data.get("sequence")
            native = f"turn_{number}" if isinstance(number, int) else f"turn_{line.turns}"
        # Every stream counts its turns from 0: a child's are told apart by its name.
        return native if line.thread == ev.MAIN else f"{line.thread}:{native}"

    def begin(
        self,
        line: ThreadState,
        turn_id: str,
        native: ev.NativeRef | None,
        deliveries: Iterable[str] = (),
        **fields: Any,
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
        cursor = self.cursors.of(line.thread)
        cursor.text = cursor.reasoning = False
        self.calls.forget_turn(line)
        line.said = {}
        line.retried, line.doubted, line.owners = False, {}, list(deliveries)
        return ev.TurnStarted(
            thread_id=line.thread,
            turn_id=turn_id,
            cause=self._cause(line),
            native=native,
            **fields,
        )

    def _cause(self, line: ThreadState) -> Literal["message", "background", "unknown"]:
        """Return why a turn begins: one that names whose it is, and names none of ours, is not for
        what we have said."""
        if line.thread != ev.MAIN:
            return "message"
        waiting = self.state.ledger.open.values()
        if not waiting:
            return "unknown"
        ours = [item.delivery for item in waiting]
        others = line.owners and all(name and name not in line.owners for name in ours)
        return "background" if others else "message"

    def in_turn(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        """Open or resume the turn that the work of a record is in, where nothing said so."""
        if self.is_late(line, record.data):
            return []
        line.empty = False
        if line.turn is None:
            turn_id = self.turn_id(line, record)
            line.native = text_of(record.data.get("turnId"))
            line.sequence = sequence_of(record, line.sequence)
            begin = self.begin(line, turn_id, record.native, record.deliveries, synthetic=True)
            return [begin]
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

    def is_late(self, line: ThreadState, data: dict[str, Any]) -> bool:
        """Say whether a record belongs to a turn that has ended: by its name, else its number."""
        if line.done:
            return True
        name = text_of(data.get("turnId"))
        if name is not None:
            if line.turn is not None and name == line.native:
                return False
            if name in line.ended:
                return True
        number = data.get("sequence")
        return type(number) is int and number <= line.over

    def rests(self, line: ThreadState, data: dict[str, Any]) -> bool:
        """Say whether a record belongs to an eve turn that has ended at a pause of ours."""
        number = data.get("sequence")
        return (
            line.closed
            and line.thread == ev.MAIN
            and text_of(data.get("turnId")) in (None, line.native)
            and type(number) is int
            and number <= line.sequence
        )

    def over(self, line: ThreadState, outcome: str) -> None:
        """Record that the turn of a thread has ended for good."""
        line.last, line.turn = line.turn, None
        line.over = max(line.over, line.sequence)
        if line.native is not None:
            line.ended.pop(line.native, None)
            line.ended[line.native] = outcome
            # The names of 16 are remembered: of older ones only the numbers tell.
            while len(line.ended) > 16:
                del line.ended[next(iter(line.ended))]

    def current(self, line: ThreadState) -> str | None:
        """Return the canonical turn of a record: the open one, else the one it is late for."""
        return line.turn if line.turn is not None else line.last
