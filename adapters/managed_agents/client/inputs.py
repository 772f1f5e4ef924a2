"""Inputs that the service shows: ours once more, and those of others (section 6.5).

A message that wakes the session is shown once, behind the events that say that it runs (live page,
section 1). Older documentation shows it twice, first without a time, and a third party's server
once, without a time for ever. So a message is received where it is shown with a time, or else where
the first work of its turn shows.
"""

from __future__ import annotations

from typing import Any

from adapters.driving.ledger import SentInput
from adapters.managed_agents.client import contents, interactions
from adapters.managed_agents.client.posts import key_of
from adapters.managed_agents.client.state import (
    AgentsState,
    AgentThread,
    ReceivedEvent,
    SentEvent,
    unknown,
)
from adapters.model import events as ev
from adapters.wire.jsonvalue import name_of, rest_of

MOST_INBOX = 64
"""Messages of others that wait for a turn. Ours."""


def taken(s: AgentsState, command_ids: tuple[str, ...], data: Any) -> list[ev.Event]:
    """Take the answer of a send, whose `data` has the stored events in the order sent, or is not
    there (section 4)."""
    events = [event for event in data if isinstance(event, dict)] if isinstance(data, list) else []
    out: list[ev.Event] = []
    for command_id in command_ids:
        item = s.ledger.open.get(command_id)
        for event in events:
            id_ = name_of(event.get("id"))
            if id_ is not None and item is not None and key_of(event) in item.keys:
                s.remember(id_, command_id)
        out += _with_outcome(settle(s, command_id), events)
        if s.begun_by_us == command_id and s.main.turn is None and item is not None:
            # Its turn was over before this answer.
            out += receive(s, item, s.main)
    return out


def _with_outcome(settled: list[ev.Event], events: list[dict[str, Any]]) -> list[ev.Event]:
    """Return a settlement with the service's id of an outcome, under which it is judged."""
    ids = [name for event in events if (name := name_of(event.get("outcome_id"))) is not None]
    if not ids:
        return settled
    return [event.model_copy(update={"extra": {"outcome_id": ids[0]}}) for event in settled]


def settle(s: AgentsState, command_id: str) -> list[ev.Event]:
    """Record that the service took an input."""
    item = s.ledger.open.get(command_id)
    if item is not None and item.kind == "interrupt" and not item.taken:
        named = item.keys[0].partition(" ")[2]
        stopped = [s.threads[named]] if named in s.threads else list(s.threads.values())
        for thread in stopped:
            thread.interrupting = thread.turn is not None
    return interactions.settle(s, command_id, "taken")


def begun(s: AgentsState, thread: AgentThread) -> list[ev.Event]:
    """Begin the turn of the message that was sent, or of others' that were shown before."""
    ours = s.ledger.message
    s.begun_by_us = None
    out: list[ev.Event] = []
    if ours is not None:
        s.begun_by_us = ours.command_id
        if ours.shown:
            out += receive(s, ours, thread)
    inbox, s.inbox = s.inbox, []
    return out + [_foreign(event, thread.turn) for event in inbox]


def rested(s: AgentsState) -> list[ev.Event]:
    """Take what others said and the session has not worked on, since it rests."""
    inbox, s.inbox = s.inbox, []
    return [_foreign(event, None) for event in inbox]


def worked(s: AgentsState, thread: AgentThread) -> list[ev.Event]:
    """Receive the message that a turn began with, which the service has not shown."""
    if s.begun_by_us is None:
        return []
    item = s.ledger.open.get(s.begun_by_us)
    if item is not None and not (item.taken or item.shown):
        # The turn may be another's: the answer of the send is still to come.
        return []
    s.begun_by_us = None
    return [] if item is None else receive(s, item, thread)


def receive(
    s: AgentsState, item: SentEvent, thread: AgentThread, native: ev.NativeRef | None = None
) -> list[ev.Event]:
    """Record that a message of ours is part of the conversation."""
    s.doubts.forget(item.command_id)
    if s.begun_by_us == item.command_id:
        s.begun_by_us = None
    return s.ledger.receive(item.command_id, thread.turn, native=native, synthetic=native is None)


def shown(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take an input that a stream or a list shows."""
    command_id = s.own.get(seen.id)
    if command_id is None:
        item = _sent_as(s, seen)
        if item is not None:
            command_id = item.command_id
            if seen.id:
                s.remember(seen.id, command_id)
    if seen.type == "user.interrupt":
        return _interrupt(s, thread, seen, command_id)
    if seen.type in ("user.tool_confirmation", "user.custom_tool_result", "user.tool_result"):
        out = [] if command_id is None else settle(s, command_id)
        return out + _answered(s, thread, seen)
    if command_id is not None:
        return _ours(s, thread, seen, command_id)
    if seen.type == "user.message" and thread.is_main:
        return _of_others(s, thread, seen)
    return [unknown(thread, seen)] if seen.at is not None else []


def _sent_as(s: AgentsState, seen: ReceivedEvent) -> SentEvent | None:
    """Return the input of ours that an event may be of whose id nobody knows."""
    key = key_of(seen.event)
    known = set(s.own.values()) if seen.type != "system.message" else set[str]()
    return next(
        (one for one in s.ledger.open.values() if key in one.keys and one.command_id not in known),
        None,
    )


def _ours(
    s: AgentsState, thread: AgentThread, seen: ReceivedEvent, command_id: str
) -> list[ev.Event]:
    item = s.ledger.open.get(command_id)
    if item is None or (seen.type == "system.message" and len(item.keys) > 1):
        return []
    out = _with_outcome(settle(s, command_id), [seen.event])
    if item.kind != "message" or command_id not in s.ledger.open:
        return out
    early = thread.turn is None and seen.type == "user.message"
    if early or (seen.at is None and s.begun_by_us != command_id):
        # Also with a time it may come before its turn begins (section 6.5).
        item.shown = True
        return out
    return out + receive(s, item, thread, seen.native)


def _interrupt(
    s: AgentsState, thread: AgentThread, seen: ReceivedEvent, command_id: str | None
) -> list[ev.Event]:
    """Take an interrupt: of a session that rests it means nothing (live page, section 1)."""
    out = [] if command_id is None else settle(s, command_id)
    if seen.at is None:
        return out
    named = s.thread_of(seen.event.get("session_thread_id"))
    stopped = [s.threads[named]] if named in s.threads else [thread]
    if named is None and thread.is_main:
        stopped = list(s.threads.values())
    for one in stopped:
        one.interrupting = one.turn is not None
    return out


def _answered(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    name = seen.text("tool_use_id")
    use = thread.uses.get(name or "")
    out = interactions.answered(s, seen.event, seen.native)
    if out or seen.type != "user.tool_result" or use is None or name is None:
        return out
    # A built-in tool that somebody ran by themselves (self-hosted, section 4.1).
    del thread.uses[name]
    s.put_over(name)
    output, content = contents.output(seen.event.get("content"))
    failed = seen.event.get("is_error") is True
    return [
        ev.ToolReturned(
            **thread.of(seen.native),
            call_id=name,
            output=output,
            content=content,
            is_error=failed,
            status="failed" if failed else "completed",
        )
    ]


# Messages of others.


def _of_others(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    waits = [event for event in s.inbox if not seen.id or event.get("id") != seen.id]
    if seen.at is None or thread.turn is None:
        # Its turn, or its time in a turn, shows that it was taken up.
        s.inbox = [*waits, seen.event][-MOST_INBOX:]
        return []
    s.inbox = waits
    if s.begun_by_us is not None and not s.ledger.open[s.begun_by_us].shown:
        # The turn is that of this message.
        s.begun_by_us = None
    return [_foreign(seen.event, thread.turn, seen.native)]


def _foreign(
    event: dict[str, Any], turn: str | None, native: ev.NativeRef | None = None
) -> ev.Event:
    id_ = event.get("id")
    name = id_ if isinstance(id_, str) and id_ else "message"
    return ev.MessageReceived(
        thread_id=ev.MAIN,
        turn_id=turn,
        message_id=name,
        content=contents.shown(event.get("content")),
        extra=rest_of(event, {"id", "type", "processed_at", "content"}),
        native=native or ev.NativeRef(dialect="managed-agents", id=name, type="user.message"),
    )


def lost(s: AgentsState, error: ev.ErrorInfo) -> list[ev.Event]:
    """Record that nothing more is heard of what was sent."""
    out: list[ev.Event] = []
    for item in list(s.ledger.open.values()):
        out += _lost(s, item, error)
    return out


def _lost(s: AgentsState, item: SentInput, error: ev.ErrorInfo) -> list[ev.Event]:
    if item.taken:
        return s.ledger.receive(item.command_id, s.main.turn)
    return interactions.settle(s, item.command_id, "unknown", error)
