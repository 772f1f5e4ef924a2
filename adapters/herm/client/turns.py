"""Turns: where they begin, rest and end."""

from __future__ import annotations

from typing import Any, Literal

from adapters import events as ev
from adapters.herm.client.asks import Asks
from adapters.herm.client.envelopes import Seen, sequence_of
from adapters.herm.client.inputs import Inputs, foreign_message
from adapters.herm.client.records import State
from adapters.herm.client.texts import Texts
from adapters.jsonvalue import name_of

__all__ = ["Turns"]


class Turns:
    """The turn that is open, if any."""

    __slots__ = ("_asks", "_inputs", "_s", "_texts")

    def __init__(self, state: State, texts: Texts, asks: Asks, inputs: Inputs) -> None:
        self._s = state
        self._texts = texts
        self._asks = asks
        self._inputs = inputs

    def work(self, native: ev.NativeRef) -> list[ev.Event]:
        """Begin or resume the turn where the backend did not say so (section 5)."""
        if self._s.turn is None:
            return self.begin(native, synthetic=True)
        return self._resume(native, synthetic=True) if self._s.paused else []

    def begin(
        self,
        native: ev.NativeRef | None,
        *,
        synthetic: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> list[ev.Event]:
        """Begin a turn: of the message that waits for it, of others' messages, or by itself."""
        s = self._s
        s.turns += 1
        s.turn = f"turn-{s.turns}"
        s.paused, s.interrupting = False, False
        pending = s.pending if s.pending is not None and not s.pending.again.waits else None
        out: list[ev.Event] = []
        if pending is not None:
            out += self._inputs.settle_pending()
            s.pending = None
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

    def running(self, seen: Seen) -> list[ev.Event]:
        """Hear that the agent works."""
        if self._s.turn is None:
            return self.begin(seen.native, extra=seen.extra())
        if not self._s.paused:
            return []
        return self._resume(seen.native, extra=seen.extra())

    def _resume(
        self,
        native: ev.NativeRef,
        *,
        synthetic: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> list[ev.Event]:
        out = self._asks.resolve_answered(native)
        return [*out, self.resumed(native, synthetic=synthetic, extra=extra)]

    def resumed(
        self,
        native: ev.NativeRef,
        *,
        synthetic: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> ev.Event:
        """Return that the paused turn goes on."""
        self._s.paused = False
        return ev.TurnResumed(
            thread_id=ev.MAIN, turn_id=self._s.turn, native=native, synthetic=synthetic, extra=extra
        )

    def idle(self, seen: Seen) -> list[ev.Event]:
        """Hear that the agent rests: it waits for answers, or the turn is over."""
        reason = seen.payload.get("stop_reason")
        reason = reason if isinstance(reason, dict) else {}
        kind = reason.get("type")
        if kind == "requires_action":
            return self._waits(seen, reason)
        out: list[ev.Event] = []
        if self._s.turn is None:
            if not self._answers_pending(seen):
                return []
            out = self.begin(seen.native, synthetic=True)
        error = None
        outcome: Literal["completed", "failed", "interrupted"] = "completed"
        if kind == "error":
            outcome = "failed"
            message = reason.get("message")
            error = ev.ErrorInfo(
                code="error",
                message=message if isinstance(message, str) and message else "The turn failed.",
            )
        if self._s.interrupting:
            outcome = "interrupted"
        extra = seen.extra({"stop_reason"}) or {}
        if kind not in ("end_turn", "error") or reason.keys() - {"type", "message"}:
            # Unknown reasons are kept, and taken as idle (section 4.6).
            extra["stop_reason"] = seen.payload.get("stop_reason")
        out += self.end(outcome, error, seen.native, extra=extra or None)
        self._inputs.turn_over()
        return out

    def _answers_pending(self, seen: Seen) -> bool:
        """Say whether an idle without a running turn is what became of our message."""
        pending = self._s.pending
        if pending is None or not pending.settled or pending.again.waits:
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
        s = self._s
        out = self._texts.close("complete" if outcome == "completed" else "partial", native)
        for name in list(s.requests):
            if outcome == "interrupted":
                break
            out += self._asks.resolve(name, native)
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
        s.calls, s.requests = {}, {}
        return out

    def _waits(self, seen: Seen, reason: dict[str, Any]) -> list[ev.Event]:
        s, asks = self._s, self._asks
        ids = reason.get("event_ids")
        names = list(dict.fromkeys(filter(name_of, ids))) if isinstance(ids, list) else []
        out: list[ev.Event] = []
        if s.turn is None:
            out += self.begin(seen.native, synthetic=True)
        out += self._texts.close("complete", seen.native)
        matched = []
        for name in names:
            request_id = asks.named(name)
            if request_id is None:
                request_id, asked = asks.late(name, seen.native)
                out += asked
            matched.append(request_id)
        # Evidence: what is listed no longer has been answered.
        gone = [one for one in s.requests if one not in matched] if names else []
        for request_id in gone:
            out += asks.resolve(request_id, seen.native)
        s.paused = True
        out.append(
            ev.TurnPaused(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                on="input",
                request_ids=tuple(matched),
                native=seen.native,
                extra=seen.extra({"stop_reason"}),
            )
        )
        return out
