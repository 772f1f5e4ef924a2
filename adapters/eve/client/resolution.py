"""How a request ended: as the server says, or by evidence where it says nothing (8.2)."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.eve import wire
from adapters.eve.client.cancellation import Cancellation
from adapters.eve.client.input_requests import InputRequests
from adapters.eve.client.inputs import EveInputs
from adapters.eve.client.pending_calls import PendingCalls
from adapters.eve.client.server_profile import ServerProfile
from adapters.eve.client.state import EveClientState, InputAnswer, Settlement, ThreadState
from adapters.eve.client.values import CS_KEYS, rest_of, settlement_of
from adapters.model import events as ev
from adapters.wire.jsonvalue import text_of

_PASSED_OVER = frozenset({"withdrawn", "cancelled", "expired"})
"""Outcomes that say nothing of an answer: the request was over without it."""

SETTLED_KEYS = CS_KEYS | {"requestId", "outcome", "responderPrincipalId"}


@dataclasses.dataclass(slots=True)
class RequestResolution:
    """Requests that are over."""

    state: EveClientState
    server: ServerProfile
    requests: InputRequests
    calls: PendingCalls
    inputs: EveInputs
    cancellation: Cancellation

    def resolve(
        self,
        request_id: str,
        outcome: ev.InteractionOutcome,
        native: ev.NativeRef | None,
        *,
        answer: ev.Answer | None = None,
        by: str | None = None,
        reason: str | None = None,
        extra: dict[str, Any] | None = None,
        synthetic: bool = False,
    ) -> list[ev.Event]:
        """Close a request, and settle its answer."""
        s = self.state
        request = s.asks.open.get(request_id)
        if request is None:
            return []
        approval = request.kind == "approval" and outcome != "withdrawn"
        if s.generation == "T" and approval and request.thread_id == ev.MAIN:
            self.cancellation.approved(request_id, self.requests.refusal(request))
        if outcome in _PASSED_OVER:
            self.requests.stray(request)
        given = request.given
        if answer is None and given is not None:
            answer = given.answer
        out: list[ev.Event] = []
        if given is not None and outcome not in _PASSED_OVER:
            out += self.inputs.arrived(given)
        out += self.requests.resolve(
            request_id,
            s.lines[request.thread_id].turn,
            outcome=outcome,
            answer=answer,
            scope="once" if outcome == "approved" and request.kind == "approval" else None,
            by=by,
            reason=reason if reason is not None else (answer.reason if answer else None),
            native=native,
            extra=extra,
            synthetic=synthetic,
        )
        shown = s.lines.get(request.shown_on or "")
        held = shown is not None and shown.paused == "input" and not shown.closed
        if shown is not None and held and not self.requests.asked(shown):
            # It waits for its child again, and says nothing about it (section 8.2).
            shown.paused = "tasks"
            out.append(
                ev.TurnPaused(
                    thread_id=shown.thread, turn_id=shown.turn, on="tasks", synthetic=True
                )
            )
        return out

    def doubt(self, line: ThreadState) -> None:
        """Record that a step is tried again: what it has asked for and not heard of counts only if
        it asks for it once more."""
        line.retried = True
        for call in line.calls.values():
            if call.step == line.steps and not call.returned:
                call.doubted = True
        asked = self.state.asks.open
        for request_id in self.requests.asked(line):
            request = asked[request_id]
            mine = request.thread_id == line.thread and request.kind != "authorization"
            if mine and request.step == line.steps:
                line.doubted[request_id] = None
        line.doubted.update(line.unrelayed)

    def discard(self, line: ThreadState, native: ev.NativeRef) -> list[ev.Event]:
        """End what a step has asked for at a try that does not count."""
        if not line.retried:
            return []
        line.retried = False
        doubted, line.doubted = line.doubted, {}
        out: list[ev.Event] = []
        for request_id in doubted:
            if request_id in line.unrelayed:
                # Its parent may show it yet.
                del line.unrelayed[request_id]
                self.state.resolved[request_id] = self.requests.turns_of({line.thread, ev.MAIN})
            out += self.resolve(request_id, "withdrawn", native, synthetic=True)
        for call_id, call in list(line.calls.items()):
            if not call.doubted:
                continue
            call.doubted = False
            message = "eve: the step was tried again, and has not made this call again."
            self.calls.call_returned(line, call_id)
            out.append(
                ev.ToolReturned(
                    thread_id=line.thread,
                    turn_id=line.turn,
                    call_id=call_id,
                    is_error=True,
                    status="interrupted",
                    error=ev.ErrorInfo(code=wire.DISCARDED, message=message),
                    native=native,
                    synthetic=True,
                )
            )
        return out

    def settle(self, line: ThreadState, settled: Settlement) -> list[ev.Event]:
        """Resolve an approval by `approval.settled` alone."""
        line.settled = None
        data = settled.data
        rest = rest_of(data, SETTLED_KEYS)
        return self.resolve(
            data["requestId"],
            settlement_of(data),
            settled.native,
            by=text_of(data.get("responderPrincipalId")),
            extra=None if rest is None else {wire.SETTLED: rest},
        )

    def infer_from_result(
        self, line: ThreadState, call_id: str, status: str, output: object, native: ev.NativeRef
    ) -> list[ev.Event]:
        """Take the result of a call as the proof that its approval was answered."""
        for request_id in self.requests.of_call.get((line.thread, call_id), ()):
            if self.state.asks.open[request_id].kind != "approval":
                continue
            outcome: ev.InteractionOutcome = "approved"
            if status == "rejected":
                approval = output.get("approval") if isinstance(output, dict) else None
                said = approval.get("status") if isinstance(approval, dict) else None
                outcome = "withdrawn" if said == "ignored" else "denied"
            return self.resolve(request_id, outcome, native, synthetic=True)
        return []

    def infer_answered(self, line: ThreadState, native: ev.NativeRef) -> list[ev.Event]:
        """Take work after an answer as its proof; in T a turn works only when all was answered."""
        if self.server.explicit:
            return []
        out: list[ev.Event] = []
        for request_id in self.requests.asked(line):
            request = self.state.asks.open[request_id]
            given = request.given
            if self.requests.asked_now(line, request) or request.kind == "authorization":
                # Asked in this very turn: its work proves nothing.
                continue
            if given is not None:
                out += self.resolve(request_id, given.outcome, native, synthetic=True)
            elif request.kind == "question" and self.state.generation == "T":
                heard = ev.Answer(text=line.heard) if line.heard else None
                out += self.resolve(request_id, "answered", native, answer=heard, synthetic=True)
        return out

    def infer_at_end(self, line: ThreadState, native: ev.NativeRef | None) -> list[ev.Event]:
        """Take the end of a turn as the proof of an answer: an empty one follows one of two."""
        if self.server.explicit:
            return []
        out: list[ev.Event] = []
        for request_id in self.requests.asked(line):
            request = self.state.asks.open[request_id]
            if self.requests.asked_now(line, request) or request.kind == "authorization":
                continue
            given = request.given
            if line.empty and line.heard is None and given is not None:
                return self._infer_step(request_id, given, native)
            if not line.empty and self.state.generation == "T":
                out += self.resolve(request_id, "unknown", native, synthetic=True)
        return out

    def _infer_step(
        self, request_id: str, given: InputAnswer, native: ev.NativeRef | None
    ) -> list[ev.Event]:
        """Take an answer and those that were posted with it as arrived."""
        together = [(given.place, request_id, given.outcome)]
        if given.step is not None:
            together = [
                (request.given.place, name, request.given.outcome)
                for name, request in self.state.asks.open.items()
                if request.given is not None and request.given.step == given.step
            ]
        out: list[ev.Event] = []
        for _, name, outcome in sorted(together):
            out += self.resolve(name, outcome, native, synthetic=True)
        return out
