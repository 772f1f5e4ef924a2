"""HAR 1.2: what browsers and proxies export of the exchanges that they saw.

A HAR has no chunks: a body is one piece, which came when the exchange ended. Chrome's messages of
an event stream, where they are there, give pieces with their own times.
"""

from __future__ import annotations

import binascii
import dataclasses
import datetime as dt
import urllib.parse
from typing import Any, Literal

from adapters.captures import (
    BadCapture,
    CapturedExchange,
    CapturedPiece,
    CapturedRequest,
    CapturedResponse,
    ExchangeEnd,
    Headers,
    body_of,
)
from adapters.captures.foreign import (
    BodyCounter,
    ForeignCapture,
    address_of,
    json_of,
    made_by,
    pieces_of,
    with_host,
)
from adapters.wire.encodings import decode_base64
from adapters.wire.jsonvalue import int_of, number_of, text_of

_LEFT = ("aborted", "canceled", "cancelled")
"""What stands in the error of a client that left: `net::ERR_ABORTED`, `NS_BINDING_ABORTED`."""

_BODILESS = (204, 304)


class _BadEntry(ValueError):
    """An entry cannot be read."""


def read_har(data: bytes, name: str) -> ForeignCapture:
    """Read a HAR.

    Raises:
        BadCapture: it is not a HAR.
    """
    document, notes = json_of(data.removeprefix(b"\xef\xbb\xbf"), name, "the HAR")
    capture = har_of(document, name)
    capture.notes[:0] = notes
    return capture


def har_of(document: object, name: str) -> ForeignCapture:
    """Return the capture that the value of a HAR is.

    Raises:
        BadCapture: it is not a HAR.
    """
    log = document.get("log") if isinstance(document, dict) else None
    entries = log.get("entries") if isinstance(log, dict) else None
    if not isinstance(log, dict) or not isinstance(entries, list):
        raise BadCapture(
            "it is not a HAR: it has no list `log.entries`; export it again", name=name
        )
    creator = _object(log.get("creator"))
    maker = made_by((creator.get("name"), creator.get("version")))
    capture = ForeignCapture.of(name, "har", maker or "unknown")
    reading = _HarReader(capture, BodyCounter(name))
    for number, entry in enumerate(entries, 1):
        try:
            reading.take(number, entry)
        except _BadEntry as error:
            raise BadCapture(f"entry {number}: {error}", name=name) from None
    reading.finish()
    return capture


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


@dataclasses.dataclass(slots=True)
class _EntryTimes:
    """When what of an exchange happened."""

    sent: float
    answered: float
    ended: float


@dataclasses.dataclass(slots=True)
class _HarReader:
    """What is read of a HAR so far."""

    capture: ForeignCapture
    bodies: BodyCounter
    hosts: set[str] = dataclasses.field(default_factory=set)
    others: int = 0

    def take(self, number: int, value: object) -> None:
        """Take an entry."""
        entry = _object(value)
        asked = _object(entry.get("request"))
        url, method = text_of(asked.get("url")), text_of(asked.get("method"))
        if url is None or method is None:
            raise _BadEntry("its request has no `method` or no `url`")
        try:
            scheme, host, target = address_of(url)
        except ValueError:
            raise _BadEntry("`request.url` is not a URL") from None
        if scheme not in ("http", "https", "ws", "wss"):
            self.others += 1
            return
        self.hosts.add(host)
        times = _times(entry)
        headers, body = self._headers(asked, "request"), self._posted(number, asked)
        headers, body = self.bodies.inflate(headers, body)
        request = CapturedRequest(
            exchange=number,
            side="backend",
            at=times.sent,
            method=method,
            target=target,
            headers=with_host(headers, host),
        )
        exchange = CapturedExchange(request)
        if body:
            exchange.sent.append(body_of(number, "request", times.sent, body))
        self._answer(exchange, entry, times)
        self.capture.add(exchange)

    def finish(self) -> None:
        """Put the exchanges in the order of their requests, and tell what is general."""
        capture = self.capture
        capture.exchanges.sort(key=lambda exchange: exchange.request.at)
        if capture.exchanges:
            at = capture.exchanges[0].request.at
            capture.head = capture.head.model_copy(update={"at": at})
        if self.others:
            self.note(f"entries that are not HTTP were left out: {self.others}")
        if len(self.hosts) > 1:
            hosts = sorted(self.hosts)
            more = f" and {len(hosts) - 5} more" if len(hosts) > 5 else ""
            self.note(f"it has exchanges with {len(hosts)} hosts: {', '.join(hosts[:5])}{more}")

    def note(self, text: str, number: int = 0) -> None:
        """Tell what is not shown, of an entry or of all."""
        self.capture.notes.append(f"entry {number}: {text}" if number else text)

    def _headers(self, message: dict[str, Any], what: str) -> Headers:
        return self.bodies.count(_headers(message.get("headers"), what))

    def _posted(self, number: int, asked: dict[str, Any]) -> bytes:
        """Return the body of a request."""
        posted = _object(asked.get("postData"))
        if text_of(posted.get("_file")):
            self.note("the request's body stands in a file of its own, which is not opened", number)
            return b""
        if text := text_of(posted.get("text")):
            return self.bodies.take(_bytes(text, posted.get("encoding"), "request.postData.text"))
        params = posted.get("params")
        if isinstance(params, list) and params:
            if "multipart" in str(posted.get("mimeType")).lower():
                self.note("the export left out the request's body, a form with files", number)
                return b""
            pairs = [(str(p.get("name")), str(p.get("value", ""))) for p in map(_object, params)]
            return self.bodies.take(urllib.parse.urlencode(pairs).encode())
        size = int_of(asked.get("bodySize")) or 0
        if size > 0:
            self.note(f"the export left out the request's body of {size} bytes", number)
        return b""

    def _answer(
        self, exchange: CapturedExchange, entry: dict[str, Any], times: _EntryTimes
    ) -> None:
        """Add what came of a request."""
        number = exchange.request.exchange
        answer = _object(entry.get("response"))
        status = answer.get("status", 0)
        error = text_of(answer.get("_error")) or text_of(entry.get("_error"))
        if type(status) is not int or not 0 <= status <= 999:
            raise _BadEntry("`response.status` is not a status")
        if not status:
            self._end(exchange, times, error or "the export shows no response")
            return
        content = answer.get("content")
        body, missing = self._content(content)
        headers, body = self.bodies.inflate(self._headers(answer, "response"), body)
        exchange.response = CapturedResponse(
            exchange=number, at=times.answered, status=status, headers=headers
        )
        exchange.received += self._pieces(number, entry, body, times)
        if exchange.received:
            times.ended = max(times.ended, exchange.received[-1].at)
        if not isinstance(content, dict) and status not in _BODILESS:
            missing = "the export has no content of the response"
        if _object(entry).get("_webSocketMessages"):
            self.note("messages of a WebSocket are not read", number)
        if exchange.received and not body:
            # Put together from messages, which have it all.
            missing = None
        if missing:
            self.note(missing, number)
        self._end(exchange, times, error or missing)

    def _end(self, exchange: CapturedExchange, times: _EntryTimes, why: str | None) -> None:
        how: Literal["ended", "broke", "left"] = "ended"
        if why is not None:
            how = "left" if any(word in why.lower() for word in _LEFT) else "broke"
        exchange.end = ExchangeEnd(
            exchange=exchange.request.exchange, at=times.ended, how=how, why=why
        )

    def _content(self, value: object) -> tuple[bytes, str | None]:
        """Return the body of a response, and what is missing of it."""
        content = _object(value)
        if text_of(content.get("_file")):
            return b"", "the response's body stands in a file of its own, which is not opened"
        text = text_of(content.get("text")) or ""
        body = _bytes(text, content.get("encoding"), "response.content.text")
        size = int_of(content.get("size")) or 0
        self.bodies.take(body)
        if size > len(body):
            have = f", and has {len(body)} of them" if body else ""
            return body, f"the export left out the response's body of {size} bytes{have}"
        return body, None

    def _pieces(
        self, number: int, entry: dict[str, Any], body: bytes, times: _EntryTimes
    ) -> list[CapturedPiece]:
        """Return the pieces of a response's body."""
        messages: list[dict[str, Any]] = []
        for key in ("_eventSourceMessages", "_eventStreamMessages"):
            if isinstance(entry.get(key), list):
                messages = [_object(message) for message in entry[key]]
        if messages:
            parts = [_frame_of(message) for message in messages]
            if body:
                cut, _ = pieces_of(body, "text/event-stream", self.bodies.name)
                parts = cut if len(cut) == len(messages) else []
            else:
                self.note("frames are put together from their messages: comments are lost", number)
            if parts:
                at, pieces = times.answered, []
                for message, part in zip(messages, parts, strict=True):
                    # In seconds since 1970, and never before what came before it.
                    told = number_of(message.get("time")) or 0.0
                    at = max(at, told * 1000) if 0 < told < 1e11 else at
                    pieces.append(body_of(number, "response", at, self.bodies.take(part)))
                return pieces
            self.note("the times of its messages do not fit its text and were left out", number)
        return [body_of(number, "response", times.ended, body)] if body else []


def _frame_of(message: dict[str, Any]) -> bytes:
    """Return the frame of an event stream that Chrome has taken apart."""
    lines = []
    # What is not named is called `message`.
    for field, key, default in (("id", "eventId", ""), ("event", "eventName", "message")):
        value = message.get(key)
        if isinstance(value, str) and value and value != default:
            lines.append(f"{field}: {' '.join(value.splitlines())}")
    data = message.get("data")
    told = data if isinstance(data, str) else ""
    lines += [f"data: {line}" for line in told.split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


def _bytes(text: str, encoding: object, what: str) -> bytes:
    if encoding != "base64":
        return text.encode()
    try:
        return decode_base64(text)
    except (binascii.Error, ValueError):
        raise _BadEntry(f"`{what}` is not base64") from None


def _headers(value: object, what: str) -> Headers:
    """Return headers, less the pseudo headers of HTTP/2."""
    pairs: list[tuple[str, str]] = []
    for one in value if isinstance(value, list) else ():
        name, told = _object(one).get("name"), _object(one).get("value")
        if not isinstance(name, str) or not isinstance(told, str):
            raise _BadEntry(f"`{what}.headers` has one without a `name` or a `value`")
        if name and not name.startswith(":"):
            # Browsers put headers of one name on the lines of one value.
            pairs += [(name, line) for line in told.splitlines() or [""]]
    return tuple(pairs)


def _times(entry: dict[str, Any]) -> _EntryTimes:
    text = entry.get("startedDateTime")
    try:
        if not isinstance(text, str):
            raise _BadEntry("it has no `startedDateTime`")
        started = dt.datetime.fromisoformat(text)
        if started.tzinfo is None:
            started = started.replace(tzinfo=dt.UTC)
        start = started.timestamp() * 1000
    except (ValueError, OverflowError) as error:
        if isinstance(error, _BadEntry):
            raise
        raise _BadEntry("`startedDateTime` is not a time") from None
    timings = _object(entry.get("timings"))
    # `ssl` is part of `connect`.
    sent = start + sum(_step(timings, step) for step in ("blocked", "dns", "connect"))
    answered = sent + _step(timings, "send") + _step(timings, "wait")
    return _EntryTimes(sent, answered, answered + _step(timings, "receive"))


def _step(timings: dict[str, Any], step: str) -> float:
    value = number_of(timings.get(step))
    # -1 stands for what did not happen; a step of more than eleven days is not believed.
    return float(value) if value is not None and 0 <= value <= 1e9 else 0.0
