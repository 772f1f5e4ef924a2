"""Runs of a backend that answers each request with one run, whose body is all that tells of it.

    asked --body begins--> open --work--> working --end, cut or left--> (forgotten)
      |                     |
      +-------refused-------+

Nobody can ask for the rest of such a run, nor whether it goes on: to leave the body is the only
stop, a body that breaks is a turn that has failed, and what may have been sent is never sent again,
since a tool would run twice.

A run may end with several requests, and takes the answers to all of them at once: those that are
here already are kept. A frontend that shows one request at a time would wait for ever for the
next one, so a request whose answer is kept is over for the frontends.

The functions below do what concerns several parts of a codec's state, which they are given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from adapters.driving.asks import InteractionAnswer, InteractionLedger, PendingInteraction
from adapters.driving.ledger import InputLedger, SentInput
from adapters.driving.part import NOT_STORED, CodecPart
from adapters.model import events as ev

BROKEN = (
    "The connection to the agent broke before the end of its run. It cannot be asked for the rest; "
    "what it did meanwhile is not known."
)
INCOMPLETE = (
    "The agent ended its answer without saying how the run ended. It cannot be asked for the rest."
)
RESTARTED = (
    "Dragoman was stopped while the agent was at work. The agent cannot be asked for the rest of "
    "the run; what it did meanwhile is not known."
)
"""Why a run is cut, for people."""


@dataclasses.dataclass(slots=True)
class Run:
    """A run that was asked for, by its commands. `answers` are the commands that answer requests,
    by request. `working` says that it has shown work, and `follows_stop` that the one before was
    left, with which the backend may be busy still."""

    run_id: str
    commands: list[str] = dataclasses.field(default_factory=list)
    answers: dict[str, str] = dataclasses.field(default_factory=dict)
    working: bool = False
    follows_stop: bool = False


@dataclasses.dataclass(slots=True)
class GatheredRequest(PendingInteraction):
    """A request that a run ended with. `reply` is its answer as the backend is to have it, which
    waits for the others'; `told` says that it is over for the frontends."""

    reply: dict[str, Any] | None = None
    told: bool = False


@dataclasses.dataclass(slots=True)
class BackendRuns(CodecPart):
    """The run that is under way, and what of a person waits for it. `stops` are the interrupts on
    their way, `kept` the requests whose answers are kept and not yet told so; `cut` says that a
    restart has cut the run, which is to be told, `left` that the run before was left. `busy` is how
    many milliseconds after its body a run that the backend has not begun is asked for once more,
    and `again_at` when that is."""

    current: Run | None = None
    stops: list[str] = dataclasses.field(default_factory=list)
    kept: list[str] = dataclasses.field(default_factory=list)
    cut: Annotated[bool, NOT_STORED] = False
    left: Annotated[bool, NOT_STORED] = False
    busy: Annotated[int | None, NOT_STORED] = None
    again_at: Annotated[int | None, NOT_STORED] = None

    @property
    def due(self) -> int | None:
        return 0 if self.cut or self.kept else self.again_at

    def take(self) -> Run | None:
        """Return the run, which is over."""
        run, self.current = self.current, None
        self.busy, self.again_at = None, None
        return run


Q = TypeVar("Q", bound=GatheredRequest)


def gather(
    asks: InteractionLedger[Q],
    ledger: InputLedger[SentInput],
    request_id: str,
    given: InteractionAnswer,
    reply: dict[str, Any],
) -> None:
    """Keep an answer until all that is asked has one."""
    assert given.command_id is not None
    ledger.expect(SentInput(given.command_id, "answer"))
    asks.give(request_id, given)
    asks.open[request_id].reply = reply


def is_complete(asks: InteractionLedger[Q]) -> bool:
    """Say whether all that is asked has its answer."""
    return bool(asks.open) and all(ask.reply is not None for ask in asks.open.values())


def answers_of(asks: InteractionLedger[Q]) -> dict[str, str]:
    """Return the commands that answer what is asked, by request."""
    given = {name: ask.given for name, ask in asks.open.items() if ask.given is not None}
    return {name: one.command_id for name, one in given.items() if one.command_id is not None}


def tell_kept(
    runs: BackendRuns,
    asks: InteractionLedger[Q],
    ledger: InputLedger[SentInput],
    turn_id: str | None,
) -> list[ev.Event]:
    """Say of answers that are kept that they are, and how many are still waited for."""
    out: list[ev.Event] = []
    kept, runs.kept = runs.kept, []
    for request_id in kept:
        ask = asks.open.get(request_id)
        if ask is None or ask.given is None or ask.told:
            continue
        ask.told = True
        given: InteractionAnswer = ask.given
        if given.command_id is not None:
            out += ledger.settle(given.command_id, "taken")
        out.append(
            ev.InteractionResolved(
                thread_id=ask.thread_id,
                turn_id=turn_id,
                request_id=request_id,
                outcome=given.outcome,
                answer=given.answer,
                scope=given.scope,
                synthetic=True,
            )
        )
    left = sum(ask.reply is None for ask in asks.open.values())
    if out and left:
        text = f"The agent goes on when {left} more of {len(asks.open)} requests are answered."
        out.append(ev.Notice(thread_id=ev.MAIN, text=text, kind="answers_kept", synthetic=True))
    return out


def show_work(
    runs: BackendRuns,
    asks: InteractionLedger[Q],
    ledger: InputLedger[SentInput],
    turn_id: str | None,
    native: ev.NativeRef | None,
) -> list[ev.Event]:
    """Take work of a run as the evidence that the answers arrived which it goes on with."""
    run = runs.current
    if run is None or run.working:
        return []
    run.working = True
    out: list[ev.Event] = []
    for request_id, command_id in run.answers.items():
        out += ledger.settle(command_id, "taken")
        told = request_id not in asks.open or asks.open[request_id].told
        found = asks.resolve(request_id, turn_id, native=native)
        if found is not None and not told:
            out.append(found.event)
    if run.answers:
        out.append(ev.TurnResumed(thread_id=ev.MAIN, turn_id=turn_id, native=native))
    return out


def refuse_answers(
    run: Run,
    asks: InteractionLedger[Q],
    ledger: InputLedger[SentInput],
    turn_id: str | None,
    error: ev.ErrorInfo,
) -> list[ev.Event]:
    """Record that the answers of a run did not count: they may be given again. What is over for the
    frontends is not asked again: its answer goes with the others' next ones."""
    out: list[ev.Event] = []
    for request_id, command_id in run.answers.items():
        ask = asks.open.get(request_id)
        if ask is not None and ask.told:
            continue
        out += ledger.settle(command_id, "refused", error)
        out += asks.release(command_id, turn_id)
        if ask is not None:
            ask.reply = None
    return out


def forget(
    asks: InteractionLedger[Q], ledger: InputLedger[SentInput], command_ids: Sequence[str]
) -> list[ev.Event]:
    """Expect nothing more of commands: what they answered has no answer."""
    out: list[ev.Event] = []
    for command_id in command_ids:
        ledger.drop(command_id)
        if (request_id := asks.given_by(command_id)) is not None:
            asks.open[request_id].reply = None
        out += asks.release(command_id)
    return out
