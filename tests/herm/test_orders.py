"""A message that withdraws what is asked, in every order in which a network may carry its parts.

Herm's answers, its frames and our requests go over connections of their own. The model of a Herm
here is a few lines, so that all orders can be played; `tests/server/test_orders.py` plays some of
them with whole sessions.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from multidict import CIMultiDict

from adapters.herm.client import HermClient
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, Response
from adapters.wire.errors import DragomanError
from tests.herm.test_client import NOW, Driver, said, text
from tests.support.herm_client import Envelope

END = {"stop_reason": {"type": "end_turn"}}
WORDS = "Never mind"


@dataclasses.dataclass
class Forms:
    """What Herm's page leaves open, and which answer is lost on its way."""

    echoes: bool = False
    answers: bool = True
    refuses: bool = False
    loses: str | None = None
    crashes: bool = False


class World:
    """A codec, a Herm whose turn waits for an approval, and what is on its way between them."""

    def __init__(self, forms: Forms, *, stopped: bool) -> None:
        self.forms = forms
        self.driver = Driver()
        self.driver.open()
        self.entries: list[Envelope] = []
        self.busy = True
        self.stopping = False
        self.interrupted: list[bool] = []
        self.frames: deque[Envelope] = deque()
        self.requests: list[Call] = []
        self.answers: list[tuple[Call, int, Any]] = []
        self.now = NOW
        use = {"id": "toolu_1", "tool": "bash", "input": {}, "requires_action": True}
        self.driver.feed("agent.tool_use", use)
        waits = {"type": "requires_action", "event_ids": ["toolu_1"]}
        self.driver.feed("session.status_idle", {"stop_reason": waits})
        if stopped:
            # Somebody has stopped the turn, and its end is still on its way.
            stop = self.driver.submit("k2", cmd.Interrupt())
            self.driver.answer(stop, 202, {"data": [self.take({"type": "user.interrupt"})]})
        self.requests.append(self.driver.submit("k3", said(WORDS, "withdraw")))
        self.crashed = False
        self.stored = self.place()

    # The Herm.

    def write(self, type_: str, payload: Any = None) -> Envelope:
        envelope = self.driver.envelope(type_, payload)
        self.entries.append(envelope)
        if self.forms.echoes or not type_.startswith("user."):
            self.frames.append(envelope)
        return envelope

    def take(self, payload: Any) -> Envelope:
        envelope = self.write(payload["type"], {k: v for k, v in payload.items() if k != "type"})
        if payload["type"] == "user.message":
            self.busy = True
            self.interrupted.append(False)
            self.write("session.status_running")
        elif self.busy:
            self.stopping = True
            if self.interrupted:
                self.interrupted[-1] = True
        return envelope

    def finish(self) -> None:
        """The turn is over."""
        self.busy = self.stopping = False
        self.write("session.status_idle", END)

    def arrive(self, place: int) -> None:
        """A request is there."""
        call = self.requests.pop(place)
        if call.request.method == "GET":
            if call.request.path.endswith("/events"):
                listed = [e for e in self.entries if not e["payload"].get("delta")]
                self.answers.append((call, 200, {"data": listed, "nextCursor": None}))
            else:
                shown = {"id": "session_7c", "status": "running" if self.busy else "idle"}
                self.answers.append((call, 200, shown))
            return
        assert call.request.body is not None
        (payload,) = json.loads(call.request.body)["events"]
        type_ = payload["type"]
        over = type_ == "user.interrupt" and self.forms.refuses and not self.busy
        if over or (type_ == "user.message" and self.busy):
            self.answers.append((call, 409, {"code": "conflict", "message": "No."}))
            return
        body = {"data": [self.take(payload)]}
        status = 0 if self.forms.loses == type_ else 202
        self.answers.append((call, status, body if self.forms.answers else None))

    # What may happen next.

    def answer(self, place: int) -> None:
        """An answer is here, or it is known that none comes."""
        call, status, body = self.answers.pop(place)
        if status:
            data = b"" if body is None else json.dumps(body).encode()
            response = Response(status, CIMultiDict(), data)
            self.driver.take(self.driver.codec.respond(call, response, self.now))
        else:
            lost = DragomanError("Cut off.")
            self.driver.take(self.driver.codec.failed(call, lost, sent=True, now=self.now))

    def frame(self) -> None:
        """The next frame of the stream is here."""
        self.driver.feed_envelope(self.frames.popleft())

    def wait(self) -> None:
        """Nothing is on its way, and the codec waits for a time."""
        at = self.driver.codec.wake_at
        assert at is not None
        self.now = max(self.now, at)
        self.driver.take(self.driver.codec.tick(self.now))

    def place(self) -> tuple[bytes, bytes]:
        return self.driver.codec.snapshot(), self.driver.codec.position

    def crash(self) -> None:
        """The proxy goes down and comes up: what is not at Herm yet is lost, and so are answers."""
        self.crashed = True
        self.requests, self.answers = [], []
        codec = self.driver.codec = HermClient({"agent": "agent_K4", "task_id": "session_7c"})
        codec.restore(*self.stored)
        if "k3" in self.driver.normalizer.state.inputs:
            look = codec.recover("k3", said(WORDS, "withdraw"))
            self.requests += [] if look is None else [look]
        (stream,) = codec.streams()
        self.driver.take(codec.opened(stream, Response(200), self.now))
        ids = [entry["id"] for entry in self.entries]
        last = stream.request.headers.get("Last-Event-ID")
        missed = self.entries[ids.index(last) + 1 :] if last in ids else self.entries
        self.frames = deque(e for e in missed if self.forms.echoes or "user." not in e["type"])

    def moves(self) -> Iterator[Callable[[World], None]]:
        """Yield what may happen next; time passes where nothing else does."""
        for place in range(len(self.requests)):
            yield functools.partial(World.arrive, place=place)
        for place in range(len(self.answers)):
            yield functools.partial(World.answer, place=place)
        if self.frames:
            yield World.frame
        if self.stopping:
            yield World.finish
        if self.forms.crashes and not self.crashed:
            yield World.crash
        if self.requests or self.answers or self.frames or self.stopping:
            return
        if self.interrupted and self.busy:
            yield World.finish
        elif self.driver.codec.wake_at is not None:
            yield World.wait

    def play(self, move: Callable[[World], None]) -> World:
        """Return the world in which something has happened."""
        world = copy.deepcopy(self)
        before = len(world.driver.log)
        move(world)
        calls = world.driver.codec.take_calls()
        world.requests += calls
        if len(world.driver.log) > before or any(call.command_id for call in calls):
            # Both are written to the journal, and the state of the codec with them.
            world.stored = world.place()
        return world

    def key(self) -> int:
        """Return what tells a world from others that are reached in another order."""
        codec = self.driver.codec
        lists, numbers = codec._catching_up, codec._numbers
        notes = lists._buffer, lists.fill, numbers.catching_up, codec._texts._joined, numbers.holes
        there = self.entries, self.busy, self.stopping, self.interrupted
        way = self.requests, self.answers, self.frames
        told = len(self.driver.log), self.crashed, self.stored
        return hash(repr((self.place(), codec.wake_at, notes, there, way, told)))


def outcomes(world: World, known: set[int] | None = None) -> Iterator[World]:
    """Yield every world that comes to rest."""
    known = set() if known is None else known
    if world.key() in known:
        return
    known.add(world.key())
    moves = list(world.moves())
    if not moves:
        yield world
    for move in moves:
        yield from outcomes(world.play(move), known)


def check(world: World) -> str:
    """Check what became of the message, and return how it was settled."""
    driver = world.driver
    taken = [e["payload"]["content"] for e in world.entries if e["type"] == "user.message"]
    told = [e for e in driver.of(ev.MessageReceived) if e.command_id != "k1"]
    outcome: str
    (outcome,) = [e.outcome for e in driver.of(ev.InputSettled) if e.command_id == "k3"]
    if outcome == "taken":
        assert taken == [text(WORDS)]
        assert [(e.command_id, e.content) for e in told] == [("k3", (ev.Text(text=WORDS),))]
        assert world.interrupted == [False]
        assert driver.of(ev.TurnEnded)[-1].outcome == "completed"
    else:
        assert (taken, told) == ([], [])
    assert driver.of(ev.Gap) == []
    return outcome


STOPPED = pytest.mark.parametrize("stopped", [False, True], ids=["asked", "stopped"])


@STOPPED
@pytest.mark.parametrize(
    "forms",
    [
        Forms(),
        Forms(echoes=True),
        Forms(answers=False),
        Forms(refuses=True),
        Forms(loses="user.interrupt"),
        Forms(loses="user.message"),
    ],
    ids=["plain", "echoes", "no-ids", "refuses", "no-answer", "no-answer-to-message"],
)
def test_a_message_that_withdraws_is_told_once_and_answered(forms: Forms, stopped: bool) -> None:
    assert {check(world) for world in outcomes(World(forms, stopped=stopped))} == {"taken"}


@pytest.mark.parametrize(("echoes", "stopped"), [(False, False), (False, True), (True, False)])
def test_a_crash_at_any_moment_neither_repeats_nor_hides_it(echoes: bool, stopped: bool) -> None:
    forms = Forms(echoes=echoes, crashes=True)
    found = {check(world) for world in outcomes(World(forms, stopped=stopped))}
    # What was not there yet is never posted again.
    assert found == {"taken", "refused"}
