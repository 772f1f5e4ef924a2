"""A backend that says no, or nothing at all, to whatever it is asked, from some moment on.

In each state that a session may be in, whatever its person does then: two minutes later the session
is at rest, or its person is told, and fifteen seconds after a stop it is at rest.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Support
from adapters.wire.errors import DragomanError
from proxy.base.outcomes import STOP_UNCONFIRMED
from proxy.session.watch import LIMITS
from tests.faults.backends import BACKENDS, Kind
from tests.faults.inward import Inward, said
from tests.pairs.backends import properties_of

STATES = ("taken", "running", "paused", "stopping")
ANSWERS = (404, 409, 410, 422, 503, "silence", "packed")
ACTS = ("wait", "stop", "answer", "new words")

KNOWS_NOTHING = (404, 409, 410)
"""Answers of a backend that does not know what it is asked for."""

SECONDS, STOP_SECONDS = 120.0, 15.0
"""How long a session may take until it is at rest, and after a stop."""


class Outcome(NamedTuple):
    """What became of a cell: whether the session is at rest, and whether its person was told."""

    at_rest: bool
    told: bool
    words: str


async def bring(inward: Inward, state: str) -> None:
    """Say something that is answered; then bring the session into a state."""
    session, wire = inward.session, inward.wire
    await inward.begin("hello")
    assert await inward.until(lambda: not session.working, 30)
    match state:
        case "taken":
            wire.mute = True
            await inward.submit(said("hello again"))
            assert await inward.until(lambda: not session.sending, 5)
            assert session.working
        case "running" | "stopping":
            await inward.submit(said("script: slow 40"))
            assert await inward.until(lambda: _says(inward), 30)
            wire.mute = True
        case "paused":
            await inward.submit(said("script: approve"))
            assert await inward.until(lambda: session.state.status == "paused", 30)
            wire.mute = True
    if state == "stopping":
        await inward.submit(cmd.Interrupt())
        await inward.settle()


def _says(inward: Inward) -> bool:
    return inward.session.state.busy and isinstance(inward.events[-1], ev.TextDelta)


async def act(inward: Inward, what: str) -> None:
    """Do what a person does; raises what it is refused with."""
    session = inward.session
    match what:
        case "stop":
            await inward.submit(cmd.Interrupt())
        case "answer":
            asked = session.open_interactions()
            name = asked[0].request_id if asked else "nothing"
            await inward.submit(cmd.AnswerInteraction(request_id=name, decision="allow"))
        case "new words":
            steers = session.core.codec.abilities["steer"].support is Support.NATIVE
            await inward.submit(said("and now?", "withdraw" if steers else "queue"))


async def play(kind: Kind, state: str, answer: int | str, what: str) -> Outcome:
    """Play a cell."""
    async with Inward(kind) as inward:
        session, wire = inward.session, inward.wire
        await bring(inward, state)
        wire.says, wire.mute = answer, True
        before = len(inward.events)
        refused: DragomanError | None = None
        try:
            await act(inward, what)
        except DragomanError as error:
            refused = error
        begun = inward.clock.now()
        if state == "stopping" or (what == "stop" and refused is None):
            ended = await inward.until(lambda: not session.state.busy, STOP_SECONDS)
            if not ended:
                words = f"{session.state.status} {STOP_SECONDS:.0f} s after a stop"
                return Outcome(False, False, words)
            # What was said meanwhile is another turn.
            seconds = SECONDS if what == "new words" else STOP_SECONDS
        else:
            seconds = SECONDS
        at_rest = await inward.until(lambda: rests(inward), seconds)
        took = (inward.clock.now() - begun) / 1000
        told = refused is not None or any(tells(event) for event in inward.events[before:])
        status = "at rest" if at_rest else session.state.status
        words = f"{status} after {took:.0f} s" + " and told" * told
        return Outcome(at_rest, told, words)


def rests(inward: Inward) -> bool:
    session = inward.session
    return not session.working and not session.state.interactions and not session.state.inputs


def tells(event: ev.Event) -> bool:
    """Whether an event tells a person that something went wrong."""
    if isinstance(event, ev.InputSettled):
        return event.outcome in ("refused", "unknown")
    if isinstance(event, ev.TurnEnded):
        return event.outcome == "failed"
    return isinstance(event, ev.ErrorReported)


def can_be_stopped(kind: Kind) -> bool:
    return properties_of(kind.dialect).interrupt == "native"


def reopens(kind: Kind) -> bool:
    return properties_of(kind.dialect).reopens


def is_right(kind: Kind, state: str, answer: int | str, what: str, outcome: Outcome) -> bool:
    """Say whether that may become of a cell."""
    if outcome.at_rest:
        return True
    if not reopens(kind):
        return is_open(state, what, outcome)
    if what == "stop" and not can_be_stopped(kind):
        # Nothing stops such a backend, and so it is refused.
        what = "wait"
    waits = what == "wait" or (what == "new words" and answer == "silence")
    if waits and state == "paused":
        # Nobody has asked the backend, and a person may take hours.
        return True
    if waits and state == "running" and answer == "silence":
        # A stream that is open and says nothing has not failed: a tool may take an hour.
        return True
    if what == "stop":
        return False
    # A 409 to words may be a backend that is busy.
    busy = answer == 409 and what == "new words" and state == "stopping"
    return outcome.told and (busy or answer not in KNOWS_NOTHING)


def is_open(state: str, what: str, outcome: Outcome) -> bool:
    """Say whether a cell may be open with a backend that cannot be asked: no answer of it says that
    an open body, or a pause, is over."""
    if what == "stop":
        return False
    # Words are queued behind the turn.
    waits = state in ("running", "paused") and what in ("wait", "new words")
    return waits or outcome.told


def cells(kind: Kind) -> list[tuple[str, int | str, str]]:
    states = STATES if can_be_stopped(kind) else STATES[:-1]
    return [(state, answer, what) for state in states for answer in ANSWERS for what in ACTS]


@pytest.mark.parametrize("kind", BACKENDS, ids=str)
async def test_what_a_backend_does_not_know_ends_or_is_told(kind: Kind) -> None:
    wrong = []
    for state, answer, what in cells(kind):
        outcome = await play(kind, state, answer, what)
        if not is_right(kind, state, answer, what, outcome):
            wrong.append(f"{state}, {answer}, {what}: {outcome.words}")
    assert not wrong, "\n".join([f"{kind}: {len(wrong)} cells are wrong", *wrong])


HERM, ENGINE = Kind("herm"), Kind("engine")


async def refuse_answers(inward: Inward, status: int) -> None:
    """Bring the session into a pause whose answer is refused by a backend that answers else."""
    await bring(inward, "paused")
    inward.wire.mute = False
    inward.wire.says, inward.wire.only = status, frozenset({"events", "respond"})
    await act(inward, "answer")


def resolved(inward: Inward) -> list[str]:
    return [e.outcome for e in inward.events if isinstance(e, ev.InteractionResolved)]


@pytest.mark.parametrize("status", [404, 409, 410])
async def test_a_request_that_a_herm_has_forgotten_is_resolved_and_its_turn_ends(
    status: int,
) -> None:
    async with Inward(HERM) as inward:
        await refuse_answers(inward, status)
        assert await inward.until(lambda: rests(inward), STOP_SECONDS)
        assert resolved(inward) == ["unknown"]
        ended = [event for event in inward.events if isinstance(event, ev.TurnEnded)]
        assert ended[-1].outcome == "failed"


async def test_a_request_that_an_engine_lists_can_be_answered_again() -> None:
    async with Inward(ENGINE) as inward:
        await refuse_answers(inward, 404)
        assert await inward.until(lambda: not inward.session.state.inputs, STOP_SECONDS)
        assert (inward.session.state.status, resolved(inward)) == ("paused", [])
        inward.wire.says = None
        await act(inward, "answer")
        assert await inward.until(lambda: rests(inward), STOP_SECONDS)
        assert resolved(inward) == ["approved"]


@pytest.mark.parametrize("kind", BACKENDS, ids=str)
async def test_an_answer_that_is_refused_for_what_it_is_can_be_given_again(kind: Kind) -> None:
    async with Inward(kind) as inward:
        await bring(inward, "paused")
        inward.wire.mute, inward.wire.says = False, 422
        inward.wire.only = frozenset({"events", "respond", "answer", "message", "run", "send"})
        await act(inward, "answer")
        assert await inward.until(lambda: not inward.session.state.inputs, STOP_SECONDS)
        inward.wire.says = None
        await act(inward, "answer")
        assert await inward.until(lambda: rests(inward), STOP_SECONDS)
        assert resolved(inward) == ["approved"]


ASKED_TO_STOP = [kind for kind in BACKENDS if can_be_stopped(kind) and reopens(kind)]
"""Others stop when their body is left, which nobody has to confirm."""


@pytest.mark.parametrize("kind", ASKED_TO_STOP, ids=str)
async def test_a_turn_that_was_ended_here_is_over_though_its_backend_goes_on(kind: Kind) -> None:
    async with Inward(kind) as inward:
        await bring(inward, "running")
        inward.wire.says = "silence"
        begun = inward.clock.now()
        await inward.submit(cmd.Interrupt())
        assert await inward.until(lambda: rests(inward), STOP_SECONDS)
        assert inward.clock.now() - begun == LIMITS.stop_ends
        ended = [event for event in inward.events if isinstance(event, ev.TurnEnded)]
        assert (ended[-1].outcome, ended[-1].synthetic) == ("interrupted", True)
        errors = [e.code for e in inward.events if isinstance(e, ev.ErrorReported)]
        assert STOP_UNCONFIRMED in errors
        # It comes back, and has never heard of the stop.
        inward.wire.says, inward.wire.mute = None, False
        await inward.submit(said("hello again"))
        assert await inward.until(lambda: rests(inward), 600)
        ended = [event for event in inward.events if isinstance(event, ev.TurnEnded)]
        assert len({event.turn_id for event in ended}) == len(ended)
        texts = [event.text for event in inward.events if isinstance(event, ev.TextCompleted)]
        assert "hello again" in texts[-1]


async def test_an_answer_behind_a_stop_that_came_to_nothing_lets_the_turn_go_on() -> None:
    async with Inward(Kind("eve", "S2")) as inward:
        await bring(inward, "paused")
        inward.wire.mute, inward.wire.says = False, 422
        inward.wire.only = frozenset({"cancel"})
        await inward.submit(cmd.Interrupt())
        assert await inward.until(lambda: not inward.session.state.inputs, 5)
        assert inward.session.state.status == "paused"
        inward.wire.says, inward.wire.mute = None, True
        await act(inward, "answer")
        assert not await inward.until(lambda: rests(inward), 3 * LIMITS.stop_ends / 1000)
        inward.wire.mute = False
        assert await inward.until(lambda: rests(inward), 600)
        assert resolved(inward) == ["approved"]
        errors = [e.code for e in inward.events if isinstance(e, ev.ErrorReported)]
        assert STOP_UNCONFIRMED not in errors
