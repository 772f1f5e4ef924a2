"""Serves September Engine: the log of a session becomes the frames of its event stream.

Every frame has a stamp, max(previous + 1, `at`) in Unix milliseconds, shown as `timestamp` in its
payload: what `GET /execute/replay` calls `after` is compared with stamps and with nothing else
(engine page, section 11.2). The frames are a pure function of the log, so that replay equals live.
No payload but those of the two deltas has a member `text`: common clients print every `text`
(section 13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adapters.engine import content, hitl, turns, wire
from adapters.engine.state import SHAPE, EngineTaskState, MessageTurn, dump, load
from adapters.engine.writer import EngineWriter
from adapters.model import events as ev
from adapters.model.base import Encoder, EncoderContext, Frame

TASK_OPTION = "task_id"
"""The key in the options of `session.started`: the name that the frontend chose for the task."""


class EngineEncoder(Encoder):
    """The encoder of a task's stream. A child thread has none: an Engine task is one line."""

    dialect = wire.DIALECT
    version = 1
    shape = SHAPE

    def __init__(self, context: EncoderContext) -> None:
        self._w = EngineWriter(EngineTaskState(), context.session_id, context.thread_id)

    def feed(self, entry: ev.Entry) -> list[Frame]:
        w, event = self._w, entry.event
        w.at, w.out = entry.at, []
        type_ = event.TYPE
        if event.thread_id == w.thread_id or type_ in _ACROSS_THREADS:
            handler = _HANDLERS.get(type_)
            if handler is not None:
                handler(w, event)
                if w.out:
                    self.next_cursor = w.s.stamp + 1
        return w.out

    def snapshot(self) -> bytes:
        return dump(self._w.s)

    def restore(self, snapshot: bytes) -> None:
        self._w.s = s = load(snapshot)
        self.next_cursor = s.stamp + 1 if s.stamp else 0

    # What the face asks besides.

    @property
    def state(self) -> EngineTaskState:
        """Return what is known of the task."""
        return self._w.s

    @property
    def turn_start(self) -> int:
        """Return the stamp of the open turn's first frame; 0 while no turn is open."""
        return self._w.s.start if self._w.s.turn is not None else 0

    def turn_of(self, command_id: str) -> MessageTurn | None:
        """Return the turn that a message of this face became; None as long as it has none."""
        return turns.turn_of(self._w.s, command_id)

    @property
    def request(self) -> ev.InteractionRequested | None:
        """Return the request that the task waits for: the one shown and not yet claimed."""
        request = hitl.waiting(self._w.s)
        return None if request is None else request.event

    @property
    def pending(self) -> dict[str, Any] | None:
        """Return the record of `request` for `/hitl/pending` (section 10.3), or None."""
        request = hitl.waiting(self._w.s)
        return None if request is None else hitl.record_of(self._w, request)


# What is told beside the turns.


def _session_started(w: EngineWriter, event: ev.SessionStarted) -> None:
    chosen = (event.options or {}).get(TASK_OPTION)
    if isinstance(chosen, str):
        w.s.task_id = chosen


def _memory_updated(w: EngineWriter, event: ev.MemoryUpdated) -> None:
    value = event.value
    if not isinstance(value, dict) or ("text" in value and not wire.is_native(event)):
        value = {"value": value}
    value = {name: member for name, member in value.items() if name != "timestamp"}
    w.write("working_memory_update", value)


def _context_compacted(w: EngineWriter, event: ev.ContextCompacted) -> None:
    if event.phase != "completed":
        return
    payload: dict[str, Any] = {}
    if event.before_tokens is not None:
        payload["before_tokens"] = _whole(event.before_tokens)
    if event.after_tokens is not None:
        payload["after_tokens"] = _whole(event.after_tokens)
    payload["strategy"] = event.strategy or "summary"
    w.write("compaction_event", payload, event)


def _whole(number: float) -> int | float:
    return int(number) if float(number).is_integer() else number


def _context_cleared(w: EngineWriter, _: ev.ContextCleared) -> None:
    w.write("compaction_event", {"strategy": "clear"})


def _gap(w: EngineWriter, event: ev.Gap) -> None:
    payload = {"reason": event.reason}
    if event.cursor_from is not None:
        payload["from"] = event.cursor_from
    if event.cursor_to is not None:
        payload["to"] = event.cursor_to
    w.write("gap", payload)


def _native(w: EngineWriter, event: ev.Native) -> None:
    if event.dialect != wire.DIALECT or not isinstance(event.frame, dict):
        return
    payload = {name: value for name, value in event.frame.items() if name != "timestamp"}
    if "task_id" in payload:
        payload["task_id"] = w.task_id
    if "turn_id" in payload and w.s.turn is not None:
        payload["turn_id"] = w.s.turn
    w.write(event.name or "message", payload)


_HANDLERS: dict[str, Callable[[EngineWriter, Any], None]] = {
    "session.started": _session_started,
    "session.ended": turns.session_ended,
    "input.accepted": turns.input_accepted,
    "input.settled": turns.input_settled,
    "message.received": turns.message_received,
    "guidance.received": turns.guidance_received,
    "turn.started": turns.turn_started,
    "turn.ended": turns.turn_ended,
    "step.started": content.step_started,
    "step.ended": content.step_ended,
    "text.delta": content.delta,
    "text.completed": content.text_completed,
    "reasoning.delta": content.delta,
    "reasoning.completed": content.reasoning_completed,
    "tool.called": content.tool_called,
    "tool.returned": content.tool_returned,
    "interaction.requested": hitl.requested,
    "interaction.answered": hitl.answered,
    "interaction.updated": hitl.updated,
    "interaction.resolved": hitl.resolved,
    "result.produced": content.result_produced,
    "usage.reported": content.usage_reported,
    "memory.updated": _memory_updated,
    "context.compacted": _context_compacted,
    "context.cleared": _context_cleared,
    "gap": _gap,
    "native": _native,
}

_ACROSS_THREADS = frozenset(
    {
        *("session.started", "session.ended", "input.accepted", "input.settled"),
        *("interaction.requested", "interaction.answered"),
        *("interaction.updated", "interaction.resolved"),
    }
)
"""What a task shows of child threads: their requests, which somebody has to answer."""
