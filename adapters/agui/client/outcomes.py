"""What becomes of a run besides its own end: it was refused, or left; and what it leaves out."""

from __future__ import annotations

from adapters.agui.client import interrupts, turns
from adapters.agui.client.state import AguiClientState
from adapters.driving import runs
from adapters.driving.runs import Run
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.conversation import Conversation


def refused(s: AguiClientState, run: Run, error: ev.ErrorInfo) -> list[ev.Event]:
    """Record that a run, which is over, was not begun."""
    if s.turn is not None and not run.answers:
        # It was asked for once more: the message was taken.
        return turns.cut(s, error)
    if run.answers:
        return runs.refuse_answers(run, s.asks, s.ledger, s.turn, error)
    return s.ledger.settle(run.commands[0], "refused", error)


def stopped(s: AguiClientState) -> list[ev.Event]:
    """Record that the body was left on purpose, or that there was none to leave."""
    stops, s.runs.stops = s.runs.stops, []
    out: list[ev.Event] = [raw.settled(name, "taken") for name in stops]
    run = s.runs.current
    if run is None and s.turn is None:
        return out
    s.runs.left = run is not None
    interrupts.drop(s)
    for command_id in () if run is None else run.commands:
        out += s.ledger.settle(command_id, "taken")
    out += turns.in_turn(s, None)
    s.runs.take()
    return out + turns.end(s, "interrupted", None, None)


def left_out(s: AguiClientState, said: Conversation) -> list[ev.Event]:
    """Say, once, that the agent does not hear the begin of the conversation any more."""
    left = said.left_out
    if not left or s.left_out:
        return []
    s.left_out = left
    text = f"The conversation is too long: its oldest part, {left} messages, is not sent again."
    return [ev.Notice(thread_id=ev.MAIN, level="warning", kind="left_out", text=text)]
