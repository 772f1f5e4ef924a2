"""What aiohttp raises, in words: for frontends without an address of ours, and for the operator
with all that is known."""

from __future__ import annotations

import errno
from typing import NamedTuple

import aiohttp

from adapters.wire.errors import cut
from proxy.base.errors import UpstreamError, UpstreamTimeout, UpstreamUnavailable
from proxy.base.sealed import any_held
from proxy.upstream.health import Trouble


class FailedRequest(NamedTuple):
    """Why a request has no answer. `kind` is None where the backend is not to blame, `why` is
    for the operator only."""

    error: UpstreamError
    kind: Trouble | None = None
    why: str = ""


def _who(backend: str) -> str:
    return f"Backend `{backend}`" if backend else "The backend"


def _whom(backend: str) -> str:
    return f"backend `{backend}`" if backend else "the backend"


def request_failure(error: Exception, backend: str) -> FailedRequest:
    """Return what became of a request that aiohttp could not do."""
    who = _who(backend)
    match error:
        case aiohttp.ClientConnectorCertificateError():
            failed = _not_sent(f"{who} has a certificate that is not trusted.")
            return FailedRequest(failed, Trouble.TLS, str(error.certificate_error))
        case aiohttp.ClientConnectorDNSError():
            failed = _not_sent(f"{who} cannot be found: its host name is not known.")
            return FailedRequest(failed, Trouble.DNS, _of_system(error))
        case aiohttp.ClientSSLError():
            failed = _not_sent(f"{who} does not speak TLS as it was asked to.")
            return FailedRequest(failed, Trouble.TLS, _of_system(error))
        case aiohttp.ClientConnectorError():
            if error.os_error.errno in (errno.EMFILE, errno.ENFILE):
                text = (
                    "No file descriptor is left for a connection to the backend; "
                    "raise the limit (`ulimit -n`)."
                )
                shown = f"There is no room for another connection to {_whom(backend)} now."
                return FailedRequest(_not_sent(text, shown))
            failed = _not_sent(f"{who} takes no connection.")
            return FailedRequest(failed, Trouble.CONNECTION, _of_system(error))
        case aiohttp.ConnectionTimeoutError():
            failed = _not_sent(f"{who} takes no connection in time.")
            return FailedRequest(failed, Trouble.CONNECTION, "it takes no connection in time")
        case TimeoutError():
            text = f"{who} did not answer in time."
            return FailedRequest(UpstreamTimeout(text), Trouble.TIMEOUT, "no answer came")
        case aiohttp.InvalidURL() | ValueError():
            # Before a byte of the request has left: a bad address, a bad header, which their texts
            # may quote.
            return FailedRequest(_not_sent(f"The request to {_whom(backend)} cannot be made."))
    why = why_of(error)
    lost = broken(f"The connection to {_whom(backend)} broke before an answer", why)
    return FailedRequest(lost, Trouble.BROKEN, why)


def read_failure(error: Exception, backend: str) -> UpstreamError:
    """Return what became of a stream that broke."""
    if isinstance(error, TimeoutError):
        return UpstreamTimeout(f"{_who(backend)} was silent in the middle of a stream.")
    return broken(f"The stream of {_whom(backend)} broke", why_of(error))


def broken(what: str, why: str) -> UpstreamUnavailable:
    """Return the error for what broke; `why` may quote the backend, and is not for frontends."""
    return UpstreamUnavailable(f"{what}: {why}", sent=True, shown=f"{what}.")


def _not_sent(text: str, shown: str | None = None) -> UpstreamUnavailable:
    return UpstreamUnavailable(text, sent=False, shown=shown)


def _of_system(error: aiohttp.ClientConnectorError) -> str:
    return str(error.os_error.strerror or error.os_error)


def why_of(error: Exception) -> str:
    """Return what aiohttp says, never nothing and never an address. It may quote what the backend
    wrote."""
    text = str(error)
    if isinstance(error, aiohttp.ClientResponseError):
        text = error.message
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror
    # aiohttp quotes the line that it could not read.
    return quoted(text, 300) or type(error).__name__


def quoted(text: str, limit: int) -> str:
    """Return a text that a backend had a hand in, for people; nothing while a session holds a
    sealed value: what broke may have a part of it, or spell it in a way of its own."""
    if any_held():
        return ""
    return cut("".join(char if char.isprintable() else " " for char in text), limit)
