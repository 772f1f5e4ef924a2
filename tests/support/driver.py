"""Drives a client codec through the real upstream client as a session does, but in order.

Nothing runs beside anything else: a stream is read to its end, and an answer is sent at the moment
in which the stream asks for it. So a played cassette, whose streams come whole and at once, and a
live backend give the same events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from adapters.model.base import Call, ClientCodec, CloseReason, Response
from adapters.model.commands import AnswerInteraction, AnyCommand
from adapters.model.events import (
    MAIN,
    Event,
    InputAccepted,
    InputSettled,
    InteractionAnswered,
    InteractionRequested,
    SessionStarted,
)
from adapters.wire.framing import FrameTooLarge
from adapters.wire.framing.sse import SseFrame
from proxy.upstream.client import Upstream
from tests.support.played import Played

__all__ = ["Driver"]

STEP_MS = 1
MOST_ROUNDS = 10
"""How often a codec may want more by itself; one that wants a stream for ever is found out."""
LATER_MS = 10_000
"""Longer than any codec holds an event back (the Engine's: 2 s for the second terminal event)."""


class Driver(Played):
    """One session on one backend."""

    def __init__(self, upstream: Upstream, codec: ClientCodec, *, start: int) -> None:
        """Begin at `start`, in Unix milliseconds; every step takes one."""
        super().__init__(lambda: codec)
        self.upstream = upstream
        self.calls: list[str] = []
        self._now = start
        self._answers: list[Mapping[str, object]] = []
        self._commands = 0
        self._files: dict[str, bytes] = {}
        self._read = False
        self.take([SessionStarted(thread_id=MAIN)])

    async def send(
        self,
        command: AnyCommand,
        *,
        answers: Sequence[Mapping[str, object]] = (),
        blobs: Mapping[str, bytes] | None = None,
    ) -> None:
        """Send a command and follow what it starts; `answers` are given as requests come."""
        self._answers += answers
        self._read = False
        self._files |= blobs or {}
        await self._submit(command)
        await self._settle()
        assert not self._answers, "the backend asked for less than the test answers"

    @property
    def _command_id(self) -> str:
        return f"command-{self._commands}"

    async def _submit(self, command: AnyCommand) -> None:
        self._commands += 1
        self.codec.check(command)
        self.take(self._accepted(command))
        await self._run(self.codec.submit(self._command_id, command))

    def _accepted(self, command: AnyCommand) -> list[Event]:
        """Return what a session writes down before it sends a command."""
        request_id = command.request_id if isinstance(command, AnswerInteraction) else None
        accepted: list[Event] = [
            InputAccepted(
                thread_id=MAIN,
                command_id=self._command_id,
                kind=command.KIND,
                message_id=self._command_id if command.KIND == "message" else None,
                content=getattr(command, "content", None),
                request_id=request_id,
                by="test",
            )
        ]
        if request_id is not None:
            accepted.append(
                InteractionAnswered(
                    thread_id=MAIN, request_id=request_id, command_id=self._command_id, by="test"
                )
            )
        return accepted

    async def _settle(self) -> None:
        """Do what the codec wants next, until it wants nothing."""
        for _ in range(MOST_ROUNDS):
            calls = self.codec.take_calls()
            if not self._is_over:
                calls += self.codec.streams()
            if self.codec.wake_at is not None:
                self._now = max(self._now, self.codec.wake_at) + LATER_MS
                self.take(self.codec.tick(self._now))
            if not calls:
                return
            for call in calls:
                await self._run(call)
        raise AssertionError(f"the codec goes on wanting {self.codec.streams()}")

    @property
    def _is_over(self) -> bool:
        """Say whether all is heard of what was sent, though the codec keeps its stream open for
        what comes next, as Herm's does."""
        open_ = self.state.busy or self.state.inputs
        refused = any(
            event.command_id == self._command_id and event.outcome == "refused"
            for event in self.events
            if isinstance(event, InputSettled)
        )
        return not open_ and (self._read or refused)

    async def _load(self) -> Mapping[str, bytes]:
        return self._files

    async def _run(self, call: Call) -> None:
        self.calls.append(call.name)
        if not call.stream:
            answered = await self.upstream.call(call, self._load)
            self.take(self.codec.respond(call, answered, self._tick()))
            return
        async with self.upstream.stream(call, self.codec.framing, self._load) as answer:
            if isinstance(answer, Response):
                self.take(self.codec.respond(call, answer, self._tick()))
                return
            self.take(self.codec.opened(call, answer.head, self._tick()))
            # What waited for the stream.
            for step in self.codec.take_calls():
                await self._run(step)
            await answer.read(lambda frames: self._read_frames(call, frames))
            assert answer.tail == b""
        self._read = True
        self.take(self.codec.closed(call, CloseReason.ENDED, self._tick()))

    async def _read_frames(
        self, call: Call, frames: Iterable[SseFrame | bytes | FrameTooLarge]
    ) -> None:
        for frame in frames:
            assert not isinstance(frame, FrameTooLarge)
            new = self.take(self.codec.feed(call, frame, self._tick()))
            await self._answer(new)

    async def _answer(self, new: Iterable[Event]) -> None:
        """Answer what is asked; what the backend refuses is answered again, by the next answer."""
        for event in new:
            if isinstance(event, InteractionRequested):
                while self._answers and self._is_open(event.request_id):
                    given = {"request_id": event.request_id, **self._answers.pop(0)}
                    await self._submit(AnswerInteraction.model_validate(given))
                    for call in self.codec.take_calls():
                        await self._run(call)
                    if self.state.inputs and self.codec.wake_at is not None:
                        # An answer in doubt: what became of it is asked again, later.
                        self._now = max(self._now, self.codec.wake_at)
                        self.take(self.codec.tick(self._now))
                        for call in self.codec.take_calls():
                            await self._run(call)

    def _is_open(self, request_id: str) -> bool:
        open_ = self.state.interactions.get(request_id)
        return open_ is not None and open_.claimed_by is None

    def _tick(self) -> int:
        self._now += STEP_MS
        return self._now
