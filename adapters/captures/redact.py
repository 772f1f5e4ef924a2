"""What a capture must not hold: credentials and other secrets, in heads and in bodies.

A `Redactor` stands between a record and its line. In the place of a secret it writes a mark, the
same for the same value and salt: so one still sees where the same value was used. Each piece of a
body stays, with its time, and all bytes stay where there is no secret. JSON that has one is written
anew, in the piece in which it ended: without its spaces.

To see a secret that is cut, it holds back: of a stream the frame that is not whole, and those whose
deltas may be the begin of a secret; of a document all of it; of another text the last word. So what
it gives out stands in order within an exchange, but may stand behind later records of other ones.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

from adapters.captures import (
    CapturedEvent,
    CapturedFrame,
    CapturedPiece,
    CapturedRequest,
    CapturedResponse,
    ExchangeEnd,
    LogLine,
    MissingRecords,
    Record,
)
from adapters.captures.held_bodies import (
    HeldBody,
    HeldDocument,
    HeldFrames,
    HeldLog,
    HeldSourceFrames,
    HeldText,
)
from adapters.captures.secrets import LOG, DeltaFormat, SecretFinder
from adapters.wire.jsonvalue import format_json

_URLS = frozenset({"location", "content-location", "referer", "link"})
"""Headers whose value is a URL, with a query."""

_IN_QUERY = re.compile(r"(?<=[?&;#])([^=&;?#]{1,256}+)=([^&;#>]++)")
_COOKIE = re.compile(r"=\"?([^;\"]+)")

_FORM = "application/x-www-form-urlencoded"


class Redactor:
    """Takes the records of captures in their order and returns those that may be written now.

    Args:
        salt: what marks are made with.
        deltas: which frames have more of a text, by their type.
        keys: names besides, of JSON members, headers and parts of queries, whose values are secret.
        patterns: regular expressions besides; each match is a secret.

    Raises:
        BadPattern: a pattern is not one, or matches the empty string.
    """

    def __init__(
        self,
        salt: bytes,
        deltas: Mapping[str, DeltaFormat],
        keys: Iterable[str] = (),
        patterns: Iterable[str] = (),
    ) -> None:
        self._finder = SecretFinder(salt, keys, patterns)
        self._deltas = deltas
        # Of some the first bytes say what they are.
        self._bodies: dict[tuple[int, str], HeldBody | _UnknownBody] = {}
        self._log = HeldLog(self._finder, LOG)
        self._frames: HeldSourceFrames | None = None

    def add(self, record: Record) -> list[Record]:
        """Return what may be written now that this has come: records of its exchange, or entries
        of the log."""
        match record:
            case CapturedRequest():
                self._open(record.exchange, "request", record.headers)
                # What a header has may stand in the path too.
                headers = self._headers(record.headers)
                target = self._url(record.target)
                for part in target.partition("?")[0].split("/"):
                    self._finder.show(unquote(part))
                return [record.model_copy(update={"target": target, "headers": headers})]
            case CapturedResponse():
                out = self._settled((record.exchange, "request"))
                self._open(record.exchange, "response", record.headers)
                headers = self._headers(record.headers)
                return [*out, record.model_copy(update={"headers": headers})]
            case CapturedPiece():
                return self._body((record.exchange, record.of), record)
            case ExchangeEnd():
                out = self._closed(record.exchange, "request")
                out += self._closed(record.exchange, "response")
                why = None if record.why is None else self._finder.clean(record.why)
                return [*out, record.model_copy(update={"why": why})]
            case LogLine():
                return self._log.add([record])
            case CapturedEvent():
                return self._log.add([LogLine(record.at, format_json(record.entry))])
            case CapturedFrame():
                return self._frame(record)
            case MissingRecords(exchange=int(exchange)):
                # Nothing more comes of it.
                out = self._closed(exchange, "request")
                return [*out, *self._closed(exchange, "response"), record]
            case MissingRecords():
                return [record]

    def add_log(self, records: Sequence[LogLine]) -> list[Record]:
        """Do the same for some entries of the log."""
        return self._log.add(records)

    def hide(self, value: str) -> str:
        """Return what stands for a value that is known to be secret, and look for it from now
        on."""
        self._finder.remember(value)
        return self._finder.mark(value)

    def close(self) -> list[Record]:
        """Return all that is held back: nothing more comes."""
        out: list[Record] = []
        for exchange, of in list(self._bodies):
            out += self._closed(exchange, of)
        if self._frames is not None:
            out += self._frames.close()
        return out + self._log.close()

    def _frame(self, record: CapturedFrame) -> list[Record]:
        """Return the frames that may be written now that this has come."""
        out: list[Record] = []
        if self._frames is None or not self._frames.takes(record):
            out = [] if self._frames is None else self._frames.close()
            self._frames = HeldSourceFrames(self._finder, self._deltas, record)
        return [*out, *self._frames.add(record)]

    def _open(self, exchange: int, of: str, headers: Iterable[tuple[str, str]]) -> None:
        given = {name.lower(): value for name, value in headers}
        media = given.get("content-type", "").partition(";")[0].strip().lower()
        body: HeldBody | _UnknownBody
        if media == "text/event-stream":
            body = HeldFrames(self._finder, self._deltas, sse=True)
        elif media.endswith(("ndjson", "jsonl", "json-lines", "json-seq")):
            body = HeldFrames(self._finder, self._deltas, sse=False)
        else:
            size = given.get("content-length", "")
            body = _UnknownBody(int(size) if size.isdecimal() else None, form=media == _FORM)
        self._bodies[exchange, of] = body

    def _body(self, key: tuple[int, str], record: CapturedPiece) -> list[Record]:
        body = self._bodies.get(key)
        if body is None or isinstance(body, _UnknownBody):
            body = body or _UnknownBody(None, form=False)
            self._bodies[key] = body = self._known(body, record.data)
        return body.add(record)

    def _known(self, body: _UnknownBody, first: bytes) -> HeldBody:
        if body.form:
            return HeldDocument(self._clean_form, body.size)
        # A document begins with these, whatever it says that it is.
        if first[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[", b'"', b""):
            return HeldDocument(self._finder.clean_data, body.size)
        return HeldText(self._finder, body.size)

    def _settled(self, key: tuple[int, str]) -> list[Record]:
        """An answer comes: a request is whole by now, if it is not half JSON."""
        body = self._bodies.get(key)
        return body.settle() if isinstance(body, HeldBody) else []

    def _closed(self, exchange: int, of: str) -> list[Record]:
        body = self._bodies.pop((exchange, of), None)
        return body.close() if isinstance(body, HeldBody) else []

    # heads

    def _headers(self, headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        pairs = tuple(headers)
        # First what is known by its name: the others may repeat it.
        is_header = self._finder.names.is_header
        named = [self._credential(n, v) if is_header(n) else None for n, v in pairs]
        out = []
        for (name, value), redacted in zip(pairs, named, strict=True):
            if redacted is None:
                url = name.lower() in _URLS
                redacted = self._url(value) if url else self._finder.clean(value)
            out.append((name, redacted))
        return tuple(out)

    def _credential(self, name: str, value: str) -> str:
        """Return the mark of a credential, behind its scheme, and remember it."""
        lower = name.lower()
        scheme, _, rest = value.partition(" ")
        if not lower.endswith("authorization") or not rest:
            scheme, rest = "", value
        if lower in ("cookie", "set-cookie"):
            pairs = _COOKIE.findall(value)
            for one in pairs if lower == "cookie" else pairs[:1]:
                self._finder.remember(one)
        self._finder.remember(rest)
        if scheme.lower() == "basic":
            try:
                user_and_password = base64.b64decode(rest).decode()
            except (binascii.Error, ValueError):
                user_and_password = ""
            self._finder.remember(user_and_password.partition(":")[2])
        return f"{scheme} {self._finder.mark(rest)}" if scheme else self._finder.mark(rest)

    def _url(self, url: str) -> str:
        return self._finder.clean(_IN_QUERY.sub(self._parameter, url))

    def _clean_form(self, data: bytes) -> bytes:
        # The first name has no mark before it.
        url = self._url("&" + data.decode("utf-8", "surrogateescape"))
        return url[1:].encode("utf-8", "surrogateescape")

    def _parameter(self, found: re.Match[str]) -> str:
        """Return a part of a query with the mark of its value, if that is a credential."""
        if not self._finder.names.is_query(unquote_plus(found[1])):
            return found[0]
        value = unquote_plus(found[2])
        self._finder.remember_named(value)
        return f"{found[1]}={self._finder.mark(value)}"


class _UnknownBody(NamedTuple):
    """A body before its first piece: how many bytes it has, if that is known, and whether it is
    a form."""

    size: int | None
    form: bool
