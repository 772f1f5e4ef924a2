"""Child threads: what the session's stream tells of them, and what they tell each other."""

from __future__ import annotations

from typing import Any

from adapters.managed_agents import blocks, wire
from adapters.managed_agents.state import ChildRecord
from adapters.managed_agents.writer import EventWriter
from adapters.model import events as ev
from adapters.wire.jsonvalue import format_json


def of_thread(w: EventWriter, thread: str) -> dict[str, Any]:
    """Return the members that say which thread an event is about."""
    return {"session_thread_id": w.name_of(thread), "agent_name": agent_of(w, thread)}


def agent_of(w: EventWriter, thread: str) -> str:
    """Return the name of a thread's agent."""
    child = w.s.children.get(thread)
    return w.s.agent if child is None else child.name


def child_status(w: EventWriter, event: ev.Event, type_: str, status: str, **more: Any) -> None:
    """Write how a child stands."""
    child = w.s.children.get(event.thread_id)
    if child is not None:
        child.status, child.updated = status, w.at
    w.write(event, type_, {**of_thread(w, event.thread_id), **more}, role="thread")


def thread_started(w: EventWriter, event: ev.ThreadStarted) -> None:
    """Say that a child exists; `tool_use_id` is ours."""
    w.s.children[event.thread_id] = ChildRecord(
        event.name or "agent", event.parent, event.kind, w.at, w.at
    )
    if not w.is_primary:
        return
    fields = of_thread(w, event.thread_id)
    if event.call_id is not None and not wire.is_native(event):
        use = w.s.calls.get(event.call_id)
        fields["tool_use_id"] = event.call_id if use is None else use.id
    w.write(event, "session.thread_created", fields)


def thread_updated(w: EventWriter, event: ev.ThreadUpdated) -> None:
    """Keep the newest name of a child."""
    child = w.s.children.get(event.thread_id)
    if child is not None:
        child.name, child.updated = event.name or child.name, w.at


def thread_ended(w: EventWriter, event: ev.ThreadEnded) -> None:
    """Write what came of a child, and that it takes nothing more."""
    child = w.s.children.get(event.thread_id)
    if child is not None:
        child.status, child.ended, child.updated = "terminated", w.at, w.at
    if not w.is_primary and not w.is_own(event):
        return
    said = event.output if event.error is None else event.error.message
    if w.is_primary and said is not None and not wire.is_native(event):
        text = said if isinstance(said, str) else format_json(said).decode()
        content = [{"type": "text", "text": text}]
        w.write(event, "agent.thread_message_received", {**_from(w, event.thread_id, content)})
    role = "thread"
    w.write(event, "session.thread_status_terminated", of_thread(w, event.thread_id), role=role)


def thread_message(w: EventWriter, event: ev.ThreadMessage) -> None:
    """Write what a thread was told or has told, as its own stream has it."""
    content = blocks.shown(event.content)
    if w.is_own(event):
        if event.direction == "sent":
            to = event.recipient or ev.MAIN
            fields = {
                "to_session_thread_id": w.name_of(to),
                "to_agent_name": agent_of(w, to),
                "content": content,
            }
        else:
            fields = _from(w, event.sender or ev.MAIN, content)
        w.write(event, f"agent.thread_message_{event.direction}", fields)


def _from(w: EventWriter, sender: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "from_session_thread_id": w.name_of(sender),
        "from_agent_name": agent_of(w, sender),
        "content": content,
    }
