"""Plays the part of the proxy's session around an engine client codec, without IO.

What is stored is what the session stores: the events of a batch, the position with every batch that
has events, the snapshot with every batch that has others than deltas. `restart` puts a new codec in
the place of the old one, made from what was stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from adapters import events as ev
from adapters.base import Call, CloseReason, Response
from adapters.commands import AnyCommand, SendMessage
from adapters.engine.client import EngineClient
from adapters.framing.sse import SseFrame, SseParser
from adapters.normalizer import Normalizer
from adapters.state import LogState

WIRE = Path(__file__).parents[2] / "fixtures" / "wire" / "engine"
DELTAS = {"text.delta", "reasoning.delta"}
START = 1_780_992_900_000


def recordings() -> list[Path]:
    """Return the recorded stream bodies that are not empty."""
    return sorted(path for path in WIRE.glob("*.sse") if path.stat().st_size)


def frames_of(data: bytes) -> list[SseFrame]:
    """Return the frames of a whole body."""
    return [frame for frame in SseParser().feed(data) if isinstance(frame, SseFrame)]


def task_of(frames: Sequence[SseFrame]) -> str:
    """Return the task that the frames name first."""
    for frame in frames:
        found = re.search(rb'"task_id":\s*"([^"]+)"', frame.data)
        if found:
            return found.group(1).decode()
    return "task"


MESSAGE = SendMessage(content=(ev.Text(text="go"),), policy="reject")


class Session:
    """One session on one scripted stream; `log` is what the journal has."""

    def __init__(self, task: str, *, interrupt: str | None = None) -> None:
        self.settings = {"task_id": task, "interrupt": interrupt}
        self.codec = EngineClient(self.settings)
        self.normalizer = Normalizer()
        self.log: list[ev.Event] = []
        self.stored: tuple[bytes | None, bytes | None] = (None, None)
        self.now = START
        self.commands = 0
        self.emit([ev.SessionStarted(thread_id=ev.MAIN)], upstream=False)

    def emit(self, raw: Iterable[ev.Event], *, upstream: bool = True) -> list[ev.Event]:
        events = self.normalizer.feed(raw)
        if events:
            self.log += events
            snapshot, position = self.stored
            if upstream:
                position = self.codec.position
            if any(event.TYPE not in DELTAS for event in events):
                snapshot = self.codec.snapshot()
            self.stored = snapshot, position
        return events

    def restart(self) -> None:
        """Lose what is in memory; take up what is stored."""
        state = LogState()
        for event in self.log:
            state.apply(event)
        self.normalizer = Normalizer(state)
        self.codec = EngineClient(self.settings)
        self.codec.restore(*self.stored)

    def accept(self, command: AnyCommand) -> str:
        """Store an input, as the session does before it is sent."""
        self.commands += 1
        command_id = f"c{self.commands}"
        accepted = ev.InputAccepted(
            thread_id=ev.MAIN, command_id=command_id, kind=command.KIND, by="key"
        )
        self.emit([accepted], upstream=False)
        return command_id

    def send(self, command: AnyCommand = MESSAGE) -> Call:
        """Accept a command and have its call made."""
        return self.codec.submit(self.accept(command), command, {})

    def open(self, call: Call) -> None:
        self.emit(self.codec.opened(call, Response(200), self.now))

    def feed(self, call: Call, frames: Iterable[SseFrame]) -> None:
        for frame in frames:
            self.now += 1
            self.emit(self.codec.feed(call, frame, self.now))

    def close(self, call: Call, reason: CloseReason = CloseReason.LOST) -> None:
        self.emit(self.codec.closed(call, reason, self.now))

    def tick(self) -> None:
        """Let the time pass until the codec waits for nothing."""
        while self.codec.wake_at is not None:
            self.now = max(self.now, self.codec.wake_at)
            self.emit(self.codec.tick(self.now))

    def execute(self, frames: Iterable[SseFrame], reason: CloseReason = CloseReason.ENDED) -> None:
        """Send a message whose whole stream is `frames`."""
        call = self.send()
        self.open(call)
        self.feed(call, frames)
        self.close(call, reason)

    def replay(self, frames: Iterable[SseFrame], reason: CloseReason = CloseReason.ENDED) -> None:
        """Let the replay that the codec wants be `frames`."""
        (call,) = self.codec.streams()
        assert call.name == "replay"
        self.open(call)
        self.feed(call, frames)
        self.close(call, reason)
