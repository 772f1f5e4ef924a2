"""Records about turns."""

from __future__ import annotations

import dataclasses
from typing import Literal, cast

from adapters.eve.client.parts import EveParts
from adapters.eve.client.reports import as_late
from adapters.eve.client.state import PendingEnd, StreamRecord, ThreadState
from adapters.eve.client.turn_end import TurnEnd
from adapters.eve.client.values import (
    C_KEYS,
    FAILURE_KEYS,
    error_of,
    rest_of,
    sequence_of,
    usage_of,
)
from adapters.model import events as ev
from adapters.wire.jsonvalue import text_of

_LIMIT_CODES = frozenset({"SESSION_TOKEN_LIMIT_REACHED", "SESSION_TOKEN_COST_LIMIT_REACHED"})

_WAITING_KEYS = C_KEYS | {"on", "usage"}


@dataclasses.dataclass(slots=True)
class TurnRecords:
    """Where turns begin, wait and end."""

    parts: EveParts
    turn_end: TurnEnd

    def turn_started(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        native_id = text_of(record.data.get("turnId"))
        extra = rest_of(record.data, C_KEYS)
        out: list[ev.Event] = []
        if line.turn is not None:
            resumes = line.closed
            if not resumes and line.native in (None, native_id):
                # The same turn, said again (a retried step) or announced before by us.
                line.native = native_id
                line.sequence = sequence_of(record, line.sequence)
                line.owners = list(record.deliveries) or line.owners
                return []
            if not resumes:
                # The normalizer writes the end that this one does not have.
                out += self.parts.calls.decide_and_release(line) + self.turn_end.turn_over(line)
            else:
                line.native, line.sequence = native_id, sequence_of(record, line.sequence)
                line.closed, line.paused, line.empty, line.heard = False, None, True, None
                line.said, line.owners = {}, list(record.deliveries)
                # A child that resumes says its own turn again, and counts on.
                same = line.step_turn == native_id
                line.step_base = line.step_base if same else line.step_top + 1
                if line.thread == ev.MAIN:
                    out += self.parts.cancellation.turn_goes_on(native_id)
                return [
                    *out,
                    ev.TurnResumed(
                        thread_id=line.thread, turn_id=line.turn, native=record.native, extra=extra
                    ),
                ]
        out += self.parts.calls.decide_and_release(line)
        for item in self.parts.state.ledger.open.values():
            # Inputs are settled before the turn that they own, so that faces can name them in it.
            mine = item.delivery in record.deliveries if item.delivery else item.creates
            if line.thread == ev.MAIN and mine:
                out += self.parts.state.ledger.settle(item.command_id, "taken")
        turn_id = self.parts.turns.turn_id(line, record)
        line.native, line.sequence = native_id, sequence_of(record, line.sequence)
        out.append(
            self.parts.turns.begin(line, turn_id, record.native, record.deliveries, extra=extra)
        )
        return out

    def turn_completed(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        if record.data.get("held") is True:
            return self._held(line, record)
        return self._end(line, record, PendingEnd("completed"), C_KEYS)

    def _held(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        """Record that a turn has ended for now: it goes on with what it waits for."""
        asked = self.parts.requests.asked(line)
        line.held.decide_all("unknown" if asked else "allow")
        out = self.parts.turns.in_turn(line, record) if line.turn is None else []
        line.paused, line.step_open, line.named = "input" if asked else "held", False, asked
        # A boundary that follows says no more than this.
        line.owed = True
        out.append(
            ev.TurnPaused(
                thread_id=line.thread,
                turn_id=line.turn,
                on="input" if asked else "tasks",
                native=record.native,
                extra=rest_of(record.data, C_KEYS),
            )
        )
        return out

    def turn_cancelled(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        if self.parts.turns.is_late(line, record.data):
            name = text_of(record.data.get("turnId"))
            known = line.ended.get(name or next(reversed(line.ended), ""))
            if line.turn is not None or line.thread != ev.MAIN or known == "interrupted":
                return as_late(line, record)
            return self._taken_back(line, record)
        out = self.parts.resolution.infer_answered(line, record.native)
        if line.thread == ev.MAIN:
            self.parts.cancellation.turn_cancelled()
        return out + self._end(line, record, PendingEnd("interrupted"), C_KEYS)

    def _taken_back(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        """Record that the backend cancels a turn that has ended: the next boundary has no turn."""
        line.taken_back = True
        name = text_of(record.data.get("turnId")) or next(reversed(line.ended), None)
        if name in line.ended:
            line.ended[name] = "interrupted"
        self.parts.cancellation.turn_taken_back()
        return [
            ev.ErrorReported(
                thread_id=line.thread,
                turn_id=line.last,
                code="turn_taken_back",
                message="eve: a cancel came as the turn ended; the agent has forgotten the turn.",
                native=record.native,
            )
        ]

    def turn_failed(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        error = error_of(record.data)
        over = error.code in _LIMIT_CODES
        ending = PendingEnd("over_budget" if over else "failed", error)
        return self._end(line, record, ending, FAILURE_KEYS)

    def _end(
        self, line: ThreadState, record: StreamRecord, ending: PendingEnd, known: frozenset[str]
    ) -> list[ev.Event]:
        """Hold the end of a turn: the boundary after it tells the usage."""
        line.held.decide_all("unknown")
        out = self.parts.resolution.discard(line, record.native)
        if line.turn is None:
            out += self.parts.turns.in_turn(line, record)
            line.empty = True
        if line.thread == ev.MAIN:
            # A message that was taken as an answer joins the turn, and S2 does not report it.
            ledger = self.parts.state.ledger
            for item in list(ledger.open.values()):
                if item.delivery in record.deliveries:
                    out += ledger.receive(item.command_id, line.turn, native=record.native)
        ending.native, ending.extra = record.native, rest_of(record.data, known)
        line.ending, line.ending_at = ending, record.now
        self.parts.timers.wait_for(line)
        return out

    def turn_waiting(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        on = "tasks" if record.data.get("on") == "tasks" else "input"
        line.held.decide_all("allow" if on == "tasks" else "unknown")
        out = self.parts.resolution.discard(line, record.native)
        if line.turn is None:
            out += self.parts.turns.in_turn(line, record)
        asked = self.parts.requests.asked(line)
        if on == line.paused == "input" and asked and set(asked) < set(line.named):
            # Said again after one of several answers; that it still waits is in the log already.
            line.named = asked
            return out
        line.paused, line.step_open, line.named = on, False, asked
        if on == "input" and line.unrelayed:
            # The pause is told with the request.
            return out
        out.append(
            ev.TurnPaused(
                thread_id=line.thread,
                turn_id=line.turn,
                on=cast(Literal["input", "tasks"], on),
                usage=usage_of(record.data.get("usage")),
                native=record.native,
                extra=rest_of(record.data, _WAITING_KEYS),
            )
        )
        return out
