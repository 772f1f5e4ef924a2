"""How an Engine's turn ends: by one terminal event, or by two in any order.

A failed turn says so twice, with `error` and with `thread_lifecycle` errored (section 9.3). The
first fixes the outcome, the end of the turn waits for the second, and for `END_HOLD_MS` at most.
"""

from __future__ import annotations

from typing import Any

from adapters.engine.client import early_results, interactions, turns
from adapters.engine.client.state import IN_ANY, EngineClientState, EngineFrame, EngineTurnEnd
from adapters.engine.client.work import unknown
from adapters.model import events as ev
from adapters.model.base import CloseReason
from adapters.wire.errors import code_of
from adapters.wire.jsonvalue import name_of, rest_of

_LIFECYCLE = IN_ANY | {"phase"}
_ERROR = IN_ANY | {"error", "message", "details"}
"""Members that the model knows."""

LAST_PHASES = ("completed", "errored")


def lifecycle(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `thread_lifecycle` (section 8.1)."""
    phase, turn_id = seen.payload.get("phase"), name_of(seen.payload.get("turn_id"))
    extra = rest_of(seen.payload, _LIFECYCLE)
    match phase:
        case "started":
            if s.turn is not None and s.ending is None and turn_id in (None, s.turn):
                return []
            out = end(s) if s.ending is not None else []
            return out + turns.begin(s, turn_id, seen.native, extra=extra)
        case "completed" if s.ending is None:
            out = turns.in_turn(s, seen.native)
            s.ending = EngineTurnEnd("completed", seen.now, native=seen.native, extra=extra)
            return out + end(s)
        case "completed" | "errored":
            # The first of `error` and `errored` has fixed the outcome (section 9.3).
            out = turns.in_turn(s, seen.native)
            _fail(s, seen, None, extra)
            return out
        case _:
            return unknown(s, seen)


def error(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `error` (section 8.2)."""
    out = turns.in_turn(s, seen.native)
    _fail(s, seen, error_of(seen.payload), rest_of(seen.payload, _ERROR))
    return out


def _fail(
    s: EngineClientState,
    seen: EngineFrame,
    error: ev.ErrorInfo | None,
    extra: dict[str, Any] | None,
) -> None:
    """Hold the end of a failed turn, and add to it what another terminal event says."""
    if s.ending is None:
        s.ending = EngineTurnEnd("failed", seen.now)
    ending = s.ending
    ending.error = ending.error or error
    ending.native = ending.native or seen.native
    if extra is not None:
        ending.extra = {**extra, **(ending.extra or {})}


def error_of(payload: dict[str, Any]) -> ev.ErrorInfo:
    """Read an `error` event (section 8.2), also one that is not as documented."""
    code, message, details = payload.get("error"), payload.get("message"), payload.get("details")
    kept = code_of(code, "error")
    if kept != code:
        details = {"error": code, "details": details}
    return ev.ErrorInfo(
        code=kept,
        message=message if isinstance(message, str) else kept,
        details=details if isinstance(details, dict) else None,
    )


def end(s: EngineClientState) -> list[ev.Event]:
    """End the turn as `ending` says; what a failure cut is left to the normalizer."""
    ending = s.ending
    assert ending is not None
    completed = ending.outcome == "completed"
    # The calls of a turn that was completed have run.
    out = s.held.let_go(s.calls if completed else ()) + early_results.let_go(s)
    if completed or (s.ask is not None and s.ask.given is not None):
        out += interactions.infer_resolved(s)
    if completed:
        out += turns.end_step(s, None, None, synthetic=True)
    elif s.block.over:
        # The Engine itself has closed this text: it is whole.
        out += turns.end_block(s)
    error = ending.error
    if not completed and error is None:
        error = ev.ErrorInfo(code="errored", message="The turn failed; the Engine gave no reason.")
    out.append(
        ev.TurnEnded(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            outcome=ending.outcome,
            error=error,
            native=ending.native,
            extra=ending.extra,
        )
    )
    turns.over(s)
    return out


def end_with_body(s: EngineClientState, reason: CloseReason) -> list[ev.Event]:
    """End the turn with its body, all of which is processed, where it has said how it ends."""
    ending = s.ending
    if ending is None or (reason is not CloseReason.ENDED and ending.error is None):
        return []
    return end(s)


def lost(s: EngineClientState, error: ev.ErrorInfo) -> list[ev.Event]:
    """Record that nothing more can be had of the session's stream."""
    out: list[ev.Event] = []
    said = s.ledger.message
    if s.turn is None and said is not None:
        if said.taken:
            # The Engine took it and never told of it: the message is shown, and what became of it.
            out += turns.begin(s, None, None, synthetic=True)
        else:
            out += s.ledger.settle(said.command_id, "unknown", error)
    if s.turn is not None:
        s.ending = EngineTurnEnd("failed", error=error)
        out += end(s)
    s.ledger.drop_message()
    return out
