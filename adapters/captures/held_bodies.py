"""Bodies, held back until it is known what of them is secret."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from adapters.captures import (
    CapturedFrame,
    CapturedPiece,
    LogLine,
    MissingRecords,
    Record,
    body_of,
)
from adapters.captures.secrets import (
    DeltaFormat,
    DeltaTexts,
    RunningText,
    SecretFinder,
    StreamFrame,
)
from adapters.wire.framing.ndjson import DEFAULT_MAX_LINE_BYTES
from adapters.wire.jsonvalue import JsonError, parse_json


class _Edit(NamedTuple):
    """What stands in the place of some bytes of a body: where their last one came."""

    start: int
    end: int
    new: bytes


class HeldBody(abc.ABC):
    """The pieces of a body that are held back, as the bytes that they have together. Places are
    those of the body."""

    def __init__(self) -> None:
        self._held: deque[tuple[CapturedPiece, int]] = deque()
        self._data = bytearray()
        # Where `_data` begins.
        self._base = 0
        self._edits: list[_Edit] = []
        # Up to where it was looked at.
        self._searched = 0

    def add(self, record: CapturedPiece) -> list[Record]:
        """Take one and return those that may be written now."""
        data = record.data
        self._held.append((record, len(data)))
        self._data += data
        return self._given(self._look(final=False))

    def close(self) -> list[Record]:
        """Return them all."""
        return self._given(self._look(final=True))

    def settle(self) -> list[Record]:
        """Return what is held back if it is whole, as far as that can be told."""
        return []

    @abc.abstractmethod
    def _look(self, *, final: bool) -> int:
        """Find what is secret, and return up to where that is decided."""

    def _given(self, limit: int) -> list[Record]:
        out: list[Record] = []
        at = self._base
        edits = sorted(self._edits)
        done = 0
        while self._held and at + self._held[0][1] <= limit:
            record, size = self._held.popleft()
            end = at + size
            first = done
            while done < len(edits) and edits[done].end <= end:
                done += 1
            # The next one may begin here.
            mine = edits[first : done + 1]
            if mine and mine[0].start < end:
                new = self._edited(mine, at, end)
                record = body_of(record.exchange, record.of, record.at, new)
            out.append(record)
            at = end
        del self._data[: at - self._base]
        self._base = at
        self._edits = edits[done:]
        return out

    def _edited(self, edits: list[_Edit], at: int, end: int) -> bytes:
        out = bytearray()
        for edit in edits:
            if edit.start >= end:
                break
            out += self._data[at - self._base : max(at, edit.start) - self._base]
            at = min(edit.end, end)
            if edit.end <= end:
                out += edit.new
        return bytes(out + self._data[at - self._base : end - self._base])


class HeldDocument(HeldBody):
    """A body that is one document: JSON, or a form.

    Args:
        clean: what returns it without its secrets.
        size: how many bytes it has, if that is known.
    """

    def __init__(self, clean: Callable[[bytes], bytes], size: int | None) -> None:
        super().__init__()
        self._clean = clean
        self._size = size
        self._left_out: MissingRecords | None = None
        self._tried = 0

    def add(self, record: CapturedPiece) -> list[Record]:
        """The same; what is too much is not kept."""
        if self._left_out is not None:
            count = self._left_out.count + 1
            self._left_out = self._left_out.model_copy(update={"count": count})
            return []
        out = super().add(record)
        # It is as long as a conversation with files may be: the rest of a longer one is left out.
        if len(self._data) > DEFAULT_MAX_LINE_BYTES:
            count = len(self._held)
            self._left_out = MissingRecords(at=record.at, exchange=record.exchange, count=count)
            self._held.clear()
            self._data.clear()
        return out

    def settle(self) -> list[Record]:
        """The same: of JSON that can be told."""
        return self.close() if self._is_whole() else []

    def close(self) -> list[Record]:
        """Return all that is held back, and how much was too much."""
        out = super().close()
        if self._left_out is not None:
            out.append(self._left_out)
        return out

    def _is_whole(self) -> bool:
        if not self._data.lstrip().startswith((b"{", b"[")):
            return True
        try:
            parse_json(bytes(self._data))
        except JsonError:
            return False
        return True

    def _look(self, *, final: bool) -> int:
        end = self._base + len(self._data)
        if not final and not self._ends(end):
            return self._base
        data = bytes(self._data)
        if (new := self._clean(data)) != data:
            self._edits.append(_Edit(self._base, end, new))
        return end

    def _ends(self, end: int) -> bool:
        """Say whether nothing more comes, as far as that is known early: a later body may repeat
        what is secret here."""
        if self._size is not None:
            return end >= self._size
        # Not for each piece: as often as its size doubles.
        if end < 2 * self._tried or not self._data.endswith((b"}", b"]")):
            return False
        self._tried = end
        return self._is_whole()


class HeldText(HeldBody):
    """A body that is another text; `size` is how many bytes it has, if that is known."""

    def __init__(self, finder: SecretFinder, size: int | None) -> None:
        super().__init__()
        self._finder = finder
        self._size = size
        self._running = RunningText(finder)
        self._decided = 0
        # The text that is not decided, where it begins in characters, and how much of it passed.
        self._text = ""
        self._place = 0
        self._passed = 0

    def settle(self) -> list[Record]:
        """The same: it is, for all that is known."""
        return self.close()

    def _look(self, *, final: bool) -> int:
        text = self._data[self._searched - self._base :].decode("utf-8", "surrogateescape")
        self._searched = self._base + len(self._data)
        self._text += text
        self._running.add(text)
        if final or self._searched == self._size:
            self._running.end()
        while self._running.spans:
            span = self._running.spans.popleft()
            start = self._step(span.start)
            self._edits.append(
                _Edit(start, self._step(span.end), self._finder.marked_as(span).encode())
            )
        decided = self._step(self._running.decided)
        self._text = self._text[self._passed :]
        self._place += self._passed
        self._passed = 0
        return decided

    def _step(self, place: int) -> int:
        """Return the byte of a character, to which all before is decided."""
        passed = self._text[self._passed : place - self._place]
        self._passed += len(passed)
        self._decided += len(passed.encode("utf-8", "surrogateescape"))
        return self._decided


class HeldFrames(HeldBody):
    """A stream of frames: SSE, or JSON in lines."""

    def __init__(
        self, finder: SecretFinder, deltas: Mapping[str, DeltaFormat], *, sse: bool
    ) -> None:
        super().__init__()
        self._finder = finder
        self._sse = sse
        self._texts = DeltaTexts(finder, deltas)
        # Where the frame begins that is not whole, and its line that is not.
        self._frame = 0
        self._line = 0
        # The lines of that frame, with their places.
        self._lines: list[tuple[int, bytes]] = []
        # What waits, with its data in the body.
        self._waiting: deque[tuple[StreamFrame, _FrameLines]] = deque()

    def _look(self, *, final: bool) -> int:
        data, base = self._data, self._base
        end = base + len(data)
        final |= end - self._frame > DEFAULT_MAX_LINE_BYTES
        # Only what came now may end a line, or the carriage return before it.
        since = max(self._line, self._searched - 1) - base
        self._searched = end
        if final or data.find(b"\n", since) >= 0 or data.find(b"\r", since) >= 0:
            self._take(bytes(data[self._line - base :]), final=final)
        # Frames wait for the end of a secret, but not without bound.
        if final or self._frame - self._base > 4 * 1024 * 1024:
            self._texts.close()
        waiting = self._waiting
        while waiting and waiting[0][0].settled:
            frame, lines = waiting.popleft()
            if frame.new is not None:
                self._edits += lines.edits(frame.new)
        return waiting[0][1].start if waiting else self._frame

    def _take(self, data: bytes, *, final: bool) -> None:
        """Take lines, and look at the frames that they end."""
        lines = data.splitlines(keepends=True)
        if not (final or data.endswith(b"\n")):
            # It is not whole, or its end is not.
            lines.pop()
        begin, frames = self._frame, []
        for line in lines:
            if self._sse and line[0] in b"\r\n":
                frames.append((self._frame, self._lines))
                self._frame, self._lines = self._line + len(line), []
            else:
                self._lines.append((self._line, line.rstrip(b"\r\n")))
            self._line += len(line)
        if not self._sse:
            frames = [(at, [(at, line)]) for at, line in self._lines]
        elif final and self._lines:
            frames.append((self._frame, self._lines))
        if final or not self._sse:
            self._frame, self._lines = self._line, []
        if frames:
            self._look_at(begin, frames)

    def _look_at(self, begin: int, frames: list[tuple[int, list[tuple[int, bytes]]]]) -> None:
        whole = self._data[begin - self._base : self._frame - self._base]
        clean = self._finder.has_nothing(whole.decode("utf-8", "surrogateescape"))
        given: list[tuple[bytes, str]] = []
        places: list[_FrameLines] = []
        for at, lines in frames:
            event, parts, spans = "", [], []
            for start, line in lines:
                if not self._sse or line.startswith(b"data:"):
                    head = (6 if line[5:6] == b" " else 5) if self._sse else 0
                    parts.append(line[head:])
                    spans.append((start + head, start + len(line)))
                elif line:
                    if line.startswith(b"event:"):
                        event = line[6:].strip().decode(errors="replace")
                    if not clean:
                        self._plain(line, start)
            if len(parts) > 1:
                # What stands between its lines was looked at too.
                clean = False
            if parts:
                given.append((parts[0] if len(parts) == 1 else b"\n".join(parts), event))
                places.append(_FrameLines(at, tuple(spans)))
        for frame, place in zip(self._texts.take(given, clean=clean), places, strict=True):
            if not frame.settled or self._waiting or frame.new is not None:
                self._waiting.append((frame, place))

    def _plain(self, data: bytes, at: int) -> None:
        text = data.decode("utf-8", "surrogateescape")
        new = self._finder.clean(text)
        if new != text:
            edited = new.encode("utf-8", "surrogateescape")
            self._edits.append(_Edit(at, at + len(data), edited))


class _FrameLines(NamedTuple):
    """Where a frame begins in its body, and the data of its lines."""

    start: int
    places: tuple[tuple[int, int], ...]

    def edits(self, new: bytes) -> list[_Edit]:
        """Return what puts something in their place: lines, at the last one."""
        lines = new.split(b"\n")
        if len(lines) != len(self.places):
            # Lines without data are but space in JSON.
            lines = [*(b"" for _ in self.places[1:]), b"\ndata: ".join(lines)]
        return [_Edit(*place, line) for place, line in zip(self.places, lines, strict=True)]


class HeldSourceFrames:
    """Source frames of a journal: the pieces of a stream as it would be that has them one by one.
    All are of one leg and one framing, which the `first` has."""

    def __init__(
        self, finder: SecretFinder, deltas: Mapping[str, DeltaFormat], first: CapturedFrame
    ) -> None:
        self._leg = first.leg
        self._sse = _is_sse(first.data)
        self._stream = HeldFrames(finder, deltas, sse=self._sse)
        self._held: deque[CapturedFrame] = deque()

    def takes(self, record: CapturedFrame) -> bool:
        """Say whether a frame goes on with this stream."""
        return record.leg == self._leg and _is_sse(record.data) == self._sse

    def add(self, record: CapturedFrame) -> list[Record]:
        """Take one and return those that may be written now."""
        data = record.data
        if self._sse:
            event, _, payload = data.partition(_SSE_DATA)
            data = b"%b\ndata: %b\n" % (event, payload.replace(b"\n", b"\ndata: "))
        self._held.append(record)
        piece = body_of(0, "response", record.at, data.replace(b"\r", b"\n") + b"\n")
        return self._given(self._stream.add(piece))

    def close(self) -> list[Record]:
        """Return them all."""
        return self._given(self._stream.close())

    def _given(self, pieces: Sequence[Record]) -> list[Record]:
        out: list[Record] = []
        for piece in pieces:
            assert isinstance(piece, CapturedPiece)
            frame, data = self._held.popleft(), piece.data.rstrip(b"\n")
            if self._sse:
                event, _, payload = data.partition(_SSE_DATA)
                data = b"%b\ndata: %b" % (event, payload.replace(b"\ndata: ", b"\n"))
            out.append(
                CapturedFrame.of(
                    data, at=frame.at, leg=frame.leg, number=frame.number, dialect=frame.dialect
                )
            )
        return out


_SSE_DATA = b"\ndata: "


def _is_sse(data: bytes) -> bool:
    """Say whether a source frame is of an event stream."""
    return data.startswith(b"event: ") and _SSE_DATA in data


class HeldLog:
    """The entries of the canonical log."""

    def __init__(self, finder: SecretFinder, deltas: Mapping[str, DeltaFormat]) -> None:
        self._finder = finder
        self._texts = DeltaTexts(finder, deltas)
        self._held: deque[tuple[LogLine, StreamFrame]] = deque()

    def add(self, records: Sequence[LogLine]) -> list[Record]:
        """Take some and return those that may be written now."""
        whole = b"\n".join([record.entry for record in records]).decode("utf-8", "surrogateescape")
        frames = self._texts.take(
            [(record.entry, "") for record in records], clean=self._finder.has_nothing(whole)
        )
        self._held += zip(records, frames, strict=True)
        return self._given()

    def close(self) -> list[Record]:
        """Return them all."""
        self._texts.close()
        return self._given()

    def _given(self) -> list[Record]:
        out: list[Record] = []
        while self._held and self._held[0][1].settled:
            record, frame = self._held.popleft()
            out.append(record if frame.new is None else record._replace(entry=frame.new))
        return out
