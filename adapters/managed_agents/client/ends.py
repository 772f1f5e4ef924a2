"""Ends of a session: archived, terminated, deleted, lost (sections 3.3 and 3.4)."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.managed_agents import wire
from adapters.managed_agents.client import inputs, posts, turns
from adapters.managed_agents.client.state import AgentsState, ReceivedEvent
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Response

_ENDED = ev.ErrorInfo(code="session_terminated", message="The service has ended the session.")

ARCHIVED = ev.ErrorInfo(code="session_archived", message="The session was archived.")

GONE = "session_gone"
"""The error code of a turn whose session the service does not know any more."""

TURN_LOST = "turn_end_missing"
"""The error code of a turn that the service has no more, while it keeps the session."""


def terminated(s: AgentsState, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.status_terminated`: the session was archived, or has failed for good. Its
    object tells which (section 3.4)."""
    s.fatal = s.main.error
    out = end_all(s, s.fatal or _ENDED, seen.native)
    if not s.archived and s.session is not None:
        s.calls.append(posts.look(s.session, "terminated"))
    return out


def deleted(s: AgentsState, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.deleted`."""
    out = end_all(s, _ENDED, seen.native)
    s.wanted, s.ended = False, True
    return [*out, ev.SessionEnded(thread_id=ev.MAIN, outcome="deleted", native=seen.native)]


def end_all(s: AgentsState, error: ev.ErrorInfo, native: ev.NativeRef | None) -> list[ev.Event]:
    """End what runs in all threads: interrupted where the session is archived, else failed."""
    out: list[ev.Event] = []
    for thread in reversed(list(s.threads.values())):
        thread.followed = False
        if thread.turn is not None:
            stopped = s.archived or thread.interrupting
            outcome = "interrupted" if stopped else "failed"
            why = None if stopped else error
            out += turns.end(s, thread, outcome, why, native, synthetic=native is None)
    return out


def told_terminated(s: AgentsState, response: Response, now: int) -> list[ev.Event]:
    """Hear what the object of a session says that has terminated."""
    if s.archived or s.ended:
        return []
    body = raw.json_of(response) if 200 <= response.status < 300 else None
    at = wire.micros_of(body.get("archived_at")) if isinstance(body, dict) else None
    if at is not None:
        s.archived = True
        return [ev.SessionUpdated(thread_id=ev.MAIN, archived_at=at // 1_000, synthetic=True)]
    if isinstance(body, dict) and body.get("status") != "terminated":
        return []
    s.wanted, s.ended = False, True
    failed: Any = "failed" if s.fatal is not None else "terminated"
    return [ev.SessionEnded(thread_id=ev.MAIN, outcome=failed, error=s.fatal, synthetic=True)]


LOOK_AGAIN_MS = 2_000
"""How long after a session that rests without an end of its turn the list is read again. Ours."""


@dataclasses.dataclass(slots=True)
class Denial:
    """A session object that knows nothing of what is believed to run. It may be behind the stream
    (section 3.3), so it is believed when it says so twice with the list read between. `subject` is
    the turn or the message that it denied, `due` when to ask again, `asks` that the list is read
    for that."""

    subject: str | None = None
    due: int | None = None
    asks: bool = False

    def looked(self, s: AgentsState, response: Response, now: int) -> list[ev.Event]:
        """Hear the session object."""
        message = s.ledger.message
        subject = s.main.turn or (message.command_id if message is not None else None)
        before, self.subject = self.subject, None
        if _denies(s, response) and (before != subject or self.due is not None):
            self.subject = subject
            self.due = now + LOOK_AGAIN_MS if self.due is None else self.due
            return []
        self.due = None
        out = _looked(s, response)
        if s.archived and s.waiting is not None and s.waiting.again.waits:
            out.append(raw.settled(s.waiting.command_id, "refused", ARCHIVED))
            s.waiting = None
        return out

    def is_due(self, now: int) -> bool:
        """Say, once, whether the list is to be read, and the session asked for again."""
        if self.due is None or now < self.due:
            return False
        self.due, self.asks = None, True
        return True

    def listed(self, s: AgentsState) -> None:
        """Ask again, now that the list is read."""
        if self.asks and s.session is not None:
            self.asks = False
            s.calls.append(posts.look(s.session))


def _denies(s: AgentsState, response: Response) -> bool:
    if response.status == 404:
        return True
    body = raw.json_of(response) if 200 <= response.status < 300 else None
    if not isinstance(body, dict) or body.get("status") != "idle":
        return False
    if s.main.turn is not None:
        return s.main.paused != "input"
    return s.ledger.message is not None and s.ledger.message.taken


def _looked(s: AgentsState, response: Response) -> list[ev.Event]:
    """Take what the session object says."""
    if response.status == 404:
        words = "The service does not know the session any more."
        return nothing_runs(s, ev.ErrorInfo(code=GONE, message=words, status=404))
    body = raw.json_of(response) if 200 <= response.status < 300 else None
    if not isinstance(body, dict):
        return []
    if body.get("status") != "terminated" and body.get("archived_at"):
        # A third party's server says so of a session that is idle.
        return told_terminated(s, response, 0)
    match body.get("status"):
        case "running" | "rescheduling" if s.main.turn is None and s.ledger.message is None:
            # It works, and nobody has said so: a server that was killed, or another's turn.
            return turns.begin(s, s.main, None, synthetic=True, partial=True)
        case "idle" if s.main.turn is not None and s.main.paused != "input":
            words = "The session is idle, and its list has no end of the turn."
            return nothing_runs(s, ev.ErrorInfo(code=TURN_LOST, message=words))
        case "idle" if s.ledger.message is not None and s.main.turn is None:
            words = "The service took the message and did not begin a turn for it; send it again."
            return nothing_runs(s, ev.ErrorInfo(code=TURN_LOST, message=words))
        case "terminated":
            out = end_all(s, _ENDED, None)
            return out + told_terminated(s, response, 0)
        case _:
            return []


def nothing_runs(s: AgentsState, error: ev.ErrorInfo) -> list[ev.Event]:
    """End what the service does not work on: a turn, or a message whose turn has not begun."""
    message = s.ledger.message
    out: list[ev.Event] = []
    if message is not None and s.main.turn is None:
        if not message.taken:
            return []
        out += turns.begin(s, s.main, None, synthetic=True)
    if s.main.turn is None:
        return out
    out += end_all(s, error, None)
    return out + inputs.lost(s, error)
