"""The bodies of requests: how much of them is taken, for how long, and where they are read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TypeVar, get_args

from aiohttp import web
from multidict import MultiMapping

from adapters.contract.faces import Size
from adapters.model.commands import AnyCommand
from adapters.model.events import Blob, File
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.limits import is_light
from proxy.config.settings import ServerSettings

SMALL = 64 * 1024
"""What a control, a title or a withdrawal may take. Bodies up to this size are taken also while
large ones use up `server.max_bodies_bytes`."""

VALUES = 20_000
"""Strings, numbers, arrays and objects in a body. The largest known, a program's state in eve's
`clientContext` and a schema, have some thousand."""

RETRY_SECONDS = 2
"""When a client may try again after it was told that too much is under way."""

T = TypeVar("T")

TAKEN = web.RequestKey("taken", bytes)
"""The body of a request, where it may have to be handed to another process."""

_BROKEN = (TimeoutError, web.RequestPayloadError, ValueError)
"""What reading a body raises that stays away, or is not framed as its head says."""


class BodyReader:
    """Reads bodies; `under_way` counts the bytes of those that are being read or parsed. `keeps`
    says that a request has its body as `TAKEN` once it is read."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self.under_way = 0
        self.keeps = False
        most = min(settings.max_body_bytes, max(settings.max_bodies_bytes, SMALL))
        # An answer in words, or a callback of a sign-in, has 1 MiB at most.
        sizes = {"small": SMALL, "answer": 2**20, "text": settings.max_text_bytes}
        self.limits: Mapping[Size, int] = {
            size: min(sizes.get(size, most), most) for size in get_args(Size)
        }
        """The most bytes that a body may have on a route that takes bodies of a size."""

    def check(self, headers: MultiMapping[str], length: int | None, limit: int) -> None:
        """Check what a head says of its body, before anything of that is read.

        Raises:
            DragomanError: it has a content coding, or is too large.
        """
        given = ",".join(headers.getall("Content-Encoding", ()))
        for name in given.split(",") if given else ():
            if name.strip().lower() in ("", "identity"):
                continue
            # Bytes that are not UTF-8 cannot be shown as they are.
            shown = given[:80].encode("ascii", "backslashreplace").decode()
            raise DragomanError(
                f"`Content-Encoding: {shown}` is not taken, none is; send the body as it is.",
                code=ErrorCode.UNSUPPORTED_MEDIA,
            )
        if length is not None and length > limit:
            raise _too_large(limit)

    async def take(self, request: web.Request, limit: int, parse: Callable[[bytes], T]) -> T:
        """Return what a request's body says.

        Raises:
            DragomanError: it is too large, too slow or broken, too much is under way, or `parse`
                refuses it.
        """
        if (taken := request.get(TAKEN)) is not None:
            return await asyncio.to_thread(parse, taken) if len(taken) > 2**20 else parse(taken)
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_timeout_seconds):
                async for chunk in request.content.iter_any():
                    body += chunk
                    self.under_way += len(chunk)
                    if len(body) > limit:
                        raise _too_large(limit)
                    if len(body) > SMALL and self.under_way > self._settings.max_bodies_bytes:
                        raise DragomanError(
                            "Too many large requests are under way; try again.",
                            code=ErrorCode.OVERLOADED,
                            details={"retry_after": RETRY_SECONDS},
                        )
            whole = bytes(body)
            if self.keeps:
                request[TAKEN] = whole
        except _BROKEN as error:
            raise _broken(error) from None
        else:
            # A larger one would hold up the event loop.
            return await asyncio.to_thread(parse, whole) if len(whole) > 2**20 else parse(whole)
        finally:
            self.under_way -= len(body)

    @contextlib.contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Count the bytes of a body that is kept after it was taken."""
        self.under_way += size
        try:
            yield
        finally:
            self.under_way -= size

    def parsed(self, body: bytes, parse: Callable[[bytes], T], size: Size | int) -> T:
        """Return what a JSON body says, if it is large by its files only; of a whole conversation
        see `check_new`.

        Raises:
            DragomanError: it has too many values or too much text, or `parse` refuses it.
        """
        # Of a whole conversation, names and commas counted, these are 10,000 messages.
        values = 200_000 if size == "conversation" else VALUES
        if not is_light(body, values):
            text = f"The body has more than {values} values, the most that is taken."
            raise DragomanError(text, code=ErrorCode.TOO_LARGE)
        said, most = parse(body), self._settings.max_text_bytes
        if size == "conversation":
            return said
        if len(body) > most and len(body) - _file_bytes(said) > most:
            raise _too_large(most, "Without its files the body")
        return said

    def check_new(self, commands: Sequence[AnyCommand]) -> None:
        """Check what is taken of a whole conversation.

        Raises:
            DragomanError: it is longer than a text may be.
        """
        most = self._settings.max_text_bytes
        # The bytes of files stand beside them.
        if sum(len(command.model_dump_json()) for command in commands) > most:
            raise _too_large(most, "What is new in the body")

    async def pieces(self, request: web.Request, limit: int) -> AsyncIterator[bytes]:
        """Yield a request's body as it comes.

        Raises:
            DragomanError: it is too large, broken, or stays away for too long.
        """
        taken = 0
        while True:
            try:
                async with asyncio.timeout(self._settings.body_timeout_seconds):
                    piece = await request.content.readany()
            except _BROKEN as error:
                raise _broken(error) from None
            if not piece:
                return
            taken += len(piece)
            if taken > limit:
                raise _too_large(limit)
            yield piece


def _broken(error: Exception) -> DragomanError:
    """Return what is wrong with a body that does not come whole."""
    if isinstance(error, TimeoutError):
        text, code = "The body came too slowly; send it again.", ErrorCode.REQUEST_TIMEOUT
    else:
        text, code = "The body is not framed as its head says.", ErrorCode.INVALID_REQUEST
    return DragomanError(text, code=code)


def _file_bytes(said: object) -> int:
    """Return what the files of a message took of its body: four bytes for three, and line ends."""
    message = getattr(said, "message", said)
    content = getattr(message, "content", ())
    files = (block for block in content if isinstance(block, File) and isinstance(block.ref, Blob))
    return sum((block.size or 0) for block in files) * 11 // 8


def _too_large(limit: int, what: str = "The body") -> DragomanError:
    text = f"{what} is larger than {limit} bytes, the most that is taken here."
    return DragomanError(text, code=ErrorCode.TOO_LARGE)
