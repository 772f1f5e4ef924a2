"""Steps and tools."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, cast

from adapters.eve import wire
from adapters.eve.client.parts import EveParts
from adapters.eve.client.reports import as_native
from adapters.eve.client.state import EveToolCall, StreamRecord, ThreadState
from adapters.eve.client.values import (
    CS_KEYS,
    FAILURE_KEYS,
    beside_of,
    error_of,
    rest_of,
    sequence_of,
    usage_of,
)
from adapters.model import events as ev
from adapters.model import raw
from adapters.wire.jsonvalue import name_of, text_of

_ACTION_KINDS: dict[str, tuple[ev.CallKind, str]] = {
    "tool-call": ("builtin", "toolName"),
    "workflow-tool-call": ("workflow", "toolName"),
    "load-skill": ("skill", "name"),
    "subagent-call": ("subagent", "name"),
    "remote-agent-call": ("remote", "name"),
}
"""Kind of an action -> ours, and the member that names the tool (section 9.3)."""

_RESULT_KINDS = frozenset({"tool-result", "load-skill-result", "subagent-result"})

_STEP_KEYS = CS_KEYS | {"modelId"}

_STEP_COMPLETED_KEYS = CS_KEYS | {"finishReason", "usage"}

_INPUT_APPENDED_KEYS = CS_KEYS | {"callId", "toolName", "inputTextDelta", "inputTextOffset"}

_ACTIONS_KEYS = CS_KEYS | {"actions", "presentation"}

_ACTION_KEYS = frozenset({"kind", "callId", "toolName", "name", "input"})

_PARTIAL_KEYS = CS_KEYS | {"result"}

_ACTION_RESULT_KEYS = CS_KEYS | {"result", "status", "error"}

_TOOL_RESULT_KEYS = frozenset(
    {"kind", "callId", "toolName", "name", "output", "isError", "errorName"}
)


@dataclasses.dataclass(slots=True)
class StepRecords:
    """What the agent does."""

    parts: EveParts

    def step_started(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        index = data.get("stepIndex")
        index = (
            index if isinstance(index, int) and not isinstance(index, bool) else (line.step or 0)
        )
        native_turn = text_of(data.get("turnId"))
        line.held.decide_all("allow")
        again = line.step == index and line.step_turn == native_turn
        # A step that was completed is only tried again where both say which one they are.
        named = "stepIndex" in data and sequence_of(record, line.sequence) == line.sequence
        retried = again and (named or not line.step_done)
        out: list[ev.Event] = []
        if retried:
            # What the first try wrote is not part of the conversation.
            out += self.parts.text_blocks.end_blocks(line, "discarded")
            self.parts.resolution.doubt(line)
        else:
            out += self.parts.resolution.discard(line, record.native)
            line.steps += 1
            if line.thread == ev.MAIN:
                self.parts.cancellation.step_begins(again=line.step_turn == native_turn)
        out += self.parts.turns.in_turn(line, record)
        out += self.parts.resolution.infer_answered(line, record.native)
        line.step, line.step_turn, line.step_open, line.step_done = index, native_turn, True, False
        model = data.get("modelId")
        out.append(
            ev.StepStarted(
                thread_id=line.thread,
                turn_id=self.parts.turns.current(line),
                step_index=self._step_place(line, index),
                model=model if isinstance(model, str) else self._model(line),
                native=record.native,
                extra=rest_of(data, _STEP_KEYS),
            )
        )
        return out

    def _model(self, line: ThreadState) -> str | None:
        """Return the model that T names once, for all steps (section 9.1)."""
        return None if line.agent is None else line.agent.model

    def step_completed(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        # A model call that was cut leaves its block open (section 5.1).
        out = self.parts.text_blocks.end_blocks(line, "partial")
        out += self.parts.resolution.discard(line, record.native)
        reason = data.get("finishReason")
        out.append(
            ev.StepEnded(
                thread_id=line.thread,
                turn_id=self.parts.turns.current(line),
                step_index=self._step_place(line, self._step_index(line, data)),
                finish_reason=reason if isinstance(reason, str) else None,
                usage=usage_of(data.get("usage")),
                native=record.native,
                extra=rest_of(data, _STEP_COMPLETED_KEYS),
            )
        )
        line.step_open, line.step_done = False, True
        return out

    def step_failed(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        line.step_open = False
        return [
            ev.StepEnded(
                thread_id=line.thread,
                turn_id=self.parts.turns.current(line),
                step_index=self._step_place(line, self._step_index(line, record.data)),
                error=error_of(record.data),
                native=record.native,
                extra=rest_of(record.data, FAILURE_KEYS),
            )
        ]

    def _step_place(self, line: ThreadState, index: int) -> int:
        """Return the place of a step in the canonical turn."""
        place = line.step_base + index
        line.step_top = max(line.step_top, place)
        return place

    def _step_index(self, line: ThreadState, data: dict[str, Any]) -> int:
        index = data.get("stepIndex")
        if isinstance(index, int) and not isinstance(index, bool):
            return index
        return line.step or 0

    def input_appended(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        call_id, piece, name = (data.get(k) for k in ("callId", "inputTextDelta", "toolName"))
        if not isinstance(call_id, str) or not isinstance(piece, str):
            return as_native(line, record)
        return [
            *self.parts.turns.in_turn(line, record),
            raw.delta_of(
                ev.ToolInputDelta,
                piece,
                thread_id=line.thread,
                turn_id=self.parts.turns.current(line),
                call_id=call_id,
                name=name if isinstance(name, str) else None,
                native=record.native,
                extra=rest_of(data, _INPUT_APPENDED_KEYS),
            ),
        ]

    def actions_requested(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        actions = record.data.get("actions")
        if not isinstance(actions, list):
            return as_native(line, record)
        out = self.parts.turns.in_turn(line, record)
        shown = record.data.get("presentation")
        extra = rest_of(record.data, _ACTIONS_KEYS)
        for action in actions:
            call_id = name_of(action.get("callId")) if isinstance(action, dict) else None
            if call_id is None:
                out += as_native(line, record)
                continue
            before = line.calls.get(call_id)
            if before is not None and before.step == line.steps:
                # A retried step asks for the same call again.
                before.doubted = False
                continue
            native_kind = action.get("kind")
            kind, named = _ACTION_KINDS.get(str(native_kind), ("builtin", "toolName"))
            name = action.get(named) or action.get("toolName") or action.get("name")
            rest = rest_of(action, _ACTION_KEYS) or {}
            if str(native_kind) not in _ACTION_KINDS:
                rest["kind"] = native_kind
            if extra is not None:
                rest[wire.FRAME] = extra
            label = None
            if isinstance(shown, dict) and isinstance(shown.get(call_id), dict):
                label = shown[call_id].get("label")
            if line.turn is not None:
                # The end of a turn forgets its calls: one that comes later would never be.
                self.parts.calls.take_call(line, call_id, EveToolCall(kind, line.steps))
            out.append(
                ev.ToolCalled(
                    thread_id=line.thread,
                    turn_id=self.parts.turns.current(line),
                    call_id=call_id,
                    name=name_of(name) or name_of(native_kind) or "unknown",
                    kind=kind,
                    input=action.get("input"),
                    input_known="input" in action,
                    label=label if isinstance(label, str) else None,
                    native=record.native,
                    extra=rest or None,
                )
            )
        return out

    def action_partial(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        result = record.data.get("result")
        call_id = name_of(result.get("callId")) if isinstance(result, dict) else None
        if not isinstance(result, dict) or call_id is None:
            return as_native(line, record)
        self.parts.calls.decide(line, call_id, "allow")
        return [
            ev.ToolProgressed(
                thread_id=line.thread,
                turn_id=self.parts.turns.current(line),
                call_id=call_id,
                output=result.get("output"),
                native=record.native,
                extra=beside_of(record.data, _PARTIAL_KEYS, rest_of(result, _TOOL_RESULT_KEYS)),
            )
        ]

    def action_result(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        result = data.get("result")
        call_id = name_of(result.get("callId")) if isinstance(result, dict) else None
        if not isinstance(result, dict) or call_id is None:
            return as_native(line, record)
        status = data.get("status")
        if status not in ("completed", "failed", "rejected"):
            status = "failed" if result.get("isError") is True else "completed"
        out: list[ev.Event] = []
        if line.turn is None:
            out += self.parts.turns.in_turn(line, record)
        self.parts.calls.decide(line, call_id, "deny" if status == "rejected" else "allow")
        out += self.parts.resolution.infer_from_result(
            line, call_id, status, result.get("output"), record.native
        )
        if status != "rejected" and line.paused == "input" and not self.parts.requests.asked(line):
            # Section 8.2: only a refused call comes while the turn rests; the others are work.
            out += self.parts.turns.in_turn(line, record)
        error = None
        if isinstance(data.get("error"), dict) or status != "completed":
            source = data.get("error") if isinstance(data.get("error"), dict) else {}
            assert isinstance(source, dict)
            details = rest_of(source, frozenset({"code", "message"})) or {}
            if isinstance(result.get("errorName"), str):
                details["errorName"] = result["errorName"]
            error = ev.ErrorInfo(
                code=str(source.get("code") or "ACTION_RESULT_FAILED"),
                message=str(source.get("message") or "The tool failed."),
                details=details or None,
            )
        extra = beside_of(data, _ACTION_RESULT_KEYS, rest_of(result, _TOOL_RESULT_KEYS)) or {}
        native_kind, call = result.get("kind"), line.calls.get(call_id)
        called = None if call is None else call.kind
        receipt = native_kind == "tool-result" and called in ("skill", "subagent", "remote")
        if str(native_kind) not in _RESULT_KINDS or receipt:
            extra["kind"] = native_kind
        if call is None:
            name = result.get("toolName") or result.get("name") or result.get("subagentName")
            if isinstance(name, str):
                extra["name"] = name
        self.parts.calls.call_returned(line, call_id)
        out.append(
            ev.ToolReturned(
                thread_id=line.thread,
                turn_id=self.parts.turns.current(line),
                call_id=call_id,
                output=result.get("output"),
                is_error=status != "completed",
                error=error,
                status=cast(Literal["completed", "failed", "rejected"], status),
                native=record.native,
                extra=extra or None,
            )
        )
        return out
