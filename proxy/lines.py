"""The lines of a log as the control API shows them, made from those that are stored without reading
what they say."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator

import orjson

from adapters.events import Entry
from proxy.hub import WRITE_BYTES

RECENT_BYTES = 64 * 1024
"""What is kept of a session's newest lines for those who follow them: some seconds of a fast model;
the journal has the rest."""

STEP_LINES = 16
"""Lines that are made between two places to pause: 20 µs."""

_ROW = re.compile(rb'\{"seq":([0-9]+),"at":[0-9]+,(?="type":"([a-z_.]+)")')
"""The begin of a stored line (`Entry.encode_row`)."""


class Lines:
    """The public form of a session's lines: NDJSON or SSE."""

    def __init__(self, session_id: str, *, sse: bool) -> None:
        self.sse = sse
        self._session_id = session_id
        self._member = b'"session_id":%b,' % orjson.dumps(session_id)

    def of(self, body: bytes, after: int) -> Iterator[tuple[int, bytes] | None]:
        """Yield the lines after seq `after` of a journal's chunk, joined to a good size for a
        write, each with the last seq in it; None where it may pause."""
        out: list[bytes] = []
        size = 0
        for number, row in enumerate(body.split(b"\n")):
            if row:
                seq, line = self._line(row)
                if seq > after:
                    after = seq
                    out.append(line)
                    size += len(line)
            if size >= WRITE_BYTES:
                yield after, b"".join(out)
                out, size = [], 0
            elif not number % STEP_LINES:
                yield None
        if out:
            yield after, b"".join(out)

    def _line(self, row: bytes) -> tuple[int, bytes]:
        begin = _ROW.match(row)
        if begin is None:
            entry = Entry.decode(row, session_id=self._session_id)
            seq, kind, line = entry.seq, entry.event.TYPE.encode(), entry.encode()
        else:
            seq, kind, end = int(begin[1]), begin[2], begin.end()
            line = b"%b%b%b" % (row[:end], self._member, row[end:])
        if self.sse:
            return seq, b"event: %b\nid: %d\ndata: %b\n\n" % (kind, seq, line)
        return seq, line + b"\n"


class Recent:
    """The newest lines of a session, while somebody follows them: each form is made once for
    all."""

    __slots__ = ("_made", "_size", "_writes", "followers")

    def __init__(self) -> None:
        self.followers = 0
        self._writes: collections.deque[tuple[int, int, bytes]] = collections.deque()
        self._size = 0
        self._made: dict[tuple[bool, int], bytes] = {}

    def add(self, first: int, count: int, body: bytes) -> None:
        """Take the lines of a write that is stored."""
        if not self.followers:
            return
        if self._writes and self._writes[-1][0] + self._writes[-1][1] != first:
            self.clear()
        self._writes.append((first, count, body))
        self._size += len(body)
        while self._size > RECENT_BYTES:
            first, _, body = self._writes.popleft()
            self._size -= len(body)
            for sse in (False, True):
                self._made.pop((sse, first), None)

    def clear(self) -> None:
        """Forget all."""
        self._writes.clear()
        self._made.clear()
        self._size = 0

    def after(self, seq: int, lines: Lines) -> Iterator[tuple[int, bytes]]:
        """Yield the lines after `seq`, a write at a time with its last seq, where one begins
        there; nothing where that one is not kept."""
        for first, count, body in list(self._writes):
            if first != seq + 1:
                continue
            seq = first + count - 1
            key = (lines.sse, first)
            made = self._made.get(key)
            if made is None:
                parts = [part[1] for part in lines.of(body, 0) if part is not None]
                made = self._made[key] = b"".join(parts)
            yield seq, made
