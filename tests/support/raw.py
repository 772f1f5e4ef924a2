"""Requests written byte by byte: clients of HTTP normalize paths and refuse odd headers."""

from __future__ import annotations

import asyncio

from multidict import CIMultiDict
from yarl import URL

from tests.support.waiting import SOON_S

__all__ = ["exchange", "sent"]


async def sent(url: str, request: bytes) -> bytes:
    """Send bytes to a server and return all that it answers until it closes."""
    address = URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(request)
        async with asyncio.timeout(SOON_S):
            return await reader.read()
    finally:
        writer.close()


async def exchange(
    url: str,
    method: str,
    target: bytes,
    *headers: bytes,
    body: bytes = b"",
    host: bytes = b"127.0.0.1",
) -> tuple[int, CIMultiDict[str], bytes]:
    """Ask for a target exactly as it is written; return status, headers and body."""
    lines = [
        b"%b %b HTTP/1.1" % (method.encode(), target),
        b"Host: " + host,
        b"Connection: close",
        *([b"Content-Length: %d" % len(body)] if body else []),
        *headers,
    ]
    answer = await sent(url, b"\r\n".join([*lines, b"", body]))
    top, _, rest = answer.partition(b"\r\n\r\n")
    status, *fields = top.decode("utf-8", "surrogateescape").split("\r\n")
    pairs = (field.partition(": ") for field in fields)
    return int(status.split(" ")[1]), CIMultiDict((name, value) for name, _, value in pairs), rest
