"""Plays the part of the proxy's session around an engine client codec, without IO.

`restart` puts a new codec in the place of the old one, made from what was stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from adapters.engine.client import EngineClient
from adapters.model import events as ev
from adapters.model.base import Call, CloseReason, Response
from adapters.model.commands import AnyCommand, SendMessage
from adapters.wire.framing.sse import SseFrame, SseParser
from tests.support.played import Played

WIRE = Path(__file__).parents[2] / "fixtures" / "wire" / "engine"
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


class Session(Played):
    """One session on one scripted stream; `log` is what the journal has."""

    codec: EngineClient

    def __init__(self, task: str, *, interrupt: str | None = None) -> None:
        self.settings = {"task_id": task, "interrupt": interrupt}
        super().__init__(lambda: EngineClient(self.settings))
        self.now = START
        self.commands = 0
        self.emit([ev.SessionStarted(thread_id=ev.MAIN)], upstream=False)

    @property
    def log(self) -> list[ev.Event]:
        """Return what the journal has."""
        return self.events

    def emit(self, raw: Sequence[ev.Event], *, upstream: bool = True) -> list[ev.Event]:
        return self.take(raw, upstream=upstream)

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
        return self.codec.submit(self.accept(command), command)

    def open(self, call: Call) -> None:
        self.emit(self.codec.opened(call, Response(200), self.now))

    def feed(self, call: Call, frames: Iterable[SseFrame]) -> None:
        for frame in frames:
            self.now += 1
            self.emit(self.codec.feed(call, frame, self.now))

    def close(self, call: Call, reason: CloseReason = CloseReason.LOST) -> None:
        self.emit(self.codec.closed(call, reason, self.now))
        # What is due at once is done before anything else.
        while self.codec.wake_at == 0:
            self.emit(self.codec.tick(self.now))

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
