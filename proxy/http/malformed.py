"""What of a request is not text: it is refused before anything of it is used.

aiohttp hands bytes that are not UTF-8 on as lone surrogates, which no answer, log or table can
carry, and percent-encoded ones as they are written.
"""

from __future__ import annotations

import logging
import re
from urllib.parse import unquote_to_bytes

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from adapters.wire.errors import ClientProtocolError
from proxy.base.metrics import MALFORMED

HOST = r"(?:[A-Za-z0-9._-]{0,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{0,5})?"
"""What `Host` may be, and an origin after its scheme."""

MALFORMED_HEAD = web.RequestKey("MALFORMED_HEAD", ClientProtocolError)
"""Why the head of a request is refused, once it is known which dialect says so."""

_HOST = re.compile(HOST)

_READ = frozenset(
    {
        "origin",
        "accept",
        "idempotency-key",
        "last-event-id",
        "x-dragoman-session",
        "x-stainless-retry-count",
        # These pass with a callback.
        "content-type",
        "traceparent",
        "tracestate",
        "baggage",
    }
)
"""The headers whose text is used. What nobody reads may be anything."""


def malformed(request: web.Request) -> ClientProtocolError | None:
    """Return why a request is refused whose target, or a header that is used, is not text."""
    wrong = "The path or the query"
    try:
        unquote_to_bytes(request.raw_path.encode("utf-8", "surrogateescape")).decode()
        for name, value in request.headers.items():
            if name.lower() in _READ:
                wrong = f"The header `{name}`"
                value.encode()
    except UnicodeError:
        return ClientProtocolError(f"{wrong} is not UTF-8.")
    for host in request.headers.getall("Host", ()):
        if _HOST.fullmatch(host) is None:
            return ClientProtocolError("The header `Host` is not a host.")
    return None


class NoHttp(logging.Filter):
    """Counts what was not HTTP, which is anybody's to send, and keeps it out of a log of errors.

    For the logger of aiohttp's server, which logs it as it logs a failure of ours.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether to log a record."""
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            MALFORMED.inc()
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        return True


NO_HTTP = NoHttp()
