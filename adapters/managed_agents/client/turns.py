"""Turns: where they begin, rest and end (sections 3.4 and 7.3; live page, section 1).

The session's status is that of all its threads. The primary thread rests while its children work:
its turn goes on then, and waits for them. A child's turn is told by its own stream.
"""

from __future__ import annotations

from typing import Any

from adapters.managed_agents.client import inputs, interactions
from adapters.managed_agents.client.state import AgentsState, AgentThread, ReceivedEvent
from adapters.model import events as ev
from adapters.wire.jsonvalue import name_of, text_of

REST_MS = 5_000
"""How long a child's own stream may take to say that the child rests, after the session's has: more
than was ever seen between the two. Ours."""

RESTING_KNOWN = 16
"""Events of a child that rests which are known by their ids. Ours: there may be many children."""

_OUTCOMES: dict[str, Any] = {
    "end_turn": "completed",
    "interrupted": "interrupted",
    "retries_exhausted": "exhausted",
    "budget_reached": "over_budget",
    "refusal": "refused",
    "error": "failed",
}
"""A stop reason -> the outcome of its turn; some are of a third party's server."""


# Begin and go on.


def begin(
    s: AgentsState,
    thread: AgentThread,
    native: ev.NativeRef | None,
    *,
    synthetic: bool = False,
    partial: bool = False,
    extra: dict[str, Any] | None = None,
) -> list[ev.Event]:
    """Begin a turn; of the primary thread that of the message that was sent, if one was."""
    s.turns += 1
    thread.turn = f"turn-{s.turns}"
    thread.paused, thread.interrupting, thread.error = None, False, None
    thread.step, thread.steps, thread.uses_in_step = None, 0, False
    thread.rests = thread.rests_at = None
    ours = s.ledger.message if thread.is_main else None
    told = thread.is_main and bool(s.inbox)
    out: list[ev.Event] = [
        ev.TurnStarted(
            **thread.of(native),
            cause="message" if ours is not None or told else "background",
            partial=partial,
            synthetic=synthetic,
            extra=extra,
        )
    ]
    return out + inputs.begun(s, thread) if thread.is_main else out


def work(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Let a thread work, also where nothing said that it does."""
    if thread.turn is None:
        out = begin(s, thread, seen.native, synthetic=True)
    elif thread.paused is not None:
        out = resume(s, thread, seen.native, synthetic=True)
    else:
        out = []
    return out + inputs.worked(s, thread) if thread.is_main else out


def resume(
    s: AgentsState,
    thread: AgentThread,
    native: ev.NativeRef | None,
    *,
    synthetic: bool = False,
    extra: dict[str, Any] | None = None,
) -> list[ev.Event]:
    """Let a thread go on; what was answered of it arrived."""
    out = interactions.resolve_given(s, thread, native)
    if thread.paused is None:
        return out
    thread.paused = None
    return [
        *out,
        ev.TurnResumed(
            **thread.of(native),
            synthetic=synthetic,
            extra=extra,
        ),
    ]


def running(s: AgentsState, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.status_running`."""
    return _running(s, s.main, seen, seen.rest())


def thread_running(s: AgentsState, stream: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.thread_status_running`, of the primary thread or of a child. The session's
    stream tells of a child, whose own stream is read then."""
    thread, out = named_thread(s, stream, seen)
    if thread is None:
        return out
    if thread.is_main or stream is thread:
        return out + _running(s, thread, seen, seen.rest("session_thread_id", "agent_name"))
    thread.followed, thread.ended = True, False
    thread.rests = thread.rests_at = None
    if s.main.turn is None:
        # It works while the session was thought to rest.
        out += begin(s, s.main, seen.native, synthetic=True)
    return out


def _running(
    s: AgentsState, thread: AgentThread, seen: ReceivedEvent, extra: dict[str, Any] | None
) -> list[ev.Event]:
    if thread.turn is None:
        return begin(s, thread, seen.native, extra=extra)
    return resume(s, thread, seen.native, extra=extra)


def rescheduled(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Record that the service tries once more after a while."""
    out = [] if thread.turn is not None else begin(s, thread, seen.native, synthetic=True)
    if thread.paused == "retry":
        return out
    thread.paused = "retry"
    known = ("session_thread_id", "agent_name")
    return [*out, _paused(s, thread, seen, "retry", seen.rest(*known))]


def thread_rescheduled(s: AgentsState, stream: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.thread_status_rescheduled`; of a child its own stream tells."""
    thread, out = named_thread(s, stream, seen)
    return out if thread is None or thread is not stream else out + rescheduled(s, thread, seen)


def _paused(
    s: AgentsState, thread: AgentThread, seen: ReceivedEvent, on: Any, extra: dict[str, Any] | None
) -> ev.Event:
    asked = [
        name
        for name, request in s.asks.open.items()
        if on == "input" and (thread.is_main or request.thread_id == thread.thread_id)
    ]
    return ev.TurnPaused(
        **thread.of(seen.native),
        on=on,
        request_ids=tuple(asked),
        extra=extra,
    )


# Rest.


def idle(s: AgentsState, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.status_idle`: all threads rest, or wait."""
    main = s.main
    out = _rest(s, main, seen, seen.event)
    if main.turn is None:
        out += inputs.rested(s)
        for thread in s.threads.values():
            if not thread.is_main and thread.turn is not None and thread.rests is None:
                # Its own stream has yet to say so.
                thread.rests, thread.rests_at = dict(seen.event), seen.now + REST_MS
    return out


def thread_idle(s: AgentsState, stream: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.thread_status_idle`. While its children work the primary thread's turn goes
    on; a child's end is told by its own stream, else by time."""
    thread, out = named_thread(s, stream, seen)
    if thread is None:
        return out
    if thread.is_main:
        reason = _reason_of(seen.event)
        busy = any(one.turn is not None and one.paused is None for one in _children(s))
        if main_rests(s) and busy and reason.get("type") == "end_turn":
            thread.paused = "tasks"
            return [*out, _paused(s, thread, seen, "tasks", None)]
        return out
    if stream is thread:
        return out + _rest(s, thread, seen, seen.event)
    if thread.turn is not None or thread.followed:
        thread.rests, thread.rests_at = dict(seen.event), seen.now + REST_MS
    return out


def main_rests(s: AgentsState) -> bool:
    """Say whether the primary thread works on a turn and waits for nothing."""
    return s.main.turn is not None and s.main.paused is None


def _children(s: AgentsState) -> list[AgentThread]:
    return [thread for thread in s.threads.values() if not thread.is_main]


def rest_by_time(s: AgentsState, thread: AgentThread, now: int) -> list[ev.Event]:
    """Let a child rest as the session has said, since its own stream does not say so."""
    event, thread.rests, thread.rests_at = thread.rests, None, None
    if event is None or thread.turn is None:
        return []
    native = ev.NativeRef(dialect="managed-agents", type=str(event.get("type")))
    seen = ReceivedEvent(str(event.get("type")), "", event, None, native, now, 0)
    if event.get("type") == "session.status_idle":
        event = {"stop_reason": {"type": "end_turn"}}
    return _rest(s, thread, seen, event)


def settle_rests(s: AgentsState, now: int) -> list[ev.Event]:
    """Let all children rest whose rest the session has told: nothing more comes."""
    return [event for thread in list(s.threads.values()) for event in rest_by_time(s, thread, now)]


def _reason_of(event: dict[str, Any]) -> dict[str, Any]:
    reason = event.get("stop_reason")
    if isinstance(reason, str):
        return {"type": reason}
    return dict(reason) if isinstance(reason, dict) else {}


def _rest(
    s: AgentsState, thread: AgentThread, seen: ReceivedEvent, event: dict[str, Any]
) -> list[ev.Event]:
    reason = _reason_of(event)
    kind = text_of(reason.get("type"))
    thread.rests = thread.rests_at = None
    if kind == "requires_action":
        return _waits(s, thread, seen, reason)
    out: list[ev.Event] = []
    if thread.turn is None:
        message = s.ledger.message
        if kind == "end_turn" or message is None or not message.taken or not thread.is_main:
            # A session of a third party begins so, and one tells again how it rests.
            return []
        # It says what became of the message, and never that it began.
        out = begin(s, thread, seen.native, synthetic=True)
    outcome = _OUTCOMES.get(kind or "", "completed")
    if reason.get("outcome") in ("interrupted", "failed"):
        # How a Dragoman says what the reason does not.
        outcome = reason.pop("outcome")
    if thread.interrupting and outcome == "completed":
        outcome = "interrupted"
    known = ("stop_reason", "stop_details", "session_thread_id", "agent_name")
    extra = {name: event[name] for name in event if name not in _FIXED and name not in known}
    if kind not in _OUTCOMES or reason.keys() != {"type"}:
        # Unknown reasons are kept, and taken as the end of the turn (section 15).
        extra["stop_reason"] = reason
    error = _error_of(thread, event, outcome)
    return out + end(s, thread, outcome, error, seen.native, extra or None)


_FIXED = frozenset({"id", "type", "processed_at"})


def _error_of(thread: AgentThread, event: dict[str, Any], outcome: str) -> ev.ErrorInfo | None:
    if outcome == "refused":
        details = event.get("stop_details")
        details = details if isinstance(details, dict) else {}
        words = text_of(details.get("explanation")) or "The model's answer was refused."
        return ev.ErrorInfo(code="refusal", message=words, details=details or None)
    if outcome in ("exhausted", "failed"):
        words = "The service gave the turn up, and said no reason."
        return thread.error or ev.ErrorInfo(code="unknown_error", message=words)
    return None


def _waits(
    s: AgentsState, thread: AgentThread, seen: ReceivedEvent, reason: dict[str, Any]
) -> list[ev.Event]:
    """Take an idle that waits for answers; older documentation nests their ids (section 7.3)."""
    nested = reason.get("requires_action")
    ids = reason.get("event_ids")
    if ids is None and isinstance(nested, dict):
        ids = nested.get("event_ids")
    names = [one for one in ids if name_of(one)] if isinstance(ids, list) else []
    new = [name for name in names if name not in s.over]
    if thread.turn is None:
        if not new:
            return []
        out = begin(s, thread, seen.native, synthetic=True)
    else:
        out = []
    out += interactions.waits_for(s, thread, new, seen.native)
    mine = [
        name
        for name, request in s.asks.open.items()
        if thread.is_main or request.thread_id == thread.thread_id
    ]
    if not mine:
        # It names what was answered: the service is about to go on (live page, section 1).
        return out
    thread.paused = "input"
    known = ("stop_reason", "session_thread_id", "agent_name")
    return [*out, _paused(s, thread, seen, "input", seen.rest(*known))]


def end(
    s: AgentsState,
    thread: AgentThread,
    outcome: Any,
    error: ev.ErrorInfo | None,
    native: ev.NativeRef | None,
    extra: dict[str, Any] | None = None,
    *,
    synthetic: bool = False,
) -> list[ev.Event]:
    """End the turn of a thread."""
    out = inputs.worked(s, thread) if thread.is_main else []
    if outcome != "interrupted":
        for name, request in list(s.asks.open.items()):
            if request.thread_id == thread.thread_id:
                out += interactions.resolve(s, name, native)
    out.append(
        ev.TurnEnded(
            **thread.of(native),
            outcome=outcome,
            error=error,
            synthetic=synthetic,
            extra=extra,
        )
    )
    over = [name for name, one in s.asks.open.items() if one.thread_id == thread.thread_id]
    for name in over:
        del s.asks.open[name]
    s.put_over(*over, *thread.uses)
    thread.uses = {}
    thread.turn, thread.paused, thread.interrupting, thread.error = None, None, False, None
    thread.step = None
    thread.preview.event_id = ""
    if not thread.is_main:
        # The session says when it works again.
        thread.followed = False
        thread.known.forget(RESTING_KNOWN)
    return out


# Threads.


def named_thread(
    s: AgentsState, stream: AgentThread, seen: ReceivedEvent
) -> tuple[AgentThread | None, list[ev.Event]]:
    """Return the thread that an event names, made where it is a new child. A child's stream names
    itself. The first event of the kind on the session's stream that nobody announced as a child is
    of the primary thread: it runs first (live page, section 1)."""
    native = seen.text("session_thread_id")
    if not stream.is_main:
        return stream, []
    if native is None:
        return s.main, []
    if s.primary is None and native not in s.threads:
        s.primary = native
    known = s.thread_of(native)
    if known is None or known == ev.MAIN:
        return s.main, []
    return child(s, known, seen)


def child(
    s: AgentsState, name: str, seen: ReceivedEvent, extra: dict[str, Any] | None = None
) -> tuple[AgentThread, list[ev.Event]]:
    """Return a child, which begins where it is new."""
    found = s.threads.get(name)
    if found is not None:
        return found, []
    found = s.threads[name] = AgentThread(name, seen.text("agent_name"), followed=True)
    return found, [
        ev.ThreadStarted(
            thread_id=name,
            parent=ev.MAIN,
            name=found.name,
            native_id=name,
            native=seen.native,
            extra=extra,
        )
    ]


def thread_terminated(s: AgentsState, stream: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.thread_status_terminated`: a child is over."""
    thread, out = named_thread(s, stream, seen)
    if thread is None or thread.is_main or thread.ended:
        return out
    return out + end_child(s, thread, seen.native, seen.rest("session_thread_id", "agent_name"))


def end_child(
    s: AgentsState,
    thread: AgentThread,
    native: ev.NativeRef | None,
    extra: dict[str, Any] | None = None,
) -> list[ev.Event]:
    """End a child: as its turn ends, if it works."""
    error = thread.error
    status: Any = "failed" if error is not None else "completed"
    if thread.interrupting:
        status = "cancelled"
    out: list[ev.Event] = []
    if thread.turn is not None:
        outcome = "interrupted" if status != "failed" else "failed"
        out = end(s, thread, outcome, error, native, synthetic=True)
    thread.ended, thread.followed = True, False
    thread.rests = thread.rests_at = None
    return [
        *out,
        ev.ThreadEnded(
            thread_id=thread.thread_id, status=status, error=error, native=native, extra=extra
        ),
    ]
