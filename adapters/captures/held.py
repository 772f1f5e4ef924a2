"""Bodies that are held back until it is known what of them is secret: all but streams."""

from __future__ import annotations

import abc
import bisect
import re
from collections.abc import Callable, Sequence

from adapters.captures import Body, Event, Record, body_of
from adapters.captures.secrets import LONGEST_BEGIN, Secrets, Span, apart
from adapters.captures.strings import JsonStrings, String
from adapters.wire.jsonvalue import format_json, parse_json

__all__ = ["Pieces", "Whole", "before", "in_bytes"]

WHOLE_BYTES = 1024 * 1024
"""How much of a body is held back that is not a stream; of a longer one, the string that is not
whole."""

_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


class Pieces(abc.ABC):
    """Records that are held back, as the bytes that they have together."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held: list[tuple[Body | Event, int]] = []
        self._data = bytearray()
        # Where `_data` begins in the body.
        self._base = 0
        self._spans: list[Span] = []

    def add(self, record: Body | Event) -> list[Record]:
        """Take one and return those that may be written now."""
        data = record.data if isinstance(record, Body) else format_json(record.entry) + b"\n"
        self._held.append((record, len(data)))
        self._data += data
        return self._given(self._look(final=False))

    def close(self) -> list[Record]:
        """Return them all."""
        return self._given(self._look(final=True))

    @abc.abstractmethod
    def _look(self, *, final: bool) -> int:
        """Find what is secret, and return up to where that is decided."""

    def _given(self, limit: int) -> list[Record]:
        out: list[Record] = []
        spans = self._spans = apart(self._spans)
        at = self._base
        count = 0
        for record, size in self._held:
            if at + size > limit:
                break
            out.append(self._redacted(record, at, size, spans))
            at += size
            count += 1
        del self._held[:count]
        del self._data[: at - self._base]
        self._base = at
        self._spans = [span for span in spans if span.end > at]
        return out

    def _redacted(self, record: Body | Event, at: int, size: int, spans: Sequence[Span]) -> Record:
        end = at + size
        first = bisect.bisect_right(spans, at, key=lambda span: span.end)
        if first == len(spans) or spans[first].start >= end:
            return record
        out = bytearray()
        done = at
        for span in spans[first:]:
            if span.start >= end:
                break
            out += self._data[done - self._base : max(span.start, done) - self._base]
            if span.start >= at:
                out += span.mark.encode()
            done = min(span.end, end)
        out += self._data[done - self._base : end - self._base]
        if isinstance(record, Event):
            return record.model_copy(update={"entry": parse_json(bytes(out))})
        return body_of(record.exchange, record.of, record.at, bytes(out))


class Whole(Pieces):
    """A body that is not a stream: JSON or another text.

    Args:
        secrets: what finds them.
        size: how many bytes it has, if that is known.
        form: what finds the secrets of a form, if it is one.
    """

    def __init__(
        self, secrets: Secrets, size: int | None, form: Callable[[str], list[Span]] | None
    ) -> None:
        super().__init__(secrets)
        self._size = size
        self._form = form
        self._json: JsonStrings | None = None
        self._tried = JsonStrings()
        self._tried_to = 0
        # Up to where it was looked at.
        self._at = 0
        # In a string that is longer than what is held back, and what stands for it if it is secret.
        self._long = False
        self._mark: str | None = None

    def settle(self) -> list[Record]:
        """Return it if it seems to be whole."""
        half = self._at == 0 and self._begins_with(b"{[") and not self._is_closed()
        return [] if half else self._given(self._look(final=True))

    def _look(self, *, final: bool) -> int:
        end = self._base + len(self._data)
        final = final or end == self._size or self._is_closed()
        if not final and len(self._data) <= WHOLE_BYTES:
            return self._base
        if self._at == 0 and self._begins_with(b'{["'):
            self._json = JsonStrings()
        if self._json is None:
            self._at = self._text(self._at, end, final)
            return self._at
        return self._strings(self._json, end, final)

    def _begins_with(self, marks: bytes) -> bool:
        first = self._data[:64].lstrip()[:1]
        return first != b"" and first in marks

    def _is_closed(self) -> bool:
        """Say whether it is JSON, of which all that was opened is closed."""
        if self._at or not self._begins_with(b"{["):
            return False
        _, self._tried_to = self._tried.read(bytes(self._data), self._tried_to, final=False)
        return self._tried.closed

    def _strings(self, reader: JsonStrings, end: int, final: bool) -> int:
        data = bytes(self._data)
        while self._at < end:
            if self._long:
                if not self._rest(data, final):
                    break
                continue
            strings, at = reader.read(data, self._at - self._base, final=final)
            self._spans += _spans(strings, self._secrets, self._base)
            self._at = self._base + at
            if final or len(data) - at <= WHOLE_BYTES or data[at : at + 1] != b'"':
                break
            self._long, self._at = True, self._at + 1
            named = self._secrets.is_member(reader.name)
            self._mark = self._secrets.mark(str(data[at:])) if named else None
        return end if final else self._at

    def _rest(self, data: bytes, final: bool) -> bool:
        """Look at more of a very long string, and say whether it ends here."""
        start = self._at - self._base
        found = _REST_OF_STRING.match(data, start)
        stop = start if found is None else found.end()
        closed = data[stop : stop + 1] == b'"'
        if self._mark is not None:
            self._spans.append(Span(self._at, self._base + stop, self._mark))
            self._mark = ""
            self._at = self._base + stop
        else:
            self._at = self._text(self._at, self._base + stop, final or closed)
        if closed:
            self._at += 1
            self._long, self._mark = False, None
        return closed

    def _text(self, start: int, end: int, final: bool) -> int:
        """Look at a text, and return up to where it is decided."""
        data = self._data[start - self._base : end - self._base]
        text = data.decode("utf-8", "surrogateescape")
        spans = self._secrets.in_text(text)
        if self._form is not None:
            spans = apart([*self._form(text), *spans])
        begin = len(text)
        if not final:
            begin = max(0, min(self._secrets.begin(text), begin - LONGEST_BEGIN))
            begin = before(spans, begin, len(text))
        for span in spans:
            if span.end <= begin:
                self._spans.append(in_bytes(text, span, start))
        return start + len(text[:begin].encode("utf-8", "surrogateescape"))


def in_bytes(text: str, span: Span, base: int) -> Span:
    """Return a span of a text as bytes of a body, in which the text begins at `base`."""
    before = text[: span.start].encode("utf-8", "surrogateescape")
    inner = text[span.start : span.end].encode("utf-8", "surrogateescape")
    start = base + len(before)
    return Span(start, start + len(inner), span.mark)


def _spans(strings: Sequence[String], secrets: Secrets, base: int) -> list[Span]:
    out = []
    for string, spans in zip(strings, secrets.in_strings(strings), strict=True):
        out += [
            Span(base + string.place(span.start), base + string.place(span.end), span.mark)
            for span in spans
        ]
    return out


def before(spans: Sequence[Span], begin: int, size: int) -> int:
    """Return where a text of this size is to be cut, at most at `begin`, so that no secret is cut,
    and none that may go on."""
    for span in reversed(spans):
        if span.start < begin and (span.end > begin or span.end == size):
            begin = span.start
    return begin
