"""What a capture must not hold: credentials and other secrets, in heads and in bodies.

A `Redactor` stands between a record and its line. In the place of a secret it writes a mark, the
same for the same value and salt: so one still sees where the same value was used. All other bytes
stay, and so does each piece of a body with its time: the mark stands in the piece in which the
secret began.

To see a secret that is cut, it holds back: of a stream the frame that is not whole, and those whose
deltas may be the begin of a secret; of another body all of it, up to 1 MiB. So what it gives out
stands in order within an exchange, but may stand behind later records of other ones.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote, unquote_plus

from adapters.captures import Body, End, Event, Record, Request, Response
from adapters.captures.frames import Frames
from adapters.captures.held import Pieces, Whole
from adapters.captures.secrets import BadPattern, Secrets, Span, apart

__all__ = ["BadPattern", "Redactor"]

_URLS = frozenset({"location", "content-location", "referer", "link"})
"""Headers whose value is a URL, with a query."""

_IN_QUERY = re.compile(r"[?&;#]([^=&;?#]+)=([^&;#>]*)")
_COOKIE = re.compile(r"=\"?([^;\"]+)")


class Redactor:
    """Takes the records of captures in their order and returns those that may be written now.

    Args:
        salt: what marks are made with.
        keys: names besides, of JSON members, headers and parts of queries, whose values are secret.
        patterns: regular expressions besides, of which each match is a secret.

    Raises:
        BadPattern: a pattern is not one, or matches the empty string.
    """

    def __init__(self, salt: bytes, keys: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        self._secrets = Secrets(salt, keys, patterns)
        self._bodies: dict[tuple[int, str], Pieces] = {}
        self._log = Frames(self._secrets, sse=False)

    def add(self, record: Record) -> list[Record]:
        """Return what may be written now that this has come: records of its exchange, or entries
        of the log."""
        match record:
            case Request():
                self._open(record.exchange, "request", record.headers)
                target = self._url(record.target)
                for part in target.partition("?")[0].split("/"):
                    self._secrets.show(unquote(part))
                headers = self._headers(record.headers)
                return [record.model_copy(update={"target": target, "headers": headers})]
            case Response():
                out = self._settled((record.exchange, "request"))
                self._open(record.exchange, "response", record.headers)
                headers = self._headers(record.headers)
                return [*out, record.model_copy(update={"headers": headers})]
            case Body():
                key = (record.exchange, record.of)
                if key not in self._bodies:
                    self._open(*key, ())
                return self._bodies[key].add(record)
            case End():
                out = self._closed(record.exchange, "request")
                out += self._closed(record.exchange, "response")
                why = None if record.why is None else self._text(record.why)
                return [*out, record.model_copy(update={"why": why})]
            case Event():
                return self._log.add(record)

    def hide(self, value: str) -> str:
        """Return what stands for a value that is known to be secret, and look for it from now
        on."""
        self._secrets.remember(value)
        return self._secrets.mark(value)

    def close(self) -> list[Record]:
        """Return all that is held back: nothing more comes."""
        out: list[Record] = []
        for exchange, of in list(self._bodies):
            out += self._closed(exchange, of)
        return out + self._log.close()

    def _open(self, exchange: int, of: str, headers: Iterable[tuple[str, str]]) -> None:
        given = {name.lower(): value for name, value in headers}
        media = given.get("content-type", "").partition(";")[0].strip().lower()
        body: Pieces
        if media == "text/event-stream":
            body = Frames(self._secrets, sse=True)
        elif media.endswith(("ndjson", "jsonl", "json-lines", "json-seq")):
            body = Frames(self._secrets, sse=False)
        else:
            size = given.get("content-length", "")
            form = self._in_form if media == "application/x-www-form-urlencoded" else None
            body = Whole(self._secrets, int(size) if size.isdecimal() else None, form)
        self._bodies[exchange, of] = body

    def _settled(self, key: tuple[int, str]) -> list[Record]:
        """An answer comes: a request is whole by now, if it is not half JSON."""
        body = self._bodies.get(key)
        return body.settle() if isinstance(body, Whole) else []

    def _closed(self, exchange: int, of: str) -> list[Record]:
        body = self._bodies.pop((exchange, of), None)
        return [] if body is None else body.close()

    # heads

    def _headers(self, headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        pairs = tuple(headers)
        # First what is known by its name: the others may repeat it.
        named = [self._credential(n, v) if self._secrets.is_header(n) else None for n, v in pairs]
        out = []
        for (name, value), redacted in zip(pairs, named, strict=True):
            if redacted is None:
                url = name.lower() in _URLS
                redacted = self._url(value) if url else self._text(value)
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
                self._secrets.remember(one)
        self._secrets.remember(rest)
        if scheme.lower() == "basic":
            try:
                user_and_password = base64.b64decode(rest).decode()
            except (binascii.Error, ValueError):
                user_and_password = ""
            self._secrets.remember(user_and_password.partition(":")[2])
        return f"{scheme} {self._secrets.mark(rest)}" if scheme else self._secrets.mark(rest)

    def _text(self, text: str) -> str:
        return _applied(text, self._secrets.in_text(text))

    def _url(self, url: str) -> str:
        return _applied(url, apart([*self._in_query(url), *self._secrets.in_text(url)]))

    def _in_form(self, text: str) -> list[Span]:
        return self._in_query(text, 1)

    def _in_query(self, text: str, lead: int = 0) -> list[Span]:
        """Return the credentials of a query; of a form too, whose first name has no mark before it:
        `lead` is 1 then."""
        spans = []
        for found in _IN_QUERY.finditer("&" * lead + text):
            if not found[2] or not self._secrets.is_query(unquote_plus(found[1])):
                continue
            value = unquote_plus(found[2])
            self._secrets.remember_named(value)
            start, end = found.span(2)
            spans.append(Span(start - lead, end - lead, self._secrets.mark(value)))
        return spans


def _applied(text: str, spans: Sequence[Span]) -> str:
    for span in reversed(spans):
        text = text[: span.start] + span.mark + text[span.end :]
    return text
