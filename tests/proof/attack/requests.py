"""The requests of an attack: each route of the application asked as it wants to be, then altered.

What a request is follows from its seed alone, but for the names of sessions, which are other ones
in each run."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from proxy.app.app import create_app
from proxy.base.clock import Clock
from proxy.config.settings import Settings
from proxy.scripted.mutations import VALUES, JsonText, altered
from tests.asks import ANY, ASKS, below, filled

__all__ = [
    "BIG_EVERY",
    "INJECTED",
    "KEYS",
    "Hit",
    "Target",
    "draw",
    "drawn_key",
    "of_sessions",
    "targets",
]

KEYS: Mapping[str, bytes | None] = {
    "owner": b"k-owner",
    "foreign": b"k-foreign",
    "limited": b"k-limited",
    "wrong": b"k-nobody",
    "none": None,
}
"""Whose key a request carries: the owner's of the sessions, another tenant's, one that is limited
to one backend, a wrong one, none."""

SHARES = (("owner", 5), ("foreign", 3), ("limited", 1), ("wrong", 2), ("none", 3))

INJECTED = "x-injected"
"""The header that requests try to put into answers."""

SEGMENTS: tuple[bytes, ...] = (
    b"..",
    b".",
    b"%2e%2e",
    b"%2E%2e",
    b"..%2f..%2f",
    b"..%5c..%5cadmin",
    b"..\\..\\..\\admin",
    b"%252e%252e",
    b"%c0%ae%c0%ae",
    b"%00",
    b"x%00y",
    b"%0d%0aX-Injected:%201",
    b"%ff%fe",
    b"\xff\xfe",
    b"\xe2\x80\xae",
    b"a%2fb",
    b"a%3fb%23c",
    b";a=b",
    b"*",
    b"",
    b"%",
    b"%zz",
    b"~root",
    b"A" * 5000,
    b"session",
    b"-1",
    b"9" * 30,
)
"""What is put in place of a part of a path."""

TEXTS: tuple[bytes, ...] = (
    b"",
    b"-1",
    b"0",
    b"1e308",
    b"NaN",
    b"9" * 40,
    b"18446744073709551616",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"%00",
    b"%ff",
    b"x%0d%0aX-Injected:%201",
    b"../../etc/passwd",
    b"A" * 6000,
    b"true",
    b"null",
    b"[]",
    b"*",
    b"http://127.0.0.1:9/",
    b"Bearer k-nobody",
    b"\t x",
)
"""What is put in place of a parameter or of a header's value."""

HEADERS: tuple[bytes, ...] = (
    b"Accept",
    b"Accept-Encoding",
    b"Authorization",
    b"Connection",
    b"Content-Encoding",
    b"Content-Length",
    b"Content-Type",
    b"Cookie",
    b"Host",
    b"Idempotency-Key",
    b"Last-Event-ID",
    b"Origin",
    b"Range",
    b"Transfer-Encoding",
    b"Upgrade",
    b"X-Dragoman-Session",
    b"X-Engine-Key",
    b"X-Forwarded-For",
    b"X-HTTP-Method-Override",
    b"traceparent",
    b"x-api-key",
    b"x-stainless-retry-count",
)

PARAMETERS: tuple[bytes, ...] = (
    b"after",
    b"agentId",
    b"before",
    b"cursor",
    b"follow",
    b"includeTail",
    b"limit",
    b"lease",
    b"metadata[a]",
    b"order",
    b"startIndex",
    b"state",
    b"status",
    b"streamControlVersion",
    b"task_id",
    b"types",
)

METHODS: tuple[bytes, ...] = (
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"PATCH",
    b"DELETE",
    b"OPTIONS",
    b"TRACE",
    b"PROPFIND",
    b"get",
)

BIG_EVERY = 400
"""One request in so many has a body of megabytes."""

NUMBERLESS = (b"Content-Length", b"Transfer-Encoding")
"""Headers after which a server may rightly wait for more than was sent."""


@dataclass(frozen=True, slots=True)
class Target:
    """A route: its method, and its path with names in braces."""

    method: str
    path: str


@dataclass(frozen=True, slots=True)
class Hit:
    """One request.

    Args:
        target: the route that it began as.
        key: whose key it carries, a name in `KEYS`.
        whole: whether a server that reads it has no reason to wait for more.
    """

    target: Target
    key: str
    method: bytes
    segments: tuple[bytes, ...]
    query: tuple[tuple[bytes, bytes], ...] = ()
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    whole: bool = True

    @property
    def path(self) -> bytes:
        """The path as it is sent."""
        return b"/" + b"/".join(self.segments)

    def data(self) -> bytes:
        """Return the bytes of it."""
        query = b"&".join(name + b"=" + value for name, value in self.query)
        lines = [self.method + b" " + self.path + (b"?" + query if query else b"") + b" HTTP/1.1"]
        own = {name.lower() for name, _ in self.headers}
        if b"host" not in own:
            lines.append(b"Host: 127.0.0.1")
        value = KEYS[self.key]
        if value is not None and b"authorization" not in own:
            lines.append(b"Authorization: Bearer " + value)
        if b"content-length" not in own and b"transfer-encoding" not in own and self.body:
            lines.append(b"Content-Length: %d" % len(self.body))
        lines += [name + b": " + value for name, value in self.headers]
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body


def coded(text: bytes) -> bytes:
    """Return a part of a path with each byte by its code."""
    return b"".join(b"%%%02x" % byte for byte in text)


def targets(settings: Settings) -> tuple[Target, ...]:
    """Return all routes of the application, the control API's and each face's."""
    # Nothing is asked of the sessions but their clock: no request is served.
    app = create_app(cast(Any, SimpleNamespace(clock=Clock(), settings=settings, keys=())))
    found: dict[Target, None] = {}
    for route in app.router.routes():
        assert route.resource is not None
        path = re.sub(r":[^}]*}", "}", route.resource.canonical)
        if path != "/{tail}":
            found[Target("PROPFIND" if route.method == "*" else route.method, path)] = None
    return tuple(found)


def drawn_key(source: random.Random) -> str:
    """Return whose key a request carries."""
    names = [name for name, _ in SHARES]
    return source.choices(names, [weight for _, weight in SHARES])[0]


def draw(
    target: Target,
    key: str,
    names: Mapping[str, str],
    source: random.Random,
    *,
    big: bool = False,
    plain: bool = False,
) -> Hit:
    """Return a request to a route: as it wants to be asked, then altered in up to three places.

    Args:
        target: the route.
        key: whose key it carries.
        names: what stands for the names in its path and body.
        source: what everything drawn comes from.
        big: whether it has a body of megabytes.
        plain: whether it is not altered.
    """
    ask = ASKS.get((target.method, below(target.path)), ANY)
    path = filled(target.path, names)
    hit = Hit(
        target,
        key,
        target.method.encode(),
        tuple(part.encode() for part in path.split("/")[1:]),
        tuple(
            (name.encode(), value.encode())
            for name, value in filled(dict(ask.query), names).items()
        ),
    )
    if target.method not in ("GET", "HEAD"):
        body = filled(ask.json, names)
        hit = replace(
            hit,
            headers=((b"Content-Type", b"application/json"),),
            body=json.dumps(body).encode(),
        )
        if big:
            return replace(hit, **_large(body, source))
    for _ in range(0 if plain else source.choice((0, 1, 1, 1, 2, 3))):
        hit = source.choice((_path, _path, _query, _header, _body, _body, _method))(hit, source)
    return hit


def _path(hit: Hit, source: random.Random) -> Hit:
    parts = list(hit.segments)
    at = source.randrange(len(parts))
    match source.randrange(6):
        case 0:
            parts.insert(at, source.choice(SEGMENTS))
        case 1 if len(parts) > 1:
            del parts[at]
        case 2:
            parts.append(b"")
        case 3:
            # Up and down again: where dots are taken away late, it is the same path.
            parts[at:at] = [b"x", source.choice((b"..", b"%2e%2e", b".%2e"))]
        case 4:
            parts[at] = coded(parts[at][:300])
        case _:
            parts[at] = source.choice(SEGMENTS)
    return replace(hit, segments=tuple(parts))


def _query(hit: Hit, source: random.Random) -> Hit:
    query = list(hit.query)
    if query and source.random() < 0.5:
        at = source.randrange(len(query))
        query[at] = (query[at][0], source.choice(TEXTS).replace(b" ", b"+"))
    else:
        name, value = source.choice(PARAMETERS), source.choice(TEXTS)
        query += [(name, value.replace(b" ", b"+"))] * source.choice((1, 1, 2, 50))
    return replace(hit, query=tuple(query))


def _header(hit: Hit, source: random.Random) -> Hit:
    name = source.choice(HEADERS)
    value = source.choice(
        (*TEXTS, b"gzip", b"chunked", b"100-continue", b"text/event-stream", b"bytes=0-", b"close")
    )
    return replace(
        hit,
        headers=(*hit.headers, *[(name, value)] * source.choice((1, 1, 1, 2))),
        whole=hit.whole and name not in NUMBERLESS,
    )


def _method(hit: Hit, source: random.Random) -> Hit:
    return replace(hit, method=source.choice(METHODS))


def _body(hit: Hit, source: random.Random) -> Hit:
    if not hit.body:
        return replace(hit, body=source.choice((b"{}", b"[]", b"\0", b"x" * 2000)))
    match source.randrange(10):
        case 0:
            body = bytearray(hit.body)
            body[source.randrange(len(body))] = source.randrange(256)
            return replace(hit, body=bytes(body))
        case 1:
            return replace(hit, body=hit.body[: source.randrange(len(hit.body))])
        case 2:
            return replace(hit, body=b"\xef\xbb\xbf" + hit.body)
        case 3:
            value = source.choice(VALUES)
            text = value.text if isinstance(value, JsonText) else json.dumps(value)
            return replace(hit, body=text.encode())
        case _:
            try:
                value = json.loads(hit.body)
            except (ValueError, RecursionError):
                return replace(hit, body=hit.body + hit.body)
            return replace(hit, body=altered(value, source).encode())


def _large(body: Any, source: random.Random) -> dict[str, Any]:
    """Return a body that costs more to read than to send, and its headers."""
    json_type = (b"Content-Type", b"application/json")
    size = source.choice((2**20, 4 * 2**20, 16 * 2**20))
    match source.randrange(7):
        case 0:
            packed = gzip.compress(b'{"message":"' + b"A" * size + b'"}', 1, mtime=0)
            return {"body": packed, "headers": (json_type, (b"Content-Encoding", b"gzip"))}
        case 1:
            return {"body": b"[" * (size // 16)}
        case 2:
            return {"body": b"[" + b"{}," * (size // 16) + b"{}]"}
        case 3:
            many = b",".join(b'"%d":1' % n for n in range(size // 64))
            return {"body": b"{" + many + b"}"}
        case 4:
            content = base64.b64encode(source.randbytes(size // 8)).decode()
            part = {
                "type": "file",
                "mediaType": "image/png",
                "url": f"data:image/png;base64,{content}",
            }
            return {"body": json.dumps({"message": [part, {"type": "text", "text": "x"}]}).encode()}
        case 5:
            return {"body": json.dumps({**body, "extra": "\\u00e9" * (size // 16)}).encode()}
        case _:
            return {"body": json.dumps({**body, "message": "A" * size}).encode()}


def of_sessions(found: Sequence[Target]) -> Sequence[Target]:
    """Return the routes that are about one session."""
    return [one for one in found if "{session}" in one.path + json.dumps(_asked(one))]


def _asked(target: Target) -> Any:
    ask = ASKS.get((target.method, below(target.path)), ANY)
    return [ask.json, dict(ask.query)]
