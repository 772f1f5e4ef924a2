"""A streamed body reaches its taker piece by piece, whole, and no faster than he wants."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.upstream.body import MOST_BYTES, Body, Work
from tests.support.origin import head, serve_origin
from tests.support.waiting import SOON_S, until

CHUNKED = head("200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
PLAIN = head("200 OK", "Content-Type: text/event-stream")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextlib.asynccontextmanager
async def answered(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object],
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The head of an answer whose body `serve` writes."""
    async with serve_origin() as origin, aiohttp.ClientSession() as http:
        origin.answers = [serve]  # type: ignore[list-item]
        async with asyncio.timeout(SOON_S), http.get(origin.url) as response:
            yield response


async def test_what_one_look_at_the_socket_brings_is_taken_at_once() -> None:
    go_on = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        await writer.drain()
        await go_on.wait()
        writer.write(chunk(b"one ") + chunk(b"two ") + chunk(b"three"))
        await asyncio.sleep(0.05)
        writer.write(chunk(b" four") + chunk(b""))
        await writer.drain()

    pieces: list[bytes] = []
    async with answered(serve) as response:
        reading = asyncio.create_task(Body(response, pieces.append, 5).read())
        await asyncio.sleep(0.05)
        go_on.set()
        await reading
    assert pieces == [b"one two three", b" four"]


async def test_while_the_taker_is_busy_the_backend_is_held_back() -> None:
    size = 64 * 1024 * 1024
    sent = 0

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(PLAIN)
        for number in range(size // 65536):
            writer.write(bytes([number % 256]) * 65536)
            await writer.drain()
            sent += 65536

    taken = bytearray()
    free = asyncio.Event()
    most = 0

    async def wait() -> None:
        await free.wait()

    def take(data: bytes) -> Work | None:
        nonlocal most
        taken.extend(data)
        most = max(most, len(data))
        return None if free.is_set() else wait()

    async with answered(serve) as response:
        reading = asyncio.create_task(Body(response, take, 20).read())
        await until(lambda: len(taken) > 0)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        # What is on its way are the buffers of two sockets and one reader.
        assert len(taken) < 2_000_000
        assert sent < size // 2
        free.set()
        await reading
    assert len(taken) == size
    assert all(taken[at] == at // 65536 % 256 for at in range(0, size, 4099))
    assert most < 4_000_000


@pytest.mark.parametrize(
    ("last", "whole", "stays"),
    [
        (b"nonsense\r\n", b"one two", 0),
        # The origin does not close: aiohttp does, and tells nobody.
        (b"nonsense\r\n", b"one two", 10),
        (b"5\r\nhal", b"one twohal", 0),
    ],
)
async def test_what_came_before_a_break_is_taken_and_then_the_break_is_told(
    last: bytes, whole: bytes, stays: float
) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"one"))
        await asyncio.sleep(0.05)
        writer.write(chunk(b" two") + last)
        await writer.drain()
        await asyncio.sleep(stays)

    pieces: list[bytes] = []
    async with answered(serve) as response:
        with pytest.raises(aiohttp.ClientError):
            await Body(response, pieces.append, 5).read()
    assert b"".join(pieces) == whole


async def test_a_compressed_body_is_unpacked_to_its_end() -> None:
    size = 8 * 1024 * 1024
    body = gzip.compress(bytes(size))
    assert len(body) < 10_000

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head("200 OK", "Transfer-Encoding: chunked", "Content-Encoding: gzip"))
        await writer.drain()
        for start in range(0, len(body), 1000):
            writer.write(chunk(body[start : start + 1000]))
            await asyncio.sleep(0.005)
        writer.write(chunk(b""))
        await writer.drain()

    taken = 0

    def take(data: bytes) -> None:
        nonlocal taken
        taken += len(data)

    async with answered(serve) as response:
        await Body(response, take, 5).read()
    assert taken == size


class Wrong(Exception):
    """Of the taker."""


@pytest.mark.parametrize("error", [Wrong(), OSError(28, "full"), TimeoutError(), StopIteration()])
@pytest.mark.parametrize("late", [False, True])
async def test_what_goes_wrong_in_the_taker_is_no_fault_of_the_body(
    error: Exception, late: bool
) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        await asyncio.sleep(0.05)
        writer.write(chunk(b"one"))
        await asyncio.sleep(10)

    async def work() -> None:
        # What a coroutine lets through of this is a `RuntimeError`.
        raise Wrong if isinstance(error, StopIteration) else error

    def take(data: bytes) -> Work | None:
        if late:
            return work()
        raise error

    async with answered(serve) as response:
        body = Body(response, take, 5)
        await body.read()
        assert type(body.error) in (type(error), Wrong)
        assert type(response.content) is aiohttp.StreamReader


async def test_silence_counts_only_while_the_taker_waits() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"one"))
        await asyncio.sleep(10)

    busy = 0

    async def work() -> None:
        nonlocal busy
        await asyncio.sleep(0.6)
        busy += 1

    async with answered(serve) as response:
        with pytest.raises(TimeoutError):
            await Body(response, lambda _: work(), 0.3).read()
    assert busy == 1


async def test_one_who_stops_reading_gets_no_more_and_leaves_no_work_behind() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        while True:
            writer.write(chunk(b"x"))
            await asyncio.sleep(0.001)

    taken = 0
    ended = False

    async def work() -> None:
        nonlocal ended
        ended = True

    async with answered(serve) as response:

        def take(data: bytes) -> Work | None:
            nonlocal taken
            taken += 1
            if taken == 3:
                # In the same turn as the work that is given back, which nobody will do.
                reading.cancel()
                return work()
            return None

        logged: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, what: logged.append(type(what.get("exception")))
        )
        reading = asyncio.create_task(Body(response, take, 5).read())
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.sleep(0.02)
        assert type(response.content) is aiohttp.StreamReader
    assert taken == 3
    assert not ended
    assert asyncio.InvalidStateError not in logged


async def test_a_small_piece_that_unpacks_to_very_much_is_taken_bit_by_bit() -> None:
    size = 64 * 1024 * 1024
    body = gzip.compress(bytes(size))

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head("200 OK", "Transfer-Encoding: chunked", "Content-Encoding: gzip"))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(chunk(body) + chunk(b""))
        await writer.drain()

    taken = most = 0

    def take(data: bytes) -> None:
        nonlocal taken, most
        taken += len(data)
        most = max(most, len(data))

    async with answered(serve) as response:
        await Body(response, take, 5).read()
    assert taken == size
    assert most < 3 * MOST_BYTES


async def test_a_connection_that_brings_many_bodies_keeps_nothing_of_them() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(0.001)
        await response.write(b"one")
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_get("/", handle)
    connections = set()
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        for _ in range(20):
            async with http.get(server.make_url("/")) as response:
                connection = response.connection
                assert connection is not None
                assert connection.protocol is not None
                closed = connection.protocol.closed
                assert closed is not None
                connections.add(closed)
                pieces: list[bytes] = []
                await Body(response, pieces.append, 5).read()
                assert b"".join(pieces) == b"one"
        (closed,) = connections
        callbacks: Any = closed._callbacks
        assert len(callbacks) == 1


@settings(max_examples=30, deadline=None)
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=30),
    busy_at=st.sets(st.integers(0, 30)),
    pauses=st.sets(st.integers(0, 30)),
    chunked=st.booleans(),
)
def test_every_body_arrives_whole_however_it_is_cut_and_taken(
    pieces: list[bytes], busy_at: set[int], pauses: set[int], chunked: bool
) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED if chunked else PLAIN)
        for number, piece in enumerate(pieces):
            writer.write(chunk(piece) if chunked else piece)
            if number in pauses:
                await writer.drain()
                await asyncio.sleep(0.001)
        if chunked:
            writer.write(chunk(b""))
        await writer.drain()

    async def check() -> None:
        got: list[bytes] = []
        working = False

        async def work() -> None:
            nonlocal working
            working = True
            await asyncio.sleep(0.0005)
            working = False

        def take(data: bytes) -> Work | None:
            assert not working
            got.append(data)
            return work() if len(got) - 1 in busy_at else None

        async with answered(serve) as response:
            await Body(response, take, 5).read()
        assert b"".join(got) == b"".join(pieces)

    asyncio.run(check())
