"""What of a request is no text: it is refused before anything of it is used.

aiohttp hands bytes that are no UTF-8 on as lone surrogates, which no answer, log or table can hold,
and percent-encoded ones as they are written, which would then be quoted once more.
"""

from __future__ import annotations

import logging
import re
from urllib.parse import unquote_to_bytes

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from adapters.errors import ClientProtocolError
from proxy.metrics import MALFORMED

FAULT = web.RequestKey("fault", ClientProtocolError)
"""What is wrong with a request; each face refuses it in its own form."""

_PLAIN = re.compile("[!-$&-~]*")
"""Printable ASCII without a percent sign, which most targets are."""

HOST = r"(?:[A-Za-z0-9._-]{0,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{0,5})?"
"""What `Host` may be, and an origin after its scheme. A name in another script comes as its
`xn--` form: to find that of a long one takes a turn of the loop."""

_HOST = re.compile(HOST.encode())

_READ = frozenset(
    {
        b"host",
        b"origin",
        b"accept",
        b"idempotency-key",
        b"last-event-id",
        b"x-dragoman-session",
        b"x-stainless-retry-count",
        # These pass with a callback.
        b"content-type",
        b"traceparent",
        b"tracestate",
        b"baggage",
    }
)
"""The headers whose text is used. Keys are compared as bytes; what nobody reads may be anything."""


def fault_of(request: web.Request) -> ClientProtocolError | None:
    """Return what is wrong with the target or the headers of a request, or None."""
    target = request.raw_path
    if _PLAIN.fullmatch(target) is None and not _is_text(target):
        return _fault("The path or the query is not UTF-8.")
    for name, value in request.raw_headers:
        if name.lower() == b"host" and _HOST.fullmatch(value) is None:
            return _fault("The header `Host` is no host.")
        if not value.isascii() and name.lower() in _READ:
            try:
                value.decode()
            except UnicodeDecodeError:
                return _fault(f"The header `{name.decode()}` is not UTF-8.")
    return None


def _is_text(target: str) -> bool:
    try:
        unquote_to_bytes(target.encode("utf-8", "surrogateescape")).decode()
    except UnicodeError:
        return False
    return True


def _fault(text: str) -> ClientProtocolError:
    return ClientProtocolError(text, dialect="http")


def check(request: web.Request) -> None:
    """Refuse a request with a fault; every handler stands behind this.

    Raises:
        ClientProtocolError: it has one.
    """
    if (fault := request.pop(FAULT, None)) is not None:
        try:
            raise fault
        finally:
            # What is raised knows this frame: else they would keep each other, and the request.
            del fault


class NoHttp(logging.Filter):
    """Counts what was no HTTP, which is anybody's to send, and keeps it out of a log of errors.

    For the logger of aiohttp's server, which logs it as it logs a failure of ours. What does not
    even begin like HTTP, such as TLS, aiohttp itself keeps for level `debug`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether to log a record."""
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            MALFORMED.inc()
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        return True


NO_HTTP = NoHttp()
