"""What real servers sent: read whole, cut at every frame, and disturbed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapters.agui import wire
from adapters.agui.client import AguiClient
from adapters.model import events as ev
from adapters.model.base import CloseReason
from adapters.model.normalizer import Rule
from adapters.wire.framing.sse import SseFrame
from tests.agui.client.driver import THREAD, Session
from tests.agui.recorded import RECORDED
from tests.support.each import each
from tests.support.mutated import disturb, frames_of
from tests.test_conversation import check, sent

BODIES = sorted(RECORDED.rglob("*.sse"))
CUTS = 6
"""In how many places a body is cut: each takes as long as the log before it."""

DISTURBED = 3
SEED = 20_261_128


def name_of(body: Path) -> str:
    return str(body.relative_to(RECORDED))


def frames(body: Path) -> list[SseFrame]:
    return [one for one in frames_of(body.read_bytes(), "sse") if isinstance(one, SseFrame)]


def read(session: Session, found: Sequence[SseFrame | bytes]) -> None:
    assert session.call is not None
    for one in found:
        assert isinstance(one, SseFrame)
        session.now += 1
        session.take(session.codec.feed(session.call, one, session.now), keep=True)


def begun() -> Session:
    session = Session()
    session.ask()
    return session


def is_lawful(session: Session) -> None:
    """Check that nothing was beyond repair, and that what is sent next is what models take."""
    assert not session.normalizer.repairs[Rule.UNREPAIRED]
    said = session.codec.conversation
    assert said is not None
    calls = {call for thread in session.state.threads.values() for call in thread.calls}
    own = {
        event.native.id
        for event in session.of(ev.ToolCalled)
        if event.call_id in calls and event.native is not None
    }
    waiting = calls | {name for name in own if name is not None}
    check(sent(said.exchanges, waiting=waiting), waiting)


def stored(codec: AguiClient) -> tuple[Any, ...]:
    return json.loads(codec._s.dump()), codec._s.block


def last_of(found: Sequence[SseFrame]) -> str:
    return str(json.loads(found[-1].data)["type"]) if found else ""


@each("body", BODIES, ids=name_of)
def test_what_is_stored_after_each_frame_is_the_whole_state(body: Path) -> None:
    session = begun()
    for one in frames(body):
        read(session, [one])
        session.take([], changes=True)
        other = AguiClient({"task_id": THREAD})
        other.restore(session.snapshot, session.position)
        assert stored(other) == stored(session.codec)
        assert other._s.runs.cut is (session.codec._s.runs.current is not None)


@each("body", BODIES, ids=name_of)
def test_a_whole_body_leaves_nothing_behind(body: Path) -> None:
    found = frames(body)
    session = begun()
    read(session, found)
    session.close()
    is_lawful(session)
    assert session.settled() == {"k1": "taken"}
    state = session.codec._s
    assert state.runs.current is None
    assert session.codec.wake_at is None
    assert not state.held.events
    assert state.result is None
    assert state.block.kind is None
    if last_of(found) not in ("RUN_FINISHED", "RUN_ERROR"):
        assert session.last(ev.TurnEnded).outcome == "failed"
    assert session.state.busy is bool(session.state.interactions)


@each("body", BODIES, ids=name_of)
def test_a_restart_anywhere_cuts_the_run_and_nothing_is_sent_again(body: Path) -> None:
    found = frames(body)
    for at in sorted({len(found) * part // CUTS for part in range(CUTS)}):
        session = begun()
        read(session, found[:at])
        runs = session.codec._s.runs.current is not None
        before = session.types().count("turn.ended")
        session.restart()
        session.due()
        is_lawful(session)
        assert session.types().count("turn.ended") == before + runs
        if runs:
            assert session.last(ev.TurnEnded).outcome == "failed"
        assert session.codec.streams() == ()
        assert session.codec.take_calls() == []


@each("body", BODIES, ids=name_of)
def test_a_body_may_break_or_be_left_anywhere(body: Path) -> None:
    found = frames(body)
    for at in sorted({len(found) * part // CUTS for part in range(CUTS)}):
        for leaves in (False, True):
            session = begun()
            read(session, found[:at])
            runs = session.codec._s.runs.current is not None
            if leaves:
                session.stop()
            else:
                session.close(CloseReason.LOST)
            is_lawful(session)
            if runs:
                outcome = "interrupted" if leaves else "failed"
                assert session.last(ev.TurnEnded).outcome == outcome
                assert not session.state.busy


@each("body", BODIES, ids=name_of)
def test_a_hostile_body_does_no_harm(body: Path) -> None:
    found = frames(body)
    for number in range(DISTURBED):
        draw = random.Random(f"{SEED} {name_of(body)} {number}")
        session = begun()
        read(session, disturb(draw, found, 0.5))
        session.close(CloseReason.LOST)
        is_lawful(session)
        assert session.codec.wake_at is None
        session.restart()
        if session.state.busy:
            session.stop()
        is_lawful(session)
        session.due()
        session.ask("And now?", "k2")
        session.run({"type": "RUN_FINISHED"})
        assert session.settled()["k2"] == "taken"


SERVERS = sorted((RECORDED / "servers").rglob("*/*.sse"))
NOT_WHOLE = ("stop", "model-fails", "tool-crashes", "refused", "client-tool", "not-given")
"""Recordings in which a call or a text stays without its end, or its result came from here."""


@each("body", SERVERS, ids=name_of)
def test_what_a_real_server_shows_is_told_once_and_whole(body: Path) -> None:
    session = begun()
    read(session, frames(body))
    session.close()
    calls = session.of(ev.ToolCalled)
    assert not {one.name for one in calls} & {"unknown", *wire.ASKING_CALLS}
    said = [one.text for one in session.of(ev.TextCompleted)]
    assert len(said) == len(set(said))
    thought = [one.text for one in session.of(ev.ReasoningCompleted)]
    assert len(thought) == len(set(thought))
    if any(word in body.name for word in NOT_WHOLE):
        return
    assert all(one.input_known for one in calls)
    returned = [one.call_id for one in session.of(ev.ToolReturned)]
    assert len(returned) == len(set(returned))
    asked = {one.call_id: one.kind for one in session.of(ev.InteractionRequested)}
    for call in calls:
        assert call.call_id in returned, call
        assert (call.permission == "ask") is (asked.get(call.call_id) == "approval"), call
