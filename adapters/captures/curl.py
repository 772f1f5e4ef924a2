"""What curl wrote: heads and body of `curl -i`, or the body alone of `curl -N`.

curl tells no times and does not show the request. So times count from 0, a millisecond for each
piece, and the request's method and target are given by the one who reads.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

from adapters.captures import (
    BadCapture,
    CapturedExchange,
    CapturedRequest,
    CapturedResponse,
    ExchangeEnd,
    Headers,
    body_of,
)
from adapters.captures.foreign import BodyCounter, ForeignCapture, address_of, header, pieces_of
from adapters.wire.jsonvalue import is_json

_STATUS_LINE = re.compile(rb"HTTP/[0-9](?:\.[0-9])? ([0-9]{3})(?: [^\r\n]*)?\r?\n")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_SSE_LINE = re.compile(rb"(?:event|data|id|retry)?:|(?:event|data|id|retry)(?=[\r\n]|$)")
_BODILESS = (204, 304)
_REDIRECTS = (301, 302, 303, 307, 308)
_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(slots=True)
class _ResponseHead:
    """The head of a response, and the body behind it."""

    status: int
    headers: Headers
    line: int
    body: bytes = b""


def is_stream(data: bytes) -> str | None:
    """Return the media type of a body that stands alone, or None where it is not a stream."""
    text = data.removeprefix(_BOM).lstrip(b"\r\n")
    if _SSE_LINE.match(text):
        return "text/event-stream"
    return "application/x-ndjson" if text.startswith(b"{") else None


def read_curl(data: bytes, name: str) -> ForeignCapture:
    """Read the output of curl; `name` is that of the file, for errors.

    Raises:
        BadCapture: it is empty, or a head is not a head of HTTP.
    """
    if not data.strip():
        raise BadCapture("it is empty: curl wrote nothing; run it again with `-i -N`", name=name)
    capture, bodies = ForeignCapture.of(name, "curl", "curl"), BodyCounter(name)
    capture.notes.append("curl tells no times: each piece counts a millisecond")
    if not data.startswith(b"HTTP/"):
        capture.notes.append("it has a body only: its status is taken for 200")
        head = _ResponseHead(200, (), 1, bodies.take(data))
        _add(capture, bodies, "/", head, is_stream(data) or "")
        return capture
    heads = _heads(data, name)
    # Its request curl does not show: it is taken for a GET.
    target = "/"
    for index, head in enumerate(heads):
        if 100 <= head.status < 200 and index + 1 < len(heads):
            continue
        if _is_of_a_proxy(head) and index + 1 < len(heads):
            capture.notes.append("the answer of a proxy to CONNECT was left out")
            continue
        bodies.take(head.body, head.line)
        _add(capture, bodies, target, head, header(head.headers, "content-type"))
        target = _next(target, head)
    return capture


def _heads(data: bytes, name: str) -> list[_ResponseHead]:
    """Return the heads, with their bodies."""
    heads: list[_ResponseHead] = []
    start = 0
    while True:
        line = data.count(b"\n", 0, start) + 1
        begin = _STATUS_LINE.match(data, start)
        if begin is None:
            raise BadCapture(
                "it is not the status line of a response: run curl with `-i`, and save all of it",
                name=name,
                line=line,
            )
        # No head has more than a megabyte.
        end = _HEAD_END.search(data, begin.end() - 2, start + 1024 * 1024)
        if end is None:
            raise BadCapture(
                "the head of the response has no end: it is cut off, run curl again",
                name=name,
                line=line,
            )
        head = _ResponseHead(
            int(begin[1]), _headers(data[begin.end() : end.start()], name, line), line
        )
        heads.append(head)
        if len(heads) > 1_000:
            raise BadCapture("it has more than 1000 heads: split it", name=name)
        start = end.end()
        length = _length(head.headers)
        if not _STATUS_LINE.match(data, start):
            behind = start + (length or 0)
            if length is None or not _STATUS_LINE.match(data, behind):
                head.body = data[start:]
                return heads
            # The answer of the next URL of the same command.
            head.body, start = data[start:behind], behind


def _headers(text: bytes, name: str, line: int) -> Headers:
    pairs = []
    for number, one in enumerate(text.splitlines(), line + 1):
        key, colon, value = one.decode("latin-1").partition(":")
        if not colon or not key or key != key.strip():
            raise BadCapture(
                "it is not a header: run curl with `-i`, without `-v`", name=name, line=number
            )
        pairs.append((key, value.strip()))
    return tuple(pairs)


def _length(headers: Headers) -> int | None:
    text = header(headers, "content-length")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 16 else None


def _is_of_a_proxy(head: _ResponseHead) -> bool:
    """Say whether it can be the answer to a CONNECT, behind which the real one stands."""
    named = any(key.lower().startswith(("content-", "transfer-")) for key, _ in head.headers)
    return head.status == 200 and not head.body and not named


def _next(target: str, head: _ResponseHead) -> str:
    """Return the target of the request that curl sends after that answer."""
    location = header(head.headers, "location")
    if head.status not in _REDIRECTS or not location:
        return target
    try:
        return address_of(urllib.parse.urljoin(target, location))[2]
    except ValueError:
        return location


def _add(
    capture: ForeignCapture, bodies: BodyCounter, target: str, head: _ResponseHead, media_type: str
) -> None:
    """Add an exchange."""
    number = len(capture.exchanges) + 1
    last = capture.exchanges[-1].end if capture.exchanges else None
    at = last.at + 1 if last else 0.0
    request = CapturedRequest(exchange=number, side="backend", at=at, method="GET", target=target)
    coded = bool(header(head.headers, "content-encoding"))
    missing = 0 if coded else (_length(head.headers) or 0) - len(head.body)
    headers, body = bodies.inflate(bodies.count(head.headers), head.body, head.line)
    exchange = CapturedExchange(
        request,
        response=CapturedResponse(exchange=number, at=at, status=head.status, headers=headers),
    )
    pieces, whole = pieces_of(body, media_type, capture.name)
    for piece in pieces:
        exchange.received.append(body_of(number, "response", at, piece))
        at += 1
    why = None
    if missing > 0 and head.status not in _BODILESS:
        # `curl -I` shows heads only.
        told = f"line {head.line}: {missing} bytes of the body are missing"
        capture.notes.append(told)
        why = told if body else None
    elif pieces and not whole and not is_json(pieces[-1]):
        why = "the last frame is not whole"
        capture.notes.append(why)
    exchange.end = ExchangeEnd(exchange=number, at=at, how="broke" if why else "ended", why=why)
    capture.add(exchange)
