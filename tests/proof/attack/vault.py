"""A backend that no key may use: whatever arrives there got around the keys.

It writes down requests as they came, byte for byte, and answers 404. What may arrive, besides the
questions of the check at a start, is what is open to everybody at an eve: callbacks, whose token is
the credential (eve page, sections 9.4 and 11)."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from urllib.parse import unquote_to_bytes

from yarl import URL

from adapters.registry import DIALECTS
from tests.proof.attack.wire import listening

__all__ = ["CREDENTIAL", "Vault", "vault"]

CREDENTIAL = "vault-credential-7f3a"
"""What Dragoman knows of a vault and must send with nobody's callback."""

_CALLBACK = re.compile(
    rb"(?:GET|HEAD|POST) /eve/v1/(?:connections/([^/?]+)/callback/([^/?]+)(?:/([^/?]+))?"
    rb"|(?:callback|task-input)/([^/?]+))(?:\?\S*)? HTTP/1\.1"
)
_ANSWER = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"


_FIRST_QUESTIONS = tuple(
    b"GET %b HTTP/1.1" % str(URL(asked.path).with_query(asked.query)).encode()
    for dialect in DIALECTS.values()
    if dialect.probe is not None
    for asked in (dialect.probe.first.call.request,)
)
"""How a check begins that does not know what it is answered by: two dialects begin alike."""


class Vault:
    """What arrived.

    Args:
        dialect: what it is configured as.
    """

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.arrived = 0
        self.broken_into: list[str] = []
        self.port = 0
        # The check at the server's start asks each of these once.
        self._due = list(_FIRST_QUESTIONS)

    def note(self, head: bytes) -> None:
        """Look at the head of a request."""
        self.arrived += 1
        line = head.partition(b"\r\n")[0]
        if line in self._due:
            self._due.remove(line)
            return
        if CREDENTIAL.encode() in head or not self._open(line):
            self.broken_into.append(head[:400].decode("latin-1"))

    def _open(self, line: bytes) -> bool:
        found = _CALLBACK.fullmatch(line)
        if found is None or self.dialect != "eve":
            return False
        return all(_plain(part) for part in found.groups() if part is not None)


def _plain(part: bytes) -> bool:
    """Say whether a part of a path is one part, however often somebody takes escapes out of it."""
    while True:
        if part in (b".", b"..") or re.search(rb"[/\\\x00-\x1f\x7f]", part):
            return False
        bare = unquote_to_bytes(part)
        if bare == part:
            return True
        part = bare


@contextlib.asynccontextmanager
async def vault(dialect: str) -> AsyncIterator[Vault]:
    """Serve a vault."""
    found = Vault(dialect)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            found.note(head)
            if length := re.search(rb"(?i)\r\ncontent-length: (\d+)", head):
                await reader.readexactly(int(length[1]))
            writer.write(_ANSWER + b'{"ok":false}')
            await writer.drain()

    async with listening(answer) as found.port:
        yield found
