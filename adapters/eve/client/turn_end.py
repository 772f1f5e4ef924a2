"""The ends of turns, of children and of the session."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.eve.client.parts import EveParts
from adapters.eve.client.state import ChildOutcome, ContextChange, PendingEnd, ThreadState
from adapters.eve.client.timers import CHILD_HOLD_MS
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.normalizer import END_MISSING
from adapters.wire.errors import SESSION_LOST

OVER_MOST = 64
"""Children that are over and remembered, since they may go on: the newest. One that goes on after
so many others is another child, and what it says is not shown before it is announced."""

_HELD_BACK = ev.ErrorInfo(
    code="message_held_back",
    message="eve: the server holds the message back: a cancel made it forget that a request was "
    "answered, and it waits for the answer again.",
)


@dataclasses.dataclass(slots=True)
class TurnEnd:
    """What ends, and what ends with it."""

    parts: EveParts

    def lost(self, error: ev.ErrorInfo, code: str = SESSION_LOST) -> list[ev.Event]:
        """End what runs as failed: the session does not show any more."""
        s = self.parts.state
        error = error.model_copy(update={"code": code, "status": None})
        taken = [item.command_id for item in s.ledger.open.values() if item.taken]
        out = self._close_inputs(error)
        if taken and s.lines[ev.MAIN].turn is None:
            # Nothing came of what was taken, and anybody who said it waits for an end.
            turn_id = f"lost_{taken[0]}"
            begin = ev.TurnStarted(
                thread_id=ev.MAIN, turn_id=turn_id, cause="message", synthetic=True
            )
            end = ev.TurnEnded(
                thread_id=ev.MAIN, turn_id=turn_id, outcome="failed", error=error, synthetic=True
            )
            out = [begin, *out, end]
        for line in list(s.lines.values()):
            out += self.parts.calls.decide_and_release(line)
            if line.turn is not None:
                line.ending = PendingEnd("failed", error)
                out += self.flush(line)
            if line.thread != ev.MAIN:
                self.parts.child_index.close_stream(line)
        if s.lines[ev.MAIN].sequence < 0:
            # The stream begins anew, and so do the numbers of its turns.
            s.lines[ev.MAIN].over, s.lines[ev.MAIN].ended = -1, {}
        s.control, s.reset_at = 0, None
        for request in s.asks.open.values():
            request.given = None
        s.late.clear()
        return out

    def _close_inputs(self, error: ev.ErrorInfo | None) -> list[ev.Event]:
        """Settle what will not show any more; a message that was taken gets its receipt (law 7)."""
        s = self.parts.state
        for command_id in s.ledger.open:
            s.silence.forget(command_id)
        out = [*s.ledger.lost(error), *self.parts.cancellation.close()]
        out += [raw.settled(command_id, "unknown", error) for command_id in s.silence.open]
        s.silence.clear()
        s.retries = []
        return out

    def gone(
        self, line: ThreadState, message: str, usage: ev.Usage | None = None
    ) -> list[ev.Event]:
        """End a turn as failed that the backend does not have any more, and not the session."""
        out = self.parts.calls.decide_and_release(line)
        error = ev.ErrorInfo(code=END_MISSING, message=f"eve: {message}")
        line.ending = PendingEnd("failed", error)
        return out + self.flush(line, usage)

    def _forget_children(self) -> list[ev.Event]:
        """Forget those of the children that are over which are not among the newest."""
        s = self.parts.state
        out: list[ev.Event] = []
        while len(self.parts.child_index.over) > OVER_MOST:
            thread = next(iter(self.parts.child_index.over))
            del self.parts.child_index.over[thread]
            line = s.lines[thread]
            # What its stream has said since.
            out += self.parts.calls.decide_and_release(line)
            self.parts.calls.forget_turn(line)
            self.parts.requests.close_requests(line)
            del s.lines[thread]
            for name in line.names:
                del s.tasks[name]
            self.parts.cursors.by_thread.pop(thread, None)
            self.parts.cursors.moved.discard(thread)
            self.parts.connection.refused.discard(thread)
        return out

    def flush(self, line: ThreadState, usage: ev.Usage | None = None) -> list[ev.Event]:
        """Write the end of a turn that was held: an end, or in the closed form a pause."""
        ending, line.ending = line.ending, None
        if ending is None:
            return []
        if isinstance(ending, ContextChange):
            line.owed, self.parts.state.control = True, max(0, self.parts.state.control - 1)
            return [ending.event]
        line.owed = not ending.bounded
        if line.turn is None:
            return []
        native, outcome = ending.native, ending.outcome
        out: list[ev.Event] = []
        rests = False
        if outcome == "completed" and self.parts.server.folds:
            out += self.parts.resolution.infer_at_end(line, native)
            if line.unrelayed or self.parts.requests.asked(line):
                line.closed, line.paused, line.step_open = True, "input", False
            rests = line.closed
        line.aside = self._put_aside(line, outcome, rests=rests)
        if rests and not line.unrelayed:
            out.append(
                ev.TurnPaused(
                    thread_id=line.thread,
                    turn_id=line.turn,
                    on="input",
                    usage=usage,
                    native=native,
                    extra=ending.extra,
                )
            )
        if rests:
            # Where a child has asked, the pause is told with the request.
            return out
        error = ending.error
        held_back = line.empty and line.heard is not None and self.parts.state.generation == "T"
        if outcome == "completed" and held_back:
            # Section 8.2: T holds a message back while it waits for an answer, but nobody was
            # asked.
            outcome, error = "failed", _HELD_BACK
            self.parts.cancellation.turn_taken_back()
        out.append(
            ev.TurnEnded(
                thread_id=line.thread,
                turn_id=line.turn,
                outcome=outcome,
                error=error,
                usage=usage,
                native=native,
                extra=ending.extra,
            )
        )
        return out + self.turn_over(line, outcome)

    def _put_aside(self, line: ThreadState, outcome: str, *, rests: bool) -> str:
        """Return what T was told in an eve turn that is over and will say again in the next: it is
        for the step after that with the results of what was asked (section 8.2)."""
        if self.parts.state.generation != "T" or line.heard is None:
            return ""
        steps = line.steps - line.heard_at
        if steps and not line.step_base:
            # Nothing was asked before it.
            return ""
        if outcome == "interrupted":
            return line.heard if steps > 1 else ""
        return line.heard if steps == 0 or (rests and steps == 1) else ""

    def turn_over(self, line: ThreadState, outcome: str = "failed") -> list[ev.Event]:
        """Record that a turn is over, and close what it has open."""
        s = self.parts.state
        self.parts.turns.over(line, outcome)
        line.closed, line.paused, line.step_open = False, None, False
        cursor = self.parts.cursors.of(line.thread)
        cursor.text = cursor.reasoning = False
        self.parts.calls.forget_turn(line)
        self.parts.requests.close_requests(line)
        out: list[ev.Event] = []
        if line.thread == ev.MAIN:
            out += self.parts.cancellation.turn_over()
            s.strays = [stray for stray in s.strays if stray.turn == line.last]
            if self.parts.child_index.open:
                s.orphans_at = line.ending_at + CHILD_HOLD_MS
        elif line.outcome is not None:
            out += self.end_child(line)
        return out

    def end_session(
        self,
        outcome: Any,
        error: ev.ErrorInfo | None,
        native: ev.NativeRef | None = None,
        extra: dict[str, Any] | None = None,
    ) -> list[ev.Event]:
        """End the session, and all that is open in it."""
        s = self.parts.state
        if s.ended:
            return []
        out: list[ev.Event] = []
        for line in list(s.lines.values()):
            out += self.parts.calls.decide_and_release(line)
            out += self.flush(line)
        out += self._close_inputs(error)
        s.ended, s.reset_at, s.orphans_at, s.control = True, None, None, 0
        s.doubted_until = None
        s.asks.clear()
        s.late.clear()
        for line in s.lines.values():
            line.outcome = None
        self.parts.index()
        out.append(
            ev.SessionEnded(
                thread_id=ev.MAIN,
                outcome=outcome,
                error=error,
                native=native,
                synthetic=native is None,
                extra=extra,
            )
        )
        return out

    def end_child(self, line: ThreadState) -> list[ev.Event]:
        """End a child, as far as is known how."""
        outcome, line.outcome = line.outcome, None
        out = self.parts.calls.decide_and_release(line)
        if outcome is None:
            if line.done:
                return out
            outcome = ChildOutcome("failed", synthetic=True)
        if line.ending is not None:
            out += self.flush(line)
        line.done = True
        if line.turn is not None:
            line.last, line.turn = line.turn, None
            line.paused, line.closed = None, False
        self.parts.calls.forget_turn(line)
        self.parts.requests.close_requests(line)
        self.parts.child_index.note(line)
        out += self._forget_children()
        out.append(
            ev.ThreadEnded(
                thread_id=line.thread,
                status=outcome.status,
                output=outcome.output,
                error=outcome.error,
                native=outcome.native,
                extra=outcome.extra,
                synthetic=outcome.synthetic,
            )
        )
        return out
