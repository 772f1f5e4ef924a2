"""One exchange with a backend: a `Call` out, a head and a body back.

The backend's credentials are added here and nowhere else. They never follow a redirect, since the
client follows none. What aiohttp raises becomes `UpstreamError`s that say whether the request may
have arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Self

import aiohttp
from aiohttp.payload import Payload
from multidict import CIMultiDict
from yarl import URL

from adapters.model.base import Call, Response
from adapters.model.file_body import FileBody
from adapters.wire.errors import OFFENDING_LIMIT
from adapters.wire.framing import FrameTooLarge
from adapters.wire.framing.ndjson import NdjsonParser
from adapters.wire.framing.sse import SseFrame, SseParser
from adapters.wire.limits import is_light
from adapters.wire.url_paths import segments_of
from proxy.base import traces
from proxy.base.errors import UpstreamTimeout, UpstreamUnavailable
from proxy.base.outcomes import Code, MessageOutcome
from proxy.recording.session import RecordedExchange, SessionCapture
from proxy.upstream.failures import broken, quoted, read_failure, request_failure, why_of
from proxy.upstream.fenced_body import Body, Permitted, fenced
from proxy.upstream.health import Health, Trouble

CONNECT_SECONDS = 10.0
"""A backend that does not take a connection within this is down; aiohttp's own default is 30."""

PERMIT_LOOK_SECONDS = 0.1
"""How often a request that waits looks whether this process may ask backends."""

STREAM_TYPES = {"sse": "text/event-stream", "ndjson": "application/x-ndjson"}
"""The content type of a stream by its framing."""

_UNRECORDED = contextlib.nullcontext()

Load = Callable[[], Awaitable[Mapping[str, bytes]]]
"""Gives the bytes of the files that the body of a request names, when it is its turn."""


async def no_files() -> Mapping[str, bytes]:
    """The files of a request that names none."""
    return {}


Frames = Sequence[SseFrame | bytes | FrameTooLarge]


Take = Callable[[Frames], Coroutine[Any, Any, None] | None]
"""Takes the frames of a piece of a stream, which may be none. What it returns is awaited before
more is read."""


@dataclasses.dataclass(slots=True, eq=False)
class BackendStream:
    """An open stream: its head, and after its end the half frame `tail` that was left over."""

    head: Response
    response: aiohttp.ClientResponse
    parser: SseParser | NdjsonParser
    silence: float
    taken: RecordedExchange | None = None
    health: Health | None = None
    tail: bytes = dataclasses.field(default=b"", init=False)
    _stopped: bool = dataclasses.field(default=False, init=False)

    def stop(self) -> None:
        """Break the stream as silence does: `read` raises `UpstreamTimeout`."""
        content = self.response.content
        if not content.is_eof() and content.exception() is None:
            self._stopped = True
            content.set_exception(TimeoutError())

    async def read(self, take: Take) -> None:
        """Give `take` the frames of each piece of the body, as soon as it is here, to its end.

        Raises:
            UpstreamUnavailable: the connection broke.
            UpstreamTimeout: nothing came for as long as a stream may be silent.
        """
        content, parser, loop = self.response.content, self.parser, asyncio.get_running_loop()
        taken = self.taken
        connection = self.response.connection
        protocol = None if connection is None else connection.protocol
        since: float | None = None
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            timer = loop.call_later(period, look)
            if since is None or content.is_eof() or content.exception() is not None:
                return
            if loop.time() - since >= self.silence:
                content.set_exception(TimeoutError())
            elif protocol is not None and not protocol.connected:
                # aiohttp 3.14 does not say so where chunks make no sense.
                text = "the connection was closed in the body"
                content.set_exception(aiohttp.ClientPayloadError(text))

        # One timer for each piece would cost more than to decode an event.
        period = min(1.0, self.silence)
        timer = loop.call_later(period, look)
        try:
            while True:
                since = loop.time()
                try:
                    data = await content.readany()
                except (aiohttp.ClientError, OSError) as error:
                    failure = read_failure(error, self.head.backend)
                    if self.health is not None and not self._stopped:
                        self.health.trouble(Trouble.STREAM, failure.whole)
                    raise failure from error
                since = None
                if not data:
                    break
                frames = parser.feed(data)
                if taken is not None:
                    taken.received(data, frames)
                if (busy := take(frames)) is not None:
                    await busy
        finally:
            timer.cancel()
        if taken is not None:
            taken.ended("ended")
        if not isinstance(parser, NdjsonParser):
            self.tail = parser.close()
        elif (last := parser.close()) and (busy := take(last)) is not None:
            await busy


@dataclasses.dataclass(slots=True)
class _Address:
    """Where a backend is, and the headers that let us in."""

    url: str
    auth: CIMultiDict[str]

    base: str = dataclasses.field(init=False)
    """What stands before a path."""

    def __post_init__(self) -> None:
        self.base = self.url.rstrip("/")


@dataclasses.dataclass(slots=True, eq=False)
class Upstream:
    """A backend: its address and credentials, and the connections to it.

    `health` hears how the backend stands; `permitted` says whether this process may ask backends,
    which it waits for.
    Times are in seconds: until a connection is taken, until the head and again until the end of an
    answer that is not a stream, and between two pieces of a stream.
    """

    session: aiohttp.ClientSession
    url: dataclasses.InitVar[str]
    auth: dataclasses.InitVar[Mapping[str, str]]
    _: dataclasses.KW_ONLY
    connect_seconds: float = CONNECT_SECONDS
    # `/execute` answers at once (engine page, section 6.4), the model's work comes later.
    answer_seconds: float = 60.0
    # Where neither the backend's configuration nor its dialect says how long that is.
    silence_seconds: float = 60.0
    # The largest known is eve's `info`, about 100 kB. A page of a Herm's list has 100 events with
    # 20,000 characters each. It is parsed in one step.
    body_limit: int = 4 * 1024 * 1024
    # An eve may show a file of 25 MiB in one, as base64.
    frame_bytes: int = 36 * 1024 * 1024
    health: Health | None = None
    permitted: Permitted | None = None
    _address: _Address = dataclasses.field(init=False, repr=False)
    # Requests with files that are sent at a time, since their files are in memory meanwhile. A
    # backend that takes no body holds up its own files only, for as long as an answer is waited
    # for.
    _carrying: asyncio.Semaphore = dataclasses.field(
        default_factory=lambda: asyncio.Semaphore(4), init=False
    )
    _capture: SessionCapture | None = dataclasses.field(default=None, init=False)
    _name: str = dataclasses.field(init=False)

    def __post_init__(self, url: str, auth: Mapping[str, str]) -> None:
        # One for all copies, so that a change reaches those of recorded sessions too.
        self._address = _Address(str(URL(url)), CIMultiDict(auth))
        self._name = "" if self.health is None else self.health.name

    def change(
        self, url: str, auth: Mapping[str, str], *, silence_seconds: float, frame_bytes: int
    ) -> None:
        """Send what is called from now on elsewhere, or with other credentials."""
        self._address.url, self._address.auth = str(URL(url)), CIMultiDict(auth)
        self._address.base = self._address.url.rstrip("/")
        self.silence_seconds, self.frame_bytes = silence_seconds, frame_bytes

    def trouble(self, kind: Trouble, why: str) -> None:
        """Take note of what only who reads the answers can tell."""
        if self.health is not None:
            self.health.trouble(kind, why)

    def concluded(self, outcome: MessageOutcome, code: Code) -> None:
        """Take note of how a message to the backend ended."""
        if self.health is not None:
            self.health.concluded(outcome, code)

    def skipped(self, session_id: str, why: str) -> None:
        """Take note that a frame of the backend could not be read."""
        if self.health is not None:
            self.health.skipped(session_id, why)

    def recorded(self, capture: SessionCapture) -> Self:
        """Return these connections as a session uses them that is recorded."""
        one = copy.copy(self)
        one._capture = capture
        return one

    def _taking(self) -> contextlib.AbstractContextManager[RecordedExchange | None]:
        """Return what a call is written by, until it is over."""
        return _UNRECORDED if self._capture is None else self._capture.call()

    def _url(self, call: Call) -> URL:
        # The last line of defence: what is not a path of segments could lead to another
        # place of the backend's host, or with the credential to another host.
        if not call.request.path:
            # Where the URL itself is asked, a slash at its end counts.
            return URL(self._address.url, encoded=True).with_query(call.request.query)
        if segments_of(call.request.path) is None:
            raise UpstreamUnavailable(
                f"The path of `{call.name}` has a part that no path may have; it was not sent.",
                sent=False,
            )
        url = URL(self._address.base + call.request.path, encoded=True)
        return url.with_query(call.request.query)

    async def _open(
        self, call: Call, load: Load, taken: RecordedExchange | None, trace: str | None = None
    ) -> aiohttp.ClientResponse:
        headers = CIMultiDict(call.request.headers)
        if trace is not None:
            headers[traces.HEADER] = traces.child(trace)
        body = call.request.body
        if not isinstance(body, FileBody):
            return await self._asked(call, headers, _data(body), taken, body)
        async with self._carrying:
            files = await load()
            # Else it would go out in chunks, which not every server takes.
            headers["Content-Length"] = str(body.size(files))
            whole = None if taken is None else b"".join(body.pieces(files))
            return await self._asked(call, headers, _pieces(body, files), taken, whole)

    async def _asked(
        self,
        call: Call,
        headers: CIMultiDict[str],
        data: Body | None,
        taken: RecordedExchange | None,
        body: bytes | None,
    ) -> aiohttp.ClientResponse:
        headers.update(self._address.auth)
        # A few bytes that unpack to gibibytes would be unpacked in one turn of the event loop.
        headers["Accept-Encoding"] = "identity"
        timeout = aiohttp.ClientTimeout(sock_connect=self.connect_seconds)
        sent: Body | Payload | None = data
        if self.permitted is not None:
            while not self.permitted():  # noqa: ASYNC110 - a clock tells of no event
                await asyncio.sleep(PERMIT_LOOK_SECONDS)
            sent = fenced(data, self.permitted)
        try:
            async with asyncio.timeout(self.answer_seconds):
                url = self._url(call)
                if taken is not None:
                    self._write(call, taken, url, headers, body)
                response = await self.session.request(
                    call.request.method,
                    url,
                    data=sent,
                    headers=headers,
                    timeout=timeout,
                    allow_redirects=False,
                    auto_decompress=False,
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failed = request_failure(error, self._name)
            if self.health is not None and failed.kind is not None:
                self.health.failed(failed.kind, failed.why)
            # The text of a bad header quotes it.
            raise failed.error from (error if failed.kind else None)
        if taken is not None:
            taken.responded(response.status, response.headers.items())
        coding = response.headers.get("Content-Encoding", "identity")
        if coding.strip().lower() != "identity":
            response.close()
            named = quoted(coding, 40)
            if self.health is not None:
                why = f"it packs an answer as `{named}`, which was not asked for"
                self.health.failed(Trouble.DIALECT, why)
            raise broken(
                "The backend's answer is packed in a way that was not asked for", f"`{named}`"
            )
        if self.health is not None:
            self.health.answered(response.status)
        return response

    def _write(
        self,
        call: Call,
        taken: RecordedExchange,
        url: URL,
        headers: CIMultiDict[str],
        body: bytes | None,
    ) -> None:
        """Write a request, without credentials and sealed answers."""
        assert self._capture is not None
        secret = self._address.auth
        taken.asked(call.request.method, url.raw_path_qs, headers.items(), secret=secret)
        if body:
            taken.sent(self._capture.body(body, call.command_ids))

    async def call(self, call: Call, load: Load = no_files, trace: str | None = None) -> Response:
        """Do a call and return its whole answer, whatever its status. `load` gives the files that
        its body names; `trace` is the `traceparent` of what it is done for.

        Raises:
            UpstreamError: there is no whole answer; `sent` of `UpstreamUnavailable` says whether
                the backend may have seen the request.
        """
        with self._taking() as taken:
            response = await self._open(call, load, taken, trace)
            # `close` and not `release`, which would read the rest of a stream that nobody reads to
            # keep the connection. A body that was read to its end has given its connection back
            # already.
            with contextlib.closing(response):
                return await self._whole(response, taken)

    async def head(self, call: Call) -> Response:
        """Do a call and return the head of its answer; nothing of the body is read.

        Raises:
            UpstreamError: there is no answer.
        """
        with self._taking() as taken:
            response = await self._open(call, no_files, taken)
            response.close()
            return self._response(response)

    async def _whole(
        self, response: aiohttp.ClientResponse, taken: RecordedExchange | None
    ) -> Response:
        body = bytearray()
        try:
            async with asyncio.timeout(self.answer_seconds):
                async for chunk in response.content.iter_any():
                    if taken is not None:
                        taken.received(chunk)
                    body += chunk
                    if len(body) > self.body_limit:
                        raise UpstreamUnavailable(
                            f"The backend's answer is longer than {self.body_limit} bytes.",
                            sent=True,
                        )
        except TimeoutError as error:
            raise UpstreamTimeout("The backend's answer did not end in time.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise broken("The backend's answer broke", why_of(error)) from error
        if taken is not None:
            taken.ended("ended")
        whole = bytes(body)
        if not is_light(whole):
            if response.status >= 300:
                # A refusal is told by its status and its begin.
                whole = whole[:OFFENDING_LIMIT]
                return self._response(response, whole)
            text = f"The backend's answer of {len(whole)} bytes has too many values."
            raise UpstreamUnavailable(text, sent=True)
        return self._response(response, whole)

    def _response(self, response: aiohttp.ClientResponse, body: bytes = b"") -> Response:
        return Response(response.status, CIMultiDict(response.headers), body, self._name)

    @contextlib.asynccontextmanager
    async def stream(
        self, call: Call, framing: str, load: Load = no_files, trace: str | None = None
    ) -> AsyncIterator[BackendStream | Response]:
        """Do a stream call: a `BackendStream` where the answer is one, else the whole answer as a
        `Response`. `load` and `trace` are as in `call`.

        A 2xx of another content type is an answer too: nothing in it is a frame.

        Raises:
            UpstreamError: there is no answer.
        """
        with self._taking() as taken:
            response = await self._open(call, load, taken, trace)
            with contextlib.closing(response):
                head = self._response(response)
                if 200 <= response.status < 300 and type_of(head) == STREAM_TYPES[framing]:
                    parser: SseParser | NdjsonParser
                    if framing == "sse":
                        parser = SseParser(max_frame_bytes=self.frame_bytes)
                    else:
                        parser = NdjsonParser(max_line_bytes=self.frame_bytes)
                    if self.health is not None:
                        self.health.opened()
                    yield BackendStream(
                        head, response, parser, self.silence_seconds, taken, self.health
                    )
                else:
                    if head.status < 300:
                        named = quoted(type_of(head), 80)
                        why = f"it answers `{call.name}` with `{named}`, not with a stream"
                        self.trouble(Trouble.DIALECT, why)
                    yield await self._whole(response, taken)


def type_of(head: Response) -> str:
    """Return the media type of an answer, without its parameters: aiohttp reads these too, for
    which it takes half a second where a backend makes it hard."""
    return head.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _data(body: bytes | None) -> bytes | io.BytesIO | None:
    """Return a body as aiohttp is to send it: a long one piece by piece, as the connection takes
    it, for in one piece the event loop would stand while the system takes it."""
    # A longer body goes out in pieces, which are as long as aiohttp's own.
    return io.BytesIO(body) if body is not None and len(body) > 64 * 1024 else body


async def _pieces(body: FileBody, files: Mapping[str, bytes]) -> AsyncIterator[bytes]:
    for piece in body.pieces(files):
        yield piece
        # A connection that takes all at once does not wait between.
        await asyncio.sleep(0)
