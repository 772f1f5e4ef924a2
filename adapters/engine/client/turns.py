"""Turns, steps and blocks of an Engine: what opens them, and what is inferred in silence.

The Engine names turns and nothing below. A model call begins with its first sign of work and ends
with `usage`; a block ends when something else begins.
"""

from __future__ import annotations

from typing import Any

from adapters.driving.ledger import SentInput
from adapters.engine.client.state import EngineBlock, EngineClientState
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.raw import BlockEnded


def expect(s: EngineClientState, command_id: str, command: cmd.SendMessage) -> None:
    """Remember a message; one at a time, since a turn does not say whose it is."""
    s.ledger.drop_message()
    s.ledger.expect(SentInput(command_id, command.KIND, command.content))


def in_turn(s: EngineClientState, native: ev.NativeRef) -> list[ev.Event]:
    """Begin the turn where the Engine left out `started`."""
    return [] if s.turn is not None else begin(s, None, native, synthetic=True)


def begin(
    s: EngineClientState,
    turn_id: str | None,
    native: ev.NativeRef | None,
    *,
    synthetic: bool = False,
    extra: dict[str, Any] | None = None,
) -> list[ev.Event]:
    """Begin a turn: that of the message that is on its way, where there is one."""
    s.turns += 1
    s.turn = turn_id or f"turn-{s.turns}"
    s.step, s.steps, s.calls_in_step, s.ending = None, 0, False, None
    s.calls.clear()
    s.early, s.alone = [], []
    s.asks.clear()
    s.block.kind, s.block.over = None, False
    message = s.ledger.message
    out: list[ev.Event] = []
    if message is not None:
        # After a crash the turn itself is the evidence.
        out += s.ledger.settle(message.command_id, "taken")
    out.append(
        ev.TurnStarted(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            cause="message" if message is not None else "background",
            partial=synthetic,
            native=native,
            synthetic=synthetic,
            extra=extra,
        )
    )
    if message is not None:
        out += s.ledger.receive(message.command_id, s.turn)
    return out


def over(s: EngineClientState) -> None:
    """Forget what was open in the turn that has ended."""
    s.last_turn, s.turn, s.step, s.ending = s.turn, None, None, None
    s.calls.clear()
    s.early, s.alone = [], []
    s.asks.clear()
    s.block.kind, s.block.over = None, False


def in_step(s: EngineClientState, native: ev.NativeRef) -> list[ev.Event]:
    """Begin the model call whose work shows."""
    out = in_turn(s, native)
    if s.step is None:
        s.step = s.steps
        s.steps += 1
        s.messages += 1
        s.calls_in_step = False
        s.block.index = -1
        out.append(
            ev.StepStarted(
                thread_id=ev.MAIN, turn_id=s.turn, step_index=s.step, native=native, synthetic=True
            )
        )
    return out


def end_step(
    s: EngineClientState, native: ev.NativeRef | None, usage: ev.Usage | None, *, synthetic: bool
) -> list[ev.Event]:
    """End the model call, and its block."""
    finish = "tool-calls" if s.calls_in_step else "stop"
    out = end_block(s, finish)
    if s.step is not None:
        out.append(
            ev.StepEnded(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                step_index=s.step,
                finish_reason=finish,
                usage=usage,
                native=native,
                synthetic=synthetic,
            )
        )
        s.step = None
    return out


def end_block(s: EngineClientState, finish_reason: str = "stop") -> list[ev.Event]:
    """End the open block: its text is what was streamed."""
    block: EngineBlock = s.block
    kind = block.kind
    if kind is None:
        return []
    block.kind, block.over = None, False
    return [
        BlockEnded(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            block=kind,
            finish_reason=finish_reason if kind == "text" else None,
        )
    ]
