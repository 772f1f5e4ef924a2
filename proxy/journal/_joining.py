"""What the rows of a session hold, joined: its events to chunks, its source frames to a list."""

from __future__ import annotations

from proxy.base.errors import JournalCorrupt
from proxy.base.rows import Chunk
from proxy.journal._frames import unpack_frames


class ChunkJoiner:
    """Joins the rows of a session to chunks, and checks that no row is missing."""

    def __init__(self, session: int, after: int, limit: int, limit_rows: int | None) -> None:
        self.wanted = after + 1
        self.rows = 0
        self._limit_rows = limit_rows
        self._session = session
        self.left = limit
        self._chunks: list[Chunk] = []
        self._bodies: list[bytes] = []
        self._first = 0
        self._size = 0

    def add(self, first: int, count: int | None, body: bytes | None) -> bool:
        """Take the next row, and say whether there is room for another."""
        if count is None or body is None:
            raise JournalCorrupt(
                f"session {self._session}: the row with seq {first} is gone; restore a backup"
            )
        self.rows += 1
        if first + count <= self.wanted:
            return True
        # Only the first row that is read may begin before the cursor.
        if first > self.wanted or (first < self.wanted and (self._bodies or self._chunks)):
            raise JournalCorrupt(
                f"session {self._session}: expected seq {self.wanted}, found {first}; "
                "restore a backup"
            )
        if not self._bodies:
            self._first = first
        self._bodies.append(body)
        self.wanted = first + count
        self._size += len(body)
        self.left -= len(body)
        # A row is often one event, and each chunk costs its reader a step: rows are joined.
        if self._size >= 64 * 1024:
            self._close()
        return self.left > 0 and self.rows != self._limit_rows

    def chunks(self) -> list[Chunk]:
        if self._bodies:
            self._close()
        return self._chunks

    def _close(self) -> None:
        body = self._bodies[0] if len(self._bodies) == 1 else b"".join(self._bodies)
        self._chunks.append(Chunk(self._first, self.wanted - self._first, body))
        self._bodies = []
        self._size = 0


class FrameJoiner:
    """Joins batches of kept source frames to at most `limit` frames as (number, bytes), from number
    `first` on, and takes no more once they have `limit_bytes`."""

    def __init__(self, session: int, first: int, limit: int, limit_bytes: int | None) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self._session = session
        self._first = first
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._size = 0

    def add(self, last: int, data: bytes) -> bool:
        """Take the next batch, whose newest frame is `last`, and say whether there is room for
        another.

        Raises:
            JournalCorrupt: it is damaged.
        """
        try:
            batch = unpack_frames(data)
        except ValueError as error:
            raise JournalCorrupt(f"frames of session {self._session}: {error}") from error
        for number, frame in enumerate(batch, last - len(batch) + 1):
            # A frame that was kept twice, before and after a crash, is shown once.
            if number >= self._first:
                self.frames.append((number, frame))
                self._first = number + 1
                self._size += len(frame)
                if len(self.frames) >= self._limit or (
                    self._limit_bytes is not None and self._size >= self._limit_bytes
                ):
                    return False
        return True
