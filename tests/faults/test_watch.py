"""A turn whose end does not come on its stream: the backend is asked how it stands."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from adapters.registry import DIALECTS
from proxy.scripted.faults import Fault, Faults, Garbage, Stall
from tests.faults.backends import BACKENDS, Kind
from tests.faults.conversation import SAID, SCRIPT, rested
from tests.faults.playing import Run, begin, check_survives, play
from tests.pairs.backends import properties_of
from tests.support.alone import Alone
from tests.support.patience import HASTE
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("bearing")


@pytest.fixture
def bearing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bear the silence of a stream for as long as the test lasts: only the question ends it."""
    for name, dialect in list(DIALECTS.items()):
        patient = dataclasses.replace(dialect, silence_seconds=3600.0)
        monkeypatch.setitem(DIALECTS, name, patient)


each = pytest.mark.parametrize("kind", BACKENDS, ids=str)

ASKED = [kind for kind in BACKENDS if properties_of(kind.dialect).reopens]
"""Others have nothing that tells how a turn stands but the body which it is read from."""

each_asked = pytest.mark.parametrize("kind", ASKED, ids=str)


async def begin_patient(run: Run, kind: Kind, fault: Fault) -> Alone:
    """Start a Dragoman that asks no backend for its silence alone."""
    return await run(
        "memory:",
        dialect=kind.dialect,
        options={**kind.options, "faults": Faults({(kind.faulty.stream, 1): fault})},
        table={"settings": {"quiet_seconds": 86_400}},
        settings={"eve": {"form": "all"}},
        speed=HASTE,
    )


async def frames_of(run: Run, kind: Kind) -> int:
    """How many frames the turn of `SCRIPT` has."""
    house, session, _ = await play(run, kind)
    live = await house.live(session.session_id)
    return live.core.codec.frames


@each_asked
@pytest.mark.parametrize("last", [1, 2, 4])
async def test_a_turn_whose_end_was_not_shown_ends_when_the_backend_is_asked(
    run: Run, kind: Kind, last: int
) -> None:
    place = await frames_of(run, kind) - last
    conversation = await play(run, kind, {(kind.faulty.stream, 1): Stall(place)})
    assert conversation.turn.text == SAID
    assert conversation.turn.records[-1]["type"] == "session.waiting"
    await check_survives(kind, conversation)


@each
async def test_a_turn_that_is_silent_and_runs_goes_on(run: Run, kind: Kind) -> None:
    # Four minutes of silence: the backend is asked twice.
    fault = Stall(5, 2.2)
    house = await begin(run, kind, {(kind.faulty.stream, 1): fault})
    session = await house.eve().create(SCRIPT)
    turn = await session.read_turn()
    assert turn.text == SAID
    assert not turn.data("turn.failed")


@each
async def test_twenty_frames_that_cannot_be_read_fail_the_turn_and_say_why(
    run: Run, kind: Kind
) -> None:
    many = kind.faulty.unreadable * 25
    plan: dict[tuple[str, int], Fault] = {(kind.faulty.stream, 1): Garbage(3, many)}
    house = await begin(run, kind, plan, pace=0.2)
    session = await house.eve().create("script: slow 40")
    turn = await session.read_turn()
    (failed,) = turn.data("turn.failed")
    assert "20 frames in a row could not be read" in failed["message"]
    await rested(house, session)


@each_asked
async def test_where_nothing_comes_after_an_unreadable_frame_the_backend_is_asked_soon(
    run: Run, kind: Kind
) -> None:
    # The end is lost, and what comes in its place cannot be read.
    place = await frames_of(run, kind) - 2
    fault = Stall(place, data=kind.faulty.unreadable)
    house = await begin_patient(run, kind, fault)
    session = await house.eve().create(SCRIPT)
    turn = await session.read_turn()
    assert turn.text == SAID
    await rested(house, session)
    live = await house.live(session.session_id)
    assert not live.state.busy


STOPPABLE = [kind for kind in BACKENDS if properties_of(kind.dialect).interrupt == "native"]
"""Others, such as an Engine, have no route that stops a turn."""


@pytest.mark.parametrize("kind", STOPPABLE, ids=str)
async def test_an_interrupt_ends_a_turn_that_the_backend_does_not_run_any_more(
    run: Run, kind: Kind
) -> None:
    place = await frames_of(run, kind) - 2
    house = await begin_patient(run, kind, Stall(place))
    session = await house.eve().create(SCRIPT)
    reading = asyncio.create_task(session.read_turn())
    await until(lambda: SAID in str(session.log))
    live = await house.live(session.session_id)
    if live.state.busy:
        await session.cancel()
    await reading
    await rested(house, session)
    assert not live.state.busy
