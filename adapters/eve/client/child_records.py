"""Records about children."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.eve.client.parts import EveParts
from adapters.eve.client.reports import as_native
from adapters.eve.client.state import ChildOutcome, StreamRecord, ThreadState
from adapters.eve.client.turn_end import TurnEnd
from adapters.eve.client.values import C_KEYS, rest_of
from adapters.model import events as ev
from adapters.wire.jsonvalue import name_of
from adapters.wire.url_paths import is_segment

_CALLED_KEYS = C_KEYS | {"callId", "childSessionId", "sessionId", "name", "childStreamPath"}

_TASK_KEYS = C_KEYS | {"callId", "taskId", "name", "kind"}

_AGENT_KEYS = C_KEYS | {"callId", "taskId", "name", "sessionId", "streamPath"}

_TASK_SETTLED_KEYS = _TASK_KEYS | {"status", "output", "error"}


@dataclasses.dataclass(slots=True)
class ChildRecords:
    """Whom the agent has called."""

    parts: EveParts
    turn_end: TurnEnd
    reads_children: bool

    def _child(
        self, line: ThreadState, record: StreamRecord, thread: str, name: str | None, **fields: Any
    ) -> tuple[ThreadState, list[ev.Event]]:
        """Return the line of a child, and what opens it; one that goes on is opened again."""
        child = self.parts.state.lines.get(thread)
        if child is not None:
            child.done, child.outcome, child.closed_stream = False, None, False
            # It is the newest one again.
            self.parts.state.lines[thread] = self.parts.state.lines.pop(thread)
            self.parts.child_index.note(child)
            return child, []
        child = self.parts.state.lines[thread] = ThreadState(thread, parent=line.thread, name=name)
        self.parts.cursors.of(thread)
        self.parts.child_index.note(child)
        return child, [
            ev.ThreadStarted(
                thread_id=thread, parent=line.thread, name=name, native=record.native, **fields
            )
        ]

    def subagent_called(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        session = name_of(data.get("childSessionId"))
        if session is None or not is_segment(session):
            return as_native(line, record)
        call_id, name, path = map(name_of, map(data.get, ("callId", "name", "childStreamPath")))
        self.parts.calls.decide(line, call_id, "allow")
        child, out = self._child(
            line,
            record,
            session,
            name,
            kind="remote" if isinstance(data.get("remote"), dict) else "agent",
            call_id=call_id,
            native_id=session,
            path=path,
            extra=rest_of(data, _CALLED_KEYS),
        )
        child.session, child.path = session, path
        self.parts.child_index.note(child)
        if call_id is not None:
            self.parts.child_index.know_as(child, f"call:{call_id}")
        return out

    def subagent_completed(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        thread = self.parts.state.tasks.get(f"call:{record.data.get('callId')}")
        if thread is None:
            return as_native(line, record)
        return self._child_over(
            self.parts.state.lines[thread],
            record,
            ChildOutcome("completed", record.data.get("output")),
            rest_of(record.data, frozenset({"callId", "subagentName", "output"})),
        )

    def task_started(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        task = name_of(data.get("taskId"))
        if task is None:
            return as_native(line, record)
        call_id, name = name_of(data.get("callId")), name_of(data.get("name"))
        self.parts.calls.decide(line, call_id, "allow")
        # Task ids are short and count in their session only; threads are found across sessions.
        thread = self.parts.state.tasks.get(task) or (
            task if self.parts.state.session is None else f"{self.parts.state.session}-{task}"
        )
        child, out = self._child(
            line,
            record,
            thread,
            name,
            kind="tool" if data.get("kind") == "tool" else "agent",
            call_id=call_id,
            task_id=task,
            extra=rest_of(data, _TASK_KEYS),
        )
        self.parts.child_index.know_as(child, task)
        return out

    def agent_started(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        session, path, task = map(name_of, map(data.get, ("sessionId", "streamPath", "taskId")))
        if session is None or not is_segment(session):
            return as_native(line, record)
        path = path if path is not None and path.startswith("/") else None
        remote = isinstance(data.get("remote"), dict)
        extra = rest_of(data, _AGENT_KEYS)
        name = name_of(data.get("name"))
        thread = self.parts.state.tasks.get(task) if task is not None else None
        if thread is None:
            child, out = self._child(
                line,
                record,
                session,
                name,
                kind="remote" if remote else "agent",
                call_id=name_of(data.get("callId")),
                task_id=task,
                native_id=session,
                path=path,
                extra=extra,
            )
            if task is not None:
                self.parts.child_index.know_as(child, task)
            child.session, child.path = session, path
            self.parts.child_index.note(child)
            return out
        child = self.parts.state.lines[thread]
        child.session, child.path = session, path
        self.parts.child_index.note(child)
        return [
            ev.ThreadUpdated(
                thread_id=thread,
                native_id=session,
                path=path,
                name=name,
                kind="remote" if remote else "agent",
                native=record.native,
                extra=extra,
            )
        ]

    def task_settled(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        task = data.get("taskId")
        thread = self.parts.state.tasks.get(task) if isinstance(task, str) else None
        if thread is None:
            return as_native(line, record)
        status = data.get("status")
        error = data.get("error")
        outcome = ChildOutcome(
            status if status in ("completed", "failed", "cancelled") else "completed",
            data.get("output"),
        )
        if isinstance(error, dict):
            message = str(error.get("message") or "")
            outcome.error = ev.ErrorInfo(code="task_failed", message=message)
        return self._child_over(
            self.parts.state.lines[thread], record, outcome, rest_of(data, _TASK_SETTLED_KEYS)
        )

    def _child_over(
        self,
        child: ThreadState,
        record: StreamRecord,
        outcome: ChildOutcome,
        extra: dict[str, Any] | None,
    ) -> list[ev.Event]:
        """Record that a child is over: its end waits until its own stream has told how."""
        outcome.native, outcome.extra = record.native, extra
        child.outcome, child.outcome_at = outcome, record.now
        self.parts.timers.wait_for(child)
        unread = child.session is not None and not child.closed_stream and self.reads_children
        if unread and (child.turn is not None or child.turns == 0 or child.ending is not None):
            return []
        return self.turn_end.end_child(child)
