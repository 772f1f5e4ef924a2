"""Stops and what is said just after them, in whatever order the ways to a backend carry them.

Anybody who stops a turn and speaks at once is told once that he was heard, and gets his answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from adapters.model import events as ev
from adapters.model.base import Call
from proxy.journal.base import Journal
from proxy.session import Session, outbound
from tests.support.dragoman import Backend, Dragoman, starting
from tests.support.eve_client import EveClient, EveSession, Style
from tests.support.herm_client import HermClient, Refused
from tests.support.houses import eves
from tests.support.roads import Roads
from tests.support.waiting import SOON_S, settled, stored, until

BACKENDS = ("herm", "t", "s1", "s2", "engine")
STOPPED = ("herm", "t", "s1", "s2")
"""Backends whose turns can be stopped."""

STYLES: tuple[Style, ...] = ("T", "S1", "S")
PACE = 0.05


class House(Dragoman):
    """A Dragoman over a scripted backend of every kind."""

    def __init__(self, journal: str | Journal, *, pace: float = PACE, speed: float = 1.0) -> None:
        backends = {
            "herm": Backend("herm", {"pace": pace}, {"create": {"agent": "herm"}}),
            "engine": Backend("engine", {"pace": pace}),
            **eves(pace=pace),
        }
        super().__init__(journal, backends, speed=speed)

    def eve(self, backend: str, style: Style = "S") -> EveClient:
        """A strict eve client."""
        return self.eve_client(backend, style=style)

    def heard(self, backend: str) -> list[str]:
        """What a backend was told in words, in order."""
        state = self.scripted[backend]
        said: list[Any] = []
        if backend == "engine":
            said = [json.loads(r.body)["message"] for r in state.received if r.route == "execute"]
        for talk in () if backend == "engine" else state.talks.values():
            if backend == "herm":
                payloads = [entry.envelope["payload"] for entry in talk.entries]
                said += [p["content"][0]["text"] for p in payloads if p["type"] == "user.message"]
                said += [p["message"] for p in payloads if p["type"] == "user.steer"]
            else:
                records = [json.loads(entry.data) for entry in talk.log]
                said += [r["data"]["message"] for r in records if r["type"] == "message.received"]
        return said


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with starting(House, tmp_path) as start:
        yield await start()


@pytest.fixture
def roads(monkeypatch: pytest.MonkeyPatch) -> Roads:
    return Roads(monkeypatch)


def stops(call: Call) -> bool:
    """Whether a call stops a turn: what stops the closed pause of an eve are answers."""
    interrupts = b"user.interrupt" in (call.request.body or b"")
    return interrupts or call.name in ("cancel", "negative")


async def shown(house: House, backend: str, session: str) -> list[str]:
    """What a session shows as said to anybody who reads it whole."""
    reader = house.eve(backend).attach(session)
    async with aclosing(reader.stream(0, follow=False)) as records:
        found = [record async for record in records]
    return [r["data"]["message"] for r in found if r["type"] == "message.received"]


async def paused(house: House, session: str) -> Session:
    """Wait until a turn waits for an answer."""
    live = await house.live(session)

    def waits() -> bool:
        turn = live.state.thread(ev.MAIN).turn
        return turn is not None and turn.paused_on == "input" and bool(live.state.interactions)

    await until(waits)
    return live


async def check(house: House, backend: str, session: str, *said: str) -> None:
    """Check that what was said was heard once and is shown once, and the last of it answered."""
    await settled(await house.live(session))
    log = await house.log(session)
    received = [
        ev.text_of(e.content) if isinstance(e, ev.MessageReceived) else e.text
        for e in log
        if isinstance(e, ev.MessageReceived | ev.GuidanceReceived)
    ]
    assert received == list(said)
    assert await shown(house, backend, session) == list(said)
    assert house.heard(backend) == list(said)
    outcomes = {e.outcome for e in log if isinstance(e, ev.InputSettled)}
    assert outcomes <= {"taken", "withdrawn"}
    answers = [e.text for e in log if isinstance(e, ev.TextCompleted) and e.status == "complete"]
    assert any(
        f"“{said[-1]}”" in answer or f"(Steered: {said[-1]})" in answer for answer in answers
    )
    assert not [e for e in log if isinstance(e, ev.Gap)]


async def asked(house: House, backend: str, script: str = "script: approve") -> EveSession:
    session = await house.eve(backend).create(script)
    await paused(house, session.session_id)
    return session


# Orders by name.


@pytest.mark.parametrize("backend", STOPPED)
async def test_a_message_waits_for_a_stop_that_is_on_its_way(
    house: House, roads: Roads, backend: str
) -> None:
    """Were it to come first, the stop would be its end."""
    session = await asked(house, backend)
    live = await house.live(session.session_id)
    gate = roads.hold(stops)
    assert await session.cancel() == "accepted"
    await gate.reached.wait()
    await session.send("hello")
    assert [row.status for row in live.queued()] == ["accepted"]
    assert [live.state.drops(request.request_id) for request in live.open_interactions()] == [True]
    gate.open()
    await check(house, backend, session.session_id, "script: approve", "hello")


@pytest.mark.parametrize("backend", STOPPED)
async def test_a_turn_that_is_over_before_its_stop_comes_does_not_pass_it_on(
    house: House, roads: Roads, backend: str
) -> None:
    session = await house.eve(backend).create("script: slow 40")
    live = await house.live(session.session_id)
    await until(lambda: live.state.thread(ev.MAIN).text is not None)
    gate = roads.hold(stops)
    assert await session.cancel() == "accepted"
    await until(lambda: stored(live) and not live.state.busy)
    await session.send("hello")
    assert len(live.queued()) == 1
    gate.open()
    await check(house, backend, session.session_id, "script: slow 40", "hello")
    log = await house.log(session.session_id)
    assert [e.outcome for e in log if isinstance(e, ev.TurnEnded)][-1] == "completed"


@pytest.mark.parametrize("backend", STOPPED)
async def test_what_would_steer_a_turn_that_is_stopped_is_said_after_it(
    house: House, roads: Roads, backend: str
) -> None:
    session = await house.eve(backend).create("script: slow 400")
    live = await house.live(session.session_id)
    await until(lambda: live.state.thread(ev.MAIN).text is not None)
    roads.hold_frames()
    assert await session.cancel() == "accepted"
    await until(lambda: stored(live) and not live.state.inputs)
    await session.send("hello")
    assert len(live.queued()) == 1
    roads.open_frames()
    await check(house, backend, session.session_id, "script: slow 400", "hello")


@pytest.mark.parametrize("backend", ["herm", "s2"])
async def test_what_would_withdraw_what_a_stopped_turn_asked_is_said_after_it(
    house: House, roads: Roads, backend: str
) -> None:
    session = await asked(house, backend)
    live = await house.live(session.session_id)
    roads.hold_frames()
    assert await session.cancel() == "accepted"
    await until(lambda: stored(live) and not live.state.inputs)
    await session.send("hello")
    assert len(live.queued()) == 1
    roads.open_frames()
    await check(house, backend, session.session_id, "script: approve", "hello")


async def test_a_message_to_a_herm_goes_when_the_interrupt_that_it_needs_has_worked(
    house: House, roads: Roads
) -> None:
    """The end of the turn is faster than the answer of what ends it, and says as much."""
    session = await asked(house, "herm")
    gate = roads.hold(stops, answer=True)
    await session.send("hello")
    await gate.reached.wait()
    await until(lambda: house.heard("herm") == ["script: approve", "hello"])
    gate.open()
    await check(house, "herm", session.session_id, "script: approve", "hello")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("backend", STOPPED)
async def test_what_is_said_after_a_stop_answers_no_question(
    house: House, roads: Roads, backend: str, style: Style
) -> None:
    session = await house.eve(backend, style).create("script: ask")
    await session.read_turn()
    await paused(house, session.session_id)
    gate = roads.hold(stops)
    assert await session.cancel() == "accepted"
    await gate.reached.wait()
    await session.send("hello")
    gate.open()
    await check(house, backend, session.session_id, "script: ask", "hello")


@pytest.mark.parametrize("backend", STOPPED)
async def test_an_answer_after_a_stop_is_not_said_to_the_agent(
    house: House, roads: Roads, backend: str
) -> None:
    session = await asked(house, backend)
    live = await house.live(session.session_id)
    (request,) = live.open_interactions()
    gate = roads.hold(stops)
    assert await session.cancel() == "accepted"
    await gate.reached.wait()
    roads.hold_frames()
    await session.respond(request.request_id, "approve")
    roads.open_frames()
    await asyncio.sleep(0)
    gate.open()
    await settled(live)
    assert house.heard(backend) == ["script: approve"]
    log = await house.log(session.session_id)
    (resolved,) = [e for e in log if isinstance(e, ev.InteractionResolved)]
    assert resolved.outcome in ("cancelled", "approved", "denied")


async def test_an_answer_goes_all_the_same_when_a_stop_shows_nothing_for_long(
    house: House, roads: Roads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "STOPPED_SECONDS", 0.05)
    session = await asked(house, "s2")
    live = await house.live(session.session_id)
    (request,) = live.open_interactions()
    roads.hold_frames()
    assert await session.cancel() == "accepted"
    await until(lambda: stored(live) and not live.state.inputs)
    gate = roads.hold(lambda call: call.name == "answer")
    await session.respond(request.request_id, "approve")
    await gate.reached.wait()
    roads.open_frames()
    await until(lambda: stored(live) and not live.state.busy)
    gate.open()
    await settled(live)
    # This eve takes it for words of the user.
    assert house.heard("s2") == ["script: approve", "Yes"]
    name, said = session.session_id, ["script: approve", "Yes"]
    async with asyncio.timeout(SOON_S):
        while await shown(house, "s2", name) != said:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("backend", ["herm", "s2"])
async def test_an_answer_that_waits_for_a_stop_goes_on_after_a_restart(
    tmp_path: Path, roads: Roads, backend: str
) -> None:
    """The stop was cut off, and came to nothing."""
    async with starting(House, tmp_path) as start:
        house = await start("sqlite", speed=20)
        session = await asked(house, backend)
        (request,) = (await house.live(session.session_id)).open_interactions()
        gate = roads.hold(stops)
        assert await session.cancel() == "accepted"
        await gate.reached.wait()
        await session.respond(request.request_id, "approve")
        inputs = (await house.live(session.session_id)).state.inputs.values()
        assert [one.kind for one in inputs] == ["interrupt", "answer"]
        await house.restart()
        live = await house.live(session.session_id)
        await settled(live)
        log = await house.log(session.session_id)
        (resolved,) = [e for e in log if isinstance(e, ev.InteractionResolved)]
        assert resolved.outcome == "approved"
        outcomes = [e.outcome for e in log if isinstance(e, ev.InputSettled)]
        # A herm's list shows that the stop was never posted, an eve's stream shows nothing of it.
        assert outcomes == ["taken", "refused" if backend == "herm" else "unknown", "taken"]


@pytest.mark.parametrize("backend", STOPPED)
async def test_two_stops_say_nothing_to_the_agent(house: House, roads: Roads, backend: str) -> None:
    session = await asked(house, backend)
    gate = roads.hold(stops)
    assert await session.cancel() == "accepted"
    await gate.reached.wait()
    assert await session.cancel() == "accepted"
    await session.send("hello")
    gate.open()
    await check(house, backend, session.session_id, "script: approve", "hello")


@pytest.mark.parametrize("backend", STOPPED)
async def test_a_stop_beside_an_answer_says_nothing_to_the_agent(
    house: House, roads: Roads, backend: str
) -> None:
    session = await asked(house, backend)
    live = await house.live(session.session_id)
    (request,) = live.open_interactions()
    gate = roads.hold(lambda call: call.name in ("answer", "events"))
    await session.respond(request.request_id, "approve")
    await gate.reached.wait()
    assert await session.cancel() == "accepted"
    gate.open()
    await settled(live)
    assert set(house.heard(backend)) == {"script: approve"}


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_message_beside_an_answer_does_not_take_it_back(
    house: House, roads: Roads, backend: str
) -> None:
    session = await asked(house, backend)
    live = await house.live(session.session_id)
    (request,) = live.open_interactions()
    gate = roads.hold(lambda call: call.name in ("answer", "events", "respond"))
    await session.respond(request.request_id, "approve")
    await gate.reached.wait()
    await session.send("hello")
    gate.open()
    await check(house, backend, session.session_id, "script: approve", "hello")
    log = await house.log(session.session_id)
    (resolved,) = [e for e in log if isinstance(e, ev.InteractionResolved)]
    assert resolved.outcome == "approved"
    assert [e.outcome for e in log if isinstance(e, ev.TurnEnded)] == ["completed", "completed"]


# Orders by chance.


async def begun(live: Session) -> None:
    await until(lambda: live.state.thread(ev.MAIN).text is not None or live.idle)


SCENES = ("approve, stop", "approve", "run, stop", "run", "ask, stop")
"""What a client does before he speaks: he lets an approval or a question wait, or a text run, and
stops that or does not."""


def _is_to_be_played(backend: str, style: Style, scene: str) -> bool:
    """A client of T lets a request stand, and so do backends that cannot withdraw it."""
    lets_stand = style == "T" or backend in ("t", "s1", "engine")
    return not lets_stand if scene == "approve" else backend in STOPPED or "stop" not in scene


PLAYED = [
    (backend, style, scene)
    for backend in BACKENDS
    for style in STYLES
    for scene in SCENES
    if _is_to_be_played(backend, style, scene)
]


@pytest.mark.parametrize(("backend", "style", "scene"), PLAYED)
async def test_an_eve_client_is_told_once_what_he_said(
    house: House, roads: Roads, backend: str, style: Style, scene: str
) -> None:
    script, _, stop = scene.partition(", ")
    words = {"run": "script: slow 10"}.get(script, f"script: {script}")
    roads.draw((backend, style, scene))
    session = await house.eve(backend, style).create(words)
    live = await house.live(session.session_id)
    await (begun(live) if script == "run" else paused(house, session.session_id))
    if style == "T":
        # Its token is that of the newest boundary.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if script == "run" else 5):
                await session.read_turn()
    if stop:
        assert await session.cancel() in ("accepted", "no_active_turn")
    await session.send("hello")
    await check(house, backend, session.session_id, words, "hello")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("script", ["approve", "slow 10"])
@pytest.mark.parametrize("backend", STOPPED)
async def test_a_herm_client_is_told_once_what_he_said(
    house: House, roads: Roads, backend: str, script: str, seed: int
) -> None:
    roads.draw((backend, script, seed))
    client = HermClient(house.http, house.face("herm", backend))
    session = (await client.create(backend))["id"]
    words = f"script: {script}"
    await client.say(session, words)
    live = await house.live(session)
    await (begun(live) if script == "slow 10" else paused(house, session))
    await client.post(session, {"type": "user.interrupt"})
    while True:
        try:
            await client.say(session, "hello")
            break
        except Refused as refused:
            if refused.status != 409:
                raise
            await asyncio.sleep(0.002)
    await check(house, backend, session, words, "hello")
    listed = [e["payload"] for e in await client.list(session) if e["type"] == "user.message"]
    assert [p["content"][0]["text"] for p in listed] == [words, "hello"]
