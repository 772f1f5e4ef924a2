"""Turns: where they begin, rest and end."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from adapters.herm.client.asks import HermRequests
from adapters.herm.client.contents import foreign_message
from adapters.herm.client.envelopes import ReceivedEnvelope, sequence_of
from adapters.herm.client.inputs import HermInputs
from adapters.herm.client.records import KEPT, HermClientState, HermTurnEnd
from adapters.herm.client.texts import TextRuns
from adapters.model import events as ev
from adapters.wire.errors import CODE_LIMIT, cut
from adapters.wire.jsonvalue import name_of

HOLD_MS = 2_000
"""How long the end of a turn waits for results of its calls, and how long after its last piece a
turn of late ones ends. Ours, as long as an Engine's."""

MOST_NAMED = 8
"""Ids that a notice names."""


@dataclasses.dataclass(slots=True)
class HermTurns:
    """The turn that is open, if any."""

    s: HermClientState
    texts: TextRuns
    asks: HermRequests
    inputs: HermInputs

    def work(self, seen: ReceivedEnvelope, *, asks: bool = False) -> list[ev.Event]:
        """Begin or resume the turn where the backend did not say so (section 5). What comes after
        the end of a turn, and is of none that was announced, has a turn for itself: it ends by
        itself, unless the work `asks`."""
        s = self.s
        out: list[ev.Event] = []
        if not s.works and s.turn is not None and self._begins(seen, surely=True):
            out = self.settle()
        if s.turn is None:
            late = self.is_late(seen)
            out += self.begin(seen.native, synthetic=True, late=late)
            s.late_at = seen.now if late and not asks else None
            return out
        if asks:
            # Another question says nothing of those before it.
            s.ending, s.late_at = None, None
            return []
        if s.late_at is not None:
            s.late_at = seen.now
        return self._resume(seen.native, synthetic=True) if s.paused else []

    def is_late(self, seen: ReceivedEnvelope) -> bool:
        """Say whether work belongs to a turn that the backend has ended."""
        s = self.s
        return s.turns > 0 and not s.works and not self._begins(seen)

    def _begins(self, seen: ReceivedEnvelope, *, surely: bool = False) -> bool:
        """Say whether an envelope may be of the turn of a message that waits for it: its number
        decides, where both have one. With `surely` only the number does."""
        pending = self.s.queue.sent
        if pending is None:
            return bool(self.s.inbox)
        number = sequence_of(seen.envelope)
        if pending.sequence is None or number is None:
            return not surely
        return number >= pending.sequence

    def begin(
        self,
        native: ev.NativeRef | None,
        *,
        synthetic: bool = False,
        late: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> list[ev.Event]:
        """Begin a turn: of the message that waits for it, of others' messages, or by itself."""
        s = self.s
        s.turns += 1
        s.turn = f"turn-{s.turns}"
        s.paused, s.interrupting = False, False
        pending = None if late else s.queue.sent
        out: list[ev.Event] = []
        if pending is not None:
            out += self.inputs.settle_pending()
            s.queue.drop_next()
        out.append(
            ev.TurnStarted(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                cause="message" if pending is not None or s.inbox else "background",
                native=native,
                synthetic=synthetic,
                extra=extra,
            )
        )
        if pending is not None:
            out.append(
                ev.MessageReceived(
                    thread_id=ev.MAIN,
                    turn_id=s.turn,
                    message_id=pending.command_id,
                    content=tuple(pending.content),
                    command_id=pending.command_id,
                    synthetic=True,
                )
            )
        inbox, s.inbox = s.inbox, []
        return out + [foreign_message(message.id, message.text, s.turn) for message in inbox]

    def running(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """Record that the agent works."""
        s = self.s
        out: list[ev.Event] = []
        if s.ending is not None or (s.late_at is not None and self._begins(seen)):
            out = self.settle()
        # Without a message it is what the late pieces are of.
        s.late_at = None
        if s.turn is None:
            return out + self.begin(seen.native, extra=seen.extra())
        if not self.s.paused:
            return []
        return self._resume(seen.native, extra=seen.extra())

    def _resume(
        self,
        native: ev.NativeRef,
        *,
        synthetic: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> list[ev.Event]:
        out = self.asks.resolve_answered(native)
        return [*out, self.resumed(native, synthetic=synthetic, extra=extra)]

    def resumed(
        self,
        native: ev.NativeRef | None,
        *,
        synthetic: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> ev.Event:
        """Return that the paused turn goes on."""
        self.s.paused = False
        return ev.TurnResumed(
            thread_id=ev.MAIN, turn_id=self.s.turn, native=native, synthetic=synthetic, extra=extra
        )

    def idle(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """Record that the agent rests: it waits for answers, or the turn is over."""
        reason = seen.payload.get("stop_reason")
        reason = reason if isinstance(reason, dict) else {}
        kind = reason.get("type")
        if kind == "requires_action":
            return self._waits(seen, reason)
        s = self.s
        out: list[ev.Event] = []
        if not s.works and self._answers_pending(seen):
            out = [*self.settle(), *self.begin(seen.native, synthetic=True)]
        if s.turn is None or s.ending is not None:
            return out
        error = None
        outcome: Literal["completed", "failed", "interrupted"] = "completed"
        if kind == "error":
            outcome = "failed"
            message = reason.get("message")
            error = ev.ErrorInfo(
                code="error",
                message=message if isinstance(message, str) and message else "The turn failed.",
            )
        if s.interrupting:
            outcome = "interrupted"
        extra = seen.extra({"stop_reason"}) or {}
        if kind not in ("end_turn", "error") or reason.keys() - {"type", "message"}:
            # Unknown reasons are kept, and taken as idle (section 4.6).
            extra["stop_reason"] = seen.payload.get("stop_reason")
        ending = HermTurnEnd(outcome, seen.now, error, seen.native, extra or None)
        if outcome != "interrupted" and self._returning():
            # No run of deltas goes on after this (section 4.4).
            s.ending, s.paused, s.late_at = ending, False, None
            out += self.texts.close(_status(outcome), seen.native)
        else:
            out += self._end_as(ending)
        s.queue.turn_over()
        return out

    # Ends that wait.

    @property
    def due(self) -> int | None:
        """When the open turn ends by itself."""
        s = self.s
        since = s.late_at if s.ending is None else s.ending.at
        return None if since is None else since + HOLD_MS

    def tick(self, now: int) -> list[ev.Event]:
        """End the turn that has waited long enough."""
        due = self.due
        return self.settle() if due is not None and now >= due else []

    def returned(self) -> list[ev.Event]:
        """Record that a call has returned, which the end of the turn may have waited for."""
        return self.settle() if self.s.ending is not None and not self._returning() else []

    def settle(self) -> list[ev.Event]:
        """End the turn that the backend does not work on, if one is open."""
        s = self.s
        if s.turn is None or s.works:
            return []
        if s.ending is not None:
            return self._end_as(s.ending)
        return self.end("completed", None, None, synthetic=True)

    def _returning(self) -> bool:
        """Say whether a result may still come: what waits for an answer has none."""
        asked = {request.call for request in self.s.requests.values() if request.answer is None}
        calls = self.s.calls.items()
        return any(call_id not in asked and not call.custom for call_id, call in calls)

    def _end_as(self, ending: HermTurnEnd) -> list[ev.Event]:
        return self.end(ending.outcome, ending.error, ending.native, extra=ending.extra)

    def _answers_pending(self, seen: ReceivedEnvelope) -> bool:
        """Say whether an idle without a running turn is what became of our message."""
        pending = self.s.queue.sent
        if pending is None or not pending.settled:
            return False
        number = sequence_of(seen.envelope)
        return pending.sequence is None or number is None or number > pending.sequence

    def end(
        self,
        outcome: Literal["completed", "failed", "interrupted"],
        error: ev.ErrorInfo | None,
        native: ev.NativeRef | None,
        *,
        extra: dict[str, Any] | None = None,
        synthetic: bool = False,
    ) -> list[ev.Event]:
        """End the turn that is open."""
        s = self.s
        out = self.texts.close(_status(outcome), native)
        for name in list(s.requests):
            if outcome == "interrupted":
                break
            out += self.asks.resolve(name, native)
        out.append(
            ev.TurnEnded(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                outcome=outcome,
                error=error,
                native=native,
                synthetic=synthetic,
                extra=extra,
            )
        )
        s.turn, s.paused, s.interrupting = None, False, False
        s.ending, s.late_at = None, None
        for name, request in s.requests.items():
            s.put_over(name, request.envelope)
        for call_id, call in s.calls.items():
            s.put_over(call_id, call.envelope)
            s.left[call_id] = call.tool
        for old in list(s.left)[:-KEPT]:
            del s.left[old]
        s.calls, s.requests = {}, {}
        return out

    def _waits(self, seen: ReceivedEnvelope, reason: dict[str, Any]) -> list[ev.Event]:
        s, asks = self.s, self.asks
        ids = reason.get("event_ids")
        names = list(dict.fromkeys(filter(name_of, ids))) if isinstance(ids, list) else []
        new = [name for name in names if s.asks.find(name) is None and not asks.is_over(name)]
        if not new and not s.requests:
            # It tells how things are, and not that something is asked: nothing of it can be
            # answered.
            return [self._waits_for_nothing(seen, names)]
        out: list[ev.Event] = []
        if s.turn is None:
            out += self.begin(seen.native, synthetic=True)
        s.ending, s.late_at = None, None
        out += self.texts.close("complete", seen.native)
        for name in new:
            out += asks.late(name, seen.native)
        matched = {s.asks.find(name) for name in names}
        for request_id, request in list(s.requests.items()):
            request.gone = bool(names) and request_id not in matched
            if request.gone and request.answer is not None:
                out += asks.resolve(request_id, seen.native)
        s.paused = True
        out.append(
            ev.TurnPaused(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                on="input",
                request_ids=tuple(s.requests),
                native=seen.native,
                extra=seen.extra({"stop_reason"}),
            )
        )
        return out

    def _waits_for_nothing(self, seen: ReceivedEnvelope, names: list[str]) -> ev.Event:
        """Say that the agent waits for what was answered before, or does not say for what."""
        named = ", ".join(f"`{cut(name, CODE_LIMIT)}`" for name in names[:MOST_NAMED])
        what = f"of which nothing waits any more: {named}" if names else "and names no request"
        return ev.Notice(
            thread_id=ev.MAIN,
            turn_id=self.s.turn,
            level="warning",
            kind="stale_pause",
            text=f"The agent says that it waits for an answer, {what}.",
            native=seen.native,
        )


def _status(outcome: str) -> ev.BlockStatus:
    """Return what becomes of the texts that are open when a turn ends."""
    return "complete" if outcome == "completed" else "partial"
