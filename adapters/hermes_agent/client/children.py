"""Child agents: each has hooks of its own, between `subagent_start` and `subagent_stop` of the
agent that sent it (section 2.1), or after its parent's turn where it works in the background."""

from __future__ import annotations

from typing import Any

from adapters.hermes_agent.client import turns
from adapters.hermes_agent.client.state import HermesState, HermesThread, Hook, unknown
from adapters.model import events as ev
from adapters.wire.jsonvalue import name_of

_STATUS: dict[str, Any] = {
    "completed": "completed",
    "success": "completed",
    "ok": "completed",
    "cancelled": "cancelled",
    "canceled": "cancelled",
    "interrupted": "cancelled",
}
"""The status of a child; all others are failures."""

_KNOWN = ("child_session_id", "child_subagent_id", "child_role", "parent_session_id")


def started(s: HermesState, parent: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `subagent_start`."""
    child = name_of(seen.args.get("child_session_id"))
    if child is None:
        return [unknown(s, seen)]
    if child in s.threads:
        return []
    parent = s.thread_of(seen.session)
    s.threads[child] = HermesThread(child, heard=seen.now)
    call_id = next((n for n, call in parent.calls.items() if call.name == "delegate_task"), None)
    if call_id is not None:
        # The child is the evidence that the call runs.
        s.held.decide(call_id, "allow")
    return [
        ev.ThreadStarted(
            thread_id=child,
            parent=parent.thread_id,
            name=seen.text("child_role"),
            call_id=call_id,
            task_id=name_of(seen.args.get("child_subagent_id")),
            native_id=child,
            native=seen.native,
            extra=seen.rest(*_KNOWN),
        ),
    ]


def stopped(s: HermesState, parent: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `subagent_stop`."""
    child = name_of(seen.args.get("child_session_id"))
    thread = s.threads.get(child or "")
    if thread is None or thread.is_main:
        return [unknown(s, seen)]
    out = turns.died(s, thread, seen.native)
    del s.threads[thread.thread_id]
    status = _STATUS.get(seen.text("child_status") or "", "failed")
    error = None
    if status == "failed":
        words = f"The child ended as `{seen.args.get('child_status')}`."
        error = ev.ErrorInfo(code="subagent_failed", message=words[:200])
    return [
        *out,
        ev.ThreadEnded(
            thread_id=thread.thread_id,
            status=status,
            output=seen.args.get("child_summary"),
            error=error,
            native=seen.native,
            extra=seen.rest(*_KNOWN, "child_summary", "child_status"),
        ),
    ]
