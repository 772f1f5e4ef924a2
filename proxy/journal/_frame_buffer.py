"""Source frames gather in memory until a batch of them is worth a row."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

from proxy.journal._frames import FrameBatch, cut_frame


@dataclasses.dataclass(slots=True, eq=False)
class FrameBuffer:
    """The frames that gather, for one event loop. `put` gets each batch once it is large enough to
    compress well, or at most one and a half `seconds` after its first frame. Frames are cut to
    `limit` bytes.
    """

    put: Callable[[FrameBatch], object]
    limit: int
    seconds: float
    # In the order of `due`: a batch is put at the end when it begins.
    _batches: dict[tuple[int, int], FrameBatch] = dataclasses.field(
        init=False, default_factory=dict
    )
    _sweep: asyncio.TimerHandle | None = dataclasses.field(init=False, default=None)

    def add(self, session: int, leg: int, first: int, frames: Sequence[bytes], at: int) -> None:
        """Add frames of a leg, numbered from `first`."""
        key = (session, leg)
        batch = self._batches.get(key)
        if batch is not None and batch.first + len(batch.frames) != first:
            self.send(session, leg)
            batch = None
        if batch is None:
            loop = asyncio.get_running_loop()
            due = loop.time() + self.seconds
            batch = self._batches[key] = FrameBatch(session, leg, first, at, [], due=due)
            if self._sweep is None:
                self._sweep = loop.call_at(due, self._send_due)
        size = sum(map(len, frames))
        if size > self.limit:
            frames = [cut_frame(frame, self.limit) for frame in frames]
            size = sum(map(len, frames))
        batch.frames += frames
        batch.size += size
        batch.at = at
        # Large enough to compress well, small enough to unpack for one frame.
        if batch.size >= 64 * 1024:
            self.send(session, leg)

    def send(self, session: int, leg: int) -> None:
        """Hand over what has gathered of a leg."""
        batch = self._batches.pop((session, leg), None)
        if batch is not None:
            self.put(batch)

    def forget(self, session: int) -> None:
        """Forget what has gathered of a session."""
        for key in [key for key in self._batches if key[0] == session]:
            del self._batches[key]

    def close(self) -> None:
        """Hand over all of it."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for key in list(self._batches):
            self.send(*key)

    def _send_due(self) -> None:
        self._sweep = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for key, batch in list(self._batches.items()):
            if batch.due > now:
                break
            self.send(*key)
        if self._batches:
            # Not when the next one is due: with many sessions that would be all the time.
            self._sweep = loop.call_later(self.seconds / 2, self._send_due)
