"""What became of requests to the service, also where nobody knows.

A refusal below 500 took nothing. What a request with a worse end carried, or none, is looked for in
the list and never sent again (section 12: a send that was applied may be answered with a 5xx).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from adapters.driving.again import Patience
from adapters.driving.doubts import Evidence, LookVerdict
from adapters.managed_agents import wire
from adapters.managed_agents.client import ends, inputs, interactions, posts, turns, work
from adapters.managed_agents.client.state import AgentsState, WaitingCommand
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, Response
from adapters.wire.jsonvalue import parse_json
from adapters.wire.url_paths import is_segment

_BUSY = Patience(2_000, 5_000, for_ms=600_000)
"""A message that a server refuses while it works, which the service itself queues: it goes when the
turn is over, or after these. A third party's server is asked so."""

_LATE = Patience(500, 2_000, for_ms=10_000)
"""A message that is refused since answers are waited for which have arrived (live page, 3)."""

_LIMITED = Patience(2_000, 30_000, for_ms=600_000)
"""What is refused by a limit."""

_RUNNING = Patience(500, 2_000, for_ms=5_000)
"""An archive or a delete that is refused right after an idle (section 3.3)."""


def is_ok(response: Response) -> bool:
    """Say whether a request was carried out."""
    return 200 <= response.status < 300


def is_doubtful(response: Response) -> bool:
    """Say whether the service may have taken what it was sent."""
    return response.status >= 500 or response.status == 408


# Creates.


def created(s: AgentsState, call: Call, response: Response) -> list[ev.Event]:
    """Hear what a create was answered with."""
    body = raw.json_of(response)
    session = body.get("id") if isinstance(body, dict) else None
    if not is_ok(response) or not isinstance(session, str) or not is_segment(session):
        error = posts.refusal(response) if not is_ok(response) else posts.without_id(response)
        return not_created(s, call, error)
    s.session = session
    created_at = body.get("created_at")
    at = created_at if isinstance(created_at, str) else None
    return [
        ev.SessionUpdated(
            thread_id=ev.MAIN,
            agent=work.agent_of(body.get("agent")),
            options=wire.told_options({name: value for name, value in body.items() if value}),
            native=ev.NativeRef(dialect=wire.DIALECT, id=session, at=at),
        )
    ]


def not_created(s: AgentsState, call: Call, error: ev.ErrorInfo) -> list[ev.Event]:
    """Record that no session was made, or one that nobody knows: it is never used, and nothing was
    said there."""
    s.waiting = None
    assert call.command_id is not None
    return [raw.settled(call.command_id, "refused", error)]


# Sends.


def sent(s: AgentsState, call: Call, response: Response, now: int) -> list[ev.Event]:
    """Hear what a send was answered with, where that is sure."""
    assert call.command_id is not None
    if is_ok(response):
        body = raw.json_of(response)
        return inputs.taken(s, call.command_ids, body.get("data") if isinstance(body, dict) else 0)
    error = posts.refusal(response)
    archived = posts.ARCHIVED in error.message.lower()
    item = s.ledger.open.get(call.command_id)
    if item is not None and item.kind == "message" and not item.taken and not archived:
        if _wait_again(s, call, response, error, now):
            return []
        if response.status == 409:
            _ask(s)
    out: list[ev.Event] = []
    for command_id in call.command_ids:
        out += refused(s, command_id, error)
    if item is not None and item.kind == "answer":
        # The list tells whether somebody else has answered.
        _ask(s)
    if archived and s.session is not None:
        s.calls.append(posts.look(s.session, "terminated"))
    return out


def _ask(s: AgentsState) -> None:
    if s.session is not None:
        s.calls.append(posts.look(s.session))


def _wait_again(
    s: AgentsState, call: Call, response: Response, error: ev.ErrorInfo, now: int
) -> bool:
    """Let a message wait that was refused for now; say whether it does."""
    waiting = s.waiting
    if waiting is None or waiting.command_id != call.command_id:
        return False
    command = cmd.decode_command(dict(waiting.command))
    policy = command.policy if isinstance(command, cmd.SendMessage) else ""
    patience = None
    if response.status == 429:
        patience = _LIMITED
    elif response.status == 409 and policy != "reject":
        patience = _BUSY
    elif response.status == 400 and posts.WAITING in error.message and not s.asks.open:
        patience = _LATE
    if patience is None:
        return False
    if not waiting.again.refused(now, patience, posts.retry_after(response)):
        return False
    s.ledger.drop(waiting.command_id)
    if response.status == 409 and s.main.turn is None:
        # It says that it works: then it is known what to wait for, and to stop.
        _ask(s)
    return True


def refused(s: AgentsState, command_id: str, error: ev.ErrorInfo) -> list[ev.Event]:
    """Record that the service did not take an input: what it answers can be answered again."""
    out: list[ev.Event] = []
    if s.waiting is not None and s.waiting.command_id == command_id:
        s.waiting = None
        if command_id not in s.ledger.open:
            # It waits to be sent.
            out.append(raw.settled(command_id, "refused", error))
    out += interactions.settle(s, command_id, "refused", error)
    return out + s.asks.release(command_id)


def not_sent(s: AgentsState, call: Call, error: ev.ErrorInfo) -> list[ev.Event]:
    """Record that a send never reached the service."""
    return [event for name in call.command_ids for event in refused(s, name, error)]


def doubt(s: AgentsState, call: Call) -> None:
    """Record that inputs may have arrived, for nobody knows what became of their send. They are
    looked for, and never sent again."""
    if s.waiting is not None and s.waiting.command_id in call.command_ids:
        s.waiting = None
    for command_id in call.command_ids:
        if command_id in s.ledger.open and not s.ledger.open[command_id].taken:
            s.doubts.look(command_id)


def forget(s: AgentsState, command_ids: Collection[str]) -> list[ev.Event]:
    """Expect nothing more of commands."""
    out: list[ev.Event] = []
    for command_id in command_ids:
        s.ledger.drop(command_id)
        s.doubts.forget(command_id)
        if s.waiting is not None and s.waiting.command_id == command_id:
            s.waiting = None
        if s.begun_by_us == command_id:
            s.begun_by_us = None
        out += s.asks.release(command_id)
    return out


# Inputs in doubt.


def looked_up(s: AgentsState, now: int, begun: int, unshown: Evidence) -> list[ev.Event]:
    """Settle what a list shows or does not show, which was begun at a time and is processed;
    `unshown` is what it says of an input that it does not show."""
    out: list[ev.Event] = []
    for command_id in list(s.doubts.open):
        item = s.ledger.open.get(command_id)
        found = item is None or item.taken or item.shown
        evidence = Evidence.SHOWN if found else unshown
        match s.doubts.hear(command_id, evidence, now, begun=begun):
            case LookVerdict.TAKEN:
                out += inputs.settle(s, command_id)
            case LookVerdict.TELL:
                words = "The service's list does not show an input yet; it is read once more."
                out.append(raw.in_doubt(words))
            case LookVerdict.LOST:
                lost = "The input did not reach the service; send it again."
                out += refused(s, command_id, ev.ErrorInfo(code="not_arrived", message=lost))
            case LookVerdict.UNKNOWN:
                words = "The service's list could not be read for the input."
                error = ev.ErrorInfo(code="no_evidence", message=words)
                out += interactions.settle(s, command_id, "unknown", error)
                out += s.asks.release(command_id)
            case LookVerdict.WAIT:
                pass
    return out


# The session as a whole.


def administered(s: AgentsState, call: Call, response: Response, now: int) -> list[ev.Event]:
    """Hear what a command for the session as a whole, or for a thread, was answered with."""
    assert call.command_id is not None
    gone = call.name == "delete" and response.status in (404, 410)
    if response.status in (400, 409) and _still_running(s, call, response, now):
        return []
    if not is_ok(response) and not gone:
        s.archived = s.archived and call.name not in ("archive", "reset")
        return [raw.settled(call.command_id, "refused", posts.refusal(response))]
    out: list[ev.Event] = [raw.settled(call.command_id, "taken")]
    match call.name:
        case "archive":
            s.archived = True
            out += ends.end_all(s, ends.ARCHIVED, None)
            out.append(ev.SessionUpdated(thread_id=ev.MAIN, archived_at=now, synthetic=True))
        case "reset" | "delete":
            s.wanted, s.ended = False, True
            out += ends.end_all(s, ends.ARCHIVED, None)
            done: Any = "completed" if call.name == "reset" else "deleted"
            out.append(ev.SessionEnded(thread_id=ev.MAIN, outcome=done, synthetic=True))
        case "archive_thread":
            thread = s.threads.get(call.thread_id)
            if thread is not None and not thread.is_main and not thread.ended:
                out += turns.end_child(s, thread, None)
        case _:
            changes: Any = parse_json(call.request.body or b"{}")
            out.append(
                ev.SessionUpdated(
                    thread_id=ev.MAIN,
                    title=changes.get("title"),
                    metadata=changes.get("metadata"),
                    agent=changes.get("agent"),
                    synthetic=True,
                )
            )
    return out


def _still_running(s: AgentsState, call: Call, response: Response, now: int) -> bool:
    """Let what ends a session wait, which is refused since its status is behind (section 3.3); say
    whether it does."""
    if call.name not in ("archive", "reset", "delete") or s.main.turn is not None:
        return False
    assert call.command_id is not None
    if s.waiting is None:
        command = cmd.decode_command({"type": call.name})
        s.waiting = wait_for_session(call.command_id, command)
    waiting = s.waiting
    same = waiting.command_id == call.command_id
    return same and waiting.again.refused(now, _RUNNING, posts.retry_after(response))


def wait_for_session(command_id: str, command: cmd.AnyCommand) -> WaitingCommand:
    """Return a command that is sent when its session is made and its stream is open."""
    waiting = WaitingCommand(command_id, cmd.dump_command(command))
    waiting.again.wait()
    waiting.again.let_go()
    return waiting
