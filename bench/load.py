"""The load generator's side of the wire: opens streams through a proxy and reads their stamps.

Raw asyncio protocols on uvloop instead of an HTTP client library, because the reader must cost less
than the proxy that it measures.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import cast
from urllib.parse import urlsplit

from bench.wire import BadResponse, ChunkedBody, Scan, engine_stamps, eve_stamps

HANG_SECONDS = 120.0
"""What takes longer hangs, and the run fails. It tells nothing of speed: a machine that does much
else takes many times as long for anything."""
_OPEN_AT_ONCE = 32
"""Streams that are opened at the same time; more would measure the accept queue."""


class Meter:
    """What a group of readers has received; latencies are kept only while `on`."""

    def __init__(self) -> None:
        self.on = False
        self.latencies = array("q")
        self.received = 0
        self.doubled = 0

    def start(self) -> None:
        """Forget the latencies so far and keep those that come."""
        self.latencies = array("q")
        self.on = True

    def stop(self) -> list[int]:
        """Give the latencies since `start`, in nanoseconds, sorted."""
        self.on = False
        return sorted(self.latencies)


class Reader:
    """Reads one stream of a proxy and tells its meter about every stamp."""

    def __init__(self, scan: Scan, meter: Meter) -> None:
        self._scan = scan
        self._meter = meter
        self._tail = b""
        self._last_stamp = 0
        self.count = 0
        self.first_at = 0
        self.last_at = 0
        self.ended = False
        self.first = asyncio.get_running_loop().create_future()

    def feed(self, data: bytes) -> None:
        """Take payload bytes in."""
        now = time.monotonic_ns()
        if self._tail:
            data = self._tail + data
        cut = data.rfind(b"\n") + 1
        self._tail = data[cut:]
        stamps = self._scan(data[:cut])
        if not stamps:
            return
        meter = self._meter
        if not self.count:
            self.first_at = now
            self.first.set_result(now)
        self.last_at = now
        self.count += len(stamps)
        meter.received += len(stamps)
        last = self._last_stamp
        for stamp in stamps:
            if stamp <= last:
                meter.doubled += 1
            last = stamp
        self._last_stamp = last
        if meter.on:
            meter.latencies.extend([now - stamp for stamp in stamps])

    def end(self) -> None:
        """Note that the body is over."""
        self.ended = True
        if not self.first.done():
            self.first.set_exception(BadResponse("the stream ended before its first event"))
            self.first.exception()  # read here, so that an unread one is no warning


class Connection(asyncio.Protocol):
    """One HTTP/1.1 client connection: a call at a time, or one stream until it ends."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._host = ""
        self._held = b""
        self._chunked: ChunkedBody | None = None
        self._left = -1
        self._body: list[bytes] = []
        self._reader: Reader | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._in_body = False

    @classmethod
    async def open(cls, base: str) -> Connection:
        """Connect to the host of `base`, an absolute http URL."""
        url = urlsplit(base)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, url.hostname or "", url.port or 80)
        connection._host = url.netloc
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        # A cast, because uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what was being read."""
        self._transport = None
        if self._reader is not None:
            self._reader.end()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BadResponse(f"the peer hung up: {exc}"))

    def data_received(self, data: bytes) -> None:
        """Read a head, then hand on the body."""
        if not self._in_body:
            self._held = (self._held + data).lstrip(b"\r\n")
            end = self._held.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self._held[end + 4 :]
            head, self._held = self._held[:end], b""
            self._begin_body(head)
        if self._chunked is not None:
            payload = self._chunked.feed(data)
            done = self._chunked.done
        else:
            payload = data
            self._left -= len(data)
            done = self._left == 0
        if self._reader is not None:
            if payload:
                self._reader.feed(payload)
            if done:
                self._reader.end()
                self._reader = None
                self._in_body = False
        else:
            self._body.append(payload)
            if done:
                self._in_body = False
                self._settle(b"".join(self._body))

    async def call(self, method: str, path: str, body: object = None) -> dict[str, object]:
        """Send one request and give its JSON answer.

        Raises:
            BadResponse: the status is not 2xx, or the peer hung up.
        """
        self._send(method, path, body)
        async with asyncio.timeout(HANG_SECONDS):
            assert self._answer is not None
            answer = json.loads(await self._answer)
        if not isinstance(answer, dict):
            raise BadResponse(f"{path} answered {answer!r}")
        return answer

    async def stream(
        self,
        method: str,
        path: str,
        reader: Reader,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one request and return when its head is there; `reader` gets the body.

        Raises:
            BadResponse: the status is not 2xx, or the peer hung up.
        """
        self._reader = reader
        self._send(method, path, body, headers)
        async with asyncio.timeout(HANG_SECONDS):
            assert self._answer is not None
            await self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def _send(
        self, method: str, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> None:
        if self._transport is None:
            raise BadResponse(f"the peer hung up before {method} {path}")
        self._answer = asyncio.get_running_loop().create_future()
        self._body.clear()
        payload = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nAccept: */*\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
        self._transport.write(head.encode() + b"\r\n" + payload)

    def _begin_body(self, head: bytes) -> None:
        lines = head.split(b"\r\n")
        fields = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            fields[name.lower()] = value.strip().lower()
        self._in_body = True
        self._chunked = ChunkedBody() if fields.get(b"transfer-encoding") == b"chunked" else None
        self._left = int(fields.get(b"content-length", b"-1"))
        status = lines[0].split(b" ", 2)[1]
        assert self._answer is not None
        if not status.startswith(b"2"):
            self._reader = None
            if not self._answer.done():
                self._answer.set_exception(BadResponse(f"answered {lines[0].decode()}"))
        elif self._reader is not None:
            self._settle(b"")

    def _settle(self, body: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(body)


class Stream:
    """A turn that was started through a proxy, and its reader."""

    def __init__(self, reader: Reader, connection: Connection, path: str, begun: int) -> None:
        self.reader = reader
        self.connection = connection
        self.path = path
        self.begun = begun


class EngineFace:
    """The pass-through: the Engine's own path in, its stream out."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._turns = 0

    async def open(self, message: str, meter: Meter) -> Stream:
        """Start a turn on a connection of its own."""
        connection = await Connection.open(self._base)
        await asyncio.sleep(0)
        self._turns += 1
        reader = Reader(engine_stamps, meter)
        begun = time.monotonic_ns()
        body = {"message": message, "task_id": f"bench-{self._turns}"}
        await connection.stream("POST", "/execute", reader, body)
        return Stream(reader, connection, "/execute", begun)

    def close(self) -> None:
        """There is nothing to close."""


class EveFace:
    """Dragoman: an eve session in front of the Engine backend, at one of several `bases`. Streams
    are read where their sessions are, or all at `read`."""

    def __init__(self, bases: Sequence[str], route: str, *, read: str | None = None) -> None:
        # By turns: as a load balancer gives out requests.
        self._bases = itertools.cycle(bases)
        self._read = read
        self._prefix = f"/as/eve/to/{route}/eve/v1/session"
        self._idle: dict[str, list[Connection]] = {}

    async def open(self, message: str, meter: Meter) -> Stream:
        """Create a session with the message, then read its stream on a connection of its own."""
        base = next(self._bases)
        idle = self._idle.setdefault(base, [])
        caller = idle.pop() if idle else await Connection.open(base)
        connection = await Connection.open(self._read or base)
        await asyncio.sleep(0)
        begun = time.monotonic_ns()
        created = await caller.call("POST", self._prefix, {"message": message})
        path = f"{self._prefix}/{created['sessionId']}/stream"
        reader = Reader(eve_stamps, meter)
        await connection.stream("GET", path, reader)
        idle.append(caller)
        return Stream(reader, connection, path, begun)

    async def attach(self, stream: Stream, meter: Meter) -> Stream:
        """Open one more reader of a session that is already read."""
        connection = await Connection.open(self._read or next(self._bases))
        reader = Reader(eve_stamps, meter)
        begun = time.monotonic_ns()
        await connection.stream("GET", stream.path, reader)
        return Stream(reader, connection, stream.path, begun)

    def close(self) -> None:
        """Hang up the connections that were kept for creating sessions."""
        for connection in itertools.chain.from_iterable(self._idle.values()):
            connection.close()
        self._idle.clear()


Face = EngineFace | EveFace


async def open_many(face: Face, message: str, count: int, meter: Meter) -> list[Stream]:
    """Open `count` streams, a few at a time."""
    gate = asyncio.Semaphore(_OPEN_AT_ONCE)

    async def one() -> Stream:
        async with gate:
            return await face.open(message, meter)

    return await asyncio.gather(*(one() for _ in range(count)))


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until `condition` holds, at most `seconds`; tell whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


def percentile(ordered: Sequence[int], share: float) -> float:
    """Give the value below which `share` of the sorted values lie, or 0 for none."""
    if not ordered:
        return 0.0
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))])
