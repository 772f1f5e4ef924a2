"""A backend that does not even answer in HTTP, or in far too much of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

from tests.proof.attack.wire import listening

__all__ = ["RUDE", "rude"]

PIECE = 64 * 1024
MANY = 512
"""Pieces of what has no end: 32 MiB, four times what an answer may have."""

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@functools.cache
def _packed() -> bytes:
    """A gibibyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(2**20)
    return b"".join(packer.compress(zeros) for _ in range(1024)) + packer.flush()


def _bomb() -> Iterator[bytes]:
    yield _OK + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n"
    packed = _packed()
    for start in range(0, len(packed), PIECE):
        yield packed[start : start + PIECE]


def _endless_body() -> Iterator[bytes]:
    yield _OK + b"Connection: close\r\n\r\n["
    for _ in range(MANY):
        yield b"0," * (PIECE // 2)


def _endless_head() -> Iterator[bytes]:
    yield _OK
    for n in range(MANY):
        yield b"X-%d: " % n + b"a" * 1000 + b"\r\n"


def _huge_header() -> Iterator[bytes]:
    yield _OK + b"X-Long: "
    for _ in range(MANY):
        yield b"a" * PIECE


def _no_http() -> Iterator[bytes]:
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20


def _short() -> Iterator[bytes]:
    yield _OK + b'Content-Length: 1000000\r\n\r\n{"ok":true,'


def _long() -> Iterator[bytes]:
    yield _OK + b'Content-Length: 2\r\n\r\n{}{"ok":true,"id":"x","sessionId":"x"}'


def _hints() -> Iterator[bytes]:
    for _ in range(2000):
        yield b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


def _injected() -> Iterator[bytes]:
    body = (
        b'{"ok":true,"status":"accepted","id":"x\\r\\nX-Injected: 1","deliveryId":"../../d",'
        b'"sessionId":"../../../admin?x=1#","continuationToken":"\\u0000","data":[]}'
    )
    yield _OK + b"Set-Cookie: a=b\r\nLocation: http://127.0.0.1:9/\r\n"
    yield b"Content-Length: %d\r\n\r\n" % len(body) + body


def _list() -> Iterator[bytes]:
    """As many entries as an answer may have."""
    entry = b'{"id":"e","type":"x","sequence":1,"payload":{}},'
    many = 7 * 2**20 // len(entry)
    body = b'{"ok":true,"id":"x","sessionId":"x","data":[' + entry * many + b"null]}"
    yield _OK + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _deep() -> Iterator[bytes]:
    body = b"[" * 2**20
    yield _OK + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _closed() -> Iterator[bytes]:
    return iter(())


RUDE: Mapping[str, Callable[[], Iterator[bytes]]] = {
    "bomb": _bomb,
    "closed": _closed,
    "deep": _deep,
    "endless-body": _endless_body,
    "endless-head": _endless_head,
    "hints": _hints,
    "huge-header": _huge_header,
    "injected": _injected,
    "list": _list,
    "long": _long,
    "no-http": _no_http,
    "short": _short,
}
"""What such a backend answers, whatever is asked."""


@contextlib.asynccontextmanager
async def rude(kind: str) -> AsyncIterator[int]:
    """Serve a rude backend; gives its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in RUDE[kind]():
            writer.write(piece)
            await writer.drain()

    async with listening(answer) as port:
        yield port
