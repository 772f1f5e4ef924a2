"""One exchange with a backend: what is sent where, what comes back, and what is said of a failure.

Of every failure it counts whether the request may have arrived: what was surely not sent may be
sent again, anything else may not.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import urllib.parse
import weakref
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
from multidict import CIMultiDict, MultiDict

from adapters.model.base import Call, Request, Response
from adapters.model.commands import Sealed
from adapters.model.file_body import body_of, file_in_base64
from adapters.wire.errors import OFFENDING_LIMIT, ErrorCode
from adapters.wire.framing import FrameTooLarge
from adapters.wire.framing.sse import SseFrame
from proxy.base.errors import UpstreamError, UpstreamTimeout, UpstreamUnavailable
from proxy.base.sealed import SecretScrubber
from proxy.upstream.client import BackendStream, Frames, Upstream
from proxy.upstream.health import Health
from tests.support.origin import Origin, head, serve_origin
from tests.support.waiting import SOON_S, until

KEY = "k-backend-1"
SSE = "Content-Type: text/event-stream"
NDJSON = "Content-Type: application/x-ndjson; charset=utf-8"


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with serve_origin() as origin:
        yield origin


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


@pytest.fixture
def upstream(http: aiohttp.ClientSession, origin: Origin) -> Upstream:
    # Long enough for a busy machine, and no test but those that say so waits for it.
    return Upstream(
        http,
        origin.url,
        {"X-Engine-Key": KEY},
        connect_seconds=5,
        answer_seconds=5,
        silence_seconds=5,
    )


def post(path: str = "/hitl/respond", body: bytes = b'{"a":1}') -> Call:
    headers = CIMultiDict({"Content-Type": "application/json"})
    return Call("respond", Request("POST", path, headers=headers, body=body))


def get(path: str, **query: str) -> Call:
    return Call("replay", Request("GET", path, MultiDict(query)), stream=True)


async def read(upstream: Upstream, call: Call, framing: str = "sse") -> tuple[list[object], bytes]:
    """Return the frames of a stream and the half frame that it left over."""
    frames: list[object] = []
    async with upstream.stream(call, framing) as answer:
        assert isinstance(answer, BackendStream)
        await collect(answer, frames)
        return frames, answer.tail


async def collect(stream: BackendStream, frames: list[object]) -> None:
    await stream.read(frames.extend)


async def test_what_a_library_quotes_of_a_backend_is_one_short_line(
    upstream: Upstream, origin: Origin
) -> None:
    origin.answers = [b"HTTP/1.1 200 OK\r\nbad\x1b[2J header" + b"x" * 4_000 + b"\r\n\r\n"]
    with pytest.raises(UpstreamUnavailable) as caught:
        await upstream.call(post())
    assert caught.value.whole.isprintable()
    assert len(caught.value.whole) < 400
    assert origin.url not in caught.value.whole


SECRET = "hunter2-hunter2"

BROKEN = {
    "a status line": f"HTTP/1.1 2x0 you said {SECRET}\r\n\r\n".encode(),
    "a header": head("200 OK", f"you said {SECRET}"),
    "a coding": head("200 OK", f"Content-Encoding: {SECRET}", "Content-Length: 0"),
    "a chunk": head("200 OK", "Transfer-Encoding: chunked") + f"{SECRET}\r\nxx\r\n".encode(),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_broken_answer_is_not_quoted_while_a_session_holds_a_sealed_value(
    upstream: Upstream, origin: Origin, what: str
) -> None:
    held = SecretScrubber()
    for holds in (False, True):
        if holds:
            held.add("c", Sealed(SECRET))
        origin.answers = [BROKEN[what]]
        with pytest.raises(UpstreamUnavailable) as caught:
            await upstream.call(post())
        # Nor a part of it: a library may cut what it quotes.
        assert (SECRET[:8] in caught.value.whole) is not holds
        assert caught.value.whole.rstrip(": ") == caught.value.whole
        assert SECRET[:8] not in caught.value.message
    held.clear()


async def refused(upstream: Upstream, call: Call) -> Response:
    """Return the answer of a stream call that is not a stream."""
    async with upstream.stream(call, "sse") as answer:
        assert isinstance(answer, Response)
        return answer


# What is sent.


async def test_a_call_sends_its_bytes_its_headers_and_the_credential(
    upstream: Upstream, origin: Origin
) -> None:
    origin.answers = [head("200 OK", "Content-Length: 2", "X-Odd: 1") + b"{}"]
    response = await upstream.call(post(body='{"a":"\N{SNOWMAN}"}'.encode()))
    assert (response.status, response.body, response.headers["x-odd"]) == (200, b"{}", "1")
    (asked,) = origin.asked
    assert (asked.method, asked.target) == ("POST", "/hitl/respond")
    assert asked.body == '{"a":"\N{SNOWMAN}"}'.encode()
    assert asked.headers["Content-Type"] == "application/json"
    assert asked.headers["X-Engine-Key"] == KEY


async def test_the_credential_replaces_what_a_codec_put_there(
    upstream: Upstream, origin: Origin
) -> None:
    origin.answers = [head("204 No Content")]
    headers = CIMultiDict({"x-engine-key": "of-a-frontend"})
    await upstream.call(Call("x", Request("GET", "/hitl/pending", headers=headers)))
    assert origin.asked[0].headers.getall("X-Engine-Key") == [KEY]


@pytest.mark.parametrize(
    ("base", "path", "target"),
    [
        ("", "/execute", "/execute"),
        ("/", "/execute", "/execute"),
        ("/engines/one", "/execute", "/engines/one/execute"),
        ("/engines/one/", "/execute", "/engines/one/execute"),
        ("/a%20b", "/execute", "/a%20b/execute"),
        # What is quoted in an id stays quoted.
        ("", "/session/a%3Ab%3F/stream", "/session/a%3Ab%3F/stream"),
        # Where the URL itself is asked, a slash at its end counts.
        ("/agent", "", "/agent"),
        ("/agent/", "", "/agent/"),
        ("/a%20b", "", "/a%20b"),
        ("", "", "/"),
    ],
)
async def test_paths_are_below_the_base_url_and_are_not_encoded_again(
    http: aiohttp.ClientSession, origin: Origin, base: str, path: str, target: str
) -> None:
    origin.answers = [head("200 OK", "Content-Length: 0")]
    upstream = Upstream(http, origin.url + base, {})
    await upstream.call(Call("x", Request("GET", path)))
    assert origin.asked[0].target == target


async def test_a_query_is_encoded_so_that_the_backend_reads_what_was_meant(
    upstream: Upstream, origin: Origin
) -> None:
    origin.answers = [head("200 OK", "Content-Length: 0")]
    query = MultiDict([("after", "0"), ("task_id", "a+b c&d=e%2F\N{SNOWMAN}"), ("after", "1")])
    await upstream.call(Call("x", Request("GET", "/execute/replay", query)))
    path, _, sent = origin.asked[0].target.partition("?")
    assert path == "/execute/replay"
    assert sent.isascii()
    assert urllib.parse.parse_qsl(sent) == list(query.items())


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_a_redirect_is_an_answer_and_the_credential_stays_here(
    upstream: Upstream, origin: Origin, status: str
) -> None:
    async with serve_origin() as elsewhere:
        elsewhere.answers = [head("200 OK", "Content-Length: 0")] * 2
        location = f"Location: {elsewhere.url}/hitl/respond"
        origin.answers = [head(status, location, "Content-Length: 0")] * 2
        assert (await upstream.call(post())).status == int(status[:3])
        assert (await refused(upstream, get("/execute/replay"))).status == int(status[:3])
        assert elsewhere.connections == 0


async def test_a_cookie_of_a_backend_is_not_kept(
    http: aiohttp.ClientSession, upstream: Upstream, origin: Origin
) -> None:
    answer = head("200 OK", "Set-Cookie: s=1; Path=/", "Content-Length: 0")
    origin.answers = [answer, answer]
    await upstream.call(post())
    await upstream.call(post())
    assert "Cookie" not in origin.asked[1].headers


# Answers.


@pytest.mark.parametrize("status", [200, 401, 404, 409, 422, 500, 503])
async def test_an_answer_comes_back_whatever_its_status(
    upstream: Upstream, origin: Origin, status: int
) -> None:
    origin.answers = [head(f"{status} x", "Content-Length: 5", "Retry-After: 3") + b"later"]
    response = await upstream.call(post())
    assert (response.status, response.body) == (status, b"later")
    assert response.headers["retry-after"] == "3"


async def test_a_body_over_the_limit_is_not_read_on(
    http: aiohttp.ClientSession, origin: Origin
) -> None:
    upstream = Upstream(http, origin.url, {}, body_limit=1000)
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(head("200 OK", "Content-Type: application/json"))
        while True:
            writer.write(b"x" * 1024)
            sent += 1024
            await writer.drain()

    origin.answers = [head("200 OK", "Content-Length: 1000") + b"x" * 1000, endless]
    assert len((await upstream.call(post())).body) == 1000
    with pytest.raises(UpstreamUnavailable, match="longer than 1000 bytes") as failed:
        await upstream.call(post())
    assert failed.value.sent
    assert sent < 8 * 2**20


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "deflate, gzip", "br", "x-unknown"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_packed_answer_is_refused_before_a_byte_of_it_is_unpacked(
    upstream: Upstream, origin: Origin, coding: str, stream: bool
) -> None:
    bomb = gzip.compress(bytes(2**20))
    origin.answers = [
        head("200 OK", f"Content-Encoding: {coding}", SSE, f"Content-Length: {len(bomb)}") + bomb
    ]
    error = await failure(upstream, stream=stream)
    assert isinstance(error, UpstreamUnavailable)
    assert error.sent
    assert f"`{coding}`" in error.whole
    assert coding not in error.message
    assert origin.asked[0].headers["accept-encoding"] == "identity"


async def test_a_packed_answer_is_told_to_the_operator_and_counts_as_a_failure(
    http: aiohttp.ClientSession, origin: Origin, caplog: pytest.LogCaptureFixture
) -> None:
    origin.answers = [head("200 OK", "Content-Encoding: gzip", "Content-Length: 0")]
    health = Health("quarry", origin.url)
    with pytest.raises(UpstreamUnavailable):
        await Upstream(http, origin.url, {}, health=health).call(post())
    assert "packs an answer as `gzip`" in caplog.text
    assert health.counts.up is False


async def test_an_answer_that_says_it_is_not_packed_is_taken(
    upstream: Upstream, origin: Origin
) -> None:
    origin.answers = [head("200 OK", "Content-Encoding: Identity", "Content-Length: 2") + b"{}"]
    assert (await upstream.call(post())).body == b"{}"


# Streams.


async def test_frames_come_as_they_arrive_however_the_bytes_are_cut(
    upstream: Upstream, origin: Origin
) -> None:
    go_on = asyncio.Event()

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head("200 OK", SSE, "Transfer-Encoding: chunked"))
        for piece in (b"event: a\ndata: 1\n\nev", b"ent: b\nda"):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
        await go_on.wait()
        for piece in (b"ta: 2\n\n", b""):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()

    origin.answers = [slowly]
    seen: list[SseFrame] = []
    async with asyncio.timeout(SOON_S), upstream.stream(get("/execute/replay"), "sse") as answer:
        assert isinstance(answer, BackendStream)
        assert answer.head.status == 200

        def take(frames: Frames) -> None:
            assert not any(isinstance(frame, FrameTooLarge) for frame in frames)
            seen.extend(frame for frame in frames if isinstance(frame, SseFrame))
            if seen:
                # The origin writes the rest only now: the first frame did not wait for it.
                go_on.set()

        await answer.read(take)
    assert [(frame.event, frame.data) for frame in seen] == [("a", b"1"), ("b", b"2")]


async def test_lines_come_with_the_last_one_that_has_no_end(
    upstream: Upstream, origin: Origin
) -> None:
    origin.answers = [head("200 OK", NDJSON) + b'{"a":1}\n\n{"a":2}\n{"a":3}']
    frames, tail = await read(upstream, get("/eve/v1/session/s/stream"), "ndjson")
    assert (frames, tail) == ([b'{"a":1}', b'{"a":2}', b'{"a":3}'], b"")


async def test_half_a_frame_at_a_clean_end_is_left_over_and_is_no_frame(
    upstream: Upstream, origin: Origin
) -> None:
    body = b"event: a\ndata: 1\n\nevent: b\ndata: {"
    origin.answers = [head("200 OK", SSE, f"Content-Length: {len(body)}") + body]
    frames, tail = await read(upstream, get("/execute/replay"))
    assert len(frames) == 1
    assert tail == b"event: b\ndata: {"


@pytest.mark.parametrize(
    "content_type",
    ["text/event-stream", "text/event-stream; charset=utf-8", "Text/Event-Stream;charset=UTF-8"],
)
async def test_a_content_type_counts_without_its_parameters_and_case(
    upstream: Upstream, origin: Origin, content_type: str
) -> None:
    origin.answers = [head("200 OK", f"Content-Type: {content_type}") + b"data: 1\n\n"]
    frames, _ = await read(upstream, get("/execute/replay"))
    assert len(frames) == 1


@pytest.mark.parametrize("value", ["a/b;" + '"' * 8000, "a/b" + ";" * 8000, "(" * 8000])
async def test_a_content_type_of_odd_characters_is_not_that_of_a_stream(
    upstream: Upstream, origin: Origin, value: str
) -> None:
    origin.answers = [head("200 OK", f"Content-Type: {value}") + b"data: 1\n\n"]
    answer = await refused(upstream, get("/execute/replay"))
    assert answer.body == b"data: 1\n\n"


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        ("200 OK", ["Content-Type: text/html"]),
        ("200 OK", ["Content-Type: application/x-ndjson"]),
        ("200 OK", []),
        ("404 Not Found", [SSE]),
        ("503 Unavailable", ["Content-Type: application/json"]),
    ],
)
async def test_what_is_no_stream_is_an_answer(
    upstream: Upstream, origin: Origin, status: str, lines: list[str]
) -> None:
    origin.answers = [head(status, *lines) + b"data: 1\n\n"]
    answer = await refused(upstream, get("/execute/replay"))
    assert (answer.status, answer.body) == (int(status[:3]), b"data: 1\n\n")


async def test_a_stream_that_is_left_is_closed_at_once(upstream: Upstream, origin: Origin) -> None:
    gone = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head("200 OK", SSE) + b"data: 1\n\n")
        assert await reader.read() == b""
        gone.set()

    origin.answers = [endless]
    seen: list[object] = []
    async with upstream.stream(get("/execute/replay"), "sse") as answer:
        assert isinstance(answer, BackendStream)
        reading = asyncio.create_task(collect(answer, seen))
        await until(lambda: len(seen) == 1)
        reading.cancel()
    async with asyncio.timeout(SOON_S):
        await gone.wait()


async def test_a_connection_is_used_again_after_a_whole_answer(
    http: aiohttp.ClientSession, origin: Origin
) -> None:
    answered = 0

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        while True:
            writer.write(head("200 OK", "Content-Length: 2", close=False) + b"{}")
            answered += 1
            await reader.readuntil(b"\r\n\r\n")

    origin.answers = [keep]
    upstream = Upstream(http, origin.url, {})
    for _ in range(3):
        await upstream.call(Call("pending", Request("GET", "/hitl/pending")))
    assert (answered, origin.connections) == (3, 1)


# Failures.


async def failure(upstream: Upstream, *, stream: bool = False) -> UpstreamError:
    work = read(upstream, get("/execute/replay")) if stream else upstream.call(post())
    with pytest.raises(UpstreamError) as failed:
        await work
    assert KEY not in failed.value.message
    return failed.value


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_connection_was_surely_not_sent(
    http: aiohttp.ClientSession, stream: bool
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        error = await failure(Upstream(http, url, {"X-Engine-Key": KEY}), stream=stream)
    assert isinstance(error, UpstreamUnavailable)
    assert not error.sent
    assert error.code is ErrorCode.BACKEND_UNAVAILABLE


async def test_a_connection_that_nobody_takes_was_surely_not_sent(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*arguments: object, **options: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", never)
    upstream = Upstream(http, "http://127.0.0.1:9", {}, connect_seconds=0.05)
    error = await failure(upstream)
    assert isinstance(error, UpstreamUnavailable)
    assert not error.sent
    assert "in time" in error.message


async def test_a_request_that_cannot_be_written_was_surely_not_sent(
    http: aiohttp.ClientSession, origin: Origin
) -> None:
    upstream = Upstream(http, origin.url, {"X-Engine-Key": f"{KEY}\r\nX-Other: 1"})
    error = await failure(upstream)
    assert isinstance(error, UpstreamUnavailable)
    assert not error.sent
    # Its text quotes the header.
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert origin.asked == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("cut", [b"", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nContent-Ty"])
async def test_a_cut_head_may_have_been_sent(
    upstream: Upstream, origin: Origin, cut: bytes, stream: bool
) -> None:
    # A GET is sent again by aiohttp where its connection was kept; here each one is new.
    origin.answers = [cut, cut]
    error = await failure(upstream, stream=stream)
    assert isinstance(error, UpstreamUnavailable)
    assert error.sent
    assert not error.message.endswith(": ")


async def test_a_head_that_is_no_http_may_have_been_sent(
    upstream: Upstream, origin: Origin
) -> None:
    origin.answers = [b"SSH-2.0-OpenSSH_9.6\r\n\r\n"]
    error = await failure(upstream)
    assert isinstance(error, UpstreamUnavailable)
    assert error.sent


@pytest.mark.parametrize("stream", [False, True])
async def test_a_head_that_does_not_come_is_a_timeout(
    http: aiohttp.ClientSession, origin: Origin, stream: bool
) -> None:
    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    origin.answers = [nothing]
    error = await failure(Upstream(http, origin.url, {}, answer_seconds=0.05), stream=stream)
    assert isinstance(error, UpstreamTimeout)
    assert error.code is ErrorCode.BACKEND_TIMEOUT


@pytest.mark.parametrize(
    "body", [b"Content-Length: 100\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n5\r\nha"]
)
async def test_half_an_answer_is_none(upstream: Upstream, origin: Origin, body: bytes) -> None:
    origin.answers = [b"HTTP/1.1 200 OK\r\n" + body]
    error = await failure(upstream)
    assert isinstance(error, UpstreamUnavailable)
    assert error.sent


async def test_an_answer_that_does_not_end_is_a_timeout(
    http: aiohttp.ClientSession, origin: Origin
) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head("200 OK", "Content-Length: 100") + b"half")
        await reader.read()

    origin.answers = [half]
    error = await failure(Upstream(http, origin.url, {}, answer_seconds=0.05))
    assert isinstance(error, UpstreamTimeout)


async def test_a_stream_that_is_cut_gives_its_frames_first(
    upstream: Upstream, origin: Origin
) -> None:
    chunk = b"data: 1\n\nda"
    cut = head("200 OK", SSE, "Transfer-Encoding: chunked")
    origin.answers = [cut + b"%x\r\n%b\r\n" % (len(chunk), chunk)]
    seen: list[object] = []
    async with upstream.stream(get("/execute/replay"), "sse") as answer:
        assert isinstance(answer, BackendStream)
        with pytest.raises(UpstreamUnavailable) as failed:
            await collect(answer, seen)
        # What was left over is not evidence of anything: the connection broke.
        assert answer.tail == b""
    assert failed.value.sent
    assert len(seen) == 1


@pytest.mark.parametrize("broken", [b"zz\r\nrest", b"5\r\nhallo!!\r\n"])
async def test_a_stream_whose_chunks_make_no_sense_is_broken(
    upstream: Upstream, origin: Origin, broken: bytes
) -> None:
    async def garbled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head("200 OK", SSE, "Transfer-Encoding: chunked"))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(broken)
        await reader.read()

    origin.answers = [garbled]
    with pytest.raises(UpstreamUnavailable):
        await read(upstream, get("/execute/replay"))


@pytest.mark.parametrize(("framing", "kind"), [("sse", SSE), ("ndjson", NDJSON)])
async def test_a_frame_that_is_longer_than_the_limit_is_skipped(
    http: aiohttp.ClientSession, origin: Origin, framing: str, kind: str
) -> None:
    lines = [b'{"a":"%b"}' % (b"x" * size) for size in (10, 1000, 10)]
    marks = (b"data: ", b"\n\n") if framing == "sse" else (b"", b"\n")
    origin.answers = [head("200 OK", kind) + b"".join(line.join(marks) for line in lines)]
    upstream = Upstream(http, origin.url, {}, frame_bytes=100)
    frames, _ = await read(upstream, get("/execute/replay"), framing)
    assert [isinstance(frame, FrameTooLarge) for frame in frames] == [False, True, False]


async def test_an_answer_with_too_many_values_is_refused_before_it_is_parsed(
    upstream: Upstream, origin: Origin
) -> None:
    bomb = b"[" + b"[]," * 300_000 + b"[]]"
    origin.answers = [head("200 OK", f"Content-Length: {len(bomb)}") + bomb]
    with pytest.raises(UpstreamUnavailable, match="too many values") as failed:
        await upstream.call(post())
    assert failed.value.sent


async def test_a_refusal_with_too_many_values_is_told_by_its_status_and_its_begin(
    upstream: Upstream, origin: Origin
) -> None:
    bomb = b"[" + b"[]," * 300_000 + b"[]]"
    origin.answers = [head("409 Conflict", f"Content-Length: {len(bomb)}") + bomb]
    response = await upstream.call(post())
    assert (response.status, response.body) == (409, bomb[:OFFENDING_LIMIT])


async def test_a_silent_stream_is_a_timeout(http: aiohttp.ClientSession, origin: Origin) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head("200 OK", SSE) + b"data: 1\n\n")
        await reader.read()

    origin.answers = [silent]
    upstream = Upstream(http, origin.url, {}, silence_seconds=0.5)
    seen: list[object] = []
    async with upstream.stream(get("/execute/replay"), "sse") as answer:
        assert isinstance(answer, BackendStream)
        with pytest.raises(UpstreamTimeout, match="silent"):
            await collect(answer, seen)
    assert len(seen) == 1


async def test_heartbeats_keep_a_stream_alive(http: aiohttp.ClientSession, origin: Origin) -> None:
    async def beating(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head("200 OK", SSE))
        for _ in range(12):
            writer.write(b": beat\n\n")
            await asyncio.sleep(0.05)
        writer.write(b"data: 1\n\n")

    origin.answers = [beating]
    # Longer in all than the silence that would end it.
    upstream = Upstream(http, origin.url, {}, silence_seconds=0.5)
    frames, _ = await read(upstream, get("/execute/replay"))
    assert len(frames) == 1


class Files(dict[str, bytes]):
    """Files whose end can be seen."""


async def test_a_stream_keeps_nothing_of_the_files_that_its_request_had(
    upstream: Upstream, origin: Origin
) -> None:
    # A turn may wait for a person for days.
    body = body_of({"file": file_in_base64("a" * 64)})
    call = Call("execute", Request("POST", "/execute", body=body), stream=True)
    origin.answers = [head("200 OK", SSE) + b"data: 1\n\n"]
    files = Files({"a" * 64: b"x" * 100_000})
    kept = weakref.ref(files)

    async def load() -> Files:
        nonlocal files
        found, files = files, Files()
        return found

    async with upstream.stream(call, "sse", load) as answer:
        assert isinstance(answer, BackendStream)
        await until(lambda: kept() is None)


async def test_no_more_files_are_loaded_than_the_backend_is_sent_at_a_time(
    upstream: Upstream, origin: Origin
) -> None:
    body = body_of({"file": file_in_base64("a" * 64)})
    call = Call("message", Request("POST", "/message", body=body))
    loads = 0
    answers = asyncio.Event()

    async def load() -> Mapping[str, bytes]:
        nonlocal loads
        loads += 1
        return {"a" * 64: b"x"}

    async def patient(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answers.wait()
        writer.write(head("200 OK", "Content-Length: 0"))

    origin.answers = [patient] * 8
    calls = [asyncio.create_task(upstream.call(call, load)) for _ in origin.answers]
    await until(lambda: len(origin.asked) == 4)
    # A request without files waits for none of them.
    origin.answers.insert(0, head("200 OK", "Content-Length: 0"))
    assert (await upstream.call(get("/health"))).status == 200
    assert loads == 4
    answers.set()
    assert [answer.status for answer in await asyncio.gather(*calls)] == [200] * len(calls)
    assert loads == len(calls)
