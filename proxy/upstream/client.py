"""One exchange with a backend: a `Call` out, a head and a body back.

The backend's credentials are added here and nowhere else. They never follow a redirect, as none is
followed. What aiohttp raises becomes `UpstreamError`s that say whether the request may have
arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from adapters.base import Call, Response
from adapters.framing import FrameTooLarge
from adapters.framing.ndjson import NdjsonParser
from adapters.framing.sse import SseFrame, SseParser
from proxy.errors import UpstreamTimeout, UpstreamUnavailable
from proxy.upstream.body import Body, Work

CONNECT_SECONDS = 10.0
"""A backend that does not take a connection within this is down; aiohttp's own default is 30."""

ANSWER_SECONDS = 60.0
"""How long the head of an answer may take.

`/execute` answers at once (engine page, section 6.4), the model's work comes later.
"""

SILENCE_SECONDS = 60.0
"""A stream without a byte for this long is dead: four of the heartbeats of about 15 s (engine page,
section 17).
"""

BODY_LIMIT = 8 * 1024 * 1024
"""Bytes of an answer that is no stream; the largest known is eve's `info`, about 100 kB."""

STREAM_TYPES = {"sse": "text/event-stream", "ndjson": "application/x-ndjson"}
"""The content type of a stream by its framing."""

# What aiohttp raises before a byte of the request has left: a bad address, a bad header.
_NOT_SENT = (aiohttp.InvalidURL, ValueError)


Frames = Sequence[SseFrame | bytes | FrameTooLarge]

Take = Callable[[Frames], Work | None]
"""Takes the next frames of a stream. What it returns is done before it gets more."""


@dataclasses.dataclass(slots=True)
class Stream:
    """An open stream: its head, its frames as they come, and the half frame `tail` that its end
    left over.
    """

    head: Response
    _response: aiohttp.ClientResponse
    _parser: SseParser | NdjsonParser
    _silence: float
    tail: bytes = b""

    async def read(self, take: Take) -> None:
        """Give `take` the frames of each piece of the body, also when there are none, until its
        end, as soon as they are here.

        Raises:
            UpstreamUnavailable: the connection broke.
            UpstreamTimeout: nothing came for as long as a stream may be silent.
            Exception: what `take` raised.
        """
        parser = self._parser
        body = Body(self._response, lambda data: take(parser.feed(data)), self._silence)
        try:
            await body.read()
        except TimeoutError as error:
            raise UpstreamTimeout("The backend was silent in the middle of a stream.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamUnavailable(f"The stream broke: {_why(error)}", sent=True) from error
        if body.error is not None:
            raise body.error
        if not isinstance(parser, NdjsonParser):
            self.tail = parser.close()
        elif (last := parser.close()) and (busy := take(last)) is not None:
            await busy


class Upstream:
    """A backend: its address and credentials, and the connections to it.

    Times are in seconds: until a connection is taken, until the head and again until the end of an
    answer that is no stream, and between two pieces of a stream.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        auth: Mapping[str, str],
        *,
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        body_limit: int = BODY_LIMIT,
    ) -> None:
        self._session = session
        self._base = str(URL(url)).rstrip("/")
        self._auth = CIMultiDict(auth)
        self._connect = connect_seconds
        self._answer = answer_seconds
        self._silence = silence_seconds
        self._limit = body_limit

    def _url(self, call: Call) -> URL:
        # The path is as the codec encoded it: `%2F` in an id must stay what it is.
        return URL(self._base + call.request.path, encoded=True).with_query(call.request.query)

    async def _open(self, call: Call) -> aiohttp.ClientResponse:
        headers = CIMultiDict(call.request.headers)
        headers.update(self._auth)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect)
        try:
            async with asyncio.timeout(self._answer):
                return await self._session.request(
                    call.request.method,
                    self._url(call),
                    data=call.request.body,
                    headers=headers,
                    timeout=timeout,
                    allow_redirects=False,
                )
        except aiohttp.ClientConnectorError as error:
            if error.os_error.errno in (errno.EMFILE, errno.ENFILE):
                raise UpstreamUnavailable(
                    "No file descriptor is left for a connection to the backend; "
                    "raise the limit (`ulimit -n`).",
                    sent=False,
                ) from error
            why = error.os_error.strerror or error.os_error
            raise UpstreamUnavailable(
                f"The backend takes no connection: {why}", sent=False
            ) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise UpstreamUnavailable(
                "The backend takes no connection in time.", sent=False
            ) from error
        except TimeoutError as error:
            raise UpstreamTimeout("The backend did not answer in time.") from error
        except _NOT_SENT as error:
            # The text of these may quote a header.
            raise UpstreamUnavailable(
                f"The request cannot be made: {type(error).__name__}", sent=False
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamUnavailable(
                f"The connection broke before an answer: {_why(error)}", sent=True
            ) from error

    async def call(self, call: Call) -> Response:
        """Do a call and return its whole answer, whatever its status.

        Raises:
            UpstreamError: there is no whole answer; `sent` of `UpstreamUnavailable` says whether
                the backend may have seen the request.
        """
        response = await self._open(call)
        # `close` and not `release`, which would read the rest of a stream that nobody reads to keep
        # the connection. A body that was read to its end has given its connection back already.
        with contextlib.closing(response):
            return await self._whole(response)

    async def _whole(self, response: aiohttp.ClientResponse) -> Response:
        body = bytearray()
        try:
            async with asyncio.timeout(self._answer):
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > self._limit:
                        raise UpstreamUnavailable(
                            f"The backend's answer is longer than {self._limit} bytes.", sent=True
                        )
        except TimeoutError as error:
            raise UpstreamTimeout("The backend's answer did not end in time.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamUnavailable(f"The answer broke: {_why(error)}", sent=True) from error
        return Response(response.status, CIMultiDict(response.headers), bytes(body))

    @contextlib.asynccontextmanager
    async def stream(self, call: Call, framing: str) -> AsyncIterator[Stream | Response]:
        """Do a stream call: a `Stream` where the answer is one, else the whole answer as a
        `Response`.

        A 2xx of another content type is an answer too: nothing in it is a frame.

        Raises:
            UpstreamError: there is no answer.
        """
        response = await self._open(call)
        with contextlib.closing(response):
            head = Response(response.status, CIMultiDict(response.headers))
            if 200 <= response.status < 300 and response.content_type == STREAM_TYPES[framing]:
                parser = SseParser() if framing == "sse" else NdjsonParser()
                yield Stream(head, response, parser, self._silence)
            else:
                yield await self._whole(response)


def _why(error: Exception) -> str:
    """Return what aiohttp says, and never nothing."""
    return str(error) or type(error).__name__
