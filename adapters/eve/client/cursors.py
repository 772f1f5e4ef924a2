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
    # The threads whose cursor is another one than in the last snapshot.
    moved: set[str] = dataclasses.field(default_factory=set, init=False)

    def of(self, thread: str) -> StreamCursor:
        """Return the cursor of a thread, which is about to move."""
        self.moved.add(thread)
        cursor = self.by_thread.get(thread)
        if cursor is None:
            cursor = self.by_thread[thread] = StreamCursor()
        return cursor

    def stored(self, threads: Iterable[str]) -> bytes:
        """Return the cursors of threads as they are stored."""
        cursors = {}
        for thread in threads:
            cursor = self.by_thread[thread]
            cursors[thread] = (cursor.count, cursor.text, cursor.reasoning, cursor.blocks)
        return orjson.dumps((self.frames, cursors))


def block_id(line: ThreadState, cursor: StreamCursor) -> str:
    """Return the name of the block that a thread is in."""
    number = cursor.blocks
    return f"b{number}" if line.thread == ev.MAIN else f"{line.thread}:b{number}"


def message_id(line: ThreadState, cursor: StreamCursor) -> str:
    """Return the name of the message that a thread is in."""
    # In eve every block is a message of its own.
    number = cursor.blocks
    return f"m{number}" if line.thread == ev.MAIN else f"{line.thread}:m{number}"
