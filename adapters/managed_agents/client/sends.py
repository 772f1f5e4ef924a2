"""Commands on their way to the service: the session is made for the first one, each is an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.managed_agents import wire
from adapters.managed_agents.client import interactions, posts, replies
from adapters.managed_agents.client.state import AgentsState
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call
from adapters.wire.errors import NotSupported


def made_with(event: ev.SessionStarted) -> dict[str, Any]:
    """Return what a session was made with here."""
    return {
        "title": event.title,
        "metadata": dict(event.metadata or {}),
        "agent": (event.agent or {}).get("id"),
        "environment": wire.options_of(event.options or {}).get("environment_id"),
    }


def create(
    s: AgentsState,
    settings: Mapping[str, Any],
    made: dict[str, Any],
    command_id: str,
    command: cmd.AnyCommand,
) -> Call:
    """Return the call that makes the session for its first command, which follows when the stream
    is open.

    Raises:
        NotSupported: no agent or no environment is known.
    """
    agent = settings.get("agent") or made.get("agent")
    environment = settings.get("environment_id") or made.get("environment")
    if agent is None or environment is None:
        raise NotSupported(
            "managed-agents: no agent or no environment is configured: set "
            "`create = { agent = …, environment_id = … }`"
        )
    if isinstance(command, cmd.UpdateSession):
        made["title"] = command.title or made.get("title")
        made["metadata"] = {**made.get("metadata", {}), **(command.metadata or {})}
    s.waiting = replies.wait_for_session(command_id, command)
    metadata = made.get("metadata") or {}
    return posts.create(agent, environment, made.get("title"), metadata, command_id)


def post(s: AgentsState, command_id: str, command: cmd.AnyCommand) -> Call:
    """Return the call that carries a command of a session that there is.

    Raises:
        NotSupported: what it answers is not open any more.
    """
    assert s.session is not None
    match command:
        case cmd.SendMessage():
            events = posts.message(command)
            if s.waiting is None or s.waiting.command_id != command_id:
                s.waiting = replies.wait_for_session(command_id, command)
            s.waiting.again.sent()
        case cmd.Interrupt():
            events = [{"type": "user.interrupt"}]
            if command.thread_id not in (None, ev.MAIN):
                events[0]["session_thread_id"] = command.thread_id
        case cmd.AnswerInteraction():
            events = interactions.answer(s, command_id, command)
        case cmd.ToolResult():
            events = interactions.tool_result(s, command_id, command)
        case cmd.DefineOutcome():
            told = command.model_dump(mode="json", exclude_none=True)
            names = ("description", "rubric", "max_iterations")
            more = {name: told[name] for name in names if name in told}
            events = [{"type": "user.define_outcome", **more}]
        case _:
            if isinstance(command, cmd.Archive | cmd.Reset):
                # Its event may come before the answer.
                s.archived = True
            return posts.administer(s.session, command_id, command)
    s.ledger.expect(posts.sent_event(command_id, command, events))
    return posts.send(s.session, events, command_id)
