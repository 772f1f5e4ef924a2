"""From a record to the handler that it concerns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from adapters.eve import wire
from adapters.eve.client.child_records import ChildRecords
from adapters.eve.client.message_records import MessageRecords
from adapters.eve.client.parts import EveParts
from adapters.eve.client.reports import as_late, as_native
from adapters.eve.client.request_records import RequestRecords
from adapters.eve.client.session_records import SessionRecords
from adapters.eve.client.sign_in_records import SignInRecords
from adapters.eve.client.state import PendingEnd, StreamRecord, ThreadState
from adapters.eve.client.step_records import StepRecords
from adapters.eve.client.turn_end import TurnEnd
from adapters.eve.client.turn_records import TurnRecords
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call
from adapters.wire.framing import TORN
from adapters.wire.jsonvalue import count_of, name_of
from adapters.wire.partial_recovery import salvage

_ENDS = frozenset({"turn.completed", "turn.failed", "turn.waiting"})

_PIECES = frozenset(
    {
        "step.started",
        "step.completed",
        "step.failed",
        "reasoning.appended",
        "reasoning.completed",
        "message.appended",
        "message.completed",
        "result.completed",
        "action.input.appended",
        "actions.requested",
    }
)
"""Work that no eve turn shows after its end; at a pause that ended one, results may still come."""

_WORK = _PIECES | _ENDS | {"turn.started", "action.partial", "action.result"}
"""What is nothing to a turn that is over, nor to the one after it."""

_COUNTS = ("sequence", "stepIndex")
"""Members of a record's data that we count by."""

_NAMED_BY = {
    "requests": "input.requested",
    "actions": "actions.requested",
    "result": "action.result",
}

_SALVAGED = frozenset(
    {
        *("turn.started", "turn.completed", "turn.cancelled", "turn.failed", "turn.waiting"),
        *("session.waiting", "session.completed", "session.failed", "step.failed"),
        *("input.requested", "input.resolved", "approval.settled"),
        *("authorization.required", "authorization.completed"),
        *("actions.requested", "action.result", "subagent.completed", "task.settled"),
    }
)
"""Types of records whose ids and ends count, though the rest of them cannot be read."""


@dataclasses.dataclass(slots=True)
class RecordDispatcher:
    """Takes a record, and hands it on."""

    parts: EveParts
    turn_end: TurnEnd
    reads_children: bool
    messages: MessageRecords = dataclasses.field(init=False)
    handlers: Mapping[str, Callable[[ThreadState, StreamRecord], list[ev.Event]]] = (
        dataclasses.field(init=False)
    )

    def __post_init__(self) -> None:
        parts, turn_end = self.parts, self.turn_end
        sessions = SessionRecords(parts, turn_end)
        turns = TurnRecords(parts, turn_end)
        children = ChildRecords(parts, turn_end, self.reads_children)
        requests, sign_ins, steps = RequestRecords(parts), SignInRecords(parts), StepRecords(parts)
        self.messages = messages = MessageRecords(parts)
        blocks = parts.text_blocks
        self.handlers = {
            "session.started": sessions.session_started,
            "session.waiting": sessions.session_waiting,
            "session.completed": sessions.session_completed,
            "session.failed": sessions.session_failed,
            "turn.started": turns.turn_started,
            "turn.completed": turns.turn_completed,
            "turn.cancelled": turns.turn_cancelled,
            "turn.failed": turns.turn_failed,
            "turn.waiting": turns.turn_waiting,
            "message.received": messages.message_received,
            "context.cleared": sessions.context_cleared,
            "compaction.requested": sessions.compaction,
            "compaction.completed": sessions.compaction,
            "step.started": steps.step_started,
            "step.completed": steps.step_completed,
            "step.failed": steps.step_failed,
            "reasoning.appended": blocks.appended,
            "reasoning.completed": blocks.reasoning_completed,
            "message.appended": blocks.appended,
            "message.completed": blocks.message_completed,
            "result.completed": blocks.result_completed,
            "action.input.appended": steps.input_appended,
            "actions.requested": steps.actions_requested,
            "action.partial": steps.action_partial,
            "action.result": steps.action_result,
            "input.requested": requests.input_requested,
            "input.resolved": requests.input_resolved,
            "approval.settled": requests.approval_settled,
            "approval.candidate": requests.approval_candidate,
            "authorization.required": sign_ins.authorization_required,
            "authorization.completed": sign_ins.authorization_completed,
            "subagent.called": children.subagent_called,
            "subagent.completed": children.subagent_completed,
            "task.started": children.task_started,
            "agent.started": children.agent_started,
            "task.settled": children.task_settled,
        }

    def read(
        self,
        call: Call,
        line: ThreadState,
        frame: bytes,
        data: dict[str, Any],
        deliveries: object,
        native: ev.NativeRef,
        now: int,
    ) -> list[ev.Event]:
        """Return what a record says, and what waited for it or gives way to it."""
        type_ = native.type
        assert type_ is not None
        out = self._miscounted(call, frame, data, now)
        ids = list(filter(name_of, deliveries)) if isinstance(deliveries, list) else []
        record = StreamRecord(type_, data, dict.fromkeys(ids), native, now)
        late = self._is_late(line, record)
        if not late:
            # What is late for an older turn says nothing of the end that waits.
            out += self._overtaken(line, type_)
            late = self._is_late(line, record)
        handler = as_late if late else self.handlers.get(type_, as_native)
        out += handler(line, record)
        return self.parts.calls.hold(line, out, now)

    def _is_late(self, line: ThreadState, record: StreamRecord) -> bool:
        """Say whether a record is work of a turn that is over."""
        if record.type in _WORK and self.parts.turns.is_late(line, record.data):
            return True
        return record.type in _PIECES and self.parts.turns.rests(line, record.data)

    def _miscounted(
        self, call: Call, frame: bytes, data: dict[str, Any], now: int
    ) -> list[ev.Event]:
        """Report numbers that count nothing, and take them out: the record is good without."""
        out: list[ev.Event] = []
        for name in _COUNTS:
            if type(data.get(name)) in (int, float) and count_of(data[name]) is None:
                del data[name]
                out += self.garbage(call, frame, f"`{name}` is not a number from 0 to 2^53", now)
        return out

    def _overtaken(self, line: ThreadState, type_: str) -> list[ev.Event]:
        """Return what waited for a record that has not come: another one has."""
        out: list[ev.Event] = []
        if line.settled is not None and type_ != "input.resolved":
            out += self.parts.resolution.settle(line, line.settled)
        if line.ending is not None and type_ != "session.waiting":
            over = type_ in ("session.completed", "session.failed")
            if over and isinstance(line.ending, PendingEnd):
                # The session ends with the turn: nothing says that it waits.
                line.ending.extra = {**(line.ending.extra or {}), wire.BOUNDARY: False}
            out += self.turn_end.flush(line)
        return out

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        """Return the report of a line that cannot be read."""
        line = self.parts.state.lines.get(call.thread_id)
        turn_id = None if line is None else line.turn
        out: list[ev.Event] = [
            raw.garbled(wire.DIALECT, reason, offending, thread_id=call.thread_id, turn_id=turn_id)
        ]
        if line is None:
            return out
        if line.thread == ev.MAIN:
            out += self.messages.too_long(line, offending, now)
        return out + self._salvaged(line, offending, reason, now)

    def _salvaged(
        self, line: ThreadState, offending: bytes, reason: str, now: int
    ) -> list[ev.Event]:
        """Return what a line means that cannot be read to its end."""
        found = salvage(offending) if reason != TORN else {}
        data, meta = (found.get(name) for name in ("data", "meta"))
        data = data if isinstance(data, dict) else {}
        type_ = name_of(found.get("type")) or _named_by(data)
        if type_ not in _SALVAGED:
            return []
        for name in _COUNTS:
            if count_of(data.get(name)) is None:
                data.pop(name, None)
        if type_ == "action.result" and isinstance(data.get("result"), dict):
            data["result"].setdefault("output", reason)
        meta = meta if isinstance(meta, dict) else {}
        native = ev.NativeRef(
            dialect=wire.DIALECT, id=name_of(meta.get("id")), type=type_, at=name_of(meta.get("at"))
        )
        record = StreamRecord(type_, data, {}, native, now)
        out = self._overtaken(line, type_)
        out += self.handlers[type_](line, record)
        return self.parts.calls.hold(line, out, now)


def _named_by(data: dict[str, Any]) -> str | None:
    """Return the type of a record by what it has: a T writes it behind the data."""
    return next((type_ for name, type_ in _NAMED_BY.items() if name in data), None)
