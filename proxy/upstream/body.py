"""Hands on the pieces of a streamed body in the turn of the event loop that brings them.

aiohttp keeps a body for a task that reads it. To wake that task for every piece, and to look each
time whether the connection was held back, costs about as much as to decode an event. So while
nobody is busy the pieces go straight to the one who takes them; while he is, aiohttp keeps them and
holds the backend back as always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp

from proxy.passes import Soon
from proxy.upstream import straight

Work = Coroutine[Any, Any, None]
"""What the one who takes pieces has to do before he takes more."""

MOST_BYTES = 1024 * 1024
"""Bytes that are handed on at once. A compressed piece may become very many: from here on aiohttp
keeps them, and unpacks no more than somebody takes."""


class Body:
    """The body of `response`, read by `take`, which is called in the event loop and not in the
    caller's task. What `take` returns is done before it gets more.

    `silence_seconds` is how long nothing may come; while `take` is busy that does not count. `soon`
    says when the pieces that have come are taken, by default in the next turn of the loop.
    `error` is what went wrong in `take`, which is no fault of the body.
    """

    __slots__ = (
        "_busy",
        "_closed",
        "_content",
        "_handle",
        "_loop",
        "_pieces",
        "_silence",
        "_since",
        "_size",
        "_soon",
        "_take",
        "_turn",
        "error",
    )

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        take: Callable[[bytes], Work | None],
        silence_seconds: float,
        soon: Soon | None = None,
    ) -> None:
        self._content = response.content
        connection = response.connection
        protocol = None if connection is None else connection.protocol
        # Not every end of a connection is told to the reader of its body: one whose chunks make no
        # sense is closed without a word.
        self._closed = None if protocol is None else protocol.closed
        self._take = take
        self._silence = silence_seconds
        self._loop = asyncio.get_running_loop()
        self._soon = soon or self._loop.call_soon
        self._pieces: list[bytes] = []
        self._size = 0
        self._busy: Work | None = None
        self.error: Exception | None = None
        # Done when something other than pieces is to be looked at; None while none are handed on.
        self._turn: asyncio.Future[None] | None = None
        self._since = 0.0
        self._handle: asyncio.TimerHandle | None = None

    async def read(self) -> None:
        """Read to the end, or until `error`.

        Raises:
            TimeoutError: nothing came for too long.
            aiohttp.ClientError: the body broke.
        """
        self._handle = self._loop.call_later(self._silence, self._look)
        content, closed = self._content, self._closed
        if closed is not None:
            closed.add_done_callback(self._lost)
        try:
            while self.error is None:
                # What came last and was not taken yet, before, or while the taker was busy.
                data = self._pieces_left() or content.read_nowait()
                if data:
                    self._give(data)
                elif content.at_eof():
                    return
                elif closed is None or closed.done():
                    raise aiohttp.ClientPayloadError("the connection was closed in the body")
                else:
                    await self._hand_on()
                await self._work()
        finally:
            self._handle.cancel()
            if closed is not None:
                closed.remove_done_callback(self._lost)
                # One is enough, however many bodies a connection brings.
                closed.remove_done_callback(_heard)
                closed.add_done_callback(_heard)
            if self._busy is not None:
                self._busy.close()

    def _give(self, data: bytes) -> None:
        try:
            self._busy = self._take(data)
        except Exception as error:  # noqa: BLE001 - whoever reads gets it
            self.error = error

    async def _work(self) -> None:
        busy, self._busy = self._busy, None
        if busy is not None:
            try:
                await busy
            except Exception as error:  # noqa: BLE001 - whoever reads gets it
                self.error = error

    async def _hand_on(self) -> None:
        """Give pieces to `take` as they come, until it is busy, the end, or what broke the body."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._turn = turn
        self._since = self._loop.time()
        straight.begin(self._content, self)
        try:
            await turn
        finally:
            self._keep()

    def _keep(self) -> None:
        """Let aiohttp keep what comes, and `read` look."""
        turn, self._turn = self._turn, None
        if turn is not None:
            straight.end(self._content)
            if not turn.done():
                turn.set_result(None)

    def put(self, data: bytes) -> None:
        """Hear of a piece; all that one look at the socket brought is taken at once."""
        if not self._pieces:
            self._soon(self.flush)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MOST_BYTES:
            self._keep()

    def flush(self) -> None:
        """Let `take` have what is here, unless something ends the turn: then `read` gives it, so
        that whoever hears of the last piece hears of the end at once."""
        turn = self._turn
        if turn is None or turn.done() or not self._pieces:
            return
        self._since = self._loop.time()
        self._give(self._pieces_left())
        if self._busy is not None or self.error is not None:
            self._keep()

    def _pieces_left(self) -> bytes:
        pieces, self._pieces, self._size = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def over(self) -> None:
        """Hear that nothing follows; `read` finds out why."""
        turn = self._turn
        if turn is not None and not turn.done():
            turn.set_result(None)

    def _lost(self, closed: asyncio.Future[None]) -> None:
        _heard(closed)
        self.over()

    def _look(self) -> None:
        """Break the body when its time is over; a timer for each piece would cost more than to
        decode it, so one that is too early only looks again later."""
        turn = self._turn
        listens = turn is not None and not turn.done() and not self._pieces
        waited = self._loop.time() - self._since if listens else 0.0
        if waited < self._silence:
            self._handle = self._loop.call_later(self._silence - waited, self._look)
        else:
            self._content.set_exception(TimeoutError())


def _heard(closed: asyncio.Future[None]) -> None:
    """Take note of why a connection was closed, which is logged as an error where nobody does."""
    if not closed.cancelled():
        closed.exception()
