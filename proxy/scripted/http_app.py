"""How every scripted backend serves: its application, and answers that break as a fault says.

A dialect's gate takes the fault of a request with `broken`, its handlers hold their heads back with
`late`, and its streams are written by a `StreamBody`.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

from aiohttp import web
from aiohttp.typedefs import Middleware

from proxy.scripted.backend import ReceivedRequest, ScriptedBackend
from proxy.scripted.faults import (
    Cut,
    Fault,
    Garbage,
    HalfClose,
    HalfFrame,
    LoseTurn,
    Redirect,
    Reset,
    Silence,
    SlowHead,
    SplitCharacters,
    Stall,
    Status,
    StreamEnd,
    WrongContentType,
    disturbed,
    pieces,
)
from proxy.scripted.templates import dump

_FAULT: web.RequestKey[Fault] = web.RequestKey("fault")

B = TypeVar("B", bound=ScriptedBackend[Any])

json_response = partial(web.json_response, dumps=dump)


def application(
    key: web.AppKey[B], backend: B, middlewares: Sequence[Middleware] = ()
) -> web.Application:
    """Return an application, still without routes, that has a backend and stops it at its end."""
    # Engine page, section 6.2: files under 5 MB each; room for several of them as base64.
    app = web.Application(middlewares=middlewares, client_max_size=64 * 2**20)
    app[key] = backend

    async def stop(_: web.Application) -> None:
        await backend.stop()

    app.on_shutdown.append(stop)
    return app


async def note(backend: ScriptedBackend[Any], request: web.Request, route: str) -> None:
    """Keep a request as it came."""
    body = await request.read()
    backend.received.append(ReceivedRequest(route, request.headers, request.query, body))


async def broken(
    backend: ScriptedBackend[Any],
    request: web.Request,
    route: str,
    *,
    stream: bool,
    talk: str = "",
    refused: Callable[[Status], web.Response],
) -> web.Response | None:
    """Take the fault of a request; returns the answer where it never gets to its handler.

    Args:
        backend: whose plan of faults counts.
        request: keeps the fault for `late` and `StreamBody`.
        route: the backend's own name of the route.
        stream: whether the route answers with a stream.
        talk: the id of the conversation that it is about, empty where it names none.
        refused: writes a refusal in the dialect's own words.
    """
    fault = backend.faults.take(route, stream=stream, talk=talk)
    if fault is not None:
        request[_FAULT] = fault
    match fault:
        case Status(status, body=bytes(body)):
            return web.Response(status=status, body=body)
        case Status():
            return refused(fault)
        case Redirect(location, status):
            return web.Response(status=status, headers={"Location": location})
        case Silence(done=False):
            await _never(backend, request)
    return None


def fault_of(request: web.Request) -> Fault | None:
    """Return the fault that `broken` took for a request."""
    return request.get(_FAULT)


async def late(backend: ScriptedBackend[Any], request: web.Request) -> str | None:
    """Hold an answer's head back as the fault says; returns a content type to lie about."""
    match fault_of(request):
        case Silence():
            await _never(backend, request)
        case SlowHead(seconds):
            await backend.clock.wait(backend.stopping, seconds)
        case WrongContentType(content_type):
            return content_type
    return None


async def _never(backend: ScriptedBackend[Any], request: web.Request) -> NoReturn:
    """Answer nothing while the backend lives."""
    await backend.stopping.wait()
    if request.transport is not None:
        request.transport.abort()
    raise web.HTTPServiceUnavailable


class BodyOver(Exception):
    """A fault ends this body here."""


@dataclass(slots=True, eq=False)
class StreamBody:
    """Writes the frames of one stream and breaks it where its fault says so.

    Args:
        backend: whose clock a stall goes by.
        request: what is answered.
        response: the answer, its head already sent.
        lose: forgets the running turn.
    """

    backend: ScriptedBackend[Any]
    request: web.Request
    response: web.StreamResponse
    lose: Callable[[], None]
    _fault: Fault | None = field(init=False)
    _events: int = field(init=False, default=0)
    _bytes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._fault = fault_of(self.request)

    async def frames(self, frames: Sequence[bytes]) -> None:
        """Write frames; ends the body by raising `BodyOver`."""
        if self._fault is None:
            # A backlog is written in large pieces: one write per frame is several times slower.
            for start in range(0, len(frames), 256):
                await self.response.write(b"".join(frames[start : start + 256]))
            return
        for frame in disturbed(self._fault, frames, self._events):
            await self._before(frame)
            await self.write(frame)
            self._events += 1
        await self._before(b"")

    async def write(self, data: bytes) -> None:
        """Write bytes that are not an event, but count for a cut at a byte."""
        if isinstance(self._fault, StreamEnd) and self._fault.at_byte is not None:
            room = self._fault.at_byte - self._bytes
            if len(data) >= room:
                if room > 0:
                    await self.response.write(data[:room])
                await self._end(self._fault)
        for piece in pieces(self._fault, data):
            await self.response.write(piece)
            if isinstance(self._fault, SplitCharacters):
                await asyncio.sleep(0)
        self._bytes += len(data)

    async def _before(self, frame: bytes) -> None:
        """Do what the fault does before a frame; an empty one before the first."""
        match self._fault:
            case StreamEnd(after_event=place) if place == self._events:
                await self._end(self._fault)
            case HalfFrame(place) if place == self._events and frame:
                await self.response.write(frame[: len(frame) // 2])
                raise BodyOver
            case LoseTurn(place) if place == self._events:
                self.lose()
                await self._end(self._fault)
            case Garbage(place, data) if place == self._events:
                self._fault = None
                await self.response.write(data)
            case Stall(place, seconds, data) if place == self._events:
                self._fault = None
                if data:
                    await self.response.write(data)
                if seconds is None:
                    await self.backend.stopping.wait()
                else:
                    await self.backend.clock.wait(self.backend.stopping, seconds)

    async def _end(self, fault: Fault) -> NoReturn:
        transport = self.request.transport
        if transport is None or (isinstance(fault, Cut) and fault.clean):
            raise BodyOver
        # What was written must leave first: an aborted transport forgets its buffer.
        while transport.get_write_buffer_size() and not transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0)
        if isinstance(fault, HalfClose) and not transport.is_closing():
            transport.write_eof()
            # Until the other side leaves, which ends this handler.
            await self.backend.stopping.wait()
        elif isinstance(fault, Reset):
            _reset_at_close(transport)
        transport.abort()
        raise BodyOver


def _reset_at_close(transport: asyncio.Transport) -> None:
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is not None:
        # Zero seconds of lingering make the close a reset.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
