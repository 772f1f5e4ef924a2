"""What comes from the backend: streams that are kept open, their frames, whole answers, and the
time that the codec waits for.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Coroutine
from typing import Any

from adapters.model import events as ev
from adapters.model.base import Call, ClientCodec, CloseReason, Request, Response
from adapters.model.file_body import FileBody
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.framing import TORN, FrameTooLarge
from proxy.base.errors import (
    JournalError,
    UpstreamDenied,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from proxy.base.sealed import REDACTED
from proxy.session.core import SessionCore
from proxy.session.frames import source_of, too_full
from proxy.session.log_writer import LogWriter
from proxy.session.notices import away, denies, given_up, judge, judge_head, no_stream, nothing_new
from proxy.session.settlements import interrupted
from proxy.session.watch import LIMITS, Watch, is_unread
from proxy.session.watcher import Watcher
from proxy.upstream.client import BackendStream, Frames
from proxy.upstream.reconnect import Attempts, Backoff

BACKLOG_BYTES = 8 * 1024 * 1024
"""Bytes waiting for the disk above which backends are not read on: a fraction of a second of a fast
disk."""

DELIVERED = Call("delivered", Request("POST", "/"))
"""Stands for the stream of what a backend sends by itself."""

SLICE_FRAMES = 64
"""Frames that are decoded and stored at once. Others have their turn between."""


def may_have_arrived(error: UpstreamError) -> bool:
    """Say whether the backend may have seen a call that got no answer."""
    if isinstance(error, UpstreamUnavailable):
        return error.sent
    return isinstance(error, UpstreamTimeout)


@dataclasses.dataclass(slots=True, eq=False)
class InboundReader:
    """Reads what the backend of one session says. `streams` are the tasks that read its threads."""

    core: SessionCore
    log: LogWriter
    _doubt_since: int | None = dataclasses.field(default=None, init=False)
    _timer: asyncio.Task[None] | None = dataclasses.field(default=None, init=False)
    _timer_at: int = dataclasses.field(default=0, init=False)
    watcher: Watcher = dataclasses.field(init=False)
    streams: dict[str, asyncio.Task[None]] = dataclasses.field(default_factory=dict, init=False)
    _attempts: Attempts = dataclasses.field(default_factory=Attempts, init=False)

    def __post_init__(self) -> None:
        self.watcher = Watcher(Watch(self.core.silence), self.core, self.log)

    def rebind(self) -> None:
        """Read another backend from now on: the streams of the one before are over."""
        self.close()
        for task in list(self.streams.values()):
            task.cancel()
        self.streams.clear()
        self._timer, self._doubt_since = None, None
        self.watcher = Watcher(Watch(self.core.silence), self.core, self.log)

    # Answers.

    def answer(self, call: Call) -> Coroutine[Any, Any, Response]:
        """Do a call and return its whole answer.

        Raises:
            UpstreamError: there is none.
        """
        load = functools.partial(self._files, call)
        return self.core.upstream.call(call, load, self._trace(call))

    def _trace(self, call: Call) -> str | None:
        """Return the `traceparent` of the input that a call carries, or asks for; of others that of
        the message that the backend works on."""
        inputs = self.log.state.inputs
        for name in call.command_ids:
            if name in inputs and (trace := inputs[name].trace) is not None:
                return trace
        return self.log.trace

    async def _files(self, call: Call) -> dict[str, bytes]:
        """Return the files that the body of a call names.

        Raises:
            UpstreamUnavailable: one cannot be had, and so the call not be done.
        """
        body = call.request.body
        files: dict[str, bytes] = {}
        for name in body.files if isinstance(body, FileBody) else ():
            try:
                data = await self.core.journal.blob(name)
            except JournalError as error:
                text = f"A file of the request cannot be read: {error.whole}"
                shown = "A file of the request cannot be read now."
                raise UpstreamUnavailable(text, sent=False, shown=shown) from error
            if data is None:
                raise UpstreamUnavailable("A file of the request is not stored.", sent=False)
            files[name] = data
        return files

    def respond(self, call: Call, response: Response) -> None:
        """Hear the whole answer of a call."""
        if self.log.held.active:
            response = self.log.held.response(response)
        heard = self.core.codec.respond(call, response, self.log.time())
        judge(self.core.upstream, self.core.codec, call, response, heard)
        self.log.hear(heard, answer=True)
        if call.command_ids and denies(response) and self.watcher.is_working:
            self.watcher.doubt(f"it answers `{call.name}` with {response.status}")

    def failed(self, call: Call, error: UpstreamError) -> None:
        """Record that a call got no answer."""
        self.log.hear(self._failed(call, error), answer=True)

    def _failed(self, call: Call, error: UpstreamError) -> list[ev.Event]:
        sent, now = may_have_arrived(error), self.log.time()
        return self.core.codec.failed(call, error, sent=sent, now=now)

    def give_up(self, error: DragomanError, thread_id: str = ev.MAIN) -> None:
        """Record that a thread's stream cannot be had again."""
        given_up(self.core.row.id, self.core.leg, error)
        self.log.hear(self.core.codec.give_up(error, self.log.time(), thread_id=thread_id))

    def settle(self, error: DragomanError, *, stopped: bool = False) -> None:
        """End what runs, and read no further what is said of it. What a person has `stopped` has
        not failed."""
        given_up(self.core.row.id, self.core.leg, error)
        heard = self.core.codec.give_up(error, self.log.time())
        self.log.hear([interrupted(event) for event in heard] if stopped else heard)
        self.watcher.stop_streams()

    @property
    def reconnecting_since(self) -> int | None:
        """Return since when a stream is wanted that cannot be had, in Unix ms."""
        since = self._attempts.since(self.watcher.is_reading)
        return None if since is None else self.core.clock.now() - self.log.time() + since

    # Streams.

    def backoff(self) -> Backoff:
        """Return waits between attempts."""
        return Backoff(self.core.context.ids.fraction)

    def doubt(self, since: int) -> None:
        """Record that a stream which is read to its end without a word of a command is evidence of
        all the time since then, not of this start's only."""
        self._doubt_since = since

    def open_streams(self) -> None:
        """Open the streams that the codec wants and nobody reads, each a turn of the loop after the
        one before: to connect takes time, and there may be many."""
        behind = 0
        for call in self.core.codec.streams():
            if call.thread_id not in self.streams:
                work = self.follow(call.thread_id, behind=behind)
                self._keep(call.thread_id, self.core.start(work, f"follow {call.thread_id}"))
                behind += 1

    def _keep(self, thread_id: str, task: asyncio.Task[None]) -> None:
        """Let a task be the one that reads a thread. The body of the turn before may not be over,
        or only just asked for: what it would still say is of a turn that has ended."""
        before = self.streams.get(thread_id)
        self.streams[thread_id] = task
        if before is not None and before is not task:
            before.cancel()

        def over(task: asyncio.Task[None]) -> None:
            if self.streams.get(thread_id) is task:
                del self.streams[thread_id]
            if not task.cancelled():
                self.core.pump()

        task.add_done_callback(over)

    async def begin(self, call: Call) -> None:
        """Do a stream call that carries a command, and follow what it begins."""
        task = asyncio.current_task()
        assert task is not None
        self._keep(call.thread_id, task)
        broken = await self.run(call)
        if self.watcher.broke(call.thread_id):
            broken = None
        await self.follow(call.thread_id, because=broken)

    async def leave(self, call: Call) -> None:
        """Close the stream of a thread, or give up asking for it: so its backend is stopped."""
        if (task := self.streams.get(call.thread_id)) is not None:
            task.cancel()
            await asyncio.wait([task])
        self.log.hear(
            self.core.codec.closed(call, CloseReason.STOPPED, self.log.time()), answer=True
        )
        self.core.pump()

    async def follow(
        self, thread_id: str, *, because: UpstreamError | None = None, behind: int = 0
    ) -> None:
        """Keep a stream of the backend open as long as the codec wants it, within its patience.

        `because` is what broke it before; it begins `behind` so many others.
        """
        for _ in range(behind):
            await asyncio.sleep(0)
        with self._attempts.at(thread_id, self.backoff()) as backoff:
            await self._follow(thread_id, backoff, because)

    async def _follow(
        self, thread_id: str, backoff: Backoff, because: UpstreamError | None
    ) -> None:
        codec, log = self.core.codec, self.log
        doubt_since, self._doubt_since = self._doubt_since, None
        await log.named()
        told = False
        while True:
            if self.core.closed or (call := _wanted(codec, thread_id)) is None:
                return
            before, opened_at = codec.position, log.time()
            heard = (codec.frames, log.seq)
            error = await self.run(call)
            if _wanted(codec, thread_id) is None:
                return
            now = log.time()
            because = error or because
            # A lease that ended is not a fault: the dialect expects its reader back soon. Nor is a
            # stream that was broken to ask the backend.
            # It was on a lease, which eve gives for 60 s (eve page, section 7.4).
            leased = error is None and now - opened_at >= 30_000
            if self.watcher.broke(thread_id):
                because, leased = None, True
            # Whether an attempt changed the codec's own notes is nothing new from the backend.
            news = (codec.frames, log.seq) != heard
            if leased or (news and codec.position != before):
                because = doubt_since = None
                told = False
                backoff.reset()
            else:
                if error is None and doubt_since is not None:
                    backoff.since = doubt_since
                patience = self.core.patience or codec.patience
                if isinstance(error, UpstreamDenied):
                    # One that starts, or is behind another copy of itself, says so for a while.
                    patience = min(patience, 20_000)
                if backoff.exhausted(now, patience):
                    self.give_up(error or nothing_new(because), thread_id)
                    return
                if error is not None and not told and backoff.exhausted(now, 30_000):
                    told = True
                    log.hear([away(error)])
            await self.core.clock.sleep(backoff.next_wait(now) / 1000)

    async def run(self, call: Call) -> UpstreamError | None:
        """Do one stream call from its head to its end; return why it could not be had or broke."""
        if self.core.journal.backlog > BACKLOG_BYTES:
            await self._disk()
        codec, log, opened = self.core.codec, self.log, False
        try:
            load = functools.partial(self._files, call)
            trace = self._trace(call)
            async with self.core.upstream.stream(call, codec.framing, load, trace) as answer:
                if isinstance(answer, Response):
                    self.respond(call, answer)
                    return no_stream(codec, answer)
                opened = True
                self._opened(call, answer.head)
                await self._read(call, answer)
        except UpstreamError as error:
            self._lost(call, error, opened=opened)
            return error
        log.hear(codec.closed(call, CloseReason.ENDED, log.time()))
        return None

    def _opened(self, call: Call, head: Response) -> None:
        heard = self.core.codec.opened(call, head, self.log.time())
        judge_head(self.core.upstream, heard)
        self.log.hear(heard)
        # What waited for the stream may go now.
        self.core.pump()

    def _lost(self, call: Call, error: UpstreamError, *, opened: bool) -> None:
        log = self.log
        lost = CloseReason.LOST
        heard = (
            self.core.codec.closed(call, lost, log.time()) if opened else self._failed(call, error)
        )
        log.hear(heard)

    # Frames.

    async def _read(self, call: Call, stream: BackendStream) -> None:
        def take(frames: Frames) -> Coroutine[Any, Any, None] | None:
            if len(frames) > SLICE_FRAMES or self.core.journal.backlog > BACKLOG_BYTES:
                return self._take_slowly(call, frames)
            self._take(call, frames)
            return None

        with self.watcher.reads(call.thread_id, stream):
            await stream.read(take)
        if stream.tail:
            held = self.log.held
            tail = held.data(stream.tail) if held.active else stream.tail
            self.log.hear(self.core.codec.garbage(call, tail, TORN, self.log.time()))

    async def receive(self, frame: bytes) -> None:
        """Take what the backend sends by itself."""
        await self._disk()
        self._take(DELIVERED, [frame])
        self.core.pump()

    async def _take_slowly(self, call: Call, frames: Frames) -> None:
        """Take many frames, or some while the disk is behind: others have their turn between."""
        for start in range(0, len(frames), SLICE_FRAMES):
            self._take(call, frames[start : start + SLICE_FRAMES])
            await asyncio.sleep(0)
            await self._disk()

    async def _disk(self) -> None:
        """Wait while the disk is far behind: what comes faster than it writes would fill memory."""
        while self.core.journal.backlog > BACKLOG_BYTES:
            await self.core.clock.sleep(0.005)

    def _take(self, call: Call, frames: Frames) -> None:
        """Decode some frames, without sealed values, and hand on what they mean as one write."""
        if self.core.closed:
            return
        held = self.log.held
        if held.active:
            frames = [held.frame(frame) for frame in frames]
        codec, log, at = self.core.codec, self.log, self.core.clock.now()
        now = log.time()
        raw: list[ev.Event] = []
        kept: list[bytes] = []
        first = number = codec.frames
        watch, asks, broken = self.watcher.watch, False, ""
        for frame in frames:
            if isinstance(frame, FrameTooLarge):
                out = codec.garbage(call, frame.offending, str(frame), now)
            elif (full := too_full(frame)) is not None:
                out = codec.garbage(call, full.offending, str(full), now)
            else:
                out = codec.feed(call, frame, now)
                if number != (number := codec.frames):
                    kept.append(REDACTED.encode() if codec.seals(frame) else source_of(frame))
            if not out:
                continue
            raw += out
            if is_unread(why := out[-1]):
                self.core.upstream.skipped(self.core.row.id, why.message)
                asks = watch.skipped(now) or asks
                if watch.unread == LIMITS.unread:
                    broken = f"{LIMITS.unread} frames in a row could not be read: {why.message}"
            else:
                watch.heard(now)
        if self.core.context.keep_frames and kept:
            leg = self.core.leg
            self.core.journal.add_frames(leg.session, leg.number, first + 1, kept, at)
        if raw:
            log.hear(raw, at)
        elif codec.wake_at is not None:
            self.wake()
        if broken and self.watcher.is_working:
            self.settle(DragomanError(broken, code=ErrorCode.BACKEND_PROTOCOL))
        elif asks and self.watcher.is_working:
            self.watcher.rearm()

    # Time.

    def wake(self) -> None:
        """Call the codec's `tick` when it wants."""
        at = self.core.codec.wake_at
        if at is None or self.core.closed or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.core.start_timer(self._tick_at(at), "tick")

    async def _tick_at(self, at: int) -> None:
        log = self.log
        await self.core.clock.sleep(max(at - log.time(), 0) / 1000)
        await self._disk()
        self._timer = None
        if not self.core.closed:
            log.hear(self.core.codec.tick(log.time()))
            self.core.pump()
            self.wake()

    def close(self) -> None:
        """Let the time pass."""
        if self._timer is not None:
            self._timer.cancel()
        self.watcher.close()


def _wanted(codec: ClientCodec, thread_id: str) -> Call | None:
    return next((call for call in codec.streams() if call.thread_id == thread_id), None)
