"""A session over a scripted backend in one event loop: no socket, no disk, and a clock that moves
when nothing else does. A whole conversation takes milliseconds, however long it lasts.

`Wire` stands where the connections to a backend are. It hands requests to the application of the
scripted backend, and from `refuse` or `silence` on it answers in its place: what the backend still
does is not heard any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from aiohttp import web
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from yarl import URL

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, Response
from adapters.registry import DIALECTS
from adapters.wire.framing.ndjson import NdjsonParser
from adapters.wire.framing.sse import SseParser
from proxy.base.clock import ManualClock, SeededIds
from proxy.base.errors import UpstreamTimeout, UpstreamUnavailable
from proxy.base.rows import BackendBinding, NewSession, SessionRow
from proxy.base.tasks import Tasks
from proxy.fanout.hub import entries_in
from proxy.journal.base import Write
from proxy.session import Session, SessionContext, SessionCore, codec_of
from proxy.upstream.client import STREAM_TYPES, Load, Take, type_of
from tests.faults.backends import Kind
from tests.support.dragoman import KNOWN

__all__ = ["Inward", "Wire"]

ANSWER_SECONDS = 60.0
"""How long an answer is waited for, as `proxy.upstream.client` has it."""

ROUNDS = 12
"""Turns of the loop without a news after which nothing moves but by the clock."""

LATE = 2**60
"""Never, in Unix milliseconds."""


class _Body:
    """What an application writes: the head, then the pieces of the body."""

    def __init__(self) -> None:
        self.head: asyncio.Future[tuple[int, CIMultiDict[str]]] = asyncio.Future()
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.length: int | None = None
        self.buffer_size = self.output_size = 0
        self.transport: Any = None

    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None:
        if not self.head.done():
            self.head.set_result((int(status_line.split(" ")[1]), CIMultiDict(headers)))

    def send_headers(self) -> None:
        pass

    def enable_chunking(self) -> None:
        pass

    async def drain(self) -> None:
        pass

    async def write(self, data: bytes) -> None:
        if data:
            self.pieces.put_nowait(bytes(data))

    async def write_eof(self, data: bytes = b"") -> None:
        await self.write(data)
        self.pieces.put_nowait(b"")


class _Stream:
    """A stream of the application, read as `proxy.upstream.client.BackendStream` reads one."""

    def __init__(self, wire: Wire, framing: str, head: Response, body: _Body | None) -> None:
        self.head = head
        self.tail = b""
        self._wire = wire
        self._parser = SseParser() if framing == "sse" else NdjsonParser()
        self._body = body
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def read(self, take: Take) -> None:
        wire = self._wire
        while True:
            got = asyncio.ensure_future(self._next())
            try:
                silent = None if wire.beats or self._live else wire.clock.sleep(ANSWER_SECONDS)
                await _first_of(got, self._stopped.wait(), silent)
            finally:
                got.cancel()
            if self._stopped.is_set() or not got.done() or got.cancelled():
                raise UpstreamTimeout("The stream was silent.")
            data = got.result()
            if not data:
                return
            if (busy := take(self._parser.feed(data))) is not None:
                await busy

    @property
    def _live(self) -> bool:
        return self._wire.says is None and not self._wire.mute

    async def _next(self) -> bytes:
        if self._body is None:
            await asyncio.Event().wait()
            raise AssertionError
        while True:
            data = await self._body.pieces.get()
            if self._live:
                return data


async def _first_of(*works: Any) -> None:
    tasks = [asyncio.ensure_future(work) for work in works if work is not None]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks[1:]:
            task.cancel()


class Wire:
    """The way to a scripted backend. `says` is None while it is heard, then the status of every
    answer, or `silence`: then nothing is answered, and a stream opens and says nothing; or
    `packed`: then no answer can be read.

    `mute` lets the streams that are open say nothing more; `beats` says that they are alive all the
    same. `only` are the calls, by name, that are refused; all are without it.
    """

    def __init__(self, app: web.Application, clock: ManualClock) -> None:
        app.freeze()
        self._app = app
        self.clock = clock
        self.says: int | str | None = None
        self.only: frozenset[str] | None = None
        self.mute = False
        self.beats = True
        self.asked: list[str] = []
        self.refusal: Callable[[int], bytes] = lambda status: b""
        self._running: set[asyncio.Task[Any]] = set()
        # Mocks of it would take more time than all the rest.
        self._protocol: Any = _Unlimited()

    def trouble(self, *_: object) -> None:
        pass

    def skipped(self, *_: object) -> None:
        pass

    def concluded(self, *_: object) -> None:
        pass

    def _refused(self, call: Call) -> int | str | None:
        return self.says if self.only is None or call.name in self.only else None

    async def call(self, call: Call, load: Load, trace: str | None) -> Response:
        self.asked.append(call.name)
        says = self._refused(call)
        if says == "silence":
            await self.clock.sleep(ANSWER_SECONDS)
            raise UpstreamTimeout("The backend did not answer in time.")
        if says == "packed":
            raise UpstreamUnavailable("The backend's answer is packed.", sent=True)
        if isinstance(says, int):
            await asyncio.sleep(0)
            return self._refusal(says)
        head, body = await self._ask(call, await load())
        return await self._whole(head, body)

    def _refusal(self, status: int) -> Response:
        headers = CIMultiDict({"Content-Type": "application/json"})
        return Response(status, headers, self.refusal(status))

    async def _whole(self, head: Response, body: _Body) -> Response:
        data = b""
        while piece := await body.pieces.get():
            data += piece
        return Response(head.status, head.headers, data)

    @contextlib.asynccontextmanager
    async def stream(
        self, call: Call, framing: str, load: Load, trace: str | None
    ) -> AsyncIterator[_Stream | Response]:
        self.asked.append(call.name)
        says = self._refused(call)
        if says == "packed":
            raise UpstreamUnavailable("The backend's answer is packed.", sent=True)
        if isinstance(says, int):
            await asyncio.sleep(0)
            yield self._refusal(says)
            return
        if says == "silence":
            await asyncio.sleep(0)
            if call.command_ids:
                # It is a message too.
                await self.clock.sleep(ANSWER_SECONDS)
                raise UpstreamTimeout("The backend did not answer in time.")
            head = Response(200, CIMultiDict({"Content-Type": STREAM_TYPES[framing]}))
            yield _Stream(self, framing, head, None)
            return
        head, body = await self._ask(call, await load())
        if head.status < 300 and type_of(head) == STREAM_TYPES[framing]:
            yield _Stream(self, framing, head, body)
        else:
            yield await self._whole(head, body)

    async def _ask(self, call: Call, files: Mapping[str, bytes]) -> tuple[Response, _Body]:
        assert not files
        request = call.request
        payload = StreamReader(self._protocol, 2**16, loop=asyncio.get_running_loop())
        if request.body:
            payload.feed_data(bytes(request.body))
        payload.feed_eof()
        body = _Body()
        url = URL(request.path or "/", encoded=True).with_query(request.query)
        made = make_mocked_request(
            request.method,
            str(url),
            CIMultiDict({"Host": "backend", **request.headers}),
            app=self._app,
            writer=body,
            protocol=self._protocol,
            transport=self._protocol.transport,
            payload=payload,
        )
        task = asyncio.ensure_future(self._handle(made, body))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        both: set[asyncio.Future[Any]] = {task, body.head}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not body.head.done():
            task.result()
        status, headers = body.head.result()
        return Response(status, headers), body

    async def _handle(self, request: web.Request, body: _Body) -> None:
        response = await self._app._handle(request)
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()

    async def close(self) -> None:
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


class _Unlimited:
    """A connection that has room for everything."""

    _reading_paused = False
    connected = True
    transport: Any = None
    writer: Any = None
    ssl_context = peername = sockname = None

    def pause_reading(self, **_: object) -> None:
        pass

    def resume_reading(self, **_: object) -> None:
        pass


class _Memory:
    """A journal that forgets: each write is stored in the next turn of the loop."""

    backlog = 0

    def __init__(self) -> None:
        self.events: list[tuple[int, ev.Event]] = []
        self.writes = 0

    def submit(self, write: Write) -> None:
        self.writes += 1
        if write.count:
            entries = entries_in(write.body, "dgs_1")
            self.events += [(entry.at, entry.event) for entry in entries]
        if write.done is not None:
            asyncio.get_running_loop().call_soon(write.done, None)

    def add_snapshot(self, *_: object) -> None:
        pass

    def add_frames(self, *_: object) -> None:
        pass


class Inward:
    """One session over one scripted backend."""

    def __init__(self, kind: Kind, table: Mapping[str, Any] | None = None) -> None:
        self.clock = ManualClock()
        known = KNOWN[kind.dialect]
        # It stands still when the backend is not heard any more.
        self.backend_clock = ManualClock()
        options = {**kind.options, "clock": self.backend_clock, "pace": 1.0}
        app = known.create(**options)
        self.backend = app[known.state]
        self.wire = Wire(app, self.clock)
        self.memory = _Memory()
        self.tasks = Tasks("test")
        self.lost: list[object] = []
        settings = {**known.needed.get("create", {}), "task_id": "t-1", **(table or {})}
        make = DIALECTS[kind.dialect].client
        assert make is not None
        self.codec = make(settings)
        row = SessionRow(1, "dgs_1", "me", "r", "eve", self.clock.now(), b"s" * 32)
        self.row = row
        named = "t-1" if DIALECTS[kind.dialect].chosen_names else None
        journal: Any = self.memory
        upstream: Any = self.wire
        self._new = NewSession(row, kind.dialect, named, codec_of("eve", kind.dialect, {}))
        core = SessionCore(
            row,
            BackendBinding(1, 0, kind.dialect, named),
            SessionContext(
                journal=journal,
                tasks=self.tasks,
                clock=self.clock,
                ids=SeededIds(),
                slots=asyncio.Semaphore(1),
                keep_frames=False,
                faces={"eve": {}},
            ),
            codec=self.codec,
            upstream=upstream,
            patience=None,
            silence=60_000,
        )
        self.session = Session(core, self.lost.append, self.lost.append, lambda *_: None)

    async def __aenter__(self) -> Inward:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.session.close()
        await self.tasks.aclose()
        await self.backend.stop()
        await self.wire.close()

    # What a person does.

    async def begin(self, text: str) -> None:
        """Make the session with its first message."""
        started = ev.SessionStarted(thread_id=ev.MAIN, agent={"id": "agent_K4"}, synthetic=True)
        await self.session.begin(self._new, [started], [said(text)], by="me")

    async def submit(self, *commands: cmd.AnyCommand) -> list[str]:
        """Do something; raises what it is refused with."""
        return await self.session.submit(commands, by="me", face="eve")

    # Time.

    async def settle(self) -> None:
        """Let everything run that needs no time."""
        still, before = 0, -1
        while still < ROUNDS:
            await asyncio.sleep(0)
            now = self.memory.writes + len(self.wire.asked)
            still, before = (still + 1 if now == before else 0), now

    async def until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until something is so, for that long at most; say whether it is."""
        end = self.clock.now() + round(seconds * 1000)
        for _ in itertools.count():
            await self.settle()
            if is_so():
                return True
            now = self.clock.now()
            if now >= end:
                return False
            passed = (min(self._next(), end) - now) / 1000
            await self.clock.advance(max(passed, 0.001))
            if self.wire.says is None:
                await self.backend_clock.advance(max(passed, 0.001))
        raise AssertionError

    def _next(self) -> int:
        """When somebody is woken next."""
        clocks = [self.clock] if self.wire.says is not None else [self.clock, self.backend_clock]
        dues = [
            min((at for at, _, sleeper in clock._sleepers if not sleeper.done()), default=LATE)
            for clock in clocks
        ]
        return min(dues)

    @property
    def events(self) -> list[ev.Event]:
        return [event for _, event in self.memory.events]


def said(text: str, policy: ev.Policy = "queue") -> cmd.SendMessage:
    """A message."""
    return cmd.SendMessage(content=(ev.Text(text=text),), policy=policy)
