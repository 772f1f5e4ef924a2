"""Records about the session and its context."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.eve import wire
from adapters.eve.client.parts import EveParts
from adapters.eve.client.reports import as_native
from adapters.eve.client.state import Agent, ContextChange, PendingEnd, StreamRecord, ThreadState
from adapters.eve.client.timers import END_HOLD_MS
from adapters.eve.client.turn_end import TurnEnd
from adapters.eve.client.values import CS_KEYS, error_of, rest_of, usage_of
from adapters.model import events as ev
from adapters.model.base import fields_of
from adapters.wire.jsonvalue import name_of, number_of

TAKEN_BACK_MS = 1_000
"""How long the end of a turn waits that resumed from approvals and was told to stop: a real 0.30.8
has taken such a turn back within a second of its end (section 8.2)."""

_BOUNDARY_KEYS = frozenset({"wait", "usage"})

_SESSION_FAILED_KEYS = frozenset({"code", "message", "details", "sessionId", "usage"})

_COMPACTION_KEYS = CS_KEYS | {"modelId", "sessionId", "usageInputTokens"}

_CLEARED_KEYS = CS_KEYS | {"sessionId"}


@dataclasses.dataclass(slots=True)
class SessionRecords:
    """What is said of the session as a whole."""

    parts: EveParts
    turn_end: TurnEnd

    def session_started(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        runtime = data.get("runtime") if isinstance(data.get("runtime"), dict) else {}
        assert isinstance(runtime, dict)
        known = Agent(*map(name_of, map(runtime.get, ("agentId", "agentName", "modelId"))))
        if line.agent == known:
            # A retried first step says it again (section 8.1).
            return []
        line.agent = known
        agent = {name: value for name, value in fields_of(known).items() if value is not None}
        extra = rest_of(data, frozenset({"runtime", "predecessor"})) or {}
        rest = rest_of(runtime, frozenset({"agentId", "agentName", "modelId"}))
        if rest:
            extra["runtime"] = rest
        if line.thread != ev.MAIN:
            return [
                ev.ThreadUpdated(
                    thread_id=line.thread,
                    agent=agent or None,
                    native=record.native,
                    extra=extra or None,
                )
            ]
        if isinstance(runtime.get("modelId"), str):
            self.parts.state.model = runtime["modelId"]
        self.parts.server.know_version(runtime.get("eveVersion"))
        predecessor = data.get("predecessor")
        before = predecessor.get("sessionId") if isinstance(predecessor, dict) else None
        return [
            ev.SessionUpdated(
                thread_id=ev.MAIN,
                agent=agent or None,
                predecessor=before if isinstance(before, str) else None,
                native=record.native,
                extra=extra or None,
            )
        ]

    def session_waiting(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        s = self.parts.state
        usage = usage_of(record.data.get("usage"))
        line.held.decide_all("unknown")
        out = self.parts.calls.released(line)
        alone = line.ending is None and s.control == 0
        owed, line.owed = line.owed, False
        if line.thread == ev.MAIN:
            token = record.data.get("continuationToken")
            if isinstance(token, str) and token and s.generation in (None, "T"):
                s.token = token
            if line.taken_back:
                line.taken_back = False
                if line.ending is None:
                    return out
            # A boundary that came after what it belongs to had been told does not answer a control.
            if line.ending is None and not owed:
                s.control = max(0, s.control - 1)
        if isinstance(line.ending, PendingEnd):
            if rest := rest_of(record.data, _BOUNDARY_KEYS):
                line.ending.extra = {**(line.ending.extra or {}), wire.BOUNDARY: rest}
            late = line.thread == ev.MAIN and self.parts.cancellation.may_be_taken_back
            if late and not line.closed:
                # It has ended before its cancel came, and may be taken back all the same; what is
                # said next must know whether its approvals are open again.
                line.ending_at = record.now - END_HOLD_MS + TAKEN_BACK_MS
                line.ending.bounded = True
                self.parts.timers.wait_for(line)
                return out
            out += self.turn_end.flush(line, usage)
            line.owed = False
            return out
        if self._forgets_end(line, alone=alone, owed=owed):
            # Section 8.1: a boundary follows the end of its turn. This one has forgotten it.
            line.ending_at = record.now
            return out + self.turn_end.gone(
                line, "the session waits, and its turn has no end", usage
            )
        if line.thread != ev.MAIN and line.outcome is not None and line.turn is None:
            out += self.turn_end.end_child(line)
        if usage is not None:
            out.append(
                ev.UsageReported(
                    thread_id=line.thread,
                    turn_id=line.turn,
                    usage=usage,
                    scope="session",
                    native=record.native,
                )
            )
        if line.ending is None and not owed:
            # It says that an input, or a control, came to nothing.
            out += as_native(line, record)
        # What has changed the context outside of turns comes after the usage that it led to.
        out += self.turn_end.flush(line)
        line.owed = False
        return out

    @staticmethod
    def _forgets_end(line: ThreadState, *, alone: bool, owed: bool) -> bool:
        """Say whether a turn is open that a session at rest does not have: it does not wait for
        somebody, nor for what it goes on with. A child's may be known from its parent alone."""
        if not alone or line.turn is None or line.paused in ("input", "held"):
            return False
        return line.thread == ev.MAIN or (line.native is not None and not owed)

    def session_completed(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        reset = self.parts.state.reset_at is not None
        return self._session_over(line, record, "terminated" if reset else "completed", None)

    def session_failed(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        return self._session_over(line, record, "failed", error_of(record.data))

    def _session_over(
        self, line: ThreadState, record: StreamRecord, outcome: Any, error: ev.ErrorInfo | None
    ) -> list[ev.Event]:
        out = self.parts.calls.decide_and_release(line)
        usage = usage_of(record.data.get("usage"))
        if usage is not None:
            out.append(
                ev.UsageReported(
                    thread_id=line.thread, usage=usage, scope="session", native=record.native
                )
            )
        if line.turn is not None and error is not None:
            line.ending = PendingEnd("failed", error, record.native)
            out += self.turn_end.flush(line)
        if line.thread != ev.MAIN:
            self.parts.child_index.close_stream(line)
            if line.outcome is not None:
                out += self.turn_end.end_child(line)
            return out
        return out + self.turn_end.end_session(
            outcome, error, record.native, rest_of(record.data, _SESSION_FAILED_KEYS)
        )

    def compaction(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        model = data.get("modelId")
        compacted = ev.ContextCompacted(
            thread_id=line.thread,
            # Its coordinates name the next turn when no turn is open (section 6).
            turn_id=line.turn,
            phase="started" if record.type == "compaction.requested" else "completed",
            before_tokens=number_of(data.get("usageInputTokens")),
            model=model if isinstance(model, str) else None,
            native=record.native,
            extra=rest_of(data, _COMPACTION_KEYS),
        )
        return self._controls(line, record, compacted)

    def _controls(self, line: ThreadState, record: StreamRecord, event: ev.Event) -> list[ev.Event]:
        """Hold a change outside of turns until its boundary tells the usage."""
        if line.turn is not None or record.type == "compaction.requested":
            return [event]
        # The boundary of the one before came before it, or does not come.
        out = self.turn_end.flush(line) if isinstance(line.ending, ContextChange) else []
        line.ending, line.ending_at = ContextChange(event), record.now
        self.parts.timers.wait_for(line)
        return out

    def context_cleared(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        cleared = ev.ContextCleared(
            thread_id=line.thread,
            turn_id=line.turn,
            native=record.native,
            extra=rest_of(record.data, _CLEARED_KEYS),
        )
        return self._controls(line, record, cleared)
