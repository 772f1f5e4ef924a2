"""What was found of a backend, and how it is read off an answer, or off the lack of one."""

from __future__ import annotations

import dataclasses
import enum
import errno
import re
import ssl
from collections.abc import Sequence
from typing import Any, Literal

import aiohttp
from yarl import URL

from adapters.model.base import Call, Response
from adapters.wire.errors import cut
from adapters.wire.jsonvalue import parse_json
from proxy.base.errors import UpstreamError, UpstreamTimeout
from proxy.base.logs import without_secrets

State = Literal["ok", "failed", "not asked", "unknown"]


class Kind(enum.StrEnum):
    """What is wrong, for programs."""

    DNS = "dns"
    REFUSED = "connection_refused"
    TLS = "tls"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    NOT_HTTP = "not_http"
    REDIRECT = "redirect"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    MESSAGES_FAIL = "messages_fail"
    HTML = "html"
    NOT_JSON = "not_json"
    UNEXPECTED = "unexpected"
    OTHER_DIALECT = "other_dialect"
    GENERATION = "generation"
    NOT_FOUND = "not_found"
    CREDENTIAL_REFUSED = "credential_refused"
    CREDENTIAL_MISSING = "credential_missing"
    CONTENT_TYPE = "content_type"
    BUFFERED = "buffered"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one thing: its state, what is wrong and what to do, and its kind."""

    state: State
    text: str = ""
    kind: Kind | None = None

    @property
    def sentence(self) -> str:
        """Return its text with one full stop at the end: some have several sentences."""
        return f"{self.text.rstrip('.')}."

    def cleaned(self, secrets: Sequence[str]) -> Finding:
        """Return it without secrets, on one line that a terminal can show."""
        text = without_secrets(self.text, secrets)
        text = "".join(char if char.isprintable() else " " for char in text)
        return dataclasses.replace(self, text=cut(text, 400))


def json_of(answer: Response) -> Any:
    """Return the JSON value of an answer, None where it has none."""
    try:
        return parse_json(answer.body)
    except ValueError:
        return None


_CODE = re.compile(r"[A-Za-z0-9_.-]{1,60}")


def status_of(answer: Response) -> str:
    """Return the status of a refusal, with its code where it has one."""
    body = json_of(answer)
    code: object = None
    if isinstance(body, dict):
        error = body.get("error")
        # Managed Agents has `type` for it.
        code = body.get("code") or error
        if isinstance(error, dict):
            code = error.get("code") or error.get("type")
    if isinstance(code, str) and _CODE.fullmatch(code):
        return f"{answer.status}, `{code}`"
    return str(answer.status)


def unusable(answer: Response, call: Call) -> Finding | None:
    """Say of an answer that it says nothing of who gave it, where that is so."""
    status = answer.status
    if 300 <= status < 400:
        target = _place(answer.headers.get("Location", ""))
        text = (
            f"{call.request.path} is redirected ({status}{target}), and no redirect is followed: "
            "write the `url` of the backend itself"
        )
        return Finding("failed", text, Kind.REDIRECT)
    if status == 429:
        later = answer.headers.get("Retry-After", "")
        when = f"in {later} s" if later.isascii() and later.isdecimal() else "later"
        text = f"it takes no more requests now ({status_of(answer)}): check again {when}"
        return Finding("failed", text, Kind.RATE_LIMITED)
    if status >= 500:
        if status in (502, 503, 504):
            todo = "it is starting or stopping, or a proxy before it does not reach it"
        else:
            todo = "look into its log"
        text = f"{call.request.path} is answered with an error ({status_of(answer)}): {todo}"
        return Finding("failed", text, Kind.SERVER_ERROR)
    return None


def _place(location: str) -> str:
    """Return where a redirect leads, without what may be secret in it."""
    try:
        url = URL(location).with_query(None).with_fragment(None)
    except ValueError:
        return ""
    return f", to {url.with_user(None) if url.is_absolute() else url}"


def unreached(error: UpstreamError, url: str, seconds: float) -> Finding:
    """Say why a backend gives no answer, and what to do."""
    cause = error.__cause__
    parts = URL(url)
    kind, text = Kind.CONNECTION, error.message
    match cause:
        case aiohttp.ClientConnectorDNSError():
            why = cause.os_error.strerror or "unknown"
            kind = Kind.DNS
            text = f"the name `{parts.host}` cannot be looked up ({why}): correct `url`, or the DNS"
        case aiohttp.ClientConnectorCertificateError():
            why = getattr(cause.certificate_error, "verify_message", "") or "not valid"
            kind = Kind.TLS
            text = (
                f"its certificate is not trusted ({why}): have this machine trust who issued it "
                "(SSL_CERT_FILE), or write the name in `url` that it is for"
            )
        case aiohttp.ClientConnectorSSLError():
            kind = Kind.TLS
            reason = cause.os_error.reason if isinstance(cause.os_error, ssl.SSLError) else ""
            text = (
                f"no TLS with it ({(reason or 'failed').replace('_', ' ').lower()}): if it speaks "
                "none there, write http:// in `url`"
            )
        case aiohttp.ClientConnectorError() if cause.os_error.errno == errno.ECONNREFUSED:
            kind = Kind.REFUSED
            text = (
                f"nothing listens on port {parts.port} of `{parts.host}`: start the backend, or "
                "correct `url`"
            )
        case aiohttp.ConnectionTimeoutError():
            kind = Kind.TIMEOUT
            text = (
                f"no connection within {seconds:g} s: correct `url`, or let firewalls pass "
                f"port {parts.port} of `{parts.host}`"
            )
        case aiohttp.ClientResponseError() | aiohttp.ServerDisconnectedError():
            kind = Kind.NOT_HTTP
            tls = " If it speaks TLS, write https://." if parts.scheme == "http" else ""
            text = f"what listens there does not answer with HTTP: correct `url`.{tls}"
        case _ if isinstance(error, UpstreamTimeout):
            kind = Kind.TIMEOUT
            text = (
                f"no answer within {seconds:g} s: look into the log of the backend, or correct "
                "`url`"
            )
    return Finding("failed", text, kind)
