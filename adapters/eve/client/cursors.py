"""How far each stream was read, and the blocks that it is in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import orjson

from adapters.eve.client.state import StreamCursor, ThreadState
from adapters.model import events as ev


@dataclasses.dataclass(slots=True)
class StreamCursors:
    """The cursors of all threads, and the count of frames."""

    frames: int = dataclasses.field(default=0, init=False)
    by_thread: dict[str, StreamCursor] = dataclasses.field(
        default_factory=lambda: {ev.MAIN: StreamCursor()}, init=False
    )
    # The threads whose place is another one than in the last snapshot.
    moved: set[str] = dataclasses.field(default_factory=set, init=False)

    def of(self, thread: str) -> StreamCursor:
        """Return the place of a thread, which is about to move."""
        self.moved.add(thread)
        place = self.by_thread.get(thread)
        if place is None:
            place = self.by_thread[thread] = StreamCursor()
        return place

    def stored(self, threads: Iterable[str]) -> bytes:
        """Return the places of threads as they are stored."""
        places = {}
        for thread in threads:
            place = self.by_thread[thread]
            places[thread] = (place.count, place.text, place.reasoning, place.blocks)
        return orjson.dumps((self.frames, places))


def block_id(line: ThreadState, place: StreamCursor) -> str:
    """Return the name of the block that a thread is in."""
    number = place.blocks
    return f"b{number}" if line.thread == ev.MAIN else f"{line.thread}:b{number}"


def message_id(line: ThreadState, place: StreamCursor) -> str:
    """Return the name of the message that a thread is in."""
    # In eve every block is a message of its own.
    number = place.blocks
    return f"m{number}" if line.thread == ev.MAIN else f"{line.thread}:m{number}"
