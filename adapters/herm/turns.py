"""Turns, and the end of a session: how a stream tells that the agent works or waits."""

from __future__ import annotations

from typing import Any

from adapters.herm import wire
from adapters.herm.content import close_cut
from adapters.herm.writer import HermWriter
from adapters.model import events as ev


def running(w: HermWriter, event: ev.TurnStarted | ev.TurnResumed) -> None:
    """Begin a turn, or go on with it."""
    if event.thread_id == ev.MAIN and not w.s.running:
        w.s.running, w.s.native = True, wire.is_native(event)
        w.write(event, wire.STATUS_RUNNING, {})


def turn_paused(w: HermWriter, event: ev.TurnPaused) -> None:
    """Write which requests a turn waits for."""
    if event.thread_id != ev.MAIN or event.on != "input":
        return
    w.s.running = False
    shown = ((name, w.s.requests.get(name)) for name in event.request_ids)
    ids = [name if request is None else request.id for name, request in shown]
    _idle(w, event, {"type": "requires_action", "event_ids": ids})


def turn_ended(w: HermWriter, event: ev.TurnEnded) -> None:
    """End a turn."""
    if event.thread_id != ev.MAIN:
        return
    w.s.running = False
    w.s.calls.clear()
    native = wire.is_native(event)
    if not native:
        close_cut(w, event)
    w.s.cut.clear()
    reason = {"type": "end_turn"}
    if event.outcome not in ("completed", "interrupted"):
        reason = _error(_message(event.error, event.outcome, native=native))
    if not native and event.outcome not in ("completed", "failed"):
        reason["outcome"] = event.outcome
    source = (event.extra or {}).get("stop_reason") if native else None
    _idle(w, event, source or reason)


def session_ended(w: HermWriter, event: ev.SessionEnded) -> None:
    """Write how a session ended; the stream of a deleted one is over."""
    w.s.running = False
    if event.outcome == "completed":
        _idle(w, event, {"type": "end_turn"})
        return
    message = _message(event.error, f"The session was {event.outcome}.")
    if event.outcome == "failed" and event.error is None:
        message = "The session failed."
    _idle(w, event, _error(message), end=event.outcome == "deleted")


def show_refused(w: HermWriter, event: ev.InputSettled) -> None:
    """Tell the reader of the stream, who waits for `session.status_idle`, that no turn comes of a
    message (section 4.6)."""
    if not w.s.running and event.outcome != "withdrawn":
        w.write(event, wire.STATUS_RUNNING, {})
        _idle(w, event, _error(_message(event.error, event.reason or event.outcome)))


def _idle(w: HermWriter, event: ev.Event, reason: Any, *, end: bool = False) -> None:
    w.write(event, wire.STATUS_IDLE, {"stop_reason": reason}, end=end)


def _error(message: str) -> dict[str, str]:
    return {"type": "error", "message": message}


def _message(error: ev.ErrorInfo | None, outcome: str, *, native: bool = False) -> str:
    """Return `stop_reason.message`: code and message in one string."""
    if error is None:
        return outcome if " " in outcome else f"The turn ended: {outcome}."
    if native:
        return error.message
    text = error.message if error.code in error.message else f"{error.code}: {error.message}"
    return text if outcome == "failed" or " " in outcome else f"{outcome}: {text}"
