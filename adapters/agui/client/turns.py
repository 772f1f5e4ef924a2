"""Turns, steps and blocks: a turn goes from a message to the run that ends without interrupts.

A run does not tell model calls apart, and `STEP_STARTED` names a phase of the application's: so a
model call begins with its first sign of work, and ends when a tool has returned.
"""

from __future__ import annotations

from typing import Any

from adapters.agui.client.state import AguiClientState, AguiInterrupt, HeldResult
from adapters.driving import runs
from adapters.model import events as ev
from adapters.model.raw import BlockEnded
from adapters.wire.errors import cut as cut_text


def in_turn(s: AguiClientState, native: ev.NativeRef | None) -> list[ev.Event]:
    """Begin the turn of the run that is under way, unless one is open."""
    if s.turn is not None:
        return []
    s.turns += 1
    run = s.runs.current
    s.turn = run.run_id if run is not None and run.run_id else f"turn-{s.turns}"
    s.step, s.steps, s.calls_in_step = None, 0, False
    s.calls.clear()
    message = s.ledger.message
    out: list[ev.Event] = []
    if message is not None:
        out += s.ledger.settle(message.command_id, "taken")
    out.append(
        ev.TurnStarted(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            cause="message" if message is not None else "background",
            native=native,
            synthetic=native is None,
        )
    )
    if message is not None:
        out += s.ledger.receive(message.command_id, s.turn)
    return out


def works(s: AguiClientState, native: ev.NativeRef | None) -> list[ev.Event]:
    """Take work of a run: answers have arrived, its turn is open. What the application gave as the
    result of a call is told by no event of the agent's."""
    given = {name: asked for name, asked in s.asks.open.items() if asked.form == "tool"}
    out = runs.show_work(s.runs, s.asks, s.ledger, s.turn, native)
    out += in_turn(s, native)
    for call_id, asked in given.items():
        if call_id not in s.asks.open and s.calls.pop(call_id, None) is not None:
            out.append(_given_back(s, call_id, asked, native))
    return out


def _given_back(
    s: AguiClientState, call_id: str, asked: AguiInterrupt, native: ev.NativeRef | None
) -> ev.Event:
    s.returned.append(call_id)
    reply = asked.reply or {}
    failed = "error" in reply
    words = str(reply.get("content", ""))
    return ev.ToolReturned(
        thread_id=ev.MAIN,
        turn_id=s.turn,
        call_id=call_id,
        content=(ev.Text(text=words),),
        is_error=failed,
        error=ev.ErrorInfo(code="tool_failed", message=cut_text(words)) if failed else None,
        status="failed" if failed else "completed",
        native=native,
        synthetic=True,
    )


def in_step(s: AguiClientState, native: ev.NativeRef) -> list[ev.Event]:
    """Begin the model call whose work shows."""
    out = works(s, native)
    if s.step is not None:
        return out
    s.step, s.steps, s.calls_in_step = s.steps, s.steps + 1, False
    s.thought, s.again = [], ""
    out.append(
        ev.StepStarted(
            thread_id=ev.MAIN, turn_id=s.turn, step_index=s.step, native=native, synthetic=True
        )
    )
    return out


def end_block(
    s: AguiClientState,
    finish: str = "stop",
    *,
    native: ev.NativeRef | None = None,
    extra: dict[str, Any] | None = None,
) -> list[ev.Event]:
    """End the open block: its text is what was streamed."""
    block = s.block
    kind = block.kind
    if kind is None:
        return []
    block.kind, block.message, block.closed = None, "", False
    return [
        BlockEnded(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            block=kind,
            finish_reason=finish if kind == "text" else None,
            native=native,
            extra=extra,
        )
    ]


def end_step(s: AguiClientState, native: ev.NativeRef | None) -> list[ev.Event]:
    """End the model call, and its block."""
    finish = "tool-calls" if s.calls_in_step else "stop"
    out = end_block(s, finish, native=native)
    if s.step is not None:
        step, s.step = s.step, None
        out.append(
            ev.StepEnded(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                step_index=step,
                finish_reason=finish,
                native=native,
                synthetic=True,
            )
        )
    return out


def let_result_go(s: AguiClientState, **said: Any) -> list[ev.Event]:
    """Return the result that waits, with what else was said of it."""
    held: HeldResult | None = s.result
    s.result = None
    if held is None:
        return []
    event = held.event
    if "extra" in said:
        said["extra"] = {**(event.extra or {}), **said["extra"]}
    return [event.model_copy(update=said) if said else event]


def end(
    s: AguiClientState,
    outcome: Any,
    error: ev.ErrorInfo | None,
    native: ev.NativeRef | None,
    extra: dict[str, Any] | None = None,
) -> list[ev.Event]:
    """End the turn; what a failure cut is left to the normalizer."""
    completed = outcome == "completed"
    # The calls of a turn that was completed have run.
    out = s.held.let_go(s.calls if completed else ())
    out += let_result_go(s)
    if completed:
        out += end_step(s, native)
    out.append(
        ev.TurnEnded(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            outcome=outcome,
            error=error,
            native=native,
            synthetic=native is None,
            extra=extra,
        )
    )
    s.turn, s.step = None, None
    s.calls.clear()
    s.asks.clear()
    s.runs.kept = []
    s.withdraws = False
    s.legacy, s.chunk, s.foreign, s.streams, s.returned = [], "", "", False, []
    s.block.kind, s.block.message, s.block.closed = None, "", False
    return out


def cut(s: AguiClientState, error: ev.ErrorInfo) -> list[ev.Event]:
    """Record that the run is over without its end: nobody can ask for the rest."""
    run = s.runs.take()
    out: list[ev.Event] = []
    if run is not None and not run.working:
        for command_id in run.answers.values():
            out += s.ledger.settle(command_id, "unknown", error)
    if s.turn is None and run is None and s.ledger.message is None:
        return out
    out += in_turn(s, None)
    return out + end(s, "failed", error, None)
