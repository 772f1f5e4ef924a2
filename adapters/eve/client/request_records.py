"""Records about requests to a person."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from adapters.eve import wire
from adapters.eve.client.contents import details_of, options_of
from adapters.eve.client.parts import EveParts
from adapters.eve.client.reports import as_late, as_native
from adapters.eve.client.resolution import SETTLED_KEYS
from adapters.eve.client.state import InputRequest, Settlement, StreamRecord, ThreadState
from adapters.eve.client.values import CS_KEYS, beside_of, rest_of, settlement_of
from adapters.model import events as ev
from adapters.wire.jsonvalue import name_of, text_of

_REQUEST_KINDS: dict[str, ev.InteractionKind] = {
    "tool-approval": "approval",
    "question": "question",
    "session-limit": "limit",
}

_OUTCOMES: dict[str, ev.InteractionOutcome] = {
    "answered": "answered",
    "approved": "approved",
    "denied": "denied",
    "ignored": "withdrawn",
    "cancelled": "cancelled",
    "invalid": "failed",
}
"""`outcome` of a resolution -> ours (section 9.4)."""

_REQUESTED_KEYS = CS_KEYS | {"requests"}

_REQUEST_KEYS = frozenset({"requestId", "kind", "prompt", "action", "allowFreeform", "options"})

_RESOLVED_KEYS = CS_KEYS | {"resolutions"}

_RESOLUTION_KEYS = frozenset({"requestId", "kind", "outcome", "response"})


@dataclasses.dataclass(slots=True)
class RequestRecords:
    """What the agent asks."""

    parts: EveParts

    def input_requested(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        requests = record.data.get("requests")
        if not isinstance(requests, list):
            return as_native(line, record)
        out: list[ev.Event] = []
        for request in requests:
            if isinstance(request, dict) and name_of(request.get("requestId")) is not None:
                out += self._request(line, record, request)
            else:
                out += as_native(line, record)
        return out

    def _request(
        self, line: ThreadState, record: StreamRecord, request: dict[str, Any]
    ) -> list[ev.Event]:
        s = self.parts.state
        request_id = request["requestId"]
        line.doubted.pop(request_id, None)
        known_request = s.asks.open.get(request_id)
        over = (
            request_id in s.resolved
            if line.thread != ev.MAIN
            else self.parts.requests.was_asked(request_id)
        )
        if known_request is not None or over:
            # A child's request is on its own stream and on its parent's, in any order.
            if known_request is not None:
                if known_request.thread_id == line.thread:
                    known_request.turn, known_request.step = line.native, line.steps
                else:
                    known_request.shown_turn = line.native
            return []
        if request_id in line.unrelayed:
            return []
        action = request.get("action")
        action = action if isinstance(action, dict) else {}
        native_kind = request.get("kind")
        kind = _REQUEST_KINDS.get(str(native_kind), "question")
        asking = self._asking(line, record, action, kind)
        if asking.done or (asking is line and self.parts.turns.is_late(line, record.data)):
            return as_late(line, record)
        call_id = name_of(action.get("callId")) if kind != "limit" else None
        known = call_id in asking.calls
        self.parts.calls.decide(asking, call_id, "ask" if kind == "approval" else "allow")
        if line.thread != ev.MAIN:
            line.unrelayed[request_id] = None
            return []
        out = self.parts.calls.released(asking) if asking is not line else []
        if asking is not line:
            if asking.turn is None:
                # The parent tells it before the child's own stream does.
                number = max(asking.sequence + 1, 0)
                turn_id = f"{asking.thread}:turn_{number}"
                asking.native = None
                out.append(self.parts.turns.begin(asking, turn_id, None, synthetic=True))
        elif line.turn is None:
            out += self.parts.turns.in_turn(line, record)
        details = details_of(kind, action)
        options = options_of(request.get("options"))
        freeform = request.get("allowFreeform") is True or (kind == "question" and not options)
        extra = beside_of(record.data, _REQUESTED_KEYS, rest_of(request, _REQUEST_KEYS)) or {}
        if str(native_kind) not in _REQUEST_KINDS:
            extra["kind"] = native_kind
        # Section 10: it appears on the session's own stream and is answered there.
        shown_on = ev.MAIN if asking.thread != ev.MAIN else None
        opened = InputRequest(
            kind=kind,
            thread_id=asking.thread,
            call_id=call_id,
            shown_on=shown_on,
            options=options or (),
            freeform=freeform,
            turn=asking.native,
            step=asking.steps,
            shown_turn=line.native if asking is not line else None,
        )
        self.parts.requests.open_request(request_id, opened)
        out.append(
            ev.InteractionRequested(
                thread_id=asking.thread,
                turn_id=self.parts.turns.current(asking),
                request_id=request_id,
                shown_on=shown_on,
                kind=kind,
                prompt=str(request.get("prompt") or ""),
                options=options,
                freeform=freeform,
                call_id=call_id if known or kind == "approval" else None,
                details=details or None,
                native=record.native,
                extra=extra or None,
            )
        )
        if request_id in asking.unrelayed:
            del asking.unrelayed[request_id]
            if asking.paused == "input":
                out.append(
                    ev.TurnPaused(
                        thread_id=asking.thread, turn_id=asking.turn, on="input", synthetic=True
                    )
                )
        return out

    def _asking(
        self, line: ThreadState, record: StreamRecord, action: dict[str, Any], kind: str
    ) -> ThreadState:
        """Return the thread that asks: a child's request is relayed on its parent (section 10)."""
        s = self.parts.state
        task = record.data.get("taskId")
        if isinstance(task, str) and task in s.tasks:
            return s.lines[s.tasks[task]]
        call_id = text_of(action.get("callId"))
        if call_id in line.calls or kind == "limit":
            return line
        children = self.parts.child_index.children.get(line.thread, {})
        for thread in self.parts.calls.callers.get(call_id or "", ()):
            if thread in children:
                return s.lines[thread]
        # T names no task: while its own model does not work, the one that asks is the child.
        if children and self.parts.server.folds and not line.step_open:
            return s.lines[next(reversed(children))]
        return line

    def input_resolved(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        resolutions = record.data.get("resolutions")
        if not isinstance(resolutions, list):
            return as_native(line, record)
        out: list[ev.Event] = []
        settled, line.settled = line.settled, None
        if settled is not None and settled.data.get("requestId") not in [
            item.get("requestId") for item in resolutions if isinstance(item, dict)
        ]:
            out += self.parts.resolution.settle(line, settled)
            settled = None
        for item in resolutions:
            if not isinstance(item, dict) or not isinstance(item.get("requestId"), str):
                continue
            request = self.parts.state.asks.open.get(item["requestId"])
            if request is None:
                continue
            response = item.get("response")
            answer = None
            option_id = None
            if isinstance(response, dict):
                option_id = response.get("optionId")
                words = response.get("text")
                words = words if isinstance(words, str) else None
                decides = request.kind in ("approval", "limit")
                answer = ev.Answer(
                    option_ids=(option_id,) if isinstance(option_id, str) else (),
                    text=None if decides else words,
                    reason=words if decides else None,
                )
            outcome = _OUTCOMES.get(str(item.get("outcome")), "unknown")
            if request.kind in ("approval", "limit") and outcome == "answered":
                # Of an approval it is our own face that says so, in the closed form.
                outcome = self.parts.requests.decided(request, option_id)
            given = request.given
            if outcome == "answered" and given is not None and given.outcome == "skipped":
                outcome = "skipped"
            extra = beside_of(record.data, _RESOLVED_KEYS, rest_of(item, _RESOLUTION_KEYS)) or {}
            native, by = record.native, None
            if settled is not None and settled.data["requestId"] == item["requestId"]:
                native = settled.native
                if outcome == "answered":
                    outcome = settlement_of(settled.data)
                by = text_of(settled.data.get("responderPrincipalId"))
                if rest := rest_of(settled.data, SETTLED_KEYS):
                    extra[wire.SETTLED] = rest
            out += self.parts.resolution.resolve(
                item["requestId"], outcome, native, answer=answer, by=by, extra=extra or None
            )
        return out

    def approval_settled(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        if not isinstance(record.data.get("requestId"), str):
            return as_native(line, record)
        settled = Settlement(record.data, record.native)
        request = self.parts.state.asks.open.get(record.data["requestId"])
        if request is None or request.thread_id != line.thread:
            # A child works on at once, on a stream of its own.
            return self.parts.resolution.settle(line, settled)
        # What was answered follows at once with `input.resolved` (section 8.2).
        line.settled, line.settled_at = settled, record.now
        self.parts.timers.wait_for(line)
        return []

    def approval_candidate(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        request_id = record.data.get("requestId")
        request = (
            self.parts.state.asks.open.get(request_id) if isinstance(request_id, str) else None
        )
        if request is None:
            return as_native(line, record)
        return [
            ev.InteractionUpdated(
                thread_id=request.thread_id,
                turn_id=self.parts.state.lines[request.thread_id].turn,
                request_id=cast(str, request_id),
                details=rest_of(record.data, CS_KEYS | {"requestId"}) or {},
                native=record.native,
            )
        ]
