"""Records what goes between its client and one backend: `dragoman record`.

Every request is passed on to the backend and every answer back, bytes unchanged and as they come.
What passes is written to a capture (`adapters.captures`), one file for each session. Nothing is
held up for it: a body goes on piece by piece, and each piece is one line of the file. A line is
written at once, or when it is known what of it is secret (`adapters.captures.redact`). So a
recorder that is killed leaves files that are right up to their last whole line.

A request that makes a session names none; what is to be written of it waits in memory for the
answer, which does. What names no session at all goes into a file of its own, `unnamed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from adapters.captures import End, Record, Request, Response, body_of
from adapters.captures.dialect import SessionNaming
from adapters.captures.redact import Redactor
from proxy.base.clock import Clock
from proxy.recording.captures import Files
from proxy.scripted.running import serve_alone
from proxy.upstream.failures import read_failure, request_failure

__all__ = ["Recorder", "record"]

_log = logging.getLogger(__name__)

HELD_BYTES = 1024 * 1024
"""How much of an exchange waits for the name of its session; a longer one is of none."""

CONNECT_SECONDS = 30.0

_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"),
        *("upgrade", "host", "accept-encoding", "expect"),
    }
)
"""Headers of one connection. A capture is to be read, so nothing is asked for compressed."""


class _Exchange:
    """What is written of one request and its answer."""

    def __init__(self, recorder: Recorder, number: int, target: str) -> None:
        self._recorder = recorder
        self._now = recorder.now
        self._target = target
        self._held: list[bytes] | None = []
        self._size = 0
        self._sent = bytearray()
        self._answer = bytearray()
        self._session: str | None = None
        self.number = number

    def write(self, record: Record) -> None:
        """Write a record without its secrets, once these are known, or keep it until the session
        is known."""
        for ready in self._recorder.redactor.add(record):
            self._write(self._recorder.files.line(ready))

    def _write(self, line: bytes) -> None:
        if self._held is None:
            self._recorder.files.write(self._session, line)
            return
        self._held.append(line)
        self._size += len(line)
        if self._size > HELD_BYTES:
            self._settle(None)

    def sent(self, data: bytes) -> None:
        """Write a piece of the request's body."""
        if self._held is not None:
            self._sent += data
        self.write(body_of(self.number, "request", self._now(), data))

    def received(self, data: bytes) -> None:
        """Write a piece of the answer's body."""
        if self._held is not None:
            self._answer += data
        self.write(body_of(self.number, "response", self._now(), data))

    def asked(self) -> None:
        """Look whether the request, as far as it came, names a session."""
        if self._held is None:
            return
        found = self._recorder.naming.of_request(self._target, bytes(self._sent))
        if found is not None:
            self._settle(found)

    def ended(self, how: str, why: str | None = None) -> None:
        """Write the end."""
        # A backend may answer before it has the whole request.
        self.asked()
        if self._held is not None:
            made = self._recorder.naming.of_answer(self._target, bytes(self._answer))
            self._settle(made)
        self.write(End(exchange=self.number, at=self._now(), how=how, why=why))  # type: ignore[arg-type]

    def _settle(self, session: str | None) -> None:
        held, self._held, self._session = self._held, None, session
        self._recorder.files.write(session, b"".join(held or []))


class Recorder:
    """Passes requests on to one backend and writes what passes.

    Args:
        session: for requests to the backend.
        url: where the backend is; the path of a request is put behind it.
        naming: how the backend's dialect names sessions.
        files: where captures go.
        redactor: what takes secrets out of what is written.
        now: the time in milliseconds.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        naming: SessionNaming,
        files: Files,
        redactor: Redactor,
        now: Callable[[], float],
    ) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._numbers = 0
        self.redactor = redactor
        self.now = now
        self.naming = naming
        self.files = files

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on, and its answer back."""
        self._numbers += 1
        target = request.raw_path
        exchange = _Exchange(self, self._numbers, target)
        exchange.write(
            Request(
                exchange=exchange.number,
                side="backend",
                at=self.now(),
                method=request.method,
                target=target,
                headers=tuple(request.headers.items()),
            )
        )
        return await self._pass_on(request, exchange, target)

    async def _pass_on(
        self, request: web.Request, exchange: _Exchange, target: str
    ) -> web.StreamResponse:
        async def body() -> object:
            async for data in request.content.iter_any():
                exchange.sent(data)
                yield data
            exchange.asked()

        headers = _passed(request.headers)
        try:
            answer = await self._session.request(
                request.method,
                URL(self._url + target, encoded=True),
                headers=headers,
                data=body() if request.body_exists else None,
                allow_redirects=False,
                skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            why = request_failure(error, "").error.message
            async for data in request.content.iter_any():
                exchange.sent(data)
            exchange.ended("broke", why)
            text = f"{why} Look whether it runs at {self._url}, or name another with --backend."
            # On stderr too: of the client's own error nobody learns why.
            _log.warning("dragoman: %s", text)
            return web.Response(status=502, text=f"{text}\n")
        except asyncio.CancelledError:
            exchange.ended("left")
            raise
        if not request.body_exists:
            exchange.asked()
        with contextlib.closing(answer):
            return await self._pass_back(request, exchange, answer)

    async def _pass_back(
        self, request: web.Request, exchange: _Exchange, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        exchange.write(
            Response(
                exchange=exchange.number,
                at=self.now(),
                status=answer.status,
                headers=tuple(answer.headers.items()),
            )
        )
        response = web.StreamResponse(
            status=answer.status, reason=answer.reason, headers=_passed(answer.headers)
        )
        try:
            await response.prepare(request)
            async for data in answer.content.iter_any():
                exchange.received(data)
                await response.write(data)
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, TimeoutError) as error:
            exchange.ended("broke", read_failure(error, "").message)
            # The client hears of it as it would without us: its connection breaks.
            if request.transport is not None:
                request.transport.abort()
            return response
        except (asyncio.CancelledError, ConnectionResetError):
            exchange.ended("left")
            raise
        exchange.ended("ended")
        await response.write_eof()
        return response


def _passed(headers: Mapping[str, str]) -> CIMultiDict[str]:
    kept = ((name, value) for name, value in headers.items() if name.lower() not in _HOP)
    return CIMultiDict(kept)


async def record(
    naming: SessionNaming,
    dialect: str,
    url: str,
    folder: Path,
    redactor: Redactor,
    *,
    listen: tuple[str, int],
    ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Pass on and record until `stop` is set; `ready` gets the address once requests are answered.

    Raises:
        CannotListen: why, and what to do.
    """
    now = Clock().now
    files = Files(folder, dialect, now)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False
    ) as session:
        recorder = Recorder(session, url, naming, files, redactor, now)
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", recorder.handle)
        try:
            await serve_alone(app, *listen, ready=ready, stop=stop)
        finally:
            files.close()
