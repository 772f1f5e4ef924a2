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
import functools
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from adapters.base import Call, Response
from adapters.body import Body as NamingFiles
from adapters.bulk import FRAME_TEXT
from adapters.errors import cut
from adapters.framing import FrameTooLarge
from adapters.framing.ndjson import NdjsonParser
from adapters.framing.sse import SseFrame, SseParser
from adapters.paths import segments_of
from proxy.errors import UpstreamTimeout, UpstreamUnavailable
from proxy.gate import Gate
from proxy.passes import Soon
from proxy.sealed import any_held
from proxy.upstream.body import Body, Work
from proxy.upstream.unfinished import Share, Unfinished
from proxy.upstream.weigh import weighed_answer

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

BODY_LIMIT = 4 * 1024 * 1024
"""Bytes of an answer that is no stream; the largest known is eve's `info`, about 100 kB. A page of
a Herm's list has 100 events, and their texts 20,000 characters each. It is parsed in one step."""

SSE_BYTES = 2 * FRAME_TEXT
"""Bytes of a frame of an event stream that are kept until they can be weighed: no dialect of such
streams shows files in them, as eve does."""

WHY_LIMIT = 300
"""Characters of what aiohttp says of a broken answer: it quotes the line that it could not read."""

PIECE_BYTES = 64 * 1024
"""Bytes of a stream that are cut into frames and taken at once. Also of a request's body: a longer
one goes out in pieces, which aiohttp's own are as long as."""

SMALL_BYTES = 16 * 1024
"""The same where there are many line ends in it: each costs up to 0.3 µs, whatever frames they
make, and each frame is an object that the collector looks at."""

MANY_LINES = 4_000
"""Line ends in a piece above which it is cut up in small ones."""

STREAM_TYPES = {"sse": "text/event-stream", "ndjson": "application/x-ndjson"}
"""The content type of a stream by its framing."""

# What aiohttp raises before a byte of the request has left: a bad address, a bad header.
_NOT_SENT = (aiohttp.InvalidURL, ValueError)


MOST_CARRYING = 4
"""Requests with files that a backend is sent at a time, since their files are in memory meanwhile.
One that takes no body holds up its own files only, for as long as an answer is waited for."""

MOST_ASKING = 32
"""Requests that only ask something of a backend at a time: with answers of `BODY_LIMIT` each they
take 128 MiB. A backend that lets a thousand sessions ask again and again, and answers with as much
as it may, took gigabytes."""

Load = Callable[[], Awaitable[Mapping[str, bytes]]]
"""Gives the bytes of the files that the body of a request names, when it is its turn."""


async def no_files() -> Mapping[str, bytes]:
    """The files of a request that names none."""
    return {}


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
    _soon: Soon | None = None
    _unfinished: Unfinished = dataclasses.field(default_factory=Unfinished)
    tail: bytes = b""

    async def read(self, take: Take, gate: Gate) -> None:
        """Give `take` the frames of each piece of the body, also when there are none, until its
        end, as soon as they are here. Where much comes at once it goes through `gate`.

        Raises:
            UpstreamUnavailable: the connection broke.
            UpstreamTimeout: nothing came for as long as a stream may be silent.
            Exception: what `take` raised.
        """
        parser = self._parser
        share = Share(self._unfinished)
        feed = _held_by(parser, share)

        def cut_up(data: bytes) -> Work | None:
            size = len(data)
            if size <= SMALL_BYTES or (size <= PIECE_BYTES and _has_few_lines(data)):
                return take(feed(data))
            return in_pieces(data)

        async def in_pieces(data: bytes) -> None:
            # Others have their turn between them.
            for piece in _cut(data):
                frames: Frames = await gate.do(functools.partial(feed, piece))
                busy = await gate.do(functools.partial(take, frames))
                if busy is not None:
                    await busy

        body = Body(self._response, cut_up, self._silence, self._soon)
        try:
            await body.read()
        except TimeoutError as error:
            raise UpstreamTimeout("The backend was silent in the middle of a stream.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamUnavailable(f"The stream broke: {_why(error)}", sent=True) from error
        finally:
            share.release()
        if (failure := body.error) is not None:
            body.error = None
            try:
                raise failure
            finally:
                # What is raised knows this frame, and is not to be kept by it.
                del failure
        if not isinstance(parser, NdjsonParser):
            self.tail = parser.close()
        elif (last := parser.close()) and (busy := take(last)) is not None:
            await busy


def _held_by(parser: SseParser | NdjsonParser, share: Share) -> Callable[[bytes], Frames]:
    """Return the parser's `feed`, with what it holds of a frame counted."""

    def feed(data: bytes) -> Frames:
        frames: Frames = parser.feed(data)
        share.hold(parser.unfinished)
        return frames

    return feed


def _has_few_lines(data: bytes) -> bool:
    # Each of the two is looked for at the speed of C, 10 µs in the largest piece.
    return data.count(b"\n") + data.count(b"\r") <= MANY_LINES


def _cut(data: bytes) -> Iterator[bytes]:
    """Cut bytes into pieces each of which is cut into frames in a turn of the loop."""
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        size = PIECE_BYTES if _has_few_lines(piece) else SMALL_BYTES
        for begin in range(0, len(piece), size):
            yield piece[begin : begin + size]


class Upstream:
    """A backend: its address and credentials, and the connections to it.

    Times are in seconds: until a connection is taken, until the head and again until the end of an
    answer that is no stream, and between two pieces of a stream. `soon` says when the pieces of
    streams are taken, `unfinished` is what they may hold of lines.
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
        soon: Soon | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        self._session = session
        self._soon = soon
        self._unfinished = unfinished or Unfinished()
        self._base = str(URL(url)).rstrip("/")
        self._auth = CIMultiDict(auth)
        self._connect = connect_seconds
        self._answer = answer_seconds
        self._silence = silence_seconds
        self._limit = body_limit
        self._carrying = asyncio.Semaphore(MOST_CARRYING)
        self._asking = asyncio.Semaphore(MOST_ASKING)

    def _url(self, call: Call) -> URL:
        # The last line, whoever made the path: what is no path of segments could lead to another
        # place of the backend's host, or with the credential to another host.
        if segments_of(call.request.path) is None:
            raise UpstreamUnavailable(
                f"The path of `{call.name}` has a part that no path may have; it was not sent.",
                sent=False,
            )
        return URL(self._base + call.request.path, encoded=True).with_query(call.request.query)

    async def _open(self, call: Call, load: Load) -> aiohttp.ClientResponse:
        headers = CIMultiDict(call.request.headers)
        body = call.request.body
        if not isinstance(body, NamingFiles):
            return await self._asked(call, headers, _data(body))
        async with self._carrying:
            files = await load()
            # Else it would go out in chunks, which not every server takes.
            headers["Content-Length"] = str(body.size(files))
            return await self._asked(call, headers, _pieces(body, files))

    async def _asked(
        self,
        call: Call,
        headers: CIMultiDict[str],
        data: bytes | io.BytesIO | AsyncIterator[bytes] | None,
    ) -> aiohttp.ClientResponse:
        headers.update(self._auth)
        # A few bytes that unpack to gibibytes would be unpacked in one turn of the event loop.
        headers["Accept-Encoding"] = "identity"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect)
        try:
            async with asyncio.timeout(self._answer):
                response = await self._session.request(
                    call.request.method,
                    self._url(call),
                    data=data,
                    headers=headers,
                    timeout=timeout,
                    allow_redirects=False,
                    auto_decompress=False,
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
        coding = response.headers.get("Content-Encoding", "identity")
        if coding.strip().lower() != "identity":
            response.close()
            named = _quoted(coding, 40)
            raise UpstreamUnavailable(
                f"The backend's answer is packed as `{named}`, which was not asked for.", sent=True
            )
        return response

    async def call(self, call: Call, load: Load = no_files) -> Response:
        """Do a call and return its whole answer, whatever its status. `load` gives the files that
        its body names.

        Raises:
            UpstreamError: there is no whole answer; `sent` of `UpstreamUnavailable` says whether
                the backend may have seen the request.
        """
        response = await self._open(call, load)
        # `close` and not `release`, which would read the rest of a stream that nobody reads to keep
        # the connection. A body that was read to its end has given its connection back already.
        with contextlib.closing(response):
            return await self._whole(response)

    async def read(self, call: Call, load: Load = no_files) -> Response:
        """Do a call and return its whole answer, as it may be parsed. Of those that only ask, lists
        among them, so many are under way at a time: their answers are in memory, and wait for the
        thread that looks into large ones. `load` is as in `call`.

        Raises:
            UpstreamError: there is no whole answer, or more in it than is read.
        """
        if call.request.method != "GET":
            return await weighed_answer(await self.call(call, load), self._limit)
        async with self._asking:
            return await weighed_answer(await self.call(call, load), self._limit)

    async def _whole(self, response: aiohttp.ClientResponse) -> Response:
        # Its value is not copied, as that of a bytearray is.
        body = io.BytesIO()
        share = Share(self._unfinished)
        try:
            async with asyncio.timeout(self._answer):
                async for chunk in response.content.iter_any():
                    body.write(chunk)
                    share.hold(body.tell())
                    if body.tell() > self._limit:
                        raise UpstreamUnavailable(
                            f"The backend's answer is longer than {self._limit} bytes.", sent=True
                        )
        except TimeoutError as error:
            raise UpstreamTimeout("The backend's answer did not end in time.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamUnavailable(f"The answer broke: {_why(error)}", sent=True) from error
        finally:
            share.release()
        return Response(response.status, CIMultiDict(response.headers), body.getvalue())

    @contextlib.asynccontextmanager
    async def stream(
        self, call: Call, framing: str, load: Load = no_files
    ) -> AsyncIterator[Stream | Response]:
        """Do a stream call: a `Stream` where the answer is one, else the whole answer as a
        `Response`. `load` is as in `call`.

        A 2xx of another content type is an answer too: nothing in it is a frame.

        Raises:
            UpstreamError: there is no answer.
        """
        response = await self._open(call, load)
        with contextlib.closing(response):
            head = Response(response.status, CIMultiDict(response.headers))
            if 200 <= response.status < 300 and _type_of(head) == STREAM_TYPES[framing]:
                sse = framing == "sse"
                parser = SseParser(max_frame_bytes=SSE_BYTES) if sse else NdjsonParser()
                yield Stream(head, response, parser, self._silence, self._soon, self._unfinished)
            else:
                yield await self._whole(response)


def _type_of(head: Response) -> str:
    """Return the media type of an answer, without its parameters: aiohttp reads these too, for
    which it takes half a second where a backend makes it hard."""
    return head.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _data(body: bytes | None) -> bytes | io.BytesIO | None:
    """Return a body as aiohttp is to send it: a long one piece by piece, as the connection takes
    it, for in one piece the event loop would stand while the system takes it."""
    return io.BytesIO(body) if body is not None and len(body) > PIECE_BYTES else body


async def _pieces(body: NamingFiles, files: Mapping[str, bytes]) -> AsyncIterator[bytes]:
    for piece in body.pieces(files):
        yield piece
        # A connection that takes all at once does not wait between.
        await asyncio.sleep(0)


def _why(error: Exception) -> str:
    """Return what aiohttp says, and never nothing. It may quote what the backend wrote."""
    return _quoted(str(error), WHY_LIMIT) or type(error).__name__


def _quoted(text: str, limit: int) -> str:
    """Return a text that a backend had a hand in, for people; nothing while a session holds a
    sealed value: what broke may have a part of it, or spell it in a way of its own."""
    if any_held():
        return ""
    return cut("".join(char if char.isprintable() else " " for char in text), limit)
