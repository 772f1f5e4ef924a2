"""What a batch of events means: commands, and what is refused in the service's own words."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from adapters.contract.faces import SessionView
from adapters.managed_agents import wire
from adapters.managed_agents.requests import ClientEvent, EventBatch
from adapters.managed_agents.server import ManagedAgentsEncoder
from adapters.managed_agents.state import RequestRecord
from adapters.model.commands import (
    AnswerInteraction,
    AnyCommand,
    DefineOutcome,
    Interrupt,
    SendMessage,
    ToolResult,
)
from adapters.model.events import SEALED_KINDS, InteractionRequested, text_of
from adapters.model.interactions import NEGATIVE, decide, option_named, polarity
from adapters.serving.members import refuse
from adapters.wire.errors import ClientProtocolError, ErrorCode

Seen = SessionView[ManagedAgentsEncoder]

_TAKEN_WHILE_WAITING = (
    "`user.tool_confirmation`, `user.custom_tool_result`, `user.tool_result`, or `user.interrupt`"
)


def to_commands(batch: EventBatch, seen: Seen) -> list[AnyCommand]:
    """Return the commands of a batch, in order.

    A message waits for the turn to end; while a request is open and the batch does not answer or
    stop it first, it is refused.

    Raises:
        ClientProtocolError: an event does not fit the session as it is.
    """
    state = seen.state
    if state.archived_at is not None or state.ended is not None:
        refuse(f"Cannot send events to archived session: {seen.id}")
    open_ = dict.fromkeys(state.waiting_on(seen.thread))
    commands: list[AnyCommand] = []
    for event in batch.events:
        match event.type:
            case "user.interrupt":
                thread = _thread(event, seen)
                commands.append(Interrupt(thread_id=thread))
                if thread is None:
                    open_.clear()
            case "user.message" | "system.message":
                _check_nothing_waits(event, open_, seen)
                commands.append(
                    SendMessage(content=event.content, policy="queue", system=event.system)
                    if event.type == "user.message"
                    else SendMessage(content=(), policy="queue", system=event.content)
                )
            case "user.define_outcome":
                _check_nothing_waits(event, open_, seen)
                commands.append(DefineOutcome(**event.outcome))
            case _:
                command = _answer(event, seen)
                if isinstance(command, AnswerInteraction):
                    open_.pop(command.request_id, None)
                commands.append(command)
    return commands


def initial(batch: EventBatch) -> list[AnyCommand]:
    """Return the commands that a session begins with: a queue."""
    return [
        SendMessage(content=event.content, policy="queue", system=event.system)
        if event.type == "user.message"
        else DefineOutcome(**event.outcome)
        for event in batch.events
    ]


def _check_nothing_waits(event: ClientEvent, open_: dict[str, None], seen: Seen) -> None:
    if open_:
        requests = seen.encoder.state.requests
        ids = ", ".join(requests[name].id if name in requests else name for name in open_)
        refuse(
            f"Invalid {event.place}: waiting on responses to events [{ids}]; only "
            f"{_TAKEN_WHILE_WAITING} may be sent"
        )


def _thread(event: ClientEvent, seen: Seen) -> str | None:
    """Return the child thread that an event names; None for the primary one."""
    name = event.thread
    if name is None or name == wire.primary_thread(seen.id):
        return None
    child = seen.encoder.state.children.get(name)
    if child is None:
        refuse(f"Invalid {event.place}: there is no such thread in the session")
    if child.ended is not None:
        refuse(f"Invalid {event.place}: the thread is terminated")
    return name


def _answer(event: ClientEvent, seen: Seen) -> AnyCommand:
    found = seen.encoder.request_of(event.tool)
    if found is None:
        call = seen.encoder.call_of(event.tool)
        if call is not None and event.type == "user.tool_result":
            return ToolResult(
                call_id=call,
                content=event.content,
                is_error=event.is_error,
                system=event.system,
            )
        raise ClientProtocolError(
            f"Invalid {event.place}: its id does not match any tool use event in the session that "
            "waits for an answer",
            code=ErrorCode.UNKNOWN_INTERACTION,
        )
    request_id, record = found
    _check_thread(event, record, seen)
    open_ = seen.state.interactions.get(request_id)
    if open_ is None:
        # Over: the session says so, with the outcome.
        return AnswerInteraction(request_id=request_id, skip=True)
    request = open_.event
    takes = _taken_by(record)
    if event.type not in takes:
        refuse(f"Invalid {event.place}: this tool use takes a `{takes[0]}`")
    said = functools.partial(AnswerInteraction, request_id=request_id, system=event.system)
    return decide(_decision(event, request, said), request)


def _taken_by(record: RequestRecord) -> tuple[str, ...]:
    if record.type == "agent.custom_tool_use":
        return ("user.custom_tool_result",)
    if record.kind == "approval":
        return ("user.tool_confirmation",)
    return ("user.tool_result", "user.custom_tool_result")


def _check_thread(event: ClientEvent, record: RequestRecord, seen: Seen) -> None:
    if event.thread is not None and event.thread != wire.thread_name(seen.id, record.thread):
        refuse(f"Invalid {event.place}: the tool use is of another thread")


def _decision(
    event: ClientEvent, request: InteractionRequested, said: Callable[..., AnswerInteraction]
) -> AnswerInteraction:
    if request.kind == "approval" and event.decision is not None:
        return said(decision=event.decision, reason=event.reason)
    if request.kind == "tool_result":
        return said(content=event.content, is_error=event.is_error)
    words = text_of(event.content).strip()
    declines = event.is_error or not words or words.lower() in NEGATIVE
    if request.kind in SEALED_KINDS or request.kind == "authorization":
        if not declines:
            refuse(f"Invalid {event.place}: here this request can only be declined")
        return said(skip=True)
    if event.is_error or not words:
        return said(skip=True)
    chosen = option_named(words, request.options or ())
    if chosen is not None:
        return said(option_ids=(chosen.id,))
    if request.kind in ("approval", "limit"):
        decision = polarity(words)[0]
        if decision is None:
            refuse(f"Invalid {event.place}: this request takes the id of one of its options")
        return said(decision=decision)
    return said(text=words)


def needs_answer(events: Sequence[ClientEvent]) -> bool:
    """Say whether a batch answers something."""
    return any(event.tool for event in events)
