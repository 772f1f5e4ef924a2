"""What a proxy that breaks streams does to them, and what it leaves alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from proxy.tools.replay.faults import StreamFault, StreamFaults
from tests.support.waiting import SOON_S

TEXT = "Basil — café ☕ ".encode() * 60
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


WHOLE = STREAM + chunked(TEXT)


class Planned(StreamFaults):
    """Breaks streams as a list says."""

    def __init__(self, *faults: StreamFault | None) -> None:
        super().__init__(0)
        self.left = list(faults)

    def draw(self) -> StreamFault | None:
        return self.left.pop(0)


@contextlib.asynccontextmanager
async def connected(
    faulty: StreamFaults, *answers: bytes
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection through the proxy to a server that gives one answer for each line."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            for answer in answers:
                if not await reader.readline():
                    break
                writer.write(answer)
                await writer.drain()
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(SOON_S):
        inner = server.sockets[0].getsockname()[1]
        async with faulty.before(inner, port=0) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                yield reader, writer
            finally:
                writer.close()


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes) -> bytes:
    writer.write(b"go\n")
    return await reader.readexactly(len(answer))


@pytest.mark.parametrize("kind", ["pause", "pieces"])
async def test_a_stream_that_is_slow_or_sliced_is_whole(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.tools.replay.faults.PAUSE_SECONDS", 0.01)
    async with connected(Planned(StreamFault(kind, 100)), WHOLE) as (reader, writer):  # type: ignore[arg-type]
        assert await asked(reader, writer, WHOLE) == WHOLE


async def test_a_stream_is_cut_after_that_many_bytes_of_its_body() -> None:
    async with connected(Planned(StreamFault("cut", 100)), WHOLE) as (reader, writer):
        writer.write(b"go\n")
        assert await reader.read(-1) == WHOLE[: len(STREAM) + 100]


async def test_a_stream_is_reset() -> None:
    async with connected(Planned(StreamFault("reset", 100)), WHOLE) as (reader, writer):
        writer.write(b"go\n")
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)


async def test_other_answers_are_left_alone_and_streams_behind_them_are_not() -> None:
    """Each stream of a connection gets a fault of its own."""
    plan = Planned(None, StreamFault("cut", 5))
    async with connected(plan, PLAIN, WHOLE, PLAIN, WHOLE) as (reader, writer):
        for answer in (PLAIN, WHOLE, PLAIN):
            assert await asked(reader, writer, answer) == answer
        writer.write(b"go\n")
        assert await reader.read(-1) == WHOLE[: len(STREAM) + 5]
    assert plan.left == []


def test_a_seed_draws_the_same_faults() -> None:
    first, second = StreamFaults(7), StreamFaults(7)
    drawn = [first.draw() for _ in range(40)]
    assert drawn == [second.draw() for _ in range(40)]
    assert {one.kind for one in drawn if one is not None} == {"cut", "reset", "pause", "pieces"}
    assert None in drawn
