"""Times each stage of an event's way alone, in one process, over the same recorded stream.

The recording is a turn of the origin: the bytes that a firehose sends. Each stage runs over the
whole of it with what the stage before gave, on the functions that the proxy itself calls; the
figure is CPU time of the process, threads included, divided by the deltas of the recording. What
is not here, because it has no function of its own, is the event loop: waking up, reading sockets.
"""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import uvloop

from adapters.captures import (
    CapturedRequest,
    CapturedResponse,
    ExchangeEnd,
    LogLine,
    Record,
    body_of,
    format_record,
)
from adapters.captures.redact import Redactor
from adapters.engine.client import EngineClient
from adapters.eve.server import EveEncoder
from adapters.model.base import Encoder, EncoderContext, Frame, Response
from adapters.model.commands import SendMessage
from adapters.model.events import Entry, Event, Text
from adapters.model.normalizer import Normalizer
from adapters.offline.replay import ReplayClient, ReplayScript, script_of
from adapters.registry import deltas
from adapters.wire.framing.sse import SseFrame, SseParser
from bench.origin import Connection, Origin, Turn
from bench.wire import ChunkedBody
from proxy.base.errors import JournalError
from proxy.fanout.hub import Feed, Reader
from proxy.journal import open_journal
from proxy.journal.base import Write

_READ_BYTES = 8192
"""Bytes of one read under backlog: some forty events."""
_BATCH = 64
"""Events in one journal write and in one socket write under backlog."""
_REPEATS = 3
_NOW = 1_800_000_000_000
"""Some time, Unix milliseconds."""
_TASK = "bench"
_SESSION = "dgs_01bench0000000000000000000"
_DRAIN = "import socket; s = socket.socket(fileno=0)\nwhile s.recv(1 << 20): pass"

RECORD = "record both sides' bytes and the log, where that is configured"
REPLAY = "play a capture at the highest speed"
BESIDE = frozenset({RECORD, REPLAY})
"""Stages that are not on the way of an event."""

T = TypeVar("T")


def measure(folder: Path, *, quick: bool) -> list[tuple[str, float]]:
    """Give name and microseconds per event of each stage, in the order of an event's way."""
    deltas = 2_000 if quick else 40_000
    body = recording(deltas)
    pieces = [body[at : at + _READ_BYTES] for at in range(0, len(body), _READ_BYTES)]
    stages: list[tuple[str, float]] = []

    def timed(name: str, work: Callable[[], tuple[int, T]]) -> T:
        runs = [work() for _ in range(_REPEATS)]
        spent = statistics.median(spent for spent, _ in runs)
        stages.append((name, spent / deltas / 1000))
        return runs[0][1]

    # The lists of a whole recording keep the collector busier than a live stream would.
    gc.disable()
    try:
        frames = timed("framing", lambda: _clocked(lambda: _frames(pieces)))
        raw = timed("decode", lambda: _clocked(lambda: _decode(frames)))
        events = timed("normalize", lambda: _clocked(lambda: _normalize(raw)))
        entries = [Entry(number, _NOW, _SESSION, event) for number, event in enumerate(events, 1)]
        rows = timed("serialize", lambda: _clocked(lambda: [e.encode_row() for e in entries]))
        batches = [rows[at : at + _BATCH] for at in range(0, len(rows), _BATCH)]
        timed("append", lambda: (uvloop.run(_append(folder, batches)), None))
        records = timed("encode", lambda: _clocked(lambda: _encode(entries)))
        timed("fan-out", lambda: (uvloop.run(_fan_out(entries, records)), None))
        timed("write", lambda: (uvloop.run(_write(records)), None))
        timed(RECORD, lambda: _clocked(lambda: _record(pieces, entries)))
        script = script_of(entries)
        timed(REPLAY, lambda: _clocked(lambda: _replay(script)))
    finally:
        gc.enable()
    return stages


def _clocked(work: Callable[[], T]) -> tuple[int, T]:
    begun = time.process_time_ns()
    result = work()
    return time.process_time_ns() - begun, result


def recording(deltas: int) -> bytes:
    """Give the body of an Engine turn with so many deltas, as the origin sends it."""

    class Recorder(Connection):
        def __init__(self) -> None:
            super().__init__(Origin())
            self.sent: list[bytes] = []

        def write(self, data: bytes) -> None:
            self.sent.append(data)

    recorder = Recorder()
    turn = Turn(recorder, _TASK, deltas)
    turn.begin()
    for number in range(deltas):
        recorder.sent.append(turn.delta(number))
    turn.end()
    raw = b"".join(recorder.sent)
    return ChunkedBody().feed(raw[raw.index(b"\r\n\r\n") + 4 :])


def _frames(pieces: list[bytes]) -> list[SseFrame]:
    parser = SseParser()
    return [
        frame for piece in pieces for frame in parser.feed(piece) if isinstance(frame, SseFrame)
    ]


def _decode(frames: list[SseFrame]) -> list[list[Event]]:
    client = EngineClient({"task_id": _TASK})
    message = SendMessage(content=(Text(type="text", text="go"),), policy="queue")
    call = client.submit("cmd_1", message)
    out = [client.opened(call, Response(200), _NOW)]
    out += [client.feed(call, frame, _NOW) for frame in frames]
    return out


def _normalize(raw: list[list[Event]]) -> list[Event]:
    normalizer = Normalizer()
    return [event for events in raw for event in normalizer.feed(events)]


def _encode(entries: list[Entry]) -> list[list[Frame]]:
    encoder = EveEncoder(EncoderContext(_SESSION, b"secret"))
    return [encoder.feed(entry) for entry in entries]


def _record(pieces: list[bytes], entries: list[Entry]) -> int:
    """Make the lines of a capture: of the backend's bytes, of as many for a frontend, of the
    log."""
    redactor = Redactor(b"salt", deltas())
    size = 0
    given: list[Record] = []
    for exchange, side in ((1, "backend"), (2, "frontend")):
        given.append(
            CapturedRequest(exchange=exchange, side=side, at=_NOW, method="GET", target="/")  # type: ignore[arg-type]
        )
        headers = (("content-type", "text/event-stream"),)
        given.append(CapturedResponse(exchange=exchange, at=_NOW, status=200, headers=headers))
        given += [body_of(exchange, "response", _NOW, piece) for piece in pieces]
        given.append(ExchangeEnd(exchange=exchange, at=_NOW, how="ended"))
    lines = [LogLine(_NOW, entry.encode()) for entry in entries]
    for record in given:
        for ready in redactor.add(record):
            size += len(format_record(ready))
    for at in range(0, len(lines), _BATCH):
        for ready in redactor.add_log(lines[at : at + _BATCH]):
            size += len(format_record(ready))
    return size + sum(len(format_record(ready)) for ready in redactor.close())


def _replay(script: ReplayScript) -> int:
    client = ReplayClient(script, "engine", math.inf, "bench")
    message = SendMessage(content=(Text(type="text", text="go"),), policy="queue")
    call = client.submit("cmd_1", message)
    count = len(client.respond(call, Response(202), _NOW))
    while client.wake_at is not None:
        count += len(client.tick(_NOW))
    return count


class _Recorded(Encoder):
    """Gives the frames that were encoded before, so that fan-out is measured without encoding."""

    dialect = "eve"
    version = 1

    def __init__(self, frames: list[list[Frame]]) -> None:
        self._frames = frames

    def feed(self, entry: Entry) -> list[Frame]:
        return self._frames[entry.seq - 1]

    def snapshot(self) -> bytes:
        return b""

    def restore(self, snapshot: bytes) -> None:
        """There is nothing to put back."""


class _Nowhere(asyncio.WriteTransport):
    """A transport that takes everything at no cost."""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: object) -> None:
        """Forget the data."""


async def _fan_out(entries: list[Entry], frames: list[list[Frame]]) -> int:
    """Publish to one live reader whose transport costs nothing; give the CPU time in ns."""
    journal = open_journal("memory:")
    feed = Feed(journal, 1, _SESSION, lambda: _Recorded(frames), lambda: len(entries))
    reader = Reader(_Nowhere(), position=0, chunked=True, minds_ends=False)
    reader.live = True
    feed.readers.add(reader)
    begun = time.process_time_ns()
    for at in range(0, len(entries), _BATCH):
        feed.publish(entries[at : at + _BATCH])
    spent = time.process_time_ns() - begun
    if reader.position != sum(len(some) for some in frames):
        raise RuntimeError("the reader of the fan-out stage did not get every frame")
    return spent


async def _append(folder: Path, batches: list[list[bytes]]) -> int:
    """Store the batches, each durable before it counts; give the CPU time in ns."""
    place = Path(tempfile.mkdtemp(dir=folder))
    journal = open_journal(f"sqlite:///{place / 'dragoman.db'}")
    await journal.open()
    try:
        session = await journal.create_session(
            id=_SESSION,
            owner="",
            route="bench",
            dialect="eve",
            backend="bench",
            secret=b"secret",
            at=_NOW,
            body=b'{"seq":1,"at":1,"type":"session.started","thread_id":"main"}\n',
        )
        waiting: set[asyncio.Future[None]] = set()
        first = 2
        begun = time.process_time_ns()
        for batch in batches:
            stored = asyncio.get_running_loop().create_future()
            waiting.add(stored)

            def done(error: JournalError | None, stored: asyncio.Future[None] = stored) -> None:
                if error is None:
                    stored.set_result(None)
                else:
                    stored.set_exception(error)

            body = b"\n".join(batch) + b"\n"
            journal.submit(
                Write(session.key, first=first, count=len(batch), body=body, at=_NOW, done=done)
            )
            first += len(batch)
            if len(waiting) == 4:  # as many as a firehose has streams
                await asyncio.gather(*waiting)
                waiting.clear()
        await asyncio.gather(*waiting)
        return time.process_time_ns() - begun
    finally:
        await journal.aclose()


async def _write(frames: list[list[Frame]]) -> int:
    """Write to a socket that another process reads; give the CPU time in ns."""
    records = [frame.data for some in frames for frame in some]
    near, child = _drained_socket()
    loop = asyncio.get_running_loop()
    begun = time.process_time_ns()
    for at in range(0, len(records), _BATCH):
        await loop.sock_sendall(near, b"".join(records[at : at + _BATCH]))
    spent = time.process_time_ns() - begun
    near.close()
    child.wait()
    return spent


def _drained_socket() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    near, far = socket.socketpair()
    child = subprocess.Popen([sys.executable, "-c", _DRAIN], stdin=far.fileno())
    far.close()
    near.setblocking(False)
    return near, child
