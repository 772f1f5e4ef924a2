"""How connections are served: what of aiohttp's own ways is changed, for every listener.

aiohttp ends a connection that is silent between two requests, but not one that sends a head and
never its end, nor one that takes no answer; and it inflates bodies by itself, in the event loop.
Bodies are `proxy.bodies`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.keys import SETTINGS
from proxy.metrics import MALFORMED

IDLE_SECONDS = 75.0
"""How long a connection may stay before its first request and between two; also what finds those
whose client vanished in between. aiohttp's own is an hour, in which thousands may gather."""

LINGERING_SECONDS = 5.0
"""How long what a client still sends of a refused body is read and thrown away, so that it gets to
reading the answer; a connection that is closed before that loses the answer with it. nginx waits
as long."""

_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
"""What a head gets that came too slowly: which dialect it wants is not known yet."""

_BAD = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
"""What a head gets whose target cannot be read."""


class Connection(web.RequestHandler):
    """A connection that ends when the head of a request takes too long, or when nothing is taken
    of what waits to be written."""

    __slots__ = ("_head_seconds", "_head_timer", "_write_seconds", "_write_timer")

    def __init__(
        self, manager: web.Server, *, head_seconds: float, write_seconds: float, **options: Any
    ) -> None:
        super().__init__(manager, **options)
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_seconds = write_seconds
        self._write_timer: asyncio.TimerHandle | None = None

    def _waiting(self) -> bool:
        """Tell whether no request is here: what came, if anything, is a part of a head."""
        waiter = self._waiter
        return waiter is not None and not waiter.done()

    def data_received(self, data: bytes) -> None:
        """Parse what came; the time for a head begins with its first piece."""
        try:
            super().data_received(data)
        except Exception:  # noqa: BLE001 - aiohttp expects none but its own, and logs it as ours
            self._refuse()
            return
        request = self._current_request
        if request is not None and self._messages and not request.content.is_eof():
            # Nothing can follow a body that is not over but the news that its framing is broken;
            # whoever reads the body would wait for ever, since aiohttp keeps that for the next one.
            self._messages.clear()
            request.content.set_exception(web.RequestPayloadError("broken framing"))
            request.content.feed_eof()
            self.close()
        if self._messages or self._current_request is not None:
            self._disarm()
        elif data and self._head_timer is None:
            self._head_timer = self._loop.call_later(self._head_seconds, self._late)

    def _refuse(self) -> None:
        """End the connection of what its parser cannot take."""
        MALFORMED.inc()
        if self._waiting() and self.transport is not None:
            self.transport.write(_BAD)
            self.force_close()
        else:
            self.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._disarm()
        self._write_freely()
        super().connection_lost(exc)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        if not self._waiting():
            # The rest of a body, which nobody wants, is still being thrown away.
            self._head_timer = self._loop.call_later(self._head_seconds, self._late)
        elif self.transport is not None:
            self.transport.write(_LATE)
            self.force_close()

    def pause_writing(self) -> None:
        """Hear that more waits than is written on; no handler is asked to look after that."""
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        """Hear that the client has taken what waited."""
        super().resume_writing()
        self._write_freely()

    def _write_freely(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _look_later(self) -> None:
        if self.transport is not None:
            waits = self.transport.get_write_buffer_size()
            self._write_timer = self._loop.call_later(self._write_seconds, self._look, waits)

    def _look(self, waited: int) -> None:
        """End a connection that has taken nothing; one that is slow goes on."""
        transport = self.transport
        if transport is not None:
            if transport.get_write_buffer_size() >= waited:
                transport.abort()
            else:
                self._look_later()


class _Server(web.Server):
    def __init__(
        self, *given: Any, head_seconds: float, write_seconds: float, **options: Any
    ) -> None:
        super().__init__(*given, **options)
        self._head_seconds = head_seconds
        self._write_seconds = write_seconds

    def __call__(self) -> Connection:
        return Connection(
            self,
            loop=self._loop,
            head_seconds=self._head_seconds,
            write_seconds=self._write_seconds,
            **self._kwargs,
        )


def _without_expectations(make: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """Return what makes requests that expect nothing but a 100 (Continue).

    Others may be passed over (RFC 9110, section 10.1.1). aiohttp refuses them before any handler
    is asked, and quotes them: one that is no text is an error of ours then.
    """

    def made(message: RawRequestMessage, *others: Any) -> web.BaseRequest:
        expected = message.headers.get(hdrs.EXPECT)
        if expected is not None and expected.lower() != "100-continue":
            headers = CIMultiDict(message.headers)
            headers.popall(hdrs.EXPECT)
            message = message._replace(headers=CIMultiDictProxy(headers))
        return make(message, *others)

    return made


class Runner(web.AppRunner):
    """What serves an application of ours; `grace` is how long its handlers get to end."""

    def __init__(self, app: web.Application, *, grace: float) -> None:
        super().__init__(
            app,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=grace,
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=LINGERING_SECONDS,
            auto_decompress=False,
        )
        self._head_seconds = app[SETTINGS].server.head_timeout_seconds
        self._write_seconds = app[SETTINGS].server.write_timeout_seconds

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(
            made.request_handler,
            request_factory=_without_expectations(made.request_factory),
            handler_cancellation=made.handler_cancellation,
            loop=made._loop,
            head_seconds=self._head_seconds,
            write_seconds=self._write_seconds,
            **made._kwargs,
        )
