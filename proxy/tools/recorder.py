"""Records what goes between its client and one backend: `dragoman record`.

Every request is passed on to the backend and every answer back, bytes unchanged and as they come.
What passes is written to a capture (`adapters.captures`), one file for each session. Nothing is
held up for it: a body goes on piece by piece, and each piece is one line of the file, which a
thread makes and writes at once, or when it is known what of it is secret
(`adapters.captures.redact`). So a recorder that is killed leaves files that are right up to their
last whole line.

A request that makes a session names none; what is to be written of it waits in memory for the
answer, which does. What names no session at all goes into a file of its own, `unnamed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from adapters.captures import (
    CapturedPiece,
    CapturedRequest,
    CapturedResponse,
    ExchangeEnd,
    MissingRecords,
    Record,
    body_of,
)
from adapters.captures.dialect import SessionNaming
from adapters.captures.redact import Redactor
from proxy.base.clock import Clock
from proxy.http.loopback import foreign_name, is_loopback
from proxy.recording.background import CaptureThread
from proxy.recording.captures import Files
from proxy.scripted.standalone import serve_alone
from proxy.upstream.failures import read_failure, request_failure

_log = logging.getLogger(__name__)

_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"),
        *("upgrade", "host", "accept-encoding", "expect"),
    }
)
"""Headers of one connection. A capture is to be read, so nothing is asked for compressed."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Exchange:
    """What is written of one request and its answer, all of it in the thread of the recorder."""

    recorder: Recorder
    number: int
    target: str
    _held: list[bytes] | None = dataclasses.field(init=False, default_factory=list)
    _size: int = dataclasses.field(init=False, default=0)
    _sent: bytearray = dataclasses.field(init=False, default_factory=bytearray)
    _answer: bytearray = dataclasses.field(init=False, default_factory=bytearray)
    _session: str | None = dataclasses.field(init=False, default=None)
    # Records that are left out since the recorder was behind, and that nothing more is written.
    _left_out: int = dataclasses.field(init=False, default=0)
    _broken: bool = dataclasses.field(init=False, default=False)

    def put(self, made: Callable[[], Record], size: int = 0) -> None:
        """Let a record be made and written. After one that is left out none of this exchange is."""
        background = self.recorder.background
        if self._broken:
            return
        if not self._left_out and background.has_room(size):
            background.put(self, lambda: self.write(made()), size)
            return
        if not self._left_out:
            _log.warning(
                "dragoman: records of %s are left out: the disk or this machine is behind; how"
                " many stands in the capture",
                self.target.partition("?")[0],
            )
        self._left_out += 1

    def request(self, request: web.Request) -> None:
        """Write the head of the request."""
        made = functools.partial(
            CapturedRequest,
            exchange=self.number,
            side="backend",
            at=self.recorder.now(),
            method=request.method,
            target=request.raw_path,
            headers=tuple(request.headers.items()),
        )
        self.put(made, len(request.raw_path))

    def response(self, answer: aiohttp.ClientResponse) -> None:
        """Write the head of the answer."""
        made = functools.partial(
            CapturedResponse,
            exchange=self.number,
            at=self.recorder.now(),
            status=answer.status,
            headers=tuple(answer.headers.items()),
        )
        self.put(made)

    def piece(self, of: Literal["request", "response"], data: bytes) -> None:
        """Write a piece of a body."""
        made = functools.partial(body_of, self.number, of, self.recorder.now(), data)
        self.put(made, len(data))

    def sent(self) -> None:
        """Name the session, if the request does: it has come to its end."""
        self.recorder.background.put(self, self._name)

    def ended(self, how: Literal["ended", "broke", "left"], why: str | None = None) -> None:
        """Write the end."""
        end = functools.partial(
            ExchangeEnd, exchange=self.number, at=self.recorder.now(), how=how, why=why
        )
        self.recorder.background.put(self, lambda: self._end(end))

    def failed(self, error: Exception) -> None:
        """Write no more of it: something in it cannot be written."""
        self._broken = True
        _log.error("dragoman: the capture of an exchange ends here", exc_info=error)

    # In the thread.

    def write(self, record: Record) -> None:
        """Write a record without its secrets, once these are known, or keep it until the session
        is known."""
        if isinstance(record, CapturedPiece) and self._held is not None:
            (self._sent if record.of == "request" else self._answer).extend(record.data)
        for ready in self.recorder.redactor.add(record):
            self._write(self.recorder.files.line(ready))

    def _write(self, line: bytes) -> None:
        if self._held is None:
            self.recorder.files.write(self._session, line)
            return
        self._held.append(line)
        self._size += len(line)
        # So much waits for the name of its session; a longer exchange belongs to none.
        if self._size > 1024 * 1024:
            self._settle(None)

    def _name(self) -> None:
        """Look whether the request, as far as it came, names a session."""
        if self._held is None:
            return
        found = self.recorder.naming.of_request(self.target, bytes(self._sent))
        if found is not None:
            self._settle(found)

    def _end(self, end: Callable[[], ExchangeEnd]) -> None:
        if self._broken:
            return
        # A backend may answer before it has the whole request.
        self._name()
        if self._held is not None:
            made = self.recorder.naming.of_answer(self.target, bytes(self._answer))
            self._settle(made)
        record: Record = end()
        if self._left_out:
            record = MissingRecords(at=end().at, count=self._left_out + 1, exchange=self.number)
        self.write(record)

    def _settle(self, session: str | None) -> None:
        held, self._held, self._session = self._held, None, session
        self.recorder.files.write(session, b"".join(held or []))


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Recorder:
    """Passes requests on to one backend and writes what passes.

    Args:
        session: for requests to the backend.
        url: where the backend is; the path of a request is put behind it, but not `/`.
        naming: how the backend's dialect names sessions.
        files: where captures go.
        redactor: what takes secrets out of what is written.
        now: the time in milliseconds.
        local: whether only programs of this machine can reach it: then requests by a name that was
            rebound to it, or from a web page of elsewhere, are refused.
    """

    session: aiohttp.ClientSession
    url: str
    naming: SessionNaming
    files: Files
    redactor: Redactor
    now: Callable[[], float]
    _: dataclasses.KW_ONLY
    local: bool = True
    background: CaptureThread = dataclasses.field(init=False, default_factory=CaptureThread)
    _numbers: int = dataclasses.field(init=False, default=0)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on, and its answer back."""
        if self.local and (name := _foreign(request)) is not None:
            text = (
                f"This recorder serves programs of this machine, and `{name[:80]}` is not of it."
                " Ask for it by 127.0.0.1 or localhost."
            )
            return web.Response(status=403, text=f"{text}\n")
        self._numbers += 1
        target = request.raw_path
        exchange = _Exchange(self, self._numbers, target)
        exchange.request(request)
        return await self._pass_on(request, exchange, target)

    def _address(self, target: str) -> str:
        """Return what a request goes to. A client that is given the recorder's address alone asks
        for `/`, as it would ask for the path of the backend's address: nothing is added to that."""
        path, mark, query = target.partition("?")
        if path == "/" and URL(self.url).path != "/":
            return self.url + mark + query
        return self.url.rstrip("/") + target

    async def _pass_on(
        self, request: web.Request, exchange: _Exchange, target: str
    ) -> web.StreamResponse:
        async def body() -> object:
            async for data in request.content.iter_any():
                exchange.piece("request", data)
                yield data
            exchange.sent()

        headers = _passed(request.headers)
        try:
            answer = await self.session.request(
                request.method,
                URL(self._address(target), encoded=True),
                headers=headers,
                data=body() if request.body_exists else None,
                allow_redirects=False,
                skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            why = request_failure(error, "").error.whole
            async for data in request.content.iter_any():
                exchange.piece("request", data)
            exchange.ended("broke", why)
            text = f"{why} Look whether it runs at {self.url}, or name another with --backend."
            # On stderr too: of the client's own error nobody learns why.
            _log.warning("dragoman: %s", text)
            return web.Response(status=502, text=f"{text}\n")
        except asyncio.CancelledError:
            exchange.ended("left")
            raise
        if not request.body_exists:
            exchange.sent()
        with contextlib.closing(answer):
            return await self._pass_back(request, exchange, answer)

    async def _pass_back(
        self, request: web.Request, exchange: _Exchange, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        exchange.response(answer)
        response = web.StreamResponse(
            status=answer.status, reason=answer.reason, headers=_passed(answer.headers)
        )
        try:
            await response.prepare(request)
            async for data in answer.content.iter_any():
                exchange.piece("response", data)
                await response.write(data)
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, TimeoutError) as error:
            exchange.ended("broke", read_failure(error, "").whole)
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


def _foreign(request: web.Request) -> str | None:
    return foreign_name(request.host, request.headers.get("Origin"))


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
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False
    ) as session:
        local = is_loopback(f"http://[{listen[0]}]" if ":" in listen[0] else f"http://{listen[0]}")
        recorder = Recorder(session, url, naming, files, redactor, now, local=local)
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", recorder.handle)
        try:
            await serve_alone(app, *listen, ready=ready, stop=stop)
        finally:
            recorder.background.put(None, files.close)
            await asyncio.to_thread(recorder.background.close)
