"""The bodies of requests: how much of them is taken, how fast they must come, and where they are
read.

What a client may send costs memory and time before anybody looks at it. So each body has a limit
by what its route can need; all bodies together have a budget; a body that comes too slowly is given
up; a content coding is refused unless the configuration asks for it. Larger ones are worked on in a
thread of their own, by steps that are short: a thread helps the event loop only as far as it lets
go of the interpreter.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aiohttp import StreamReader, web
from multidict import MultiMapping

from adapters.bulk import TooDeep, TooMuch, Unended, outline
from adapters.errors import DragomanError, ErrorCode
from adapters.events import Blob, File
from proxy.settings import ServerSettings

SMALL = 64 * 1024
"""What a control, a title or a withdrawal may take; also what of each body is outside of the
budget, so that answers and short messages are taken while large bodies fill it."""

AT_ONCE = 8 * 1024
"""The size up to which a body is worked on in the event loop: the worst that is known takes 5 ms,
and nearly all messages are shorter."""

ANSWER = 2**20
"""What an answer in words, or a callback of a sign-in, may take."""

STRANGERS = 8 * ANSWER
"""What the callbacks may take together, which need no key: whoever fills this keeps nobody's large
message out."""

TEXT = 2**20
"""What a message without its files may take: a text is checked, stored and sent on in one turn of
the event loop, 20 ms for 1 MiB. A Herm takes 2,000,000 characters (Herm page, section 3.1), which
would take 35 ms; no model reads as much."""

FILES: int | None = None
"""A message with files in it may take what `server.max_body_bytes` allows."""

SLOWEST = 32 * 1024
"""Bytes that each second of waiting must bring, after `server.body_timeout_seconds`: a quarter of
a megabit, less than any link over which somebody sends files."""

RATIO = 100
"""How many bytes may come of one: JSON of like records shrinks to a tenth, text to a third, and
what deflate does at most is a thousand."""

_SLICE = 64 * 1024
"""Bytes that are given to it at once."""

_PIECE = 256 * 1024
"""Bytes that are inflated at once: under a millisecond."""

RETRY_SECONDS = 2
"""When a client may try again that found the budget used up."""

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class Budget:
    """What bodies may take together: `taken` bytes are in use of `most`."""

    most: int
    taken: int = 0


class Hold:
    """What one body takes of a budget, until it is released."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def grow(self, size: int) -> None:
        """Take so many bytes in all.

        Raises:
            DragomanError: they do not fit now.
        """
        counted = max(size - SMALL, 0)
        if self._budget.taken - self.size + counted > self._budget.most:
            raise DragomanError(
                "Too many large requests are under way; try again.",
                code=ErrorCode.OVERLOADED,
                details={"retry_after": RETRY_SECONDS},
            )
        self._budget.taken += counted - self.size
        self.size = counted

    def release(self) -> None:
        """Give all of it back; a second time does nothing."""
        self._budget.taken -= self.size
        self.size = 0


class Bodies:
    """What reads bodies: within the `budget`, or that of `strangers`, who show no key."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self.budget = Budget(settings.max_bodies_bytes)
        self.strangers = Budget(min(STRANGERS, settings.max_bodies_bytes))
        # One thread: more would only take the interpreter from the event loop together.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bodies")
        self._closed = False

    def close(self) -> None:
        """Let the thread end, without waiting for it."""
        self._closed = True
        self._thread.shutdown(wait=False)

    def limit(self, route: int | None) -> int:
        """Return the most bytes that a body may have on a route with that limit: none may ask for
        more than the whole budget, which it would never get."""
        most = min(self._settings.max_body_bytes, self.budget.most + SMALL)
        return most if route is None else min(route, most)

    def check(self, headers: MultiMapping[str], length: int | None, limit: int) -> None:
        """Check what a head says of its body, before anything of that is read.

        Raises:
            DragomanError: it has a content coding that is not taken, or is too large.
        """
        self._coding(headers)
        if length is not None and length > limit:
            raise too_large(limit)

    def _coding(self, headers: MultiMapping[str]) -> str | None:
        """Return the coding that is to be undone, or None."""
        given = ",".join(headers.getall("Content-Encoding", []))
        named = [name for part in given.split(",") if (name := part.strip().lower())]
        if not named or named == ["identity"]:
            return None
        taken = self._settings.content_encodings
        # One coding at most: each further one multiplies what a byte may become.
        if len(named) == 1 and named[0] in taken:
            return named[0]
        known = f"only {', '.join(taken)}, and one at a time, is" if taken else "none is"
        # Bytes that are no UTF-8 cannot be shown as they are.
        shown = given[:80].encode("ascii", "backslashreplace").decode()
        raise DragomanError(
            f"`Content-Encoding: {shown}` is not taken, {known}; send the body as it is.",
            code=ErrorCode.UNSUPPORTED_MEDIA,
        )

    async def read(self, request: web.Request, limit: int, hold: Hold) -> bytes:
        """Return the body of a request; `hold` takes what it has of the budget.

        Raises:
            DragomanError: it is too large, too slow, broken, or the budget is used up.
        """
        coding = self._coding(request.headers)
        loop = asyncio.get_running_loop()
        began = loop.time()
        patience = self._settings.body_timeout_seconds
        # Its value is not copied, as that of a bytearray is: 50 ms for 72 MiB.
        body, size = io.BytesIO(), 0
        try:
            while True:
                due = began + patience + size / SLOWEST
                chunk = await _next(request.content, due)
                if not chunk:
                    break
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                hold.grow(size)
                body.write(chunk)
        except TimeoutError:
            raise DragomanError(
                "The body came too slowly; send it again.", code=ErrorCode.REQUEST_TIMEOUT
            ) from None
        except (web.RequestPayloadError, ValueError):
            raise broken("The body is not framed as its head says.") from None
        if coding is not None:
            return await self._inflated(body.getvalue(), limit, hold)
        return body.getvalue()

    async def _inflated(self, data: bytes, limit: int, hold: Hold) -> bytes:
        limit = min(limit, RATIO * len(data) + SMALL)
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # gzip or zlib, as its head says
        out, size, at, rest = io.BytesIO(), 0, 0, b""
        while not inflater.eof:
            # Slices of what came: the inflater copies what it does not take, each time.
            some = rest or data[at : at + _SLICE]
            at += 0 if rest else len(some)
            try:
                piece = await self.work(len(data), inflater.decompress, some, _PIECE)
            except zlib.error:
                raise broken("The body is not what its `Content-Encoding` says.") from None
            rest = inflater.unconsumed_tail
            if not piece and not rest and at >= len(data) and not inflater.eof:
                raise broken("The body ends before its `Content-Encoding` does.")
            size += len(piece)
            if size > limit:
                raise too_large(limit)
            # What came is there as well, until all of it is inflated.
            hold.grow(len(data) + size)
            out.write(piece)
        if inflater.unused_data or rest or at < len(data):
            raise broken("Something follows the end of the body's `Content-Encoding`.")
        return out.getvalue()

    async def work(self, size: int, do: Callable[..., T], *given: object) -> T:
        """Do something with a body of that size: at once with a small one, else in the thread.

        Raises:
            DragomanError: the server stops.
            Exception: what it raises.
        """
        if size <= AT_ONCE:
            return do(*given)
        if self._closed:
            raise DragomanError("The server is stopping; try again.", code=ErrorCode.STOPPING)
        return await asyncio.get_running_loop().run_in_executor(self._thread, do, *given)


def parsed(body: bytes, parse: Callable[[bytes], T]) -> T:
    """Return what a JSON body says, if it is large by its files only.

    Raises:
        DragomanError: it has too many values or too much text, or `parse` refuses it.
    """
    if len(body) > AT_ONCE:
        try:
            outline(body)
        except TooMuch as error:
            raise DragomanError(f"The body has {error}.", code=ErrorCode.TOO_LARGE) from None
        except (TooDeep, Unended):
            # `parse` says so, in the words of its dialect.
            pass
    said = parse(body)
    if len(body) > TEXT and len(body) - _file_bytes(said) > TEXT:
        text = f"Without its files the body is larger than {TEXT} bytes."
        raise DragomanError(text, code=ErrorCode.TOO_LARGE)
    return said


def _file_bytes(said: object) -> int:
    """Return what the files of a message took of its body: four bytes for three, and line ends."""
    message = getattr(said, "message", said)
    content = getattr(message, "content", ())
    files = (block for block in content if isinstance(block, File) and isinstance(block.ref, Blob))
    return sum((block.size or 0) for block in files) * 11 // 8


async def _next(content: StreamReader, due: float) -> bytes:
    async with asyncio.timeout_at(due):
        return await content.readany()


def too_large(limit: int) -> DragomanError:
    """Return the refusal of a body that is longer than so many bytes."""
    return DragomanError(f"The body is larger than {limit} bytes.", code=ErrorCode.TOO_LARGE)


def broken(text: str) -> DragomanError:
    """Return the refusal of a body that is no body."""
    return DragomanError(text, code=ErrorCode.INVALID_REQUEST)
