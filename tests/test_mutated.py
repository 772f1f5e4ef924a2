"""Whatever a backend writes into a field of a frame, nothing breaks, and what was good is kept.

Every recorded body is played with some of its frames changed. The codec may report and keep; it may
not raise. What it gives becomes a lawful log that is stored, read back and shown in every face.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, CloseReason, EncoderContext, Request, Response
from adapters.model.state import LogState
from adapters.registry import DIALECTS
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import count_of
from tests import wire
from tests.pairs.backends import declared
from tests.support.mutated import disturb, frames_of, mutated
from tests.support.played import Played
from tests.wire import forms, given_messages

FRAMES = 120
"""Frames of a body that are played: the long ones repeat themselves."""

ROUNDS = 6
"""Times that each body is played; each time with other changes."""

OPENED = Response(200, CIMultiDict({"x-eve-stream-version": "26"}))
CREATED = {"id": "session_7c", "sessionId": "s1", "continuationToken": "t", "ok": True}
SAID = cmd.SendMessage(content=(ev.Text(text="go"),), policy="queue")


class Play(Played):
    """One session on one disturbed body."""

    def __init__(self, dialect: str, task: str) -> None:
        client = DIALECTS[dialect].client
        assert client is not None
        super().__init__(lambda: client({"task_id": task, "agent": "a", "environment_id": "e"}))
        self.folded = LogState()
        self.encoders = []
        for name, _, settings in forms():
            encoder = DIALECTS[name].encoder
            assert encoder is not None
            self.encoders.append(encoder(EncoderContext("s", b"x" * 32, settings=settings)))
        self.now = 1
        found = declared(dialect) if dialect in given_messages() else None
        self.reopens = found is None or found.reopens
        self.started = ev.SessionStarted(thread_id=ev.MAIN)
        self.codec.started(self.started)
        self.emit([self.started])
        self.stream = STREAM
        if not DIALECTS[dialect].not_driven:
            self._say(dialect)

    def _say(self, dialect: str) -> None:
        self.emit([ev.InputAccepted(thread_id=ev.MAIN, command_id="k1", kind="message", by="ann")])
        call = self.codec.submit("k1", SAID)
        if not call.stream:
            headers = CIMultiDict({"x-eve-session-id": "s1"})
            status = 202 if dialect == "eve" else 201
            response = Response(status, headers, json.dumps(CREATED).encode())
            self.emit(self.codec.respond(call, response, self.now))
            call = next(iter(self.codec.streams()), STREAM)
        self.stream = call
        self.emit(self.codec.opened(call, OPENED, self.now))

    def emit(self, raw: list[ev.Event]) -> None:
        """Store events and show them, as a session does."""
        first = len(self.entries)
        self.take(raw, at=self.now)
        for entry in self.entries[first:]:
            stored = ev.Entry.decode(entry.encode_row(), session_id="s")
            self.folded.apply_entry(stored)
            for encoder in self.encoders:
                encoder.feed(stored)

    def feed(self, frame: SseFrame | bytes) -> None:
        self.now += 1
        self.emit(self.codec.feed(self.stream, frame, self.now))
        for call in self.codec.take_calls():
            status = 200 if call.name == "send" else 404
            self.emit(self.codec.respond(call, Response(status, CIMultiDict(), b"{}"), self.now))

    def tick(self) -> None:
        if self.codec.wake_at is not None:
            self.now = max(self.now, self.codec.wake_at)
            self.emit(self.codec.tick(self.now))

    def restart(self) -> None:
        """Put another codec in the place of this one, from what is stored."""
        super().restart()
        LogState.restore(self.state.snapshot())
        if self.reopens:
            self.stream = next(iter(self.codec.streams()), self.stream)
            self.emit(self.codec.opened(self.stream, OPENED, self.now))


STREAM = Call("stream", Request("GET", "/"), stream=True)


def play(dialect: str, frames: list[SseFrame | bytes], task: str) -> Play:
    session = Play(dialect, task)
    for number, frame in enumerate(frames):
        session.feed(frame)
        if number % 7 == 0:
            session.tick()
        # A restart cuts a body that nobody can have again.
        if number % 41 == 40 and session.reopens:
            session.restart()
    session.emit(session.codec.closed(session.stream, CloseReason.LOST, session.now))
    session.tick()
    if not session.reopens:
        session.restart()
        session.tick()
    return session


def framing_of(dialect: str) -> str:
    make = DIALECTS[dialect].client
    assert make is not None
    return make({"task_id": "t"}).framing


def recorded(dialect: str, body: Path) -> tuple[list[SseFrame | bytes], str]:
    data = body.read_bytes()
    named = re.search(rb'"task_id":\s*"([^"]+)"', data)
    task = "t" if named is None else named.group(1).decode()
    return frames_of(data, framing_of(dialect))[:FRAMES], task


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("dialect", wire.driven())
def test_no_field_of_a_frame_breaks_anything(dialect: str, number: int) -> None:
    for body in wire.bodies(dialect):
        frames, task = recorded(dialect, body)
        seed = f"{dialect}/{wire.name_of(body)}/{number}"
        draw = random.Random(seed)
        disturbed = disturb(draw, frames, draw.choice((0.03, 0.2, 0.8)))
        try:
            play(dialect, disturbed, task)
        except Exception as error:
            raise AssertionError(f"{seed}: {error!r}") from error


@pytest.mark.parametrize("dialect", wire.driven())
def test_words_before_and_behind_a_frame_that_is_broken_are_kept(dialect: str) -> None:
    """Text is the same whatever stands in a frame that carries none of it."""
    for body in wire.bodies(dialect):
        frames, task = recorded(dialect, body)
        whole = words_of(play(dialect, frames, task))
        draw = random.Random(f"{dialect}/{wire.name_of(body)}")
        garbage = mutated(draw, b"no json")
        noise = garbage if framing_of(dialect) == "ndjson" else SseFrame("noise", garbage)
        at = draw.randrange(len(frames) + 1)
        session = play(dialect, [*frames[:at], noise, *frames[at:]], task)
        # A text that waits for more may come behind one of another thread.
        assert sorted(words_of(session)) == sorted(whole), f"{body}: garbage before frame {at}"


def words_of(session: Play) -> list[str]:
    return [e.text for e in session.events if isinstance(e, ev.TextCompleted) and e.text]


@pytest.mark.parametrize("number", [2**70, -1, 2**53, 1.5, 10**400])
@pytest.mark.parametrize("name", ["sequence", "stepIndex"])
def test_a_number_of_an_eve_that_counts_nothing_is_reported(name: str, number: Any) -> None:
    assert count_of(number) is None
    body = next(b for b in wire.bodies("eve") if "server/plain" in str(b))
    frames, task = recorded("eve", body)
    whole = play("eve", frames, task)
    at = next(n for n, f in enumerate(frames) if isinstance(f, bytes) and b"step.started" in f)
    frame = frames[at]
    assert isinstance(frame, bytes)
    record = json.loads(frame)
    record["data"][name] = number
    frames[at] = json.dumps(record).encode()
    session = play("eve", frames, task)
    (error,) = [e for e in session.events if isinstance(e, ev.ErrorReported)]
    assert error.code == "backend_protocol"
    assert f"`{name}`" in error.message
    assert words_of(session) == words_of(whole) != []
