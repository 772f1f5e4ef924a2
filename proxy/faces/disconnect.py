"""Stops the turn of a client that has left, for dialects in which leaving is the only stop."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from adapters.contract.faces import SubmitResult
from adapters.model import events as ev
from adapters.model.commands import Interrupt, SendMessage, Steer
from adapters.wire.errors import DragomanError
from proxy.faces.face_request import FaceRequest, Match, SubmitOutcome
from proxy.fanout.hub import entries_by_steps
from proxy.session import Session

_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True, eq=False)
class ClientDisconnect:
    """The client of a request whose turn is streamed, which may leave before the end. `stops` says
    that this interrupts the turn."""

    request: FaceRequest
    _: dataclasses.KW_ONLY
    stops: bool
    _left: bool = dataclasses.field(default=False, init=False)
    _taken: SubmitOutcome | None = dataclasses.field(default=None, init=False)

    async def others_gone(self, session: Session) -> None:
        """Wait for those who leave this session just now."""
        if self.stops:
            await self.request.at.turn_clients.gone(session, self.request.sessions.clock)

    def close(self) -> None:
        """Record that the client is answered, or has left and stopped what it was to stop."""
        if self.stops and self._taken is not None:
            self.request.at.turn_clients.remove(self._taken.match.session.id)

    async def take(self, work: Coroutine[Any, Any, SubmitOutcome]) -> SubmitOutcome:
        """Let the request be taken, also where its client leaves meanwhile."""

        async def both() -> SubmitOutcome:
            self._taken = taken = await work
            if self.stops:
                self.request.at.turn_clients.add(taken.match.session.id)
            if self._left:
                await self.stop()
                self.close()
            return taken

        try:
            return await self.request.sessions.keep(both())
        except asyncio.CancelledError:
            self._left = True
            if self._taken is not None:
                await self.stop()
                self.close()
            raise

    async def stop(self) -> None:
        """Interrupt the turn that the request has given, where its client has closed the
        connection: not where we close it, and not for a repeat, which only looks on."""
        request, transport = self.request, self.request.http.transport
        gone = transport is None or transport.is_closing()
        if not self.stops or not gone or self._taken is None or request.sessions.stopping:
            return
        found, done, _ = self._taken
        if done.commands:
            # To its end, though the request is over.
            await request.sessions.keep(_stop(request, found, done))


async def _stop(request: FaceRequest, found: Match, done: SubmitResult) -> None:
    session = found.session
    state = session.state
    if session.closed or state.stopping or state.stopped or not await _is_its(request, found, done):
        return
    try:
        await session.submit([Interrupt()], by=request.owner, face=request.at.dialect)
    except DragomanError as error:
        # There is nobody to tell.
        _log.info("session `%s` is not stopped: %s", session.id, error.whole)


async def _is_its(request: FaceRequest, found: Match, done: SubmitResult) -> bool:
    """Say whether the turn that runs is that of a request: a message of it began the turn, or an
    answer of it lets the turn go on."""
    session, command_id = found.session, done.ids[0]
    if any(row.command_id == command_id for row in session.queued()):
        return False
    turn = session.state.thread(found.thread).turn
    if turn is None:
        # Its turn is about to begin.
        return command_id in session.state.inputs
    begun, owner = await _begin_of(request, found, turn.turn_id)
    if isinstance(done.commands[0], SendMessage | Steer):
        return begun and owner in (None, command_id)
    return owner is None


async def _begin_of(request: FaceRequest, found: Match, turn_id: str) -> tuple[bool, str | None]:
    """Say whether a turn began since the request, and by which message."""
    begun = False
    owner: str | None = None
    before: str | None = None
    async for event in _events(request, found):
        match event:
            case ev.TurnStarted() if event.turn_id == turn_id:
                begun, owner = True, before
            case ev.TurnStarted() | ev.TurnEnded():
                before = None
            case ev.MessageReceived(turn_id=None):
                before = event.command_id or event.message_id
            case ev.MessageReceived() if event.turn_id == turn_id and owner is None:
                owner = event.command_id or event.message_id
            case _:
                pass
    return begun, owner


async def _events(request: FaceRequest, found: Match) -> AsyncIterator[ev.Event]:
    """Yield what is stored of a thread since the request."""
    session = found.session
    async for chunk in request.sessions.journal.scan(session.row.key, after=found.since):
        async for entry in entries_by_steps(chunk.body, session.id):
            if entry.seq > found.since and entry.event.thread_id == found.thread:
                yield entry.event
