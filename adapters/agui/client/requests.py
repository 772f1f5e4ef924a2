"""The runs that are asked for: by a message, by answers, or once more."""

from __future__ import annotations

from typing import Any

from adapters.agui.client import interrupts, messages, posts
from adapters.agui.client.state import AguiClientState
from adapters.driving import runs
from adapters.driving.ledger import SentInput
from adapters.driving.runs import Run
from adapters.driving.transcript import written
from adapters.model import commands as cmd
from adapters.model.base import Call
from adapters.model.conversation import Conversation


def message(
    s: AguiClientState, thread: str, said: Conversation, command_id: str, command: cmd.SendMessage
) -> Call:
    """Return the run of a message; what a stop took back goes before it to those who drop a message
    that they refuse."""
    s.runs.current = run = Run(command_id, [command_id], follows_stop=s.runs.left)
    s.runs.left = False
    s.ledger.drop_message()
    s.ledger.expect(SentInput(command_id, command.KIND, command.content))
    pieces = written(messages.FORM, said.before(command.edit_of or command.retry_of))
    s.withdraws = interrupts.is_withdrawn_first(s)
    if not s.withdraws:
        pieces += posts.said(command_id, command)
    newest: dict[str, Any] = {
        "context": command.client_context,
        "options": command.options,
        "shared_state": command.shared_state,
    }
    newest = {name: value for name, value in newest.items() if value is not None}
    answers = interrupts.resume_of(s.dropped if s.withdraws else {})
    return posts.run(thread, run, said, pieces, answers, **newest)


def resume(s: AguiClientState, thread: str, said: Conversation) -> Call | None:
    """Return the run that takes all answers; None while one is missing."""
    if not runs.is_complete(s.asks):
        return None
    given = runs.answers_of(s.asks)
    # Those that are settled are told; the newest, which goes now, names the run.
    commands = [one for one in reversed(given.values()) if one in s.ledger.open]
    s.runs.current = run = Run(commands[0], commands, given)
    pieces = written(
        messages.FORM,
        said.exchanges,
        waiting=interrupts.waiting_calls(s),
        results=interrupts.results_of(s),
    )
    pieces += interrupts.asking_calls(s)
    return posts.run(thread, run, said, pieces, interrupts.resume_of(s.asks.open))


def again(s: AguiClientState, thread: str, said: Conversation, run: Run) -> Call:
    """Return the run of a message once more, or before it the one that takes back what the agent
    still asks: with that the message is not told, since some would hear it twice."""
    exchanges = said.exchanges[:-1] if s.withdraws else said.exchanges
    answers = interrupts.resume_of(s.dropped if s.withdraws else {})
    return posts.run(thread, run, said, written(messages.FORM, exchanges), answers)
