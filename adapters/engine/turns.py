"""Inputs and turns of the encoder: what begins the body of a turn, and what ends it.

`started` is written when a message is accepted, before any backend has heard of it (section 17), so
that a turn that this dialect began has an id of ours; the canonical turn is taken into it when it
starts. A body of `POST /execute` holds one turn, from `started` to its terminal frame.
"""

from __future__ import annotations

from typing import Any

from adapters.engine import wire
from adapters.engine.answers import stated_code
from adapters.engine.content import close_block
from adapters.engine.state import EngineTaskState, MessageTurn, RefusedMessage
from adapters.engine.writer import EngineWriter
from adapters.model import events as ev
from adapters.wire.errors import ErrorCode

_OUTCOMES: dict[str, tuple[str, str]] = {
    "failed": ("LLM_PROVIDER_ERROR", "The turn failed; the backend gave no reason."),
    "interrupted": ("TURN_INTERRUPTED", "The turn was interrupted."),
    "refused": ("TURN_REFUSED", "The model refused."),
    "exhausted": ("RETRIES_EXHAUSTED", "The retries are exhausted."),
    "over_budget": ("BUDGET_EXCEEDED", "The budget is used up."),
}
"""Outcome of a turn without an error of its own -> code and message of `error`."""


def turn_of(s: EngineTaskState, command_id: str) -> MessageTurn | None:
    """Return the turn that a message of this face became; None as long as it has none."""
    return next((turn for turn in s.turns if turn.command_id == command_id), None)


# Inputs.


def input_accepted(w: EngineWriter, event: ev.InputAccepted) -> None:
    """Begin the turn of a message of this face, unless one is open."""
    if event.kind not in ("message", "steer"):
        return
    s = w.s
    own = event.face == wire.DIALECT
    s.inputs[event.command_id] = own
    if own and s.turn is None:
        _open_turn(w, event.command_id, {})
        s.awaited = event.command_id
        _remember(s, event.command_id)


def input_settled(w: EngineWriter, event: ev.InputSettled) -> None:
    """Fail the turn of a message that was not taken: the body of its `/execute` is open and must
    end (section 9.2)."""
    s = w.s
    if event.outcome == "taken" or not s.inputs.pop(event.command_id, False):
        return
    error = event.error or ev.ErrorInfo(
        code=str(ErrorCode.BACKEND_UNAVAILABLE),
        message=event.reason or f"What became of the message: {event.outcome}.",
    )
    s.refused.append(RefusedMessage(event.command_id, error))
    if s.inside is None:
        _show_refused(w)


def _show_refused(w: EngineWriter) -> None:
    """Show messages that the backend did not take: each as a turn that fails."""
    s = w.s
    refused, s.refused = s.refused, []
    for one in refused:
        if s.turn is None:
            _open_turn(w, one.command_id, {})
            _remember(s, one.command_id)
        _fail(w, one.error, "failed")


def _remember(s: EngineTaskState, command_id: str) -> None:
    """Keep which turn a message of this face became. Only bodies that are about to begin ask, and a
    task has one at a time, so the newest 8 are enough."""
    assert s.turn is not None
    s.turns.append(MessageTurn(command_id, s.turn, s.start))
    del s.turns[:-8]


def message_received(w: EngineWriter, event: ev.MessageReceived) -> None:
    """Keep the turn of a message; one of another frontend is shown."""
    s, command_id = w.s, event.command_id
    if command_id is None or not s.inputs.pop(command_id, False):
        _show_input(w, ev.text_of(event.content), "message")
    elif s.awaited == command_id:
        s.awaited = None
    elif s.turn is not None and turn_of(s, command_id) is None:
        _remember(s, command_id)


def guidance_received(w: EngineWriter, event: ev.GuidanceReceived) -> None:
    """Show guidance of another frontend."""
    if event.command_id is None or not w.s.inputs.pop(event.command_id, False):
        _show_input(w, event.text, "guidance")


def _show_input(w: EngineWriter, words: str, kind: str) -> None:
    # No event of the dialect echoes input, and unknown types are ignored (section 8).
    w.write("message_received", {"message": words, "kind": kind})


# Turns.


def turn_started(w: EngineWriter, event: ev.TurnStarted) -> None:
    """Begin a turn, unless a message has begun it."""
    s = w.s
    s.inside = event.turn_id or ""
    if s.turn is not None:
        return
    more: dict[str, Any] = {}
    if event.cause not in ("message", "unknown"):
        more["cause"] = event.cause
    if event.partial:
        more["partial"] = True
    _open_turn(w, s.inside, more, event)


def _open_turn(
    w: EngineWriter, turn_id: str, more: dict[str, Any], event: ev.Event | None = None
) -> None:
    s = w.s
    s.turn = turn_id
    s.block, s.blocks, s.cut, s.said = None, 0, None, []
    s.step_usage = None
    _write_lifecycle(w, "started", more, event)
    s.start = s.stamp


def _write_lifecycle(
    w: EngineWriter,
    phase: str,
    more: dict[str, Any],
    event: ev.Event | None = None,
    *,
    end: bool = False,
) -> None:
    payload = {"phase": phase, "task_id": w.task_id, "turn_id": w.s.turn, **more}
    w.write("thread_lifecycle", payload, event, end=end)


def turn_ended(w: EngineWriter, event: ev.TurnEnded) -> None:
    """End the turn; then messages are shown that were refused within it."""
    s = w.s
    turn_id, s.inside = s.inside, None
    if s.awaited is not None:
        # A turn of the agent's own came before that of the message: the body goes on to that.
        close_block(w)
        w.write("background_turn", {"turn_id": turn_id, "outcome": event.outcome})
    elif event.outcome == "completed":
        close_block(w)
        _write_lifecycle(w, "completed", {}, event, end=True)
        s.turn = None
    else:
        code, message = _OUTCOMES[event.outcome]
        error = event.error or ev.ErrorInfo(code=code, message=message)
        _fail(w, error, event.outcome, event)
    _show_refused(w)


def _fail(
    w: EngineWriter, error: ev.ErrorInfo, outcome: str, event: ev.TurnEnded | None = None
) -> None:
    """End the turn with `error` and `errored`, in the order that serves every reader (9.3)."""
    payload: dict[str, Any] = {
        "error": stated_code(error.code) or "LLM_PROVIDER_ERROR",
        "message": error.message or "The turn failed.",
    }
    if error.details is not None or event is None or not wire.is_native(event):
        payload["details"] = error.details or {}
    w.write("error", payload)
    more = {} if outcome == "failed" else {"outcome": outcome}
    _write_lifecycle(w, "errored", more, event, end=True)
    w.s.turn = w.s.awaited = None


def session_ended(w: EngineWriter, event: ev.SessionEnded) -> None:
    """Fail the open turn and the messages under way; the last frame ends the stream."""
    s = w.s
    if s.ended:
        return
    s.ended = True
    error = event.error or ev.ErrorInfo(
        code="TASK_ENDED", message=f"The session has ended: {event.outcome}."
    )
    shown, s.inside = s.turn, None
    if shown is not None:
        _fail(w, error, "failed")
    own = [command_id for command_id, own in s.inputs.items() if own and command_id != shown]
    s.refused += [RefusedMessage(command_id, error) for command_id in own]
    s.inputs.clear()
    _show_refused(w)
    if w.out:
        w.out[-1] = w.out[-1]._replace(end="session")
