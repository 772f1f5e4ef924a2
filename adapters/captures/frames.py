"""Streams, held back until it is known what of them is secret: frames, and texts in deltas."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from adapters.captures.held import Pieces, before, in_bytes
from adapters.captures.secrets import Secrets, Span
from adapters.captures.strings import JsonStrings, Level, String

__all__ = ["Frames"]

FRAME_BYTES = 16 * 1024 * 1024
"""How much of a frame is held back."""

TEXT_MOST = 4 * 1024
"""Characters of deltas that are held back because a secret may begin in them."""

FRAMES_MOST = 2048
"""Frames that are held back for it."""

TEXTS_MOST = 64
"""Texts whose end is kept after it was given out."""

BEFORE = 512
"""Characters before them that are looked at: a secret may be known by them."""

_LINE = re.compile(rb"\r\n|\n|\r(?!\Z)")

_TEXTS = frozenset({"text", "delta", "thinking", "reasoning", "content", "partial_json", "input"})
"""Members of a delta that are texts."""

_PLACES = frozenset(
    {
        *("callId", "call_id", "toolCallId", "block_id", "blockId", "block_index", "blockIndex"),
        *("thread_id", "threadId", "session_thread_id", "session_id", "sessionId", "index"),
        *("message_id", "messageId", "turnId", "turn_id", "stepIndex", "step_index", "item_id"),
    }
)
"""Members that say of which text a delta is."""

_ENDING = re.compile(
    r"complet|stop|\bend|_end|ended|idle|waiting|fail|error|lifecycle|^agent\.(?:message|thinking)$"
)
"""Types of frames that end a text, or are the whole of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Lines:
    """The data of a frame, one or several lines of it: where each begins in it and in the body."""

    data: bytes
    starts: tuple[tuple[int, int, int], ...]

    def spans(self, span: Span) -> list[Span]:
        """Return a span of the data as spans of the body: the first one has the mark."""
        out: list[Span] = []
        for inner, outer, size in self.starts:
            start, end = max(span.start, inner), min(span.end, inner + size)
            if start < end:
                mark = "" if out else span.mark
                out.append(Span(outer + start - inner, outer + end - inner, mark))
        return out


@dataclasses.dataclass(slots=True)
class _Part:
    """A delta that is held back: its text, and the texts so far that stand beside it, each with
    where its end begins that is not decided."""

    string: String
    lines: _Lines
    frame: int
    so_far: list[tuple[String, int]]


@dataclasses.dataclass(slots=True)
class _Text:
    """A text that comes in deltas. `before` is the end of what was given out."""

    places: dict[str, str]
    before: str = ""
    parts: list[_Part] = dataclasses.field(default_factory=list)
    frames: int = 0


class Frames(Pieces):
    """A stream of frames: SSE, or JSON in lines."""

    def __init__(self, secrets: Secrets, *, sse: bool) -> None:
        super().__init__(secrets)
        self._sse = sse
        # Where the frame begins that is not whole, and up to where its lines were looked for.
        self._frame = 0
        self._line = 0
        self._texts: dict[tuple[str, ...], _Text] = {}

    def _look(self, *, final: bool) -> int:
        data = bytes(self._data)
        base = self._base
        for found in _LINE.finditer(data, max(0, self._line - base)):
            empty = found.start() + base == self._line
            self._line = base + found.end()
            if empty or not self._sse:
                self._take(data[self._frame - base : found.end()], self._frame)
                self._frame = self._line
        if final or base + len(data) - self._frame > FRAME_BYTES:
            self._take(data[self._frame - base :], self._frame)
            self._frame = self._line = base + len(data)
        if final:
            for text in self._texts.values():
                self._settle(text)
        return min(
            [self._frame, *(text.parts[0].frame for text in self._texts.values() if text.parts)]
        )

    def _take(self, frame: bytes, at: int) -> None:
        """Look at a frame."""
        event = ""
        segments: list[tuple[bytes, int]] = []
        start = 0
        for line in re.split(rb"(?<=\n)|(?<=\r)(?!\n)", frame):
            written = line.rstrip(b"\r\n")
            head = 0
            if self._sse and written.startswith(b"data:"):
                head = 6 if written.startswith(b"data: ") else 5
            if head or not self._sse:
                segments.append((written[head:], at + start + head))
            elif written:
                if written.startswith(b"event:"):
                    event = written[6:].strip().decode(errors="replace")
                self._plain(written, at + start)
            start += len(line)
        inner = 0
        starts = []
        for written, outer in segments:
            starts.append((inner, outer, len(written)))
            inner += len(written) + 1
        lines = _Lines(b"\n".join(written for written, _ in segments), tuple(starts))
        if lines.data.strip():
            self._document(lines, event, at)

    def _plain(self, data: bytes, at: int) -> None:
        text = data.decode("utf-8", "surrogateescape")
        self._spans += [in_bytes(text, span, at) for span in self._secrets.in_text(text)]

    def _document(self, lines: _Lines, event: str, at: int) -> None:
        if lines.data.lstrip()[:1] not in (b"{", b"[", b'"'):
            text = lines.data.decode("utf-8", "surrogateescape")
            for span in self._secrets.in_text(text):
                self._spans += lines.spans(in_bytes(text, span, 0))
            return
        strings, _ = JsonStrings().read(lines.data, 0, final=True)
        for string, spans in zip(strings, self._secrets.in_strings(strings), strict=True):
            if string.secret or not _is_delta(string, event):
                for span in spans:
                    self._cover(string, lines, span.start, span.end, span.mark)
        deltas = [one for one in strings if not one.secret and _is_delta(one, event)]
        places = _places(strings)
        so_far = [
            (one, begin)
            for one in strings
            if one.name.endswith("SoFar")
            and not one.is_name
            and (begin := self._secrets.begin(one.text)) < len(one.text)
        ]
        for string in deltas:
            key = (event, string.name, string.owner.text("type"), *places, *places.values())
            run = self._texts.setdefault(key, _Text(places))
            run.parts.append(_Part(string, lines, at, so_far))
            self._decide(run)
        types = {event, *(one.text for one in strings if one.name == "type" and not one.is_name)}
        ends = not deltas and any(map(_ENDING.search, types))
        self._passed(places, ends=ends)

    def _passed(self, places: dict[str, str], *, ends: bool) -> None:
        """A frame has passed: what is held back for a text that it ends, or for long, is let go."""
        for text in [one for one in self._texts.values() if one.parts]:
            text.frames += 1
            if text.frames > FRAMES_MOST or (ends and _fits(text.places, places)):
                self._settle(text)
        for key in list(self._texts)[:-TEXTS_MOST]:
            if not self._texts[key].parts:
                del self._texts[key]

    def _cover(self, string: String, lines: _Lines, start: int, end: int, mark: str) -> None:
        self._spans += lines.spans(Span(string.place(start), string.place(end), mark))

    def _decide(self, text: _Text) -> None:
        """Look at what has come of a text, and let go what no secret can begin in."""
        joined = text.before + "".join(part.string.text for part in text.parts)
        begin = self._secrets.begin(joined)
        spans = self._secrets.in_text(joined)
        begin = before(spans, begin, len(joined))
        if len(joined) - begin > TEXT_MOST:
            self._settle(text)
            return
        self._redact(text, [span for span in spans if span.end <= begin])
        self._let_go(text, joined, begin)

    def _settle(self, text: _Text) -> None:
        """Nothing more comes of a text, or too much: decide."""
        joined = text.before + "".join(part.string.text for part in text.parts)
        self._redact(text, self._secrets.in_text(joined))
        self._let_go(text, joined, len(joined))

    def _redact(self, text: _Text, spans: Sequence[Span]) -> None:
        for span in spans:
            at = len(text.before)
            if span.end <= at:
                continue
            # What began before has its mark.
            mark = span.mark if span.start >= at else ""
            for part in text.parts:
                size = len(part.string.text)
                start, end = max(span.start, at), min(span.end, at + size)
                if start < end:
                    self._cover(part.string, part.lines, start - at, end - at, mark)
                    mark = ""
                    for string, begin in part.so_far:
                        # It ends as the delta does.
                        if span.start <= at + size - (len(string.text) - begin) < span.end:
                            self._cover(string, part.lines, begin, len(string.text), span.mark)
                at += size

    @staticmethod
    def _let_go(text: _Text, joined: str, begin: int) -> None:
        at = len(text.before)
        kept = 0
        for part in text.parts:
            if at + len(part.string.text) > begin:
                break
            at += len(part.string.text)
            kept += 1
        del text.parts[:kept]
        text.before = joined[max(0, at - BEFORE) : at]
        if not text.parts:
            text.frames = 0


def _is_delta(string: String, event: str) -> bool:
    """Say whether a string is more of a text that came before."""
    if string.is_name:
        return False
    if string.name.endswith("Delta"):
        return True
    if string.name not in _TEXTS:
        return False
    if event.endswith("delta"):
        return True
    level: Level | None = string.owner
    while level is not None:
        if level.text("type").endswith("delta") or level.others.get("delta") == b"true":
            return True
        level = level.above
    return False


def _places(strings: Sequence[String]) -> dict[str, str]:
    found: dict[str, str] = {}
    for level in {id(one.owner): one.owner for one in strings}.values():
        for name, given in level.strings.items():
            if name in _PLACES:
                found[name] = given.text
        for name, other in level.others.items():
            if name in _PLACES:
                found[name] = other.decode(errors="replace")
    return dict(sorted(found.items()))


def _fits(some: dict[str, str], others: dict[str, str]) -> bool:
    """Say whether two frames may be about the same text."""
    return all(others.get(name, value) == value for name, value in some.items())
