"""Asks the backend how a turn stands, at the times that `watch` gives.

The codec asks in its own way, and most break their streams, which then open anew where they were
read.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Iterator

from proxy.session.core import SessionCore
from proxy.session.log_writer import LogWriter
from proxy.session.watch import Watch
from proxy.upstream.client import BackendStream

_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True, eq=False)
class Watcher:
    """Watches the turns of one session. `watch` is told what the streams bring."""

    watch: Watch
    core: SessionCore
    log: LogWriter
    _timer: asyncio.Task[None] | None = dataclasses.field(default=None, init=False)
    # The streams that are read, and the threads of those that were broken to ask.
    _open: dict[str, BackendStream] = dataclasses.field(default_factory=dict, init=False)
    _broken: set[str] = dataclasses.field(default_factory=set, init=False)

    @property
    def is_working(self) -> bool:
        """Say whether a turn is open, or one is owed."""
        return self.watch.watching or self.log.state.busy

    @contextlib.contextmanager
    def reads(self, thread_id: str, stream: BackendStream) -> Iterator[None]:
        """Know a stream while it is read."""
        self._open[thread_id] = stream
        try:
            yield
        finally:
            if self._open.get(thread_id) is stream:
                del self._open[thread_id]

    def is_reading(self, thread_id: str) -> bool:
        """Say whether the stream of a thread is open."""
        return thread_id in self._open

    def broke(self, thread_id: str) -> bool:
        """Say, once, whether a thread's stream was broken to ask: that is not a fault of it."""
        if thread_id not in self._broken:
            return False
        self._broken.discard(thread_id)
        return True

    def check(self, *, working: bool, owed: bool, stopped: bool) -> bool:
        """Ask when it is time. `working` says whether the backend has something to tell, `owed`
        whether that is the turn of a message which it has taken, `stopped` whether a person stops
        what is open. Return whether that is to be ended here."""
        watch, now = self.watch, self.log.time()
        busy = self.log.state.busy
        if not (working or stopped or (busy and (watch.doubts or watch.is_stopped))):
            watch.rest()
            return False
        if working or stopped:
            watch.begin(now, owed=owed)
        if stopped and watch.stop(now):
            self.close()
        if watch.ends is not None and now >= watch.ends:
            return True
        if now >= watch.due:
            self.look("a frame could not be read" if watch.doubts else "nothing came")
        if self._timer is None:
            self._set_timer()
        return False

    def doubt(self, why: str) -> None:
        """Ask the backend at once, unless it was asked just now."""
        if self.watch.may_ask(self.log.time()):
            self.look(why)

    def rearm(self) -> None:
        """Wake earlier than was planned."""
        self.close()
        self._set_timer()

    def look(self, why: str) -> None:
        """Ask the backend how the turn stands."""
        now = self.log.time()
        self.watch.asked(now)
        _log.info("session `%s`: %s, so its backend is asked", self.core.row.id, why)
        if self.core.codec.look(now):
            self._broken.update(self._open)
            self.stop_streams()

    def stop_streams(self) -> None:
        """Break all streams that are read."""
        for stream in list(self._open.values()):
            stream.stop()

    def _set_timer(self) -> None:
        due, ends = self.watch.due, self.watch.ends
        due = due if ends is None else min(due, ends)
        self._timer = self.core.start_timer(self._until(due), "watch")

    async def _until(self, due: int) -> None:
        await self.core.clock.sleep(max(due - self.log.time(), 0) / 1000)
        self._timer = None
        self.core.pump()

    def close(self) -> None:
        """Let the time pass."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
