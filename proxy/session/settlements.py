"""Settlements of inputs in our own words: of what no backend tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from adapters.model import events as ev
from adapters.model.raw import error_info
from adapters.model.state import LogState
from adapters.wire.errors import DragomanError


def taken(command_id: str) -> ev.InputSettled:
    """Return that an input was carried out."""
    return settled(command_id, "taken")


def withdrawn(command_id: str, reason: str) -> ev.InputSettled:
    """Return that an input never goes to the backend."""
    return settled(command_id, "withdrawn", reason)


def refused(command_id: str, error: DragomanError) -> ev.InputSettled:
    """Return that an input cannot be carried."""
    return settled(command_id, "refused", error.message, error_info(error))


def unknown(command_id: str, reason: str) -> ev.InputSettled:
    """Return that nobody knows what became of an input."""
    return settled(command_id, "unknown", reason)


def settled(
    command_id: str,
    outcome: Literal["taken", "refused", "withdrawn", "unknown"],
    reason: str | None = None,
    error: ev.ErrorInfo | None = None,
) -> ev.InputSettled:
    """Return what became of an input."""
    return ev.InputSettled(
        thread_id=ev.MAIN,
        command_id=command_id,
        outcome=outcome,
        reason=reason,
        error=error,
        synthetic=True,
    )


def ended(state: LogState, error: ev.ErrorInfo) -> list[ev.Event]:
    """Return what ends all that is open, and why."""
    said = ev.ErrorReported(
        thread_id=ev.MAIN,
        code=error.code,
        message=error.message,
        quote=error.quote,
        synthetic=True,
    )
    ends = [
        ev.TurnEnded(
            thread_id=name,
            turn_id=thread.turn.turn_id,
            outcome="failed",
            error=error,
            synthetic=True,
        )
        for name, thread in state.threads.items()
        if thread.turn is not None
    ]
    return [said, *ends]


def interrupted(event: ev.Event) -> ev.Event:
    """Return an event of the end of a turn that a person has stopped: it has not failed."""
    if isinstance(event, ev.TurnEnded) and event.outcome == "failed":
        return event.model_copy(update={"outcome": "interrupted", "error": None})
    return event


def settled_in(events: Iterable[ev.Event]) -> set[str]:
    """Return the inputs that events settle."""
    return {event.command_id for event in events if isinstance(event, ev.InputSettled)}
